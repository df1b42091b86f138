/* backend.h: what a device is: memory regions, copies, and a table of kernel rows.
 *
 * Laws
 *   - A row says "I can do this op kind, under these conditions (accepts), like this (launch)". Rows of a kind stand best
 *     first. `ref.*` rows accept everything, in f32 and f64, and are the truth that the others are judged by.
 *   - launch only enqueues: it never allocates, waits or fails for reasons that accepts or prepare could have seen.
 *   - The device never falls back: an op no row accepts is an error when the program is compiled.
 *   - Nothing is global: all state hangs on the open device.
 * Sees graph.h and base.h, nothing else of ours. */
#ifndef CR_BACKEND_H
#define CR_BACKEND_H

#include "graph.h"

/* What the host decides from step to step; kernels read it. */
struct cr_step_block {
    float    lr, momentum, weight_decay, clip_norm; /* clip_norm 0: no clipping */
    int64_t  step;
    uint64_t seed;
};

/* How a row computes; decides the tolerance that it is judged by. */
enum cr_math { CR_MATH_F32, CR_MATH_F64, CR_MATH_TF32, CR_MATH_BF16, CR_MATH_F16, CR_MATH_EXACT /* moves, integers */ };

struct cr_device;

/* One bound op: pointers by slot, NULL where absent. */
struct cr_call {
    const struct cr_program    *program;
    const struct cr_op         *op;
    const void                 *in[CR_OP_IN_MAX];
    void                       *out[CR_OP_OUT_MAX];
    void                       *workspace;
    void                       *prepared; /* from prepare, or NULL */
    const struct cr_step_block *step;
};

struct cr_kernel {
    const char     *name; /* "dnnl.conv": shown by plan, profile, tests */
    enum cr_op_kind op;
    enum cr_math    math;
    bool            deterministic; /* two runs with the same thread count are equal to the bit */
    /* Can this row run this op (shapes, types, attributes, absent slots)? NULL: always. */
    bool (*accepts)(const struct cr_program *program, const struct cr_op *op);
    /* Descriptors, algorithm, workspace bytes (64-byte aligned scratch valid during launch). NULL: nothing to prepare. */
    cr_status (*prepare)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes);
    cr_status (*launch)(struct cr_device *device, const struct cr_call *call);
    void (*release)(void *prepared); /* NULL when prepare is NULL */
};

struct cr_device_options {
    int  threads;       /* CPU: 0 = all this process may use */
    bool deterministic;
    bool ref_only;      /* CPU: only ref.* rows, for verify and tests */
};

struct cr_device_caps { /* for the roofline cost and the plan */
    size_t alignment;   /* of tensors, bytes */
    double bytes_per_s, flops_per_s;
    char   text[160];   /* "CPU, 2 threads, oneDNN 2.6.3" */
};

struct cr_backend {
    const char *name; /* "cpu", "cuda" */
    /* CR_OK and *why = NULL when a device is there; else *why says what is missing (static text). */
    bool (*available)(const char **why);
    cr_status (*open)(const struct cr_device_options *options, struct cr_device **out);
    void (*close)(struct cr_device *device);
    /* Memory regions, 256-byte aligned, zeroed; reserved once. */
    cr_status (*reserve)(struct cr_device *device, size_t bytes, void **out);
    void (*release)(struct cr_device *device, void *region);
    cr_status (*put)(struct cr_device *device, void *dst, const void *host, size_t bytes); /* returns when host may be reused */
    cr_status (*get)(struct cr_device *device, void *host, const void *src, size_t bytes); /* returns when host is filled */
    cr_status (*sync)(struct cr_device *device);
    /* Fills value and running planes by He's rule; on a GPU without host memory. */
    cr_status (*init_store)(struct cr_device *device, const struct cr_store *store, const struct cr_config *config, void *region);
    const struct cr_kernel *const *rows; /* best first within a kind; ends with NULL */
};

/* Every backend's device begins with this. */
struct cr_device {
    const struct cr_backend *backend;
    struct cr_device_options options;
    struct cr_device_caps    caps;
};

extern const struct cr_backend cr_backend_cpu;

/* All compiled-in backends, best first; ends with NULL. */
const struct cr_backend *const *cr_backends(void);

/* Opens the device that [train] device names (auto: the first available; `chosen` text is printed by the caller). */
CR_MUST cr_status cr_device_open(enum cr_device_kind kind, const struct cr_device_options *options, struct cr_device **out);
void              cr_device_close(struct cr_device *device); /* NULL is fine */

/* First row from index `from` on that accepts the op (and is deterministic when the device must be); NULL: none.
 * *index gets its place in backend->rows. */
const struct cr_kernel *cr_row_find(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                    int from, int *index);

#endif

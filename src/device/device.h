/* device/device.h: what a device is: memory regions, copies, and a table of kernel rows.
 *
 * Laws
 *   - A row says "I can do this op kind, under these conditions (accepts), like this (launch)". Rows of a kind stand
 * best first. `ref.*` rows accept everything, in f32 and f64, and are the truth that the others are judged by.
 *   - launch only enqueues, on its op's lane: it never allocates, waits or fails for reasons that accepts or prepare
 * could have seen, so that a whole program can be captured and replayed.
 *   - Work on one lane is done in order; between lanes only marks make order.
 *   - The device never falls back: an op no row accepts is an error when the program is compiled.
 *   - Nothing is global: all state hangs on the open device.
 * Sees graph/graph.h and core/base.h, nothing else of ours. */
#ifndef CR_BACKEND_H
#define CR_BACKEND_H

#include "graph/graph.h"

/* What the host decides from step to step; kernels read it. */
struct cr_step_block {
    float    lr, momentum, weight_decay, clip_norm; /* clip_norm 0: no clipping */
    int64_t  step;
    uint64_t seed;
};

/* How a row computes; decides the tolerance that it is judged by. */
enum cr_math { CR_MATH_F32, CR_MATH_F64, CR_MATH_TF32, CR_MATH_BF16, CR_MATH_F16, CR_MATH_EXACT /* moves, integers */ };

/* What a library's kernel may do that its op does not say. Rows of our own take none of these; verification/verify.h
 * judges accordingly. */
enum cr_relaxation {
    CR_RELAXED_HALF_BIAS     = 1 << 0, /* a bias is rounded to the program's type before it is added */
    CR_RELAXED_ROUNDED_SUM   = 1 << 1, /* a sum of products is rounded to the program's type before `add` is added */
    CR_RELAXED_ZERO_GRADIENT = 1 << 2, /* a ReLU's gradient passes where the pre-activation is exactly 0, or NaN */
    CR_RELAXED_NAN_RELU      = 1 << 3  /* a ReLU of NaN gives 0 */
};

struct cr_device;

/* One bound op: pointers by slot, NULL where absent. */
struct cr_call {
    const struct cr_program    *program;
    const struct cr_op         *op;
    const void                 *in[CR_OP_IN_MAX];
    void                       *out[CR_OP_OUT_MAX];
    void                       *workspace;
    void                       *prepared; /* from prepare, or NULL */
    const struct cr_step_block *step;     /* host memory; a device of its own reads what set_step brought it */
};

struct cr_kernel {
    const char     *name; /* "dnnl.conv": shown by plan, profile, tests */
    enum cr_op_kind op;
    enum cr_math    math;
    bool            deterministic; /* two runs with the same thread count are equal to the bit */
    unsigned        relaxations;   /* bits of enum cr_relaxation */
    bool            baseline;      /* for comparisons: nobody chooses it, and what it computes is not judged */
    bool collective; /* takes ops of several processes only: no case of one process reaches it, tests of ranks judge it
                      */
    bool     sparse; /* takes convolutions with a pattern, and no others; besides them only ref.* rows do */
    bool     sparse_cores; /* runs on sparse tensor cores: see cr_cost_table_has_lasting_effect */
    unsigned host_slots;   /* bits of the inputs that may lie in the HOST region: plain loads read each value once */
    /* Can this row run this op (shapes, types, attributes, absent slots)? NULL: always. */
    bool (*accepts)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* How many ways the row has of doing this accepted op (a library's algorithms), best first as far as it knows;
     * op->way names one of them to prepare. NULL: one. */
    int (*algo_count)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Of a row of several ways, or of several layouts of kept weights: the one that the op names, in a word or two:
     * "union 2x3/2". NULL: they have numbers alone. */
    void (*algo_name)(const struct cr_op *op, struct cr_text *out);
    /* Seconds that this accepted op will take, by arithmetic on the host; 0: it cannot tell. No more than
     * CR_ESTIMATE_MARGIN times what a GPU would measure where the way is any good: what is foreseen to take longer than
     * that many times another candidate need not be prepared and measured. NULL: it never can. */
    double (*estimate)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Descriptors, algorithm, workspace bytes (scratch as aligned as tensors are, valid during launch). NULL: nothing
     * to prepare. May allocate; whatever the op needs of device memory besides is allocated here. */
    cr_status (*prepare)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                         void **prepared, size_t *workspace_bytes);
    cr_status (*launch)(struct cr_device *device, const struct cr_call *call);
    void (*release)(void *prepared); /* NULL when prepare is NULL */
};

struct cr_comm; /* comm/comm.h */
struct cr_device_options {
    int               threads; /* CPU: 0 = all this process may use */
    bool              deterministic;
    bool              ref_only;    /* CPU: only ref.* rows, for verify and tests */
    bool              tf32;        /* GPU: convolutions and matrix products of f32 tensors may round operands to tf32 */
    int               index;       /* GPU: which */
    struct cr_comm   *comm;        /* the other ranks, for all_reduce; NULL: one rank. It outlives the device */
    int               comm_blocks; /* GPU: most thread blocks of a collective; 0: the library's own choice */
    enum cr_transport transport;   /* GPU: how gradients reach the other ranks */
};

struct cr_device_caps { /* for the roofline cost and the plan */
    size_t alignment;   /* of tensors, bytes */
    double bytes_per_s, flops_per_s;
    double f32_fraction, tf32_fraction; /* of flops_per_s, for rows of that math; 0: all of it */
    bool   half;                        /* has rows for 16-bit programs */
    double sparse_density_max; /* where costs are not measured: share of kept weights up to which layout 0 beats dense
                                * rows for filters larger than 1x1; 0: never */
    /* Copies to and from host memory beside compute, both ways at once: round figures until they are measured
     * (autotune/cost_table.h); 0: the device has no such lanes. */
    double to_host_bytes_per_s, to_device_bytes_per_s, copy_latency_s;
    double duplex_speedup; /* times as fast while none goes the other way; 0: as fast */
    /* Of a device with memory of its own: what a run takes there besides its regions, reckoned (libraries, loaded
     * kernels, recordings; not the driver's context); and what a byte of the HOST region takes (page tables). 0:
     * nothing. */
    size_t overhead_bytes;
    double host_memory_overhead;
    bool   host_memory; /* its memory is the host's: any row may read the HOST region */
    char   text[160];   /* "CPU, 2 threads, oneDNN 2.6.3" */
};

/* What a device that works beside the host can do. A mark is a place in a lane's work (a CUDA event). */
struct cr_async {
    /* Host memory that copies can run from and to while the host goes on (page-locked); zeroed. */
    cr_status (*host_reserve)(struct cr_device *device, size_t bytes, void **out);
    void (*host_release)(struct cr_device *device, void *host);
    /* Enqueued on the lane; host memory must be from host_reserve and is in use until the lane has come by. `move`
     * copies within the device. */
    cr_status (*put)(struct cr_device *device, enum cr_stream lane, void *dst, const void *host, size_t bytes);
    cr_status (*get)(struct cr_device *device, enum cr_stream lane, void *host, const void *src, size_t bytes);
    /* Some small pieces in one go, whole words of 4 bytes. */
    cr_status (*get_small)(struct cr_device *device, enum cr_stream lane, void *const *host, const void *const *src,
                           const size_t *bytes, int pieces);
    cr_status (*move)(struct cr_device *device, enum cr_stream lane, void *dst, const void *src, size_t bytes);
    /* For tests: sets each byte; keeps the lane busy for about so long. */
    cr_status (*fill)(struct cr_device *device, enum cr_stream lane, void *dst, int byte, size_t bytes);
    cr_status (*delay)(struct cr_device *device, enum cr_stream lane, int64_t ns);
    cr_status (*event_create)(struct cr_device *device, void **mark);
    void (*event_destroy)(struct cr_device *device, void *mark); /* NULL is fine */
    cr_status (*event_record)(struct cr_device *device, enum cr_stream lane, void *mark);
    /* The same for a mark that is waited for outside of what is being recorded: each replay sets it. */
    cr_status (*event_record_external)(struct cr_device *device, enum cr_stream lane, void *mark);
    cr_status (*stream_wait_event)(struct cr_device *device, enum cr_stream lane,
                                   void *mark); /* a mark never set: no wait */
    cr_status (*host_wait)(struct cr_device *device, void *mark);
    cr_status (*elapsed)(struct cr_device *device, void *from, void *to, double *seconds); /* both set and waited for */
    /* What is launched in between is recorded, not run; other lanes take part as far as marks tie them to compute. */
    cr_status (*capture_begin)(struct cr_device *device);
    cr_status (*capture_end)(struct cr_device *device, void **recording);
    cr_status (*graph_launch)(struct cr_device *device, void *recording); /* on the compute lane */
    void (*graph_destroy)(struct cr_device *device, void *recording);     /* NULL is fine */
    /* Names a stretch of the host's work in the profiler's picture (NVTX). */
    void (*range_push)(const char *name);
    void (*range_pop)(void);
};

/* A device's own ways to hand out memory while a program runs, for comparisons with a planned pool. */
struct cr_pool_event {
    int    block; /* each is taken once, then given back once */
    bool   alloc; /* else: given back */
    size_t bytes; /* > 0 */
};
struct cr_pool_times {
    double ms;         /* all calls of a step: the median */
    size_t peak_bytes; /* most memory that it held from the device, as the device tells; 0: it does not */
};
struct cr_pool {
    const char *name, *what; /* ends a list: name NULL */
    /* Plays the events of a step so many times, after one to warm up; only memory is handed out, nothing is launched.
     */
    cr_status (*measure)(struct cr_device *device, const struct cr_pool_event *event, int events, int steps,
                         struct cr_pool_times *out);
};

struct cr_spdnn_net; /* spdnn/spdnn.h */
struct cr_spdnn_inputs;
struct cr_spdnn_options;
struct cr_spdnn_result;

struct cr_gpu;
struct cr_backend {
    const char *name; /* "cpu", "cuda" */
    /* CR_OK and *why = NULL when a device is there; else *why says what is missing (static text). */
    bool (*available)(const char **why);
    int (*count)(void); /* of an available kind; NULL: 1 */
    cr_status (*open)(const struct cr_device_options *options, struct cr_device **out);
    void (*close)(struct cr_device *device);
    /* Memory regions, 256-byte aligned, zeroed; reserved once. */
    cr_status (*reserve)(struct cr_device *device, size_t bytes, void **out);
    void (*release)(struct cr_device *device, void *region);
    /* Several ranks: from here on they may read and write this region of each other's, where the device has a use for
     * that; all ranks call. unshare ends it, before the region is released, also where share failed or was not called,
     * and waits for the others: a rank that gives up aborts its comm first. Both NULL: no use. */
    cr_status (*share)(struct cr_device *device, void *region);
    void (*unshare)(struct cr_device *device);
    cr_status (*put)(struct cr_device *device, void *dst, const void *host,
                     size_t bytes); /* returns when host may be reused */
    cr_status (*get)(struct cr_device *device, void *host, const void *src,
                     size_t bytes);              /* returns when host is filled */
    cr_status (*sync)(struct cr_device *device); /* waits for all lanes; a fault of earlier work is reported here */
    /* Bytes that can still be reserved, as far as the system tells; 0: unknown. */
    size_t (*memory_free)(struct cr_device *device);
    /* caps.overhead_bytes as far as it can be measured before programs are compiled: opens libraries, counts the
     * buffers of a transport between ranks. NULL: caps.overhead_bytes it is. */
    size_t (*memory_overhead)(struct cr_device *device);
    /* Brings the step block to where kernels read it, in order with the compute lane. NULL: kernels read call->step. */
    cr_status (*set_step)(struct cr_device *device, const struct cr_step_block *step);
    /* NULL: launches are done when they return, and there is nothing to overlap. */
    const struct cr_async *async;
    /* Fills value and running planes by He's rule; on a GPU without host memory. */
    cr_status (*init_store)(struct cr_device *device, const struct cr_param_store *store,
                            const struct cr_config *config, void *region);
    const struct cr_pool *pools; /* NULL: none */
    /* Convolutions with a pattern: f32 elements that the weights it keeps take in the op's layout (attr.conv.pattern);
     * 0: that is no layout of this device's for such a convolution. NULL: it has no rows for patterns. */
    int64_t (*packed_elems)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Takes inputs through a sparse deep network; *out is empty before, and after a failure. NULL: cannot. */
    cr_status (*spdnn)(struct cr_device *device, const struct cr_spdnn_net *net, const struct cr_spdnn_inputs *inputs,
                       const struct cr_spdnn_options *options, struct cr_spdnn_result *out);
    /* Opens a GPU that is not there: see cr_gpu_open_offline. CR_ERR_DEVICE says what is missing. NULL: none of this
     * kind. */
    cr_status (*open_offline)(const struct cr_gpu *gpu, const struct cr_device_options *options,
                              struct cr_device **out);
};

/* Every backend's device begins with this. */
struct cr_device {
    const struct cr_backend       *backend;
    const struct cr_kernel *const *kernels; /* best first within a kind; ends with NULL */
    struct cr_device_options       options;
    struct cr_device_caps          caps;
    size_t free_at_start; /* of a device with memory of its own, before anything was taken there; 0: unknown */
};

/* What CUDA, cuDNN, cuBLAS, loaded kernels and a recording take on one GPU: 90 to 106 MiB for all networks tried on an
 * H200 (CUDA 13.0). Page tables of page-locked memory: 8 bytes for 4 KiB. NCCL for ranks that are only planned for: 850
 * MiB between two H200s. */
enum { CR_GPU_OVERHEAD_BYTES = 112 << 20, CR_GPU_HOST_PAGES = 512, CR_GPU_NCCL_BYTES = 864 << 20 };

extern const struct cr_backend cr_backend_cpu;

/* All compiled-in backends, best first; ends with NULL. */
const struct cr_backend *const *cr_backends(void);

/* ---- GPUs that are not there: device/gpu_specs.c ---- */

/* By data sheets; rates are those of large, dense work. */
struct cr_gpu {
    const char *name;                /* for --target: "h200" */
    const char *text;                /* "NVIDIA H200" */
    int         cc, multiprocessors; /* cc: 90 for compute capability 9.0 */
    size_t      memory_bytes;        /* as its driver counts them */
    double      bytes_per_s;
    double      flops_per_s;                 /* 16-bit matrix products, sums in f32 */
    double      f32_fraction, tf32_fraction; /* of flops_per_s */
    double      copy_bytes_per_s;            /* to or from page-locked memory of the host, each way */
};
/* NULL: none of that name. */
const struct cr_gpu *cr_gpu_find(const char *name);
void                 cr_gpu_names(struct cr_text *out); /* "h200, h100, ..." */
/* A device that only answers questions: rows, whether they accept, their workspace. Memory and launches are not for it.
 * *asked: the rows are those that would run there; else this build or machine lacks what they need, and it is
 * cr_gpu_open_from_list's. */
CR_MUST cr_status cr_gpu_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                      struct cr_device **out, bool *asked);
/* The same by a list of what kernels take, without workspaces, wherever it runs. `why`: what was missing, for
 * caps.text. */
CR_MUST cr_status cr_gpu_open_from_list(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                        const char *why, struct cr_device **out);

/* Is the device that [train] device names there? Asked before anything slow begins; opens nothing. */
CR_MUST cr_status cr_device_check(enum cr_device_kind kind);
/* How many of that kind are there; 0: none, or they cannot be used (cr_device_check says why). Opens the driver: a
 * process that asks must not fork ranks afterwards. */
int cr_device_count(enum cr_device_kind kind);
/* Opens the device that [train] device names (auto: the first available; `chosen` text is printed by the caller). */
CR_MUST cr_status cr_device_open(enum cr_device_kind kind, const struct cr_device_options *options,
                                 struct cr_device **out);
void              cr_device_close(struct cr_device *device); /* NULL is fine */

/* FLOP/s that a row of this math can reach. */
double cr_device_flops(const struct cr_device *device, enum cr_math math);

/* May this input of the row lie in the HOST region? */
bool cr_kernel_reads_host(const struct cr_device *device, const struct cr_kernel *row, int slot);
/* Does this row take the op, as far as it says? A baseline never does: nobody asks it but for a comparison. */
bool cr_kernel_accepts(const struct cr_device *device, const struct cr_kernel *row, const struct cr_program *program,
                       const struct cr_op *op);
/* First row from index `from` on that accepts the op (and is deterministic when the device must be); NULL: none.
 * *index gets its place in device->rows. */
const struct cr_kernel *cr_kernel_find(const struct cr_device *device, const struct cr_program *program,
                                       const struct cr_op *op, int from, int *index);

#endif

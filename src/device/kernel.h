/* device/kernel.h: a kernel: what it states about an op, and how it runs one; finding a kernel for an op.
 *
 * Terms
 *   - A kernel (struct cr_kernel) implements one op kind. It states which ops it supports (accepts) and runs them
 *     (launch). An algorithm (op->algo) is one of several implementations within a kernel, for example a cuDNN engine
 *     or a tile configuration.
 *
 * Invariants
 *   - The kernels of an op kind are listed best first. The `ref.*` kernels of the CPU accept every op in f32 and f64.
 *     All other kernels are tested against them.
 *   - launch only enqueues work on the stream of its op. It does not allocate and does not wait, so that a whole
 *     program can be captured into a graph. A condition that accepts or prepare can test must not make launch fail.
 *
 * Errors, units and shapes are those of device/device.h. */
#ifndef CR_DEVICE_KERNEL_H
#define CR_DEVICE_KERNEL_H

#include "graph/graph.h"

/* Values that the host sets before each step and that kernels read while they run. */
struct cr_step_block {
    float    lr, momentum, weight_decay;
    float    clip_norm; /* largest norm of the gradient; 0 disables clipping */
    int64_t  step;
    uint64_t seed;
    /* Place of the program's first image among the images of the update, of all micro-batches and ranks: the op drop
     * has the same masks for any number of ranks. */
    int64_t first_image;
};

/* Arithmetic of a kernel. It decides the tolerance of the comparison with the reference (verification/verify.h).
 * CR_MATH_EXACT: the kernel only moves values or computes integers. CR_MATH_DATA: the type of the op's data; the
 * kernels of a device have that type instead (cr_kernel_list_add). */
enum cr_math {
    CR_MATH_F32,
    CR_MATH_F64,
    CR_MATH_TF32,
    CR_MATH_BF16,
    CR_MATH_BF16_PRODUCTS, /* of f32 data: both factors are rounded to bf16, to nearest; products and sums are f32 */
    CR_MATH_F16,
    CR_MATH_EXACT,
    CR_MATH_DATA
};

/* Sets of types for cr_kernel.dtypes. */
enum {
    CR_TYPES_F32   = 1 << CR_F32,
    CR_TYPES_HALF  = 1 << CR_F16 | 1 << CR_BF16,
    CR_TYPES_FLOAT = CR_TYPES_F32 | CR_TYPES_HALF,
    CR_TYPES_BYTE  = 1 << CR_I8 | 1 << CR_U8
};

/* Deviations from the definition of an op that kernels of libraries make. Kernels of this project make only the last
 * two. verification/verify.h allows exactly the deviations that a kernel declares. */
enum cr_relaxation {
    CR_RELAXED_HALF_BIAS   = 1 << 0, /* the bias is rounded to the type of the program before it is added */
    CR_RELAXED_ROUNDED_SUM = 1 << 1, /* the sum of products is rounded to that type before `add` is added */
    CR_RELAXED_NAN_RELU    = 1 << 2, /* a ReLU of NaN gives 0 */
    CR_RELAXED_TILE_ERROR  = 1 << 3, /* a pixel has the rounding errors of the pixels near it (Winograd's algorithm) */
    CR_RELAXED_SPLIT_INPUT = 1 << 4  /* an input may be off by 2^-29 of the largest one (two f16 numbers for an f32) */
};

struct cr_device;

/* Arguments of one launch. Pointers are device addresses, indexed by the slots of graph/ops.def; an absent operand is
 * NULL. */
struct cr_call {
    const struct cr_program    *program;
    const struct cr_op         *op;
    const void                 *in[CR_OP_IN_MAX];
    void                       *out[CR_OP_OUT_MAX];
    void                       *workspace; /* scratch memory of the size that prepare returned, for this launch only */
    void                       *prepared;  /* result of prepare; NULL when the kernel has no prepare */
    const struct cr_step_block *step; /* host memory; a kernel of a GPU reads the copy that set_step made instead */
    const struct cr_call       *part; /* of the op `fused`: the calls of its parts, without workspace; else NULL */
};

/* A kernel: one implementation of one op kind: a row of a table, which ends with a row without a name. Tables are
 * constants with static lifetime. */
struct cr_kernel {
    /* "cpu.conv": printed by plan and profile, stored with kernel times. A '*' stands for the type, and the row is a
     * kernel for each of its types: "cuda.stem.*" is listed as cuda.stem.f16 and cuda.stem.bf16. */
    const char     *name;
    enum cr_op_kind op;
    enum cr_math    math;
    /* Types that the op's data may have (bit t: enum cr_dtype t). The slots of other types have those of graph/ops.def.
     * 0: the kernel takes all types and all slots, as reference kernels and copies do, or `accepts` checks both. */
    unsigned dtypes;
    /* Optional slots that the kernel implements (bit s: slot s). An op that uses another one is not accepted, so that a
     * new slot breaks no existing kernel. */
    unsigned                optional_in, optional_out;
    bool                    deterministic; /* two runs with the same number of threads are bitwise identical */
    unsigned                relaxations;   /* bits of enum cr_relaxation */
    bool                    collective;    /* accepts only ops of several ranks; tests with several ranks verify it */
    bool                    sparse;        /* accepts exactly the convolutions with a sparsity pattern */
    bool                    reference; /* defines the op: accepts every op of its kind in f32 and f64; named ref.* */
    struct cr_kernel_traits traits;

    /* Returns whether the kernel supports this op, whose types and slots have been checked: shapes, attributes, absent
     * slots. NULL: every such op. */
    bool (*accepts)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Returns the number of algorithms for this accepted op, at least 1. Algorithms are listed in the kernel's own
     * order of preference; op->algo in [0, count) selects one. NULL: one algorithm. */
    int (*algo_count)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Appends a short name of the op's algorithm or weight format to `out`: "mma_sp 2x3/2". NULL: they have numbers
     * only. */
    void (*algo_name)(const struct cr_op *op, struct cr_text *out);
    /* Returns an estimate of the seconds that this accepted op takes, computed on the host, or 0 when there is no
     * estimate. For a good algorithm the estimate is at most CR_ESTIMATE_MARGIN times the measured time. So a candidate
     * whose estimate is more than CR_ESTIMATE_MARGIN times the time of another one is pruned: it is not prepared and
     * not measured. NULL: no estimates. */
    double (*estimate)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Prepares the op for launches: creates descriptors, selects the algorithm op->algo and allocates device memory
     * that the op needs in addition to its tensors. *prepared receives an object that `release` frees.
     * *workspace_bytes receives the size of the scratch memory, which the caller provides with the alignment of
     * tensors; both are 0 before. CR_ERR_MEMORY when an allocation fails; CR_ERR_DEVICE when the library fails: then
     * *prepared is released, too. NULL: nothing to prepare. */
    cr_status (*prepare)(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                         void **prepared, size_t *workspace_bytes);
    /* Returns the size of the scratch memory of a kernel without `prepare`. NULL: no workspace. */
    size_t (*workspace)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Does the part of a launch that needs results of hoisted ops but of no others. The executor calls it when these
     * have run: on a CPU for many ops at once, from several threads; a kernel of a GPU enqueues its work. An error is
     * not reported: launch repeats what has failed. NULL: launch does everything. */
    void (*complete)(struct cr_device *device, const struct cr_call *call);
    /* conv with sums, conv_grad with grad_sums: returns the number of rows in which the kernel can store them, where
     * that is faster than a launch that adds them; such a conv_grad stores dy and computes no dw. CR_NONE: it cannot.
     * NULL: never. */
    int (*sum_rows)(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
    /* Enqueues the op on its stream. CR_ERR_DEVICE when the device reports an error. */
    cr_status (*launch)(struct cr_device *device, const struct cr_call *call);
    /* Frees what prepare returned; accepts NULL. NULL: there is nothing to free. */
    void (*release)(void *prepared);
};

/* The first members of a deterministic kernel. `kind` is the op kind without CR_OP_. */
#define CR_KERNEL(kernel_name, kind, kernel_math)                                                                      \
    .name = kernel_name, .op = CR_OP_##kind, .math = kernel_math, .deterministic = true
/* Bits of slots: CR_IN_BIT(conv, bias). */
#define CR_IN_BIT(kind, slot) (1u << CR_IN_##kind##_##slot)
#define CR_OUT_BIT(kind, slot) (1u << CR_OUT_##kind##_##slot)

/* The table of a device. A row with a '*' in its name becomes one kernel for each of its types. */
enum { CR_KERNELS_MAX = 256, CR_TYPED_KERNELS_MAX = 96, CR_KERNEL_NAME_MAX = 48 };
struct cr_kernel_list {
    const struct cr_kernel *kernel[CR_KERNELS_MAX + 1]; /* best first; ends with NULL */
    int                     count, typed_count;
    struct cr_kernel        typed[CR_TYPED_KERNELS_MAX];
    char                    typed_name[CR_TYPED_KERNELS_MAX][CR_KERNEL_NAME_MAX];
};
/* Appends the rows of a table, which must outlive the list. */
void cr_kernel_list_add(struct cr_kernel_list *list, const struct cr_kernel *rows);

/* ---- finding a kernel ---- */

/* FLOP/s that a kernel with this arithmetic can reach. */
double cr_device_flops(const struct cr_device *device, enum cr_math math);
/* Returns whether the kernel supports the op, including its types, slots and sparsity pattern. */
bool cr_kernel_accepts(const struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *program,
                       const struct cr_op *op);
/* Returns the first kernel at index `from` or later that accepts the op (and is deterministic if the device must be),
 * or NULL. *index receives its index in device->kernels. */
const struct cr_kernel *cr_kernel_find(const struct cr_device *device, const struct cr_program *program,
                                       const struct cr_op *op, int from, int *index);
/* Calls prepare or workspace of the kernel, whichever it has; see there. *prepared is NULL and *workspace_bytes 0 when
 * it has neither. cr_kernel_release frees the result. */
cr_status cr_kernel_prepare(struct cr_device *device, const struct cr_kernel *kernel, const struct cr_program *program,
                            const struct cr_op *op, void **prepared, size_t *workspace_bytes);
void      cr_kernel_release(const struct cr_kernel *kernel, void *prepared);

#endif

/* tests/checkops/checkops.h: tests every kernel of every device against the reference kernels, similar to dav1d's
 * checkasm.
 *
 * A case is an op with shapes and attributes. A unit is a program that contains only this op. A draw fills the
 * inputs of the unit with random numbers of a family. Each kernel that accepts the unit runs between guard zones,
 * with outputs that are full of NaN, twice, and once more for every input whose storage an output may reuse.
 * cr_verify_* compares the results. */
#ifndef CHECKOPS_H
#define CHECKOPS_H

#include "verification/verify.h"

enum checkops_flag {
    CHECKOPS_ACCUMULATE     = 1 << 0,
    CHECKOPS_RELU           = 1 << 1,
    CHECKOPS_ADD            = 1 << 2,
    CHECKOPS_ADD_SCALE_BIAS = 1 << 3,
    CHECKOPS_MEAN_RSTD      = 1 << 4,
    CHECKOPS_OUT_SCALE_BIAS = 1 << 4, /* conv: the BN behind it; with BITS its mask */
    CHECKOPS_MASK           = 1 << 5, /* the optional input y of bn_grad_* and conv_grad */
    CHECKOPS_NO_INDEX       = 1 << 6,
    CHECKOPS_SMOOTH         = 1 << 7,
    CHECKOPS_SCALED         = 1 << 8, /* loss scale 1024 */
    CHECKOPS_NESTEROV       = 1 << 9,
    CHECKOPS_CLIP           = 1 << 10,
    CHECKOPS_BOXES          = 1 << 11, /* the optional input boxes of normalize */
    /* options of fused ops */
    CHECKOPS_SCALE_BIAS      = 1 << 12, /* x is read as act(x) */
    CHECKOPS_SCALE_BIAS_HALF = 1 << 13, /* ... scale_bias has the program's type; bn_finalize: writes such a copy */
    CHECKOPS_SUMS            = 1 << 14, /* the op also returns sums of its results (sums, grad_sums) */
    CHECKOPS_BIAS            = 1 << 15,
    CHECKOPS_BN =
        1 << 16, /* bn_x, mean_rstd and the inputs that belong to them; conv_grad with SCALE_BIAS: mean_rstd alone */
    CHECKOPS_BN2 = 1 << 17, /* relu_grad: a second BN */
    CHECKOPS_BITS =
        1 << 18, /* the mask consists of bits; bn_apply: writes the mask; sgd: has a mask of pruned weights */
    CHECKOPS_MASK_FROM_X = 1 << 19, /* the mask is recomputed from act(x) */
    CHECKOPS_FROZEN_BN   = 1 << 20, /* conv_grad: the inputs of a frozen BN, dy_x and its coefficients */
    CHECKOPS_NO_DX       = 1 << 21,
    CHECKOPS_S2D         = 1 << 22,
    CHECKOPS_FINISH      = 1 << 23, /* with SUMS or BN: the op also finishes these sums */
    CHECKOPS_PATTERN     = 1 << 24, /* the filter is sparse and the op has its sparsity pattern */
    CHECKOPS_MIXES       = 1 << 25, /* loss, loss_grad: each target has two labels */
    CHECKOPS_TWO         = 1 << 26, /* with PATTERN: the sparsity pattern is 2:4; grouped: 4 groups instead of 2;
                                       conv_grad: the summand is the gradient of a shortcut without parameters; loss,
                                       loss_grad: binary cross-entropy of one label, with MIXES a target threshold */
    CHECKOPS_WEIGHTS     = 1 << 28, /* loss, loss_grad: class weights */
    CHECKOPS_FOCAL       = 1 << 29, /* loss, loss_grad: focal loss */
    CHECKOPS_SEVERAL     = 1 << 30, /* loss, loss_grad: several labels per sample */
    CHECKOPS_BYTES       = 1 << 27  /* pooling and the shortcut without parameters: on 8-bit integers */
};

struct checkops_case {
    enum cr_op_kind         kind;
    int64_t                 N, H, W, C, K;
    int                     window, stride, pad; /* pad of pad_shortcut: pad_c */
    unsigned                flags;
    struct cr_sparse_format format; /* with PATTERN: as in struct cr_sparsity_attr */
    enum cr_dtype           real;
    bool                    big; /* few draws; long operands are periodic */
};
enum checkops_extent {
    CHECKOPS_WIDE, /* f32; a few small cases in f64, f16 and bf16 */
    /* for a device with kernels for 16-bit programs: all cases in f16 and bf16 too, and the layers of ResNet-50 */
    CHECKOPS_HALF
};
struct checkops_list {
    enum checkops_extent  extent;
    struct checkops_case *item;
    int                   count, capacity;
    bool                  failed;
};
/* All cases, ordered by op kind. The caller frees the list with checkops_list_free. */
CR_MUST cr_status checkops_list_make(enum checkops_extent extent, struct checkops_list *list);
/* Cases of BN statistics from Gram matrices. */
void checkops_list_gram(struct checkops_list *list);
void checkops_list_gram_layers(struct checkops_list *list); /* of ResNet-50 */
void checkops_list_free(struct checkops_list *list);
/* Whether 16-bit programs need cases of their own for this op: false if all tensors of the op are f32 there. */
bool checkops_has_half(enum cr_op_kind kind);
/* ---- internal: checkops_cases.c, checkops_fused.c, checkops_fused_sparse.c and checkops_layers.c ---- */
/* One shape of a table of cases. */
struct checkops_shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
    bool    big;
};
struct checkops_table {
    const struct checkops_shape *shape;
    size_t                       shapes;
};
#define CHECKOPS_TABLE(name)                                                                                           \
    (struct checkops_table) {                                                                                          \
        name, CR_COUNT(name)                                                                                           \
    }
#define CHECKOPS_FLAGS(...) ((const unsigned[]){__VA_ARGS__}), CR_COUNT(((const unsigned[]){__VA_ARGS__}))
/* An op with flags, for each shape of a list. */
struct checkops_job {
    enum cr_op_kind kind;
    unsigned        flags;
};
/* An f32 case of this shape. */
struct checkops_case checkops_case_of(const struct checkops_shape *shape, enum cr_op_kind kind, unsigned flags);
void                 checkops_list_add(struct checkops_list *list, const struct checkops_case *c);
/* Adds the case and copies of it in other types. `place` is the number of the shape: types without kernels of the
 * device get a few of the first shapes. */
void checkops_list_add_types(struct checkops_list *list, const struct checkops_case *c, size_t place);
void checkops_list_fused(struct checkops_list *list);
/* Convolutions of `convs` whose filters have a sparsity pattern. */
void checkops_list_sparse(struct checkops_list *list, const struct checkops_shape *convs, size_t count);
void checkops_list_fused_layers(struct checkops_list *list);
void checkops_list_layers(struct checkops_list *list, enum cr_op_kind kind); /* convolutions of ResNet-50, batch 2 */

/* A case as a program of one op. Freed with checkops_unit_free. */
struct checkops_unit {
    struct checkops_case  c;
    struct cr_param_store store;
    struct cr_program     program;
    struct cr_step_block  step;
    const struct cr_op   *op;
    uint8_t              *pattern; /* sparsity pattern of the filter; NULL: none */
};
CR_MUST cr_status checkops_unit_make(const struct checkops_case *c, struct checkops_unit *unit);
/* ---- internal: checkops_unit.c and checkops_unit_*.c ---- */
struct checkops_build {
    struct cr_program          *p;
    const struct checkops_case *c;
    enum cr_dtype               real,
        /* type of data; type of tensors that are f32 in a 16-bit program: sums, vectors, gradients of parameters */
        wide;
    struct cr_op op;
};
void    checkops_build_in(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                          int64_t d3);
void    checkops_build_out(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                           int64_t d3);
void    checkops_build_image(struct checkops_build *b, int slot); /* an input of shape N,H,W,C */
void    checkops_build_mask(struct checkops_build *b, int slot);  /* ... or of its bits */
void    checkops_build_conv(struct checkops_build *b);
void    checkops_build_group_conv(struct checkops_build *b);
void    checkops_build_conv_pair(struct checkops_build *b);
void    checkops_build_conv_pool(struct checkops_build *b);
void    checkops_build_quant(struct checkops_build *b);
void    checkops_build_gram(struct checkops_build *b);
void    checkops_build_loss(struct checkops_build *b);
void    checkops_build_distill(struct checkops_build *b);
void    checkops_build_update(struct checkops_build *b);
void    checkops_build_ema(struct checkops_build *b);
void    checkops_build_op(struct checkops_build *b); /* operands and attributes of b->op */
bool    checkops_is_update(enum cr_op_kind kind);    /* sgd, adamw, lars, lamb, muon, ema */
int64_t checkops_window_out(int64_t size, const struct checkops_case *c);
/* ---- */
void checkops_unit_free(struct checkops_unit *unit);
void checkops_unit_text(const struct checkops_unit *unit, char *text, size_t size);
/* Makes a store of a few parameters with odd sizes, decayed, not decayed and frozen, with padding between them, and
 * of one parameter of `thousands` * 1000 elements. */
void checkops_store_make(enum cr_dtype real, int64_t thousands, struct cr_param_store *store);

/* ---- inputs ---- */

enum checkops_family {
    FAMILY_NORMAL,
    FAMILY_HALF_ZERO,
    FAMILY_LARGE_MEAN,
    FAMILY_EQUAL,
    FAMILY_HUGE,
    FAMILY_DENORMAL,
    FAMILY_NONFINITE,
    FAMILIES
};
struct checkops_draw {
    enum checkops_family family;
    int                  target; /* the input slot that a HUGE, DENORMAL or NONFINITE draw fills; CR_NONE otherwise */
};
enum { CHECKOPS_DRAWS_MAX = 32 };
int  checkops_draws(const struct checkops_unit *unit, int index, struct checkops_draw draws[CHECKOPS_DRAWS_MAX]);
void checkops_draw_text(const struct checkops_unit *unit, const struct checkops_draw *draw, char *text, size_t size);

struct checkops_inputs {
    void *in[CR_OP_IN_MAX];
    void *before[CR_OP_OUT_MAX];
};
CR_MUST cr_status checkops_inputs_make(const struct checkops_unit *unit, const struct checkops_draw *draw,
                                       struct checkops_inputs *inputs);
void              checkops_inputs_free(struct checkops_inputs *inputs);

/* ---- kernels ---- */
struct checkops_verdict {
    bool   ok;
    double worst;
    char   why[400]; /* the first error */
};
/* Memory that all runs on a device use: one region of device memory, and the host's copies of it. A zeroed arena
 * with a device is empty; it grows when needed. */
struct checkops_arena {
    struct cr_device *device;
    char             *region; /* device memory */
    size_t            bytes;
    unsigned char    *before, *after[2]; /* contents before a run; contents after the first and after a later run */
    size_t            before_bytes, after_bytes;
    bool              guard_pages; /* some runs are between pages without access; only host memory can be */
    unsigned          runs;        /* of checkops_kernel */
};
void checkops_arena_close(struct checkops_arena *arena);

/* Runs a kernel on a unit as described at the top of this file. Returns an error only if the test itself fails;
 * errors of the kernel are in *verdict. `truth` is the expected result for the kernel's math. */
CR_MUST cr_status checkops_kernel(struct checkops_arena *arena, const struct cr_kernel *kernel,
                                  const struct checkops_unit *unit, const struct checkops_inputs *inputs,
                                  const struct cr_verify_expected *truth, struct checkops_verdict *verdict);

/* Results of one kernel, in the order of device->kernels. */
struct checkops_tally {
    int    runs, failures;
    double worst;
    char   why[700]; /* the first failure */
};
enum { CHECKOPS_KERNELS_MAX = 512 };
struct checkops_runner {
    const char       *name; /* name of the device, for reports */
    struct cr_device *device;
    struct cr_device *cpu, *wide_cpu; /* devices of the reference: one thread, and all threads for big cases */
    const char       *filter;         /* only kernels whose name contains it; NULL: all */
    bool              algos;          /* run all algorithms of kernels that have several */
    bool              until_failure;  /* stop after the first case that fails */
    int               shard, shards;  /* only cases whose number is `shard` modulo `shards`; shards 0: all cases */
    /* Every n-th draw, beginning with another one in each case; 0 and 1: all. reference_draws: in cases that only
     * reference kernels run. */
    int                   draws, reference_draws;
    int64_t               until_ns;    /* cr_time_ns after which no further case starts; 0: no limit */
    bool                  cut;         /* cases were left at that time */
    bool                  only_tf32;   /* only ops that have a kernel of math TF32, in f32 */
    bool                  guard_pages; /* of the arena, on devices with host memory */
    struct checkops_arena arena;
    struct checkops_tally tally[CHECKOPS_KERNELS_MAX];
    bool                  skip[CHECKOPS_KERNELS_MAX]; /* kernels to skip */
    /* Called after the last case of a kind, or NULL: results of its kernels can be printed. */
    void (*kind_done)(struct checkops_runner *runner, enum cr_op_kind kind);
    void *caller; /* of kind_done */
    const struct cr_kernel
           *kernel[CHECKOPS_KERNELS_MAX]; /* the kernels of the device; they are the same however it is opened */
    int     kernels, cases, only_ref, failures;
    int64_t reference_ns, device_ns; /* time of the reference; time of kernels and copies */
};
/* Runs all cases on the kernels of runner->device. Adds to the results of an earlier run on the same device opened
 * with other options. The caller then calls checkops_arena_close(&runner->arena). */
CR_MUST cr_status checkops_runner(struct checkops_runner *runner, const struct checkops_list *list);
/* Whether a kernel of this kind has math TF32. */
bool checkops_has_tf32(const struct checkops_runner *runner, enum cr_op_kind kind);

/* ---- kernels that no case has reached: checkops_reach.c ---- */
struct checkops_reach {
    bool here;          /* a GPU of the asked capability accepts a case: the kernel should have run */
    char elsewhere[64]; /* other capabilities whose GPUs accept one: " 8.0 8.6"; "": no GPU does, the kernel is dead */
};
/* Compute capability times 10 that the kernels of an open device see, from caps.text; 0 when there is none. */
int checkops_capability(const char *text);
/* Asks offline devices for `count` kernels by their names; a name that no device has is reached nowhere. The process
 * must not open a GPU, see cr_gpu_open_offline. */
CR_MUST cr_status checkops_reach(int cc, int count, const char *const name[], struct checkops_reach reach[]);
/* Whether it is right that no case has reached the kernel: it is for GPUs of other capabilities. */
bool checkops_reach_ok(const struct checkops_reach *reach);

/* Runs kernels that are wrong on purpose, and returns the number of those that were not detected. With shards > 0 only
 * the kernels of one shard run; a shard is chosen as for cases. *tried is the number of kernels that ran. */
int checkops_selftest(struct cr_device *cpu, int shard, int shards, int *tried);
/* ---- internal: checkops_selftest.c and checkops_selftest_fused.c ---- */
/* Runs the kernel, which is wrong if its name begins with "bad"; returns whether the verdict is correct. */
typedef bool checkops_blames(void *self, const struct cr_kernel *kernel);
int          checkops_selftest_fused(checkops_blames *blames, void *self);

#endif

/* tests/checkops/checkops.h: does every kernel row of every device compute what the reference says? After dav1d's
 * checkasm.
 *
 * A case is an op with shapes and attributes; a unit is a program with that one op; a draw fills its inputs from a
 * family. Each row that accepts a unit runs on it between guard zones, on outputs full of NaN, twice, and once more for
 * every input whose storage an output may take over; cr_verify_* judges. */
#ifndef CHECKOPS_H
#define CHECKOPS_H

#include "verification/verify.h"

enum checkops_flag {
    CHECKOPS_ACCUMULATE     = 1 << 0,
    CHECKOPS_RELU           = 1 << 1,
    CHECKOPS_ADD            = 1 << 2,
    CHECKOPS_ADD_SCALE_BIAS = 1 << 3,
    CHECKOPS_MEAN_RSTD      = 1 << 4,
    CHECKOPS_MASK           = 1 << 5, /* the optional y of bn_grad_* */
    CHECKOPS_NO_INDEX       = 1 << 6,
    CHECKOPS_SMOOTH         = 1 << 7,
    CHECKOPS_SCALED         = 1 << 8, /* loss scale 1024 */
    CHECKOPS_NESTEROV       = 1 << 9,
    CHECKOPS_CLIP           = 1 << 10,
    CHECKOPS_BOXES          = 1 << 11, /* the optional boxes of normalize */
    /* what fused ops have besides */
    CHECKOPS_SCALE_BIAS      = 1 << 12, /* x is read as act(x) */
    CHECKOPS_SCALE_BIAS_HALF = 1 << 13, /* ... its coefficients in the program's type; bn_finalize: makes that copy */
    CHECKOPS_SUMS            = 1 << 14, /* sums of what was computed: stats, dstats */
    CHECKOPS_BIAS            = 1 << 15,
    CHECKOPS_BN              = 1 << 16, /* bn_x, saved and what belongs to them; conv_grad with COEF: saved alone */
    CHECKOPS_BN2             = 1 << 17, /* relu_grad: a second one */
    CHECKOPS_BITS            = 1 << 18, /* the mask is one of bits; bn_apply: makes it; sgd: has one */
    CHECKOPS_MASK_FROM_X     = 1 << 19, /* the mask is made again from act */
    CHECKOPS_FROZEN_BN       = 1 << 20, /* conv_grad: dy_x and dy_coef */
    CHECKOPS_NO_DX           = 1 << 21,
    CHECKOPS_S2D             = 1 << 22,
    CHECKOPS_FINISH          = 1 << 23, /* with STATS or BN: what becomes of those sums */
    CHECKOPS_PATTERN         = 1 << 24, /* the filter is mostly pruned, and the op says so */
    CHECKOPS_MIXES           = 1 << 25, /* loss, loss_grad: targets of two labels */
    CHECKOPS_TWO             = 1 << 26  /* with PATTERN: it is 2:4 */
};

/* Layouts from here on are of blocks of 64 x 64 channels: patterns keep them whole (cuda/core/cuda_device.h:
 * CUDA_FORMAT_BLOCK_SPARSE). */
enum { CHECKOPS_FORMAT_BLOCK_SPARSE = 64 };
/* Layouts between these are for f32 alone (cuda/core/cuda_device.h: CUDA_FORMAT_WGMMA_SP). */
enum { CHECKOPS_FORMAT_WGMMA_SP = 52, CHECKOPS_FORMAT_WGMMA_SP_END = 60 };

struct checkops_case {
    enum cr_op_kind kind;
    int64_t         N, H, W, C, K;
    int             window, stride, pad; /* pad: pad_c of pad_shortcut */
    unsigned        flags;
    int             format; /* with PATTERN: see cr_pattern_attr */
    enum cr_dtype   real;
    bool            big;   /* few draws, long operands repeat themselves; timed by --bench */
    bool            timed; /* for --bench alone: small ones show the judge as much */
};
enum checkops_extent {
    CHECKOPS_WIDE, /* f32; a few small cases in f64, f16 and bf16 */
    CHECKOPS_HALF, /* for a device with rows for 16-bit programs: all in f16 and bf16 too, and the layers of ResNet-50
                    */
    CHECKOPS_FULL_SIZE /* for --bench on such a device: ResNet-50, batch 256, f16: sizes that fill it */
};
struct checkops_list {
    enum checkops_extent  extent;
    struct checkops_case *item;
    int                   count, capacity;
    bool                  failed;
};
/* All cases, by op kind. Ends the list's life with checkops_list_free. */
CR_MUST cr_status checkops_list_make(enum checkops_extent extent, struct checkops_list *list);
void              checkops_list_free(struct checkops_list *list);
/* An op of a 16-bit program whose tensors are f32 there has no cases of its own in 16 bits. */
bool checkops_has_half(enum cr_op_kind kind);
/* ---- between tests/checkops/checkops_cases.c, tests/checkops/checkops_fused.c and tests/checkops/checkops_layers.c
 * ---- */
void checkops_list_add(struct checkops_list *list, const struct checkops_case *c);
/* With the case's twins in other types; `place` counts shapes: types that the device has no rows for get a few early
 * ones. */
void checkops_list_add_types(struct checkops_list *list, const struct checkops_case *c, size_t place);
void checkops_list_fused(struct checkops_list *list);
void checkops_list_fused_layers(struct checkops_list *list);
void checkops_list_fused_full_size(struct checkops_list *list);
void checkops_list_layers(struct checkops_list *list, enum cr_op_kind kind); /* convolutions of ResNet-50, batch 2 */
void checkops_list_full_size(struct checkops_list *list);

/* A case as a program of one op. */
struct checkops_unit {
    struct checkops_case  c;
    struct cr_param_store store;
    struct cr_program     program;
    struct cr_step_block  step;
    const struct cr_op   *op;
    uint8_t              *pattern; /* of the store; NULL: none */
};
CR_MUST cr_status checkops_unit_make(const struct checkops_case *c, struct checkops_unit *unit);
/* ---- between tests/checkops/checkops_unit.c and tests/checkops/checkops_unit_conv.c ---- */
struct checkops_build {
    struct cr_program          *p;
    const struct checkops_case *c;
    enum cr_dtype real, wide; /* of data; of what is f32 in a 16-bit program: sums, vectors, gradients of parameters */
    struct cr_op  op;
};
void    checkops_build_in(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                          int64_t d3);
void    checkops_build_out(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                           int64_t d3);
void    checkops_build_image(struct checkops_build *b, int slot); /* an input of N,H,W,C */
void    checkops_build_mask(struct checkops_build *b, int slot);  /* ... or its bits */
void    checkops_build_conv(struct checkops_build *b);
int64_t checkops_window_out(int64_t size, const struct checkops_case *c);
/* ---- */
void checkops_unit_free(struct checkops_unit *unit);
void checkops_unit_text(const struct checkops_unit *unit, char *text, size_t size);
/* A store of a few parameters with odd sizes: decayed, not decayed and frozen ones, padding between them; and one of
 * `thousands` * 1000 elements. */
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
    int                  target; /* the input slot that a HUGE, DENORMAL or NONFINITE draw is about; CR_NONE */
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

/* ---- rows ---- */

struct checkops_verdict {
    bool   ok;
    double worst;
    char   why[400]; /* what went wrong first */
};
/* Memory that all runs on a device share: a region of its own, and the host's pictures of it. A zeroed one with a
 * device is empty; it grows when it must. */
struct checkops_arena {
    struct cr_device *device;
    char             *region; /* device memory */
    size_t            bytes;
    unsigned char    *before,
        *after[2]; /* what goes there before a run; what came back from the first and from a later one */
    size_t before_bytes, after_bytes;
};
void checkops_arena_close(struct checkops_arena *arena);

/* Runs a row on a unit as described above. A status other than CR_OK is the harness's own trouble. `truth` is for the
 * row's math. */
CR_MUST cr_status checkops_kernel(struct checkops_arena *arena, const struct cr_kernel *row,
                                  const struct checkops_unit *unit, const struct checkops_inputs *inputs,
                                  const struct cr_verify_expected *truth, struct checkops_verdict *verdict);
/* Seconds of one launch: the best of several, or of several rows of launches on a device that works beside the host. */
CR_MUST cr_status checkops_time(struct checkops_arena *arena, const struct cr_kernel *row,
                                const struct checkops_unit *unit, const struct checkops_inputs *inputs,
                                double *seconds);

/* What a walk over a device found; one entry a row, in the order of device->rows. */
struct checkops_tally {
    int    runs, failures;
    double worst;
    char   why[700]; /* of the first failure */
};
enum { CHECKOPS_KERNELS_MAX = 512 };
struct checkops_runner {
    const char             *name; /* of the device, for reports */
    struct cr_device       *device;
    struct cr_device       *cpu, *wide_cpu; /* for the reference: one thread, and all there are for big cases */
    const char             *filter;         /* only rows whose name contains it; NULL: all */
    bool                    bench;
    bool                    algos;         /* all ways of rows that have several */
    bool                    until_failure; /* ends with the first case that fails */
    int                     shard, shards; /* only cases whose number is `share` modulo `shares`; shares 0: all */
    int64_t                 until_ns;      /* cr_time_ns at which to begin no further case; 0: never */
    bool                    cut;           /* there were cases left then */
    bool                    only_tf32;     /* only ops that have a row of math TF32, in f32 */
    struct checkops_arena   arena;
    struct checkops_tally   tally[CHECKOPS_KERNELS_MAX];
    bool                    skip[CHECKOPS_KERNELS_MAX];   /* rows */
    const struct cr_kernel *kernel[CHECKOPS_KERNELS_MAX]; /* a device has the same rows however it is opened */
    int                     kernels, cases, only_ref, failures;
    int64_t                 reference_ns, device_ns; /* where the time went */
};
/* Adds to what an earlier walk over another opening of the same device found. Ends with checkops_arena_close(&arena).
 */
CR_MUST cr_status checkops_runner(struct checkops_runner *walk, const struct checkops_list *list);

/* Runs deliberately wrong rows through the walk; returns how many were not caught. *tried gets their number. */
int checkops_selftest(struct cr_device *cpu, int *tried);
/* ---- between tests/checkops/checkops_selftest.c and tests/checkops/checkops_selftest_fused.c ---- */
typedef bool checkops_blames(void *self, const struct cr_kernel *row,
                             bool wrong); /* walks the row; is the verdict right? */
int          checkops_selftest_fused(checkops_blames *blames, void *self, int *tried);

#endif

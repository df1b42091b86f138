/* verification/verify.h: tests a kernel's accuracy (tolerance): runs one op with the `ref.*` kernel in FP64 on the same
 * inputs and compares the outputs with a computed error bound.
 *
 * The bound of an output element y is
 *     (CR_VERIFY_C * sum * sqrt(n) + operand) * A + drift * n * |y| + tiny + slack + result + round
 *   - sum, operand, drift, result: properties of the kernel's arithmetic (struct cr_verify_unit)
 *   - n: length of the longest reduction that leads to the element, plus the roundings around the reduction
 *   - A: the same expression over absolute values in FP64. A is computed by the reference kernel on magnitudes, or by
 *     a closed formula if the expression is not a sum (the table in verification/bound.c).
 *   - tiny: loss by gradual underflow, or by flushing to zero; with CR_RELAXED_SPLIT_INPUT also that of inputs
 *   - slack: in fused ops, the effect of a rounding or a sign that may legitimately differ (verification/inputs.c,
 *     verification/cases.c)
 *   - round: half a unit in the last place of the type of the output
 *
 * Sums of values that the same op has just computed (BN sums fused into a convolution) add the errors of these values:
 * as the root of squares where the errors are independent, linearly where they have the same sign
 * (verification/sums.c). CR_VERIFY_C is the same for all ops. Kernels that only move or round values must be exact (-0
 * equals 0).
 *
 * Invariants
 *   - NaN and infinity must appear where the reference has them. Exceptions:
 *     - An element may overflow if A exceeds the largest number of the type of the sum, or if the element cannot be
 *       distinguished from a number beyond the largest of a type to which it is rounded.
 *     - grad_norm's norm is not compared when its non-finite flag is set, because it is not used then.
 *     - If an operand of a convolution is not finite, NaN may appear anywhere, because tensor cores multiply it with
 *       the zeros of the padding. But a value that is not finite in the reference must not be finite.
 *   - A relaxation that a kernel declares (device/kernel.h) is allowed, element by element. No other deviation is. With
 *     CR_RELAXED_TILE_ERROR, A of a 3x3 convolution of stride 1 is the largest A among the pixels that may share a tile
 *     with the element.
 *   - This folder does not depend on the backend under test: outputs are passed as host memory in the types of the
 *     tensors. */
#ifndef CR_VERIFY_H
#define CR_VERIFY_H

#include "runtime/executor.h"

#define CR_VERIFY_C 4.0
#define CR_VERIFY_UNUSED (-1.0) /* value of A: the element is not compared */

/* Result of a comparison; the members from slot to bound describe the worst element. */
struct cr_verify_result {
    bool    ok;
    int     slot;  /* output slot */
    int64_t index; /* element */
    double  got, want, bound;
    double  worst;     /* largest |got - want| / bound; infinite if a NaN or infinity is at a wrong position */
    int64_t nonfinite; /* number of elements where exactly one side is finite */
};

/* Host copies of the inputs of an op in the types of the tensors, by slot; NULL where absent. Slots that the op updates
 * in place hold the values before the update. `before` holds the previous values of outputs to which the op adds
 * without reading them through a slot (cr_verify_accumulates); NULL for all other outputs. */
struct cr_verify_io {
    const void *in[CR_OP_IN_MAX];
    const void *before[CR_OP_OUT_MAX];
    unsigned    relaxations; /* of the kernel under test: bits of enum cr_relaxation */
};
/* Returns whether the op adds to this output without reading it through an input slot. */
bool cr_verify_accumulates(const struct cr_op *op, int out_slot);

/* The reference result of one op: values and bounds of all output elements. A zeroed struct is empty. */
struct cr_verify_expected {
    const struct cr_program *program;
    const struct cr_op      *op;
    enum cr_math             math;
    unsigned                 relaxations;
    int64_t                  elems[CR_OP_OUT_MAX];  /* 0: the slot is absent */
    double                  *want[CR_OP_OUT_MAX];   /* [elems] */
    double                  *scale[CR_OP_OUT_MAX];  /* [elems]: A */
    double                  *before[CR_OP_OUT_MAX]; /* [elems] of outputs to which the op adds; else NULL */
    double                   terms[CR_OP_OUT_MAX];  /* n */
    double                   tiny[CR_OP_OUT_MAX];
    /* Of fused ops; NULL where not needed. */
    double *slack[CR_OP_OUT_MAX];       /* [elems]: additional difference that is allowed; of a bit mask: the bits that
                                           are not compared */
    double *alternative[CR_OP_OUT_MAX]; /* [elems]: second correct value, if a ReLU mask may be open or closed; values
                                           between `want` and this value are wrong. NaN: none */
    double *noise[CR_OP_OUT_MAX];       /* [elems] of sums of just computed values: root of the sum of the squares of
                                           their A */
    double *pull[CR_OP_OUT_MAX];        /* [elems] of such sums: sum of their magnitudes */
    double  noise_terms[CR_OP_OUT_MAX]; /* n of the values in such sums */
    bool    bits[CR_OP_OUT_MAX];        /* the output is a bit mask */
    double  peak;                       /* intermediate values may be this factor larger than A */
    bool    exact;                      /* outputs must be equal */
    bool    spreads;                    /* a convolution with an operand that is not finite */
};
/* Computes the reference result. `cpu` is any open CPU device; `math` is that of the kernel under test. The program
 * must outlive *out, which cr_verify_expected_free frees. CR_ERR_MEMORY when an allocation fails. */
CR_MUST cr_status cr_verify_expected_make(struct cr_device *cpu, const struct cr_program *program,
                                          const struct cr_op *op, enum cr_math math, const struct cr_step_block *step,
                                          const struct cr_verify_io *io, struct cr_verify_expected *out);
void              cr_verify_expected_free(struct cr_verify_expected *expected);
/* Compares the outputs got[slot] (host memory in the types of the tensors) with the reference result. */
void cr_verify_compare(const struct cr_verify_expected *expected, const void *const got[],
                       struct cr_verify_result *out);

/* cr_verify_expected_make and cr_verify_compare in one call. */
CR_MUST cr_status cr_verify_op(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                               enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                               const void *const got[], struct cr_verify_result *out);

/* Runs a program that has a batch op by op on `device`, the device of `exec`, and verifies every op. The inputs of each
 * op are read back from the device, so errors do not accumulate. Stops at the first op that exceeds its bound with
 * CR_ERR_NUMERIC; the message names the op. *checked receives the number of verified ops, *worst the largest ratio of a
 * difference to its bound. */
CR_MUST cr_status cr_verify_program(struct cr_device *cpu, struct cr_device *device, struct cr_exec *exec,
                                    const struct cr_program *program, const struct cr_step_block *step, int *checked,
                                    double *worst);

/* Returns the reference kernel of an op kind on a CPU device, or NULL. */
const struct cr_kernel *cr_verify_ref(const struct cr_device *cpu, enum cr_op_kind kind);

/* ---- for the files of this folder: verification/rules.c, bound.c and numbers.c ---- */

/* Error model of an arithmetic; verification/numbers.c explains the values. */
struct cr_verify_unit {
    double        sum;     /* unit roundoff of the type of sums */
    double        drift;   /* loss of each term of a sum whose roundings all have the same sign */
    double        operand; /* relative rounding of the operands of a product, both together */
    enum cr_dtype result;  /* type to which a sum may be rounded before it is converted to a wider type; CR_F64: none */
    bool          bf16_factors; /* both factors of a convolution are rounded to bf16 */
};
/* One op in FP64: buffers by slot; floating-point tensors as f64, integers in their own type. */
struct cr_verify_values {
    const struct cr_program    *program, *original; /* with f64 tensors; with the original types */
    const struct cr_op         *op;
    const struct cr_step_block *step;
    const void                 *in[CR_OP_IN_MAX];
    const double *const        *want;
    double                      u; /* unit roundoff of sums */
    unsigned                    relaxations;
};
/* A run of the reference kernel. Before each run the prologue of a fused op replaces the operands by those of the plain
 * op and removes the slots that are no longer needed. Each run starts from the original op and inputs. */
enum cr_verify_pass {
    CR_VERIFY_WANT,
    CR_VERIFY_SCALE, /* on magnitudes */
    CR_VERIFY_FLIP   /* on magnitudes plus the possible error of each operand; the increase of A is slack */
};
struct cr_verify_run {
    enum cr_verify_pass      pass;
    const struct cr_program *original;
    struct cr_op            *op;
    void *const             *in;    /* [CR_OP_IN_MAX]: f64, or integers in their own type */
    bool                     flips; /* set by the prologue: an operand may be off */
};
/* How A is found for an op kind. */
struct cr_verify_rule {
    bool     exact;    /* the op moves values or computes integers: no bound */
    unsigned unless;   /* bits of input slots: the op is not exact if one of them is present */
    bool     rounds;   /* exact after rounding the reference to the type of the output */
    bool     products; /* sums of products, computed by tensor cores and libraries */
    bool     pads;     /* sums of products over a padded image */
    bool     by_unit;  /* A depends on the math */
    bool     no_value; /* outputs have no values to compare */
    /* Transformation of each input for the run on magnitudes, one letter for each slot: 'k' unchanged, 'a' absolute,
     * 'n' minus absolute, 's' (mean, rstd) as (-|mean|, |rstd|). A is |output|. NULL: cr_verify_hooks.closed computes
     * A. */
    const char *magnitude;
    char        before; /* the letter for accumulated outputs */
    double      extra;  /* number of roundings around the reduction */
};
typedef void      cr_verify_prologue(struct cr_verify_run *run);
typedef cr_status cr_verify_epilogue(const struct cr_verify_values *v, struct cr_verify_expected *expected);
/* The functions of an op kind. */
struct cr_verify_hooks {
    /* Changes attributes and step block for the run on magnitudes (mean of normalize, sign of lr); may be NULL. */
    void (*adjust)(struct cr_op *op, struct cr_step_block *step);
    /* Computes A, which is 0 before; NULL if cr_verify_rule.magnitude is used. */
    void (*closed)(const struct cr_verify_values *v, double *const scale[]);
    /* Corrects A after the run on magnitudes; may be NULL. */
    void (*correct)(const struct cr_verify_values *v, double *const scale[]);
    /* Replaces operands before each run; may be NULL. */
    cr_verify_prologue *prologue;
    /* Adds masks, sums and bits of a fused op at the end; may be NULL. */
    cr_verify_epilogue *epilogue;
};
bool                          cr_verify_is_exact(const struct cr_op *op);
const struct cr_verify_rule  *cr_verify_rule(enum cr_op_kind kind); /* asserts that the kind has a rule */
const struct cr_verify_hooks *cr_verify_hooks(enum cr_op_kind kind);
double cr_verify_terms(const struct cr_program *program, const struct cr_op *op, int out_slot); /* n */
const struct cr_verify_unit *cr_verify_unit(enum cr_math math);
double                       cr_verify_peak(const struct cr_program *program, const struct cr_op *op);
/* The term `tiny` for every math except F64, which has none. */
double cr_verify_tiny(const struct cr_verify_values *v, int out_slot);
/* |loss scale * loss weight| / number of labelled images: the factor of the gradient of the loss. */
double cr_verify_loss_grad_factor(const struct cr_verify_values *v);
double cr_verify_stored(enum cr_dtype dtype, double x); /* x rounded to dtype */
double cr_verify_half_ulp(enum cr_dtype dtype,
                          double        x);           /* largest rounding error of numbers up to x; 0 for integers */
double cr_verify_largest(enum cr_dtype dtype); /* largest finite number */

/* ---- fused ops: verification/inputs.c, cases.c, sums.c, bn_finalize.c ---- */

/* Error of x*scale + bias relative to |x*scale| + |bias|: two roundings in f32, with a margin for kernels that compute
 * scale and bias from factors. */
#define CR_VERIFY_AFFINE 0x1p-22
/* Largest error of a kernel's x*scale + bias; 0 if f32 arithmetic is exact. */
double cr_verify_affine_error(double x, double scale, double bias);
/* Allocates array[slot], one of those of `expected`, for the elements of an output, zeroed, if it is NULL. */
CR_MUST cr_status cr_verify_array(const struct cr_verify_expected *expected, int slot, double **array);
/* Allocates expected->alternative[slot], filled with NaN, if it is NULL. */
CR_MUST cr_status cr_verify_alternatives(struct cr_verify_expected *expected, int slot);

/* ReLU mask: where a gradient passes. Corresponds to struct ref_relu_mask of the reference kernels. UNSURE: the
 * pre-activation is so close to 0 that its sign may differ. */
enum cr_verify_mask_bit { CR_VERIFY_MASKED, CR_VERIFY_PASSED, CR_VERIFY_UNSURE };
struct cr_verify_mask {
    int            slot; /* input slot of x */
    const double  *x, *scale_bias, *mean_rstd, *gamma, *beta, *y;
    const uint8_t *bits;
    int64_t        C;
    bool           is_f64;
};
/* Builds the mask from input slots of the op; y and scale_bias may be CR_NONE or absent. */
struct cr_verify_mask   cr_verify_mask_of(const struct cr_verify_values *v, int x, int y, int scale_bias);
enum cr_verify_mask_bit cr_verify_mask_bit_at(const struct cr_verify_mask *mask, int64_t i, int64_t channel);
/* Applies the mask to an output that was computed without it. */
CR_MUST cr_status cr_verify_apply_mask(const struct cr_verify_mask *mask, struct cr_verify_expected *expected,
                                       int slot);

/* Results of bn_finalize for one channel. */
enum {
    CR_VERIFY_BN_MEAN,
    CR_VERIFY_BN_RSTD,
    CR_VERIFY_BN_SCALE,
    CR_VERIFY_BN_BIAS,
    CR_VERIFY_BN_RUNNING_MEAN,
    CR_VERIFY_BN_RUNNING_VAR,
    CR_VERIFY_BN_NUMBERS
};
/* Returns whether a convolution finalizes its own BN sums. The bounds then depend on the math. */
bool cr_verify_fuses_finalize(const struct cr_op *op);
/* Largest error of element i of an output, including the rounding to its type. *any: every value is allowed. */
double    cr_verify_error(const struct cr_verify_expected *expected, int slot, int64_t i, bool *any);
cr_status cr_verify_finalize_conv(const struct cr_verify_values *v, struct cr_verify_expected *expected);
cr_status cr_verify_finalize_conv_grad(const struct cr_verify_values *v, struct cr_verify_expected *expected);

/* Inputs of bn_finalize for one channel: the mean, the biased variance, which may be negative, their possible errors,
 * and k, the relative error of a few roundings. Computes the results and their possible errors. */
struct cr_verify_moments {
    const struct cr_bn_attr *attr;
    double                   mean, var, mean_error, var_error, gamma, beta, running_mean, running_var, k;
};
void cr_verify_finalize_moments(const struct cr_verify_moments *f, double want[CR_VERIFY_BN_NUMBERS],
                                double error[CR_VERIFY_BN_NUMBERS]);
/* max(x*scale + bias, 0), rounded to dtype; *off: the largest difference of the value that a kernel computes. */
double cr_verify_activated(enum cr_dtype dtype, double x, double scale, double bias, double *off);

/* The functions of struct cr_verify_hooks. */
cr_verify_prologue cr_verify_prologue_gram, cr_verify_prologue_gram_dgrad, cr_verify_prologue_conv,
    cr_verify_prologue_wgrad, cr_verify_prologue_dgrad, cr_verify_prologue_conv_grad, cr_verify_prologue_maxpool;
cr_verify_epilogue cr_verify_epilogue_conv, cr_verify_epilogue_conv_pool, cr_verify_epilogue_conv_pair,
    cr_verify_epilogue_dgrad, cr_verify_epilogue_conv_grad, cr_verify_epilogue_gram,
    cr_verify_epilogue_gram_bn_finalize, cr_verify_epilogue_gram_bn_sums, cr_verify_epilogue_gram_bn_grad,
    cr_verify_epilogue_gram_dgrad, cr_verify_epilogue_muon, cr_verify_epilogue_head, cr_verify_epilogue_relu_grad,
    cr_verify_epilogue_maxpool, cr_verify_epilogue_bn_apply, cr_verify_epilogue_bn_grad_sums,
    cr_verify_epilogue_bn_grad_apply, cr_verify_epilogue_pool_bn_grad_sums, cr_verify_epilogue_pool_bn_grad_apply;

#endif

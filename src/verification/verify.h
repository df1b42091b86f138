/* verification/verify.h: is a kernel row right? Runs one op by the `ref.` row in double on the same inputs as the row
 * under test, and compares with a bound that is computed, not found by hand.
 *
 * The bound of an output element y is
 *     (CR_VERIFY_C * sum * sqrt(n) + operand) * A + drift * n * |y| + tiny + slack + result + round
 * where sum, operand, drift and result follow from the row's math (struct cr_verify_unit) and
 *   n      is the length of the longest reduction that leads to the element, plus the roundings around it,
 *   A      the same expression over absolute values, in double: the reference row run again on magnitudes, or a closed
 * form where the expression is not a sum (see the table in verification/bound.c), tiny   what gradual underflow, or its
 * absence, may lose, slack  of fused ops: what a rounding or a sign that may come out either way changes
 * (verification/inputs.c, verification/cases.c), round  half a unit in the last place of the output's type. Sums of
 * numbers that the same op has just computed (statistics behind a convolution) add the errors of those numbers: as a
 * root of squares where they are independent, one by one where they all go the same way (verification/sums.c).
 * One constant CR_VERIFY_C serves the whole project. Rows that only move values are judged to the bit (as values: -0 is
 * 0), and so are those that do nothing but round.
 *
 * Laws
 *   - NaN and infinity must stand where the reference has them. Exceptions: an element whose A is beyond the largest
 * number that the row sums in may overflow, and so may one that cannot be told from a number beyond the largest of a
 * type that it is rounded to; grad_norm's norm is not compared when its flag is up (it is not used then); where an
 * operand of a convolution is not finite, NaN may stand anywhere (matrix units multiply the zeros of the padding with
 * it), but what the reference has as not finite must not look finite.
 *   - What a row has declared as a liberty (device/device.h) is not held against it, element by element, and nothing
 * else is.
 *   - Nothing here knows which backend is judged: outputs come as host memory in the tensors' types. */
#ifndef CR_VERIFY_H
#define CR_VERIFY_H

#include "runtime/executor.h"

#define CR_VERIFY_C 4.0
#define CR_VERIFY_UNUSED (-1.0) /* as A: the element is not compared */

struct cr_verify_result {
    bool    ok;
    int     slot;  /* output slot of the worst element */
    int64_t index; /* its element index */
    double  got, want, bound;
    double  worst;     /* largest |got-want|/bound over all elements; infinite when a NaN or infinity is out of place */
    int64_t nonfinite; /* elements where one side is finite and the other is not */
};

/* Host inputs of an op in the tensors' types, by slot, NULL where absent. For slots that the op updates in place: the
 * values before. `before`: outputs that the op adds to without reading them through a slot (cr_verify_accumulates), as
 * they were; NULL elsewhere. */
struct cr_verify_io {
    const void *in[CR_OP_IN_MAX];
    const void *before[CR_OP_OUT_MAX];
    unsigned    relaxations; /* of the row to be judged */
};
bool cr_verify_accumulates(const struct cr_op *op, int out_slot);

/* What the reference says about one op: values and bounds of every output element. A zeroed struct is empty. */
struct cr_verify_expected {
    const struct cr_program *program;
    const struct cr_op      *op;
    enum cr_math             math;
    unsigned                 relaxations;
    int64_t                  elems[CR_OP_OUT_MAX];  /* 0: slot absent */
    double                  *want[CR_OP_OUT_MAX];   /* [elems] */
    double                  *scale[CR_OP_OUT_MAX];  /* [elems]: A */
    double                  *before[CR_OP_OUT_MAX]; /* [elems] of outputs that the op adds to; else NULL */
    double                   terms[CR_OP_OUT_MAX];  /* n */
    double                   tiny[CR_OP_OUT_MAX];
    /* Of fused ops; NULL where there is none of it. */
    double *slack[CR_OP_OUT_MAX]; /* [elems]: what may come out differently besides; of bits: which */
    double
        *alternative[CR_OP_OUT_MAX]; /* [elems]: what a gate that may be open or closed makes of the element otherwise:
                                  right as well as `want`, and what lies between is not; NaN: no such gate */
    double *noise[CR_OP_OUT_MAX];    /* [elems] of sums of numbers that the op has just computed: root of */
    double *pull[CR_OP_OUT_MAX];     /* ... the sum of squares of their A, and sum of their magnitudes; */
    double  noise_terms[CR_OP_OUT_MAX]; /* their n */
    bool    bits[CR_OP_OUT_MAX];        /* a bit mask */
    double  peak;                       /* intermediate values may be this many times A */
    bool    exact;
    bool    spreads; /* a convolution of numbers that are not all finite */
};
/* `cpu`: any open CPU device. `math`: of the row to be judged. The program must outlive the truth. */
CR_MUST cr_status cr_verify_expected_make(struct cr_device *cpu, const struct cr_program *program,
                                          const struct cr_op *op, enum cr_math math, const struct cr_step_block *step,
                                          const struct cr_verify_io *io, struct cr_verify_expected *out);
/* Makes a truth that was made for another row good for one of this math and with these relaxations. false: it must be
 * made anew. */
bool cr_verify_expected_reuse(struct cr_verify_expected *truth, enum cr_math math, unsigned relaxations);
void cr_verify_expected_free(struct cr_verify_expected *truth);
/* Judges outputs `got[slot]` (host, in the tensors' types). */
void cr_verify_compare(const struct cr_verify_expected *truth, const void *const got[], struct cr_verify_result *out);

/* Both at once. */
CR_MUST cr_status cr_verify_op(struct cr_device *cpu, const struct cr_program *program, const struct cr_op *op,
                               enum cr_math math, const struct cr_step_block *step, const struct cr_verify_io *io,
                               const void *const got[], struct cr_verify_result *out);

/* Runs a whole program, already fed, op by op on `device` (the one that exec is bound to); each op's inputs are taken
 * from the device itself, so errors do not add up. Stops at the first op out of bounds: the message names it
 * (CR_ERR_NUMERIC). *checked gets the number of ops compared, *worst the largest ratio to a bound. */
CR_MUST cr_status cr_verify_program(struct cr_device *cpu, struct cr_device *device, struct cr_exec *exec,
                                    const struct cr_program *program, const struct cr_step_block *step, int *checked,
                                    double *worst);

/* The reference row of an op kind on a CPU device; NULL: none. */
const struct cr_kernel *cr_verify_ref(const struct cr_device *cpu, enum cr_op_kind kind);

/* ---- between verification/verify.c and verification/bound.c ---- */

/* What a math may cost. Why each number is what it is stands in verification/bound.c. */
struct cr_verify_unit {
    double        sum;     /* unit roundoff of the type that sums run in */
    double        drift;   /* what each term loses, of a sum whose roundings all go the same way */
    double        operand; /* operands are rounded before they are multiplied: both together, relative */
    enum cr_dtype result;  /* the type that a sum may be rounded to on its way to a wider one; CR_F64: none */
};
/* One op in double: buffers by slot, real ones as f64, integers as they are. */
struct cr_verify_values {
    const struct cr_program    *program, *original; /* the f64 twin, and with the types as they are */
    const struct cr_op         *op;
    const struct cr_step_block *step;
    const void                 *in[CR_OP_IN_MAX];
    const double *const        *want;
    double                      u;
    unsigned                    relaxations;
};
/* Operands of one run of the reference, before it: a fused op's hook makes of them what its plain op would have met,
 * and takes the slots away that are done with. Each pass starts from the op and its inputs as they are. */
enum cr_verify_pass {
    CR_VERIFY_WANT,
    CR_VERIFY_SCALE, /* on magnitudes */
    CR_VERIFY_FLIP   /* on magnitudes, and as much more as an operand may be off by: what A grows by is slack */
};
struct cr_verify_run {
    enum cr_verify_pass      pass;
    const struct cr_program *original;
    struct cr_op            *op;
    void *const             *in;    /* [CR_OP_IN_MAX], f64 or integers as they are */
    bool                     flips; /* out: an operand may be off */
};
/* How A is found for an op kind. */
struct cr_verify_rule {
    bool     exact;    /* moves and integers: no bound */
    unsigned unless;   /* ... unless one of these input slots is used */
    bool     rounds;   /* exact, and what is right is the reference's value rounded to the output's type */
    bool     products; /* sums of products, as matrix units and libraries compute them */
    bool     pads;     /* ... over a padded image */
    bool     by_unit;  /* A depends on the math */
    bool     no_value; /* outputs have no value: there is nothing to compare */
    /* Inputs of the run on magnitudes, a letter a slot: 'k' kept, 'a' absolute, 'n' minus absolute, 's' (mean, rstd) as
     * (-|mean|, |rstd|). NULL: `closed` fills A. `before` is the letter of accumulated outputs. A is |output|. */
    const char *magnitude;
    char        before;
    double      extra; /* roundings around the reduction */
    /* Attributes and step block of the run on magnitudes (mean of normalize, sign of lr); may be NULL. */
    void (*adjust)(struct cr_op *op, struct cr_step_block *step);
    void (*closed)(const struct cr_verify_values *v, double *const scale[]);
    /* Corrects A after a run on magnitudes; may be NULL. */
    void (*correct)(const struct cr_verify_values *v, double *const scale[]);
    void (*prologue)(struct cr_verify_run *run); /* see above; may be NULL */
    /* Gates, sums and bits of a fused op, after all else; may be NULL. */
    cr_status (*epilogue)(const struct cr_verify_values *v, struct cr_verify_expected *truth);
};
bool                         cr_verify_is_exact(const struct cr_op *op);
const struct cr_verify_rule *cr_verify_rule(enum cr_op_kind kind); /* asserts that there is one */
double cr_verify_terms(const struct cr_program *program, const struct cr_op *op, int out_slot); /* n */
const struct cr_verify_unit *cr_verify_unit(enum cr_math math);
double                       cr_verify_peak(const struct cr_program *program, const struct cr_op *op);
double cr_verify_tiny(const struct cr_verify_values *v, int out_slot); /* of any math but F64, which loses nothing */
double cr_verify_stored(enum cr_dtype dtype, double x);                /* x rounded to dtype */
double cr_verify_half_ulp(enum cr_dtype dtype, double x); /* rounding of a number up to x to dtype; 0 for integers */
double cr_verify_largest(enum cr_dtype dtype);            /* largest finite number */

/* ---- fused ops: verification/inputs.c, verification/cases.c, verification/sums.c, verification/bn_finalize.c ---- */

/* Relative to |x*scale| + |bias|: two roundings in f32, and room for more where scale and bias are made of factors. */
#define CR_VERIFY_AFFINE 0x1p-22
/* How far a row's x*scale + bias may be from the right one; 0 where f32 arithmetic is exact. */
double cr_verify_affine_error(double x, double scale, double bias);
/* Allocates *array for an output's elements, zeroed, unless it is there. */
CR_MUST cr_status cr_verify_array(const struct cr_verify_expected *truth, int slot, double **array);
/* The same for truth->other, with NaN everywhere. */
CR_MUST cr_status cr_verify_alternatives(struct cr_verify_expected *truth, int slot);

/* Where a gradient passes; as struct ref_relu_mask of the reference rows. */
enum cr_verify_mask_bit { CR_VERIFY_MASKED, CR_VERIFY_PASSED, CR_VERIFY_UNSURE };
struct cr_verify_mask {
    int            slot; /* of x */
    const double  *x, *scale_bias, *mean_rstd, *gamma, *beta, *y;
    const uint8_t *bits;
    int64_t        C;
    bool           is_f64, zero_passes; /* CR_RELAXED_ZERO_GRADIENT */
};
/* Slots of the op; y and act may be CR_NONE, or not used. */
struct cr_verify_mask   cr_verify_mask_of(const struct cr_verify_values *v, int x, int y, int act);
enum cr_verify_mask_bit cr_verify_mask_bit_at(const struct cr_verify_mask *gates, int64_t i, int64_t channel);
/* Puts gates on an output that was computed without them. */
CR_MUST cr_status cr_verify_apply_mask(const struct cr_verify_mask *gates, struct cr_verify_expected *truth, int slot);

/* One channel of bn_finalize: its sums, by how much they may be off, and k, the relative error of a handful of
 * roundings. */
enum {
    CR_VERIFY_BN_MEAN,
    CR_VERIFY_BN_RSTD,
    CR_VERIFY_BN_SCALE,
    CR_VERIFY_BN_BIAS,
    CR_VERIFY_BN_RUNNING_MEAN,
    CR_VERIFY_BN_RUNNING_VAR,
    CR_VERIFY_BN_NUMBERS
};
struct cr_verify_finalize {
    const struct cr_bn_attr *attr;
    double                   sum, squares, sum_error, squares_error, gamma, beta, running_mean, running_var, k;
};
void cr_verify_finalize(const struct cr_verify_finalize *f, double want[CR_VERIFY_BN_NUMBERS],
                        double error[CR_VERIFY_BN_NUMBERS]);
/* Does a convolution make coefficients of its own sums? Their bounds depend on the math. */
bool cr_verify_fuses_finalize(const struct cr_op *op);
/* How far element i of an output may be off, the rounding to its type included. *any: it may be anything. */
double    cr_verify_error(const struct cr_verify_expected *truth, int slot, int64_t i, bool *any);
cr_status cr_verify_finalize_conv(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_finalize_conv_grad(const struct cr_verify_values *v, struct cr_verify_expected *truth);

void      cr_verify_prologue_conv(struct cr_verify_run *run);
void      cr_verify_prologue_wgrad(struct cr_verify_run *run);
void      cr_verify_prologue_dgrad(struct cr_verify_run *run);
void      cr_verify_prologue_conv_grad(struct cr_verify_run *run);
void      cr_verify_prologue_maxpool(struct cr_verify_run *run);
cr_status cr_verify_epilogue_conv(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_dgrad(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_conv_grad(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_relu_grad(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_maxpool(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_bn_apply(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_bn_grad_sums(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_bn_grad_apply(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_pool_bn_grad_sums(const struct cr_verify_values *v, struct cr_verify_expected *truth);
cr_status cr_verify_epilogue_pool_bn_grad_apply(const struct cr_verify_values *v, struct cr_verify_expected *truth);

#endif

/* verify.h: is a kernel row right? Runs one op by a row under test and by the `ref.` row in double on the same inputs, and
 * compares with a bound that is computed, not found by hand.
 *
 * The bound of an output element is  CR_VERIFY_C * u * sqrt(n) * A + round,  where u is the unit roundoff of the row's
 * math, n the length of the longest reduction that leads to it, A the same sum over absolute values (in double), and round
 * the rounding to the output's type. One constant CR_VERIFY_C serves the whole project. */
#ifndef CR_VERIFY_H
#define CR_VERIFY_H

#include "exec.h"

#define CR_VERIFY_C 4.0

struct cr_verify_result {
    bool    ok;
    int     slot;          /* output slot of the worst element */
    int64_t index;         /* its element index */
    double  got, want, bound;
    double  worst;         /* largest |got-want|/bound over all elements */
    int64_t nonfinite;     /* elements where one side is finite and the other is not */
};

/* Compares outputs `got[slot]` (host, in the tensors' types) of op `op` of `program`, computed from host inputs `in[slot]`
 * (in the tensors' types; for slots updated in place: the values before). `cpu` is any open CPU device (used for ref). */
CR_MUST cr_status cr_verify_op(struct cr_device *cpu, const struct cr_program *program, int op, enum cr_math math,
                               const struct cr_step_block *step, const void *const in[], void *const got[],
                               struct cr_verify_result *out);
/* Runs a whole program on memory already fed, op by op; each op's inputs are taken from the device itself. Stops at the
 * first op out of bounds: the message names it (CR_ERR_NUMERIC). *checked gets the number of ops compared. */
CR_MUST cr_status cr_verify_program(struct cr_device *cpu, struct cr_exec *exec, const struct cr_program *program,
                                    const struct cr_step_block *step, int *checked, double *worst);

#endif

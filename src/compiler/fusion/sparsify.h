/* compiler/fusion/sparsify.h: shared by sparsify.c and sparsify_report.c. */
#ifndef CR_SPARSIFY_H
#define CR_SPARSIFY_H

#include "compiler/passes.h"

/* No sparse kernel has been faster above this density. */
#define CR_SPARSE_DENSITY_MAX 0.7

/* Sums of times in seconds over the ops with a sparsity pattern: with every op dense, and with each op in its faster
 * form. Both are 0 when no times are measured. */
struct cr_sparse_gain {
    double dense_s, sparse_s;
};

/* Append to the report the line of one op, the line about formats that were not measured, and the total. */
void cr_sparsify_report_op(const struct cr_program *program, const struct cr_cost_model *cost_model,
                           const struct cr_sparse_cost *cost, bool chosen, struct cr_text *out);
void cr_sparsify_report_estimates(const struct cr_sparse_gain *estimates, struct cr_text *out);
void cr_sparsify_report_gain(const struct cr_sparse_gain *gain, bool enough, struct cr_text *out);

#endif

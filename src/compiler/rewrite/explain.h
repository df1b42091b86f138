/* compiler/rewrite/explain.h: the report of `cresnet plan --choices`, as a table or as JSON lines.
 *
 * The report lists the options that each convolution had and the option that was chosen. A program compiles the same
 * with a report and without. When memory runs out, the text keeps the error (cr_text.failed). */
#ifndef CR_EXPLAIN_H
#define CR_EXPLAIN_H

#include "compiler/cost_model.h"
#include "formats/json_write.h"

struct cr_choices {
    struct cr_text       *text;   /* output, borrowed */
    struct cr_json_writer writer; /* between begin and end: the open JSON object */
    bool json; /* one JSON object for each convolution or gradient, without totals; else a table with totals */
    int  fusions, sparse; /* number of reported convolutions: fusion candidates, convolutions with a sparsity pattern */
    double plain_s, chosen_s; /* seconds of the fusion candidates and their neighbours: plain, as chosen */
    double dense_s, sparse_s; /* seconds of the ops with a sparsity pattern: all dense, each in its faster form; 0 when
                                 no times are measured */
    bool   too_little;        /* the total gain of sparse kernels is too small: all ops stay dense */
};

/* Opens choices->writer and writes {"choice": CHOICE, "layer": ..., "kind": ..., "shape": {slot: dims}, "kernel": ...,
 * "algo": ..., "us": ..., "source": ...; the caller adds further members and calls cr_choices_end. The last four are
 * null when no kernel accepts the op. "kernel" and "algo" name the selection. Returns the errors of
 * cost_model->explain. */
CR_MUST cr_status cr_choices_begin(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                                   const struct cr_program *program, const struct cr_op *op, const char *choice);
/* Closes the object and ends the line. */
void cr_choices_end(struct cr_choices *choices);
/* Writes the last four members alone. */
CR_MUST cr_status cr_choices_add_selection(struct cr_choices *choices, const struct cr_cost_model *cost_model,
                                           const struct cr_program *program, const struct cr_op *op);

#endif

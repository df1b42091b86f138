/* compiler/rewrite/explain.h: what `cresnet plan --choices` tells of a program: which ways its convolutions had and
 * which was taken, as the lines of a table or as lines of JSON.
 *
 * Laws
 *   - Only tells: a program compiles the same with a report and without.
 *   - Out of memory is sticky in the text (cr_text.failed).
 * Knows a device as a cr_cost_model only. */
#ifndef CR_CHOICES_H
#define CR_CHOICES_H

#include "compiler/compiler.h"

struct cr_choices {
    struct cr_text *text;
    bool json; /* an object a line, one a convolution or gradient, without the totals, which follow; else a table with
                  them */
    int    fusions, sparse;   /* how many were told of */
    double plain_s, chosen_s; /* of what neighbours are taken over for: all the plain way, and as chosen */
    double dense_s,
        sparse_s;    /* of pruned ones: all dense, and as they are taken one by one; 0: no times are measured */
    bool too_little; /* what the pruned ones would save together is not enough: all stay dense */
};

/* {"choice": CHOICE, "layer": ..., "kind": ..., "shape": {slot: dims}, "row": ..., "way": ..., "us": ..., "source": ...
 * and no end: the caller goes on with ", ..." and "}\n". An op that no row takes has null for the last four. */
CR_MUST cr_status cr_choices_begin(struct cr_choices *choices, const struct cr_cost_model *target,
                                   const struct cr_program *program, const struct cr_op *op, const char *choice);
/* The op's row, way, us and source alone, as members. */
CR_MUST cr_status cr_choices_add_selection(struct cr_choices *choices, const struct cr_cost_model *target,
                                           const struct cr_program *program, const struct cr_op *op);

#endif

/* tests/checkops/checkops_operands.h: one operand of a unit. checkops_inputs.c lists the letters that name meanings. */
#ifndef CHECKOPS_OPERANDS_H
#define CHECKOPS_OPERANDS_H

#include "core/rng.h"
#include "tests/checkops/checkops.h"

struct checkops_drawing {
    const struct checkops_unit *unit;
    struct checkops_draw        draw;
    struct cr_rng               rng;
    double                      limit; /* for huge numbers: of checkops_huge_limit */
};

static inline bool checkops_has_products(const struct checkops_unit *unit) {
    return cr_verify_rule(unit->op->kind)->products;
}
/* The largest magnitude of an operand for which sums stay finite. Ops that only copy use the largest number. */
double checkops_huge_limit(const struct checkops_unit *unit);
/* Fills `data`, the tensor `t` in input slot `s`. */
void checkops_draw_operand(struct checkops_drawing *d, char meaning, int s, const struct cr_tensor *t, void *data);

#endif

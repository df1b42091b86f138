/* graph/muon.h: constants of the optimizer Muon (Newton-Schulz iteration), for the ops muon_direction and muon. */
#ifndef CR_MUON_H
#define CR_MUON_H

#include "graph/param_store.h"

#include <math.h>

enum { CR_MUON_ITERATIONS = 5 };
/* X = A*X + B*(X X')X + C*(X X')^2 X; the norm that divides X is at least CR_MUON_EPS. */
#define CR_MUON_A 3.4445
#define CR_MUON_B (-4.7750)
#define CR_MUON_C 2.0315
#define CR_MUON_EPS 1e-7

/* Returns whether the parameter is updated along its direction: the filters that are trained. */
static inline bool cr_muon_has_direction(const struct cr_param *q) {
    return q->role == CR_ROLE_CONV && !q->frozen;
}

/* A filter is a matrix of dim[0] rows. */
static inline int64_t cr_muon_columns(const struct cr_param *q) {
    return q->elems / q->dim[0];
}

/* Factor of the learning rate: it makes the root mean square of the step 0.2, as that of AdamW is. */
static inline double cr_muon_factor(const struct cr_param *q) {
    return 0.2 * sqrt((double)CR_MAX(q->dim[0], cr_muon_columns(q)));
}

#endif

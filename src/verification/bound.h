/* verification/bound.h: small functions that the files of verification/ share. */
#ifndef CR_VERIFY_BOUND_H
#define CR_VERIFY_BOUND_H

#include "verification/verify.h"

static inline double largest(double a, double b) {
    return a > b ? a : b;
}

static inline const struct cr_tensor *tensor_of(const struct cr_program *p, int id) {
    return &p->tensor[id];
}

static inline int64_t dim(const struct cr_program *p, int tensor, int i) {
    return p->tensor[tensor].dim[i];
}

static inline int64_t elems(const struct cr_program *p, int tensor) {
    return cr_tensor_elems(&p->tensor[tensor]);
}

#endif

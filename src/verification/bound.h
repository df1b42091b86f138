/* verification/bound.h: helpers that the files of verification/ share: elements, masks, types. */
#ifndef CR_VERIFY_BOUND_H
#define CR_VERIFY_BOUND_H

#include "verification/verify.h"

#include <math.h>

static inline double or_zero(double x) {
    return isfinite(x) ? x : 0;
}

static inline bool is_float(double x) {
    return (double)(float)x == x;
}

static inline bool is_real(enum cr_dtype dtype) {
    return dtype == CR_F32 || dtype == CR_F64 || dtype == CR_F16 || dtype == CR_BF16;
}

/* Element i of an f64 input. */
static inline double in_at(const struct cr_verify_values *v, int slot, int64_t i) {
    return ((const double *)v->in[slot])[i];
}

/* Whether the mask in this slot, if there is one, removes element i. */
static inline bool is_pruned(const struct cr_verify_values *v, int slot, int64_t i) {
    const uint8_t *mask = v->in[slot];
    return mask && !(mask[i / 8] >> (i % 8) & 1);
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

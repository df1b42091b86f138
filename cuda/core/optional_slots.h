/* cuda/core/optional_slots.h: optional slots of an op in kernel tables. A tensor that is NULL is an absent slot.
 *
 * Whether a kernel supports the sizes depends on which tensors exist. Until launch, when the pointers are set, one
 * address stands for each tensor that exists. */
#ifndef CR_CUDA_OPTIONAL_SLOTS_H
#define CR_CUDA_OPTIONAL_SLOTS_H

#include "graph/graph.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An absent tensor also fits. */
static inline bool is_like(const struct cr_tensor *t, const struct cr_tensor *data) {
    return !t || t->dtype == data->dtype;
}
static inline bool is_f32(const struct cr_tensor *t) {
    return !t || t->dtype == CR_F32;
}

static inline const void *data_of(const struct cr_tensor *t) {
    static const double present;
    return t ? &present : NULL;
}
static inline const float *vector_of(const struct cr_tensor *t) {
    return data_of(t);
}
/* Of an output. */
static inline void *output_of(const struct cr_tensor *t) {
    return (void *)(uintptr_t)data_of(t);
}

#endif

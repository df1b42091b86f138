/* device/cpu/tuned/buffers.h: helpers of CPU kernels over whole buffers of the parameter store (optimizers). */
#ifndef CR_CPU_BUFFERS_H
#define CR_CPU_BUFFERS_H

#include "device/cpu/simd.h"

#include <string.h>

/* Sets pruned elements (bit 0) to zero; x and bits begin at the same element. */
static inline void cr_mask_run(float *x, const uint8_t *bits, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        const unsigned mask = bits[i / 8];
        if (mask == 0xff) continue;
        for (int64_t j = i; j < CR_MIN(i + 8, count); j++)
            if (!(mask >> (j - i) & 1)) x[j] = 0;
    }
}

/* In tests output slots may differ from input slots; the values are then copied first. */
static inline void cr_copy_old(void *out, const void *in, size_t bytes) {
    if (out != in) memcpy(out, in, bytes);
}

/* cr_kernel.accepts of ops on whole buffers of an f32 store with the values in the first slot. */
CR_CPU_ACCEPTS(cr_accepts_buffers) {
    const struct cr_tensor *value = &p->tensor[op->in[CR_IN_sgd_value]];
    return p->store && p->store->real == CR_F32 && value->buffer == CR_BUFFER_VALUE &&
           cr_tensor_elems(value) == p->store->value_elems;
}

#endif

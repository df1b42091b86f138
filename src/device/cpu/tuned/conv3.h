/* device/cpu/tuned/conv3.h: what device/cpu/tuned/conv3.c and device/cpu/tuned/conv3_wgrad.c share. */
#ifndef CR_CPU_CONV3_H
#define CR_CPU_CONV3_H

#include "device/cpu/simd.h"

/* Multiply-adds may be fused in these files: the bounds that rows are judged by hold for either. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum {
    LANES  = 16,
    TAPS   = 3,
    WIDE   = 16,
    NARROW = 8, /* output pixels of a tile, of one and of two vectors of filters */
    AHEAD  = 3  /* image rows */
};

typedef float f32x16 __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

bool cr_cpu_conv3_wgrad_accepts(const struct cr_device *device, const struct cr_program *program,
                                const struct cr_op *op);
void cr_cpu_conv3_release(void *prepared); /* nothing is prepared */

#endif

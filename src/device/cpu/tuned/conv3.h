/* device/cpu/tuned/conv3.h: declarations that conv3.c and conv3_wgrad.c share. */
#ifndef CR_CPU_CONV3_H
#define CR_CPU_CONV3_H

#include "device/cpu/simd.h"

/* The compiler may contract multiply-adds in these files; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum {
    LANES  = 16,
    TAPS   = 3,
    WIDE   = 16, /* output pixels of a tile with one vector of filters */
    NARROW = 8,  /* output pixels of a tile with two vectors of filters */
    AHEAD  = 3   /* prefetch distance in image rows */
};

bool cr_cpu_conv3_accepts(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);

#endif

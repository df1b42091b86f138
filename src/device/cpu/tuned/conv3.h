/* device/cpu/tuned/conv3.h: declarations that conv3.c and conv3_wgrad.c share (3x3 convolutions of 16 channels). */
#ifndef CR_CPU_CONV3_H
#define CR_CPU_CONV3_H

#include "device/cpu/simd.h"

/* The compiler may contract multiply-adds in these files; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum {
    CHANNELS = 16, /* of the input and of the output: the floats of a vector */
    TAPS     = 3,
    PIXELS   = 16, /* of a tile of the output */
    AHEAD    = 3   /* prefetch distance in image rows */
};

bool cr_cpu_conv3_accepts(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op);

#endif

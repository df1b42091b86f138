/* cuda/common/conv3x3_args.h: arguments of 3x3 convolutions with one zero pixel around the image, and of the gradient
 * of their input; sums in f32. For 64 channels on both sides there are kernels with wgmma for compute capability 9.0
 * (cuda/conv/conv3x3) and with mma.sync for all others from 8.0 on (cuda/conv/mma); for 128 and more channels there is
 * one for 9.0 (cuda/conv/conv3x3/conv3x3_wide.h). Conventions: cuda/common/launchers.h.
 *
 *   forward   y = x * w (+ bias[k]), then ReLU when `relu`; sums[2][K] = sums of y and y^2, of the rounded values
 *   gradient  with `transposed`: x is dy and y is dx, v = gradient of the convolution by its input (+ add);
 *             y = v; with bn_x: y = v where (bn_x - mean)*rstd*gamma + beta > 0, else 0, and sums[2][K] = sums of y
 *             and y*(bn_x - mean)*rstd, of the rounded values */
#ifndef CK_CONV3X3_ARGS_H
#define CK_CONV3X3_ARGS_H

#include "cuda/common/launchers.h"

enum { CK_CONV3X3_CHANNELS = 64 };

struct ck_conv3x3 {
    enum ck_type type;       /* CK_F16 or CK_BF16: of x, w, y, add and bn_x */
    int64_t      N, H, W, K; /* of y */
    int64_t      C;          /* channels of x */
    int          stride;     /* H and W are multiples of it where x is smaller than y (transposed) */
    bool         relu, transposed;
    bool         early;      /* no launch since the last but one writes w or bias: they are read before the last ends */
    const void  *x;          /* [N][H][W][C]; transposed: [N][H/stride][W/stride][C] */
    const void  *w;          /* [K][3][3][C]; transposed: [C][3][3][K] */
    const float *bias;       /* [K] or NULL; not with transposed or sums */
    const void  *add, *bn_x; /* like y, or NULL; with transposed; y may be add */
    const float *mean_rstd, *gamma, *beta; /* with bn_x: [2][K], [K], [K] */
    void        *y;                        /* [N][H][W][K] */
    float       *sums;                     /* [2][K] or NULL; with bn_x, or without transposed, bias and ReLU */
};

#endif

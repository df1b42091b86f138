/* cuda/common/conv3x3_args.h: arguments of 3x3 convolutions of 64 channels to 64 channels, and of the gradient of their
 * input. There are kernels with wgmma for compute capability 9.0 (cuda/conv/conv3x3) and with mma.sync for all others
 * from 8.0 on (cuda/conv/mma). Stride 1, one zero pixel around the image, sums in f32. Conventions:
 * cuda/common/launchers.h.
 *
 *   forward   y = x * w (+ bias[k]), then ReLU when `relu`; sums[2][64] = sums of y and y^2, of the rounded values
 *   gradient  with `transposed`: x is dy and y is dx, v = gradient of the convolution by its input (+ add);
 *             y = v; with bn_x: y = v where (bn_x - mean)*rstd*gamma + beta > 0, else 0, and sums[2][64] = sums of y
 *             and y*(bn_x - mean)*rstd, of the rounded values */
#ifndef CK_CONV3X3_ARGS_H
#define CK_CONV3X3_ARGS_H

#include "cuda/common/launchers.h"

enum { CK_CONV3X3_CHANNELS = 64 };

struct ck_conv3x3 {
    enum ck_type type; /* CK_F16 or CK_BF16: of x, w, y, add and bn_x */
    int64_t      N, H, W;
    bool         relu, transposed;
    bool         early;      /* no launch since the last but one writes w or bias: they are read before the last ends */
    const void  *x;          /* [N][H][W][64] */
    const void  *w;          /* [64][3][3][64] */
    const float *bias;       /* [64] or NULL; not with transposed or sums */
    const void  *add, *bn_x; /* like y, or NULL; with transposed; y may be add */
    const float *mean_rstd, *gamma, *beta; /* with bn_x: [2][64], [64], [64] */
    void        *y;                        /* [N][H][W][64] */
    float       *sums;                     /* [2][64] or NULL; with bn_x, or without transposed, bias and ReLU */
};

#endif

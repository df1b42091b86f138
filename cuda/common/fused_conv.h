/* cuda/common/fused_conv.h: arguments of 1x1 convolutions and of the space-to-depth stem, fused with BN. There are
 * kernels with wgmma for compute capability 9.0 (cuda/conv/pointwise, cuda/conv/stem) and with mma.sync for all others
 * from 8.0 on (cuda/conv/mma). Conventions: cuda/common/launchers.h. */
#ifndef CK_FUSED_CONV_H
#define CK_FUSED_CONV_H

#include "cuda/common/launchers.h"

/* ---- 1x1 convolution, and the gradient of its input ---- */

/* With scale_bias, bias, add, bn_x and sums where they are given:
 *   xa[pixels][C] = x; with scale_bias: act(x) = relu(x*scale_bias[0][c] + scale_bias[1][c]), rounded to the type
 *   v[pixels][K]  = xa w^T, or xa w when `transposed`, summed in f32
 *   y             = v (+ bias[k]) (+ add), then ReLU when `relu`
 *   with bn_x:  y = v (+ add) where (bn_x - mean)*rstd*gamma + beta > 0, else 0
 *   sums[2][K]    = sums of y and y^2, of the rounded values; with bn_x: of y and y*(bn_x - mean)*rstd
 *
 * The gradient of the input of a 1x1 convolution is the same product: x is dy, w[C][K] is transposed, bn_x is the input
 * of the BN in front of the convolution.
 *
 * For BN statistics from Gram matrices (docs/internals/gram-bn.md; ck_point_gram, 9.0 only):
 *   with out_scale_bias:  y = v*out_scale_bias[0][k] + out_scale_bias[1][k] (+ add), then ReLU when `relu`
 *   mask[pixels][K/8]     = the bits of y > 0, of the rounded values; bit j of a byte is channel j of 8
 *   with second_x[pixels][K] and second_w[K][K]:
 *               v = xa w^T + factor_bias[0][k]*(act(second_x) second_w^T) + factor_bias[1][k]
 *               scale_bias and bn_x belong to second_x, not to x: bn_x is second_x, and its BN has scale_bias, or
 *               y = v (+ add) where bn_x > 0, else 0 (without scale_bias, mean_rstd and sums)
 *               with stride > 1: N, H, W are of second_x and y; x has the pixels (p*stride, q*stride). With add the
 *               other pixels of y are those of add, otherwise they are 0 */
struct ck_point_conv {
    enum ck_type type;       /* of x, w, y, add, bn_x: 16 bits */
    int64_t      N, H, W, C; /* of x */
    int64_t      K;
    int          stride;     /* y is N, (H-1)/stride+1, (W-1)/stride+1, K */
    bool         transposed; /* w is [C][K]; else [K][C] */
    bool         relu;
    bool         early;  /* no launch since the last but one writes w: it may be read before the last ends */
    int          config; /* tile config, index below ck_point_conv_configs; 0: the config that was fastest on average */
    const void  *x, *w;
    const float *scale_bias; /* [2][C] or NULL; C % 64 == 0 when given, not with transposed, bias, add or relu */
    const float *bias;       /* [K] or NULL */
    const void  *add;        /* like y, or NULL; y may be add */
    /* like y, or NULL; only with transposed and without bias and relu; requires mean_rstd[2][K], gamma[K] and
     * beta[K] */
    const void  *bn_x;
    const float *mean_rstd, *gamma, *beta;
    void        *y;
    float       *sums; /* [2][K] or NULL; not with bias; with add only if bn_x is given */
    /* only for ck_point_gram, which has K % 64 == 0; out_scale_bias: [2][K], not with bias or sums */
    const float   *out_scale_bias;
    unsigned char *mask;                /* or NULL; with out_scale_bias */
    const void    *second_x, *second_w; /* not with add and sums, bias or relu */
    const float   *factor_bias;         /* [2][K] */
};

/* ---- the whole backward of a 1x1 convolution with stride 1 ---- */

/* Description of a call without its data. */
struct ck_point_grad_kind {
    enum ck_type type;                                   /* of all data; a 16-bit type */
    int64_t      pixels, C, K;                           /* x [pixels][C], g [pixels][K], w [K][C] */
    bool         dy_x, scale_bias, mean_rstd, add, bn_x; /* which optional inputs are given */
};

/* dy = dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2], rounded to the type, or g without dy_x;
 * v = dy * w (+ add);  dw (+)= dy^T * xa
 *   inner   with scale_bias and mean_rstd: xa = relu(x*scale_bias[0] + scale_bias[1]), rounded;
 *           dx = v where the argument of relu is > 0, else 0; grad_sums = sums of dx and of dx*(x-mean)*rstd
 *   block   with mean_rstd and bn_x: xa = x; dx = v where x > 0, else 0;
 *           grad_sums = sums of dx and of dx*(bn_x-mean)*rstd
 *   masked  with bn_x, which is x, without scale_bias and mean_rstd: xa = x; dx = v where x > 0, else 0 (9.0 only)
 *   plain   without scale_bias, mean_rstd and bn_x: xa = x; dx = v */
struct ck_point_grad {
    struct ck_point_grad_kind kind;
    /* bn_x and add have the shape of x; NULL where the kind says that they are absent */
    const void  *g, *dy_x, *w, *x, *add, *bn_x;
    const float *dy_coeffs, *scale_bias, *mean_rstd; /* [3][K], [2][C], [2][C] = (mean, rstd) */
    void        *dx;                                 /* may be add */
    float       *dw, *grad_sums;                     /* [K][C], [2][C] */
    bool         accumulate;                         /* adds to dw */
};

/* ---- stem ---- */

/* A 4x4 convolution of 16 channels, stride 1, no padding: x [N][H][W][16], w [K][4][4][16], y [N][H-3][W-3][K]; K is a
 * multiple of 64.
 *   forward   y = x*w (+ bias[k]), then ReLU when `relu`; sums[2][K] = sums of y and y^2 before y is rounded
 *   gradient  dy = g, or dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2] rounded to the type;
 *             dw (+)= sum over pixels of dy and x */
enum { CK_STEM_SIDE = 4, CK_STEM_CHANNELS = 16 };

struct ck_stem_conv {
    enum ck_type type;       /* of x, w, y: 16 bits */
    int64_t      N, H, W, K; /* H and W of x */
    const void  *x, *w;
    const float *bias; /* [K] or NULL */
    bool         relu;
    void        *y;
    float       *sums; /* [2][K] or NULL; not with bias or relu */
};

struct ck_stem_grad {
    enum ck_type type;       /* of x, g, dy_x: 16 bits */
    int64_t      N, H, W, K; /* H and W of x */
    const void  *x, *g;
    const void  *dy_x;       /* like g, or NULL */
    const float *dy_coeffs;  /* [3][K], with dy_x */
    float       *dw;         /* [K][4][4][16] */
    bool         accumulate; /* adds to dw */
    int          config;     /* tile config of cuda/conv/mma, index below ck_stem_grad_mma_configs */
};

#endif

/* cuda/common/fused_conv.h: arguments of the convolution families (cuda/common/conv_family.h) in fp16 and bf16:
 * convolutions fused with BN and the gradients of their inputs, the whole backward of a 1x1 convolution, and the
 * space-to-depth stem. Conventions: cuda/common/launchers.h. */
#ifndef CK_FUSED_CONV_H
#define CK_FUSED_CONV_H

#include "cuda/common/conv_family.h"

/* ---- a convolution, or the gradient of its input ---- */

/* With scale_bias, bias, add, bn_x and sums where the has_ members say that they are given:
 *   xa[pixels][C] = x; with scale_bias: act(x) = relu(x*scale_bias[0][c] + scale_bias[1][c]), rounded to the type
 *   v[pixels][K]  = xa * w, summed in f32
 *   y             = v (+ bias[k]) (+ add), then ReLU when `relu`
 *   with bn_x:  y = v (+ add) where (bn_x - mean)*rstd*gamma + beta > 0, else 0
 *   sums[2][K]    = sums of y and y^2, of the rounded values (stem on 9.0: before y is rounded); with bn_x: of y and
 *                   y*(bn_x - mean)*rstd
 *
 * With `transposed` it is the gradient of the input: x is dy, y is dx, bn_x is the input of the BN in front of the
 * convolution.
 *
 * For BN statistics from Gram matrices (docs/internals/gram-bn.md), 1x1 only:
 *   with out_scale_bias:  y = v*out_scale_bias[0][k] + out_scale_bias[1][k] (+ add), then ReLU when `relu`
 *   mask                  = the bits of y > 0, of the rounded values; bit j of a byte is channel j of 8
 *   with second_x:
 *               v = xa w^T + factor_bias[0][k]*(act(second_x) second_w^T) + factor_bias[1][k]
 *               scale_bias and bn_x belong to second_x, not to x: bn_x is second_x, and its BN has scale_bias, or
 *               y = v (+ add) where bn_x > 0, else 0 (without scale_bias, mean_rstd and sums)
 *               with stride > 1: H, W are of second_x and y; x has the pixels (p*stride, q*stride). With add the
 *               other pixels of y are those of add, otherwise they are 0
 *
 * What a family supports
 *   point_conv  1x1, C and K multiples of 8. scale_bias: C % 64 == 0, not with transposed, bias, add or relu.
 *               transposed: stride 1, not with bias or relu. sums: not with bias or relu; with add only for bn_x
 *   point_gram  1x1 with out_scale_bias or second_x, C and K multiples of 64
 *   conv3x3     3x3 with one zero pixel around the image; bias not with transposed or sums. 64 channels on both sides
 *               with stride 1; on 9.0 also multiples of 128, without bias, relu and add, transposed also with stride 2
 *   split_conv  few pixels (about 100 to 200 tiles of 64 x 64), bias, C a multiple of 64, K of 8; add, relu; on 9.0
 *   stem        4x4 of 16 channels without padding, stride 1, K a multiple of 64; sums not with bias or relu */
struct ck_fused_conv {
    enum ck_type type; /* of x, w, y, add, bn_x, second_x and second_w: 16 bits */
    int64_t      N, H, W, C, P, Q, K;
    int          R, S, stride, pad;
    bool         transposed, relu;
    int          config; /* tile config, index below the family's configs; 0: the config that was fastest on average */
    bool has_scale_bias, has_bias, has_add, has_bn_x, has_mean_rstd, has_sums, has_out_scale_bias, has_mask, has_second;
    const void    *x;                        /* [N][H][W][C] */
    const void    *w;                        /* [K][R][S][C]; transposed: [C][R][S][K] */
    const void    *add, *bn_x;               /* [N][P][Q][K]; y may be add */
    void          *y;                        /* [N][P][Q][K] */
    const float   *scale_bias;               /* [2][C] */
    const float   *bias;                     /* [K] */
    const float   *mean_rstd, *gamma, *beta; /* [2][K], [K], [K], with bn_x */
    float         *sums;                     /* [2][K] */
    const float   *out_scale_bias;           /* [2][K] */
    unsigned char *mask;                     /* [N][P][Q][K/8] */
    const void    *second_x, *second_w;      /* [N][P][Q][K], [K][K] */
    const float   *factor_bias;              /* [2][K], with second_x */
};

/* Returns whether 32-bit indices suffice for the pixels of an image tensor that is read with this stride. */
static inline bool ck_fits_ints(int64_t N, int64_t H, int64_t W, int stride) {
    const int64_t most = INT32_MAX / 2;
    return stride >= 1 && stride <= 8 && N > 0 && H > 0 && W > 0 && H <= most / W && N <= most / (H * W);
}
/* A 1x1 convolution whose numbers of channels are multiples of `step`. */
static inline bool ck_is_1x1(const struct ck_fused_conv *a, int step) {
    const int64_t most = INT32_MAX / 2;
    return a->type != CK_F32 && a->R == 1 && a->S == 1 && a->pad == 0 && ck_fits_ints(a->N, a->H, a->W, a->stride) &&
           a->C >= step && a->C % step == 0 && a->C <= most && a->K >= step && a->K % step == 0 && a->K <= most / 8;
}
/* What the families point_conv and point_gram of all GPUs require. */
static inline bool ck_is_point_conv(const struct ck_fused_conv *a) {
    if (!ck_is_1x1(a, 8) || a->has_out_scale_bias || a->has_mask || a->has_second) return false;
    if (a->has_scale_bias && (a->C % 64 || a->transposed || a->has_bias || a->has_add || a->relu)) return false;
    if (a->transposed && (a->has_bias || a->relu || a->stride > 1)) return false;
    if (a->has_bn_x && !a->transposed) return false;
    return !(a->has_sums && (a->has_bias || a->relu || (a->has_add && !a->has_bn_x)));
}
static inline bool ck_is_point_gram(const struct ck_fused_conv *a) {
    if (!ck_is_1x1(a, 64) || a->transposed || a->has_bias) return false;
    if (a->has_second) return !a->relu && !a->has_out_scale_bias && !a->has_mask;
    return a->has_out_scale_bias && !a->has_sums && !a->has_bn_x;
}

/* What the family conv3x3 requires for all numbers of channels. */
static inline bool ck_is_conv3x3(const struct ck_fused_conv *a) {
    if (a->type == CK_F32 || a->R != 3 || a->S != 3 || a->pad != 1 || a->N < 1 || a->P < 1 || a->Q < 1) return false;
    if (a->transposed ? a->has_bias || a->relu || (a->has_sums && !a->has_bn_x) : a->has_add || a->has_bn_x)
        return false;
    return !(a->has_sums && (a->has_bias || a->relu));
}
static inline bool ck_has_64_channels(const struct ck_fused_conv *a) {
    return a->C == 64 && a->K == 64 && a->stride == 1;
}

enum { CK_STEM_SIDE = 4, CK_STEM_CHANNELS = 16 };
static inline bool ck_is_stem(const struct ck_fused_conv *a) {
    return a->type != CK_F32 && a->R == CK_STEM_SIDE && a->S == CK_STEM_SIDE && a->C == CK_STEM_CHANNELS &&
           a->stride == 1 && a->pad == 0 && !(a->has_sums && (a->has_bias || a->relu));
}

/* ---- the whole backward of a 1x1 convolution with stride 1 ---- */

/* dy = dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2], rounded to the type, or g without dy_x;
 * v = dy * w (+ add);  dw (+)= dy^T * xa
 *   inner   with scale_bias and mean_rstd: xa = relu(x*scale_bias[0] + scale_bias[1]), rounded;
 *           dx = v where the argument of relu is > 0, else 0; grad_sums = sums of dx and of dx*(x-mean)*rstd
 *   block   with mean_rstd and bn_x: xa = x; dx = v where x > 0, else 0;
 *           grad_sums = sums of dx and of dx*(bn_x-mean)*rstd
 *   masked  with bn_x, which is x, without scale_bias and mean_rstd: xa = x; dx = v where x > 0, else 0 (9.0 only)
 *   plain   without scale_bias, mean_rstd and bn_x: xa = x; dx = v */
struct ck_point_grad {
    enum ck_type type; /* of g, dy_x, w, x, add, bn_x and dx: 16 bits */
    int64_t      pixels, C, K;
    int          config;     /* tile config, index below the family's configs */
    bool         accumulate; /* adds to dw */
    bool         has_dy_x, has_scale_bias, has_mean_rstd, has_add, has_bn_x;
    const void  *g, *dy_x;   /* [pixels][K] */
    const float *dy_coeffs;  /* [3][K] */
    const void  *w;          /* [K][C] */
    const void  *x;          /* [pixels][C] */
    const void  *add, *bn_x; /* [pixels][C] */
    void        *dx;         /* [pixels][C]; may be add */
    const float *scale_bias; /* [2][C] */
    const float *mean_rstd;  /* [2][C] */
    float       *dw;         /* [K][C] */
    float       *grad_sums;  /* [2][C] */
};

/* ---- the space-to-depth stem: a 4x4 convolution of 16 channels, stride 1, no padding; K is a multiple of 64 ---- */

/* y = max-pooling of ReLU(x*w + bias[k]), windows of 3x3, stride 2, padding 1; W <= 115. */
struct ck_stem_pool {
    enum ck_type type; /* of x, w, y: 16 bits */
    int64_t      N, H, W, K;
    const void  *x;    /* [N][H][W][16] */
    const void  *w;    /* [K][4][4][16] */
    const float *bias; /* [K] */
    void        *y;    /* [N][(H-4)/2+1][(W-4)/2+1][K] */
};

/* dw (+)= sum over pixels of g and x. */
struct ck_stem_grad {
    enum ck_type type; /* of x and g: 16 bits */
    int64_t      N, H, W, K;
    bool         accumulate; /* adds to dw */
    int          config;     /* tile config, index below the family's configs */
    const void  *x;          /* [N][H][W][16] */
    const void  *g;          /* [N][H-3][W-3][K] */
    float       *dw;         /* [K][4][4][16] */
};

#endif

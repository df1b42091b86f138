/* cuda/conv/pointwise/point_conv.h: launchers of 1x1 convolutions on Hopper GPUs (compute capability 9.0 only):
 * cuda/conv/pointwise/point_conv_sm90a.cu. Conventions: cuda/common/launchers.h.
 *
 *   xa[pixels][C] = x; with scale_bias: act(x) = relu(x*scale_bias[0][c] + scale_bias[1][c]), rounded to the type
 *   v[pixels][K]  = xa w^T, or xa w when `transposed`, summed in f32
 *   y             = v (+ bias[k]) (+ add), then ReLU when `relu`
 *   with bn_x:  y = v (+ add) where (bn_x - mean)*rstd*gamma + beta > 0, else 0
 *   sums[2][K]    = sums of y and y^2, of the rounded values; with bn_x: of y and y*(bn_x - mean)*rstd
 *
 * The gradient of the input of a 1x1 convolution is the same product: x is dy, w[C][K] is transposed, bn_x is the input
 * of the BN in front of the convolution.
 *
 * For BN statistics from Gram matrices (docs/internals/gram-bn.md; ck_point_gram):
 *   with out_scale_bias:  y = v*out_scale_bias[0][k] + out_scale_bias[1][k] (+ add), then ReLU when `relu`
 *   mask[pixels][K/8]     = the bits of y > 0, of the rounded values; bit j of a byte is channel j of 8
 *   with second_x[pixels][K] and second_w[K][K]:
 *               v = xa w^T + factor_bias[0][k]*(act(second_x) second_w^T) + factor_bias[1][k]
 *               scale_bias and bn_x belong to second_x, not to x: bn_x is second_x, and its BN has scale_bias, or
 *               y = v (+ add) where bn_x > 0, else 0 (without scale_bias, mean_rstd and sums)
 *               with stride > 1: N, H, W are of second_x and y; x has the pixels (p*stride, q*stride). With add the
 *               other pixels of y are those of add, otherwise they are 0 */
#ifndef CR_POINT_CONV_H
#define CR_POINT_CONV_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* Number of tile configs. All give the same y except for the last bit; they add sums in different orders. */
int ck_point_conv_configs(const struct ck_point_conv *args, int multiprocessors);
/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_point_conv_supports(const struct ck_point_conv *args);
/* Workspace of ck_point_conv in bytes. */
size_t      ck_point_conv_workspace(const struct ck_point_conv *args, int multiprocessors);
cudaError_t ck_point_conv(const struct ck_point_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* The same for arguments with out_scale_bias or second_x: cuda/conv/pointwise/point_gram_sm90a.cu. */
int         ck_point_gram_configs(const struct ck_point_conv *args, int multiprocessors);
bool        ck_point_gram_supports(const struct ck_point_conv *args);
size_t      ck_point_gram_workspace(const struct ck_point_conv *args, int multiprocessors);
cudaError_t ck_point_gram(const struct ck_point_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

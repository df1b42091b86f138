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
 * of the BN in front of the convolution. */
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
};

/* Number of tile configs. All give the same y except for the last bit; they add sums in different orders. */
int ck_point_conv_configs(const struct ck_point_conv *args, int multiprocessors);
/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_point_conv_supports(const struct ck_point_conv *args);
/* Workspace of ck_point_conv in bytes. */
size_t      ck_point_conv_workspace(const struct ck_point_conv *args, int multiprocessors);
cudaError_t ck_point_conv(const struct ck_point_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/cifar/cifar_conv.h: launchers of the convolutions of CIFAR ResNets and of their classifier. Conventions:
 * cuda/common/launchers.h.
 *
 * Shapes: square images, 16 bits, R x R filters with R = 3 (pad 1) or, with stride 2, R = 1 (pad 0):
 *   3->16 and 16->16 at 32x32;  16->32 at 32x32 stride 2, R = 3 and 1;  32->32 at 16x16;
 *   32->64 at 16x16 stride 2, R = 3 and 1;  64->64 at 8x8;
 * and all of them with fewer channels, in multiples of 8, as channel pruning leaves them.
 * The tensor cores multiply; sums are f32. N: any number of images from 1 on. All results are deterministic. */
#ifndef CK_CIFAR_CONV_H
#define CK_CIFAR_CONV_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

/* Returns whether the convolution has one of the shapes above, in a 16-bit type. */
bool ck_cifar_conv_supports(const struct ck_conv *conv);

/* y = act(x) * w; in inference y = act(x) * w + bias[K] (+ add), then ReLU with `relu`. sums[2][K] = sums of y and y^2
 * over the pixels (of the rounded values). With finish.scale_bias, also the results of ck_bn_finalize for these sums,
 * bitwise identical. */
struct ck_cifar_conv {
    struct ck_conv conv;
    const void    *x, *w;
    /* f32 [2][C]: act(x) = relu(x*scale_bias[0] + scale_bias[1]), 0 outside the image; NULL: act(x) = x */
    const float          *scale_bias;
    void                 *y;
    float                *sums;   /* or NULL */
    struct ck_bn_finalize finish; /* scale_bias NULL: no finalize; its own sums and channels are not read */
    const float          *bias;   /* f32, or NULL: neither add nor relu */
    const void           *add;    /* like y, or NULL; y may be add */
    bool                  relu;
    /* `sums` is rows, [ck_cifar_conv_rows][2][K], whose sums are the sums: there is no second launch. Without
     * `finish`. */
    bool stores_rows;
    /* The BN of x, of which the convolution before has stored rows. With `rows`, this launch also finishes it: x is the
     * input of the BN, and finish.scale_bias is scale_bias here. Only where ck_cifar_conv_finishes says so. */
    struct ck_cifar_bn {
        const float          *rows; /* [count][2][C], or NULL */
        int                   count;
        struct ck_bn_finalize finish; /* its own sums and channels are not read */
    } before;
    /* With `before`, not NULL: x = max(bn(apply_x) + apply_add, 0), which this launch computes and stores; scale_bias
     * is NULL. apply_add: like x, or NULL. With a stride of 1, x may be apply_add or apply_x. Only where
     * ck_cifar_conv_applies says so. */
    const void *apply_x, *apply_add;
    /* shortcut_c > 0: apply_add is [N,2H,2W,shortcut_c]; the summand is every second pixel of it, behind shortcut_pad
     * channels of zeros and in front of others. Multiples of 8. */
    int64_t shortcut_c, shortcut_pad;
};
/* Whether a convolution can finish the BN before it. */
bool ck_cifar_conv_finishes(const struct ck_conv *conv);
/* Whether a convolution can also apply the BN that it finishes (apply_x): where each block has one tile. With a stride
 * of 2, x may then be neither apply_add nor apply_x. */
bool ck_cifar_conv_applies(const struct ck_conv *conv, int multiprocessors);
/* ck_cifar_conv_workspace returns the workspace of ck_cifar_conv in bytes. With sums, a second, small launch adds the
 * sums that the blocks of the first launch stored in the workspace. Returns cudaErrorInvalidValue for unsupported
 * arguments. */
size_t      ck_cifar_conv_workspace(const struct ck_conv *conv, int multiprocessors);
cudaError_t ck_cifar_conv(const struct ck_cifar_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* Number of rows, [rows][2][K], that a convolution with stores_rows stores; 0 where no convolution could add them. */
int ck_cifar_conv_rows(const struct ck_conv *conv, int multiprocessors);

/* The whole backward of a convolution:
 *   dy  = g, or dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2]
 *   dw (+)= gradient of the filters from dy and act(x), f32
 *   v   = gradient of the input from dy (+ add)
 *   dx  = v;  with `mean_rstd`: v where the activation is > 0, else 0, and grad_sums = sums of dx and of dx*xhat, where
 *         without bn_x  x is the input of a BN: the activation is act(x), xhat = (x - mean_rstd[0]) * mean_rstd[1]
 *         with bn_x     x is the activation, xhat = (bn_x - mean_rstd[0]) * mean_rstd[1]
 * With finish.coeffs, also the results of ck_bn_grad_finalize for grad_sums, bitwise identical. There are two launches;
 * the second adds the sums that the blocks of the first stored in the workspace. */
struct ck_cifar_conv_grad {
    struct ck_conv conv;
    const void    *g, *dy_x;  /* N,P,Q,K; dy_x NULL: dy = g */
    const float   *dy_coeffs; /* [3][K] */
    const void    *w, *x;
    const float   *scale_bias, *mean_rstd; /* [2][C], or NULL */
    const void    *add, *bn_x;             /* N,H,W,C, or NULL; dx may be add */
    int            add_pad; /* not 0: add is N,P,Q,K and only pixels with even coordinates have a summand, whose first
                               channel is add_pad; stride 2 and R = 3 */
    void          *dx;      /* NULL if and only if C = 3 */
    float         *dw, *grad_sums; /* grad_sums: only with `mean_rstd` */
    bool           accumulate;     /* dw += */
    struct ck_bn_grad_finalize
        finish; /* coeffs NULL: no finalize; its own grad_sums, mean_rstd and channels are not read */
    /* N,P,Q,K, or NULL. Not NULL: dy is stored instead of dw, which is NULL, and grad_sums is rows,
     * [ck_cifar_dgrad_rows][2][C], whose sums are the sums; there is no second launch. Without `finish`, with dy_x.
     * Only where ck_cifar_dgrad_supports says so. */
    void *dy;
    /* With `rows`, the BN of dy_x, of which the conv_grad before has stored rows of gradient sums. This launch also
     * finishes it: finish.coeffs is dy_coeffs here. With `dy`, or where ck_cifar_conv_grad_finishes says so. */
    struct ck_cifar_bn_grad {
        const float               *rows; /* [count][2][K], or NULL */
        int                        count;
        struct ck_bn_grad_finalize finish; /* its own grad_sums and channels are not read */
    } before;
};
/* Whether a backward can store dy, and how many rows it then stores: where that and ck_cifar_wgrads are faster. */
bool ck_cifar_dgrad_supports(const struct ck_conv *conv, int multiprocessors, int block_bytes);
int  ck_cifar_dgrad_rows(const struct ck_conv *conv, int multiprocessors);
/* Whether a backward without `dy` can finish the BN before it: that of the stem. */
bool ck_cifar_conv_grad_finishes(const struct ck_conv *conv, int block_bytes);
/* dw (+)= gradient of the filters of `count` convolutions with the same N and type, for which ck_cifar_dgrad_supports
 * is true. */
struct ck_cifar_filter {
    struct ck_conv conv;
    const void    *dy, *x;     /* N,P,Q,K; N,H,W,C */
    const float   *scale_bias; /* [2][C] or NULL, as in ck_cifar_conv */
    float         *dw;
    float         *partial; /* room of ck_cifar_wgrads_workspace bytes */
    bool           accumulate;
};
size_t      ck_cifar_wgrads_workspace(const struct ck_conv *conv);
cudaError_t ck_cifar_wgrads(const struct ck_cifar_filter *filters, int count, int multiprocessors, cudaStream_t stream);
/* Workspace of ck_cifar_conv_grad in bytes. */
size_t ck_cifar_conv_grad_workspace(const struct ck_conv *conv, int multiprocessors);
/* Whether the backward of the convolution fits into block_bytes of shared memory, the most that a thread block of this
 * GPU can have. The forward needs 92 KiB at most, which every GPU of compute capability 8.0 or later has. */
bool        ck_cifar_conv_grad_supports(const struct ck_conv *conv, int block_bytes);
cudaError_t ck_cifar_conv_grad(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors,
                               int block_bytes, cudaStream_t stream);

/* ---- cuda/conv/cifar/cifar_dense.cu: a small classifier; each launcher is one launch ---- */

struct ck_dense {
    enum ck_type type;
    int64_t      N, C, K;
};
/* Returns whether the sizes are supported: C a multiple of 8 and at most 256, K at most 128, N at most 65,536. */
bool ck_cifar_dense_supports(const struct ck_dense *v);

/* y[N][K] = x[N][C] * w[K][C]' + b[K], b f32 */
cudaError_t ck_cifar_dense(const struct ck_dense *v, const void *x, const void *w, const float *b, void *y,
                           cudaStream_t stream);
/* dx[N][C] = dy[N][K] * w[K][C] */
cudaError_t ck_cifar_dense_dgrad(const struct ck_dense *v, const void *dy, const void *w, void *dx,
                                 cudaStream_t stream);
/* dw[K][C] (+)= dy[N][K]' * x[N][C], f32 */
cudaError_t ck_cifar_dense_wgrad(const struct ck_dense *v, const void *x, const void *dy, float *dw, bool accumulate,
                                 cudaStream_t stream);

CK_C_END

#endif

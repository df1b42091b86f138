/* cuda/common/norm_launchers.h: launchers of cuda/norm: batch normalisation (BN), its gradient, ReLU gradients.
 * Conventions: cuda/common/launchers.h. */
#ifndef CK_NORM_LAUNCHERS_H
#define CK_NORM_LAUNCHERS_H

#include "cuda/common/elementwise_launchers.h"
#include "cuda/common/launch_types.h"

CK_C_BEGIN

/* ---- cuda/norm/bn.cu, cuda/norm/bn_apply.cu, cuda/norm/bn_grad.cu: batch normalisation ---- */

/* Workspace of ck_bn_sums in bytes. */
size_t ck_bn_sums_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
/* Sums of a batch: x [pixels][channels] -> sums [2][channels], the sums of x and of x^2. */
cudaError_t ck_bn_sums(enum ck_type type, const void *x, float *sums, void *workspace, int64_t pixels, int64_t channels,
                       int multiprocessors, cudaStream_t stream);

struct ck_bn_finalize {
    const float *sums;                                        /* [2][C] */
    const float *gamma, *beta, *old_mean, *old_var;           /* [C]; old_*: running statistics before this batch */
    float       *scale_bias, *mean_rstd, *new_mean, *new_var; /* [2][C], [2][C], [C], [C]; new_* may be old_* */
    void        *scale_bias_half;                             /* scale_bias in type `half`, or NULL */
    enum ck_type half;
    int64_t      channels, count; /* count: number of elements in the sums of a channel */
    float        eps, momentum;
};
/* Computes scale and bias, mean and rstd, and new running statistics from the sums of a batch. */
cudaError_t ck_bn_finalize(const struct ck_bn_finalize *args, cudaStream_t stream);

struct ck_bn_scale_bias {
    const float *gamma, *beta, *mean, *var; /* [C] */
    float       *scale_bias;                /* [2][C] */
    int64_t      channels;
    float        eps;
};
/* Computes scale and bias from running statistics. */
cudaError_t ck_bn_scale_bias(const struct ck_bn_scale_bias *args, cudaStream_t stream);

struct ck_bn_apply {
    enum ck_type type;                        /* of x, add, y: [pixels][channels] */
    const void  *x, *add;                     /* add: or NULL */
    const float *scale_bias, *add_scale_bias; /* [2][C]; add_scale_bias: BN of add; NULL: add is used unchanged */
    void        *y;                           /* may be x or add */
    uint8_t     *mask;                        /* bit mask of y > 0, or NULL; requires relu and C % 8 == 0 */
    int64_t      pixels, channels;
    bool         relu;
};
/* y = x * scale + bias (+ add), followed by ReLU when `relu` is set. */
cudaError_t ck_bn_apply(const struct ck_bn_apply *args, int multiprocessors, cudaStream_t stream);
/* dx = dy * scale_bias[0], [pixels][channels]; dx may be dy. */
cudaError_t ck_channel_scale(enum ck_type type, const void *dy, const float *scale_bias, void *dx, int64_t pixels,
                             int64_t channels, int multiprocessors, cudaStream_t stream);

/* Where the ReLU passes a gradient. */
enum ck_mask {
    CK_MASK_NONE, /* everywhere: there is no ReLU */
    CK_MASK_Y,    /* where the activation y > 0 */
    CK_MASK_BITS, /* where the element's bit is set; u8, requires C % 8 == 0 */
    CK_MASK_ACT   /* where x*act[0] + act[1] > 0; act is float[2][C] */
};
/* Gradient of BN behind a ReLU. g is dy where the mask passes it, else 0. */
struct ck_bn_grad {
    enum ck_type type;          /* of dy, x, y, dx: [pixels][channels] */
    enum ck_mask by;            /* kind of `mask` */
    const void  *dy, *x, *mask; /* mask: y, bits or act, as `by` says */
    const float *mean_rstd;     /* ck_bn_grad_sums: mean and rstd, [2][C] */
    float       *grad_sums;     /* ck_bn_grad_sums: sums of g and of g*(x-mean)*rstd, [2][C] */
    const float *coeffs;        /* ck_bn_grad_apply: [3][C], from ck_bn_grad_finalize */
    void        *dx;            /* ck_bn_grad_apply: coeffs[0]*g + coeffs[1]*x + coeffs[2]; may be dy or x */
    int64_t      pixels, channels;
};
/* Workspace of ck_bn_grad_sums in bytes. Reads type, by, pixels and channels only. */
size_t      ck_bn_grad_sums_workspace(const struct ck_bn_grad *args, int multiprocessors);
cudaError_t ck_bn_grad_sums(const struct ck_bn_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);
cudaError_t ck_bn_grad_apply(const struct ck_bn_grad *args, int multiprocessors, cudaStream_t stream);

struct ck_bn_grad_finalize {
    const float *grad_sums, *gamma, *mean_rstd; /* [2][C], [C], [2][C] */
    float       *dgamma, *dbeta, *coeffs;       /* [C], [C], [3][C]; dgamma and dbeta may be NULL */
    int64_t      channels, count;               /* count: number of elements in the sums of a channel */
    bool         accumulate;                    /* adds to dgamma and dbeta */
    int          ranks; /* dgamma and dbeta get grad_sums / ranks (synchronised BN); 0 has the effect of 1 */
};
/* Computes dgamma, dbeta and the coefficients of ck_bn_grad_apply from gradient sums. */
cudaError_t ck_bn_grad_finalize(const struct ck_bn_grad_finalize *args, cudaStream_t stream);

/* ---- cuda/norm/relu_grad.cu: gradient of the ReLU at the end of a residual block ---- */

struct ck_relu_grad {
    enum ck_type type;         /* of dy, y, add, bn_x, dx: [pixels][channels] */
    enum ck_mask by;           /* kind of `y`: CK_MASK_Y or CK_MASK_BITS */
    const void  *dy, *y, *add; /* add: or NULL */
    int          bns;          /* number of BNs whose gradient sums are computed, 0 to 2; above 0: channels % 8 == 0 */
    const void  *bn_x[2];      /* inputs of these BNs */
    const float *mean_rstd[2]; /* [2][C] */
    float       *grad_sums[2]; /* [2][C]: sums of dx and of dx*(bn_x-mean)*rstd; dx as rounded to `type` */
    void        *dx;           /* may be dy or add */
    int64_t      pixels, channels;
};
/* Workspace of ck_relu_grad in bytes. Reads type, bns, pixels and channels only. */
size_t ck_relu_grad_workspace(const struct ck_relu_grad *args, int multiprocessors);
/* dx = dy + add where y > 0, else 0; and the gradient sums of up to two BNs. */
cudaError_t ck_relu_grad(const struct ck_relu_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* ---- cuda/norm/bn_relu_grad.cu: ReLU gradient and BN gradient sums behind a convolution's data gradient ---- */

struct ck_bn_relu_grad {
    enum ck_type type;             /* of g and x: [pixels][channels] */
    void        *g;                /* updated in place */
    const void  *x;                /* the BN's input */
    const float *mean_rstd;        /* mean and rstd, [2][C] */
    const float *gamma, *beta;     /* [C] */
    float       *grad_sums;        /* [2][C]: sums of g and of g*(x-mean)*rstd */
    int64_t      pixels, channels; /* channels: a multiple of 8 */
};
/* Workspace of ck_bn_relu_grad in bytes. */
size_t ck_bn_relu_grad_workspace(enum ck_type type, int64_t pixels, int64_t channels, int multiprocessors);
/* Sets g to 0 where (x-mean)*rstd*gamma + beta <= 0, and computes the BN's gradient sums. */
cudaError_t ck_bn_relu_grad(const struct ck_bn_relu_grad *args, void *workspace, int multiprocessors,
                            cudaStream_t stream);

/* ---- cuda/norm/fold_bn.cu: batch normalisation folded into filters ---- */

struct ck_fold_bn {
    const float *w;                         /* [filters][elems] */
    const float *gamma, *beta, *mean, *var; /* [filters] */
    float       *bias;                      /* [filters] */
    int64_t      filters, elems;            /* filters < 2^31 */
    float        eps;
};
/* scale = gamma/sqrt(var + eps); y = w * scale, [filters][elems]; bias = beta - mean * scale. */
cudaError_t ck_fold_bn(const struct ck_fold_bn *args, enum ck_type type, void *y, cudaStream_t stream);

/* ---- cuda/norm/pool_bn.cu: gradient of BN, ReLU and max pooling in one kernel ---- */

/* g = maxpool_grad(dy, index) where x*act[0] + act[1] > 0, else 0. Pooling windows are 3x3 with stride 2; C is a whole
 * number of 16-byte vectors. */
struct ck_pool_bn_grad {
    enum ck_type     type;
    const void      *dy;        /* [N,P,Q,C] */
    const uint8_t   *index;     /* [N,P,Q,C], from ck_maxpool */
    const void      *x;         /* [N,H,W,C]: the BN's input */
    const float     *act;       /* [2][C]: the BN's scale and bias */
    const float     *mean_rstd; /* ck_pool_bn_grad_sums: mean and rstd, [2][C] */
    float           *grad_sums; /* ck_pool_bn_grad_sums: sums of g and of g*(x-mean)*rstd, [2][C] */
    const float     *coeffs;    /* ck_pool_bn_grad_apply: [3][C], from ck_bn_grad_finalize */
    void            *dx;        /* ck_pool_bn_grad_apply: coeffs[0]*g + coeffs[1]*x + coeffs[2]; may be x */
    struct ck_window w;
};
/* Workspace of ck_pool_bn_grad_sums in bytes. */
size_t      ck_pool_bn_grad_sums_workspace(enum ck_type type, const struct ck_window *w, int multiprocessors);
cudaError_t ck_pool_bn_grad_sums(const struct ck_pool_bn_grad *args, void *workspace, int multiprocessors,
                                 cudaStream_t stream);
cudaError_t ck_pool_bn_grad_apply(const struct ck_pool_bn_grad *args, int multiprocessors, cudaStream_t stream);

CK_C_END

#endif

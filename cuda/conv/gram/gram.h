/* cuda/conv/gram/gram.h: launchers of BN statistics from Gram matrices (docs/internals/gram-bn.md) for 1x1
 * convolutions from CK_GRAM_C to CK_GRAM_K channels with stride 1, in f16 and bf16, on the tensor cores of compute
 * capability 8.0 and later. Conventions: cuda/common/launchers.h; formulas: graph/ops.def. Every large kernel is
 * limited by memory: the roofline is the bytes that are named below.
 *
 * a = x, or act(x) = relu(x*scale_bias[0] + scale_bias[1]) rounded to the type. */
#ifndef CR_GRAM_H
#define CR_GRAM_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_GRAM_C = 64, CK_GRAM_K = 256 };

struct ck_gram {
    enum ck_type type;
    int64_t      pixels;
    const void  *x;          /* [pixels][C] */
    const float *scale_bias; /* [2][C] or NULL */
    float       *gram;       /* [C+2][C] */
};
/* 128 bytes a pixel. */
size_t      ck_gram_workspace(int multiprocessors);
cudaError_t ck_gram(const struct ck_gram *args, void *workspace, int multiprocessors, cudaStream_t stream);

struct ck_gram_conv {
    enum ck_type   type;
    int64_t        pixels;
    bool           relu;
    const void    *x, *w, *add;                 /* [pixels][C], [K][C], [pixels][K] or NULL */
    const float   *scale_bias, *out_scale_bias; /* [2][C] or NULL, [2][K] */
    void          *y;                           /* [pixels][K], may be add */
    unsigned char *mask;                        /* [pixels][K/8] or NULL */
};
/* y = (a w^T)*scale + bias (+ add), ReLU, and the bits of y > 0. 128 + 512 (+ 512 with add, + 32 with mask) bytes a
 * pixel. */
cudaError_t ck_gram_conv(const struct ck_gram_conv *args, int multiprocessors, cudaStream_t stream);

struct ck_gram_wgrad {
    enum ck_type type;
    int64_t      pixels;
    const void  *x, *dy;       /* [pixels][C], [pixels][K] */
    const float *scale_bias;   /* [2][C] or NULL */
    float       *dw, *dy_sums; /* [K][C], [K] */
};
/* dw = dy^T a and the sums of dy. 128 + 512 bytes a pixel. A thread block needs ck_gram_wgrad_shared bytes of shared
 * memory. */
int         ck_gram_wgrad_shared(void);
size_t      ck_gram_wgrad_workspace(int multiprocessors);
cudaError_t ck_gram_wgrad(const struct ck_gram_wgrad *args, void *workspace, int multiprocessors, cudaStream_t stream);

struct ck_gram_dgrad {
    enum ck_type type;
    int64_t      pixels;
    const void  *g, *w_g, *x, *w_x, *add; /* [pixels][K], [C][K], [pixels][C], [C][C], [pixels][C] or NULL */
    const float *factor_bias;             /* [2][C] */
    const float *scale_bias, *mean_rstd;  /* [2][C] or NULL; mean_rstd only with scale_bias */
    void        *dx;                      /* [pixels][C], may be add */
    float       *grad_sums;               /* [2][C]; only with mean_rstd */
};
/* 512 + 128 + 128 (+ 128 with add) bytes a pixel. A thread block needs ck_gram_dgrad_shared bytes of shared memory. */
int         ck_gram_dgrad_shared(void);
size_t      ck_gram_dgrad_workspace(int multiprocessors);
cudaError_t ck_gram_dgrad(const struct ck_gram_dgrad *args, void *workspace, int multiprocessors, cudaStream_t stream);

/* ---- compute capability 9.0 only (*_sm90a.cu): 1x1 convolutions of any stride. The convolution and the gradient of
 * its input are ck_point_gram (cuda/conv/pointwise/). ---- */

struct ck_gram_matrix {
    enum ck_type type;
    int64_t      N, H, W, C; /* of x; C is 64 or a multiple of 128 up to 512 */
    int          stride;
    const void  *x;
    const float *scale_bias; /* [2][C] or NULL */
    float       *gram;       /* [C+2][C] */
};
bool        ck_gram_matrix_supports(const struct ck_gram_matrix *args);
size_t      ck_gram_matrix_workspace(const struct ck_gram_matrix *args, int multiprocessors);
cudaError_t ck_gram_matrix(const struct ck_gram_matrix *args, void *workspace, int multiprocessors,
                           cudaStream_t stream);

struct ck_gram_product {
    enum ck_type type;
    int64_t      N, H, W, C, K; /* of x; C is 64 or a multiple of 128, K a multiple of 256 */
    int          stride;
    const void  *x, *dy;       /* dy has the pixels (p*stride, q*stride) of x */
    const float *scale_bias;   /* [2][C] or NULL */
    float       *dw, *dy_sums; /* [K][C], [K] */
};
bool        ck_gram_product_supports(const struct ck_gram_product *args);
size_t      ck_gram_product_workspace(const struct ck_gram_product *args, int multiprocessors);
cudaError_t ck_gram_product(const struct ck_gram_product *args, void *workspace, int multiprocessors,
                            cudaStream_t stream);

/* ---- small kernels, for any C up to 512 and any K up to 2048, in f64 ---- */

struct ck_gram_bn {
    enum ck_type type; /* of w */
    int64_t      K, C;
    double       count; /* pixels */
    float        eps, momentum;
    const void  *w;
    const float *gram, *gamma, *beta;
    const float *old_mean, *old_var; /* running statistics before and after; may be equal */
    float       *scale_bias, *mean_rstd, *mean, *var;
};
cudaError_t ck_gram_bn_finalize(const struct ck_gram_bn *args, cudaStream_t stream);

struct ck_gram_bn_grad {
    enum ck_type type; /* of w, w_g and w_x */
    int64_t      K, C;
    double       count; /* pixels */
    bool         accumulate;
    const void  *w;
    const float *gram, *m, *dy_sums, *gamma, *mean_rstd;
    void        *w_g, *w_x;
    float       *factor_bias, *dw, *dgamma, *dbeta; /* dgamma and dbeta may be NULL */
};
size_t      ck_gram_bn_grad_workspace(int64_t K, int64_t C);
cudaError_t ck_gram_bn_grad(const struct ck_gram_bn_grad *args, void *workspace, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

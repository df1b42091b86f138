/* cuda/conv/gram/gram.h: launchers of BN statistics from Gram matrices (docs/internals/gram-bn.md) for 1x1 convolutions
 * of any stride, in f16 and bf16. Conventions: cuda/common/launchers.h; formulas: graph/ops.def. The convolution and
 * the gradient of its input are the family point_gram (cuda/common/fused_conv.h). The large kernels are
 * limited by memory: 2*C bytes a pixel that is read, and 2*K of dy.
 *
 * a = x, or act(x) = relu(x*scale_bias[0] + scale_bias[1]) rounded to the type. */
#ifndef CR_GRAM_H
#define CR_GRAM_H

#include "cuda/common/fused_conv.h"
#include "cuda/common/launchers.h"

CK_C_BEGIN

/* ---- the families gram and gram_product: kernels over all pixels ---- */

struct ck_gram_matrix {
    enum ck_type type;
    int64_t      N, H, W, C; /* 9.0: C is 64 or a multiple of 128 up to 512; mma.sync: 64 or 128 */
    int          stride;
    const void  *x;          /* [N][H][W][C] */
    const float *scale_bias; /* [2][C] or NULL */
    float       *gram;       /* [C+2][C] */
};

struct ck_gram_product {
    enum ck_type type;
    /* 9.0: C is 64 or a multiple of 128 up to 1024, K a multiple of 256 up to 4096; mma.sync: C is 64 or a multiple of
     * 128, K a multiple of 64 from 64 on, and dw has at most one slice for each multiprocessor */
    int64_t      N, H, W, C, K;
    int          stride;
    const void  *x;          /* [N][H][W][C] */
    const void  *dy;         /* [N][P][Q][K]; pixel (p, q) belongs to (p*stride, q*stride) of x */
    const float *scale_bias; /* [2][C] or NULL */
    float       *dw;         /* [K][C] */
    float       *dy_sums;    /* [K] */
};

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

/* SyncBN: sums about `center` of the pixels of this rank; then, from the sums of all ranks, what ck_gram_bn_finalize
 * computes. ck_gram_bn_finish does not read type, C, w and gram; its count is that of all ranks. */
struct ck_gram_bn_sums {
    enum ck_type type; /* of w */
    int64_t      K, C;
    double       pixels;
    const void  *w;
    const float *gram, *center; /* center: [K] */
    float       *sums;          /* [2][K] */
};
cudaError_t ck_gram_bn_sums(const struct ck_gram_bn_sums *args, cudaStream_t stream);
/* center may be args->mean. */
cudaError_t ck_gram_bn_finish(const struct ck_gram_bn *args, const float *sums, const float *center,
                              cudaStream_t stream);

struct ck_gram_bn_grad_sums {
    enum ck_type type; /* of w */
    int64_t      K, C;
    const void  *w;
    const float *m, *dy_sums, *mean_rstd;
    float       *grad_sums; /* [2][K] */
};
cudaError_t ck_gram_bn_grad_sums(const struct ck_gram_bn_grad_sums *args, cudaStream_t stream);

struct ck_gram_bn_grad {
    enum ck_type type; /* of w, w_g and w_x */
    int64_t      K, C;
    double       count, pixels, ranks; /* pixels of all ranks and of this rank; ranks that share the sums */
    bool         accumulate;
    const void  *w;
    const float *gram, *m, *dy_sums, *gamma, *mean_rstd;
    const float *grad_sums; /* of all ranks, or NULL */
    void        *w_g, *w_x;
    float       *factor_bias, *dw, *dgamma, *dbeta; /* dgamma and dbeta may be NULL */
};
size_t      ck_gram_bn_grad_workspace(int64_t K, int64_t C);
cudaError_t ck_gram_bn_grad(const struct ck_gram_bn_grad *args, void *workspace, cudaStream_t stream);

CK_C_END

#endif

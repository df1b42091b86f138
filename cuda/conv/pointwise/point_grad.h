/* cuda/conv/pointwise/point_grad.h: launchers of the whole backward of a 1x1 convolution with stride 1 in one pass
 * over memory (cuda/conv/pointwise/point_grad_sm90a.cu); compute capability 9.0 only. Conventions:
 * cuda/common/launchers.h. */
#ifndef CR_POINT_GRAD_H
#define CR_POINT_GRAD_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Description of a call without its data. */
struct ck_point_grad_kind {
    enum ck_type type;                                   /* of all data; a 16-bit type */
    int64_t      pixels, C, K;                           /* x [pixels][C], g [pixels][K], w [K][C] */
    bool         dy_x, scale_bias, mean_rstd, add, bn_x; /* which optional inputs are given */
};

/* dy = dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2], rounded to the type;  v = dy * w (+ add);  dw (+)= dy^T * xa
 *   inner   with scale_bias and mean_rstd: xa = relu(x*scale_bias[0] + scale_bias[1]), rounded;
 *           dx = v where the argument of relu is > 0, else 0; grad_sums = sums of dx and of dx*(x-mean)*rstd
 *   block   with mean_rstd and bn_x: xa = x; dx = v where x > 0, else 0;
 *           grad_sums = sums of dx and of dx*(bn_x-mean)*rstd
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

/* Returns whether a kernel supports the description. */
bool ck_point_grad_supports(const struct ck_point_grad_kind *kind);
/* Workspace of ck_point_grad in bytes. */
size_t      ck_point_grad_workspace(const struct ck_point_grad_kind *kind, int multiprocessors);
cudaError_t ck_point_grad(const struct ck_point_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

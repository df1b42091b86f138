/* cuda/conv/pointwise/point_grad.h: the whole backward of a 1x1 convolution with stride 1 in one pass over memory
 * (cuda/conv/pointwise/point_grad_sm90a.cu); compute capability 9.0 alone. Conventions as in cuda/common/launchers.h.
 */
#ifndef CR_POINT_GRAD_H
#define CR_POINT_GRAD_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a call looks like, without its data. */
struct ck_point_grad_kind {
    enum ck_type type;                                   /* of all data; 16 bits */
    int64_t      pixels, C, K;                           /* x [pixels][C], g [pixels][K], w [K][C] */
    bool         dy_x, scale_bias, mean_rstd, add, bn_x; /* which optional inputs there are */
};

/* dy = dy_coef[0]*g + dy_coef[1]*dy_x + dy_coef[2], rounded to the type;  v = dy * w (+ add);  dw (+)= dy^T * xa
 *   inner   scale_bias and mean_rstd   xa = relu(x*scale_bias[0] + scale_bias[1]), rounded; dx = v where that argument
 * is > 0, else 0; grad_sums = sums of dx and of dx*(x-mean)*rstd block   mean_rstd and bn_x   xa = x; dx = v where x >
 * 0, else 0; grad_sums = sums of dx and of dx*(bn_x-mean)*rstd plain   none of them     xa = x; dx = v */
struct ck_point_grad {
    struct ck_point_grad_kind kind;
    const void               *g, *dy_x, *w, *x, *add, *bn_x;    /* bn_x and add as x; NULL where the kind says no */
    const float              *dy_coeffs, *scale_bias, *mean_rstd; /* [3][K], [2][C], [2][C] = (mean, rstd) */
    void                     *dx;                               /* may be add */
    float                    *dw, *grad_sums;                   /* [K][C], [2][C] */
    bool                      accumulate;                       /* adds to dw */
};

/* Is there a kernel for it? */
bool        ck_point_grad_supports(const struct ck_point_grad_kind *kind);
size_t      ck_point_grad_workspace(const struct ck_point_grad_kind *kind, int multiprocessors);
cudaError_t ck_point_grad(const struct ck_point_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

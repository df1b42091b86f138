/* cuda/conv/stem/stem.h: launchers of the space-to-depth stem on Hopper GPUs (compute capability 9.0 only):
 * cuda/conv/stem/stem_sm90a.cu. Conventions: cuda/common/launchers.h.
 *
 * A 4x4 convolution of 16 channels, stride 1, no padding: x [N][H][W][16], w [K][4][4][16], y [N][H-3][W-3][K]; K is a
 * multiple of 64.
 *   forward   y = x*w (+ bias[k]), then ReLU when `relu`; sums[2][K] = sums of y and y^2 before y is rounded
 *   pool      y = max-pooling of ReLU(x*w + bias[k]), windows of 3x3, stride 2, padding 1; W <= 115
 *   gradient  dy = g, or dy_coeffs[0]*g + dy_coeffs[1]*dy_x + dy_coeffs[2] rounded to the type;
 *             dw (+)= sum over pixels of dy and x */
#ifndef CR_STEM_H
#define CR_STEM_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

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

struct ck_stem_pool {
    enum ck_type type;       /* of x, w, y: 16 bits */
    int64_t      N, H, W, K; /* H and W of x */
    const void  *x, *w;
    const float *bias; /* [K] */
    void        *y;    /* [N][(H-4)/2+1][(W-4)/2+1][K] */
};

struct ck_stem_grad {
    enum ck_type type;       /* of x, g, dy_x: 16 bits */
    int64_t      N, H, W, K; /* H and W of x */
    const void  *x, *g;
    const void  *dy_x;       /* like g, or NULL */
    const float *dy_coeffs;  /* [3][K], with dy_x */
    float       *dw;         /* [K][4][4][16] */
    bool         accumulate; /* adds to dw */
};

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_stem_conv_supports(const struct ck_stem_conv *args);
/* Workspace of ck_stem_conv in bytes. */
size_t      ck_stem_conv_workspace(const struct ck_stem_conv *args, int multiprocessors);
cudaError_t ck_stem_conv(const struct ck_stem_conv *args, void *workspace, int multiprocessors, cudaStream_t stream);

bool        ck_stem_pool_supports(const struct ck_stem_pool *args);
cudaError_t ck_stem_pool(const struct ck_stem_pool *args, int multiprocessors, cudaStream_t stream);

bool ck_stem_grad_supports(const struct ck_stem_grad *args);
/* Workspace of ck_stem_grad in bytes. */
size_t      ck_stem_grad_workspace(const struct ck_stem_grad *args, int multiprocessors);
cudaError_t ck_stem_grad(const struct ck_stem_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

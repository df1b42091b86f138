/* cuda/conv/stem/stem.h: launchers of the space-to-depth stem on Hopper GPUs (compute capability 9.0 only):
 * cuda/conv/stem/stem_sm90a.cu. Conventions: cuda/common/launchers.h.
 *
 * Convolution and gradient: cuda/common/fused_conv.h. With max-pooling:
 *   pool      y = max-pooling of ReLU(x*w + bias[k]), windows of 3x3, stride 2, padding 1; W <= 115 */
#ifndef CR_STEM_H
#define CR_STEM_H

#include "cuda/common/fused_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ck_stem_pool {
    enum ck_type type;       /* of x, w, y: 16 bits */
    int64_t      N, H, W, K; /* H and W of x */
    const void  *x, *w;
    const float *bias; /* [K] */
    void        *y;    /* [N][(H-4)/2+1][(W-4)/2+1][K] */
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

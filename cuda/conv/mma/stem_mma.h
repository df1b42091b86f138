/* cuda/conv/mma/stem_mma.h: launchers of the space-to-depth stem for GPUs from compute capability 8.0 on:
 * cuda/conv/mma/stem_mma.cu, stem_grad_mma.cu. Arguments and results: cuda/common/fused_conv.h; sums are of
 * the rounded y, and the gradient has no dy_x. */
#ifndef CK_STEM_MMA_H
#define CK_STEM_MMA_H

#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_stem_mma_supports(const struct ck_stem_conv *args, const struct ck_mma_gpu *gpu);
/* Workspace of ck_stem_mma in bytes. */
size_t      ck_stem_mma_workspace(const struct ck_stem_conv *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_stem_mma(const struct ck_stem_conv *args, void *workspace, const struct ck_mma_gpu *gpu,
                        cudaStream_t stream);

/* Number of tile configs of ck_stem_grad_mma. They add in different orders. */
int         ck_stem_grad_mma_configs(void);
bool        ck_stem_grad_mma_supports(const struct ck_stem_grad *args, const struct ck_mma_gpu *gpu);
size_t      ck_stem_grad_mma_workspace(const struct ck_stem_grad *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_stem_grad_mma(const struct ck_stem_grad *args, void *workspace, const struct ck_mma_gpu *gpu,
                             cudaStream_t stream);

/* The filter gradient with the gradient of max pooling (3x3, stride 2, one pixel of padding), ReLU and BN behind the
 * convolution: dy = coeffs[0]*d + coeffs[1]*y + coeffs[2], rounded to the type, where d is the sum of g over the
 * windows that chose the pixel, where y*scale_bias[0] + scale_bias[1] > 0, else 0. P is H-3 and Q is W-3. */
struct ck_stem_pool_grad {
    enum ck_type         type;                /* of x, g and y: 16 bits */
    int64_t              N, H, W, K;          /* H and W of x; K a multiple of 64 */
    const void          *x, *g, *y;           /* g [N][(P-1)/2+1][(Q-1)/2+1][K]; y [N][P][Q][K] */
    const unsigned char *index;               /* like g: position in the window, row*3 + column */
    const float         *coeffs, *scale_bias; /* [3][K], [2][K] */
    float               *dw;                  /* [K][4][4][16] */
    bool                 accumulate;          /* adds to dw */
};
bool        ck_stem_pool_grad_mma_supports(const struct ck_stem_pool_grad *args, const struct ck_mma_gpu *gpu);
size_t      ck_stem_pool_grad_mma_workspace(const struct ck_stem_pool_grad *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_stem_pool_grad_mma(const struct ck_stem_pool_grad *args, void *workspace, const struct ck_mma_gpu *gpu,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

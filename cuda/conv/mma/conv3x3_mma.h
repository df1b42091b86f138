/* cuda/conv/mma/conv3x3_mma.h: launchers of 3x3 convolutions of 64 channels to 64 channels for GPUs from compute
 * capability 8.0 on: cuda/conv/mma/conv3x3_mma.cu. Stride 1, one zero pixel around the image, sums in f32.
 *
 *   forward   y = x * w (+ bias[k]), then ReLU when `relu`; sums[2][64] = sums of y and y^2, of the rounded values
 *   gradient  with `transposed`: x is dy and y is dx, v = gradient of the convolution by its input (+ add);
 *             y = v; with bn_x: y = v where (bn_x - mean)*rstd*gamma + beta > 0, else 0, and sums[2][64] = sums of y
 *             and y*(bn_x - mean)*rstd, of the rounded values */
#ifndef CK_CONV3X3_MMA_H
#define CK_CONV3X3_MMA_H

#include "cuda/common/launchers.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_CONV3X3_MMA_CHANNELS = 64 };

struct ck_conv3x3_mma {
    enum ck_type type; /* CK_F16 or CK_BF16: of x, w, y, add and bn_x */
    int64_t      N, H, W;
    bool         relu, transposed;
    const void  *x;                        /* [N][H][W][64] */
    const void  *w;                        /* [64][3][3][64] */
    const float *bias;                     /* [64] or NULL; not with transposed or sums */
    const void  *add, *bn_x;               /* like y, or NULL; with transposed; y may be add */
    const float *mean_rstd, *gamma, *beta; /* with bn_x: [2][64], [64], [64] */
    void        *y;                        /* [N][H][W][64] */
    float       *sums;                     /* [2][64] or NULL; with transposed only if bn_x is given */
};

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_conv3x3_mma_supports(const struct ck_conv3x3_mma *args, const struct ck_mma_gpu *gpu);
/* Workspace of ck_conv3x3_mma in bytes. */
size_t      ck_conv3x3_mma_workspace(const struct ck_conv3x3_mma *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_conv3x3_mma(const struct ck_conv3x3_mma *args, void *workspace, const struct ck_mma_gpu *gpu,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/conv3x3/conv3x3_wide.h: 3x3 convolutions of 128 and more channels, and the gradient of their input, on
 * Hopper GPUs (compute capability 9.0 only). One zero pixel around the image, sums in f32. Conventions:
 * cuda/common/launchers.h.
 *
 *   forward   stride 1: y = x * w; sums[2][K] = sums of y and y^2, of the rounded values
 *   gradient  with `transposed`, stride 1 or 2: x is dy and y is dx, v = gradient of the convolution by its input;
 *             y = v; with bn_x: y = v where (bn_x - mean)*rstd*gamma + beta > 0, else 0, and sums[2][K] = sums of y
 *             and y*(bn_x - mean)*rstd, of the rounded values */
#ifndef CR_CONV3X3_WIDE_H
#define CR_CONV3X3_WIDE_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ck_conv3x3_wide {
    enum ck_type type;       /* CK_F16 or CK_BF16: of x, w, y and bn_x */
    int64_t      N, H, W, K; /* of y; K is a multiple of 128 */
    int64_t      C;          /* channels of x, a multiple of 128 */
    int          stride;     /* H and W are multiples of it, and at least twice it */
    bool         transposed;
    const void  *x;                        /* [N][H/stride][W/stride][C] */
    const void  *w;                        /* [K][3][3][C], or [C][3][3][K] with transposed */
    const void  *bn_x;                     /* like y, or NULL; with transposed */
    const float *mean_rstd, *gamma, *beta; /* with bn_x: [2][K], [K], [K] */
    void        *y;                        /* [N][H][W][K] */
    float       *sums;                     /* [2][K] or NULL; with bn_x, or without transposed */
};

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_conv3x3_wide_supports(const struct ck_conv3x3_wide *args, int multiprocessors);
/* Workspace in bytes. */
size_t      ck_conv3x3_wide_workspace(const struct ck_conv3x3_wide *args, int multiprocessors);
cudaError_t ck_conv3x3_wide(const struct ck_conv3x3_wide *args, void *workspace, int multiprocessors,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

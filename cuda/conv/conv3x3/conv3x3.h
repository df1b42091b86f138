/* cuda/conv/conv3x3/conv3x3.h: 3x3 convolutions of 64 channels to 64 channels on Hopper GPUs (compute capability
 * 9.0 only). Conventions: cuda/common/launchers.h.
 *
 *   y = x * w (+ bias[k]), then ReLU when `relu`; stride 1, one zero pixel around the image, sums in f32 */
#ifndef CR_CONV3X3_H
#define CR_CONV3X3_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_CONV3X3_CHANNELS = 64 };

struct ck_conv3x3 {
    enum ck_type type; /* CK_F16 or CK_BF16: of x, w and y */
    int64_t      N, H, W;
    bool         relu;
    bool         early; /* no launch since the last but one writes w or bias: they are read before the last ends */
    const void  *x;     /* [N][H][W][64] */
    const void  *w;     /* [64][3][3][64] */
    const float *bias;  /* [64] or NULL */
    void        *y;     /* [N][H][W][64] */
    float       *sums;  /* [2][64]: sums of y and y^2, or NULL; only without bias and ReLU */
};

/* Returns whether the kernel supports the sizes: two tiles of an image must fit in shared memory. */
bool        ck_conv3x3_supports(const struct ck_conv3x3 *args);
size_t      ck_conv3x3_workspace(int multiprocessors); /* only with sums */
cudaError_t ck_conv3x3(const struct ck_conv3x3 *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

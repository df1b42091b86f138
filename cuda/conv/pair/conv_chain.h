/* cuda/conv/pair/conv_chain.h: three convolutions in a row in one kernel for inference on Hopper GPUs (compute
 * capability 9.0 only): the 3x3 convolution of a bottleneck block with 64 channels, its last convolution, and the first
 * one of the next block. Conventions: cuda/common/launchers.h.
 *
 *   t = relu(x * first_w + first_bias), 3x3, stride 1, one zero pixel around the image; rounded to `type`, not stored
 *   y = relu(t * w + bias + add)
 *   z = relu(y * next_w + next_bias); sums in f32 */
#ifndef CR_CONV_CHAIN_H
#define CR_CONV_CHAIN_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_CONV_CHAIN_CHANNELS = 64 }; /* of x and t */

struct ck_conv_chain {
    enum ck_type type; /* CK_F16 or CK_BF16: of all tensors but the biases */
    int64_t      N, H, W, K, L; /* channels of y, z */
    bool         early;         /* no launch since the last but one writes a filter or a bias */
    int          config;        /* index below ck_conv_chain_configs */
    const void  *x;             /* [N][H][W][64] */
    const void  *first_w;       /* [64][3][3][64] */
    const void  *w, *next_w;    /* [K][64], [L][K] */
    const float *first_bias, *bias, *next_bias; /* [64], [K], [L] */
    const void  *add;                           /* [N][H][W][K] */
    void        *y, *z;                         /* [N][H][W][K], [N][H][W][L]; y may be add */
};

/* Number of configs of the rings in shared memory; 0: the kernel does not support the sizes, because the filters must
 * fit in shared memory. All give the same results. Ignores the pointers. */
int         ck_conv_chain_configs(const struct ck_conv_chain *args);
cudaError_t ck_conv_chain(const struct ck_conv_chain *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/pair/conv_chain.h: three convolutions in a row in one kernel for inference on Hopper GPUs (compute
 * capability 9.0 only): the 3x3 convolution of a bottleneck block with 64 channels, its last convolution, and the first
 * one of the next block. Conventions: cuda/common/launchers.h.
 *
 *   f16, bf16   t = relu(x * first_w + first_bias), 3x3, stride 1, one zero pixel around the image; rounded, not stored
 *               y = relu(t * w + bias + add), z = relu(y * next_w + next_bias); sums in f32
 *   u8          t, y and z as ck_int8_conv computes them (cuda/conv/int8/int8_conv.h), all with ReLU
 *
 * f16, bf16: with shortcut_x, add is the 1x1 convolution of shortcut_x by shortcut_w plus shortcut_bias, which is not
 * rounded. The filters of 8-bit convolutions are as ck_int8_pack writes them. */
#ifndef CR_CONV_CHAIN_H
#define CR_CONV_CHAIN_H

#include "cuda/conv/pair/conv_pair.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_CONV_CHAIN_CHANNELS = 64 }; /* of x and t */

struct ck_conv_chain {
    enum ck_pair_type type;          /* of x, y and z, and of add unless add_signed */
    int64_t           N, H, W, K, L; /* K, L: channels of y, z */
    bool              add_signed;    /* add is i8 instead of u8 */
    bool              shortcut;      /* shortcut_x is given instead of add */
    bool              early;         /* no launch since the last but one writes a filter, a bias or a coefficient */
    int               config;        /* index below ck_conv_chain_configs */
    const void       *x;             /* [N][H][W][64] */
    const void       *first_w;       /* [64][3][3][64] */
    const void       *w, *next_w;    /* [K][64], [L][K] */
    const float      *first_coeffs, *coeffs, *next_coeffs; /* u8: [3][64], [3][K], [3][L]; else biases [64], [K], [L] */
    const void       *add;                                 /* [N][H][W][K]; NULL with shortcut_x */
    const void       *shortcut_x, *shortcut_w;             /* [N][H][W][64], [K][64]; or NULL */
    const float      *shortcut_bias;                       /* [K] */
    void             *y, *z;                               /* [N][H][W][K], [N][H][W][L]; y may be add */
};

/* Number of configs of the rings in shared memory; 0: the kernel does not support the sizes, because the filters must
 * fit in shared memory. All give the same results. Ignores the pointers. */
int         ck_conv_chain_configs(const struct ck_conv_chain *args);
cudaError_t ck_conv_chain(const struct ck_conv_chain *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

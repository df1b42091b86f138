/* cuda/conv/pair/conv_pair.h: arguments of the families conv_pair and conv_chain, for inference on compute capability
 * 9.0: two 1x1 convolutions in one kernel (back-to-back products), and the 3x3 convolution of a bottleneck block with
 * 64 channels in front of them. Conventions: cuda/common/launchers.h.
 *
 *   conv_chain  t = relu(x * first_w + first_bias), 3x3, stride 1, one zero pixel around the image; rounded, not stored
 *   conv_pair   t = x
 *   f16, bf16   y = relu(t * w + bias + add), z = relu(y * next_w + next_bias); sums in f32
 *   u8          t, y and z as the family int8_conv computes them (cuda/conv/int8/int8_conv.h), all with ReLU
 *
 * conv_chain in f16 and bf16: with shortcut_x, add is the 1x1 convolution of shortcut_x by shortcut_w plus
 * shortcut_bias, which is not rounded.
 *
 * All filters must fit in shared memory. All configs give the same results. */
#ifndef CR_CONV_PAIR_H
#define CR_CONV_PAIR_H

#include "cuda/common/conv_family.h"

enum ck_pair_type { CK_PAIR_U8, CK_PAIR_F16, CK_PAIR_BF16 };
enum { CK_CONV_CHAIN_CHANNELS = 64 }; /* of x and t */

struct ck_conv_pair {
    enum ck_pair_type type;             /* of x, y and z, and of add unless add_signed */
    int64_t           N, H, W, C, K, L; /* C, K, L: channels of t, y, z */
    bool              has_first;        /* conv_chain; otherwise conv_pair */
    bool              has_shortcut;     /* shortcut_x is given instead of add */
    bool              add_signed;       /* add is i8 instead of u8 */
    bool              has_packed; /* u8: the filters are as ck_int8_pack writes them; otherwise the launch packs */
    int               config;     /* index below the family's configs */
    const void       *x;          /* [N][H][W][C] */
    const void       *first_w;    /* [C][3][3][C] */
    const void       *w, *next_w; /* [K][C], [L][K] */
    const float      *first_coeffs, *coeffs, *next_coeffs; /* u8: [3][C], [3][K], [3][L]; else biases [C], [K], [L] */
    const void       *add;                                 /* [N][H][W][K] */
    const void       *shortcut_x, *shortcut_w;             /* [N][H][W][64], [K][64] */
    const float      *shortcut_bias;                       /* [K] */
    void             *y, *z;                               /* [N][H][W][K], [N][H][W][L]; y may be add */
};

#endif

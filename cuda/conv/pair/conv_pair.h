/* cuda/conv/pair/conv_pair.h: two 1x1 convolutions in one kernel (back-to-back products) for inference on Hopper GPUs.
 * Conventions: cuda/common/launchers.h.
 *
 *   f16, bf16   y = relu(x * w + bias + add), z = relu(y * next_w + next_bias); sums in f32
 *   u8          y and z as ck_int8_conv computes them (cuda/conv/int8/int8_conv.h), both with ReLU, from x and y
 *
 * The filters of 8-bit convolutions are as ck_int8_pack writes them. */
#ifndef CR_CONV_PAIR_H
#define CR_CONV_PAIR_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ck_pair_type { CK_PAIR_U8, CK_PAIR_F16, CK_PAIR_BF16 };

struct ck_conv_pair {
    enum ck_pair_type type;            /* of x, y and z, and of add unless add_signed */
    int64_t           pixels, C, K, L; /* channels of x, y, z */
    bool              add_signed;      /* add is i8 instead of u8 */
    bool              early;           /* no launch since the last but one writes a filter, a bias or a coefficient */
    const void       *x;               /* [pixels][C] */
    const void       *w, *next_w;      /* [K][C], [L][K] */
    const float      *coeffs, *next_coeffs; /* u8: [3][K], [3][L]; else the biases [K], [L] */
    const void       *add;                  /* [pixels][K] */
    void             *y, *z;                /* [pixels][K], [pixels][L]; y may be add */
};

/* Returns whether the kernel supports the arguments: both filters must fit in shared memory. Ignores the pointers. */
bool        ck_conv_pair_supports(const struct ck_conv_pair *args);
cudaError_t ck_conv_pair(const struct ck_conv_pair *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

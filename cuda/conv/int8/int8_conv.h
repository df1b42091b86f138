/* cuda/conv/int8/int8_conv.h: arguments of 8-bit convolutions. Conventions: cuda/common/launchers.h.
 *
 *   sum[pixels][K] = x * w, exact in i32
 *   v = fma(sum, coeffs[0][k], coeffs[1][k]); with add: v = fma(add, coeffs[2][k], v); with relu: v = max(v, 0)
 *   y = v, rounded to the nearest integer (ties to even) and saturated when y has 8 bits
 *
 * The family int8_conv is for compute capability 9.0 and reads the filter as ck_int8_pack (cuda/common/conv_family.h)
 * writes it; int8_conv_any is for all GPUs and most shapes: C must be a multiple of 16, and K too with `add`;
 * ck_int8_conv_plain is for all GPUs and shapes. All configs of all of them give the same y. */
#ifndef CR_INT8_CONV_H
#define CR_INT8_CONV_H

#include "cuda/common/conv_family.h"

enum ck_int8_type { CK_INT8_U8, CK_INT8_I8, CK_INT8_F16, CK_INT8_BF16, CK_INT8_F32 };

struct ck_int8_conv {
    int               R, S, stride, pad;
    int64_t           N, H, W, C, K, P, Q;
    enum ck_int8_type x_type, add_type, y_type; /* x and add: u8 or i8 */
    bool              relu;
    bool              has_add, has_packed;
    int               config; /* tile config, index below the family's configs */
    const void       *x;      /* [N][H][W][C] */
    const int8_t     *w;      /* [K][R][S][C] */
    const float      *coeffs; /* [3][K]; coeffs[2][k] is the same for all k */
    const void       *add;    /* [N][P][Q][K]; y may be add */
    void             *y;      /* [N][P][Q][K] */
    const int8_t     *packed; /* w as ck_int8_pack writes it; without it int8_conv packs w in its workspace */
};

CK_C_BEGIN

cudaError_t ck_int8_conv_plain(const struct ck_int8_conv *args, cudaStream_t stream);

CK_C_END

#endif

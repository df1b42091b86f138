/* cuda/conv/int8/int8_conv.h: launchers of 8-bit convolutions. Conventions: cuda/common/launchers.h.
 *
 *   sum[pixels][K] = x * w, exact in i32
 *   v = fma(sum, coeffs[0][k], coeffs[1][k]); with add: v = fma(add, coeffs[2][k], v); with relu: v = max(v, 0)
 *   y = v, rounded to the nearest integer (ties to even) and saturated when y has 8 bits
 *
 * ck_int8_conv is for Hopper GPUs (compute capability 9.0) and reads the filter as ck_int8_pack writes it;
 * ck_int8_conv_plain is for all GPUs and shapes; cuda/conv/int8/int8_conv_mma.h is for all GPUs and most shapes. */
#ifndef CR_INT8_CONV_H
#define CR_INT8_CONV_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ck_int8_type { CK_INT8_U8, CK_INT8_I8, CK_INT8_F16, CK_INT8_BF16, CK_INT8_F32 };

struct ck_int8_conv {
    int               R, S, stride, pad;
    int64_t           N, H, W, C, K, P, Q;
    enum ck_int8_type x_type, add_type, y_type; /* x and add: u8 or i8 */
    bool              relu;
    bool          early;  /* no launch since the last but one writes w or coeffs: they are read before the last ends */
    int           config; /* tile config, index below ck_int8_conv_configs */
    const void   *x;      /* [N,H,W,C] */
    const int8_t *w;      /* [K,R,S,C], or as ck_int8_pack writes it */
    const float  *coeffs; /* [3][K]; coeffs[2][k] is the same for all k */
    const void   *add;    /* like y, or NULL; y may be add */
    void         *y;      /* [N,P,Q,K] */
};

/* Number of tile configs of ck_int8_conv; 0: it does not support the arguments. All give the same y. For pointers, only
 * NULL or not NULL matters. */
int ck_int8_conv_configs(const struct ck_int8_conv *args, int multiprocessors);
/* Bytes of the packed filter; 0 when C or K does not suit ck_int8_conv. */
size_t      ck_int8_packed_bytes(int64_t K, int R, int S, int64_t C);
cudaError_t ck_int8_pack(const int8_t *w, int8_t *packed, int64_t K, int R, int S, int64_t C, cudaStream_t stream);
cudaError_t ck_int8_conv(const struct ck_int8_conv *args, int multiprocessors, cudaStream_t stream);
cudaError_t ck_int8_conv_plain(const struct ck_int8_conv *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

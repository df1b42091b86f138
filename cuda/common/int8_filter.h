/* cuda/common/int8_filter.h: 8-bit filters as the convolution families of compute capability 9.0 read them
 * (cuda/conv/int8/int8_conv_sm90a.cu). Conventions: cuda/common/launchers.h. */
#ifndef CK_INT8_FILTER_H
#define CK_INT8_FILTER_H

#include "cuda/common/launch_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of the packed filter of w [K][R][S][C]; 0 when C does not suit the families. */
size_t      ck_int8_packed_bytes(int64_t K, int R, int S, int64_t C);
cudaError_t ck_int8_pack(const int8_t *w, int8_t *packed, int64_t K, int R, int S, int64_t C, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/int8/int8_conv_mma.h: launcher of 8-bit convolutions for GPUs from compute capability 8.0 on. Arguments,
 * conventions and results are those of ck_int8_conv (cuda/conv/int8/int8_conv.h), with the filter as [K,R,S,C]. */
#ifndef CK_INT8_CONV_MMA_H
#define CK_INT8_CONV_MMA_H

#include "cuda/conv/int8/int8_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of tile configs; 0: the arguments are not supported. All give the same y. For pointers, only NULL or not NULL
 * matters. C must be a multiple of 16, and K too when `add` is given. */
int         ck_int8_conv_mma_configs(const struct ck_int8_conv *args);
cudaError_t ck_int8_conv_mma(const struct ck_int8_conv *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

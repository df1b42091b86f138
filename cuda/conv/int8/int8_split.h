/* cuda/conv/int8/int8_split.h: 8-bit convolutions of few pixels (small batches) on Hopper GPUs: the sums over channels
 * and filter positions are split over the blocks of a cluster. Arguments and results are those of ck_int8_conv
 * (cuda/conv/int8/int8_conv.h). */
#ifndef CR_INT8_SPLIT_H
#define CR_INT8_SPLIT_H

#include "cuda/conv/int8/int8_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of configs (parts of a sum); 0: the kernel does not support the arguments, or all parts together would not run
 * at the same time. All configs give the same y. For pointers, only NULL or not NULL matters. */
int         ck_int8_split_configs(const struct ck_int8_conv *args, int multiprocessors);
cudaError_t ck_int8_split(const struct ck_int8_conv *args, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

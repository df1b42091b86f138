/* cuda/conv/mma/gram/gram_conv.h: tile configs of ck_point_gram_mma for convolutions of 64 and 128 channels:
 * cuda/conv/mma/gram/gram_conv.cu. */
#ifndef CK_GRAM_CONV_H
#define CK_GRAM_CONV_H

#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/mma_gpu.h"

/* Number of configs; 0: the kernel does not support the arguments. */
int ck_gram_conv_configs(const struct ck_point_conv *args, const struct ck_mma_gpu *gpu);
/* For arguments that ck_point_gram_mma supports. config: index below ck_gram_conv_configs. */
cudaError_t ck_gram_conv(const struct ck_point_conv *args, int config, const struct ck_mma_gpu *gpu,
                         cudaStream_t stream);

#endif

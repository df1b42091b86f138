/* cuda/conv/mma/gram/point_gram_mma.h: launchers of 1x1 convolutions whose BN takes its statistics from a Gram matrix,
 * and of the gradients of their inputs, for GPUs from compute capability 8.0 on: cuda/conv/mma/gram/point_gram_mma.cu.
 * Arguments and results are those of cuda/common/fused_conv.h with out_scale_bias or second_x: C and K are multiples
 * of 64; sums only with stride 1. */
#ifndef CK_POINT_GRAM_MMA_H
#define CK_POINT_GRAM_MMA_H

#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_point_gram_mma_supports(const struct ck_point_conv *args, const struct ck_mma_gpu *gpu);
/* Number of tile configs. They add sums in different orders. */
int ck_point_gram_mma_configs(const struct ck_point_conv *args, const struct ck_mma_gpu *gpu);
/* Workspace of ck_point_gram_mma in bytes. */
size_t      ck_point_gram_mma_workspace(const struct ck_point_conv *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_point_gram_mma(const struct ck_point_conv *args, void *workspace, const struct ck_mma_gpu *gpu,
                              cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

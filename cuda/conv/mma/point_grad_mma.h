/* cuda/conv/mma/point_grad_mma.h: launchers of the whole backward of a 1x1 convolution for GPUs from compute capability
 * 8.0 on: cuda/conv/mma/point_grad_mma.cu. Arguments and results are those of cuda/common/fused_conv.h. */
#ifndef CK_POINT_GRAD_MMA_H
#define CK_POINT_GRAD_MMA_H

#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether a kernel supports the description. */
bool ck_point_grad_mma_supports(const struct ck_point_grad_kind *kind, const struct ck_mma_gpu *gpu);
/* Number of tile configs. They add in different orders. */
int ck_point_grad_mma_configs(const struct ck_point_grad_kind *kind, const struct ck_mma_gpu *gpu);
/* Workspace of ck_point_grad_mma in bytes. config: index below ck_point_grad_mma_configs. */
size_t ck_point_grad_mma_workspace(const struct ck_point_grad_kind *kind, int config, const struct ck_mma_gpu *gpu);
cudaError_t ck_point_grad_mma(const struct ck_point_grad *args, int config, void *workspace,
                              const struct ck_mma_gpu *gpu, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

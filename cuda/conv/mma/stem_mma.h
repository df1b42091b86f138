/* cuda/conv/mma/stem_mma.h: launchers of the space-to-depth stem for GPUs from compute capability 8.0 on:
 * cuda/conv/mma/stem_mma.cu, stem_grad_mma.cu. Arguments and results: cuda/common/fused_conv.h; sums are of
 * the rounded y, and the gradient has no dy_x. */
#ifndef CK_STEM_MMA_H
#define CK_STEM_MMA_H

#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_stem_mma_supports(const struct ck_stem_conv *args, const struct ck_mma_gpu *gpu);
/* Workspace of ck_stem_mma in bytes. */
size_t      ck_stem_mma_workspace(const struct ck_stem_conv *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_stem_mma(const struct ck_stem_conv *args, void *workspace, const struct ck_mma_gpu *gpu,
                        cudaStream_t stream);

/* Number of tile configs of ck_stem_grad_mma. They add in different orders. */
int         ck_stem_grad_mma_configs(void);
bool        ck_stem_grad_mma_supports(const struct ck_stem_grad *args, const struct ck_mma_gpu *gpu);
size_t      ck_stem_grad_mma_workspace(const struct ck_stem_grad *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_stem_grad_mma(const struct ck_stem_grad *args, void *workspace, const struct ck_mma_gpu *gpu,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

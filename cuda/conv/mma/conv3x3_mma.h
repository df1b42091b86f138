/* cuda/conv/mma/conv3x3_mma.h: launchers of 3x3 convolutions of 64 channels to 64 channels for GPUs from compute
 * capability 8.0 on: cuda/conv/mma/conv3x3_mma.cu. The arguments are those of cuda/common/conv3x3_args.h. */
#ifndef CK_CONV3X3_MMA_H
#define CK_CONV3X3_MMA_H

#include "cuda/common/conv3x3_args.h"
#include "cuda/conv/mma/mma_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_conv3x3_mma_supports(const struct ck_conv3x3 *args, const struct ck_mma_gpu *gpu);
/* Workspace of ck_conv3x3_mma in bytes. */
size_t      ck_conv3x3_mma_workspace(const struct ck_conv3x3 *args, const struct ck_mma_gpu *gpu);
cudaError_t ck_conv3x3_mma(const struct ck_conv3x3 *args, void *workspace, const struct ck_mma_gpu *gpu,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

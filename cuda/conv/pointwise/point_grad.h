/* cuda/conv/pointwise/point_grad.h: launchers of the whole backward of a 1x1 convolution with stride 1 in one pass
 * over memory (cuda/conv/pointwise/point_grad_sm90a.cu); compute capability 9.0 only. Conventions:
 * cuda/common/launchers.h. */
#ifndef CR_POINT_GRAD_H
#define CR_POINT_GRAD_H

#include "cuda/common/fused_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether a kernel supports the description. */
bool ck_point_grad_supports(const struct ck_point_grad_kind *kind);
/* Workspace of ck_point_grad in bytes. */
size_t      ck_point_grad_workspace(const struct ck_point_grad_kind *kind, int multiprocessors);
cudaError_t ck_point_grad(const struct ck_point_grad *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/conv3x3/conv3x3_wide.h: 3x3 convolutions of 128 and more channels, and the gradient of their input, on
 * Hopper GPUs (compute capability 9.0 only). C and K are multiples of 128. Forward with stride 1, without bias and
 * ReLU; the gradient with stride 1 or 2, without add. H and W are at least twice the stride. */
#ifndef CR_CONV3X3_WIDE_H
#define CR_CONV3X3_WIDE_H

#include "cuda/common/conv3x3_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments. For pointers, only NULL or not NULL matters. */
bool ck_conv3x3_wide_supports(const struct ck_conv3x3 *args, int multiprocessors);
/* Workspace in bytes. */
size_t      ck_conv3x3_wide_workspace(const struct ck_conv3x3 *args, int multiprocessors);
cudaError_t ck_conv3x3_wide(const struct ck_conv3x3 *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

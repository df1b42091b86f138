/* cuda/conv/conv3x3/conv3x3.h: 3x3 convolutions of 64 channels to 64 channels, and the gradient of their input, on
 * Hopper GPUs (compute capability 9.0 only). The arguments are those of cuda/common/conv3x3_args.h. */
#ifndef CR_CONV3X3_H
#define CR_CONV3X3_H

#include "cuda/common/conv3x3_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the kernel supports the arguments: two tiles of an image must fit in shared memory. For pointers,
 * only NULL or not NULL matters. */
bool        ck_conv3x3_supports(const struct ck_conv3x3 *args);
size_t      ck_conv3x3_workspace(int multiprocessors); /* only with sums */
cudaError_t ck_conv3x3(const struct ck_conv3x3 *args, void *workspace, int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/elementwise/zero.h: zeros in a small tensor. Conventions: cuda/common/launchers.h. */
#ifndef CR_ZERO_H
#define CR_ZERO_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_ZERO_BYTES_MAX = 16384 };

/* Writes zeros to the memory, a multiple of 4 bytes and at most CK_ZERO_BYTES_MAX. Unlike cudaMemsetAsync, the launch
 * overlaps with its neighbours on the stream (ck_launch). */
cudaError_t ck_zero(void *to, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/baseline/im2col.h: pictures as the matrix whose product with the filters is their convolution, for comparisons.
 * Conventions of cuda/common/launchers.h.
 *
 * The matrix has a row a pixel of the output and R*S*C columns, in the order of a filter's elements; zeros outside the
 * picture. */
#ifndef CK_IM2COL_H
#define CK_IM2COL_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x N,H,W,C -> out [N*P*Q][R*S*C]. Bytes: the matrix once, x from the caches but once. Limiter: memory. */
cudaError_t ck_im2col(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream);
/* x C,N,H,W -> out [R*S*C][N*P*Q]: the same, lying the other way, which some libraries prefer. */
cudaError_t ck_im2col_channels_first(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

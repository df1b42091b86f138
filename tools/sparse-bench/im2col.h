/* tools/sparse-bench/im2col.h: im2col, which copies images into the matrix whose product with the filters is the
 * convolution.
 *
 * Only the benchmark baselines use im2col. The conventions of cuda/common/launchers.h hold. The matrix has one row per
 * output pixel and R*S*C columns, in the order of a filter's elements (r, s, c). Elements outside the image are 0. */
#ifndef CK_IM2COL_H
#define CK_IM2COL_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x [N,H,W,C] -> out [N*P*Q][R*S*C]. Bytes: the matrix is written once; x is read once from memory and otherwise from
 * the caches. Limiter: memory bandwidth. */
cudaError_t ck_im2col(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream);
/* x [C,N,H,W] -> out [R*S*C][N*P*Q]: the transposed matrix, which some libraries prefer. */
cudaError_t ck_im2col_channels_first(const struct ck_conv *conv, const void *x, void *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

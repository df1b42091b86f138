/* cuda/dense/dense_few.h: the classifier for a few images. Reference: device/cpu/reference/ref_dense.c. */
#ifndef CK_DENSE_FEW_H
#define CK_DENSE_FEW_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_DENSE_FEW_ROWS = 8 };

/* y [rows][classes] = x [rows][depth] w' [depth][classes] + bias, summed in f32, rounded once. w is [classes][depth].
 * rows is at most CK_DENSE_FEW_ROWS; depth is a multiple of the elements in 16 bytes. */
cudaError_t ck_dense_few(enum ck_type type, const void *x, const void *w, const float *bias, void *y, int rows,
                         int64_t classes, int64_t depth, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

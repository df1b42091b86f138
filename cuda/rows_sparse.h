/* rows_sparse.h: what the rows of convolutions with a pattern share with those of their gradients; private to rows_sparse*.c. */
#ifndef CR_ROWS_SPARSE_H
#define CR_ROWS_SPARSE_H

#include "cuda.h"
#include "sparse.h"
#include "sparse_conv.h"

enum { LAYOUT_PLAIN, LAYOUT_TILES, LANES = 32 };

/* The plan of a layout, for a filter that keeps so many weights; false: it is none for this convolution. */
bool      cr_cuda_sparse_plan(const struct cr_device *device, const struct ck_conv *conv, int64_t kept, int layout, bool wgrad,
                              struct ck_sparse_plan *plan);
/* On the host: places in the order of the layout. */
CR_MUST cr_status cr_cuda_sparse_layout(const struct cr_sparse *sparse, const struct ck_conv *conv, const struct ck_sparse_plan *plan, int layout,
                                        struct cr_stretched *to);
/* To device memory of its own (cudaFree). */
CR_MUST cr_status cr_cuda_sparse_send(const void *host, int64_t count, uint32_t **device);

#endif

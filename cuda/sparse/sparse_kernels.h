/* cuda/sparse/sparse_kernels.h: what the rows of convolutions with a pattern share with those of their gradients;
 * private to cuda/rows_*.c that have such rows. */
#ifndef CR_SPARSE_KERNELS_H
#define CR_SPARSE_KERNELS_H

#include "cuda/core/cuda_device.h"
#include "cuda/sparse/sparse_launchers.h"
#include "sparsity/band_2_4.h"
#include "sparsity/sparsity.h"

/* ---- cuda/sparse/sparse_filter_cache.c: what is asked of a pruned filter layout by layout, found once. A device holds
 * that of the filter it was asked about last, a copy of its pattern with it: patterns change. What is given out is good
 * until another filter is asked about. ---- */

enum { CR_CUDA_PHASES_MAX = 16 };

struct cuda_filter;
/* The filter of the op's pattern, K,R,S,C as in `conv`. */
CR_MUST cr_status cr_cuda_filter_of(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op, const struct ck_conv *conv, struct cuda_filter **out);
CR_MUST cr_status cr_cuda_filter_csr(struct cuda_filter *filter, const struct cr_sparse **out);
CR_MUST cr_status cr_cuda_filter_transposed(struct cuda_filter *filter, const struct cr_transposition *turn,
                                            const struct cr_sparse **out);
CR_MUST cr_status cr_cuda_filter_bands(struct cuda_filter *filter, const struct cr_mma_sp_map **out);
void              cr_cuda_filter_blocks(struct cuda_filter *filter, int64_t side, int64_t *kept,
                                        int64_t *stored); /* as cr_sparse_count_blocks */
/* Not 0 where a weight is kept, K,R,S,C. */
CR_MUST cr_status cr_cuda_filter_mask(struct cuda_filter *filter, const uint8_t **out);
bool              cr_cuda_filter_is_24(struct cuda_filter *filter);

/* ---- rows ---- */

enum { FORMAT_SELL, FORMAT_DIRECT, LANES = 32 };

/* The plan of a layout, for a filter that keeps so many weights; false: it is none for this convolution. */
bool cr_cuda_sparse_plan(const struct cr_device *device, const struct ck_conv *conv, int64_t nnz, int layout,
                         bool wgrad, struct ck_sparse_plan *plan);
/* On the host: places in the order of the layout. */
CR_MUST cr_status cr_cuda_sparse_order(const struct cr_sparse *sparse, const struct ck_conv *conv,
                                       const struct ck_sparse_plan *plan, int layout, struct cr_linear_filter *to);
/* Seconds of so many cycles; 0: the clock is not known. */
double cr_cuda_cycles_to_seconds(const struct cr_device *device, double cycles);
void   cr_cuda_sparse_format_name(const struct cr_op *op,
                                  struct cr_text     *out); /* cr_kernel.algo_name of the layouts that such a plan has */
/* To device memory of its own (cudaFree). */
CR_MUST cr_status cr_cuda_sparse_upload(const void *host, int64_t count, uint32_t **device);

#endif

/* cuda/sparse/sparse_kernels.h: functions that the kernels of sparse convolutions share with the kernels of their
 * gradients.
 *
 * Private to the *_kernels.c files of cuda/sparse. */
#ifndef CR_SPARSE_KERNELS_H
#define CR_SPARSE_KERNELS_H

#include "cuda/core/cuda_device.h"
#include "cuda/sparse/sparse_launchers.h"
#include "sparsity/band_2_4.h"
#include "sparsity/sparsity.h"

/* ---- cuda/sparse/sparse_filter_cache.c: encodings of a pruned filter ----
 *
 * A device caches the encodings of one filter: the filter of the latest call of cr_cuda_filter_of. The cache has a copy
 * of the sparsity pattern and is discarded when the pattern changes. Every pointer that the functions return belongs to
 * the cache and is valid until cr_cuda_filter_of is called for another filter. The functions that return a status fail
 * with CR_ERR_MEMORY. */

enum { CR_CUDA_PHASES_MAX = 16 };

struct cuda_filter;
/* Gives the cache entry for the filter of the op's sparsity pattern. `conv` has the filter's K, R, S and C. */
CR_MUST cr_status cr_cuda_filter_of(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op, const struct ck_conv *conv, struct cuda_filter **out);
/* Encodes the filter as compressed rows, without values. */
CR_MUST cr_status cr_cuda_filter_csr(struct cuda_filter *filter, const struct cr_sparse **out);
/* Encodes one phase of the transposed filter as compressed rows, without values. */
CR_MUST cr_status cr_cuda_filter_transposed(struct cuda_filter *filter, const struct cr_transposition *transposition,
                                            const struct cr_sparse **out);
/* The nonzeros by bands of 64 output channels, see sparsity/band_2_4.h. */
CR_MUST cr_status cr_cuda_filter_bands(struct cuda_filter *filter, const struct cr_mma_sp_map **out);
/* Counts side x side blocks: `nnz_blocks` have a nonzero weight, `stored` are stored, as cr_block_sparse_count counts
 * them. */
void cr_cuda_filter_blocks(struct cuda_filter *filter, int64_t side, int64_t *nnz_blocks, int64_t *stored);
/* A byte mask [K][R][S][C]: not 0 where the weight is nonzero. */
CR_MUST cr_status cr_cuda_filter_mask(struct cuda_filter *filter, const uint8_t **out);
/* Returns whether at most 2 of any 4 neighbouring input channels of a tap are nonzero. */
bool cr_cuda_filter_is_24(struct cuda_filter *filter);

/* ---- formats and kernels ---- */

enum { SELL_LANES = 32 };

/* Returns the weight format of the op. */
static inline struct cr_sparse_format cuda_sparse_format(const struct cr_op *op) {
    return op->attr.conv.pattern.format;
}
/* Returns the tile config of the op's weight format, or CR_NONE when the format is that of another kernel. */
static inline int cuda_sparse_tile(const struct cr_op *op, enum cr_sparse_kernel kernel) {
    return cuda_sparse_format(op).kernel == kernel ? cuda_sparse_format(op).tile : CR_NONE;
}

/* Makes the plan of a weight format (CR_SPARSE_ROWS or CR_SPARSE_DIRECT) for a filter with `nnz` nonzero weights;
 * `wgrad` selects the plan of the weight gradient. Returns false for other formats and when the format does not support
 * the convolution. */
bool cr_cuda_sparse_plan(const struct cr_device *device, const struct ck_conv *conv, int64_t nnz,
                         struct cr_sparse_format format, bool wgrad, struct ck_sparse_plan *plan);
/* Encodes the filter on the host, in the order of this kernel's formats. The caller frees `to`. Fails with
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_cuda_sparse_order(const struct cr_sparse *sparse, const struct ck_conv *conv,
                                       const struct ck_sparse_plan *plan, enum cr_sparse_kernel kernel,
                                       struct cr_linear_filter *to);
/* Implements cr_kernel.algo_name for SELL and for the formats with a ck_sparse_plan. */
void cr_cuda_sparse_format_name(const struct cr_op *op, struct cr_text *out);

/* ---- cuda/sparse/sparse_kernels.c: functions of all formats ---- */

/* Converts clock cycles to seconds, at the device's maximum clock. Returns 0 when the clock rate is unknown. */
double cr_cuda_cycles_to_seconds(const struct cr_device *device, double cycles);
/* Copies `count` words to newly allocated device memory, which the caller frees with cudaFree. */
CR_MUST cr_status cr_cuda_sparse_upload(const void *host, int64_t count, uint32_t **device);

/* A linear filter without values in device memory. */
struct cuda_linear_filter {
    int64_t   entries;
    uint32_t *offsets, *start, *from;
};
/* Copies the parts that a kernel needs: `from` for a kernel that gathers the values, the others for a convolution. */
CR_MUST cr_status cr_cuda_linear_upload(const struct cr_linear_filter *filter, bool gathers, bool convolves,
                                        struct cuda_linear_filter *to);
void              cr_cuda_linear_free(struct cuda_linear_filter *filter);

/* Members of struct cr_kernel that all kernels of sparse filters share. CONV and FILTER expect the functions algo_name,
 * prepare and release, and FILTER expects has_format and filter_launch. */
#define CUDA_SPARSE_CONV(kernel_name, kernel_math, types)                                                              \
    CR_KERNEL(kernel_name, conv, kernel_math),                                                                         \
        .dtypes = types, .sparse = true,                                                                               \
        .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add) | CR_IN_BIT(conv, packed), .algo_name = algo_name, \
        .prepare = prepare, .release = release
#define CUDA_SPARSE_FILTER(kernel_name, types)                                                                         \
    {                                                                                                                  \
        CR_KERNEL(kernel_name, sparse_filter, CR_MATH_EXACT),                                                          \
            .dtypes = types, .algo_name = algo_name, .prepare = prepare, .release = release, .accepts = has_format,    \
            .launch = filter_launch                                                                                    \
    }

#endif

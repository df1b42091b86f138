/* cuda/sparse/sparse_filter_cache.c: caches the encodings of one pruned filter per device. See
 * cuda/sparse/sparse_kernels.h. */
#include "cuda/core/device_parts.h"
#include "cuda/sparse/sparse_kernels.h"

#include <string.h>

struct cuda_filter {
    int64_t K, R, S, C, first, bytes;
    /* copy of the bytes of the sparsity pattern that contain the filter; the first bit of the filter is bit first % 8
     */
    uint8_t             *bits;
    uint8_t             *mask; /* byte mask; NULL until it is made */
    struct cr_sparse     csr;  /* nonzeros; row is NULL until they are encoded */
    struct cr_mma_sp_map map;  /* quad is NULL until the map is made */
    int64_t blocks, stored; /* blocks of `side` x `side` channels: nonzero, stored; side is 0 until they are counted */
    int64_t side;
    int     two_of_four; /* -1 until it is computed */
    struct cr_transposition transposition[CR_CUDA_PHASES_MAX];
    struct cr_sparse        transposed[CR_CUDA_PHASES_MAX];
    int                     transposed_count;
};

static void clear(struct cuda_filter *f) {
    cr_free(f->bits);
    cr_free(f->mask);
    cr_sparse_free(&f->csr);
    cr_mma_sp_map_free(&f->map);
    for (int i = 0; i < f->transposed_count; i++) cr_sparse_free(&f->transposed[i]);
    memset(f, 0, sizeof *f);
}

void cr_cuda_filter_close(struct cuda_filter *filter) {
    if (filter) clear(filter);
    cr_free(filter);
}

static bool is_filter(const struct cuda_filter *f, const uint8_t *bits, int64_t first, const struct ck_conv *c) {
    return f->bits && f->K == c->K && f->R == c->R && f->S == c->S && f->C == c->C && f->first == first &&
           memcmp(f->bits, bits + first / 8, (size_t)f->bytes) == 0;
}

cr_status cr_cuda_filter_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            const struct ck_conv *c, struct cuda_filter **out) {
    const uint8_t       *bits  = p->store->pattern;
    const int64_t        first = p->store->param[op->attr.conv.pattern.param].offset, elems = c->K * c->R * c->S * c->C;
    struct cuda_filter **cached = &cuda_of(device)->filter;
    if (!*cached) CR_ALLOC(*cached, 1);
    *out = *cached;
    if (is_filter(*cached, bits, first, c)) return CR_OK;
    clear(*cached);
    struct cuda_filter f = {.K = c->K, .R = c->R, .S = c->S, .C = c->C, .first = first, .two_of_four = -1};
    f.bytes              = (first + elems + 7) / 8 - first / 8;
    CR_ALLOC(f.bits, (size_t)f.bytes);
    memcpy(f.bits, bits + first / 8, (size_t)f.bytes);
    **cached = f;
    return CR_OK;
}

cr_status cr_cuda_filter_csr(struct cuda_filter *f, const struct cr_sparse **out) {
    if (!f->csr.row) CR_TRY(cr_sparse_from_bits(f->bits, f->first % 8, f->K, f->R, f->S, f->C, &f->csr));
    *out = &f->csr;
    return CR_OK;
}

cr_status cr_cuda_filter_transposed(struct cuda_filter *f, const struct cr_transposition *transposition,
                                    const struct cr_sparse **out) {
    const struct cr_sparse *csr;
    for (int i = 0; i < f->transposed_count; i++)
        if (memcmp(&f->transposition[i], transposition, sizeof *transposition) == 0) {
            *out = &f->transposed[i];
            return CR_OK;
        }
    CR_TRY(cr_cuda_filter_csr(f, &csr));
    if (f->transposed_count == CR_CUDA_PHASES_MAX) cr_sparse_free(&f->transposed[--f->transposed_count]);
    CR_TRY(cr_sparse_transpose(csr, transposition, &f->transposed[f->transposed_count]));
    f->transposition[f->transposed_count] = *transposition;
    *out                                  = &f->transposed[f->transposed_count++];
    return CR_OK;
}

cr_status cr_cuda_filter_bands(struct cuda_filter *f, const struct cr_mma_sp_map **out) {
    const struct cr_sparse *csr;
    CR_TRY(cr_cuda_filter_csr(f, &csr));
    if (!f->map.quad) CR_TRY(cr_mma_sp_map_make(csr, &f->map));
    *out = &f->map;
    return CR_OK;
}

cr_status cr_cuda_filter_mask(struct cuda_filter *f, const uint8_t **out) {
    const int64_t elems = f->K * f->R * f->S * f->C, first = f->first % 8;
    if (!f->mask) {
        CR_ALLOC(f->mask, (size_t)elems);
        for (int64_t i = 0; i < elems; i++) f->mask[i] = f->bits[(first + i) / 8] >> ((first + i) % 8) & 1;
    }
    *out = f->mask;
    return CR_OK;
}

void cr_cuda_filter_blocks(struct cuda_filter *f, int64_t side, int64_t *nnz_blocks, int64_t *stored) {
    if (f->side != side)
        f->blocks = cr_block_sparse_count(f->bits, f->first % 8, f->K, f->R, f->S, f->C, side, &f->stored);
    f->side     = side;
    *nnz_blocks = f->blocks;
    *stored     = f->stored;
}

bool cr_cuda_filter_is_24(struct cuda_filter *f) {
    if (f->two_of_four < 0) f->two_of_four = cr_sparse_is_24(f->bits, f->first % 8, f->K * f->R * f->S, f->C);
    return f->two_of_four;
}

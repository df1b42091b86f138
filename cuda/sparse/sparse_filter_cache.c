/* cuda/sparse/sparse_filter_cache.c: what rows ask of a pruned filter layout by layout, found once. See
 * cuda/sparse/sparse_kernels.h. */
#include "cuda/sparse/sparse_kernels.h"

#include <string.h>

struct cuda_filter {
    int64_t  K, R, S, C, first, bytes;
    uint8_t *bits; /* a copy of those bytes of the pattern in which the filter lies; its first bit is first % 8 */
    uint8_t *kept; /* NULL: not asked for yet */
    struct cr_sparse        places;         /* row NULL: not asked for yet */
    struct cr_mma_sp_map    map;            /* quad NULL: not asked for yet */
    int64_t                 blocks, stored; /* of `side` x `side` channels; side 0: not asked for yet */
    int64_t                 side;
    int                     two_of_four; /* -1: not asked for yet */
    struct cr_transposition turn[CR_CUDA_PHASES_MAX];
    struct cr_sparse        turned[CR_CUDA_PHASES_MAX];
    int                     turns;
};

static void forget(struct cuda_filter *f) {
    cr_free(f->bits);
    cr_free(f->kept);
    cr_sparse_free(&f->places);
    cr_mma_sp_map_free(&f->map);
    for (int i = 0; i < f->turns; i++) cr_sparse_free(&f->turned[i]);
    memset(f, 0, sizeof *f);
}

void cr_cuda_filter_close(struct cuda_filter *filter) {
    if (filter) forget(filter);
    cr_free(filter);
}

static bool is_of(const struct cuda_filter *f, const uint8_t *bits, int64_t first, const struct ck_conv *c) {
    return f->bits && f->K == c->K && f->R == c->R && f->S == c->S && f->C == c->C && f->first == first &&
           memcmp(f->bits, bits + first / 8, (size_t)f->bytes) == 0;
}

cr_status cr_cuda_filter_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            const struct ck_conv *c, struct cuda_filter **out) {
    const uint8_t       *bits  = p->store->pattern;
    const int64_t        first = p->store->param[op->attr.conv.pattern.param].offset, elems = c->K * c->R * c->S * c->C;
    struct cuda_filter **held = &cuda_of(device)->filter;
    if (!*held) CR_ALLOC(*held, 1);
    *out = *held;
    if (is_of(*held, bits, first, c)) return CR_OK;
    forget(*held);
    struct cuda_filter f = {.K = c->K, .R = c->R, .S = c->S, .C = c->C, .first = first, .two_of_four = -1};
    f.bytes              = (first + elems + 7) / 8 - first / 8;
    CR_ALLOC(f.bits, (size_t)f.bytes);
    memcpy(f.bits, bits + first / 8, (size_t)f.bytes);
    **held = f;
    return CR_OK;
}

cr_status cr_cuda_filter_csr(struct cuda_filter *f, const struct cr_sparse **out) {
    if (!f->places.row) CR_TRY(cr_sparse_from_bits(f->bits, f->first % 8, f->K, f->R, f->S, f->C, &f->places));
    *out = &f->places;
    return CR_OK;
}

cr_status cr_cuda_filter_transposed(struct cuda_filter *f, const struct cr_transposition *turn,
                                    const struct cr_sparse **out) {
    const struct cr_sparse *places;
    for (int i = 0; i < f->turns; i++)
        if (memcmp(&f->turn[i], turn, sizeof *turn) == 0) {
            *out = &f->turned[i];
            return CR_OK;
        }
    CR_TRY(cr_cuda_filter_csr(f, &places));
    if (f->turns == CR_CUDA_PHASES_MAX) cr_sparse_free(&f->turned[--f->turns]);
    CR_TRY(cr_sparse_transpose(places, turn, &f->turned[f->turns]));
    f->turn[f->turns] = *turn;
    *out              = &f->turned[f->turns++];
    return CR_OK;
}

cr_status cr_cuda_filter_bands(struct cuda_filter *f, const struct cr_mma_sp_map **out) {
    const struct cr_sparse *places;
    CR_TRY(cr_cuda_filter_csr(f, &places));
    if (!f->map.quad) CR_TRY(cr_mma_sp_map_make(places, &f->map));
    *out = &f->map;
    return CR_OK;
}

cr_status cr_cuda_filter_mask(struct cuda_filter *f, const uint8_t **out) {
    const int64_t elems = f->K * f->R * f->S * f->C, first = f->first % 8;
    if (!f->kept) {
        CR_ALLOC(f->kept, (size_t)elems);
        for (int64_t i = 0; i < elems; i++) f->kept[i] = f->bits[(first + i) / 8] >> ((first + i) % 8) & 1;
    }
    *out = f->kept;
    return CR_OK;
}

void cr_cuda_filter_blocks(struct cuda_filter *f, int64_t side, int64_t *kept, int64_t *stored) {
    if (f->side != side)
        f->blocks = cr_sparse_count_blocks(f->bits, f->first % 8, f->K, f->R, f->S, f->C, side, &f->stored);
    f->side = side;
    *kept   = f->blocks;
    *stored = f->stored;
}

bool cr_cuda_filter_is_24(struct cuda_filter *f) {
    if (f->two_of_four < 0) f->two_of_four = cr_sparse_is_24(f->bits, f->first % 8, f->K * f->R * f->S, f->C);
    return f->two_of_four;
}

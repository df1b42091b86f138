/* harness/sparse_support.h: encodes and decodes sparse filters for tests. */
#ifndef SPARSE_SUPPORT_H
#define SPARSE_SUPPORT_H

#include "sparsity/sparsity.h"
#include "tests/harness/test.h"

OWNABLE(sparse, struct cr_sparse, cr_sparse_free(x))

/* Encodes the sparsity pattern of a filter: the elements with a mask byte other than 0; with mask NULL the elements
 * other than 0. The caller calls cr_sparse_free. */
static inline cr_status sparse_encode(const float *filter, const uint8_t *mask, int64_t K, int64_t R, int64_t S,
                                      int64_t C, struct cr_sparse *sparse) {
    const int64_t elems = K * R * S * C;
    OWNED(bytes)  bits  = NULL;
    CR_ALLOC(bits, (size_t)elems / 8 + 1);
    for (int64_t i = 0; i < elems; i++)
        if (mask ? mask[i] != 0 : filter[i] != 0.0f) bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << i % 8);
    return cr_sparse_from_bits(bits, 0, K, R, S, C, sparse);
}

/* Writes the elements of the pattern to `to` and 0 elsewhere; both filters are dense K,R,S,C. */
static inline void sparse_decode(const struct cr_sparse *sparse, const float *filter, float *to) {
    const int64_t taps = sparse->R * sparse->S * sparse->C;
    memset(to, 0, (size_t)(sparse->K * taps) * sizeof *to);
    for (int64_t k = 0; k < sparse->K; k++)
        for (int64_t i = sparse->row[k]; i < sparse->row[k + 1]; i++)
            to[k * taps + sparse->index[i]] = filter[k * taps + sparse->index[i]];
}

/* Writes the values of the entries, as kernels do. */
static inline void sparse_fill(const float *filter, struct cr_linear_filter *to) {
    for (int64_t i = 0; i < to->entries; i++)
        if (to->from[i] != CR_SPARSE_FILL) to->entry[i].value = filter[to->from[i]];
}

/* The inverse of cr_sparse_24_encode. */
static inline void sparse_24_decode(const uint16_t *values, const uint16_t *places, int64_t rows, int64_t columns,
                                    uint16_t *dense) {
    memset(dense, 0, (size_t)(rows * columns) * sizeof *dense);
    for (int64_t g = 0; g < rows * columns / 4; g++) {
        const unsigned two             = (unsigned)places[g / 4] >> 4 * (g % 4);
        dense[g * 4 + (two & 3u)]      = values[2 * g];
        dense[g * 4 + (two >> 2 & 3u)] = values[2 * g + 1];
    }
}

#endif

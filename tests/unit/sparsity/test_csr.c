/* tests/unit/sparsity/test_csr.c: the places of nonzero weights, from bits; 2:4; memory that runs out in all formats of
 * sparse filters. What kernels compute with each format: test_checkops. */
#include "sparsity/band_2_4.h"
#include "sparsity/sparsity.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/test.h"

OWNABLE(sparse, struct cr_sparse, cr_sparse_free(x))

/* Encodes the sparsity pattern of a filter: the elements with a mask byte other than 0; with mask NULL the elements
 * other than 0. The caller calls cr_sparse_free. */
static cr_status sparse_encode(const float *filter, const uint8_t *mask, int64_t K, int64_t R, int64_t S, int64_t C,
                               struct cr_sparse *sparse) {
    const int64_t elems = K * R * S * C;
    OWNED(bytes)  bits  = NULL;
    CR_ALLOC(bits, (size_t)elems / 8 + 1);
    for (int64_t i = 0; i < elems; i++)
        if (mask ? mask[i] != 0 : filter[i] != 0.0f) bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << i % 8);
    return cr_sparse_from_bits(bits, 0, K, R, S, C, sparse);
}

/* Writes the elements of the pattern to `to` and 0 elsewhere; both filters are dense K,R,S,C. */
static void sparse_decode(const struct cr_sparse *sparse, const float *filter, float *to) {
    const int64_t taps = sparse->R * sparse->S * sparse->C;
    memset(to, 0, (size_t)(sparse->K * taps) * sizeof *to);
    for (int64_t k = 0; k < sparse->K; k++)
        for (int64_t i = sparse->row[k]; i < sparse->row[k + 1]; i++)
            to[k * taps + sparse->index[i]] = filter[k * taps + sparse->index[i]];
}

struct shape {
    int64_t K, R, S, C;
};
static const struct shape shapes[] = {{1, 1, 1, 1},   {8, 3, 3, 16}, {5, 3, 3, 7},
                                      {33, 1, 1, 70}, {7, 5, 3, 9},  {64, 7, 7, 3}};
enum { WEIGHTS = 64 * 7 * 7 * 8 };

static float    filter[WEIGHTS], back[WEIGHTS];
static uint8_t  mask[WEIGHTS];
static uint32_t seed;

static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* About 10 % nonzeros; row 0 and the last are empty where there are three or more, row 1 is full. filter = values of
 * the nonzeros. */
static int64_t make(const struct shape *s) {
    const int64_t taps     = s->R * s->S * s->C;
    int64_t       nonzeros = 0;
    for (int64_t i = 0; i < s->K * taps; i++) {
        const int64_t k = i / taps;
        mask[i]         = draw() % 10 == 0;
        if (s->K >= 3 && (k == 0 || k == s->K - 1)) mask[i] = 0;
        if (s->K >= 3 && k == 1) mask[i] = 1;
        filter[i] = mask[i] ? (float)(i + 1) : 0.0f;
        nonzeros += mask[i];
    }
    return nonzeros;
}

TEST(csr_rows_are_restored) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        const struct shape *s        = &shapes[i];
        const int64_t       nonzeros = make(s), count = s->K * s->R * s->S * s->C;
        OWNED(sparse)       sparse = {0};
        REQUIRE(sparse_encode(filter, i % 2 ? mask : NULL, s->K, s->R, s->S, s->C, &sparse) == CR_OK);
        CHECK_INT(cr_sparse_nnz(&sparse), nonzeros);
        memset(back, 0xff, sizeof back);
        sparse_decode(&sparse, filter, back);
        CHECK(memcmp(back, filter, (size_t)count * sizeof *back) == 0);
    }
}

/* From bits that begin anywhere in a byte: the same places as from bytes. */
TEST(indices_come_from_bits) {
    static uint8_t bits[WEIGHTS / 8 + 8];
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int64_t first = 0; first < 18; first++) {
            const struct shape *s     = &shapes[i];
            const int64_t       count = s->K * s->R * s->S * s->C, nonzeros = make(s);
            OWNED(sparse)       a = {0}, b = {0};
            memset(bits, 0xff, sizeof bits); /* neighbours are nonzero */
            for (int64_t j = 0; j < count; j++)
                if (!mask[j]) bits[(first + j) / 8] = (uint8_t)(bits[(first + j) / 8] & ~(1u << (first + j) % 8));
            REQUIRE(sparse_encode(filter, mask, s->K, s->R, s->S, s->C, &a) == CR_OK);
            REQUIRE(cr_sparse_from_bits(bits, first, s->K, s->R, s->S, s->C, &b) == CR_OK);
            CHECK(memcmp(a.row, b.row, (size_t)(s->K + 1) * sizeof *a.row) == 0);
            CHECK(memcmp(a.index, b.index, (size_t)nonzeros * sizeof *a.index) == 0);
        }
}

TEST(explicit_zeros_are_preserved) {
    const float   two[2]   = {0.0f, 3.0f};
    const uint8_t which[2] = {1, 0};
    OWNED(sparse) sparse   = {0};
    REQUIRE(sparse_encode(two, which, 1, 1, 1, 2, &sparse) == CR_OK);
    CHECK_INT(cr_sparse_nnz(&sparse), 1);
    CHECK_INT(sparse.index[0], 0);
}

TEST(failing_allocations) {
    const struct cr_linear_layout how           = {.stride = 1, .chunk = 4, .rows = 8, .multiple = 2};
    const struct cr_transposition transposition = cr_sparse_transposition(3, 3, 1, 1, 0, 0);
    const struct cr_block_layout  blocks        = {.side = 4, .teams = 2};
    const struct cr_mma_sp_layout bands         = {.stride = 1, .chunk = 8, .bands = 1};
    const uint8_t                 all[64]       = {0xff, 0xff};
    struct cr_sparse              sparse, other;
    struct cr_linear_filter       to;
    struct cr_block_sparse        block;
    struct cr_mma_sp_map          map;
    struct cr_mma_sp              packed;
    int64_t                       counted;
    make(&shapes[1]);
    for_each_failing_alloc(f, .least = 3) {
        const cr_status status = failing_alloc_run(&f, sparse_encode(filter, mask, 8, 3, 3, 16, &other));
        if (status == CR_OK) cr_sparse_free(&other);
    }
    REQUIRE(sparse_encode(filter, mask, 8, 3, 3, 16, &sparse) == CR_OK);
    for_each_failing_alloc(f, .least = 4) {
        const cr_status status = failing_alloc_run(&f, cr_sparse_transpose(&sparse, &transposition, &other));
        if (status == CR_OK) cr_sparse_free(&other);
    }
    for_each_failing_alloc(f, .least = 6) {
        const cr_status status = failing_alloc_run(&f, cr_sparse_linearize(&sparse, &how, &to));
        if (status == CR_OK) cr_linear_filter_free(&to);
    }
    for_each_failing_alloc(f, .least = 3) {
        failing_alloc_run(&f, cr_sparse_linearize_count(&sparse, &how, &counted));
    }
    for_each_failing_alloc(f, .least = 2) {
        const cr_status status = failing_alloc_run(&f, cr_sparse_sell(&sparse, 32, &to));
        if (status == CR_OK) cr_linear_filter_free(&to);
    }
    for_each_failing_alloc(f, .least = 4) {
        const cr_status status = failing_alloc_run(&f, cr_block_sparse_encode(all, 0, 8, 3, 3, 4, &blocks, &block));
        if (status == CR_OK) cr_block_sparse_free(&block);
    }
    for_each_failing_alloc(f, .least = 2) {
        const cr_status status = failing_alloc_run(&f, cr_mma_sp_map_make(&sparse, &map));
        if (status == CR_OK) cr_mma_sp_map_free(&map);
    }
    REQUIRE(cr_mma_sp_map_make(&sparse, &map) == CR_OK);
    for_each_failing_alloc(f, .least = 5) {
        const cr_status status = failing_alloc_run(&f, cr_mma_sp_make(&map, &bands, true, &packed));
        if (status == CR_OK) cr_mma_sp_free(&packed);
    }
    cr_mma_sp_map_free(&map);
    cr_sparse_free(&sparse);
}

/* ---- 2:4 ---- */

/* From a bit pattern, at any bit offset; rows may end in the middle of a group, which the next row does not
 * complete. */
TEST(two_four_is_detected) {
    static const struct {
        int     columns;
        uint8_t row[2][10]; /* of two rows */
        bool    is;
    } cases[] = {{8, {{1, 1, 0, 0, 0, 1, 0, 1}, {0, 0, 1, 1, 1, 0, 1, 0}}, true},
                 {8, {{1, 1, 0, 0, 0, 1, 0, 1}, {0, 0, 1, 1, 1, 0, 1, 1}}, false},
                 {8, {{1, 1, 0, 1, 0, 0, 0, 0}, {0}}, false},
                 {8, {{0, 0, 1, 1, 1, 1, 0, 0}, {1, 1, 0, 0, 0, 0, 1, 1}}, true}, /* four neighbours of two groups */
                 {6, {{0, 0, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1}}, true},
                 {6, {{0, 0, 0, 0, 1, 1}, {1, 1, 1, 0, 0, 0}}, false},
                 {3, {{1, 0, 1}, {1, 1, 0}}, true},
                 {3, {{1, 0, 1}, {1, 1, 1}}, false}};
    for (size_t i = 0; i < CR_COUNT(cases); i++)
        for (int64_t first = 0; first < 9; first++) {
            uint8_t bits[8];
            memset(bits, 0xff, sizeof bits);
            for (int64_t j = 0; j < 2 * cases[i].columns; j++)
                if (!cases[i].row[j / cases[i].columns][j % cases[i].columns])
                    bits[(first + j) / 8] = (uint8_t)(bits[(first + j) / 8] & ~(1u << (first + j) % 8));
            CHECK_INT(cr_sparse_is_24(bits, first, 2, cases[i].columns), cases[i].is);
        }
}

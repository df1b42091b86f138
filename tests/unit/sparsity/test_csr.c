/* tests/unit/sparsity/test_csr.c: formats of sparse filters. Each format is unpacked by an independent loop, weight by
 * weight. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/sparse_support.h"

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

/* One shape, one linearisation: every entry has the offset that a plain loop over the filter gives. */
static void linearised_once(const struct shape *s, int64_t chunk, int64_t stride, int64_t multiple) {
    OWNED(sparse)           sparse = {0};
    struct cr_linear_filter to;
    make(s);
    REQUIRE(sparse_encode(filter, mask, s->K, s->R, s->S, s->C, &sparse) == CR_OK);
    const struct cr_linear_layout how = {.stride   = stride,
                                         .chunk    = chunk,
                                         .c_step   = 100000,
                                         .r_phase  = 7000,
                                         .r_step   = 300,
                                         .s_phase  = 50,
                                         .s_step   = 1,
                                         .rows     = s->K + 2,
                                         .multiple = multiple};
    REQUIRE(cr_sparse_linearize(&sparse, &how, &to) == CR_OK);
    sparse_fill(filter, &to);
    int64_t counted = -1;
    CHECK(cr_sparse_linearize_count(&sparse, &how, &counted) == CR_OK && counted == to.entries);
    CHECK_INT(to.chunks, (s->C + chunk - 1) / chunk);
    for (int64_t i = 0; i < to.chunks; i++)
        for (int64_t k = 0; k < to.rows; k++) {
            const uint32_t *start = &to.start[i * to.rows + k];
            uint32_t        at = start[0], last = 0;
            for (int64_t r = 0; k < s->K && r < s->R; r++)
                for (int64_t q = 0; q < s->S; q++)
                    for (int64_t c = i * chunk; c < CR_MIN(s->C, (i + 1) * chunk); c++) {
                        const int64_t w = ((k * s->R + r) * s->S + q) * s->C + c;
                        if (!mask[w]) continue;
                        last = (uint32_t)((c - i * chunk) * 100000 + r % stride * 7000 + r / stride * 300 +
                                          q % stride * 50 + q / stride);
                        CHECK(at < start[1] && to.entry[at].value == filter[w] && to.entry[at].offset == last);
                        at++;
                    }
            CHECK_INT((start[1] - start[0]) % multiple, 0);
            CHECK(start[1] - at < multiple);
            for (; at < start[1]; at++) CHECK(to.entry[at].value == 0.0f && to.entry[at].offset == last);
        }
    cr_linear_filter_free(&to);
}
TEST(offsets_are_linearised) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        linearised_once(&shapes[i], shapes[i].C, 1, 1);
        linearised_once(&shapes[i], 4, 2, 2);
        linearised_once(&shapes[i], 3, 3, 4);
    }
}

TEST(sell_slices_contain_every_row) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        const struct shape     *s    = &shapes[i];
        const int64_t           taps = s->R * s->S * s->C, slice_rows = 32;
        OWNED(sparse)           sparse = {0};
        struct cr_linear_filter to;
        make(s);
        REQUIRE(sparse_encode(filter, mask, s->K, s->R, s->S, s->C, &sparse) == CR_OK);
        REQUIRE(cr_sparse_sell(&sparse, slice_rows, &to) == CR_OK);
        sparse_fill(filter, &to);
        CHECK_INT(to.rows, (s->K + slice_rows - 1) / slice_rows);
        CHECK_INT(cr_sparse_sell_count(&sparse, slice_rows), to.entries);
        memset(back, 0, sizeof back);
        for (int64_t slice = 0; slice < to.rows; slice++)
            for (uint32_t step = to.start[slice]; step < to.start[slice + 1]; step++)
                for (int64_t row = 0; row < slice_rows; row++) {
                    const struct cr_sparse_entry e = to.entry[step * slice_rows + row];
                    const int64_t k = slice * slice_rows + row, r = e.offset >> 24, q = e.offset >> 16 & 255,
                                  c = e.offset & 65535;
                    if (e.value == 0.0f) continue;
                    CHECK(k < s->K && r < s->R && q < s->S && c < s->C);
                    if (k < s->K) back[k * taps + (r * s->S + q) * s->C + c] += e.value;
                }
        CHECK(memcmp(back, filter, (size_t)(s->K * taps) * sizeof *back) == 0);
        cr_linear_filter_free(&to);
    }
}

enum { SIDE_H = 7, SIDE_W = 5 };

/* dx = sum of dy * w over all outputs that read a pixel, one output after the other. */
static void scatter(const struct shape *s, int64_t stride, int64_t pad, int64_t P, int64_t Q, const float *dy,
                    float *dx) {
    memset(dx, 0, (size_t)(SIDE_H * SIDE_W * s->C) * sizeof *dx);
    for (int64_t i = 0; i < P * Q * s->K * s->R * s->S; i++) {
        const int64_t q = i % s->S, r = i / s->S % s->R, k = i / s->S / s->R % s->K, pixel = i / s->S / s->R / s->K;
        const int64_t h = pixel / Q * stride - pad + r, w = pixel % Q * stride - pad + q;
        for (int64_t c = 0; h >= 0 && h < SIDE_H && w >= 0 && w < SIDE_W && c < s->C; c++)
            dx[(h * SIDE_W + w) * s->C + c] += dy[pixel * s->K + k] * filter[((k * s->R + r) * s->S + q) * s->C + c];
    }
}

/* Result of the filter of one phase at a pixel of dy. */
static float transposed_at(const struct cr_sparse *f, const struct cr_transposition *t, int64_t i, int64_t j, int64_t c,
                           int64_t P, int64_t Q, const float *dy) {
    float sum = 0;
    for (int64_t e = f->row[c]; e < f->row[c + 1]; e++) {
        const int64_t k = f->index[e] % f->C, q = f->index[e] / f->C % f->S, r = f->index[e] / f->C / f->S;
        const int64_t row = i - t->pad + r, column = j - t->pad + q;
        CHECK(r < f->R && (e == f->row[c] || f->index[e] > f->index[e - 1])); /* in order */
        if (row >= 0 && row < P && column >= 0 && column < Q)
            sum += dy[(row * Q + column) * f->C + k] * filter[f->element[e]];
    }
    return sum;
}

static void transposed_once(const struct shape *s, int64_t stride, int64_t pad) {
    static float  dy[(SIDE_H + 9) * (SIDE_W + 9) * 64], want[SIDE_H * SIDE_W * 96];
    const int64_t P = (SIDE_H + 2 * pad - s->R) / stride + 1, Q = (SIDE_W + 2 * pad - s->S) / stride + 1;
    OWNED(sparse) sparse = {0};
    make(s);
    if (SIDE_H + 2 * pad < s->R || SIDE_W + 2 * pad < s->S) return;
    for (int64_t i = 0; i < s->K * s->R * s->S * s->C; i++)
        filter[i] = mask[i] ? (float)(draw() % 9) + 1 : 0.0f; /* sums are exact */
    for (int64_t i = 0; i < P * Q * s->K; i++) dy[i] = (float)(draw() % 9);
    REQUIRE(sparse_encode(filter, mask, s->K, s->R, s->S, s->C, &sparse) == CR_OK);
    scatter(s, stride, pad, P, Q, dy, want);
    int64_t seen = 0;
    for (int64_t h = 0; h < stride; h++)
        for (int64_t w = 0; w < stride; w++) {
            const struct cr_transposition t          = cr_sparse_transposition(s->R, s->S, stride, pad, h, w);
            OWNED(sparse)                 transposed = {0};
            CHECK(t.pad >= 0);
            if (t.R) REQUIRE(cr_sparse_transpose(&sparse, &t, &transposed) == CR_OK);
            if (t.R) seen += cr_sparse_nnz(&transposed);
            for (int64_t i = 0; h + i * stride < SIDE_H; i++)
                for (int64_t j = 0; w + j * stride < SIDE_W; j++)
                    for (int64_t c = 0; c < s->C; c++) {
                        const float x = t.R ? transposed_at(&transposed, &t, i, j, c, P, Q, dy) : 0;
                        CHECK(x == want[((h + i * stride) * SIDE_W + w + j * stride) * s->C + c]);
                    }
        }
    CHECK_INT(seen, cr_sparse_nnz(&sparse)); /* each weight belongs to one phase */
}
TEST(transposed_filters_give_gradients) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int64_t stride = 1; stride <= 4; stride++)
            for (int64_t pad = 0; pad <= 3; pad++) transposed_once(&shapes[i], stride, pad);
}

TEST(failing_allocations) {
    const struct cr_linear_layout how           = {.stride = 1, .chunk = 4, .rows = 8, .multiple = 2};
    const struct cr_transposition transposition = cr_sparse_transposition(3, 3, 1, 1, 0, 0);
    struct cr_sparse              sparse, other;
    struct cr_linear_filter       to;
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
    cr_sparse_free(&sparse);
}

/* ---- 2:4 ---- */

enum { ROWS = 32, COLUMNS = 64 };
static uint16_t dense[ROWS][COLUMNS], values[ROWS][COLUMNS / 2], places[ROWS][COLUMNS / 16], again[ROWS][COLUMNS];

/* All patterns of four bits with at most two set, in turn. */
static void make_24(void) {
    for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
        static const unsigned patterns[] = {0, 1, 2, 4, 8, 3, 5, 9, 6, 10, 12};
        const unsigned        pattern    = patterns[(unsigned)i * 7 % CR_COUNT(patterns)];
        uint16_t             *four       = &dense[0][0] + i * 4;
        for (unsigned j = 0; j < 4; j++) four[j] = (uint16_t)(pattern >> j & 1u ? (draw() & 0x3fffu) + 1 : 0);
    }
}

TEST(two_four_is_restored) {
    make_24();
    REQUIRE(cr_sparse_24_encode(&dense[0][0], ROWS, COLUMNS, &values[0][0], &places[0][0]));
    for (int i = 0; i < ROWS * COLUMNS / 4; i++) {
        const unsigned two = (unsigned)(&places[0][0])[i / 4] >> 4 * (i % 4);
        CHECK((two & 3u) < (two >> 2 & 3u));
    }
    memset(again, 0xff, sizeof again);
    sparse_24_decode(&values[0][0], &places[0][0], ROWS, COLUMNS, &again[0][0]);
    CHECK(memcmp(again, dense, sizeof dense) == 0);
    dense[3][4] = dense[3][5] = dense[3][7] = 1;
    CHECK(!cr_sparse_24_encode(&dense[0][0], ROWS, COLUMNS, &values[0][0], &places[0][0]));
}

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

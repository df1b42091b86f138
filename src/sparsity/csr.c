/* sparsity/csr.c: sparse filters in CSR, linearised, SELL and 2:4 format; see sparsity/sparsity.h. */
#include "sparsity/sparsity.h"

#include <string.h>

/* ---- CSR ---- */

void cr_sparse_free(struct cr_sparse *sparse) {
    cr_free(sparse->row);
    cr_free(sparse->index);
    cr_free(sparse->element);
    memset(sparse, 0, sizeof *sparse);
}

enum { BYTE = 8, SPARE = BYTE /* extra elements of `index` that are written but never read */ };

static unsigned is_nonzero(const uint8_t *bits, int64_t i) {
    return bits[i / BYTE] >> (i % BYTE) & 1u;
}

/* Writes the indices (minus `from`) of the nonzeros among bits [from, from + count) to `index`; returns their
 * number. Each index is written before the test; the next index overwrites it if the element is zero, so that there is
 * no branch to mispredict. Zero bytes of a bit mask are skipped. */
static int64_t write_nonzeros(const uint8_t *bits, int64_t from, int64_t count, uint32_t *index) {
    int64_t nonzeros = 0;
    for (int64_t i = 0; i < count;) {
        if ((from + i) % BYTE || i + BYTE > count) {
            index[nonzeros] = (uint32_t)i;
            nonzeros += is_nonzero(bits, from + i++);
            continue;
        }
        const unsigned byte = bits[(from + i) / BYTE];
        for (unsigned bit = 0; byte && bit < BYTE; bit++) {
            index[nonzeros] = (uint32_t)i + bit;
            nonzeros += byte >> bit & 1u;
        }
        i += BYTE;
    }
    return nonzeros;
}

static int64_t count_nonzeros(const uint8_t *bits, int64_t first, int64_t elems) {
    static const uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const int64_t        end      = first + elems;
    int64_t              nonzeros = 0;
    while (first < end) {
        if (first % BYTE || first + BYTE > end) {
            nonzeros += is_nonzero(bits, first++);
            continue;
        }
        const unsigned byte = bits[first / BYTE];
        nonzeros += ones[byte & 15u] + ones[byte >> 4];
        first += BYTE;
    }
    return nonzeros;
}

cr_status cr_sparse_from_bits(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                              struct cr_sparse *sparse) {
    const int64_t taps = R * S * C;
    CR_ASSERT(taps > 0 && K <= UINT32_MAX / taps);
    const int64_t    nonzeros = count_nonzeros(bits, first, K * taps);
    struct cr_sparse s        = {.K = K, .R = R, .S = S, .C = C};
    s.row                     = cr_alloc((size_t)K + 1, sizeof *s.row);
    s.index                   = cr_alloc((size_t)nonzeros + SPARE, sizeof *s.index);
    if (!s.row || !s.index) {
        cr_sparse_free(&s);
        return CR_FAIL(CR_ERR_MEMORY, "out of memory for a sparse filter of %lld weights", (long long)nonzeros);
    }
    for (int64_t k = 0; k < K; k++)
        s.row[k + 1] = s.row[k] + write_nonzeros(bits, first + k * taps, taps, s.index + s.row[k]);
    *sparse = s;
    return CR_OK;
}

/* ---- linearised offsets ---- */

void cr_linear_filter_free(struct cr_linear_filter *filter) {
    cr_free(filter->start);
    cr_free(filter->entry);
    cr_free(filter->from);
    memset(filter, 0, sizeof *filter);
}

static cr_status too_many_entries(void) {
    return CR_FAIL(CR_ERR_CONFIG, "a sparse filter has more than 2^32 entries");
}

/* Allocates the entries of `runs` runs. start[1..runs] has their lengths and becomes the prefix sums. */
static cr_status allocate_entries(struct cr_linear_filter *out, int64_t runs, int64_t lanes) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < runs; i++) {
        sum += out->start[i + 1];
        if (sum > UINT32_MAX) return too_many_entries();
        out->start[i + 1] = (uint32_t)sum;
    }
    out->entries = (int64_t)sum * lanes;
    CR_ALLOC(out->entry, (size_t)out->entries);
    CR_ALLOC(out->from, (size_t)out->entries);
    memset(out->from, 0xff, (size_t)out->entries * sizeof *out->from);
    return CR_OK;
}

/* Filters have fewer than 2^32 elements: cr_sparse_from_bits checks this. */
static uint32_t element_of(const struct cr_sparse *s, int64_t k, int64_t i) {
    return s->element ? s->element[i] : (uint32_t)(k * s->R * s->S * s->C) + s->index[i];
}

static uint32_t offset_of(const struct cr_sparse *s, const struct cr_linear_layout *layout, uint32_t index) {
    const int64_t c = index % s->C, tap = index / s->C, r = tap / s->S, column = tap % s->S;
    return (uint32_t)(c % layout->chunk * layout->c_step + r % layout->stride * layout->r_phase +
                      r / layout->stride * layout->r_step + column % layout->stride * layout->s_phase +
                      column / layout->stride * layout->s_step);
}

/* Chunk and offset of each element of a row, (r*S + s)*C + c. The table is small: a filter has many more entries than a
 * row has elements. */
struct offset_table {
    uint32_t *chunk, *offset;
};
static void free_table(struct offset_table *t) {
    cr_free(t->chunk);
    cr_free(t->offset);
}
static cr_status make_table(const struct cr_sparse *s, const struct cr_linear_layout *layout, struct offset_table *t) {
    const int64_t taps = s->R * s->S * s->C;
    *t                 = (struct offset_table){.chunk  = cr_alloc((size_t)taps, sizeof *t->chunk),
                                               .offset = cr_alloc((size_t)taps, sizeof *t->offset)};
    if (!t->chunk || !t->offset) {
        free_table(t);
        return CR_FAIL(CR_ERR_MEMORY, "out of memory for the offsets of a filter of %lld weights per row",
                       (long long)taps);
    }
    for (int64_t i = 0; i < taps; i++) {
        t->chunk[i]  = (uint32_t)(i % s->C / layout->chunk);
        t->offset[i] = offset_of(s, layout, (uint32_t)i);
    }
    return CR_OK;
}

static void write_runs(const struct cr_sparse *s, const struct offset_table *table, struct cr_linear_filter *out,
                       uint32_t *next) {
    memcpy(next, out->start, (size_t)(out->chunks * out->rows) * sizeof *next);
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) {
            const uint32_t at     = next[table->chunk[s->index[i]] * out->rows + k]++;
            out->entry[at].offset = table->offset[s->index[i]];
            out->from[at]         = element_of(s, k, i);
        }
    for (int64_t run = 0; run < out->chunks * out->rows; run++)
        for (; next[run] < out->start[run + 1]; next[run]++)
            out->entry[next[run]].offset = out->entry[next[run] - 1].offset;
}

static uint32_t round_up(uint32_t entries, int64_t multiple) {
    return (uint32_t)((entries + multiple - 1) / multiple * multiple);
}

static cr_status linearize(const struct cr_sparse *s, const struct cr_linear_layout *layout,
                           const struct offset_table *table, struct cr_linear_filter *out) {
    const int64_t runs = out->chunks * out->rows;
    CR_ALLOC(out->start, (size_t)runs + 1);
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) out->start[table->chunk[s->index[i]] * out->rows + k + 1]++;
    for (int64_t i = 1; i <= runs; i++) out->start[i] = round_up(out->start[i], layout->multiple);
    CR_TRY(allocate_entries(out, runs, 1));
    uint32_t *next = cr_alloc((size_t)runs, sizeof *next);
    if (!next) return CR_FAIL(CR_ERR_MEMORY, "out of memory for a sparse filter of %lld rows", (long long)runs);
    write_runs(s, table, out, next);
    cr_free(next);
    return CR_OK;
}

cr_status cr_sparse_linearize(const struct cr_sparse *sparse, const struct cr_linear_layout *layout,
                              struct cr_linear_filter *out) {
    CR_ASSERT(layout->rows >= sparse->K && layout->chunk > 0 && layout->multiple > 0);
    struct cr_linear_filter built = {.chunks = (sparse->C + layout->chunk - 1) / layout->chunk, .rows = layout->rows};
    struct offset_table     table;
    CR_TRY(make_table(sparse, layout, &table));
    const cr_status status = linearize(sparse, layout, &table, &built);
    free_table(&table);
    if (status != CR_OK) {
        cr_linear_filter_free(&built);
        return status;
    }
    *out = built;
    return CR_OK;
}

cr_status cr_sparse_linearize_count(const struct cr_sparse *s, const struct cr_linear_layout *layout,
                                    int64_t *entries) {
    const int64_t       chunks = (s->C + layout->chunk - 1) / layout->chunk;
    struct offset_table table;
    CR_TRY(make_table(s, layout, &table));
    uint32_t *run = cr_alloc((size_t)chunks, sizeof *run);
    int64_t   sum = 0;
    for (int64_t k = 0; run && k < s->K; k++) {
        memset(run, 0, (size_t)chunks * sizeof *run);
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) run[table.chunk[s->index[i]]]++;
        for (int64_t i = 0; i < chunks; i++) sum += round_up(run[i], layout->multiple);
    }
    free_table(&table);
    *entries = sum;
    if (!run) return CR_FAIL(CR_ERR_MEMORY, "out of memory for a sparse filter of %lld chunks", (long long)chunks);
    cr_free(run);
    return sum <= UINT32_MAX ? CR_OK : too_many_entries();
}

/* ---- SELL slices ---- */

static void write_slices(const struct cr_sparse *s, int64_t lanes, struct cr_linear_filter *out) {
    for (int64_t k = 0; k < s->K; k++) {
        int64_t at = (int64_t)out->start[k / lanes] * lanes + k % lanes;
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++, at += lanes) {
            const uint32_t tap = s->index[i] / (uint32_t)s->C, c = s->index[i] % (uint32_t)s->C;
            out->entry[at].offset = tap / (uint32_t)s->S << 24 | tap % (uint32_t)s->S << 16 | c;
            out->from[at]         = element_of(s, k, i);
        }
    }
}

cr_status cr_sparse_sell(const struct cr_sparse *sparse, int64_t lanes, struct cr_linear_filter *out) {
    CR_ASSERT(sparse->R <= 256 && sparse->S <= 256 && sparse->C <= 65536);
    struct cr_linear_filter built = {.chunks = 1, .rows = (sparse->K + lanes - 1) / lanes};
    CR_ALLOC(built.start, (size_t)built.rows + 1);
    for (int64_t k = 0; k < sparse->K; k++) {
        uint32_t *longest = &built.start[k / lanes + 1];
        *longest          = CR_MAX(*longest, (uint32_t)(sparse->row[k + 1] - sparse->row[k]));
    }
    const cr_status status = allocate_entries(&built, built.rows, lanes);
    if (status != CR_OK) {
        cr_linear_filter_free(&built);
        return status;
    }
    write_slices(sparse, lanes, &built);
    *out = built;
    return CR_OK;
}

int64_t cr_sparse_sell_count(const struct cr_sparse *sparse, int64_t lanes) {
    int64_t sum = 0;
    for (int64_t first = 0; first < sparse->K; first += lanes) {
        int64_t longest = 0;
        for (int64_t k = first; k < CR_MIN(first + lanes, sparse->K); k++)
            longest = CR_MAX(longest, sparse->row[k + 1] - sparse->row[k]);
        sum += longest * lanes;
    }
    return sum;
}

/* ---- 2:4 ---- */

enum { FOUR = 4, GROUPS = 4 /* groups of 4 columns in a word of places */ };

/* Places of the two stored elements of four; false if there are more than two nonzeros. Unused places are chosen so
 * that the places ascend. */
static bool places_of(const uint16_t *four, unsigned *first, unsigned *second) {
    unsigned nonzeros[FOUR], count = 0;
    for (unsigned i = 0; i < FOUR; i++)
        if (four[i] & 0x7fffu) nonzeros[count++] = i;
    if (count > 2) return false;
    *first  = count == 0 ? 0 : count == 1 && nonzeros[0] == 3 ? 0 : nonzeros[0];
    *second = count == 2 ? nonzeros[1] : 3;
    return true;
}

bool cr_sparse_is_24(const uint8_t *bits, int64_t first, int64_t rows, int64_t columns) {
    static const uint8_t ones[1 << FOUR] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const bool           whole           = (first | columns) % FOUR == 0; /* groups are halves of bytes */
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c += FOUR) {
            const int64_t i        = first + row * columns + c;
            int           nonzeros = whole ? ones[bits[i / 8] >> i % 8 & 15] : 0;
            for (int64_t j = i; !whole && j < i + CR_MIN(columns - c, (int64_t)FOUR); j++)
                nonzeros += bits[j / 8] >> (j % 8) & 1;
            if (nonzeros > 2) return false;
        }
    return true;
}

bool cr_sparse_24_encode(const uint16_t *dense, int64_t rows, int64_t columns, uint16_t *values, uint16_t *places) {
    CR_ASSERT(columns % (FOUR * GROUPS) == 0);
    for (int64_t g = 0; g < rows * columns / FOUR; g++) {
        const uint16_t *four = dense + g * FOUR;
        unsigned        first, second;
        if (!places_of(four, &first, &second)) return false;
        values[2 * g]     = four[first];
        values[2 * g + 1] = four[second];
        uint16_t *word    = &places[g / GROUPS];
        if (g % GROUPS == 0) *word = 0;
        *word = (uint16_t)(*word | (first | second << 2) << 4 * (g % GROUPS));
    }
    return true;
}

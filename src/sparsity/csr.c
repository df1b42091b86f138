#include "sparsity/sparsity.h"

#include <string.h>

/* ---- compressed rows ---- */

void cr_sparse_free(struct cr_sparse *sparse) {
    cr_free(sparse->row);
    cr_free(sparse->index);
    cr_free(sparse->value);
    cr_free(sparse->element);
    memset(sparse, 0, sizeof *sparse);
}

/* What is kept: by bits, by mask bytes, or by values. */
struct kept_by {
    const uint8_t *bits, *mask;
    const float   *filter;
    int64_t        first; /* bit of element 0 */
};
static unsigned is_kept(const struct kept_by *by, int64_t i) {
    if (by->bits) return by->bits[(by->first + i) / 8] >> ((by->first + i) % 8) & 1u;
    return by->mask ? by->mask[i] != 0 : by->filter[i] != 0.0f;
}

enum { BYTE = 8, SPARE = BYTE /* places behind the last entry that are written, never read */ };

/* Elements [from, from + count): their numbers, less `from`, to `index`; how many. Each element is written whether it
 * is kept or not and the next one over it if not, so that nothing hangs on a guess; bytes without a bit are passed
 * over. */
static int64_t put_kept(const struct kept_by *by, int64_t from, int64_t count, uint32_t *index) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count;) {
        const bool whole = by->bits && (by->first + from + i) % BYTE == 0 && i + BYTE <= count;
        if (!whole) {
            index[kept] = (uint32_t)i;
            kept += is_kept(by, from + i++);
            continue;
        }
        const unsigned byte = by->bits[(by->first + from + i) / BYTE];
        for (unsigned bit = 0; byte && bit < BYTE; bit++) {
            index[kept] = (uint32_t)i + bit;
            kept += byte >> bit & 1u;
        }
        i += BYTE;
    }
    return kept;
}

static int64_t count_kept(const struct kept_by *by, int64_t elems) {
    static const uint8_t ones[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    int64_t              kept = 0, i = 0;
    while (i < elems) {
        const bool whole = by->bits && (by->first + i) % BYTE == 0 && i + BYTE <= elems;
        if (!whole) {
            kept += is_kept(by, i++);
            continue;
        }
        const unsigned byte = by->bits[(by->first + i) / BYTE];
        kept += ones[byte & 15u] + ones[byte >> 4];
        i += BYTE;
    }
    return kept;
}

static cr_status encode(const struct kept_by *by, int64_t K, int64_t R, int64_t S, int64_t C,
                        struct cr_sparse *sparse) {
    const int64_t taps = R * S * C;
    CR_ASSERT(taps > 0 && K <= UINT32_MAX / taps);
    const int64_t    kept = count_kept(by, K * taps);
    struct cr_sparse s    = {.K = K, .R = R, .S = S, .C = C};
    s.row                 = cr_alloc((size_t)K + 1, sizeof *s.row);
    s.index               = cr_alloc((size_t)kept + SPARE, sizeof *s.index);
    s.value               = by->filter ? cr_alloc((size_t)kept, sizeof *s.value) : NULL;
    if (!s.row || !s.index || (by->filter && !s.value)) {
        cr_sparse_free(&s);
        return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld weights", (long long)kept);
    }
    for (int64_t k = 0; k < K; k++) {
        s.row[k + 1] = s.row[k] + put_kept(by, k * taps, taps, s.index + s.row[k]);
        for (int64_t i = s.row[k]; s.value && i < s.row[k + 1]; i++) s.value[i] = by->filter[k * taps + s.index[i]];
    }
    *sparse = s;
    return CR_OK;
}

cr_status cr_sparse_encode(const float *filter, const uint8_t *mask, int64_t K, int64_t R, int64_t S, int64_t C,
                           struct cr_sparse *sparse) {
    const struct kept_by by = {.mask = mask, .filter = filter};
    return encode(&by, K, R, S, C, sparse);
}

cr_status cr_sparse_from_bits(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                              struct cr_sparse *sparse) {
    const struct kept_by by = {.bits = bits, .first = first};
    return encode(&by, K, R, S, C, sparse);
}

void cr_sparse_decode(const struct cr_sparse *sparse, float *filter) {
    const int64_t taps = sparse->R * sparse->S * sparse->C;
    memset(filter, 0, (size_t)(sparse->K * taps) * sizeof *filter);
    for (int64_t k = 0; k < sparse->K; k++)
        for (int64_t i = sparse->row[k]; i < sparse->row[k + 1]; i++)
            filter[k * taps + sparse->index[i]] = sparse->value[i];
}

/* ---- stretched offsets ---- */

void cr_linear_filter_free(struct cr_linear_filter *stretched) {
    cr_free(stretched->start);
    cr_free(stretched->entry);
    cr_free(stretched->from);
    memset(stretched, 0, sizeof *stretched);
}

static cr_status too_many(void) {
    return CR_FAIL(CR_ERR_CONFIG, "a sparse filter of more than 2^32 entries");
}

/* Memory for `runs` runs; their lengths stand in start[1..runs] and become sums. */
static cr_status allot(struct cr_linear_filter *to, int64_t runs, int64_t a_step) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < runs; i++) {
        sum += to->start[i + 1];
        if (sum > UINT32_MAX) return too_many();
        to->start[i + 1] = (uint32_t)sum;
    }
    to->entries = (int64_t)sum * a_step;
    to->entry   = cr_alloc((size_t)to->entries, sizeof *to->entry);
    to->from    = cr_alloc((size_t)to->entries, sizeof *to->from);
    if (to->from) memset(to->from, 0xff, (size_t)to->entries * sizeof *to->from);
    if (!to->entry || !to->from)
        return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %llu entries", (unsigned long long)sum);
    return CR_OK;
}

static cr_status allot_runs(struct cr_linear_filter *to, int64_t runs) {
    to->start = cr_alloc((size_t)runs + 1, sizeof *to->start);
    return to->start ? CR_OK : CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld rows", (long long)runs);
}

static float value_of(const struct cr_sparse *s, int64_t i) {
    return s->value ? s->value[i] : 0.0f;
}
/* Filters have fewer elements than 2^32: cr_sparse_encode and cr_sparse_from_bits see to it. */
static uint32_t element_of(const struct cr_sparse *s, int64_t k, int64_t i) {
    return s->element ? s->element[i] : (uint32_t)(k * s->R * s->S * s->C) + s->index[i];
}

static uint32_t offset_of(const struct cr_sparse *s, const struct cr_linear_layout *how, uint32_t index) {
    const int64_t c = index % s->C, tap = index / s->C, r = tap / s->S, column = tap % s->S;
    return (uint32_t)(c % how->chunk * how->c_step + r % how->stride * how->r_phase + r / how->stride * how->r_step +
                      column % how->stride * how->s_phase + column / how->stride * how->s_step);
}

/* Of each element of a row, (r*S + s)*C + c: the chunk that it falls into, and its offset. Rows have many more entries
 * than elements. */
struct stretch_table {
    uint32_t *chunk, *offset;
};
static void free_table(struct stretch_table *t) {
    cr_free(t->chunk);
    cr_free(t->offset);
}
static cr_status make_table(const struct cr_sparse *s, const struct cr_linear_layout *how, struct stretch_table *t) {
    const int64_t taps = s->R * s->S * s->C;
    *t                 = (struct stretch_table){.chunk  = cr_alloc((size_t)taps, sizeof *t->chunk),
                                                .offset = cr_alloc((size_t)taps, sizeof *t->offset)};
    if (!t->chunk || !t->offset) {
        free_table(t);
        return CR_FAIL(CR_ERR_MEMORY, "no memory for the offsets of a filter of %lld weights a row", (long long)taps);
    }
    for (int64_t i = 0; i < taps; i++) {
        t->chunk[i]  = (uint32_t)(i % s->C / how->chunk);
        t->offset[i] = offset_of(s, how, (uint32_t)i);
    }
    return CR_OK;
}

static void put_runs(const struct cr_sparse *s, const struct stretch_table *table, struct cr_linear_filter *to,
                     uint32_t *next) {
    memcpy(next, to->start, (size_t)(to->chunks * to->rows) * sizeof *next);
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) {
            const uint32_t at = next[table->chunk[s->index[i]] * to->rows + k]++;
            to->entry[at]     = (struct cr_sparse_entry){.value = value_of(s, i), .offset = table->offset[s->index[i]]};
            to->from[at]      = element_of(s, k, i);
        }
    for (int64_t run = 0; run < to->chunks * to->rows; run++)
        for (; next[run] < to->start[run + 1]; next[run]++)
            to->entry[next[run]].offset = to->entry[next[run] - 1].offset;
}

static uint32_t filled_up(uint32_t entries, int64_t multiple) {
    return (uint32_t)((entries + multiple - 1) / multiple * multiple);
}

static cr_status stretch(const struct cr_sparse *s, const struct cr_linear_layout *how,
                         const struct stretch_table *table, struct cr_linear_filter *to) {
    const int64_t runs = to->chunks * to->rows;
    CR_TRY(allot_runs(to, runs));
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) to->start[table->chunk[s->index[i]] * to->rows + k + 1]++;
    for (int64_t i = 1; i <= runs; i++) to->start[i] = filled_up(to->start[i], how->multiple);
    CR_TRY(allot(to, runs, 1));
    uint32_t *next = cr_alloc((size_t)runs, sizeof *next);
    if (!next) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld rows", (long long)runs);
    put_runs(s, table, to, next);
    cr_free(next);
    return CR_OK;
}

cr_status cr_sparse_linearize(const struct cr_sparse *sparse, const struct cr_linear_layout *how,
                              struct cr_linear_filter *to) {
    CR_ASSERT(how->rows >= sparse->K && how->chunk > 0 && how->multiple > 0);
    struct cr_linear_filter made = {.chunks = (sparse->C + how->chunk - 1) / how->chunk, .rows = how->rows};
    struct stretch_table    table;
    CR_TRY(make_table(sparse, how, &table));
    const cr_status status = stretch(sparse, how, &table, &made);
    free_table(&table);
    if (status != CR_OK) {
        cr_linear_filter_free(&made);
        return status;
    }
    *to = made;
    return CR_OK;
}

cr_status cr_sparse_linearize_count(const struct cr_sparse *s, const struct cr_linear_layout *how, int64_t *entries) {
    const int64_t        chunks = (s->C + how->chunk - 1) / how->chunk;
    struct stretch_table table;
    CR_TRY(make_table(s, how, &table));
    uint32_t *run = cr_alloc((size_t)chunks, sizeof *run);
    int64_t   sum = 0;
    for (int64_t k = 0; run && k < s->K; k++) {
        memset(run, 0, (size_t)chunks * sizeof *run);
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) run[table.chunk[s->index[i]]]++;
        for (int64_t i = 0; i < chunks; i++) sum += filled_up(run[i], how->multiple);
    }
    free_table(&table);
    *entries = sum;
    if (!run) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld chunks", (long long)chunks);
    cr_free(run);
    return sum <= UINT32_MAX ? CR_OK : too_many();
}

/* ---- slices ---- */

static void put_slices(const struct cr_sparse *s, int64_t lanes, struct cr_linear_filter *to) {
    for (int64_t k = 0; k < s->K; k++) {
        int64_t at = (int64_t)to->start[k / lanes] * lanes + k % lanes;
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++, at += lanes) {
            const uint32_t tap = s->index[i] / (uint32_t)s->C, c = s->index[i] % (uint32_t)s->C;
            to->entry[at] = (struct cr_sparse_entry){
                .value = value_of(s, i), .offset = tap / (uint32_t)s->S << 24 | tap % (uint32_t)s->S << 16 | c};
            to->from[at] = element_of(s, k, i);
        }
    }
}

cr_status cr_sparse_sell(const struct cr_sparse *sparse, int64_t lanes, struct cr_linear_filter *to) {
    CR_ASSERT(sparse->R <= 256 && sparse->S <= 256 && sparse->C <= 65536);
    struct cr_linear_filter made = {.chunks = 1, .rows = (sparse->K + lanes - 1) / lanes};
    CR_TRY(allot_runs(&made, made.rows));
    for (int64_t k = 0; k < sparse->K; k++) {
        uint32_t *longest = &made.start[k / lanes + 1];
        *longest          = CR_MAX(*longest, (uint32_t)(sparse->row[k + 1] - sparse->row[k]));
    }
    const cr_status status = allot(&made, made.rows, lanes);
    if (status != CR_OK) {
        cr_linear_filter_free(&made);
        return status;
    }
    put_slices(sparse, lanes, &made);
    *to = made;
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

enum { FOUR = 4, GROUPS = 4 /* of 4 columns in a word of places */ };

/* Places of the two stored elements of four; false: more than two are kept. The unused ones are filled so that places
 * rise. */
static bool places_of(const uint16_t *four, unsigned *first, unsigned *second) {
    unsigned kept[FOUR], count = 0;
    for (unsigned i = 0; i < FOUR; i++)
        if (four[i] & 0x7fffu) kept[count++] = i;
    if (count > 2) return false;
    *first  = count == 0 ? 0 : count == 1 && kept[0] == 3 ? 0 : kept[0];
    *second = count == 2 ? kept[1] : 3;
    return true;
}

bool cr_sparse_is_24(const uint8_t *bits, int64_t first, int64_t rows, int64_t columns) {
    static const uint8_t ones[1 << FOUR] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const bool           whole           = (first | columns) % FOUR == 0; /* groups are halves of bytes */
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c += FOUR) {
            const int64_t i    = first + row * columns + c;
            int           kept = whole ? ones[bits[i / 8] >> i % 8 & 15] : 0;
            for (int64_t j = i; !whole && j < i + CR_MIN(columns - c, (int64_t)FOUR); j++)
                kept += bits[j / 8] >> (j % 8) & 1;
            if (kept > 2) return false;
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

void cr_sparse_24_decode(const uint16_t *values, const uint16_t *places, int64_t rows, int64_t columns,
                         uint16_t *dense) {
    memset(dense, 0, (size_t)(rows * columns) * sizeof *dense);
    for (int64_t g = 0; g < rows * columns / FOUR; g++) {
        const unsigned two                = (unsigned)places[g / GROUPS] >> 4 * (g % GROUPS);
        dense[g * FOUR + (two & 3u)]      = values[2 * g];
        dense[g * FOUR + (two >> 2 & 3u)] = values[2 * g + 1];
    }
}

uint32_t cr_sparse_24_word(const uint16_t *places, int64_t columns, int64_t row, int64_t column, int lane) {
    const int64_t   words = columns / (FOUR * GROUPS), at = column / (FOUR * GROUPS) + lane % 2;
    const uint16_t *low = places + (row + lane / 4) * words + at;
    return (uint32_t)low[0] | (uint32_t)low[8 * words] << 16;
}

#include "sparse.h"

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
static bool is_kept(const struct kept_by *by, int64_t i) {
    if (by->bits) return by->bits[(by->first + i) / 8] >> ((by->first + i) % 8) & 1;
    return by->mask ? by->mask[i] != 0 : by->filter[i] != 0.0f;
}

static cr_status encode(const struct kept_by *by, int64_t K, int64_t R, int64_t S, int64_t C, struct cr_sparse *sparse) {
    const int64_t taps = R * S * C;
    CR_ASSERT(taps > 0 && K <= UINT32_MAX / taps);
    int64_t kept = 0;
    for (int64_t i = 0; i < K * taps; i++) kept += is_kept(by, i);
    struct cr_sparse s = {.K = K, .R = R, .S = S, .C = C};
    s.row   = cr_alloc((size_t)K + 1, sizeof *s.row);
    s.index = cr_alloc((size_t)kept, sizeof *s.index);
    s.value = by->filter ? cr_alloc((size_t)kept, sizeof *s.value) : NULL;
    if (!s.row || !s.index || (by->filter && !s.value)) {
        cr_sparse_free(&s);
        return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld weights", (long long)kept);
    }
    for (int64_t k = 0, at = 0; k < K; k++) {
        for (int64_t i = 0; i < taps; i++)
            if (is_kept(by, k * taps + i)) {
                if (s.value) s.value[at] = by->filter[k * taps + i];
                s.index[at++] = (uint32_t)i;
            }
        s.row[k + 1] = at;
    }
    *sparse = s;
    return CR_OK;
}

cr_status cr_sparse_encode(const float *filter, const uint8_t *mask, int64_t K, int64_t R, int64_t S, int64_t C, struct cr_sparse *sparse) {
    const struct kept_by by = {.mask = mask, .filter = filter};
    return encode(&by, K, R, S, C, sparse);
}

cr_status cr_sparse_places(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C, struct cr_sparse *sparse) {
    const struct kept_by by = {.bits = bits, .first = first};
    return encode(&by, K, R, S, C, sparse);
}

void cr_sparse_decode(const struct cr_sparse *sparse, float *filter) {
    const int64_t taps = sparse->R * sparse->S * sparse->C;
    memset(filter, 0, (size_t)(sparse->K * taps) * sizeof *filter);
    for (int64_t k = 0; k < sparse->K; k++)
        for (int64_t i = sparse->row[k]; i < sparse->row[k + 1]; i++) filter[k * taps + sparse->index[i]] = sparse->value[i];
}

/* ---- stretched offsets ---- */

void cr_stretched_free(struct cr_stretched *stretched) {
    cr_free(stretched->start);
    cr_free(stretched->entry);
    cr_free(stretched->from);
    memset(stretched, 0, sizeof *stretched);
}

/* Memory for `runs` runs; their lengths stand in start[1..runs] and become sums. */
static cr_status allot(struct cr_stretched *to, int64_t runs, int64_t a_step) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < runs; i++) {
        sum += to->start[i + 1];
        if (sum > UINT32_MAX) return CR_FAIL(CR_ERR_CONFIG, "a sparse filter of more than 2^32 entries");
        to->start[i + 1] = (uint32_t)sum;
    }
    to->entries = (int64_t)sum * a_step;
    to->entry   = cr_alloc((size_t)to->entries, sizeof *to->entry);
    to->from    = cr_alloc((size_t)to->entries, sizeof *to->from);
    if (to->from) memset(to->from, 0xff, (size_t)to->entries * sizeof *to->from);
    if (!to->entry || !to->from) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %llu entries", (unsigned long long)sum);
    return CR_OK;
}

static cr_status allot_runs(struct cr_stretched *to, int64_t runs) {
    to->start = cr_alloc((size_t)runs + 1, sizeof *to->start);
    return to->start ? CR_OK : CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld rows", (long long)runs);
}

static float value_of(const struct cr_sparse *s, int64_t i) { return s->value ? s->value[i] : 0.0f; }
/* Filters have fewer elements than 2^32: cr_sparse_encode and cr_sparse_places see to it. */
static uint32_t element_of(const struct cr_sparse *s, int64_t k, int64_t i) {
    return s->element ? s->element[i] : (uint32_t)(k * s->R * s->S * s->C) + s->index[i];
}

static uint32_t offset_of(const struct cr_sparse *s, const struct cr_stretch *how, uint32_t index) {
    const int64_t c = index % s->C, tap = index / s->C, r = tap / s->S, column = tap % s->S;
    return (uint32_t)(c % how->chunk * how->c_step + r % how->stride * how->r_phase + r / how->stride * how->r_step +
                      column % how->stride * how->s_phase + column / how->stride * how->s_step);
}

static void put_runs(const struct cr_sparse *s, const struct cr_stretch *how, struct cr_stretched *to, uint32_t *next) {
    memcpy(next, to->start, (size_t)(to->chunks * to->rows) * sizeof *next);
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) {
            const int64_t  run = s->index[i] % s->C / how->chunk * to->rows + k;
            const uint32_t at  = next[run]++;
            to->entry[at]      = (struct cr_sparse_entry){.value = value_of(s, i), .offset = offset_of(s, how, s->index[i])};
            to->from[at]       = element_of(s, k, i);
        }
    for (int64_t run = 0; run < to->chunks * to->rows; run++)
        for (; next[run] < to->start[run + 1]; next[run]++) to->entry[next[run]].offset = to->entry[next[run] - 1].offset;
}

static cr_status stretch(const struct cr_sparse *s, const struct cr_stretch *how, struct cr_stretched *to) {
    const int64_t runs = to->chunks * to->rows;
    CR_TRY(allot_runs(to, runs));
    for (int64_t k = 0; k < s->K; k++)
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) to->start[s->index[i] % s->C / how->chunk * to->rows + k + 1]++;
    for (int64_t i = 1; i <= runs; i++)
        to->start[i] = (uint32_t)((to->start[i] + how->multiple - 1) / how->multiple * how->multiple);
    CR_TRY(allot(to, runs, 1));
    uint32_t *next = cr_alloc((size_t)runs, sizeof *next);
    if (!next) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld rows", (long long)runs);
    put_runs(s, how, to, next);
    cr_free(next);
    return CR_OK;
}

cr_status cr_sparse_stretch(const struct cr_sparse *sparse, const struct cr_stretch *how, struct cr_stretched *to) {
    CR_ASSERT(how->rows >= sparse->K && how->chunk > 0 && how->multiple > 0);
    struct cr_stretched made   = {.chunks = (sparse->C + how->chunk - 1) / how->chunk, .rows = how->rows};
    const cr_status     status = stretch(sparse, how, &made);
    if (status != CR_OK) {
        cr_stretched_free(&made);
        return status;
    }
    *to = made;
    return CR_OK;
}

/* ---- slices ---- */

static void put_slices(const struct cr_sparse *s, int64_t lanes, struct cr_stretched *to) {
    for (int64_t k = 0; k < s->K; k++) {
        int64_t at = (int64_t)to->start[k / lanes] * lanes + k % lanes;
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++, at += lanes) {
            const uint32_t tap = s->index[i] / (uint32_t)s->C, c = s->index[i] % (uint32_t)s->C;
            to->entry[at]      = (struct cr_sparse_entry){.value  = value_of(s, i),
                                                          .offset = tap / (uint32_t)s->S << 24 | tap % (uint32_t)s->S << 16 | c};
            to->from[at]       = element_of(s, k, i);
        }
    }
}

cr_status cr_sparse_slices(const struct cr_sparse *sparse, int64_t lanes, struct cr_stretched *to) {
    CR_ASSERT(sparse->R <= 256 && sparse->S <= 256 && sparse->C <= 65536);
    struct cr_stretched made = {.chunks = 1, .rows = (sparse->K + lanes - 1) / lanes};
    CR_TRY(allot_runs(&made, made.rows));
    for (int64_t k = 0; k < sparse->K; k++) {
        uint32_t *longest = &made.start[k / lanes + 1];
        *longest          = CR_MAX(*longest, (uint32_t)(sparse->row[k + 1] - sparse->row[k]));
    }
    const cr_status status = allot(&made, made.rows, lanes);
    if (status != CR_OK) {
        cr_stretched_free(&made);
        return status;
    }
    put_slices(sparse, lanes, &made);
    *to = made;
    return CR_OK;
}

/* ---- 2:4 ---- */

enum { FOUR = 4, GROUPS = 4 /* of 4 columns in a word of places */ };

/* Places of the two stored elements of four; false: more than two are kept. The unused ones are filled so that places rise. */
static bool places_of(const uint16_t *four, unsigned *first, unsigned *second) {
    unsigned kept[FOUR], count = 0;
    for (unsigned i = 0; i < FOUR; i++)
        if (four[i] & 0x7fffu) kept[count++] = i;
    if (count > 2) return false;
    *first  = count == 0 ? 0 : count == 1 && kept[0] == 3 ? 0 : kept[0];
    *second = count == 2 ? kept[1] : 3;
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

void cr_sparse_24_decode(const uint16_t *values, const uint16_t *places, int64_t rows, int64_t columns, uint16_t *dense) {
    memset(dense, 0, (size_t)(rows * columns) * sizeof *dense);
    for (int64_t g = 0; g < rows * columns / FOUR; g++) {
        const unsigned two = (unsigned)places[g / GROUPS] >> 4 * (g % GROUPS);
        dense[g * FOUR + (two & 3u)]      = values[2 * g];
        dense[g * FOUR + (two >> 2 & 3u)] = values[2 * g + 1];
    }
}

uint32_t cr_sparse_24_word(const uint16_t *places, int64_t columns, int64_t row, int64_t column, int lane) {
    const int64_t   words = columns / (FOUR * GROUPS), at = column / (FOUR * GROUPS) + lane % 2;
    const uint16_t *low   = places + (row + lane / 4) * words + at;
    return (uint32_t)low[0] | (uint32_t)low[8 * words] << 16;
}

/* tools/spdnn/pack.c: packs a sparse matrix for the kernels: rows with equal columns form groups, so that a kernel
 * loads an input once for all rows of a group. Each group is followed by the unvisited group that shares the max_rows
 * columns with it: groups that run concurrently then find their inputs in the L1 or L2 cache. Any matrix is allowed; a
 * matrix without equal rows has groups of one row. */
#include "tools/spdnn/spdnn.h"

#include "core/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, SHARED_MAX = 64 /* a column that more patterns share does not indicate locality */ };
static const int64_t none = -1;

struct key {
    uint64_t hash;
    uint32_t row;
};

struct packing {
    const struct cr_spdnn_csr *csr;
    struct key                *key;   /* rows sorted by pattern; pattern p has key[first[p] .. first[p + 1]) */
    int64_t                   *first; /* [patterns + 1] */
    int64_t                   *order; /* patterns in output order */
    int64_t                    patterns;
};

static int compare_keys(const void *a, const void *b) {
    const struct key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static bool same_columns(const struct cr_spdnn_csr *csr, uint32_t a, uint32_t b) {
    const uint32_t count = csr->start[a + 1] - csr->start[a];
    return count == csr->start[b + 1] - csr->start[b] &&
           memcmp(csr->column + csr->start[a], csr->column + csr->start[b], count * sizeof *csr->column) == 0;
}

/* Sorts equal rows next to each other. Two patterns with the same hash only split groups. */
static void find_patterns(struct packing *p) {
    const struct cr_spdnn_csr *csr = p->csr;
    for (int64_t j = 0; j < csr->rows; j++) {
        uint64_t hash = 1469598103934665603u;
        for (uint32_t e = csr->start[j]; e < csr->start[j + 1]; e++)
            hash = (hash ^ csr->column[e]) * 1099511628211u, hash ^= hash >> 29;
        p->key[j] = (struct key){hash, (uint32_t)j};
    }
    qsort(p->key, (size_t)csr->rows, sizeof *p->key, compare_keys);
    for (int64_t i = 0; i < csr->rows; i++)
        if (i == 0 || !same_columns(csr, p->key[i - 1].row, p->key[i].row)) p->first[p->patterns++] = i;
    p->first[p->patterns] = csr->rows;
}

static int64_t count_groups(const struct packing *p, int rows) {
    int64_t groups = 0;
    for (int64_t i = 0; i < p->patterns; i++) groups += (p->first[i + 1] - p->first[i] + rows - 1) / rows;
    return groups;
}

/* The cost of a group: its multiplications, including unused rows, and loading its inputs, about six
 * multiplications. */
static int choose_rows(const struct packing *p, int max_rows) {
    const int64_t load = 6;
    int           best = 1;
    for (int rows = 2; rows <= CR_MIN(max_rows, (int)CR_SPDNN_ROWS_MAX); rows *= 2)
        if (count_groups(p, rows) * (rows + load) < count_groups(p, best) * (best + load)) best = rows;
    return best;
}

/* ---- the order of the groups ---- */

struct ordering {
    uint32_t *start, *pattern; /* start[c]: first pattern that contains column c */
    uint32_t *score;
    uint8_t  *done;
};

static void fill_column_patterns(const struct packing *p, struct ordering *w) {
    const struct cr_spdnn_csr *csr = p->csr;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < p->patterns; i++) {
            const uint32_t row = p->key[p->first[i]].row;
            for (uint32_t e = csr->start[row]; e < csr->start[row + 1]; e++) {
                uint32_t *slot = &w->start[csr->column[e] + 1];
                if (pass == 0)
                    ++*slot;
                else
                    w->pattern[w->start[csr->column[e]]++] = (uint32_t)i;
            }
        }
        if (pass == 0)
            for (int64_t c = 0; c < csr->columns; c++) w->start[c + 1] += w->start[c];
        else /* filling has moved each start to the start of the next column */
            for (int64_t c = csr->columns; c > 0; c--) w->start[c] = w->start[c - 1];
    }
    w->start[0] = 0;
}

static int64_t next_pattern(const struct packing *p, struct ordering *w, int64_t from) {
    const struct cr_spdnn_csr *csr  = p->csr;
    const uint32_t             row  = p->key[p->first[from]].row;
    int64_t                    best = none;
    for (int clear = 0; clear < 2; clear++)
        for (uint32_t e = csr->start[row]; e < csr->start[row + 1]; e++) {
            const uint32_t c = csr->column[e];
            if (w->start[c + 1] - w->start[c] > SHARED_MAX) continue;
            for (uint32_t i = w->start[c]; i < w->start[c + 1]; i++) {
                const uint32_t q = w->pattern[i];
                if (clear)
                    w->score[q] = 0;
                else if (!w->done[q]) {
                    const uint32_t s = ++w->score[q];
                    if (best == none || s > w->score[best] || (s == w->score[best] && (int64_t)q < best))
                        best = (int64_t)q;
                }
            }
        }
    return best;
}

static cr_status order_patterns(struct packing *p) {
    struct ordering w      = {0};
    const int64_t   edges  = p->csr->start[p->csr->rows];
    cr_status       status = CR_OK;
    w.start                = cr_alloc((size_t)p->csr->columns + 2, sizeof *w.start);
    w.pattern              = cr_alloc((size_t)edges + 1, sizeof *w.pattern);
    w.score                = cr_alloc((size_t)p->patterns, sizeof *w.score);
    w.done                 = cr_alloc((size_t)p->patterns, 1);
    if (!w.start || !w.pattern || !w.score || !w.done)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the order of %lld rows", (long long)p->csr->rows);
    fill_column_patterns(p, &w);
    for (int64_t i = 0, at = 0, unvisited = 0; i < p->patterns; i++) {
        p->order[i] = at;
        w.done[at]  = 1;
        at          = next_pattern(p, &w, at);
        while (unvisited < p->patterns && w.done[unvisited]) unvisited++;
        if (at == none) at = unvisited;
    }
out:
    cr_free(w.start);
    cr_free(w.pattern);
    cr_free(w.score);
    cr_free(w.done);
    return status;
}

/* ---- writing ---- */

static bool is_power_of_two(float w) {
    int exponent;
    return w == 0 || fabsf(frexpf(w, &exponent)) == 0.5f;
}

static size_t align_up(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void check_weights(const struct cr_spdnn_csr *csr, struct cr_spdnn_layer *out) {
    float last = 0;
    out->half = out->exact = true;
    for (uint32_t e = 0; e < csr->start[csr->rows]; e++) {
        const float w = csr->weight[e];
        if (e && w == last) continue; /* most weights are equal */
        last       = w;
        out->half  = out->half && cr_f16_to_f32(cr_f32_to_f16(w)) == w;
        out->exact = out->exact && is_power_of_two(w);
    }
}

static void write_group(const struct packing *p, struct cr_spdnn_layer *out, int64_t group, int64_t from, int64_t end) {
    const struct cr_spdnn_csr *csr    = p->csr;
    uint32_t                  *start  = (uint32_t *)(void *)out->data;
    uint16_t                  *row    = (uint16_t *)(void *)(out->data + out->row_at) + group * out->rows;
    uint16_t                  *column = (uint16_t *)(void *)(out->data + out->column_at) + start[group];
    const uint32_t             first = p->key[from].row, count = csr->start[first + 1] - csr->start[first];
    start[group + 1] = start[group] + count;
    for (uint32_t k = 0; k < count; k++) column[k] = (uint16_t)csr->column[csr->start[first] + k];
    for (int r = 0; r < out->rows; r++) {
        const uint32_t j = from + r < end ? p->key[from + r].row : first;
        row[r]           = (uint16_t)j;
        for (uint32_t k = 0; k < count; k++) {
            const size_t at = ((size_t)start[group] + k) * (size_t)out->rows + (size_t)r;
            const float  w  = csr->weight[csr->start[j] + k];
            if (out->half)
                ((uint16_t *)(void *)(out->data + out->weight_at))[at] = cr_f32_to_f16(w);
            else
                ((float *)(void *)(out->data + out->weight_at))[at] = w;
        }
    }
}

static cr_status write_layer(const struct packing *p, struct cr_spdnn_layer *out) {
    const struct cr_spdnn_csr *csr   = p->csr;
    int64_t                    group = 0;
    for (int64_t i = 0; i < p->patterns; i++) {
        const uint32_t row = p->key[p->first[i]].row;
        out->columns += (p->first[i + 1] - p->first[i] + out->rows - 1) / out->rows *
                        (int64_t)(csr->start[row + 1] - csr->start[row]);
    }
    out->row_at    = align_up((size_t)(out->groups + 1) * sizeof(uint32_t));
    out->column_at = out->row_at + align_up((size_t)(out->groups * out->rows) * sizeof(uint16_t));
    out->weight_at = out->column_at + align_up((size_t)out->columns * sizeof(uint16_t));
    out->bytes     = out->weight_at + align_up((size_t)(out->columns * out->rows) * (out->half ? 2 : 4));
    CR_ALLOC(out->data, out->bytes);
    for (int64_t i = 0; i < p->patterns; i++) {
        const int64_t pattern = p->order[i], end = p->first[pattern + 1];
        for (int64_t from = p->first[pattern]; from < end; from += out->rows) write_group(p, out, group++, from, end);
    }
    CR_ASSERT(group == out->groups);
    return CR_OK;
}

cr_status cr_spdnn_pack(const struct cr_spdnn_csr *csr, int most_rows, struct cr_spdnn_layer *out) {
    struct packing p      = {.csr = csr};
    cr_status      status = CR_OK;
    CR_ASSERT(csr->rows >= 1 && csr->rows <= CR_SPDNN_NEURONS_MAX && csr->columns <= CR_SPDNN_NEURONS_MAX);
    *out    = (struct cr_spdnn_layer){.edges = csr->start[csr->rows]};
    p.key   = cr_alloc((size_t)csr->rows, sizeof *p.key);
    p.first = cr_alloc((size_t)csr->rows + 1, sizeof *p.first);
    p.order = cr_alloc((size_t)csr->rows, sizeof *p.order);
    if (!p.key || !p.first || !p.order) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %lld rows", (long long)csr->rows);
    find_patterns(&p);
    out->rows   = choose_rows(&p, most_rows);
    out->groups = count_groups(&p, out->rows);
    CR_TRY_OUT(order_patterns(&p));
    check_weights(csr, out);
    CR_TRY_OUT(write_layer(&p, out));
out:
    cr_free(p.key);
    cr_free(p.first);
    cr_free(p.order);
    return status;
}

void cr_spdnn_layer_free(struct cr_spdnn_layer *layer) {
    cr_free(layer->data);
    *layer = (struct cr_spdnn_layer){0};
}

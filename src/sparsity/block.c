/* sparsity/block.c: builds the block-sparse format of filters: lists of input steps and products. See
 * sparsity/sparsity.h. */
#include "sparsity/sparsity.h"

#include <stdlib.h>
#include <string.h>

/* ---- nonzero blocks ---- */

struct map {
    int64_t  side, K, R, S, C; /* K, C: number of blocks */
    uint8_t *nonzero;          /* [K][C][R*S]; NULL to count only */
};

static bool bit_is_set(const uint8_t *bits, int64_t i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static bool any_nonzero(const uint8_t *bits, int64_t first, const struct map *m, int64_t k, int64_t tap, int64_t c) {
    const int64_t taps = m->R * m->S, channels = m->C * m->side;
    for (int64_t i = 0; i < m->side; i++) {
        const int64_t at = first + ((k * m->side + i) * taps + tap) * channels + c * m->side;
        if ((at | m->side) % 8 == 0) { /* whole bytes */
            for (int64_t j = at / 8; j < (at + m->side) / 8; j++)
                if (bits[j]) return true;
        } else {
            for (int64_t j = at; j < at + m->side; j++)
                if (bit_is_set(bits, j)) return true;
        }
    }
    return false;
}

static int64_t fill_map(const uint8_t *bits, int64_t first, const struct map *m, int64_t *stored) {
    const int64_t taps = m->R * m->S;
    int64_t       sum  = 0;
    *stored            = 0;
    for (int64_t k = 0; k < m->K; k++) {
        const int64_t before = sum;
        for (int64_t c = 0; c < m->C; c++)
            for (int64_t tap = 0; tap < taps; tap++) {
                const bool nonzero = any_nonzero(bits, first, m, k, tap, c);
                if (m->nonzero) m->nonzero[(k * m->C + c) * taps + tap] = nonzero;
                sum += nonzero;
            }
        *stored += CR_MAX(sum - before, 1);
    }
    return sum;
}

int64_t cr_block_sparse_count(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                              int64_t side, int64_t *stored) {
    CR_ASSERT(side > 0 && K % side == 0 && C % side == 0);
    const struct map m = {.side = side, .K = K / side, .R = R, .S = S, .C = C / side};
    return fill_map(bits, first, &m, stored);
}

/* ---- output blocks, in the order of groups ---- */

struct output {
    int64_t k, blocks; /* nonzero blocks of output block k; -1 for an unused place in the last group */
};

static int compare_outputs(const void *a, const void *b) {
    const struct output *x = a, *y = b;
    if (x->blocks != y->blocks) return x->blocks < y->blocks ? 1 : -1;
    return x->k < y->k ? -1 : x->k > y->k;
}

static void order_outputs(const struct map *m, int64_t groups, int64_t teams, struct output *output) {
    const int64_t taps = m->R * m->S;
    for (int64_t k = 0; k < groups * teams; k++) {
        output[k] = (struct output){.k = k, .blocks = -1}; /* unused: sorted to the end */
        if (k >= m->K) continue;
        output[k].blocks = 0;
        for (int64_t i = 0; i < m->C * taps; i++) output[k].blocks += m->nonzero[k * m->C * taps + i];
    }
    qsort(output, (size_t)(groups * teams), sizeof *output, compare_outputs);
}

/* ---- the table ---- */

struct writer {
    const struct map             *map;
    const struct cr_block_layout *layout;
    const struct output          *output;
    struct cr_block_sparse       *to;
    uint32_t                      steps, items, entries; /* number written so far */
    uint32_t                     *advance;               /* [teams]: steps since the team's last product */
};

static bool has_block(const struct writer *w, int64_t of, int64_t c, int64_t tap) {
    const int64_t taps = w->map->R * w->map->S, k = w->output[of].k;
    return w->output[of].blocks > 0 && w->map->nonzero[(k * w->map->C + c) * taps + tap];
}

/* An output block without nonzeros has one block of zeros in the group's first step. */
static bool has_any(const struct writer *w, int64_t of, int64_t c, int64_t tap) {
    return has_block(w, of, c, tap) || (w->output[of].blocks == 0 && c == 0 && tap == 0);
}

static bool step_is_needed(const struct writer *w, int64_t group, int64_t c, int64_t first_tap, int64_t taps) {
    for (int64_t team = 0; team < w->layout->teams; team++)
        for (int64_t tap = first_tap; tap < first_tap + taps; tap++)
            if (has_any(w, group * w->layout->teams + team, c, tap)) return true;
    return false;
}

static void write_product(struct writer *w, int64_t of, int64_t team, int64_t c, int64_t tap) {
    const struct map *m     = w->map;
    uint32_t         *table = w->to->table;
    const int64_t     r = tap / m->S, s = tap % m->S,
                  element           = (w->output[of].k * m->side * m->R * m->S + tap) * m->C * m->side + c * m->side;
    table[w->to->from + w->items]   = has_block(w, of, c, tap) ? (uint32_t)element : CR_SPARSE_FILL;
    table[w->to->item + w->items++] = (uint32_t)team;
    /* Each team has a contiguous range of entries; the range's length is the team's number of products. */
    table[w->to->entry + table[w->to->entries + of + 1]++] =
        w->advance[team] << 16 | (uint32_t)(w->layout->patch ? r * w->layout->pitch + s : 0);
    w->advance[team] = 0;
}

static void write_step(struct writer *w, int64_t group, int64_t c, int64_t first_tap, int64_t taps) {
    const struct map *m = w->map;
    if (!step_is_needed(w, group, c, first_tap, taps)) return;
    w->to->table[w->to->step + w->steps++] =
        (uint32_t)c | (w->layout->patch ? 0 : (uint32_t)(first_tap / m->S) << 16 | (uint32_t)(first_tap % m->S) << 24);
    for (int64_t team = 0; team < w->layout->teams; team++) w->advance[team]++;
    for (int64_t tap = first_tap; tap < first_tap + taps; tap++)
        for (int64_t team = 0; team < w->layout->teams; team++) {
            const int64_t of = group * w->layout->teams + team;
            if (has_any(w, of, c, tap)) write_product(w, of, team, c, tap);
        }
}

static void write_group(struct writer *w, int64_t group) {
    const int64_t taps = w->map->R * w->map->S, taps_per_step = w->layout->patch ? taps : 1;
    memset(w->advance, 0, (size_t)w->layout->teams * sizeof *w->advance);
    for (int64_t c = 0; c < w->map->C; c++)
        for (int64_t tap = 0; tap < taps; tap += taps_per_step) write_step(w, group, c, tap, taps_per_step);
    w->to->table[w->to->steps + group + 1] = w->steps;
    w->to->table[w->to->items + group + 1] = w->items;
}

/* While products are written, entries[of + 1] is the position of the next product of `of`. It starts as the sum of the
 * counts of the outputs before. */
static void write_table(struct writer *w) {
    struct cr_block_sparse *to    = w->to;
    const int64_t           teams = to->groups * w->layout->teams;
    uint32_t                sum   = 0;
    for (int64_t of = 0; of < teams; of++) {
        to->table[to->entries + of + 1] = sum;
        sum += w->output[of].blocks < 0 ? 0 : (uint32_t)CR_MAX(w->output[of].blocks, 1);
        to->table[to->block + of] = w->output[of].blocks < 0 ? UINT32_MAX : (uint32_t)w->output[of].k;
    }
    for (int64_t group = 0; group < to->groups; group++) write_group(w, group);
    CR_ASSERT(w->items == to->blocks && sum == to->blocks);
}

/* Computes the offsets of the parts; there are at most as many steps as blocks. */
static void place_parts(struct cr_block_sparse *b, int64_t teams) {
    const int64_t   count[] = {b->groups + 1,         b->blocks, b->groups + 1,     b->blocks,
                               b->groups * teams + 1, b->blocks, b->groups * teams, b->blocks};
    uint32_t *const to[]    = {&b->steps, &b->step, &b->items, &b->item, &b->entries, &b->entry, &b->block, &b->from};
    for (size_t i = 0; i < CR_COUNT(to); i++) {
        *to[i] = (uint32_t)b->words;
        b->words += count[i];
    }
}

void cr_block_sparse_free(struct cr_block_sparse *blocks) {
    cr_free(blocks->table);
    memset(blocks, 0, sizeof *blocks);
}

cr_status cr_block_sparse_encode(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                                 const struct cr_block_layout *layout, struct cr_block_sparse *blocks) {
    const int64_t  side   = layout->side;
    struct map     m      = {.side = side, .K = K / side, .R = R, .S = S, .C = C / side};
    struct output *output = NULL;
    struct writer  w      = {.map = &m, .layout = layout, .to = blocks};
    cr_status      status = CR_OK;
    CR_ASSERT(side > 0 && K % side == 0 && C % side == 0 && m.C <= UINT16_MAX && K <= UINT32_MAX / (R * S * C));
    memset(blocks, 0, sizeof *blocks);
    blocks->groups = (m.K + layout->teams - 1) / layout->teams;
    m.nonzero      = cr_alloc((size_t)(m.K * m.C), (size_t)(R * S));
    output         = cr_alloc((size_t)(blocks->groups * layout->teams), sizeof *output);
    w.advance      = cr_alloc((size_t)layout->teams, sizeof *w.advance);
    if (!m.nonzero || !output || !w.advance)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the blocks of a filter of %lld weights",
                    (long long)(K * R * S * C));
    fill_map(bits, first, &m, &blocks->blocks);
    order_outputs(&m, blocks->groups, layout->teams, output);
    place_parts(blocks, layout->teams);
    CR_ALLOC_OUT(blocks->table, (size_t)blocks->words);
    w.output = output;
    write_table(&w);
out:
    cr_free(m.nonzero);
    cr_free(output);
    cr_free(w.advance);
    if (status != CR_OK) cr_block_sparse_free(blocks);
    return status;
}

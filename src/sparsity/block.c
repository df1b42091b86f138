/* sparsity/block.c: filters that are kept in blocks of channels, as lists of what to load and to multiply. See
 * sparsity/sparsity.h. */
#include "sparsity/sparsity.h"

#include <stdlib.h>
#include <string.h>

/* ---- which blocks are kept ---- */

struct map {
    int64_t  side, K, R, S, C; /* K, C: blocks */
    uint8_t *kept;             /* [K][C][R*S] */
};

static bool is_kept(const uint8_t *bits, int64_t i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static bool any_kept(const uint8_t *bits, int64_t first, const struct map *m, int64_t k, int64_t tap, int64_t c) {
    const int64_t taps = m->R * m->S, channels = m->C * m->side;
    for (int64_t i = 0; i < m->side; i++) {
        const int64_t at = first + ((k * m->side + i) * taps + tap) * channels + c * m->side;
        if ((at | m->side) % 8 == 0) { /* whole bytes */
            for (int64_t j = at / 8; j < (at + m->side) / 8; j++)
                if (bits[j]) return true;
        } else {
            for (int64_t j = at; j < at + m->side; j++)
                if (is_kept(bits, j)) return true;
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
                const bool kept = any_kept(bits, first, m, k, tap, c);
                if (m->kept) m->kept[(k * m->C + c) * taps + tap] = kept;
                sum += kept;
            }
        *stored += CR_MAX(sum - before, 1);
    }
    return sum;
}

int64_t cr_sparse_count_blocks(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                               int64_t side, int64_t *stored) {
    CR_ASSERT(side > 0 && K % side == 0 && C % side == 0);
    const struct map m = {.side = side, .K = K / side, .R = R, .S = S, .C = C / side};
    return fill_map(bits, first, &m, stored);
}

/* ---- output blocks, in the order of groups ---- */

struct output {
    int64_t k, kept;
};

static int by_kept(const void *a, const void *b) {
    const struct output *x = a, *y = b;
    if (x->kept != y->kept) return x->kept < y->kept ? 1 : -1;
    return x->k < y->k ? -1 : x->k > y->k;
}

static void order_outputs(const struct map *m, int64_t groups, int64_t teams, struct output *output) {
    const int64_t taps = m->R * m->S;
    for (int64_t k = 0; k < groups * teams; k++) {
        output[k] = (struct output){.k = k, .kept = -1}; /* none: behind all others */
        if (k >= m->K) continue;
        output[k].kept = 0;
        for (int64_t i = 0; i < m->C * taps; i++) output[k].kept += m->kept[k * m->C * taps + i];
    }
    qsort(output, (size_t)(groups * teams), sizeof *output, by_kept);
}

/* ---- the table ---- */

struct writer {
    const struct map             *map;
    const struct cr_block_layout *how;
    const struct output          *output;
    struct cr_blocks             *to;
    uint32_t                      steps, items, entries; /* written so far */
    uint32_t                     *on;                    /* [teams]: steps since a team's last product */
};

static bool has(const struct writer *w, int64_t of, int64_t c, int64_t tap) {
    const int64_t taps = w->map->R * w->map->S, k = w->output[of].k;
    return w->output[of].kept > 0 && w->map->kept[(k * w->map->C + c) * taps + tap];
}

/* Nothing of the output block is kept: a block of zeros is, in the group's first step. */
static bool has_fill(const struct writer *w, int64_t of, int64_t c, int64_t tap) {
    return w->output[of].kept == 0 && c == 0 && tap == 0;
}

static bool has_any(const struct writer *w, int64_t of, int64_t c, int64_t tap) {
    return has(w, of, c, tap) || has_fill(w, of, c, tap);
}

static bool step_is_needed(const struct writer *w, int64_t group, int64_t c, int64_t first_tap, int64_t taps) {
    for (int64_t team = 0; team < w->how->teams; team++)
        for (int64_t tap = first_tap; tap < first_tap + taps; tap++)
            if (has_any(w, group * w->how->teams + team, c, tap)) return true;
    return false;
}

static void put_product(struct writer *w, int64_t of, int64_t team, int64_t c, int64_t tap) {
    const struct map *m     = w->map;
    uint32_t         *table = w->to->table;
    const int64_t     r = tap / m->S, s = tap % m->S,
                  element           = (w->output[of].k * m->side * m->R * m->S + tap) * m->C * m->side + c * m->side;
    table[w->to->from + w->items]   = has(w, of, c, tap) ? (uint32_t)element : CR_SPARSE_FILL;
    table[w->to->item + w->items++] = (uint32_t)team;
    /* Entries of a team lie together: each team has a range of its own, whose length is its count. */
    table[w->to->entry + table[w->to->entries + of + 1]++] =
        w->on[team] << 16 | (uint32_t)(w->how->patch ? r * w->how->pitch + s : 0);
    w->on[team] = 0;
}

static void put_step(struct writer *w, int64_t group, int64_t c, int64_t first_tap, int64_t taps) {
    const struct map *m = w->map;
    if (!step_is_needed(w, group, c, first_tap, taps)) return;
    w->to->table[w->to->step + w->steps++] =
        (uint32_t)c | (w->how->patch ? 0 : (uint32_t)(first_tap / m->S) << 16 | (uint32_t)(first_tap % m->S) << 24);
    for (int64_t team = 0; team < w->how->teams; team++) w->on[team]++;
    for (int64_t tap = first_tap; tap < first_tap + taps; tap++)
        for (int64_t team = 0; team < w->how->teams; team++) {
            const int64_t of = group * w->how->teams + team;
            if (has_any(w, of, c, tap)) put_product(w, of, team, c, tap);
        }
}

static void put_group(struct writer *w, int64_t group) {
    const int64_t taps = w->map->R * w->map->S, at_once = w->how->patch ? taps : 1;
    memset(w->on, 0, (size_t)w->how->teams * sizeof *w->on);
    for (int64_t c = 0; c < w->map->C; c++)
        for (int64_t tap = 0; tap < taps; tap += at_once) put_step(w, group, c, tap, at_once);
    w->to->table[w->to->steps + group + 1] = w->steps;
    w->to->table[w->to->items + group + 1] = w->items;
}

/* While products are written, entries[of + 1] is where the next one of `of` goes: it begins as the sum of the counts
 * before. */
static void put_all(struct writer *w) {
    struct cr_blocks *to    = w->to;
    const int64_t     teams = to->groups * w->how->teams;
    uint32_t          sum   = 0;
    for (int64_t of = 0; of < teams; of++) {
        to->table[to->entries + of + 1] = sum;
        sum += w->output[of].kept < 0 ? 0 : (uint32_t)CR_MAX(w->output[of].kept, 1);
        to->table[to->block + of] = w->output[of].kept < 0 ? UINT32_MAX : (uint32_t)w->output[of].k;
    }
    for (int64_t group = 0; group < to->groups; group++) put_group(w, group);
    CR_ASSERT(w->items == to->blocks && sum == to->blocks);
}

/* Offsets of the parts; steps are at most blocks. */
static void lay_out(struct cr_blocks *b, int64_t teams) {
    const int64_t   count[] = {b->groups + 1,         b->blocks, b->groups + 1,     b->blocks,
                               b->groups * teams + 1, b->blocks, b->groups * teams, b->blocks};
    uint32_t *const to[]    = {&b->steps, &b->step, &b->items, &b->item, &b->entries, &b->entry, &b->block, &b->from};
    for (size_t i = 0; i < CR_COUNT(to); i++) {
        *to[i] = (uint32_t)b->words;
        b->words += count[i];
    }
}

void cr_blocks_free(struct cr_blocks *blocks) {
    cr_free(blocks->table);
    memset(blocks, 0, sizeof *blocks);
}

cr_status cr_sparse_blocks(const uint8_t *bits, int64_t first, int64_t K, int64_t R, int64_t S, int64_t C,
                           const struct cr_block_layout *how, struct cr_blocks *blocks) {
    const int64_t  side   = how->side;
    struct map     m      = {.side = side, .K = K / side, .R = R, .S = S, .C = C / side};
    struct output *output = NULL;
    struct writer  w      = {.map = &m, .how = how, .to = blocks};
    cr_status      status = CR_OK;
    CR_ASSERT(side > 0 && K % side == 0 && C % side == 0 && m.C <= UINT16_MAX && K <= UINT32_MAX / (R * S * C));
    memset(blocks, 0, sizeof *blocks);
    blocks->groups = (m.K + how->teams - 1) / how->teams;
    m.kept         = cr_alloc((size_t)(m.K * m.C), (size_t)(R * S));
    output         = cr_alloc((size_t)(blocks->groups * how->teams), sizeof *output);
    w.on           = cr_alloc((size_t)how->teams, sizeof *w.on);
    if (!m.kept || !output || !w.on)
        CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for the blocks of a filter of %lld weights", (long long)(K * R * S * C));
    fill_map(bits, first, &m, &blocks->blocks);
    order_outputs(&m, blocks->groups, how->teams, output);
    lay_out(blocks, how->teams);
    blocks->table = cr_alloc((size_t)blocks->words, sizeof *blocks->table);
    if (!blocks->table)
        CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a list of %lld filter blocks", (long long)blocks->blocks);
    w.output = output;
    put_all(&w);
out:
    cr_free(m.kept);
    cr_free(output);
    cr_free(w.on);
    if (status != CR_OK) cr_blocks_free(blocks);
    return status;
}

#include "sparsity/band_2_4.h"

#include <string.h>

enum {
    QUAD    = 4,
    QUADS   = 8,
    LISTS   = CR_MMA_SP_GROUPS + 1,
    WEIGHTS = CR_MMA_SP_LANES * 8 /* of a fragment */,
    HALVES  = 2 /* quads of a block */,
    MASKS   = 1 << QUAD,
    PASSES  = 2
};

/* ---- the map ---- */

void cr_mma_sp_map_free(struct cr_mma_sp_map *map) {
    cr_free(map->quad);
    cr_free(map->passes);
    memset(map, 0, sizeof *map);
}

static void put_quads(const struct cr_sparse *s, struct cr_mma_sp_map *m) {
    const int64_t taps = s->R * s->S;
    for (int64_t k = 0; k < s->K; k++) {
        const int64_t band = k / CR_MMA_SP_BAND, row = k % CR_MMA_SP_BAND;
        int64_t       tap = 0; /* entries stand in the order of taps */
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) {
            while (s->index[i] >= (tap + 1) * s->C) tap++;
            const int64_t c = s->index[i] - tap * s->C, block = (band * taps + tap) * m->blocks + c / CR_MMA_SP_BLOCK;
            uint8_t      *quad = &m->quad[(block * CR_MMA_SP_BAND + row) * HALVES + c / QUAD % HALVES];
            *quad              = (uint8_t)(*quad | 1u << c % QUAD);
        }
    }
}

/* Passes that 16 rows need for a block, of `quad` 32. */
static unsigned passes_of(const uint8_t *quad) {
    static const uint8_t passes[MASKS] = {0, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 2, 1, 2, 2, 2};
    unsigned             most          = 0;
    for (int i = 0; i < CR_MMA_SP_ROWS * HALVES; i++) most = CR_MAX(most, passes[quad[i]]);
    return most;
}

cr_status cr_mma_sp_map_make(const struct cr_sparse *s, struct cr_mma_sp_map *map) {
    struct cr_mma_sp_map m = {.K = s->K, .R = s->R, .S = s->S, .C = s->C};
    m.bands                = (s->K + CR_MMA_SP_BAND - 1) / CR_MMA_SP_BAND;
    m.blocks               = (s->C + CR_MMA_SP_BLOCK - 1) / CR_MMA_SP_BLOCK;
    const int64_t all      = m.bands * s->R * s->S * m.blocks;
    m.quad                 = cr_alloc((size_t)all, CR_MMA_SP_BAND * HALVES);
    m.passes               = cr_alloc((size_t)all, sizeof *m.passes);
    if (!m.quad || !m.passes) {
        cr_mma_sp_map_free(&m);
        return CR_FAIL(CR_ERR_MEMORY, "no memory for the map of a sparse filter of %lld rows", (long long)s->K);
    }
    put_quads(s, &m);
    for (int64_t i = 0; i < all; i++)
        for (int g = 0; g < CR_MMA_SP_GROUPS; g++)
            m.passes[i] = (uint8_t)(m.passes[i] | passes_of(m.quad + (i * CR_MMA_SP_BAND + g * CR_MMA_SP_ROWS) * HALVES)
                                                      << 2 * g);
    *map = m;
    return CR_OK;
}

/* ---- what is being made ---- */

/* 8 columns of a band; the second pass has what the first left. */
struct block {
    int64_t tap, first; /* first input channel */
    int     pass;
};

/* Places of the weights that a pass takes of 4 columns of a row (taken: are there weights?). */
struct pair {
    uint8_t place[2];
    bool    taken[2];
};

struct maker {
    const struct cr_mma_sp_map    *map;
    const struct cr_mma_sp_layout *how;
    struct cr_mma_sp              *to;
    struct block                  *list; /* [LISTS][most] */
    int64_t                        count[LISTS], most;
    struct pair                    pair[PASSES][MASKS]; /* by what is kept of the 4 columns */
    uint32_t                       none;                /* places of a pair without weights */
};

void cr_mma_sp_free(struct cr_mma_sp *to) {
    cr_free(to->run);
    cr_free(to->offset);
    cr_free(to->from);
    cr_free(to->places);
    memset(to, 0, sizeof *to);
}

/* Missing places are filled up so that the first is the smaller one. */
static struct pair pair_of(unsigned mask, int pass) {
    struct pair p    = {.place = {0, QUAD - 1}};
    int         kept = 0, got = 0;
    for (unsigned i = 0; i < QUAD; i++) {
        if (!(mask >> i & 1u)) continue;
        if (kept / 2 == pass) p.place[got] = (uint8_t)i, p.taken[got++] = true;
        kept++;
    }
    if (got == 1 && p.place[0] == QUAD - 1) { /* alone on the last place: it is the second of the pair */
        p.place[0] = 0;
        p.taken[0] = false, p.taken[1] = true;
    }
    return p;
}

/* ---- lists of blocks ---- */

/* Which lists the block goes to, bit by bit, second passes LISTS bits higher. Where most groups need a second pass all
 * take it: one read of the input then serves them all. */
static unsigned lists_of(unsigned passes) {
    unsigned single = 0;
    int      twice  = 0;
    for (int g = 0; g < CR_MMA_SP_GROUPS; g++)
        if ((passes >> 2 * g & 3u) > 1) single |= 2u << g, twice++;
    return !passes ? 0 : 1u | (twice >= CR_MMA_SP_GROUPS - 1 ? 1u : single) << LISTS;
}

/* Counts the blocks of a chunk by lists, and puts them there where there is memory. */
static void sort_blocks(struct maker *m, int64_t band, int64_t chunk) {
    const struct cr_mma_sp_map *map  = m->map;
    const int64_t               taps = map->R * map->S, wide = m->how->chunk / CR_MMA_SP_BLOCK,
                  last = CR_MIN(map->blocks, (chunk + 1) * wide);
    memset(m->count, 0, sizeof m->count);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = chunk * wide; c < last; c++) {
            const unsigned lists = lists_of(map->passes[(band * taps + tap) * map->blocks + c]);
            for (int bit = 0; lists >> bit; bit++) {
                if (!(lists >> bit & 1u)) continue;
                const int list = bit % LISTS;
                if (m->list)
                    m->list[list * m->most + m->count[list]] =
                        (struct block){.tap = tap, .first = c * CR_MMA_SP_BLOCK, .pass = bit / LISTS};
                m->count[list]++;
            }
        }
}

/* ---- steps and fragments ---- */

static int64_t steps_of(const struct maker *m, int list) {
    return (m->count[list] + CR_MMA_SP_BLOCKS - 1) / CR_MMA_SP_BLOCKS;
}
static int groups_of(int list) {
    return list ? 1 : CR_MMA_SP_GROUPS;
}

/* Where runs begin, and how much there is in all. */
static void count_runs(struct maker *m) {
    struct cr_mma_sp *to = m->to;
    for (int64_t band = 0; band < to->bands; band++)
        for (int64_t chunk = 0; chunk < to->chunks; chunk++) {
            if (band < m->map->bands)
                sort_blocks(m, band, chunk);
            else
                memset(m->count, 0, sizeof m->count);
            for (int list = 0; list < LISTS; list++) {
                uint32_t *run = to->run ? to->run + ((band * to->chunks + chunk) * LISTS + list) * 2 : NULL;
                if (run) run[0] = (uint32_t)to->steps, run[1] = (uint32_t)to->fragments;
                to->steps += steps_of(m, list);
                to->fragments += steps_of(m, list) * groups_of(list);
            }
        }
    uint32_t *end = to->run ? to->run + to->bands * to->chunks * LISTS * 2 : NULL;
    if (end) end[0] = (uint32_t)to->steps, end[1] = (uint32_t)to->fragments;
}

static uint32_t offset_of(const struct maker *m, const struct block *b) {
    const struct cr_mma_sp_layout *how = m->how;
    const int64_t                  r = b->tap / m->map->S, s = b->tap % m->map->S;
    return (uint32_t)(b->first % how->chunk / CR_MMA_SP_BLOCK * how->c_step + r * how->r_step +
                      s % how->stride * how->s_phase + s / how->stride * how->s_step);
}

/* The weights that a row has among 4 columns, the first of which is `element`, in a fragment that is filled with pairs
 * without weights. */
static void put_pair(const struct maker *m, const struct pair *p, uint32_t element, int row, int quad, uint32_t *from,
                     uint32_t *word) {
    uint32_t *to = from + (row % 8 * 4 + quad % 4) * 8 + (quad / 4 * 2 + row / 8) * 2;
    for (int j = 0; j < 2; j++)
        if (p->taken[j]) to[j] = element + p->place[j];
    const uint32_t places = (uint32_t)(p->place[0] | p->place[1] << 2),
                   shift  = (uint32_t)(4 * (quad % 4) + row / 8 * 16);
    for (int twin = 0; twin < 2; twin++) word[row % 8 * 4 + quad / 4 + twin * 2] ^= (places ^ m->none) << shift;
}

static void put_fragment(const struct maker *m, const struct block *blocks, int64_t count, int64_t band, int group,
                         int64_t at) {
    const struct cr_mma_sp_map *map  = m->map;
    const int64_t               taps = map->R * map->S, k = band * CR_MMA_SP_BAND + group * CR_MMA_SP_ROWS;
    uint32_t                   *from = m->to->from + at * WEIGHTS, *word = m->to->places + at * CR_MMA_SP_LANES;
    memset(from, 0xff, WEIGHTS * sizeof *from); /* CR_SPARSE_FILL */
    for (int i = 0; i < CR_MMA_SP_LANES; i++) word[i] = m->none * 0x11111111u;
    for (int i = 0; i < count; i++) {
        const struct block *b     = &blocks[i];
        const int64_t       block = (band * taps + b->tap) * map->blocks + b->first / CR_MMA_SP_BLOCK;
        const uint8_t      *mask  = map->quad + (block * CR_MMA_SP_BAND + group * CR_MMA_SP_ROWS) * HALVES;
        for (int q = 0; q < CR_MMA_SP_ROWS * HALVES; q++) {
            const struct pair *p = &m->pair[b->pass][mask[q]];
            if (!p->taken[0] && !p->taken[1]) continue;
            const int64_t element = ((k + q / HALVES) * taps + b->tap) * map->C + b->first + q % HALVES * QUAD;
            put_pair(m, p, (uint32_t)element, q / HALVES, i * HALVES + q % HALVES, from, word);
        }
    }
}

static void put_run(struct maker *m, int64_t band, int list, uint32_t step, uint32_t fragment) {
    const struct block *blocks = m->list + list * m->most;
    const int           first = list ? list - 1 : 0, groups = groups_of(list);
    for (int64_t at = 0; at < m->count[list]; at += CR_MMA_SP_BLOCKS, step++, fragment += (uint32_t)groups) {
        const int64_t some = CR_MIN(m->count[list] - at, (int64_t)CR_MMA_SP_BLOCKS);
        for (int64_t i = 0; i < some; i++)
            m->to->offset[(int64_t)step * CR_MMA_SP_BLOCKS + i] = offset_of(m, &blocks[at + i]);
        for (int g = 0; m->to->from && g < groups; g++)
            put_fragment(m, blocks + at, some, band, first + g, (int64_t)fragment + g);
    }
}

static void put_runs(struct maker *m) {
    const struct cr_mma_sp *to = m->to;
    for (int64_t band = 0; band < CR_MIN(to->bands, m->map->bands); band++)
        for (int64_t chunk = 0; chunk < to->chunks; chunk++) {
            sort_blocks(m, band, chunk);
            for (int list = 0; list < LISTS; list++) {
                const uint32_t *run = to->run + ((band * to->chunks + chunk) * LISTS + list) * 2;
                put_run(m, band, list, run[0], run[1]);
            }
        }
}

static cr_status make(struct maker *m, bool weights) {
    struct cr_mma_sp *to = m->to;
    to->run              = cr_alloc((size_t)(to->bands * to->chunks * LISTS + 1) * 2, sizeof *to->run);
    if (!to->run) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter's lists");
    count_runs(m);
    if (to->fragments >= UINT32_MAX / WEIGHTS)
        return CR_FAIL(CR_ERR_CONFIG, "a sparse filter of more than 2^24 fragments");
    m->list    = cr_alloc((size_t)(LISTS * m->most), sizeof *m->list);
    to->offset = cr_alloc((size_t)(to->steps + 1) * CR_MMA_SP_BLOCKS, sizeof *to->offset);
    to->from   = weights ? cr_alloc((size_t)to->fragments * WEIGHTS, sizeof *to->from) : NULL;
    to->places = weights ? cr_alloc((size_t)to->fragments * CR_MMA_SP_LANES, sizeof *to->places) : NULL;
    if (!m->list || !to->offset || (weights && (!to->from || !to->places)))
        return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld fragments", (long long)to->fragments);
    for (unsigned mask = 0; mask < MASKS; mask++)
        for (int pass = 0; pass < PASSES; pass++) m->pair[pass][mask] = pair_of(mask, pass);
    m->none = (uint32_t)(m->pair[0][0].place[0] | m->pair[0][0].place[1] << 2);
    put_runs(m);
    return CR_OK;
}

static struct cr_mma_sp empty_of(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how) {
    CR_ASSERT(how->chunk > 0 && how->chunk % CR_MMA_SP_BLOCK == 0 && how->bands * CR_MMA_SP_BAND >= map->K);
    return (struct cr_mma_sp){.chunks = (map->C + how->chunk - 1) / how->chunk, .bands = how->bands};
}

cr_status cr_mma_sp_make(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how, bool weights,
                         struct cr_mma_sp *to) {
    struct cr_mma_sp made = empty_of(map, how);
    struct maker m = {.map = map, .how = how, .to = &made, .most = map->R * map->S * how->chunk / CR_MMA_SP_BLOCK * 2};
    const cr_status status = make(&m, weights);
    cr_free(m.list);
    if (status != CR_OK) {
        cr_mma_sp_free(&made);
        return status;
    }
    *to = made;
    return CR_OK;
}

int64_t cr_mma_sp_count(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how) {
    struct cr_mma_sp counted = empty_of(map, how);
    struct maker     m       = {.map = map, .how = how, .to = &counted};
    count_runs(&m);
    return counted.fragments;
}

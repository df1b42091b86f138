/* sparsity/band_2_4.c: builds the mma_sp format of unstructured sparse filters; see sparsity/band_2_4.h. */
#include "sparsity/band_2_4.h"

#include <string.h>

enum {
    QUAD    = 4,
    QUADS   = 8,
    LISTS   = CR_MMA_SP_GROUPS + 1,
    WEIGHTS = CR_MMA_SP_LANES * 8 /* per fragment */,
    HALVES  = 2 /* quads per block */,
    MASKS   = 1 << QUAD,
    PASSES  = 2
};

/* ---- the map ---- */

void cr_mma_sp_map_free(struct cr_mma_sp_map *map) {
    cr_free(map->quad);
    cr_free(map->passes);
    memset(map, 0, sizeof *map);
}

static void fill_quads(const struct cr_sparse *s, struct cr_mma_sp_map *m) {
    const int64_t taps = s->R * s->S;
    for (int64_t k = 0; k < s->K; k++) {
        const int64_t band = k / CR_MMA_SP_BAND, row = k % CR_MMA_SP_BAND;
        int64_t       tap = 0; /* entries are in tap order */
        for (int64_t i = s->row[k]; i < s->row[k + 1]; i++) {
            while (s->index[i] >= (tap + 1) * s->C) tap++;
            const int64_t c = s->index[i] - tap * s->C, block = (band * taps + tap) * m->blocks + c / CR_MMA_SP_BLOCK;
            uint8_t      *quad = &m->quad[(block * CR_MMA_SP_BAND + row) * HALVES + c / QUAD % HALVES];
            *quad              = (uint8_t)(*quad | 1u << c % QUAD);
        }
    }
}

/* Number of passes that 16 rows need for a block with 32 quads. */
static unsigned count_passes(const uint8_t *quad) {
    static const uint8_t passes[MASKS] = {0, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 2, 1, 2, 2, 2};
    unsigned             max_passes    = 0;
    for (int i = 0; i < CR_MMA_SP_ROWS * HALVES; i++) max_passes = CR_MAX(max_passes, passes[quad[i]]);
    return max_passes;
}

cr_status cr_mma_sp_map_make(const struct cr_sparse *s, struct cr_mma_sp_map *map) {
    struct cr_mma_sp_map m = {.K = s->K, .R = s->R, .S = s->S, .C = s->C};
    m.bands                = (s->K + CR_MMA_SP_BAND - 1) / CR_MMA_SP_BAND;
    m.blocks               = (s->C + CR_MMA_SP_BLOCK - 1) / CR_MMA_SP_BLOCK;
    const int64_t total    = m.bands * s->R * s->S * m.blocks;
    m.quad                 = cr_alloc((size_t)total, CR_MMA_SP_BAND * HALVES);
    m.passes               = cr_alloc((size_t)total, sizeof *m.passes);
    if (!m.quad || !m.passes) {
        cr_mma_sp_map_free(&m);
        return CR_FAIL(CR_ERR_MEMORY, "out of memory for a sparse filter of %lld rows", (long long)s->K);
    }
    fill_quads(s, &m);
    for (int64_t i = 0; i < total; i++)
        for (int g = 0; g < CR_MMA_SP_GROUPS; g++)
            m.passes[i] = (uint8_t)(m.passes[i] |
                                    count_passes(m.quad + (i * CR_MMA_SP_BAND + g * CR_MMA_SP_ROWS) * HALVES) << 2 * g);
    *map = m;
    return CR_OK;
}

/* ---- intermediate structures ---- */

/* 8 columns of a band; the second pass has the nonzeros that remain after the first pass. */
struct block {
    int64_t tap, first; /* first input channel */
    int     pass;
};

/* Places of the weights of one pass in 4 columns of a row; used[i] is false for a missing weight. */
struct pair {
    uint8_t place[2];
    bool    used[2];
};

struct builder {
    const struct cr_mma_sp_map    *map;
    const struct cr_mma_sp_layout *layout;
    struct cr_mma_sp              *out;
    struct block                  *list; /* [LISTS][capacity] */
    int64_t                        count[LISTS], capacity;
    struct pair                    pair[PASSES][MASKS]; /* index: mask of the nonzeros in the 4 columns */
    uint32_t                       empty_places;        /* places of a pair without weights */
};

void cr_mma_sp_free(struct cr_mma_sp *out) {
    cr_free(out->run);
    cr_free(out->offset);
    cr_free(out->from);
    cr_free(out->places);
    memset(out, 0, sizeof *out);
}

/* Unused places are chosen so that the first place is the smaller one. */
static struct pair pair_of(unsigned mask, int pass) {
    struct pair p    = {.place = {0, QUAD - 1}};
    int         seen = 0, got = 0;
    for (unsigned i = 0; i < QUAD; i++) {
        if (!(mask >> i & 1u)) continue;
        if (seen / 2 == pass) p.place[got] = (uint8_t)i, p.used[got++] = true;
        seen++;
    }
    if (got == 1 && p.place[0] == QUAD - 1) { /* a single weight in the last place becomes the second of the pair */
        p.place[0] = 0;
        p.used[0] = false, p.used[1] = true;
    }
    return p;
}

/* ---- lists of blocks ---- */

/* Bit mask of the lists that contain the block; second passes are LISTS bits higher. If most groups need a second pass,
 * all groups do it: a single read of the input then serves all groups. */
static unsigned lists_of(unsigned passes) {
    unsigned single        = 0;
    int      second_passes = 0;
    for (int g = 0; g < CR_MMA_SP_GROUPS; g++)
        if ((passes >> 2 * g & 3u) > 1) single |= 2u << g, second_passes++;
    return !passes ? 0 : 1u | (second_passes >= CR_MMA_SP_GROUPS - 1 ? 1u : single) << LISTS;
}

/* Counts the blocks of a chunk per list, and stores them if m->list is allocated. */
static void sort_blocks(struct builder *m, int64_t band, int64_t chunk) {
    const struct cr_mma_sp_map *map  = m->map;
    const int64_t               taps = map->R * map->S, chunk_blocks = m->layout->chunk / CR_MMA_SP_BLOCK,
                  last = CR_MIN(map->blocks, (chunk + 1) * chunk_blocks);
    memset(m->count, 0, sizeof m->count);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = chunk * chunk_blocks; c < last; c++) {
            const unsigned lists = lists_of(map->passes[(band * taps + tap) * map->blocks + c]);
            for (int bit = 0; lists >> bit; bit++) {
                if (!(lists >> bit & 1u)) continue;
                const int list = bit % LISTS;
                if (m->list)
                    m->list[list * m->capacity + m->count[list]] =
                        (struct block){.tap = tap, .first = c * CR_MMA_SP_BLOCK, .pass = bit / LISTS};
                m->count[list]++;
            }
        }
}

/* ---- steps and fragments ---- */

static int64_t steps_of(const struct builder *m, int list) {
    return (m->count[list] + CR_MMA_SP_BLOCKS - 1) / CR_MMA_SP_BLOCKS;
}
static int groups_of(int list) {
    return list ? 1 : CR_MMA_SP_GROUPS;
}

/* Computes the start of each run and the total numbers of steps and fragments. */
static void count_runs(struct builder *m) {
    struct cr_mma_sp *out = m->out;
    for (int64_t band = 0; band < out->bands; band++)
        for (int64_t chunk = 0; chunk < out->chunks; chunk++) {
            if (band < m->map->bands)
                sort_blocks(m, band, chunk);
            else
                memset(m->count, 0, sizeof m->count);
            for (int list = 0; list < LISTS; list++) {
                uint32_t *run = out->run ? out->run + ((band * out->chunks + chunk) * LISTS + list) * 2 : NULL;
                if (run) run[0] = (uint32_t)out->steps, run[1] = (uint32_t)out->fragments;
                out->steps += steps_of(m, list);
                out->fragments += steps_of(m, list) * groups_of(list);
            }
        }
    uint32_t *end = out->run ? out->run + out->bands * out->chunks * LISTS * 2 : NULL;
    if (end) end[0] = (uint32_t)out->steps, end[1] = (uint32_t)out->fragments;
}

static uint32_t offset_of(const struct builder *m, const struct block *b) {
    const struct cr_mma_sp_layout *layout = m->layout;
    const int64_t                  r = b->tap / m->map->S, s = b->tap % m->map->S;
    return (uint32_t)(b->first % layout->chunk / CR_MMA_SP_BLOCK * layout->c_step + r * layout->r_step +
                      s % layout->stride * layout->s_phase + s / layout->stride * layout->s_step);
}

/* Writes the weights of a row among the 4 columns from `element` on into a fragment that was filled with empty
 * pairs. */
static void write_pair(const struct builder *m, const struct pair *p, uint32_t element, int row, int quad,
                       uint32_t *from, uint32_t *word) {
    uint32_t *out = from + (row % 8 * 4 + quad % 4) * 8 + (quad / 4 * 2 + row / 8) * 2;
    for (int j = 0; j < 2; j++)
        if (p->used[j]) out[j] = element + p->place[j];
    const uint32_t places = (uint32_t)(p->place[0] | p->place[1] << 2),
                   shift  = (uint32_t)(4 * (quad % 4) + row / 8 * 16);
    for (int copy = 0; copy < 2; copy++) word[row % 8 * 4 + quad / 4 + copy * 2] ^= (places ^ m->empty_places) << shift;
}

static void write_fragment(const struct builder *m, const struct block *blocks, int64_t count, int64_t band, int group,
                           int64_t at) {
    const struct cr_mma_sp_map *map  = m->map;
    const int64_t               taps = map->R * map->S, k = band * CR_MMA_SP_BAND + group * CR_MMA_SP_ROWS;
    uint32_t                   *from = m->out->from + at * WEIGHTS, *word = m->out->places + at * CR_MMA_SP_LANES;
    memset(from, 0xff, WEIGHTS * sizeof *from); /* CR_SPARSE_FILL */
    for (int i = 0; i < CR_MMA_SP_LANES; i++) word[i] = m->empty_places * 0x11111111u;
    for (int i = 0; i < count; i++) {
        const struct block *b     = &blocks[i];
        const int64_t       block = (band * taps + b->tap) * map->blocks + b->first / CR_MMA_SP_BLOCK;
        const uint8_t      *mask  = map->quad + (block * CR_MMA_SP_BAND + group * CR_MMA_SP_ROWS) * HALVES;
        for (int q = 0; q < CR_MMA_SP_ROWS * HALVES; q++) {
            const struct pair *p = &m->pair[b->pass][mask[q]];
            if (!p->used[0] && !p->used[1]) continue;
            const int64_t element = ((k + q / HALVES) * taps + b->tap) * map->C + b->first + q % HALVES * QUAD;
            write_pair(m, p, (uint32_t)element, q / HALVES, i * HALVES + q % HALVES, from, word);
        }
    }
}

static void write_run(struct builder *m, int64_t band, int list, uint32_t step, uint32_t fragment) {
    const struct block *blocks = m->list + list * m->capacity;
    const int           first = list ? list - 1 : 0, groups = groups_of(list);
    for (int64_t at = 0; at < m->count[list]; at += CR_MMA_SP_BLOCKS, step++, fragment += (uint32_t)groups) {
        const int64_t blocks_of_step = CR_MIN(m->count[list] - at, (int64_t)CR_MMA_SP_BLOCKS);
        for (int64_t i = 0; i < blocks_of_step; i++)
            m->out->offset[(int64_t)step * CR_MMA_SP_BLOCKS + i] = offset_of(m, &blocks[at + i]);
        for (int g = 0; m->out->from && g < groups; g++)
            write_fragment(m, blocks + at, blocks_of_step, band, first + g, (int64_t)fragment + g);
    }
}

static void write_runs(struct builder *m) {
    const struct cr_mma_sp *out = m->out;
    for (int64_t band = 0; band < CR_MIN(out->bands, m->map->bands); band++)
        for (int64_t chunk = 0; chunk < out->chunks; chunk++) {
            sort_blocks(m, band, chunk);
            for (int list = 0; list < LISTS; list++) {
                const uint32_t *run = out->run + ((band * out->chunks + chunk) * LISTS + list) * 2;
                write_run(m, band, list, run[0], run[1]);
            }
        }
}

static cr_status build(struct builder *m, bool weights) {
    struct cr_mma_sp *out = m->out;
    out->run              = cr_alloc((size_t)(out->bands * out->chunks * LISTS + 1) * 2, sizeof *out->run);
    if (!out->run) return CR_FAIL(CR_ERR_MEMORY, "out of memory for the lists of a sparse filter");
    count_runs(m);
    if (out->fragments >= UINT32_MAX / WEIGHTS)
        return CR_FAIL(CR_ERR_CONFIG, "a sparse filter has more than 2^24 fragments");
    m->list     = cr_alloc((size_t)(LISTS * m->capacity), sizeof *m->list);
    out->offset = cr_alloc((size_t)(out->steps + 1) * CR_MMA_SP_BLOCKS, sizeof *out->offset);
    out->from   = weights ? cr_alloc((size_t)out->fragments * WEIGHTS, sizeof *out->from) : NULL;
    out->places = weights ? cr_alloc((size_t)out->fragments * CR_MMA_SP_LANES, sizeof *out->places) : NULL;
    if (!m->list || !out->offset || (weights && (!out->from || !out->places)))
        return CR_FAIL(CR_ERR_MEMORY, "out of memory for a sparse filter of %lld fragments", (long long)out->fragments);
    for (unsigned mask = 0; mask < MASKS; mask++)
        for (int pass = 0; pass < PASSES; pass++) m->pair[pass][mask] = pair_of(mask, pass);
    m->empty_places = (uint32_t)(m->pair[0][0].place[0] | m->pair[0][0].place[1] << 2);
    write_runs(m);
    return CR_OK;
}

static struct cr_mma_sp empty_filter(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *layout) {
    CR_ASSERT(layout->chunk > 0 && layout->chunk % CR_MMA_SP_BLOCK == 0 && layout->bands * CR_MMA_SP_BAND >= map->K);
    return (struct cr_mma_sp){.chunks = (map->C + layout->chunk - 1) / layout->chunk, .bands = layout->bands};
}

cr_status cr_mma_sp_make(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *layout, bool weights,
                         struct cr_mma_sp *out) {
    struct cr_mma_sp built    = empty_filter(map, layout);
    const int64_t    capacity = map->R * map->S * layout->chunk / CR_MMA_SP_BLOCK * 2;
    struct builder   m        = {.map = map, .layout = layout, .out = &built, .capacity = capacity};
    const cr_status  status   = build(&m, weights);
    cr_free(m.list);
    if (status != CR_OK) {
        cr_mma_sp_free(&built);
        return status;
    }
    *out = built;
    return CR_OK;
}

int64_t cr_mma_sp_count(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *layout) {
    struct cr_mma_sp counts = empty_filter(map, layout);
    struct builder   m      = {.map = map, .layout = layout, .out = &counts};
    count_runs(&m);
    return counts.fragments;
}

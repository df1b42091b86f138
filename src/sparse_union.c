#include "sparse_union.h"

#include <string.h>

enum { QUAD = 4, QUADS = 8, LISTS = CR_UNION_GROUPS + 1, WEIGHTS = CR_UNION_LANES * 8 /* of a fragment */ };

/* 8 columns of a band; the second pass has what the first left. */
struct block {
    int64_t tap, first; /* first input channel */
    int     pass;
};

/* What is being made. count only: `from` is NULL. */
struct maker {
    const struct cr_sparse    *sparse;
    const struct cr_union_how *how;
    struct cr_union           *to;
    uint8_t                   *band; /* [64][R*S*C]: is it kept? */
    struct block              *list; /* [LISTS][most] */
    int64_t                    count[LISTS], most;
};

void cr_union_free(struct cr_union *to) {
    cr_free(to->run);
    cr_free(to->offset);
    cr_free(to->from);
    cr_free(to->places);
    memset(to, 0, sizeof *to);
}

static int64_t taps_of(const struct cr_sparse *s) { return s->R * s->S * s->C; }

/* ---- rows of a band ---- */

static void open_band(const struct maker *m, int64_t band) {
    const struct cr_sparse *s = m->sparse;
    const int64_t           taps = taps_of(s);
    memset(m->band, 0, (size_t)(CR_UNION_BAND * taps) * sizeof *m->band);
    for (int64_t row = 0; row < CR_UNION_BAND; row++) {
        const int64_t k  = band * CR_UNION_BAND + row;
        for (int64_t i = k < s->K ? s->row[k] : 0; k < s->K && i < s->row[k + 1]; i++) m->band[row * taps + s->index[i]] = 1;
    }
}

/* Places of the weights that `pass` takes of 4 columns of a row (taken: are there weights?). Missing places are filled up so that the
 * first is the smaller one. */
static void places_of(const struct maker *m, const struct block *b, int64_t row, int quad, int place[2], bool taken[2]) {
    const int64_t  first = b->first + quad * QUAD;
    const uint8_t *is_kept = m->band + row * taps_of(m->sparse) + b->tap * m->sparse->C + first;
    int            kept = 0, got = 0;
    taken[0] = taken[1] = false;
    for (int i = 0; i < QUAD && first + i < m->sparse->C; i++) {
        if (!is_kept[i]) continue;
        if (kept / 2 == b->pass) place[got] = i, taken[got++] = true;
        kept++;
    }
    if (got == 0) place[0] = 0;
    if (got < 2) place[1] = QUAD - 1;
    if (got == 1 && place[0] == QUAD - 1) { /* alone on the last place: it is the second of the pair */
        place[0] = 0;
        taken[0] = false, taken[1] = true;
    }
}

/* Of 4 columns of a row. Every layout of a filter asks for all of them: a whole quad is added up as one word of four numbers. */
static int kept_of(const struct maker *m, const struct block *b, int64_t row, int quad) {
    const int64_t  first   = b->first + quad * QUAD;
    const uint8_t *is_kept = m->band + row * taps_of(m->sparse) + b->tap * m->sparse->C + first;
    uint32_t       word    = 0;
    int            kept    = 0;
    if (first + QUAD <= m->sparse->C) {
        memcpy(&word, is_kept, sizeof word);
        return (int)(word * 0x01010101u >> 24);
    }
    for (int i = 0; i < QUAD && first + i < m->sparse->C; i++) kept += is_kept[i];
    return kept;
}

/* Passes that 16 rows need for a block: 0, 1 or 2. */
static int passes_of(const struct maker *m, const struct block *b, int group) {
    int most = 0;
    for (int64_t row = 0; row < CR_UNION_ROWS; row++)
        for (int quad = 0; quad < 2; quad++) most = CR_MAX(most, kept_of(m, b, group * CR_UNION_ROWS + row, quad));
    return (most + 1) / 2;
}

/* ---- steps and fragments ---- */

static uint32_t offset_of(const struct maker *m, const struct block *b) {
    const struct cr_union_how *how = m->how;
    const int64_t r = b->tap / m->sparse->S, s = b->tap % m->sparse->S;
    return (uint32_t)(b->first % how->chunk / CR_UNION_BLOCK * how->c_step + r * how->r_step + s % how->stride * how->s_phase +
                      s / how->stride * how->s_step);
}

static void put_fragment(const struct maker *m, const struct block *blocks, int64_t count, int64_t band, int group, int64_t at) {
    const int64_t taps = taps_of(m->sparse);
    uint32_t     *from = m->to->from + at * WEIGHTS, *word = m->to->places + at * CR_UNION_LANES;
    for (int i = 0; i < WEIGHTS; i++) from[i] = CR_SPARSE_FILL;
    for (int row = 0; row < CR_UNION_ROWS; row++)
        for (int quad = 0; quad < QUADS; quad++) {
            const struct block *b = quad / 2 < count ? &blocks[quad / 2] : NULL;
            const int           of = group * CR_UNION_ROWS + row, lane = row % 8 * 4 + quad % 4, i = quad / 4 * 2 + row / 8;
            int                 place[2] = {0, QUAD - 1};
            bool                taken[2] = {false, false};
            if (b) places_of(m, b, of, quad % 2, place, taken);
            for (int j = 0; j < 2; j++)
                if (taken[j])
                    from[lane * 8 + i * 2 + j] =
                        (uint32_t)((band * CR_UNION_BAND + of) * taps + b->tap * m->sparse->C + b->first + quad % 2 * QUAD + place[j]);
            const uint32_t places = (uint32_t)(place[0] | place[1] << 2) << (4 * (quad % 4) + row / 8 * 16);
            for (int twin = 0; twin < 2; twin++) word[row % 8 * 4 + quad / 4 + twin * 2] |= places;
        }
}

/* The blocks of a chunk into lists. Where most groups need a second pass all take it: one read of the input then serves them all. */
static void sort_blocks(struct maker *m, int64_t chunk) {
    const struct cr_sparse *s = m->sparse;
    const int64_t last = CR_MIN(s->C, (chunk + 1) * m->how->chunk);
    memset(m->count, 0, sizeof m->count);
    for (int64_t tap = 0; tap < s->R * s->S; tap++)
        for (int64_t c = chunk * m->how->chunk; c < last; c += CR_UNION_BLOCK) {
            struct block b = {.tap = tap, .first = c};
            int          passes[CR_UNION_GROUPS], some = 0, twice = 0;
            for (int g = 0; g < CR_UNION_GROUPS; g++) {
                passes[g] = passes_of(m, &b, g);
                some += passes[g] > 0;
                twice += passes[g] > 1;
            }
            if (!some) continue;
            m->list[m->count[0]++] = b;
            b.pass = 1;
            if (twice >= CR_UNION_GROUPS - 1) m->list[m->count[0]++] = b;
            else
                for (int g = 0; g < CR_UNION_GROUPS; g++)
                    if (passes[g] > 1) m->list[(g + 1) * m->most + m->count[g + 1]++] = b;
        }
}

/* Steps and fragments of one run, counted, and written where there is memory. */
static void put_run(struct maker *m, int64_t band, int list) {
    struct cr_union    *to     = m->to;
    const struct block *blocks = m->list + list * m->most;
    const int64_t       count  = m->count[list];
    const int           first = list ? list - 1 : 0, groups = list ? 1 : CR_UNION_GROUPS;
    for (int64_t at = 0; at < count; at += CR_UNION_BLOCKS) {
        const int64_t some = CR_MIN(count - at, (int64_t)CR_UNION_BLOCKS);
        for (int64_t i = 0; to->offset && i < some; i++) to->offset[to->steps * CR_UNION_BLOCKS + i] = offset_of(m, &blocks[at + i]);
        for (int g = 0; to->from && g < groups; g++) put_fragment(m, blocks + at, some, band, first + g, to->fragments + g);
        to->steps++;
        to->fragments += groups;
    }
}

static void walk(struct maker *m) {
    struct cr_union *to = m->to;
    to->steps = to->fragments = 0;
    for (int64_t band = 0; band < to->bands; band++) {
        open_band(m, band);
        for (int64_t chunk = 0; chunk < to->chunks; chunk++) {
            sort_blocks(m, chunk);
            for (int list = 0; list < LISTS; list++) {
                uint32_t *run = to->run + ((band * to->chunks + chunk) * LISTS + list) * 2;
                run[0] = (uint32_t)to->steps, run[1] = (uint32_t)to->fragments;
                put_run(m, band, list);
            }
        }
    }
    uint32_t *end = to->run + to->bands * to->chunks * LISTS * 2;
    end[0] = (uint32_t)to->steps, end[1] = (uint32_t)to->fragments;
}

/* Lists and counts. */
static cr_status begin(struct maker *m) {
    struct cr_union *to = m->to;
    to->run   = cr_alloc((size_t)(to->bands * to->chunks * LISTS + 1) * 2, sizeof *to->run);
    m->band   = cr_alloc((size_t)(CR_UNION_BAND * taps_of(m->sparse)), sizeof *m->band);
    m->list   = cr_alloc((size_t)(LISTS * m->most), sizeof *m->list);
    if (!to->run || !m->band || !m->list) return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter's lists");
    walk(m);
    if (to->fragments >= UINT32_MAX / WEIGHTS) return CR_FAIL(CR_ERR_CONFIG, "a sparse filter of more than 2^24 fragments");
    return CR_OK;
}

static cr_status make(struct maker *m) {
    struct cr_union *to = m->to;
    CR_TRY(begin(m));
    to->offset = cr_alloc((size_t)(to->steps + 1) * CR_UNION_BLOCKS, sizeof *to->offset);
    to->from   = cr_alloc((size_t)to->fragments * WEIGHTS, sizeof *to->from);
    to->places = cr_alloc((size_t)to->fragments * CR_UNION_LANES, sizeof *to->places);
    if (!to->offset || !to->from || !to->places)
        return CR_FAIL(CR_ERR_MEMORY, "no memory for a sparse filter of %lld fragments", (long long)to->fragments);
    walk(m);
    return CR_OK;
}

static cr_status run(const struct cr_sparse *sparse, const struct cr_union_how *how, cr_status (*work)(struct maker *), struct cr_union *to) {
    CR_ASSERT(how->chunk > 0 && how->chunk % CR_UNION_BLOCK == 0 && how->bands * CR_UNION_BAND >= sparse->K);
    struct cr_union made = {.chunks = (sparse->C + how->chunk - 1) / how->chunk, .bands = how->bands};
    struct maker    m    = {.sparse = sparse, .how = how, .to = &made, .most = sparse->R * sparse->S * how->chunk / CR_UNION_BLOCK * 2};
    const cr_status status = work(&m);
    cr_free(m.band);
    cr_free(m.list);
    if (status != CR_OK) {
        cr_union_free(&made);
        return status;
    }
    *to = made;
    return CR_OK;
}

cr_status cr_union_make(const struct cr_sparse *sparse, const struct cr_union_how *how, struct cr_union *to) { return run(sparse, how, make, to); }

cr_status cr_union_count(const struct cr_sparse *sparse, const struct cr_union_how *how, int64_t *fragments) {
    struct cr_union counted;
    CR_TRY(run(sparse, how, begin, &counted));
    *fragments = counted.fragments;
    cr_union_free(&counted);
    return CR_OK;
}

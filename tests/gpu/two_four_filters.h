/* tests/gpu/two_four_filters.h: convolutions with drawn 2:4 filters, and their packed form. */
#ifndef CR_TEST_TWO_FOUR_FILTERS_H
#define CR_TEST_TWO_FOUR_FILTERS_H

#include "cuda/sparse/two_four/two_four.h"
#include "sparsity/sparsity.h"
#include "tests/harness/conv_problem.h"
#include "tests/harness/sparse_support.h"

enum { CAPABILITY = 90, MULTIPROCESSORS = 132, COLUMNS = 16 };

static const struct {
    int64_t N, H, W, C, K;
    int     R, S, stride, pad;
} shapes[] = {
    {1, 1, 1, 8, 8, 1, 1, 1, 0},     {2, 9, 11, 40, 24, 3, 3, 1, 1},  {3, 14, 14, 40, 72, 3, 3, 2, 1},
    {5, 7, 7, 64, 80, 3, 3, 1, 1},   {2, 15, 13, 8, 136, 1, 1, 2, 0}, {1, 32, 32, 8, 16, 7, 7, 2, 3},
    {4, 7, 7, 104, 64, 1, 1, 1, 0},  {1, 10, 6, 24, 8, 5, 3, 3, 2},   {2, 4, 90, 16, 16, 3, 5, 1, 0},
    {1, 8, 8, 16, 8, 1, 1, 1, 2},    {1, 5, 9, 32, 8, 2, 2, 3, 1},    {33, 6, 5, 24, 72, 3, 3, 1, 1},
    {3, 14, 14, 64, 64, 3, 3, 1, 1}, {9, 7, 7, 136, 40, 3, 3, 2, 1},
};

/* A problem with a 2:4 filter. */
struct halved {
    struct problem p;
    int64_t        filled; /* channels, padded */
    uint16_t      *places;
};

/* Of each four channels two are nonzero, or one. */
static inline bool draw_filter(struct halved *h) {
    const struct problem *p      = &h->p;
    const int64_t         taps   = p->conv.K * p->conv.R * p->conv.S;
    uint16_t             *filled = cr_alloc((size_t)(taps * h->filled), sizeof *filled),
             *values             = cr_alloc((size_t)(taps * h->filled / 2), sizeof *values);
    bool done                    = filled && values;
    for (int64_t i = 0; done && i < p->weights; i += 4)
        for (int j = 0; j < 2; j++) {
            const int64_t at = i + draw_bits() % 4;
            cr_number_store(p->dtype, p->w, at, draw());
            filled[at / p->conv.C * h->filled + at % p->conv.C] = ((const uint16_t *)p->w)[at];
        }
    done = done && cr_sparse_24_encode(filled, taps, h->filled, values, h->places);
    cr_free(values);
    cr_free(filled);
    return done;
}

static inline void halved_close(struct halved *h) {
    cr_free(h->places);
    problem_close(&h->p);
}

static inline bool halved_open(struct halved *h, size_t shape, enum ck_type type) {
    const struct ck_conv c = conv_sized((struct ck_conv){.type   = type,
                                                         .N      = shapes[shape].N,
                                                         .H      = shapes[shape].H,
                                                         .W      = shapes[shape].W,
                                                         .C      = shapes[shape].C,
                                                         .K      = shapes[shape].K,
                                                         .R      = shapes[shape].R,
                                                         .S      = shapes[shape].S,
                                                         .stride = shapes[shape].stride,
                                                         .pad    = shapes[shape].pad});
    *h                     = (struct halved){.filled = (c.C + COLUMNS - 1) / COLUMNS * COLUMNS};
    h->places              = cr_alloc((size_t)(c.K * c.R * c.S * h->filled / COLUMNS), sizeof *h->places);
    if (!problem_open(&h->p, &c, dtypes[type]) || !h->places || !draw_filter(h)) return false;
    return true;
}

/* A filter packed for a plan. */
struct packed {
    struct ck_two_four_plan plan;
    uint32_t               *words, *from;
};

static inline bool packed_make(struct packed *f, const struct halved *h, int config, int multiprocessors) {
    if (!ck_two_four_make_plan(&h->p.conv, config, CAPABILITY, multiprocessors, &f->plan)) return false;
    f->words = cr_alloc((size_t)(ck_two_four_units(&f->plan) * CK_TWO_FOUR_WORDS), sizeof *f->words);
    f->from  = cr_alloc((size_t)(ck_two_four_units(&f->plan) * CK_TWO_FOUR_UNIT), sizeof *f->from);
    if (!f->words || !f->from) return false;
    ck_two_four_pack(&h->p.conv, &f->plan, h->places, f->words, f->from);
    return true;
}

static inline void packed_free(struct packed *f) {
    cr_free(f->from);
    cr_free(f->words);
}

/* Position and channel (of the unit's 64) of nonzero i of a row of a unit. Operand A consists of 8x8 matrices down
 * the rows; a warp has 32 words of metadata for its 16 rows, as in sparse_24_word, where threads 0 and 1 of four
 * have the first 32 channels. */
static inline uint32_t kept_from(const struct packed *f, int64_t unit, int row, int i) {
    return f->from[unit * CK_TWO_FOUR_UNIT + i / 8 * 512 + row * 8 + i % 8];
}
static inline int kept_channel(const struct packed *f, int64_t unit, int row, int i) {
    const uint32_t word = f->words[unit * CK_TWO_FOUR_WORDS + row / 16 * 32 + row % 8 * 4 + i / 8];
    return i / 2 * 4 + (int)(word >> (row % 16 / 8 * 16 + i % 8 * 2) & 3u);
}
static inline int64_t first_channel(const struct packed *f, int64_t unit) {
    return unit / f->plan.taps % f->plan.chunks * CK_TWO_FOUR_CHUNK;
}
static inline int tap_of(const struct packed *f, int64_t unit) {
    return f->plan.tap[unit % f->plan.taps];
}
static inline int64_t block_of(const struct packed *f, int64_t unit) {
    return unit / f->plan.taps / f->plan.chunks;
}

#endif

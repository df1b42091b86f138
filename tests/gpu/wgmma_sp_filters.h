/* tests/gpu/wgmma_sp_filters.h: convolutions with drawn sparse filters, and their packed form. */
#ifndef CR_TEST_WGMMA_SP_FILTERS_H
#define CR_TEST_WGMMA_SP_FILTERS_H

#include "cuda/sparse/wgmma_sp/wgmma_sp.h"
#include "tests/harness/conv_problem.h"

enum { CAPABILITY = 90, MULTIPROCESSORS = 132, HEAD = CK_WGMMA_SP_WORDS - 4, HEAD_PLAIN = 1 << 29, POSITIVE = 99 };

/* steps: the inputs of each 32 channels differ from the next 32 by this power of two; nonzeros: of 256 weights.
 * POSITIVE: numbers from 400 to 1600. */
static const struct {
    int64_t N, H, W, C, K;
    int     R, stride, pad, nonzeros, steps;
} shapes[] = {
    {1, 1, 1, 16, 4, 1, 1, 0, 256, 0},          {2, 14, 14, 64, 64, 3, 1, 1, 26, 0},
    {3, 9, 11, 40, 24, 3, 1, 1, 51, 0},         {5, 7, 7, 64, 200, 3, 1, 1, 13, 9},
    {3, 14, 14, 96, 132, 3, 2, 1, 26, 0},       {2, 15, 13, 8, 136, 1, 2, 0, 128, 0},
    {33, 6, 5, 24, 72, 3, 1, 1, 26, 0},         {1, 32, 32, 8, 16, 7, 2, 3, 77, 0},
    {4, 7, 7, 260, 64, 1, 1, 0, 26, -7},        {9, 7, 7, 136, 40, 3, 2, 1, 5, 0},
    {1, 6, 6, 32, 72, 5, 1, 2, 26, 0},          {2, 3, 3, 72, 72, 3, 1, 1, 256, POSITIVE},
    {2, 5, 5, 320, 64, 3, 1, 1, 256, POSITIVE},
};

struct pruned {
    struct problem p;
    uint8_t       *nonzeros;
    int64_t        count;
};

static inline void pruned_close(struct pruned *h) {
    cr_free(h->nonzeros);
    problem_close(&h->p);
}

static inline float positive(void) {
    return (float)(1000 + 600 * draw());
}

static inline bool pruned_open(struct pruned *h, size_t shape) {
    const struct ck_conv c = conv_sized((struct ck_conv){.type   = CK_F32,
                                                         .N      = shapes[shape].N,
                                                         .H      = shapes[shape].H,
                                                         .W      = shapes[shape].W,
                                                         .C      = shapes[shape].C,
                                                         .K      = shapes[shape].K,
                                                         .R      = shapes[shape].R,
                                                         .S      = shapes[shape].R,
                                                         .stride = shapes[shape].stride,
                                                         .pad    = shapes[shape].pad});
    *h                     = (struct pruned){0};
    h->nonzeros            = cr_alloc((size_t)(c.K * c.R * c.S * c.C), 1);
    if (!problem_open(&h->p, &c, CR_F32) || !h->nonzeros) return false;
    float *x = h->p.x, *w = h->p.w;
    for (int64_t i = 0; i < h->p.inputs; i++)
        x[i] = shapes[shape].steps == POSITIVE ? positive()
                                               : ldexpf(x[i], shapes[shape].steps * (int)(i % c.C / CK_WGMMA_SP_CHUNK));
    for (int64_t i = 0; i < h->p.weights; i++) {
        h->nonzeros[i] = (int)(draw_bits() % 256) < shapes[shape].nonzeros;
        w[i]           = !h->nonzeros[i] ? 0 : shapes[shape].steps == POSITIVE ? positive() : (float)draw();
        h->count += h->nonzeros[i];
    }
    return true;
}

/* A filter packed for a plan; false: there is no plan, or no memory, which is reported. */
struct packed {
    struct ck_wgmma_sp_plan plan;
    int64_t                 units;
    uint32_t               *start, *words, *from;
};

static inline int64_t starts_of(const struct packed *f) {
    return f->plan.tile.blocks * f->plan.parts + 1;
}

static inline bool packed_make(struct packed *f, const struct pruned *h, int config, int multiprocessors) {
    if (!ck_wgmma_sp_make_plan(&h->p.conv, h->count, config, CAPABILITY, multiprocessors, &f->plan)) return false;
    f->units             = ck_wgmma_sp_pack(&f->plan, h->nonzeros, NULL, NULL, NULL);
    f->start             = cr_alloc((size_t)starts_of(f), sizeof *f->start);
    f->words             = cr_alloc((size_t)(f->units * CK_WGMMA_SP_WORDS), sizeof *f->words);
    f->from              = cr_alloc((size_t)(f->units * CK_WGMMA_SP_VALUES), sizeof *f->from);
    const bool is_packed = f->start && f->words && f->from &&
                           ck_wgmma_sp_pack(&f->plan, h->nonzeros, f->start, f->words, f->from) == f->units;
    CHECK(is_packed); /* there is a plan: the counting and writing passes agree */
    return is_packed;
}

static inline void packed_free(struct packed *f) {
    cr_free(f->from);
    cr_free(f->words);
    cr_free(f->start);
}

#endif

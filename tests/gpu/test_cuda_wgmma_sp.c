/* tests/gpu/test_cuda_wgmma_sp.c: f32 convolutions with a sparse filter on Hopper's sparse tensor cores: packed units
 * decode to the nonzeros, each weight once, in the stage and at the offset of its tap. A model of the tensor cores'
 * addition shows the error of sums of one sign. Needs no GPU; test_checkops compares the kernels with the reference. */
#include "tests/gpu/wgmma_sp_filters.h"

/* ---- on the host ---- */

/* The 4 bits of a row's metadata for value i of 16, in the order in which the instruction reads operand A. */
static int place_of(const uint32_t *words, int row, int i) {
    return (int)(words[row / 16 * 16 + row % 8 * 2 + i / 8] >> (row % 16 / 8 * 16 + i % 8 * 2) & 3u);
}

/* Input channel of a chunk for value i of a row: of a sparse unit, or of a dense unit, whose 16 values are one half
 * of the chunk. */
static int channel_of(const uint32_t *words, int row, int i) {
    return words[HEAD] & HEAD_PLAIN ? (int)(words[HEAD] % 8 / 2) * 16 + i : i / 2 * 4 + place_of(words, row, i);
}

/* Position of the sum: the units of a block are processed chunk by chunk, phase by phase. */
struct passing {
    int64_t block;
    int     chunk, phase;
};

static void decode_unit(const struct pruned *h, const struct packed *f, int64_t unit, const struct passing *at,
                        uint8_t *seen) {
    const struct ck_conv          *c     = &h->p.conv;
    const struct ck_two_four_plan *tile  = &f->plan.tile;
    const uint32_t                *words = f->words + unit * CK_WGMMA_SP_WORDS;
    for (int row = 0; row < CK_WGMMA_SP_ROWS; row++)
        for (int i = 0; i < CK_WGMMA_SP_CHUNK / 2; i++) {
            const uint32_t from = f->from[unit * CK_WGMMA_SP_VALUES + i / 8 * 512 + row * 8 + i % 8];
            int            turn = 0, phase = 0;
            CHECK(i % 2 == 0 || words[HEAD] & HEAD_PLAIN || place_of(words, row, i - 1) < place_of(words, row, i));
            if (from == UINT32_MAX) continue;
            REQUIRE(from < h->p.weights);
            CHECK_INT(from / c->C / (c->R * c->S), at->block * CK_WGMMA_SP_ROWS + row);
            CHECK_INT(from % c->C, at->chunk * CK_WGMMA_SP_CHUNK + channel_of(words, row, i));
            while (turn < tile->taps && tile->tap[turn] != (int)(from / c->C % (c->R * c->S)))
                phase += (int)(tile->last >> turn++ & 1);
            REQUIRE(turn < tile->taps);
            CHECK_INT(phase, at->phase);
            CHECK_INT(words[HEAD] % HEAD_PLAIN / 8, tile->at[turn]);
            seen[from]++;
        }
}

struct counts {
    int64_t units[2]; /* sparse, dense */
};

static void decode_block(const struct pruned *h, const struct packed *f, int64_t block, uint8_t *seen,
                         struct counts *counts) {
    struct passing at   = {.block = block};
    bool           open = false;
    uint32_t       run = 0, kind = 0;
    const int      parts = f->plan.parts;
    for (int part = 1; part < parts; part++) /* the unit is the first of a stage */
        CHECK(f->words[f->start[block * parts + part] * CK_WGMMA_SP_WORDS + HEAD] >> 30 & 1);
    for (int64_t unit = f->start[block * parts]; unit < f->start[(block + 1) * parts]; unit++) {
        const uint32_t head = f->words[unit * CK_WGMMA_SP_WORDS + HEAD];
        CHECK_INT((head >> 30 & 1) != 0, !open);
        open = !(head >> 31);
        if (run == 0) {
            run  = f->words[unit * CK_WGMMA_SP_WORDS + HEAD + 1];
            kind = head & HEAD_PLAIN;
            CHECK(run >= 1 && run <= CK_WGMMA_SP_CHAIN);
        }
        run--;
        CHECK_INT(head & HEAD_PLAIN, kind); /* units of one sum are of one kind */
        counts->units[kind != 0]++;
        decode_unit(h, f, unit, &at, seen);
        if (open || ++at.phase < f->plan.tile.phases) continue;
        at.phase = 0;
        at.chunk++;
    }
    CHECK(!open && run == 0);
    CHECK_INT(at.chunk, f->plan.tile.chunks); /* each stage has a unit */
}

static void units_decode_to_the_filter(void) {
    struct counts counts = {{0}};
    int           plans  = 0;
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct pruned h;
        REQUIRE(pruned_open(&h, i));
        for (int config = 1; config <= ck_wgmma_sp_configs(); config++) {
            struct packed f;
            if (!packed_make(&f, &h, config, MULTIPROCESSORS)) continue;
            uint8_t *seen = cr_alloc((size_t)h.p.weights, 1);
            REQUIRE(seen);
            for (int64_t block = 0; block < f.plan.tile.blocks; block++) decode_block(&h, &f, block, seen, &counts);
            CHECK(memcmp(seen, h.nonzeros, (size_t)h.p.weights) == 0);
            plans++;
            cr_free(seen);
            packed_free(&f);
        }
        pruned_close(&h);
    }
    CHECK(plans > (int)CR_COUNT(shapes));
    CHECK(counts.units[0] > 0 && counts.units[1] > 0);
}

/* ---- sums of one sign ---- */

/* Addition on the tensor cores: terms are aligned to the largest and truncated one bit after f32's last bit; the sum
 * is truncated to f32 (Fasi et al. 2021 measured this and more bits; one bit is the worst case). */
enum { TERMS = CK_WGMMA_SP_CHUNK / 2 };
static double cut_off(double v, int place) {
    return ldexp(trunc(ldexp(v, -place)), place);
}
static double add_products(double sum, const double *a, const double *b) {
    double largest = fabs(sum), cut = 0;
    int    e;
    for (int i = 0; i < TERMS; i++) largest = fmax(largest, fabs(a[i] * b[i]));
    frexp(largest, &e);
    for (int i = 0; i < TERMS; i++) cut += cut_off(a[i] * b[i], e - 25);
    cut += cut_off(sum, e - 25);
    frexp(cut, &e);
    return cut_off(cut, e - 24);
}

/* A number as the sum of two f16 numbers. */
static void take_apart(double v, double *high, double *low) {
    uint16_t half;
    cr_number_store(CR_F16, &half, 0, v);
    *high = cr_number_load(CR_F16, &half, 0);
    cr_number_store(CR_F16, &half, 0, v - *high);
    *low = cr_number_load(CR_F16, &half, 0);
}

/* Sums of a row of a part of block 0 in the order of the kernel, or all on the tensor cores; x: input of each tap
 * and channel, in the order of the filter. */
static float sum_of_part(const struct pruned *h, const struct packed *f, int part, int row, bool chains,
                         const float *x) {
    const struct ck_conv *c    = &h->p.conv;
    const float          *w    = h->p.w;
    double                sum  = 0;
    float                 sums = 0;
    int64_t               end  = f->start[part]; /* of the units that are summed together */
    for (int64_t unit = f->start[part]; unit < f->start[part + 1]; unit++) {
        double a[2][TERMS] = {{0}}, b[2][TERMS] = {{0}};
        if (unit == end) end = chains ? unit + f->words[unit * CK_WGMMA_SP_WORDS + HEAD + 1] : f->start[part + 1];
        for (int i = 0; i < TERMS; i++) {
            const uint32_t from = f->from[unit * CK_WGMMA_SP_VALUES + i / 8 * 512 + row * 8 + i % 8];
            if (from == UINT32_MAX) continue;
            take_apart((double)w[from] * 16, &a[0][i], &a[1][i]); /* 1600 becomes less than 2^15 */
            take_apart((double)x[from % (c->R * c->S * c->C)] * 4, &b[0][i], &b[1][i]);
        }
        sum = add_products(sum, a[1], b[0]);
        sum = add_products(sum, a[0], b[1]);
        sum = add_products(sum, a[0], b[0]);
        if (unit + 1 == end) sums += (float)sum, sum = 0;
    }
    return sums / 64;
}

static double sum_of_row(const struct pruned *h, const struct packed *f, int row, bool chains, const float *x) {
    float sums = 0;
    for (int part = 0; part < f->plan.parts; part++) sums += sum_of_part(h, f, part, row, chains, x);
    return (double)sums;
}

/* f32's bound: 4 sqrt(terms) half units in the last place of the sum. Without the ends of chains it does not hold. */
static void sums_of_one_sign_are_accurate(void) {
    int plans = 0;
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct pruned h;
        if (shapes[i].steps != POSITIVE) continue;
        REQUIRE(pruned_open(&h, i));
        const int64_t terms = h.p.weights / h.p.conv.K;
        float        *x     = cr_alloc((size_t)terms, sizeof *x);
        REQUIRE(x);
        for (int64_t k = 0; k < terms; k++) x[k] = positive();
        for (int config = 1; config <= ck_wgmma_sp_configs(); config++) {
            struct packed f;
            double        worst[2] = {0, 0}; /* within bounds: with chains, without */
            if (!packed_make(&f, &h, config, MULTIPROCESSORS)) continue;
            for (int row = 0; row < CK_WGMMA_SP_ROWS; row++) {
                double want = 0;
                for (int64_t k = 0; k < terms; k++)
                    want += (double)((const float *)h.p.w)[row * terms + k] * (double)x[k];
                for (int n = 0; n < 2; n++)
                    worst[n] = fmax(worst[n], fabs(sum_of_row(&h, &f, row, n == 0, x) / want - 1) /
                                                  (4 * sqrt((double)terms) * 0x1p-24));
            }
            CHECK(worst[0] < 0.5);
            CHECK(f.plan.parts > 1 || worst[1] > 1);
            plans++;
            packed_free(&f);
        }
        cr_free(x);
        pruned_close(&h);
    }
    CHECK(plans > 0);
}

/* The second worker begins when the first has released `lead` units. It can, if a tile has that many units, which is
 * certain for one per stage, and there is room for one more. */
static void no_plan_deadlocks(void) {
    int leads = 0;
    for (int64_t C = 32; C <= 2048; C *= 2)
        for (int64_t K = 64; K <= 2048; K *= 2)
            for (int R = 1; R <= 3; R += 2)
                for (int config = 1; config <= ck_wgmma_sp_configs(); config++) {
                    const struct ck_conv    c = conv_sized((struct ck_conv){.type   = CK_F32,
                                                                            .N      = 64,
                                                                            .H      = 28,
                                                                            .W      = 28,
                                                                            .C      = C,
                                                                            .K      = K,
                                                                            .R      = R,
                                                                            .S      = R,
                                                                            .stride = 1,
                                                                            .pad    = R / 2});
                    struct ck_wgmma_sp_plan plan;
                    if (!ck_wgmma_sp_make_plan(&c, K * R * R * C / 4, config, CAPABILITY, MULTIPROCESSORS, &plan))
                        continue;
                    const struct ck_two_four_plan *t = &plan.tile;
                    leads += t->lead > 0;
                    CHECK(t->lead <= t->chunks * t->phases && t->lead < t->stages && t->lead < t->ring);
                    CHECK(t->lead == 0 || t->workers == 2);
                }
    CHECK(leads > 0);
}

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(units_decode_to_the_filter), CASE(sums_of_one_sign_are_accurate), CASE(no_plan_deadlocks),
      CASE(nothing_leaks))

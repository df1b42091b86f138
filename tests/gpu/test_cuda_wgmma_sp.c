/* tests/gpu/test_cuda_wgmma_sp.c: f32 convolutions with a sparse filter on Hopper's sparse tensor cores. On the
 * host, without a GPU: packed units decode to the nonzeros, each weight once, in the stage and at the offset of its
 * tap. With a GPU: every tile config against a loop in double, with guard zones around the output, and two bitwise
 * identical runs. A model of the tensor cores' addition shows the error of sums of one sign. */
#include "tests/gpu/wgmma_sp_filters.h"
#include "tests/harness/test_gpu.h"

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
        REQUIRE(pruned_open(&h, i, false));
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
        REQUIRE(pruned_open(&h, i, false));
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

static void unsupported_shapes_have_no_plan(void) {
    const struct ck_conv    good = {.type   = CK_F32,
                                    .R      = 3,
                                    .S      = 3,
                                    .stride = 1,
                                    .pad    = 1,
                                    .N      = 8,
                                    .H      = 14,
                                    .W      = 14,
                                    .C      = 64,
                                    .K      = 64,
                                    .P      = 14,
                                    .Q      = 14};
    struct ck_conv          c    = good;
    struct ck_wgmma_sp_plan plan;
    int                     plans = 0;
    for (int config = 1; config <= ck_wgmma_sp_configs(); config++)
        plans += ck_wgmma_sp_make_plan(&c, 3686, config, CAPABILITY, MULTIPROCESSORS, &plan);
    CHECK(plans > 0);
    CHECK(!ck_wgmma_sp_make_plan(&c, 3686, 0, CAPABILITY, MULTIPROCESSORS, &plan) &&
          !ck_wgmma_sp_make_plan(&c, 3686, ck_wgmma_sp_configs() + 1, CAPABILITY, MULTIPROCESSORS, &plan));
    for (int config = 1; config <= ck_wgmma_sp_configs(); config++) {
        c = good;
        CHECK(!ck_wgmma_sp_make_plan(&c, 3686, config, 80, MULTIPROCESSORS, &plan) &&
              !ck_wgmma_sp_make_plan(&c, 3686, config, 100, MULTIPROCESSORS, &plan));
        c.type = CK_F16;
        CHECK(!ck_wgmma_sp_make_plan(&c, 3686, config, CAPABILITY, MULTIPROCESSORS, &plan));
        c   = good;
        c.C = 62;
        CHECK(!ck_wgmma_sp_make_plan(&c, 3686, config, CAPABILITY, MULTIPROCESSORS, &plan));
        c   = good;
        c.K = 62;
        CHECK(!ck_wgmma_sp_make_plan(&c, 3686, config, CAPABILITY, MULTIPROCESSORS, &plan));
    }
}

/* ---- on the device ---- */

/* While kernels are timed the values of the filter are noise of both signs, as here: the kernel terminates and
 * writes nothing outside y. */
static void end_with_noise(const struct pruned *h, const struct packed *f, void *x, void *words, void *start) {
    const struct problem *p      = &h->p;
    const size_t          halves = ck_wgmma_sp_bytes(&f->plan, f->units) / 2;
    uint16_t             *noise  = cr_alloc(halves, sizeof *noise);
    char                 *got    = cr_alloc((size_t)guarded_bytes(p->outputs, p->dtype), 1);
    void                 *y      = up_guarded(p->outputs, p->dtype), *there;
    struct cudaDeviceProp device;
    REQUIRE(noise && got);
    OK(cudaGetDeviceProperties(&device, 0));
    for (size_t i = 0; i < halves; i++)
        noise[i] = (uint16_t)((draw_bits() & 0x8000) | (0x3800 + (draw_bits() & 0x3ff)));
    there                              = up(noise, (int64_t)halves * 2);
    const struct ck_wgmma_sp_args args = {
        .x      = x,
        .filter = {start, words, there, (const float *)(void *)((char *)there + ck_wgmma_sp_scale_at(f->units))},
        .y      = behind_guard(y, p->dtype)};
    OK(ck_wgmma_sp_conv(&args, &f->plan, device.multiProcessorCount, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(got, y, (size_t)guarded_bytes(p->outputs, p->dtype), cudaMemcpyDeviceToHost));
    CHECK_INT(guards_broken(got, p->outputs, p->dtype), 0);
    cudaFree(y);
    cudaFree(there);
    cr_free(got);
    cr_free(noise);
}

/* Runs one tile config twice and counts it, if it has a plan. */
static void run_config(const struct pruned *h, int config, int *runs) {
    const struct problem *p = &h->p;
    struct cudaDeviceProp device;
    struct packed         f;
    OK(cudaGetDeviceProperties(&device, 0));
    if (device.major * 10 + device.minor != CAPABILITY || getenv("CRESNET_CAPABILITY"))
        SKIP("needs compute capability 9.0");
    if (!packed_make(&f, h, config, device.multiProcessorCount)) return;
    ++*runs;
    void *x = up(p->x, p->inputs * 4), *w = up(p->w, p->weights * 4), *add = up(p->add, p->outputs * 4),
         *bias  = up(p->bias, p->conv.K * 4);
    void *words = up(f.words, f.units * CK_WGMMA_SP_WORDS * 4), *from = up(f.from, f.units * CK_WGMMA_SP_VALUES * 4);
    void *start = up(f.start, starts_of(&f) * 4),
         *y[2]  = {up_guarded(p->outputs, p->dtype), up_guarded(p->outputs, p->dtype)};
    char *units = NULL;
    OK(cudaMalloc((void **)&units, ck_wgmma_sp_bytes(&f.plan, f.units)));
    OK(ck_wgmma_sp_fill(&f.plan, w, from, f.units, units, NULL));
    for (int i = 0; i < 2; i++) {
        const struct ck_wgmma_sp_args args = {
            .x      = x,
            .filter = {start, words, units, (const float *)(void *)(units + ck_wgmma_sp_scale_at(f.units))},
            .bias   = p->fused ? bias : NULL,
            .add    = p->fused ? add : NULL,
            .relu   = p->fused,
            .y      = behind_guard(y[i], p->dtype)};
        OK(ck_wgmma_sp_conv(&args, &f.plan, device.multiProcessorCount, NULL));
        problem_check(p, y[i], 4e-6, config);
    }
    end_with_noise(h, &f, x, words, start);
    void *first = cr_alloc((size_t)p->outputs, 4), *second = cr_alloc((size_t)p->outputs, 4);
    REQUIRE(first && second);
    OK(cudaMemcpy(first, behind_guard(y[0], p->dtype), (size_t)p->outputs * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(second, behind_guard(y[1], p->dtype), (size_t)p->outputs * 4, cudaMemcpyDeviceToHost));
    CHECK(memcmp(first, second, (size_t)p->outputs * 4) == 0);
    cr_free(first);
    cr_free(second);
    void *const memory[] = {x, w, add, bias, words, from, start, units, y[0], y[1]};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cudaFree(memory[i]);
    packed_free(&f);
}

static void kernels_equal_the_reference(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int fused = 0; fused < 2; fused++) {
            struct pruned h;
            int           runs = 0;
            REQUIRE(pruned_open(&h, i, fused));
            for (int config = 1; config <= ck_wgmma_sp_configs(); config++) run_config(&h, config, &runs);
            CHECK(runs > 0 || test_skipped_); /* every shape here has a plan for some tile config */
            pruned_close(&h);
        }
}

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(units_decode_to_the_filter), CASE(sums_of_one_sign_are_accurate), CASE(no_plan_deadlocks),
      CASE(unsupported_shapes_have_no_plan), CASE(kernels_equal_the_reference), CASE(nothing_leaks))

/* test_cuda_nm.c: convolutions with 2:4 filters on the sparse tensor cores. On the host, without a GPU: packed units are decoded plainly
 * and must give the filter back, and the plans' arithmetic is followed, which input each entry finds in the staged tile. With a GPU: every
 * way of cutting against a loop in double, with zones around the output that must stay as they were. */
#include "dtype.h"
#include "sparse.h"
#include "sparse_nm.h"
#include "test_gpu.h"

enum { CAPABILITY = 90, MULTIPROCESSORS = 132, GUARD = 512, COLUMNS = 16 };

static const struct {
    int64_t N, H, W, C, K;
    int     R, S, stride, pad;
} shapes[] = {
    {1, 1, 1, 8, 8, 1, 1, 1, 0},     {2, 9, 11, 40, 24, 3, 3, 1, 1}, {3, 14, 14, 40, 72, 3, 3, 2, 1}, {5, 7, 7, 64, 80, 3, 3, 1, 1},
    {2, 15, 13, 8, 136, 1, 1, 2, 0}, {1, 32, 32, 8, 16, 7, 7, 2, 3}, {4, 7, 7, 104, 64, 1, 1, 1, 0},  {1, 10, 6, 24, 8, 5, 3, 3, 2},
    {2, 4, 90, 16, 16, 3, 5, 1, 0},  {1, 8, 8, 16, 8, 1, 1, 1, 2},   {1, 5, 9, 32, 8, 2, 2, 3, 1},    {33, 6, 5, 24, 72, 3, 3, 1, 1},
    {3, 14, 14, 64, 64, 3, 3, 1, 1}, {9, 7, 7, 136, 40, 3, 3, 2, 1},
};
static const enum cr_dtype dtypes[] = {[CK_F32] = CR_F32, [CK_F16] = CR_F16, [CK_BF16] = CR_BF16};

static uint32_t seed = 1;
static uint32_t draw_bits(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static double draw(void) { return (double)draw_bits() / (1 << 23) - 1; }

/* One case: 16-bit operands on the host, what each output should be, and the sum of absolute terms. */
struct problem {
    struct ck_conv conv;
    enum cr_dtype  dtype;
    bool           fused; /* with bias, add and ReLU */
    int64_t        inputs, outputs, weights, filled; /* channels, filled up */
    uint16_t      *x, *w, *add, *places;
    float         *bias;
    double        *want, *size;
};

static uint16_t *draw_many(int64_t count, enum cr_dtype dtype) {
    uint16_t *x = cr_alloc((size_t)count, sizeof *x);
    for (int64_t i = 0; x && i < count; i++) cr_number_store(dtype, x, i, draw());
    return x;
}

static void expect(struct problem *p) {
    const struct ck_conv *c = &p->conv;
    for (int64_t o = 0; o < p->outputs; o++) {
        const int64_t k = o % c->K, q = o / c->K % c->Q, row = o / c->K / c->Q % c->P, n = o / c->K / c->Q / c->P;
        double        sum = p->fused ? (double)p->bias[k] + cr_number_load(p->dtype, p->add, o) : 0, size = p->fused ? 2 : 0;
        for (int64_t tap = 0; tap < c->R * c->S; tap++) {
            const int64_t h = row * c->stride - c->pad + tap / c->S, v = q * c->stride - c->pad + tap % c->S;
            for (int64_t i = 0; h >= 0 && h < c->H && v >= 0 && v < c->W && i < c->C; i++) {
                const double term = cr_number_load(p->dtype, p->x, ((n * c->H + h) * c->W + v) * c->C + i) *
                                    cr_number_load(p->dtype, p->w, (k * c->R * c->S + tap) * c->C + i);
                sum += term;
                size += fabs(term);
            }
        }
        p->want[o] = p->fused && sum < 0 ? 0 : sum;
        p->size[o] = size;
    }
}

/* Of each four channels two are kept, or one. */
static bool draw_filter(struct problem *p) {
    const int64_t taps = p->conv.K * p->conv.R * p->conv.S;
    uint16_t     *filled = cr_alloc((size_t)(taps * p->filled), sizeof *filled), *values = cr_alloc((size_t)(taps * p->filled / 2), sizeof *values);
    bool          done   = filled && values;
    for (int64_t i = 0; done && i < p->weights; i += 4)
        for (int j = 0; j < 2; j++) {
            const int64_t at = i + draw_bits() % 4;
            cr_number_store(p->dtype, p->w, at, draw());
            filled[at / p->conv.C * p->filled + at % p->conv.C] = p->w[at];
        }
    done = done && cr_sparse_24_encode(filled, taps, p->filled, values, p->places);
    cr_free(values);
    cr_free(filled);
    return done;
}

static void problem_free(struct problem *p) {
    void *const memory[] = {p->x, p->w, p->add, p->places, p->bias, p->want, p->size};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cr_free(memory[i]);
}

static bool problem_make(struct problem *p, size_t shape, enum ck_type type, bool fused) {
    struct ck_conv c = {.type = type, .N = shapes[shape].N, .H = shapes[shape].H, .W = shapes[shape].W, .C = shapes[shape].C,
                        .K = shapes[shape].K, .R = shapes[shape].R, .S = shapes[shape].S, .stride = shapes[shape].stride,
                        .pad = shapes[shape].pad};
    c.P = (c.H + 2 * c.pad - c.R) / c.stride + 1;
    c.Q = (c.W + 2 * c.pad - c.S) / c.stride + 1;
    *p  = (struct problem){.conv = c, .dtype = dtypes[type], .fused = fused, .inputs = c.N * c.H * c.W * c.C, .outputs = c.N * c.P * c.Q * c.K,
                           .weights = c.K * c.R * c.S * c.C, .filled = (c.C + COLUMNS - 1) / COLUMNS * COLUMNS};
    p->x      = draw_many(p->inputs, p->dtype);
    p->add    = draw_many(p->outputs, p->dtype);
    p->w      = cr_alloc((size_t)p->weights, sizeof *p->w);
    p->places = cr_alloc((size_t)(c.K * c.R * c.S * p->filled / COLUMNS), sizeof *p->places);
    p->bias   = cr_alloc((size_t)c.K, sizeof *p->bias);
    p->want   = cr_alloc((size_t)p->outputs, sizeof *p->want);
    p->size   = cr_alloc((size_t)p->outputs, sizeof *p->size);
    if (!p->x || !p->w || !p->add || !p->places || !p->bias || !p->want || !p->size || !draw_filter(p)) return false;
    for (int64_t k = 0; k < c.K; k++) p->bias[k] = (float)draw();
    expect(p);
    return true;
}

/* A filter as packed for a plan. */
struct packed {
    struct ck_nm_plan plan;
    uint32_t         *words, *from;
};

static bool packed_make(struct packed *f, const struct problem *p, int way, int multiprocessors) {
    if (!ck_nm_make(&p->conv, way, CAPABILITY, multiprocessors, &f->plan)) return false;
    f->words = cr_alloc((size_t)(ck_nm_units(&f->plan) * CK_NM_WORDS), sizeof *f->words);
    f->from  = cr_alloc((size_t)(ck_nm_units(&f->plan) * CK_NM_UNIT), sizeof *f->from);
    if (!f->words || !f->from) return false;
    ck_nm_pack(&p->conv, &f->plan, p->places, f->words, f->from);
    return true;
}

static void packed_free(struct packed *f) {
    cr_free(f->from);
    cr_free(f->words);
}

/* Kept value i of a row of a unit: where it comes from, and its channel among the unit's 64. Operand A is 8x8 matrices down the rows; of
 * metadata a warp has 32 words for its 16 rows, as of cr_sparse_24_word, with lanes 0 and 1 of four for the first 32 channels. */
static uint32_t kept_from(const struct packed *f, int64_t unit, int row, int i) { return f->from[unit * CK_NM_UNIT + i / 8 * 512 + row * 8 + i % 8]; }
static int      kept_channel(const struct packed *f, int64_t unit, int row, int i) {
    const uint32_t word = f->words[unit * CK_NM_WORDS + row / 16 * 32 + row % 8 * 4 + i / 8];
    return i / 2 * 4 + (int)(word >> (row % 16 / 8 * 16 + i % 8 * 2) & 3u);
}
static int64_t first_channel(const struct packed *f, int64_t unit) {
    return unit / f->plan.taps % f->plan.chunks * CK_NM_CHUNK;
}
static int     tap_of(const struct packed *f, int64_t unit) { return f->plan.tap[unit % f->plan.taps]; }
static int64_t block_of(const struct packed *f, int64_t unit) { return unit / f->plan.taps / f->plan.chunks; }

/* ---- on the host ---- */

static void decode(const struct problem *p, const struct packed *f, uint16_t *again, uint8_t *seen) {
    const struct ck_conv *c = &p->conv;
    for (int64_t unit = 0; unit < ck_nm_units(&f->plan); unit++)
        for (int row = 0; row < CK_NM_ROWS; row++)
            for (int i = 0; i < CK_NM_CHUNK / 2; i++) {
                const uint32_t from = kept_from(f, unit, row, i);
                const int64_t  k = block_of(f, unit) * CK_NM_ROWS + row, channel = first_channel(f, unit) + kept_channel(f, unit, row, i);
                if (from == UINT32_MAX) continue;
                REQUIRE(k < c->K && channel < c->C && from < p->weights);
                const int64_t at = (k * c->R * c->S + tap_of(f, unit)) * c->C + channel;
                again[at]        = p->w[from];
                CHECK_INT(from, at);
                CHECK_INT(seen[at]++, 0);
            }
}

/* Words as the PTX manual has them, where a whole 16 rows x 32 channels are of the filter. */
static void compare_words(const struct problem *p, const struct packed *f) {
    const struct ck_conv *c = &p->conv;
    for (int64_t i = 0; i < ck_nm_units(&f->plan) * CK_NM_WORDS; i++) {
        const int64_t unit = i / CK_NM_WORDS, k = block_of(f, unit) * CK_NM_ROWS + i % CK_NM_WORDS / 32 * 16;
        const int     lane = (int)(i % 32), half = lane % 4 / 2;
        const int64_t channel = first_channel(f, unit) + half * 32;
        if (k + 16 > c->K || channel + 32 > c->C) continue;
        CHECK_INT(f->words[i], cr_sparse_24_word(p->places, c->R * c->S * p->filled, k, tap_of(f, unit) * p->filled + channel, lane));
    }
}

static void units_give_the_filter_back(void) {
    int plans = 0;
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct problem p;
        REQUIRE(problem_make(&p, i, CK_F16, false));
        for (int way = 1; way <= ck_nm_ways(); way++) {
            struct packed f;
            if (!packed_make(&f, &p, way, MULTIPROCESSORS)) continue;
            uint16_t *again = cr_alloc((size_t)p.weights, sizeof *again);
            uint8_t  *seen  = cr_alloc((size_t)p.weights, 1);
            REQUIRE(again && seen);
            decode(&p, &f, again, seen);
            CHECK(memcmp(again, p.w, (size_t)p.weights * sizeof *again) == 0);
            compare_words(&p, &f);
            plans++;
            cr_free(seen);
            cr_free(again);
            packed_free(&f);
        }
        problem_free(&p);
    }
    CHECK(plans > (int)CR_COUNT(shapes));
}

/* The input in position `at` of a stage, and channel: as a box of the phase's pixels puts it there, 0 beside the picture and behind the box. */
static double staged(const struct problem *p, const struct ck_nm_plan *plan, int64_t tile, int phase, int64_t at, int64_t channel) {
    const struct ck_conv *c   = &p->conv;
    const int64_t         row = at / plan->images / plan->pitch, box_h = tile % plan->strips * plan->TP + plan->low_r + row;
    const int64_t         box_w = plan->low_s + at / plan->images % plan->pitch, n = tile / plan->strips * plan->images + at % plan->images;
    const int64_t         h = box_h * c->stride + plan->phase_r[phase], w = box_w * c->stride + plan->phase_s[phase];
    CHECK(at < plan->stage_bytes / (CK_NM_CHUNK * 2));
    if (row >= plan->rows || n >= c->N || box_h < 0 || h >= c->H || box_w < 0 || w >= c->W || channel >= c->C) return 0;
    return cr_number_load(p->dtype, p->x, ((n * c->H + h) * c->W + w) * c->C + channel);
}

/* Output of channel k in column `column` of a tile: what the units' instructions sum. */
static double summed(const struct problem *p, const struct packed *f, int64_t tile, int column, int64_t k) {
    const int64_t each = (int64_t)f->plan.taps * f->plan.chunks, first = k / CK_NM_ROWS * each;
    double        sum   = 0;
    int           phase = 0;
    for (int64_t unit = first; unit < first + each; unit++) {
        const int turn = (int)(unit % f->plan.taps);
        phase          = turn ? phase + (int)(f->plan.first >> turn & 1) : 0;
        for (int i = 0; i < CK_NM_CHUNK / 2; i++) {
            const uint32_t from = kept_from(f, unit, (int)(k % CK_NM_ROWS), i);
            if (from == UINT32_MAX) continue;
            const int64_t channel = first_channel(f, unit) + kept_channel(f, unit, (int)(k % CK_NM_ROWS), i);
            sum += cr_number_load(p->dtype, p->w, from) * staged(p, &f->plan, tile, phase, f->plan.at[turn] + column, channel);
        }
    }
    return sum;
}

static void follow_column(const struct problem *p, const struct packed *f, int64_t tile, int column, uint8_t *seen) {
    const struct ck_conv *c   = &p->conv;
    const int64_t         row = column / f->plan.images / f->plan.pitch, q = column / f->plan.images % f->plan.pitch;
    const int64_t         n = tile / f->plan.strips * f->plan.images + column % f->plan.images, P = tile % f->plan.strips * f->plan.TP + row;
    if (row >= f->plan.TP || q >= c->Q || n >= c->N || P >= c->P) return;
    for (int64_t k = 0; k < c->K; k++) {
        const int64_t o = ((n * c->P + P) * c->Q + q) * c->K + k;
        CHECK_NEAR(summed(p, f, tile, column, k), p->want[o], 1e-9 * (p->size[o] + 1e-3));
        seen[o]++;
    }
}

static void plans_find_every_input(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct problem p;
        REQUIRE(problem_make(&p, i, i % 2 ? CK_F16 : CK_BF16, false));
        for (int way = 1; way <= ck_nm_ways(); way++) {
            struct packed f;
            if (!packed_make(&f, &p, way, MULTIPROCESSORS)) continue;
            uint8_t *seen = cr_alloc((size_t)p.outputs, 1);
            REQUIRE(seen);
            for (int64_t at = 0; at < f.plan.tiles * f.plan.columns; at++)
                follow_column(&p, &f, at / f.plan.columns, (int)(at % f.plan.columns), seen);
            for (int64_t o = 0; o < p.outputs; o++) CHECK_INT(seen[o], 1);
            cr_free(seen);
            packed_free(&f);
        }
        problem_free(&p);
    }
}

static void what_has_no_plan(void) {
    const struct ck_conv good = {.type = CK_F16, .R = 3, .S = 3, .stride = 1, .pad = 1, .N = 8, .H = 14, .W = 14, .C = 64, .K = 64, .P = 14, .Q = 14};
    struct ck_conv       c    = good;
    struct ck_nm_plan    plan;
    CHECK(ck_nm_make(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    CHECK(!ck_nm_make(&c, 0, CAPABILITY, MULTIPROCESSORS, &plan) && !ck_nm_make(&c, ck_nm_ways() + 1, CAPABILITY, MULTIPROCESSORS, &plan));
    CHECK(!ck_nm_make(&c, 1, 80, MULTIPROCESSORS, &plan) && !ck_nm_make(&c, 1, 100, MULTIPROCESSORS, &plan));
    c.type = CK_F32;
    CHECK(!ck_nm_make(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    c   = good;
    c.C = 60;
    CHECK(!ck_nm_make(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    c   = good;
    c.K = 4;
    CHECK(!ck_nm_make(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
}

/* ---- on the device ---- */

#define OK(call) REQUIRE((call) == cudaSuccess)

static void *up(const void *host, int64_t bytes) {
    void *device = NULL;
    if (cudaMalloc(&device, (size_t)bytes) == cudaSuccess) (void)cudaMemcpy(device, host, (size_t)bytes, cudaMemcpyHostToDevice);
    return device;
}

static void compare(const struct problem *p, const uint16_t *y, int way) {
    const double step  = p->dtype == CR_F16 ? 0x1p-11 : 0x1p-8;
    int64_t      wrong = 0, guards = 0;
    for (int64_t o = 0; o < p->outputs; o++)
        wrong += !(fabs(cr_number_load(p->dtype, y, GUARD + o) - p->want[o]) <= step * fabs(p->want[o]) + 4e-6 * (p->size[o] + 1e-2));
    for (int64_t i = 0; i < GUARD; i++) guards += y[i] != 0x3c3c || y[GUARD + p->outputs + i] != 0x3c3c;
    if (wrong || guards) TEST_FAIL_("way %d, %s, C %lld K %lld: %lld wrong, %lld guards", way, cr_dtype_name(p->dtype), (long long)p->conv.C,
                                    (long long)p->conv.K, (long long)wrong, (long long)guards);
}

/* Runs one way, where there is a plan for it. */
static void run_way(const struct problem *p, int way) {
    const int64_t         bytes = (p->outputs + 2 * GUARD) * 2;
    struct cudaDeviceProp device;
    struct packed         f;
    OK(cudaGetDeviceProperties(&device, 0));
    if (device.major * 10 + device.minor != CAPABILITY) SKIP("needs compute capability 9.0");
    if (!packed_make(&f, p, way, device.multiProcessorCount)) return;
    const int64_t units = ck_nm_units(&f.plan);
    void *x = up(p->x, p->inputs * 2), *w = up(p->w, p->weights * 2), *add = up(p->add, p->outputs * 2), *bias = up(p->bias, p->conv.K * 4);
    void *words = up(f.words, units * CK_NM_WORDS * 4), *from = up(f.from, units * CK_NM_UNIT * 4), *values = NULL, *y = NULL;
    OK(cudaMalloc(&values, (size_t)units * CK_NM_UNIT * 2));
    OK(cudaMalloc(&y, (size_t)bytes));
    OK(cudaMemset(y, 0x3c, (size_t)bytes));
    OK(ck_nm_gather(w, from, units * CK_NM_UNIT, values, NULL));
    const struct ck_nm_args args = {.conv = p->conv, .x = x, .values = values, .places = words, .bias = p->fused ? bias : NULL,
                                    .add = p->fused ? add : NULL, .relu = p->fused, .y = (uint16_t *)y + GUARD};
    OK(ck_nm_conv(&args, &f.plan, device.multiProcessorCount, NULL));
    uint16_t *got = cr_alloc((size_t)bytes, 1);
    REQUIRE(got);
    OK(cudaMemcpy(got, y, (size_t)bytes, cudaMemcpyDeviceToHost));
    compare(p, got, way);
    void *const memory[] = {x, w, add, bias, words, from, values, y};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cudaFree(memory[i]);
    cr_free(got);
    packed_free(&f);
}

static void kernels_equal_the_loop(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (enum ck_type type = CK_F16; type <= CK_BF16; type++)
            for (int fused = 0; fused < 2; fused++) {
                struct problem p;
                REQUIRE(problem_make(&p, i, type, fused));
                for (int way = 1; way <= ck_nm_ways(); way++) run_way(&p, way);
                problem_free(&p);
            }
}

static void leaves_nothing(void) { CHECK_INT(cr_alloc_live(), 0); }

TESTS(CASE(units_give_the_filter_back), CASE(plans_find_every_input), CASE(what_has_no_plan), CASE(kernels_equal_the_loop), CASE(leaves_nothing))

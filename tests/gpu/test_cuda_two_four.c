/* tests/gpu/test_cuda_two_four.c: convolutions with 2:4 filters on the sparse tensor cores. On the host, without a
 * GPU: packed units decode to the filter, and each entry finds its input in the staged tile. With a GPU: every tile
 * config against a loop in double, with guard zones around the output. */
#include "tests/gpu/two_four_filters.h"
#include "tests/harness/test_gpu.h"

/* ---- on the host ---- */

static void decode(const struct problem *p, const struct packed *f, uint16_t *again, uint8_t *seen) {
    const struct ck_conv *c = &p->conv;
    for (int64_t unit = 0; unit < ck_two_four_units(&f->plan); unit++)
        for (int row = 0; row < CK_TWO_FOUR_ROWS; row++)
            for (int i = 0; i < CK_TWO_FOUR_CHUNK / 2; i++) {
                const uint32_t from   = kept_from(f, unit, row, i);
                const int64_t  k      = block_of(f, unit) * CK_TWO_FOUR_ROWS + row,
                              channel = first_channel(f, unit) + kept_channel(f, unit, row, i);
                if (from == UINT32_MAX) continue;
                REQUIRE(k < c->K && channel < c->C && from < p->weights);
                const int64_t at = (k * c->R * c->S + tap_of(f, unit)) * c->C + channel;
                again[at]        = ((const uint16_t *)p->w)[from];
                CHECK_INT(from, at);
                CHECK_INT(seen[at]++, 0);
            }
}

/* Words as in the PTX manual, where 16 rows x 32 channels are inside the filter. */
static void compare_words(const struct halved *h, const struct packed *f) {
    const struct ck_conv *c = &h->p.conv;
    for (int64_t i = 0; i < ck_two_four_units(&f->plan) * CK_TWO_FOUR_WORDS; i++) {
        const int64_t unit   = i / CK_TWO_FOUR_WORDS,
                      k      = block_of(f, unit) * CK_TWO_FOUR_ROWS + i % CK_TWO_FOUR_WORDS / 32 * 16;
        const int     thread = (int)(i % 32), half = thread % 4 / 2;
        const int64_t channel = first_channel(f, unit) + half * 32;
        if (k + 16 > c->K || channel + 32 > c->C) continue;
        CHECK_INT(f->words[i],
                  sparse_24_word(h->places, c->R * c->S * h->filled, k, tap_of(f, unit) * h->filled + channel, thread));
    }
}

static void units_decode_to_the_filter(void) {
    int plans = 0;
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct halved h;
        REQUIRE(halved_open(&h, i, CK_F16, false));
        for (int config = 1; config <= ck_two_four_configs(); config++) {
            struct packed f;
            if (!packed_make(&f, &h, config, MULTIPROCESSORS)) continue;
            uint16_t *again = cr_alloc((size_t)h.p.weights, sizeof *again);
            uint8_t  *seen  = cr_alloc((size_t)h.p.weights, 1);
            REQUIRE(again && seen);
            decode(&h.p, &f, again, seen);
            CHECK(memcmp(again, h.p.w, (size_t)h.p.weights * sizeof *again) == 0);
            compare_words(&h, &f);
            plans++;
            cr_free(seen);
            cr_free(again);
            packed_free(&f);
        }
        halved_close(&h);
    }
    CHECK(plans > (int)CR_COUNT(shapes));
}

/* The input at position `at` of a stage, and its channel: as a box of the phase's pixels stores it; 0 outside the
 * image and after the box. */
static double staged(const struct problem *p, const struct ck_two_four_plan *plan, int64_t tile, int phase, int64_t at,
                     int64_t channel) {
    const struct ck_conv *c = &p->conv;
    const int64_t row = at / plan->images / plan->pitch, box_h = tile % plan->strips * plan->TP + plan->low_r + row;
    const int64_t box_w = plan->low_s + at / plan->images % plan->pitch,
                  n     = tile / plan->strips * plan->images + at % plan->images;
    const int64_t h = box_h * c->stride + plan->phase_r[phase], w = box_w * c->stride + plan->phase_s[phase];
    CHECK(at < plan->stage_bytes / (CK_TWO_FOUR_CHUNK * 2));
    if (row >= plan->rows || n >= c->N || box_h < 0 || h >= c->H || box_w < 0 || w >= c->W || channel >= c->C) return 0;
    return cr_number_load(p->dtype, p->x, ((n * c->H + h) * c->W + w) * c->C + channel);
}

/* Output of channel k in column `column` of a tile: the sum of the units' instructions. */
static double summed(const struct problem *p, const struct packed *f, int64_t tile, int column, int64_t k) {
    const int64_t each = (int64_t)f->plan.taps * f->plan.chunks, first = k / CK_TWO_FOUR_ROWS * each;
    double        sum   = 0;
    int           phase = 0;
    for (int64_t unit = first; unit < first + each; unit++) {
        const int turn = (int)(unit % f->plan.taps);
        phase          = turn ? phase + (int)(f->plan.first >> turn & 1) : 0;
        for (int i = 0; i < CK_TWO_FOUR_CHUNK / 2; i++) {
            const uint32_t from = kept_from(f, unit, (int)(k % CK_TWO_FOUR_ROWS), i);
            if (from == UINT32_MAX) continue;
            const int64_t channel = first_channel(f, unit) + kept_channel(f, unit, (int)(k % CK_TWO_FOUR_ROWS), i);
            sum += cr_number_load(p->dtype, p->w, from) *
                   staged(p, &f->plan, tile, phase, f->plan.at[turn] + column, channel);
        }
    }
    return sum;
}

static void follow_column(const struct problem *p, const struct packed *f, int64_t tile, int column, uint8_t *seen) {
    const struct ck_conv *c   = &p->conv;
    const int64_t         row = column / f->plan.images / f->plan.pitch, q = column / f->plan.images % f->plan.pitch;
    const int64_t         n = tile / f->plan.strips * f->plan.images + column % f->plan.images,
                  P         = tile % f->plan.strips * f->plan.TP + row;
    if (row >= f->plan.TP || q >= c->Q || n >= c->N || P >= c->P) return;
    for (int64_t k = 0; k < c->K; k++) {
        const int64_t o = ((n * c->P + P) * c->Q + q) * c->K + k;
        CHECK_NEAR(summed(p, f, tile, column, k), p->want[o], 1e-9 * (p->size[o] + 1e-3));
        seen[o]++;
    }
}

static void plans_find_every_input(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        struct halved h;
        REQUIRE(halved_open(&h, i, i % 2 ? CK_F16 : CK_BF16, false));
        for (int config = 1; config <= ck_two_four_configs(); config++) {
            struct packed f;
            if (!packed_make(&f, &h, config, MULTIPROCESSORS)) continue;
            uint8_t *seen = cr_alloc((size_t)h.p.outputs, 1);
            REQUIRE(seen);
            for (int64_t at = 0; at < f.plan.tiles * f.plan.columns; at++)
                follow_column(&h.p, &f, at / f.plan.columns, (int)(at % f.plan.columns), seen);
            for (int64_t o = 0; o < h.p.outputs; o++) CHECK_INT(seen[o], 1);
            cr_free(seen);
            packed_free(&f);
        }
        halved_close(&h);
    }
}

static void unsupported_shapes_have_no_plan(void) {
    const struct ck_conv    good = {.type   = CK_F16,
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
    struct ck_two_four_plan plan;
    CHECK(ck_two_four_make_plan(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    CHECK(!ck_two_four_make_plan(&c, 0, CAPABILITY, MULTIPROCESSORS, &plan) &&
          !ck_two_four_make_plan(&c, ck_two_four_configs() + 1, CAPABILITY, MULTIPROCESSORS, &plan));
    CHECK(!ck_two_four_make_plan(&c, 1, 80, MULTIPROCESSORS, &plan) &&
          !ck_two_four_make_plan(&c, 1, 100, MULTIPROCESSORS, &plan));
    c.type = CK_F32;
    CHECK(!ck_two_four_make_plan(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    c   = good;
    c.C = 60;
    CHECK(!ck_two_four_make_plan(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
    c   = good;
    c.K = 4;
    CHECK(!ck_two_four_make_plan(&c, 1, CAPABILITY, MULTIPROCESSORS, &plan));
}

/* ---- synchronisation ---- */

/* Shapes of ResNet-50. */
static const struct {
    int64_t H, C, K;
    int     R, stride;
} layers[] = {
    {56, 64, 64, 1, 1},   {56, 64, 64, 3, 1},    {56, 64, 256, 1, 1},   {56, 256, 64, 1, 1},   {56, 256, 128, 1, 1},
    {56, 128, 128, 3, 2}, {28, 128, 512, 1, 1},  {56, 256, 512, 1, 2},  {28, 512, 128, 1, 1},  {28, 128, 128, 3, 1},
    {28, 512, 256, 1, 1}, {28, 256, 256, 3, 2},  {14, 256, 1024, 1, 1}, {28, 512, 1024, 1, 2}, {14, 1024, 256, 1, 1},
    {14, 256, 256, 3, 1}, {14, 1024, 512, 1, 1}, {14, 512, 512, 3, 2},  {7, 512, 2048, 1, 1},  {14, 1024, 2048, 1, 2},
    {7, 2048, 512, 1, 1}, {7, 512, 512, 3, 1},
};
static const int64_t batches[] = {1, 32, 256};

static struct ck_conv layer_of(size_t layer, int64_t batch) {
    const int64_t side = layers[layer].H;
    return conv_sized((struct ck_conv){.type   = CK_F16,
                                       .N      = batch,
                                       .H      = side,
                                       .W      = side,
                                       .C      = layers[layer].C,
                                       .K      = layers[layer].K,
                                       .R      = layers[layer].R,
                                       .S      = layers[layer].R,
                                       .stride = layers[layer].stride,
                                       .pad    = layers[layer].R / 2});
}

/* Whether two tiles of a block terminate under the protocol of the kernel: the loader fills a stage that both
 * workers have released; a worker starts a unit whose stage is filled, and releases a unit when two later units are
 * in flight or at the end of its tile; the second worker begins when the first has released `lead` units. */
static bool comes_to_an_end(const struct ck_two_four_plan *p) {
    const int all = p->taps * p->chunks;
    /* units, except filled and phases_back: stages */
    int filled = 0, taken[2] = {0}, back[2] = {0}, phases_back[2] = {0};
    for (bool moved = true; moved && back[p->workers - 1] < 2 * all;) {
        moved           = false;
        const int least = p->workers == 2 && phases_back[1] < phases_back[0] ? phases_back[1] : phases_back[0];
        if (filled < 2 * p->chunks * p->phases && filled - least < p->stages) filled++, moved = true;
        for (int w = 0; w < p->workers; w++) {
            if (w == 1 && back[0] < p->lead) continue;
            int phase = 0; /* of the next unit, counted from the beginning */
            for (int i = 0; i < taken[w]; i++) phase += (int)(p->last >> i % all % p->taps & 1);
            if (taken[w] < 2 * all && phase < filled) taken[w]++, moved = true;
            const int held = taken[w] % all == 0 ? 0 : 2;
            for (; back[w] < taken[w] - held; back[w]++)
                phases_back[w] += (int)(p->last >> back[w] % all % p->taps & 1), moved = true;
        }
    }
    return back[0] == 2 * all && back[p->workers - 1] == 2 * all;
}

static void no_plan_deadlocks(void) {
    struct ck_two_four_plan plan;
    int                     plans = 0;
    for (size_t l = 0; l < CR_COUNT(layers); l++)
        for (size_t b = 0; b < CR_COUNT(batches); b++)
            for (int config = 1; config <= ck_two_four_configs(); config++) {
                const struct ck_conv c = layer_of(l, batches[b]);
                if (!ck_two_four_make_plan(&c, config, CAPABILITY, MULTIPROCESSORS, &plan)) continue;
                CHECK(comes_to_an_end(&plan));
                plans++;
                if (plan.workers < 2) continue;
                if (plan.taps == 1 && plan.chunks > plan.stages) { /* the first worker holds two of its stages */
                    plan.lead = plan.stages - 1;
                    CHECK(!comes_to_an_end(&plan));
                }
                plan.lead =
                    2 * plan.taps *
                    /* a second worker that waits for all units of both tiles: only if they all fit in the stages */
                    plan.chunks;
                CHECK(comes_to_an_end(&plan) == (2 * plan.chunks * plan.phases <= plan.stages));
            }
    CHECK(plans > 200);
}

/* ---- on the device ---- */

/* Runs one tile config, if it has a plan. */
static void run_config(const struct halved *h, int config) {
    const struct problem *p = &h->p;
    struct cudaDeviceProp device;
    struct packed         f;
    OK(cudaGetDeviceProperties(&device, 0));
    if (device.major * 10 + device.minor != CAPABILITY || getenv("CRESNET_CAPABILITY"))
        SKIP("needs compute capability 9.0");
    if (!packed_make(&f, h, config, device.multiProcessorCount)) return;
    const int64_t units = ck_two_four_units(&f.plan);
    void         *x = up(p->x, p->inputs * 2), *w = up(p->w, p->weights * 2), *add = up(p->add, p->outputs * 2),
         *bias  = up(p->bias, p->conv.K * 4);
    void *words = up(f.words, units * CK_TWO_FOUR_WORDS * 4), *from = up(f.from, units * CK_TWO_FOUR_UNIT * 4),
         *values = NULL;
    void *y      = up_guarded(p->outputs, p->dtype);
    OK(cudaMalloc(&values, (size_t)units * CK_TWO_FOUR_UNIT * 2));
    OK(ck_two_four_gather(w, from, units * CK_TWO_FOUR_UNIT, values, NULL));
    const struct ck_two_four_args args = {.conv   = p->conv,
                                          .x      = x,
                                          .values = values,
                                          .places = words,
                                          .bias   = p->fused ? bias : NULL,
                                          .add    = p->fused ? add : NULL,
                                          .relu   = p->fused,
                                          .y      = behind_guard(y, p->dtype)};
    OK(ck_two_four_conv(&args, &f.plan, device.multiProcessorCount, NULL));
    problem_check(p, y, 4e-6, config);
    void *const memory[] = {x, w, add, bias, words, from, values, y};
    for (size_t i = 0; i < CR_COUNT(memory); i++) cudaFree(memory[i]);
    packed_free(&f);
}

/* Large batches of the network's layers on zeros: each tile config terminates and writes zeros. */
static void layers_of_a_network_terminate(void) {
    NEED_GPU();
    struct cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    if (device.major * 10 + device.minor != CAPABILITY || getenv("CRESNET_CAPABILITY"))
        SKIP("needs compute capability 9.0");
    for (size_t l = 0; l < CR_COUNT(layers); l++) {
        const struct ck_conv c = layer_of(l, 256);
        const size_t x_bytes = (size_t)(c.N * c.H * c.W * c.C) * 2, y_bytes = (size_t)(c.N * c.P * c.Q * c.K) * 2;
        struct ck_two_four_plan plan;
        void                   *x = NULL, *y = NULL, *values = NULL, *words = NULL;
        uint16_t                last = 1;
        OK(cudaMalloc(&x, x_bytes));
        OK(cudaMalloc(&y, y_bytes));
        OK(cudaMemset(x, 0, x_bytes));
        for (int config = 1; config <= ck_two_four_configs(); config++) {
            if (!ck_two_four_make_plan(&c, config, CAPABILITY, device.multiProcessorCount, &plan)) continue;
            OK(cudaMalloc(&values, (size_t)ck_two_four_units(&plan) * CK_TWO_FOUR_UNIT * 2));
            OK(cudaMalloc(&words, (size_t)ck_two_four_units(&plan) * CK_TWO_FOUR_WORDS * 4));
            OK(cudaMemset(values, 0, (size_t)ck_two_four_units(&plan) * CK_TWO_FOUR_UNIT * 2));
            OK(cudaMemset(words, 0x44, (size_t)ck_two_four_units(&plan) * CK_TWO_FOUR_WORDS * 4));
            OK(cudaMemset(y, 0xff, y_bytes));
            const struct ck_two_four_args args = {.conv = c, .x = x, .values = values, .places = words, .y = y};
            OK(ck_two_four_conv(&args, &plan, device.multiProcessorCount, NULL));
            OK(cudaDeviceSynchronize());
            OK(cudaMemcpy(&last, (const char *)y + y_bytes - 2, 2, cudaMemcpyDeviceToHost));
            CHECK_INT(last, 0);
            cudaFree(values);
            cudaFree(words);
        }
        cudaFree(x);
        cudaFree(y);
    }
}

static void kernels_equal_the_reference(void) {
    NEED_GPU();
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (enum ck_type type = CK_F16; type <= CK_BF16; type++)
            for (int fused = 0; fused < 2; fused++) {
                struct halved h;
                REQUIRE(halved_open(&h, i, type, fused));
                for (int config = 1; config <= ck_two_four_configs(); config++) run_config(&h, config);
                halved_close(&h);
            }
}

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(units_decode_to_the_filter), CASE(plans_find_every_input), CASE(unsupported_shapes_have_no_plan),
      CASE(no_plan_deadlocks), CASE(layers_of_a_network_terminate), CASE(kernels_equal_the_reference),
      CASE(nothing_leaks))

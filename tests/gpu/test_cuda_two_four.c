/* tests/gpu/test_cuda_two_four.c: convolutions with 2:4 filters on the sparse tensor cores: no plan makes the kernel
 * wait for ever. Needs no GPU; test_checkops compares the kernels with the reference. */
#include "cuda/sparse/two_four/two_four.h"
#include "tests/harness/conv_problem.h"

enum { CAPABILITY = 90, MULTIPROCESSORS = 132 };

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

TESTS(CASE(no_plan_deadlocks))

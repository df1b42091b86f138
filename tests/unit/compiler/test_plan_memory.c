/* tests/unit/compiler/test_plan_memory.c: the memory planner: thousands of random instances verified by
 * an independent check, optimal plans by brute force, real networks, storage reused in place. */
#include "tests/harness/compiler_support.h"

/* ---- the core ---- */

static size_t plain_bound(const struct cr_interval *interval, int n, size_t alignment, size_t *sum) {
    size_t most = 0;
    *sum        = 0;
    for (int i = 0; i < n; i++) { /* the load is largest where some interval starts */
        size_t load = 0;
        if (interval[i].lower >= interval[i].upper) continue;
        *sum += aligned(interval[i].size, alignment);
        for (int k = 0; k < n; k++)
            if (interval[k].lower <= interval[i].lower && interval[i].lower < interval[k].upper)
                load += aligned(interval[k].size, alignment);
        most = CR_MAX(most, load);
    }
    return most;
}

static void random_intervals(struct cr_rng *rng, struct cr_interval *interval, int n, int64_t horizon, int64_t size) {
    for (int i = 0; i < n; i++) {
        int64_t lower = draw(rng, -5, horizon), length = draw(rng, 0, 3) ? draw(rng, 1, 6) : draw(rng, 0, horizon);
        interval[i] = (struct cr_interval){
            .lower = lower, .upper = lower + length, .size = (size_t)draw(rng, 0, size), .offset = 12345};
    }
}

TEST(empty_intervals) {
    size_t             peak = 7, bound = 7;
    struct cr_interval interval[] = {{3, 3, 100, 9}, {5, 2, 100, 9}, {0, 9, 0, 9}};
    REQUIRE_OK(cr_plan_intervals(NULL, 0, 64, &peak, &bound));
    CHECK_INT(peak, 0);
    CHECK_INT(bound, 0);
    REQUIRE_OK(cr_plan_intervals(interval, 3, 64, &peak, &bound));
    CHECK_INT(peak, 0);
    for (int i = 0; i < 3; i++) CHECK_INT(interval[i].offset, 0);
}

TEST(too_many_bytes) {
    struct cr_interval interval[] = {{0, 1, SIZE_MAX / 3, 0}, {1, 2, SIZE_MAX - 5, 0}};
    size_t             peak, bound;
    CHECK_STATUS(cr_plan_intervals(interval, 2, 256, &peak, &bound), CR_ERR_MEMORY);
    CHECK_HAS(cr_error_message(), "batch");
}

TEST(random_instances) {
    struct cr_interval interval[120], again[120];
    int                tight = 0;
    double             worst = 1;
    for (int round = 0; round < 3000; round++) {
        struct cr_rng rng       = test_rng((uint64_t)round);
        int           n         = (int)draw(&rng, 1, round < 2000 ? 25 : 120);
        size_t        alignment = (size_t)draw(&rng, 1, 99), peak, bound, bound2, sum;
        int64_t       horizon = draw(&rng, 2, 60), size = (int64_t)1 << draw(&rng, 2, 24);
        random_intervals(&rng, interval, n, horizon, size);
        memcpy(again, interval, sizeof interval);
        REQUIRE_OK(cr_plan_intervals(interval, n, alignment, &peak, &bound));
        CHECK(intervals_valid(interval, n, alignment, peak));
        CHECK_INT(bound, plain_bound(interval, n, alignment, &sum));
        CHECK(bound <= peak);
        CHECK(peak <= sum);
        REQUIRE_OK(cr_plan_bound(interval, n, alignment, &bound2));
        CHECK_INT(bound2, bound);
        if (round % 10 == 0) {
            REQUIRE_OK(cr_plan_intervals(again, n, alignment, &peak, &bound));
            for (int i = 0; i < n; i++) CHECK_INT(again[i].offset, interval[i].offset);
        }
        tight += peak == bound;
        if (bound) worst = CR_MAX(worst, (double)peak / (double)bound);
    }
    printf("    3000 instances: peak = bound in %d, worst peak/bound %.4f\n", tight, worst);
    CHECK(tight > 2600);
}

/* Places each interval at the lowest free offset, for every order: one of the orders is optimal. */
static void try_orders(struct cr_interval *interval, int n, unsigned used, size_t peak, size_t *best) {
    if (peak >= *best) return;
    if (used + 1 == 1u << n) {
        *best = peak;
        return;
    }
    for (int i = 0; i < n; i++) {
        if (used >> i & 1) continue;
        size_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int k = 0; k < n; k++) {
                bool time = interval[k].lower < interval[i].upper && interval[i].lower < interval[k].upper;
                if ((used >> k & 1) && time && at < interval[k].offset + interval[k].size &&
                    interval[k].offset < at + interval[i].size) {
                    at    = interval[k].offset + interval[k].size;
                    moved = true;
                }
            }
        }
        interval[i].offset = at;
        try_orders(interval, n, used | 1u << i, CR_MAX(peak, at + interval[i].size), best);
    }
}

TEST(tiny_instances_against_the_optimum) {
    int optimal = 0, rounds = 1500;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng      rng = test_rng(100000 + (uint64_t)round);
        int                n   = (int)draw(&rng, 3, 6);
        struct cr_interval interval[6], mine[6];
        size_t             peak, bound, best = SIZE_MAX;
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, 0, 6), length = draw(&rng, 1, 5), size = draw(&rng, 1, 9);
            interval[i] = (struct cr_interval){.lower = lower, .upper = lower + length, .size = (size_t)size};
        }
        memcpy(mine, interval, sizeof interval);
        REQUIRE_OK(cr_plan_intervals(mine, n, 1, &peak, &bound));
        try_orders(interval, n, 0, 0, &best);
        CHECK(bound <= best);
        CHECK(best <= peak);
        optimal += best == peak;
    }
    printf("    %d of %d tiny instances optimal\n", optimal, rounds);
    CHECK(optimal >= rounds * 99 / 100);
}

/* ---- programs ---- */

TEST(without_reuse_nothing_overlaps) {
    OWNED(bench_model) b = {0};
    OWNED(program)     p = {0};
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, false, &p)) return;
    size_t sum = 0;
    for (int t = 0; t < p.tensors; t++) {
        CHECK_INT(p.tensor[t].alias, CR_NONE);
        if (p.tensor[t].region != CR_REGION_POOL) continue;
        sum += aligned(p.tensor[t].bytes, 256);
        for (int u = 0; u < t; u++)
            if (p.tensor[u].region == CR_REGION_POOL)
                CHECK(p.tensor[t].offset >= p.tensor[u].offset + p.tensor[u].bytes ||
                      p.tensor[u].offset >= p.tensor[t].offset + p.tensor[t].bytes);
    }
    CHECK_INT(p.region_bytes[CR_REGION_POOL], sum);
    CHECK(p.bound_bytes < sum * 3 / 5); /* 51 %: activations wait for the backward pass */
}

TEST(storage_is_reused_in_place) {
    OWNED(program) p = {0};
    int            id[5];
    chain_program(&p, id);
    p.tensor[id[4]].keep = true;
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK_INT(p.tensor[id[1]].alias, id[0]);
    CHECK_INT(p.tensor[id[2]].alias, id[1]);   /* both slots hold it, both may be reused */
    CHECK_INT(p.tensor[id[3]].alias, CR_NONE); /* c is read again */
    CHECK_INT(p.tensor[id[4]].alias, id[3]);   /* the one that was added last */
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 2 * 448);
    REQUIRE_OK(cr_plan_check(&p, 64));
    p.tensor[id[1]].keep = true; /* read from outside: must not be overwritten */
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK_INT(p.tensor[id[2]].alias, CR_NONE);
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 3 * 448);
    REQUIRE_OK(cr_plan_check(&p, 64));
}

TEST(unused_tensors_are_not_planned) {
    OWNED(program) p = {0};
    int            id[5];
    chain_program(&p, id);
    int    idle  = cr_tensor_add(&p, "idle", CR_F32, CR_REGION_POOL, 1, 1, 1, 1000000);
    int    input = cr_tensor_add(&p, "input", CR_F32, CR_REGION_INPUT, 1, 1, 1, 10);
    int    other = cr_tensor_add(&p, "input2", CR_F32, CR_REGION_INPUT, 1, 1, 1, 10);
    size_t at    = p.tensor[other].offset;
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK(p.region_bytes[CR_REGION_POOL] < 4000);
    CHECK_INT(p.tensor[idle].first, -1);
    CHECK_INT(p.tensor[input].offset, 0);
    CHECK_INT(p.tensor[other].offset, at);
    REQUIRE_OK(cr_plan_check(&p, 64));
}

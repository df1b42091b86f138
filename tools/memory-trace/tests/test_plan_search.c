/* tools/memory-trace/tests/test_plan_search.c: the planner search: the optimum of tiny instances by brute force, random
 * instances verified by an independent check, hard public instances, files of intervals and the check of their
 * plans. */
#include "tests/harness/compiler_support.h"
#include "tests/harness/failing_alloc.h"
#include "tools/memory-trace/lifetimes_csv.h"
#include "tools/memory-trace/search.h"

static struct cr_plan_effort effort_of(size_t alignment, size_t capacity, int64_t visits) {
    return (struct cr_plan_effort){
        .alignment = alignment, .capacity = capacity, .visits = visits, .limit_ns = INT64_MAX};
}

/* ---- the search ---- */

/* Tries every offset from 0 up for every interval, in array order: slow, and independent of the search. */
static bool fits(struct cr_interval *interval, int n, int i, size_t capacity) {
    if (i == n) return true;
    for (size_t at = 0; at + interval[i].size <= capacity; at++) {
        bool free = true;
        for (int k = 0; k < i && free; k++)
            free = interval[k].upper <= interval[i].lower || interval[i].upper <= interval[k].lower ||
                   interval[k].offset + interval[k].size <= at || at + interval[i].size <= interval[k].offset;
        interval[i].offset = at;
        if (free && fits(interval, n, i + 1, capacity)) return true;
    }
    return false;
}

TEST(tiny_instances_reach_the_optimum) {
    int better = 0;
    for (int round = 0; round < (TEST_SANITIZED ? 500 : 3000); round++) {
        struct cr_rng         rng = test_rng(700000 + (uint64_t)round);
        int                   n   = (int)draw(&rng, 3, 8);
        struct cr_interval    interval[8], mine[8];
        struct cr_plan_found  found;
        struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, 0, 6), length = draw(&rng, 1, 5);
            interval[i] =
                (struct cr_interval){.lower = lower, .upper = lower + length, .size = (size_t)draw(&rng, 1, 5)};
        }
        memcpy(mine, interval, sizeof interval);
        REQUIRE_OK(cr_plan_search(mine, n, &effort, &found));
        CHECK(intervals_valid(mine, n, 1, found.peak));
        size_t best = found.bound;
        while (!fits(interval, n, 0, best)) best++;
        CHECK_INT(found.peak, best);
        CHECK_INT(found.lower_bound, best);
        CHECK(found.peak <= found.greedy);
        better += found.peak < found.greedy;
    }
    printf("    3000 instances: all optimal, better than greedy in %d\n", better);
    CHECK(better > 0);
}

/* Instances that greedy placement does not solve at once, with a small budget: valid, never worse, deterministic; a
 * given capacity ends the search early. */
TEST(random_instances) {
    struct cr_interval interval[120], again[120];
    int                better = 0, hard = 0;
    for (int round = 0; round < (TEST_SANITIZED ? 60 : 400); round++) {
        struct cr_rng        rng       = test_rng(800000 + (uint64_t)round);
        int                  n         = (int)draw(&rng, 20, 120);
        size_t               alignment = (size_t)draw(&rng, 1, 99);
        struct cr_plan_found found, second;
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, -5, 40), length = draw(&rng, 0, 3) ? draw(&rng, 0, 8) : draw(&rng, 0, 30);
            interval[i] =
                (struct cr_interval){.lower = lower, .upper = lower + length, .size = (size_t)draw(&rng, 0, 3000)};
        }
        memcpy(again, interval, sizeof interval);
        struct cr_plan_effort effort = effort_of(alignment, 0, 1 << 22);
        REQUIRE_OK(cr_plan_search(interval, n, &effort, &found));
        CHECK(intervals_valid(interval, n, alignment, found.peak));
        CHECK(found.bound <= found.lower_bound && found.lower_bound <= found.peak && found.peak <= found.greedy);
        REQUIRE_OK(cr_plan_search(again, n, &effort, &second));
        CHECK_INT(second.peak, found.peak);
        for (int i = 0; i < n; i++) CHECK_INT(again[i].offset, interval[i].offset);
        effort.capacity = found.greedy;
        REQUIRE_OK(cr_plan_search(again, n, &effort, &second));
        CHECK_INT(second.peak, found.greedy);
        effort.visits   = 0;
        effort.capacity = 0;
        REQUIRE_OK(cr_plan_search(again, n, &effort, &second));
        CHECK_INT(second.peak, found.greedy);
        hard += found.greedy > found.bound;
        better += found.peak < found.greedy;
    }
    printf("    400 instances: greedy above the bound in %d, the search better in %d\n", hard, better);
    CHECK(better > 0 && better >= hard / 2);
}

TEST(infeasible_capacities_are_proved) {
    /* The largest load is not always enough: found by random search, verified by brute force. */
    struct cr_interval interval[] = {{2, 8, 1, 0}, {1, 6, 1, 0}, {1, 2, 3, 0}, {6, 7, 2, 0},
                                     {8, 9, 3, 0}, {5, 9, 1, 0}, {3, 4, 2, 0}},
                       brute[7];
    struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
    struct cr_plan_found  found;
    memcpy(brute, interval, sizeof interval);
    REQUIRE_OK(cr_plan_search(interval, 7, &effort, &found));
    CHECK(!fits(brute, 7, 0, found.bound));
    CHECK(fits(brute, 7, 0, found.bound + 1));
    CHECK_INT(found.peak, found.bound + 1);
    CHECK_INT(found.lower_bound, found.peak);
    CHECK(intervals_valid(interval, 7, 1, found.peak));
}

TEST(sizes_near_the_maximum) {
    const int64_t      huge       = (int64_t)1 << 60;
    struct cr_interval interval[] = {
        {-huge * 4, 0, (size_t)huge, 0}, {-1, huge, (size_t)huge * 2, 0}, {huge, huge * 4, (size_t)huge * 4, 0}};
    struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
    struct cr_plan_found  found;
    REQUIRE_OK(cr_plan_search(interval, 3, &effort, &found));
    CHECK_INT(found.peak, huge * 4);
    CHECK(intervals_valid(interval, 3, 1, found.peak));
    struct cr_interval pair[] = {{2, 3, (size_t)huge * 4, 0}, {2, 3, (size_t)huge * 4 - 2, 0}};
    REQUIRE_OK(cr_plan_search(pair, 2, &effort, &found));
    CHECK_INT(found.peak, INT64_MAX - 1);
    CHECK(intervals_valid(pair, 2, 1, found.peak));
    pair[1].size++;
    CHECK_STATUS(cr_plan_search(pair, 2, &effort, &found), CR_ERR_MEMORY);
}

TEST(searching_survives_failing_allocations) {
    for_each_failing_alloc(f, .least = 1) {
        struct cr_interval    interval[] = {{0, 3, 4, 0}, {2, 5, 4, 0}, {4, 8, 5, 0}, {0, 1, 5, 0},
                                            {1, 2, 3, 0}, {3, 4, 3, 0}, {5, 8, 2, 0}, {1, 7, 1, 0}};
        struct cr_plan_effort effort     = effort_of(1, 0, 1 << 20);
        struct cr_plan_found  found;
        failing_alloc_run(&f, cr_plan_search(interval, 8, &effort, &found));
    }
}

TEST(hard_instances_fit) {
    /* The search for I takes a hundred times as long as the others: two minutes with a sanitizer. */
    const char *names[] = {"A", "C", "E", "G", "K", "I"};
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    for (size_t i = 0; i < CR_COUNT(names) - TEST_SANITIZED; i++) {
        char                  path[1024];
        struct cr_lifetimes   intervals;
        struct cr_plan_found  found;
        struct cr_plan_effort effort = effort_of(1, 1048576, INT64_MAX);
        snprintf(path, sizeof path, "%s/minimalloc/%s.1048576.csv", test_data_dir(), names[i]);
        REQUIRE_OK(cr_lifetimes_read(path, &intervals));
        int64_t begin   = cr_time_ns();
        effort.limit_ns = (int64_t)1000 * 1000 * 1000 * 1000; /* 5 s alone; a busy machine must not decide */
        REQUIRE_OK(cr_plan_search(intervals.interval, intervals.count, &effort, &found));
        printf("    %s: %3d intervals, bound %zu, greedy %zu, peak %zu, %.2f s\n", names[i], intervals.count,
               found.bound, found.greedy, found.peak, (double)(cr_time_ns() - begin) * 1e-9);
        CHECK(found.peak <= 1048576);
        CHECK(intervals_valid(intervals.interval, intervals.count, 1, 1048576));
        CHECK_STATUS(cr_lifetimes_check(&intervals, 1048576), CR_OK);
        cr_lifetimes_free(&intervals);
    }
}

/* ---- files of intervals ---- */

static cr_status parse(const char *text, struct cr_lifetimes *out) {
    return cr_lifetimes_parse("lifetimes.csv", text, strlen(text), out);
}

TEST(files_are_read) {
    struct cr_lifetimes intervals;
    struct cr_text      text = {0};
    REQUIRE_OK(parse("\xef\xbb\xbfsize, id,upper,offset,lower\r\n4611686018427387904,a "
                     "b,4611686018427387904,9,-4611686018427387904\r\n\n 7 ,\"1\",3,,2",
                     &intervals));
    CHECK_INT(intervals.count, 2);
    CHECK_STR(intervals.id[0], "a b");
    CHECK_INT(intervals.interval[0].lower, -((int64_t)1 << 62));
    CHECK_INT(intervals.interval[0].size, (int64_t)1 << 62);
    CHECK_INT(intervals.interval[1].upper, 3);
    intervals.interval[1].offset = (size_t)1 << 62;
    cr_lifetimes_print(&intervals, &text);
    CHECK_STR(text.data,
              "id,lower,upper,size,offset\na b,-4611686018427387904,4611686018427387904,4611686018427387904,0\n"
              "1,2,3,7,4611686018427387904\n");
    cr_text_free(&text);
    cr_lifetimes_free(&intervals);
}

TEST(invalid_files_are_refused) {
    static const char *const bad[][2] = {
        {"", "is empty"},
        {"id,lower,upper\n", "lifetimes.csv:1: column size is missing"},
        {"id,lower,upper,size,alignment\n", "lifetimes.csv:1: unknown column alignment"},
        {"id,lower,upper,size,id\n", "duplicate column"},
        {"id,lower,upper,size\n1,2,3\n", "lifetimes.csv:2: 3 fields"},
        {"id,lower,upper,size\n1,2,3,4,5\n", "lifetimes.csv:2: 5 fields"},
        {"id,lower,upper,size\n\n1,2,x,4\n", "lifetimes.csv:3: upper must be a whole number"},
        {"id,lower,upper,size\n1,2,3.5,4\n", "whole number"},
        {"id,lower,upper,size\n1,2,3,\n", "lifetimes.csv:2: size must be"},
        {"id,lower,upper,size\n1,2,3,-1\n", "size must not be negative"},
        {"id,lower,upper,size\n1,3,3,1\n", "lower must be below upper"},
        {"id,lower,upper,size\n1,2,4611686018427387905,1\n", "larger than 2^62"},
        {"id,lower,upper,size\n1,2,99999999999999999999999,1\n", "larger than 2^62"},
        {"id,lower,upper,size\n,2,3,1\n", "id must be"},
        {"id,lower,upper,size\n\"a,b\",2,3,1\n", "without commas and quotes"},
        {"id,lower,upper,size\n\"a,2,3,1\n", "lifetimes.csv:2: a quote is missing"},
        {"id,lower,upper,size\n7,2,3,1\n8,2,3,1\n7,5,6,1\n", "lifetimes.csv:4: duplicate id 7, first used in line 2"},
        {"id,lower,upper,size\n1,2,3,4611686018427387904\n2,2,3,4611686018427387904\n",
         "lifetimes.csv:3: the sum of the sizes"},
    };
    int64_t live = cr_alloc_live();
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        struct cr_lifetimes intervals;
        CHECK_STATUS(parse(bad[i][0], &intervals), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), bad[i][1]);
        CHECK_HAS(cr_error_message(), "lifetimes.csv");
        CHECK_INT(cr_alloc_live(), live);
    }
}

/* Compares the sweep with the plain check of all pairs, over plans that are mostly invalid. */
TEST(invalid_plans_are_detected) {
    int right = 0, rounds = TEST_SANITIZED ? 4000 : 20000;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng       rng = test_rng(900000 + (uint64_t)round);
        struct cr_interval  interval[6];
        const char         *id[6]     = {"a", "b", "c", "d", "e", "f"};
        struct cr_lifetimes intervals = {.interval = interval, .id = id, .count = (int)draw(&rng, 1, 6)};
        size_t              capacity  = (size_t)draw(&rng, 8, 16);
        for (int i = 0; i < intervals.count; i++) {
            int64_t lower = draw(&rng, 0, 6);
            interval[i]   = (struct cr_interval){lower, lower + draw(&rng, 1, 4), (size_t)draw(&rng, 0, 4),
                                                 (size_t)draw(&rng, 0, 12)};
        }
        bool valid = true; /* an empty interval must still lie inside */
        for (int i = 0; i < intervals.count; i++) valid &= interval[i].offset + interval[i].size <= capacity;
        valid &= intervals_valid(interval, intervals.count, 1, capacity);
        CHECK_INT(cr_lifetimes_check(&intervals, capacity) == CR_OK, valid);
        right += valid;
    }
    CHECK(right > rounds / 50 && right < rounds / 2);
}

/* tests/unit/compiler/test_plan_search.c: the planner's search: the optimum of tiny instances by brute force, random
 * ones judged by a check of our own, the hard public ones, files of lives and the proof of their plans. */
#include "inspect/lifetimes_csv.h"
#include "tests/harness/compiler_support.h"

static struct cr_plan_effort effort_of(size_t alignment, size_t capacity, int64_t visits) {
    return (struct cr_plan_effort){
        .alignment = alignment, .capacity = capacity, .visits = visits, .limit_ns = INT64_MAX};
}

/* ---- the search ---- */

/* Every life at every place from 0 up, in the order of the array: slow, and nothing to do with how the search works. */
static bool fits(struct cr_interval *life, int n, int i, size_t capacity) {
    if (i == n) return true;
    for (size_t at = 0; at + life[i].size <= capacity; at++) {
        bool free = true;
        for (int k = 0; k < i && free; k++)
            free = life[k].upper <= life[i].lower || life[i].upper <= life[k].lower ||
                   life[k].offset + life[k].size <= at || at + life[i].size <= life[k].offset;
        life[i].offset = at;
        if (free && fits(life, n, i + 1, capacity)) return true;
    }
    return false;
}

static void tiny_instances_reach_the_optimum(void) {
    int better = 0;
    for (int round = 0; round < 3000; round++) {
        struct cr_rng         rng = test_rng(700000 + (uint64_t)round);
        int                   n   = (int)draw(&rng, 3, 8);
        struct cr_interval    life[8], mine[8];
        struct cr_plan_found  found;
        struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, 0, 6), length = draw(&rng, 1, 5);
            life[i] = (struct cr_interval){.lower = lower, .upper = lower + length, .size = (size_t)draw(&rng, 1, 5)};
        }
        memcpy(mine, life, sizeof life);
        REQUIRE_OK(cr_plan_search(mine, n, &effort, &found));
        CHECK(intervals_valid(mine, n, 1, found.peak));
        size_t best = found.bound;
        while (!fits(life, n, 0, best)) best++;
        CHECK_INT(found.peak, best);
        CHECK_INT(found.lower_bound, best);
        CHECK(found.peak <= found.greedy);
        better += found.peak < found.greedy;
    }
    printf("    3000 instances: the optimum, below greedy in %d\n", better);
    CHECK(better > 0);
}

/* What greedy does not solve at once, under a small budget: valid, never worse, the same again; a capacity ends it
 * early. */
static void random_instances(void) {
    struct cr_interval life[120], again[120];
    int                better = 0, hard = 0;
    for (int round = 0; round < 400; round++) {
        struct cr_rng        rng       = test_rng(800000 + (uint64_t)round);
        int                  n         = (int)draw(&rng, 20, 120);
        size_t               alignment = (size_t)draw(&rng, 1, 99);
        struct cr_plan_found found, second;
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, -5, 40), length = draw(&rng, 0, 3) ? draw(&rng, 0, 8) : draw(&rng, 0, 30);
            life[i] =
                (struct cr_interval){.lower = lower, .upper = lower + length, .size = (size_t)draw(&rng, 0, 3000)};
        }
        memcpy(again, life, sizeof life);
        struct cr_plan_effort effort = effort_of(alignment, 0, 1 << 22);
        REQUIRE_OK(cr_plan_search(life, n, &effort, &found));
        CHECK(intervals_valid(life, n, alignment, found.peak));
        CHECK(found.bound <= found.lower_bound && found.lower_bound <= found.peak && found.peak <= found.greedy);
        REQUIRE_OK(cr_plan_search(again, n, &effort, &second));
        CHECK_INT(second.peak, found.peak);
        for (int i = 0; i < n; i++) CHECK_INT(again[i].offset, life[i].offset);
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

static void what_cannot_fit_is_proved(void) {
    /* The largest load is not always enough: found by drawing, judged by brute force. */
    struct cr_interval life[] = {{2, 8, 1, 0}, {1, 6, 1, 0}, {1, 2, 3, 0}, {6, 7, 2, 0},
                                 {8, 9, 3, 0}, {5, 9, 1, 0}, {3, 4, 2, 0}},
                       brute[7];
    struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
    struct cr_plan_found  found;
    memcpy(brute, life, sizeof life);
    REQUIRE_OK(cr_plan_search(life, 7, &effort, &found));
    CHECK(!fits(brute, 7, 0, found.bound));
    CHECK(fits(brute, 7, 0, found.bound + 1));
    CHECK_INT(found.peak, found.bound + 1);
    CHECK_INT(found.lower_bound, found.peak);
    CHECK(intervals_valid(life, 7, 1, found.peak));
}

static void numbers_near_the_end(void) {
    const int64_t      huge   = (int64_t)1 << 60;
    struct cr_interval life[] = {
        {-huge * 4, 0, (size_t)huge, 0}, {-1, huge, (size_t)huge * 2, 0}, {huge, huge * 4, (size_t)huge * 4, 0}};
    struct cr_plan_effort effort = effort_of(1, 0, INT64_MAX);
    struct cr_plan_found  found;
    REQUIRE_OK(cr_plan_search(life, 3, &effort, &found));
    CHECK_INT(found.peak, huge * 4);
    CHECK(intervals_valid(life, 3, 1, found.peak));
    struct cr_interval pair[] = {{2, 3, (size_t)huge * 4, 0}, {2, 3, (size_t)huge * 4 - 2, 0}};
    REQUIRE_OK(cr_plan_search(pair, 2, &effort, &found));
    CHECK_INT(found.peak, INT64_MAX - 1);
    CHECK(intervals_valid(pair, 2, 1, found.peak));
    pair[1].size++;
    CHECK_STATUS(cr_plan_search(pair, 2, &effort, &found), CR_ERR_MEMORY);
}

static void searching_survives_failing_allocations(void) {
    int64_t live = cr_alloc_live();
    for (int n = 1;; n++) {
        struct cr_interval    life[] = {{0, 3, 4, 0}, {2, 5, 4, 0}, {4, 8, 5, 0}, {0, 1, 5, 0},
                                        {1, 2, 3, 0}, {3, 4, 3, 0}, {5, 8, 2, 0}, {1, 7, 1, 0}};
        struct cr_plan_effort effort = effort_of(1, 0, 1 << 20);
        struct cr_plan_found  found;
        cr_alloc_fail_at(n);
        cr_status status = cr_plan_search(life, 8, &effort, &found);
        cr_alloc_fail_at(0);
        CHECK_INT(cr_alloc_live(), live);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_MEMORY);
        REQUIRE(n < 100);
    }
}

static void hard_instances_fit(void) {
    const char *names[] = {"A", "C", "E", "G", "I", "K"};
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        char                  path[1024];
        struct cr_lifetimes   lives;
        struct cr_plan_found  found;
        struct cr_plan_effort effort = effort_of(1, 1048576, INT64_MAX);
        snprintf(path, sizeof path, "%s/minimalloc/%s.1048576.csv", test_data_dir(), names[i]);
        REQUIRE_OK(cr_lifetimes_read(path, &lives));
        int64_t begin   = cr_time_ns();
        effort.limit_ns = (int64_t)1000 * 1000 * 1000 * 1000; /* 5 s alone; a busy machine shall not decide */
        REQUIRE_OK(cr_plan_search(lives.interval, lives.count, &effort, &found));
        printf("    %s: %3d lives, bound %zu, greedy %zu, peak %zu, %.2f s\n", names[i], lives.count, found.bound,
               found.greedy, found.peak, (double)(cr_time_ns() - begin) * 1e-9);
        CHECK(found.peak <= 1048576);
        CHECK(intervals_valid(lives.interval, lives.count, 1, 1048576));
        CHECK_STATUS(cr_lifetimes_check(&lives, 1048576), CR_OK);
        cr_lifetimes_free(&lives);
    }
}

/* ---- files of lives ---- */

static cr_status parse(const char *text, struct cr_lifetimes *out) {
    return cr_lifetimes_parse("lives.csv", text, strlen(text), out);
}

static void files_are_read(void) {
    struct cr_lifetimes lives;
    struct cr_text      text = {0};
    REQUIRE_OK(parse("\xef\xbb\xbfsize, id,upper,offset,lower\r\n4611686018427387904,a "
                     "b,4611686018427387904,9,-4611686018427387904\r\n\n 7 ,1,3,,2",
                     &lives));
    CHECK_INT(lives.count, 2);
    CHECK_STR(lives.id[0], "a b");
    CHECK_INT(lives.interval[0].lower, -((int64_t)1 << 62));
    CHECK_INT(lives.interval[0].size, (int64_t)1 << 62);
    CHECK_INT(lives.interval[1].upper, 3);
    lives.interval[1].offset = (size_t)1 << 62;
    cr_lifetimes_print(&lives, &text);
    CHECK_STR(text.data,
              "id,lower,upper,size,offset\na b,-4611686018427387904,4611686018427387904,4611686018427387904,0\n"
              "1,2,3,7,4611686018427387904\n");
    cr_text_free(&text);
    cr_lifetimes_free(&lives);
}

static void bad_files_are_refused(void) {
    static const char *const bad[][2] = {
        {"", "is empty"},
        {"id,lower,upper\n", "lives.csv:1: column size is missing"},
        {"id,lower,upper,size,alignment\n", "lives.csv:1: unknown column alignment"},
        {"id,lower,upper,size,id\n", "duplicate column"},
        {"id,lower,upper,size\n1,2,3\n", "lives.csv:2: 3 fields"},
        {"id,lower,upper,size\n1,2,3,4,5\n", "lives.csv:2: 5 fields"},
        {"id,lower,upper,size\n\n1,2,x,4\n", "lives.csv:3: upper must be a whole number"},
        {"id,lower,upper,size\n1,2,3.5,4\n", "whole number"},
        {"id,lower,upper,size\n1,2,3,\n", "lives.csv:2: size must be"},
        {"id,lower,upper,size\n1,2,3,-1\n", "size must not be negative"},
        {"id,lower,upper,size\n1,3,3,1\n", "lower must be below upper"},
        {"id,lower,upper,size\n1,2,4611686018427387905,1\n", "larger than 2^62"},
        {"id,lower,upper,size\n1,2,99999999999999999999999,1\n", "larger than 2^62"},
        {"id,lower,upper,size\n,2,3,1\n", "id must be"},
        {"id,lower,upper,size\n\"a\",2,3,1\n", "without quotes"},
        {"id,lower,upper,size\n7,2,3,1\n8,2,3,1\n7,5,6,1\n", "lives.csv:4: duplicate id 7, first used in line 2"},
        {"id,lower,upper,size\n1,2,3,4611686018427387904\n2,2,3,4611686018427387904\n", "lives.csv:3: the sum of the sizes"},
    };
    int64_t live = cr_alloc_live();
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        struct cr_lifetimes lives;
        CHECK_STATUS(parse(bad[i][0], &lives), CR_ERR_FORMAT);
        CHECK_HAS(cr_error_message(), bad[i][1]);
        CHECK_HAS(cr_error_message(), "lives.csv");
        CHECK_INT(cr_alloc_live(), live);
    }
}

/* The sweep against the plain check of all pairs, over plans that are mostly wrong. */
static void wrong_plans_are_found(void) {
    int right = 0, rounds = 20000;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng       rng = test_rng(900000 + (uint64_t)round);
        struct cr_interval  life[6];
        const char         *id[6]    = {"a", "b", "c", "d", "e", "f"};
        struct cr_lifetimes lives    = {.interval = life, .id = id, .count = (int)draw(&rng, 1, 6)};
        size_t              capacity = (size_t)draw(&rng, 8, 16);
        for (int i = 0; i < lives.count; i++) {
            int64_t lower = draw(&rng, 0, 6);
            life[i]       = (struct cr_interval){lower, lower + draw(&rng, 1, 4), (size_t)draw(&rng, 0, 4),
                                                 (size_t)draw(&rng, 0, 12)};
        }
        bool valid = true; /* a life of no bytes must still lie inside */
        for (int i = 0; i < lives.count; i++) valid &= life[i].offset + life[i].size <= capacity;
        valid &= intervals_valid(life, lives.count, 1, capacity);
        CHECK_INT(cr_lifetimes_check(&lives, capacity) == CR_OK, valid);
        right += valid;
    }
    CHECK(right > rounds / 50 && right < rounds / 2);
}

TESTS(CASE(tiny_instances_reach_the_optimum), CASE(random_instances), CASE(what_cannot_fit_is_proved),
      CASE(numbers_near_the_end), CASE(searching_survives_failing_allocations), CASE(hard_instances_fit),
      CASE(files_are_read), CASE(bad_files_are_refused), CASE(wrong_plans_are_found))

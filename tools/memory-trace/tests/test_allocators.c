/* tools/memory-trace/tests/test_allocators.c: allocators without knowledge of the future: best fit against a sequence
 * placed by hand, and a step as allocations against its plan. */
#include "tests/harness/compiler_support.h"
#include "tools/memory-trace/allocators.h"
#include "tools/memory-trace/trace/best_fit.h"

/* ---- best fit by hand ---- */

static size_t take(struct cr_best_fit *pool, size_t size) {
    size_t offset = SIZE_MAX;
    if (cr_best_fit_alloc(pool, size, &offset) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return offset;
}

TEST(smallest_hole_is_used) {
    struct cr_best_fit pool = {0};
    CHECK_INT(take(&pool, 4), 0);  /* a */
    CHECK_INT(take(&pool, 2), 4);  /* b */
    CHECK_INT(take(&pool, 3), 6);  /* c */
    CHECK_INT(take(&pool, 1), 9);  /* d */
    CHECK_INT(take(&pool, 2), 10); /* e */
    CHECK_INT(pool.peak, 12);
    cr_best_fit_release(&pool, 0);
    cr_best_fit_release(&pool, 6);
    CHECK_INT(take(&pool, 3), 6);  /* not the first hole, which is larger */
    CHECK_INT(take(&pool, 2), 0);  /* and half of that one */
    cr_best_fit_release(&pool, 4); /* b: merges with the hole before it */
    CHECK_INT(take(&pool, 4), 2);
    CHECK_INT(pool.peak, 12);
    cr_best_fit_release(&pool, 10); /* e, at the end: growth begins there */
    CHECK_INT(take(&pool, 5), 10);
    CHECK_INT(pool.peak, 15);
    cr_best_fit_free(&pool);
}

TEST(freed_memory_merges_into_one_range) {
    struct cr_best_fit pool = {0};
    size_t             offset[600];
    for (size_t i = 0; i < CR_COUNT(offset); i++) offset[i] = take(&pool, 1 + i % 7);
    const size_t top = pool.peak;
    for (size_t i = 0; i < CR_COUNT(offset); i += 2) cr_best_fit_release(&pool, offset[i]);
    for (size_t i = 1; i < CR_COUNT(offset); i += 2) cr_best_fit_release(&pool, offset[i]);
    CHECK_INT(pool.ranges, 1);
    CHECK_INT(take(&pool, top), 0);
    CHECK_INT(pool.peak, top);
    cr_best_fit_free(&pool);
}

/* Fragmentation that no online allocator avoids here and a plan does: 2, 1, then 3 next to the 1. */
TEST(online_fragmentation_is_visible) {
    static const struct cr_pool_event event[] = {{0, true, 2}, {1, true, 1},  {0, false, 2},
                                                 {2, true, 3}, {1, false, 1}, {2, false, 3}};
    struct cr_pool_times              times;
    REQUIRE_OK(cr_pool_best_fit(event, CR_COUNT(event), 3, &times));
    CHECK_INT(times.peak_bytes, 6); /* 2 free, 1, and 3 after it */
    CHECK(times.ms >= 0);
    CHECK_INT(cr_pool_load(event, CR_COUNT(event), 1), 4);
    CHECK_INT(cr_pool_load(event, CR_COUNT(event), 2), 6); /* 2 + 4 */
}

/* ---- a step ---- */

TEST(allocations_are_the_planned_intervals) {
    struct bench_model    b;
    struct cr_program     p;
    struct cr_pool_event *event;
    int                   events, open = 0;
    static bool           taken[4000];
    struct cr_pool_times  times;
    if (!compiled(&b, "resnet20", 32, 4, CR_PROGRAM_STEP, true, true, &p)) return;
    REQUIRE_OK(cr_pool_events(&p, 256, &event, &events));
    CHECK(events > 200 && events % 2 == 0);
    for (int i = 0; i < events; i++) {
        REQUIRE(event[i].block >= 0 && event[i].block < events / 2 && event[i].block < (int)CR_COUNT(taken));
        CHECK(event[i].bytes > 0 && event[i].bytes % 256 == 0 && taken[event[i].block] != event[i].alloc);
        taken[event[i].block] = event[i].alloc;
        open += event[i].alloc ? 1 : -1;
    }
    CHECK_INT(open, 0);
    CHECK_INT(cr_pool_load(event, events, 1), p.bound_bytes);
    REQUIRE_OK(cr_pool_best_fit(event, events, 2, &times));
    CHECK(times.peak_bytes >= p.bound_bytes && times.peak_bytes < 2 * p.bound_bytes);
    cr_free(event);
    cr_program_free(&p);
    bench_close(&b);
}

TEST(devices_simulate_their_allocators) {
    static const struct cr_pool_event event[] = {{0, true, 1000}, {1, true, 500000}, {0, false, 1000},
                                                 {2, true, 3},    {2, false, 3},     {1, false, 500000}};
    const struct cr_device_options    options = {.threads = 1};
    struct cr_device                 *device;
    struct cr_pool_times              times;
    const int64_t                     live = cr_alloc_live();
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
    REQUIRE_OK(cr_pools_of(device)->measure(device, event, CR_COUNT(event), 5, &times));
    CHECK(times.ms > 0);
    cr_alloc_fail_at(4); /* of the allocations, one */
    CHECK_STATUS(cr_pools_of(device)->measure(device, event, CR_COUNT(event), 5, &times), CR_ERR_MEMORY);
    cr_alloc_fail_at(0);
    cr_device_close(device);
    CHECK_INT(cr_alloc_live(), live);
}

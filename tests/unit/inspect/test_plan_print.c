/* tests/unit/inspect/test_plan_print.c: the output of `cresnet plan`. */
#include "inspect/plan_print.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/failing_alloc.h"

TEST(printed_intervals_plan_again) {
    OWNED(bench_model)        b = {0};
    OWNED(program)            p = {0};
    static struct cr_interval interval[2000];
    int                       n    = 0;
    OWNED(text)               text = {0};
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    cr_plan_print_csv(&p, &text);
    REQUIRE(!text.failed && text.data);
    CHECK(strncmp(text.data, "id,lower,upper,size,offset\n", 27) == 0);
    for (char *line = strchr(text.data, '\n'); line && line[1] && n < 2000; line = strchr(line + 1, '\n')) {
        int       id;
        long long lower, upper, size, offset;
        REQUIRE(sscanf(line + 1, "%d,%lld,%lld,%lld,%lld", &id, &lower, &upper, &size, &offset) == 5);
        interval[n++] = (struct cr_interval){lower, upper, (size_t)size, (size_t)offset};
    }
    CHECK(n > 100);
    CHECK(intervals_valid(interval, n, 256, p.region_bytes[CR_REGION_POOL]));
    size_t bound;
    REQUIRE_OK(cr_plan_bound(interval, n, 256, &bound));
    CHECK_INT(bound, p.bound_bytes);
}

static const struct cr_plan_size    sizes[] = {{128, 0, 1000, 900, 84}, {160, 6, 2000, 1900, 84}};
static const struct cr_plan_numbers numbers = {
    .device = "an \"invented\" device", .batch = 2, .plan_ms = 1.5, .size = sizes, .sizes = 2};

TEST(printing_survives_failing_allocations) {
    OWNED(bench_model) b = {0};
    OWNED(program)     p = {0};
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    for_each_failing_alloc(f, .least = 5) {
        OWNED(text) text = {0};
        failing_alloc_begin(&f);
        cr_plan_print_summary(&p, &text);
        cr_plan_print_csv(&p, &text);
        cr_plan_print_json(&p, b.config, &numbers, &text);
        failing_alloc_end(&f, text.failed ? CR_ERR_MEMORY : CR_OK);
    }
}

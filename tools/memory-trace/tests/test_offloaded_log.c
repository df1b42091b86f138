/* tools/memory-trace/tests/test_offloaded_log.c: the memory log of a program whose tensors are offloaded. */
#include "tests/harness/offload_run.h"
#include "tools/memory-trace/trace/trace.h"

/* Device memory that is free while a tensor is in host memory is free in the log, too; host memory is not in it. */
TEST(logs_of_offloaded_programs_plan_alike) {
    struct offload_run   s;
    struct cr_text       text = {0};
    struct cr_trace      trace;
    struct cr_trace_loop loop;
    struct cr_trace_plan plan;
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = basic, .fuse = true, .one_in = 1}));
    const struct cr_program *all[] = {&s.program};
    CHECK(s.offloads.count > 0);
    cr_trace_write(all, 1, 3, s.cost_model.alignment, &text);
    CHECK(!text.failed && !strstr(text.data, "region.host"));
    REQUIRE_OK(cr_trace_read_bytes(text.data, text.length, "log.csv", &trace));
    REQUIRE_OK(cr_trace_find_loop(&trace, "log.csv", &loop));
    REQUIRE_OK(cr_trace_plan(&trace, &loop, CR_TRACE_BY_USE, s.cost_model.alignment, &plan));
    CHECK_INT(plan.bound, s.program.bound_bytes);
    CHECK(plan.persistent <= cr_param_store_bytes(&s.model.store) + s.program.region_bytes[CR_REGION_INPUT] + 8 * 256);
    cr_trace_plan_free(&plan);
    cr_trace_free(&trace);
    cr_text_free(&text);
    offload_run_close(&s);
}

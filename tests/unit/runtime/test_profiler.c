/* tests/unit/runtime/test_profiler.c: the profiler on an asynchronous device, simulated on the CPU with its own clock:
 * the test chooses the time of every launch, so the results of the profiler can be compared exactly. */
#include "runtime/profiler.h"
#include "tests/harness/fake_device.h"
#include "tests/harness/network_support.h"

enum { PASSES = 5, SLOW_PASS = 5 };

static struct {
    int replays, passes, events;
    int replays_before_pass; /* the minimum of all passes */
    int replays_since;
} fake;

static double op_seconds(int op) {
    return 1e-6 * (1 + (int64_t)op * 7919 % 997);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const int op = (int)(call->op - call->program->op);
    if (is_capturing) return clock_s += op_seconds(op), CR_OK;
    if (op == 0) { /* a pass begins; the very first is the run before the capture */
        if (fake.passes++ > 0) fake.replays_before_pass = CR_MIN(fake.replays_before_pass, fake.replays_since);
        fake.replays_since = 0;
    }
    clock_s += (fake.passes == SLOW_PASS ? 50 : 1) * op_seconds(op); /* one is slower: the median must not change */
    return cpu_kernels[call->op->kernel]->launch(device, call);
}
static cr_status count_created(struct cr_device *device, void **event) {
    return fake.events++, event_create(device, event);
}
static void count_destroyed(struct cr_device *device, void *event) {
    fake.events -= event != NULL;
    event_destroy(device, event);
}
static cr_status elapsed_without_event(struct cr_device *device, void *from, void *to, double *seconds) {
    CR_TRY(elapsed(device, from, to, seconds));
    *seconds -= event_s;
    return CR_OK;
}
static cr_status count_replays(struct cr_device *device, void *graph) {
    fake.replays++;
    fake.replays_since++;
    return replay(device, graph);
}

static void make_asynchronous(struct cr_device *device) {
    memset(&fake, 0, sizeof fake);
    fake.replays_before_pass = 1000;
    fake_wrap(device, launch);
    event_s                     = 1e-6; /* an event takes a moment itself, which belongs to no op */
    wrapped_async.event_create  = count_created;
    wrapped_async.event_destroy = count_destroyed;
    wrapped_async.elapsed       = elapsed_without_event;
    wrapped_async.graph_launch  = count_replays;
}

/* A training program that has run once. */
static cr_status open_trained(struct net *n) {
    static const char *const overrides[] = {"model.arch=custom", "model.depths=1,1",    "model.widths=4,8",
                                            "model.stem=cifar",  "data.kind=synthetic", "data.image_size=8",
                                            "train.batch=2"};
    const struct net_plan    plan        = {.overrides     = overrides,
                                            .count         = CR_COUNT(overrides),
                                            .kind          = CR_PROGRAM_STEP,
                                            .classes       = 10,
                                            .size          = 8,
                                            .batch         = 2,
                                            .device        = {.threads = 1, .ref_only = true},
                                            .fuse          = true,
                                            .change_device = make_asynchronous};
    CR_TRY(net_open(n, &plan));
    CR_TRY(n->device->backend->init_store(n->device, &n->model.store, n->config, n->memory.region[CR_REGION_STORE]));
    return net_train(n, 1, 10);
}

/* ---- cases ---- */

TEST(every_op_gets_its_own_time) {
    struct net                 n    = {0};
    struct cr_profile          p    = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    double                     sum  = 0;
    REQUIRE_OK(open_trained(&n));
    const int64_t runs = cr_exec_runs(n.exec);
    REQUIRE_OK(cr_profile_open(n.exec, &n.program, n.device, &step, PASSES, &p));
    for (int i = 0; i < n.program.ops; i++) {
        const double want = op_seconds(i);
        CHECK_INT(p.op[i].op, i);
        CHECK_NEAR(p.op[i].seconds, want, 1e-12);
        CHECK_NEAR(p.op[i].roofline_s,
                   fmax(p.op[i].bytes / n.device->caps.bytes_per_s, p.op[i].flops / n.device->caps.flops_per_s), 1e-15);
        sum += want;
    }
    CHECK_NEAR(p.sum_s, sum, 1e-9);
    CHECK_NEAR(p.whole_s, sum, 1e-4);       /* the replay with its events and copies */
    CHECK_INT(fake.passes, 1 + 1 + PASSES); /* the run before the capture, one to try, and those that count */
    CHECK(fake.replays_before_pass >= 2);
    CHECK_INT(cr_exec_runs(n.exec) - runs, fake.replays); /* passes with events are not runs */
    cr_profile_close(&p);
    net_close(&n);
    CHECK_INT(fake.events, 0);
}

TEST(tables_are_sorted_and_sums_agree) {
    OWNED(net)                 n    = {0};
    struct cr_profile          p    = {0};
    struct cr_text             text = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    double                     sum = 0, fraction = 0, ms, part;
    int                        lines = 0, op;
    REQUIRE_OK(open_trained(&n));
    REQUIRE_OK(cr_profile_open(n.exec, &n.program, n.device, &step, 1, &p));
    cr_profile_sort_slowest_first(&p);
    for (int i = 1; i < n.program.ops; i++) CHECK(p.op[i].seconds <= p.op[i - 1].seconds);
    cr_profile_print_json(&p, &text);
    for (char *line = text.data; line && sscanf(line, "{\"op\": %d,", &op) == 1;
         line       = strchr(line, '\n') + 1, lines++) {
        const char *at = strstr(line, "\"ms\": ");
        REQUIRE(at && sscanf(at, "\"ms\": %lf, \"fraction\": %lf", &ms, &part) == 2);
        sum += ms;
        fraction += part;
    }
    CHECK_INT(lines, n.program.ops);
    CHECK_NEAR(sum, p.sum_s * 1e3, 1e-3);
    CHECK_NEAR(fraction, 1, 1e-4);
    cr_text_free(&text);
    cr_profile_print(&p, &text);
    CHECK_HAS(text.data, "layer2.0.conv1");
    CHECK_HAS(text.data, "ref.conv_grad"); /* the ops that the reference accepts are fused */
    CHECK_HAS(text.data, "sum of");
    cr_text_free(&text);
    cr_profile_close(&p);
}

/* With typical rates (the CPU) no percentages are shown, since they would exceed 100; with known rates all are. */
TEST(roofline_needs_known_rates) {
    OWNED(net)                 n    = {0};
    struct cr_profile          p    = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    REQUIRE_OK(open_trained(&n));
    CHECK(n.device->caps.typical_rates); /* the fake device has the capabilities of the CPU */
    REQUIRE_OK(cr_profile_open(n.exec, &n.program, n.device, &step, 1, &p));
    for (int known = 0; known < 2; known++) {
        OWNED(text) text = {0}, json = {0};
        char        want[64]         = "\"roofline_ms\": null";
        double      sum              = 0;
        n.device->caps.typical_rates = !known;
        for (int i = 0; i < n.program.ops; i++) sum += p.op[i].roofline_s;
        if (known) snprintf(want, sizeof want, "\"roofline_ms\": %.5f", sum * 1e3);
        cr_profile_print(&p, &text);
        cr_profile_print_json(&p, &json);
        CHECK_HAS(json.data, want);
        CHECK_INT(strstr(json.data, "\"roofline\": null") == NULL, known);
        CHECK_INT(strstr(text.data, "at the roofline") != NULL, known);
        CHECK_INT(strstr(text.data, "roofline: none on this device") == NULL, known);
    }
    cr_profile_close(&p);
}

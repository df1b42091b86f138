/* tests/unit/runtime/test_profiler.c: the profiler on an asynchronous device, simulated on the CPU with its own clock:
 * the test chooses the time of every launch, so the results of the profiler can be compared exactly. */
#include "compiler/compiler.h"
#include "model/model.h"
#include "runtime/profiler.h"
#include "tests/harness/test.h"

enum { KERNELS_MAX = 256, PASSES = 5, SLOW_PASS = 3 };

/* ---- the fake device ---- */

static struct {
    const struct cr_kernel *const *real_kernels;
    struct cr_kernel               kernel[KERNELS_MAX];
    const struct cr_kernel        *kernels[KERNELS_MAX + 1];
    struct cr_backend              backend;
    struct cr_async                async;
    int64_t                        now, captured; /* microseconds; captured: of the current capture */
    bool                           capturing;
    int                            replays, passes, events;
    int                            replays_before_pass; /* the minimum of all passes */
    int                            replays_since;
} fake;

static int64_t cost_us(const struct cr_call *call) {
    const int     op   = (int)(call->op - call->program->op);
    const int64_t time = 1 + (int64_t)op * 7919 % 997;
    return fake.passes == SLOW_PASS ? 50 * time : time; /* one pass is slower: the median must not change */
}

static cr_status fake_launch(struct cr_device *device, const struct cr_call *call) {
    if (fake.capturing) {
        fake.captured += 1 + (int64_t)(call->op - call->program->op) * 7919 % 997;
        return CR_OK;
    }
    if (call->op == call->program->op) { /* a pass begins; the very first is the run before the capture */
        if (fake.passes++ > 0) fake.replays_before_pass = CR_MIN(fake.replays_before_pass, fake.replays_since);
        fake.replays_since = 0;
    }
    fake.now += cost_us(call);
    return fake.real_kernels[call->op->kernel]->launch(device, call);
}

static cr_status host_reserve(struct cr_device *device, size_t bytes, void **out) {
    (void)device;
    *out = calloc(bytes, 1);
    return *out ? CR_OK : CR_NO_MEMORY(bytes);
}
static void host_release(struct cr_device *device, void *host) {
    (void)device;
    free(host);
}
static cr_status put(struct cr_device *device, enum cr_stream stream, void *dst, const void *host, size_t bytes) {
    (void)device, (void)stream;
    memcpy(dst, host, bytes);
    return CR_OK;
}
static cr_status event_create(struct cr_device *device, void **event) {
    fake.events++;
    return host_reserve(device, sizeof(int64_t), event);
}
static void event_destroy(struct cr_device *device, void *event) {
    (void)device;
    fake.events -= event != NULL;
    free(event);
}
static cr_status event_record(struct cr_device *device, enum cr_stream stream, void *event) {
    (void)device, (void)stream;
    *(int64_t *)event = fake.now++; /* an event takes a moment itself, which belongs to no op */
    return CR_OK;
}
static cr_status stream_wait_event(struct cr_device *device, enum cr_stream stream, void *event) {
    (void)device, (void)stream, (void)event;
    return CR_OK;
}
static cr_status host_wait(struct cr_device *device, void *event) {
    (void)device, (void)event;
    return CR_OK;
}
static cr_status elapsed(struct cr_device *device, void *from, void *to, double *seconds) {
    (void)device;
    *seconds = (double)(*(int64_t *)to - *(int64_t *)from - 1) * 1e-6;
    return CR_OK;
}
static cr_status capture_begin(struct cr_device *device) {
    (void)device;
    fake.capturing = true;
    return CR_OK;
}
static cr_status capture_end(struct cr_device *device, void **capturing) {
    fake.capturing = false;
    CR_TRY(host_reserve(device, sizeof(int64_t), capturing));
    *(int64_t *)*capturing = fake.captured;
    return CR_OK;
}
static cr_status replay(struct cr_device *device, void *capturing) {
    (void)device;
    fake.now += *(int64_t *)capturing;
    fake.replays++;
    fake.replays_since++;
    return CR_OK;
}
static void graph_destroy(struct cr_device *device, void *capturing) {
    host_release(device, capturing);
}
static cr_status get_small(struct cr_device *d, enum cr_stream stream, void *const *host, const void *const *src,
                           const size_t *bytes, int count) {
    for (int i = 0; i < count; i++) CR_TRY(put(d, stream, host[i], src[i], bytes[i]));
    return CR_OK;
}
/* For the input feed: not an event of the profiler, which determines the clock. */
static cr_status event_record_external(struct cr_device *device, enum cr_stream stream, void *event) {
    return (void)device, (void)stream, (void)event, CR_OK;
}
static void range_push(const char *name) {
    (void)name;
}
static void range_pop(void) {}

static cr_status fake_open(struct cr_device **out) {
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    memset(&fake, 0, sizeof fake);
    fake.replays_before_pass = 1000;
    CR_TRY(cr_device_open(CR_DEVICE_CPU, &options, out));
    fake.real_kernels = (*out)->kernels;
    for (int i = 0; fake.real_kernels[i]; i++) {
        CR_ASSERT(i < KERNELS_MAX);
        fake.kernel[i]        = *fake.real_kernels[i];
        fake.kernel[i].launch = fake_launch;
        fake.kernels[i]       = &fake.kernel[i];
    }
    fake.async         = (struct cr_async){.host_reserve          = host_reserve,
                                           .host_release          = host_release,
                                           .put                   = put,
                                           .get                   = put,
                                           .get_small             = get_small,
                                           .move                  = put,
                                           .event_create          = event_create,
                                           .event_destroy         = event_destroy,
                                           .event_record          = event_record,
                                           .event_record_external = event_record_external,
                                           .stream_wait_event     = stream_wait_event,
                                           .host_wait             = host_wait,
                                           .elapsed               = elapsed,
                                           .capture_begin         = capture_begin,
                                           .capture_end           = capture_end,
                                           .graph_launch          = replay,
                                           .graph_destroy         = graph_destroy,
                                           .range_push            = range_push,
                                           .range_pop             = range_pop};
    fake.backend       = *(*out)->backend;
    fake.backend.async = &fake.async;
    (*out)->backend    = &fake.backend;
    (*out)->kernels    = fake.kernels;
    return CR_OK;
}

/* ---- a bound program ---- */

struct net {
    struct cr_device       *device;
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_program       program;
    struct cr_memory        memory;
    struct cr_exec         *exec;
};

static cr_status net_open(struct net *n) {
    static const char *const        overrides[] = {"model.arch=custom", "model.depths=1,1",    "model.widths=4,8",
                                                   "model.stem=cifar",  "data.kind=synthetic", "data.image_size=8",
                                                   "train.batch=2"};
    const struct cr_compile_options options     = {.fuse = true, .reuse = true};
    const struct cr_step_block      step        = {.lr = 0.01f};
    uint8_t                         pixels[2 * 8 * 8 * 3];
    const int32_t                   labels[2] = {1, 2};
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * 37);
    CR_TRY(fake_open(&n->device));
    const struct cr_cost_model cost_model = cr_device_cost_model(n->device);
    CR_TRY(cr_config_open(&n->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(n->config, 10, 8, 8, &n->model));
    cr_model_set_real(&n->model, CR_F32);
    CR_TRY(cr_model_program(&n->model, n->config, CR_PROGRAM_STEP, 2, &n->program));
    CR_TRY(cr_compile(&n->program, &cost_model, &options));
    const struct cr_program *const programs[] = {&n->program};
    CR_TRY(cr_memory_open(&n->memory, n->device, &n->model.store, programs, 1));
    CR_TRY(cr_exec_open(&n->program, &n->memory, &n->exec));
    CR_TRY(n->device->backend->init_store(n->device, &n->model.store, n->config, n->memory.region[CR_REGION_STORE]));
    CR_TRY(cr_exec_feed(n->exec, pixels, labels, NULL));
    return cr_exec_run(n->exec, &step);
}

static void net_close(struct net *n) {
    cr_exec_close(n->exec);
    cr_memory_close(&n->memory);
    cr_program_free(&n->program);
    cr_model_close(&n->model);
    cr_config_close(n->config);
    cr_device_close(n->device);
}

/* ---- cases ---- */

static void every_op_gets_its_own_time(void) {
    struct net                 n    = {0};
    struct cr_profile          p    = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    double                     sum  = 0;
    cr_log_quiet(true);
    REQUIRE_OK(net_open(&n));
    const int64_t runs = cr_exec_runs(n.exec);
    REQUIRE_OK(cr_profile_open(n.exec, &n.program, n.device, &step, PASSES, &p));
    for (int i = 0; i < n.program.ops; i++) {
        const double want = (double)(1 + (int64_t)i * 7919 % 997) * 1e-6;
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
    CHECK_INT(cr_alloc_live(), 0);
}

static void tables_are_sorted_and_sums_agree(void) {
    struct net                 n    = {0};
    struct cr_profile          p    = {0};
    struct cr_text             text = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    double                     sum = 0, fraction = 0, ms, part;
    int                        lines = 0, op;
    cr_log_quiet(true);
    REQUIRE_OK(net_open(&n));
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
    net_close(&n);
}

/* With typical rates (the CPU) no percentages are shown, since they would exceed 100; with known rates all are. */
static void roofline_needs_known_rates(void) {
    struct net                 n    = {0};
    struct cr_profile          p    = {0};
    const struct cr_step_block step = {.lr = 0.01f};
    cr_log_quiet(true);
    REQUIRE_OK(net_open(&n));
    CHECK(n.device->caps.typical_rates); /* the fake device has the capabilities of the CPU */
    REQUIRE_OK(cr_profile_open(n.exec, &n.program, n.device, &step, 1, &p));
    for (int known = 0; known < 2; known++) {
        struct cr_text text = {0}, json = {0};
        char           want[64]      = "\"roofline_ms\": null";
        double         sum           = 0;
        n.device->caps.typical_rates = !known;
        for (int i = 0; i < n.program.ops; i++) sum += p.op[i].roofline_s;
        if (known) snprintf(want, sizeof want, "\"roofline_ms\": %.5f", sum * 1e3);
        cr_profile_print(&p, &text);
        cr_profile_print_json(&p, &json);
        CHECK_HAS(json.data, want);
        CHECK_INT(strstr(json.data, "\"roofline\": null") == NULL, known);
        CHECK_INT(strstr(text.data, "at the roofline") != NULL, known);
        CHECK_INT(strstr(text.data, "roofline: none on this device") == NULL, known);
        cr_text_free(&text);
        cr_text_free(&json);
    }
    cr_profile_close(&p);
    net_close(&n);
}

TESTS(CASE(roofline_needs_known_rates), CASE(every_op_gets_its_own_time), CASE(tables_are_sorted_and_sums_agree))

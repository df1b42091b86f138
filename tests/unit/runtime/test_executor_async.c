/* tests/unit/runtime/test_executor_async.c: the executor on an asynchronous device without a GPU: the CPU device with a
 * cr_async that executes at once and fails on demand. The first error is reported, and no resources remain. */
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/fake_device.h"
#include "tests/harness/network_support.h"

/* ---- the device, and an evaluation program on it ---- */

static bool      faulty;
static long long events_destroyed;

static cr_status fault(const char *where) {
    return CR_FAIL(CR_ERR_DEVICE, "fault met again by %s", where);
}
static cr_status sync_or_fail(struct cr_device *d) {
    return faulty ? fault("sync") : CR_OK;
}
static cr_status wait_or_fail(struct cr_device *d, void *event) {
    return sync_or_fail(d);
}
static cr_status end_or_fail(struct cr_device *d, void **out) {
    const cr_status status = capture_end(d, out);
    if (!faulty) return status;
    event_destroy(d, *out);
    return fault("capture_end");
}
static void count_destroyed(struct cr_device *d, void *event) {
    events_destroyed += event != NULL;
    event_destroy(d, event);
}

static void make_asynchronous(struct cr_device *d) {
    fake_wrap(d, NULL);
    faulty                      = false;
    wrapped_backend.sync        = sync_or_fail;
    wrapped_async.host_wait     = wait_or_fail;
    wrapped_async.capture_end   = end_or_fail;
    wrapped_async.event_destroy = count_destroyed;
}

static cr_status bound_open(struct net *n, bool fuse) {
    static const char *const tiny[] = {"model.arch=custom", "model.depths=1,1",    "model.widths=4,6",
                                       "model.classes=3",   "data.kind=synthetic", "data.image_size=8",
                                       "train.device=cpu",  "train.threads=1"};
    const struct net_plan    plan   = {.overrides     = tiny,
                                       .count         = CR_COUNT(tiny),
                                       .kind          = CR_PROGRAM_EVAL,
                                       .classes       = 3,
                                       .size          = 8,
                                       .batch         = 2,
                                       .device        = {.threads = 1, .ref_only = true},
                                       .fuse          = fuse,
                                       .change_device = make_asynchronous};
    return net_open(n, &plan);
}

static void bound_close(struct net *n) {
    faulty = is_capturing = false;
    net_close(n);
}
OWNABLE(bound, struct net, bound_close(x))

/* ---- cases ---- */

TEST(first_error_survives_closing_a_faulty_device) {
    OWNED(bound)          n    = {0};
    struct cr_step_block  step = {0};
    struct cr_exec_result r;
    REQUIRE_OK(bound_open(&n, false));
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    faulty = true;
    CHECK_STATUS(cr_exec_result(n.exec, 1, &r), CR_ERR_DEVICE);
    const char *const first_error = formatted("%s", cr_error_message());
    CHECK(*first_error != 0);
    cr_exec_close(n.exec);
    n.exec = NULL;
    CHECK_STR(cr_error_message(), first_error); /* the main program prints it after everything is closed */
}

TEST(closing_a_faulty_device_reports_no_error) {
    OWNED(bound) n = {0};
    REQUIRE_OK(bound_open(&n, false));
    cr_error_clear();
    faulty = true;
    cr_exec_close(n.exec);
    n.exec = NULL;
    CHECK_STR(cr_error_message(), "");
}

static cr_status launch_breaks(struct cr_device *d, const struct cr_call *call) {
    if (!is_capturing) return CR_OK;
    faulty = true;
    return CR_FAIL(CR_ERR_DEVICE, "the cause");
}

TEST(failed_capture_reports_the_cause) {
    OWNED(bound)         n    = {0};
    struct cr_step_block step = {0};
    REQUIRE_OK(bound_open(&n, false));
    wrapped_kernel[n.program.op[0].kernel].launch = launch_breaks;
    CHECK_STATUS(cr_exec_run(n.exec, &step), CR_ERR_DEVICE);
    CHECK(strstr(cr_error_message(), "the cause") != NULL);
    cr_exec_close(n.exec);
    n.exec = NULL;
    CHECK(strstr(cr_error_message(), "the cause") != NULL);
}

TEST(opening_survives_failing_allocations) {
    OWNED(bound)     n = {0};
    struct cr_exec  *exec;
    struct cr_memory memory; /* with its ring of batches */
    REQUIRE_OK(bound_open(&n, false));
    const struct cr_program *all[] = {&n.program};
    for_each_failing_alloc(f, .least = CR_EXEC_RESULTS + 2) { /* result, events, ops */
        const cr_status status = failing_alloc_run(&f, cr_exec_open(&n.program, &n.memory, &exec));
        if (status == CR_OK) cr_exec_close(exec);
    }
    CHECK(events_destroyed > 0);
    for_each_failing_alloc(f, .least = 1) {
        const cr_status status = failing_alloc_run(&f, cr_memory_open(&memory, n.device, &n.model.store, all, 1));
        if (status == CR_OK) cr_memory_close(&memory);
    }
}

static int launched[2][64]; /* [captured][op] */

static cr_status launch_counts(struct cr_device *d, const struct cr_call *call) {
    launched[is_capturing][call->op - call->program->op]++;
    return CR_OK;
}

/* Instead of what the kernels compute. */
static void count_launches(void) {
    for (int i = 0; wrapped_kernels[i]; i++) wrapped_kernel[i].launch = launch_counts;
    memset(launched, 0, sizeof launched);
}

/* True when, since the last call, the ops before `once` ran `early` times, the others `late` times, and the others were
 * captured `captured` times. */
static void check_launches(const struct cr_program *p, int early, int late, int captured) {
    for (int i = 0; i < p->ops; i++) {
        CHECK_INT(launched[0][i], i < p->hoisted ? early : late);
        CHECK_INT(launched[1][i], i < p->hoisted ? 0 : captured);
    }
    memset(launched, 0, sizeof launched);
}

/* Ops that read only parameters stay out of the captured graph, and run again only on request. */
TEST(hoisted_ops_run_once_and_are_not_captured) {
    struct cr_step_block step = {0};
    OWNED(bound)         n    = {0};
    REQUIRE_OK(bound_open(&n, true));
    CHECK(n.program.hoisted > 1 && n.program.ops - n.program.hoisted > 1 && n.program.ops <= 64);
    count_launches();
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    check_launches(&n.program, 1, 1, 1);
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    check_launches(&n.program, 0, 0, 0); /* replayed */
    cr_exec_refresh(n.exec);
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    check_launches(&n.program, 1, 0, 0);
    REQUIRE_OK(cr_exec_run(n.exec, &step));
    check_launches(&n.program, 0, 0, 0);
}

static int separations[2]; /* [captured] */

static cr_status separate_counts(struct cr_device *d, enum cr_stream stream) {
    separations[is_capturing]++;
    return CR_OK;
}

/* Ops that run outside the graph, hoisted or not, begin when all earlier work is complete, as the graph does. */
TEST(runs_outside_the_graph_are_separated_from_earlier_work) {
    struct cr_step_block step = {0};
    OWNED(bound)         n    = {0};
    REQUIRE_OK(bound_open(&n, true));
    wrapped_async.separate = separate_counts;
    memset(separations, 0, sizeof separations);
    REQUIRE_OK(cr_exec_run(n.exec, &step)); /* hoisted ops, the others, and the capture of the others */
    CHECK_INT(separations[0], 2);
    CHECK_INT(separations[1], 0);
    REQUIRE_OK(cr_exec_run(n.exec, &step)); /* replayed */
    CHECK_INT(separations[0], 2);
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, 0, n.program.ops - 1));
    CHECK_INT(separations[0], 4);
    REQUIRE_OK(cr_exec_run_range(n.exec, &step, n.program.ops - 1, n.program.ops - 1));
    CHECK_INT(separations[0], 5);
}

/* A hook with recapture_runs: the graph is captured again before every second run, and once when a hook is added. */
TEST(hooks_are_captured_again) {
    const struct cr_launch_hook plain = {0}, changing = {.recapture_runs = 2};
    struct cr_step_block        step = {0};
    OWNED(bound)                n    = {0};
    REQUIRE_OK(bound_open(&n, false));
    count_launches();
    for (int run = 0; run < 7; run++) {
        const bool captured = run == 0 || run == 2 || run == 4 || run == 6;
        if (run == 2) REQUIRE_OK(cr_exec_add_hook(n.exec, &plain));
        if (run == 3) REQUIRE_OK(cr_exec_add_hook(n.exec, &changing));
        REQUIRE_OK(cr_exec_run(n.exec, &step));
        check_launches(&n.program, 0, captured || run == 3, captured || run == 3);
    }
}

/* ---- batches of two programs in one INPUT region ---- */

static char   what[64]; /* in order: m an event on the compute stream, w the other stream waits, p images */
static size_t whats;

static void note(char c) {
    if (whats + 1 < sizeof what) what[whats++] = c;
}
static cr_status noted_event(struct cr_device *d, enum cr_stream stream, void *event) {
    if (stream == CR_STREAM_COMPUTE) note('m');
    return fake_order(d, stream, event);
}
static cr_status noted_wait(struct cr_device *d, enum cr_stream stream, void *event) {
    if (stream == CR_STREAM_TO_DEVICE) note('w');
    return fake_order(d, stream, event);
}
static cr_status noted_put(struct cr_device *d, enum cr_stream stream, void *to, const void *host, size_t bytes) {
    note('p');
    return fake_move(d, stream, to, host, bytes);
}

static const unsigned char batch[256];

/* The calls before the images of a batch. */
static void check_send(struct net *n, struct cr_feed_ring *ring, int64_t image_bytes, void *input, const char *want) {
    struct cr_tensor        images = {.bytes = (size_t)image_bytes};
    const struct cr_program p = {.tensor = &images, .tensors = 1, .region_bytes[CR_REGION_INPUT] = images.bytes + 16};
    void                   *host;
    memset(what, 0, sizeof what);
    whats = 0;
    REQUIRE_OK(cr_feed_slot(n->device, ring, NULL, 0, &host));
    REQUIRE_OK(cr_feed_send(n->device, ring, &p, batch, &(const struct cr_feed){0}, input));
    *strchr(what, 'p') = 0;
    CHECK_STR(what, want);
}

/* Every byte and none next to it; many pieces, parts of one, nothing. */
TEST(large_batches_are_copied_completely) {
    static const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (4 << 20) + 1, (13 << 20) + 7};
    const size_t        room    = (14 << 20) + 64;
    struct cr_rng       rng     = cr_rng_make(7, CR_RNG_TEST, 0, 0);
    OWNED(bytes)        from = cr_alloc(room, 1), to = cr_alloc(room, 1);
    REQUIRE(from && to);
    for (size_t i = 0; i + 4 <= room; i += 4) memcpy(from + i, &(uint32_t){cr_rng_u32(&rng)}, 4);
    for (size_t k = 0; k < CR_COUNT(sizes); k++) {
        memset(to, 0x5a, room);
        cr_feed_copy(to + 3, from + 5, sizes[k]);
        CHECK(memcmp(to + 3, from + 5, sizes[k]) == 0);
        CHECK(to[2] == 0x5a && to[3 + sizes[k]] == 0x5a);
    }
}

/* New images wait until the previous run has read its own; where they extend beyond those, to its labels, they wait for
 * its end. */
TEST(larger_images_wait_for_the_end_of_the_previous_run) {
    OWNED(bound)         n = {0};
    struct cr_feed_ring *ring;
    unsigned char        input[256];
    REQUIRE_OK(bound_open(&n, false));
    wrapped_async.event_record      = noted_event;
    wrapped_async.stream_wait_event = noted_wait;
    wrapped_async.put               = noted_put;
    REQUIRE_OK(cr_feed_open(n.device, sizeof input, 16, &ring));
    check_send(&n, ring, 96, input, "w");
    check_send(&n, ring, 96, input, "w");
    check_send(&n, ring, 192, input, "mw");
    check_send(&n, ring, 192, input, "w");
    check_send(&n, ring, 96, input, "w"); /* within the images of the previous run */
    check_send(&n, ring, 192, input, "mw");
    cr_feed_close(n.device, ring);
}

/* Images in ordinary memory are copied at once, so the caller may change them. Images that are fed in place are read by
 * the device later, at their own address. Labels are copied at once in both cases. */
static const void *put_from[8];
static int         puts_noted;

static cr_status noted_source(struct cr_device *d, enum cr_stream stream, void *to, const void *host, size_t bytes) {
    if (puts_noted < (int)CR_COUNT(put_from)) put_from[puts_noted++] = host;
    return fake_move(d, stream, to, host, bytes);
}

TEST(images_are_copied_from_where_they_are) {
    enum { BYTES = 2 * 8 * 8 * 3 };
    OWNED(bound)  n = {0};
    uint8_t       images[BYTES], got[BYTES];
    const int32_t labels[2] = {1, 2};
    int32_t       got_labels[2];
    REQUIRE_OK(bound_open(&n, false));
    wrapped_async.put = noted_source;
    REQUIRE(n.memory.ring && n.program.tensor[n.program.images].bytes == BYTES);
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int i = 0; i < BYTES; i++) images[i] = (uint8_t)(i * 7 + in_place);
        puts_noted                = 0;
        const struct cr_feed feed = {.images = images, .labels = labels, .in_place = in_place};
        REQUIRE_OK(cr_exec_feed_batch(n.exec, &feed));
        CHECK_INT(puts_noted, 2); /* images, then the rest */
        CHECK((put_from[0] == images) == (in_place == 1) && put_from[1] != (const void *)labels);
        REQUIRE_OK(cr_exec_get(n.exec, n.program.images, got));
        REQUIRE_OK(cr_exec_get(n.exec, n.program.labels, got_labels));
        CHECK(memcmp(got, images, BYTES) == 0 && memcmp(got_labels, labels, sizeof labels) == 0);
    }
}

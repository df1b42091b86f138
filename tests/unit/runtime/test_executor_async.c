/* tests/unit/runtime/test_executor_async.c: the executor on an asynchronous device without a GPU: the CPU device with a
 * cr_async that executes at once and fails on demand. The first error is reported, and no resources remain. */
#include "compiler/compiler.h"
#include "core/rng.h"
#include "model/model.h"
#include "runtime/executor.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"

static const char *const tiny[] = {"model.arch=custom",   "model.depths=1,1",  "model.widths=4,6", "model.classes=3",
                                   "data.kind=synthetic", "data.image_size=8", "train.device=cpu", "train.threads=1"};

/* ---- the device ---- */

static bool      faulty, capturing;
static long long events_destroyed;

static cr_status fault(const char *where) {
    return CR_FAIL(CR_ERR_DEVICE, "fault met again by %s", where);
}

static cr_status fake_sync(struct cr_device *d) {
    return (void)d, faulty ? fault("sync") : CR_OK;
}
static cr_status fake_new(struct cr_device *d, size_t bytes, void **out) {
    (void)d;
    void *p = cr_alloc(bytes, 1);
    if (!p) return CR_NO_MEMORY(bytes);
    *out = p;
    return CR_OK;
}
static void fake_free(struct cr_device *d, void *p) {
    (void)d, cr_free(p);
}
static cr_status fake_copy(struct cr_device *d, enum cr_stream stream, void *dst, const void *src, size_t bytes) {
    (void)d, (void)stream;
    memcpy(dst, src, bytes);
    return CR_OK;
}
static cr_status fake_event_create(struct cr_device *d, void **event) {
    return fake_new(d, 1, event);
}
static void fake_event_destroy(struct cr_device *d, void *event) {
    (void)d, events_destroyed += event != NULL, cr_free(event);
}
static cr_status fake_event_record(struct cr_device *d, enum cr_stream stream, void *event) {
    return (void)d, (void)stream, (void)event, CR_OK;
}
static cr_status fake_wait(struct cr_device *d, void *event) {
    return (void)event, fake_sync(d);
}
static cr_status fake_begin(struct cr_device *d) {
    return (void)d, capturing = true, CR_OK;
}
static cr_status fake_end(struct cr_device *d, void **out) {
    capturing = false;
    return faulty ? fault("capture_end") : fake_new(d, 1, out);
}
static cr_status fake_replay(struct cr_device *d, void *r) {
    return (void)d, (void)r, CR_OK;
}
static cr_status fake_get_small(struct cr_device *d, enum cr_stream stream, void *const *host, const void *const *src,
                                const size_t *bytes, int count) {
    for (int i = 0; i < count; i++) CR_TRY(fake_copy(d, stream, host[i], src[i], bytes[i]));
    return CR_OK;
}
static void fake_push(const char *name) {
    (void)name;
}
static void fake_pop(void) {}

static const struct cr_async fake_async = {.host_reserve          = fake_new,
                                           .host_release          = fake_free,
                                           .put                   = fake_copy,
                                           .get                   = fake_copy,
                                           .get_small             = fake_get_small,
                                           .move                  = fake_copy,
                                           .event_create          = fake_event_create,
                                           .event_destroy         = fake_event_destroy,
                                           .event_record          = fake_event_record,
                                           .event_record_external = fake_event_record,
                                           .stream_wait_event     = fake_event_record,
                                           .host_wait             = fake_wait,
                                           .capture_begin         = fake_begin,
                                           .capture_end           = fake_end,
                                           .graph_launch          = fake_replay,
                                           .graph_destroy         = fake_free,
                                           .range_push            = fake_push,
                                           .range_pop             = fake_pop};

/* ---- a bound evaluation program ---- */

struct bound { /* the objects that an executor needs */
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_backend       backend;
    struct cr_device       *device;
    struct cr_program       program;
    struct cr_memory        memory;
    const struct cr_kernel *kernels[512];
    struct cr_kernel        broken;
};

static cr_status launch_breaks(struct cr_device *d, const struct cr_call *call) {
    (void)d, (void)call;
    if (!capturing) return CR_OK;
    faulty = true;
    return CR_FAIL(CR_ERR_DEVICE, "the cause");
}

/* With `breaks`, the kernel of the first op only fails during capture. */
static cr_status bound_open(struct bound *b, bool breaks) {
    const struct cr_device_options  options = {.threads = 1, .ref_only = true};
    const struct cr_compile_options how     = {.reuse = true};
    const struct cr_program        *all[]   = {&b->program};
    int                             count   = 0;
    *b                                      = (struct bound){0};
    CR_TRY(cr_config_open(&b->config, NULL, tiny, CR_COUNT(tiny)));
    CR_TRY(cr_model_open(b->config, 3, 8, 8, &b->model));
    CR_TRY(cr_device_open(CR_DEVICE_CPU, &options, &b->device));
    b->backend                      = *b->device->backend;
    b->backend.async                = &fake_async;
    b->backend.sync                 = fake_sync;
    b->device->backend              = &b->backend;
    struct cr_cost_model cost_model = cr_device_cost_model(b->device);
    CR_TRY(cr_model_program(&b->model, b->config, CR_PROGRAM_EVAL, 2, &b->program));
    CR_TRY(cr_compile(&b->program, &cost_model, &how));
    for (const struct cr_kernel *const *kernel = b->device->kernels; *kernel; kernel++) b->kernels[count++] = *kernel;
    b->broken        = *b->kernels[b->program.op[0].kernel];
    b->broken.launch = launch_breaks;
    if (breaks) b->kernels[b->program.op[0].kernel] = &b->broken;
    b->device->kernels = b->kernels;
    return cr_memory_open(&b->memory, b->device, &b->model.store, all, 1);
}

static void bound_close(struct bound *b) {
    faulty = capturing = false;
    cr_memory_close(&b->memory);
    cr_program_free(&b->program);
    cr_device_close(b->device);
    cr_model_close(&b->model);
    cr_config_close(b->config);
}

/* ---- cases ---- */

static void first_error_survives_closing_a_faulty_device(void) {
    struct bound          b;
    struct cr_exec       *exec;
    struct cr_step_block  step = {0};
    struct cr_exec_result r;
    REQUIRE_OK(bound_open(&b, false));
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    REQUIRE_OK(cr_exec_run(exec, &step));
    faulty = true;
    CHECK_STATUS(cr_exec_result(exec, 1, &r), CR_ERR_DEVICE);
    char first_error[256];
    snprintf(first_error, sizeof first_error, "%s", cr_error_message());
    CHECK(*first_error != 0);
    cr_exec_close(exec);
    CHECK_STR(cr_error_message(), first_error); /* the main program prints it after everything is closed */
    bound_close(&b);
}

static void closing_a_faulty_device_reports_no_error(void) {
    struct bound    b;
    struct cr_exec *exec;
    REQUIRE_OK(bound_open(&b, false));
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    cr_error_clear();
    faulty = true;
    cr_exec_close(exec);
    CHECK_STR(cr_error_message(), "");
    bound_close(&b);
}

static void failed_capture_reports_the_cause(void) {
    struct bound         b;
    struct cr_exec      *exec;
    struct cr_step_block step = {0};
    REQUIRE_OK(bound_open(&b, true));
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    CHECK_STATUS(cr_exec_run(exec, &step), CR_ERR_DEVICE);
    CHECK(strstr(cr_error_message(), "the cause") != NULL);
    cr_exec_close(exec);
    CHECK(strstr(cr_error_message(), "the cause") != NULL);
    bound_close(&b);
}

static void opening_survives_failing_allocations(void) {
    struct bound    b;
    struct cr_exec *exec;
    REQUIRE_OK(bound_open(&b, false));
    for_each_failing_alloc(f, .least = CR_EXEC_RESULTS + 2) { /* result, events, ops */
        failing_alloc_begin(&f);
        const cr_status status = cr_exec_open(&b.program, &b.memory, &exec);
        failing_alloc_end(&f, status);
        if (status == CR_OK) cr_exec_close(exec);
    }
    CHECK(events_destroyed > 0);
    bound_close(&b);
}

/* ---- hoisted ops ---- */

static int launched[2][64]; /* [captured][op] */

static cr_status launch_counts(struct cr_device *d, const struct cr_call *call) {
    (void)d;
    launched[capturing][call->op - call->program->op]++;
    return CR_OK;
}

/* Instead of what the kernels compute. */
static void count_launches(struct bound *b) {
    static struct cr_kernel counted[512];
    for (int i = 0; b->kernels[i]; i++) {
        counted[i]        = *b->kernels[i];
        counted[i].launch = launch_counts;
        b->kernels[i]     = &counted[i];
    }
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
static void hoisted_ops_run_once_and_are_not_captured(void) {
    const struct cr_compile_options how  = {.reuse = true, .fuse = true};
    struct cr_step_block            step = {0};
    struct bound                    b;
    struct cr_exec                 *exec;
    REQUIRE_OK(bound_open(&b, false));
    cr_program_free(&b.program);
    struct cr_cost_model cost_model = cr_device_cost_model(b.device);
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_EVAL, 2, &b.program));
    REQUIRE_OK(cr_compile(&b.program, &cost_model, &how));
    CHECK(b.program.hoisted > 1 && b.program.ops - b.program.hoisted > 1 && b.program.ops <= 64);
    count_launches(&b);
    cr_memory_close(&b.memory);
    const struct cr_program *all[] = {&b.program};
    REQUIRE_OK(cr_memory_open(&b.memory, b.device, &b.model.store, all, 1));
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    REQUIRE_OK(cr_exec_run(exec, &step));
    check_launches(&b.program, 1, 1, 1);
    REQUIRE_OK(cr_exec_run(exec, &step));
    check_launches(&b.program, 0, 0, 0); /* replayed */
    cr_exec_refresh(exec);
    REQUIRE_OK(cr_exec_run(exec, &step));
    check_launches(&b.program, 1, 0, 0);
    REQUIRE_OK(cr_exec_run(exec, &step));
    check_launches(&b.program, 0, 0, 0);
    cr_exec_close(exec);
    bound_close(&b);
}

/* A hook with recapture_runs: the graph is captured again before every second run, and once when a hook is added. */
static void hooks_are_captured_again(void) {
    const struct cr_launch_hook plain = {0}, changing = {.recapture_runs = 2};
    struct cr_step_block        step = {0};
    struct bound                b;
    struct cr_exec             *exec;
    REQUIRE_OK(bound_open(&b, false));
    count_launches(&b);
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    for (int run = 0; run < 7; run++) {
        const bool captured = run == 0 || run == 2 || run == 4 || run == 6;
        if (run == 2) REQUIRE_OK(cr_exec_add_hook(exec, &plain));
        if (run == 3) REQUIRE_OK(cr_exec_add_hook(exec, &changing));
        REQUIRE_OK(cr_exec_run(exec, &step));
        check_launches(&b.program, 0, captured || run == 3, captured || run == 3);
    }
    cr_exec_close(exec);
    bound_close(&b);
}

/* Ring buffer included. */
static void memory_survives_failing_allocations(void) {
    struct bound     b;
    struct cr_memory m;
    REQUIRE_OK(bound_open(&b, false));
    const struct cr_program *all[] = {&b.program};
    for_each_failing_alloc(f, .least = 1) {
        failing_alloc_begin(&f);
        const cr_status status = cr_memory_open(&m, b.device, &b.model.store, all, 1);
        failing_alloc_end(&f, status);
        if (status == CR_OK) cr_memory_close(&m);
    }
    bound_close(&b);
}

/* ---- batches of two programs in one INPUT region ---- */

static char   what[64]; /* in order: m an event on the compute stream, w the other stream waits, p images */
static size_t whats;

static void note(char c) {
    if (whats + 1 < sizeof what) what[whats++] = c;
}
static cr_status noted_event(struct cr_device *d, enum cr_stream stream, void *event) {
    if (stream == CR_STREAM_COMPUTE) note('m');
    return fake_event_record(d, stream, event);
}
static cr_status noted_wait(struct cr_device *d, enum cr_stream stream, void *event) {
    if (stream == CR_STREAM_TO_DEVICE) note('w');
    return fake_event_record(d, stream, event);
}
static cr_status noted_put(struct cr_device *d, enum cr_stream stream, void *to, const void *host, size_t bytes) {
    note('p');
    return fake_copy(d, stream, to, host, bytes);
}

static const unsigned char batch[256];

/* The calls before the images of a batch. */
static void check_send(struct bound *b, struct cr_feed_ring *ring, int64_t image_bytes, void *input, const char *want) {
    struct cr_tensor        images = {.bytes = (size_t)image_bytes};
    const struct cr_program p = {.tensor = &images, .tensors = 1, .region_bytes[CR_REGION_INPUT] = images.bytes + 16};
    void                   *host;
    memset(what, 0, sizeof what);
    whats = 0;
    REQUIRE_OK(cr_feed_slot(b->device, ring, &host));
    REQUIRE_OK(cr_feed_send(b->device, ring, &p, batch, NULL, input));
    *strchr(what, 'p') = 0;
    CHECK_STR(what, want);
}

/* Every byte and none next to it; many pieces, parts of one, nothing. */
static void large_batches_are_copied_completely(void) {
    static const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (4 << 20) + 1, (13 << 20) + 7};
    const size_t        room    = (14 << 20) + 64;
    struct cr_rng       rng     = cr_rng_make(7, CR_RNG_TEST, 0, 0);
    uint8_t            *from = cr_alloc(room, 1), *to = cr_alloc(room, 1);
    REQUIRE(from && to);
    for (size_t i = 0; i + 4 <= room; i += 4) memcpy(from + i, &(uint32_t){cr_rng_u32(&rng)}, 4);
    for (size_t k = 0; k < CR_COUNT(sizes); k++) {
        memset(to, 0x5a, room);
        cr_feed_copy(to + 3, from + 5, sizes[k]);
        CHECK(memcmp(to + 3, from + 5, sizes[k]) == 0);
        CHECK(to[2] == 0x5a && to[3 + sizes[k]] == 0x5a);
    }
    cr_free(from);
    cr_free(to);
}

/* New images wait until the previous run has read its own; where they extend beyond those, to its labels, they wait for
 * its end. */
static void larger_images_wait_for_the_end_of_the_previous_run(void) {
    struct bound         b;
    struct cr_feed_ring *ring;
    struct cr_async      noted = fake_async;
    unsigned char        input[256];
    noted.event_record      = noted_event;
    noted.stream_wait_event = noted_wait;
    noted.put               = noted_put;
    REQUIRE_OK(bound_open(&b, false));
    b.backend.async = &noted;
    REQUIRE_OK(cr_feed_open(b.device, sizeof input, 16, &ring));
    check_send(&b, ring, 96, input, "w");
    check_send(&b, ring, 96, input, "w");
    check_send(&b, ring, 192, input, "mw");
    check_send(&b, ring, 192, input, "w");
    check_send(&b, ring, 96, input, "w"); /* within the images of the previous run */
    check_send(&b, ring, 192, input, "mw");
    cr_feed_close(b.device, ring);
    bound_close(&b);
}

/* Images in ordinary memory are copied at once, so the caller may change them. Images that are fed in place are read by
 * the device later, at their own address. Labels are copied at once in both cases. */
static const void *put_from[8];
static int         puts_noted;

static cr_status noted_source(struct cr_device *d, enum cr_stream stream, void *to, const void *host, size_t bytes) {
    if (puts_noted < (int)CR_COUNT(put_from)) put_from[puts_noted++] = host;
    return fake_copy(d, stream, to, host, bytes);
}

static void images_are_copied_from_where_they_are(void) {
    enum { BYTES = 2 * 8 * 8 * 3 };
    struct bound    b;
    struct cr_exec *exec;
    struct cr_async noted = fake_async;
    uint8_t         images[BYTES], got[BYTES];
    const int32_t   labels[2] = {1, 2};
    int32_t         got_labels[2];
    noted.put = noted_source;
    REQUIRE_OK(bound_open(&b, false));
    b.backend.async = &noted;
    REQUIRE_OK(cr_exec_open(&b.program, &b.memory, &exec));
    REQUIRE(b.memory.ring && b.program.tensor[b.program.images].bytes == BYTES);
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int i = 0; i < BYTES; i++) images[i] = (uint8_t)(i * 7 + in_place);
        puts_noted = 0;
        REQUIRE_OK(in_place ? cr_exec_feed_in_place(exec, images, labels, NULL, NULL)
                            : cr_exec_feed_mixed(exec, images, labels, NULL, NULL));
        CHECK_INT(puts_noted, 2); /* images, then the rest */
        CHECK((put_from[0] == images) == (in_place == 1) && put_from[1] != (const void *)labels);
        REQUIRE_OK(cr_exec_get(exec, b.program.images, got));
        REQUIRE_OK(cr_exec_get(exec, b.program.labels, got_labels));
        CHECK(memcmp(got, images, BYTES) == 0 && memcmp(got_labels, labels, sizeof labels) == 0);
    }
    cr_exec_close(exec);
    bound_close(&b);
}

TESTS(CASE(images_are_copied_from_where_they_are), CASE(first_error_survives_closing_a_faulty_device),
      CASE(closing_a_faulty_device_reports_no_error), CASE(failed_capture_reports_the_cause),
      CASE(opening_survives_failing_allocations), CASE(hoisted_ops_run_once_and_are_not_captured),
      CASE(hooks_are_captured_again), CASE(memory_survives_failing_allocations),
      CASE(larger_images_wait_for_the_end_of_the_previous_run), CASE(large_batches_are_copied_completely))

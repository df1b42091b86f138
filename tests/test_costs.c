/* test_costs.c: the table of measured costs, on a device that only pretends: each row takes the time it is told to, so the
 * fastest candidate is known. What is asked: the choice, what is measured and what is not, the file and its faults, a
 * checkpoint's table. */
#include "costs.h"
#include "fsutil.h"

#include "data_support.h"

#include <math.h>

/* ---- the device: rows of one op that take as long as they say ---- */

static double    clock_s;       /* the device's time */
static int       launches, prepares, releases;
static double    takes[3][2];   /* seconds by row and way */
static bool      no_memory;

struct prepared {
    int row, way;
};

static cr_status prepare_row(int row, const struct cr_op *op, void **out, size_t *workspace) {
    struct prepared *p = cr_alloc(1, sizeof *p);
    if (!p) return CR_NO_MEMORY(sizeof *p);
    *p         = (struct prepared){row, op->way};
    *out       = p;
    *workspace = 100;
    prepares++;
    return CR_OK;
}
#define PREPARE(n)                                                                                                     \
    static cr_status prepare_##n(struct cr_device *d, const struct cr_program *p, const struct cr_op *op, void **out,  \
                                 size_t *workspace) {                                                                  \
        return (void)d, (void)p, prepare_row(n, op, out, workspace);                                                   \
    }
PREPARE(0)
PREPARE(1)
PREPARE(2)

static cr_status launch_row(struct cr_device *d, const struct cr_call *call) {
    const struct prepared *p = call->prepared;
    (void)d;
    launches++;
    clock_s += takes[p->row][p->way];
    CR_ASSERT(call->workspace && call->in[CR_IN_relu_x] && call->out[CR_OUT_relu_y]);
    return CR_OK;
}
static void release_row(void *p) { releases++, cr_free(p); }
static int  two_ways(struct cr_device *d, const struct cr_program *p, const struct cr_op *op) { return (void)d, (void)p, (void)op, 2; }

static struct cr_kernel row_a = {.name = "fake.a", .op = CR_OP_relu, .deterministic = true, .prepare = prepare_0, .launch = launch_row, .release = release_row};
static struct cr_kernel row_b = {.name = "fake.b", .op = CR_OP_relu, .deterministic = true, .prepare = prepare_1, .launch = launch_row, .release = release_row, .ways = two_ways};
static struct cr_kernel row_c = {.name = "fake.c", .op = CR_OP_relu, .prepare = prepare_2, .launch = launch_row, .release = release_row};
static const struct cr_kernel *rows[] = {&row_a, &row_b, &row_c, NULL};

static cr_status fake_reserve(struct cr_device *d, size_t bytes, void **out) {
    (void)d;
    if (no_memory) return CR_FAIL(CR_ERR_MEMORY, "no memory");
    *out = cr_alloc(bytes, 1);
    return *out ? CR_OK : CR_NO_MEMORY(bytes);
}
static void      fake_release(struct cr_device *d, void *p) { (void)d, cr_free(p); }
static cr_status fake_put(struct cr_device *d, void *dst, const void *src, size_t n) { return (void)d, memcpy(dst, src, n), CR_OK; }
static cr_status fake_move(struct cr_device *d, enum cr_lane l, void *dst, const void *src, size_t n) {
    return (void)d, (void)l, memmove(dst, src, n), CR_OK;
}
static cr_status mark_open(struct cr_device *d, void **m) {
    (void)d;
    *m = cr_alloc(1, sizeof(double));
    return *m ? CR_OK : CR_NO_MEMORY(8);
}
static void      mark_close(struct cr_device *d, void *m) { (void)d, cr_free(m); }
static cr_status mark_set(struct cr_device *d, enum cr_lane l, void *m) { return (void)d, (void)l, *(double *)m = clock_s, CR_OK; }
static cr_status host_wait(struct cr_device *d, void *m) { return (void)d, (void)m, CR_OK; }
static cr_status elapsed(struct cr_device *d, void *a, void *b, double *s) { return (void)d, *s = *(double *)b - *(double *)a, CR_OK; }

static double    recorded_from;
static cr_status record_begin(struct cr_device *d) { return (void)d, recorded_from = clock_s, CR_OK; }
static cr_status record_end(struct cr_device *d, void **out) {
    CR_TRY(mark_open(d, out));
    *(double *)*out = clock_s - recorded_from; /* recording takes no time on the device, replaying does */
    clock_s         = recorded_from;
    return CR_OK;
}
static cr_status replay(struct cr_device *d, void *r) { return (void)d, clock_s += *(double *)r, CR_OK; }

static const struct cr_async fake_async = {
    .move = fake_move, .mark_open = mark_open, .mark_close = mark_close, .mark_set = mark_set, .host_wait = host_wait,
    .elapsed = elapsed, .record_begin = record_begin, .record_end = record_end, .replay = replay, .recording_close = mark_close};
static const struct cr_backend fake_backend = {.name = "fake", .reserve = fake_reserve, .release = fake_release, .put = fake_put,
                                               .async = &fake_async};

/* ---- what every case stands on ---- */

struct stand {
    struct cr_device  device;
    struct cr_program program;
    struct cr_op      op;
    struct cr_costs  *costs;
    char              path[CR_PATH_MAX];
};

static void stand_open(struct stand *s, const char *folder, const char *device) {
    const double as_given[3][2] = {{3e-4, 0}, {2e-4, 1e-4}, {5e-5, 0}};
    *s = (struct stand){.device = {.backend = &fake_backend, .rows = rows, .options = {.deterministic = true}, .caps = {.alignment = 256, .bytes_per_s = 1e9, .flops_per_s = 1e9}}};
    snprintf(s->device.caps.text, sizeof s->device.caps.text, "%s", device);
    memcpy(takes, as_given, sizeof takes);
    launches = prepares = releases = 0;
    no_memory                      = false;
    cr_program_init(&s->program, "p", NULL);
    s->op                   = cr_op_make(CR_OP_relu, CR_NONE);
    s->op.in[CR_IN_relu_x]  = cr_tensor_add(&s->program, "x", CR_F16, CR_REGION_POOL, 2, 4, 4, 8);
    s->op.out[CR_OUT_relu_y] = cr_tensor_add(&s->program, "y", CR_F16, CR_REGION_POOL, 2, 4, 4, 8);
    REQUIRE_OK(cr_path_join(s->path, folder, "costs.txt"));
    REQUIRE_OK(cr_costs_open(&s->device, s->path, &s->costs));
}

static void stand_close(struct stand *s) {
    cr_costs_close(s->costs);
    cr_program_free(&s->program);
}

static struct cr_cost best(struct stand *s) {
    struct cr_cost cost = {.row = CR_NONE};
    CHECK_STATUS(cr_costs_best(s->costs, &s->program, &s->op, &cost), CR_OK);
    return cost;
}

static int64_t measured(const struct stand *s) {
    int64_t n;
    double  seconds;
    cr_costs_effort(s->costs, &n, &seconds);
    return n;
}

/* ---- cases ---- */

static void the_fastest_row_and_way_is_taken(void) {
    struct stand s;
    char         dir[SUPPORT_PATH];
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    struct cr_cost cost = best(&s);
    CHECK(cost.row == 1 && cost.way == 1); /* row c is faster and not deterministic */
    CHECK(fabs(cost.seconds - 1e-4) < 2e-9);
    CHECK(measured(&s) == 3 && prepares == 3 && releases == 3);
    s.device.options.deterministic = false;
    s.program.tensor[0].dim[0] = s.program.tensor[1].dim[0] = 3; /* another signature */
    cost = best(&s);
    CHECK(cost.row == 2 && measured(&s) == 7);
    CHECK(fabs(cost.seconds - 5e-5) < 2e-9); /* short ones are timed as recordings */
    stand_close(&s);
    drop_folder(dir);
}

static void what_is_known_is_not_measured_again(void) {
    struct stand s;
    char         dir[SUPPORT_PATH];
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    best(&s);
    best(&s);
    CHECK(measured(&s) == 3);
    cr_costs_rest(s.costs);
    stand_close(&s);
    stand_open(&s, dir, "GPU A, driver 1");
    takes[1][1]         = 9; /* would be seen */
    struct cr_cost cost = best(&s);
    CHECK(cost.row == 1 && cost.way == 1 && measured(&s) == 0 && launches == 0);
    s.op.attr.bn.relu = true; /* no attribute of a ReLU: the same signature */
    best(&s);
    CHECK(measured(&s) == 0);
    s.program.tensor[0].dtype = s.program.tensor[1].dtype = CR_BF16;
    best(&s);
    CHECK(measured(&s) == 3);
    stand_close(&s);
    drop_folder(dir);
}

static void a_file_that_does_not_fit_is_dropped(void) {
    static const char *const spoilt[] = {"", "cresnet costs 1", "cresnet costs 2\tGPU\n", "\x7f\x45LF", "cresnet costs 1\tanother device\n1\ta\t0\tb\n"};
    struct stand             s;
    char         dir[SUPPORT_PATH];
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    best(&s);
    cr_costs_rest(s.costs);
    stand_close(&s);
    stand_open(&s, dir, "GPU A, driver 2"); /* another driver: measured anew */
    best(&s);
    CHECK(measured(&s) == 3);
    stand_close(&s);
    char path[CR_PATH_MAX];
    REQUIRE_OK(cr_path_join(path, dir, "costs.txt"));
    for (size_t i = 0; i < CR_COUNT(spoilt); i++) {
        REQUIRE_OK(cr_file_write_atomic(path, spoilt[i], strlen(spoilt[i])));
        stand_open(&s, dir, "GPU A, driver 1");
        CHECK(best(&s).row == 1 && measured(&s) == 3);
        stand_close(&s);
    }
    drop_folder(dir);
}

/* A line of numbers that are none, fields that lack, a cut end: nothing of the file is believed. */
static void a_spoilt_line_drops_the_file(void) {
    static const char *const lines[] = {"x\tfake.a\t0\tsig\n", "-1\tfake.a\t0\tsig\n", "0\tfake.a\t0\tsig\n", "1\t\t0\tsig\n",
                                        "1\tfake.a\t0\n",       "1\tfake.a\t0\tsig",   "1\tfake.a\t9999999999\tsig\n", "\n"};
    struct stand s;
    char         dir[SUPPORT_PATH], *text = NULL, path[CR_PATH_MAX];
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    best(&s);
    cr_costs_rest(s.costs);
    stand_close(&s);
    REQUIRE_OK(cr_path_join(path, dir, "costs.txt"));
    REQUIRE_OK(cr_file_read(path, 1 << 20, &text, NULL));
    for (size_t i = 0; i < CR_COUNT(lines); i++) {
        struct cr_text spoilt = {0};
        cr_text_add(&spoilt, "%s%s", text, lines[i]);
        REQUIRE_OK(cr_file_write_atomic(path, spoilt.data, spoilt.length));
        cr_text_free(&spoilt);
        stand_open(&s, dir, "GPU A, driver 1");
        best(&s);
        CHECK(measured(&s) == 3);
        stand_close(&s);
    }
    cr_free(text);
    drop_folder(dir);
}

static void a_checkpoints_table_comes_first(void) {
    struct stand s;
    char         dir[SUPPORT_PATH], *text = NULL;
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    best(&s);
    REQUIRE_OK(cr_costs_text(s.costs, &text));
    stand_close(&s);
    char *mine = strstr(text, "100000\tfake.b\t1");
    CHECK(mine != NULL);
    if (!mine) return;
    memcpy(mine, "900000", 6); /* the other run found it slow */
    stand_open(&s, dir, "GPU A, driver 1");
    REQUIRE_OK(cr_costs_pin(s.costs, text, "step-1/costs.txt"));
    struct cr_cost cost = best(&s);
    CHECK(cost.row == 1 && cost.way == 0 && measured(&s) == 0);
    stand_close(&s);
    stand_open(&s, dir, "GPU A, driver 2");
    CHECK(cr_costs_pin(s.costs, text, "step-1/costs.txt") == CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "another device");
    CHECK(cr_costs_pin(s.costs, "nonsense\n", "step-1/costs.txt") == CR_ERR_FORMAT);
    CHECK(best(&s).way == 1 && measured(&s) == 3); /* nothing of it was taken */
    stand_close(&s);
    cr_free(text);
    drop_folder(dir);
}

/* The row that a checkpoint's choice rested on is gone: deterministic runs must stop. */
static void a_kernel_that_is_gone_is_told(void) {
    struct stand s;
    char         dir[SUPPORT_PATH], *text = NULL;
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    best(&s);
    REQUIRE_OK(cr_costs_text(s.costs, &text));
    stand_close(&s);
    for (char *at = text; (at = strstr(at, "fake.")); at++) memcpy(at, "gone.", 5);
    stand_open(&s, dir, "GPU A, driver 1");
    REQUIRE_OK(cr_costs_pin(s.costs, text, "step-1/costs.txt"));
    struct cr_cost cost;
    CHECK(cr_costs_best(s.costs, &s.program, &s.op, &cost) == CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "--force");
    stand_close(&s);
    cr_free(text);
    drop_folder(dir);
}

static void without_scratch_memory_the_first_row_stands(void) {
    struct stand s;
    char         dir[SUPPORT_PATH];
    make_folder(dir);
    stand_open(&s, dir, "GPU A, driver 1");
    no_memory = true;
    CHECK(best(&s).row == 0 && best(&s).way == 0 && launches == 0);
    stand_close(&s);
    drop_folder(dir);
}

TESTS(CASE(the_fastest_row_and_way_is_taken), CASE(what_is_known_is_not_measured_again), CASE(a_file_that_does_not_fit_is_dropped),
      CASE(a_spoilt_line_drops_the_file), CASE(a_checkpoints_table_comes_first), CASE(a_kernel_that_is_gone_is_told),
      CASE(without_scratch_memory_the_first_row_stands))

/* tests/unit/session/test_session_kernel_times.c: a run that goes on finds kernel_times.txt in its checkpoint: when its
 * kernels are chosen by it, when the run is refused, and what --force and train.deterministic=no change. On devices
 * that only pretend: nothing is measured here. */
#include "autotune/cost_table_internal.h"
#include "session/session.h"

#include "tests/harness/data_support.h"

#include <fcntl.h>

/* ---- two devices: one chooses kernels by measured times, as a GPU does, the other by their order ---- */

static const struct cr_kernel row             = {.name = "pretended.relu", .op = CR_OP_relu, .deterministic = true};
static const struct cr_kernel on_sparse_cores = {.name = "pretended.conv", .op = CR_OP_conv, .sparse_cores = true};
static const struct cr_kernel *const rows[]   = {&row, &on_sparse_cores, NULL};
static const struct cr_async         async    = {0};

static void keep(struct cr_device *device, void *region) {
    (void)device, (void)region;
}
static void close_device(struct cr_device *device) {
    (void)device;
}
static const struct cr_backend with_times = {.name = "timed", .async = &async, .release = keep, .close = close_device};
static const struct cr_backend without_times = {.name = "ordered", .release = keep, .close = close_device};

/* ---- what every case stands on ---- */

struct stand {
    char              dir[SUPPORT_PATH];
    struct cr_config  config;
    struct cr_device  device;
    struct cr_session session;
    bool              ordered;   /* the run so far measured nothing */
    char              log[4096]; /* of the last question */
};

static void stand_open(struct stand *s, const struct cr_backend *backend, const char *override) {
    *s = (struct stand){.device = {.backend = backend, .kernels = rows, .caps = {.text = "timed device, driver 1"}}};
    make_folder(s->dir);
    CHECK_INT(setenv("CRESNET_CACHE", "off", 1), 0); /* the user's table is left alone */
    REQUIRE_OK(cr_config_open(&s->config, NULL, &override, override ? 1 : 0));
    s->session = (struct cr_session){.config = &s->config, .device = &s->device};
}

static void stand_close(struct stand *s) {
    cr_session_close(&s->session);
    cr_config_close(&s->config);
    drop_folder(s->dir);
}

/* As opening a session that goes on from `dir` does; what is logged goes to s->log. */
static cr_status ask(struct stand *s, bool anew) {
    const struct cr_session_options options = {.costs_from = s->dir, .costs_unmeasured = s->ordered, .retune = anew};
    char                            path[SUPPORT_PATH];
    cr_cost_table_close(s->session.cost_table);
    s->session.cost_table = NULL;
    fflush(stderr);
    int before = dup(STDERR_FILENO), file = open(text_into(path, "%s/log", s->dir), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CR_ASSERT(before >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    cr_status status = cr_session_open_cost_table(&s->session, &options);
    fflush(stderr);
    CR_ASSERT(dup2(before, STDERR_FILENO) >= 0);
    ssize_t n             = pread(file, s->log, sizeof s->log - 1, 0);
    s->log[n > 0 ? n : 0] = 0;
    close(file);
    close(before);
    return status;
}

static void put_costs(struct stand *s, const char *text) {
    put_text(s->dir, "kernel_times.txt", text);
}

/* The kernel_times.txt that a run on this device would have written, with one entry. */
static void put_own_costs(struct stand *s) {
    struct cr_cost_table *costs;
    char                 *text = NULL;
    struct cr_text        all  = {0};
    REQUIRE_OK(cr_cost_table_open(&s->device, "", &costs));
    REQUIRE_OK(cr_cost_table_text(costs, &text));
    *strstr(text, "sum\t") = 0;
    cr_text_add(&all, "%s1000\tpretended.relu\t0\trelu x=f16[1,1,1,8] -> y=f16[1,1,1,8]\n", text);
    cr_text_add(&all, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(all.data));
    put_costs(s, all.data);
    cr_text_free(&all);
    cr_free(text);
    cr_cost_table_close(costs);
}

/* Refused, with one error that says where, why and what helps; or taken with --force, and a warning that says the same.
 */
static void check_refused(struct stand *s, const char *why) {
    CHECK_STATUS(ask(s, false), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "kernel_times.txt");
    CHECK_HAS(cr_error_message(), why);
    CHECK_HAS(cr_error_message(), "--force");
    CHECK_HAS(cr_error_message(), "train.deterministic=no");
    CHECK(!strstr(s->log, "anew"));
}
static void check_anew(struct stand *s, bool force, const char *why) {
    CHECK_STATUS(ask(s, force), CR_OK);
    CHECK_HAS(s->log, "kernel_times.txt");
    CHECK_HAS(s->log, why);
    CHECK_HAS(s->log, "chosen anew");
    CHECK_STR(cr_error_message(), ""); /* nothing of it is left for a later error's trail */
    CHECK(!s->session.cost_table || s->session.cost_table->fixed == 0);
}

/* Deterministic, forced, not deterministic. */
static void check_misfit(const struct cr_backend *backend, const char *also, void (*put)(struct stand *s),
                         const char *why) {
    struct stand s;
    stand_open(&s, backend, also);
    put(&s);
    check_refused(&s, why);
    check_anew(&s, true, why);
    s.config.train.deterministic = false;
    check_anew(&s, false, why);
    stand_close(&s);
}

/* ---- cases ---- */

static void without_a_checkpoints_table_the_device_decides(void) {
    struct stand s;
    stand_open(&s, &with_times, NULL);
    REQUIRE_OK(ask(&s, false));
    CHECK(s.session.cost_table && s.session.cost_table->fixed == 0);
    CHECK_STR(s.log, "");
    stand_close(&s);
    stand_open(&s, &with_times, "train.measure=no");
    REQUIRE_OK(ask(&s, false));
    CHECK(!s.session.cost_table);
    stand_close(&s);
    stand_open(&s, &without_times, NULL);
    REQUIRE_OK(ask(&s, false));
    CHECK(!s.session.cost_table);
    stand_close(&s);
}

static void a_table_that_fits_is_taken(void) {
    struct stand s;
    stand_open(&s, &with_times, NULL);
    put_own_costs(&s);
    for (int force = 0; force < 2; force++) { /* --force throws nothing away that fits */
        REQUIRE_OK(ask(&s, force));
        CHECK(s.session.cost_table && s.session.cost_table->fixed == 1);
        CHECK_STR(s.log, "");
    }
    stand_close(&s);
}

static void put_other(struct stand *s) {
    put_costs(s, "cresnet kernel times 6\tanother device\n1\ta\t0\tb\n");
}
static void put_nonsense(struct stand *s) {
    put_costs(s, "\x7f"
                 "ELF\n");
}
static void put_nothing(struct stand *s) {
    put_costs(s, "");
}
static void put_a_folder(struct stand *s) {
    char path[SUPPORT_PATH];
    CHECK_INT(mkdir(text_into(path, "%s/kernel_times.txt", s->dir), 0700), 0);
}
static void put_a_cut_one(struct stand *s) {
    char   path[SUPPORT_PATH];
    size_t size;
    put_own_costs(s);
    uint8_t *text = read_bytes(text_into(path, "%s/kernel_times.txt", s->dir), &size);
    CHECK_INT(truncate(path, (off_t)size - 3), 0);
    cr_free(text);
}

static void a_table_that_does_not_fit_needs_force(void) {
    check_misfit(&with_times, NULL, put_other, "another device or with other libraries");
    check_misfit(&with_times, NULL, put_nonsense, "first line");
    check_misfit(&with_times, NULL, put_nothing, "first line");
    check_misfit(&with_times, NULL, put_a_cut_one, "cut off or damaged");
    check_misfit(&with_times, NULL, put_a_folder, "folder");
}

/* Measured there, not here: other kernels, and so other bits. */
static void a_device_without_a_table_needs_force(void) {
    check_misfit(&without_times, NULL, put_other, "this device (ordered) does not measure them");
    check_misfit(&with_times, "train.measure=no", put_own_costs, "this device (timed) does not measure them");
}

/* Chosen by their order there, measured here: the same. Where nothing is measured here either, it goes on. */
static void a_run_without_a_table_needs_force_to_measure(void) {
    struct stand s;
    stand_open(&s, &with_times, NULL);
    s.ordered = true;
    CHECK_STATUS(ask(&s, false), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "train.measure = no");
    CHECK_HAS(cr_error_message(), "--force");
    REQUIRE_OK(ask(&s, true));
    CHECK_HAS(s.log, "chosen anew");
    s.config.train.deterministic = false;
    REQUIRE_OK(ask(&s, false));
    CHECK_HAS(s.log, "chosen anew");
    s.config.train.deterministic = true;
    s.config.train.measure       = false;
    REQUIRE_OK(ask(&s, false));
    CHECK_STR(s.log, "");
    stand_close(&s);
    stand_open(&s, &without_times, NULL);
    s.ordered = true;
    REQUIRE_OK(ask(&s, false));
    CHECK_STR(s.log, "");
    stand_close(&s);
}

/* What timing such a row leaves behind is told unless a program has one itself. */
static void sparse_cores_that_none_uses_are_told(void) {
    struct cr_op            op[2]   = {{.kind = CR_OP_relu, .kernel = 0}, {.kind = CR_OP_relu, .kernel = CR_NONE}};
    const struct cr_program program = {.op = op, .ops = 2}, *all[2] = {&program, &program};
    struct stand            s;
    stand_open(&s, &with_times, NULL);
    REQUIRE_OK(cr_cost_table_open(&s.device, "", &s.session.cost_table));
    CHECK(!cr_cost_table_has_lasting_effect(s.session.cost_table, all, 2));
    s.session.cost_table->sparse_cores = true;
    CHECK(cr_cost_table_has_lasting_effect(s.session.cost_table, all, 2));
    op[1] = (struct cr_op){.kind = CR_OP_conv, .kernel = 1};
    CHECK(!cr_cost_table_has_lasting_effect(s.session.cost_table, all, 2));
    stand_close(&s);
}

static void memory_may_run_out_anywhere(void) {
    struct stand s;
    stand_open(&s, &with_times, NULL);
    put_own_costs(&s);
    const int64_t live     = cr_alloc_live();
    int           failures = 0;
    for (int64_t n = 1; !test_failures_; n++, failures++) {
        cr_alloc_fail_at(n);
        cr_status status = ask(&s, true); /* out of memory is no reason to choose anew */
        cr_alloc_fail_at(0);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_MEMORY);
        cr_cost_table_close(s.session.cost_table);
        s.session.cost_table = NULL;
        CHECK_INT(cr_alloc_live(), live);
    }
    CHECK(failures > 3 && s.session.cost_table && s.session.cost_table->fixed == 1);
    stand_close(&s);
}

TESTS(CASE(without_a_checkpoints_table_the_device_decides), CASE(a_table_that_fits_is_taken),
      CASE(a_table_that_does_not_fit_needs_force), CASE(a_device_without_a_table_needs_force),
      CASE(a_run_without_a_table_needs_force_to_measure), CASE(sparse_cores_that_none_uses_are_told),
      CASE(memory_may_run_out_anywhere))

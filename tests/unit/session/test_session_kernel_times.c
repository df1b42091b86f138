/* tests/unit/session/test_session_kernel_times.c: a resumed run finds kernel_times.txt in its checkpoint: when the
 * table selects the kernels, when the run is refused, and the effect of --force and train.deterministic=no. Uses fake
 * devices: nothing is measured here. */
#include "autotune/cost_table_internal.h"
#include "session/session.h"

#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"

#include <fcntl.h>

/* ---- two devices: one selects kernels by measured times, as a GPU does, the other by their order ---- */

static const struct cr_kernel kernel          = {.name = "pretended.relu", .op = CR_OP_relu, .deterministic = true};
static const struct cr_kernel on_sparse_cores = {
    .name = "pretended.conv", .op = CR_OP_conv, .traits.sparse_cores = true};
static const struct cr_kernel *const kernels[] = {&kernel, &on_sparse_cores, NULL};
static const struct cr_async         async     = {0};

static void                    keep(struct cr_device *device, void *region) {}
static void                    close_device(struct cr_device *device) {}
static const struct cr_backend with_times = {.name = "timed", .async = &async, .release = keep, .close = close_device};
static const struct cr_backend without_times = {.name = "ordered", .release = keep, .close = close_device};

struct fixture {
    char                    dir[SUPPORT_PATH];
    const struct cr_config *config;
    struct cr_device        device;
    struct cr_session       session;
    bool                    ordered;   /* the run so far measured nothing */
    char                    log[4096]; /* of the last call */
};

static void fixture_close(struct fixture *s) {
    cr_session_close(&s->session);
    cr_config_close(s->config);
}
OWNABLE(fixture, struct fixture, fixture_close(x))

/* Closes the one that `s` has; { 0 } at first. */
static void fixture_open(struct fixture *s, const struct cr_backend *backend, const char *override) {
    fixture_close(s);
    *s = (struct fixture){
        .device = {.backend = backend, .kernels = kernels, .caps = {.text = "timed device, driver 1"}}};
    make_folder(s->dir);
    CHECK_INT(setenv("CRESNET_CACHE", "off", 1), 0); /* the table of the user is not used */
    REQUIRE_OK(cr_config_open(&s->config, NULL, &override, override ? 1 : 0));
    s->session = (struct cr_session){.config = s->config, .device = &s->device};
}

/* Opens as a session that resumes from `dir`; log output goes to s->log. */
static cr_status resume(struct fixture *s, bool anew) {
    const struct cr_session_options options = {
        .kernel_times_from = s->dir, .kernel_times_unmeasured = s->ordered, .retune = anew};
    cr_cost_table_close(s->session.cost_table);
    s->session.cost_table = NULL;
    s->session.config     = s->config;
    fflush(stderr);
    int before = dup(STDERR_FILENO), file = open(formatted("%s/log", s->dir), O_RDWR | O_CREAT | O_TRUNC, 0600);
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

static void write_kernel_times(struct fixture *s, const char *text) {
    put_text(s->dir, "kernel_times.txt", text);
}

/* The kernel_times.txt of a run on this device, with one entry. */
static void write_own_kernel_times(struct fixture *s) {
    OWNED(cost_table) costs = NULL;
    OWNED(string)     text  = NULL;
    OWNED(text)       all   = {0};
    REQUIRE_OK(cr_cost_table_open(&s->device, "", &costs));
    REQUIRE_OK(cr_cost_table_text(costs, &text));
    *strstr(text, "sum\t") = 0;
    cr_text_add(&all, "%s1000\tpretended.relu\t0\trelu x=f16[1,1,1,8] -> y=f16[1,1,1,8]\n", text);
    cr_text_add(&all, "sum\t%016llx\n", (unsigned long long)cr_cost_hash(all.data));
    write_kernel_times(s, all.data);
}

/* Without --force: refused, with one error that names the place, the reason and the remedy. With --force: accepted,
 * with a warning that says the same. */
static void check_refused(struct fixture *s, const char *why) {
    CHECK_STATUS(resume(s, false), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "kernel_times.txt");
    CHECK_HAS(cr_error_message(), why);
    CHECK_HAS(cr_error_message(), "--force");
    CHECK_HAS(cr_error_message(), "train.deterministic=no");
    CHECK(!strstr(s->log, "anew"));
}
static void check_anew(struct fixture *s, bool force, const char *why) {
    CHECK_STATUS(resume(s, force), CR_OK);
    CHECK_HAS(s->log, "kernel_times.txt");
    CHECK_HAS(s->log, why);
    CHECK_HAS(s->log, "chosen anew");
    CHECK_STR(cr_error_message(), ""); /* no text of it is left for the trail of a later error */
    CHECK(!s->session.cost_table || s->session.cost_table->fixed == 0);
}

/* Deterministic, forced, not deterministic. */
static void check_misfit(const struct cr_backend *backend, const char *also, void (*put)(struct fixture *s),
                         const char *why) {
    OWNED(fixture) s = {0};
    fixture_open(&s, backend, also);
    put(&s);
    check_refused(&s, why);
    check_anew(&s, true, why);
    REQUIRE_OK(cr_config_change(&s.config, CR_CHANGES("train.deterministic=no")));
    check_anew(&s, false, why);
}

/* ---- cases ---- */

TEST(without_checkpoint_table_the_device_selects) {
    OWNED(fixture) s = {0};
    fixture_open(&s, &with_times, NULL);
    REQUIRE_OK(resume(&s, false));
    CHECK(s.session.cost_table && s.session.cost_table->fixed == 0);
    CHECK_STR(s.log, "");
    fixture_open(&s, &with_times, "train.measure=no");
    REQUIRE_OK(resume(&s, false));
    CHECK(!s.session.cost_table);
    fixture_open(&s, &without_times, NULL);
    REQUIRE_OK(resume(&s, false));
    CHECK(!s.session.cost_table);
}

TEST(matching_table_is_used) {
    OWNED(fixture) s = {0};
    fixture_open(&s, &with_times, NULL);
    write_own_kernel_times(&s);
    for (int force = 0; force < 2; force++) { /* --force does not discard a valid table */
        REQUIRE_OK(resume(&s, force));
        CHECK(s.session.cost_table && s.session.cost_table->fixed == 1);
        CHECK_STR(s.log, "");
    }
}

static void put_other(struct fixture *s) {
    write_kernel_times(s, "cresnet kernel times 6\tanother device\n1\ta\t0\tb\n");
}
static void put_nonsense(struct fixture *s) {
    write_kernel_times(s, "\x7f"
                          "ELF\n");
}
static void put_nothing(struct fixture *s) {
    write_kernel_times(s, "");
}
static void put_a_folder(struct fixture *s) {
    CHECK_INT(mkdir(formatted("%s/kernel_times.txt", s->dir), 0700), 0);
}
static void put_a_cut_one(struct fixture *s) {
    const char *const path = formatted("%s/kernel_times.txt", s->dir);
    size_t            size;
    write_own_kernel_times(s);
    OWNED(bytes) text = read_bytes(path, &size);
    CHECK_INT(truncate(path, (off_t)size - 3), 0);
}

TEST(mismatched_table_needs_force) {
    check_misfit(&with_times, NULL, put_other, "another device or with other libraries");
    check_misfit(&with_times, NULL, put_nonsense, "first line");
    check_misfit(&with_times, NULL, put_nothing, "first line");
    check_misfit(&with_times, NULL, put_a_cut_one, "cut off or damaged");
    check_misfit(&with_times, NULL, put_a_folder, "folder");
}

/* Measured before, not here: other kernels, and so other bits. */
TEST(device_without_table_needs_force) {
    check_misfit(&without_times, NULL, put_other, "this device (ordered) does not measure them");
    check_misfit(&with_times, "train.measure=no", write_own_kernel_times, "this device (timed) does not measure them");
}

/* Selected by order before, measured here: the same. Where nothing is measured here either, the run continues. */
TEST(run_without_table_needs_force_to_measure) {
    OWNED(fixture) s = {0};
    fixture_open(&s, &with_times, NULL);
    s.ordered = true;
    CHECK_STATUS(resume(&s, false), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "train.measure = no");
    CHECK_HAS(cr_error_message(), "--force");
    REQUIRE_OK(resume(&s, true));
    CHECK_HAS(s.log, "chosen anew");
    REQUIRE_OK(cr_config_change(&s.config, CR_CHANGES("train.deterministic=no")));
    REQUIRE_OK(resume(&s, false));
    CHECK_HAS(s.log, "chosen anew");
    REQUIRE_OK(cr_config_change(&s.config, CR_CHANGES("train.deterministic=yes")));
    REQUIRE_OK(cr_config_change(&s.config, CR_CHANGES("train.measure=no")));
    REQUIRE_OK(resume(&s, false));
    CHECK_STR(s.log, "");
    fixture_open(&s, &without_times, NULL);
    s.ordered = true;
    REQUIRE_OK(resume(&s, false));
    CHECK_STR(s.log, "");
}

TEST(failing_allocations) {
    OWNED(fixture) s = {0};
    fixture_open(&s, &with_times, NULL);
    write_own_kernel_times(&s);
    for_each_failing_alloc(f, .least = 4) {
        failing_alloc_begin(&f);
        const cr_status status = resume(&s, true); /* out of memory is no reason to select again */
        failing_alloc_end(&f, status);
        if (status == CR_OK) CHECK(s.session.cost_table && s.session.cost_table->fixed == 1);
        cr_cost_table_close(s.session.cost_table);
        s.session.cost_table = NULL;
    }
}

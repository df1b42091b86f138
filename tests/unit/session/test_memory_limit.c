/* tests/unit/session/test_memory_limit.c: below a memory limit a session also compiles the program with all Gram
 * matrices and uses the faster program; a resumed run uses the same one. The kernel times are invented. */
#include "autotune/cost_table_internal.h"

#include "tests/harness/data_support.h"
#include "tests/harness/fake_device.h"

/* ---- a device whose kernels take 1 us and 1 ns per byte, and gram_extra_s more for a Gram matrix ---- */

static double gram_extra_s;

static cr_status launch(struct cr_device *d, const struct cr_call *call) {
    double bytes, flops;
    cr_op_cost(call->program, call->op, &bytes, &flops);
    clock_s += 1e-6 + 1e-9 * bytes + (call->op->kind == CR_OP_gram ? gram_extra_s : 0);
    return CR_OK;
}

static struct cr_kernel        kernel[CR_OP_COUNT];
static const struct cr_kernel *kernels[CR_OP_COUNT + 1];

/* No GPU has a kernel of the op head for these networks. */
static bool refuses(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {
    return false;
}

static void fill_kernels(void) {
    for (int k = 0; k < CR_OP_COUNT; k++) {
        kernel[k] = (struct cr_kernel){
            .name = cr_op_info(k)->name, .op = (enum cr_op_kind)k, .deterministic = true, .launch = launch};
        kernels[k] = &kernel[k];
    }
    kernel[CR_OP_head].accepts = refuses;
}

/* Extra times of a Gram matrix. Without a limit no Gram matrix is worth it at any of them. With 70 % of the memory that
 * the plain program needs, it must recompute, and the program with all Gram matrices need not: that saves more than
 * SMALL_EXTRA and less than LARGE_EXTRA. */
#define SMALL_EXTRA 3.5e-3
#define LARGE_EXTRA 5e-3
enum { BATCH = 8, GRAMS = 6 }; /* GRAMS: 4 last convolutions and 2 shortcuts */

struct fixture {
    const struct cr_config *config;
    struct cr_session       session;
    struct cr_device        device, *opened; /* `opened`: by the session, which gets it back before it is closed */
    size_t                  plain_need;      /* bytes that the program without Gram matrices needs without a limit */
};

/* A compiled program and how it was fitted below the limit. */
struct compiled {
    struct cr_program    program;
    struct cr_fit_report fit;
    struct cr_text       text;
    int                  grams;
    size_t               need;
};

static void compiled_finish(const struct cr_session *s, struct compiled *c) {
    const struct cr_program *all[] = {&c->program};
    cr_program_print(&c->program, &c->text);
    c->grams = count_kind(&c->program, CR_OP_gram);
    c->need  = cr_memory_need(s->device, &s->model.store, all, 1);
}

static void compiled_free(struct compiled *c) {
    cr_program_free(&c->program);
    cr_text_free(&c->text);
}
OWNABLE(compiled, struct compiled, compiled_free(x))

/* As a run compiles its training program. */
static cr_status compile_chosen(struct fixture *f, struct compiled *c) {
    *c             = (struct compiled){0};
    f->session.fit = (struct cr_fit_report){0};
    CR_TRY(cr_session_compile(&f->session, CR_PROGRAM_STEP, BATCH, NULL, &c->program));
    c->fit = f->session.fit;
    compiled_finish(&f->session, c);
    return CR_OK;
}

/* With the given train.gram_bn, and nothing else is tried. */
static cr_status compile_mode(struct fixture *f, enum cr_gram_mode mode, struct compiled *c) {
    const struct cr_config *before = f->session.config, *config;
    struct cr_cost_model    model  = cr_session_cost_model(&f->session);
    *c                             = (struct compiled){0};
    CR_TRY(cr_config_derive(&config, before, 0, CR_CHANGES(formatted("train.gram_bn=%s", cr_word_gram_mode(mode)))));
    f->session.config = config;
    const cr_status status =
        cr_session_compile_with(&f->session, &model, CR_PROGRAM_STEP, BATCH, NULL, &c->fit, &c->program);
    f->session.config = before;
    cr_config_close(config);
    if (status == CR_OK) compiled_finish(&f->session, c);
    return status;
}

/* A new table: the device is measured again, with this extra time of a Gram matrix. */
static cr_status new_times(struct fixture *f, double extra_s) {
    cr_cost_table_close(f->session.cost_table);
    f->session.cost_table = NULL;
    gram_extra_s          = extra_s;
    return cr_cost_table_open(&f->device, "", &f->session.cost_table);
}

static cr_status fixture_open(struct fixture *f) {
    static const char *const        keys[]  = {"model.arch=custom",  "model.block=bottleneck", "model.depths=2,2",
                                               "model.widths=16,32", "model.shortcut=B",       "data.kind=synthetic",
                                               "train.device=cpu",   "train.precision=fp32",   "memory.swap=no"};
    const struct cr_session_options options = {.train = true, .classes = 10, .batch = BATCH};
    OWNED(compiled)                 plain   = {0};
    memory_max                              = 1 << 28;
    fill_kernels();
    *f = (struct fixture){.device = {.backend = &fake_backend,
                                     .kernels = kernels,
                                     .options = {.deterministic = true},
                                     .caps    = {.alignment = 256, .bytes_per_s = 1e9, .flops_per_s = 1e12}}};
    CR_TRY(cr_config_open(&f->config, NULL, keys, CR_COUNT(keys)));
    CR_TRY(cr_session_open(f->config, &options, &f->session));
    f->opened         = f->session.device;
    f->session.device = &f->device;
    CR_TRY(new_times(f, SMALL_EXTRA));
    CR_TRY(compile_mode(f, CR_GRAM_NO, &plain));
    f->plain_need = plain.need;
    return CR_OK;
}

static void fixture_close(struct fixture *f) {
    cr_cost_table_close(f->session.cost_table);
    f->session.cost_table = NULL;
    f->session.device     = f->opened;
    cr_session_close(&f->session);
    cr_config_close(f->config);
}
OWNABLE(fixture, struct fixture, fixture_close(x))

/* ---- cases ---- */

TEST(faster_program_is_used_below_a_limit) {
    static const struct {
        double extra_s;
        bool   all;
    } v[]            = {{SMALL_EXTRA, true}, {LARGE_EXTRA, false}};
    OWNED(fixture) f = {0};
    REQUIRE_OK(fixture_open(&f));
    CHECK(f.config->train.gram_bn == CR_GRAM_AUTO); /* the default */
    f.session.limit = f.plain_need * 7 / 10;
    for (size_t i = 0; i < CR_COUNT(v); i++) {
        struct compiled chosen, plain, all;
        REQUIRE_OK(new_times(&f, v[i].extra_s));
        REQUIRE_OK(compile_mode(&f, CR_GRAM_AUTO, &plain));
        REQUIRE_OK(compile_mode(&f, CR_GRAM_ALL, &all));
        REQUIRE_OK(compile_chosen(&f, &chosen));
        CHECK(plain.grams == 0 && plain.fit.recomputed > 0);
        CHECK_INT(all.grams, GRAMS);
        CHECK((all.fit.seconds < plain.fit.seconds) == v[i].all);
        CHECK_STR(chosen.text.data, v[i].all ? all.text.data : plain.text.data);
        CHECK(chosen.fit.seconds == fmin(plain.fit.seconds, all.fit.seconds));
        CHECK(chosen.need <= f.session.limit);
        /* what the user reads is compared with the program that a run without a limit gets */
        CHECK(chosen.fit.before == plain.fit.before && chosen.fit.seconds_before == plain.fit.seconds_before);
        compiled_free(&chosen), compiled_free(&plain), compiled_free(&all);
    }
}

/* Also where the limit is so large that nothing is recomputed. */
TEST(program_without_a_limit_is_unchanged) {
    OWNED(fixture) f = {0};
    REQUIRE_OK(fixture_open(&f));
    for (int limited = 0; limited < 2; limited++) {
        struct compiled chosen, plain;
        f.session.limit = limited ? f.plain_need + (1 << 20) : 0;
        REQUIRE_OK(compile_mode(&f, CR_GRAM_NO, &plain));
        REQUIRE_OK(compile_chosen(&f, &chosen));
        CHECK_INT(chosen.grams, 0);
        CHECK_STR(chosen.text.data, plain.text.data);
        compiled_free(&chosen), compiled_free(&plain);
    }
}

/* The plain program does not fit, whatever it recomputes. The slower one is used then. */
TEST(program_that_fits_is_used) {
    OWNED(fixture)  f = {0};
    struct compiled plain, all, chosen;
    REQUIRE_OK(fixture_open(&f));
    REQUIRE_OK(new_times(&f, LARGE_EXTRA));
    f.session.limit = 1;
    REQUIRE_OK(compile_mode(&f, CR_GRAM_NO, &plain));
    REQUIRE_OK(compile_mode(&f, CR_GRAM_ALL, &all));
    REQUIRE(all.need + 4096 < plain.need);
    f.session.limit = all.need + 4096;
    compiled_free(&plain), compiled_free(&all);
    REQUIRE_OK(compile_mode(&f, CR_GRAM_NO, &plain));
    REQUIRE_OK(compile_chosen(&f, &chosen));
    CHECK(plain.need > f.session.limit);
    CHECK(chosen.need <= f.session.limit);
    CHECK_INT(chosen.grams, GRAMS);
    compiled_free(&plain), compiled_free(&chosen);
}

/* The checkpoint holds the times of both programs. On resume the device would measure other times and choose the other
 * program. */
TEST(resumed_run_uses_the_stored_times) {
    OWNED(fixture)  f = {0};
    struct compiled first, measured, resumed;
    OWNED(string)   times = NULL;
    REQUIRE_OK(fixture_open(&f));
    f.session.limit = f.plain_need * 7 / 10;
    REQUIRE_OK(new_times(&f, SMALL_EXTRA));
    REQUIRE_OK(compile_chosen(&f, &first));
    REQUIRE_OK(cr_cost_table_text(f.session.cost_table, &times));
    REQUIRE_OK(new_times(&f, LARGE_EXTRA));
    REQUIRE_OK(compile_chosen(&f, &measured));
    REQUIRE_OK(new_times(&f, LARGE_EXTRA));
    REQUIRE_OK(cr_cost_table_load_fixed(f.session.cost_table, times, strlen(times), "checkpoint"));
    REQUIRE_OK(compile_chosen(&f, &resumed));
    CHECK_INT(first.grams, GRAMS);
    CHECK_INT(measured.grams, 0);
    CHECK_STR(resumed.text.data, first.text.data);
    CHECK_INT(f.session.cost_table->measured, 0);
    compiled_free(&first), compiled_free(&measured), compiled_free(&resumed);
}

/* tests/unit/pruning/test_budget_axes.c: the widths of the tensors of 8-bit programs for a GPU, in which a filter is a
 * 16-bit copy of the parameter, or the parameter itself. */
#include "cli/budget/budget.h"
#include "tests/harness/offline_gpu.h"

enum { BATCH = 2, CLASSES = 10, SIZE = 64, LEVELS = 2 };

static bool open_config(const char *quant, const struct cr_config **config) {
    const char *const list[] = {
        "model.arch=custom",   "model.block=bottleneck", "model.stem=imagenet", "model.depths=2,2",
        "model.widths=64,128", "model.classes=10",       "train.device=cpu",    quant};
    return cr_config_open(config, NULL, list, CR_COUNT(list)) == CR_OK;
}

/* The network before compiler passes, with half of the channels of each group as second level. */
static cr_status open_source(struct cr_budget_source *s) {
    static const struct cr_multiples multiples = {1, 1};
    if (!open_config("quant.type=none", &s->config)) return CR_ERR_CONFIG;
    CR_TRY(cr_model_open(s->config, CLASSES, SIZE, SIZE, &s->session.model));
    CR_TRY(cr_model_program(&s->session.model, s->config, CR_PROGRAM_EVAL, 1, &s->program));
    CR_TRY(cr_channel_groups_trace(&s->program, &s->groups));
    CR_ALLOC(s->running, (size_t)s->session.model.store.value_elems);
    CR_TRY(cr_shrink_open(&s->groups, &s->session.model.store, CR_PRUNE_IMPORTANCE_L2, s->running, NULL, &s->shrink));
    return cr_budget_source_levels(s, &multiples, LEVELS);
}

static void close_source(struct cr_budget_source *s) {
    cr_widths_free(&s->widths);
    cr_shrink_free(&s->shrink);
    cr_channel_groups_free(&s->groups);
    cr_program_free(&s->program);
    cr_free(s->running);
    cr_model_close(&s->session.model);
    cr_config_close(s->config);
}

static bool is_filter_or_image(const struct cr_tensor *t) {
    return t->dtype == CR_I8 || t->dtype == CR_U8;
}

/* Both axes of each filter, and the channels of all values: the groups of the op have them at full width. */
static void check_op(const struct cr_budget_axes *a, const struct cr_op *op, int *found) {
    for (int s = 0; s < CR_OP_IN_MAX + CR_OP_OUT_MAX; s++) {
        const int id = s < CR_OP_IN_MAX ? op->in[s] : op->out[s - CR_OP_IN_MAX];
        if (id < 0 || !is_filter_or_image(&a->program->tensor[id])) continue;
        const struct cr_tensor *t = &a->program->tensor[id];
        const int               k = a->bins_of[id * CR_CHANNEL_AXES + (int)CR_AXIS_K];
        const int               c = a->bins_of[id * CR_CHANNEL_AXES + (int)CR_AXIS_C];
        const bool packed         = t->dim[0] == 1 && t->dim[1] == 1 && t->dim[2] == 1 && op->kind != CR_OP_quantize;
        if (packed || t->dim[3] == 3) continue; /* the pixels have no groups */
        if (c == CR_NONE) TEST_FAIL_("%s: no channels", t->name);
        if (a->layer_of[id] != CR_NONE && k == CR_NONE) TEST_FAIL_("%s: no output channels", t->name);
        (*found)++;
    }
}

static void check_program(const struct cr_budget_source *source, enum cr_dtype real) {
    OWNED(config)         config  = NULL;
    struct cr_budget_axes axes    = {0};
    OWNED(session)        session = {0};
    OWNED(program)        program = {0};
    const char           *names[64];
    int                   layers = 0, found = 0, convs = 0;
    session.device = open_gpu("h200", false);
    if (!session.device) SKIP(no_kernels_for_gpus);
    REQUIRE(open_config("quant.type=int8", &config));
    session.config = config;
    REQUIRE_OK(cr_model_open(config, CLASSES, SIZE, SIZE, &session.model));
    cr_model_set_real(&session.model, real);
    REQUIRE_OK(cr_session_compile(&session, CR_PROGRAM_EVAL, BATCH, "fuse", &program));
    for (int i = 0; i < session.model.store.params; i++)
        if (session.model.store.param[i].role == CR_ROLE_CONV ||
            session.model.store.param[i].role == CR_ROLE_DENSE_WEIGHT)
            names[layers++] = session.model.store.param[i].name;
    REQUIRE_OK(cr_budget_axes_open(source, &program, names, layers, &axes));
    for (int i = program.hoisted; i < program.ops; i++) {
        const enum cr_op_kind kind = program.op[i].kind;
        if (kind != CR_OP_qconv && kind != CR_OP_qconv_pair) continue;
        check_op(&axes, &program.op[i], &found);
        convs++;
    }
    CHECK(convs > 4 && found >= 3 * convs);
    cr_budget_axes_close(&axes);
}

TEST(both_axes_of_8_bit_filters_have_channels) {
    struct cr_budget_source source = {0};
    REQUIRE_OK(open_source(&source));
    check_program(&source, CR_F32);
    check_program(&source, CR_F16);
    check_program(&source, CR_BF16);
    close_source(&source);
}

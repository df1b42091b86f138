/* cli/commands/plan.c: cresnet plan: prints the network, its compiled program and its memory plan. Needs no data and no
 * GPU, because it stops before memory is reserved. Kernels are selected as in training: by the kernel times of the
 * device, or by those in the checkpoint of a RUN. */
#include "cli/common/command.h"
#include "cli/svg/svg.h"
#include "compiler/fusion/conv_fusion.h"
#include "inspect/plan_print.h"
#include "session/session.h"

struct plan {
    const struct cr_config *config;
    struct cr_cmd_source    source;
    struct cr_session       session; /* device, model and kernel times only */
    struct cr_program       program;
    bool                    offline; /* --target was given, the device is an offline device */
    enum cr_program_kind    kind;
    int64_t                 batch;
    struct cr_size_schedule sizes; /* of data.image_sizes; count 0 without it */
};

/* In the order of the words of --which. */
static const enum cr_program_kind which_kinds[] = {CR_PROGRAM_STEP, CR_PROGRAM_MICRO_FIRST, CR_PROGRAM_MICRO,
                                                   CR_PROGRAM_MICRO_LAST, CR_PROGRAM_EVAL};

/* Reads the sparsity pattern of a pruned network. A network that is pruned during training has no fixed pattern that
 * its training program could use. */
static cr_status find_pattern(struct plan *p) {
    const bool eval = p->kind == CR_PROGRAM_EVAL;
    return cr_session_sparsity_pattern(&p->session,
                                       eval || !cr_config_prunes(p->config) ? p->config->model.weights : NULL, eval);
}

/* With data.image_sizes, the model is planned for its largest size. */
static cr_status train_size(const struct cr_config *c, struct cr_size_schedule *sizes, int *size) {
    struct cr_prepare train;
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &train));
    (void)!cr_config_sizes(c, sizes); /* config/check.c has checked the text */
    *size = sizes->count ? sizes->size[cr_size_largest(sizes)] : train.size;
    return CR_OK;
}

static cr_status open_model(struct plan *p, const struct cr_args *args) {
    const struct cr_config         *c       = p->config;
    struct cr_session              *s       = &p->session;
    const struct cr_session_options options = {.kernel_times_from = *p->source.folder ? p->source.folder : NULL,
                                               .retune            = true};
    struct cr_prepare               eval;
    int                             classes, size;
    int64_t                         ranks;
    enum cr_dtype                   real;
    s->config = c;
    CR_TRY(cr_cmd_classes(c, &classes));
    CR_TRY(train_size(c, &p->sizes, &size));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_VAL, &eval));
    p->offline = cr_args_has(args, CR_OPT_TARGET);
    if (p->offline)
        CR_TRY(cr_plan_target_open(args, c, &s->device, &real));
    else
        CR_TRY(cr_session_device(c, NULL, &s->device, &real));
    CR_TRY(cr_model_open(c, classes, size, eval.size, &s->model));
    cr_model_set_real(&s->model, real);
    if (p->kind != CR_PROGRAM_EVAL) CR_TRY(cr_session_attach_teacher(s, NULL, classes, real));
    CR_TRY(find_pattern(p));
    CR_TRY(cr_args_int(args, CR_OPT_RANKS, 1, CR_COMM_RANKS_MAX, 1, &ranks));
    s->model.ranks = (int)ranks;
    if (!p->offline)
        CR_TRY(cr_session_open_cost_table(s, &options));
    else if (cr_args_has(args, CR_OPT_KERNEL_TIMES))
        CR_TRY(cr_cost_table_load(s->device, args->value[CR_OPT_KERNEL_TIMES], &s->cost_table));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &s->prepare_train));
    s->state.batch = c->train.batch;
    cr_session_limit(s, 0);
    if (!s->state.batch) CR_TRY(cr_session_find_batch(s, 0));
    p->batch = p->kind == CR_PROGRAM_EVAL && c->train.eval_batch ? c->train.eval_batch : s->state.batch;
    return CR_OK;
}

static size_t need_of(const struct plan *p) {
    const struct cr_program *all[] = {&p->program};
    return cr_memory_need(p->session.device, &p->session.model.store, all, 1);
}

static cr_status compile(struct plan *p, const char *until) {
    do {
        cr_program_free(&p->program);
        CR_TRY(cr_session_compile(&p->session, p->kind, p->batch, until, &p->program));
    } while (!p->session.device->caps.host_memory && cr_session_needs_limit(&p->session, need_of(p)));
    if (p->session.cost_table) cr_cost_table_flush(p->session.cost_table);
    return CR_OK;
}

/* Adds the fusion candidates of all convolutions and the chosen fusions. */
static cr_status print_choices(struct plan *p, struct cr_text *out) {
    const struct cr_cost_model model = cr_session_cost_model(&p->session);
    if (!p->config->train.fuse)
        return cr_config_fail(p->config, "train.fuse", "no op is fused, so --choices has nothing to print");
    CR_TRY(cr_model_program(&p->session.model, p->config, p->kind, p->batch, &p->program));
    CR_TRY(cr_pass_fold(&p->program, &model)); /* fold and gram run before fusions are chosen */
    CR_TRY(cr_pass_gram(&p->program, &model, p->config->train.gram_bn));
    cr_text_add(out, "program %s, batch %lld, on %s; kernel times are %s\n", p->program.name, (long long)p->batch,
                p->session.device->caps.text, p->session.cost_table ? "measured" : "roofline estimates");
    CR_TRY(cr_fuse_report(&p->program, &model, out));
    if (p->session.pattern && p->config->train.sparse) {
        cr_text_add(out, "\npruned convolutions:\n");
        CR_TRY(cr_pass_fuse(&p->program, &model)); /* cr_pass_sparsify expects fused convolutions (stem, gradients) */
        CR_TRY(cr_pass_sparsify(&p->program, &model, cr_session_may_mask_gradients(p->config), out));
    }
    if (p->session.cost_table) cr_cost_table_flush(p->session.cost_table);
    return CR_OK;
}

/* Adds how the plan meets [memory] limit, or by how much it exceeds the limit. */
static void print_fit(struct plan *p, struct cr_text *out) {
    const size_t need = need_of(p);
    if (!p->session.limit) return;
    cr_text_add(out, "limit %.1f MiB", cr_mib(p->session.limit + p->session.overhead_bytes));
    if (p->session.overhead_bytes)
        cr_text_add(out, ", of which %.1f MiB for libraries%s%s", cr_mib(p->session.overhead_bytes),
                    p->session.model.ranks > 1 ? " and NCCL" : "",
                    cr_session_jpeg_bytes(&p->session) ? " and decoding" : "");
    cr_text_add(out, ": ");
    const size_t before = out->length;
    cr_session_fit_text(&p->session, out);
    if (need > p->session.limit)
        cr_text_add(out, "%sexceeded by %.1f MiB: a run would not start", out->length > before ? "\n" : "",
                    (double)(need - p->session.limit) / (1 << 20));
    else if (out->length == before)
        cr_text_add(out, "met without changes, %.1f MiB needed", cr_mib(need + p->session.overhead_bytes));
    cr_text_add(out, "\n");
}

static cr_status print_lifetimes(struct plan *p, struct cr_text *out) {
    const struct cr_cost_model model = cr_session_cost_model(&p->session);
    print_fit(p, out);
    if (out->length) cr_text_add(out, "\n");
    return cr_plan_print_lifetimes(&p->program, &model, out);
}

/* Adds the table of layers. It comes from a forward program of one image, so it does not depend on the options. */
static cr_status print_table(struct plan *p, struct cr_text *out) {
    struct cr_program eval;
    CR_TRY(cr_model_program(&p->session.model, p->config, CR_PROGRAM_EVAL, 1, &eval));
    cr_model_table(&p->session.model, &eval, out);
    cr_program_free(&eval);
    return CR_OK;
}

/* Compiles the program of one size of data.image_sizes, which the caller frees. */
static cr_status compile_size(struct plan *p, const char *until, int k, struct cr_program *program) {
    struct cr_model *model   = &p->session.model;
    const int64_t    largest = model->image_size;
    model->image_size        = p->sizes.size[k];
    const cr_status status   = cr_session_compile(&p->session, p->kind, p->batch, until, program);
    model->image_size        = largest;
    return status;
}

/* Fills size[] with the numbers of all sizes of data.image_sizes. */
static cr_status measure_sizes(struct plan *p, struct cr_plan_size *size) {
    for (int k = 0; k < p->sizes.count; k++) {
        struct cr_program  one;
        struct cr_program *program = k == cr_size_largest(&p->sizes) ? &p->program : &one;
        if (program == &one) CR_TRY(compile_size(p, NULL, k, &one));
        size[k] = (struct cr_plan_size){.image_size  = p->sizes.size[k],
                                        .from_epoch  = p->sizes.epoch[k],
                                        .peak_bytes  = program->region_bytes[CR_REGION_POOL],
                                        .bound_bytes = program->bound_bytes,
                                        .ops         = program->ops};
        if (program == &one) cr_program_free(&one);
    }
    return CR_OK;
}

/* Adds the numbers as JSON. Planning is fast and deterministic, so it is repeated here to measure its time. */
static cr_status print_json(struct plan *p, struct cr_text *out) {
    const struct cr_device *device = p->session.device;
    const int64_t           start  = cr_time_ns();
    struct cr_plan_size     size[CR_SIZES_MAX];
    struct cr_plan_numbers  numbers = {.device = device->caps.text, .batch = p->batch, .size = size};
    CR_TRY(cr_pass_plan(&p->program, device->caps.alignment, p->config->memory.reuse));
    numbers.plan_ms = (double)(cr_time_ns() - start) * 1e-6;
    if (p->kind != CR_PROGRAM_EVAL) { /* evaluation has one size */
        CR_TRY(measure_sizes(p, size));
        numbers.sizes = p->sizes.count;
    }
    cr_plan_print_json(&p->program, p->config, &numbers, out);
    return CR_OK;
}

static cr_status write_svg(const struct cr_args *args, const struct cr_program *program) {
    struct cr_text svg = {0};
    cr_pool_svg(&svg, program, true);
    return cr_cmd_write_file(args, args->value[CR_OPT_SVG], CR_OUTPUT_POOL_SVG, &svg);
}

/* Adds the plans of the sizes of data.image_sizes, without the largest, whose program is compiled already, and a
 * heading for that one. All programs share one pool, as large as the largest needs. */
static cr_status print_sizes(struct plan *p, const char *until, struct cr_text *out) {
    const struct cr_size_schedule *sizes   = &p->sizes;
    const int                      largest = cr_size_largest(sizes);
    if (p->kind == CR_PROGRAM_EVAL || sizes->count < 2) return CR_OK;
    for (int k = 0; k < sizes->count; k++) {
        struct cr_program one;
        if (k == largest) continue;
        CR_TRY(compile_size(p, until, k, &one));
        cr_text_add(out, "images of %d pixels, from epoch %lld on:\n", sizes->size[k], (long long)sizes->epoch[k] + 1);
        cr_plan_print_summary(&one, out);
        cr_text_add(out, "\n");
        cr_program_free(&one);
    }
    cr_text_add(out, "images of %d pixels, from epoch %lld on, whose pool the other sizes share:\n",
                sizes->size[largest], (long long)sizes->epoch[largest] + 1);
    return CR_OK;
}

static cr_status print_plan(struct plan *p, const struct cr_args *args, struct cr_text *out) {
    const char *after   = args->value[CR_OPT_AFTER];
    const bool  program = after || cr_args_has(args, CR_OPT_PROGRAM), csv = cr_args_has(args, CR_OPT_CSV);
    CR_TRY(open_model(p, args));
    if (cr_args_has(args, CR_OPT_CHOICES)) return print_choices(p, out);
    CR_TRY(compile(p, after));
    if (cr_args_has(args, CR_OPT_SVG)) CR_TRY(write_svg(args, &p->program));
    if (cr_args_has(args, CR_OPT_JSON))
        CR_TRY(print_json(p, out));
    else if (cr_args_has(args, CR_OPT_LIFETIMES))
        CR_TRY(print_lifetimes(p, out));
    else if (program || csv) {
        if (program) cr_program_print(&p->program, out);
        if (csv) cr_plan_print_csv(&p->program, out);
    } else {
        CR_TRY(print_table(p, out));
        cr_text_add(out, "\n");
        CR_TRY(print_sizes(p, after, out));
        cr_plan_print_summary(&p->program, out);
        if (p->session.limit) cr_text_add(out, "\n");
        print_fit(p, out);
        if (p->offline) CR_TRY(cr_plan_target_print(&p->session, &p->program, out));
    }
    return CR_OK;
}

static void plan_close(struct plan *p) {
    cr_program_free(&p->program);
    cr_session_close(&p->session);
    cr_config_close(p->config);
}

/* The program and the memory pool may be printed one after the other; the other forms of output exclude all others.
 * `early`: the program is printed after a pass that is not the last one. */
static cr_status check_options(const struct cr_args *args, bool early) {
    const bool json = cr_args_has(args, CR_OPT_JSON), csv = cr_args_has(args, CR_OPT_CSV),
               svg     = cr_args_has(args, CR_OPT_SVG);
    const bool program = cr_args_has(args, CR_OPT_PROGRAM), choices = cr_args_has(args, CR_OPT_CHOICES);
    if (early && (json || csv))
        return cr_args_fail(args, "--after %s: the memory pool (--json, --csv) exists only after the last pass",
                            args->value[CR_OPT_AFTER]);
    if (choices && (early || json || csv || program))
        return cr_args_fail(args, "--choices prints its own table: leave --after, --program, --json and --csv out; "
                                  "cresnet profile --json has the kernel and the time of each op");
    if (cr_args_has(args, CR_OPT_LIFETIMES) && (early || json || csv || choices || program))
        return cr_args_fail(args, "--lifetimes prints its own table: leave --after, --program, --json, --csv and "
                                  "--choices out");
    if (svg && (early || choices))
        return cr_args_fail(args, "--svg draws the memory pool, which exists only after the last pass: leave --after "
                                  "and --choices out");
    if (cr_args_has(args, CR_OPT_REPLACE) && !svg)
        return cr_args_fail(args, "--force needs --svg FILE, which it replaces: leave it out");
    if (cr_args_has(args, CR_OPT_KERNEL_TIMES) && !cr_args_has(args, CR_OPT_TARGET))
        return cr_args_fail(args,
                            "--kernel-times needs --target: without it the kernel times of this machine are used");
    if (json && (csv || program || cr_args_has(args, CR_OPT_AFTER)))
        return cr_args_fail(args, "--json prints one line: leave --csv, --program and --after out");
    return CR_OK;
}

cr_status cr_cmd_plan(const struct cr_args *args, struct cr_result *out) {
    struct plan p = {0};
    int         which, pass;
    cr_status   status;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_word(args, CR_OPT_WHICH, &which));
    CR_TRY(cr_args_word(args, CR_OPT_AFTER, &pass));
    CR_TRY(check_options(args, pass != 0));
    if (cr_args_has(args, CR_OPT_SVG)) CR_TRY(cr_cmd_output_check(args, args->value[CR_OPT_SVG], CR_OUTPUT_POOL_SVG));
    CR_TRY_OUT(cr_cmd_source_find(args, &p.source));
    CR_TRY_OUT(cr_cmd_config_open(args, &p.source, NULL, &p.config));
    p.kind = which_kinds[which];
    /* With micro-batches there is no program `step`. The last micro-step contains the update and needs the most memory.
     */
    if (!cr_args_has(args, CR_OPT_WHICH) && p.config->train.accumulate > 1) p.kind = CR_PROGRAM_MICRO_LAST;
    CR_TRY_OUT(print_plan(&p, args, &out->text));
    CR_TRY_OUT(cr_cmd_print(&out->text));
    /* the plan is printed, but a script must see that it exceeds the limit */
    if (!pass && p.session.limit && need_of(&p) > p.session.limit)
        CR_TRY_OUT(cr_session_limit_missed(&p.session, need_of(&p)));
out:
    plan_close(&p);
    return status;
}

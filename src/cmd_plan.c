/* cmd_plan.c: cresnet plan: the network and its compiled program as text. Needs no data and no GPU: it stops before
 * memory is reserved. */
#include "cmd.h"
#include "plan_print.h"
#include "session.h"

struct plan {
    struct cr_config  config;
    struct cr_device *device;
    struct cr_model   model;
    struct cr_program program;
    bool              has_model, has_program;
    int64_t           batch;
};

/* The first is what stands for no --which. */
static const char *const which_words[] = {"(step)", "step", "micro_first", "micro", "micro_last", "eval", NULL};
static const enum cr_program_kind which_kinds[] = {CR_PROGRAM_STEP,  CR_PROGRAM_STEP,       CR_PROGRAM_MICRO_FIRST,
                                                   CR_PROGRAM_MICRO, CR_PROGRAM_MICRO_LAST, CR_PROGRAM_EVAL};

static cr_status open_model(struct plan *p) {
    const struct cr_config  *c = &p->config;
    struct cr_prepare        train, eval;
    int                      classes;
    enum cr_dtype            real;
    CR_TRY(cr_cmd_classes(c, &classes));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &train));
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_VAL, &eval));
    CR_TRY(cr_session_device(c, false, &p->device, &real));
    CR_TRY(cr_model_open(c, classes, train.size, eval.size, &p->model));
    p->has_model = true;
    cr_model_set_real(&p->model, real);
    return CR_OK;
}

static cr_status compile(struct plan *p, enum cr_program_kind kind, const char *until) {
    const struct cr_config   *c       = &p->config;
    struct cr_target          target  = cr_device_target(p->device);
    struct cr_compile_options options = {.fuse = c->train.fuse, .reuse = c->memory.reuse, .until = until};
    p->batch = kind == CR_PROGRAM_EVAL && c->train.eval_batch ? c->train.eval_batch : c->train.batch;
    CR_TRY(cr_model_program(&p->model, c, kind, p->batch, &p->program));
    p->has_program = true;
    return cr_compile(&p->program, &target, &options);
}

/* The table is made from a plain forward program of one picture: cheap, and the same whatever the options. */
static cr_status print_table(struct plan *p, struct cr_text *out) {
    struct cr_program eval;
    CR_TRY(cr_model_program(&p->model, &p->config, CR_PROGRAM_EVAL, 1, &eval));
    cr_model_table(&p->model, &eval, out);
    cr_program_free(&eval);
    return CR_OK;
}

static cr_status print_plan(struct plan *p, const struct cr_args *args, enum cr_program_kind kind,
                            struct cr_text *out) {
    const char *after = args->value[CR_OPT_AFTER];
    CR_TRY(open_model(p));
    CR_TRY(compile(p, kind, after));
    if (cr_args_has(args, CR_OPT_JSON))
        cr_plan_print_json(&p->program, &p->config, p->device->caps.text, p->batch, out);
    else if (cr_args_has(args, CR_OPT_CSV))
        cr_plan_print_csv(&p->program, out);
    else if (after || cr_args_has(args, CR_OPT_PROGRAM))
        cr_program_print(&p->program, out);
    else {
        CR_TRY(print_table(p, out));
        cr_text_add(out, "\n");
        cr_plan_print_summary(&p->program, out);
    }
    return CR_OK;
}

static void plan_close(struct plan *p) {
    if (p->has_program) cr_program_free(&p->program);
    if (p->has_model) cr_model_close(&p->model);
    cr_device_close(p->device);
    cr_config_close(&p->config);
}

cr_status cr_cmd_plan(const struct cr_args *args, int *signal_taken) {
    static const char *const passes[] = {"plan", "order", "select", "fuse", "grad", NULL};
    struct plan              p        = {0};
    struct cr_text           text     = {0};
    int                      which, pass;
    cr_status                status;
    (void)signal_taken;
    CR_TRY(cr_args_most(args, 1));
    CR_TRY(cr_args_word(args, CR_OPT_WHICH, which_words, &which));
    CR_TRY(cr_args_word(args, CR_OPT_AFTER, passes, &pass));
    if (pass && (cr_args_has(args, CR_OPT_JSON) || cr_args_has(args, CR_OPT_CSV)))
        return cr_args_fail(args, "--after %s: the pool (--json, --csv) is there after the last pass only",
                            passes[pass]);
    CR_TRY(cr_cmd_config(args, &p.config));
    enum cr_program_kind kind = which_kinds[which];
    /* With micro-batches there is no `step`: the last micro-step, which updates, is the fullest one. */
    if (!which && p.config.train.accumulate > 1) kind = CR_PROGRAM_MICRO_LAST;
    CR_TRY_OUT(print_plan(&p, args, kind, &text));
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    plan_close(&p);
    return status;
}

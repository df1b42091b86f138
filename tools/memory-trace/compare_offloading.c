/* tools/memory-trace/compare_offloading.c: predicted slowdown against memory when tensors are only offloaded to host
 * memory, for each rule that selects the tensors. Nothing is trained. */
#include "compiler/compiler.h"
#include "compiler/passes.h"
#include "tools/memory-trace/commands.h"

#include <stdio.h>

enum { HIGHEST = 95, LOWEST = 40, STEP = 5 }; /* memory limits in percent of the pool without offloading */

static const char *const names[CR_OFFLOAD_SCORES] = {"best", "doa", "aoa", "wdoa", "swdoa", "first"};

static cr_status measure(const struct cr_program *selected, const struct cr_cost_model *model, size_t limit,
                         enum cr_offload_score score, struct cr_fit_report *out) {
    const struct cr_compile_options options = {
        .reuse = true, .pool_limit = limit, .offload = true, .offload_score = score};
    struct cr_program p;
    CR_TRY(cr_program_copy(selected, &p));
    const cr_status status = cr_pass_fit(&p, model, &options, out);
    cr_program_free(&p);
    return status;
}

static cr_status print_curve(const struct cr_program *selected, const struct cr_cost_model *model,
                             struct cr_text *out) {
    struct cr_fit_report base, at; /* base: without offloading */
    CR_TRY(measure(selected, model, SIZE_MAX, CR_OFFLOAD_BEST, &base));
    if (model->to_host_bytes_per_s <= 0 || model->to_device_bytes_per_s <= 0)
        return CR_FAIL(CR_ERR_DEVICE,
                       "this device cannot copy to host memory while it computes: there is no offloading");
    cr_text_add(out, "program %s: pool %.1f MiB, %.3f ms; copies: %.1f GB/s to host, %.1f GB/s to device\n",
                selected->name, cr_mib(base.before), base.seconds * 1e3, model->to_host_bytes_per_s * 1e-9,
                model->to_device_bytes_per_s * 1e-9);
    cr_text_add(out,
                "predicted slowdown in %%; in parentheses the pool in %% when it exceeds the limit; MiB offloaded\n\n"
                "%6s %10s",
                "limit", "MiB");
    for (int k = 0; k < CR_OFFLOAD_SCORES; k++) cr_text_add(out, " %-26s", names[k]);
    for (int percent = HIGHEST; percent >= LOWEST; percent -= STEP) {
        const size_t limit = base.before / 100 * (size_t)percent;
        cr_text_add(out, "\n%5d%% %10.1f", percent, cr_mib(limit));
        for (int k = 0; k < CR_OFFLOAD_SCORES; k++) {
            char cell[64];
            CR_TRY(measure(selected, model, limit, (enum cr_offload_score)k, &at));
            int used = snprintf(cell, sizeof cell, "%7.2f %%", 100 * (at.seconds / base.seconds - 1));
            if (at.after > limit)
                used += snprintf(cell + used, sizeof cell - (size_t)used, " (%.1f)",
                                 100 * (double)at.after / (double)base.before);
            snprintf(cell + used, sizeof cell - (size_t)used, " %.0f", cr_mib(at.offload_bytes));
            cr_text_add(out, " %-26s", cell);
        }
    }
    cr_text_add(out, "\n");
    return CR_OK;
}

/* Opens the device, or the one of --target, with its kernel times, and the network. */
static cr_status open_network(const struct cr_tool_args *args, const struct cr_config **opened, struct cr_session *s) {
    const struct cr_session_options options = {0};
    struct cr_args                  cli     = args->cli;
    struct cr_prepare               train, eval;
    int                             classes;
    enum cr_dtype                   real;
    cli.operand++; /* without the command */
    cli.operands--;
    cli.value[CR_OPT_TARGET] = cr_tool_value(args, "target");
    CR_TRY(cr_cmd_config(&cli, opened));
    const struct cr_config *config = s->config = *opened;
    CR_TRY(cr_cmd_classes(config, &classes));
    CR_TRY(cr_prepare_from_config(config, CR_SPLIT_TRAIN, &train));
    CR_TRY(cr_prepare_from_config(config, CR_SPLIT_VAL, &eval));
    if (cli.value[CR_OPT_TARGET])
        CR_TRY(cr_plan_target_open(&cli, config, &s->device, &real));
    else
        CR_TRY(cr_session_device(config, NULL, &s->device, &real));
    CR_TRY(cr_model_open(config, classes, train.size, eval.size, &s->model));
    cr_model_set_real(&s->model, real);
    s->model.ranks = 1;
    if (!cli.value[CR_OPT_TARGET]) CR_TRY(cr_session_open_cost_table(s, &options));
    s->state.batch = config->train.batch;
    return s->state.batch ? CR_OK : cr_config_fail(config, "train.batch", "give a number: nothing is run to find one");
}

static cr_status compare(struct cr_session *s, struct cr_text *out) {
    struct cr_cost_model model = cr_session_cost_model(s);
    struct cr_program    program;
    CR_TRY(cr_session_compile(s, CR_PROGRAM_STEP, s->state.batch, "select", &program));
    cr_status status = s->cost_table ? cr_cost_table_copy_rates(s->cost_table, &model) : CR_OK;
    if (status == CR_OK) status = print_curve(&program, &model, out);
    if (s->cost_table) cr_cost_table_flush(s->cost_table);
    cr_program_free(&program);
    return status;
}

cr_status cr_trace_command_offloading(const struct cr_tool_args *args) {
    const struct cr_config *config  = NULL;
    struct cr_session       session = {0};
    struct cr_text          text    = {0};
    cr_status               status;
    CR_TRY_OUT(open_network(args, &config, &session));
    CR_TRY_OUT(compare(&session, &text));
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}

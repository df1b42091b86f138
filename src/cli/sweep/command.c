/* cli/sweep/command.c: cresnet sweep (grid search): checks all runs, executes them, prints the table, writes a page. */
#include "checkpoint/checkpoint.h"
#include "cli/report/report.h"
#include "cli/sweep/sweep.h"
#include "core/cpu.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RESERVED_BYTES = 64 << 20 };

/* Whether a training with this device computes on the CPU. */
static bool is_on_cpu(enum cr_device_kind kind) {
    if (kind != CR_DEVICE_AUTO) return kind == CR_DEVICE_CPU;
    const bool cpu = cr_device_check(CR_DEVICE_CUDA) != CR_OK;
    if (cpu) cr_error_clear(); /* says why there is no GPU */
    return cpu;
}

/* Takes from the configuration of a run where it computes, and its folder. On the CPU, a run has one thread unless the
 * configuration says otherwise: its result then does not depend on the number of runs at once. */
static cr_status prepare_run(struct cr_sweep *sweep, struct cr_sweep_run *run, const struct cr_config *config) {
    const bool given = cr_config_is_set(config, "train.threads");
    run->several     = config->data.multi_label;
    run->cpu         = is_on_cpu(config->train.device);
    run->threads     = !given ? 1 : config->train.threads > 0 ? config->train.threads : cr_cpu_cores();
    run->auto_memory = run->cpu && strcmp(config->memory.limit, "auto") == 0 && !*config->memory.card;
    if (run->cpu && !given) run->override[sweep->overrides] = "train.threads=1";
    if (!sweep->root)
        sweep->root = *config->train.output ? cr_arena_printf(&sweep->arena, "%s", config->train.output)
                                            : cr_arena_printf(&sweep->arena, "checkpoints/%s-sweep", config->name);
    if (!sweep->root) return CR_NO_MEMORY(CR_PATH_MAX);
    run->folder = cr_arena_printf(&sweep->arena, "%s/%s", sweep->root, run->name);
    run->output = cr_arena_printf(&sweep->arena, "%s/%s.txt", sweep->root, run->name);
    return run->folder && run->output ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

/* Keys that may differ: the sweep sets them, or the run chooses them. */
static bool may_differ(const char *key, const struct cr_config *config) {
    static const char *const names[] = {"train.output", "train.threads"};
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(key, names[i]) == 0) return true;
    if (!*config->memory.card && strcmp(key, "memory.card") == 0) return true;
    if (strcmp(config->memory.limit, "auto") == 0 && strcmp(key, "memory.limit") == 0) return true;
    return !config->train.batch && strcmp(key, "train.batch") == 0;
}

/* A run that exists continues with its stored configuration and the values of the command line. This lists the
 * values of `config` that the run does not use, because the file was edited or an earlier sweep had more values on its
 * command line. A stored configuration that cannot be read is reported by its run. */
static void list_kept_values(const struct cr_sweep *sweep, const struct cr_sweep_run *run,
                             const struct cr_config *config, struct cr_text *out) {
    const struct cr_config      *stored;
    struct cr_config_differences differ;
    char                         path[CR_PATH_MAX];
    cr_error_hold();
    const bool readable = cr_path_join(path, run->folder, "last/config.ini") == CR_OK && cr_fs_is_file(path) &&
                          cr_config_open_stored(&stored, path, run->override, sweep->overrides) == CR_OK;
    cr_error_release();
    if (!readable) return;
    out->failed |= cr_config_compare(stored, config, &differ) != CR_OK;
    for (int i = 0; i < differ.count && !out->failed; i++)
        if (!may_differ(differ.at[i].name, config))
            cr_text_add(out, "%s%s", out->length ? "; " : "", differ.at[i].text);
    cr_config_differences_free(&differ);
    cr_config_close(stored);
}

static void warn_of_kept_values(const struct cr_sweep *sweep, int runs, const char *name, const struct cr_text *kept) {
    if (!runs) return;
    cr_log(CR_LOG_WARN,
           "sweep: %d of the runs in %s exist and keep the values they were started with; not applied to %s: %s (give "
           "such values on the command line, or another folder with -o)",
           runs, sweep->root, name, kept->data ? kept->data : "");
}

/* Opens the configuration of every run, so that a mistake in the last one is found before the first one starts. */
static cr_status check_runs(struct cr_sweep *sweep, const char *path) {
    struct cr_text kept   = {0}, more;
    const char    *first  = NULL;
    int            runs   = 0;
    cr_status      status = CR_OK;
    for (int i = 0; i < sweep->runs && status == CR_OK; i++) {
        struct cr_sweep_run    *run = &sweep->run[i];
        const struct cr_config *config;
        CR_TRY_OUT(cr_config_open(&config, path, run->override, sweep->overrides));
        more   = (struct cr_text){0};
        status = prepare_run(sweep, run, config);
        if (status == CR_OK) list_kept_values(sweep, run, config, &more);
        cr_config_close(config);
        if (more.length && !runs++) {
            kept  = more;
            first = run->name;
        } else
            cr_text_free(&more);
    }
    if (status == CR_OK) warn_of_kept_values(sweep, runs, first, &kept);
out:
    cr_text_free(&kept);
    return status;
}

/* The default on the CPU: as many runs as the cores allow. On a GPU, processes take turns, so it is one. */
static cr_status choose_jobs(const struct cr_args *args, struct cr_sweep *sweep) {
    const int64_t cores   = cr_cpu_cores();
    int64_t       threads = 1, jobs;
    bool          cpu     = true;
    for (int i = 0; i < sweep->runs; i++) {
        cpu &= sweep->run[i].cpu;
        threads = CR_MAX(threads, sweep->run[i].threads);
    }
    const int64_t fallback = cpu ? CR_MIN(CR_MAX(cores / threads, 1), CR_SWEEP_RUNS) : 1;
    CR_TRY(cr_args_int(args, CR_OPT_JOBS, 1, CR_SWEEP_RUNS, fallback, &jobs));
    sweep->jobs       = (int)CR_MIN(jobs, sweep->runs);
    const size_t part = cr_cpu_memory_free() / (size_t)sweep->jobs; /* of it, 1/8 and 64 MiB are for other things */
    sweep->part_bytes = !part ? 0 : part / 8 * 7 > RESERVED_BYTES ? part / 8 * 7 - RESERVED_BYTES : 1;
    return CR_OK;
}

/* ---- results ---- */

/* Best top-1 (data.multi_label: mAP) of a run in its log; NAN when it has none. */
static double best_of(const struct cr_sweep_run *run, double *loss, double *epoch) {
    const struct cr_config config = {.data.multi_label = run->several};
    struct cr_report_run   report = {.config = &config};
    char                   path[CR_PATH_MAX];
    double                 top1 = NAN;
    *loss = *epoch = NAN;
    cr_error_hold();
    if (cr_path_join(path, run->folder, "log.jsonl") == CR_OK && cr_fs_is_file(path) &&
        cr_run_log_read(path, &report.log) == CR_OK) {
        const struct cr_best    best = cr_report_best(&report);
        const struct cr_series *eval = cr_report_series(&report, "eval/loss"),
                               *done = cr_report_series(&report, "train/epoch");
        if (best.top1) top1 = best.value;
        if (eval) *loss = eval->value[eval->count - 1];
        if (done) *epoch = done->value[done->count - 1];
    }
    cr_run_log_free(&report.log);
    cr_error_release();
    return top1;
}

static void print_table(const struct cr_sweep *sweep, struct cr_text *out) {
    static const char *const states[] = {"waiting", "running", "done", "stopped", "failed"};
    cr_text_add(out, "%-8s %9s %9s %9s  %s\n", "state", sweep->run[0].several ? "best mAP" : "best top1", "val loss",
                "epoch", "run");
    for (int i = 0; i < sweep->runs; i++) {
        const struct cr_sweep_run *run = &sweep->run[i];
        double                     loss, epoch, top1 = best_of(run, &loss, &epoch);
        const double               value[]  = {100 * top1, loss, epoch};
        const char *const          format[] = {"%.2f %%", "%.4f", "%.4g"};
        cr_text_add(out, "%-8s", states[run->state]);
        for (int k = 0; k < 3; k++) {
            char text[32] = "-";
            if (!isnan(value[k])) snprintf(text, sizeof text, format[k], value[k]);
            cr_text_add(out, " %9s", text);
        }
        cr_text_add(out, "  %s\n", run->name);
    }
}

/* Writes ROOT/compare.html with the best runs that are done; nothing when there are fewer than two. */
static cr_status write_page(const struct cr_sweep *sweep) {
    const struct cr_sweep_run *chosen[CR_CHART_LINES];
    double                     score[CR_CHART_LINES], loss, epoch;
    char                      *argv[CR_CHART_LINES + 4], file[CR_PATH_MAX];
    struct cr_args             args;
    int                        count = 0, argc = 0;
    for (int i = 0; i < sweep->runs; i++) {
        if (sweep->run[i].state != CR_SWEEP_DONE) continue;
        double top1 = best_of(&sweep->run[i], &loss, &epoch);
        if (isnan(top1)) top1 = -1;
        int at = count;
        for (; at > 0 && score[at - 1] < top1; at--)
            if (at < CR_CHART_LINES) score[at] = score[at - 1], chosen[at] = chosen[at - 1];
        if (at >= CR_CHART_LINES) continue;
        score[at] = top1, chosen[at] = &sweep->run[i];
        count = CR_MIN(count + 1, (int)CR_CHART_LINES);
    }
    if (count < 2) return CR_OK;
    CR_TRY(cr_path_join(file, sweep->root, "compare.html"));
    argv[argc++] = (char *)"--compare";
    for (int i = 0; i < count; i++) argv[argc++] = (char *)chosen[i]->folder;
    argv[argc++] = (char *)"-o";
    argv[argc++] = file;
    CR_TRY(cr_args_parse(CR_CMD_REPORT, argc, argv, &args));
    cr_status status = cr_report_compare(&args);
    cr_args_free(&args);
    return status;
}

static cr_status say_failed(const struct cr_sweep *sweep) {
    const struct cr_sweep_run *first = NULL;
    int                        count = 0;
    for (int i = 0; i < sweep->runs; i++) {
        if (sweep->run[i].state != CR_SWEEP_FAILED) continue;
        if (!first) first = &sweep->run[i];
        count++;
    }
    if (!count) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%d of %d runs failed: %s (exit code %d) says why in %s; the same command tries %s again",
                   count, sweep->runs, first->name, first->code, first->output, count > 1 ? "them" : "it");
}

static cr_status execute(struct cr_sweep *sweep, const char *config, struct cr_result *out) {
    cr_log(CR_LOG_INFO, "sweep: %d runs in %s, %d at once", sweep->runs, sweep->root, sweep->jobs);
    CR_TRY(cr_sweep_execute(sweep, config, &out->signal));
    print_table(sweep, &out->text);
    CR_TRY(cr_cmd_print(&out->text));
    if (out->signal) return CR_OK;
    CR_TRY(write_page(sweep));
    return say_failed(sweep);
}

static cr_status sweep_source(const struct cr_args *args, const char *config, struct cr_sweep *sweep,
                              struct cr_result *out) {
    CR_TRY(cr_sweep_expand(args, sweep));
    CR_TRY(check_runs(sweep, config));
    CR_TRY(choose_jobs(args, sweep));
    int lock = -1;
    for (int i = 0; cr_args_has(args, CR_OPT_DRY_RUN) && i < sweep->runs; i++)
        cr_text_add(&out->text, "%s\n", sweep->run[i].folder);
    if (cr_args_has(args, CR_OPT_DRY_RUN)) return CR_OK;
    CR_TRY(cr_fs_mkdirs(sweep->root));
    CR_TRY(cr_ckpt_lock(sweep->root, &lock));
    cr_status status = execute(sweep, config, out);
    close(lock);
    return status;
}

cr_status cr_cmd_sweep(const struct cr_args *args, struct cr_result *out) {
    struct cr_cmd_source source;
    struct cr_sweep      sweep = {0};
    CR_TRY(cr_args_max_operands(args, 1));
    if (args->operands && cr_fs_is_dir(args->operand[0]))
        return cr_args_fail(args, "%s: is a folder; a sweep needs a configuration file", args->operand[0]);
    CR_TRY(cr_cmd_source_find(args, &source));
    cr_status status = sweep_source(args, source.config, &sweep, out);
    cr_arena_free(&sweep.arena);
    return status;
}

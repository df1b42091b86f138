/* cli/compress/command.c: cresnet compress: reads the command line, tries patterns and speedups, prints the result. See
 * cli/compress/compress.h. */
#include "cli/compress/compress.h"
#include "data/class_match.h"
#include "data/data.h"
#include "session/saved_model.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALLER_TRIES = 3 };                  /* speedups that are tried when the accuracy drops by too much */
static const double enough_of_target = 0.97; /* of the speedup: measured times vary by a few percent */
static const double near_enough      = 1.05; /* factor between two speedups that makes no further try worthwhile */

/* ---- the command line ---- */

/* Each pattern alone, and all together. */
static cr_status read_sets(struct cr_compress *c) {
    struct cr_budget_request all = {.speedup = c->speedup};
    CR_TRY(cr_prune_patterns(c->args, c->config, &all));
    const bool               has[]   = {all.channels, all.two_four, all.block, all.unstructured};
    static const char *const names[] = {"channels", "2:4", "block", "unstructured"};
    int                      count   = 0;
    for (size_t i = 0; i < CR_COUNT(has); i++) count += has[i];
    if (c->int8 && !all.channels)
        return cr_args_fail(c->args,
                            "--int8 needs the pattern channels: no kernel for 8-bit values skips pruned weights");
    for (size_t i = 0; i < CR_COUNT(has); i++) {
        if (!has[i] || (c->int8 && i)) continue;
        c->set_name[c->sets] = names[i];
        c->set[c->sets++]    = (struct cr_budget_request){
               .channels = i == 0, .two_four = i == 1, .block = i == 2, .unstructured = i == 3, .automatic = true};
    }
    if (count < 2 || c->int8) return CR_OK;
    all.automatic        = true;
    c->set_name[c->sets] = "all";
    c->set[c->sets++]    = all;
    return CR_OK;
}

static cr_status open_run(struct cr_compress *c) {
    char resolved[PATH_MAX];
    if (!c->args->operands) return cr_args_fail(c->args, "no RUN given: cresnet compress RUN --speedup 2");
    if (!realpath(c->args->operand[0], resolved) || !cr_fs_is_dir(resolved))
        return cr_args_fail(c->args, "%s: no such run folder", c->args->operand[0]);
    c->run = cr_arena_printf(&c->arena, "%s", resolved);
    if (!c->run) return CR_NO_MEMORY(sizeof resolved);
    CR_TRY(cr_cmd_config(c->args, &c->config));
    if (!*c->config->model.weights)
        return cr_args_fail(c->args, "%s: is no run folder with a checkpoint", c->args->operand[0]);
    if (c->config->quant.type != CR_QUANT_NONE)
        return cr_config_fail(c->config, "quant.type",
                              "a quantised network cannot be compressed: give the one in floating point and --int8");
    return cr_config_change(&c->config,
                            CR_CHANGES("prune.sparsity=0", "prune.initial=0", "prune.budget=", "prune.column="));
}

/* OUT, without a slash at its end. */
static cr_status name_folders(struct cr_compress *c) {
    const char  *given  = c->args->value[CR_OPT_OUTPUT];
    const char  *source = given ? given : c->args->operand[0];
    const size_t length = cr_path_length(source);
    c->root             = cr_arena_printf(&c->arena, "%.*s%s", (int)length, source, given ? "" : "-compressed");
    c->ini              = c->root ? cr_arena_printf(&c->arena, "%s/compress.ini", c->root) : NULL;
    return c->ini ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

static cr_status read_args(struct cr_compress *c) {
    const struct cr_args *args = c->args;
    c->speedup                 = 0;
    c->max_drop                = INFINITY;
    c->int8                    = cr_args_has(args, CR_OPT_INT8);
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_real(args, CR_OPT_SPEEDUP, 1.01, 1e6, "how many times as fast, above 1, e.g. 2", &c->speedup));
    CR_TRY(cr_args_real(args, CR_OPT_MAX_DROP, 0, 100, "points of accuracy from 0 to 100, e.g. 0.5", &c->max_drop));
    if (c->speedup <= 0) return cr_args_fail(args, "no target given: --speedup X, e.g. --speedup 2");
    CR_TRY(open_run(c));
    CR_TRY(name_folders(c));
    c->batch = c->config->train.eval_batch ? c->config->train.eval_batch : c->config->train.batch;
    if (!c->batch) return cr_config_fail(c->config, "train.eval_batch", "a speedup needs a batch size: give --batch N");
    return read_sets(c);
}

/* The network is the teacher of the fine-tuning, and its accuracy is the reference. */
static cr_status check_classes(const struct cr_compress *c, const struct cr_dataset *dataset) {
    struct cr_arena       arena = {0};
    struct cr_class_match match = {0};
    const int             here  = dataset->classes;
    const char          **names;
    int                   count;
    cr_status             status;
    if (c->config->data.kind == CR_DATA_SYNTHETIC) return CR_OK;
    CR_TRY_OUT(cr_saved_model_names_for(dataset, c->config->model.weights, &arena, &names, &count));
    if (!count) goto out;
    if (count != here)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "the dataset has %d classes, the network %d: give the data that the network was trained with", here,
                    count);
    CR_TRY_OUT(cr_class_match(dataset->class_names, here, names, count, true, &match));
    if (match.relation == CR_CLASSES_OTHER)
        CR_FAIL_OUT(CR_ERR_CONFIG,
                    "the classes of the dataset are not those of the network: label %d is %s in the dataset and %s in "
                    "the network. Both must have the same names, in any order: give the data that the network was "
                    "trained with, or rename the classes of the dataset",
                    match.shown, dataset->class_names[match.shown], names[match.shown]);
out:
    cr_class_match_free(&match);
    cr_arena_free(&arena);
    return status;
}

/* Data that is missing or of other classes is found before any work. */
static cr_status check_data(const struct cr_compress *c) {
    struct cr_dataset *train = NULL, *val = NULL;
    cr_status          status;
    CR_TRY_OUT(cr_dataset_open(c->config, CR_SPLIT_TRAIN, &train));
    CR_TRY_OUT(cr_dataset_open(c->config, CR_SPLIT_VAL, &val));
    CR_TRY_OUT(check_classes(c, train));
out:
    cr_dataset_close(train);
    cr_dataset_close(val);
    return status;
}

/* ---- tries ---- */

static cr_status add_try(struct cr_compress *c, double speedup, int set, struct cr_compress_try **out) {
    CR_ASSERT(c->tries < CR_COMPRESS_TRIES);
    struct cr_compress_try *t       = &c->attempt[c->tries++];
    const char             *pattern = strcmp(c->set_name[set], "2:4") == 0 ? "2-4" : c->set_name[set];
    *t        = (struct cr_compress_try){.speedup = speedup, .set = set, .bn_accuracy = NAN, .accuracy = NAN};
    t->name   = cr_arena_printf(&c->arena, "%.3gx-%s", speedup, pattern);
    t->folder = t->name ? cr_arena_printf(&c->arena, "%s/%s", c->root, t->name) : NULL;
    *out      = t;
    return t->folder ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

/* Prunes with every set of patterns. The one with the best accuracy before fine-tuning is fine-tuned. */
static cr_status try_sets(struct cr_compress *c, struct cr_compress_try **best) {
    *best = NULL;
    for (int i = 0; i < c->sets; i++) {
        struct cr_compress_try *t;
        CR_TRY(add_try(c, c->speedup, i, &t));
        CR_TRY(cr_compress_prune(c, t));
        if (!t->unreachable && (!*best || t->bn_accuracy > (*best)->bn_accuracy)) *best = t;
    }
    if (*best) return CR_OK;
    const struct cr_compress_try *last = &c->attempt[c->tries - 1]; /* of all patterns together */
    if (c->sets == 1) return CR_FAIL(CR_ERR_CONFIG, "no pattern is fast enough: %s", last->why);
    return CR_FAIL(CR_ERR_CONFIG,
                   "no pattern is fast enough: --speedup %g cannot be reached on this device; the reason of each "
                   "pattern is printed above: give a smaller speedup, or another batch size with --batch",
                   c->speedup);
}

static bool keeps_accuracy(const struct cr_compress *c, const struct cr_compress_try *t) {
    return cr_compress_drop(c, t->accuracy) <= c->max_drop + 1e-9;
}

/* Bisection between no speedup and the first one. */
static cr_status try_smaller(struct cr_compress *c, const struct cr_compress_try *first) {
    double low = 1, high = first->speedup;
    for (int i = 0; i < SMALLER_TRIES && high / low > near_enough; i++) {
        struct cr_compress_try *t;
        CR_TRY(add_try(c, round(100 * sqrt(low * high)) / 100, first->set, &t));
        cr_log(CR_LOG_INFO, "the accuracy drops by more than %g points: trying %.3g times as fast", c->max_drop,
               t->speedup);
        CR_TRY(cr_compress_prune(c, t));
        if (!t->unreachable) CR_TRY(cr_compress_tune(c, t));
        const bool good = !t->unreachable && keeps_accuracy(c, t);
        if (good) c->best = t;
        *(good ? &low : &high) = t->speedup;
    }
    return CR_OK;
}

/* ---- the result ---- */

/* OUT/network is a link to the run folder to use. */
static cr_status link_result(const struct cr_compress *c) {
    char path[CR_PATH_MAX], target[CR_PATH_MAX];
    CR_TRY(cr_path_join(path, c->root, "network"));
    if (!c->best) return CR_OK;
    snprintf(target, sizeof target, "%s/%s", c->best->name, c->int8 ? "int8" : "tuned");
    (void)cr_fs_unlink(path); /* of an earlier run with another --max-drop */
    return cr_fs_symlink(target, path) < 0 ? cr_fs_refused(path, "create", errno) : CR_OK;
}

static void print_point(const struct cr_compress *c, const struct cr_compress_point *p, struct cr_text *out) {
    static const char *const steps[] = {"not compressed", "BN re-estimated", "fine-tuned", "int8"};
    const double             before  = cr_compress_reference(c)->ms;
    cr_text_add(out, "%-22s %-16s %8.2f %% %+8.2f %10.3f %7.2fx", p->name, steps[p->step], 100 * p->accuracy,
                0 - cr_compress_drop(c, p->accuracy), p->ms, before / p->ms);
    if (p->predicted_ms > 0)
        cr_text_add(out, " %10.3f", p->predicted_ms);
    else
        cr_text_add(out, " %10s", "-");
    cr_text_add(out, " %9.0f\n", p->bytes / 1024);
}

static cr_status print_result(struct cr_compress *c) {
    struct cr_text text = {0};
    cr_text_add(&text, "%-22s %-16s %10s %8s %10s %8s %10s %9s\n", "patterns", "step", "accuracy", "points", "ms",
                "speed", "predicted", "KiB");
    for (int i = 0; i < c->points; i++) print_point(c, &c->point[i], &text);
    for (int i = 0; i < c->tries; i++)
        if (c->attempt[i].unreachable) cr_text_add(&text, "%-22s cannot be reached\n", c->attempt[i].name);
    cr_text_add(&text, "ms: measured, of a batch of %lld; predicted: by the kernels, before fine-tuning\n",
                (long long)c->batch);
    if (c->best) cr_text_add(&text, "%s/network is %s/%s\n", c->root, c->best->name, c->int8 ? "int8" : "tuned");
    return cr_cmd_print(&text);
}

/* The last measurement of the result: after fine-tuning, or in int8. */
static void warn_if_slower(const struct cr_compress *c) {
    double speed = 0;
    for (int i = 0; c->best && i < c->points; i++)
        if (strcmp(c->point[i].name, c->best->name) == 0) speed = cr_compress_reference(c)->ms / c->point[i].ms;
    if (c->best && speed < enough_of_target * c->best->speedup)
        cr_log(CR_LOG_WARN,
               "measured %.2f times as fast, less than the target %.3g: other programs may have used the machine; "
               "repeat the command with another -o on an idle machine, or give a larger --speedup",
               speed, c->best->speedup);
}

/* A drop that cannot be kept is an error at the end: everything is written. */
static cr_status check_drop(const struct cr_compress *c, const struct cr_compress_try *first) {
    const double drop = cr_compress_drop(c, first->accuracy);
    if (c->best == first) return CR_OK;
    if (c->best)
        return CR_FAIL(CR_ERR_NUMERIC,
                       "%.3g times as fast, the accuracy drops by %.2f points, more than --max-drop %g; the best that "
                       "keeps it is %.3g times as fast, with a drop of %.2f points; of smaller speedups %d were tried",
                       first->speedup, drop, c->max_drop, c->best->speedup, cr_compress_drop(c, c->best->accuracy),
                       SMALLER_TRIES);
    return CR_FAIL(CR_ERR_NUMERIC,
                   "the accuracy drops by %.2f points, more than --max-drop %g, and by more than that for all smaller "
                   "speedups that were tried, down to %.3g: more epochs may help",
                   drop, c->max_drop, c->attempt[c->tries - 1].speedup);
}

static cr_status compress(struct cr_compress *c) {
    struct cr_compress_try *first;
    CR_TRY(cr_compress_dense(c));
    CR_TRY(try_sets(c, &first));
    CR_TRY(cr_compress_tune(c, first));
    if (keeps_accuracy(c, first))
        c->best = first;
    else
        CR_TRY(try_smaller(c, first));
    CR_TRY(link_result(c));
    CR_TRY(print_result(c));
    warn_if_slower(c);
    return check_drop(c, first);
}

static void print_plan(const struct cr_compress *c, struct cr_text *out) {
    cr_text_add(out, "evaluate and time %s%s\n", c->run, c->int8 ? ", also in int8" : "");
    for (int i = 0; i < c->sets; i++)
        cr_text_add(out, "prune to %g times as fast: %s; re-estimate BN statistics, evaluate\n", c->speedup,
                    c->set_name[i]);
    cr_text_add(out, "fine-tune the best by %s\n", c->ini);
    if (c->int8) cr_text_add(out, "quantise it\n");
    if (isfinite(c->max_drop))
        cr_text_add(out, "when it drops by more than %g points: up to %d smaller speedups\n", c->max_drop,
                    SMALLER_TRIES);
}

/* Some steps run in this process, and a signal ends it there. Each step writes its result at its end, so nothing else
 * is lost. While another process runs a step, the signal is blocked here and passed on. */
static void say_continues(int signal_taken) {
    static const char text[] = "cresnet: stopped: the same command continues\n";
    const ssize_t     bytes  = write(STDERR_FILENO, text, sizeof text - 1);
    (void)bytes; /* nobody reads it: the signal still ends the process */
    raise(signal_taken);
}

static void expect_signals(void) {
    struct sigaction action = {.sa_handler = say_continues, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

cr_status cr_cmd_compress(const struct cr_args *args, struct cr_result *out) {
    struct cr_compress *c;
    int                 lock = -1;
    cr_status           status;
    CR_ALLOC(c, 1);
    c->args = args;
    c->out  = out;
    CR_TRY_OUT(read_args(c));
    CR_TRY_OUT(check_data(c));
    CR_TRY_OUT(cr_compress_claim(c));
    if (cr_args_has(args, CR_OPT_DRY_RUN)) {
        print_plan(c, &out->text);
        goto out;
    }
    CR_TRY_OUT(cr_ckpt_lock(c->root, &lock));
    CR_TRY_OUT(cr_compress_write_ini(c));
    expect_signals();
    status = compress(c);
    if (status == CR_ERR_INTERRUPTED && out->signal) {
        cr_log(CR_LOG_INFO, "stopped: the same command continues");
        cr_error_clear();
        status = CR_OK;
    }
out:
    if (lock >= 0) close(lock);
    cr_config_close(c->config);
    cr_arena_free(&c->arena);
    cr_free(c);
    return status;
}

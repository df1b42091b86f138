/* training/best.c: the metric train.best, the best checkpoint so far (best.json), and early stopping (train.patience).
 * See training/run.h. */
#include "training/run.h"

#include "core/checksum/crc32c.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STORED_DIGITS = 9, LOG_BYTES_MAX = 1 << 30 }; /* of a value in best.json; of log.jsonl */

/* ---- the metric ---- */

static double metric_of(enum cr_best_metric metric, const struct cr_scores *e) {
    const double images = (double)e->images;
    switch (metric) {
    case CR_BEST_TOP1: return (double)e->correct1 / images;
    case CR_BEST_TOP5: return (double)e->correct5 / images;
    case CR_BEST_LOSS: return e->loss_sum / images;
    case CR_BEST_MAP: return e->map >= 0 ? e->map : 0; /* NAN: no image has a label */
    }
    return 0;
}

/* train.best; with several labels per image, top1 has no meaning and stands for map. */
static enum cr_best_metric metric_for(const struct cr_run *run) {
    const enum cr_best_metric best = run->config->train.best;
    return best == CR_BEST_TOP1 && run->config->data.multi_label ? CR_BEST_MAP : best;
}

static bool is_better(enum cr_best_metric metric, double a, double b) {
    return metric == CR_BEST_LOSS ? a < b : a > b;
}

/* The better one of the weights and their moving averages (NULL: none). */
static double better_of(enum cr_best_metric metric, const struct cr_scores *raw, const struct cr_scores *ema) {
    const double value = metric_of(metric, raw), average = ema ? metric_of(metric, ema) : value;
    return is_better(metric, average, value) ? average : value;
}

/* The value as best.json stores it, so that a resumed run compares the same numbers as an uninterrupted one. */
static double stored(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", STORED_DIGITS, value);
    return strtod(text, NULL);
}

/* ---- reading best.json ---- */

/* Returns the last pruning step after `step`, or `step`: earlier checkpoints have another number of pruned weights. */
static int64_t pruned_since(const struct cr_run *run, int64_t step) {
    int64_t last = step;
    for (int64_t at = step + 1; run->prune.layers && at <= run->at.step; at++) {
        const enum cr_prune_action due = cr_prune_step_at(run->config, at, run->at.steps_per_epoch).action;
        if (due != CR_PRUNE_NOTHING && due != CR_PRUNE_MOVE) last = at;
    }
    return last;
}

bool cr_run_evaluates_at(const struct cr_run *run, int64_t step) {
    const int64_t every = run->config->train.eval_every * run->at.steps_per_epoch;
    return step > 0 && every && step % every == 0;
}

struct cr_best cr_run_best_read(const struct cr_run *run) {
    const struct cr_best none   = {.step = -1};
    const char          *metric = cr_word_best_metric(metric_for(run)), *why;
    if (!run->from) return none;
    const struct cr_ckpt_best best = cr_ckpt_best_read(run->dir, metric, &why);
    if (why && cr_run_reports(run))
        cr_log(CR_LOG_WARN, "%s/best.json is ignored: %s; the next evaluation becomes the best", run->dir, why);
    if (best.step < 0 || best.step > run->at.step) return none;
    const int64_t from = pruned_since(run, best.step), every = run->config->train.eval_every * run->at.steps_per_epoch;
    const int64_t since = every ? run->at.step / every - from / every : 0; /* evaluations */
    return (struct cr_best){.step    = from == best.step ? best.step : -1,
                            .value   = best.value,
                            .average = best.average,
                            .stale   = since - cr_run_evaluates_again(run, best.step)};
}

bool cr_run_evaluates_again(const struct cr_run *run, int64_t best_step) {
    return run->from && !run->evaluated && best_step != run->at.step &&
           (run->at.step == run->total_steps || cr_run_evaluates_at(run, run->at.step));
}

/* Returns whether log.jsonl has this evaluation of the current step, which follows the checkpoint of this step. */
static bool is_logged(const struct cr_run *run, const char *evaluation) {
    char path[PATH_MAX + 32], event[64], *text, *next;
    if (!run->from || !cr_run_reports(run)) return false;
    snprintf(path, sizeof path, "%s/log.jsonl", run->dir);
    if (cr_file_read_no_link(path, LOG_BYTES_MAX, &text, NULL) != CR_OK) {
        cr_error_clear();
        return false;
    }
    const char *from = text;
    snprintf(event, sizeof event, "\"event\":\"save\",\"step\":%" PRId64 ",", run->at.step);
    while ((next = strstr(from, event))) from = next + 1;
    snprintf(event, sizeof event, "\"event\":\"%s\",\"step\":%" PRId64 ",", evaluation, run->at.step);
    const bool found = strstr(from, event) != NULL;
    cr_free(text);
    return found;
}

cr_status cr_run_find_evaluation(struct cr_run *run) {
    run->evaluated = is_logged(run, "eval");
    run->viewed    = run->config->train.final_tta == CR_TTA_NONE || is_logged(run, "final_tta");
    return cr_comm_broadcast(run->comm, &run->evaluated, sizeof run->evaluated, 0);
}

void cr_run_set_steps(struct cr_run *run) {
    run->total_steps = run->config->train.epochs * run->at.steps_per_epoch;
    if (run->config->train.steps) run->total_steps = CR_MIN(run->total_steps, run->config->train.steps);
}

bool cr_run_is_complete(const struct cr_run *run, const struct cr_best *best) {
    return run->at.step >= run->total_steps && !cr_run_evaluates_again(run, best->step) && run->viewed;
}

/* ---- a new evaluation ---- */

/* Writes the value of a metric and, with moving averages, those of the weights and of the averages. */
static void put_metric(struct cr_json_writer *w, enum cr_best_metric metric, const struct cr_scores *raw,
                       const struct cr_scores *ema) {
    const char *name = cr_word_best_metric(metric);
    char        member[32];
    cr_json_put_general(w, name, better_of(metric, raw, ema), STORED_DIGITS);
    if (!ema) return;
    snprintf(member, sizeof member, "raw_%s", name);
    cr_json_put_general(w, member, metric_of(metric, raw), STORED_DIGITS);
    snprintf(member, sizeof member, "ema_%s", name);
    cr_json_put_general(w, member, metric_of(metric, ema), STORED_DIGITS);
}

/* Points the link `best` to the current step and writes best.json. It always has the top-1 accuracy (data.multi_label:
 * the mean average precision), which other commands show. */
static cr_status mark_best(const struct cr_run *run, const struct cr_scores *raw, const struct cr_scores *ema) {
    char                  path[PATH_MAX + 32];
    struct cr_text        text = {0};
    struct cr_json_writer w    = cr_json_writer(&text, CR_JSON_COMPACT);
    CR_TRY(cr_ckpt_point(run->dir, "best", run->at.step));
    snprintf(path, sizeof path, "%s/best.json", run->dir);
    cr_json_open_object(&w, NULL);
    cr_json_put_int(&w, "step", run->at.step);
    const enum cr_best_metric always = run->config->data.multi_label ? CR_BEST_MAP : CR_BEST_TOP1;
    put_metric(&w, always, raw, ema);
    if (metric_for(run) != always) put_metric(&w, metric_for(run), raw, ema);
    if (!text.failed) cr_json_put_uint(&w, CR_CKPT_BEST_SUM, cr_crc32c(0, text.data, text.length));
    cr_json_close_line(&w);
    cr_status status = text.failed ? CR_NO_MEMORY(text.length * 2) : cr_file_write_atomic(path, text.data, text.length);
    cr_text_free(&text);
    return status;
}

cr_status cr_run_update_best(const struct cr_run *run, const struct cr_scores *raw, const struct cr_scores *ema,
                             struct cr_best *best, bool *is_best) {
    const enum cr_best_metric metric  = metric_for(run);
    const double              value   = stored(better_of(metric, raw, ema));
    const double              average = ema ? stored(metric_of(metric, ema)) : value;
    *is_best                          = best->step < 0 || is_better(metric, value, best->value) ||
               (value == best->value && is_better(metric, average, best->average));
    best->stale++;
    if (!*is_best) return CR_OK;
    *best = (struct cr_best){.step = run->at.step, .value = value, .average = average};
    return cr_run_reports(run) ? mark_best(run, raw, ema) : CR_OK;
}

bool cr_run_stops_early(const struct cr_run *run, const struct cr_best *best) {
    if (cr_prune_is_dense_later(run->config, run->at.step, run->at.steps_per_epoch)) return false;
    return run->config->train.patience && best->stale >= run->config->train.patience;
}

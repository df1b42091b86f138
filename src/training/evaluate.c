/* training/evaluate.c: saves checkpoints, evaluates, and keeps track of the best checkpoint of a run. See
 * training/run.h. */
#include "training/run.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void best_path(const struct cr_run *run, char *buf, size_t size) {
    snprintf(buf, size, "%s/best.json", run->dir);
}

/* Returns whether a pruning step changed the network between the best checkpoint and now. */
static bool pruned_since(const struct cr_run *run, int64_t step) {
    double fraction;
    for (step++; run->prune.layers && step <= run->at.step; step++)
        if (cr_prune_due(&run->config, step, run->at.steps_per_epoch, &fraction)) return true;
    return false;
}

struct cr_best cr_run_best_read(const struct cr_run *run) {
    const struct cr_best none = {.top1 = -1};
    const char          *why;
    if (!run->from) return none;
    const struct cr_ckpt_best best = cr_ckpt_best_read(run->dir, &why);
    if (why && cr_run_reports(run))
        cr_log(CR_LOG_WARN, "%s/best.json is ignored: %s; the next evaluation becomes the best", run->dir, why);
    if (best.step < 0 || best.step > run->at.step || pruned_since(run, best.step)) return none;
    return (struct cr_best){best.step, best.top1};
}

bool cr_run_reports(const struct cr_run *run) {
    return cr_comm_rank(run->comm) == 0;
}

cr_status cr_run_save(struct cr_run *run, struct cr_report *report) {
    int64_t start = cr_time_ns();
    if (!cr_run_reports(run)) return CR_OK;
    CR_TRY(cr_state_save(&run->session, &run->at, run->dir, run->config_text.data, run->train));
    const double seconds = (double)(cr_time_ns() - start) * 1e-9; /* training waits meanwhile */
    char         json[64], human[96];
    snprintf(json, sizeof json, "\"step\":%" PRId64 ",\"seconds\":%.3f", run->at.step, seconds);
    snprintf(human, sizeof human, "saved step %" PRId64 " in %.3f s", run->at.step, seconds);
    cr_report_event(report, CR_EVENT_SAVE, json, human);
    return CR_OK;
}

static double top1_of(const struct cr_scores *e) {
    return (double)e->correct1 / (double)e->images;
}

/* Writes best.json: the step and its top-1 accuracy, the better one of the weights and their moving averages. With
 * moving averages both accuracies follow. */
static cr_status mark_best(struct cr_run *run, struct cr_best *best, const struct cr_scores *raw,
                           const struct cr_scores *ema) {
    char         path[PATH_MAX + 32], text[192], details[96] = "";
    const double top1 = ema ? fmax(top1_of(raw), top1_of(ema)) : top1_of(raw);
    *best             = (struct cr_best){run->at.step, top1};
    CR_TRY(cr_ckpt_mark_best(run->dir, run->at.step));
    best_path(run, path, sizeof path);
    if (ema) snprintf(details, sizeof details, ",\"raw_top1\":%.9g,\"ema_top1\":%.9g", top1_of(raw), top1_of(ema));
    snprintf(text, sizeof text, "{\"step\":%" PRId64 ",\"top1\":%.9g%s}\n", best->step, best->top1, details);
    return cr_file_write_atomic(path, text, strlen(text));
}

/* With [ema]: exchanges weights and moving averages, evaluates, and exchanges them back. */
static cr_status evaluate_ema(struct cr_run *run, volatile const int *stop, struct cr_scores *out) {
    CR_TRY(cr_state_ema_exchange(&run->session));
    cr_status status = cr_session_evaluate(&run->session, run->val, stop, out);
    if (status != CR_OK && status != CR_ERR_INTERRUPTED) return status;
    cr_status restored = cr_state_ema_exchange(&run->session);
    return restored == CR_OK ? status : restored;
}

/* Formats scores as JSON members, whose names begin with `prefix`, and as text. */
static void scores_text(const struct cr_scores *e, const char *prefix, char json[192], char human[128]) {
    const double images = (double)e->images, top5 = (double)e->correct5 / images;
    char         loss[32] = "null"; /* JSON cannot represent infinity and NaN */
    if (isfinite(e->loss_sum)) snprintf(loss, sizeof loss, "%.6f", e->loss_sum / images);
    snprintf(json, 192, "\"%scorrect\":%" PRId64 ",\"%stop1\":%.6f,\"%stop5\":%.6f,\"%sloss\":%s", prefix, e->correct1,
             prefix, top1_of(e), prefix, top5, prefix, loss);
    snprintf(human, 128, "top-1 %.2f %% (%" PRId64 " of %" PRId64 "), top-5 %.2f %%, loss %.4f", 100 * top1_of(e),
             e->correct1, e->images, 100 * top5, e->loss_sum / images);
}

cr_status cr_run_evaluate(struct cr_run *run, struct cr_report *report, volatile const int *stop,
                          struct cr_best *best) {
    const bool       has_ema = run->session.model.store.has_ema;
    struct cr_scores e, ema = {0};
    char             raw_json[192], raw_human[128], ema_json[192] = "", ema_human[128] = "", json[512], human[384];
    CR_TRY(cr_session_evaluate(&run->session, run->val, stop, &e));
    if (has_ema) CR_TRY(evaluate_ema(run, stop, &ema));
    if (!cr_run_reports(run)) return CR_OK;
    const bool is_best = top1_of(&e) > best->top1 || (has_ema && top1_of(&ema) > best->top1);
    if (is_best) CR_TRY(mark_best(run, best, &e, has_ema ? &ema : NULL));
    scores_text(&e, "", raw_json, raw_human);
    if (has_ema) scores_text(&ema, "ema_", ema_json, ema_human);
    snprintf(json, sizeof json, "\"step\":%" PRId64 ",\"images\":%" PRId64 ",%s%s%s,\"best\":%s", run->at.step,
             e.images, raw_json, has_ema ? "," : "", ema_json, is_best ? "true" : "false");
    snprintf(human, sizeof human, "evaluation at step %" PRId64 ": %s%s%s%s", run->at.step, raw_human,
             has_ema ? "; moving averages: " : "", ema_human, is_best ? ", best so far" : "");
    cr_report_event(report, CR_EVENT_EVAL, json, human);
    return CR_OK;
}

/* training/evaluate.c: saves checkpoints, evaluates the validation set, logs metrics, also with EMA or SWA weights. */
#include "session/labels/label_scores.h"
#include "training/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

enum { CLASSES_LOGGED = 100 }; /* a line of the log stays readable */

bool cr_run_reports(const struct cr_run *run) {
    return cr_comm_rank(run->comm) == 0;
}

cr_status cr_run_save(struct cr_run *run, struct cr_report *report) {
    int64_t start = cr_time_ns();
    if (!cr_run_reports(run)) return CR_OK;
    CR_TRY(cr_ckpt_check_lock(run->dir, run->lock));
    CR_TRY(cr_state_save(&run->session, &run->at, run->dir, run->config_text.data, run->train->class_names,
                         run->train->classes));
    const double seconds = (double)(cr_time_ns() - start) * 1e-9; /* training waits meanwhile */
    char         human[96];
    snprintf(human, sizeof human, "saved step %" PRId64 " in %.3f s", run->at.step, seconds);
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_SAVE);
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_fixed(&w, "seconds", seconds, 3);
    cr_json_put_int(&w, "time", (int64_t)time(NULL));
    cr_report_end(report, &w, human);
    return CR_OK;
}

cr_status cr_run_average(struct cr_run *run) {
    const int64_t before = run->at.step / run->at.steps_per_epoch - run->config->ema.swa_start;
    if (before < 0) return cr_state_ema_start(&run->session);
    CR_TRY(cr_state_swa_average(&run->session, before));
    const struct cr_bn_options options = {.averages = true, /* batches of the epoch that follows, in its order */
                                          .batches  = run->config->ema.swa_batches,
                                          .epoch    = run->at.step / run->at.steps_per_epoch,
                                          .step     = run->at.step};
    return cr_session_bn_statistics(&run->session, run->train, &options, NULL);
}

static double top1_of(const struct cr_scores *e) {
    return (double)e->correct1 / (double)e->images;
}

/* With [ema]: exchanges weights and moving averages, evaluates, and exchanges them back. */
static cr_status evaluate_ema(struct cr_run *run, volatile const sig_atomic_t *stop, struct cr_scores *out) {
    CR_TRY(cr_state_ema_exchange(&run->session));
    cr_status status = cr_session_evaluate(&run->session, run->val, stop, out);
    if (status != CR_OK && status != CR_ERR_INTERRUPTED) return status;
    cr_status restored = cr_state_ema_exchange(&run->session);
    return restored == CR_OK ? status : restored;
}

/* Number of labels of an image that can be correct: the classes with data.multi_label, else 0. */
static int labels_of(const struct cr_run *run) {
    return run->config->data.multi_label ? run->session.model.classes : 0;
}

static void scores_text(const struct cr_run *run, const struct cr_scores *e, char human[128]) {
    const int    labels = labels_of(run);
    const double images = (double)e->images, top5 = (double)e->correct5 / images;
    char         fifth[32] = "";
    if (labels) {
        snprintf(human, 128, "mAP %.2f %%, all labels correct %.2f %%, labels correct %.2f %%, loss %.4f", 100 * e->map,
                 100 * top1_of(e), 100 * top5 / labels, e->loss_sum / images);
        return;
    }
    if (cr_top5_tells(run->session.model.classes)) snprintf(fifth, sizeof fifth, ", top-5 %.2f %%", 100 * top5);
    snprintf(human, 128, "top-1 %.2f %% (%" PRId64 " of %" PRId64 ")%s, loss %.4f", 100 * top1_of(e), e->correct1,
             e->images, fifth, e->loss_sum / images);
}

/* The member of a score: of the weights with the prefix "", of their moving averages with "ema_". */
static void put_score(struct cr_json_writer *w, const char *prefix, const char *name, double value) {
    char member[32];
    snprintf(member, sizeof member, "%s%s", prefix, name);
    cr_json_put_fixed(w, member, value, 6);
}

static void put_scores(struct cr_json_writer *w, const struct cr_scores *e, int labels, const char *prefix) {
    const double images = (double)e->images;
    if (labels) {
        put_score(w, prefix, "map", e->map);
        put_score(w, prefix, "exact_match", top1_of(e));
        put_score(w, prefix, "label_accuracy", (double)e->correct5 / images / labels);
    } else {
        char member[32];
        snprintf(member, sizeof member, "%scorrect", prefix);
        cr_json_put_int(w, member, e->correct1);
        put_score(w, prefix, "top1", top1_of(e));
        put_score(w, prefix, "top5", (double)e->correct5 / images);
    }
    put_score(w, prefix, "loss", e->loss_sum / images);
}

/* The error of an evaluation whose loss is not finite, with the step and what to change. */
static cr_status explain_divergence(const struct cr_run *run, cr_status status) {
    char why[512];
    if (status != CR_ERR_NUMERIC) return status;
    cr_error_copy(why, sizeof why);
    return CR_FAIL(status,
                   "step %" PRId64 ": %s. The training has diverged: try a smaller optim.lr, a longer "
                   "schedule.warmup_epochs, or train.clip_norm",
                   run->at.step, why);
}

cr_status cr_run_evaluate(struct cr_run *run, struct cr_report *report, volatile const sig_atomic_t *stop,
                          struct cr_best *best) {
    const bool       has_ema = run->session.model.store.has_ema;
    const int        labels  = labels_of(run);
    bool             is_best;
    struct cr_scores e, ema                         = {0};
    char             raw_human[128], ema_human[128] = "", human[384], folder[CR_PATH_MAX];
    cr_status        evaluated = cr_session_evaluate(&run->session, run->val, stop, &e);
    if (evaluated == CR_OK && has_ema) evaluated = evaluate_ema(run, stop, &ema);
    CR_TRY(explain_divergence(run, evaluated));
    CR_TRY(cr_run_update_best(run, &e, has_ema ? &ema : NULL, best, &is_best));
    if (!cr_run_reports(run)) return CR_OK;
    /* of the last evaluation: that of the moving averages, which predict uses, if there are some */
    if (labels) CR_TRY(cr_path_join(folder, run->dir, "step-%" PRId64, run->at.step));
    if (labels) CR_TRY(cr_session_save_thresholds(&run->session, folder));
    struct cr_label_score score[CLASSES_LOGGED];
    const int             logged = labels <= CLASSES_LOGGED ? labels : 0;
    if (logged) CR_TRY(cr_label_scores_classes(run->session.label_scores, score));
    scores_text(run, &e, raw_human);
    if (has_ema) scores_text(run, &ema, ema_human);
    snprintf(human, sizeof human, "evaluation at step %" PRId64 ": %s%s%s%s", run->at.step, raw_human,
             has_ema ? "; moving averages: " : "", ema_human, is_best ? ", best so far" : "");
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_EVAL);
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_int(&w, "images", e.images);
    put_scores(&w, &e, labels, "");
    if (has_ema) put_scores(&w, &ema, labels, "ema_");
    if (logged) cr_json_open_array(&w, has_ema ? "ema_average_precision" : "average_precision");
    for (int k = 0; k < logged; k++) cr_json_put_fixed(&w, NULL, score[k].ap, 6);
    if (logged) cr_json_close_array(&w);
    cr_json_put_bool(&w, "best", is_best);
    cr_report_end(report, &w, human);
    return CR_OK;
}

/* ---- train.final_tta ---- */

cr_status cr_run_check_final_tta(const struct cr_run *run) {
    const struct cr_config *c = run->config;
    struct cr_prepare       prepare;
    if (c->train.final_tta == CR_TTA_NONE) return CR_OK;
    if (cr_comm_size(run->comm) > 1)
        return cr_config_fail(c, "train.final_tta",
                              "needs a run of one process: evaluate afterwards with cresnet eval");
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_VAL, &prepare));
    return cr_prepare_check_views(c, "train.final_tta", c->train.final_tta, &prepare);
}

cr_status cr_run_evaluate_views(struct cr_run *run, struct cr_report *report, volatile const sig_atomic_t *stop) {
    const enum cr_tta tta     = run->config->train.final_tta;
    const bool        has_ema = run->session.model.store.has_ema;
    const int         labels  = labels_of(run);
    struct cr_scores  e;
    char              human[128], text[320];
    if (tta == CR_TTA_NONE) return CR_OK;
    if (has_ema) CR_TRY(cr_state_ema_exchange(&run->session)); /* predict uses the averages too */
    cr_status status = cr_session_evaluate_views(&run->session, run->val, tta, stop, &e);
    if (has_ema) CR_TRY(cr_state_ema_exchange(&run->session));
    if (status == CR_ERR_INTERRUPTED) return CR_OK; /* the checkpoint is complete */
    CR_TRY(status);
    scores_text(run, &e, human);
    snprintf(text, sizeof text, "evaluation with tta = %s (%d views of each image%s): %s", cr_word_tta(tta),
             cr_prepare_views(tta), has_ema ? ", moving averages" : "", human);
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_FINAL_TTA);
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_string(&w, "tta", cr_word_tta(tta));
    put_scores(&w, &e, labels, has_ema ? "ema_" : "");
    cr_report_end(report, &w, text);
    return CR_OK;
}

/* training/train.c: the step loop: learning rate, micro-batches, evaluation, saving, signals. See session/session.h. */
#include "optim/optim.h"
#include "training/metrics.h"
#include "training/run.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- signals: the first SIGINT or SIGTERM asks to stop after the step, the second ends at once; SIGUSR1 saves ---- */

static volatile int          stop_signal;
static volatile sig_atomic_t save_wanted;

static void on_stop(int number) {
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
}

static void on_save(int number) {
    (void)number;
    save_wanted = 1;
}

struct old_handlers {
    struct sigaction on_int, on_term, on_usr1;
};

static void handlers_install(struct old_handlers *old) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART},
                     save = {.sa_handler = on_save, .sa_flags = SA_RESTART};
    stop_signal           = 0;
    save_wanted           = 0;
    sigaction(SIGINT, &stop, &old->on_int);
    sigaction(SIGTERM, &stop, &old->on_term);
    sigaction(SIGUSR1, &save, &old->on_usr1);
}

static void handlers_restore(const struct old_handlers *old) {
    sigaction(SIGINT, &old->on_int, NULL);
    sigaction(SIGTERM, &old->on_term, NULL);
    sigaction(SIGUSR1, &old->on_usr1, NULL);
}

/* ---- one update ---- */

/* A run whose result was not asked for yet. On a device that works beside the host there is always one, so that it has
 * the next batch before it is done with the last; elsewhere there is none. */
struct pending {
    struct cr_exec *exec; /* NULL: none */
    int64_t         run, step;
    bool            ends_update;
    double          lr;
    int64_t         wait_ns;
};

struct flight {
    int                   ended_by; /* the signal that ends the run, whichever rank got it; 0: none */
    struct pending        pending;
    struct cr_step_result sum; /* of the update that the pending run belongs to */
    struct cr_report     *report;
    bool                  started;
};

static cr_status judge_update(const struct cr_run *run, const struct pending *p, const struct cr_exec_result *r,
                              double loss_sum) {
    const struct cr_config *c    = &run->config;
    const bool              fp16 = run->session.model.real == CR_F16;
    const bool expected = fp16 && c->train.loss_scale == 0 && r->loss_scale > 2; /* the scale finds its place */
    if (isfinite(loss_sum) && (!r->nonfinite || expected)) return CR_OK;
    return CR_FAIL(CR_ERR_NUMERIC,
                   "step %" PRId64
                   ": the %s is not finite (learning rate %g). The update was not applied and nothing was saved since; "
                   "the last checkpoint in %s is good. Try a smaller optim.lr, a longer schedule.warmup_epochs, %sor "
                   "train.clip_norm",
                   p->step + 1, isfinite(loss_sum) ? "gradient" : "loss", p->lr, run->dir,
                   fp16 ? "another train.loss_scale (0 finds one), train.precision = bf16, " : "");
}

/* Once, after the first update: how long everything took that came before. On a device that works beside the host it is
 * read when the second batch is on its way. */
static void say_started(struct cr_run *run, struct flight *f) {
    char parts[160];
    if (f->started) return;
    f->started        = true;
    const int64_t age = cr_process_age_ns();
    cr_session_check_limit(&run->session);
    cr_session_times_text(&run->session, parts, sizeof parts);
    if (age > 0)
        cr_log(CR_LOG_INFO, "started; %.2f s from exec to the end of the first step (%s)", (double)age * 1e-9, parts);
}

/* Waits for the pending run; the last one of an update is reported. */
static cr_status collect(struct cr_run *run, struct flight *f) {
    struct pending        p = f->pending;
    struct cr_exec_result r;
    if (!p.exec) return CR_OK;
    f->pending.exec = NULL;
    CR_TRY(cr_exec_result(p.exec, p.run, &r));
    f->sum.loss_sum += r.loss_sum;
    f->sum.valid += r.valid;
    f->sum.correct1 += r.correct1;
    f->sum.correct5 += r.correct5;
    if (!p.ends_update) return CR_OK;
    CR_TRY(judge_update(run, &p, &r, f->sum.loss_sum));
    f->sum.lr        = p.lr;
    f->sum.grad_norm = r.nonfinite ? (double)NAN : sqrt(r.norm_squared);
    f->sum.wait_ns   = p.wait_ns;
    if (run->session.model.real == CR_F16) {
        f->sum.loss_scale = r.loss_scale;
        f->sum.skipped    = r.skipped;
    }
    cr_report_step(f->report, p.step + 1, &f->sum);
    say_started(run, f);
    f->sum = (struct cr_step_result){0};
    return CR_OK;
}

static cr_status run_batch(struct cr_run *run, struct cr_exec *exec, const struct cr_step_block *block) {
    struct cr_batch batch;
    CR_TRY(cr_loader_next(run->loader, &batch));
    cr_status status = cr_exec_feed_mixed(exec, batch.images, batch.labels, batch.boxes, batch.mixes);
    cr_loader_release(run->loader, &batch);
    CR_TRY(status);
    return cr_exec_run(exec, block);
}

/* An update from `accumulate` batches: the first program assigns gradients, the middle ones add, the last updates. */
static cr_status train_step(struct cr_run *run, struct flight *f) {
    const struct cr_config *c     = &run->config;
    struct cr_session      *s     = &run->session;
    const int               parts = (int)c->train.accumulate;
    struct cr_step_block    block = {
           .lr           = (float)(run->lr_factor * cr_schedule_lr(c, run->at.step, run->at.steps_per_epoch)),
           .momentum     = (float)cr_schedule_momentum(c, run->at.step, run->at.steps_per_epoch),
           .weight_decay = (float)c->optim.weight_decay,
           .clip_norm    = (float)c->train.clip_norm,
           .step         = run->at.step,
           .seed         = (uint64_t)c->train.seed};
    for (int i = 0; i < parts; i++) {
        struct cr_exec *exec = s->train_exec[parts == 1 || i == 0 ? 0 : i == parts - 1 ? 2 : 1];
        CR_TRY(run_batch(run, exec, &block));
        CR_TRY(collect(run, f));
        f->pending = (struct pending){.exec        = exec,
                                      .run         = cr_exec_runs(exec),
                                      .step        = run->at.step,
                                      .ends_update = i == parts - 1,
                                      .lr          = (double)block.lr,
                                      .wait_ns     = cr_loader_wait_ns(run->loader)};
        if (!s->device->backend->async) CR_TRY(collect(run, f));
    }
    run->at.step++;
    return CR_OK;
}

/* Batches left over at the end of an epoch when `accumulate` does not divide it. */
static cr_status skip_leftover(struct cr_run *run, const struct cr_loader_options *o) {
    int64_t left = cr_loader_batches(run->train, o) - run->at.steps_per_epoch * run->config.train.accumulate;
    for (int64_t i = 0; i < left; i++) {
        struct cr_batch batch;
        CR_TRY(cr_loader_next(run->loader, &batch));
        cr_loader_release(run->loader, &batch);
    }
    return CR_OK;
}

/* ---- saving and evaluating ---- */

struct best {
    int64_t step;
    double  top1; /* -1: none yet */
};

static void best_path(const struct cr_run *run, char *buf, size_t size) {
    snprintf(buf, size, "%s/best.json", run->dir);
}

static struct best best_read(const struct cr_run *run) {
    struct best best = {.top1 = -1};
    char        path[PATH_MAX + 32], *text = NULL;
    size_t      length;
    best_path(run, path, sizeof path);
    if (!run->from) return best;
    if (cr_file_read(path, 4096, &text, &length) == CR_OK) {
        if (sscanf(text, "{\"step\":%" SCNd64 ",\"top1\":%lf}", &best.step, &best.top1) != 2 ||
            best.step > run->at.step)
            best = (struct best){.top1 = -1};
        cr_free(text);
    }
    return best;
}

static bool leads(const struct cr_run *run) {
    return cr_comm_rank(run->comm) == 0;
}

static cr_status save(struct cr_run *run, struct cr_report *report) {
    int64_t start = cr_time_ns();
    if (!leads(run)) return CR_OK;
    CR_TRY(cr_state_save(&run->session, &run->at, run->dir, run->config_text.data, run->train));
    const double seconds = (double)(cr_time_ns() - start) * 1e-9; /* training stands still meanwhile */
    char         json[64], human[96];
    snprintf(json, sizeof json, "\"step\":%" PRId64 ",\"seconds\":%.3f", run->at.step, seconds);
    snprintf(human, sizeof human, "saved step %" PRId64 " in %.3f s", run->at.step, seconds);
    cr_report_event(report, "save", json, human);
    return CR_OK;
}

static double top1_of(const struct cr_scores *e) {
    return (double)e->correct1 / (double)e->images;
}

/* top1 is that of the better of the weights and their averages; what each has follows where there are both. */
static cr_status mark_best(struct cr_run *run, struct best *best, const struct cr_scores *raw,
                           const struct cr_scores *ema) {
    char         path[PATH_MAX + 32], text[192], both[96] = "";
    const double top1 = ema ? fmax(top1_of(raw), top1_of(ema)) : top1_of(raw);
    *best             = (struct best){run->at.step, top1};
    CR_TRY(cr_ckpt_mark_best(run->dir, run->at.step));
    best_path(run, path, sizeof path);
    if (ema) snprintf(both, sizeof both, ",\"raw_top1\":%.9g,\"ema_top1\":%.9g", top1_of(raw), top1_of(ema));
    snprintf(text, sizeof text, "{\"step\":%" PRId64 ",\"top1\":%.9g%s}\n", best->step, best->top1, both);
    return cr_file_write_atomic(path, text, strlen(text));
}

/* With [ema]: the averages in the places of what they average, for so long. */
static cr_status evaluate_ema(struct cr_run *run, struct cr_scores *out) {
    CR_TRY(cr_state_ema_exchange(&run->session));
    cr_status status = cr_session_evaluate(&run->session, run->val, &stop_signal, out);
    if (status != CR_OK && status != CR_ERR_INTERRUPTED) return status;
    cr_status back = cr_state_ema_exchange(&run->session);
    return back == CR_OK ? status : back;
}

/* Scores as JSON and for people; the names of the averages' begin with `prefix`. */
static void scores_text(const struct cr_scores *e, const char *prefix, char json[192], char human[128]) {
    const double images = (double)e->images, top5 = (double)e->correct5 / images;
    char         loss[32] = "null"; /* JSON has no word for what is not finite */
    if (isfinite(e->loss_sum)) snprintf(loss, sizeof loss, "%.6f", e->loss_sum / images);
    snprintf(json, 192, "\"%sright\":%" PRId64 ",\"%stop1\":%.6f,\"%stop5\":%.6f,\"%sloss\":%s", prefix, e->correct1,
             prefix, top1_of(e), prefix, top5, prefix, loss);
    snprintf(human, 128, "top-1 %.2f %% (%" PRId64 " of %" PRId64 "), top-5 %.2f %%, loss %.4f", 100 * top1_of(e),
             e->correct1, e->images, 100 * top5, e->loss_sum / images);
}

static cr_status evaluate(struct cr_run *run, struct cr_report *report, struct best *best) {
    const bool       has_ema = run->session.model.store.has_ema;
    struct cr_scores e, ema = {0};
    char             raw_json[192], raw_human[128], ema_json[192] = "", ema_human[128] = "", json[512], human[384];
    CR_TRY(cr_session_evaluate(&run->session, run->val, &stop_signal, &e));
    if (has_ema) CR_TRY(evaluate_ema(run, &ema));
    if (!leads(run)) return CR_OK;
    const bool is_best = top1_of(&e) > best->top1 || (has_ema && top1_of(&ema) > best->top1);
    if (is_best) CR_TRY(mark_best(run, best, &e, has_ema ? &ema : NULL));
    scores_text(&e, "", raw_json, raw_human);
    if (has_ema) scores_text(&ema, "ema_", ema_json, ema_human);
    snprintf(json, sizeof json, "\"step\":%" PRId64 ",\"images\":%" PRId64 ",%s%s%s,\"best\":%s", run->at.step,
             e.images, raw_json, has_ema ? "," : "", ema_json, is_best ? "true" : "false");
    snprintf(human, sizeof human, "evaluation at step %" PRId64 ": %s%s%s%s", run->at.step, raw_human,
             has_ema ? "; averages: " : "", ema_human, is_best ? ", best so far" : "");
    cr_report_event(report, "eval", json, human);
    return CR_OK;
}

/* What is due after an update: a checkpoint first, so that an evaluation cut short loses nothing. `stopping`: a signal
 * asked to end here. *saved: this step is on disk, so the run may end here. */
static cr_status after_step(struct cr_run *run, struct flight *f, struct best *best, bool save_asked, bool *saved) {
    struct cr_report       *report    = f->report;
    const struct cr_config *c         = &run->config;
    int64_t                 per_epoch = run->at.steps_per_epoch, epoch = run->at.step / per_epoch;
    const bool              stopping  = f->ended_by != 0;
    bool                    last      = run->at.step == run->total_steps || stopping;
    bool                    epoch_end = run->at.step % per_epoch == 0;
    bool eval_due = !stopping && (last || (epoch_end && c->train.eval_every && epoch % c->train.eval_every == 0));
    bool save_due = last || save_asked || (c->train.save_every ? run->at.step % c->train.save_every == 0 : epoch_end);
    *saved        = save_due || eval_due;
    if (!*saved) return CR_OK;
    CR_TRY(collect(run, f)); /* nothing is saved that was not looked at */
    CR_TRY(cr_state_running_mean(&run->session));
    CR_TRY(save(run, report)); /* also before an evaluation, so that `best` has something to point to */
    cr_status status = eval_due ? evaluate(run, report, best) : CR_OK;
    if (status == CR_OK || status == CR_ERR_INTERRUPTED) CR_TRY(cr_state_running_own(&run->session));
    if (status == CR_ERR_INTERRUPTED) { /* on all ranks alike */
        status      = CR_OK;
        f->ended_by = stop_signal ? stop_signal : SIGTERM;
    }
    if (cr_comm_size(run->comm) == 1 && stop_signal) f->ended_by = stop_signal;
    cr_report_resume_clock(report, cr_loader_wait_ns(run->loader));
    return status;
}

/* Signals: one that came to any rank counts on all of them behind the same step. A signal that comes later must not end
 * a run that did not save. */
static cr_status hear(const struct cr_run *run, struct flight *f, bool *save_asked) {
    uint32_t ask = save_wanted ? CR_REQUEST_SAVE : 0, asked;
    save_wanted  = 0;
    if (stop_signal) ask |= stop_signal == SIGINT ? CR_REQUEST_INT : CR_REQUEST_TERM;
    CR_TRY(cr_comm_vote(run->comm, ask, &asked));
    *save_asked = asked & CR_REQUEST_SAVE;
    if (asked & CR_REQUEST_STOP) f->ended_by = asked & CR_REQUEST_TERM ? SIGTERM : SIGINT;
    return CR_OK;
}

/* Before an update or behind it: is a step of [prune] due? A checkpoint of this step has it already. */
static cr_status prune(struct cr_run *run, struct flight *f) {
    double share;
    if (!run->prune.layers || !cr_prune_due(&run->config, run->at.step, run->at.steps_per_epoch, &share)) return CR_OK;
    CR_TRY(collect(run, f));
    return cr_run_prune(run, share, f->report);
}

/* ---- the run ---- */

static void introduce(const struct cr_run *run) {
    const struct cr_session *s    = &run->session;
    struct cr_text           text = {0};
    cr_model_table(&s->model, &s->eval, &text);
    char *save = NULL; /* line by line: a deep network's table is longer than a log line may be */
    for (char *line = text.failed ? NULL : strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        cr_log(CR_LOG_INFO, "%s", line);
    cr_text_free(&text);
    double pool           = (double)s->memory.bytes[CR_REGION_POOL] / (1 << 20),
           store          = (double)s->memory.bytes[CR_REGION_STORE] / (1 << 20);
    const char *precision = s->model.real == CR_F16    ? "fp16"
                            : s->model.real == CR_BF16 ? "bf16"
                            : s->device->options.tf32  ? "tf32"
                                                       : "fp32";
    cr_log(CR_LOG_INFO, "device  %s; %s; parameters and state %.1f MiB, activations %.1f MiB", s->device->caps.text,
           precision, store, pool);
    cr_log(CR_LOG_INFO,
           "run     batch %" PRId64 " x %" PRId64 ", %" PRId64 " epochs of %" PRId64 " steps, to step %" PRId64
           ", output %s",
           run->config.train.batch, run->config.train.accumulate, run->config.train.epochs, run->at.steps_per_epoch,
           run->total_steps, run->dir);
    cr_log(CR_LOG_INFO, "Ctrl-C finishes the step, saves and stops; a second one stops at once.");
}

static cr_status loop(struct cr_run *run, struct cr_report *report, int *ended_by) {
    struct best                    best   = best_read(run);
    const struct cr_loader_options shape  = {.split     = CR_SPLIT_TRAIN,
                                             .batch     = run->config.train.batch,
                                             .drop_last = run->config.data.drop_last,
                                             .ranks     = cr_comm_size(run->comm)};
    struct flight                  flight = {.report = report};
    if (!run->from) CR_TRY(prune(run, &flight));
    cr_report_resume_clock(report, 0);
    while (run->at.step < run->total_steps && !flight.ended_by) {
        bool saved, save_asked;
        CR_TRY(train_step(run, &flight));
        CR_TRY(prune(run, &flight));
        CR_TRY(hear(run, &flight, &save_asked));
        CR_TRY(after_step(run, &flight, &best, save_asked, &saved));
        bool goes_on = run->at.step < run->total_steps && !flight.ended_by;
        if (goes_on && run->at.step % run->at.steps_per_epoch == 0) CR_TRY(skip_leftover(run, &shape));
    }
    char human[PATH_MAX + 128];
    *ended_by = flight.ended_by ? flight.ended_by : cr_comm_size(run->comm) == 1 ? stop_signal : 0;
    if (*ended_by)
        snprintf(human, sizeof human,
                 "stopped by signal %d after step %" PRId64 ", saved in %s; go on with --resume auto", *ended_by,
                 run->at.step, run->dir);
    else
        snprintf(human, sizeof human, "done: step %" PRId64 ", saved in %s", run->at.step, run->dir);
    cr_report_event(report, *ended_by ? "stopped" : "done", NULL, human);
    return CR_OK;
}

cr_status cr_train(const struct cr_config *config, const struct cr_train_options *options, int *signal_taken) {
    struct cr_run       run;
    struct cr_report   *report = NULL;
    struct old_handlers old;
    cr_status           status = CR_OK;
    *signal_taken              = 0;
    if (cr_comm_rank(options->comm) > 0) cr_log_quiet(true); /* rank 0 speaks; warnings come from all */
    CR_TRY(cr_run_open(config, options, &run));
    handlers_install(&old);
    introduce(&run);
    if (run.at.step >= run.total_steps) {
        cr_log(CR_LOG_INFO,
               "already at step %" PRId64 " of %" PRId64 ": nothing to do; raise train.epochs or train.steps to go on",
               run.at.step, run.total_steps);
        goto out;
    }
    const struct cr_report_options o = {.run_dir         = run.dir,
                                        .total_steps     = run.total_steps,
                                        .steps_per_epoch = run.at.steps_per_epoch,
                                        .epochs          = run.config.train.epochs,
                                        .log_every       = run.config.train.log_every,
                                        .images_per_step = cr_run_update_images(&run),
                                        .tensorboard     = run.config.train.tensorboard,
                                        .first_step      = run.from ? run.at.step + 1 : 0};
    if (leads(&run)) {
        CR_TRY_OUT(cr_run_trace(&run));
        CR_TRY_OUT(cr_report_open(&o, &report));
    }
    char json[128];
    snprintf(json, sizeof json, "\"step\":%" PRId64 ",\"total_steps\":%" PRId64 ",\"version\":\"%s\"", run.at.step,
             run.total_steps, CR_VERSION);
    cr_report_event(report, run.from ? "resume" : "start", json, NULL);
    CR_TRY_OUT(loop(&run, report, signal_taken));
    if (cr_loader_corrupt(run.loader))
        cr_log(CR_LOG_WARN, "%" PRId64 " pictures could not be read and were replaced by others",
               cr_loader_corrupt(run.loader));
out:
    if (cr_comm_size(options->comm) == 1) *signal_taken = stop_signal;
    if (status != CR_OK)
        cr_comm_abort(options->comm, cr_error_message()); /* before anything is closed that others wait for */
    handlers_restore(&old);
    cr_report_close(report);
    cr_run_close(&run);
    return status;
}

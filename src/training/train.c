/* training/train.c: the training loop: updates from micro-batches (gradient accumulation), learning rate, pruning,
 * checkpoints, Ctrl-C, NaN or infinite losses. See training/training.h. */
#include "optim/optim.h"
#include "pruning/shrink.h"
#include "training/metrics.h"
#include "training/run.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_S = 30 };

/* ---- signals ---- */

/* The first SIGINT or SIGTERM stops the run after the current step, the second one exits at once. SIGUSR1 requests a
 * checkpoint. */

static volatile sig_atomic_t stop_signal;
static volatile sig_atomic_t save_requested;

static void on_stop(int number) {
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
}

static void on_save(int number) {
    (void)number;
    save_requested = 1;
}

struct old_handlers {
    struct sigaction on_int, on_term, on_usr1;
};

/* Before the run is opened: SIGUSR1 must never end the program. main blocks it until here, so that an early one
 * waits. */
static void save_handler_install(struct old_handlers *old) {
    struct sigaction save = {.sa_handler = on_save, .sa_flags = SA_RESTART};
    sigset_t         usr1;
    save_requested = 0;
    sigaction(SIGUSR1, &save, &old->on_usr1);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &usr1, NULL);
}

/* After the run is opened: until then SIGINT and SIGTERM end the program at once, because there is nothing to save. */
static void stop_handlers_install(struct old_handlers *old) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    stop_signal           = 0;
    sigaction(SIGINT, &stop, &old->on_int);
    sigaction(SIGTERM, &stop, &old->on_term);
}

/* ---- one update ---- */

/* A program run whose result has not been read. On an asynchronous device (GPU) there is always one: the host submits
 * the next batch before it waits for the previous one. On the CPU there is none. */
struct in_flight {
    struct cr_exec *exec; /* NULL when there is none */
    int64_t         run;  /* number of the run, for cr_exec_result */
    int64_t         step;
    bool            ends_update;
    double          lr;
    int64_t         wait_ns;
};

struct loop_state {
    int                   ended_by; /* signal that ends the run, received by any rank; 0 when there is none */
    struct in_flight      in_flight;
    struct cr_step_result sum; /* of the update that the in-flight run belongs to */
    struct cr_report     *report;
    bool                  start_reported;
    struct cr_best        best;
    bool                  ended_early; /* by train.patience */
};

static cr_status check_finite(const struct cr_run *run, const struct in_flight *p, const struct cr_exec_result *r,
                              double loss_sum) {
    const struct cr_config *c    = run->config;
    const bool              fp16 = run->session.model.real == CR_F16;
    const bool              expected =
        fp16 && c->train.loss_scale == 0 && r->loss_scale > 2; /* a dynamic loss scale is still being adjusted */
    if (isfinite(loss_sum) && (!r->nonfinite || expected)) return CR_OK;
    return CR_FAIL(CR_ERR_NUMERIC,
                   "step %" PRId64
                   ": the %s is not finite (learning rate %g). The update was not applied, and the last "
                   "checkpoint in %s precedes it. Try a smaller optim.lr, a longer schedule.warmup_epochs, %sor "
                   "train.clip_norm",
                   p->step + 1, isfinite(loss_sum) ? "gradient" : "loss", p->lr, run->dir,
                   fp16 ? "another train.loss_scale (0 finds one), train.precision = bf16, " : "");
}

/* Logs the time to the first step, once. On an asynchronous device this happens after the second batch was
 * submitted. */
static void report_start(struct cr_run *run, struct loop_state *state) {
    char parts[160];
    if (state->start_reported) return;
    state->start_reported = true;
    const int64_t age     = cr_process_age_ns();
    cr_session_check_limit(&run->session);
    cr_session_times_text(&run->session, parts, sizeof parts);
    if (age > 0) cr_log(CR_LOG_INFO, "time to first step: %.2f s from process start (%s)", (double)age * 1e-9, parts);
}

/* Waits for the in-flight run; reports the update when this run completes it. */
static cr_status collect(struct cr_run *run, struct loop_state *state) {
    struct in_flight      p = state->in_flight;
    struct cr_exec_result r;
    if (!p.exec) return CR_OK;
    state->in_flight.exec = NULL;
    CR_TRY(cr_exec_result(p.exec, p.run, &r));
    state->sum.loss_sum += r.loss_sum;
    state->sum.valid += r.valid;
    state->sum.correct1 += r.correct1;
    state->sum.correct5 += r.correct5;
    if (!p.ends_update) return CR_OK;
    CR_TRY(check_finite(run, &p, &r, state->sum.loss_sum));
    state->sum.lr        = p.lr;
    state->sum.grad_norm = r.nonfinite ? (double)NAN : sqrt(r.norm_squared);
    state->sum.wait_ns   = p.wait_ns;
    if (run->session.model.real == CR_F16) {
        state->sum.loss_scale = r.loss_scale;
        state->sum.skipped    = r.skipped;
    }
    cr_report_step(state->report, p.step + 1, &state->sum);
    report_start(run, state);
    state->sum = (struct cr_step_result){0};
    return CR_OK;
}

/* Runs one update from `accumulate` micro-batches: the first program assigns the gradients, the next ones add to them,
 * and the last one also updates the parameters. */
static cr_status train_step(struct cr_run *run, struct loop_state *state) {
    const struct cr_config *c     = run->config;
    struct cr_session      *s     = &run->session;
    const int               parts = (int)c->train.accumulate;
    const int64_t           epoch = run->at.step / run->at.steps_per_epoch;
    const double            lr    = run->lr_factor * cr_schedule_lr(c, run->at.step, run->at.steps_per_epoch);
    /* RigL updates the masks after this update, which then only computes gradients: weights do not change */
    const bool moves =
        run->prune.layers && cr_prune_step_at(c, run->at.step + 1, run->at.steps_per_epoch).action == CR_PRUNE_MOVE;
    struct cr_step_block block = {.lr           = moves ? 0 : (float)lr,
                                  .momentum     = (float)cr_schedule_momentum(c, run->at.step, run->at.steps_per_epoch),
                                  .weight_decay = (float)c->optim.weight_decay,
                                  .clip_norm    = (float)c->train.clip_norm,
                                  .step         = run->at.step,
                                  .seed         = (uint64_t)c->train.seed};
    for (int i = 0; i < parts; i++) {
        struct cr_exec *exec = s->train_exec[cr_session_program_at(s, epoch, i)];
        block.first_image    = (i * (int64_t)cr_comm_size(run->comm) + cr_comm_rank(run->comm)) * s->state.batch;
        CR_TRY(cr_session_run_next(&run->session, run->loader, exec, &block, NULL));
        CR_TRY(collect(run, state));
        state->in_flight = (struct in_flight){.exec        = exec,
                                              .run         = cr_exec_runs(exec),
                                              .step        = run->at.step,
                                              .ends_update = i == parts - 1,
                                              .lr          = (double)(float)lr,
                                              .wait_ns     = cr_loader_wait_ns(run->loader)};
        if (!s->device->backend->async) CR_TRY(collect(run, state));
    }
    run->at.step++;
    return CR_OK;
}

/* Skips the batches at the end of an epoch that do not fill an update. */
static cr_status skip_leftover(struct cr_run *run, const struct cr_loader_options *o) {
    int64_t left = cr_loader_batches(run->train, o) - run->at.steps_per_epoch * run->config->train.accumulate;
    if (left <= 0) return CR_OK;
    CR_TRY(run->session.device->backend->sync(run->session.device)); /* these batches are not copied */
    cr_loader_settle(run->loader);
    for (int64_t i = 0; i < left; i++) {
        struct cr_batch batch;
        CR_TRY(cr_loader_next(run->loader, &batch));
        cr_loader_release(run->loader, &batch);
    }
    return CR_OK;
}

/* ---- after an update ---- */

/* A signal received by any rank takes effect on all ranks after the same step. Signals that arrive later are handled
 * after the next step, so that a run never ends without saving. */
static cr_status poll_signals(const struct cr_run *run, struct loop_state *state, bool *save_now) {
    uint32_t requests = save_requested ? CR_REQUEST_SAVE : 0, all_requests;
    save_requested    = 0;
    if (stop_signal) requests |= stop_signal == SIGINT ? CR_REQUEST_INT : CR_REQUEST_TERM;
    CR_TRY(cr_comm_vote(run->comm, requests, &all_requests));
    *save_now = all_requests & CR_REQUEST_SAVE;
    if (all_requests & CR_REQUEST_STOP) state->ended_by = all_requests & CR_REQUEST_TERM ? SIGTERM : SIGINT;
    return CR_OK;
}

/* Evaluates with the running statistics of all ranks, which cr_state_running_mean has put in place. A signal that
 * interrupts the evaluation ends the run. */
static cr_status evaluate(struct cr_run *run, struct loop_state *state) {
    bool      save_now;
    cr_status status   = cr_run_evaluate(run, state->report, &stop_signal, &state->best);
    state->ended_early = status == CR_OK && cr_run_stops_early(run, &state->best);
    if (status == CR_ERR_INTERRUPTED) {
        CR_TRY(cr_state_running_own(&run->session));
        /* the same on all ranks, but only one of them knows the signal */
        for (int i = 0; i <= CR_VOTE_LAG && !state->ended_by; i++) CR_TRY(poll_signals(run, state, &save_now));
        return CR_OK;
    }
    CR_TRY(status);
    return cr_state_running_own(&run->session);
}

/* Returns whether model.unfreeze changes the trained parts after this step. */
static bool unfreezes(const struct cr_run *run) {
    const int64_t per_epoch = run->at.steps_per_epoch;
    return run->at.step % per_epoch == 0 && cr_config_unfreezes(run->config, run->at.step / per_epoch);
}

/* Stochastic weight averaging, at the end of each epoch; before its first epoch whenever a checkpoint is written. */
static cr_status average(struct cr_run *run, struct loop_state *state, bool epoch_end) {
    const int64_t start = run->config->ema.swa_start;
    if (!start || (!epoch_end && run->at.step / run->at.steps_per_epoch >= start)) return CR_OK;
    CR_TRY(collect(run, state));
    return cr_run_average(run);
}

/* Saves and evaluates after an update when either is due. The checkpoint comes first, so that an interrupted evaluation
 * loses nothing. `stopping`: a signal ends the run after this step. */
static cr_status after_step(struct cr_run *run, struct loop_state *state, bool save_now) {
    struct cr_report       *report    = state->report;
    const struct cr_config *c         = run->config;
    const bool              stopping  = state->ended_by != 0;
    bool                    is_final  = run->at.step == run->total_steps || stopping;
    bool                    epoch_end = run->at.step % run->at.steps_per_epoch == 0;
    bool                    eval_due  = !stopping && (is_final || cr_run_evaluates_at(run, run->at.step));
    bool                    save_due  = is_final || save_now ||
                    (c->train.save_every ? run->at.step % c->train.save_every == 0 : epoch_end) || unfreezes(run);
    if (epoch_end || save_due || eval_due) CR_TRY(average(run, state, epoch_end));
    if (!save_due && !eval_due) return CR_OK;
    CR_TRY(collect(run, state)); /* only checked results are saved */
    CR_TRY(cr_state_running_mean(&run->session));
    CR_TRY(cr_run_save(run, report)); /* also before an evaluation, because `best` must point to a checkpoint */
    CR_TRY(eval_due ? evaluate(run, state) : cr_state_running_own(&run->session));
    if (cr_comm_size(run->comm) == 1 && stop_signal) state->ended_by = stop_signal;
    cr_report_resume_clock(report, cr_loader_wait_ns(run->loader));
    return CR_OK;
}

/* Prunes when [prune] is due at this step, before the step's checkpoint is written. Earlier checkpoints then have
 * another number of pruned weights, so their accuracy does not count for `best` any more. */
static cr_status prune(struct cr_run *run, struct loop_state *state) {
    const struct cr_prune_step due = cr_prune_step_at(run->config, run->at.step, run->at.steps_per_epoch);
    if (!run->prune.layers || due.action == CR_PRUNE_NOTHING) return CR_OK;
    CR_TRY(collect(run, state));
    if (due.action != CR_PRUNE_MOVE) state->best = (struct cr_best){.step = -1};
    return cr_run_prune(run, &due, state->report);
}

/* ---- the run ---- */

static bool continues(const struct cr_run *run, const struct loop_state *state) {
    return run->at.step < run->total_steps && !state->ended_by && !state->ended_early;
}

static cr_status loop(struct cr_run *run, struct cr_report *report, const struct cr_best *best, int *ended_by) {
    const struct cr_loader_options order = {.split     = CR_SPLIT_TRAIN,
                                            .batch     = cr_run_batch(run),
                                            .drop_last = run->config->data.drop_last,
                                            .ranks     = cr_comm_size(run->comm)};
    struct loop_state              state = {.report = report, .best = *best};
    if (!run->from) CR_TRY(prune(run, &state));
    if (cr_run_evaluates_again(run, state.best.step)) {
        CR_TRY(cr_state_running_mean(&run->session));
        CR_TRY(evaluate(run, &state));
    }
    cr_run_log_size(run, true);
    cr_report_resume_clock(report, 0);
    while (continues(run, &state)) {
        bool save_now;
        CR_TRY(train_step(run, &state));
        CR_TRY(prune(run, &state));
        CR_TRY(poll_signals(run, &state, &save_now));
        cr_run_watch_data(run, report);
        CR_TRY(after_step(run, &state, save_now));
        if (!continues(run, &state)) break;
        if (run->at.step % run->at.steps_per_epoch == 0) {
            CR_TRY(skip_leftover(run, &order));
            cr_run_log_size(run, false);
        }
        if (!unfreezes(run)) continue;
        CR_TRY(cr_run_unfreeze(run));
        cr_run_log_unfrozen(run, report);
        cr_report_resume_clock(report, cr_loader_wait_ns(run->loader));
    }
    *ended_by = state.ended_by ? state.ended_by : cr_comm_size(run->comm) == 1 ? stop_signal : 0;
    if (!*ended_by) CR_TRY(cr_run_evaluate_views(run, report, &stop_signal));
    cr_run_log_end(run, report, *ended_by, state.ended_early ? &state.best : NULL);
    return CR_OK;
}

/* Returns whether a resumed run has ended already, and says why. */
static bool has_ended(const struct cr_run *run, const struct cr_best *best) {
    const enum cr_log_level level     = cr_comm_rank(run->comm) == 0 ? CR_LOG_RESULT : CR_LOG_INFO;
    const int64_t           all_steps = run->config->train.epochs * run->at.steps_per_epoch;
    if (cr_run_is_complete(run, best)) {
        char hint[64] = "raise train.epochs to continue";
        if (run->total_steps < all_steps)
            snprintf(hint, sizeof hint, "train.steps=0 continues to step %" PRId64, all_steps);
        cr_log(level, "already at step %" PRId64 " of %" PRId64 ": nothing to do; %s", run->at.step, run->total_steps,
               hint);
        return true;
    }
    if (!cr_run_stops_early(run, best)) return false;
    cr_log(level, "stopped early at step %" PRId64 " of %" PRId64 ": nothing to do; raise train.patience to continue",
           run->at.step, run->total_steps);
    return true;
}

cr_status cr_train(const struct cr_config *config, const struct cr_train_options *options, int *signal_taken) {
    struct cr_run       run;
    struct cr_report   *report = NULL;
    struct old_handlers old;
    cr_status           status = CR_OK;
    *signal_taken              = 0;
    const bool quiet           = cr_log_is_quiet();
    if (cr_comm_rank(options->comm) > 0 || options->brief)
        cr_log_quiet(true); /* only rank 0 logs information; every rank logs warnings */
    save_handler_install(&old);
    status = cr_run_open(config, options, &run);
    if (status != CR_OK) {
        if (options->brief) cr_log_quiet(quiet);
        sigaction(SIGUSR1, &old.on_usr1, NULL);
        return status;
    }
    run.continued_by = options->continued_by ? options->continued_by : "--resume auto";
    stop_handlers_install(&old);
    cr_run_log_setup(&run);
    const struct cr_best best = cr_run_best_read(&run);
    if (has_ended(&run, &best)) goto out;
    const struct cr_report_options o = {.run_dir         = run.dir,
                                        .total_steps     = run.total_steps,
                                        .steps_per_epoch = run.at.steps_per_epoch,
                                        .epochs          = run.config->train.epochs,
                                        .log_every       = run.config->train.log_every,
                                        .images_per_step = cr_run_update_images(&run),
                                        .progress_s      = PROGRESS_S,
                                        .tensorboard     = run.config->train.tensorboard,
                                        .progress        = options->brief && !quiet,
                                        .labels          = run.config->data.multi_label ? run.session.model.classes : 0,
                                        .first_step      = run.from ? run.at.step + 1 : 0,
                                        .overlapped      = run.session.device->backend->async != NULL};
    if (cr_run_reports(&run)) CR_TRY_OUT(cr_report_open(&o, &report));
    cr_run_log_start(&run, report);
    CR_TRY_OUT(cr_run_report_sparsity(&run, report));
    CR_TRY_OUT(loop(&run, report, &best, signal_taken));
    const int64_t corrupt = CR_MAX(run.corrupt, cr_loader_corrupt(run.loader));
    if (corrupt) cr_log(CR_LOG_WARN, "%" PRId64 " images could not be read and were replaced by other images", corrupt);
out:
    if (cr_comm_size(options->comm) == 1) *signal_taken = stop_signal;
    if (status == CR_ERR_IO && cr_run_reports(&run)) { /* a folder that was renamed is the cause, not a missing file */
        const cr_status moved = cr_ckpt_check_lock(run.dir, run.lock);
        if (moved != CR_OK) status = moved;
    }
    if (status != CR_OK) {
        cr_comm_abort(options->comm,
                      cr_error_message()); /* before this rank closes anything that other ranks wait for */
        cr_run_log_failed(&run, status);
    }
    sigaction(SIGINT, &old.on_int, NULL);
    sigaction(SIGTERM, &old.on_term, NULL);
    sigaction(SIGUSR1, &old.on_usr1, NULL);
    cr_report_close(report);
    cr_run_close(&run);
    if (options->brief) cr_log_quiet(quiet);
    return status;
}

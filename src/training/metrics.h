/* training/metrics.h: what a person sees while training, and log.jsonl for programs.
 *
 * On a terminal one line is redrawn (epoch, step, loss, rate, img/s, data wait, time left); elsewhere a plain line
 * every train.log_every steps. log.jsonl gets one JSON object a line, flushed at once. Throughput is images divided by
 * elapsed time; evaluation and saving do not count. Knows nothing of programs or devices. */
#ifndef CR_METRICS_H
#define CR_METRICS_H

#include "core/base.h"

struct cr_report; /* NULL, in a rank that reports nothing: all of these do nothing */
struct cr_report_options {
    const char *run_dir; /* log.jsonl goes there, appended */
    int64_t     total_steps, steps_per_epoch, epochs, log_every;
    int64_t     images_per_step;
    bool        tensorboard; /* also an event file there (training/tensorboard.h): train/..., val/..., prune/... */
    int64_t     first_step;  /* of a run that goes on: the first update that it does; else 0 */
};
struct cr_step_result { /* sums over the step's micro-batches */
    double  loss_sum, valid, correct1, correct5;
    double  lr, grad_norm; /* not finite when the update was suppressed */
    double  loss_scale;    /* fp16: the factor of the loss, else 0 */
    int64_t skipped;       /* fp16: updates suppressed since the run began */
    int64_t wait_ns;       /* loader wait since the run began */
};

CR_MUST cr_status cr_report_open(const struct cr_report_options *options, struct cr_report **out);
void              cr_report_close(struct cr_report *report); /* NULL is fine */
/* The clock starts (again) now: after start-up, evaluation, saving. */
void cr_report_resume_clock(struct cr_report *report, int64_t wait_ns);
/* Update `step` (counted from 1) is done. */
void cr_report_step(struct cr_report *report, int64_t step, const struct cr_step_result *result);
/* A line for people (printed above the progress line) and the same as an event for programs: `json_fields` are the
 * members after "event", e.g. "\"step\":3,\"top1\":0.5". Either may be NULL. */
void cr_report_event(struct cr_report *report, const char *event, const char *json_fields, const char *human);

#endif

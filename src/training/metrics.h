/* training/metrics.h: the progress display of training, and log.jsonl.
 *
 * On a terminal one line is redrawn (epoch, step, loss, learning rate, img/s, data wait, time left). Without a
 * terminal a line is printed every train.log_every steps, and earlier when progress_s seconds have passed since the
 * last line. With --quiet only results (evaluations, the end of the run) are printed. log.jsonl has one JSON object on
 * each line; every line is flushed. Throughput is images divided by elapsed time without evaluation and saving. */
#ifndef CR_METRICS_H
#define CR_METRICS_H

#include "formats/json_write.h"

/* All functions accept NULL and then do nothing (ranks that report nothing). */
struct cr_report;
struct cr_report_options {
    const char *run_dir; /* log.jsonl is appended to in this folder */
    int64_t     total_steps, steps_per_epoch, epochs, log_every;
    int64_t     images_per_step;
    double      progress_s;  /* without a terminal: longest time between two lines, if the steps are shorter */
    bool        progress;    /* show the progress also when only results are printed */
    bool        tensorboard; /* also write a TensorBoard event file there: train/..., val/..., prune/... */
    int         labels;      /* data.multi_label: the number of classes; else 0 */
    int64_t     first_step;  /* on resume the first update of this process; else 0 */
    bool        overlapped;  /* the device computes a step while the host waits for the images of the next one */
};
struct cr_step_result { /* sums over the micro-batches of one step */
    double  loss_sum, valid, correct1, correct5;
    double  lr, grad_norm; /* NaN when the update was skipped */
    double  loss_scale;    /* fp16: loss scale; else 0 */
    int64_t skipped;       /* fp16: updates skipped since the run began */
    int64_t wait_ns;       /* time that the host waited for the loader since the run began */
};

/* Opens the log files; the caller frees *out with cr_report_close. CR_ERR_IO. */
CR_MUST cr_status cr_report_open(const struct cr_report_options *options, struct cr_report **out);
void              cr_report_close(struct cr_report *report);
/* Restarts the clock: after start-up, evaluation and saving. */
void cr_report_resume_clock(struct cr_report *report, int64_t wait_ns);
/* Reports the completed update `step`, counted from 1. */
void cr_report_step(struct cr_report *report, int64_t step, const struct cr_step_result *result);
/* Steps, time, and the part of it in which the device waited for the loader, since the last span was taken, without
 * evaluation and saving. Takes none, and returns 0, before it is `least_ns` long. */
struct cr_report_span {
    int64_t steps, ns, wait_ns;
};
struct cr_report_span cr_report_take_span(struct cr_report *report, int64_t least_ns);
/* The events of log.jsonl. */
enum cr_event {
    CR_EVENT_START,
    CR_EVENT_RESUME,
    CR_EVENT_TRAIN,
    CR_EVENT_DATA_WAIT,
    CR_EVENT_EVAL,
    CR_EVENT_FINAL_TTA,
    CR_EVENT_PRUNE,
    CR_EVENT_SPARSITY,
    CR_EVENT_UNFREEZE,
    CR_EVENT_SAVE,
    CR_EVENT_STOPPED,
    CR_EVENT_DONE,
    CR_EVENTS
};
/* Begins an event of log.jsonl: the caller adds members with the writer and then calls cr_report_end. */
struct cr_json_writer cr_report_begin(struct cr_report *report, enum cr_event event);
/* Appends the event to log.jsonl and prints the text `human`, which may be NULL, above the progress line. */
void cr_report_end(struct cr_report *report, struct cr_json_writer *writer, const char *human);

#endif

/* training/metrics.c: writes the progress line, log.jsonl and TensorBoard events. See training/metrics.h. */
#include "training/metrics.h"

#include "core/files.h"
#include "training/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* MEASURED_STEPS: neighbouring steps without a wait that tell how long a step takes. */
enum { LINE_BYTES = 1024, MEASURED_STEPS = 2 };

struct cr_report {
    struct cr_report_options options;
    int                      log;         /* log.jsonl, open for appending */
    bool                     log_cut;     /* log.jsonl ends within a line: a process was killed, or the disk was full */
    struct cr_tensorboard   *tensorboard; /* NULL when off, or after a write error */
    bool                     terminal, line_open, log_failed;
    struct cr_text           line; /* the event that is being written; reused, so that a step allocates nothing */
    enum cr_event            event;
    /* since the last logged line */
    struct cr_step_result sum;
    int64_t               steps, clock_ns, wait_start_ns, interval_ns, wait_ns;
    struct cr_report_span span; /* since cr_report_take_span */
    /* options.overlapped: the last step; its neighbours before it that have not waited either; the time of a step */
    int64_t last_ns, ready_steps, ready_ns, step_ns;
    /* since the last redraw, and the speed shown */
    int64_t redraw_ns;
    int64_t printed_ns;  /* without a terminal: when the last line was printed */
    bool    has_printed; /* with options.progress: a line was printed */
    double  images_per_s, seconds_per_step;
};

/* Warns once; the run continues without TensorBoard events. */
static void tensorboard_failed(struct cr_report *r) {
    cr_log(CR_LOG_WARN, "TensorBoard: %s: no more events are written", cr_error_message());
    cr_error_clear();
    cr_tensorboard_close(r->tensorboard);
    r->tensorboard = NULL;
}

/* A run folder may have been made by somebody else: a link is not followed, and a pipe is refused. */
static cr_status open_log(const char *path, int *log, bool *cut) {
    struct stat s;
    char        end = '\n';
    CR_TRY(cr_fs_open_regular(path, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW, log));
    if (fstat(*log, &s) == 0 && s.st_size > 0 && pread(*log, &end, 1, s.st_size - 1) < 1) end = '\n';
    *cut = end != '\n';
    return CR_OK;
}

cr_status cr_report_open(const struct cr_report_options *options, struct cr_report **out) {
    char              path[4096];
    struct cr_report *r;
    CR_ALLOC(r, 1);
    r->options  = *options;
    r->terminal = isatty(STDERR_FILENO) && (options->progress || !cr_log_is_quiet());
    snprintf(path, sizeof path, "%s/log.jsonl", options->run_dir);
    cr_status status = open_log(path, &r->log, &r->log_cut);
    if (status != CR_OK) {
        cr_free(r);
        return status;
    }
    r->line.data = cr_alloc(LINE_BYTES, 1);
    if (!r->line.data) {
        close(r->log);
        cr_free(r);
        return CR_NO_MEMORY(LINE_BYTES);
    }
    r->line.capacity = LINE_BYTES;
    if (options->tensorboard && cr_tensorboard_open(options->run_dir, options->first_step, &r->tensorboard) != CR_OK)
        tensorboard_failed(r);
    *out = r;
    return CR_OK;
}

void cr_report_close(struct cr_report *r) {
    if (!r) return;
    if (r->line_open) fputc('\n', stderr);
    close(r->log);
    cr_tensorboard_close(r->tensorboard);
    cr_text_free(&r->line);
    cr_free(r);
}

void cr_report_resume_clock(struct cr_report *r, int64_t wait_ns) {
    if (!r) return;
    r->clock_ns      = cr_time_ns();
    r->wait_start_ns = wait_ns;
    r->last_ns = r->ready_ns = 0;
    r->ready_steps           = -1; /* the first step also prepares what later ones use */
    if (!r->printed_ns) r->printed_ns = r->clock_ns;
}

/* Learns how long the device takes for a step: the least mean time of neighbouring steps whose images were ready. There
 * are such steps at the start and after each evaluation, because the loader has prepared batches. `wait_ns` is the
 * wait for the images of a step: the host waits for them during the step before. */
static void measure_step(struct cr_report *r, int64_t ns, int64_t wait_ns) {
    if (r->last_ns && wait_ns > r->last_ns / 20) {
        r->ready_steps = r->ready_ns = 0;
    } else if (r->last_ns && ++r->ready_steps > 0) {
        r->ready_ns += r->last_ns;
        const int64_t mean = r->ready_ns / r->ready_steps;
        if (r->ready_steps >= MEASURED_STEPS && (!r->step_ns || mean < r->step_ns)) r->step_ns = mean;
    }
    r->last_ns = ns;
}

/* How long the device waited in a time of steps in which the host waited for `wait_ns`. */
static int64_t device_wait(const struct cr_report *r, int64_t steps, int64_t ns, int64_t wait_ns) {
    return r->step_ns ? CR_MIN(wait_ns, CR_MAX(ns - steps * r->step_ns, 0)) : wait_ns;
}

static double wait_fraction(const struct cr_report *r) {
    if (r->interval_ns <= 0) return 0;
    return (double)device_wait(r, r->steps, r->interval_ns, r->wait_ns) / (double)r->interval_ns;
}

struct cr_report_span cr_report_take_span(struct cr_report *r, int64_t least_ns) {
    if (!r || r->span.ns < least_ns) return (struct cr_report_span){0};
    struct cr_report_span span = r->span;
    span.wait_ns               = device_wait(r, span.steps, span.ns, span.wait_ns);
    r->span                    = (struct cr_report_span){0};
    return span;
}

static const struct {
    const char *name;   /* in log.jsonl */
    const char *group;  /* of the curves in TensorBoard; NULL: the event has none */
    bool        result; /* printed in spite of --quiet */
} events[CR_EVENTS] = {
    [CR_EVENT_START]     = {.name = "start"},
    [CR_EVENT_RESUME]    = {.name = "resume"},
    [CR_EVENT_TRAIN]     = {.name = "train", .group = "train"},
    [CR_EVENT_DATA_WAIT] = {.name = "data_wait"},
    [CR_EVENT_EVAL]      = {.name = "eval", .group = "val", .result = true},
    [CR_EVENT_FINAL_TTA] = {.name = "final_tta", .result = true},
    [CR_EVENT_PRUNE]     = {.name = "prune", .group = "prune"},
    [CR_EVENT_SPARSITY]  = {.name = "sparsity", .group = "prune"},
    [CR_EVENT_UNFREEZE]  = {.name = "unfreeze"},
    [CR_EVENT_SAVE]      = {.name = "save"},
    [CR_EVENT_STOPPED]   = {.name = "stopped", .result = true},
    [CR_EVENT_DONE]      = {.name = "done", .result = true},
};

/* Appends the line with one system call. A line that was cut before is ended first. A write error is reported once
 * and training continues. */
static void log_line(struct cr_report *r) {
    const struct iovec line[] = {{.iov_base = (void *)(uintptr_t) "\n", .iov_len = r->log_cut},
                                 {.iov_base = r->line.data, .iov_len = r->line.length}};
    const ssize_t      length = (ssize_t)(line[0].iov_len + line[1].iov_len);
    ssize_t            written;
    do written = r->line.failed ? 0 : writev(r->log, line, (int)CR_COUNT(line));
    while (written < 0 && errno == EINTR);
    if (written == length) {
        r->log_cut = false;
        return;
    }
    const int error = written < 0 ? errno : ENOSPC; /* a part was written: the disk is full */
    if (written > 0) r->log_cut = !(r->log_cut && written == 1);
    if (!r->log_failed)
        cr_log(CR_LOG_WARN, "%s/log.jsonl: %s: some events are not written", r->options.run_dir,
               r->line.failed ? "out of memory" : strerror(error));
    r->log_failed = true;
}

static void clear_line(struct cr_report *r) {
    if (r->line_open) fputs("\r\033[K", stderr);
    r->line_open = false;
}

struct cr_json_writer cr_report_begin(struct cr_report *r, enum cr_event event) {
    struct cr_json_writer w = cr_json_writer(r ? &r->line : NULL, CR_JSON_COMPACT);
    if (!r) return w;
    r->event       = event;
    r->line.length = 0;
    r->line.failed = false;
    cr_json_open_object(&w, NULL);
    cr_json_put_string(&w, "event", events[event].name);
    return w;
}

void cr_report_end(struct cr_report *r, struct cr_json_writer *w, const char *human) {
    if (!r) return;
    cr_json_close_object(w);
    cr_json_end_line(w);
    clear_line(r);
    if (human) cr_log(events[r->event].result ? CR_LOG_RESULT : CR_LOG_INFO, "%s", human);
    log_line(r);
    const char *group = events[r->event].group;
    if (r->tensorboard && group && !r->line.failed && cr_tensorboard_add(r->tensorboard, group, r->line.data) != CR_OK)
        tensorboard_failed(r);
}

static void format_duration(double seconds, char *buf, size_t size) {
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, size, "%" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, size, "%" PRId64 ":%02" PRId64, s / 60, s % 60);
}

static void format_progress(const struct cr_report *r, int64_t step, char *buf, size_t size) {
    const struct cr_report_options *o     = &r->options;
    double                          valid = r->sum.valid > 0 ? r->sum.valid : 1;
    char                            left[32];
    format_duration((double)(o->total_steps - step) * r->seconds_per_step, left, sizeof left);
    snprintf(buf, size,
             "epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64
             "  loss %.4f  %s %.2f %%  lr %.4g  %.0f img/s  data wait %.1f %%  left %s",
             (step - 1) / o->steps_per_epoch + 1, o->epochs, step, o->total_steps, r->sum.loss_sum / valid,
             o->labels ? "all labels" : "top-1", 100 * r->sum.correct1 / valid, r->sum.lr, r->images_per_s,
             100 * wait_fraction(r), left);
}

static void log_interval(struct cr_report *r, int64_t step) {
    const struct cr_step_result *sum   = &r->sum;
    const double                 valid = sum->valid > 0 ? sum->valid : 1;
    struct cr_json_writer        w     = cr_report_begin(r, CR_EVENT_TRAIN);
    char                         human[512];
    cr_json_put_int(&w, "step", step);
    cr_json_put_int(&w, "epoch", (step - 1) / r->options.steps_per_epoch + 1);
    cr_json_put_general(&w, "loss", sum->loss_sum / valid, 9);
    cr_json_put_fixed(&w, r->options.labels ? "exact_match" : "top1", sum->correct1 / valid, 6);
    cr_json_put_fixed(&w, r->options.labels ? "label_accuracy" : "top5",
                      sum->correct5 / valid / CR_MAX(r->options.labels, 1), 6);
    cr_json_put_general(&w, "lr", sum->lr, 9);
    cr_json_put_general(&w, "grad_norm", sum->grad_norm, 6);
    cr_json_put_fixed(&w, "images_per_s", r->images_per_s, 1);
    cr_json_put_fixed(&w, "data_wait", wait_fraction(r), 4);
    if (sum->loss_scale > 0) {
        cr_json_put_general(&w, "loss_scale", sum->loss_scale, 9);
        cr_json_put_int(&w, "skipped", sum->skipped);
    }
    format_progress(r, step, human, sizeof human);
    cr_report_end(r, &w, r->terminal || r->options.progress ? NULL : human);
    if (!r->options.progress) r->printed_ns = cr_time_ns();
}

/* Without a terminal: prints a line after the first step, and between two logged steps when the last line is old. With
 * options.progress, only these lines: a file then shows in time that the run works, and stays short. */
static void print_progress(struct cr_report *r, int64_t step) {
    char       line[512];
    const bool first = r->options.progress && !r->has_printed;
    if (!first && (double)(cr_time_ns() - r->printed_ns) < r->options.progress_s * 1e9) return;
    format_progress(r, step, line, sizeof line);
    cr_log(r->options.progress ? CR_LOG_RESULT : CR_LOG_INFO, "%s", line);
    r->printed_ns  = cr_time_ns();
    r->has_printed = true;
}

static void redraw(struct cr_report *r, int64_t step) {
    char line[512];
    if (cr_time_ns() - r->redraw_ns < 100000000) return; /* at most ten times a second */
    format_progress(r, step, line, sizeof line);
    struct winsize window; /* cut the line, since a wrapped line cannot be overwritten */
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 && window.ws_col < sizeof line)
        line[window.ws_col - 1] = 0;
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
    r->line_open = true;
    r->redraw_ns = cr_time_ns();
}

void cr_report_step(struct cr_report *r, int64_t step, const struct cr_step_result *result) {
    if (!r) return;
    const struct cr_step_result before = r->sum;
    const int64_t now = cr_time_ns(), ns = now - r->clock_ns, wait_ns = result->wait_ns - r->wait_start_ns;
    r->sum = *result;
    r->sum.loss_sum += before.loss_sum;
    r->sum.valid += before.valid;
    r->sum.correct1 += before.correct1;
    r->sum.correct5 += before.correct5;
    r->steps++;
    if (r->options.overlapped) measure_step(r, ns, wait_ns);
    r->interval_ns += ns;
    r->wait_ns += wait_ns;
    r->span.steps++;
    r->span.ns += ns;
    r->span.wait_ns += wait_ns;
    r->clock_ns      = now;
    r->wait_start_ns = result->wait_ns;
    if (r->interval_ns > 0) {
        r->seconds_per_step = (double)r->interval_ns * 1e-9 / (double)r->steps;
        r->images_per_s     = (double)r->options.images_per_step / r->seconds_per_step;
    }
    if (!r->terminal && r->options.progress) print_progress(r, step);
    if (step % r->options.log_every == 0 || step == r->options.total_steps) {
        log_interval(r, step);
        r->sum         = (struct cr_step_result){0};
        r->steps       = 0;
        r->interval_ns = r->wait_ns = 0;
    } else if (r->terminal) {
        redraw(r, step);
    } else if (!r->options.progress) {
        print_progress(r, step);
    }
}

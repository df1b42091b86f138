/* cli/bench/run.c: cresnet bench step and bench infer: times a training step, or one batch through the network, on
 * random images. The time includes the copy of a batch to the device, but not loading and augmentation. */
#include "cli/common/command.h"
#include "formats/json_write.h"
#include "session/checkpoint_tensors.h"
#include "session/session.h"

#include <stdio.h>

enum {
    STEPS     = 20,
    WARMUP    = 3,
    WINDOW    = 10,
    STEPS_MAX = 1000000,
    SETTLED   = 10 /* steps after which device memory is measured */
};

struct bench {
    bool                    infer;
    struct cr_comm         *comm; /* NULL for one rank */
    const struct cr_config *config;
    struct cr_session       session;
    struct cr_cmd_batch     batch;
    struct cr_step_block    step;
    int64_t                 steps, window; /* window: steps between two events; each time is the mean of a window */
    /* results */
    int64_t age_ns, first_ns;                           /* process start to first step; the first step alone */
    double  ms, ms_min, ms_max;                         /* per step, without synchronisation between steps */
    double  latency_ms, latency_p95_ms, latency_p99_ms; /* of one step, with synchronisation after it */
    size_t  device_bytes; /* GPU memory of the process without the bare context, including libraries, kernels and CUDA
                             graphs; 0 when unknown */
};

/* ---- open, close ---- */

/* Images per step, of all ranks. */
static int64_t images_of(const struct bench *b) {
    return cr_comm_size(b->comm) *
           (b->infer ? b->session.state.eval_batch : b->session.state.batch * b->config->train.accumulate);
}

static void log_sparse(const struct bench *b, const struct cr_program *p) {
    struct cr_text text = {0};
    if (!b->session.pattern) return;
    cr_session_sparse_text(p, &text);
    if (!text.failed && text.data) cr_log(CR_LOG_INFO, "sparse kernels: %s", text.data);
    cr_text_free(&text);
}

static cr_status bench_open(struct bench *b) {
    const struct cr_config *c = b->config;
    int                     classes;
    CR_TRY(cr_cmd_classes(c, &classes));
    CR_TRY(cr_state_weights_there(c));
    const struct cr_session_options options = {.train      = !b->infer,
                                               .eval       = b->infer,
                                               .execute    = true,
                                               .draw_masks = true,
                                               .masks_from = b->infer ? NULL : c->model.weights,
                                               .classes    = classes,
                                               .comm       = b->comm};
    CR_TRY(cr_session_open(c, &options, &b->session));
    CR_TRY(cr_cmd_init_weights(&b->session));
    const struct cr_program *p = b->infer ? &b->session.eval : &b->session.train[0];
    if (!b->infer) CR_TRY(cr_session_prune(&b->session));
    log_sparse(b, p);
    CR_TRY(
        cr_cmd_random_batch(p, b->session.model.classes, (uint64_t)(c->train.seed + cr_comm_rank(b->comm)), &b->batch));
    b->step = cr_cmd_step_block(c);
    char size[32];
    cr_prepare_size_text(b->infer ? &b->session.prepare_eval : &b->session.prepare_train, size);
    cr_log(CR_LOG_INFO, "%s; %s, batch %lld, %s px, %lld timed %s after %d for warm-up", b->session.device->caps.text,
           cr_word_arch(c->model.arch), (long long)(b->infer ? b->session.state.eval_batch : b->session.state.batch),
           size, (long long)b->steps, b->infer ? "batches" : "steps", WARMUP);
    return CR_OK;
}

static void bench_close(struct bench *b) {
    cr_cmd_batch_free(&b->batch);
    cr_session_close(&b->session);
    cr_config_close(b->config);
}

/* ---- one step ---- */

static cr_status run_program(struct bench *b, struct cr_exec *exec) {
    CR_TRY(cr_exec_feed(exec, b->batch.images, b->batch.labels, b->batch.boxes));
    return cr_exec_run(exec, &b->step);
}

/* Runs one update with its micro-steps ([train] accumulate), or one batch through the network. */
static cr_status run_step(struct bench *b) {
    struct cr_session *s = &b->session;
    if (b->infer) return run_program(b, s->eval_exec);
    const int64_t n = s->trains == 1 ? 1 : b->config->train.accumulate;
    for (int64_t i = 0; i < n; i++)
        CR_TRY(run_program(b, s->train_exec[s->trains == 1 || i == 0 ? 0 : i == n - 1 ? 2 : 1]));
    b->step.step++;
    return CR_OK;
}

static cr_status run_and_wait(struct bench *b, int64_t *elapsed_ns) {
    const int64_t start = cr_time_ns();
    CR_TRY(run_step(b));
    CR_TRY(b->session.device->backend->sync(b->session.device));
    *elapsed_ns = cr_time_ns() - start;
    return CR_OK;
}

/* ---- many steps ---- */

/* Times windows of steps with events on the device. As in training, the batch of a step is copied while the step before
 * it runs, and the host does not wait between steps. times[windows]: nanoseconds per step. */
static cr_status time_windows(struct bench *b, int64_t window, int64_t windows, int64_t *times) {
    struct cr_device      *device = b->session.device;
    const struct cr_async *async  = device->backend->async;
    cr_status              status = CR_OK;
    void                 **event;
    CR_ALLOC(event, (size_t)windows + 1);
    for (int64_t i = 0; i <= windows; i++) CR_TRY_OUT(async->event_create(device, &event[i]));
    for (int64_t i = 0; i <= windows; i++) { /* the first window fills the pipeline */
        for (int64_t k = 0; k < window; k++) CR_TRY_OUT(run_step(b));
        CR_TRY_OUT(async->event_record(device, CR_STREAM_COMPUTE, event[i]));
    }
    CR_TRY_OUT(async->host_wait(device, event[windows]));
    for (int64_t i = 0; i < windows; i++) {
        double seconds;
        CR_TRY_OUT(async->elapsed(device, event[i], event[i + 1], &seconds));
        times[i] = (int64_t)(seconds * 1e9 / (double)window);
    }
out:
    for (int64_t i = 0; i <= windows; i++) async->event_destroy(device, event[i]);
    cr_free(event);
    return status;
}

static void measure_memory(struct bench *b) {
    struct cr_device *device     = b->session.device;
    const size_t      free_bytes = device->free_at_start ? device->backend->memory_free(device) : 0;
    b->device_bytes = free_bytes && free_bytes < device->free_at_start ? device->free_at_start - free_bytes : 0;
}

/* The time within which this percentage of the steps ended: the nearest rank of the sorted times. */
static double percentile_ms(const int64_t *sorted, int64_t count, int64_t percent) {
    return (double)sorted[(count * percent + 99) / 100 - 1] * 1e-6;
}

static cr_status time_steps(struct bench *b) {
    const bool    async  = b->session.device->backend->async != NULL;
    const int64_t window = async ? CR_MIN((int64_t)WINDOW, b->steps) : 1, windows = b->steps / window;
    int64_t      *times, ignored;
    cr_status     status = CR_OK;
    CR_ALLOC(times, (size_t)b->steps);
    b->window = window;
    b->steps  = windows * window; /* only whole windows are timed */
    for (int64_t i = 0; i < WARMUP; i++) {
        CR_TRY_OUT(run_and_wait(b, i ? &ignored : &b->first_ns));
        if (i == 0) b->age_ns = cr_process_age_ns();
    }
    for (int64_t i = 0; i < b->steps; i++) {
        CR_TRY_OUT(run_and_wait(b, &times[i]));
        if (i + 1 == CR_MIN((int64_t)SETTLED - WARMUP, b->steps)) measure_memory(b);
    }
    b->latency_ms     = cr_cmd_median_ms(times, b->steps);
    b->latency_p95_ms = percentile_ms(times, b->steps, 95);
    b->latency_p99_ms = percentile_ms(times, b->steps, 99);
    if (async) CR_TRY_OUT(time_windows(b, window, windows, times));
    b->ms     = cr_cmd_median_ms(times, windows);
    b->ms_min = (double)times[0] * 1e-6;
    b->ms_max = (double)times[windows - 1] * 1e-6;
out:
    cr_free(times);
    return status;
}

/* ---- output ---- */

/* Bytes that count towards memory.limit. */
static size_t reserved(const struct bench *b) {
    const struct cr_session *s = &b->session;
    const struct cr_program *all[CR_SESSION_TRAIN_MAX + 1];
    int                      count = 0;
    for (int i = 0; i < s->trains; i++) all[count++] = &s->train[i];
    if (s->has_eval) all[count++] = &s->eval;
    return cr_memory_need(s->device, &s->model.store, all, count) +
           (s->overhead_bytes ? s->overhead_bytes : s->device->caps.overhead_bytes);
}

static void print_json(const struct bench *b, const char *parts, struct cr_text *out) {
    const struct cr_session    *s     = &b->session;
    const size_t               *bytes = s->memory.bytes;
    const struct cr_fit_report *fit   = &s->fit;
    struct cr_json_writer       w     = cr_json_open_line(out);
    cr_json_put_fixed(&w, "images_per_s", (double)images_of(b) / b->ms * 1e3, 2);
    cr_json_put_fixed(&w, "ms", b->ms, 4);
    cr_json_put_fixed(&w, "ms_min", b->ms_min, 4);
    cr_json_put_fixed(&w, "ms_max", b->ms_max, 4);
    cr_json_put_fixed(&w, "latency_ms", b->latency_ms, 4);
    cr_json_put_fixed(&w, "latency_p95_ms", b->latency_p95_ms, 4);
    cr_json_put_fixed(&w, "latency_p99_ms", b->latency_p99_ms, 4);
    cr_json_put_int(&w, "steps", b->steps);
    cr_json_put_int(&w, "window", b->window);
    cr_json_put_int(&w, "ranks", cr_comm_size(b->comm));
    cr_json_put_int(&w, "batch", b->infer ? s->state.eval_batch : s->state.batch);
    cr_json_put_int(&w, "accumulate", b->infer ? 1 : b->config->train.accumulate);
    cr_json_put_fixed(&w, "time_to_first_step_s", (double)b->age_ns * 1e-9, 3);
    cr_json_put_string(&w, "start", parts);
    cr_json_put_string(&w, "device", s->device->caps.text);
    if (b->device_bytes) cr_json_put_fixed(&w, "device_mib", cr_mib(b->device_bytes), 1);
    cr_json_put_fixed(&w, "pool_mib", cr_mib(bytes[CR_REGION_POOL]), 1);
    cr_json_put_fixed(&w, "store_mib", cr_mib(bytes[CR_REGION_STORE]), 1);
    cr_json_put_fixed(&w, "host_mib", cr_mib(bytes[CR_REGION_HOST]), 1);
    cr_json_put_fixed(&w, "reserved_mib", cr_mib(reserved(b)), 1);
    if (fit->seconds_before > 0) {
        cr_json_put_int(&w, "recomputed", fit->recomputed);
        cr_json_put_int(&w, "offloaded", fit->offloaded);
        cr_json_put_fixed(&w, "offloaded_mib", cr_mib(fit->offload_bytes), 1);
        cr_json_put_fixed(&w, "predicted_slowdown", fit->seconds / fit->seconds_before - 1, 5);
        cr_json_put_fixed(&w, "predicted_stall_ms", fit->stalled * 1e3, 4);
    }
    cr_json_close_line(&w);
}

static void print_text(const struct bench *b, const char *parts, struct cr_text *out) {
    char windows[32] = "";
    if (b->window > 1) snprintf(windows, sizeof windows, " windows of %lld", (long long)b->window);
    const char *what = b->infer ? "batch" : "step";
    cr_text_add(out, "%s: %.3f ms (median of %lld%s; %.3f to %.3f), %.1f images/s\n", what, b->ms,
                (long long)(b->steps / b->window), windows, b->ms_min, b->ms_max, (double)images_of(b) / b->ms * 1e3);
    cr_text_add(out, "with a synchronisation after each: median %.3f ms, p95 %.3f ms, p99 %.3f ms\n", b->latency_ms,
                b->latency_p95_ms, b->latency_p99_ms);
    cr_text_add(out, "time to first %s: %.2f s, from process start (%s, first %s %.3f s)\n", what,
                (double)b->age_ns * 1e-9, parts, what, (double)b->first_ns * 1e-9);
    const size_t *bytes = b->session.memory.bytes;
    cr_text_add(out, "memory: pool %.1f MiB, parameters and optimizer state %.1f MiB", cr_mib(bytes[CR_REGION_POOL]),
                cr_mib(bytes[CR_REGION_STORE]));
    if (bytes[CR_REGION_HOST]) cr_text_add(out, ", offloaded to host memory %.1f MiB", cr_mib(bytes[CR_REGION_HOST]));
    if (b->device_bytes) cr_text_add(out, "; GPU memory of the whole process %.1f MiB", cr_mib(b->device_bytes));
    cr_text_add(out, "\n");
}

/* ---- the command ---- */

static cr_status measure(struct bench *b, const struct cr_args *args, struct cr_text *out) {
    char      parts[160];
    cr_status status;
    if (cr_comm_rank(b->comm) > 0) cr_log_quiet(true);
    CR_TRY_OUT(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, STEPS_MAX, STEPS, &b->steps));
    CR_TRY_OUT(bench_open(b));
    CR_TRY_OUT(cr_comm_barrier(b->comm));
    CR_TRY_OUT(time_steps(b));
    cr_session_times_text(&b->session, parts, sizeof parts);
    if (cr_comm_rank(b->comm) > 0) goto out;
    (cr_args_has(args, CR_OPT_JSON) ? print_json : print_text)(b, parts, out);
    CR_TRY_OUT(cr_cmd_print(out)); /* before the other ranks end */
out:
    if (status != CR_OK)
        cr_comm_abort(b->comm, cr_error_message()); /* first, so that no other rank waits for this one */
    bench_close(b);
    return status;
}

cr_status cr_bench_run(const struct cr_args *args, bool infer, struct cr_text *out) {
    struct bench    b = {.infer = infer};
    struct cr_ranks ranks;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_cmd_config(args, &b.config));
    cr_status status = cr_cmd_ranks_open(args, &b.config, &ranks);
    b.comm           = ranks.comm;
    if (status == CR_OK && !ranks.parent) return cr_ranks_close(&ranks, measure(&b, args, out));
    cr_config_close(b.config);
    return status;
}

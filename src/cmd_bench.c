/* cmd_bench.c: cresnet bench: how long a training step takes on random pictures. Reading and augmenting pictures is not part
 * of it; copying a batch to the device is. `bench ops` is cresnet profile. */
#include "cmd.h"
#include "rng.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, WARMUP = 3, WINDOW = 10, STEPS_MAX = 1000000 };

struct bench {
    struct cr_config     config;
    struct cr_session    session;
    uint8_t             *images;
    int32_t             *labels;
    struct cr_step_block step;
    int64_t              steps;
};

static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double cr_cmd_median_ms(int64_t *times, int64_t count) {
    qsort(times, (size_t)count, sizeof *times, compare_times);
    return (double)(times[(count - 1) / 2] + times[count / 2]) * 0.5e-6;
}

static cr_status make_batch(struct bench *b) {
    const struct cr_program *p     = &b->session.train[0];
    size_t                   bytes = p->tensor[p->images].bytes;
    int64_t                  count = p->tensor[p->labels].dim[0];
    struct cr_rng            rng   = cr_rng_make((uint64_t)b->config.train.seed, CR_RNG_SYNTHETIC, 0, 0);
    CR_ALLOC(b->images, bytes);
    CR_ALLOC(b->labels, (size_t)count);
    for (size_t i = 0; i < bytes; i++) b->images[i] = (uint8_t)cr_rng_u32(&rng);
    for (int64_t i = 0; i < count; i++) b->labels[i] = (int32_t)cr_rng_below(&rng, (uint64_t)b->session.model.classes);
    return CR_OK;
}

static cr_status bench_open(struct bench *b, const struct cr_args *args) {
    const struct cr_config *c = &b->config;
    int                     classes;
    CR_TRY(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, STEPS_MAX, STEPS, &b->steps));
    CR_TRY(cr_cmd_classes(c, &classes));
    struct cr_session_options options = {.train = true, .execute = true, .classes = classes};
    CR_TRY(cr_session_open(c, &options, &b->session));
    CR_TRY(cr_session_init(&b->session));
    CR_TRY(make_batch(b));
    b->step = cr_cmd_step_block(c);
    cr_log(CR_LOG_INFO, "%s; %s, batch %lld, %d px, %lld steps after %d to warm up", b->session.device->caps.text,
           cr_word_arch(c->model.arch), (long long)b->session.batch, b->session.prepare_train.size, (long long)b->steps,
           WARMUP);
    return CR_OK;
}

static void bench_close(struct bench *b) {
    cr_free(b->images);
    cr_free(b->labels);
    cr_session_close(&b->session);
    cr_config_close(&b->config);
}

/* One update: as many micro-steps as [train] accumulate says. */
static cr_status run_step(struct bench *b) {
    struct cr_session *s = &b->session;
    int64_t            n = s->trains == 1 ? 1 : b->config.train.accumulate;
    for (int64_t i = 0; i < n; i++) {
        int which = s->trains == 1 || i == 0 ? 0 : i == n - 1 ? 2 : 1;
        CR_TRY(cr_exec_feed(s->train_exec[which], b->images, b->labels, NULL));
        CR_TRY(cr_exec_run(s->train_exec[which], &b->step));
    }
    b->step.step++;
    return CR_OK;
}

static cr_status run_and_wait(struct bench *b, int64_t *taken) {
    const int64_t start = cr_time_ns();
    CR_TRY(run_step(b));
    CR_TRY(b->session.device->backend->sync(b->session.device));
    *taken = cr_time_ns() - start;
    return CR_OK;
}

/* Beside the host: as in a run, each step's batch is copied while the step before is under way, and nobody waits in between.
 * Marks on the device stand a window of steps apart. */
static cr_status time_windows(struct bench *b, int64_t window, int64_t windows, int64_t *times) {
    struct cr_device      *device = b->session.device;
    const struct cr_async *async  = device->backend->async;
    cr_status              status = CR_OK;
    void                 **mark;
    CR_ALLOC(mark, (size_t)windows + 1);
    for (int64_t i = 0; i <= windows; i++) CR_TRY_OUT(async->mark_open(device, &mark[i]));
    for (int64_t i = 0; i <= windows; i++) { /* the first window fills the pipeline */
        for (int64_t k = 0; k < window; k++) CR_TRY_OUT(run_step(b));
        CR_TRY_OUT(async->mark_set(device, CR_LANE_COMPUTE, mark[i]));
    }
    CR_TRY_OUT(async->host_wait(device, mark[windows]));
    for (int64_t i = 0; i < windows; i++) {
        double seconds;
        CR_TRY_OUT(async->elapsed(device, mark[i], mark[i + 1], &seconds));
        times[i] = (int64_t)(seconds * 1e9 / (double)window);
    }
out:
    for (int64_t i = 0; i <= windows; i++) async->mark_close(device, mark[i]);
    cr_free(mark);
    return status;
}

static cr_status bench_step(struct bench *b, bool json, struct cr_text *out) {
    const bool    async  = b->session.device->backend->async != NULL;
    const int64_t window = async ? CR_MIN((int64_t)WINDOW, b->steps) : 1, windows = b->steps / window;
    int64_t      *times, first = 0, age = 0, other;
    char          parts[160];
    cr_status     status = CR_OK;
    CR_ALLOC(times, (size_t)windows);
    for (int64_t i = 0; i < WARMUP; i++) {
        CR_TRY_OUT(run_and_wait(b, i ? &other : &first));
        if (i == 0) age = cr_process_age_ns();
    }
    if (async) CR_TRY_OUT(time_windows(b, window, windows, times));
    for (int64_t i = 0; i < windows && !async; i++) CR_TRY_OUT(run_and_wait(b, &times[i]));
    double ms   = cr_cmd_median_ms(times, windows);
    double fast = (double)times[0] * 1e-6, slow = (double)times[windows - 1] * 1e-6;
    double images = (double)b->session.batch * (double)b->config.train.accumulate;
    cr_session_times_text(&b->session, parts, sizeof parts);
    if (json)
        cr_text_add(out,
                    "{\"images_per_s\": %.2f, \"ms\": %.4f, \"ms_min\": %.4f, \"ms_max\": %.4f, \"steps\": %lld, "
                    "\"batch\": %lld, \"accumulate\": %lld, \"exec_to_first_step_s\": %.3f, \"start\": \"%s\", \"device\": \"%s\"}\n",
                    images / ms * 1e3, ms, fast, slow, (long long)b->steps, (long long)b->session.batch,
                    (long long)b->config.train.accumulate, (double)age * 1e-9, parts, b->session.device->caps.text);
    else
        cr_text_add(out,
                    "step: %.2f ms (median of %lld; %.2f to %.2f), %.1f images/s\n"
                    "start: %.2f s from exec to the end of the first step (%s, first step %.3f s)\n",
                    ms, (long long)b->steps, fast, slow, images / ms * 1e3, (double)age * 1e-9, parts, (double)first * 1e-9);
out:
    cr_free(times);
    return status;
}

/* ---- the command ---- */

cr_status cr_cmd_bench(const struct cr_args *args, int *signal_taken) {
    static const char *const words[] = {"step", "ops", "init"};
    struct bench             b       = {0};
    struct cr_text           text    = {0};
    bool                     json    = cr_args_has(args, CR_OPT_JSON);
    int                      what    = -1;
    cr_status                status;
    for (int i = 0; args->operands && i < (int)CR_COUNT(words); i++)
        if (strcmp(args->operand[0], words[i]) == 0) what = i;
    if (what < 0)
        return cr_args_fail(args, "what is to be timed? cresnet bench step CONFIG, bench ops CONFIG, or bench init");
    struct cr_args rest = *args; /* the configuration is the second operand here */
    rest.operand++;
    rest.operands--;
    if (what == 2) return cr_bench_init(&rest);
    CR_TRY(cr_args_most(args, 2));
    if (what == 1) return cr_cmd_profile(&rest, signal_taken);
    CR_TRY(cr_cmd_config(&rest, &b.config));
    CR_TRY_OUT(bench_open(&b, args));
    CR_TRY_OUT(bench_step(&b, json, &text));
    CR_TRY_OUT(cr_cmd_print(&text));
out:
    cr_text_free(&text);
    bench_close(&b);
    return status;
}

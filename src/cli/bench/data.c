/* cli/bench/data.c: cresnet bench data: throughput of the data loader as training runs it, and the time that a trainer
 * of a given speed would wait for it. */
#include "cli/common/command.h"
#include "core/cpu.h"
#include "data/load_need.h"
#include "formats/json_write.h"
#include "session/session.h"

#include <stdio.h>
#include <time.h>

enum { STEPS = 20, STEPS_MAX = 1000000, WARMUP = 3 };

struct bench {
    const struct cr_config  *config;
    struct cr_loader_options options;
    struct cr_dataset       *dataset;
    struct cr_loader        *loader;
    struct cr_session        session; /* only its device and decoder: with data.decode, and a device that decodes */
    int64_t                  steps;
    int64_t                  trainer_speed;      /* images/s; 0 when --trainer-speed was not given */
    struct cr_load_counts    counts, gpu_counts; /* of the timed batches: decoded by the CPU, and with the GPU */
    int64_t                  wall_ns, gpu_ns;    /* gpu_ns: 0 without a GPU */
    double                   wait_fraction;      /* of the time of such a trainer */
};

static cr_status bench_open(struct bench *b, const struct cr_args *args) {
    const struct cr_config *c = b->config;
    if (!c->train.batch)
        return cr_config_fail(c, "train.batch", "cannot be chosen automatically without a device: give a number");
    CR_TRY(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, STEPS_MAX, STEPS, &b->steps));
    CR_TRY(cr_args_int(args, CR_OPT_TRAINER_SPEED, 1, 1000000000, 0, &b->trainer_speed));
    struct cr_prepare *prepare = &b->session.prepare_train;
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, prepare));
    b->options = cr_loader_options_of_training(c, prepare, c->train.batch);
    CR_TRY(cr_dataset_open(c, CR_SPLIT_TRAIN, &b->dataset));
    return cr_loader_open(b->dataset, &b->options, &b->loader);
}

static void bench_close(struct bench *b) {
    cr_loader_close(b->loader);
    cr_session_jpeg_close(&b->session);
    cr_device_close(b->session.device);
    cr_dataset_close(b->dataset);
    cr_config_close(b->config);
}

static cr_status load_batches(struct bench *b, int64_t count) {
    struct cr_batch batch;
    for (int64_t i = 0; i < count; i++) {
        CR_TRY(cr_loader_next(b->loader, &batch));
        const cr_status status = batch.scans ? cr_session_jpeg_decode(&b->session, b->loader, &batch) : CR_OK;
        cr_loader_release(b->loader, &batch);
        CR_TRY(status);
    }
    return CR_OK;
}

/* Workers count images when they load them, and batches are delivered later. The queue is full at the start and at the
 * end, so the number of loaded batches equals the number of delivered batches. */
static cr_status time_batches(struct bench *b, struct cr_load_counts *counts, int64_t *wall_ns) {
    struct cr_load_counts before;
    CR_TRY(load_batches(b, WARMUP + b->options.prefetch));
    cr_loader_counts(b->loader, &before);
    int64_t start = cr_time_ns();
    CR_TRY(load_batches(b, b->steps));
    *wall_ns = cr_time_ns() - start;
    cr_loader_counts(b->loader, counts);
    *counts = cr_load_counts_since(counts, &before);
    return CR_OK;
}

/* Opens the device. With `auto`, a device that cannot be opened is no error: the CPU decodes. */
static cr_status open_device(struct bench *b) {
    enum cr_dtype   real;
    const cr_status status = cr_session_device(b->config, NULL, &b->session.device, &real);
    if (status == CR_OK || b->config->data.decode == CR_DECODE_GPU) return status;
    cr_log(CR_LOG_WARN, "the CPU decodes all images: %s", cr_error_message());
    cr_error_clear();
    return CR_OK;
}

/* With data.decode, measures the same with the GPU, which has nothing else to do: it decodes all that it can. The
 * loader stays open for time_waits. */
static cr_status time_gpu(struct bench *b) {
    struct cr_session       *s       = &b->session;
    struct cr_loader_options options = b->options;
    if (b->config->data.decode == CR_DECODE_CPU) return CR_OK;
    s->config      = b->config;
    s->state.batch = options.batch;
    CR_TRY(open_device(b));
    if (!s->device) return CR_OK;
    options.memory = cr_session_loader_memory(s);
    CR_TRY(cr_session_jpeg_open(s, b->dataset, &options));
    if (!s->jpeg) return CR_OK;
    cr_loader_close(b->loader);
    b->loader = NULL;
    CR_TRY(cr_loader_open(b->dataset, &options, &b->loader));
    return time_batches(b, &b->gpu_counts, &b->gpu_ns);
}

static void sleep_until(int64_t ns) {
    for (int64_t left; (left = ns - cr_time_ns()) > 0;) {
        struct timespec pause = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
        nanosleep(&pause, NULL);
    }
}

/* Simulates a trainer: requests a batch, sleeps for the time of its step, requests the next. The first batches are
 * already loaded and do not count. */
static cr_status time_waits(struct bench *b) {
    int64_t step_ns = (int64_t)((double)b->options.batch * 1e9 / (double)b->trainer_speed), busy = 0, waited = 0;
    for (int64_t i = 0; i < b->options.prefetch + b->steps; i++) {
        int64_t before = cr_loader_wait_ns(b->loader);
        CR_TRY(load_batches(b, 1));
        if (i >= b->options.prefetch) {
            waited += cr_loader_wait_ns(b->loader) - before;
            busy += step_ns;
        }
        sleep_until(cr_time_ns() + step_ns);
    }
    b->wait_fraction = (double)waited / (double)(waited + busy);
    return CR_OK;
}

enum { READ, DECODE, RESIZE, COPY, STAGES };
static const struct {
    const char *name, *member; /* in the text; in JSON, and in the names of further members */
} stages[STAGES] = {{"read", "fetch"}, {"decode", "decode"}, {"resize", "resize"}, {"copy", "other"}};

/* What the report says. */
struct rates {
    int    workers; /* at least 1 */
    double rate, per_core, bytes, verified;
    double gpu_rate, gpu_fraction; /* images/s with the GPU, and the fraction of the images that it decoded then */
    struct {
        double fraction; /* of the workers' time */
        double core;     /* images/s of one core that does nothing else; 0: too fast to measure */
        double workers;  /* images/s of the workers if they did nothing else */
        double needed;   /* with trainer_speed: cores for this rate */
    } stage[STAGES];
    struct cr_load_need   need;
    struct cr_load_supply supply;
};

static struct rates rates_of(const struct bench *b) {
    const struct cr_load_counts *c      = &b->counts;
    const struct cr_load_need    one    = cr_load_need(c, 1);
    const int64_t                ns[]   = {c->fetch_ns, c->decode_ns, c->resize_ns, c->other_ns};
    const double                 all    = (double)(ns[0] + ns[1] + ns[2] + ns[3]);
    const double                 each[] = {one.read, one.decode, one.resize, one.copy};
    struct rates r = {.workers = CR_MAX(b->options.workers, 1), .bytes = one.bytes_per_image, .verified = 1};
    r.rate         = (double)(b->steps * b->options.batch) * 1e9 / (double)b->wall_ns;
    r.need         = cr_load_need(c, (double)b->trainer_speed);
    r.supply       = cr_load_supply_of(&b->options.prepare, b->options.workers, 1);
    if (c->cpu_ns > 0) r.per_core = (double)c->images * 1e9 / (double)c->cpu_ns;
    /* a worker that the system delayed may have loaded no image */
    if (c->images) r.verified = (double)c->verified / (double)c->images;
    if (b->gpu_ns > 0) r.gpu_rate = (double)(b->steps * b->options.batch) * 1e9 / (double)b->gpu_ns;
    if (b->gpu_counts.images) r.gpu_fraction = (double)b->gpu_counts.device / (double)b->gpu_counts.images;
    for (int i = 0; i < STAGES; i++) {
        r.stage[i].fraction = all > 0 ? (double)ns[i] / all : 0;
        r.stage[i].core     = each[i] > 0 ? 1 / each[i] : 0;
        r.stage[i].workers  = ns[i] > 0 ? r.workers * (double)c->images * 1e9 / (double)ns[i] : 0;
        r.stage[i].needed   = each[i] * (double)b->trainer_speed;
    }
    return r;
}

static void put_stages(const struct bench *b, const struct rates *r, struct cr_json_writer *w) {
    char name[64];
    for (int i = 0; i < STAGES; i++) {
        cr_json_put_fixed(w, stages[i].member, r->stage[i].fraction, 4);
        snprintf(name, sizeof name, "%s_images_per_s_core", stages[i].member);
        cr_json_put_fixed(w, name, r->stage[i].core, 1);
        if (!b->trainer_speed) continue;
        snprintf(name, sizeof name, "%s_needed_cores", stages[i].member);
        cr_json_put_fixed(w, name, r->stage[i].needed, 2);
    }
}

static void print_json(const struct bench *b, const struct rates *r, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_fixed(&w, "images_per_s", r->rate, 1);
    cr_json_put_fixed(&w, "images_per_s_worker", r->rate / r->workers, 1);
    cr_json_put_fixed(&w, "images_per_s_core", r->per_core, 1);
    cr_json_put_int(&w, "workers", b->options.workers);
    cr_json_put_int(&w, "cores", r->supply.cores);
    cr_json_put_fixed(&w, "mb_per_s", r->rate * r->bytes * 1e-6, 2);
    cr_json_put_fixed(&w, "bytes_per_image", r->bytes, 0);
    put_stages(b, r, &w);
    cr_json_put_fixed(&w, "verified_fraction", r->verified, 4);
    if (b->gpu_ns > 0) {
        cr_json_put_fixed(&w, "gpu_images_per_s", r->gpu_rate, 1);
        cr_json_put_fixed(&w, "gpu_fraction", r->gpu_fraction, 4);
    }
    cr_json_put_int(&w, "size", b->options.prepare.size);
    cr_json_put_int(&w, "batch", b->options.batch);
    cr_json_put_int(&w, "steps", b->steps);
    cr_json_put_int(&w, "corrupt", cr_loader_corrupt(b->loader));
    if (b->trainer_speed) {
        cr_json_put_int(&w, "trainer_images_per_s", b->trainer_speed);
        cr_json_put_fixed(&w, "wait_fraction", b->wait_fraction, 5);
    }
    cr_json_close_line(&w);
}

static void print_stages(const struct bench *b, const struct rates *r, struct cr_text *out) {
    cr_text_add(out, "stage      time   images/s: one core   %d worker%s%s\n", r->workers, r->workers == 1 ? " " : "s",
                b->trainer_speed ? "   cores that the step needs" : "");
    for (int i = 0; i < STAGES; i++) {
        cr_text_add(out, "%-8s %5.1f %%  %18.0f  %10.0f", stages[i].name, 100 * r->stage[i].fraction, r->stage[i].core,
                    r->stage[i].workers);
        if (b->trainer_speed) cr_text_add(out, "  %26.2f", r->stage[i].needed);
        cr_text_add(out, "\n");
    }
}

static void print_text(const struct bench *b, const struct rates *r, struct cr_text *out) {
    cr_text_add(out, "%.1f images/s with %d worker%s: %.1f per worker, %.1f per core (per second of CPU time)\n",
                r->rate, b->options.workers, b->options.workers == 1 ? "" : "s", r->rate / r->workers, r->per_core);
    cr_text_add(out, "%.1f MB/s, %.1f KB per image\n", r->rate * r->bytes * 1e-6, r->bytes * 1e-3);
    print_stages(b, r, out);
    if (b->gpu_ns > 0)
        cr_text_add(out, "with the GPU: %.1f images/s; it decoded %.1f %% of the images, the CPU %.1f %%\n",
                    r->gpu_rate, 100 * r->gpu_fraction, 100 * (1 - r->gpu_fraction));
    if (r->verified < 1)
        cr_text_add(out, "%.1f %% of the images were read for the first time and decoded completely\n",
                    100 * (1 - r->verified));
    if (!b->trainer_speed) return;
    cr_text_add(
        out, "a trainer of %lld images/s needs %.1f cores, there are %d; it would wait for data %.2f %% of the time\n",
        (long long)b->trainer_speed, r->need.cores, r->supply.cores, 100 * b->wait_fraction);
    if (b->wait_fraction <= CR_LOAD_WAIT_MAX) return;
    cr_load_hint(&r->need, &r->supply, out);
    cr_text_add(out, "\n");
}

cr_status cr_bench_data(const struct cr_args *args, struct cr_text *out) {
    struct bench b = {0};
    cr_status    status;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_cmd_config(args, &b.config));
    CR_TRY_OUT(bench_open(&b, args));
    char size[32];
    cr_prepare_size_text(&b.options.prepare, size);
    cr_log(CR_LOG_INFO, "%s: %lld images, batch %lld, %s px, CPU level %s, %lld timed batches after %d warm-up batches",
           cr_word_data_kind(b.config->data.kind), (long long)b.dataset->count, (long long)b.options.batch, size,
           cr_cpu_text(), (long long)b.steps, WARMUP + b.options.prefetch);
    CR_TRY_OUT(time_batches(&b, &b.counts, &b.wall_ns));
    CR_TRY_OUT(time_gpu(&b));
    if (b.trainer_speed) CR_TRY_OUT(time_waits(&b));
    const struct rates rates = rates_of(&b);
    (cr_args_has(args, CR_OPT_JSON) ? print_json : print_text)(&b, &rates, out);
out:
    bench_close(&b);
    return status;
}

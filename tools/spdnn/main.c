/* tools/spdnn/main.c: cresnet-spdnn times the sparse deep networks of the Graph Challenge: inputs/s and TeraEdges/s
 * next to published rates, active inputs per layer, and a verification of the categories on the CPU. */
#include "core/cpu.h"
#include "formats/json_write.h"
#include "session/session.h"
#include "tools/common/tool.h"
#include "tools/spdnn/spdnn.h"

enum {
    LIST_MAX    = 16,
    INPUTS      = 60000,
    INPUTS_MAX  = 1 << 24,
    REPEATS     = 3,
    REPEATS_MAX = 1000,
    LAYERS_MAX  = 100000,
    CHECK_MIN   = 32,
    GPUS_MAX    = 16,
    CHUNK       = 128 /* each GPU gets a multiple of this many inputs */
};
static const double check_work = 2e11; /* edges times inputs that the CPU verifies by default */

struct bench {
    const struct cr_config *config;
    struct cr_device       *device, *cpu;  /* cpu verifies; NULL when the device is the CPU */
    struct cr_device       *gpu[GPUS_MAX]; /* the inputs are split over these; [0] is the device */
    struct cr_spdnn_images  images;
    struct cr_spdnn_inputs  inputs; /* for the current width */
    double                  neurons[LIST_MAX], layers[LIST_MAX];
    int                     widths, depths;
    int64_t                 count, check; /* check is -1 for the default, check_work */
    int64_t                 repeats, gpus;
    int                     threads, max_rows;
    bool                    synthetic, json, verbose;
    struct cr_spdnn_options options;
    struct cr_text          out;
};

struct network {
    struct cr_spdnn_net    net;
    struct cr_spdnn_result result;
    int64_t                checked; /* inputs that the CPU has verified */
    int64_t                wrong;   /* checked inputs with a wrong category */
};

/* ---- the command line ---- */

static cr_status read_options(struct bench *b, const struct cr_tool_args *args) {
    CR_TRY(cr_tool_operands(args, 0, 0));
    CR_TRY(cr_tool_numbers(args, "neurons", "1024,4096,16384,65536", 1, CR_SPDNN_NEURONS_MAX, b->neurons, LIST_MAX,
                           &b->widths));
    CR_TRY(cr_tool_numbers(args, "layers", "120,480,1920", 1, LAYERS_MAX, b->layers, LIST_MAX, &b->depths));
    CR_TRY(cr_tool_int(args, "inputs", 1, INPUTS_MAX, INPUTS, &b->count));
    CR_TRY(cr_tool_int(args, "check", 0, INPUTS_MAX, -1, &b->check));
    CR_TRY(cr_tool_int(args, "steps", 1, REPEATS_MAX, REPEATS, &b->repeats));
    CR_TRY(cr_tool_int(args, "gpus", 1, GPUS_MAX, 1, &b->gpus));
    for (int i = 0; i < b->widths; i++)
        if (!cr_spdnn_published((int64_t)b->neurons[i]))
            return cr_tool_fail(args,
                                "--neurons %.0f: the challenge has networks of 1024, 4096, 16384 and 65536 neurons",
                                b->neurons[i]);
    b->json              = cr_tool_value(args, "json") != NULL;
    b->verbose           = cr_tool_value(args, "verbose") != NULL;
    b->max_rows          = cr_tool_value(args, "no-groups") ? 1 : CR_SPDNN_ROWS_MAX;
    b->options.keep_dead = cr_tool_value(args, "no-drop") != NULL;
    b->options.stream    = cr_tool_value(args, "stream") != NULL;
    b->options.repeats   = (int)b->repeats;
    return CR_OK;
}

static cr_status bench_open(struct bench *b, const struct cr_tool_args *args) {
    static const struct cr_device_options cpu_options = {.deterministic = true};
    enum cr_dtype                         real;
    CR_TRY(read_options(b, args));
    CR_TRY(cr_config_open(&b->config, NULL, args->cli.override, args->cli.overrides));
    CR_TRY(cr_session_device(b->config, NULL, &b->device, &real));
    if (!b->device->caps.host_memory) CR_TRY(cr_device_open(CR_DEVICE_CPU, &cpu_options, &b->cpu));
    b->gpu[0] = b->device;
    for (int i = 1; i < b->gpus; i++) {
        struct cr_device_options options = b->device->options;
        options.index += i;
        if (!b->cpu) return cr_tool_fail(args, "--gpus %lld: cannot be used with device cpu", (long long)b->gpus);
        CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &b->gpu[i]));
    }
    b->threads       = b->config->train.threads ? (int)b->config->train.threads : cr_cpu_cores();
    const char *path = cr_tool_value(args, "mnist");
    b->synthetic     = !path;
    if (path) return cr_spdnn_images_read(path, &b->images);
    return cr_spdnn_images_generate(CR_MIN(b->count, (int64_t)INPUTS), (uint64_t)b->config->train.seed, &b->images);
}

static void bench_close(struct bench *b) {
    cr_spdnn_inputs_close(&b->inputs);
    cr_spdnn_images_free(&b->images);
    cr_text_free(&b->out);
    cr_device_close(b->cpu);
    for (int i = 1; i < GPUS_MAX; i++) cr_device_close(b->gpu[i]);
    cr_device_close(b->device);
    cr_config_close(b->config);
}

/* ---- one network ---- */

/* The inputs are split over several GPUs: each gets a view of some words of each neuron. */
struct split {
    const struct bench    *b;
    const struct network  *n;
    int64_t                chunk; /* inputs per GPU */
    struct cr_spdnn_result result[GPUS_MAX];
};

static cr_status run_chunk(void *context, int64_t i) {
    struct split          *s     = context;
    struct cr_spdnn_inputs part  = s->b->inputs;
    const int64_t          first = i * s->chunk;
    part.bit += first / 32;
    part.count = CR_MIN(s->chunk, part.count - first);
    return cr_spdnn_run(s->b->gpu[i], &s->n->net, &part, &s->b->options, &s->result[i]);
}

/* Joins the results of all GPUs; the time is that of the slowest GPU. */
static void join_results(const struct split *s, int64_t gpus, struct cr_spdnn_result *out) {
    for (int64_t i = 0; i < gpus; i++) {
        const struct cr_spdnn_result *r = &s->result[i];
        out->seconds                    = CR_MAX(out->seconds, r->seconds);
        out->device_bytes               = CR_MAX(out->device_bytes, r->device_bytes);
        out->streamed                   = out->streamed || r->streamed;
        out->launches                   = CR_MAX(out->launches, r->launches);
        for (int l = 0; l <= s->n->net.layers; l++) out->survivors[l] += r->survivors[l];
        for (int64_t c = 0; c < r->categories; c++)
            out->category[out->categories++] = r->category[c] + (int32_t)(i * s->chunk);
    }
}

static cr_status run_gpus(const struct bench *b, struct network *n) {
    struct split  s      = {.b = b, .n = n, .chunk = ((b->count + b->gpus - 1) / b->gpus + CHUNK - 1) / CHUNK * CHUNK};
    const int64_t gpus   = (b->count + s.chunk - 1) / s.chunk; /* with few inputs, some GPUs have no work */
    cr_status     status = CR_OK;
    if (gpus == 1) return cr_spdnn_run(b->device, &n->net, &b->inputs, &b->options, &n->result);
    CR_TRY_OUT(cr_spdnn_parallel(gpus, (int)gpus, run_chunk, &s));
    CR_TRY_OUT(cr_spdnn_result_open(&n->net, b->count, &n->result));
    join_results(&s, gpus, &n->result);
out:
    for (int i = 0; i < GPUS_MAX; i++) cr_spdnn_result_free(&s.result[i]);
    return status;
}

/* Verifies the categories of every step-th input on the CPU: sets checked and wrong. */
static cr_status verify(struct bench *b, struct network *n, int64_t step) {
    const struct cr_spdnn_options options = {.keep_dead = b->options.keep_dead, .repeats = 1};
    struct cr_spdnn_inputs        some    = {0};
    struct cr_spdnn_result        want    = {0};
    cr_status                     status  = CR_OK;
    CR_TRY_OUT(cr_spdnn_inputs_pick(&b->inputs, step, &some));
    CR_TRY_OUT(cr_spdnn_run(b->cpu, &n->net, &some, &options, &want));
    n->checked = some.count;
    for (int64_t i = 0, at = 0, want_at = 0; i < some.count; i++) {
        while (at < n->result.categories && n->result.category[at] < i * step) at++;
        while (want_at < want.categories && want.category[want_at] < i) want_at++;
        const bool got = at < n->result.categories && n->result.category[at] == i * step;
        n->wrong += got != (want_at < want.categories && want.category[want_at] == i);
    }
    if (step > 1 || b->options.keep_dead) goto out;
    for (int l = 0; l <= n->net.layers; l++)
        if (want.survivors[l] != n->result.survivors[l]) n->wrong = CR_MAX(n->wrong, (int64_t)1);
out:
    cr_spdnn_inputs_close(&some);
    cr_spdnn_result_free(&want);
    return status;
}

static double teraedges(const struct network *n, int64_t inputs) {
    return (double)n->net.edges * (double)inputs / n->result.seconds * 1e-12;
}

static void add_survivors(struct bench *b, const struct network *n) {
    const int64_t *s = n->result.survivors;
    cr_text_add(&b->out, "  active inputs:");
    for (int l = 0; l <= n->net.layers; l++)
        if (l == 0 || l == n->net.layers || s[l] != s[l - 1]) cr_text_add(&b->out, " %d:%lld", l, (long long)s[l]);
    cr_text_add(&b->out, "\n");
}

static void json_survivors(struct cr_json_writer *w, const struct network *n) {
    cr_json_open_array(w, "survivors");
    for (int l = 0; l <= n->net.layers; l++) cr_json_put_int(w, NULL, n->result.survivors[l]);
    cr_json_close_array(w);
}

static void add_json(struct bench *b, const struct network *n) {
    const struct cr_spdnn_result *r = &n->result;
    struct cr_json_writer         w = cr_json_writer(&b->out, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    cr_json_put_int(&w, "neurons", n->net.neurons);
    cr_json_put_int(&w, "layers", n->net.layers);
    cr_json_put_int(&w, "edges", n->net.edges);
    cr_json_put_int(&w, "inputs", b->count);
    cr_json_put_int(&w, "nonzeros", b->inputs.nonzeros);
    cr_json_put_string(&w, "images", b->synthetic ? "synthetic" : "mnist");
    cr_json_put_fixed(&w, "seconds", r->seconds, 7);
    cr_json_put_fixed(&w, "inputs_per_s", (double)b->count / r->seconds, 1);
    cr_json_put_fixed(&w, "teraedges_per_s", teraedges(n, b->count), 4);
    cr_json_put_int(&w, "categories", r->categories);
    cr_json_put_hash(&w, "hash", cr_spdnn_hash(r->category, r->categories));
    cr_json_put_int(&w, "checked", n->checked);
    cr_json_put_int(&w, "wrong", n->wrong);
    cr_json_put_bool(&w, "dropping", !b->options.keep_dead);
    cr_json_put_int(&w, "gpus", b->gpus);
    cr_json_put_int(&w, "rows", n->net.layer[0].rows);
    cr_json_put_int(&w, "launches", r->launches);
    cr_json_put_bool(&w, "streamed", r->streamed);
    cr_json_put_fixed(&w, "device_mib", (double)r->device_bytes / (1 << 20), 0);
    if (b->verbose) json_survivors(&w, n);
    cr_json_put_string(&w, "device", b->device->caps.text);
    cr_json_close_object(&w);
    cr_json_end_line(&w);
}

/* Adds a published rate; 0 when there is none. */
static void add_rate(struct bench *b, double rate) {
    if (rate > 0)
        cr_text_add(&b->out, " %7.2f", rate);
    else
        cr_text_add(&b->out, " %7s", "-");
}

static void add_line(struct bench *b, const struct network *n) {
    const struct cr_spdnn_result *r = &n->result;
    const struct cr_spdnn_rates  *p = cr_spdnn_rates(n->net.neurons, n->net.layers);
    cr_text_add(&b->out, "%7lld %6d %11.3f %13.0f %8.2f", (long long)n->net.neurons, n->net.layers, r->seconds * 1e3,
                (double)b->count / r->seconds, teraedges(n, b->count));
    add_rate(b, p ? p->v100 : 0);
    add_rate(b, p ? p->a100 : 0);
    add_rate(b, p ? p->xy2021 : 0);
    if (p)
        cr_text_add(&b->out, " %7.2f", teraedges(n, b->count) / p->a100);
    else
        cr_text_add(&b->out, " %7s", "-");
    cr_text_add(&b->out, " %8lld  %016llx", (long long)r->categories,
                (unsigned long long)cr_spdnn_hash(r->category, r->categories));
    if (n->checked) cr_text_add(&b->out, "  %s, %lld checked", n->wrong ? "WRONG" : "exact", (long long)n->checked);
    cr_text_add(&b->out, "%s\n", r->streamed ? ", weights streamed" : "");
    if (b->verbose) add_survivors(b, n);
}

/* Runs one network and prints its line at once: large networks take long. */
static cr_status run_network(struct bench *b, int64_t neurons, int64_t layers) {
    const struct cr_spdnn_published *p      = cr_spdnn_published(neurons);
    struct network                   n      = {0};
    cr_status                        status = CR_OK;
    cr_log(CR_LOG_INFO, "%lld neurons, %lld layers ...", (long long)neurons, (long long)layers);
    CR_TRY_OUT(cr_spdnn_net_open(neurons, (int)layers, p->bias, (uint64_t)b->config->train.seed, b->max_rows,
                                 b->threads, &n.net));
    CR_TRY_OUT(run_gpus(b, &n));
    const int64_t default_check = (int64_t)(check_work / (double)n.net.edges),
                  check         = b->check >= 0 ? b->check : CR_MAX(default_check, (int64_t)CHECK_MIN);
    if (b->cpu && check > 0) CR_TRY_OUT(verify(b, &n, CR_MAX((b->count + check - 1) / check, (int64_t)1)));
    if (b->json)
        add_json(b, &n);
    else
        add_line(b, &n);
    CR_TRY_OUT(cr_cmd_print(&b->out));
    if (n.wrong)
        CR_FAIL_OUT(CR_ERR_NUMERIC,
                    "%lld neurons, %lld layers: %lld of %lld inputs have another category than on the CPU",
                    (long long)neurons, (long long)layers, (long long)n.wrong, (long long)n.checked);
out:
    cr_spdnn_net_close(&n.net);
    cr_spdnn_result_free(&n.result);
    return status;
}

static cr_status run_width(struct bench *b, int64_t neurons) {
    const struct cr_spdnn_published *p    = cr_spdnn_published(neurons);
    const double                     want = (double)p->nonzeros / INPUTS / (double)neurons;
    cr_spdnn_inputs_close(&b->inputs);
    CR_TRY(cr_spdnn_inputs_open(&b->images, neurons, b->count, want, b->threads, &b->inputs));
    const double fraction = (double)b->inputs.nonzeros / (double)b->count / (double)neurons;
    if (!b->json)
        cr_text_add(
            &b->out,
            "%7lld neurons: %lld inputs are 1, %.3f %% (published: %lld in %d images, %.3f %%); bilinear from 28 x 28, "
            "pixels above %d of 255\n",
            (long long)neurons, (long long)b->inputs.nonzeros, 100 * fraction, (long long)p->nonzeros, (int)INPUTS,
            100 * want, b->inputs.threshold);
    for (int i = 0; i < b->depths; i++) CR_TRY(run_network(b, neurons, (int64_t)b->layers[i]));
    return CR_OK;
}

static cr_status run(const struct cr_tool_args *args) {
    struct bench b = {0};
    cr_status    status;
    CR_TRY_OUT(bench_open(&b, args));
    if (!b.json) {
        cr_text_add(&b.out, "%lld inputs, %s%s%s; %lld x %s\n", (long long)b.count,
                    b.synthetic ? "SYNTHETIC strokes, not MNIST (--mnist FILE)" : "MNIST",
                    b.options.keep_dead ? ", all inputs are computed in every layer"
                                        : ", inputs that became zero are dropped",
                    b.max_rows == 1 ? ", each row alone" : ", rows with equal columns are grouped", (long long)b.gpus,
                    b.device->caps.text);
        cr_text_add(&b.out, "TeraEdges/s (TE/s): edges times inputs per second. Published: V100 and A100 (HPEC'20); "
                            "XY-2021 (RTX A6000, "
                            "code specialised for these networks)\n\n");
        cr_text_add(&b.out, "%7s %6s %11s %13s %8s %7s %7s %7s %7s %8s  %s\n", "neurons", "layers", "ms", "inputs/s",
                    "TE/s", "V100", "A100", "XY-2021", "x A100", "active", "hash of categories");
    }
    for (int i = 0; i < b.widths; i++) CR_TRY_OUT(run_width(&b, (int64_t)b.neurons[i]));
out:
    bench_close(&b);
    return status;
}

static const struct cr_tool_option options[] = {
    {"neurons", "LIST", NULL, "widths of the networks (default: 1024,4096,16384,65536)"},
    {"layers", "LIST", NULL, "depths of the networks (default: 120,480,1920)"},
    {"inputs", "N", NULL, "number of inputs (default: 60000)"},
    {"mnist", "FILE", NULL, "train-images-idx3-ubyte, uncompressed (default: synthetic strokes)"},
    {"steps", "N", NULL, "timed runs of each network (default: 3)"},
    {"gpus", "N", NULL, "split the inputs over N GPUs"},
    {"no-drop", NULL, NULL, "keep computing inputs whose activations are all zero"},
    {"no-groups", NULL, NULL, "process each matrix row alone, even if rows have the same columns"},
    {"stream", NULL, NULL, "stream weights from host memory through two buffers, even if they would fit"},
    {"check", "N", NULL, "inputs to verify on the CPU, 0 for none (default: a few seconds of work)"},
    {"verbose", NULL, NULL, "also print the number of inputs that are still nonzero after each layer"},
    {"json", NULL, NULL, "print one line of JSON for each network"},
    {"device", "NAME", "train.device", "cpu or cuda (default: a GPU if there is one)"},
    {"threads", "N", "train.threads", "threads of the CPU"},
    {NULL, NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    static const struct cr_tool tool = {
        .name     = "cresnet-spdnn",
        .operands = "[options] [section.key=value ...]",
        .about = "Times the sparse deep networks of the Graph Challenge. The categories of some inputs are verified on "
                 "the CPU.\n",
        .option = options,
        .run    = run,
    };
    return cr_tool_main(&tool, argc, argv);
}

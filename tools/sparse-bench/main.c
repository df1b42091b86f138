/* tools/sparse-bench/main.c: cresnet-sparse-bench times every convolution of a network with pruned weights on the
 * sparse kernels, on the dense kernels, and on the matrix products that papers compare with (baselines_cuda.c). No
 * convolution is fused with other ops. */
#include "tools/sparse-bench/bench.h"

#include "compiler/passes.h"
#include "pruning/pruning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = CR_SPARSE_BENCH_LIST_MAX, MATHS = CR_SPARSE_BENCH_MATHS, BATCH_MAX = 4096 };

/* ---- the command line ---- */

/* Copies the next word of a list to `word`; false at the end of the list. */
static bool next_word(const char **text, char *word, size_t size) {
    const size_t length = strcspn(*text, ",");
    if (!length || length >= size) return false;
    snprintf(word, size, "%.*s", (int)length, *text);
    *text += length + ((*text)[length] == ',');
    return true;
}

static cr_status read_options(struct cr_sparse_bench *b) {
    const struct cr_tool_args *args = b->args;
    const char                *nets = cr_tool_value(args, "nets"), *types = cr_tool_value(args, "types");
    char                       word[32];
    if (!nets) nets = "resnet50,resnet18";
    if (!types) types = "fp32,fp16";
    CR_TRY(cr_tool_operands(args, 0, 0));
    CR_TRY(cr_tool_numbers(args, "batches", "1,32,256", 1, BATCH_MAX, b->batch, LIST_MAX, &b->batches));
    CR_TRY(
        cr_tool_numbers(args, "sparsity", "0.6,0.8,0.9,0.95,0.98", 0.01, 0.999, b->sparsity, LIST_MAX, &b->sparsities));
    while (b->nets < LIST_MAX && next_word(&nets, b->net[b->nets], sizeof b->net[0])) b->nets++;
    while (next_word(&types, word, sizeof word)) {
        const bool half = strcmp(word, "fp16") == 0;
        if (!half && strcmp(word, "fp32") != 0) return cr_tool_fail(args, "--types %s: must be fp32 or fp16", word);
        b->type[half ? CR_SPARSE_BENCH_F16 : CR_SPARSE_BENCH_F32] = true;
    }
    if (*nets || !b->nets) return cr_tool_fail(args, "--nets: must be names of networks separated by commas");
    if (*types || !(b->type[CR_SPARSE_BENCH_F32] || b->type[CR_SPARSE_BENCH_F16]))
        return cr_tool_fail(args, "--types: must be fp32, fp16 or fp32,fp16");
    b->csv = cr_tool_value(args, "csv") != NULL;
    return CR_OK;
}

/* ---- networks on devices ---- */

static void model_close(struct cr_sparse_bench_setup *s) {
    if (s->has_program) cr_program_free(&s->program);
    if (s->has_model) cr_model_close(&s->session.model);
    s->has_program = s->has_model = false;
    s->session.model              = (struct cr_model){0};
}

static void setup_close(struct cr_sparse_bench_setup *s) {
    model_close(s);
    if (s->session.device) cr_measure_memory_release(s->session.device, &s->scratch);
    cr_session_close(&s->session);
    cr_config_close(s->config);
}

/* Reads the configuration of one network, arithmetic and sparsity: defaults, the overrides of the command line, then
 * these three values. */
static cr_status config_open(const struct cr_sparse_bench *b, enum cr_sparse_bench_math math, const char *net,
                             double sparsity, const struct cr_config **config) {
    char        arch[64], precision[64], fraction[64];
    const char *list[64] = {"data.kind=synthetic", "data.image_size=224", "model.classes=1000", "prune.scope=uniform",
                            "prune.exempt="};
    int         count    = 5;
    snprintf(arch, sizeof arch, "model.arch=%s", net);
    snprintf(precision, sizeof precision, "train.precision=%s", cr_sparse_bench_math_name[math]);
    snprintf(fraction, sizeof fraction, "prune.sparsity=%.6f", sparsity);
    if (b->args->cli.overrides > (int)CR_COUNT(list) - count - 3)
        return cr_tool_fail(b->args, "more than %d configuration overrides", (int)CR_COUNT(list) - count - 3);
    for (int i = 0; i < b->args->cli.overrides; i++) list[count++] = b->args->cli.override[i];
    list[count++] = arch;
    list[count++] = precision;
    list[count++] = fraction;
    return cr_config_open(config, NULL, list, count);
}

static cr_status device_open(struct cr_sparse_bench *b, enum cr_sparse_bench_math math) {
    const struct cr_session_options options = {0};
    struct cr_sparse_bench_setup   *s       = &b->setup[math];
    enum cr_dtype                   real;
    CR_TRY(config_open(b, math, b->net[0], b->sparsity[0], &s->config));
    s->session.config = s->config;
    CR_TRY(cr_session_device(s->config, NULL, &s->session.device, &real));
    if (!s->session.device->backend->async || !s->session.device->backend->packed_elems)
        return CR_FAIL(CR_ERR_DEVICE, "cresnet-sparse-bench needs a GPU; this device is %s",
                       s->session.device->caps.text);
    CR_TRY(cr_session_open_cost_table(&s->session, &options));
    return s->session.cost_table ? CR_OK
                                 : cr_config_fail(s->config, "train.measure",
                                                  "cresnet-sparse-bench needs measured kernel times: leave it at yes");
}

static cr_status network_open(struct cr_sparse_bench *b, enum cr_sparse_bench_math math, const char *net,
                              int64_t batch) {
    struct cr_sparse_bench_setup *s = &b->setup[math];
    model_close(s);
    cr_config_close(s->config);
    CR_TRY(config_open(b, math, net, b->sparsity[0], &s->config));
    s->session.config = s->config;
    CR_TRY(cr_model_open(s->config, 1000, s->config->data.image_size, s->config->data.image_size, &s->session.model));
    s->has_model = true;
    cr_model_set_real(&s->session.model, math == CR_SPARSE_BENCH_F16 ? CR_F16 : CR_F32);
    CR_TRY(cr_model_program(&s->session.model, s->config, CR_PROGRAM_EVAL, batch, &s->program));
    s->has_program = true;
    return CR_OK;
}

/* Returns whether an arithmetic is timed: the arithmetics of the sparse kernels, and with fp32 all arithmetics of dense
 * kernels. */
static bool is_wanted(const struct cr_sparse_bench *b, enum cr_sparse_bench_math math) {
    return b->type[CR_SPARSE_BENCH_F32] || (math == CR_SPARSE_BENCH_F16 && b->type[CR_SPARSE_BENCH_F16]);
}

/* Op index of convolution `number`, counted from 0; CR_NONE when there are fewer. */
static int conv_at(const struct cr_program *p, int number) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_conv && number-- == 0) return i;
    return CR_NONE;
}

/* ---- times ---- */

/* Time of a kernel with its fastest algorithm; 0 when the kernel does not support the op. */
static cr_status time_kernel(struct cr_sparse_bench_setup *s, const struct cr_kernel *kernel, struct cr_op op,
                             double *seconds) {
    struct cr_device *device = s->session.device;
    double            one;
    *seconds = 0;
    if (kernel->accepts && !kernel->accepts(device, &s->program, &op)) return CR_OK;
    const int algos = kernel->algo_count ? kernel->algo_count(device, &s->program, &op) : 1;
    for (op.algo = 0; op.algo < algos; op.algo++) {
        const cr_status status = cr_cost_measure(device, &s->scratch, kernel, &s->program, &op, *seconds, &one);
        if (status != CR_OK) { /* a library refused its own algorithm, or memory is missing */
            cr_log(CR_LOG_INFO, "%s, algorithm %d: %s", kernel->name, op.algo, cr_error_message());
            cr_error_clear();
            continue;
        }
        if (*seconds == 0 || one < *seconds) *seconds = one;
    }
    return CR_OK;
}

static cr_status time_baselines(struct cr_sparse_bench *b, struct cr_sparse_bench_setup *s, const struct cr_op *dense,
                                const struct cr_op *pruned, struct cr_sparse_bench_layer *l) {
#ifdef CR_TOOL_WITH_CUDA
    const struct cr_kernel *const *kernel = cr_sparse_bench_baselines;
#else
    const struct cr_kernel *const *kernel = NULL;
#endif
    for (b->baselines = 0; kernel && *kernel && b->baselines < CR_SPARSE_BENCH_BASELINES_MAX; kernel++) {
        struct cr_op op          = (*kernel)->sparse ? *pruned : *dense;
        op.in[CR_IN_conv_packed] = CR_NONE;
        CR_TRY(time_kernel(s, *kernel, op, &l->baseline_s[b->baselines]));
        b->baseline[b->baselines++] = (*kernel)->name;
    }
    return CR_OK;
}

static void describe(const struct cr_program *p, const struct cr_op *op, struct cr_sparse_bench_layer *l) {
    const int64_t *x = p->tensor[op->in[CR_IN_conv_x]].dim, *w = p->tensor[op->in[CR_IN_conv_w]].dim;
    snprintf(l->shape, sizeof l->shape, "%lldx%lld %lld>%lld %lldx%lld/%d", (long long)x[1], (long long)x[2],
             (long long)x[3], (long long)w[0], (long long)w[1], (long long)w[2], op->attr.conv.stride);
}

/* Time of the memory traffic alone: input and output once, eight bytes per nonzero weight. */
static double memory_seconds(const struct cr_sparse_bench_setup *s, const struct cr_op *op, double nonzeros) {
    const struct cr_tensor *t = s->program.tensor;
    return ((double)(t[op->in[CR_IN_conv_x]].bytes + t[op->out[CR_OUT_conv_y]].bytes) + 8 * nonzeros) /
           s->session.device->caps.bytes_per_s;
}

static void name_format(const struct cr_sparse_bench_setup *s, const struct cr_cost_model *model,
                        const struct cr_sparse_cost *cost, struct cr_sparse_bench_layer *l) {
    struct cr_text name = {0};
    if (cost->formats) model->device.algo_name(model->device.self, &s->program, &cost->op, &name);
    snprintf(l->format_name, sizeof l->format_name, "%s", name.data ? name.data : "");
    cr_text_free(&name);
}

static cr_status time_layer(struct cr_sparse_bench *b, enum cr_sparse_bench_math type,
                            struct cr_sparse_bench_layer *l) {
    struct cr_sparse_bench_setup *s     = &b->setup[type];
    struct cr_cost_model          model = cr_session_cost_model(&s->session);
    const int                     at = conv_at(&s->program, l->number), tensors = s->program.tensors;
    const struct cr_op            dense = s->program.op[at];
    struct cr_sparse_cost         cost;
    model.device.estimate = NULL; /* time all candidates: the fastest sparse kernel is needed even if it is slow */
    CR_TRY(cr_sparsify_cost(&s->program, &model, at, &cost));
    const int64_t nonzeros = cost.op.attr.conv.pattern.nnz;
    l->pruned              = 1 - cost.density;
    l->sparse_s            = cost.formats ? cost.sparse_s : 0;
    l->format              = cr_sparse_format_number(cost.op.attr.conv.pattern.format);
    name_format(s, &model, &cost, l);
    l->memory_s = memory_seconds(s, &dense, (double)nonzeros);
    describe(&s->program, &dense, l);
    CR_TRY(time_baselines(b, s, &dense, &cost.op, l));
    s->program.tensors = tensors; /* remove the tensors that cr_sparsify_cost added */
    for (int math = 0; math < MATHS; math++) {
        struct cr_sparse_bench_setup *d = &b->setup[math];
        struct cr_cost                best;
        if (!is_wanted(b, (enum cr_sparse_bench_math)math) ||
            (type == CR_SPARSE_BENCH_F16 && math != CR_SPARSE_BENCH_F16))
            continue;
        CR_TRY(cr_cost_table_best(d->session.cost_table, &d->program, &d->program.op[conv_at(&d->program, l->number)],
                                  &best));
        l->dense_s[math] = best.seconds;
    }
    return CR_OK;
}

/* Nonzeros of a parameter, by the sparsity pattern of the parameter store. */
static int64_t count_nonzeros(const struct cr_param_store *store, int param) {
    int64_t nonzeros = 0;
    for (int64_t i = store->param[param].offset; i < store->param[param].offset + store->param[param].elems; i++)
        nonzeros += store->pattern[i / 8] >> (i % 8) & 1;
    return nonzeros;
}

/* Returns whether convolutions i and k have the same shape and number of nonzeros. Such layers are timed once. */
static bool is_same_work(const struct cr_program *p, int i, int k) {
    const struct cr_op     *a = &p->op[conv_at(p, i)], *b = &p->op[conv_at(p, k)];
    const struct cr_tensor *t = p->tensor;
    if (memcmp(t[a->in[CR_IN_conv_x]].dim, t[b->in[CR_IN_conv_x]].dim, sizeof t->dim) != 0) return false;
    if (memcmp(t[a->in[CR_IN_conv_w]].dim, t[b->in[CR_IN_conv_w]].dim, sizeof t->dim) != 0 ||
        a->attr.conv.stride != b->attr.conv.stride)
        return false;
    const int pa = t[a->in[CR_IN_conv_w]].param, pb = t[b->in[CR_IN_conv_w]].param;
    return count_nonzeros(p->store, pa) == count_nonzeros(p->store, pb);
}

/* Lists the convolutions of a network, equal ones once. */
static void list_layers(struct cr_sparse_bench *b, const struct cr_program *p) {
    b->layers = 0;
    for (int number = 0; conv_at(p, number) != CR_NONE; number++) {
        int same = 0;
        while (same < b->layers && !is_same_work(p, b->layer[same].number, number)) same++;
        if (same < b->layers)
            b->layer[same].count++;
        else if (b->layers < CR_SPARSE_BENCH_LAYERS_MAX) {
            const struct cr_op *op = &p->op[conv_at(p, number)];
            b->layer[b->layers++]  = (struct cr_sparse_bench_layer){
                 .number = number, .count = 1, .name = op->layer >= 0 ? p->layer[op->layer] : "?"};
        }
    }
}

/* ---- the command ---- */

static cr_status run_case(struct cr_sparse_bench *b, const struct cr_sparse_bench_case *c) {
    struct cr_sparse_bench_setup *s = &b->setup[c->type];
    const struct cr_config       *config;
    cr_free(b->mask);
    b->mask = NULL;
    CR_TRY(config_open(b, c->type, c->net, c->sparsity, &config));
    cr_status status = cr_prune_draw(&s->session.model.store, config, &b->mask);
    cr_config_close(config);
    CR_TRY(status);
    s->session.model.store.pattern = b->mask;
    list_layers(b, &s->program);
    for (int i = 0; i < b->layers; i++) {
        CR_TRY(time_layer(b, c->type, &b->layer[i]));
        if (i == 0) cr_sparse_bench_print_head(b, c);
        cr_sparse_bench_print_layer(b, c, &b->layer[i]);
    }
    cr_sparse_bench_print_summaries(b);
    return cr_cmd_print(&b->out);
}

static cr_status run_networks(struct cr_sparse_bench *b, const char *net, int64_t batch) {
    for (int math = 0; math < MATHS; math++)
        if (is_wanted(b, (enum cr_sparse_bench_math)math))
            CR_TRY(network_open(b, (enum cr_sparse_bench_math)math, net, batch));
    for (int type = 0; type < MATHS; type++)
        for (int i = 0; i < b->sparsities && b->type[type]; i++) {
            cr_log(CR_LOG_INFO, "%s, batch %lld, %s, sparsity %g ...", net, (long long)batch,
                   cr_sparse_bench_math_name[type], b->sparsity[i]);
            const struct cr_sparse_bench_case c = {net, batch, (enum cr_sparse_bench_math)type, b->sparsity[i]};
            CR_TRY(run_case(b, &c));
        }
    return CR_OK;
}

/* Stores measured kernel times in the cache even if the run failed, for example on a full disk. */
static cr_status run_batch(struct cr_sparse_bench *b, const char *net, int64_t batch) {
    const cr_status status = run_networks(b, net, batch);
    cr_error_hold();
    for (int math = 0; math < MATHS; math++) {
        struct cr_sparse_bench_setup *s = &b->setup[math];
        if (!is_wanted(b, (enum cr_sparse_bench_math)math) || !s->session.device) continue;
        cr_measure_memory_release(s->session.device, &s->scratch);
        if (s->session.cost_table) cr_cost_table_flush(s->session.cost_table);
    }
    cr_error_release();
    return status;
}

static cr_status run(struct cr_sparse_bench *b) {
    CR_TRY(read_options(b));
    for (int math = 0; math < MATHS; math++)
        if (is_wanted(b, (enum cr_sparse_bench_math)math)) CR_TRY(device_open(b, (enum cr_sparse_bench_math)math));
    cr_sparse_bench_print_start(b);
    for (int n = 0; n < b->nets; n++)
        for (int i = 0; i < b->batches; i++) CR_TRY(run_batch(b, b->net[n], (int64_t)b->batch[i]));
    return CR_OK;
}

static cr_status run_tool(const struct cr_tool_args *args) {
    struct cr_sparse_bench *b;
    CR_ALLOC(b, 1);
    b->args                = args;
    const cr_status status = run(b);
    for (int math = 0; math < MATHS; math++) setup_close(&b->setup[math]);
    cr_text_free(&b->out);
    cr_free(b->mask);
    cr_free(b);
    return status;
}

static const struct cr_tool_option options[] = {
    {"nets", "LIST", NULL, "networks (default: resnet50,resnet18)"},
    {"batches", "LIST", NULL, "batch sizes (default: 1,32,256)"},
    {"sparsity", "LIST", NULL,
     "fractions of pruned weights (default: 0.6,0.8,0.9,0.95,0.98); with a budget: the nearest columns"},
    {"types", "LIST", NULL, "fp32, fp16 or fp32,fp16 (default: both)"},
    {"budget", "FILE.csv", "prune.budget", "file with the sparsity of each layer"},
    {"csv", NULL, NULL, "print CSV, one line per layer"},
    {"device", "NAME", "train.device", "cuda"},
    {NULL, NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    static const struct cr_tool tool = {
        .name     = "cresnet-sparse-bench",
        .operands = "[options] [section.key=value ...]",
        .about    = "Times pruned convolutions: sparse kernels, dense kernels, and matrix products after im2col.\n",
        .option   = options,
        .run      = run_tool,
    };
    return cr_tool_main(&tool, argc, argv);
}

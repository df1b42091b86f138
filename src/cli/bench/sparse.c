/* cli/bench/sparse.c: cresnet bench sparse: every convolution of a network, its filter pruned, on our sparse kernels;
 * beside it the same convolution dense and by the matrix products that papers compare with (baseline rows of the
 * device). Nothing is fused on any side. */
#include "cli/command.h"
#include "pruning/pruning.h"
#include "session/session.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 16, LAYERS_MAX = 512, BASELINES_MAX = 4, BATCH_MAX = 4096 };
enum how { HOW_F32, HOW_TF32, HOW_F16, HOWS };
static const char *const how_names[HOWS] = {"fp32", "tf32", "fp16"};

/* A device opened for one arithmetic, and the forward pass of the network at hand there, as emitted. */
struct setup {
    struct cr_config  config;
    struct cr_session session; /* device, costs and model only */
    struct cr_program program;
    bool              has_program, has_model;
    struct cr_scratch scratch;
};

struct layer {
    const char *name;
    int         number, count; /* of the network's convolutions; how many are alike */
    double      share, cap_s;  /* pruned; what the bytes alone take */
    double      sparse_s, dense_s[HOWS], baseline_s[BASELINES_MAX]; /* 0: not known */
    int         layout;
    char        way[32]; /* its name, where it has one */
    char        shape[96];
};

struct bench {
    const struct cr_args *args;
    char                  net[LIST_MAX][32];
    double                batch[LIST_MAX], sparsity[LIST_MAX];
    int                   nets, batches, sparsities;
    bool                  type[HOWS], csv;
    struct setup          setup[HOWS];
    uint8_t              *mask;
    struct layer          layer[LAYERS_MAX];
    int                   layers;
    const char           *baseline[BASELINES_MAX]; /* names of rows */
    int                   baselines;
    struct cr_text        out;
};

/* ---- the command line ---- */

static cr_status read_numbers(const struct cr_args *args, enum cr_option_id id, const char *what, const char *otherwise,
                              double least, double most, double *out, int *count) {
    const char *text = args->value[id] ? args->value[id] : otherwise;
    for (*count = 0; *text;) {
        char        *end;
        const double one = strtod(text, &end);
        if (end == text || !(one >= least) || one > most || (*end && *end != ',') || (*end == ',' && !end[1]) ||
            *count == LIST_MAX)
            return cr_args_fail(args, "%s %s: must be at most %d numbers from %g to %g, with commas", what,
                                args->value[id], (int)LIST_MAX, least, most);
        out[(*count)++] = one;
        text            = *end ? end + 1 : end;
    }
    return *count ? CR_OK : cr_args_fail(args, "%s: must be numbers with commas", what);
}

/* The next word of a list into `word`; false: the end. */
static bool next_word(const char **text, char *word, size_t size) {
    const size_t length = strcspn(*text, ",");
    if (!length || length >= size) return false;
    snprintf(word, size, "%.*s", (int)length, *text);
    *text += length + ((*text)[length] == ',');
    return true;
}

static cr_status read_options(struct bench *b) {
    const struct cr_args *args  = b->args;
    const char           *nets  = args->value[CR_OPT_NETS] ? args->value[CR_OPT_NETS] : "resnet50,resnet18";
    const char           *types = args->value[CR_OPT_TYPES] ? args->value[CR_OPT_TYPES] : "fp32,fp16";
    char                  word[32];
    CR_TRY(cr_args_most(args, 0));
    CR_TRY(read_numbers(args, CR_OPT_BATCHES, "--batches", "1,32,256", 1, BATCH_MAX, b->batch, &b->batches));
    CR_TRY(read_numbers(args, CR_OPT_SPARSITIES, "--sparsity", "0.6,0.8,0.9,0.95,0.98", 0.01, 0.999, b->sparsity,
                        &b->sparsities));
    while (b->nets < LIST_MAX && next_word(&nets, b->net[b->nets], sizeof b->net[0])) b->nets++;
    while (next_word(&types, word, sizeof word)) {
        if (strcmp(word, how_names[HOW_F32]) == 0)
            b->type[HOW_F32] = true;
        else if (strcmp(word, how_names[HOW_F16]) == 0)
            b->type[HOW_F16] = true;
        else
            return cr_args_fail(args, "--types %s: there are fp32 and fp16", word);
    }
    if (*nets || !b->nets) return cr_args_fail(args, "--nets: must be names of networks with commas");
    if (*types || !(b->type[HOW_F32] || b->type[HOW_F16]))
        return cr_args_fail(args, "--types: must be fp32, fp16 or fp32,fp16");
    b->csv = cr_args_has(args, CR_OPT_BENCH_CSV);
    return CR_OK;
}

/* ---- networks on devices ---- */

static void model_close(struct setup *s) {
    if (s->has_program) cr_program_free(&s->program);
    if (s->has_model) cr_model_close(&s->session.model);
    s->has_program = s->has_model = false;
    s->session.model              = (struct cr_model){0};
}

static void setup_close(struct setup *s) {
    model_close(s);
    if (s->session.device) cr_scratch_release(s->session.device, &s->scratch);
    cr_session_close(&s->session);
    cr_config_close(&s->config);
}

/* Where the configuration of one network says all but the network and how much of it is pruned. */
static cr_status config_open(const struct bench *b, enum how how, const char *net, double sparsity,
                             struct cr_config *config) {
    char        arch[64], precision[64], share[64];
    const char *list[64] = {"data.kind=synthetic", "data.image_size=224", "model.classes=1000", "prune.scope=uniform",
                            "prune.exempt="};
    int         count    = 5;
    snprintf(arch, sizeof arch, "model.arch=%s", net);
    snprintf(precision, sizeof precision, "train.precision=%s", how_names[how]);
    snprintf(share, sizeof share, "prune.sparsity=%.6f", sparsity);
    if (b->args->overrides > (int)CR_COUNT(list) - count - 3)
        return cr_args_fail(b->args, "more than %d settings", (int)CR_COUNT(list) - count - 3);
    for (int i = 0; i < b->args->overrides; i++) list[count++] = b->args->override[i];
    list[count++] = arch;
    list[count++] = precision;
    list[count++] = share;
    return cr_config_open(config, NULL, list, count);
}

static cr_status device_open(struct bench *b, enum how how) {
    const struct cr_session_options options = {0};
    struct setup                   *s       = &b->setup[how];
    enum cr_dtype                   real;
    CR_TRY(config_open(b, how, b->net[0], b->sparsity[0], &s->config));
    s->session.config = &s->config;
    CR_TRY(cr_session_device(&s->config, false, &s->session.device, &real));
    if (!s->session.device->backend->async || !s->session.device->backend->packed_elems)
        return CR_FAIL(CR_ERR_DEVICE, "bench sparse times kernels of a GPU; this device is %s",
                       s->session.device->caps.text);
    CR_TRY(cr_session_open_cost_table(&s->session, &options));
    return s->session.cost_table
               ? CR_OK
               : cr_config_fail(&s->config, "train.measure", "bench sparse measures: leave it at yes");
}

static cr_status network_open(struct bench *b, enum how how, const char *net, int64_t batch) {
    struct setup *s = &b->setup[how];
    model_close(s);
    cr_config_close(&s->config);
    CR_TRY(config_open(b, how, net, b->sparsity[0], &s->config));
    CR_TRY(cr_model_open(&s->config, 1000, s->config.data.image_size, s->config.data.image_size, &s->session.model));
    s->has_model = true;
    cr_model_set_real(&s->session.model, how == HOW_F16 ? CR_F16 : CR_F32);
    CR_TRY(cr_model_program(&s->session.model, &s->config, CR_PROGRAM_EVAL, batch, &s->program));
    s->has_program = true;
    return CR_OK;
}

/* Which arithmetics are wanted: the dense ones beside ours too. */
static bool is_wanted(const struct bench *b, enum how how) {
    return b->type[HOW_F32] || (how == HOW_F16 && b->type[HOW_F16]);
}

/* The index of convolution `number`, counted from 0; CR_NONE: there are fewer. */
static int conv_at(const struct cr_program *p, int number) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_conv && number-- == 0) return i;
    return CR_NONE;
}

/* ---- times ---- */

/* The least of a row's ways; 0: it does not take the op. */
static cr_status time_row(struct setup *s, int row, struct cr_op op, double *seconds) {
    struct cr_device       *device = s->session.device;
    const struct cr_kernel *kernel = device->kernels[row];
    double                  one;
    *seconds  = 0;
    op.kernel = row;
    if (kernel->accepts && !kernel->accepts(device, &s->program, &op)) return CR_OK;
    const int ways = kernel->algo_count ? kernel->algo_count(device, &s->program, &op) : 1;
    for (op.algo = 0; op.algo < ways; op.algo++) {
        const cr_status status = cr_cost_measure(device, &s->scratch, &s->program, &op, *seconds, &one);
        if (status != CR_OK) { /* a library that refuses one of its own algorithms; memory that is not there */
            cr_log(CR_LOG_INFO, "%s, way %d: %s", kernel->name, op.algo, cr_error_message());
            cr_error_clear();
            continue;
        }
        if (*seconds == 0 || one < *seconds) *seconds = one;
    }
    return CR_OK;
}

static cr_status time_baselines(struct bench *b, struct setup *s, const struct cr_op *plain, const struct cr_op *pruned,
                                struct layer *l) {
    const struct cr_kernel *const *rows = s->session.device->kernels;
    b->baselines                        = 0;
    for (int i = 0; rows[i]; i++) {
        if (!rows[i]->baseline || b->baselines == BASELINES_MAX) continue;
        struct cr_op op          = rows[i]->sparse ? *pruned : *plain;
        op.in[CR_IN_conv_packed] = CR_NONE;
        CR_TRY(time_row(s, i, op, &l->baseline_s[b->baselines]));
        b->baseline[b->baselines++] = rows[i]->name;
    }
    return CR_OK;
}

static void describe(const struct cr_program *p, const struct cr_op *op, struct layer *l) {
    const int64_t *x = p->tensor[op->in[CR_IN_conv_x]].dim, *w = p->tensor[op->in[CR_IN_conv_w]].dim;
    snprintf(l->shape, sizeof l->shape, "%lldx%lld %lld>%lld %lldx%lld/%d", (long long)x[1], (long long)x[2],
             (long long)x[3], (long long)w[0], (long long)w[1], (long long)w[2], op->attr.conv.stride);
}

/* What must move: pictures once, eight bytes a kept weight. */
static double cap_of(const struct setup *s, const struct cr_op *op, double kept) {
    const struct cr_tensor *t = s->program.tensor;
    return ((double)(t[op->in[CR_IN_conv_x]].bytes + t[op->out[CR_OUT_conv_y]].bytes) + 8 * kept) /
           s->session.device->caps.bytes_per_s;
}

static void name_layout(const struct setup *s, const struct cr_sparse_cost *price, struct layer *l) {
    struct cr_text name = {0};
    if (price->formats) cr_device_algo_name(s->session.device, &s->program, &price->op, &name);
    snprintf(l->way, sizeof l->way, "%s", name.data ? name.data : "");
    cr_text_free(&name);
}

static cr_status time_layer(struct bench *b, enum how type, struct layer *l) {
    struct setup         *s      = &b->setup[type];
    struct cr_cost_model  target = cr_session_cost_model(&s->session);
    const int             at = conv_at(&s->program, l->number), tensors = s->program.tensors;
    const struct cr_op    plain = s->program.op[at];
    struct cr_sparse_cost price;
    target.estimate = NULL; /* the best sparse kernel is wanted, however far behind */
    CR_TRY(cr_sparsify_cost(&s->program, &target, at, &price));
    const int64_t kept = price.op.attr.conv.pattern.nnz;
    l->share           = 1 - price.density;
    l->sparse_s        = price.formats ? price.sparse_s : 0;
    l->layout          = price.op.attr.conv.pattern.format;
    name_layout(s, &price, l);
    l->cap_s = cap_of(s, &plain, (double)kept);
    describe(&s->program, &plain, l);
    CR_TRY(time_baselines(b, s, &plain, &price.op, l));
    s->program.tensors = tensors; /* the trial's kept weights */
    for (int how = 0; how < HOWS; how++) {
        struct setup  *d = &b->setup[how];
        struct cr_cost best;
        if (!is_wanted(b, (enum how)how) || (type == HOW_F16 && how != HOW_F16)) continue;
        CR_TRY(cr_cost_table_best(d->session.cost_table, &d->program, &d->program.op[conv_at(&d->program, l->number)],
                                  &best));
        l->dense_s[how] = best.seconds;
    }
    return CR_OK;
}

/* Layers alike in shape and kept weights are timed once. */
static int64_t kept_of(const struct cr_param_store *store, int param) {
    int64_t kept = 0;
    for (int64_t i = store->param[param].offset; i < store->param[param].offset + store->param[param].elems; i++)
        kept += store->pattern[i / 8] >> (i % 8) & 1;
    return kept;
}
static bool alike(const struct cr_program *p, int i, int k) {
    const struct cr_op     *a = &p->op[conv_at(p, i)], *b = &p->op[conv_at(p, k)];
    const struct cr_tensor *t = p->tensor;
    if (memcmp(t[a->in[CR_IN_conv_x]].dim, t[b->in[CR_IN_conv_x]].dim, sizeof t->dim) != 0) return false;
    if (memcmp(t[a->in[CR_IN_conv_w]].dim, t[b->in[CR_IN_conv_w]].dim, sizeof t->dim) != 0 ||
        a->attr.conv.stride != b->attr.conv.stride)
        return false;
    const int pa = cr_param_store_find_offset(p->store, t[a->in[CR_IN_conv_w]].offset),
              pb = cr_param_store_find_offset(p->store, t[b->in[CR_IN_conv_w]].offset);
    return kept_of(p->store, pa) == kept_of(p->store, pb);
}

static void list_layers(struct bench *b, const struct cr_program *p) {
    b->layers = 0;
    for (int number = 0; conv_at(p, number) != CR_NONE; number++) {
        int same = 0;
        while (same < b->layers && !alike(p, b->layer[same].number, number)) same++;
        if (same < b->layers)
            b->layer[same].count++;
        else if (b->layers < LAYERS_MAX) {
            const struct cr_op *op = &p->op[conv_at(p, number)];
            b->layer[b->layers++] =
                (struct layer){.number = number, .count = 1, .name = op->layer >= 0 ? p->layer[op->layer] : "?"};
        }
    }
}

/* ---- what is said ---- */

static void add_head(struct bench *b, enum how type, const char *net, int64_t batch, double sparsity) {
    if (b->csv) return;
    cr_text_add(&b->out, "\n%s, batch %lld, %s, sparsity %.4g%s; microseconds, x: times as fast as that\n", net,
                (long long)batch, how_names[type], sparsity, b->setup[type].config.prune.budget[0] ? " (budget)" : "");
    cr_text_add(&b->out, "%-26s %-24s %2s %6s %9s %3s %-17s %9s", "layer", "shape", "n", "pruned", "sparse", "lay",
                "layout", "bytes cap");
    for (int i = 0; i < b->baselines; i++) cr_text_add(&b->out, " %15s %6s", b->baseline[i], "x");
    for (int h = 0; h < HOWS; h++)
        if (b->layer[0].dense_s[h] > 0) cr_text_add(&b->out, " %5s%4s %6s", "dense", how_names[h], "x");
    cr_text_add(&b->out, "\n");
}

static void add_time(struct bench *b, const struct layer *l, double seconds, int width) {
    if (seconds > 0)
        cr_text_add(&b->out, " %*.2f %6.2f", width, 1e6 * seconds, l->sparse_s > 0 ? seconds / l->sparse_s : 0);
    else
        cr_text_add(&b->out, " %*s %6s", width, "-", "-");
}

static void add_line(struct bench *b, const struct layer *l) {
    cr_text_add(&b->out, "%-26s %-24s %2d %6.2f %9.2f %3d %-17s %9.2f", l->name, l->shape, l->count, 100 * l->share,
                1e6 * l->sparse_s, l->layout, l->way, 1e6 * l->cap_s);
    for (int i = 0; i < b->baselines; i++) add_time(b, l, l->baseline_s[i], 15);
    for (int h = 0; h < HOWS; h++)
        if (l->dense_s[h] > 0) add_time(b, l, l->dense_s[h], 9);
    cr_text_add(&b->out, "\n");
}

static void add_csv(struct bench *b, enum how type, const char *net, int64_t batch, double sparsity,
                    const struct layer *l) {
    cr_text_add(&b->out, "%s,%lld,%s,%g,%s,%s,%d,%.4f,%d,%s,%.3f,%.3f", net, (long long)batch, how_names[type],
                sparsity, l->name, l->shape, l->count, l->share, l->layout, l->way, 1e6 * l->cap_s, 1e6 * l->sparse_s);
    for (int i = 0; i < BASELINES_MAX; i++) cr_text_add(&b->out, ",%.3f", 1e6 * l->baseline_s[i]);
    for (int h = 0; h < HOWS; h++) cr_text_add(&b->out, ",%.3f", 1e6 * l->dense_s[h]);
    cr_text_add(&b->out, "\n");
}

/* Against one other: `times` of each layer. */
static void add_summary(struct bench *b, const char *name, const double *(*of)(const struct layer *, int), int index) {
    double logs = 0, least = INFINITY, theirs = 0, ours = 0, mixed = 0;
    int    count = 0, won = 0;
    for (int i = 0; i < b->layers; i++) {
        const struct layer *l     = &b->layer[i];
        const double        other = *of(l, index);
        if (other <= 0 || l->sparse_s <= 0) continue;
        const double x = other / l->sparse_s;
        logs += log(x) * l->count;
        least = fmin(least, x);
        count += l->count;
        won += x > 1 ? l->count : 0;
        theirs += other * l->count;
        ours += l->sparse_s * l->count;
        mixed += fmin(other, l->sparse_s) * l->count;
    }
    if (!count) return;
    cr_text_add(&b->out,
                "  against %-16s geometric mean %6.2f, least %6.2f, faster in %d of %d layers; all layers %9.1f us, "
                "ours %9.1f (x %.2f), the better of both %9.1f (x %.2f)\n",
                name, exp(logs / count), least, won, count, 1e6 * theirs, 1e6 * ours, theirs / ours, 1e6 * mixed,
                theirs / mixed);
}
static const double *baseline_of(const struct layer *l, int i) {
    return &l->baseline_s[i];
}
static const double *dense_of(const struct layer *l, int i) {
    return &l->dense_s[i];
}

static void add_summaries(struct bench *b) {
    char name[32];
    for (int i = 0; i < b->baselines; i++) add_summary(b, b->baseline[i], baseline_of, i);
    for (int h = 0; h < HOWS; h++) {
        snprintf(name, sizeof name, "dense %s", how_names[h]);
        add_summary(b, name, dense_of, h);
    }
}

/* ---- the command ---- */

static cr_status run_one(struct bench *b, enum how type, const char *net, int64_t batch, double sparsity) {
    struct setup    *s = &b->setup[type];
    struct cr_config config;
    cr_free(b->mask);
    b->mask = NULL;
    CR_TRY(config_open(b, type, net, sparsity, &config));
    cr_status status = cr_prune_draw(&s->session.model.store, &config, &b->mask);
    cr_config_close(&config);
    CR_TRY(status);
    s->session.model.store.pattern = b->mask;
    list_layers(b, &s->program);
    for (int i = 0; i < b->layers; i++) {
        CR_TRY(time_layer(b, type, &b->layer[i]));
        if (i == 0) add_head(b, type, net, batch, sparsity);
        if (b->csv)
            add_csv(b, type, net, batch, sparsity, &b->layer[i]);
        else
            add_line(b, &b->layer[i]);
    }
    if (!b->csv) add_summaries(b);
    return cr_cmd_print(&b->out);
}

static cr_status run_networks(struct bench *b, const char *net, int64_t batch) {
    for (int how = 0; how < HOWS; how++)
        if (is_wanted(b, (enum how)how)) CR_TRY(network_open(b, (enum how)how, net, batch));
    for (int type = 0; type < HOWS; type++)
        for (int i = 0; i < b->sparsities && b->type[type]; i++) {
            cr_log(CR_LOG_INFO, "%s, batch %lld, %s, sparsity %g ...", net, (long long)batch, how_names[type],
                   b->sparsity[i]);
            CR_TRY(run_one(b, (enum how)type, net, batch, b->sparsity[i]));
        }
    return CR_OK;
}

/* What was timed is kept, even if a disk was full meanwhile. */
static cr_status run_batch(struct bench *b, const char *net, int64_t batch) {
    const cr_status status = run_networks(b, net, batch);
    cr_error_hold();
    for (int how = 0; how < HOWS; how++) {
        struct setup *s = &b->setup[how];
        if (!is_wanted(b, (enum how)how) || !s->session.device) continue;
        cr_scratch_release(s->session.device, &s->scratch);
        if (s->session.cost_table) cr_cost_table_flush(s->session.cost_table);
    }
    cr_error_release();
    return status;
}

static cr_status run(struct bench *b) {
    CR_TRY(read_options(b));
    for (int how = 0; how < HOWS; how++)
        if (is_wanted(b, (enum how)how)) CR_TRY(device_open(b, (enum how)how));
    if (b->csv)
        cr_text_add(&b->out,
                    "net,batch,type,sparsity,layer,shape,count,pruned,layout,layout_name,bytes_cap_us,sparse_us,"
                    "baseline1_us,baseline2_us,baseline3_us,baseline4_us,dense_fp32_us,dense_tf32_us,dense_fp16_us\n");
    else
        cr_text_add(&b->out, "%s\nplain convolutions; dense: the fastest of cuDNN's and our own kernels\n",
                    b->setup[b->type[HOW_F32] ? HOW_F32 : HOW_F16].session.device->caps.text);
    for (int n = 0; n < b->nets; n++)
        for (int i = 0; i < b->batches; i++) CR_TRY(run_batch(b, b->net[n], (int64_t)b->batch[i]));
    return CR_OK;
}

cr_status cr_bench_sparse(const struct cr_args *args) {
    struct bench *b;
    CR_ALLOC(b, 1);
    b->args                = args;
    const cr_status status = run(b);
    for (int how = 0; how < HOWS; how++) setup_close(&b->setup[how]);
    cr_text_free(&b->out);
    cr_free(b->mask);
    cr_free(b);
    return status;
}

/* tools/sparse-bench/report.c: output of cresnet-sparse-bench: a table or CSV. */
#include "tools/sparse-bench/bench.h"

#include <math.h>
#include <stdio.h>

enum { MATHS = CR_SPARSE_BENCH_MATHS };

const char *const cr_sparse_bench_math_name[MATHS] = {"fp32", "tf32", "fp16"};

void cr_sparse_bench_print_start(struct cr_sparse_bench *b) {
    const enum cr_sparse_bench_math any = b->type[CR_SPARSE_BENCH_F32] ? CR_SPARSE_BENCH_F32 : CR_SPARSE_BENCH_F16;
    if (b->csv)
        cr_text_add(&b->out,
                    "net,batch,type,sparsity,layer,shape,count,pruned,format,format_name,memory_bound_us,sparse_us,"
                    "baseline1_us,baseline2_us,baseline3_us,baseline4_us,dense_fp32_us,dense_tf32_us,dense_fp16_us\n");
    else
        cr_text_add(&b->out,
                    "%s\nconvolutions without fusion; dense: the fastest of all dense kernels, cuDNN included\n",
                    b->setup[any].session.device->caps.text);
}

void cr_sparse_bench_print_head(struct cr_sparse_bench *b, const struct cr_sparse_bench_case *c) {
    if (b->csv) return;
    cr_text_add(&b->out, "\n%s, batch %lld, %s, sparsity %.4g%s; times in microseconds; x: speedup of sparse\n", c->net,
                (long long)c->batch, cr_sparse_bench_math_name[c->type], c->sparsity,
                b->setup[c->type].config->prune.budget[0] ? " (budget)" : "");
    cr_text_add(&b->out, "%-26s %-24s %2s %8s %9s %3s %-17s %9s", "layer", "shape", "n", "pruned %", "sparse", "fmt",
                "weight format", "mem bound");
    for (int i = 0; i < b->baselines; i++) cr_text_add(&b->out, " %15s %6s", b->baseline[i], "x");
    for (int m = 0; m < MATHS; m++)
        if (b->layer[0].dense_s[m] > 0) cr_text_add(&b->out, " %5s%4s %6s", "dense", cr_sparse_bench_math_name[m], "x");
    cr_text_add(&b->out, "\n");
}

static void add_time(struct cr_sparse_bench *b, const struct cr_sparse_bench_layer *l, double seconds, int width) {
    if (seconds > 0)
        cr_text_add(&b->out, " %*.2f %6.2f", width, 1e6 * seconds, l->sparse_s > 0 ? seconds / l->sparse_s : 0);
    else
        cr_text_add(&b->out, " %*s %6s", width, "-", "-");
}

static void add_line(struct cr_sparse_bench *b, const struct cr_sparse_bench_layer *l) {
    cr_text_add(&b->out, "%-26s %-24s %2d %8.2f %9.2f %3d %-17s %9.2f", l->name, l->shape, l->count, 100 * l->pruned,
                1e6 * l->sparse_s, l->format, l->format_name, 1e6 * l->memory_s);
    for (int i = 0; i < b->baselines; i++) add_time(b, l, l->baseline_s[i], 15);
    for (int m = 0; m < MATHS; m++)
        if (l->dense_s[m] > 0) add_time(b, l, l->dense_s[m], 9);
    cr_text_add(&b->out, "\n");
}

static void add_csv(struct cr_sparse_bench *b, const struct cr_sparse_bench_case *c,
                    const struct cr_sparse_bench_layer *l) {
    cr_text_add(&b->out, "%s,%lld,%s,%g,%s,%s,%d,%.4f,%d,%s,%.3f,%.3f", c->net, (long long)c->batch,
                cr_sparse_bench_math_name[c->type], c->sparsity, l->name, l->shape, l->count, l->pruned, l->format,
                l->format_name, 1e6 * l->memory_s, 1e6 * l->sparse_s);
    for (int i = 0; i < CR_SPARSE_BENCH_BASELINES_MAX; i++) cr_text_add(&b->out, ",%.3f", 1e6 * l->baseline_s[i]);
    for (int m = 0; m < MATHS; m++) cr_text_add(&b->out, ",%.3f", 1e6 * l->dense_s[m]);
    cr_text_add(&b->out, "\n");
}

void cr_sparse_bench_print_layer(struct cr_sparse_bench *b, const struct cr_sparse_bench_case *c,
                                 const struct cr_sparse_bench_layer *layer) {
    if (b->csv)
        add_csv(b, c, layer);
    else
        add_line(b, layer);
}

/* Adds the comparison of the sparse kernels with one other kind of kernel; times_of(layer)[index] is its time. */
static void add_summary(struct cr_sparse_bench *b, const char                               *name,
                        const double *(*times_of)(const struct cr_sparse_bench_layer *), int index) {
    double logs = 0, min = INFINITY, other_s = 0, sparse_s = 0, best_s = 0;
    int    count = 0, faster = 0;
    for (int i = 0; i < b->layers; i++) {
        const struct cr_sparse_bench_layer *l     = &b->layer[i];
        const double                        other = times_of(l)[index];
        if (other <= 0 || l->sparse_s <= 0) continue;
        const double speedup = other / l->sparse_s;
        logs += log(speedup) * l->count;
        min = fmin(min, speedup);
        count += l->count;
        faster += speedup > 1 ? l->count : 0;
        other_s += other * l->count;
        sparse_s += l->sparse_s * l->count;
        best_s += fmin(other, l->sparse_s) * l->count;
    }
    if (!count) return;
    cr_text_add(&b->out,
                "  against %-16s speedup: geometric mean %6.2f, min %6.2f, faster in %d of %d layers; all layers %9.1f "
                "us, sparse %9.1f (x %.2f), the faster of both per layer %9.1f (x %.2f)\n",
                name, exp(logs / count), min, faster, count, 1e6 * other_s, 1e6 * sparse_s, other_s / sparse_s,
                1e6 * best_s, other_s / best_s);
}

static const double *baseline_times(const struct cr_sparse_bench_layer *l) {
    return l->baseline_s;
}

static const double *dense_times(const struct cr_sparse_bench_layer *l) {
    return l->dense_s;
}

void cr_sparse_bench_print_summaries(struct cr_sparse_bench *b) {
    char name[32];
    if (b->csv) return;
    for (int i = 0; i < b->baselines; i++) add_summary(b, b->baseline[i], baseline_times, i);
    for (int m = 0; m < MATHS; m++) {
        snprintf(name, sizeof name, "dense %s", cr_sparse_bench_math_name[m]);
        add_summary(b, name, dense_times, m);
    }
}

/* cli/bench/gpu.c: cresnet bench gpu: a few workloads in about three minutes, as a table and as one JSON line that
 * owners of other GPUs can send (docs/reference/gpus.md collects such lines). */
#include "cli/bench/run.h"
#include "cli/common/command.h"
#include "device/device.h"
#include "formats/json_write.h"

#include <stdio.h>
#include <string.h>

enum { STEPS_MAX = 100000, OVERRIDES = 5, KERNELS_MAX = 128, SMALLEST_BATCH = 16 };

#define IMAGENET "data.image_size=224", "model.classes=1000"
#define CIFAR "data.image_size=32", "model.classes=10"
static const struct workload {
    const char *name;
    bool        infer;
    int64_t     batch, steps;
    const char *overrides[OVERRIDES];
} workloads[] = {
    {"train resnet50", false, 256, 20, {"model.arch=resnet50", IMAGENET}},
    {"infer resnet50", true, 256, 20, {"model.arch=resnet50", IMAGENET}},
    {"infer resnet50", true, 1, 200, {"model.arch=resnet50", IMAGENET}},
    {"train cifar resnet20", false, 128, 200, {"model.arch=resnet20", "model.shortcut=A", CIFAR}},
    {"train cifar resnet20", false, 1024, 100, {"model.arch=resnet20", "model.shortcut=A", CIFAR}},
};

/* Kernels of a workload, in the order of their first op. */
struct chosen {
    const char *name;
    int         ops;
};
struct result {
    struct cr_bench_figures figures;
    enum cr_dtype           real;
    struct chosen           kernel[KERNELS_MAX];
    int                     kernels;
};
struct gpu_bench {
    const struct cr_args *args;
    int64_t               steps; /* of each workload; 0: as in the table */
    struct result         result[CR_COUNT(workloads)];
    struct result        *now;
    char                  device[sizeof((struct cr_device_caps *)0)->text];
    double                to_device, to_host; /* bytes a second; 0 when unknown */
    double                seconds;
};

/* ---- measuring ---- */

static void count_kernel(struct result *r, const char *name) {
    for (int i = 0; i < r->kernels; i++)
        if (strcmp(r->kernel[i].name, name) == 0) {
            r->kernel[i].ops++;
            return;
        }
    if (r->kernels < KERNELS_MAX) r->kernel[r->kernels++] = (struct chosen){name, 1};
}

static cr_status read_session(struct cr_session *s, const struct cr_program *p, const struct cr_exec *exec,
                              void *context) {
    struct gpu_bench *b = context;
    struct result    *r = b->now;
    r->real             = s->model.real;
    snprintf(b->device, sizeof b->device, "%s", s->device->caps.text);
    for (int i = 0; i < p->ops; i++) count_kernel(r, cr_exec_kernel_name(exec, i));
    if (b->to_host > 0 || !s->cost_table || !s->device->backend->async) return CR_OK;
    struct cr_cost_model model = cr_session_cost_model(s);
    CR_TRY(cr_cost_table_copy_rates(s->cost_table, &model));
    b->to_device = model.to_device_bytes_per_s;
    b->to_host   = model.to_host_bytes_per_s;
    return CR_OK;
}

static cr_status run_batch(struct gpu_bench *b, const struct workload *w, int64_t batch) {
    char         batch_is[40], eval_is[40];
    const char **list;
    int          count  = 0;
    cr_status    status = CR_OK;
    CR_ALLOC(list, (size_t)b->args->overrides + OVERRIDES + 5);
    snprintf(batch_is, sizeof batch_is, "train.batch=%lld", (long long)batch);
    snprintf(eval_is, sizeof eval_is, "train.eval_batch=%lld", (long long)batch);
    for (int i = 0; i < OVERRIDES && w->overrides[i]; i++) list[count++] = w->overrides[i];
    list[count++] = "data.kind=synthetic";
    list[count++] = "memory.limit=none";
    list[count++] = batch_is;
    list[count++] = eval_is;
    list[count++] = "train.device=cuda"; /* --device, which comes later, may name another */
    for (int i = 0; i < b->args->overrides; i++) list[count++] = b->args->override[i];
    status =
        cr_bench_workload(list, count, w->infer, b->steps ? b->steps : w->steps, &b->now->figures, read_session, b);
    cr_free(list);
    return status;
}

/* A card with little memory gets a smaller batch. */
static cr_status run_workload(struct gpu_bench *b, size_t i) {
    const struct workload *w = &workloads[i];
    b->now                   = &b->result[i];
    for (int64_t batch = w->batch;; batch /= 2) {
        const cr_status status = run_batch(b, w, batch);
        if (status != CR_ERR_MEMORY || batch < 2 * SMALLEST_BATCH) return status;
        cr_log(CR_LOG_INFO, "%s: batch %lld does not fit, half of it is tried", w->name, (long long)batch);
        cr_error_clear();
        b->now->kernels = 0;
    }
}

/* ---- output ---- */

static int own_kernels(const struct result *r) {
    int own = 0;
    for (int k = 0; k < r->kernels; k++)
        if (strncmp(r->kernel[k].name, "cuda.", 5) == 0) own += r->kernel[k].ops;
    return own;
}

static void print_table(const struct gpu_bench *b, struct cr_text *out) {
    cr_text_add(out, "%s\n%-22s %5s %6s %12s %9s %11s %8s %s\n", b->device, "workload", "type", "batch", "images/s",
                "ms", "latency ms", "MiB", "ops: own kernels, others");
    for (size_t i = 0; i < CR_COUNT(workloads); i++) {
        const struct result *r   = &b->result[i];
        int                  all = 0;
        for (int k = 0; k < r->kernels; k++) all += r->kernel[k].ops;
        cr_text_add(out, "%-22s %5s %6lld %12.1f %9.3f %11.3f %8.0f %d, %d\n", workloads[i].name,
                    cr_dtype_name(r->real), (long long)r->figures.batch, r->figures.images_per_s, r->figures.ms,
                    r->figures.latency_ms, cr_mib(r->figures.device_bytes), own_kernels(r), all - own_kernels(r));
    }
    if (b->to_host > 0)
        cr_text_add(out, "copies: %.1f GB/s to the device, %.1f GB/s to the host\n", b->to_device * 1e-9,
                    b->to_host * 1e-9);
    cr_text_add(out, "%.0f s in all. The line to send (docs/reference/gpus.md):\n", b->seconds);
}

static void print_json(const struct gpu_bench *b, struct cr_text *out) {
    struct cr_json_writer w = cr_json_writer(out, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    cr_json_put_string(&w, "cresnet", CR_VERSION);
    cr_json_put_string(&w, "device", b->device);
    cr_json_put_fixed(&w, "seconds", b->seconds, 3);
    if (b->to_host > 0) {
        cr_json_put_fixed(&w, "to_device_gb_per_s", b->to_device * 1e-9, 2);
        cr_json_put_fixed(&w, "to_host_gb_per_s", b->to_host * 1e-9, 2);
    }
    cr_json_open_array(&w, "workloads");
    for (size_t i = 0; i < CR_COUNT(workloads); i++) {
        const struct result *r = &b->result[i];
        cr_json_open_object(&w, NULL);
        cr_json_put_string(&w, "workload", workloads[i].name);
        cr_json_put_string(&w, "type", cr_dtype_name(r->real));
        cr_json_put_int(&w, "batch", r->figures.batch);
        cr_json_put_fixed(&w, "images_per_s", r->figures.images_per_s, 1);
        cr_json_put_fixed(&w, "ms", r->figures.ms, 4);
        cr_json_put_fixed(&w, "latency_ms", r->figures.latency_ms, 4);
        if (r->figures.device_bytes) cr_json_put_fixed(&w, "device_mib", cr_mib(r->figures.device_bytes), 0);
        cr_json_open_object(&w, "kernels");
        for (int k = 0; k < r->kernels; k++) cr_json_put_int(&w, r->kernel[k].name, r->kernel[k].ops);
        cr_json_close_object(&w);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_object(&w);
    cr_json_end_line(&w);
}

/* Without a GPU, the advice of other commands, --device cpu, would measure for hours. */
static cr_status check_gpu(const struct cr_args *args) {
    char why[300];
    for (int i = 0; i < args->overrides; i++)
        if (strncmp(args->override[i], "train.device=", strlen("train.device=")) == 0) return CR_OK;
    if (cr_device_check(CR_DEVICE_CUDA) == CR_OK) return CR_OK;
    snprintf(why, sizeof why, "%s", cr_error_message());
    why[strcspn(why, ";")] = 0;
    cr_error_clear();
    return CR_FAIL(CR_ERR_DEVICE, "bench gpu measures a GPU: %s; `cresnet bench step CONFIG` measures the CPU", why);
}

cr_status cr_bench_gpu(const struct cr_args *args) {
    struct gpu_bench b     = {.args = args};
    struct cr_text   out   = {0};
    const int64_t    start = cr_time_ns();
    cr_status        status;
    CR_TRY(cr_args_max_operands(args, 0));
    if (cr_args_has(args, CR_OPT_BENCH_STEPS)) CR_TRY(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, STEPS_MAX, 1, &b.steps));
    CR_TRY(check_gpu(args));
    for (size_t i = 0; i < CR_COUNT(workloads); i++) CR_TRY(run_workload(&b, i));
    b.seconds = (double)(cr_time_ns() - start) * 1e-9;
    if (!cr_args_has(args, CR_OPT_JSON)) print_table(&b, &out);
    print_json(&b, &out);
    status = cr_cmd_print(&out);
    cr_text_free(&out);
    return status;
}

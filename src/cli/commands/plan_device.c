/* cli/commands/plan_device.c: cresnet plan --target: plans for a GPU that this machine does not have. */
#include "cli/common/command.h"
#include "compiler/simulate.h"
#include "device/kernel.h"
#include "device/offline.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

cr_status cr_plan_target_open(const struct cr_args *args, const struct cr_config *c, struct cr_device **device,
                              enum cr_dtype *real) {
    const struct cr_device_options options = {.deterministic = c->train.deterministic,
                                              .tf32          = c->train.precision == CR_PRECISION_TF32,
                                              .card_bytes    = cr_config_card_bytes(c)};
    const struct cr_gpu           *gpu     = cr_gpu_find(args->value[CR_OPT_TARGET]);
    if (!gpu) {
        struct cr_text names = {0};
        cr_gpu_names(", ", &names);
        const cr_status status = cr_args_fail(args, "--target %s: unknown GPU; known GPUs: %s",
                                              args->value[CR_OPT_TARGET], names.data ? names.data : "");
        cr_text_free(&names);
        return status;
    }
    CR_TRY(cr_gpu_open_offline(gpu, &options, device));
    switch (c->train.precision) {
    case CR_PRECISION_AUTO:
    case CR_PRECISION_FP16: *real = CR_F16; break;
    case CR_PRECISION_BF16: *real = CR_BF16; break;
    case CR_PRECISION_FP32:
    case CR_PRECISION_TF32: *real = CR_F32; break;
    }
    cr_log(CR_LOG_INFO, "target  %s", (*device)->caps.text);
    cr_log(CR_LOG_INFO, "kernels and workspaces are computed offline, those of cuDNN from a description of the GPU");
    cr_log(CR_LOG_INFO, "times   %s",
           cr_args_has(args, CR_OPT_KERNEL_TIMES)
               ? "from the file; other times are roofline estimates"
               : "roofline estimates; a run on this GPU measures times and may select other kernels");
    return CR_OK;
}

/* What the ops of one kernel take together. */
struct usage {
    const char *kernel;
    int         ops;
    double      seconds;
};

static int by_time(const void *a, const void *b) {
    const struct usage *x = a, *y = b;
    return x->seconds != y->seconds ? (x->seconds < y->seconds ? 1 : -1) : strcmp(x->kernel, y->kernel);
}

static void add_op(struct usage *usage, int *kernels, const char *kernel, double seconds) {
    int k = 0;
    while (k < *kernels && strcmp(usage[k].kernel, kernel) != 0) k++;
    if (k == *kernels) usage[(*kernels)++] = (struct usage){.kernel = kernel};
    usage[k].ops++;
    usage[k].seconds += seconds;
}

/* Adds the kernels that the program uses, the longest first. */
static cr_status print_kernels(const struct cr_session *s, const struct cr_program *p,
                               const struct cr_cost_model *model, struct cr_text *out) {
    const struct cr_kernel *const *kernel  = s->device->kernels;
    cr_status                      status  = CR_OK;
    double                        *seconds = cr_alloc((size_t)CR_MAX(p->ops, 1) * 2, sizeof *seconds);
    struct usage                  *usage   = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *usage);
    int                            kernels = 0;
    if (!seconds || !usage) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the times of %d ops", p->ops);
    CR_TRY_OUT(cr_program_seconds(p, model, seconds, seconds + p->ops));
    for (int i = 0; i < p->ops; i++) add_op(usage, &kernels, kernel[p->op[i].kernel]->name, seconds[i]);
    qsort(usage, (size_t)kernels, sizeof *usage, by_time);
    cr_text_add(out, "\n%5s %10s  kernel (cuda.: of this project)\n", "ops", "ms");
    for (int k = 0; k < kernels; k++)
        cr_text_add(out, "%5d %10.3f  %s\n", usage[k].ops, usage[k].seconds * 1e3, usage[k].kernel);
out:
    cr_free(seconds);
    cr_free(usage);
    return status;
}

cr_status cr_plan_target_print(struct cr_session *s, const struct cr_program *p, struct cr_text *out) {
    const struct cr_cost_model model = cr_session_cost_model(s);
    const struct cr_program   *all[] = {p};
    const size_t               total = s->device->backend->memory_free(s->device);
    const size_t               need  = cr_memory_need(s->device, &s->model.store, all, 1),
                 store               = cr_param_store_bytes(&s->model.store);
    const size_t         pool        = p->region_bytes[CR_REGION_POOL];
    struct cr_simulation run;
    CR_TRY(cr_program_predict(p, &model, &run));
    cr_text_add(out,
                "\ntarget %s\ndevice memory %.0f MiB: parameters and optimizer state %.0f, pool %.0f, input images "
                "%.0f; %.1f %% of "
                "the GPU's %.0f MiB%s\n",
                s->device->caps.text, cr_mib(need), cr_mib(store), cr_mib(pool), cr_mib(need - store - pool),
                100 * (double)need / (double)total, cr_mib(total), need > total ? ": does not fit" : "");
    cr_text_add(out, "plus about %.0f MiB for kernels and libraries, and the CUDA context\n%s %.2f ms",
                cr_mib(s->device->caps.overhead_bytes), s->cost_table ? "predicted time" : "roofline time",
                run.total * 1e3);
    if (run.stalled > 0) cr_text_add(out, ", including %.2f ms of waiting for copies", run.stalled * 1e3);
    cr_text_add(out, "\n");
    return print_kernels(s, p, &model, out);
}

/* cli/commands/plan_device.c: cresnet plan --target: planning for a GPU that is not there. */
#include "cli/command.h"
#include "session/session.h"

cr_status cr_plan_target_open(const struct cr_args *args, const struct cr_config *c, struct cr_device **device,
                              enum cr_dtype *real) {
    const struct cr_device_options options = {.deterministic = c->train.deterministic,
                                              .tf32          = c->train.precision == CR_PRECISION_TF32};
    const struct cr_gpu           *gpu     = cr_gpu_find(args->value[CR_OPT_TARGET]);
    bool                           asked;
    if (!gpu) {
        struct cr_text names = {0};
        cr_gpu_names(&names);
        const cr_status status = cr_args_fail(args, "--target %s is not known; known are %s",
                                              args->value[CR_OPT_TARGET], names.data ? names.data : "");
        cr_text_free(&names);
        return status;
    }
    CR_TRY(cr_gpu_open_offline(gpu, &options, device, &asked));
    switch (c->train.precision) {
    case CR_PRECISION_AUTO:
    case CR_PRECISION_FP16: *real = CR_F16; break;
    case CR_PRECISION_BF16: *real = CR_BF16; break;
    case CR_PRECISION_FP32:
    case CR_PRECISION_TF32: *real = CR_F32; break;
    }
    cr_log(
        CR_LOG_INFO, "target  %s: %s; costs are those of the %s", (*device)->caps.text,
        asked ? "its kernels were asked what they take and how much workspace they want, cuDNN by the GPU's description"
              : "what kernels take is known by a list, their workspace is not counted",
        cr_args_has(args, CR_OPT_COSTS) ? "file where it knows them"
                                        : "roofline, a run there measures and may choose others");
    return CR_OK;
}

/* The context takes memory too: how much is only known where it is. */
cr_status cr_plan_target_print(struct cr_session *s, const struct cr_program *p, struct cr_text *out) {
    const struct cr_cost_model target = cr_session_cost_model(s);
    const struct cr_program   *all[]  = {p};
    const size_t               there  = s->device->backend->memory_free(s->device);
    const size_t               need   = cr_memory_need(s->device, &s->model.store, all, 1),
                 store                = cr_param_store_bytes(&s->model.store);
    const size_t         pool         = p->region_bytes[CR_REGION_POOL];
    struct cr_simulation run;
    CR_TRY(cr_program_predict(p, &target, &run));
    cr_text_add(out,
                "\ntarget %s\ndevice memory %.0f MiB: parameters and state %.0f, pool %.0f, pictures %.0f; %.1f %% of "
                "the GPU's %.0f MiB%s\n",
                s->device->caps.text, cr_mib(need), cr_mib(store), cr_mib(pool), cr_mib(need - store - pool),
                100 * (double)need / (double)there, cr_mib(there), need > there ? ": too much" : "");
    cr_text_add(out, "besides about %.0f MiB of loaded kernels and libraries, and CUDA's context\n%s %.2f ms",
                cr_mib(s->device->caps.overhead_bytes), s->cost_table ? "predicted" : "at the roofline",
                run.total * 1e3);
    if (run.stalled > 0) cr_text_add(out, ", %.2f of it waiting for copies", run.stalled * 1e3);
    cr_text_add(out, "\n");
    return CR_OK;
}

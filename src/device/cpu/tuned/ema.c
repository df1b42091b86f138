/* device/cpu/tuned/ema.c: tuned kernel for moving averages: one pass over whole buffers of the parameter store. */
#include "device/cpu/tuned/buffers.h"

#include <math.h>

/* mean = d * mean + (1 - d) * now. The two forms make d = 0 and d = 1 exact. */
CR_CLONES static void average_run(float *restrict mean, const float *restrict now, int64_t count, float d) {
    const float weight = 1 - d;
    if (d < 0.5f)
        for (int64_t i = 0; i < count; i++) mean[i] = now[i] + d * (mean[i] - now[i]);
    else
        for (int64_t i = 0; i < count; i++) mean[i] += weight * (now[i] - mean[i]);
}

static void average(int threads, float *mean, const float *now, const uint8_t *mask, int64_t elems,
                    double decay) {
    const int64_t strips = (elems + CR_STRIP - 1) / CR_STRIP;
    CR_PARALLEL_FOR(threads)
    for (int k = 0; k < threads; k++) {
        int64_t begin, end;
        cr_run_of(strips, k, threads, &begin, &end);
        begin *= CR_STRIP;
        end = CR_MIN(end * CR_STRIP, elems);
        average_run(mean + begin, now + begin, end - begin, (float)decay);
        if (mask) cr_mask_run(mean + begin, mask + begin / 8, end - begin);
    }
}

static cr_status ema_launch(struct cr_device *device, const struct cr_call *call) {
    const int                 threads = cr_cpu_threads(device);
    const struct cr_program  *p      = call->program;
    const struct cr_ema_attr *attr   = &call->op->attr.ema;
    const int64_t             values = cr_tensor_elems(&p->tensor[call->op->in[CR_IN_ema_value]]),
                  running            = cr_tensor_elems(&p->tensor[call->op->in[CR_IN_ema_running]]);
    const double t                   = ((const double *)call->in[CR_IN_ema_state])[CR_STATE_UPDATES];
    cr_copy_old(call->out[CR_OUT_ema_averages], call->in[CR_IN_ema_averages], (size_t)values * sizeof(float));
    cr_copy_old(call->out[CR_OUT_ema_running_averages], call->in[CR_IN_ema_running_averages],
                      (size_t)running * sizeof(float));
    if (((const float *)call->in[CR_IN_ema_norm])[1] != 0) return CR_OK;
    const double d = t <= 1 ? 0 : attr->warmup ? fmin(attr->decay, 1 - pow(t, -2.0 / 3)) : attr->decay;
    average(threads, call->out[CR_OUT_ema_averages], call->in[CR_IN_ema_value], call->in[CR_IN_ema_mask], values,
            d);
    average(threads, call->out[CR_OUT_ema_running_averages], call->in[CR_IN_ema_running], NULL, running, d);
    return CR_OK;
}

const struct cr_kernel cr_cpu_ema = {CR_KERNEL("cpu.ema", ema, CR_MATH_F32), .accepts = cr_accepts_buffers,
                                     .launch = ema_launch};

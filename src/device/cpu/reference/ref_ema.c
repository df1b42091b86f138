/* device/cpu/reference/ref_ema.c: moving averages (EMA) of the parameters and of the running statistics. */
#include "device/cpu/reference/ref.h"

/* mean = d * mean + (1 - d) * now. The two forms make d = 0 and d = 1 exact. */
static void average(struct cr_device *device, const struct ref *now, const struct ref *mean, const uint8_t *mask,
                    double d) {
    CR_PARALLEL(i, mean->elems) {
        const double e = ref_get(mean, i), w = ref_get(now, i);
        const bool   trained = !mask || (mask[i / 8] >> (i % 8) & 1);
        ref_put(mean, i, trained ? (d < 0.5 ? w + d * (e - w) : e + (1 - d) * (w - e)) : 0);
    }
}

static double decay_of(const struct cr_ema_attr *attr, double updates) {
    if (updates <= 1) return 0;
    return attr->warmup ? fmin(attr->decay, 1 - pow(updates, -2.0 / 3)) : attr->decay;
}

REF_KERNEL(ema) {
    struct ref value = REF_IN(ema, value), running = REF_IN(ema, running), norm = REF_IN(ema, norm),
               state  = REF_IN(ema, state);
    struct ref before = REF_IN(ema, averages), running_before = REF_IN(ema, running_averages), mask = REF_IN(ema, mask);
    struct ref averages = REF_OUT(ema, averages), running_averages = REF_OUT(ema, running_averages);
    ref_copy_old(&before, &averages);
    ref_copy_old(&running_before, &running_averages);
    if (ref_get(&norm, 1) != 0) return;
    const double d = decay_of(&call->op->attr.ema, ref_get(&state, CR_STATE_UPDATES));
    average(device, &value, &averages, mask.data, d);
    average(device, &running, &running_averages, NULL, d);
}

/* device/cpu/tuned/int8/fake_quant.c: tuned kernel for quantised values in floating point. It follows the rounding rule
 * of graph/ops.def, so its results equal those of the ref kernel. */
#include "device/cpu/simd.h"

/* Rounds to the nearest integer, ties to even: exact for |v| below 2^22. Larger values saturate in any case. */
static inline __attribute__((always_inline)) float nearest(float v) {
    const float magic = 0x1.8p23f;
    return (v + magic) - magic;
}

CR_BY_LEVEL(void, fake_quant_run, (const float *x, float *y, float scale, float low, float high, int64_t count),
            (x, y, scale, low, high, count)) {
    for (int64_t i = 0; i < count; i++) {
        float v = x[i] / scale;
        v       = v == v ? v : 0;
        v       = v > low ? v : low;
        v       = v < high ? v : high;
        y[i]    = nearest(v) * scale;
    }
}

static cr_status fake_quant_launch(struct cr_device *device, const struct cr_call *call) {
    const float  *x = call->in[CR_IN_fake_quant_x], scale = *(const float *)call->in[CR_IN_fake_quant_scale];
    float        *y         = call->out[CR_OUT_fake_quant_y];
    const bool    is_signed = call->op->attr.quant.is_signed;
    const float   low = is_signed ? -127.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    const int64_t elems = cr_tensor_elems(&call->program->tensor[call->op->out[CR_OUT_fake_quant_y]]);
    const int     parts = cr_cpu_threads(device);
    CR_PARALLEL_FOR(parts)
    for (int part = 0; part < parts; part++) {
        int64_t begin, end;
        cr_run_of(elems, part, parts, &begin, &end);
        fake_quant_run(x + begin, y + begin, scale, low, high, end - begin);
    }
    return CR_OK;
}

/* Programs in f64 (tests) have f64 scales and are left to the ref kernel. */
const struct cr_kernel cr_cpu_fake_quant_kernels[] = {CR_CPU_KERNEL(fake_quant, CR_MATH_EXACT), {0}};

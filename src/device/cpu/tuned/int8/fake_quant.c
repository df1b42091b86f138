/* device/cpu/tuned/int8/fake_quant.c: tuned kernels for the training of quantised networks. They follow the
 * rounding rule of graph/ops.def, so their results equal those of the ref kernels. */
#include "device/cpu/simd.h"

#include <math.h>

enum { PARTS_MAX = 1024 };

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

/* The limits of x / scale between which it rounds to an integer in range: ties go to even numbers, so 127.5 and 255.5
 * round away, and -0.5 rounds to 0. */
CR_BY_LEVEL(void, fake_quant_grad_run,
            (const float *dy, const float *x, float *dx, float scale, bool is_signed, int64_t count),
            (dy, x, dx, scale, is_signed, count)) {
    for (int64_t i = 0; i < count; i++) {
        const float v      = x[i] / scale;
        const bool  inside = is_signed ? v > -127.5f && v < 127.5f : v >= -0.5f && v < 255.5f;
        dx[i]              = inside ? dy[i] : 0.0f;
    }
}

CR_BY_LEVEL(float, largest_run, (const float *x, int64_t count), (x, count)) {
    float lane[CR_STRIP] = {0}, largest = 0;
    for (int64_t i = 0; i + CR_STRIP <= count; i += CR_STRIP)
        for (int k = 0; k < CR_STRIP; k++) {
            const float m = fabsf(x[i + k]);
            lane[k]       = m > lane[k] && m < INFINITY ? m : lane[k];
        }
    for (int64_t i = count / CR_STRIP * CR_STRIP; i < count; i++) {
        const float m = fabsf(x[i]);
        lane[0]       = m > lane[0] && m < INFINITY ? m : lane[0];
    }
    for (int k = 0; k < CR_STRIP; k++) largest = lane[k] > largest ? lane[k] : largest;
    return largest;
}

#define FOR_PARTS(elems, body)                                                                                         \
    do {                                                                                                               \
        const int parts_ = cr_cpu_threads(device);                                                                     \
        CR_PARALLEL_FOR(parts_)                                                                                        \
        for (int part = 0; part < parts_; part++) {                                                                    \
            int64_t begin, end;                                                                                        \
            cr_run_of((elems), part, parts_, &begin, &end);                                                            \
            body;                                                                                                      \
        }                                                                                                              \
    } while (0)

static cr_status fake_quant_launch(struct cr_device *device, const struct cr_call *call) {
    const float *x = call->in[CR_IN_fake_quant_x], scale = *(const float *)call->in[CR_IN_fake_quant_scale];
    float       *y         = call->out[CR_OUT_fake_quant_y];
    const bool   is_signed = call->op->attr.quant.is_signed;
    const float  low = is_signed ? -127.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    FOR_PARTS(cr_tensor_elems(&call->program->tensor[call->op->out[CR_OUT_fake_quant_y]]),
              fake_quant_run(x + begin, y + begin, scale, low, high, end - begin));
    return CR_OK;
}

static cr_status fake_quant_grad_launch(struct cr_device *device, const struct cr_call *call) {
    const float *dy = call->in[CR_IN_fake_quant_grad_dy], *x = call->in[CR_IN_fake_quant_grad_x];
    const float  scale     = *(const float *)call->in[CR_IN_fake_quant_grad_scale];
    float       *dx        = call->out[CR_OUT_fake_quant_grad_dx];
    const bool   is_signed = call->op->attr.quant.is_signed;
    FOR_PARTS(cr_tensor_elems(&call->program->tensor[call->op->out[CR_OUT_fake_quant_grad_dx]]),
              fake_quant_grad_run(dy + begin, x + begin, dx + begin, scale, is_signed, end - begin));
    return CR_OK;
}

static cr_status observe_range_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_quant_attr *a     = &call->op->attr.quant;
    const float                *x     = call->in[CR_IN_observe_range_x];
    const double               *state = call->in[CR_IN_observe_range_state];
    const float                 old   = *(const float *)call->in[CR_IN_observe_range_scale];
    float                       part_largest[PARTS_MAX], largest = 0;
    const int                   parts = CR_MIN(cr_cpu_threads(device), PARTS_MAX);
    const int64_t               elems = cr_tensor_elems(&call->program->tensor[call->op->in[CR_IN_observe_range_x]]);
    CR_PARALLEL_FOR(parts)
    for (int part = 0; part < parts; part++) {
        int64_t begin, end;
        cr_run_of(elems, part, parts, &begin, &end);
        part_largest[part] = largest_run(x + begin, end - begin);
    }
    for (int part = 0; part < parts; part++) largest = fmaxf(largest, part_largest[part]);
    const float d = fmaxf(a->momentum, 1.0f / (1.0f + (float)state[CR_STATE_BATCHES]));
    const float m = largest / (a->is_signed ? 127.0f : 255.0f);
    *(float *)call->out[CR_OUT_observe_range_scale] = m > 0 ? fmaf(d, m - old, old) : old;
    return CR_OK;
}

/* Programs in f64 (tests) have f64 scales and are left to the ref kernels. */
const struct cr_kernel cr_cpu_fake_quant_kernels[] = {CR_CPU_KERNEL(fake_quant, CR_MATH_EXACT),
                                                      CR_CPU_KERNEL(fake_quant_grad, CR_MATH_EXACT),
                                                      CR_CPU_KERNEL(observe_range, CR_MATH_EXACT),
                                                      {0}};

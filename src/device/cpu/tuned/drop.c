/* device/cpu/tuned/drop.c: tuned kernel for dropout and stochastic depth. A thread processes whole images; an image
 * that is dropped is not read. */
#include "core/rng.h"
#include "device/cpu/simd.h"

#include <string.h>

CR_BY_LEVEL(void, scale_run, (const float *x, float *y, int64_t count, float scale), (x, y, count, scale)) {
    for (int64_t i = 0; i < count; i++) y[i] = x[i] * scale;
}

static bool keeps(const struct cr_call *call, uint32_t threshold, int64_t at) {
    const struct cr_step_block *step = call->step;
    return cr_rng_word(step->seed, CR_RNG_DROP, (uint64_t)step->step, call->op->attr.drop.index, (uint64_t)at) >=
           threshold;
}

CR_CPU_LAUNCH(drop_launch) {
    const struct cr_drop_attr *a      = &call->op->attr.drop;
    const struct cr_tensor    *t      = &call->program->tensor[call->op->in[CR_IN_drop_x]];
    const float               *x      = call->in[CR_IN_drop_x];
    float                     *y      = call->out[CR_OUT_drop_y];
    const int64_t              images = t->dim[0], elems = cr_tensor_elems(t) / images, first = call->step->first_image;
    const uint32_t             threshold = cr_drop_threshold(a);
    const float                scale     = cr_drop_scale(a);
    CR_PARALLEL(n, images) {
        const float *from = x + n * elems;
        float       *to   = y + n * elems;
        if (!a->images)
            for (int64_t i = 0; i < elems; i++)
                to[i] = keeps(call, threshold, (first + n) * elems + i) ? from[i] * scale : 0.0f;
        else if (keeps(call, threshold, first + n))
            scale_run(from, to, elems, scale);
        else
            memset(to, 0, (size_t)elems * sizeof *to);
    }
}

const struct cr_kernel cr_cpu_drop_kernels[] = {CR_CPU_KERNEL(drop, CR_MATH_F32), {0}};

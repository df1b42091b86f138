/* device/cpu/reference/ref_drop.c: dropout and stochastic depth. */
#include "core/rng.h"
#include "device/cpu/reference/ref.h"

cr_status cr_ref_drop(struct cr_device *device, const struct cr_call *call) {
    struct ref                  x = REF_IN(drop, x), y = REF_OUT(drop, y);
    const struct cr_drop_attr  *a     = &call->op->attr.drop;
    const struct cr_step_block *step  = call->step;
    const int64_t               image = x.H * x.W * x.C, first = step->first_image * (a->images ? 1 : image);
    const uint32_t              threshold = cr_drop_threshold(a);
    const double                scale     = (double)cr_drop_scale(a);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < y.elems; i++) {
        const uint64_t at   = (uint64_t)(first + (a->images ? i / image : i));
        const uint32_t word = cr_rng_word(step->seed, CR_RNG_DROP, (uint64_t)step->step, a->index, at);
        ref_put(&y, i, word >= threshold ? ref_get(&x, i) * scale : 0);
    }
    return CR_OK;
}

/* ref_optim.c: the check of the gradients and the SGD update, over whole planes of the store. */
#include "ref.h"

/* Loss-scale rule of mixed-precision training (Micikevicius et al. 2018): halve on overflow, double after a run of good
 * updates. */
enum { SCALE_GROWTH_UPDATES = 2000, SCALE_MIN = 2 };

/* The plane is cut into a fixed number of parts whatever the number of threads, and their sums are added in order. */
enum { PARTS = 64 };

cr_status cr_ref_grad_check(struct cr_device *device, const struct cr_call *call) {
    struct ref   grad = REF_IN(grad_check, grad), metrics = REF_IN(grad_check, metrics);
    struct ref   state = REF_IN(grad_check, state), norm = REF_OUT(grad_check, norm);
    const double scale = ref_get(&state, CR_STATE_LOSS_SCALE);
    double       squares[PARTS], bad[PARTS], sum = 0, any = isfinite(ref_get(&metrics, 0)) ? 0 : 1;
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int part = 0; part < PARTS; part++) {
        squares[part] = bad[part] = 0;
        for (int64_t i = grad.elems * part / PARTS; i < grad.elems * (part + 1) / PARTS; i++) {
            double g = ref_get(&grad, i) / scale;
            squares[part] += g * g;
            if (!isfinite(g)) bad[part] = 1;
        }
    }
    for (int part = 0; part < PARTS; part++) {
        sum += squares[part];
        any = fmax(any, bad[part]);
    }
    ref_put(&norm, 0, sum);
    ref_put(&norm, 1, any);
    return CR_OK;
}

struct update {
    struct ref value, grad, momentum, mask; /* mask.data NULL: none */
    double     lr, mu, clip, scale;
    bool       nesterov;
};

/* Elements [begin, end) of a parameter, counted from the start of the tensors. */
static void update_run(const struct update *u, int64_t begin, int64_t end, double decay) {
    const uint8_t *mask = u->mask.data;
    for (int64_t i = begin; i < end; i++) {
        if (mask && !(mask[i / 8] >> (i % 8) & 1)) {
            ref_put(&u->momentum, i, 0);
            ref_put(&u->value, i, 0);
            continue;
        }
        double w = ref_get(&u->value, i);
        double g = u->clip * (ref_get(&u->grad, i) / u->scale) + decay * w;
        double m = u->mu * ref_get(&u->momentum, i) + g;
        ref_put(&u->momentum, i, m);
        ref_put(&u->value, i, w - u->lr * (u->nesterov ? g + u->mu * m : m));
    }
}

/* Updates what of each parameter lies in the tensors, which are whole planes or slices of them. */
static void update_params(struct cr_device *device, const struct cr_call *call, const struct update *u) {
    const struct cr_store  *store = call->program->store;
    const struct cr_tensor *t     = &call->program->tensor[call->op->in[CR_IN_sgd_value]];
    const int64_t           first =
        (int64_t)((t->offset - cr_store_plane_offset(store, CR_PLANE_VALUE)) / cr_dtype_bytes(t->dtype));
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (q->frozen || cr_store_is_running(q->role)) continue;
        int64_t begin = CR_MAX(q->offset - first, 0), end = CR_MIN(q->offset + q->elems - first, u->value.elems);
        double  decay = q->decay ? (double)call->step->weight_decay : 0;
        CR_PARALLEL_FOR(cr_cpu_threads(device))
        for (int64_t run = 0; run < ref_runs(end - begin); run++)
            update_run(u, begin + run * REF_RUN, begin + ref_run_end(run, end - begin), decay);
    }
}

static void move_loss_scale(double *state, bool good) {
    if (!good) {
        state[CR_STATE_LOSS_SCALE] = fmax(state[CR_STATE_LOSS_SCALE] / 2, SCALE_MIN);
        state[CR_STATE_GROWTH]     = 0;
    } else if (++state[CR_STATE_GROWTH] >= SCALE_GROWTH_UPDATES) {
        state[CR_STATE_LOSS_SCALE] *= 2;
        state[CR_STATE_GROWTH] = 0;
    }
}

void cr_cpu_count_update(double *state, bool good, const struct cr_sgd_attr *attr) {
    state[CR_STATE_BATCHES] += attr->micro_batches;
    state[CR_STATE_NONFINITE] = good ? 0 : 1;
    state[good ? CR_STATE_UPDATES : CR_STATE_SKIPPED] += 1;
    if (attr->moving_scale) move_loss_scale(state, good);
}

cr_status cr_ref_sgd(struct cr_device *device, const struct cr_call *call) {
    struct ref                  norm = REF_IN(sgd, norm), state_in = REF_IN(sgd, state), state = REF_OUT(sgd, state);
    struct ref                  value_in = REF_IN(sgd, value), momentum_in = REF_IN(sgd, momentum);
    const struct cr_step_block *step = call->step;
    const bool                  good = ref_get(&norm, 1) == 0;
    struct update               u    = {.value    = REF_OUT(sgd, value),
                                        .grad     = REF_IN(sgd, grad),
                                        .momentum = REF_OUT(sgd, momentum),
                                        .mask     = REF_IN(sgd, mask),
                                        .lr       = (double)step->lr,
                                        .mu       = (double)step->momentum,
                                        .clip     = 1,
                                        .scale    = ref_get(&state_in, CR_STATE_LOSS_SCALE),
                                        .nesterov = call->op->attr.sgd.nesterov};
    ref_carry_over(&value_in, &u.value);
    ref_carry_over(&momentum_in, &u.momentum);
    ref_carry_over(&state_in, &state);
    /* As torch's clip_grad_norm_, which adds 1e-6 to the norm. */
    if (step->clip_norm > 0) u.clip = fmin(1, (double)step->clip_norm / (sqrt(ref_get(&norm, 0)) + 1e-6));
    if (good) update_params(device, call, &u);
    cr_cpu_count_update(state.data, good, &call->op->attr.sgd);
    return CR_OK;
}

cr_status cr_ref_cast(struct cr_device *device, const struct cr_call *call) {
    struct ref x = REF_IN(cast, x), y = REF_OUT(cast, y);
    CR_PARALLEL_FOR(cr_cpu_threads(device))
    for (int64_t i = 0; i < x.elems; i++) ref_put(&y, i, ref_get(&x, i));
    return CR_OK;
}

cr_status cr_ref_zero(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    struct ref y = REF_OUT(zero, y);
    memset(y.data, 0, (size_t)y.elems * cr_dtype_bytes(y.dtype));
    return CR_OK;
}

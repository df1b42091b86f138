/* cpu_optim.c: gradient check and SGD over whole planes in one pass each, tuned. */
#include "cpu_lanes.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1024 }; /* floats summed in float before they go into a double; floats updated before they are masked */
_Static_assert(CR_STRIP % 8 == 0, "a strip begins with a byte of the mask");

struct plane_plan {
    int threads;
};

static cr_status plane_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                               size_t *workspace_bytes) {
    struct plane_plan *plan;
    (void)p;
    CR_ALLOC(plan, 1);
    plan->threads    = cr_cpu_threads(device);
    *workspace_bytes = op->kind == CR_OP_grad_check ? (size_t)plan->threads * CR_STRIP * sizeof(double) : 0;
    *prepared        = plan;
    return CR_OK;
}

static void plane_release(void *prepared) { cr_free(prepared); }

/* ---- grad_check ---- */

/* A sum of squares is finite unless an element is not, or unless they are beyond 1e19: then the double decides. */
CR_CLONES static double squares(const float *g, int64_t count) {
    double  sum = 0;
    int64_t i   = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        float s[CR_STRIP] = {0};
        for (int k = 0; k < BLOCK; k += CR_STRIP)
            for (int j = 0; j < CR_STRIP; j++) s[j] += g[i + k + j] * g[i + k + j];
        double block = 0;
        for (int j = 0; j < CR_STRIP; j++) block += (double)s[j];
        if (!isfinite(block) || block < 1e-30) { /* over- or underflow of a float square is not the gradient's fault */
            block = 0;
            for (int k = 0; k < BLOCK; k++) block += (double)g[i + k] * (double)g[i + k];
        }
        sum += block;
    }
    for (; i < count; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}

static cr_status grad_check_launch(struct cr_device *device, const struct cr_call *call) {
    const struct plane_plan *plan    = call->prepared;
    const struct cr_tensor  *t       = &call->program->tensor[call->op->in[CR_IN_grad_check_grad]];
    const float             *grad    = call->in[CR_IN_grad_check_grad], *metrics = call->in[CR_IN_grad_check_metrics];
    const double            *state   = call->in[CR_IN_grad_check_state];
    float                   *norm    = call->out[CR_OUT_grad_check_norm];
    double                  *partial = call->workspace, sum = 0, scale = state[CR_STATE_LOSS_SCALE];
    int64_t                  strips  = cr_tensor_elems(t) / CR_STRIP;
    (void)device;
    CR_PARALLEL_FOR(plan->threads)
    for (int k = 0; k < plan->threads; k++) {
        int64_t begin, end;
        cr_run_of(strips, k, plan->threads, &begin, &end);
        int64_t last = k == plan->threads - 1 ? cr_tensor_elems(t) : end * CR_STRIP;
        partial[(size_t)k * CR_STRIP] = squares(grad + begin * CR_STRIP, last - begin * CR_STRIP);
    }
    for (int k = 0; k < plan->threads; k++) sum += partial[(size_t)k * CR_STRIP];
    sum /= scale * scale;
    norm[0] = (float)sum;
    norm[1] = isfinite(sum) && isfinite(metrics[0]) ? 0.0f : 1.0f;
    return CR_OK;
}

/* ---- sgd ---- */

struct sgd_numbers {
    float lr, mu, factor; /* factor: clip / loss scale */
    bool  nesterov;
};

static inline __attribute__((always_inline)) void sgd_loop(float *w, const float *g, float *m, int64_t count, float decay,
                                                           struct sgd_numbers n, bool nesterov) {
    for (int64_t i = 0; i < count; i++) {
        float grad = n.factor * g[i] + decay * w[i];
        float next = n.mu * m[i] + grad;
        m[i]       = next;
        w[i] -= n.lr * (nesterov ? grad + n.mu * next : next);
    }
}

CR_CLONES static void sgd_run(float *restrict w, const float *restrict g, float *restrict m, int64_t count, float decay,
                              struct sgd_numbers n) {
    if (n.nesterov) sgd_loop(w, g, m, count, decay, n, true);
    else sgd_loop(w, g, m, count, decay, n, false);
}

/* Zeroes what the bits say is pruned; w, m and bits begin at the same element. */
static void sgd_mask(float *restrict w, float *restrict m, const uint8_t *bits, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        const unsigned kept = bits[i / 8];
        if (kept == 0xff) continue;
        for (int64_t j = i; j < CR_MIN(i + 8, count); j++)
            if (!(kept >> (j - i) & 1)) w[j] = m[j] = 0;
    }
}

/* In pieces that the first cache still has when they are masked. */
static void sgd_masked(float *w, const float *g, float *m, const uint8_t *bits, int64_t count, float decay, struct sgd_numbers n) {
    for (int64_t i = 0; i < count; i += BLOCK) {
        const int64_t part = CR_MIN(count - i, (int64_t)BLOCK);
        sgd_run(w + i, g + i, m + i, part, decay, n);
        sgd_mask(w + i, m + i, bits + i / 8, part);
    }
}

/* Elements [begin, end) of the plane; parameters differ in decay, and frozen ones stay. mask: NULL, or the plane's. */
static void sgd_part(const struct cr_store *store, float *w, const float *g, float *m, const uint8_t *mask, int64_t begin,
                     int64_t end, float decay, struct sgd_numbers n) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->frozen || cr_store_is_running(q->role)) continue;
        int64_t from = CR_MAX(q->offset, begin), to = CR_MIN(q->offset + q->elems, end);
        const float own = q->decay ? decay : 0.0f;
        if (from >= to) continue;
        if (mask) sgd_masked(w + from, g + from, m + from, mask + from / 8, to - from, own, n);
        else sgd_run(w + from, g + from, m + from, to - from, own, n);
    }
}

/* Out slots may be other memory than in slots (tests): then values move first. */
static void carry(void *out, const void *in, size_t bytes) {
    if (out != in) memcpy(out, in, bytes);
}

static bool sgd_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    const struct cr_tensor *value = &p->tensor[op->in[CR_IN_sgd_value]];
    return value->dtype == CR_F32 && p->store && p->store->real == CR_F32 &&
           value->offset == cr_store_plane_offset(p->store, CR_PLANE_VALUE) &&
           cr_tensor_elems(value) == p->store->value_elems;
}

static bool check_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return p->tensor[op->in[CR_IN_grad_check_grad]].dtype == CR_F32 && p->tensor[op->out[CR_OUT_grad_check_norm]].dtype == CR_F32;
}

static cr_status sgd_launch(struct cr_device *device, const struct cr_call *call) {
    const struct plane_plan    *plan  = call->prepared;
    const struct cr_store      *store = call->program->store;
    const struct cr_step_block *step  = call->step;
    const uint8_t              *mask  = call->in[CR_IN_sgd_mask];
    const float                *norm  = call->in[CR_IN_sgd_norm], *grad = call->in[CR_IN_sgd_grad];
    float                      *value = call->out[CR_OUT_sgd_value], *momentum = call->out[CR_OUT_sgd_momentum];
    double                     *state = call->out[CR_OUT_sgd_state], clip = 1;
    size_t                      bytes = (size_t)store->value_elems * sizeof(float);
    (void)device;
    carry(value, call->in[CR_IN_sgd_value], bytes);
    carry(momentum, call->in[CR_IN_sgd_momentum], bytes);
    carry(state, call->in[CR_IN_sgd_state], CR_STATE_COUNT * sizeof(double));
    bool good = norm[1] == 0;
    if (step->clip_norm > 0) clip = fmin(1, (double)step->clip_norm / (sqrt((double)norm[0]) + 1e-6));
    struct sgd_numbers n = {step->lr, step->momentum, (float)(clip / state[CR_STATE_LOSS_SCALE]), call->op->attr.sgd.nesterov};
    CR_PARALLEL_FOR(plan->threads)
    for (int k = 0; k < plan->threads; k++) {
        int64_t begin, end;
        cr_run_of(store->value_elems / CR_STRIP, k, plan->threads, &begin, &end);
        if (good) sgd_part(store, value, grad, momentum, mask, begin * CR_STRIP, end * CR_STRIP, step->weight_decay, n);
    }
    cr_cpu_count_update(state, good, &call->op->attr.sgd);
    return CR_OK;
}

const struct cr_kernel cr_cpu_grad_check = {.name = "cpu.grad_check", .op = CR_OP_grad_check, .math = CR_MATH_F32,
                                            .deterministic = true, .accepts = check_accepts, .prepare = plane_prepare,
                                            .launch = grad_check_launch, .release = plane_release};
const struct cr_kernel cr_cpu_sgd = {.name = "cpu.sgd", .op = CR_OP_sgd, .math = CR_MATH_F32, .deterministic = true,
                                     .accepts = sgd_accepts, .prepare = plane_prepare, .launch = sgd_launch, .release = plane_release};

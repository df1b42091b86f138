/* device/cpu/reference/ref_optim.c: norms, loss scale and optimizers (SGD, AdamW, LARS, LAMB, Muon). */
#include "device/cpu/reference/ref.h"
#include "graph/muon.h"

/* Loss-scale rule of mixed-precision training (Micikevicius et al. 2018): halve on overflow, double after
 * SCALE_GROWTH_UPDATES updates without overflow. */
enum { SCALE_GROWTH_UPDATES = 2000, SCALE_MIN = 2 };

/* The buffer is divided into a fixed number of parts, and their sums are added in order, so the result does not depend
 * on the number of threads. */
enum { PARTS = 64 };

REF_KERNEL(grad_norm) {
    struct ref   grad = REF_IN(grad_norm, grad), metrics = REF_IN(grad_norm, metrics);
    struct ref   state = REF_IN(grad_norm, state), norm = REF_OUT(grad_norm, norm);
    const double scale = ref_get(&state, CR_STATE_LOSS_SCALE);
    double       squares[PARTS], bad[PARTS], sum = 0, any = isfinite(ref_get(&metrics, 0)) ? 0 : 1;
    CR_PARALLEL_BY(cr_cpu_threads(device), int, part, PARTS) {
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
}

struct update {
    enum cr_op_kind    rule;
    struct ref         value, grad, momentum, second, norms, mask, direction; /* mask.data NULL: none */
    double             lr, mu, clip, scale, decay;
    double             correct1, correct2; /* adamw, lamb, muon: 1 - beta^t */
    struct cr_sgd_attr attr;
};

/* Factors for one parameter; lr: its learning rate; ratio: the trust ratio of LARS or LAMB; direction: factor of Muon's
 * direction, 0 for parameters without one. */
struct param_factors {
    double decay, ratio, lr, direction;
};

static double gradient(const struct update *u, int64_t i) {
    return u->clip * (ref_get(&u->grad, i) / u->scale);
}

static bool is_pruned(const struct update *u, int64_t i) {
    const uint8_t *mask = u->mask.data;
    return mask && !(mask[i / 8] >> (i % 8) & 1);
}

/* Adam's moments of element i after this update. */
static void adam_moments(const struct update *u, int64_t i, double g, double *m, double *v) {
    *m = u->mu * ref_get(&u->momentum, i) + (1 - u->mu) * g;
    *v = u->attr.beta2 * ref_get(&u->second, i) + (1 - u->attr.beta2) * g * g;
}

static void move_moments(const struct update *u, int64_t i, double g, double *m, double *v) {
    adam_moments(u, i, g, m, v);
    ref_put(&u->momentum, i, *m);
    ref_put(&u->second, i, *v);
}

/* Each rule returns the amount that is subtracted from w. */
static double step_adamw(const struct update *u, int64_t i, double w, double g, const struct param_factors *of) {
    double m, v;
    move_moments(u, i, g, &m, &v);
    return of->lr * of->decay * w + of->lr / u->correct1 * m / (sqrt(v) / sqrt(u->correct2) + u->attr.eps);
}

/* The direction of LAMB for given moments. */
static double lamb_direction(const struct update *u, double w, double m, double v, double decay) {
    return m / u->correct1 / (sqrt(v) / sqrt(u->correct2) + u->attr.eps) + decay * w;
}

static double step_lamb(const struct update *u, int64_t i, double w, double g, const struct param_factors *of) {
    double m, v;
    move_moments(u, i, g, &m, &v);
    return of->lr * of->ratio * lamb_direction(u, w, m, v, of->decay);
}

static double step_muon(const struct update *u, int64_t i, double w, double g, const struct param_factors *of) {
    if (of->direction == 0) return step_adamw(u, i, w, g, of);
    ref_put(&u->momentum, i, u->mu * ref_get(&u->momentum, i) + (1 - u->mu) * g);
    return of->lr * (of->decay * w + of->direction * ref_get(&u->direction, i));
}

static double step_sgd(const struct update *u, int64_t i, double w, double g, const struct param_factors *of) {
    g        = of->ratio * (g + of->decay * w);
    double m = u->mu * ref_get(&u->momentum, i) + g;
    ref_put(&u->momentum, i, m);
    return of->lr * (u->attr.nesterov ? g + u->mu * m : m);
}

static double step_of(const struct update *u, int64_t i, double w, double g, const struct param_factors *of) {
    switch (u->rule) {
    case CR_OP_adamw: return step_adamw(u, i, w, g, of);
    case CR_OP_lamb: return step_lamb(u, i, w, g, of);
    case CR_OP_muon: return step_muon(u, i, w, g, of);
    default: return step_sgd(u, i, w, g, of);
    }
}

/* Updates element i, counted from the start of the tensors. */
static void update_element(const struct update *u, int64_t i, const struct param_factors *of) {
    if (is_pruned(u, i)) {
        ref_put(&u->momentum, i, 0);
        ref_put(&u->value, i, 0);
        if (u->second.data && of->direction == 0) ref_put(&u->second, i, 0);
        return;
    }
    const double w = ref_get(&u->value, i);
    ref_put(&u->value, i, w - step_of(u, i, w, gradient(u, i), of));
}

/* Trust ratio of parameter k. LARS: 1 for vectors (BN, biases); LAMB: 1 without weight decay. */
static double trust_ratio(const struct update *u, const struct cr_param *q, int k, double decay) {
    if (u->rule == CR_OP_lamb) {
        const double w = sqrt(ref_get(&u->norms, 2 * (int64_t)k)), d = sqrt(ref_get(&u->norms, 2 * (int64_t)k + 1));
        return decay > 0 && w > 0 && d > 0 ? w / d : 1;
    }
    if (u->rule != CR_OP_lars || (q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT)) return 1;
    const double w = sqrt(ref_get(&u->norms, 2 * (int64_t)k)),
                 g = u->clip * sqrt(ref_get(&u->norms, 2 * (int64_t)k + 1));
    return w > 0 && g > 0 ? u->attr.trust * w / (g + decay * w + u->attr.eps) : 1;
}

/* Updates all parameters within the tensors, which are whole buffers or slices of them. */
static void update_params(struct cr_device *device, const struct cr_call *call, const struct update *u) {
    const struct cr_param_store *store = call->program->store;
    const int                    param = call->program->tensor[call->op->in[CR_IN_sgd_value]].param;
    const int64_t                first = param < 0 ? 0 : store->param[param].offset;
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (q->frozen || cr_param_is_running(q->role)) continue;
        int64_t begin = CR_MAX(q->offset - first, 0), end = CR_MIN(q->offset + q->elems - first, u->value.elems);
        struct param_factors of = {.decay = q->decay ? u->decay : 0, .lr = u->lr * q->lr_scale};
        of.ratio                = trust_ratio(u, q, k, of.decay);
        of.direction            = u->rule == CR_OP_muon && cr_muon_has_direction(q) ? cr_muon_factor(q) : 0;
        CR_PARALLEL_FOR(cr_cpu_threads(device))
        for (int64_t i = begin; i < end; i++) update_element(u, i, &of);
    }
}

static void adapt_loss_scale(double *state, bool good) {
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
    if (attr->moving_scale) adapt_loss_scale(state, good);
}

/* Numbers of the step: learning rate, momentum, clipping, loss scale. */
static void set_factors(const struct cr_call *call, struct update *u, const struct ref *norm, const struct ref *state) {
    const struct cr_step_block *step = call->step;
    u->rule                          = call->op->kind;
    u->attr                          = call->op->attr.sgd;
    u->lr                            = (double)step->lr;
    u->mu                            = (double)step->momentum;
    u->decay                         = (double)step->weight_decay;
    u->clip                          = 1;
    u->scale                         = ref_get(state, CR_STATE_LOSS_SCALE);
    /* As PyTorch's clip_grad_norm_, which adds 1e-6 to the norm. */
    if (step->clip_norm > 0) u->clip = fmin(1, (double)step->clip_norm / (sqrt(ref_get(norm, 0)) + 1e-6));
}

/* The same, the common operands of the update rules, and Adam's corrections. */
static void set_numbers(const struct cr_call *call, struct update *u) {
    struct ref   norm = REF_IN(sgd, norm), state = REF_IN(sgd, state);
    const double t = ref_get(&state, CR_STATE_UPDATES) + 1;
    set_factors(call, u, &norm, &state);
    u->grad     = REF_IN(sgd, grad);
    u->mask     = REF_IN(sgd, mask);
    u->correct1 = 1 - pow(u->mu, t);
    u->correct2 = 1 - pow(u->attr.beta2, t);
}

/* The update rules have the common slots at the same indices; u has the additional slots of a rule. */
static void run_update(struct cr_device *device, const struct cr_call *call, struct update u) {
    struct ref norm = REF_IN(sgd, norm), state_in = REF_IN(sgd, state), state = REF_OUT(sgd, state);
    struct ref value_in = REF_IN(sgd, value), momentum_in = REF_IN(sgd, momentum);
    const bool good = ref_get(&norm, 1) == 0;
    set_numbers(call, &u);
    u.value    = REF_OUT(sgd, value);
    u.momentum = REF_OUT(sgd, momentum);
    ref_copy_old(&value_in, &u.value);
    ref_copy_old(&momentum_in, &u.momentum);
    ref_copy_old(&state_in, &state);
    if (u.second.data) {
        const struct ref second_in = REF_IN(adamw, second);
        ref_copy_old(&second_in, &u.second);
    }
    if (good) update_params(device, call, &u);
    cr_cpu_count_update(state.data, good, &call->op->attr.sgd);
}

REF_KERNEL(sgd) {
    run_update(device, call, (struct update){.second.data = NULL});
}

REF_KERNEL(adamw) {
    run_update(device, call, (struct update){.second = REF_OUT(adamw, second)});
}

REF_KERNEL(lars) {
    run_update(device, call, (struct update){.norms = REF_IN(lars, norms)});
}

REF_KERNEL(lamb) {
    run_update(device, call, (struct update){.second = REF_OUT(lamb, second), .norms = REF_IN(lamb, norms)});
}

REF_KERNEL(muon) {
    run_update(device, call, (struct update){.second = REF_OUT(muon, second), .direction = REF_IN(muon, direction)});
}

/* ---- the direction of Muon ---- */

/* A filter as `rows` x `columns`, at most as many rows as columns: X, the next X, and two rows x rows matrices. */
struct muon_matrix {
    int64_t rows, columns;
    double *x, *next, *a, *b;
};

static struct muon_matrix muon_matrix_of(const struct cr_param *q, double *scratch) {
    const int64_t      K = q->dim[0], N = cr_muon_columns(q);
    struct muon_matrix x     = {.rows = CR_MIN(K, N), .columns = CR_MAX(K, N)};
    const int64_t      elems = x.rows * x.columns, square = x.rows * x.rows;
    x.x = scratch, x.next = x.x ? x.x + elems : NULL, x.a = x.x ? x.next + elems : NULL,
    x.b = x.x ? x.a + square : NULL;
    return x;
}

size_t cr_ref_muon_workspace(const struct cr_program *p) {
    int64_t most = 0;
    for (int k = 0; k < p->store->params; k++) {
        const struct cr_param *q = &p->store->param[k];
        if (!cr_muon_has_direction(q)) continue;
        const struct muon_matrix x = muon_matrix_of(q, NULL);
        most                       = CR_MAX(most, 2 * x.rows * (x.rows + x.columns));
    }
    return (size_t)most * sizeof(double);
}

/* a = X X' */
static void muon_square(struct cr_device *device, const struct muon_matrix *x) {
    CR_PARALLEL(i, x->rows)
        for (int64_t j = 0; j < x->rows; j++) {
            double sum = 0;
            for (int64_t k = 0; k < x->columns; k++) sum += x->x[i * x->columns + k] * x->x[j * x->columns + k];
            x->a[i * x->rows + j] = sum;
        }
}

/* One step of the iteration: X = a X + (b A + c A A) X. */
static void muon_iterate(struct cr_device *device, struct muon_matrix *x) {
    muon_square(device, x);
    CR_PARALLEL(i, x->rows) {
        double *const row = x->b + i * x->rows, *const to = x->next + i * x->columns;
        for (int64_t j = 0; j < x->rows; j++) {
            double sum = 0;
            for (int64_t k = 0; k < x->rows; k++) sum += x->a[i * x->rows + k] * x->a[k * x->rows + j];
            row[j] = CR_MUON_B * x->a[i * x->rows + j] + CR_MUON_C * sum;
        }
        for (int64_t j = 0; j < x->columns; j++) to[j] = CR_MUON_A * x->x[i * x->columns + j];
        for (int64_t k = 0; k < x->rows; k++)
            for (int64_t j = 0; j < x->columns; j++) to[j] += row[k] * x->x[k * x->columns + j];
    }
    double *old = x->x;
    x->x = x->next, x->next = old;
}

/* Element i of the matrix that is made orthogonal: the momentum after this update, or Nesterov's. */
static double muon_input(const struct update *u, int64_t i) {
    const double g = gradient(u, i), m = u->mu * ref_get(&u->momentum, i) + (1 - u->mu) * g;
    if (is_pruned(u, i)) return 0;
    return u->attr.nesterov ? g + u->mu * (m - g) : m;
}

/* Moves a filter to X, or X to the direction y. */
static void muon_load(const struct update *u, const struct cr_param *q, const struct muon_matrix *x) {
    const int64_t N       = cr_muon_columns(q);
    double        squares = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        const double d                                      = muon_input(u, q->offset + i);
        x->x[N < q->dim[0] ? i % N * q->dim[0] + i / N : i] = d;
        squares += d * d;
    }
    const double norm = fmax(sqrt(squares), CR_MUON_EPS);
    for (int64_t i = 0; i < q->elems; i++) x->x[i] /= norm;
}
static void muon_store(const struct ref *y, const struct cr_param *q, const struct muon_matrix *x) {
    const int64_t N = cr_muon_columns(q);
    for (int64_t i = 0; i < q->elems; i++)
        ref_put(y, q->offset + i, x->x[N < q->dim[0] ? i % N * q->dim[0] + i / N : i]);
}

REF_KERNEL(muon_direction) {
    const struct cr_param_store *store = call->program->store;
    struct ref                   norm = REF_IN(muon_direction, norm), y = REF_OUT(muon_direction, y);
    struct update                u     = {.grad     = REF_IN(muon_direction, grad),
                                          .momentum = REF_IN(muon_direction, momentum),
                                          .mask     = REF_IN(muon_direction, mask)};
    const struct ref             state = REF_IN(muon_direction, state);
    memset(y.data, 0, (size_t)y.elems * cr_dtype_bytes(y.dtype));
    if (ref_get(&norm, 1) != 0) return;
    set_factors(call, &u, &norm, &state);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        if (!cr_muon_has_direction(q)) continue;
        struct muon_matrix x = muon_matrix_of(q, call->workspace);
        muon_load(&u, q, &x);
        for (int i = 0; i < CR_MUON_ITERATIONS; i++) muon_iterate(device, &x);
        muon_store(&y, q, &x);
    }
}

/* Sums of squares of parameter q: of the weights and of the direction. */
static void lamb_sums(const struct update *u, const struct cr_param *q, double *w_squares, double *u_squares) {
    const double decay = q->decay ? u->decay : 0;
    for (int64_t i = q->offset; i < q->offset + q->elems && !q->frozen && !cr_param_is_running(q->role); i++) {
        const double w = ref_get(&u->value, i);
        double       m, v;
        *w_squares += w * w;
        if (is_pruned(u, i)) continue;
        adam_moments(u, i, gradient(u, i), &m, &v);
        const double d = lamb_direction(u, w, m, v, decay);
        *u_squares += d * d;
    }
}

REF_KERNEL(lamb_norms) {
    const struct cr_param_store *store = call->program->store;
    struct ref                   norm = REF_IN(lamb_norms, norm), norms = REF_OUT(lamb_norms, norms);
    const bool                   good = ref_get(&norm, 1) == 0;
    struct update                u    = {.value    = REF_IN(lamb_norms, value),
                                         .momentum = REF_IN(lamb_norms, momentum),
                                         .second   = REF_IN(lamb_norms, second)};
    set_numbers(call, &u);
    CR_PARALLEL_BY(cr_cpu_threads(device), int, k, store->params) {
        double w = 0, d = 0;
        if (good) lamb_sums(&u, &store->param[k], &w, &d);
        ref_put(&norms, 2 * (int64_t)k, w);
        ref_put(&norms, 2 * (int64_t)k + 1, d);
    }
}

REF_KERNEL(param_norms) {
    const struct cr_param_store *store = call->program->store;
    struct ref                   value = REF_IN(param_norms, value), grad = REF_IN(param_norms, grad);
    struct ref                   state = REF_IN(param_norms, state), norms = REF_OUT(param_norms, norms);
    const double                 scale = ref_get(&state, CR_STATE_LOSS_SCALE);
    CR_PARALLEL_BY(cr_cpu_threads(device), int, k, store->params) {
        const struct cr_param *q = &store->param[k];
        double                 w = 0, g = 0;
        for (int64_t i = q->offset; i < q->offset + q->elems && !q->frozen && !cr_param_is_running(q->role); i++) {
            const double x = ref_get(&value, i), y = ref_get(&grad, i) / scale;
            w += x * x;
            g += y * y;
        }
        ref_put(&norms, 2 * (int64_t)k, w);
        ref_put(&norms, 2 * (int64_t)k + 1, g);
    }
}

/* tests/unit/optim/test_update.c: the properties that all update rules share, on single parameters: masks, frozen
 * parameters, suppressed updates, loss scales, norms of 0. Their values, and those of moving averages, are compared
 * with PyTorch and timm in tests/programs/test_golden_train.c. */
#include "tests/harness/reference_run.h"

struct unit {
    struct ref_run run;
    int            value[3], grad[3], metrics, norm, state, momentum, second, ema, mask;
};

enum { W, V, FROZEN, ELEMS = 4 };

/* Without its own direction the update could not run; the direction is that of the gradients and the momentum. */
static int muon_direction_of(struct ref_run *run, const struct cr_op *update) {
    struct cr_op op = op_on(CR_OP_muon_direction, update->in[CR_IN_muon_grad], update->in[CR_IN_muon_momentum],
                            update->in[CR_IN_muon_norm], update->in[CR_IN_muon_state], update->in[CR_IN_muon_mask]);
    op.attr.sgd     = update->attr.sgd;
    return ref_emit(run, &op, "direction");
}

/* w: four weights that decay; v: one gamma; and a frozen filter. Muon: w has two rows. */
static void unit_open(struct unit *u, enum cr_op_kind kind, enum cr_dtype real, bool mask, struct cr_sgd_attr attr) {
    static const char *const names[] = {"w", "v", "frozen"};
    struct ref_run          *run     = &u->run;
    struct cr_program       *p       = &run->p;
    REQUIRE_OK(ref_open(run, real, 2));
    for (int i = 0; i < 3; i++)
        cr_param_store_add(&run->store, names[i], i == V ? CR_ROLE_GAMMA : CR_ROLE_CONV,
                           i == V               ? (const int64_t[]){1, 1, 1, 1}
                           : kind == CR_OP_muon ? (const int64_t[]){2, 1, 1, ELEMS / 2}
                                                : (const int64_t[]){1, 1, 1, ELEMS},
                           CR_NONE);
    cr_param_store_add(&run->store, "mean", CR_ROLE_MEAN, (const int64_t[]){1, 1, 1, 2}, CR_NONE);
    run->store.param[FROZEN].frozen = true;
    const bool adam                 = kind == CR_OP_adamw || kind == CR_OP_lamb || kind == CR_OP_muon;
    run->store.has_second           = adam;
    run->store.has_mask             = mask;
    run->store.has_ema              = true;
    u->metrics                      = ref_leaf(run, "metrics", 1, 1, 1, 4);
    u->state                        = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    struct cr_op check     = op_on(CR_OP_grad_norm, cr_tensor_store(p, CR_BUFFER_GRAD, CR_NONE), u->metrics, u->state),
                 op        = cr_op_make(kind, CR_NONE);
    u->norm                = ref_emit(run, &check, "norm");
    op.in[CR_IN_sgd_value] = op.out[CR_OUT_sgd_value] = cr_tensor_store(p, CR_BUFFER_VALUE, CR_NONE);
    op.in[CR_IN_sgd_momentum] = op.out[CR_OUT_sgd_momentum] = u->momentum =
        cr_tensor_store(p, CR_BUFFER_MOMENTUM, CR_NONE);
    op.in[CR_IN_sgd_state] = op.out[CR_OUT_sgd_state] = u->state;
    op.in[CR_IN_sgd_grad]                             = check.in[CR_IN_grad_norm_grad];
    op.in[CR_IN_sgd_norm]                             = u->norm;
    u->mask                                           = mask ? cr_tensor_store(p, CR_BUFFER_MASK, CR_NONE) : CR_NONE;
    op.in[CR_IN_sgd_mask]                             = u->mask;
    if (adam)
        op.in[CR_IN_adamw_second] = op.out[CR_OUT_adamw_second] = u->second =
            cr_tensor_store(p, CR_BUFFER_SECOND, CR_NONE);
    if (kind == CR_OP_lars) {
        struct cr_op norms      = op_on(CR_OP_param_norms, op.in[CR_IN_sgd_value], op.in[CR_IN_sgd_grad], u->state);
        op.in[CR_IN_lars_norms] = ref_emit(run, &norms, "norms");
    }
    op.attr.sgd = attr;
    if (kind == CR_OP_lamb) {
        struct cr_op norms = cr_op_make(CR_OP_lamb_norms, CR_NONE);
        memcpy(norms.in, op.in, CR_INS_lamb_norms * sizeof *op.in);
        norms.attr.sgd          = attr;
        op.in[CR_IN_lamb_norms] = ref_emit(run, &norms, "norms");
    }
    if (kind == CR_OP_muon) op.in[CR_IN_muon_direction] = muon_direction_of(run, &op);
    cr_emit(p, &op, "");
    struct cr_op ema =
        op_on(CR_OP_ema, op.in[CR_IN_sgd_value], cr_tensor_store(p, CR_BUFFER_RUNNING, CR_NONE), u->norm, u->state);
    ema.in[CR_IN_ema_mask]     = u->mask;
    ema.in[CR_IN_ema_averages] = ema.out[CR_OUT_ema_averages] = u->ema = cr_tensor_store(p, CR_BUFFER_EMA, CR_NONE);
    ema.in[CR_IN_ema_running_averages]                                 = ema.out[CR_OUT_ema_running_averages] =
        cr_tensor_store(p, CR_BUFFER_EMA_RUNNING, CR_NONE);
    ema.attr.ema = (struct cr_ema_attr){.decay = 0.9, .warmup = true};
    cr_emit(p, &ema, "");
    for (int k = 0; k < 3; k++) u->value[k] = cr_tensor_store(p, CR_BUFFER_VALUE, k);
    for (int k = 0; k < 2; k++) u->grad[k] = cr_tensor_store(p, CR_BUFFER_GRAD, k);
    REQUIRE_OK(ref_bind(run));
    for (int i = 0; mask && i < run->store.value_elems / 8; i++) ref_set(run, u->mask, i, 0xff);
    ref_set(run, u->state, CR_STATE_LOSS_SCALE, 1);
}

static void set_all(struct unit *u, int tensor, const double *x, int n) {
    for (int i = 0; i < n; i++) ref_set(&u->run, tensor, i, x[i]);
}

static void step(struct unit *u, const double g[ELEMS], double gv, double scale) {
    for (int i = 0; i < ELEMS; i++) ref_set(&u->run, u->grad[W], i, scale * g[i]);
    ref_set(&u->run, u->grad[V], 0, scale * gv);
    ref_set(&u->run, u->state, CR_STATE_LOSS_SCALE, scale);
    REQUIRE_OK(ref_exec(&u->run, 0, u->run.p.ops));
}

static const double start[ELEMS]    = {1.0, -0.5, 2.0, 0.25};
static const double grads[3][ELEMS] = {{0.5, -2.0, 1e-9, 0.0}, {0.25, 1.0, -1e-9, 4.0}, {-0.5, 0.125, 3e-9, -4.0}};

static void start_values(struct unit *u) {
    set_all(u, u->value[W], start, ELEMS);
    ref_set(&u->run, u->value[V], 0, 0.75);
    set_all(u, u->value[FROZEN], (const double[]){3, -3, 3, -3}, ELEMS);
}

/* All weights 0, as after a start at 0, or all gradients 0: the plain step, and no division by 0. */
TEST(lars_without_a_norm) {
    static const double      zero[ELEMS] = {0};
    const struct cr_sgd_attr attr        = {.trust = 0.01, .micro_batches = 1};
    struct unit              u;
    unit_open(&u, CR_OP_lars, CR_F64, false, attr);
    u.run.step = (struct cr_step_block){.lr = 0.5f, .weight_decay = 0.125f};
    step(&u, grads[1], 0, 1);
    for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[W], i), -0.5 * grads[1][i], 1e-15);
    start_values(&u);
    step(&u, zero, 0, 1);
    for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[W], i), start[i] - 0.5 * 0.125 * start[i], 1e-15);
    ref_close(&u.run);
}

static const enum cr_op_kind    rules[] = {CR_OP_sgd, CR_OP_adamw, CR_OP_lars, CR_OP_lamb, CR_OP_muon};
static const struct cr_sgd_attr some    = {.beta2 = 0.99, .eps = 1e-8, .trust = 0.02, .micro_batches = 2};

/* A suppressed update changes only its counter, and the corrections of AdamW count only applied updates. */
TEST(suppressed_updates_do_not_count) {
    for (size_t k = 0; k < CR_COUNT(rules); k++) {
        struct unit a, b;
        unit_open(&a, rules[k], CR_F32, false, some);
        unit_open(&b, rules[k], CR_F32, false, some);
        a.run.step = b.run.step = (struct cr_step_block){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f};
        start_values(&a);
        start_values(&b);
        const double bad[ELEMS] = {1, NAN, 1, 1};
        step(&a, grads[0], 1, 1);
        step(&a, bad, 1, 1);
        step(&a, grads[1], 1, 1);
        step(&b, grads[0], 1, 1);
        step(&b, grads[1], 1, 1);
        for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&a.run, a.value[W], i), ref_at(&b.run, b.value[W], i), 0);
        for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&a.run, a.ema, i), ref_at(&b.run, b.ema, i), 0);
        CHECK_INT(ref_at(&a.run, a.state, CR_STATE_UPDATES), 2);
        CHECK_INT(ref_at(&a.run, a.state, CR_STATE_SKIPPED), 1);
        ref_close(&a.run);
        ref_close(&b.run);
    }
}

/* Gradients that are multiplied by the loss scale give the same update, and so does the norm that clips them. */
TEST(loss_scales_have_no_effect) {
    for (size_t k = 0; k < CR_COUNT(rules); k++) {
        struct unit u[2];
        for (int i = 0; i < 2; i++) {
            unit_open(&u[i], rules[k], CR_F64, false, some);
            u[i].run.step =
                (struct cr_step_block){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .clip_norm = 0.5f};
            start_values(&u[i]);
            for (int n = 0; n < 3; n++) step(&u[i], grads[n], 0.25, i ? 1024 : 1);
        }
        for (int i = 0; i < ELEMS; i++) {
            CHECK_NEAR(ref_at(&u[1].run, u[1].value[W], i), ref_at(&u[0].run, u[0].value[W], i), 1e-12);
            CHECK(ref_at(&u[1].run, u[1].value[FROZEN], i) == (i % 2 ? -3 : 3));
        }
        CHECK_NEAR(ref_at(&u[1].run, u[1].norm, 0), ref_at(&u[0].run, u[0].norm, 0), 1e-12);
        for (int i = 0; i < 2; i++) ref_close(&u[i].run);
    }
}

/* The others are as without a mask, but for the directions of Muon and LAMB's and LARS's norms, which are of all. */
TEST(pruned_elements_are_zero_everywhere) {
    for (size_t k = 0; k < CR_COUNT(rules); k++) {
        struct unit u, whole;
        unit_open(&u, rules[k], CR_F32, true, some);
        unit_open(&whole, rules[k], CR_F32, false, some);
        u.run.step = whole.run.step = (struct cr_step_block){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f};
        start_values(&u);
        start_values(&whole);
        ref_set(&u.run, u.mask, 0, 0xfd); /* element 1 of w */
        for (int i = 0; i < ELEMS; i++) {
            ref_set(&u.run, u.momentum, i, 1);
            ref_set(&whole.run, whole.momentum, i, 1);
        }
        const bool adam  = rules[k] == CR_OP_adamw || rules[k] == CR_OP_lamb; /* muon has none for filters */
        const bool alone = rules[k] == CR_OP_sgd || rules[k] == CR_OP_adamw;
        if (adam) ref_set(&u.run, u.second, 1, 1);
        ref_set(&u.run, u.ema, 1, 1);
        step(&u, grads[0], 1, 1);
        step(&whole, grads[0], 1, 1);
        CHECK_NEAR(ref_at(&u.run, u.value[W], 1), 0, 0);
        CHECK_NEAR(ref_at(&u.run, u.momentum, 1), 0, 0);
        if (adam) CHECK_NEAR(ref_at(&u.run, u.second, 1), 0, 0);
        CHECK_NEAR(ref_at(&u.run, u.ema, 1), 0, 0);
        CHECK(ref_at(&u.run, u.value[W], 0) != 0 && ref_at(&u.run, u.ema, 0) != 0);
        for (int i = 0; i < ELEMS && alone; i++) {
            if (i == 1) continue;
            CHECK_NEAR(ref_at(&u.run, u.value[W], i), ref_at(&whole.run, whole.value[W], i), 0);
            CHECK_NEAR(ref_at(&u.run, u.momentum, i), ref_at(&whole.run, whole.momentum, i), 0);
        }
        ref_close(&u.run);
        ref_close(&whole.run);
    }
}

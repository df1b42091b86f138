/* tests/unit/optim/test_update.c: the update rules and the moving averages on single parameters: against numbers of
 * PyTorch, against formulas written here, and for the properties that all rules share: masks, frozen parameters,
 * suppressed updates, loss scales. Whole runs are in tests/programs/test_golden_train.c. */
#include "tests/harness/reference_run.h"

struct unit {
    struct ref_run run;
    int            value[3], grad[3], metrics, norm, state, momentum, second, ema, mask;
};

enum { W, V, FROZEN, ELEMS = 4 };

/* Without its own direction the update could not run; the direction is that of the gradients and the momentum. */
static int muon_direction_of(struct ref_run *run, const struct cr_op *update) {
    struct cr_op op                      = cr_op_make(CR_OP_muon_direction, CR_NONE);
    op.in[CR_IN_muon_direction_grad]     = update->in[CR_IN_muon_grad];
    op.in[CR_IN_muon_direction_momentum] = update->in[CR_IN_muon_momentum];
    op.in[CR_IN_muon_direction_norm]     = update->in[CR_IN_muon_norm];
    op.in[CR_IN_muon_direction_state]    = update->in[CR_IN_muon_state];
    op.in[CR_IN_muon_direction_mask]     = update->in[CR_IN_muon_mask];
    op.attr.sgd                          = update->attr.sgd;
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
    struct cr_op check = cr_op_make(CR_OP_grad_norm, CR_NONE), op = cr_op_make(kind, CR_NONE),
                 ema                  = cr_op_make(CR_OP_ema, CR_NONE);
    check.in[CR_IN_grad_norm_grad]    = cr_tensor_store(p, CR_BUFFER_GRAD, CR_NONE);
    check.in[CR_IN_grad_norm_metrics] = u->metrics;
    check.in[CR_IN_grad_norm_state]   = u->state;
    u->norm                           = ref_emit(run, &check, "norm");
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
        struct cr_op norms                = cr_op_make(CR_OP_param_norms, CR_NONE);
        norms.in[CR_IN_param_norms_value] = op.in[CR_IN_sgd_value];
        norms.in[CR_IN_param_norms_grad]  = op.in[CR_IN_sgd_grad];
        norms.in[CR_IN_param_norms_state] = u->state;
        op.in[CR_IN_lars_norms]           = ref_emit(run, &norms, "norms");
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
    ema.in[CR_IN_ema_value]    = op.in[CR_IN_sgd_value];
    ema.in[CR_IN_ema_running]  = cr_tensor_store(p, CR_BUFFER_RUNNING, CR_NONE);
    ema.in[CR_IN_ema_norm]     = u->norm;
    ema.in[CR_IN_ema_state]    = u->state;
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

struct adam_trace {
    enum cr_op_kind kind;
    double          want[3][ELEMS + 1];
};

/* torch.optim.AdamW([{w, weight_decay=0.25}, {v, weight_decay=0}], lr=0.125, betas=(0.875, 0.96875), eps=1e-8),
 * gradients of v equal to those of the second element of w; printed with %.15g after each step, in float64. */
static const struct adam_trace adamw_of_torch = {
    CR_OP_adamw,
    {{0.8437500025, -0.359375000625, 1.92613636363636, 0.2421875, 0.874999999375},
     {0.700876517844669, -0.31637008659228, 1.8667021780303, 0.141077706283776, 0.906774444638189},
     {0.667871858666857, -0.286785108179142, 1.7969046431058, 0.143859500757843, 0.926472857845318}}};

/* timm.optim.Lamb (timm 1.0.31) with the same arguments and max_grad_norm=None. */
static const struct adam_trace lamb_of_timm = {
    CR_OP_lamb,
    {{0.798082630404981, -0.318274365264543, 1.90454815102785, 0.239904131358715, 0.874999999375},
     {0.600473410190696, -0.259988254981894, 1.82245746975414, 0.0987472694084505, 0.906774444638189},
     {0.509732685211131, -0.175457564426878, 1.61460252559143, 0.111217737732857, 0.926472857845318}}};

static void check_adam(const struct adam_trace *trace) {
    const struct cr_sgd_attr attr = {.beta2 = 0.96875, .eps = 1e-8, .micro_batches = 1};
    for (int scale = 1; scale <= 1024; scale *= 1024) {
        struct unit u;
        unit_open(&u, trace->kind, CR_F64, false, attr);
        u.run.step = (struct cr_step_block){.lr = 0.125f, .momentum = 0.875f, .weight_decay = 0.25f};
        start_values(&u);
        for (int s = 0; s < 3; s++) {
            step(&u, grads[s], grads[s][1], scale);
            for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[W], i), trace->want[s][i], 1e-14);
            CHECK_NEAR(ref_at(&u.run, u.value[V], 0), trace->want[s][ELEMS], 1e-14);
        }
        CHECK_NEAR(ref_at(&u.run, u.momentum, 0), 0.0126953125, 1e-15);
        CHECK_NEAR(ref_at(&u.run, u.second, 0), 0.01703643798828125, 1e-15);
        for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[FROZEN], i), i % 2 ? -3 : 3, 0);
        ref_close(&u.run);
    }
}

static void adamw_matches_torch(void) {
    check_adam(&adamw_of_torch);
}
static void lamb_matches_timm(void) {
    check_adam(&lamb_of_timm);
}

/* torch.optim.Muon (PyTorch 2.9) of w as [[1, -0.5], [2, 0.25]] with lr=0.125, weight_decay=0.25, momentum=0.875,
 * adjust_lr_fn="match_rms_adamw", with and without Nesterov momentum; its matrices of bfloat16 are float64 here. v
 * moves as by AdamW above. */
static const double muon_of_torch[2][3][ELEMS + 1] = {
    {{0.96277810705671, -0.460487428226842, 1.93749999217289, 0.242187498046208, 0.874999999375},
     {0.896438765841915, -0.442475365924188, 1.87077827097209, 0.209642435241599, 0.906774444638189},
     {0.850300323282492, -0.412186459457196, 1.82823022411522, 0.221626673143069, 0.926472857845318}},
    {{0.96277810705671, -0.460487428226842, 1.93749999217289, 0.242187498046208, 0.874999999375},
     {0.906208179960307, -0.447111883671227, 1.87805171736825, 0.209758969089369, 0.906774444638189},
     {0.902106883515885, -0.431402850714562, 1.81766881251669, 0.227931136858578, 0.926472857845318}}};

static void muon_matches_torch(void) {
    for (int nesterov = 0; nesterov < 2; nesterov++)
        for (int scale = 1; scale <= 1024; scale *= 1024) {
            const struct cr_sgd_attr attr = {.nesterov = nesterov, .beta2 = 0.96875, .eps = 1e-8, .micro_batches = 1};
            struct unit              u;
            unit_open(&u, CR_OP_muon, CR_F64, false, attr);
            u.run.step = (struct cr_step_block){.lr = 0.125f, .momentum = 0.875f, .weight_decay = 0.25f};
            start_values(&u);
            for (int s = 0; s < 3; s++) {
                step(&u, grads[s], grads[s][1], scale);
                for (int i = 0; i < ELEMS; i++)
                    CHECK_NEAR(ref_at(&u.run, u.value[W], i), muon_of_torch[nesterov][s][i], 1e-13);
                CHECK_NEAR(ref_at(&u.run, u.value[V], 0), muon_of_torch[nesterov][s][ELEMS], 1e-14);
            }
            for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[FROZEN], i), i % 2 ? -3 : 3, 0);
            ref_close(&u.run);
        }
}

/* The formula of graph/ops.def, written again. */
static void lars_by_hand(void) {
    const struct cr_sgd_attr attr = {.trust = 0.01, .eps = 1e-6, .nesterov = true, .micro_batches = 1};
    const double             mu = 0.75, lr = 2, decay = 0.125;
    struct unit              u;
    double                   w[ELEMS], m[ELEMS] = {0}, v = 0.75, mv = 0;
    unit_open(&u, CR_OP_lars, CR_F64, false, attr);
    u.run.step =
        (struct cr_step_block){.lr = (float)lr, .momentum = (float)mu, .weight_decay = (float)decay, .clip_norm = 1};
    start_values(&u);
    memcpy(w, start, sizeof w);
    for (int s = 0; s < 3; s++) {
        double all = grads[s][1] * grads[s][1], ww = 0, gg = 0;
        for (int i = 0; i < ELEMS; i++) {
            all += grads[s][i] * grads[s][i];
            ww += w[i] * w[i];
            gg += grads[s][i] * grads[s][i];
        }
        const double clip = fmin(1, 1 / (sqrt(all) + 1e-6));
        const double r    = 0.01 * sqrt(ww) / (clip * sqrt(gg) + decay * sqrt(ww) + 1e-6);
        for (int i = 0; i < ELEMS; i++) {
            const double g = r * (clip * grads[s][i] + decay * w[i]);
            m[i]           = mu * m[i] + g;
            w[i] -= lr * (g + mu * m[i]);
        }
        mv = mu * mv + clip * grads[s][1]; /* a gamma: no ratio, no decay */
        v -= lr * (clip * grads[s][1] + mu * mv);
        step(&u, grads[s], grads[s][1], 4);
        for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.value[W], i), w[i], 1e-14);
        CHECK_NEAR(ref_at(&u.run, u.value[V], 0), v, 1e-14);
    }
    ref_close(&u.run);
}

/* All weights 0, as after a start at 0, or all gradients 0: the plain step, and no division by 0. */
static void lars_without_a_norm(void) {
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
static void suppressed_updates_do_not_count(void) {
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

/* w with lr_scale 0.5 moves as with half the learning rate; v, whose lr_scale is 1, moves as before. */
static void parameters_have_their_own_rates(void) {
    for (size_t k = 0; k < CR_COUNT(rules); k++) {
        struct unit scaled, half, whole;
        unit_open(&scaled, rules[k], CR_F32, false, some);
        unit_open(&half, rules[k], CR_F32, false, some);
        unit_open(&whole, rules[k], CR_F32, false, some);
        scaled.run.store.param[W].lr_scale = 0.5;
        scaled.run.step = half.run.step = whole.run.step =
            (struct cr_step_block){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f};
        half.run.step.lr = 0.05f;
        start_values(&scaled);
        start_values(&half);
        start_values(&whole);
        for (int s = 0; s < 3; s++) {
            step(&scaled, grads[s], 1, 1);
            step(&half, grads[s], 1, 1);
            step(&whole, grads[s], 1, 1);
        }
        for (int i = 0; i < ELEMS; i++)
            CHECK_NEAR(ref_at(&scaled.run, scaled.value[W], i), ref_at(&half.run, half.value[W], i), 0);
        CHECK_NEAR(ref_at(&scaled.run, scaled.value[V], 0), ref_at(&whole.run, whole.value[V], 0), 0);
        CHECK(ref_at(&half.run, half.value[W], 0) != ref_at(&whole.run, whole.value[W], 0));
        ref_close(&scaled.run);
        ref_close(&half.run);
        ref_close(&whole.run);
    }
}

static void pruned_elements_are_zero_everywhere(void) {
    for (size_t k = 0; k < CR_COUNT(rules); k++) {
        struct unit u;
        unit_open(&u, rules[k], CR_F32, true, some);
        u.run.step = (struct cr_step_block){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f};
        start_values(&u);
        ref_set(&u.run, u.mask, 0, 0xfd); /* element 1 of w */
        for (int i = 0; i < ELEMS; i++) ref_set(&u.run, u.momentum, i, 1);
        const bool adam = rules[k] == CR_OP_adamw || rules[k] == CR_OP_lamb; /* muon has none for filters */
        if (adam) ref_set(&u.run, u.second, 1, 1);
        ref_set(&u.run, u.ema, 1, 1);
        step(&u, grads[0], 1, 1);
        CHECK_NEAR(ref_at(&u.run, u.value[W], 1), 0, 0);
        CHECK_NEAR(ref_at(&u.run, u.momentum, 1), 0, 0);
        if (adam) CHECK_NEAR(ref_at(&u.run, u.second, 1), 0, 0);
        CHECK_NEAR(ref_at(&u.run, u.ema, 1), 0, 0);
        CHECK(ref_at(&u.run, u.value[W], 0) != 0 && ref_at(&u.run, u.ema, 0) != 0);
        ref_close(&u.run);
    }
}

/* ema = d*ema + (1-d)*w with d = 0, then min(0.9, 1 - (1+n)^(-2/3)) after n updates; over frozen parameters too. */
static void averages_by_hand(void) {
    struct unit u;
    double      e = 0;
    unit_open(&u, CR_OP_sgd, CR_F64, false, some);
    u.run.step = (struct cr_step_block){.lr = 0.5f, .momentum = 0.5f};
    start_values(&u);
    for (int n = 0; n < 60; n++) {
        step(&u, grads[n % 3], 1, 1);
        const double w = ref_at(&u.run, u.value[W], 0), d = n == 0 ? 0 : fmin(0.9, 1 - pow(1 + n, -2.0 / 3));
        e = d * e + (1 - d) * w;
        CHECK_NEAR(ref_at(&u.run, u.ema, 0), e, 1e-13 * fmax(1, fabs(e)));
        if (n == 0) CHECK_NEAR(ref_at(&u.run, u.ema, 0), w, 0);
    }
    const int64_t frozen = u.run.store.param[FROZEN].offset;
    for (int i = 0; i < ELEMS; i++) CHECK_NEAR(ref_at(&u.run, u.ema, frozen + i), i % 2 ? -3 : 3, 0);
    ref_close(&u.run);
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(adamw_matches_torch), CASE(lamb_matches_timm), CASE(muon_matches_torch), CASE(lars_by_hand),
      CASE(lars_without_a_norm), CASE(suppressed_updates_do_not_count), CASE(parameters_have_their_own_rates),
      CASE(pruned_elements_are_zero_everywhere), CASE(averages_by_hand))

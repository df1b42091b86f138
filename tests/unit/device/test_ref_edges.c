/* tests/unit/device/test_ref_edges.c: properties of the reference kernels that neither PyTorch nor finite differences
 * check: NaN, ties, suppressed updates, loss scale, threads. */
#include "tests/harness/reference_run.h"

/* ---- NaN and ties ---- */

TEST(relu_keeps_nan) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F32, 1));
    struct cr_op op = op_on(CR_OP_relu, ref_leaf(&run, "x", 1, 1, 1, 4));
    int          y  = ref_emit(&run, &op, "y");
    REQUIRE_OK(ref_bind(&run));
    const double x[4] = {-1, NAN, 2, (double)INFINITY};
    for (int i = 0; i < 4; i++) ref_set(&run, op.in[0], i, x[i]);
    REQUIRE_OK(ref_exec(&run, 0, 1));
    CHECK(ref_at(&run, y, 0) == 0 && isnan(ref_at(&run, y, 1)) && ref_at(&run, y, 2) == 2 && isinf(ref_at(&run, y, 3)));
}

TEST(maxpool_nan_and_ties) {
    const double in[3][4] = {
        {1, 3, 3, 2}, {1, NAN, 5, NAN}, {-(double)INFINITY, -(double)INFINITY, -(double)INFINITY, -(double)INFINITY}};
    const int      where[3] = {1, 1, 0};
    OWNED(ref_run) run      = {0};
    REQUIRE_OK(ref_open(&run, CR_F32, 1));
    struct cr_op op              = op_on(CR_OP_maxpool, ref_leaf(&run, "x", 1, 2, 2, 1));
    op.out[CR_OUT_maxpool_index] = CR_NEW;
    op.attr.conv                 = (struct cr_conv_attr){.window = 2, .stride = 2};
    int y = ref_emit(&run, &op, "y"), index = run.p.op[0].out[CR_OUT_maxpool_index];
    REQUIRE_OK(ref_bind(&run));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 4; i++) ref_set(&run, op.in[0], i, in[k][i]);
        REQUIRE_OK(ref_exec(&run, 0, 1));
        CHECK_INT(ref_at(&run, index, 0), where[k]);
        double want = in[k][where[k]];
        CHECK(isnan(want) ? isnan(ref_at(&run, y, 0)) : ref_at(&run, y, 0) == want);
    }
}

/* Logits, label -> correct, correct in top 5, valid. */
TEST(loss_ranks) {
    static const struct {
        double logits[7];
        int    label, valid, correct, correct5;
    } cases[] = {
        {{0, 9, 1, 1, 1, 1, 1}, 1, 1, 1, 1},     {{3, 3, 0, 0, 0, 0, 0}, 0, 1, 1, 1},
        {{3, 3, 0, 0, 0, 0, 0}, 1, 1, 0, 1},     {{1, 1, 1, 1, 1, 1, 1}, 4, 1, 0, 1},
        {{1, 1, 1, 1, 1, 1, 1}, 5, 1, 0, 0},     {{6, 5, 4, 3, 2, 1, 0}, 4, 1, 0, 1},
        {{6, 5, 4, 3, 2, 1, 0}, 5, 1, 0, 0},     {{NAN, 1, 1, 1, 1, 1, 1}, 0, 1, 0, 0},
        {{0, 9, 1, 1, 1, 1, 1}, -1, 0, 0, 0},    {{0, 9, 1, 1, 1, 1, 1}, 7, 0, 0, 0},
        {{0, 0, 0, 0, 0, 0, 1e300}, 6, 1, 1, 1},
    };
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    struct cr_op op             = cr_op_make(CR_OP_loss, CR_NONE);
    op.in[CR_IN_loss_logits]    = ref_leaf(&run, "logits", 1, 1, 1, 7);
    op.in[CR_IN_loss_labels]    = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, 1, 1, 1, 1);
    op.in[CR_IN_loss_metrics]   = ref_leaf(&run, "old", 1, 1, 1, 4);
    op.out[CR_OUT_loss_metrics] = ref_leaf(&run, "metrics", 1, 1, 1, 4);
    cr_emit(&run.p, &op, "");
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, op.in[CR_IN_loss_metrics], 10, 0); /* sums continue from the previous ones */
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        for (int i = 0; i < 7; i++) ref_set(&run, op.in[0], i, cases[k].logits[i]);
        ref_set(&run, op.in[CR_IN_loss_labels], 0, cases[k].label);
        REQUIRE_OK(ref_exec(&run, 0, 1));
        const int want[3] = {cases[k].valid, cases[k].correct, cases[k].correct5};
        for (int i = 0; i < 3; i++)
            if (ref_at(&run, op.out[0], i + 1) != 10 + want[i])
                TEST_FAIL_("case %d: metric %d moved by %g, want %d", (int)k, i + 1,
                           ref_at(&run, op.out[0], i + 1) - 10, want[i]);
        double loss = ref_at(&run, op.out[0], 0) - 10;
        CHECK(isnan(cases[k].logits[0]) ? isnan(loss) : loss >= 0 && isfinite(loss));
    }
}

TEST(running_statistics_survive_bad_batches) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F32, 1));
    struct cr_op op               = cr_op_make(CR_OP_bn_finalize, CR_NONE);
    const int    sum_values       = ref_leaf(&run, "sums", 2, 1, 1, 3);
    op.in[CR_IN_bn_finalize_sums] = sum_values;
    for (int i = 1; i < 5; i++) op.in[i] = ref_leaf(&run, cr_op_info(CR_OP_bn_finalize)->in_name[i], 1, 1, 1, 3);
    const int mean = op.in[CR_IN_bn_finalize_running_mean], var = op.in[CR_IN_bn_finalize_running_var];
    op.out[CR_OUT_bn_finalize_running_mean] = mean;
    op.out[CR_OUT_bn_finalize_running_var]  = var;
    op.attr.bn                              = (struct cr_bn_attr){.eps = 0.25f, .momentum = 0.5f, .count = 4};
    int mean_rstd                           = ref_emit_slot(&run, &op, "scale_bias", CR_OUT_bn_finalize_mean_rstd);
    REQUIRE_OK(ref_bind(&run));
    for (int i = 1; i < 5; i++) ref_fill(&run, op.in[i], 1, 0);
    const double sums[6] = {8, NAN, 8, 15, 1, (double)INFINITY}; /* channel 0: variance 15/4 - 4, below 0 by rounding */
    for (int i = 0; i < 6; i++) ref_set(&run, sum_values, i, sums[i]);
    REQUIRE_OK(ref_exec(&run, 0, 1));
    CHECK_NEAR(ref_at(&run, mean, 0), 1.5, 0);
    CHECK_NEAR(ref_at(&run, var, 0), 0.5, 0);
    CHECK_NEAR(ref_at(&run, mean_rstd, 3), 2, 0); /* 1/sqrt(0 + eps) */
    for (int c = 1; c < 3; c++) {
        CHECK_NEAR(ref_at(&run, mean, c), 1, 0);
        CHECK_NEAR(ref_at(&run, var, c), 1, 0);
    }
}

struct update {
    struct ref_run run;
    int            value, grad, momentum, state, metrics, norm;
};

static cr_status open_update(struct update *u) {
    struct ref_run *run = &u->run;
    CR_TRY(ref_open(run, CR_F32, 2));
    cr_param_store_add(&run->store, "w", CR_ROLE_CONV, (const int64_t[4]){3, 3, 3, 3}, CR_NONE);
    struct cr_op check = cr_op_make(CR_OP_grad_norm, CR_NONE), op = cr_op_make(CR_OP_sgd, CR_NONE);
    u->value                       = cr_tensor_store(&run->p, CR_BUFFER_VALUE, CR_NONE);
    u->grad                        = cr_tensor_store(&run->p, CR_BUFFER_GRAD, CR_NONE);
    u->momentum                    = cr_tensor_store(&run->p, CR_BUFFER_MOMENTUM, CR_NONE);
    u->state                       = cr_tensor_store(&run->p, CR_BUFFER_STATE, CR_NONE);
    u->metrics                     = ref_leaf(run, "metrics", 1, 1, 1, 4);
    check.in[CR_IN_grad_norm_grad] = op.in[CR_IN_sgd_grad] = u->grad;
    check.in[CR_IN_grad_norm_metrics]                      = u->metrics;
    check.in[CR_IN_grad_norm_state]                        = u->state;
    u->norm                                                = ref_emit(run, &check, "norm");
    op.in[CR_IN_sgd_norm]                                  = u->norm;
    op.in[CR_IN_sgd_value] = op.out[CR_OUT_sgd_value] = u->value;
    op.in[CR_IN_sgd_momentum] = op.out[CR_OUT_sgd_momentum] = u->momentum;
    op.in[CR_IN_sgd_state] = op.out[CR_OUT_sgd_state] = u->state;
    op.attr.sgd.micro_batches                         = 2;
    cr_emit(&run->p, &op, "");
    run->step = (struct cr_step_block){.lr = 0.5f, .momentum = 0.5f, .weight_decay = 0.5f};
    CR_TRY(ref_bind(run));
    ref_fill(run, u->value, 1, 0);
    return CR_OK;
}

/* A gradient of 1 everywhere except for one element, and a loss. */
static double update_once(struct update *u, double bad_gradient, double loss) {
    ref_fill(&u->run, u->grad, 1, 0);
    ref_set(&u->run, u->grad, 40, bad_gradient);
    ref_set(&u->run, u->metrics, 0, loss);
    if (ref_exec(&u->run, 0, 2) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return ref_at(&u->run, u->norm, 1);
}

TEST(nonfinite_gradients_change_nothing) {
    const double  bad[3][2] = {{NAN, 1}, {(double)INFINITY, 1}, {1, NAN}};
    struct update u;
    REQUIRE_OK(open_update(&u));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(update_once(&u, bad[i][0], bad[i][1]), 1);
        for (int k = 0; k < 81; k++) CHECK(ref_at(&u.run, u.value, k) == 1 && ref_at(&u.run, u.momentum, k) == 0);
        CHECK_INT(ref_at(&u.run, u.state, CR_STATE_NONFINITE), 1);
        CHECK_INT(ref_at(&u.run, u.state, CR_STATE_SKIPPED), i + 1);
        CHECK_INT(ref_at(&u.run, u.state, CR_STATE_UPDATES), 0);
        CHECK_INT(ref_at(&u.run, u.state, CR_STATE_BATCHES), 2 * (i + 1));
    }
    CHECK_INT(update_once(&u, 1, 1), 0);
    CHECK_NEAR(ref_at(&u.run, u.value, 40), 0.25, 0); /* 1 - 0.5*(1 + 0.5*1) */
    CHECK_INT(ref_at(&u.run, u.state, CR_STATE_NONFINITE), 0);
    CHECK_INT(ref_at(&u.run, u.state, CR_STATE_UPDATES), 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 1, 0); /* changes only when enabled */
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_GROWTH), 0, 0);
    CHECK_NEAR(ref_at(&u.run, u.value, 90), 1, 0); /* beyond the parameter: the padding of the buffer */
    ref_close(&u.run);
}

TEST(loss_scale_moves) {
    struct update u;
    REQUIRE_OK(open_update(&u));
    ref_set(&u.run, u.state, CR_STATE_LOSS_SCALE, 8);
    update_once(&u, NAN, 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 8, 0); /* a value that was set stays */
    u.run.p.op[1].attr.sgd.moving_scale = true;
    update_once(&u, NAN, 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 4, 0);
    for (int i = 0; i < 1999; i++) update_once(&u, 1, 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 4, 0);
    update_once(&u, 1, 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 8, 0);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_GROWTH), 0, 0);
    for (int i = 0; i < 9; i++) update_once(&u, NAN, 1);
    CHECK_NEAR(ref_at(&u.run, u.state, CR_STATE_LOSS_SCALE), 2, 0); /* the minimum */
    ref_close(&u.run);
}

/* Forward and backward of a convolution, a BN and the gradient check; one hash of all bits. */
static uint64_t bits_with_threads(int threads) {
    OWNED(ref_run) run  = {0};
    uint64_t       hash = 1469598103934665603u;
    if (ref_open(&run, CR_F32, threads) != CR_OK) return 0;
    int x = ref_leaf(&run, "x", 3, 9, 7, 5), w = ref_leaf(&run, "w", 70, 3, 3, 5),
        metrics             = ref_leaf(&run, "m", 1, 1, 1, 4);
    struct cr_op sum_values = cr_op_make(CR_OP_bn_sums, CR_NONE);
    struct cr_op wgrad = cr_op_make(CR_OP_conv_wgrad, CR_NONE), dgrad = cr_op_make(CR_OP_conv_dgrad, CR_NONE);
    struct cr_op conv = op_on(CR_OP_conv, x, w);
    conv.attr.conv = wgrad.attr.conv = dgrad.attr.conv = (struct cr_conv_attr){.stride = 2, .pad = 1};
    int y                                              = ref_emit(&run, &conv, "y");
    sum_values.in[0]                                   = y;
    ref_emit(&run, &sum_values, "sums");
    wgrad.in[0] = x;
    wgrad.in[1] = dgrad.in[0] = y;
    dgrad.in[1]               = w;
    wgrad.out[0]              = ref_leaf(&run, "dw", 70, 3, 3, 5);
    dgrad.out[0]              = ref_leaf(&run, "dx", 3, 9, 7, 5);
    ref_emit(&run, &wgrad, "");
    ref_emit(&run, &dgrad, "");
    struct cr_op check =
        op_on(CR_OP_grad_norm, wgrad.out[0], metrics, cr_tensor_store(&run.p, CR_BUFFER_STATE, CR_NONE));
    ref_emit(&run, &check, "norm");
    if (ref_bind(&run) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, w, 0, 1);
    if (ref_exec(&run, 0, run.p.ops) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    for (int t = 0; t < run.p.tensors; t++)
        for (size_t i = 0; run.own[t] && i < run.p.tensor[t].bytes; i++)
            hash = (hash ^ ((unsigned char *)run.own[t])[i]) * 1099511628211u;
    return hash;
}

TEST(results_do_not_depend_on_threads) {
    uint64_t one = bits_with_threads(1);
    CHECK(one != 0);
    for (int threads = 2; threads <= 5; threads++) CHECK(bits_with_threads(threads) == one);
}

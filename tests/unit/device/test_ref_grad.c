/* tests/unit/device/test_ref_grad.c: the gradients of the reference kernels against finite differences, op by op, in
 * double. Convolutions, dense layers, max and average pooling, batch normalisation: test_ref_golden.c; losses:
 * test_ref_loss.c; Gram matrices: test_gram_exact.c; whole trainings: tests/programs/test_golden_train.c. */
#include "tests/harness/finite_differences.h"

/* ---- ops with one input: forward op, gradient op, shapes ---- */

struct unary {
    enum cr_op_kind     op, grad;
    int64_t             N, H, W, C;
    struct cr_conv_attr attr;
    int                 index; /* forward output slot that the second input of the gradient reads; -1: none */
    bool                given; /* the emitter does not create the output of the gradient */
};

static void check_unary(const struct unary *c) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    int          x  = ref_leaf(&run, "x", c->N, c->H, c->W, c->C);
    struct cr_op op = cr_op_make(c->op, CR_NONE), g = cr_op_make(c->grad, CR_NONE);
    op.in[0]          = x;
    op.attr.conv      = c->attr;
    int            at = cr_emit(&run.p, &op, "y"), y = run.p.op[at].out[0];
    const int64_t *d  = run.p.tensor[y].dim;
    int            dy = ref_leaf(&run, "dy", d[0], d[1], d[2], d[3]);
    g.in[0]           = dy;
    if (c->index >= 0) g.in[1] = run.p.op[at].out[c->index];
    if (c->given) g.out[0] = ref_leaf(&run, "dx", c->N, c->H, c->W, c->C);
    g.attr.conv  = c->attr;
    int       dx = ref_emit(&run, &g, "dx");
    struct fd f  = {.run = &run, .forward_ops = 1, .y = y, .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, x, dx, 1);
        fd_finish(&f);
    }
}

TEST(pooling_and_pointwise) {
    static const struct unary cases[] = {
        {CR_OP_relu, CR_OP_relu_grad, 2, 3, 4, 5, {0}, 0, false},
        {CR_OP_avgpool2x2, CR_OP_avgpool2x2_grad, 2, 5, 4, 3, {0}, -1, true},
        {CR_OP_avgpool2x2, CR_OP_avgpool2x2_grad, 1, 6, 7, 2, {0}, -1, true},
        {CR_OP_avgpool2x2, CR_OP_avgpool2x2_grad, 2, 1, 1, 3, {0}, -1, true},
        {CR_OP_blurpool, CR_OP_blurpool_grad, 2, 5, 4, 3, {0}, -1, true},
        {CR_OP_blurpool, CR_OP_blurpool_grad, 1, 3, 7, 2, {0}, -1, true},
        {CR_OP_blurpool, CR_OP_blurpool_grad, 2, 1, 2, 3, {0}, -1, true},
        {CR_OP_pad_shortcut, CR_OP_pad_shortcut_grad, 2, 5, 6, 3, {.stride = 2, .pad_c = 2}, -1, true},
        {CR_OP_pad_shortcut, CR_OP_pad_shortcut_grad, 2, 4, 3, 4, {.stride = 1, .pad_c = 1}, -1, true},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) check_unary(&cases[i]);
}

TEST(se_scale) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    int x = ref_leaf(&run, "x", 2, 3, 4, 5), s = ref_leaf(&run, "s", 2, 1, 1, 5), dy = ref_leaf(&run, "dy", 2, 3, 4, 5);
    struct cr_op op = cr_op_make(CR_OP_se_scale, CR_NONE), g = cr_op_make(CR_OP_se_scale_grad, CR_NONE);
    op.in[CR_IN_se_scale_x] = g.in[CR_IN_se_scale_grad_x] = x;
    op.in[CR_IN_se_scale_logit] = g.in[CR_IN_se_scale_grad_logit] = s;
    g.in[CR_IN_se_scale_grad_dy]                                  = dy;
    struct fd f  = {.run = &run, .forward_ops = 1, .y = ref_emit(&run, &op, "y"), .dy = dy};
    int       at = cr_emit(&run.p, &g, "dx");
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, s, 0, 2);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, x, run.p.op[at].out[CR_OUT_se_scale_grad_dx], 1);
        fd_check(&f, s, run.p.op[at].out[CR_OUT_se_scale_grad_dlogit], 1);
        fd_finish(&f);
    }
}

/* Through a BN with fixed statistics. */
TEST(channel_scale) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int          x = ref_leaf(&run, "x", 2, 3, 2, 5), dy = ref_leaf(&run, "dy", 2, 3, 2, 5), param[4];
    struct cr_op scale_bias = cr_op_make(CR_OP_bn_scale_bias, CR_NONE);
    for (int i = 0; i < 4; i++)
        scale_bias.in[i] = param[i] = ref_named_leaf(&run, "bn", cr_op_info(CR_OP_bn_scale_bias)->in_name[i], 5);
    scale_bias.attr.bn = (struct cr_bn_attr){.eps = 1e-3f};
    struct cr_op op    = op_on(CR_OP_bn_apply, x, ref_emit(&run, &scale_bias, "scale_bias"));
    int          y     = ref_emit(&run, &op, "y");
    struct cr_op g     = op_on(CR_OP_channel_scale, dy, op.in[CR_IN_bn_apply_scale_bias]);
    int          dx    = ref_emit(&run, &g, "dx");
    struct fd    f     = {.run = &run, .forward_ops = 2, .y = y, .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 4; i++) ref_fill(&run, param[i], 3, 0.3);
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) fd_check(&f, x, dx, 1);
    fd_finish(&f);
}

/* The check must detect a wrong backward op: with a gradient scaled by 1.0001 the same check fails. */
TEST(check_can_fail) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int x = ref_leaf(&run, "x", 1, 3, 3, 2), dy = ref_leaf(&run, "dy", 1, 1, 1, 2),
        dx          = ref_leaf(&run, "dx", 1, 3, 3, 2);
    struct cr_op op = op_on(CR_OP_avgpool, x);
    struct fd    f  = {.run = &run, .forward_ops = 1, .y = ref_emit(&run, &op, "y"), .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, dy, 1, 0);
    ref_fill(&run, dx, 1.0001 / 9, 0);
    int before = test_failures_, printed = test_failed_checks_;
    test_failed_checks_ = 1000; /* these failures are expected: do not print them */
    fd_check(&f, x, dx, 1);
    int failures        = test_failures_ - before;
    test_failures_      = before;
    test_failed_checks_ = printed;
    CHECK_INT(failures, 18);
}

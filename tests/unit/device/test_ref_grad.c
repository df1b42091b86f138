/* tests/unit/device/test_ref_grad.c: the gradients of the reference kernels against finite differences, op by op, in
 * double. */
#include "tests/harness/finite_differences.h"

/* ---- convolution ---- */

struct conv_case {
    int64_t N, H, W, C, K, R;
    int     stride, pad;
};

static void check_conv(const struct conv_case *c) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    int          x = ref_leaf(&run, "x", c->N, c->H, c->W, c->C), w = ref_leaf(&run, "w", c->K, c->R, c->R, c->C);
    struct cr_op op     = cr_op_make(CR_OP_conv, CR_NONE);
    op.in[CR_IN_conv_x] = x;
    op.in[CR_IN_conv_w] = w;
    op.attr.conv.stride = c->stride;
    op.attr.conv.pad    = c->pad;
    int            y    = ref_emit(&run, &op, "y");
    const int64_t *d    = run.p.tensor[y].dim;
    int            dy   = ref_leaf(&run, "dy", d[0], d[1], d[2], d[3]);
    int            dx = ref_leaf(&run, "dx", c->N, c->H, c->W, c->C), dw = ref_leaf(&run, "dw", c->K, c->R, c->R, c->C);
    struct cr_op   dgrad = cr_op_make(CR_OP_conv_dgrad, CR_NONE), wgrad = cr_op_make(CR_OP_conv_wgrad, CR_NONE);
    dgrad.in[CR_IN_conv_dgrad_dy]   = dy;
    dgrad.in[CR_IN_conv_dgrad_w]    = w;
    dgrad.out[CR_OUT_conv_dgrad_dx] = dx;
    dgrad.attr                      = op.attr;
    wgrad.in[CR_IN_conv_wgrad_x]    = x;
    wgrad.in[CR_IN_conv_wgrad_dy]   = dy;
    wgrad.out[CR_OUT_conv_wgrad_dw] = dw;
    wgrad.attr                      = op.attr;
    cr_emit(&run.p, &dgrad, "");
    cr_emit(&run.p, &wgrad, "");
    struct fd f = {.run = &run, .forward_ops = 1, .y = y, .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, w, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, x, dx, 1);
        fd_check(&f, w, dw, 1);
        fd_finish(&f);
    }
    ref_close(&run);
}

static void conv(void) {
    static const struct conv_case cases[] = {
        {2, 5, 4, 3, 4, 3, 1, 1}, {1, 7, 6, 2, 3, 3, 2, 1}, {1, 9, 8, 1, 2, 7, 2, 3}, {2, 3, 5, 3, 5, 1, 1, 0},
        {2, 5, 6, 3, 2, 1, 2, 0}, {1, 6, 5, 2, 3, 5, 1, 2}, {1, 6, 7, 2, 2, 3, 3, 0}, {1, 2, 2, 67, 2, 1, 1, 0},
    };
    for (size_t i = 0; i < CR_COUNT(cases); i++) check_conv(&cases[i]);
}

/* ---- batch normalisation, plain and fused ---- */

struct bn {
    int x, gamma, beta, scale_bias, mean_rstd; /* forward */
    int dgamma, dbeta, dx;                     /* backward */
};

static struct cr_bn_attr bn_attr(const struct ref_run *run, int x) {
    const int64_t *d = run->p.tensor[x].dim;
    return (struct cr_bn_attr){.eps = 1e-3f, .momentum = 0.1f, .count = d[0] * d[1] * d[2]};
}

static struct bn emit_bn(struct ref_run *run, const char *part, int64_t N, int64_t H, int64_t W, int64_t C) {
    char         name[64];
    struct bn    b    = {.x = ref_leaf(run, part, N, H, W, C)};
    int          mean = ref_named_leaf(run, part, "mean", C), var = ref_named_leaf(run, part, "var", C);
    struct cr_op sums = cr_op_make(CR_OP_bn_sums, CR_NONE), fin = cr_op_make(CR_OP_bn_finalize, CR_NONE);
    b.gamma                  = ref_named_leaf(run, part, "gamma", C);
    b.beta                   = ref_named_leaf(run, part, "beta", C);
    sums.in[CR_IN_bn_sums_x] = b.x;
    snprintf(name, sizeof name, "%s.sums", part);
    fin.in[CR_IN_bn_finalize_sums]           = ref_emit(run, &sums, name);
    fin.in[CR_IN_bn_finalize_gamma]          = b.gamma;
    fin.in[CR_IN_bn_finalize_beta]           = b.beta;
    fin.in[CR_IN_bn_finalize_running_mean]   = mean;
    fin.in[CR_IN_bn_finalize_running_var]    = var;
    fin.out[CR_OUT_bn_finalize_running_mean] = mean;
    fin.out[CR_OUT_bn_finalize_running_var]  = var;
    fin.attr.bn                              = bn_attr(run, b.x);
    snprintf(name, sizeof name, "%s.scale_bias", part);
    int index    = cr_emit(&run->p, &fin, name);
    b.scale_bias = run->p.op[index].out[CR_OUT_bn_finalize_scale_bias];
    b.mean_rstd  = run->p.op[index].out[CR_OUT_bn_finalize_mean_rstd];
    return b;
}

static void emit_bn_grad(struct ref_run *run, struct bn *b, const char *part, int dy, int y) {
    char          name[64];
    const int64_t C  = run->p.tensor[b->x].dim[3];
    struct cr_op  gs = cr_op_make(CR_OP_bn_grad_sums, CR_NONE), gf = cr_op_make(CR_OP_bn_grad_finalize, CR_NONE);
    struct cr_op  ga                    = cr_op_make(CR_OP_bn_grad_apply, CR_NONE);
    b->dgamma                           = ref_named_leaf(run, part, "dgamma", C);
    b->dbeta                            = ref_named_leaf(run, part, "dbeta", C);
    gs.in[CR_IN_bn_grad_sums_dy]        = dy;
    gs.in[CR_IN_bn_grad_sums_x]         = b->x;
    gs.in[CR_IN_bn_grad_sums_mean_rstd] = b->mean_rstd;
    gs.in[CR_IN_bn_grad_sums_y]         = y;
    snprintf(name, sizeof name, "%s.grad_sums", part);
    gf.in[CR_IN_bn_grad_finalize_grad_sums] = ref_emit(run, &gs, name);
    gf.in[CR_IN_bn_grad_finalize_gamma]     = b->gamma;
    gf.in[CR_IN_bn_grad_finalize_mean_rstd] = b->mean_rstd;
    gf.out[CR_OUT_bn_grad_finalize_dgamma]  = b->dgamma;
    gf.out[CR_OUT_bn_grad_finalize_dbeta]   = b->dbeta;
    gf.attr.bn                              = bn_attr(run, b->x);
    snprintf(name, sizeof name, "%s.dcoeffs", part);
    ga.in[CR_IN_bn_grad_apply_dy]     = dy;
    ga.in[CR_IN_bn_grad_apply_x]      = b->x;
    ga.in[CR_IN_bn_grad_apply_coeffs] = ref_emit_slot(run, &gf, name, CR_OUT_bn_grad_finalize_coeffs);
    ga.in[CR_IN_bn_grad_apply_y]      = y;
    snprintf(name, sizeof name, "%s.dx", part);
    b->dx = ref_emit(run, &ga, name);
}

enum bn_add { ADD_NONE, ADD_PLAIN, ADD_SCALE_BIAS };

static void fill_bn(struct ref_run *run, const struct bn *b) {
    ref_fill(run, b->x, 0.5, 1);
    ref_fill(run, b->gamma, 1, 0.5);
    ref_fill(run, b->beta, 0, 0.5);
}

static void check_bn_leaves(struct fd *f, const struct bn *b) {
    fd_check(f, b->x, b->dx, 1);
    fd_check(f, b->gamma, b->dgamma, 1);
    fd_check(f, b->beta, b->dbeta, 1);
}

static void check_bn(int64_t N, int64_t H, int64_t W, int64_t C, bool relu, enum bn_add add) {
    struct ref_run run;
    struct bn      main_bn, add_bn = {0};
    int            addend = CR_NONE, dadd = CR_NONE;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    main_bn = emit_bn(&run, "x", N, H, W, C);
    if (add == ADD_SCALE_BIAS) add_bn = emit_bn(&run, "a", N, H, W, C);
    if (add == ADD_PLAIN) addend = ref_leaf(&run, "a", N, H, W, C);
    struct cr_op apply                      = cr_op_make(CR_OP_bn_apply, CR_NONE);
    apply.in[CR_IN_bn_apply_x]              = main_bn.x;
    apply.in[CR_IN_bn_apply_scale_bias]     = main_bn.scale_bias;
    apply.in[CR_IN_bn_apply_mean_rstd]      = main_bn.mean_rstd;
    apply.in[CR_IN_bn_apply_add]            = add == ADD_SCALE_BIAS ? add_bn.x : addend;
    apply.in[CR_IN_bn_apply_add_scale_bias] = add == ADD_SCALE_BIAS ? add_bn.scale_bias : CR_NONE;
    apply.attr.bn.relu                      = relu;
    int       y = ref_emit(&run, &apply, "y"), dy = ref_leaf(&run, "dy", N, H, W, C);
    struct fd f = {.run = &run, .forward_ops = run.p.ops, .y = y, .dy = dy};
    emit_bn_grad(&run, &main_bn, "x", dy, relu ? y : CR_NONE);
    if (add == ADD_SCALE_BIAS) emit_bn_grad(&run, &add_bn, "a", dy, relu ? y : CR_NONE);
    if (add == ADD_PLAIN) {
        struct cr_op g           = cr_op_make(CR_OP_relu_grad, CR_NONE);
        g.in[CR_IN_relu_grad_dy] = dy;
        g.in[CR_IN_relu_grad_y]  = y;
        dadd                     = relu ? ref_emit(&run, &g, "a.dx") : dy;
    }
    REQUIRE_OK(ref_bind(&run));
    fill_bn(&run, &main_bn);
    if (add == ADD_SCALE_BIAS) fill_bn(&run, &add_bn);
    if (add == ADD_PLAIN) ref_fill(&run, addend, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        check_bn_leaves(&f, &main_bn);
        if (add == ADD_SCALE_BIAS) check_bn_leaves(&f, &add_bn);
        if (add == ADD_PLAIN) fd_check(&f, addend, dadd, 1);
        fd_finish(&f);
    }
    ref_close(&run);
}

static void bn_plain(void) {
    check_bn(2, 3, 3, 5, false, ADD_NONE);
    check_bn(1, 2, 5, 17, false, ADD_NONE); /* more channels than a block */
}
static void bn_relu(void) {
    check_bn(2, 3, 4, 3, true, ADD_NONE);
}
static void bn_add(void) {
    check_bn(2, 3, 3, 4, false, ADD_PLAIN);
}
static void bn_add_relu(void) {
    check_bn(2, 3, 3, 4, true, ADD_PLAIN);
}
static void bn_add_scale_bias(void) {
    check_bn(3, 2, 3, 3, false, ADD_SCALE_BIAS);
}
static void bn_add_scale_bias_relu(void) {
    check_bn(3, 2, 3, 3, true, ADD_SCALE_BIAS);
}

/* ---- ops with one input: forward op, gradient op, shapes ---- */

struct unary {
    enum cr_op_kind     op, grad;
    int64_t             N, H, W, C;
    struct cr_conv_attr attr;
    int                 index; /* forward output slot that the second input of the gradient reads; -1: none */
    bool                given; /* the emitter does not create the output of the gradient */
};

static void check_unary(const struct unary *c) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    int          x  = ref_leaf(&run, "x", c->N, c->H, c->W, c->C);
    struct cr_op op = cr_op_make(c->op, CR_NONE), g = cr_op_make(c->grad, CR_NONE);
    op.in[0]     = x;
    op.attr.conv = c->attr;
    if (c->op == CR_OP_maxpool) op.out[CR_OUT_maxpool_index] = CR_NEW;
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
    ref_close(&run);
}

static void pooling_and_pointwise(void) {
    static const struct unary cases[] = {
        {CR_OP_relu, CR_OP_relu_grad, 2, 3, 4, 5, {0}, 0, false},
        {CR_OP_maxpool, CR_OP_maxpool_grad, 2, 7, 6, 3, {.window = 3, .stride = 2, .pad = 1}, 1, true},
        {CR_OP_maxpool, CR_OP_maxpool_grad, 1, 5, 4, 3, {.window = 3, .stride = 1, .pad = 1}, 1, true},
        {CR_OP_maxpool, CR_OP_maxpool_grad, 1, 4, 6, 2, {.window = 2, .stride = 2}, 1, true},
        {CR_OP_avgpool, CR_OP_avgpool_grad, 3, 5, 4, 3, {0}, -1, true},
        {CR_OP_avgpool, CR_OP_avgpool_grad, 2, 1, 1, 3, {0}, -1, true},
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

/* Through a BN with fixed statistics. */
static void channel_scale(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int          x = ref_leaf(&run, "x", 2, 3, 2, 5), dy = ref_leaf(&run, "dy", 2, 3, 2, 5), param[4];
    struct cr_op scale_bias = cr_op_make(CR_OP_bn_scale_bias, CR_NONE), op = cr_op_make(CR_OP_bn_apply, CR_NONE);
    struct cr_op g = cr_op_make(CR_OP_channel_scale, CR_NONE);
    for (int i = 0; i < 4; i++)
        scale_bias.in[i] = param[i] = ref_named_leaf(&run, "bn", cr_op_info(CR_OP_bn_scale_bias)->in_name[i], 5);
    scale_bias.attr.bn                   = bn_attr(&run, x);
    op.in[CR_IN_bn_apply_x]              = x;
    op.in[CR_IN_bn_apply_scale_bias]     = ref_emit(&run, &scale_bias, "scale_bias");
    int y                                = ref_emit(&run, &op, "y");
    g.in[CR_IN_channel_scale_dy]         = dy;
    g.in[CR_IN_channel_scale_scale_bias] = op.in[CR_IN_bn_apply_scale_bias];
    int       dx                         = ref_emit(&run, &g, "dx");
    struct fd f                          = {.run = &run, .forward_ops = 2, .y = y, .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 4; i++) ref_fill(&run, param[i], 3, 0.3);
    ref_fill(&run, x, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) fd_check(&f, x, dx, 1);
    fd_finish(&f);
    ref_close(&run);
}

/* A factor per image and channel: gradients of x and of the SE scale. */
static void se_scale(void) {
    struct ref_run run;
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
    ref_close(&run);
}

/* y = a + b passes dy to both */
static void add(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int a = ref_leaf(&run, "a", 2, 2, 3, 4), b = ref_leaf(&run, "b", 2, 2, 3, 4), dy = ref_leaf(&run, "dy", 2, 2, 3, 4);
    struct cr_op op    = cr_op_make(CR_OP_add, CR_NONE);
    op.in[CR_IN_add_a] = a;
    op.in[CR_IN_add_b] = b;
    struct fd f        = {.run = &run, .forward_ops = 1, .y = ref_emit(&run, &op, "y"), .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, a, 0, 1);
    ref_fill(&run, b, 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, a, dy, 1);
        fd_check(&f, b, dy, 1);
    }
    fd_finish(&f);
    ref_close(&run);
}

/* ---- classifier and loss ---- */

static void dense(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    int x = ref_leaf(&run, "x", 3, 1, 1, 7), w = ref_leaf(&run, "w", 5, 1, 1, 7), b = ref_leaf(&run, "b", 1, 1, 1, 5);
    int dy = ref_leaf(&run, "dy", 3, 1, 1, 5), dw = ref_leaf(&run, "dw", 5, 1, 1, 7),
        db          = ref_leaf(&run, "db", 1, 1, 1, 5);
    struct cr_op op = cr_op_make(CR_OP_dense, CR_NONE), gx = cr_op_make(CR_OP_dense_dgrad, CR_NONE);
    struct cr_op gw = cr_op_make(CR_OP_dense_wgrad, CR_NONE), gb = cr_op_make(CR_OP_dense_bgrad, CR_NONE);
    op.in[CR_IN_dense_x]          = x;
    op.in[CR_IN_dense_w]          = w;
    op.in[CR_IN_dense_b]          = b;
    int y                         = ref_emit(&run, &op, "y");
    gx.in[CR_IN_dense_dgrad_dy]   = dy;
    gx.in[CR_IN_dense_dgrad_w]    = w;
    gw.in[CR_IN_dense_wgrad_x]    = x;
    gw.in[CR_IN_dense_wgrad_dy]   = dy;
    gw.out[CR_OUT_dense_wgrad_dw] = dw;
    gb.in[CR_IN_dense_bgrad_dy]   = dy;
    gb.out[CR_OUT_dense_bgrad_db] = db;
    int dx                        = ref_emit(&run, &gx, "dx");
    cr_emit(&run.p, &gw, "");
    cr_emit(&run.p, &gb, "");
    struct fd f = {.run = &run, .forward_ops = 1, .y = y, .dy = dy};
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 3; i++) ref_fill(&run, op.in[i], 0, 1);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, x, dx, 1);
        fd_check(&f, w, dw, 1);
        fd_check(&f, b, db, 1);
    }
    fd_finish(&f);
    ref_close(&run);
}

static void check_loss(float smoothing, double scale, float weight) {
    static const int32_t labels[] = {2, -1, 0, 6, -1, 3};
    struct ref_run       run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int          logits = ref_leaf(&run, "logits", 6, 1, 1, 7), metrics = ref_leaf(&run, "metrics", 1, 1, 1, 4);
    int          label = cr_tensor_add(&run.p, "labels", CR_I32, CR_REGION_INPUT, 6, 1, 1, 1);
    int          state = cr_tensor_store(&run.p, CR_BUFFER_STATE, CR_NONE);
    struct cr_op zero = cr_op_make(CR_OP_zero, CR_NONE), op = cr_op_make(CR_OP_loss, CR_NONE),
                 g              = cr_op_make(CR_OP_loss_grad, CR_NONE);
    zero.out[CR_OUT_zero_y]     = metrics;
    op.in[CR_IN_loss_logits]    = logits;
    op.in[CR_IN_loss_labels]    = label;
    op.in[CR_IN_loss_metrics]   = metrics;
    op.out[CR_OUT_loss_metrics] = metrics;
    op.attr.loss                = (struct cr_loss_attr){.smoothing = smoothing, .weight = weight};
    cr_emit(&run.p, &zero, "");
    cr_emit(&run.p, &op, "");
    g.in[CR_IN_loss_grad_logits] = logits;
    g.in[CR_IN_loss_grad_labels] = label;
    g.in[CR_IN_loss_grad_state]  = state;
    g.attr                       = op.attr;
    int       dx                 = ref_emit(&run, &g, "dx");
    struct fd f = {.run = &run, .forward_ops = 2, .y = metrics, .dy = CR_NONE, .factor = scale * (double)weight};
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, logits, 0, 2);
    ref_set(&run, state, CR_STATE_LOSS_SCALE, scale);
    for (int i = 0; i < 6; i++) ref_set(&run, label, i, labels[i]);
    if (fd_run(&f)) fd_check(&f, logits, dx, 1);
    CHECK_INT(ref_at(&run, metrics, 1), 4);
    fd_finish(&f);
    ref_close(&run);
}

static void loss(void) {
    check_loss(0.0f, 1, 1.0f);
    check_loss(0.125f, 1, 1.0f);
    check_loss(0.0f, 1024, 0.25f);
    check_loss(0.25f, 8, 0.5f);
}

/* The check must detect a wrong backward op: with a gradient scaled by 1.0001 the same check fails. */
static void check_can_fail(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    int x = ref_leaf(&run, "x", 1, 3, 3, 2), dy = ref_leaf(&run, "dy", 1, 1, 1, 2),
        dx                 = ref_leaf(&run, "dx", 1, 3, 3, 2);
    struct cr_op op        = cr_op_make(CR_OP_avgpool, CR_NONE);
    op.in[CR_IN_avgpool_x] = x;
    struct fd f            = {.run = &run, .forward_ops = 1, .y = ref_emit(&run, &op, "y"), .dy = dy};
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
    ref_close(&run);
}

TESTS(CASE(conv), CASE(bn_plain), CASE(bn_relu), CASE(bn_add), CASE(bn_add_relu), CASE(bn_add_scale_bias),
      CASE(bn_add_scale_bias_relu), CASE(pooling_and_pointwise), CASE(channel_scale), CASE(se_scale), CASE(add),
      CASE(dense), CASE(loss), CASE(check_can_fail))

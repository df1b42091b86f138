/* tests/unit/device/test_ref_grad_bn.c: the gradients of batch normalisation, plain and fused, on the reference kernels
 * against finite differences, in double. */
#include "tests/harness/finite_differences.h"

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

static void bn(void) {
    check_bn(2, 3, 3, 5, false, ADD_NONE);
    check_bn(1, 2, 5, 17, false, ADD_NONE); /* more channels than a block */
    check_bn(2, 3, 4, 3, true, ADD_NONE);
    check_bn(2, 3, 3, 4, false, ADD_PLAIN);
    check_bn(2, 3, 3, 4, true, ADD_PLAIN);
    check_bn(3, 2, 3, 3, false, ADD_SCALE_BIAS);
    check_bn(3, 2, 3, 3, true, ADD_SCALE_BIAS);
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

TESTS(CASE(bn), CASE(channel_scale))

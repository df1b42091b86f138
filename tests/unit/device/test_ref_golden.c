/* tests/unit/device/test_ref_golden.c: the reference kernels against PyTorch (tests/golden/make_ref_golden.py), in f64
 * and in f32 programs. Inputs are exact in both types and the reference kernels sum in double. An f64 result differs
 * only by the order of summation, an f32 result also by the rounding of the output of each op. Losses:
 * test_ref_loss.c; updates: tests/unit/optim/test_update.c and tests/programs/test_golden_train.c. */
#define GOLDEN_FILE "ref_golden.safetensors"
#include "tests/harness/golden_tensors.h"

/* One op whose inputs, in slot order, are golden tensors in[]; its only output is compared with `out`. */
static void check_op(enum cr_dtype real, const char *part, struct cr_op op, const char *const in[], const char *out,
                     double ulps) {
    OWNED(ref_run) run = {0};
    REQUIRE_OK(ref_open(&run, real, 2));
    for (int s = 0; in[s]; s++) op.in[s] = golden_leaf(&run, part, in[s]);
    op.out[0] = golden_leaf(&run, part, out);
    cr_emit(&run.p, &op, "");
    REQUIRE_OK(ref_bind(&run));
    for (int s = 0; in[s]; s++) golden_fill(&run, op.in[s], part, in[s]);
    ref_fill(&run, op.out[0], 99, 0); /* previous values must not be visible */
    REQUIRE_OK(ref_exec(&run, 0, 1));
    golden_check(&run, op.out[0], part, out, ulps);
}
#define INPUTS(...)                                                                                                    \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, NULL                                                                                              \
    }

static const enum cr_dtype types[2] = {CR_F64, CR_F32};
/* Roundings allowed for one op: f64 sums in another order (up to some hundred terms); f32 rounds once. */
static const double one_op[2] = {64, 1.01};

TEST(conv) {
    static const char *const parts[] = {"conv.3x3",   "conv.3x3s2", "conv.7x7s2", "conv.1x1",
                                        "conv.1x1s2", "conv.5x5",   "conv.wide",  "conv.nopad"};
    for (size_t i = 0; i < CR_COUNT(parts) * 2; i++) {
        const char *part = parts[i / 2];
        int64_t     n;
        double     *attr = golden_read(part, "attr", &n);
        REQUIRE(attr);
        struct cr_op op = cr_op_make(CR_OP_conv, CR_NONE), dgrad = cr_op_make(CR_OP_conv_dgrad, CR_NONE);
        struct cr_op wgrad  = cr_op_make(CR_OP_conv_wgrad, CR_NONE);
        op.attr.conv.stride = (int)attr[0];
        op.attr.conv.pad    = (int)attr[1];
        dgrad.attr = wgrad.attr = op.attr;
        cr_free(attr);
        check_op(types[i % 2], part, op, INPUTS("x", "w"), "y", one_op[i % 2]);
        check_op(types[i % 2], part, dgrad, INPUTS("dy", "w"), "dx", one_op[i % 2]);
        check_op(types[i % 2], part, wgrad, INPUTS("x", "dy"), "dw", one_op[i % 2]);
    }
}

TEST(dense_and_avgpool) {
    for (int i = 0; i < 2; i++) {
        struct cr_op op = cr_op_make(CR_OP_dense, CR_NONE);
        check_op(types[i], "dense", op, INPUTS("x", "w", "b"), "y", one_op[i]);
        check_op(types[i], "dense", cr_op_make(CR_OP_dense_dgrad, CR_NONE), INPUTS("dy", "w"), "dx", one_op[i]);
        check_op(types[i], "dense", cr_op_make(CR_OP_dense_wgrad, CR_NONE), INPUTS("x", "dy"), "dw", one_op[i]);
        check_op(types[i], "dense", cr_op_make(CR_OP_dense_bgrad, CR_NONE), INPUTS("dy"), "db", one_op[i]);
        check_op(types[i], "avgpool", cr_op_make(CR_OP_avgpool, CR_NONE), INPUTS("x"), "y", one_op[i]);
        check_op(types[i], "avgpool", cr_op_make(CR_OP_avgpool_grad, CR_NONE), INPUTS("dy"), "dx", one_op[i]);
    }
}

static void check_maxpool(enum cr_dtype real, const char *part) {
    OWNED(ref_run) run = {0};
    int64_t        n;
    OWNED(doubles) attr = golden_read(part, "attr", &n);
    REQUIRE(attr);
    REQUIRE_OK(ref_open(&run, real, 2));
    int x = golden_leaf(&run, part, "x"), dy = golden_leaf(&run, part, "dy"), dx = golden_leaf(&run, part, "dx");
    struct cr_op op              = op_on(CR_OP_maxpool, x);
    op.out[CR_OUT_maxpool_index] = CR_NEW;
    op.attr.conv    = (struct cr_conv_attr){.window = (int)attr[0], .stride = (int)attr[1], .pad = (int)attr[2]};
    int          at = cr_emit(&run.p, &op, "y");
    struct cr_op g  = op_on(CR_OP_maxpool_grad, dy, run.p.op[at].out[CR_OUT_maxpool_index]);
    g.out[CR_OUT_maxpool_grad_dx] = dx;
    g.attr                        = op.attr;
    cr_emit(&run.p, &g, "");
    REQUIRE_OK(ref_bind(&run));
    golden_fill(&run, x, part, "x");
    golden_fill(&run, dy, part, "dy");
    REQUIRE_OK(ref_exec(&run, 0, 2));
    golden_check(&run, run.p.op[at].out[0], part, "y", 0);
    golden_check(&run, dx, part, "dx", 1.01);
}

TEST(maxpool) {
    for (int i = 0; i < 2; i++) {
        check_maxpool(types[i], "pool.3s2");
        check_maxpool(types[i], "pool.2s2");
        check_maxpool(types[i], "pool.3s1");
    }
}

/* ---- batch normalisation: two training batches with all gradients, then evaluation ---- */

struct bn_net {
    int x, dy, gamma, beta, mean, var, y, dx, dgamma, relu_dx, relu_dgamma, dbeta, eval_y;
    int training_ops; /* the ops after these belong to evaluation */
};

/* Backward of BN, from dy or from dy through the ReLU whose output is `y`. */
static int build_bn_grad(struct ref_run *run, const struct bn_net *net, const struct cr_op *fin, int y,
                         const char *name, int dgamma) {
    char         full[64];
    struct cr_op ga = cr_op_make(CR_OP_bn_grad_apply, CR_NONE);
    struct cr_op gs = op_on(CR_OP_bn_grad_sums, net->dy, net->x, fin->out[CR_OUT_bn_finalize_mean_rstd], y);
    snprintf(full, sizeof full, "%s.sums", name);
    struct cr_op gf =
        op_on(CR_OP_bn_grad_finalize, ref_emit(run, &gs, full), net->gamma, fin->out[CR_OUT_bn_finalize_mean_rstd]);
    gf.out[CR_OUT_bn_grad_finalize_dgamma] = dgamma;
    gf.out[CR_OUT_bn_grad_finalize_dbeta]  = net->dbeta;
    gf.attr                                = fin->attr;
    snprintf(full, sizeof full, "%s.scale_bias", name);
    ga.in[CR_IN_bn_grad_apply_coeffs] = ref_emit_slot(run, &gf, full, CR_OUT_bn_grad_finalize_coeffs);
    ga.in[CR_IN_bn_grad_apply_dy]     = net->dy;
    ga.in[CR_IN_bn_grad_apply_x]      = net->x;
    ga.in[CR_IN_bn_grad_apply_y]      = y;
    return ref_emit(run, &ga, name);
}

static void build_bn(struct ref_run *run, struct bn_net *net) {
    struct cr_op sums = cr_op_make(CR_OP_bn_sums, CR_NONE), fin = cr_op_make(CR_OP_bn_finalize, CR_NONE);
    struct cr_op scale_bias        = cr_op_make(CR_OP_bn_scale_bias, CR_NONE);
    net->x                         = golden_leaf(run, "bn.0", "x");
    net->dy                        = golden_leaf(run, "bn.0", "dy");
    net->gamma                     = golden_leaf(run, "bn", "weight");
    net->beta                      = golden_leaf(run, "bn", "bias");
    net->mean                      = golden_leaf(run, "bn", "running_mean");
    net->var                       = golden_leaf(run, "bn", "running_var");
    net->dgamma                    = ref_leaf(run, "dgamma", 1, 1, 1, run->p.tensor[net->gamma].dim[3]);
    net->relu_dgamma               = ref_leaf(run, "relu.dgamma", 1, 1, 1, run->p.tensor[net->gamma].dim[3]);
    net->dbeta                     = ref_leaf(run, "dbeta", 1, 1, 1, run->p.tensor[net->gamma].dim[3]);
    const int64_t          *d      = run->p.tensor[net->x].dim;
    const struct cr_bn_attr attr   = {.eps = 0x1p-17f, .momentum = 0.125f, .count = d[0] * d[1] * d[2]};
    sums.in[CR_IN_bn_sums_x]       = net->x;
    const int params[4]            = {net->gamma, net->beta, net->mean, net->var};
    fin.in[CR_IN_bn_finalize_sums] = ref_emit(run, &sums, "sums");
    for (int i = 0; i < 4; i++)
        fin.in[CR_IN_bn_finalize_gamma + i] = scale_bias.in[CR_IN_bn_scale_bias_gamma + i] = params[i];
    fin.out[CR_OUT_bn_finalize_running_mean] = net->mean;
    fin.out[CR_OUT_bn_finalize_running_var]  = net->var;
    fin.attr.bn = scale_bias.attr.bn    = attr;
    int finalize                        = cr_emit(&run->p, &fin, "scale_bias");
    fin                                 = run->p.op[finalize];
    struct cr_op apply                  = op_on(CR_OP_bn_apply, net->x, fin.out[CR_OUT_bn_finalize_scale_bias]);
    net->y                              = ref_emit(run, &apply, "y");
    apply.attr.bn.relu                  = true;
    int relu_y                          = ref_emit(run, &apply, "relu.y");
    net->relu_dx                        = build_bn_grad(run, net, &fin, relu_y, "relu.dx", net->relu_dgamma);
    net->dx                             = build_bn_grad(run, net, &fin, CR_NONE, "dx", net->dgamma);
    net->training_ops                   = run->p.ops;
    apply.attr.bn.relu                  = false;
    apply.in[CR_IN_bn_apply_scale_bias] = ref_emit(run, &scale_bias, "eval.scale_bias");
    net->eval_y                         = ref_emit(run, &apply, "eval.y");
}

/* In an f32 program scale_bias, means and sums are rounded between ops; xhat times its mean cancels some digits. */
static void check_bn(enum cr_dtype real, double ulps) {
    OWNED(ref_run) run = {0};
    struct bn_net  net;
    REQUIRE_OK(ref_open(&run, real, 2));
    build_bn(&run, &net);
    REQUIRE_OK(ref_bind(&run));
    golden_fill(&run, net.gamma, "bn", "weight");
    golden_fill(&run, net.beta, "bn", "bias");
    golden_fill(&run, net.mean, "bn", "running_mean");
    golden_fill(&run, net.var, "bn", "running_var");
    for (int i = 0; i < 2; i++) {
        const char *part = i ? "bn.1" : "bn.0";
        golden_fill(&run, net.x, part, "x");
        golden_fill(&run, net.dy, part, "dy");
        REQUIRE_OK(ref_exec(&run, 0, net.training_ops));
        golden_check(&run, net.y, part, "y", ulps);
        golden_check(&run, net.dx, part, "dx", ulps);
        golden_check(&run, net.dgamma, part, "dgamma", ulps);
        golden_check(&run, net.dbeta, part, "dbeta", ulps);
        golden_check(&run, net.relu_dx, part, "relu.dx", ulps);
        golden_check(&run, net.relu_dgamma, part, "relu.dgamma", ulps);
        golden_check(&run, net.mean, part, "running_mean", ulps);
        golden_check(&run, net.var, part, "running_var", ulps);
    }
    golden_fill(&run, net.x, "bn.eval", "x");
    REQUIRE_OK(ref_exec(&run, net.training_ops, run.p.ops));
    golden_check(&run, net.eval_y, "bn.eval", "y", ulps);
}

TEST(bn) {
    check_bn(CR_F64, 64);
    check_bn(CR_F32, 16);
}

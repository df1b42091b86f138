/* tests/unit/device/test_ref_fused_conv.c: reference convolutions with fused neighbouring ops equal the chain of
 * unfused ops. */
#include "tests/harness/reference_fused.h"

/* ---- convolutions ---- */

static const struct shape shapes[] = {
    {2, 6, 5, 8, 16, 3, 1, 1}, {2, 7, 7, 5, 3, 3, 2, 1}, {3, 4, 4, 16, 24, 1, 1, 0}, {2, 5, 6, 70, 8, 1, 2, 0}};

static void conv_reads_act_and_sums(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = x_of(&run, s, "x"), w = w_of(&run, s);
    const struct bn bn = bn_leaves(&run, "bn", s->C);
    struct cr_op    op = op_of(CR_OP_conv), sums_op = op_of(CR_OP_bn_sums);
    op.in[CR_IN_conv_x]          = x;
    op.in[CR_IN_conv_w]          = w;
    op.in[CR_IN_conv_scale_bias] = bn.scale_bias;
    op.out[CR_OUT_conv_sums]     = CR_NEW;
    op.attr.conv                 = window_of(s);
    const int y = ref_emit(&run, &op, "y"), sums = run.p.op[0].out[CR_OUT_conv_sums];
    const int plain = convolved(&run, s, activated(&run, x, bn.scale_bias, "xa"), w, "plain.y");
    sums_op.in[0]   = plain;
    const int want  = ref_emit(&run, &sums_op, "plain.sums");
    FILL_AND_RUN(&run, &bn, 1, x, w);
    same(&run, y, plain);
    same(&run, sums, want);
    ref_close(&run);
}

/* A BN that only adds a bias replaces it. */
static void conv_ends_with_bias_add_relu(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int x = x_of(&run, s, "x"), w = w_of(&run, s), add = y_of(&run, s, "add"),
              bias          = ref_leaf(&run, "bias", 1, 1, 1, s->K);
    const int    scale_bias = ref_leaf(&run, "scale_bias", 2, 1, 1, s->K);
    struct cr_op op = op_of(CR_OP_conv), bn = op_of(CR_OP_bn_apply);
    op.in[CR_IN_conv_x]              = x;
    op.in[CR_IN_conv_w]              = w;
    op.in[CR_IN_conv_bias]           = bias;
    op.in[CR_IN_conv_add]            = add;
    op.attr.conv                     = window_of(s);
    op.attr.conv.relu                = true;
    const int y                      = ref_emit(&run, &op, "y");
    bn.in[CR_IN_bn_apply_x]          = convolved(&run, s, x, w, "plain.y");
    bn.in[CR_IN_bn_apply_scale_bias] = scale_bias;
    bn.in[CR_IN_bn_apply_add]        = add;
    bn.attr.bn.relu                  = true;
    const int want                   = ref_emit(&run, &bn, "want");
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 4; i++) ref_fill(&run, (const int[]){x, w, add, bias}[i], 0.1, 1);
    for (int64_t k = 0; k < s->K; k++) {
        ref_set(&run, scale_bias, k, 1);
        ref_set(&run, scale_bias, s->K + k, ref_at(&run, bias, k));
    }
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, y, want);
    ref_close(&run);
}

static void wgrad_reads_act(const struct shape *s, bool accumulate) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = x_of(&run, s, "x"), dy = y_of(&run, s, "dy"), dw = w_of(&run, s), want = like(&run, dw, "want");
    const struct bn bn         = bn_leaves(&run, "bn", s->C);
    struct cr_op    op         = op_of(CR_OP_conv_wgrad);
    op.in[CR_IN_conv_wgrad_dy] = dy;
    op.attr.conv               = window_of(s);
    op.attr.conv.accumulate    = accumulate;
    for (int plain = 0; plain < 2; plain++) {
        op.in[CR_IN_conv_wgrad_x]          = plain ? activated(&run, x, bn.scale_bias, "xa") : x;
        op.in[CR_IN_conv_wgrad_scale_bias] = plain ? CR_NONE : bn.scale_bias;
        op.out[CR_OUT_conv_wgrad_dw]       = plain ? want : dw;
        ref_emit(&run, &op, "");
    }
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0.1, 1);
    ref_fill(&run, dy, 0.1, 1);
    ref_fill(&run, dw, 5, 0);
    ref_fill(&run, want, 5, 0);
    bn_fill(&run, &bn);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, dw, want);
    ref_close(&run);
}

static int dgraded(struct ref_run *run, const struct shape *s, int dy, int w, const char *name) {
    struct cr_op op              = op_of(CR_OP_conv_dgrad);
    op.in[CR_IN_conv_dgrad_dy]   = dy;
    op.in[CR_IN_conv_dgrad_w]    = w;
    op.out[CR_OUT_conv_dgrad_dx] = x_of(run, s, name);
    op.attr.conv                 = window_of(s);
    ref_emit(run, &op, "");
    return op.out[CR_OUT_conv_dgrad_dx];
}

static void dgrad_ends_with_add_and_relu_mask(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int dy = y_of(&run, s, "dy"), w = w_of(&run, s), add = x_of(&run, s, "add"), bn_x = x_of(&run, s, "bn_x");
    const struct bn bn                  = bn_leaves(&run, "bn", s->C);
    struct cr_op    op                  = op_of(CR_OP_conv_dgrad);
    op.in[CR_IN_conv_dgrad_dy]          = dy;
    op.in[CR_IN_conv_dgrad_w]           = w;
    op.in[CR_IN_conv_dgrad_add]         = add;
    op.in[CR_IN_conv_dgrad_bn_x]        = bn_x;
    op.in[CR_IN_conv_dgrad_mean_rstd]   = bn.mean_rstd;
    op.in[CR_IN_conv_dgrad_gamma]       = bn.gamma;
    op.in[CR_IN_conv_dgrad_beta]        = bn.beta;
    op.out[CR_OUT_conv_dgrad_dx]        = x_of(&run, s, "dx");
    op.out[CR_OUT_conv_dgrad_grad_sums] = CR_NEW;
    op.attr.conv                        = window_of(s);
    const int fused_sums                = ref_emit_slot(&run, &op, "dx", CR_OUT_conv_dgrad_grad_sums);
    const int sum                       = summed(&run, dgraded(&run, s, dy, w, "plain.v"), add, "plain.sum");
    const int dx   = relu_masked(&run, sum, activated(&run, bn_x, bn.scale_bias, "act"), "plain.dx");
    const int want = grad_sums(&run, dx, bn_x, bn.mean_rstd, "plain.grad_sums");
    FILL_AND_RUN(&run, &bn, 1, dy, w, add, bn_x);
    same(&run, op.out[CR_OUT_conv_dgrad_dx], dx);
    same(&run, fused_sums, want);
    ref_close(&run);
}

/* ---- the whole backward of a convolution ---- */

enum grad_case { PLAIN, THROUGH, INNER, BLOCK, NO_DX, GRAD_CASES };

struct grad_net {
    struct ref_run      run;
    const struct shape *s;
    int                 g, dy_x, dy_coeffs, w, x, add, bn_x, dx, dw, fused_sums; /* of the op */
    int                 want_dx, want_dw, want_sums;
    struct bn           bn;
};

static void grad_fused(struct grad_net *n, enum grad_case which) {
    struct cr_op op          = op_of(CR_OP_conv_grad);
    op.in[CR_IN_conv_grad_g] = n->g;
    op.in[CR_IN_conv_grad_w] = n->w;
    op.in[CR_IN_conv_grad_x] = n->x;
    if (which != PLAIN) {
        op.in[CR_IN_conv_grad_dy_x]      = n->dy_x;
        op.in[CR_IN_conv_grad_dy_coeffs] = n->dy_coeffs;
        op.in[CR_IN_conv_grad_add]       = n->add;
    }
    if (which == INNER) op.in[CR_IN_conv_grad_scale_bias] = n->bn.scale_bias;
    if (which == INNER || which == BLOCK) {
        op.in[CR_IN_conv_grad_mean_rstd]   = n->bn.mean_rstd;
        op.out[CR_OUT_conv_grad_grad_sums] = CR_NEW;
    }
    if (which == BLOCK) op.in[CR_IN_conv_grad_bn_x] = n->bn_x;
    op.out[CR_OUT_conv_grad_dx] = which == NO_DX ? CR_NONE : CR_NEW;
    op.out[CR_OUT_conv_grad_dw] = n->dw;
    op.attr.conv                = window_of(n->s);
    op.attr.conv.accumulate     = which == INNER;
    const int index             = cr_emit(&n->run.p, &op, "fused");
    n->dx                       = n->run.p.op[index].out[CR_OUT_conv_grad_dx];
    n->fused_sums               = n->run.p.op[index].out[CR_OUT_conv_grad_grad_sums];
}

static void grad_plain(struct grad_net *n, enum grad_case which) {
    struct ref_run *run = &n->run;
    struct cr_op    bn = op_of(CR_OP_bn_grad_apply), wgrad = op_of(CR_OP_conv_wgrad);
    int             dy = n->g, xa = which == INNER ? activated(run, n->x, n->bn.scale_bias, "xa") : n->x;
    bn.in[CR_IN_bn_grad_apply_dy]     = n->g;
    bn.in[CR_IN_bn_grad_apply_x]      = n->dy_x;
    bn.in[CR_IN_bn_grad_apply_coeffs] = n->dy_coeffs;
    if (which != PLAIN) dy = ref_emit(run, &bn, "dy");
    wgrad.in[CR_IN_conv_wgrad_x]    = xa;
    wgrad.in[CR_IN_conv_wgrad_dy]   = dy;
    wgrad.out[CR_OUT_conv_wgrad_dw] = n->want_dw;
    wgrad.attr.conv                 = window_of(n->s);
    wgrad.attr.conv.accumulate      = which == INNER;
    ref_emit(run, &wgrad, "");
    n->want_dx = dgraded(run, n->s, dy, n->w, "v");
    if (which != PLAIN) n->want_dx = summed(run, n->want_dx, n->add, "v+add");
    if (which != INNER && which != BLOCK) return;
    n->want_dx   = relu_masked(run, n->want_dx, xa, "want.dx");
    n->want_sums = grad_sums(run, n->want_dx, which == INNER ? n->x : n->bn_x, n->bn.mean_rstd, "want.grad_sums");
}

static void conv_grad_is_its_chain(const struct shape *s, enum grad_case which) {
    struct grad_net n = {.s = s};
    REQUIRE_OK(ref_open(&n.run, CR_F64, 2));
    n.g         = y_of(&n.run, s, "g");
    n.dy_x      = y_of(&n.run, s, "dy_x");
    n.dy_coeffs = ref_leaf(&n.run, "dy_coeffs", 3, 1, 1, s->K);
    n.w         = w_of(&n.run, s);
    n.x         = x_of(&n.run, s, "x");
    n.add       = x_of(&n.run, s, "add");
    n.bn_x      = x_of(&n.run, s, "bn_x");
    n.dw        = like(&n.run, n.w, "dw");
    n.want_dw   = like(&n.run, n.w, "want.dw");
    n.bn        = bn_leaves(&n.run, "bn", s->C);
    grad_fused(&n, which);
    grad_plain(&n, which);
    REQUIRE_OK(ref_bind(&n.run));
    for (int i = 0; i < 7; i++)
        ref_fill(&n.run, (const int[]){n.g, n.dy_x, n.dy_coeffs, n.w, n.x, n.add, n.bn_x}[i], 0.1, 1);
    for (int64_t i = 0; which == BLOCK && i < cr_tensor_elems(&n.run.p.tensor[n.x]);
         i++) /* an activation with some zeros */
        ref_set(&n.run, n.x, i, fmax(ref_at(&n.run, n.x, i), 0));
    ref_fill(&n.run, n.dw, 5, 0);
    ref_fill(&n.run, n.want_dw, 5, 0);
    bn_fill(&n.run, &n.bn);
    REQUIRE_OK(ref_exec(&n.run, 0, n.run.p.ops));
    same(&n.run, n.dw, n.want_dw);
    if (which != NO_DX) same(&n.run, n.dx, n.want_dx);
    if (which == INNER || which == BLOCK) same(&n.run, n.fused_sums, n.want_sums);
    ref_close(&n.run);
}

/* ---- finalization of the sums ---- */

/* gamma, beta, running mean and variance of K channels. */
static void parameters(struct ref_run *run, const char *name, int64_t K, int leaf[4]) {
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s.%d", name, i);
        leaf[i] = ref_leaf(run, text, 1, 1, 1, K);
    }
}

static void conv_finishes_its_sums(const struct shape *s) {
    struct ref_run run;
    int            own[4], plain[4];
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int    x = x_of(&run, s, "x"), w = w_of(&run, s), y = convolved(&run, s, x, w, "plain.y");
    struct cr_op op = op_of(CR_OP_conv), sums_op = op_of(CR_OP_bn_sums), fin = op_of(CR_OP_bn_finalize);
    parameters(&run, "own", s->K, own);
    parameters(&run, "plain", s->K, plain);
    sums_op.in[0]                  = y;
    fin.in[CR_IN_bn_finalize_sums] = ref_emit(&run, &sums_op, "plain.sums");
    fin.attr.bn =
        (struct cr_bn_attr){.eps = 0.25f, .momentum = 0.25f, .count = cr_tensor_elems(&run.p.tensor[y]) / s->K};
    for (int i = 0; i < 4; i++) {
        fin.in[CR_IN_bn_finalize_gamma + i] = plain[i];
        op.in[CR_IN_conv_gamma + i]         = own[i];
    }
    fin.out[CR_OUT_bn_finalize_running_mean] = plain[2];
    fin.out[CR_OUT_bn_finalize_running_var]  = plain[3];
    const int scale_bias                     = ref_emit(&run, &fin, "plain.scale_bias"),
              mean_rstd                      = run.p.op[run.p.ops - 1].out[CR_OUT_bn_finalize_mean_rstd];
    op.in[CR_IN_conv_x]                      = x;
    op.in[CR_IN_conv_w]                      = w;
    op.out[CR_OUT_conv_sums] = op.out[CR_OUT_conv_next_scale_bias] = op.out[CR_OUT_conv_mean_rstd] = CR_NEW;
    op.out[CR_OUT_conv_running_mean]                                                               = own[2];
    op.out[CR_OUT_conv_running_var]                                                                = own[3];
    op.attr.conv                                                                                   = window_of(s);
    op.attr.conv.bn                                                                                = fin.attr.bn;
    ref_emit(&run, &op, "y");
    const struct cr_op fused = run.p.op[run.p.ops - 1];
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 0.1, 1);
    ref_fill(&run, w, 0.1, 1);
    for (int i = 0; i < 4; i++) {
        ref_fill(&run, own[i], 1, 0.5);
        for (int64_t k = 0; k < s->K; k++) ref_set(&run, plain[i], k, ref_at(&run, own[i], k));
    }
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, fused.out[CR_OUT_conv_next_scale_bias], scale_bias);
    same(&run, fused.out[CR_OUT_conv_mean_rstd], mean_rstd);
    same(&run, own[2], plain[2]);
    same(&run, own[3], plain[3]);
    ref_close(&run);
}

static void conv_grad_finishes_its_sums(const struct shape *s, bool accumulate) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       g = y_of(&run, s, "g"), x = x_of(&run, s, "x"), w = w_of(&run, s);
    const struct bn bn = bn_leaves(&run, "bn", s->C);
    struct cr_op    op = op_of(CR_OP_conv_grad), fin = op_of(CR_OP_bn_grad_finalize);
    int             dgamma[2], dbeta[2];
    for (int i = 0; i < 2; i++) {
        dgamma[i] = like(&run, bn.gamma, i ? "plain.dgamma" : "dgamma");
        dbeta[i]  = like(&run, bn.gamma, i ? "plain.dbeta" : "dbeta");
    }
    op.in[CR_IN_conv_grad_g]          = g;
    op.in[CR_IN_conv_grad_w]          = w;
    op.in[CR_IN_conv_grad_x]          = x;
    op.in[CR_IN_conv_grad_scale_bias] = bn.scale_bias;
    op.in[CR_IN_conv_grad_mean_rstd]  = bn.mean_rstd;
    op.in[CR_IN_conv_grad_gamma]      = bn.gamma;
    op.out[CR_OUT_conv_grad_dx] = op.out[CR_OUT_conv_grad_grad_sums] = op.out[CR_OUT_conv_grad_grad_coeffs] = CR_NEW;
    op.out[CR_OUT_conv_grad_dw]     = like(&run, w, "dw");
    op.out[CR_OUT_conv_grad_dgamma] = dgamma[0];
    op.out[CR_OUT_conv_grad_dbeta]  = dbeta[0];
    op.attr.conv                    = window_of(s);
    op.attr.conv.bn                 = (struct cr_bn_attr){.count = s->N * s->H * s->W, .accumulate = accumulate};
    ref_emit(&run, &op, "dx");
    const struct cr_op fused = run.p.op[run.p.ops - 1];
    fin.in[CR_IN_bn_grad_finalize_grad_sums] =
        grad_sums(&run, fused.out[CR_OUT_conv_grad_dx], x, bn.mean_rstd, "plain.grad_sums");
    fin.in[CR_IN_bn_grad_finalize_gamma]     = bn.gamma;
    fin.in[CR_IN_bn_grad_finalize_mean_rstd] = bn.mean_rstd;
    fin.out[CR_OUT_bn_grad_finalize_dgamma]  = dgamma[1];
    fin.out[CR_OUT_bn_grad_finalize_dbeta]   = dbeta[1];
    fin.attr.bn                              = op.attr.conv.bn;
    ref_emit(&run, &fin, "plain");
    const int scale_bias = run.p.op[run.p.ops - 1].out[CR_OUT_bn_grad_finalize_coeffs];
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 3; i++) ref_fill(&run, (const int[]){g, x, w}[i], 0.1, 1);
    for (int i = 0; i < 2; i++) ref_fill(&run, dgamma[i], 5, 0), ref_fill(&run, dbeta[i], 3, 0);
    bn_fill(&run, &bn);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, fused.out[CR_OUT_conv_grad_grad_coeffs], scale_bias);
    same(&run, dgamma[0], dgamma[1]);
    same(&run, dbeta[0], dbeta[1]);
    ref_close(&run);
}

static void sums_are_finished(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        conv_finishes_its_sums(&shapes[i]);
        conv_grad_finishes_its_sums(&shapes[i], false);
        conv_grad_finishes_its_sums(&shapes[i], true);
    }
}

static void convolutions(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        conv_reads_act_and_sums(&shapes[i]);
        conv_ends_with_bias_add_relu(&shapes[i]);
        wgrad_reads_act(&shapes[i], false);
        wgrad_reads_act(&shapes[i], true);
        dgrad_ends_with_add_and_relu_mask(&shapes[i]);
    }
}

static void whole_backward(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int which = PLAIN; which < GRAD_CASES; which++) conv_grad_is_its_chain(&shapes[i], (enum grad_case)which);
}

TESTS(CASE(convolutions), CASE(whole_backward), CASE(sums_are_finished))

/* test_ref_fused.c: every fused op of the reference rows beside the chain of plain ops that it stands for, in double. The
 * plain ones are judged by PyTorch's numbers and by finite differences (test_ref_golden, test_ref_grad). */
#include "ref_run.h"

/* ---- building ---- */

static struct cr_op op_of(enum cr_op_kind kind) { return cr_op_make(kind, CR_NONE); }

/* (scale, bias) and (mean, rstd) of C channels, as a BN with these parameters has them. */
struct bn {
    int gamma, beta, saved, coef;
};
static struct bn bn_leaves(struct ref_run *run, const char *name, int64_t C) {
    static const char *const part[4] = {"gamma", "beta", "saved", "coef"};
    int                      id[4];
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s.%s", name, part[i]);
        id[i] = ref_leaf(run, text, i < 2 ? 1 : 2, 1, 1, C);
    }
    return (struct bn){id[0], id[1], id[2], id[3]};
}
static void bn_fill(struct ref_run *run, const struct bn *b) {
    const int64_t C = run->p.tensor[b->gamma].dim[3];
    ref_fill(run, b->gamma, 1, 0.5);
    ref_fill(run, b->beta, 0.3, 0.5); /* most are not 0: what happens to the padding shows */
    ref_fill(run, b->saved, 0.1, 0.3);
    for (int64_t c = 0; c < C; c++) {
        const double rstd = 0.5 + fabs(ref_at(run, b->saved, C + c)), scale = ref_at(run, b->gamma, c) * rstd;
        ref_set(run, b->saved, C + c, rstd);
        ref_set(run, b->coef, c, scale);
        ref_set(run, b->coef, C + c, ref_at(run, b->beta, c) - ref_at(run, b->saved, c) * scale);
    }
}

static int activated(struct ref_run *run, int x, int coef, const char *name) {
    struct cr_op op           = op_of(CR_OP_bn_apply);
    op.in[CR_IN_bn_apply_x]    = x;
    op.in[CR_IN_bn_apply_coef] = coef;
    op.attr.bn.relu            = true;
    return ref_emit(run, &op, name);
}
static int summed(struct ref_run *run, int a, int b, const char *name) {
    struct cr_op op = op_of(CR_OP_add);
    op.in[0]        = a;
    op.in[1]        = b;
    return ref_emit(run, &op, name);
}
static int gated(struct ref_run *run, int dy, int y, const char *name) {
    struct cr_op op           = op_of(CR_OP_relu_grad);
    op.in[CR_IN_relu_grad_dy] = dy;
    op.in[CR_IN_relu_grad_y]  = y;
    return ref_emit(run, &op, name);
}
static int grad_sums(struct ref_run *run, int dy, int x, int saved, const char *name) {
    struct cr_op op                  = op_of(CR_OP_bn_grad_stats);
    op.in[CR_IN_bn_grad_stats_dy]    = dy;
    op.in[CR_IN_bn_grad_stats_x]     = x;
    op.in[CR_IN_bn_grad_stats_saved] = saved;
    return ref_emit(run, &op, name);
}
/* A leaf of an own name shaped like `like`. */
static int like(struct ref_run *run, int tensor, const char *name) {
    const int64_t *d = run->p.tensor[tensor].dim;
    return ref_leaf(run, name, d[0], d[1], d[2], d[3]);
}

/* ---- comparing ---- */

static void same(const struct ref_run *run, int got, int want) {
    const struct cr_tensor *t     = &run->p.tensor[got];
    const int64_t           n     = cr_tensor_elems(t);
    double                  scale = 0;
    int64_t                 moved = 0;
    REQUIRE(n == cr_tensor_elems(&run->p.tensor[want]));
    for (int64_t i = 0; i < n; i++) {
        scale = fmax(scale, fabs(ref_at(run, want, i)));
        moved += ref_at(run, want, i) != 0;
    }
    CHECK(moved * 8 > n); /* a comparison of zeros proves nothing */
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(ref_at(run, got, i) - ref_at(run, want, i)) <= 1e-12 * (1 + scale)))
            TEST_FAIL_("%s[%lld] = %.17g, %s has %.17g", t->name, (long long)i, ref_at(run, got, i), run->p.tensor[want].name,
                       ref_at(run, want, i));
}

static void go(struct ref_run *run, const int *leaf, int leaves, const struct bn *bn, int bns) {
    REQUIRE_OK(ref_bind(run));
    for (int i = 0; i < leaves; i++) ref_fill(run, leaf[i], 0.1, 1);
    for (int i = 0; i < bns; i++) bn_fill(run, &bn[i]);
    REQUIRE_OK(ref_exec(run, 0, run->p.ops));
}
#define GO(run, bn, bns, ...) go(run, (const int[]){__VA_ARGS__}, (int)CR_COUNT(((const int[]){__VA_ARGS__})), bn, bns)

/* ---- convolutions ---- */

struct shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
};
static const struct shape shapes[] = {{2, 6, 5, 8, 16, 3, 1, 1}, {2, 7, 7, 5, 3, 3, 2, 1}, {3, 4, 4, 16, 24, 1, 1, 0}, {2, 5, 6, 70, 8, 1, 2, 0}};

static struct cr_conv_attr window_of(const struct shape *s) { return (struct cr_conv_attr){.stride = s->stride, .pad = s->pad}; }
static int x_of(struct ref_run *run, const struct shape *s, const char *name) { return ref_leaf(run, name, s->N, s->H, s->W, s->C); }
static int w_of(struct ref_run *run, const struct shape *s) { return ref_leaf(run, "w", s->K, s->window, s->window, s->C); }
static int y_of(struct ref_run *run, const struct shape *s, const char *name) {
    return ref_leaf(run, name, s->N, (s->H + 2 * s->pad - s->window) / s->stride + 1, (s->W + 2 * s->pad - s->window) / s->stride + 1, s->K);
}

static int convolved(struct ref_run *run, const struct shape *s, int x, int w, const char *name) {
    struct cr_op op       = op_of(CR_OP_conv);
    op.in[CR_IN_conv_x]   = x;
    op.in[CR_IN_conv_w]   = w;
    op.attr.conv          = window_of(s);
    return ref_emit(run, &op, name);
}

static void conv_reads_act_and_sums(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = x_of(&run, s, "x"), w = w_of(&run, s);
    const struct bn bn = bn_leaves(&run, "bn", s->C);
    struct cr_op    op = op_of(CR_OP_conv), stats = op_of(CR_OP_bn_stats);
    op.in[CR_IN_conv_x]       = x;
    op.in[CR_IN_conv_w]       = w;
    op.in[CR_IN_conv_coef]    = bn.coef;
    op.out[CR_OUT_conv_stats] = CR_NEW;
    op.attr.conv              = window_of(s);
    const int y = ref_emit(&run, &op, "y"), sums = run.p.op[0].out[CR_OUT_conv_stats];
    const int plain = convolved(&run, s, activated(&run, x, bn.coef, "xa"), w, "plain.y");
    stats.in[0]     = plain;
    const int want  = ref_emit(&run, &stats, "plain.stats");
    GO(&run, &bn, 1, x, w);
    same(&run, y, plain);
    same(&run, sums, want);
    ref_close(&run);
}

/* A BN that only adds a bias stands for it. */
static void conv_ends_with_bias_add_relu(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int x = x_of(&run, s, "x"), w = w_of(&run, s), add = y_of(&run, s, "add"), bias = ref_leaf(&run, "bias", 1, 1, 1, s->K);
    const int coef = ref_leaf(&run, "coef", 2, 1, 1, s->K);
    struct cr_op op = op_of(CR_OP_conv), bn = op_of(CR_OP_bn_apply);
    op.in[CR_IN_conv_x]    = x;
    op.in[CR_IN_conv_w]    = w;
    op.in[CR_IN_conv_bias] = bias;
    op.in[CR_IN_conv_add]  = add;
    op.attr.conv           = window_of(s);
    op.attr.conv.relu      = true;
    const int y = ref_emit(&run, &op, "y");
    bn.in[CR_IN_bn_apply_x]    = convolved(&run, s, x, w, "plain.y");
    bn.in[CR_IN_bn_apply_coef] = coef;
    bn.in[CR_IN_bn_apply_add]  = add;
    bn.attr.bn.relu            = true;
    const int want = ref_emit(&run, &bn, "want");
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 4; i++) ref_fill(&run, (const int[]){x, w, add, bias}[i], 0.1, 1);
    for (int64_t k = 0; k < s->K; k++) {
        ref_set(&run, coef, k, 1);
        ref_set(&run, coef, s->K + k, ref_at(&run, bias, k));
    }
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, y, want);
    ref_close(&run);
}

static void wgrad_reads_act(const struct shape *s, bool accumulate) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = x_of(&run, s, "x"), dy = y_of(&run, s, "dy"), dw = w_of(&run, s), want = like(&run, dw, "want");
    const struct bn bn = bn_leaves(&run, "bn", s->C);
    struct cr_op    op = op_of(CR_OP_conv_wgrad);
    op.in[CR_IN_conv_wgrad_dy] = dy;
    op.attr.conv               = window_of(s);
    op.attr.conv.accumulate    = accumulate;
    for (int plain = 0; plain < 2; plain++) {
        op.in[CR_IN_conv_wgrad_x]    = plain ? activated(&run, x, bn.coef, "xa") : x;
        op.in[CR_IN_conv_wgrad_coef] = plain ? CR_NONE : bn.coef;
        op.out[CR_OUT_conv_wgrad_dw] = plain ? want : dw;
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

static void dgrad_ends_with_add_and_gate(const struct shape *s) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       dy = y_of(&run, s, "dy"), w = w_of(&run, s), add = x_of(&run, s, "add"), bn_x = x_of(&run, s, "bn_x");
    const struct bn bn = bn_leaves(&run, "bn", s->C);
    struct cr_op    op = op_of(CR_OP_conv_dgrad);
    op.in[CR_IN_conv_dgrad_dy]       = dy;
    op.in[CR_IN_conv_dgrad_w]        = w;
    op.in[CR_IN_conv_dgrad_add]      = add;
    op.in[CR_IN_conv_dgrad_bn_x]     = bn_x;
    op.in[CR_IN_conv_dgrad_saved]    = bn.saved;
    op.in[CR_IN_conv_dgrad_gamma]    = bn.gamma;
    op.in[CR_IN_conv_dgrad_beta]     = bn.beta;
    op.out[CR_OUT_conv_dgrad_dx]     = x_of(&run, s, "dx");
    op.out[CR_OUT_conv_dgrad_dstats] = CR_NEW;
    op.attr.conv                     = window_of(s);
    const int dstats = ref_emit_slot(&run, &op, "dx", CR_OUT_conv_dgrad_dstats);
    const int sum    = summed(&run, dgraded(&run, s, dy, w, "plain.v"), add, "plain.sum");
    const int dx     = gated(&run, sum, activated(&run, bn_x, bn.coef, "act"), "plain.dx");
    const int want   = grad_sums(&run, dx, bn_x, bn.saved, "plain.dstats");
    GO(&run, &bn, 1, dy, w, add, bn_x);
    same(&run, op.out[CR_OUT_conv_dgrad_dx], dx);
    same(&run, dstats, want);
    ref_close(&run);
}

/* ---- the whole backward of a convolution ---- */

enum grad_case { PLAIN, THROUGH, INNER, BLOCK, NO_DX, GRAD_CASES };

struct grad_net {
    struct ref_run  run;
    const struct shape *s;
    int             g, dy_x, dy_coef, w, x, add, bn_x, dx, dw, dstats; /* of the op */
    int             want_dx, want_dw, want_dstats;
    struct bn       bn;
};

static void grad_fused(struct grad_net *n, enum grad_case which) {
    struct cr_op op = op_of(CR_OP_conv_grad);
    op.in[CR_IN_conv_grad_g] = n->g;
    op.in[CR_IN_conv_grad_w] = n->w;
    op.in[CR_IN_conv_grad_x] = n->x;
    if (which != PLAIN) {
        op.in[CR_IN_conv_grad_dy_x]    = n->dy_x;
        op.in[CR_IN_conv_grad_dy_coef] = n->dy_coef;
        op.in[CR_IN_conv_grad_add]     = n->add;
    }
    if (which == INNER) op.in[CR_IN_conv_grad_coef] = n->bn.coef;
    if (which == INNER || which == BLOCK) {
        op.in[CR_IN_conv_grad_saved]    = n->bn.saved;
        op.out[CR_OUT_conv_grad_dstats] = CR_NEW;
    }
    if (which == BLOCK) op.in[CR_IN_conv_grad_bn_x] = n->bn_x;
    op.out[CR_OUT_conv_grad_dx] = which == NO_DX ? CR_NONE : CR_NEW;
    op.out[CR_OUT_conv_grad_dw] = n->dw;
    op.attr.conv                = window_of(n->s);
    op.attr.conv.accumulate     = which == INNER;
    const int index = cr_emit(&n->run.p, &op, "fused");
    n->dx     = n->run.p.op[index].out[CR_OUT_conv_grad_dx];
    n->dstats = n->run.p.op[index].out[CR_OUT_conv_grad_dstats];
}

static void grad_plain(struct grad_net *n, enum grad_case which) {
    struct ref_run *run = &n->run;
    struct cr_op    bn = op_of(CR_OP_bn_grad_apply), wgrad = op_of(CR_OP_conv_wgrad);
    int             dy = n->g, xa = which == INNER ? activated(run, n->x, n->bn.coef, "xa") : n->x;
    bn.in[CR_IN_bn_grad_apply_dy]   = n->g;
    bn.in[CR_IN_bn_grad_apply_x]    = n->dy_x;
    bn.in[CR_IN_bn_grad_apply_coef] = n->dy_coef;
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
    n->want_dx     = gated(run, n->want_dx, xa, "want.dx");
    n->want_dstats = grad_sums(run, n->want_dx, which == INNER ? n->x : n->bn_x, n->bn.saved, "want.dstats");
}

static void conv_grad_is_its_chain(const struct shape *s, enum grad_case which) {
    struct grad_net n = {.s = s};
    REQUIRE_OK(ref_open(&n.run, CR_F64, 2));
    n.g       = y_of(&n.run, s, "g");
    n.dy_x    = y_of(&n.run, s, "dy_x");
    n.dy_coef = ref_leaf(&n.run, "dy_coef", 3, 1, 1, s->K);
    n.w       = w_of(&n.run, s);
    n.x       = x_of(&n.run, s, "x");
    n.add     = x_of(&n.run, s, "add");
    n.bn_x    = x_of(&n.run, s, "bn_x");
    n.dw      = like(&n.run, n.w, "dw");
    n.want_dw = like(&n.run, n.w, "want.dw");
    n.bn      = bn_leaves(&n.run, "bn", s->C);
    grad_fused(&n, which);
    grad_plain(&n, which);
    REQUIRE_OK(ref_bind(&n.run));
    for (int i = 0; i < 7; i++) ref_fill(&n.run, (const int[]){n.g, n.dy_x, n.dy_coef, n.w, n.x, n.add, n.bn_x}[i], 0.1, 1);
    for (int64_t i = 0; which == BLOCK && i < cr_tensor_elems(&n.run.p.tensor[n.x]); i++) /* an activation, some exactly 0 */
        ref_set(&n.run, n.x, i, fmax(ref_at(&n.run, n.x, i), 0));
    ref_fill(&n.run, n.dw, 5, 0);
    ref_fill(&n.run, n.want_dw, 5, 0);
    bn_fill(&n.run, &n.bn);
    REQUIRE_OK(ref_exec(&n.run, 0, n.run.p.ops));
    same(&n.run, n.dw, n.want_dw);
    if (which != NO_DX) same(&n.run, n.dx, n.want_dx);
    if (which == INNER || which == BLOCK) same(&n.run, n.dstats, n.want_dstats);
    ref_close(&n.run);
}

/* ---- what becomes of the sums ---- */

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
    struct cr_op op = op_of(CR_OP_conv), stats = op_of(CR_OP_bn_stats), fin = op_of(CR_OP_bn_finalize);
    parameters(&run, "own", s->K, own);
    parameters(&run, "plain", s->K, plain);
    stats.in[0]                     = y;
    fin.in[CR_IN_bn_finalize_stats] = ref_emit(&run, &stats, "plain.stats");
    fin.attr.bn = (struct cr_bn_attr){.eps = 0.25f, .momentum = 0.25f, .count = cr_tensor_elems(&run.p.tensor[y]) / s->K};
    for (int i = 0; i < 4; i++) {
        fin.in[CR_IN_bn_finalize_gamma + i] = plain[i];
        op.in[CR_IN_conv_gamma + i]         = own[i];
    }
    fin.out[CR_OUT_bn_finalize_running_mean] = plain[2];
    fin.out[CR_OUT_bn_finalize_running_var]  = plain[3];
    const int coef = ref_emit(&run, &fin, "plain.coef"), saved = run.p.op[run.p.ops - 1].out[CR_OUT_bn_finalize_saved];
    op.in[CR_IN_conv_x]       = x;
    op.in[CR_IN_conv_w]       = w;
    op.out[CR_OUT_conv_stats] = op.out[CR_OUT_conv_next] = op.out[CR_OUT_conv_saved] = CR_NEW;
    op.out[CR_OUT_conv_running_mean] = own[2];
    op.out[CR_OUT_conv_running_var]  = own[3];
    op.attr.conv                     = window_of(s);
    op.attr.conv.bn                  = fin.attr.bn;
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
    same(&run, fused.out[CR_OUT_conv_next], coef);
    same(&run, fused.out[CR_OUT_conv_saved], saved);
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
    op.in[CR_IN_conv_grad_g]            = g;
    op.in[CR_IN_conv_grad_w]            = w;
    op.in[CR_IN_conv_grad_x]            = x;
    op.in[CR_IN_conv_grad_coef]         = bn.coef;
    op.in[CR_IN_conv_grad_saved]        = bn.saved;
    op.in[CR_IN_conv_grad_gamma]        = bn.gamma;
    op.out[CR_OUT_conv_grad_dx]         = op.out[CR_OUT_conv_grad_dstats] = op.out[CR_OUT_conv_grad_grad_coef] = CR_NEW;
    op.out[CR_OUT_conv_grad_dw]         = like(&run, w, "dw");
    op.out[CR_OUT_conv_grad_dgamma]     = dgamma[0];
    op.out[CR_OUT_conv_grad_dbeta]      = dbeta[0];
    op.attr.conv                        = window_of(s);
    op.attr.conv.bn                     = (struct cr_bn_attr){.count = s->N * s->H * s->W, .accumulate = accumulate};
    ref_emit(&run, &op, "dx");
    const struct cr_op fused = run.p.op[run.p.ops - 1];
    fin.in[CR_IN_bn_grad_finalize_dstats]   = grad_sums(&run, fused.out[CR_OUT_conv_grad_dx], x, bn.saved, "plain.dstats");
    fin.in[CR_IN_bn_grad_finalize_gamma]    = bn.gamma;
    fin.in[CR_IN_bn_grad_finalize_saved]    = bn.saved;
    fin.out[CR_OUT_bn_grad_finalize_dgamma] = dgamma[1];
    fin.out[CR_OUT_bn_grad_finalize_dbeta]  = dbeta[1];
    fin.attr.bn                             = op.attr.conv.bn;
    ref_emit(&run, &fin, "plain");
    const int coef = run.p.op[run.p.ops - 1].out[CR_OUT_bn_grad_finalize_coef];
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 3; i++) ref_fill(&run, (const int[]){g, x, w}[i], 0.1, 1);
    for (int i = 0; i < 2; i++) ref_fill(&run, dgamma[i], 5, 0), ref_fill(&run, dbeta[i], 3, 0);
    bn_fill(&run, &bn);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, fused.out[CR_OUT_conv_grad_grad_coef], coef);
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
        dgrad_ends_with_add_and_gate(&shapes[i]);
    }
}

static void whole_backward(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int which = PLAIN; which < GRAD_CASES; which++) conv_grad_is_its_chain(&shapes[i], (enum grad_case)which);
}

/* ---- the end of a block, masks of bits ---- */

static void block_end(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = ref_leaf(&run, "x", 3, 5, 4, 24), dy = like(&run, x, "dy"), add = like(&run, x, "add"), x2 = like(&run, x, "x2");
    const struct bn bn[2] = {bn_leaves(&run, "bn", 24), bn_leaves(&run, "bn2", 24)};
    struct cr_op    apply = op_of(CR_OP_bn_apply), grad = op_of(CR_OP_relu_grad);
    apply.in[CR_IN_bn_apply_x]      = x;
    apply.in[CR_IN_bn_apply_coef]   = bn[0].coef;
    apply.attr.bn.relu              = true;
    apply.out[CR_OUT_bn_apply_mask] = CR_NEW;
    const int y = ref_emit(&run, &apply, "y"), mask = run.p.op[0].out[CR_OUT_bn_apply_mask];
    grad.in[CR_IN_relu_grad_dy]     = dy;
    grad.in[CR_IN_relu_grad_y]      = mask;
    grad.in[CR_IN_relu_grad_add]    = add;
    grad.in[CR_IN_relu_grad_bn_x]   = x;
    grad.in[CR_IN_relu_grad_saved]  = bn[0].saved;
    grad.in[CR_IN_relu_grad_bn2_x]  = x2;
    grad.in[CR_IN_relu_grad_saved2] = bn[1].saved;
    grad.out[CR_OUT_relu_grad_dstats] = grad.out[CR_OUT_relu_grad_dstats2] = CR_NEW;
    const int dx   = ref_emit(&run, &grad, "dx");
    const int sums = run.p.op[1].out[CR_OUT_relu_grad_dstats], sums2 = run.p.op[1].out[CR_OUT_relu_grad_dstats2];
    const int want = gated(&run, summed(&run, dy, add, "sum"), y, "want");
    const int want_sums = grad_sums(&run, want, x, bn[0].saved, "want.sums"), want_sums2 = grad_sums(&run, want, x2, bn[1].saved, "want.sums2");
    GO(&run, bn, 2, x, dy, add, x2);
    same(&run, dx, want);
    same(&run, sums, want_sums);
    same(&run, sums2, want_sums2);
    for (int64_t i = 0; i < cr_tensor_elems(&run.p.tensor[x]); i++)
        if (((int)ref_at(&run, mask, i / 8) >> (i % 8) & 1) != (ref_at(&run, y, i) > 0)) TEST_FAIL_("bit %lld", (long long)i);
    ref_close(&run);
}

/* The gate of a BN's gradient: from the activation, from its bits, made again from act. */
static void bn_gradient_gates(void) {
    struct ref_run run;
    int            dx[3], sums[3];
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = ref_leaf(&run, "x", 2, 5, 3, 16), dy = like(&run, x, "dy"), k = ref_leaf(&run, "k", 3, 1, 1, 16);
    const struct bn bn    = bn_leaves(&run, "bn", 16);
    struct cr_op    apply = op_of(CR_OP_bn_apply);
    apply.in[CR_IN_bn_apply_x]      = x;
    apply.in[CR_IN_bn_apply_coef]   = bn.coef;
    apply.attr.bn.relu              = true;
    apply.out[CR_OUT_bn_apply_mask] = CR_NEW;
    const int y = ref_emit(&run, &apply, "y"), mask = run.p.op[0].out[CR_OUT_bn_apply_mask];
    for (int i = 0; i < 3; i++) {
        struct cr_op stats = op_of(CR_OP_bn_grad_stats), grad = op_of(CR_OP_bn_grad_apply);
        stats.in[CR_IN_bn_grad_stats_dy] = grad.in[CR_IN_bn_grad_apply_dy] = dy;
        stats.in[CR_IN_bn_grad_stats_x] = grad.in[CR_IN_bn_grad_apply_x] = x;
        stats.in[CR_IN_bn_grad_stats_saved]                              = bn.saved;
        grad.in[CR_IN_bn_grad_apply_coef]                                = k;
        if (i < 2) stats.in[CR_IN_bn_grad_stats_y] = grad.in[CR_IN_bn_grad_apply_y] = i ? mask : y;
        else stats.in[CR_IN_bn_grad_stats_act] = grad.in[CR_IN_bn_grad_apply_act] = bn.coef;
        char name[32];
        snprintf(name, sizeof name, "sums%d", i);
        sums[i] = ref_emit(&run, &stats, name);
        snprintf(name, sizeof name, "dx%d", i);
        dx[i] = ref_emit(&run, &grad, name);
    }
    GO(&run, &bn, 1, x, dy, k);
    for (int i = 1; i < 3; i++) {
        same(&run, sums[i], sums[0]);
        same(&run, dx[i], dx[0]);
    }
    ref_close(&run);
}

/* ---- pooling ---- */

static void pooling_reads_act(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int       x = ref_leaf(&run, "x", 2, 7, 6, 12), dy = ref_leaf(&run, "dy", 2, 4, 3, 12), k = ref_leaf(&run, "k", 3, 1, 1, 12);
    const struct bn bn   = bn_leaves(&run, "bn", 12);
    struct cr_op    pool = op_of(CR_OP_maxpool), back = op_of(CR_OP_maxpool_grad);
    struct cr_op    sums = op_of(CR_OP_pool_bn_grad_stats), apply = op_of(CR_OP_pool_bn_grad_apply), grad = op_of(CR_OP_bn_grad_apply);
    pool.attr.conv = back.attr.conv = sums.attr.conv = apply.attr.conv = (struct cr_conv_attr){.window = 3, .stride = 2, .pad = 1};
    pool.out[CR_OUT_maxpool_index] = CR_NEW;
    pool.in[CR_IN_maxpool_x]       = x;
    pool.in[CR_IN_maxpool_coef]    = bn.coef;
    const int y = ref_emit(&run, &pool, "y"), index = run.p.op[0].out[CR_OUT_maxpool_index];
    pool.in[CR_IN_maxpool_x]    = activated(&run, x, bn.coef, "xa");
    pool.in[CR_IN_maxpool_coef] = CR_NONE;
    const int want = ref_emit(&run, &pool, "want.y"), want_index = run.p.op[2].out[CR_OUT_maxpool_index];
    sums.in[CR_IN_pool_bn_grad_stats_dy] = apply.in[CR_IN_pool_bn_grad_apply_dy] = back.in[CR_IN_maxpool_grad_dy] = dy;
    sums.in[CR_IN_pool_bn_grad_stats_index] = apply.in[CR_IN_pool_bn_grad_apply_index] = back.in[CR_IN_maxpool_grad_index] = index;
    sums.in[CR_IN_pool_bn_grad_stats_x] = apply.in[CR_IN_pool_bn_grad_apply_x] = grad.in[CR_IN_bn_grad_apply_x] = x;
    sums.in[CR_IN_pool_bn_grad_stats_act] = apply.in[CR_IN_pool_bn_grad_apply_act] = bn.coef;
    sums.in[CR_IN_pool_bn_grad_stats_saved]                                        = bn.saved;
    apply.in[CR_IN_pool_bn_grad_apply_coef] = grad.in[CR_IN_bn_grad_apply_coef] = k;
    const int dstats = ref_emit(&run, &sums, "dstats"), dx = ref_emit(&run, &apply, "dx");
    back.out[CR_OUT_maxpool_grad_dx] = like(&run, x, "pool.dx");
    ref_emit(&run, &back, "");
    grad.in[CR_IN_bn_grad_apply_dy] = gated(&run, back.out[CR_OUT_maxpool_grad_dx], pool.in[CR_IN_maxpool_x], "g");
    const int want_dx = ref_emit(&run, &grad, "want.dx"), want_sums = grad_sums(&run, grad.in[CR_IN_bn_grad_apply_dy], x, bn.saved, "want.sums");
    GO(&run, &bn, 1, x, dy, k);
    same(&run, y, want);
    same(&run, index, want_index);
    same(&run, dstats, want_sums);
    same(&run, dx, want_dx);
    ref_close(&run);
}

/* ---- the space-to-depth stem ---- */

static void stem_in_depth(bool boxes) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const struct shape wide = {2, 10, 14, 3, 5, 7, 2, 3}, deep = {2, 8, 10, 16, 5, 4, 1, 0};
    const int    images = cr_tensor_add(&run.p, "images", CR_U8, CR_REGION_INPUT, 2, 10, 14, 3);
    const int    box    = cr_tensor_add(&run.p, "boxes", CR_I32, CR_REGION_INPUT, 2, 1, 1, 4);
    const int    w = w_of(&run, &wide), dy = y_of(&run, &wide, "dy"), dw = like(&run, w, "dw"), want_dw = like(&run, w, "want.dw");
    const int    deep_dw = ref_leaf(&run, "deep.dw", 5, 4, 4, 16);
    struct cr_op normalize = op_of(CR_OP_normalize), filter = op_of(CR_OP_s2d_filter), wgrad = op_of(CR_OP_conv_wgrad),
                 back = op_of(CR_OP_s2d_filter_grad);
    normalize.attr.input                  = (struct cr_input_attr){{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}, false};
    normalize.in[CR_IN_normalize_images]  = images;
    if (boxes) normalize.in[CR_IN_normalize_boxes] = box;
    const int x = ref_emit(&run, &normalize, "x");
    normalize.attr.input.s2d         = true;
    const int x16                    = ref_emit(&run, &normalize, "x16");
    filter.in[CR_IN_s2d_filter_w]    = w;
    const int w16 = ref_emit(&run, &filter, "w16"), y = convolved(&run, &deep, x16, w16, "y"), want = convolved(&run, &wide, x, w, "want.y");
    wgrad.in[CR_IN_conv_wgrad_dy] = dy;
    for (int plain = 0; plain < 2; plain++) {
        wgrad.in[CR_IN_conv_wgrad_x]    = plain ? x : x16;
        wgrad.out[CR_OUT_conv_wgrad_dw] = plain ? want_dw : deep_dw;
        wgrad.attr.conv                 = window_of(plain ? &wide : &deep);
        wgrad.attr.conv.accumulate      = plain;
        ref_emit(&run, &wgrad, "");
    }
    back.in[CR_IN_s2d_filter_grad_dy]   = deep_dw;
    back.out[CR_OUT_s2d_filter_grad_dw] = dw;
    back.attr.conv.accumulate           = true;
    ref_emit(&run, &back, "");
    REQUIRE_OK(ref_bind(&run));
    for (int64_t i = 0; i < cr_tensor_elems(&run.p.tensor[images]); i++) ref_set(&run, images, i, (double)(i * 37 % 251));
    for (int i = 0; i < 8; i++) ref_set(&run, box, i, (const double[]){1, -2, 1, 0, -3, 4, 0, 0}[i]);
    ref_fill(&run, w, 0, 1);
    ref_fill(&run, dy, 0, 1);
    ref_fill(&run, dw, 5, 0);
    ref_fill(&run, want_dw, 5, 0);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, y, want);
    same(&run, dw, want_dw);
    ref_close(&run);
}

static void stem(void) {
    stem_in_depth(false);
    stem_in_depth(true);
}

static void coefficients_have_a_copy(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    struct cr_op op                = op_of(CR_OP_bn_finalize);
    op.in[CR_IN_bn_finalize_stats] = ref_leaf(&run, "stats", 2, 1, 1, 5);
    for (int i = 1; i < 5; i++) op.in[i] = ref_leaf(&run, cr_op_info(CR_OP_bn_finalize)->in_name[i], 1, 1, 1, 5);
    op.out[CR_OUT_bn_finalize_running_mean] = op.in[CR_IN_bn_finalize_running_mean];
    op.out[CR_OUT_bn_finalize_running_var]  = op.in[CR_IN_bn_finalize_running_var];
    op.out[CR_OUT_bn_finalize_coef_half]    = CR_NEW;
    op.attr.bn                              = (struct cr_bn_attr){.eps = 0.25f, .momentum = 0.5f, .count = 4};
    const int coef = ref_emit(&run, &op, "coef"), copy = run.p.op[0].out[CR_OUT_bn_finalize_coef_half];
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 5; i++) ref_fill(&run, op.in[i], 1, 1);
    for (int c = 0; c < 5; c++) ref_set(&run, op.in[CR_IN_bn_finalize_stats], 5 + c, 40 + c);
    REQUIRE_OK(ref_exec(&run, 0, 1));
    same(&run, copy, coef);
    ref_close(&run);
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(convolutions), CASE(whole_backward), CASE(sums_are_finished), CASE(block_end), CASE(bn_gradient_gates), CASE(pooling_reads_act), CASE(stem),
      CASE(coefficients_have_a_copy))

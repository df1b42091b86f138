/* tests/harness/reference_fused.h: helpers of the tests of fused reference ops: the unfused ops of a chain, and the
 * comparison of results. */
#ifndef CR_TEST_REF_FUSED_H
#define CR_TEST_REF_FUSED_H

#include "tests/harness/reference_run.h"

/* ---- building ---- */

static inline struct cr_op op_of(enum cr_op_kind kind) {
    return cr_op_make(kind, CR_NONE);
}

/* (scale, bias) and (mean, rstd) of C channels of a BN with these parameters. */
struct bn {
    int gamma, beta, mean_rstd, scale_bias;
};
static inline struct bn bn_leaves(struct ref_run *run, const char *name, int64_t C) {
    static const char *const part[4] = {"gamma", "beta", "mean_rstd", "scale_bias"};
    int                      id[4];
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s.%s", name, part[i]);
        id[i] = ref_leaf(run, text, i < 2 ? 1 : 2, 1, 1, C);
    }
    return (struct bn){id[0], id[1], id[2], id[3]};
}
static inline void bn_fill(struct ref_run *run, const struct bn *b) {
    const int64_t C = run->p.tensor[b->gamma].dim[3];
    ref_fill(run, b->gamma, 1, 0.5);
    ref_fill(run, b->beta, 0.3, 0.5); /* most values are not 0, so that a wrong padding is visible */
    ref_fill(run, b->mean_rstd, 0.1, 0.3);
    for (int64_t c = 0; c < C; c++) {
        const double rstd = 0.5 + fabs(ref_at(run, b->mean_rstd, C + c)), scale = ref_at(run, b->gamma, c) * rstd;
        ref_set(run, b->mean_rstd, C + c, rstd);
        ref_set(run, b->scale_bias, c, scale);
        ref_set(run, b->scale_bias, C + c, ref_at(run, b->beta, c) - ref_at(run, b->mean_rstd, c) * scale);
    }
}

static inline int activated(struct ref_run *run, int x, int scale_bias, const char *name) {
    struct cr_op op                  = op_of(CR_OP_bn_apply);
    op.in[CR_IN_bn_apply_x]          = x;
    op.in[CR_IN_bn_apply_scale_bias] = scale_bias;
    op.attr.bn.relu                  = true;
    return ref_emit(run, &op, name);
}
static inline int summed(struct ref_run *run, int a, int b, const char *name) {
    struct cr_op op = op_of(CR_OP_add);
    op.in[0]        = a;
    op.in[1]        = b;
    return ref_emit(run, &op, name);
}
static inline int relu_masked(struct ref_run *run, int dy, int y, const char *name) {
    struct cr_op op           = op_of(CR_OP_relu_grad);
    op.in[CR_IN_relu_grad_dy] = dy;
    op.in[CR_IN_relu_grad_y]  = y;
    return ref_emit(run, &op, name);
}
static inline int grad_sums(struct ref_run *run, int dy, int x, int mean_rstd, const char *name) {
    struct cr_op op                     = op_of(CR_OP_bn_grad_sums);
    op.in[CR_IN_bn_grad_sums_dy]        = dy;
    op.in[CR_IN_bn_grad_sums_x]         = x;
    op.in[CR_IN_bn_grad_sums_mean_rstd] = mean_rstd;
    return ref_emit(run, &op, name);
}
/* A leaf with its own name and the shape of `tensor`. */
static inline int like(struct ref_run *run, int tensor, const char *name) {
    const int64_t *d = run->p.tensor[tensor].dim;
    return ref_leaf(run, name, d[0], d[1], d[2], d[3]);
}

/* ---- comparing ---- */

static inline void same(const struct ref_run *run, int got, int want) {
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
            TEST_FAIL_("%s[%lld] = %.17g, %s has %.17g", t->name, (long long)i, ref_at(run, got, i),
                       run->p.tensor[want].name, ref_at(run, want, i));
}

static inline void fill_and_run(struct ref_run *run, const int *leaf, int leaves, const struct bn *bn, int bns) {
    REQUIRE_OK(ref_bind(run));
    for (int i = 0; i < leaves; i++) ref_fill(run, leaf[i], 0.1, 1);
    for (int i = 0; i < bns; i++) bn_fill(run, &bn[i]);
    REQUIRE_OK(ref_exec(run, 0, run->p.ops));
}
#define FILL_AND_RUN(run, bn, bns, ...)                                                                                \
    fill_and_run(run, (const int[]){__VA_ARGS__}, (int)CR_COUNT(((const int[]){__VA_ARGS__})), bn, bns)

/* ---- convolutions ---- */

struct shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
};
static inline struct cr_conv_attr window_of(const struct shape *s) {
    return (struct cr_conv_attr){.stride = s->stride, .pad = s->pad};
}
static inline int x_of(struct ref_run *run, const struct shape *s, const char *name) {
    return ref_leaf(run, name, s->N, s->H, s->W, s->C);
}
static inline int w_of(struct ref_run *run, const struct shape *s) {
    return ref_leaf(run, "w", s->K, s->window, s->window, s->C);
}
static inline int y_of(struct ref_run *run, const struct shape *s, const char *name) {
    return ref_leaf(run, name, s->N, (s->H + 2 * s->pad - s->window) / s->stride + 1,
                    (s->W + 2 * s->pad - s->window) / s->stride + 1, s->K);
}

static inline int convolved(struct ref_run *run, const struct shape *s, int x, int w, const char *name) {
    struct cr_op op     = op_of(CR_OP_conv);
    op.in[CR_IN_conv_x] = x;
    op.in[CR_IN_conv_w] = w;
    op.attr.conv        = window_of(s);
    return ref_emit(run, &op, name);
}

#endif

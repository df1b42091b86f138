/* tests/unit/device/test_gram_exact.c: batch statistics and gradients from a Gram matrix in a 16-bit program, against
 * FP64 sums over the convolution's output, where the mean of the input is 100 times its deviation. On one rank, and
 * with SyncBN on two, of which each has half of the pixels. */
#include "tests/harness/reference_run.h"

enum { N = 2, SIDE = 48, P = N * SIDE * SIDE, C = 16, K = 64, RANKS_MAX = 2 };

struct exact { /* the same in FP64 from the 16-bit operands; gradients of the filter by rank */
    double y[P][K], mean[K], var[K], sum_g[K], sum_gx[K], dx[P][C], dw[RANKS_MAX][K][C];
};

static double at(const struct ref_run *run, int tensor, int64_t i) {
    return cr_number_load(run->p.tensor[tensor].dtype, ref_data(run, tensor), i);
}

static void fill(struct ref_run *run, int tensor, double mean, double deviation, double by_channel) {
    const struct cr_tensor *t   = &run->p.tensor[tensor];
    struct cr_rng           rng = cr_rng_make(11, CR_RNG_TEST, (uint64_t)tensor, 0);
    for (int64_t i = 0; i < cr_tensor_elems(t); i++)
        cr_number_store(t->dtype, ref_data(run, tensor), i,
                        mean + by_channel * (double)(i % t->dim[3]) + deviation * (double)cr_rng_normal(&rng));
}

static int leaf(struct ref_run *run, const char *name, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c,
                int64_t d) {
    return cr_tensor_add(&run->p, name, dtype, CR_REGION_POOL, a, b, c, d);
}
static int vector(struct ref_run *run, const char *name, int64_t rows) {
    return leaf(run, name, CR_F32, rows, 1, 1, K);
}

/* One program with the ops of all ranks. Two ranks share the sums, which add_ranks sums. */
struct chain {
    struct ref_run    run;
    int               ranks, w, gamma, beta, mean, var, mean_rstd, all_sums, all_grad_sums;
    int               forward, backward; /* ops before the two sums over the ranks */
    struct cr_bn_attr bn;
    struct {
        int x, g, gram, sums, grad_sums, m, dy_sums, dw, dgamma, dbeta, dx;
    } rank[RANKS_MAX];
};

/* Number of the rank that has pixel p, and the pixel in its tensors. */
static int rank_of(const struct chain *s, int p) {
    return p / (P / s->ranks);
}
static int own(const struct chain *s, int p) {
    return p % (P / s->ranks);
}

static void open_chain(struct chain *s, int ranks) {
    struct ref_run *run = &s->run;
    REQUIRE_OK(ref_open(run, CR_F32, 1));
    run->p.real      = CR_F16;
    s->ranks         = ranks;
    s->bn            = (struct cr_bn_attr){.eps = 1e-12f, .momentum = 0.1f, .count = P, .ranks = ranks};
    s->w             = leaf(run, "w", CR_F16, K, 1, 1, C);
    s->gamma         = vector(run, "gamma", 1);
    s->beta          = vector(run, "beta", 1);
    s->mean          = vector(run, "mean", 1);
    s->var           = vector(run, "var", 1);
    s->all_sums      = vector(run, "all_sums", 2);
    s->all_grad_sums = vector(run, "all_grad_sums", 2);
    for (int r = 0; r < ranks; r++) {
        s->rank[r].x      = leaf(run, "x", CR_F16, N / ranks, SIDE, SIDE, C);
        s->rank[r].g      = leaf(run, "g", CR_F16, N / ranks, SIDE, SIDE, K);
        s->rank[r].m      = leaf(run, "m", CR_F32, K, 1, 1, C);
        s->rank[r].dw     = leaf(run, "dw", CR_F32, K, 1, 1, C);
        s->rank[r].dgamma = vector(run, "dgamma", 1);
        s->rank[r].dbeta  = vector(run, "dbeta", 1);
    }
}

/* gram; gram_bn_finalize with one rank, else gram_bn_sums */
static void emit_statistics(struct chain *s, int r) {
    struct ref_run *run   = &s->run;
    struct cr_op    gram  = op_on(CR_OP_gram, s->rank[r].x);
    gram.attr.conv.stride = 1;
    s->rank[r].gram       = ref_emit(run, &gram, "gram");
    struct cr_op sums     = op_on(CR_OP_gram_bn_sums, s->w, s->rank[r].gram, s->mean);
    sums.attr.bn          = s->bn;
    struct cr_op fin      = op_on(CR_OP_gram_bn_finalize, s->w, s->rank[r].gram, s->gamma, s->beta, s->mean, s->var);
    fin.attr.bn           = s->bn;
    fin.out[CR_OUT_gram_bn_finalize_running_mean] = s->mean;
    fin.out[CR_OUT_gram_bn_finalize_running_var]  = s->var;
    if (s->ranks > 1)
        s->rank[r].sums = ref_emit(run, &sums, "sums");
    else
        s->mean_rstd = ref_emit_slot(run, &fin, "fin", CR_OUT_gram_bn_finalize_mean_rstd);
}

static void emit_finish(struct chain *s) {
    struct cr_op fin = op_on(CR_OP_bn_finalize, s->all_sums, s->gamma, s->beta, s->mean, s->var, s->mean);
    fin.attr.bn      = s->bn;
    fin.out[CR_OUT_bn_finalize_running_mean] = s->mean;
    fin.out[CR_OUT_bn_finalize_running_var]  = s->var;
    s->mean_rstd                             = ref_emit_slot(&s->run, &fin, "fin", CR_OUT_bn_finalize_mean_rstd);
}

/* conv_wgrad, and with several ranks gram_bn_grad_sums */
static void emit_products(struct chain *s, int r) {
    struct ref_run *run                  = &s->run;
    struct cr_op    wgrad                = op_on(CR_OP_conv_wgrad, s->rank[r].x, s->rank[r].g);
    wgrad.attr.conv.stride               = 1;
    wgrad.out[CR_OUT_conv_wgrad_dw]      = s->rank[r].m;
    wgrad.out[CR_OUT_conv_wgrad_dy_sums] = CR_NEW;
    s->rank[r].dy_sums                   = ref_emit_slot(run, &wgrad, "sums", CR_OUT_conv_wgrad_dy_sums);
    struct cr_op sums = op_on(CR_OP_gram_bn_grad_sums, s->w, s->rank[r].m, s->rank[r].dy_sums, s->mean_rstd);
    if (s->ranks > 1) s->rank[r].grad_sums = ref_emit(run, &sums, "grad_sums");
}

/* gram_bn_grad, gram_dgrad */
static void emit_gradients(struct chain *s, int r) {
    struct ref_run *run  = &s->run;
    struct cr_op    grad = op_on(CR_OP_gram_bn_grad, s->w, s->rank[r].gram, s->rank[r].m, s->rank[r].dy_sums, s->gamma,
                                 s->mean_rstd),
                 dgrad   = cr_op_make(CR_OP_gram_dgrad, CR_NONE);
    dgrad.attr.conv.stride = 1;
    grad.attr.bn           = s->bn;
    if (s->ranks > 1) grad.in[CR_IN_gram_bn_grad_grad_sums] = s->all_grad_sums;
    grad.out[CR_OUT_gram_bn_grad_dw]     = s->rank[r].dw;
    grad.out[CR_OUT_gram_bn_grad_dgamma] = s->rank[r].dgamma;
    grad.out[CR_OUT_gram_bn_grad_dbeta]  = s->rank[r].dbeta;
    const int back                       = cr_emit(&run->p, &grad, "grad");
    dgrad.in[CR_IN_gram_dgrad_g]         = s->rank[r].g;
    dgrad.in[CR_IN_gram_dgrad_x]         = s->rank[r].x;
    for (int i = 0; i < 2; i++) dgrad.in[i ? CR_IN_gram_dgrad_w_x : CR_IN_gram_dgrad_w_g] = run->p.op[back].out[i];
    dgrad.in[CR_IN_gram_dgrad_factor_bias] = run->p.op[back].out[CR_OUT_gram_bn_grad_factor_bias];
    s->rank[r].dx                          = ref_emit(run, &dgrad, "dx");
}

static void emit_chain(struct chain *s) {
    for (int r = 0; r < s->ranks; r++) emit_statistics(s, r);
    s->forward = s->run.p.ops;
    if (s->ranks > 1) emit_finish(s);
    for (int r = 0; r < s->ranks; r++) emit_products(s, r);
    s->backward = s->run.p.ops;
    for (int r = 0; r < s->ranks; r++) emit_gradients(s, r);
}

/* The sum over two ranks in f32, as all_reduce. */
static void add_ranks(struct chain *s, int all, int a, int b) {
    for (int i = 0; i < 2 * K; i++)
        cr_number_store(CR_F32, ref_data(&s->run, all), i, at(&s->run, a, i) + at(&s->run, b, i));
}

/* Deviation 1 around a mean of 100 in every channel of x: 4 bits of each f16 value remain for the deviation. The second
 * rank has other means. */
static void fill_chain(struct chain *s) {
    fill(&s->run, s->w, 0, 0.25, 0);
    fill(&s->run, s->gamma, 1, 0.2, 0);
    for (int r = 0; r < s->ranks; r++) {
        fill(&s->run, s->rank[r].x, 100 + 2 * r, 1, 0.37);
        fill(&s->run, s->rank[r].g, 0.001 + 0.002 * r, 0.01, 0.0001);
    }
}

static void run_chain(struct chain *s) {
    REQUIRE_OK(ref_exec(&s->run, 0, s->forward));
    if (s->ranks > 1) add_ranks(s, s->all_sums, s->rank[0].sums, s->rank[1].sums);
    REQUIRE_OK(ref_exec(&s->run, s->forward, s->backward));
    if (s->ranks > 1) add_ranks(s, s->all_grad_sums, s->rank[0].grad_sums, s->rank[1].grad_sums);
    REQUIRE_OK(ref_exec(&s->run, s->backward, s->run.p.ops));
}

static void compute_forward(const struct chain *s, struct exact *e) {
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            const int x = s->rank[rank_of(s, p)].x;
            for (int c = 0; c < C; c++) e->y[p][k] += at(&s->run, s->w, k * C + c) * at(&s->run, x, own(s, p) * C + c);
            e->mean[k] += e->y[p][k] / P;
        }
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) e->var[k] += (e->y[p][k] - e->mean[k]) * (e->y[p][k] - e->mean[k]) / P;
}

static void compute_backward(const struct chain *s, struct exact *e) {
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            const double g = at(&s->run, s->rank[rank_of(s, p)].g, own(s, p) * K + k);
            e->sum_g[k] += g;
            e->sum_gx[k] += g * (e->y[p][k] - e->mean[k]);
        }
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            const int    r    = rank_of(s, p);
            const double rstd = 1 / sqrt(e->var[k]), d = e->y[p][k] - e->mean[k],
                         g  = at(&s->run, s->rank[r].g, own(s, p) * K + k),
                         dy = at(&s->run, s->gamma, k) * rstd *
                              (g - e->sum_g[k] / P - d * rstd * rstd * e->sum_gx[k] / P);
            for (int c = 0; c < C; c++) {
                e->dx[p][c] += dy * at(&s->run, s->w, k * C + c);
                e->dw[r][k][c] += dy * at(&s->run, s->rank[r].x, own(s, p) * C + c);
            }
        }
}

/* The sums over two ranks are f32 and about `center`. Both are rounded twice, by at most 2^-24 of their size. The
 * variance loses 6 times that of the square of the distance from the center, in deviations. */
static void check_statistics(const struct chain *s, const struct exact *e, const double *center) {
    double variance = 0, mean = 0;
    for (int k = 0; k < K; k++) {
        const double rstd = at(&s->run, s->mean_rstd, K + k), apart = (e->mean[k] - center[k]) / sqrt(e->var[k]),
                     lost = s->ranks > 1 ? 6 * 0x1p-24 * apart * apart : 0,
                     off  = fabs(1 / (rstd * rstd) / e->var[k] - 1);
        CHECK(off < 1e-5 + lost); /* 1e-3 is demanded; sums of squares in f32 lose 1e-3 and more */
        variance = fmax(variance, off);
        mean     = fmax(mean, fabs(at(&s->run, s->mean_rstd, k) - e->mean[k]) / sqrt(e->var[k]));
    }
    printf("    %d ranks: variance within %.1e, mean within %.1e deviations\n", s->ranks, variance, mean);
    CHECK(mean < 1e-4);
}

static void check_gradients(const struct chain *s, const struct exact *e) {
    double rms = 0, bias = 0, error = 0, filter = 0, filter_error = 0;
    for (int c = 0; c < C; c++) {
        double sum[RANKS_MAX] = {0};
        for (int p = 0; p < P; p++) {
            const double d = at(&s->run, s->rank[rank_of(s, p)].dx, own(s, p) * C + c) - e->dx[p][c];
            sum[rank_of(s, p)] += d * s->ranks / P;
            error += d * d / (P * C);
            rms += e->dx[p][c] * e->dx[p][c] / (P * C);
        }
        for (int r = 0; r < s->ranks; r++) bias = fmax(bias, fabs(sum[r]));
    }
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < K * C; i++) {
            const double want = (&e->dw[r][0][0])[i], d = at(&s->run, s->rank[r].dw, i) - want;
            filter += want * want;
            filter_error += d * d;
        }
    for (int k = 0; k < K; k++) {
        double dgamma = 0, dbeta = 0;
        for (int r = 0; r < s->ranks; r++) dgamma += at(&s->run, s->rank[r].dgamma, k);
        for (int r = 0; r < s->ranks; r++) dbeta += at(&s->run, s->rank[r].dbeta, k);
        CHECK_NEAR(dbeta, e->sum_g[k], 1e-5 * fabs(e->sum_g[k]));
        CHECK_NEAR(dgamma, e->sum_gx[k] / sqrt(e->var[k]), 1e-3 * fabs(e->sum_g[k]));
    }
    printf("    dx: error %.1e, largest bias of a channel %.1e; dw: error %.1e\n", sqrt(error / rms), bias / sqrt(rms),
           sqrt(filter_error / filter));
    CHECK(sqrt(error / rms) < 1e-2);
    CHECK(bias / sqrt(rms) < 1e-4); /* without the corrections of the bias: see gram_bn_grad */
    CHECK(sqrt(filter_error / filter) < 1e-3);
}

/* near: the running mean, about which ranks sum, is that of the batch but for a deviation; else it is 0. */
static void check_chain(int ranks, bool near) {
    struct chain  s = {0};
    struct exact *e = cr_alloc(1, sizeof *e);
    double        center[K];
    REQUIRE(e);
    open_chain(&s, ranks);
    emit_chain(&s);
    REQUIRE_OK(ref_bind(&s.run));
    fill_chain(&s);
    compute_forward(&s, e);
    for (int k = 0; k < K; k++) {
        cr_number_store(CR_F32, ref_data(&s.run, s.mean), k, near ? e->mean[k] + sqrt(e->var[k]) : 0);
        center[k] = at(&s.run, s.mean, k);
    }
    run_chain(&s);
    compute_backward(&s, e);
    check_statistics(&s, e, center);
    check_gradients(&s, e);
    ref_close(&s.run);
    cr_free(e);
}

TEST(large_means) {
    check_chain(1, false);
}
TEST(large_means_on_two_ranks) {
    check_chain(2, true);
    check_chain(2, false);
}

/* The shift has at most four bits, lies near its pixel, and is subtracted in f16 without rounding from larger values.
 */
TEST(shifts_have_few_bits) {
    double sample[CR_GRAM_SAMPLES] = {1.9, -0.5, 0, 0.1, 0.392334, 0.2, 0.3, 0.4};
    CHECK(cr_gram_shift(sample) == 0.375); /* a multiple of 1/8, because the largest is in [1, 2) */
    sample[CR_GRAM_CENTER] = -0.9;
    CHECK(cr_gram_shift(sample) == -0.875);
    sample[0] = -130;
    CHECK(cr_gram_shift(sample) == 0); /* below an eighth of 128 */
    sample[0] = INFINITY;
    CHECK(cr_gram_shift(sample) == -0.9);
    for (int i = 0; i < CR_GRAM_SAMPLES; i++) sample[i] = 0;
    CHECK(cr_gram_shift(sample) == 0);
    for (int i = 1; i < CR_GRAM_SAMPLES; i++) CHECK(cr_gram_sample(i, 8) == i && cr_gram_sample(i, 1) == 0);
    CHECK_INT((int)cr_gram_sample(CR_GRAM_SAMPLES - 1, 1000), 937);
}

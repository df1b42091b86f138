/* tests/unit/device/test_gram_exact.c: batch statistics and gradients from a Gram matrix in a 16-bit program, against
 * FP64 sums over the convolution's output, where the mean of the input is 100 times its deviation. */
#include "core/rng.h"
#include "tests/harness/reference_run.h"

enum { N = 2, SIDE = 48, P = N * SIDE * SIDE, C = 16, K = 64 };

struct exact { /* the same in FP64 from the 16-bit operands */
    double y[P][K], mean[K], var[K], sum_g[K], sum_gx[K], dx[P][C];
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

struct chain {
    struct ref_run run;
    int            x, w, g, gamma, mean_rstd, dx;
};

/* gram, gram_bn_finalize, conv_wgrad, gram_bn_grad, gram_dgrad */
static void emit_forward(struct chain *s, struct cr_op *grad) {
    struct ref_run *run  = &s->run;
    struct cr_op    gram = cr_op_make(CR_OP_gram, CR_NONE), fin = cr_op_make(CR_OP_gram_bn_finalize, CR_NONE);
    const int       mean = leaf(run, "mean", CR_F32, 1, 1, 1, K), var = leaf(run, "var", CR_F32, 1, 1, 1, K);
    gram.attr.conv.stride                         = 1;
    gram.in[CR_IN_gram_x]                         = s->x;
    fin.in[CR_IN_gram_bn_finalize_w]              = s->w;
    fin.in[CR_IN_gram_bn_finalize_gram]           = ref_emit(run, &gram, "gram");
    fin.in[CR_IN_gram_bn_finalize_gamma]          = s->gamma;
    fin.in[CR_IN_gram_bn_finalize_beta]           = leaf(run, "beta", CR_F32, 1, 1, 1, K);
    fin.in[CR_IN_gram_bn_finalize_running_mean]   = mean;
    fin.in[CR_IN_gram_bn_finalize_running_var]    = var;
    fin.out[CR_OUT_gram_bn_finalize_running_mean] = mean;
    fin.out[CR_OUT_gram_bn_finalize_running_var]  = var;
    fin.attr.bn                                   = (struct cr_bn_attr){.eps = 1e-12f, .momentum = 0.1f, .count = P};
    const int finalize                            = cr_emit(&run->p, &fin, "fin");
    s->mean_rstd                                  = run->p.op[finalize].out[CR_OUT_gram_bn_finalize_mean_rstd];
    grad->attr.bn                                 = fin.attr.bn;
    grad->in[CR_IN_gram_bn_grad_gram]             = fin.in[CR_IN_gram_bn_finalize_gram];
}

static void emit_backward(struct chain *s, struct cr_op *grad) {
    struct ref_run *run   = &s->run;
    struct cr_op    wgrad = cr_op_make(CR_OP_conv_wgrad, CR_NONE), dgrad = cr_op_make(CR_OP_gram_dgrad, CR_NONE);
    wgrad.attr.conv.stride = dgrad.attr.conv.stride = 1;
    wgrad.in[CR_IN_conv_wgrad_x]                    = s->x;
    wgrad.in[CR_IN_conv_wgrad_dy]                   = s->g;
    wgrad.out[CR_OUT_conv_wgrad_dw]                 = leaf(run, "m", CR_F32, K, 1, 1, C);
    wgrad.out[CR_OUT_conv_wgrad_dy_sums]            = CR_NEW;
    grad->in[CR_IN_gram_bn_grad_dy_sums]            = ref_emit_slot(run, &wgrad, "sums", CR_OUT_conv_wgrad_dy_sums);
    grad->in[CR_IN_gram_bn_grad_w]                  = s->w;
    grad->in[CR_IN_gram_bn_grad_m]                  = wgrad.out[CR_OUT_conv_wgrad_dw];
    grad->in[CR_IN_gram_bn_grad_gamma]              = s->gamma;
    grad->in[CR_IN_gram_bn_grad_mean_rstd]          = s->mean_rstd;
    grad->out[CR_OUT_gram_bn_grad_dw]               = leaf(run, "dw", CR_F32, K, 1, 1, C);
    grad->out[CR_OUT_gram_bn_grad_dgamma]           = leaf(run, "dgamma", CR_F32, 1, 1, 1, K);
    grad->out[CR_OUT_gram_bn_grad_dbeta]            = leaf(run, "dbeta", CR_F32, 1, 1, 1, K);
    const int back                                  = cr_emit(&run->p, grad, "grad");
    dgrad.in[CR_IN_gram_dgrad_g]                    = s->g;
    dgrad.in[CR_IN_gram_dgrad_x]                    = s->x;
    dgrad.in[CR_IN_gram_dgrad_w_g]                  = run->p.op[back].out[CR_OUT_gram_bn_grad_w_g];
    dgrad.in[CR_IN_gram_dgrad_w_x]                  = run->p.op[back].out[CR_OUT_gram_bn_grad_w_x];
    dgrad.in[CR_IN_gram_dgrad_factor_bias]          = run->p.op[back].out[CR_OUT_gram_bn_grad_factor_bias];
    s->dx                                           = ref_emit(run, &dgrad, "dx");
}

/* Deviation 1 around a mean of 100 in every channel of x: 4 bits of each f16 value remain for the deviation. */
static void run_chain(struct chain *s) {
    struct cr_op grad = cr_op_make(CR_OP_gram_bn_grad, CR_NONE);
    REQUIRE_OK(ref_open(&s->run, CR_F32, 1));
    s->run.p.real = CR_F16;
    s->x          = leaf(&s->run, "x", CR_F16, N, SIDE, SIDE, C);
    s->w          = leaf(&s->run, "w", CR_F16, K, 1, 1, C);
    s->g          = leaf(&s->run, "g", CR_F16, N, SIDE, SIDE, K);
    s->gamma      = leaf(&s->run, "gamma", CR_F32, 1, 1, 1, K);
    emit_forward(s, &grad);
    emit_backward(s, &grad);
    REQUIRE_OK(ref_bind(&s->run));
    fill(&s->run, s->x, 100, 1, 0.37);
    fill(&s->run, s->w, 0, 0.25, 0);
    fill(&s->run, s->g, 0.001, 0.01, 0.0001);
    fill(&s->run, s->gamma, 1, 0.2, 0);
    REQUIRE_OK(ref_exec(&s->run, 0, s->run.p.ops));
}

static void compute_exact(const struct chain *s, struct exact *e) {
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            for (int c = 0; c < C; c++) e->y[p][k] += at(&s->run, s->w, k * C + c) * at(&s->run, s->x, p * C + c);
            e->mean[k] += e->y[p][k] / P;
        }
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            const double d = e->y[p][k] - e->mean[k], g = at(&s->run, s->g, p * K + k);
            e->var[k] += d * d / P;
            e->sum_g[k] += g;
            e->sum_gx[k] += g * d;
        }
    for (int p = 0; p < P; p++)
        for (int k = 0; k < K; k++) {
            const double rstd = 1 / sqrt(e->var[k]), d = e->y[p][k] - e->mean[k], g = at(&s->run, s->g, p * K + k),
                         dy = at(&s->run, s->gamma, k) * rstd *
                              (g - e->sum_g[k] / P - d * rstd * rstd * e->sum_gx[k] / P);
            for (int c = 0; c < C; c++) e->dx[p][c] += dy * at(&s->run, s->w, k * C + c);
        }
}

static void large_means(void) {
    struct chain  s = {0};
    struct exact *e = cr_alloc(1, sizeof *e);
    REQUIRE(e);
    run_chain(&s);
    compute_exact(&s, e);
    double variance = 0, mean = 0, rms = 0, bias = 0, error = 0;
    for (int k = 0; k < K; k++) {
        const double rstd = at(&s.run, s.mean_rstd, K + k);
        variance          = fmax(variance, fabs(1 / (rstd * rstd) / e->var[k] - 1));
        mean              = fmax(mean, fabs(at(&s.run, s.mean_rstd, k) - e->mean[k]) / sqrt(e->var[k]));
    }
    for (int c = 0; c < C; c++) {
        double sum = 0;
        for (int p = 0; p < P; p++) {
            const double d = at(&s.run, s.dx, p * C + c) - e->dx[p][c];
            sum += d / P;
            error += d * d / (P * C);
            rms += e->dx[p][c] * e->dx[p][c] / (P * C);
        }
        bias = fmax(bias, fabs(sum));
    }
    printf("    variance within %.1e, mean within %.1e deviations; dx: error %.1e, largest bias of a channel %.1e\n",
           variance, mean, sqrt(error / rms), bias / sqrt(rms));
    CHECK(variance < 1e-5); /* 1e-3 is demanded; sums of squares in f32 lose 1e-3 and more */
    CHECK(mean < 1e-4);
    CHECK(sqrt(error / rms) < 1e-2);
    CHECK(bias / sqrt(rms) < 1e-4); /* without the corrections of the bias: see gram_bn_grad */
    ref_close(&s.run);
    cr_free(e);
}

/* The shift has at most four bits, lies near its pixel, and is subtracted in f16 without rounding from larger values.
 */
static void shifts_have_few_bits(void) {
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

TESTS(CASE(large_means), CASE(shifts_have_few_bits))

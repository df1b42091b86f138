/* tests/unit/device/test_cpu_sparse_conv.c: convolution with a sparse filter on the CPU against a loop over all weights
 * in double. */
#include "device/cpu/tuned/sparse_conv.h"
#include "tests/harness/sparse_support.h"
#include "tests/harness/test.h"

struct shape {
    int64_t N, H, W, C, K, R, S, stride, pad;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 0},     {2, 9, 11, 5, 7, 3, 3, 1, 1},   {1, 56, 56, 16, 20, 3, 3, 1, 1},
    {3, 14, 14, 40, 33, 3, 3, 2, 1}, {5, 7, 7, 64, 17, 3, 3, 1, 1},  {2, 15, 13, 8, 9, 1, 1, 2, 0},
    {1, 32, 32, 3, 16, 7, 7, 2, 3},  {4, 7, 7, 100, 64, 1, 1, 1, 0}, {1, 10, 6, 4, 4, 5, 3, 3, 2},
    {2, 4, 90, 6, 12, 3, 5, 1, 0},   {1, 8, 8, 12, 5, 1, 1, 1, 2},   {1, 5, 9, 7, 6, 2, 2, 3, 1},
    {7, 8, 8, 260, 18, 3, 3, 1, 1},  {1, 2, 300, 9, 5, 3, 3, 1, 1},
};

static uint32_t seed = 1;
static float    draw(void) {
       seed = seed * 1664525u + 1013904223u;
       return (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
}
static float *draw_many(int64_t count) {
    float *x = cr_alloc((size_t)count, sizeof *x);
    for (int64_t i = 0; x && i < count; i++) x[i] = draw();
    return x;
}

/* One output of the dense convolution, and the sum of its absolute terms. */
static double dense_at(const struct cr_cpu_sparse_plan *p, const float *x, const float *w, int64_t at, double *size) {
    const int64_t k = at % p->K, q = at / p->K % p->Q, row = at / p->K / p->Q % p->P, n = at / p->K / p->Q / p->P;
    double        sum = 0;
    *size             = 0;
    for (int64_t r = 0; r < p->R; r++)
        for (int64_t s = 0; s < p->S; s++) {
            const int64_t h = row * p->stride - p->pad + r, v = q * p->stride - p->pad + s;
            for (int64_t c = 0; h >= 0 && h < p->H && v >= 0 && v < p->W && c < p->C; c++) {
                const double term = (double)x[((n * p->H + h) * p->W + v) * p->C + c] *
                                    (double)w[((k * p->R + r) * p->S + s) * p->C + c];
                sum += term;
                *size += fabs(term);
            }
        }
    return sum;
}

enum { GUARD = 64 };

static void one(const struct shape *s, float nonzeros, bool fused, int threads) {
    const struct cr_cpu_sparse_plan p =
        cr_cpu_sparse_conv_plan(s->N, s->H, s->W, s->C, s->K, s->R, s->S, s->stride, s->pad);
    const int64_t weights = p.K * p.R * p.S * p.C, outputs = p.N * p.P * p.Q * p.K;
    float        *x = draw_many(p.N * p.H * p.W * p.C), *w = draw_many(weights), *bias = draw_many(p.K),
          *add       = draw_many(outputs);
    float *y         = cr_alloc((size_t)outputs + 2 * GUARD, sizeof *y);
    void  *workspace = cr_alloc(cr_cpu_sparse_conv_workspace(&p, threads), 1);
    REQUIRE(x && w && bias && add && y && workspace);
    for (int64_t i = 0; i < weights; i++)
        if (fabsf(draw()) >= nonzeros || (i / (p.R * p.S * p.C)) == 2) w[i] = 0.0f;
    struct cr_sparse              sparse;
    struct cr_linear_filter       filter;
    const struct cr_linear_layout how = cr_cpu_sparse_conv_layout(&p);
    REQUIRE(sparse_encode(w, NULL, p.K, p.R, p.S, p.C, &sparse) == CR_OK);
    REQUIRE(cr_sparse_linearize(&sparse, &how, &filter) == CR_OK);
    sparse_fill(w, &filter);
    for (int64_t i = 0; i < outputs + 2 * GUARD; i++) y[i] = 12345.0f;
    const struct cr_cpu_sparse_call call = {.x      = x,
                                            .filter = &filter,
                                            .y      = y + GUARD,
                                            .bias   = fused ? bias : NULL,
                                            .add    = fused ? add : NULL,
                                            .relu   = fused};
    cr_cpu_sparse_conv(&p, &call, workspace, threads);
    int64_t wrong = 0;
    for (int64_t i = 0; i < outputs; i++) {
        double size, want = dense_at(&p, x, w, i, &size);
        if (fused) want += (double)bias[i % p.K] + (double)add[i], size += 2;
        if (fused && want < 0) want = 0;
        wrong += !(fabs((double)y[GUARD + i] - want) <= 1e-6 * (size + 1e-3));
    }
    CHECK_INT(wrong, 0);
    if (wrong) printf("    shape %d, nonzeros %g\n", (int)(s - shapes), (double)nonzeros);
    for (int64_t i = 0; i < GUARD; i++) CHECK(y[i] == 12345.0f && y[GUARD + outputs + i] == 12345.0f);
    cr_linear_filter_free(&filter);
    cr_sparse_free(&sparse);
    cr_free(workspace);
    cr_free(y);
    cr_free(add);
    cr_free(bias);
    cr_free(w);
    cr_free(x);
}

static void equals_a_dense_loop(void) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) {
        one(&shapes[i], 0.1f, false, 1);
        one(&shapes[i], 0.4f, true, 2);
        one(&shapes[i], 1.0f, true, 3);
        one(&shapes[i], 0.0f, true, 1);
    }
}

static void no_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(equals_a_dense_loop), CASE(no_leaks))

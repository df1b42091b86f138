/* tests/unit/quantization/test_scales.c: scales of quantised values: by the largest magnitude, and by entropy against
 * thresholds that NumPy computed; rounding against the rule of graph/ops.def; zeros, one value, NaN, infinity, tiny
 * numbers. */
#include "core/rng.h"
#include "quantization/quantization.h"
#include "tests/harness/test.h"

enum { VALUES = 20000 };

enum shape { NORMAL, RECTIFIED, UNIFORM, LONG_TAIL, SHAPES };

static void fill(enum shape shape, float *values) {
    struct cr_rng rng = cr_rng_make(5, CR_RNG_TEST, (uint64_t)shape, 0);
    for (int i = 0; i < VALUES; i++) {
        const float n = cr_rng_normal(&rng);
        values[i]     = shape == NORMAL      ? n
                        : shape == RECTIFIED ? fmaxf(n, 0)
                        : shape == UNIFORM   ? (float)(2 * cr_rng_real(&rng) - 1)
                                             : n * n * n;
    }
}

static void see(struct cr_histogram *h, const float *values, int64_t count) {
    *h = (struct cr_histogram){0};
    cr_histogram_range(h, values, count / 2); /* two batches */
    cr_histogram_range(h, values + count / 2, count - count / 2);
    cr_histogram_add(h, values, count / 2);
    cr_histogram_add(h, values + count / 2, count - count / 2);
}

/* ---- activations ---- */

TEST(largest_is_the_range) {
    static float               values[VALUES];
    static struct cr_histogram h;
    for (int shape = 0; shape < SHAPES; shape++) {
        float largest = 0;
        fill((enum shape)shape, values);
        for (int i = 0; i < VALUES; i++) largest = CR_MAX(fabsf(values[i]), largest);
        see(&h, values, VALUES);
        CHECK(h.largest == largest);
        CHECK_NEAR((double)cr_histogram_scale(&h, CR_QUANT_MAX, 255), (double)largest / 255, 1e-7 * (double)largest);
        CHECK_NEAR((double)cr_histogram_scale(&h, CR_QUANT_MAX, 127), (double)largest / 127, 1e-7 * (double)largest);
    }
}

/* Several threads count large arrays. */
TEST(large_arrays_are_counted_exactly) {
    enum { LARGE = 300001 };
    static struct cr_histogram h;
    static double              want[CR_HISTOGRAM_BINS];
    OWNED(floats)              values  = cr_alloc(LARGE, sizeof *values);
    float                      largest = 0;
    struct cr_rng              rng     = cr_rng_make(5, CR_RNG_TEST, 77, 0);
    for (int i = 0; i < LARGE; i++) {
        values[i] = i % 1000 == 7 ? (i % 2000 == 7 ? NAN : -INFINITY) : (float)(4 * cr_rng_real(&rng) - 2);
        if (isfinite(values[i])) largest = CR_MAX(fabsf(values[i]), largest);
    }
    for (int i = 0; i < LARGE; i++) {
        const double m = fabs((double)values[i]);
        if (m > 0 && m <= (double)largest)
            want[CR_MIN((int)(m * (CR_HISTOGRAM_BINS / (double)largest)), CR_HISTOGRAM_BINS - 1)]++;
    }
    cr_histogram_range(&h, values, LARGE);
    CHECK(h.largest == largest);
    for (int twice = 0; twice < 2; twice++) cr_histogram_add(&h, values, LARGE);
    for (int b = 0; b < CR_HISTOGRAM_BINS; b++) CHECK(h.count[b] == 2 * want[b]);
}

/* The thresholds, in bins, that this program prints, with d(p, q) = sum p log(p / q) of the normalised counts:
 *     for n in range(levels, 2049, 16): p = h[:n], p[n-1] += sum(h[n:]); q = h[:n], where the bins from l * n // levels
 *     to (l + 1) * n // levels that are not empty hold the mean of their counts; the first n with the least d(p, q)
 * for three histograms; b is the number of the bin. */
TEST(entropy_against_numpy) {
    static const int    want[3][2] = {{1487, 1327}, {687, 639}, {2047, 2047}};
    struct cr_histogram h          = {.largest = CR_HISTOGRAM_BINS};
    for (int kind = 0; kind < 3; kind++) {
        for (int b = 0; b < CR_HISTOGRAM_BINS; b++)
            h.count[b] = kind == 0 ? floor(1e6 * exp(-b / 120.0))
                         : kind == 1
                             ? floor(1e5 * exp(-b / 60.0)) + 3 * (b % 37 == 0) + 5 * (b == CR_HISTOGRAM_BINS - 1)
                             : 100;
        CHECK_NEAR(255 * (double)cr_histogram_scale(&h, CR_QUANT_ENTROPY, 255), want[kind][0], 1e-3);
        CHECK_NEAR(127 * (double)cr_histogram_scale(&h, CR_QUANT_ENTROPY, 127), want[kind][1], 1e-3);
    }
}

TEST(unusual_values) {
    static const float zeros[4] = {0, -0.0f, 0, 0}, one[3] = {0, -2.5f, 0}, bad[4] = {NAN, INFINITY, -INFINITY, -1.5f},
                       nothing[2] = {NAN, INFINITY}, tiny[2] = {1e-42f, -3e-43f};
    static struct cr_histogram h;
    for (int m = CR_QUANT_ENTROPY; m <= CR_QUANT_MAX; m++) {
        const enum cr_quant_method method = (enum cr_quant_method)m;
        see(&h, zeros, 4);
        CHECK(cr_histogram_scale(&h, method, 255) == 1);
        see(&h, nothing, 2);
        CHECK(cr_histogram_scale(&h, method, 127) == 1);
        see(&h, bad, 4); /* only the finite number counts */
        CHECK(h.largest == 1.5f);
        see(&h, one, 3); /* one magnitude is kept within 1 % or so */
        const double scale = (double)cr_histogram_scale(&h, method, 127), q = fmin(rint(2.5 / scale), 127);
        CHECK_NEAR(q * scale, 2.5, 0.02);
        see(&h, tiny, 2);
        const float least = cr_histogram_scale(&h, method, 127);
        CHECK(least >= 0x1p-126f && isfinite(1 / least));
    }
    h = (struct cr_histogram){0}; /* no value was seen */
    CHECK(cr_histogram_scale(&h, CR_QUANT_ENTROPY, 255) == 1);
}

/* ---- filters ---- */

TEST(scale_of_a_filter) {
    static float values[VALUES];
    for (int shape = 0; shape < SHAPES; shape++)
        for (int64_t count = 1; count <= VALUES; count = 7 * count + 2) {
            float largest = 0;
            fill((enum shape)shape, values);
            for (int64_t i = 0; i < count; i++) largest = CR_MAX(fabsf(values[i]), largest);
            CHECK(cr_quant_filter_scale(values, count, 127) == (largest == 0 ? 1 : largest / 127));
        }
    const float zeros[3] = {0, -0.0f, 0}, tiny[2] = {1e-42f, 0}, bad[3] = {NAN, 1.27f, -0.5f};
    CHECK(cr_quant_filter_scale(zeros, 3, 127) == 1);
    CHECK(cr_quant_filter_scale(tiny, 2, 127) == 0x1p-126f);
    CHECK_NEAR((double)cr_quant_filter_scale(bad, 3, 127), 0.01, 1e-8);
}

/* With a reduced range every weight is an integer from -63 to 63, and the largest one is at an end: two products with
 * 255 then fit into 16 bits. */
TEST(reduced_range) {
    static float values[VALUES];
    for (int shape = 0; shape < SHAPES; shape++)
        for (int64_t count = 2; count <= VALUES; count = 7 * count + 2) {
            fill((enum shape)shape, values);
            const float scale = cr_quant_filter_scale(values, count, 63);
            int         most  = 0;
            for (int64_t i = 0; i < count; i++) most = CR_MAX(most, abs(cr_quant_round_i8(values[i], scale)));
            CHECK(most == 63);
            CHECK(2 * 255 * most <= INT16_MAX);
        }
}

/* To the nearest, ties to even, within -127 ... 127; NaN becomes 0, as in graph/ops.def and its kernels. */
TEST(rounding) {
    static const struct {
        float x;
        int   q;
    } table[] = {{0, 0},        {0.125f, 0},    {0.375f, 2},     {0.625f, 2},       {0.875f, 4},      {-0.125f, 0},
                 {-0.375f, -2}, {-0.6f, -2},    {31.75f, 127},   {31.9f, 127},      {-31.875f, -127}, {-32, -127},
                 {1e30f, 127},  {-1e30f, -127}, {INFINITY, 127}, {-INFINITY, -127}, {NAN, 0}};
    for (size_t i = 0; i < CR_COUNT(table); i++)
        if (cr_quant_round_i8(table[i].x, 0.25f) != table[i].q)
            TEST_FAIL_("%g / 0.25 = %d, want %d", (double)table[i].x, cr_quant_round_i8(table[i].x, 0.25f), table[i].q);
}

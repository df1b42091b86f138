/* tests/unit/device/test_cpu_quant.c: the reference of the 8-bit convolution against plain loops over integers: all
 * types of input, summand and output, ReLU, strides, a channel whose factor is 0, sums beyond 2^24. quantize: ties,
 * saturation, NaN, infinity. The other kernels against the reference: test_checkops. */
#include "tests/harness/reference_run.h"

struct shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0},   {2, 7, 5, 3, 9, 3, 1, 1},   {1, 23, 23, 3, 16, 7, 2, 3}, {2, 8, 8, 16, 32, 3, 2, 1},
    {1, 8, 8, 64, 64, 3, 1, 1}, {2, 6, 6, 24, 40, 1, 1, 0}, {1, 7, 7, 256, 64, 1, 2, 0}, {3, 1, 1, 64, 10, 1, 1, 0},
    {2, 9, 7, 5, 20, 3, 2, 1},  {2, 5, 6, 6, 17, 1, 2, 0},  {1, 3, 5, 130, 70, 1, 1, 0}, {1, 4, 4, 512, 33, 3, 1, 1},
};

struct problem {
    const struct shape   *s;
    struct cr_qconv_types types;
    bool                  relu, large; /* large: every product is near the largest, so that sums exceed 2^24 */
    int64_t               P, Q;
    uint8_t              *x, *add; /* of the types */
    int8_t               *w;
    float                *coeffs;
};

static int value_of(enum cr_dtype dtype, const uint8_t *data, int64_t i) {
    return dtype == CR_U8 ? data[i] : ((const int8_t *)data)[i];
}

static int64_t outputs_of(const struct problem *v) {
    return v->s->N * v->P * v->Q * v->s->K;
}

static int tensor(struct cr_program *p, const char *name, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c,
                  int64_t d) {
    return cr_tensor_add(p, name, dtype, CR_REGION_POOL, a, b, c, d);
}

static bool make(struct problem *v) {
    const struct shape *s   = v->s;
    struct cr_rng       rng = cr_rng_make(3, CR_RNG_TEST, (uint64_t)s->C, (uint32_t)s->K);
    v->P                    = (s->H + 2 * s->pad - s->window) / s->stride + 1;
    v->Q                    = (s->W + 2 * s->pad - s->window) / s->stride + 1;
    const int64_t pixels = s->N * s->H * s->W * s->C, row = s->window * s->window * s->C;
    v->x      = cr_alloc((size_t)pixels, 1);
    v->w      = cr_alloc((size_t)(row * s->K), 1);
    v->add    = cr_alloc((size_t)outputs_of(v), 1);
    v->coeffs = cr_alloc((size_t)(3 * s->K), sizeof *v->coeffs);
    if (!v->x || !v->w || !v->add || !v->coeffs) return false;
    for (int64_t i = 0; i < pixels; i++)
        v->x[i] = (uint8_t)(v->large ? (v->types.x == CR_U8 ? 255 : 127) : cr_rng_below(&rng, 256));
    for (int64_t i = 0; i < row * s->K; i++)
        v->w[i] = (int8_t)(v->large ? 127 - (i % 11 == 0) : (int)cr_rng_below(&rng, 255) - 127);
    for (int64_t i = 0; i < outputs_of(v); i++) v->add[i] = (uint8_t)cr_rng_below(&rng, 256);
    const double most = v->large ? 255.0 * 127 * (double)row / 120 : 75 * 150 * sqrt((double)row) / 100;
    for (int64_t k = 0; k < s->K; k++) {
        const double sign       = cr_rng_below(&rng, 4) ? 1 : -1;
        v->coeffs[k]            = k % 5 == 2 ? 0 : (float)(sign * (0.5 + cr_rng_real(&rng)) / most);
        v->coeffs[s->K + k]     = 20 * cr_rng_normal(&rng);
        v->coeffs[2 * s->K + k] = 0.83f;
    }
    return true;
}

static void unmake(struct problem *v) {
    cr_free(v->x);
    cr_free(v->w);
    cr_free(v->add);
    cr_free(v->coeffs);
}

/* The rule of graph/ops.def in plain loops; *sum: the exact sum. */
static float element(const struct problem *v, int64_t i, int64_t *sum) {
    const struct shape *s = v->s;
    const int64_t       k = i % s->K, q = i / s->K % v->Q, p = i / s->K / v->Q % v->P, n = i / s->K / v->Q / v->P;
    *sum = 0;
    for (int64_t r = 0; r < s->window; r++)
        for (int64_t t = 0; t < s->window; t++) {
            const int64_t h = p * s->stride - s->pad + r, w = q * s->stride - s->pad + t;
            for (int64_t c = 0; c < s->C && h >= 0 && h < s->H && w >= 0 && w < s->W; c++)
                *sum += (int64_t)value_of(v->types.x, v->x, ((n * s->H + h) * s->W + w) * s->C + c) *
                        v->w[((k * s->window + r) * s->window + t) * s->C + c];
        }
    float y = fmaf((float)*sum, v->coeffs[k], v->coeffs[s->K + k]);
    if (v->types.has_add) y = fmaf((float)value_of(v->types.add, v->add, i), v->coeffs[2 * s->K + k], y);
    if (v->relu) y = fmaxf(y, 0);
    if (v->types.y == CR_F32) return y;
    const float low = v->types.y == CR_U8 ? 0 : -128, high = v->types.y == CR_U8 ? 255 : 127;
    return fminf(fmaxf(rintf(y), low), high);
}

/* ---- the reference ---- */

/* Runs ref.qconv and compares all of its outputs. */
static void check(const struct problem *v) {
    const struct shape *s   = v->s;
    OWNED(ref_run)      run = {0};
    struct cr_op        op  = cr_op_make(CR_OP_qconv, CR_NONE);
    int64_t             sum;
    REQUIRE_OK(ref_open(&run, CR_F32, 2));
    op.attr.conv              = (struct cr_conv_attr){.stride = s->stride, .pad = s->pad, .window = s->window};
    op.attr.conv.relu         = v->relu;
    op.in[CR_IN_qconv_x]      = tensor(&run.p, "x", v->types.x, s->N, s->H, s->W, s->C);
    op.in[CR_IN_qconv_w]      = tensor(&run.p, "w", CR_I8, s->K, s->window, s->window, s->C);
    op.in[CR_IN_qconv_coeffs] = tensor(&run.p, "coeffs", CR_F32, 3, 1, 1, s->K);
    if (v->types.has_add) op.in[CR_IN_qconv_add] = tensor(&run.p, "add", v->types.add, s->N, v->P, v->Q, s->K);
    op.out[CR_OUT_qconv_y] = tensor(&run.p, "y", v->types.y, s->N, v->P, v->Q, s->K);
    cr_emit(&run.p, &op, "");
    REQUIRE_OK(ref_bind(&run));
    const void *const from[] = {
        [CR_IN_qconv_x] = v->x, [CR_IN_qconv_w] = v->w, [CR_IN_qconv_coeffs] = v->coeffs, [CR_IN_qconv_add] = v->add};
    for (size_t i = 0; i < CR_COUNT(from); i++)
        if (op.in[i] >= 0) memcpy(ref_data(&run, op.in[i]), from[i], run.p.tensor[op.in[i]].bytes);
    REQUIRE_OK(ref_exec(&run, 0, 1));
    for (int64_t i = 0; i < outputs_of(v); i++) {
        const double want = (double)element(v, i, &sum),
                     got  = cr_number_load(v->types.y, ref_data(&run, op.out[CR_OUT_qconv_y]), i);
        if (got == want) continue;
        TEST_FAIL_("C=%lld K=%lld window=%d x %s add %s y %s relu %d: y[%lld] = %.9g, want %.9g", (long long)s->C,
                   (long long)s->K, s->window, cr_dtype_name(v->types.x),
                   v->types.has_add ? cr_dtype_name(v->types.add) : "none", cr_dtype_name(v->types.y), v->relu,
                   (long long)i, got, want);
        return;
    }
}

TEST(reference_is_equal) {
    static const enum cr_dtype bytes[] = {CR_U8, CR_I8}, outs[] = {CR_U8, CR_I8, CR_F32};
    for (size_t n = 0; n < CR_COUNT(shapes); n++)
        for (int i = (int)n % 5; i < 2 * 3 * 3 * 2; i += 5) { /* each combination of types at two shapes or three */
            struct problem v = {.s     = &shapes[n],
                                .relu  = i / 18,
                                .large = n == CR_COUNT(shapes) - 1,
                                .types = {.x       = bytes[i % 2],
                                          .has_add = i / 2 % 3 > 0,
                                          .add     = i / 2 % 3 == 2 ? CR_I8 : CR_U8,
                                          .y       = outs[i / 6 % 3]}};
            CHECK(make(&v));
            check(&v);
            unmake(&v);
        }
}

/* 4,608 products of 255 * 127 are 1.5e8: exact in i32, rounded to f32 once. */
TEST(sums_beyond_two_to_24) {
    struct problem v = {.s = &shapes[CR_COUNT(shapes) - 1], .large = true, .types = {.x = CR_U8, .y = CR_U8}};
    int64_t        sum;
    REQUIRE(make(&v));
    (void)element(&v, 5 * v.s->K, &sum);
    CHECK(sum > 1 << 27 && sum % 2 != 0);
    unmake(&v);
}

TEST(quantize_values) {
    static const struct {
        float x;
        int   u, i;
    } table[] = {{0, 0, 0},           {-0.0f, 0, 0},        {0.125f, 0, 0},       {0.375f, 2, 2}, {0.625f, 2, 2},
                 {-0.125f, 0, 0},     {-0.375f, 0, -2},     {31.75f, 127, 127},   {32, 128, 127}, {63.625f, 254, 127},
                 {63.875f, 255, 127}, {64, 255, 127},       {-31.75f, 0, -127},   {-32, 0, -127}, {1e38f, 255, 127},
                 {-1e38f, 0, -127},   {INFINITY, 255, 127}, {-INFINITY, 0, -127}, {NAN, 0, 0}};
    for (int kind = 0; kind < 4; kind++) { /* bit 0: i8, bit 1: cpu.quantize instead of the reference */
        const struct cr_device_options options = {.threads = 1};
        OWNED(ref_run)                 run     = {0};
        REQUIRE_OK(ref_open(&run, CR_F32, 1));
        struct cr_op op =
            op_on(CR_OP_quantize, ref_leaf(&run, "x", 1, 1, 1, CR_COUNT(table)), ref_leaf(&run, "scale", 1, 1, 1, 1));
        op.attr.quant.is_signed = kind % 2;
        op.out[0]               = tensor(&run.p, "y", kind % 2 ? CR_I8 : CR_U8, 1, 1, 1, CR_COUNT(table));
        cr_emit(&run.p, &op, "");
        if (kind / 2) {
            cr_device_close(run.device);
            REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &run.device));
        }
        REQUIRE_OK(ref_bind(&run));
        for (size_t i = 0; i < CR_COUNT(table); i++) ref_set(&run, op.in[0], (int64_t)i, (double)table[i].x);
        ref_set(&run, op.in[1], 0, 0.25);
        REQUIRE_OK(ref_exec(&run, 0, 1));
        for (size_t i = 0; i < CR_COUNT(table); i++)
            CHECK_INT(value_of(kind % 2 ? CR_I8 : CR_U8, ref_data(&run, op.out[0]), (int64_t)i),
                      kind % 2 ? table[i].i : table[i].u);
    }
}

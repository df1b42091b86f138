/* tests/unit/device/test_cpu_quant.c: 8-bit convolution on the CPU against plain loops over integers: ref.qconv and
 * cpu.qconv are equal, the latter also without VNNI; oneDNN's kernel is off by at most one, which is counted. All types
 * of input, summand and output, ReLU, strides, a channel whose factor is 0, sums beyond 2^24, products that would leave
 * 16 bits. quantize: ties, saturation, NaN, infinity. */
#include "core/rng.h"
#include "device/cpu/cpu.h"
#include "tests/harness/test.h"

struct shape {
    int64_t N, H, W, C, K;
    int     window, stride, pad;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0},   {2, 7, 5, 3, 9, 3, 1, 1},   {1, 23, 23, 3, 16, 7, 2, 3}, {2, 8, 8, 16, 32, 3, 2, 1},
    {1, 8, 8, 64, 64, 3, 1, 1}, {2, 6, 6, 24, 40, 1, 1, 0}, {1, 7, 7, 256, 64, 1, 2, 0}, {3, 1, 1, 64, 10, 1, 1, 0},
    {2, 9, 7, 5, 20, 3, 2, 1},  {2, 5, 6, 6, 17, 1, 2, 0},  {1, 3, 5, 130, 70, 1, 1, 0}, {1, 4, 4, 512, 33, 3, 1, 1},
};

/* LARGE: every product is near the largest, so sums exceed 2^24; NEGATIVE: near the least; MIXED: one or the other. */
enum weights { RANDOM, LARGE, NEGATIVE, MIXED };

struct problem {
    const struct shape   *s;
    struct cr_qconv_types types;
    bool                  relu;
    enum weights          weights;
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

static int weight_of(enum weights weights, struct cr_rng *rng, int64_t i) {
    const int random = (int)cr_rng_below(rng, 255) - 127, large = i % 11 ? 127 : 126;
    return weights == RANDOM ? random : weights == NEGATIVE || (weights == MIXED && random < 0) ? -large : large;
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
        v->x[i] = (uint8_t)(v->weights ? (v->types.x == CR_U8 ? 255 : 127) : cr_rng_below(&rng, 256));
    for (int64_t i = 0; i < row * s->K; i++) v->w[i] = (int8_t)weight_of(v->weights, &rng, i);
    for (int64_t i = 0; i < outputs_of(v); i++) v->add[i] = (uint8_t)cr_rng_below(&rng, 256);
    const double most = v->weights ? 255.0 * 127 * (double)row / 120 : 75 * 150 * sqrt((double)row) / 100;
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

/* ---- the kernels ---- */

static const char *last_kernel = "none"; /* name of the kernel that ran last */

static cr_status launch(struct cr_device *d, const struct cr_program *p, const struct cr_op *op, struct cr_call *call,
                        const char *name) {
    int                     index;
    size_t                  bytes = 0;
    void                   *work  = NULL;
    cr_status               status;
    const struct cr_kernel *kernel = cr_kernel_find(d, p, op, 0, &index);
    while (kernel && strcmp(kernel->name, name) != 0 && !kernel->reference)
        kernel = cr_kernel_find(d, p, op, index + 1, &index);
    call->program = p;
    call->op      = op;
    if (!kernel || strcmp(kernel->name, name) != 0)
        return CR_FAIL(CR_ERR_DEVICE, "%s, want %s", kernel ? kernel->name : "no kernel", name);
    last_kernel = kernel->name;
    CR_TRY(cr_kernel_prepare(d, kernel, p, op, &call->prepared, &bytes));
    if (bytes && !(work = cr_alloc(bytes, 1))) return CR_NO_MEMORY(bytes);
    call->workspace = work;
    status          = kernel->launch(d, call);
    cr_kernel_release(kernel, call->prepared);
    cr_free(work);
    return status;
}

static int tensor(struct cr_program *p, const char *name, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c,
                  int64_t d) {
    return cr_tensor_add(p, name, dtype, CR_REGION_POOL, a, b, c, d);
}

static bool comes_first(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op,
                        const char *name) {
    int                     index;
    const struct cr_kernel *kernel = cr_kernel_find(d, p, op, 0, &index);
    return kernel && strcmp(kernel->name, name) == 0;
}

enum choice { REFERENCE, FIRST, OWN, OWN_UNPACKED }; /* FIRST: as networks do; the others: kernels of that name */

/* Packs the filter where the kernel has a layout of its own, and computes y. */
static cr_status run(struct cr_device *d, enum choice choice, const struct problem *v, void *y) {
    const struct shape        *s     = v->s;
    struct cr_param_store      store = {.real = CR_F32};
    OWNED(program)             p     = {0};
    struct cr_op               conv = cr_op_make(CR_OP_qconv, CR_NONE), pack = cr_op_make(CR_OP_pack_filter, CR_NONE);
    struct cr_call             first = {0}, second = {0};
    const struct cr_cost_model model  = cr_device_cost_model(d);
    OWNED(bytes)               packed = NULL;
    cr_program_init(&p, "test", &store);
    p.real                      = CR_F32;
    conv.attr.conv              = (struct cr_conv_attr){.stride = s->stride, .pad = s->pad, .window = s->window};
    conv.attr.conv.relu         = v->relu;
    conv.in[CR_IN_qconv_x]      = tensor(&p, "x", v->types.x, s->N, s->H, s->W, s->C);
    conv.in[CR_IN_qconv_w]      = tensor(&p, "w", CR_I8, s->K, s->window, s->window, s->C);
    conv.in[CR_IN_qconv_coeffs] = tensor(&p, "coeffs", CR_F32, 3, 1, 1, s->K);
    if (v->types.has_add) conv.in[CR_IN_qconv_add] = tensor(&p, "add", v->types.add, s->N, v->P, v->Q, s->K);
    conv.out[CR_OUT_qconv_y] = tensor(&p, "y", v->types.y, s->N, v->P, v->Q, s->K);
    const int64_t own        = cr_cpu_qconv_own_bytes(&p, &conv);
    const int64_t best       = model.device.packed_elems ? model.device.packed_elems(model.device.self, &p, &conv) : 0;
    const int64_t bytes      = choice == OWN ? own : choice == OWN_UNPACKED ? 0 : best;
    const bool    is_own     = choice >= OWN || (choice == FIRST && comes_first(d, &p, &conv, "cpu.qconv"));
    second.in[CR_IN_qconv_x] = v->x;
    second.in[CR_IN_qconv_w] = v->w;
    second.in[CR_IN_qconv_coeffs] = v->coeffs;
    if (v->types.has_add) second.in[CR_IN_qconv_add] = v->add;
    second.out[CR_OUT_qconv_y] = y;
    if (bytes > 0) {
        pack.attr.conv       = conv.attr.conv;
        pack.attr.conv.types = v->types;
        memcpy(pack.attr.conv.pattern.image, (const int64_t[]){s->N, s->H, s->W}, 3 * sizeof(int64_t));
        pack.in[0]                  = conv.in[CR_IN_qconv_w];
        pack.out[0]                 = tensor(&p, "packed", CR_U8, 1, 1, 1, bytes);
        conv.in[CR_IN_qconv_packed] = pack.out[0];
        packed                      = cr_alloc((size_t)bytes, 1);
        if (!packed || p.failed) return CR_FAIL(CR_ERR_MEMORY, "no memory");
        first.in[0]                   = v->w;
        first.out[0]                  = packed;
        second.in[CR_IN_qconv_packed] = packed;
        CR_TRY(launch(d, &p, &pack, &first, is_own ? "cpu.pack_filter" : "dnnl.pack_filter"));
    }
    return launch(d, &p, &conv, &second, is_own ? "cpu.qconv" : bytes > 0 ? "dnnl.qconv" : "ref.qconv");
}

/* Number of elements that differ by one; a larger difference is a failure. */
static int64_t count_apart(const struct problem *v, const void *y, bool equal) {
    int64_t apart = 0, sum;
    for (int64_t i = 0; i < outputs_of(v); i++) {
        const double want = (double)element(v, i, &sum), got = cr_number_load(v->types.y, y, i);
        const bool   whole = v->types.y != CR_F32;
        const double bound = equal ? 0 : whole ? 1 : 4e-6 * (fabs(want) + 300); /* terms of f32 sums cancel */
        if (!(fabs(got - want) <= bound)) {
            TEST_FAIL_("C=%lld K=%lld window=%d x %s add %s y %s relu %d: y[%lld] = %.9g, want %.9g",
                       (long long)v->s->C, (long long)v->s->K, v->s->window, cr_dtype_name(v->types.x),
                       v->types.has_add ? cr_dtype_name(v->types.add) : "none", cr_dtype_name(v->types.y), v->relu,
                       (long long)i, got, want);
            return apart;
        }
        apart += whole && got != want;
    }
    return apart;
}

static void check_all(enum choice choice, enum weights weights) {
    static const enum cr_dtype     bytes[] = {CR_U8, CR_I8}, outs[] = {CR_U8, CR_I8, CR_F32};
    const struct cr_device_options options = {.threads = 2, .ref_only = choice == REFERENCE};
    OWNED(device)                  d       = NULL;
    int64_t                        apart = 0, all = 0;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &d));
    for (size_t n = weights == LARGE ? CR_COUNT(shapes) - 1 : 0; n < CR_COUNT(shapes); n++)
        for (int i = (int)n % 5; i < 2 * 3 * 3 * 2; i += 5) { /* each combination of types at two shapes or three */
            struct problem v = {.s       = &shapes[n],
                                .relu    = i / 18,
                                .weights = weights,
                                .types   = {.x       = bytes[i % 2],
                                            .has_add = i / 2 % 3 > 0,
                                            .add     = i / 2 % 3 == 2 ? CR_I8 : CR_U8,
                                            .y       = outs[i / 6 % 3]}};
            CHECK(make(&v));
            void *y = cr_alloc((size_t)outputs_of(&v), sizeof(float));
            if (y) memset(y, 0xee, (size_t)outputs_of(&v) * sizeof(float));
            const cr_status status = y ? run(d, choice, &v, y) : CR_NO_MEMORY(1);
            CHECK_STATUS(status, CR_OK);
            if (status == CR_OK) apart += count_apart(&v, y, choice != FIRST);
            all += outputs_of(&v);
            cr_free(y);
            unmake(&v);
        }
    printf("    %s: %lld of %lld outputs are off by one\n", last_kernel, (long long)apart, (long long)all);
    CHECK(apart * 10000 <= all); /* values near a tie only */
}

TEST(reference_is_equal) {
    check_all(REFERENCE, RANDOM);
}
TEST(first_kernel_is_off_by_one_at_most) {
    check_all(FIRST, RANDOM);
}
static void check_own(void) {
    check_all(OWN, RANDOM);
    check_all(OWN_UNPACKED, RANDOM);
    check_all(OWN, NEGATIVE);
    check_all(OWN, MIXED);
}
TEST(own_kernel_is_equal) {
    check_own();
}

TEST(own_kernel_is_equal_without_vnni) {
    if (!cr_cpu_has(CR_CPU_AVX_VNNI) && !cr_cpu_has(CR_CPU_AVX512_VNNI)) return; /* the other cases run without VNNI */
    cr_cpu_hide(CR_CPU_AVX_VNNI, true);
    cr_cpu_hide(CR_CPU_AVX512_VNNI, true);
    check_own();
    check_all(OWN, LARGE);
    cr_cpu_hide(CR_CPU_AVX_VNNI, false);
    cr_cpu_hide(CR_CPU_AVX512_VNNI, false);
}

/* 4,608 products of 255 * 127 are 1.5e8: exact in i32, rounded to f32 once. */
TEST(sums_beyond_two_to_24) {
    struct problem v = {.s = &shapes[CR_COUNT(shapes) - 1], .weights = LARGE, .types = {.x = CR_U8, .y = CR_U8}};
    int64_t        sum;
    REQUIRE(make(&v));
    (void)element(&v, 5 * v.s->K, &sum);
    CHECK(sum > 1 << 27 && sum % 2 != 0);
    unmake(&v);
    check_all(REFERENCE, LARGE);
    check_all(FIRST, LARGE);
    check_all(OWN, LARGE);
}

TEST(quantize_values) {
    static const struct {
        float x;
        int   u, i;
    } table[] = {{0, 0, 0},           {-0.0f, 0, 0},        {0.125f, 0, 0},       {0.375f, 2, 2}, {0.625f, 2, 2},
                 {-0.125f, 0, 0},     {-0.375f, 0, -2},     {31.75f, 127, 127},   {32, 128, 127}, {63.625f, 254, 127},
                 {63.875f, 255, 127}, {64, 255, 127},       {-31.75f, 0, -127},   {-32, 0, -127}, {1e38f, 255, 127},
                 {-1e38f, 0, -127},   {INFINITY, 255, 127}, {-INFINITY, 0, -127}, {NAN, 0, 0}};
    enum { COUNT = CR_COUNT(table) };
    for (int kind = 0; kind < 4; kind++) { /* bit 0: i8, bit 1: reference */
        const struct cr_device_options options = {.threads = 1, .ref_only = kind / 2};
        struct cr_param_store          store   = {.real = CR_F32};
        struct cr_op                   op      = cr_op_make(CR_OP_quantize, CR_NONE);
        struct cr_program              p;
        OWNED(device)                  d = NULL;
        float                          x[COUNT], scale = 0.25f;
        uint8_t                        y[COUNT];
        struct cr_call                 call = {.in = {x, &scale}, .out = {y}};
        REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &d));
        cr_program_init(&p, "test", &store);
        op.in[0]                = tensor(&p, "x", CR_F32, 1, 1, 1, COUNT);
        op.in[1]                = tensor(&p, "scale", CR_F32, 1, 1, 1, 1);
        op.attr.quant.is_signed = kind % 2;
        op.out[0]               = tensor(&p, "y", kind % 2 ? CR_I8 : CR_U8, 1, 1, 1, COUNT);
        for (int i = 0; i < COUNT; i++) x[i] = table[i].x;
        CHECK_STATUS(launch(d, &p, &op, &call, kind / 2 ? "ref.quantize" : "cpu.quantize"), CR_OK);
        for (int i = 0; i < COUNT; i++)
            if (value_of(kind % 2 ? CR_I8 : CR_U8, y, i) != (kind % 2 ? table[i].i : table[i].u))
                TEST_FAIL_("kind %d: %g becomes %d", kind, (double)x[i], value_of(kind % 2 ? CR_I8 : CR_U8, y, i));
        cr_program_free(&p);
        cr_param_store_free(&store);
    }
}

/* tests/gpu/test_cuda_large.c: tensors of more than 2^31 elements on the GPU: ops of plain training programs, by
 * each kernel that supports them, against sums and dot products in double. Needs a GPU with 18 GiB free.
 *
 * Images repeat with a period of a prime number of pixels, so that an index that overflows at 2^31 or 2^32 elements
 * or bytes reads other values, and the sum over all pixels follows from the sums over one period. */
#include "core/rng.h"
#include "tests/harness/test_gpu.h"

enum { N = 10720, SIDE = 56, C = 64, PERIOD = 4099, IMAGES = 4 /* x, y, dy, dx */, LITTLE = 8 };
#define PIXELS ((int64_t)N * SIDE * SIDE)
#define BYTES ((size_t)PIXELS * C * 2)

struct large {
    struct cr_device *device;
    struct cr_program p;
    int               image[IMAGES], w, dw, vec[LITTLE]; /* vec: f32 [3,C] */
    char             *at[IMAGES];
    char             *small; /* w, dw and vectors, 64 KiB each */
    void             *workspace;
    size_t            workspace_bytes;
    double           *base[IMAGES]; /* [PERIOD][C] */
    double            filter[C * C];
};
static struct large g;

static cr_status fill(int which, uint64_t seed) {
    const struct cr_backend *b     = g.device->backend;
    const size_t             piece = (size_t)PERIOD * C * 2;
    uint16_t                *host  = malloc(piece);
    struct cr_rng            rng   = cr_rng_make(seed, CR_RNG_TEST, 0, 0);
    if (!host) return CR_NO_MEMORY(piece);
    for (int i = 0; i < PERIOD * C; i++) {
        host[i]          = cr_f32_to_f16((float)(0.04 * cr_rng_real(&rng) - 0.02 + (i % C == 3 ? 0.01 : 0)));
        g.base[which][i] = (double)cr_f16_to_f32(host[i]);
    }
    cr_status status = b->put(g.device, g.at[which], host, piece);
    free(host);
    for (size_t have = piece; have < BYTES && status == CR_OK;) {
        const size_t more = CR_MIN(have, BYTES - have);
        status            = b->async->move(g.device, CR_STREAM_COMPUTE, g.at[which] + have, g.at[which], more);
        have += more;
    }
    return status == CR_OK ? b->sync(g.device) : status;
}

static char *small_at(int slot) {
    return g.small + (size_t)slot * 65536;
}

static cr_status open_large(void) {
    const struct cr_device_options options = {.deterministic = true};
    CR_TRY(cr_device_open(CR_DEVICE_CUDA, &options, &g.device));
    const struct cr_backend *b = g.device->backend;
    cr_program_init(&g.p, "large", NULL);
    g.p.real                         = CR_F16;
    static const char *const names[] = {"x", "y", "dy", "dx"};
    for (int i = 0; i < IMAGES; i++)
        g.image[i] = cr_tensor_add(&g.p, names[i], CR_F16, CR_REGION_POOL, N, SIDE, SIDE, C);
    g.w  = cr_tensor_add(&g.p, "w", CR_F16, CR_REGION_POOL, C, 1, 1, C);
    g.dw = cr_tensor_add(&g.p, "dw", CR_F32, CR_REGION_POOL, C, 1, 1, C);
    for (int i = 0; i < LITTLE; i++)
        g.vec[i] = cr_tensor_add(&g.p, formatted("v%d", i), CR_F32, CR_REGION_POOL, i == 2 ? 3 : 2, 1, 1, C);
    CR_TRY(b->reserve(g.device, (LITTLE + 2) * 65536, (void **)&g.small));
    g.workspace_bytes = (size_t)1 << 30;
    CR_TRY(b->reserve(g.device, g.workspace_bytes, &g.workspace));
    for (int i = 0; i < IMAGES; i++) {
        g.base[i] = calloc((size_t)PERIOD * C, sizeof(double));
        if (!g.base[i]) return CR_NO_MEMORY(PERIOD * C * sizeof(double));
        CR_TRY(b->reserve(g.device, BYTES, (void **)&g.at[i]));
        CR_TRY(fill(i, (uint64_t)i + 1));
    }
    uint16_t      w[C * C];
    float         v[3 * C];
    struct cr_rng rng = cr_rng_make(99, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < C * C; i++) {
        w[i]        = cr_f32_to_f16((float)(cr_rng_real(&rng) - 0.5));
        g.filter[i] = (double)cr_f16_to_f32(w[i]);
    }
    CR_TRY(b->put(g.device, small_at(0), w, sizeof w));
    for (int i = 0; i < 3 * C; i++)
        v[i] = i < C ? 1.5f : i < 2 * C ? 0.25f : 0.125f; /* mean_rstd, scale_bias: rows of constants */
    for (int i = 0; i < 3; i++) CR_TRY(b->put(g.device, small_at(2 + i), v, sizeof v));
    return CR_OK;
}

static void close_large(void) {
    for (int i = 0; i < IMAGES && g.device; i++) g.device->backend->release(g.device, g.at[i]);
    for (int i = 0; i < IMAGES; i++) free(g.base[i]);
    if (g.device) g.device->backend->release(g.device, g.small), g.device->backend->release(g.device, g.workspace);
    cr_device_close(g.device);
    cr_program_free(&g.p);
}

static bool ready(void) {
    static bool opened, usable;
    if (!opened) {
        opened    = true;
        test_end_ = close_large;
        CHECK_STATUS(open_large(), CR_OK);
        usable = !test_failures_;
    }
    return usable;
}

#define NEED_LARGE()                                                                                                   \
    NEED_GPU();                                                                                                        \
    if (!ready()) return

static char *address(int tensor) {
    for (int i = 0; i < IMAGES; i++)
        if (tensor == g.image[i]) return g.at[i];
    if (tensor == g.w) return small_at(0);
    if (tensor == g.dw) return small_at(1);
    return small_at(2 + tensor - g.vec[0]);
}

static const int64_t places[] = {
    0, PERIOD - 1, ((int64_t)1 << 30) / C + 1, ((int64_t)1 << 31) / C - 1, ((int64_t)1 << 31) / C, PIXELS - 1};

/* Writes NaN where results are checked: results of the previous kernel must not pass for those of this kernel. */
static cr_status spoil(int tensor) {
    static unsigned char     ones[65536];
    const struct cr_backend *b = g.device->backend;
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < IMAGES; i++)
        for (size_t k = 0; tensor == g.image[i] && k < CR_COUNT(places); k++)
            CR_TRY(b->put(g.device, g.at[i] + (size_t)places[k] * C * 2, ones, C * 2));
    return g.p.tensor[tensor].bytes <= sizeof ones ? b->put(g.device, address(tensor), ones, g.p.tensor[tensor].bytes)
                                                   : CR_OK;
}

static double value(int which, int64_t pixel, int c) {
    return g.base[which][pixel % PERIOD * C + c];
}
/* How many of all pixels have residue r. */
static double times(int r) {
    return (double)(PIXELS / PERIOD + (r < PIXELS % PERIOD));
}

static void check_pixels(const char *kernel, int which, double (*want)(int64_t pixel, int c)) {
    for (size_t i = 0; i < CR_COUNT(places); i++) {
        uint16_t got[C];
        REQUIRE_OK(g.device->backend->get(g.device, got, g.at[which] + (size_t)places[i] * C * 2, sizeof got));
        for (int c = 0; c < C; c++) {
            const double w = want(places[i], c), have = (double)cr_f16_to_f32(got[c]);
            if (!(fabs(have - w) <= 2e-3 * fabs(w) + 2e-4)) {
                TEST_FAIL_("%s: pixel %lld, channel %d: %g, expected %g", kernel, (long long)places[i], c, have, w);
                return;
            }
        }
    }
}

static void check_sums(const char *kernel, const char *from, int count, double (*want)(int i)) {
    float *got = malloc((size_t)count * sizeof *got);
    if (!got) abort();
    cr_status status = g.device->backend->get(g.device, got, from, (size_t)count * sizeof *got);
    CHECK_STATUS(status, CR_OK);
    for (int i = 0; i < count && status == CR_OK; i++) {
        const double w = want(i);
        if (fabs((double)got[i] - w) <= 2e-2 * fabs(w) + 2e-2) continue;
        TEST_FAIL_("%s: sum %d: %g, expected %g", kernel, i, (double)got[i], w);
        break;
    }
    free(got);
}

/* What an op writes: pixels of an image, or sums, [count] at `from`. */
struct expected {
    int image, count;
    double (*pixel)(int64_t pixel, int c);
    const char *from;
    double (*sum)(int i);
};

/* Runs all kernels that support the op, and checks the results of each. */
static void run_kernels(struct cr_op op, struct expected expected) {
    int                     index, rows = 0;
    const struct cr_kernel *kernel;
    for (int from = 0; (kernel = cr_kernel_find(g.device, &g.p, &op, from, &index)); from = index + 1) {
        struct cr_call call  = {.program = &g.p, .op = &op, .workspace = g.workspace};
        size_t         bytes = 0;
        op.kernel            = index;
        for (int s = 0; s < CR_OP_IN_MAX; s++)
            if (op.in[s] >= 0) call.in[s] = address(op.in[s]);
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (op.out[s] >= 0) call.out[s] = address(op.out[s]);
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (op.out[s] >= 0) REQUIRE_OK(spoil(op.out[s]));
        REQUIRE_OK(cr_kernel_prepare(g.device, kernel, &g.p, &op, &call.prepared, &bytes));
        CHECK(bytes <= g.workspace_bytes);
        cr_status status = bytes <= g.workspace_bytes ? kernel->launch(g.device, &call) : CR_OK;
        if (status == CR_OK) status = g.device->backend->sync(g.device);
        cr_kernel_release(kernel, call.prepared);
        REQUIRE_OK(status);
        if (expected.pixel)
            check_pixels(kernel->name, expected.image, expected.pixel);
        else
            check_sums(kernel->name, expected.from, expected.count, expected.sum);
        rows++;
    }
    CHECK(rows > 0);
}

static double conv_want(int64_t m, int k) {
    double sum = 0;
    for (int c = 0; c < C; c++) sum += value(0, m, c) * g.filter[k * C + c];
    return sum;
}

TEST(convolution) {
    NEED_LARGE();
    struct cr_op op       = op_on(CR_OP_conv, g.image[0], g.w);
    op.attr.conv.stride   = 1;
    op.out[CR_OUT_conv_y] = g.image[1];
    run_kernels(op, (struct expected){.image = 1, .pixel = conv_want});
    CHECK_STATUS(fill(1, 2), CR_OK);
}

static double dgrad_want(int64_t m, int c) {
    double sum = 0;
    for (int k = 0; k < C; k++) sum += value(2, m, k) * g.filter[k * C + c];
    return sum;
}

TEST(data_gradient) {
    NEED_LARGE();
    struct cr_op op              = op_on(CR_OP_conv_dgrad, g.image[2], g.w);
    op.attr.conv.stride          = 1;
    op.out[CR_OUT_conv_dgrad_dx] = g.image[3];
    run_kernels(op, (struct expected){.image = 3, .pixel = dgrad_want});
}

static double wgrad_sum[C * C];
static double wgrad_want(int i) {
    return wgrad_sum[i];
}

TEST(filter_gradient) {
    NEED_LARGE();
    for (int r = 0; r < PERIOD; r++)
        for (int k = 0; k < C; k++)
            for (int c = 0; c < C; c++) wgrad_sum[k * C + c] += times(r) * value(2, r, k) * value(0, r, c);
    struct cr_op op              = op_on(CR_OP_conv_wgrad, g.image[0], g.image[2]);
    op.attr.conv.stride          = 1;
    op.out[CR_OUT_conv_wgrad_dw] = g.dw;
    run_kernels(op, (struct expected){.from = small_at(1), .count = C * C, .sum = wgrad_want});
}

static double sums_expected(int i) {
    double sum = 0;
    for (int r = 0; r < PERIOD; r++) {
        const double x = value(0, r, i % C);
        sum += times(r) * (i < C ? x : x * x);
    }
    return sum;
}

TEST(bn_sums) {
    NEED_LARGE();
    struct cr_op op             = op_on(CR_OP_bn_sums, g.image[0]);
    op.out[CR_OUT_bn_sums_sums] = g.vec[5];
    run_kernels(op, (struct expected){.from = small_at(2 + 5), .count = 2 * C, .sum = sums_expected});
}

static double apply_want(int64_t m, int c) {
    return fmax(1.5 * value(0, m, c) + 0.25 + value(2, m, c), 0);
}

TEST(bn_apply_with_add) {
    NEED_LARGE();
    struct cr_op op           = op_on(CR_OP_bn_apply, g.image[0], g.vec[0]);
    op.attr.bn.relu           = true;
    op.in[CR_IN_bn_apply_add] = g.image[2];
    op.out[CR_OUT_bn_apply_y] = g.image[3];
    run_kernels(op, (struct expected){.image = 3, .pixel = apply_want});
}

static double grad_apply_want(int64_t m, int c) {
    return 1.5 * value(2, m, c) + 0.25 * value(0, m, c) + 0.125;
}

TEST(gradient_of_bn) {
    NEED_LARGE();
    struct cr_op op                 = op_on(CR_OP_bn_grad_apply, g.image[2], g.image[0], g.vec[2]);
    op.out[CR_OUT_bn_grad_apply_dx] = g.image[3];
    run_kernels(op, (struct expected){.image = 3, .pixel = grad_apply_want});
}

static double relu_grad_want(int64_t m, int c) {
    return value(0, m, c) > 0 ? value(2, m, c) : 0;
}

TEST(gradient_of_relu) {
    NEED_LARGE();
    struct cr_op op             = op_on(CR_OP_relu_grad, g.image[2], g.image[0]);
    op.out[CR_OUT_relu_grad_dx] = g.image[3];
    run_kernels(op, (struct expected){.image = 3, .pixel = relu_grad_want});
}

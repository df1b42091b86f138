/* tests/unit/verification/test_verify.c: the verifier itself: bounds against closed forms, a whole program with and
 * without a wrong kernel, memory that runs out. Which errors are allowed near roundings and
 * in 16-bit tensors: test_verify_ops.c. That wrong kernels are detected op by op: checkops_selftest.c. */
#include "tests/harness/failing_alloc.h"
#include "tests/harness/inference_support.h"
#include "tests/harness/tiny_op.h"

/* ---- one op ---- */

struct dot {
    struct tiny t;
    float      *x, *w;
    double      want, magnitude;
};

static void dot_close(struct dot *d) {
    tiny_close(&d->t);
}
OWNABLE(dot, struct dot, dot_close(x))

/* A dense op of one output: y = sum x w + 0, x w of both signs. */
static void dot_open(struct dot *d) {
    double x[64], w[64];
    for (int i = 0; i < 64; i++) {
        x[i] = i % 2 ? 1.5 + i : -1.25 - i;
        w[i] = (double)(1.0f / (float)(i + 1));
        d->want += x[i] * w[i];
        d->magnitude += fabs(x[i] * w[i]);
    }
    tiny_open(&d->t, CR_OP_dense, CR_F32);
    tiny_put(&d->t, CR_IN_dense_x, CR_F32, 1, 64, x);
    tiny_put(&d->t, CR_IN_dense_w, CR_F32, 1, 64, w);
    PUT(&d->t, CR_IN_dense_b, CR_F32, 1, 1, 0);
    tiny_emit(&d->t);
    d->x = (float *)d->t.in[CR_IN_dense_x];
    d->w = (float *)d->t.in[CR_IN_dense_w];
}

static struct cr_verify_result dot_verify(struct dot *d, enum cr_math math, double got) {
    return tiny_try(&d->t, math, 0, 0, got);
}

/* Half the distance between neighbours around x, of numbers with this many significant bits. */
static double half_step(double x, int bits) {
    return exp2(floor(log2(fabs(x))) - bits);
}

static double allowed(const struct dot *d, enum cr_math math) {
    const double n = cr_verify_terms(&d->t.p, &d->t.p.op[0], 0), want = fabs(d->want),
                 cut = 4 * 0x1p-22 * sqrt(n) * d->magnitude;
    switch (math) {
    case CR_MATH_F32: return 4 * 0x1p-24 * sqrt(n) * d->magnitude;
    case CR_MATH_TF32: return cut + 0x1p-26 * n * want + 0x1p-9 * d->magnitude;
    case CR_MATH_F16: return cut + 0x1p-26 * n * want + half_step(want, 11);
    case CR_MATH_BF16: return cut + 0x1p-26 * n * want + half_step(want, 8);
    default: return 0;
    }
}

/* Just inside the bound of its math mode a result is correct, just outside it is not. */
TEST(bound_of_a_dot_product) {
    static const enum cr_math maths[] = {CR_MATH_F32, CR_MATH_TF32, CR_MATH_F16, CR_MATH_BF16};
    OWNED(dot)                d       = {0};
    dot_open(&d);
    CHECK_NEAR(cr_verify_terms(&d.t.p, &d.t.p.op[0], 0), 66, 2);
    for (size_t i = 0; i < CR_COUNT(maths); i++) {
        const double bound = allowed(&d, maths[i]);
        for (int sign = -1; sign <= 1; sign += 2) {
            struct cr_verify_result inside  = dot_verify(&d, maths[i], d.want + sign * 0.97 * bound);
            struct cr_verify_result outside = dot_verify(&d, maths[i], d.want - sign * 1.03 * bound);
            CHECK(inside.ok && inside.worst > 0.9 && inside.worst <= 1);
            CHECK(!outside.ok && outside.worst > 1);
            CHECK_NEAR(outside.want, d.want, 1e-12);
            CHECK_NEAR(outside.bound, bound, 0.02 * bound);
        }
    }
    CHECK(!dot_verify(&d, CR_MATH_F64, d.want * (1 + 1e-6)).ok);
    CHECK(dot_verify(&d, CR_MATH_F64, d.want).ok);
}

/* Tensor cores that multiply f16 do not round their operands: an error of tf32 rounding is too large for them. */
TEST(only_tf32_may_round_operands) {
    OWNED(dot) d = {0};
    dot_open(&d);
    d.x[63] += 0.123f;                                         /* so that the sum is not a 16-bit number */
    for (int i = 0; i < 64; i++) d.w[i] = d.x[i] > 0 ? 1 : -1; /* all terms have the same sign: A is the result */
    d.want = d.magnitude = 0;
    for (int i = 0; i < 64; i++) d.want += fabs((double)d.x[i]);
    d.magnitude      = d.want;
    const double cut = d.want * (1 - 0.9 * 0x1p-9);
    CHECK(dot_verify(&d, CR_MATH_TF32, cut).ok);
    CHECK(!dot_verify(&d, CR_MATH_F16, cut).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, cut).ok);
    CHECK(dot_verify(&d, CR_MATH_F16, (double)cr_f16_to_f32(cr_f32_to_f16((float)d.want))).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, (double)cr_f16_to_f32(cr_f32_to_f16((float)d.want))).ok);
}

/* An operand below the normal floats may count as 0 in a product, in every math mode. */
TEST(denormals_may_be_flushed_in_products) {
    OWNED(dot) d = {0};
    dot_open(&d);
    for (int i = 0; i < 64; i++) {
        d.x[i] = 0;
        d.w[i] = 1e4f;
    }
    d.x[9] = 0x1p-127f;
    CHECK(dot_verify(&d, CR_MATH_F32, 0).ok);
    CHECK(dot_verify(&d, CR_MATH_TF32, 0).ok);
    CHECK(!dot_verify(&d, CR_MATH_F64, 0).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, 0x1p-100).ok);
    d.x[9] = 0x1p-90f; /* not small: to lose it is wrong */
    CHECK(!dot_verify(&d, CR_MATH_TF32, 0).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, 0).ok);
}

/* With CR_RELAXED_SPLIT_INPUT an input may be off by 2^-29 of the largest input. Without it the FP32 bound holds. */
TEST(split_inputs_lose_parts_of_the_largest) {
    OWNED(dot) d = {0};
    dot_open(&d);
    for (int i = 0; i < 64; i++) d.x[i] = i == 9 ? 1e-5f : 4, d.w[i] = i == 9;
    CHECK(!dot_verify(&d, CR_MATH_F32, 1e-5 + 4 * 0x1p-29).ok);
    d.t.io.relaxations = CR_RELAXED_SPLIT_INPUT;
    CHECK(dot_verify(&d, CR_MATH_F32, 1e-5 + 4 * 0x1p-29).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, 1e-5 + 64 * 0x1p-29).ok);
    for (int i = 0; i < 64; i++) d.x[i] = 1e-5f;
    CHECK(!dot_verify(&d, CR_MATH_F32, 1e-5 + 4 * 0x1p-29).ok);
}

TEST(nan_and_infinity_by_position) {
    OWNED(dot) d = {0};
    dot_open(&d);
    struct cr_verify_result r = dot_verify(&d, CR_MATH_F32, NAN);
    CHECK(!r.ok && r.nonfinite == 1);
    d.x[5] = INFINITY;
    CHECK(dot_verify(&d, CR_MATH_F32, INFINITY).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, -INFINITY).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, 3e38).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, NAN).ok);
    d.x[5] = NAN;
    CHECK(dot_verify(&d, CR_MATH_F32, NAN).ok);
    CHECK(!dot_verify(&d, CR_MATH_F32, 0).ok);
    /* Terms that cancel, each near the largest float: partial sums in float may overflow, in double they may not. */
    for (int i = 0; i < 64; i++) {
        d.x[i] = i % 2 ? 3e38f : -3e38f;
        d.w[i] = 1;
    }
    CHECK(dot_verify(&d, CR_MATH_F32, INFINITY).ok);
    CHECK(!dot_verify(&d, CR_MATH_F64, INFINITY).ok);
}

TEST(failing_memory) {
    OWNED(dot) d = {0};
    dot_open(&d);
    const struct cr_step_block step                = {0};
    const float                y                   = (float)d.want;
    const void *const          outs[CR_OP_OUT_MAX] = {&y};
    struct cr_verify_result    r                   = {0};
    for_each_failing_alloc(f, .least = 4) {
        failing_alloc_run(&f, cr_verify_op(d.t.cpu, &d.t.p, &d.t.p.op[0], CR_MATH_F32, &step, &d.t.io, outs, &r));
    }
}

/* ---- programs ---- */

static struct cr_device *open_cpu(void) {
    const struct cr_device_options options = {.ref_only = true};
    struct cr_device              *device  = NULL;
    if (cr_device_open(CR_DEVICE_CPU, &options, &device) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return device;
}

static cr_status feed(struct net *n) {
    static uint8_t images[BATCH * 32 * 32 * 3];
    const int32_t  labels[BATCH] = {3, 1}, boxes[BATCH * 4] = {0};
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * i * 7 + i);
    return cr_exec_feed(n->exec, images, labels, boxes);
}

static cr_status run_open(struct net *n, bool fuse, enum cr_dtype real) {
    static const char *const overrides[] = {"model.arch=custom", "model.block=basic",   "model.depths=2,1",
                                            "model.widths=8,16", "model.stem=imagenet", "model.shortcut=B",
                                            "data.image_size=32"};
    const struct net_plan    plan        = {.overrides = overrides,
                                            .count     = CR_COUNT(overrides),
                                            .kind      = CR_PROGRAM_STEP,
                                            .classes   = CLASSES,
                                            .size      = 32,
                                            .batch     = BATCH,
                                            .fuse      = fuse,
                                            .real      = real};
    CR_TRY(net_open(n, &plan));
    fill_store(n, 1);
    const double scale = real == CR_F32 ? 1 : 64;
    char *const  store = n->memory.region[CR_REGION_STORE];
    memcpy(store + cr_param_store_buffer_offset(&n->model.store, CR_BUFFER_STATE), &scale, sizeof scale);
    return feed(n);
}

static void whole_program(bool fuse, enum cr_dtype real) {
    const struct cr_step_block step    = {.lr = 0.1f, .momentum = 0.9f};
    OWNED(device)              cpu     = open_cpu();
    int                        checked = 0;
    double                     worst   = 0;
    OWNED(net)                 n       = {0};
    REQUIRE_OK(run_open(&n, fuse, real));
    CHECK_STATUS(cr_verify_program(cpu, n.device, n.exec, &n.program, &step, &checked, &worst), CR_OK);
    CHECK_INT(checked, n.program.ops);
    CHECK(checked > 40 && worst > 0 && worst <= 1);
}
TEST(whole_programs) {
    whole_program(false, CR_F32);
    whole_program(true, CR_F32);
    whole_program(false, CR_F16);
    whole_program(true, CR_BF16);
}

static const struct cr_kernel *right_pool;

static cr_status wrong_pool(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(right_pool->launch(device, call));
    ((float *)call->out[0])[3] *= 1.001f;
    return CR_OK;
}

TEST(first_wrong_op_is_named) {
    const struct cr_step_block step = {.lr = 0.1f};
    OWNED(device)              cpu  = open_cpu();
    static struct cr_kernel    wrong;
    const struct cr_kernel    *kernels[300] = {NULL};
    OWNED(net)                 n            = {0};
    int                        checked      = 0;
    double                     worst        = 0;
    REQUIRE_OK(run_open(&n, false, CR_F32));
    for (int i = 0; n.device->kernels[i]; i++) kernels[i] = n.device->kernels[i];
    for (int i = 0; i < n.program.ops; i++) {
        if (n.program.op[i].kind != CR_OP_avgpool) continue;
        right_pool                      = kernels[n.program.op[i].kernel];
        wrong                           = *right_pool;
        wrong.name                      = "bad.avgpool";
        wrong.launch                    = wrong_pool;
        kernels[n.program.op[i].kernel] = &wrong;
    }
    n.device->kernels = kernels;
    cr_exec_close(n.exec);
    REQUIRE_OK(cr_exec_open(&n.program, &n.memory, &n.exec));
    REQUIRE_OK(feed(&n));
    CHECK_STATUS(cr_verify_program(cpu, n.device, n.exec, &n.program, &step, &checked, &worst), CR_ERR_NUMERIC);
    CHECK_HAS(cr_error_message(), "bad.avgpool");
    CHECK_HAS(cr_error_message(), "avgpool.y");
    CHECK_HAS(cr_error_message(), "element 3");
    CHECK(checked > 10 && checked < n.program.ops);
}

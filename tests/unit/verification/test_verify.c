/* tests/unit/verification/test_verify.c: the verifier itself: bounds against closed forms, a whole program with and
 * without a wrong kernel, memory that runs out. Errors allowed for 16-bit tensors are tested in
 * tests/unit/verification/test_verify_half.c; detection of wrong kernels op by op is tested in
 * tests/checkops/selftest/checkops_selftest.c. */
#include "compiler/compiler.h"
#include "compiler/passes.h"
#include "layers/layer.h"
#include "tests/harness/failing_alloc.h"
#include "verification/verify.h"

#include <math.h>

/* ---- one op ---- */

struct dot {
    struct cr_param_store store;
    struct cr_program     p;
    float                 x[64], w[64];
    double                want, magnitude;
};

/* A dense op of one output: y = sum x w + 0, x w of both signs. */
static void dot_open(struct dot *d) {
    *d              = (struct dot){0};
    struct cr_op op = cr_op_make(CR_OP_dense, CR_NONE);
    cr_program_init(&d->p, "dot", &d->store);
    op.in[CR_IN_dense_x] = cr_tensor_add(&d->p, "x", CR_F32, CR_REGION_POOL, 1, 1, 1, 64);
    op.in[CR_IN_dense_w] = cr_tensor_add(&d->p, "w", CR_F32, CR_REGION_POOL, 1, 1, 1, 64);
    op.in[CR_IN_dense_b] = cr_tensor_add(&d->p, "b", CR_F32, CR_REGION_POOL, 1, 1, 1, 1);
    cr_emit(&d->p, &op, "y");
    for (int i = 0; i < 64; i++) {
        d->x[i] = (float)(i % 2 ? 1.5 + i : -1.25 - i);
        d->w[i] = 1.0f / (float)(i + 1);
        d->want += (double)d->x[i] * (double)d->w[i];
        d->magnitude += fabs((double)d->x[i] * (double)d->w[i]);
    }
}

static struct cr_verify_result dot_verify(struct dot *d, struct cr_device *cpu, enum cr_math math, double got) {
    const float                zero = 0, y = (float)got;
    const struct cr_step_block step                = {0};
    const struct cr_verify_io  io                  = {.in = {d->x, d->w, &zero}};
    const void *const          outs[CR_OP_OUT_MAX] = {&y};
    struct cr_verify_result    r                   = {0};
    if (cr_verify_op(cpu, &d->p, &d->p.op[0], math, &step, &io, outs, &r) != CR_OK)
        TEST_FAIL_("%s", cr_error_message());
    return r;
}

static struct cr_device *open_cpu(bool ref_only) {
    const struct cr_device_options options = {.ref_only = ref_only};
    struct cr_device              *device  = NULL;
    if (cr_device_open(CR_DEVICE_CPU, &options, &device) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return device;
}

/* Half the distance between neighbours around x, of numbers with this many significant bits. */
static double half_step(double x, int bits) {
    return exp2(floor(log2(fabs(x))) - bits);
}

static double allowed(const struct dot *d, enum cr_math math) {
    const double n = cr_verify_terms(&d->p, &d->p.op[0], 0), want = fabs(d->want),
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
static void bound_of_a_dot_product(void) {
    static const enum cr_math maths[] = {CR_MATH_F32, CR_MATH_TF32, CR_MATH_F16, CR_MATH_BF16};
    struct cr_device         *cpu     = open_cpu(true);
    struct dot                d;
    dot_open(&d);
    CHECK_NEAR(cr_verify_terms(&d.p, &d.p.op[0], 0), 66, 2);
    for (size_t i = 0; i < CR_COUNT(maths); i++) {
        const double bound = allowed(&d, maths[i]);
        for (int sign = -1; sign <= 1; sign += 2) {
            struct cr_verify_result inside  = dot_verify(&d, cpu, maths[i], d.want + sign * 0.97 * bound);
            struct cr_verify_result outside = dot_verify(&d, cpu, maths[i], d.want - sign * 1.03 * bound);
            CHECK(inside.ok && inside.worst > 0.9 && inside.worst <= 1);
            CHECK(!outside.ok && outside.worst > 1);
            CHECK_NEAR(outside.want, d.want, 1e-12);
            CHECK_NEAR(outside.bound, bound, 0.02 * bound);
        }
    }
    CHECK(!dot_verify(&d, cpu, CR_MATH_F64, d.want * (1 + 1e-6)).ok);
    CHECK(dot_verify(&d, cpu, CR_MATH_F64, d.want).ok);
    cr_program_free(&d.p);
    cr_device_close(cpu);
}

/* Tensor cores that multiply f16 do not round their operands: an error of tf32 rounding is too large for them. */
static void only_tf32_may_round_operands(void) {
    struct cr_device *cpu = open_cpu(true);
    struct dot        d;
    dot_open(&d);
    d.x[63] += 0.123f;                                         /* so that the sum is not a 16-bit number */
    for (int i = 0; i < 64; i++) d.w[i] = d.x[i] > 0 ? 1 : -1; /* all terms have the same sign: A is the result */
    d.want = d.magnitude = 0;
    for (int i = 0; i < 64; i++) d.want += fabs((double)d.x[i]);
    d.magnitude      = d.want;
    const double cut = d.want * (1 - 0.9 * 0x1p-9);
    CHECK(dot_verify(&d, cpu, CR_MATH_TF32, cut).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F16, cut).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, cut).ok);
    CHECK(dot_verify(&d, cpu, CR_MATH_F16, (double)cr_f16_to_f32(cr_f32_to_f16((float)d.want))).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, (double)cr_f16_to_f32(cr_f32_to_f16((float)d.want))).ok);
    cr_program_free(&d.p);
    cr_device_close(cpu);
}

/* An operand below the normal floats may count as 0 in a product, in every math mode. */
static void denormals_may_be_flushed_in_products(void) {
    struct cr_device *cpu = open_cpu(true);
    struct dot        d;
    dot_open(&d);
    for (int i = 0; i < 64; i++) {
        d.x[i] = 0;
        d.w[i] = 1e4f;
    }
    d.x[9] = 0x1p-127f;
    CHECK(dot_verify(&d, cpu, CR_MATH_F32, 0).ok);
    CHECK(dot_verify(&d, cpu, CR_MATH_TF32, 0).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F64, 0).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, 0x1p-100).ok);
    d.x[9] = 0x1p-90f; /* not small: to lose it is wrong */
    CHECK(!dot_verify(&d, cpu, CR_MATH_TF32, 0).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, 0).ok);
    cr_program_free(&d.p);
    cr_device_close(cpu);
}

static void nan_and_infinity_by_position(void) {
    struct cr_device *cpu = open_cpu(true);
    struct dot        d;
    dot_open(&d);
    struct cr_verify_result r = dot_verify(&d, cpu, CR_MATH_F32, NAN);
    CHECK(!r.ok && r.nonfinite == 1);
    d.x[5] = INFINITY;
    CHECK(dot_verify(&d, cpu, CR_MATH_F32, INFINITY).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, -INFINITY).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, 3e38).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, NAN).ok);
    d.x[5] = NAN;
    CHECK(dot_verify(&d, cpu, CR_MATH_F32, NAN).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F32, 0).ok);
    /* Terms that cancel, each near the largest float: partial sums in float may overflow, in double they may not. */
    for (int i = 0; i < 64; i++) {
        d.x[i] = i % 2 ? 3e38f : -3e38f;
        d.w[i] = 1;
    }
    CHECK(dot_verify(&d, cpu, CR_MATH_F32, INFINITY).ok);
    CHECK(!dot_verify(&d, cpu, CR_MATH_F64, INFINITY).ok);
    cr_program_free(&d.p);
    cr_device_close(cpu);
}

static void failing_memory(void) {
    struct cr_device *cpu = open_cpu(true);
    struct dot        d;
    dot_open(&d);
    const float                zero = 0, y = (float)d.want;
    const struct cr_step_block step                = {0};
    const struct cr_verify_io  io                  = {.in = {d.x, d.w, &zero}};
    const void *const          outs[CR_OP_OUT_MAX] = {&y};
    struct cr_verify_result    r                   = {0};
    for_each_failing_alloc(f, .least = 4) {
        failing_alloc_begin(&f);
        failing_alloc_end(&f, cr_verify_op(cpu, &d.p, &d.p.op[0], CR_MATH_F32, &step, &io, outs, &r));
    }
    cr_program_free(&d.p);
    cr_device_close(cpu);
}

/* Every op kind has a verification rule and a reduction length. */
static void every_op_kind_has_a_rule(void) {
    for (int k = 0; k < CR_OP_COUNT; k++) {
        const struct cr_verify_rule  *rule  = cr_verify_rule((enum cr_op_kind)k);
        const struct cr_verify_hooks *hooks = cr_verify_hooks((enum cr_op_kind)k);
        /* exact always, or only without some slots: with them there must be a bound */
        const bool bounded = rule->magnitude || hooks->closed || hooks->epilogue;
        CHECK(bounded == (!rule->exact || rule->unless != 0));
        if (rule->magnitude) CHECK_INT(strlen(rule->magnitude), cr_op_info((enum cr_op_kind)k)->ins);
    }
}

/* ---- a whole program ---- */

enum { BATCH = 2, SIZE = 8, CLASSES = 5 };

struct run {
    struct cr_param_store   store;
    struct cr_program       p;
    struct cr_memory        memory;
    struct cr_exec         *exec;
    struct cr_device       *device, *cpu;
    enum cr_dtype           real;
    struct cr_kernel        wrong;
    const struct cr_kernel *kernels[300];
};

static void emit_net(struct run *r) {
    struct cr_config config  = {0};
    config.model.bn_eps      = 1e-5;
    config.model.bn_momentum = 0.1;
    config.data.channels     = 3;
    config.data.mean.count = config.data.std.count = 3;
    for (int i = 0; i < 3; i++) config.data.mean.at[i] = config.data.std.at[i] = 0.25;
    struct cr_net   net   = {.program = &r->p, .store = &r->store, .config = &config, .training = true};
    struct cr_stage stage = {.groups   = 1,
                             .path     = "layer1",
                             .block    = CR_BLOCK_BASIC,
                             .shortcut = CR_SHORTCUT_B,
                             .width    = 8,
                             .depth    = 2,
                             .stride   = 2};
    cr_program_free(&r->p);
    cr_program_init(&r->p, "step", &r->store);
    r->p.real = r->store.half = r->real;
    if (r->real != CR_F32) cr_layer_cast(&net);
    int x    = cr_layer_input(&net, BATCH, SIZE);
    x        = cr_layer_conv(&net, "conv1", x, 8, 3, 1, 1);
    x        = cr_layer_relu(&net, "relu", cr_layer_batchnorm(&net, "bn1", x, false));
    x        = cr_layer_stage(&net, &stage, cr_layer_maxpool(&net, "maxpool", x, 3, 2, 1));
    x        = cr_layer_dense(&net, "fc", cr_layer_avgpool(&net, "avgpool", x), CLASSES);
    int loss = cr_layer_loss(&net, x, 0.1f);
    if (cr_pass_grad(&r->p, loss, false, 1.0f, 0.1f) != CR_OK) r->p.failed = true;
}

static float value_of(const struct cr_param *q, int k, int i) {
    return cr_param_is_running(q->role) ? 1.0f : (float)((i * 37 + k) % 19 - 9) * 0.1f;
}

/* In 16-bit programs filters are slices of the half buffer, which the cast computes from the value buffer. */
static cr_status feed_buffer(struct run *r) {
    const int buffer = cr_tensor_store(&r->p, CR_BUFFER_VALUE, CR_NONE);
    float    *value;
    CR_ALLOC(value, (size_t)r->store.value_elems);
    for (int k = 0; k < r->store.params; k++) {
        const struct cr_param *q = &r->store.param[k];
        if (cr_param_is_running(q->role)) continue;
        for (int i = 0; i < (int)q->elems; i++) value[q->offset + i] = value_of(q, k, i);
    }
    cr_status status = cr_exec_put(r->exec, buffer, value);
    cr_free(value);
    return status;
}

static cr_status feed(struct run *r) {
    uint8_t       images[BATCH * SIZE * SIZE * 3];
    const int32_t labels[BATCH] = {3, 1};
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * i * 7 + i);
    for (int k = 0; k < r->store.params; k++) {
        float                  value[8 * 9 * 8]; /* the largest filter */
        const struct cr_param *q = &r->store.param[k];
        CR_ASSERT(q->elems <= (int64_t)CR_COUNT(value));
        for (int i = 0; i < (int)q->elems; i++) value[i] = value_of(q, k, i);
        int t = r->real == CR_F32 ? cr_tensor_find(&r->p, q->name) : CR_NONE;
        if (t >= 0) CR_TRY(cr_exec_put(r->exec, t, value));
    }
    if (r->real != CR_F32) CR_TRY(feed_buffer(r));
    const double state[CR_STATE_COUNT] = {r->real == CR_F32 ? 1 : 64};
    int          t                     = cr_tensor_store_find(&r->p, CR_BUFFER_STATE, CR_NONE);
    if (t >= 0) CR_TRY(cr_exec_put(r->exec, t, state));
    return cr_exec_feed(r->exec, images, labels, NULL);
}

static cr_status run_open(struct run *r, const struct cr_kernel *wrong, bool fuse, enum cr_dtype real) {
    const struct cr_compile_options options = {.fuse = fuse, .reuse = true};
    *r                                      = (struct run){.store = {.has_momentum = true}, .real = real};
    r->cpu                                  = open_cpu(true);
    r->device                               = open_cpu(false);
    if (wrong) { /* comes before all others */
        r->wrong      = *wrong;
        r->kernels[0] = &r->wrong;
        for (int i = 0; r->device->kernels[i]; i++) r->kernels[i + 1] = r->device->kernels[i];
        r->device->kernels = r->kernels;
    }
    emit_net(r);
    emit_net(r); /* offsets of the buffers are known once all parameters exist */
    if (r->p.failed || r->store.failed) return CR_NO_MEMORY(0);
    const struct cr_cost_model     cost_model = cr_device_cost_model(r->device);
    const struct cr_program *const list[]     = {&r->p};
    CR_TRY(cr_compile(&r->p, &cost_model, &options));
    CR_TRY(cr_memory_open(&r->memory, r->device, &r->store, list, 1));
    CR_TRY(cr_exec_open(&r->p, &r->memory, &r->exec));
    return feed(r);
}

static void run_close(struct run *r) {
    cr_exec_close(r->exec);
    if (r->memory.device) cr_memory_close(&r->memory);
    cr_program_free(&r->p);
    cr_param_store_free(&r->store);
    cr_device_close(r->device);
    cr_device_close(r->cpu);
}

static void whole_program(bool fuse, enum cr_dtype real) {
    const struct cr_step_block step = {.lr = 0.1f, .momentum = 0.9f};
    struct run                 r;
    int                        checked = 0;
    double                     worst   = 0;
    cr_status                  status  = run_open(&r, NULL, fuse, real);
    if (status == CR_OK) status = cr_verify_program(r.cpu, r.device, r.exec, &r.p, &step, &checked, &worst);
    if (status != CR_OK) TEST_FAIL_("%s", cr_error_message());
    CHECK_INT(checked, r.p.ops);
    CHECK(checked > 40 && worst > 0 && worst <= 1);
    run_close(&r);
}
static void whole_programs(void) {
    whole_program(false, CR_F32);
    whole_program(true, CR_F32);
    whole_program(false, CR_F16);
    whole_program(true, CR_BF16);
}

static cr_status wrong_pool(struct cr_device *device, const struct cr_call *call) {
    for (const struct cr_kernel *const *kernel = device->kernels + 1; *kernel; kernel++)
        if ((*kernel)->op == call->op->kind && (*kernel)->reference) CR_TRY((*kernel)->launch(device, call));
    ((float *)call->out[0])[3] *= 1.001f;
    return CR_OK;
}

static void first_wrong_op_is_named(void) {
    const struct cr_kernel wrong = {
        .name = "bad.avgpool", .op = CR_OP_avgpool, .math = CR_MATH_F32, .launch = wrong_pool};
    const struct cr_step_block step = {.lr = 0.1f};
    struct run                 r;
    int                        checked = 0;
    double                     worst   = 0;
    cr_status                  status  = run_open(&r, &wrong, false, CR_F32);
    if (status != CR_OK)
        TEST_FAIL_("%s", cr_error_message());
    else
        CHECK_STATUS(cr_verify_program(r.cpu, r.device, r.exec, &r.p, &step, &checked, &worst), CR_ERR_NUMERIC);
    CHECK_HAS(cr_error_message(), "bad.avgpool");
    CHECK_HAS(cr_error_message(), "avgpool.y");
    CHECK_HAS(cr_error_message(), "element 3");
    CHECK(checked > 10 && checked < r.p.ops);
    run_close(&r);
}

TESTS(CASE(bound_of_a_dot_product), CASE(only_tf32_may_round_operands), CASE(denormals_may_be_flushed_in_products),
      CASE(nan_and_infinity_by_position), CASE(failing_memory), CASE(every_op_kind_has_a_rule), CASE(whole_programs),
      CASE(first_wrong_op_is_named))

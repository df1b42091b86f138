/* tests/unit/verification/test_verify_fused.c: differences that the verifier allows in fused ops, and those that it
 * must not allow: roundings and signs near their edges, sums of rounded numbers. The ops have one or two channels and
 * one pixel, so that every correct result can be written here. */
#include "tests/harness/test.h"
#include "verification/verify.h"

struct tiny { /* an op on [1,1,1,C] data, C at most 8 */
    struct cr_device     *cpu;
    struct cr_param_store store;
    struct cr_program     p;
    struct cr_op          op;
    struct cr_verify_io   io;
    double                in[CR_OP_IN_MAX][24], out[CR_OP_OUT_MAX][24]; /* room for 24 elements of any type */
};

static void tiny_close(struct tiny *t) {
    cr_program_free(&t->p);
    cr_device_close(t->cpu);
}
OWNABLE(tiny, struct tiny, tiny_close(x))

static void tiny_open(struct tiny *t, enum cr_op_kind kind, enum cr_dtype real) {
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    tiny_close(t);
    *t = (struct tiny){.op = cr_op_make(kind, CR_NONE)};
    if (cr_device_open(CR_DEVICE_CPU, &options, &t->cpu) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    cr_program_init(&t->p, "tiny", &t->store);
    t->p.real = real;
}

static void put(struct tiny *t, int slot, enum cr_dtype dtype, int64_t rows, int64_t C, const double *values) {
    t->op.in[slot] = cr_tensor_add(&t->p, cr_op_info(t->op.kind)->in_name[slot], dtype, CR_REGION_POOL, rows, 1, 1, C);
    for (int64_t i = 0; i < rows * C; i++) cr_number_store(dtype, t->in[slot], i, values[i]);
    t->io.in[slot] = t->in[slot];
}
#define PUT(t, slot, dtype, rows, C, ...) put(t, slot, dtype, rows, C, (const double[]){__VA_ARGS__})
static void emit(struct tiny *t) {
    cr_emit(&t->p, &t->op, "y");
}

static double ratio; /* relative to the bound, of the last call */

/* True when `got` in output `slot` is accepted while the other outputs are those of the reference. Call good()
 * first. */
static bool accepted(struct tiny *t, int slot, int64_t i, double got) {
    const struct cr_op        *op   = &t->p.op[0];
    const struct cr_step_block step = {0};
    const void                *outs[CR_OP_OUT_MAX];
    struct cr_verify_result    r     = {0};
    const enum cr_dtype        dtype = t->p.tensor[op->out[slot]].dtype;
    for (int s = 0; s < CR_OP_OUT_MAX; s++) outs[s] = t->out[s];
    const double old = cr_number_load(dtype, t->out[slot], i);
    cr_number_store(dtype, t->out[slot], i, got);
    if (cr_verify_op(t->cpu, &t->p, op, CR_MATH_F32, &step, &t->io, outs, &r) != CR_OK)
        TEST_FAIL_("%s", cr_error_message());
    cr_number_store(dtype, t->out[slot], i, old);
    ratio = r.worst;
    return r.ok;
}

/* Fills the outputs with the results of the reference kernel. */
static void good(struct tiny *t) {
    const struct cr_op     *op     = &t->p.op[0];
    const struct cr_kernel *kernel = cr_verify_ref(t->cpu, op->kind);
    double                  scratch[64];
    struct cr_call          call = {.program = &t->p, .op = op, .workspace = scratch};
    for (int s = 0; s < CR_OP_IN_MAX; s++) call.in[s] = t->io.in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++) call.out[s] = op->out[s] >= 0 ? t->out[s] : NULL;
    if (kernel->launch(t->cpu, &call) != CR_OK) TEST_FAIL_("%s", cr_error_message());
}

/* A 1x1 convolution with weight 1 outputs act(x) itself. */
static void conv_open(struct tiny *t, double x, double scale, double bias, bool sums) {
    tiny_open(t, CR_OP_conv, CR_F16);
    PUT(t, CR_IN_conv_x, CR_F16, 1, 1, x);
    PUT(t, CR_IN_conv_w, CR_F16, 1, 1, 1);
    PUT(t, CR_IN_conv_scale_bias, CR_F32, 2, 1, scale, bias);
    t->op.attr.conv.stride      = 1;
    t->op.out[CR_OUT_conv_sums] = sums ? CR_NEW : CR_NONE;
    emit(t);
    good(t);
}

TEST(act_near_a_tie_may_round_up_or_down) {
    const double step = 0x1p-10, middle = 1.5 + step / 2, x = 1 + 3 * step;
    OWNED(tiny)  t = {0};
    conv_open(&t, x, (double)(float)(middle / x), 0, false); /* x*scale is the middle except for a rounding */
    CHECK(accepted(&t, 0, 0, 1.5) && accepted(&t, 0, 0, 1.5 + step));
    CHECK(!accepted(&t, 0, 0, 1.5 - 2 * step) && !accepted(&t, 0, 0, 1.5 + 3 * step));
    conv_open(&t, 1, middle, 0, false); /* exactly the middle: rounds to even */
    CHECK(accepted(&t, 0, 0, 1.5) && !accepted(&t, 0, 0, 1.5 + step));
    conv_open(&t, x, (double)(float)((1.5 + 0.7 * step) / x), 0, false); /* well above it */
    CHECK(!accepted(&t, 0, 0, 1.5) && accepted(&t, 0, 0, 1.5 + step));
    conv_open(&t, 3, 1, -4, false);
    CHECK(accepted(&t, 0, 0, 0) && !accepted(&t, 0, 0, -1) && !accepted(&t, 0, 0, 0x1p-20));
}

/* Two channels in a row make a number that f16 cannot represent: the sums may use either rounding. */
TEST(sums_of_rounded_numbers_are_accepted) {
    const double step = 0x1p-10, y = 1 + step / 4;
    OWNED(tiny)  t = {0};
    tiny_open(&t, CR_OP_conv, CR_F16);
    PUT(&t, CR_IN_conv_x, CR_F16, 1, 2, 1, 1);
    PUT(&t, CR_IN_conv_w, CR_F16, 1, 2, 1, step / 4);
    t.op.attr.conv.stride      = 1;
    t.op.out[CR_OUT_conv_sums] = CR_NEW;
    emit(&t);
    good(&t);
    CHECK(accepted(&t, CR_OUT_conv_sums, 0, y) && accepted(&t, CR_OUT_conv_sums, 0, 1));
    CHECK(accepted(&t, CR_OUT_conv_sums, 1, y * y) && accepted(&t, CR_OUT_conv_sums, 1, 1));
    CHECK(!accepted(&t, CR_OUT_conv_sums, 0, 1 + 4 * step) && !accepted(&t, CR_OUT_conv_sums, 1, 1 - 6 * step) &&
          !accepted(&t, CR_OUT_conv_sums, 0, 0));
}

/* dx = g, masked by x*scale + bias > 0. */
static void relu_mask_open(struct tiny *t, double x, double scale, double bias) {
    tiny_open(t, CR_OP_bn_grad_apply, CR_F32);
    PUT(t, CR_IN_bn_grad_apply_dy, CR_F32, 1, 1, 5);
    PUT(t, CR_IN_bn_grad_apply_x, CR_F32, 1, 1, x);
    PUT(t, CR_IN_bn_grad_apply_coeffs, CR_F32, 3, 1, 1, 0, 0);
    PUT(t, CR_IN_bn_grad_apply_scale_bias, CR_F32, 2, 1, scale, bias);
    emit(t);
    good(t);
}

TEST(relu_masks_near_zero_may_be_0_or_1) {
    const double x = (double)1.1f, scale = (double)1.3f;
    OWNED(tiny)  t = {0};
    relu_mask_open(&t, x, scale, (double)(float)(-x * scale)); /* 0 except for a rounding */
    CHECK(accepted(&t, 0, 0, 0) && accepted(&t, 0, 0, 5) && !accepted(&t, 0, 0, 11));
    CHECK(!accepted(&t, 0, 0, 2.5) && !accepted(&t, 0, 0, 4.999) &&
          !accepted(&t, 0, 0, -1e-3)); /* one or the other, not between */
    relu_mask_open(&t, x, scale, (double)(float)(-x * scale * 1.0001));
    CHECK(accepted(&t, 0, 0, 0) && !accepted(&t, 0, 0, 5));
    relu_mask_open(&t, x, scale, (double)(float)(-x * scale * 0.9999));
    CHECK(!accepted(&t, 0, 0, 0) && accepted(&t, 0, 0, 5));
    relu_mask_open(&t, 0, scale, 0); /* exactly 0 is not above 0 */
    CHECK(accepted(&t, 0, 0, 0) && !accepted(&t, 0, 0, 5));
    relu_mask_open(&t, 2, 0.75, -1.5);
    CHECK(accepted(&t, 0, 0, 0) && !accepted(&t, 0, 0, 5));
}

/* dx = 3*dy where (x - mean)*rstd*gamma + beta > 0; grad_sums are the sums of dx and dx*xhat. */
static void dgrad_open(struct tiny *t, double x, double mean, double rstd, double gamma, double beta) {
    tiny_open(t, CR_OP_conv_dgrad, CR_F32);
    PUT(t, CR_IN_conv_dgrad_dy, CR_F32, 1, 1, 5);
    PUT(t, CR_IN_conv_dgrad_w, CR_F32, 1, 1, 3);
    PUT(t, CR_IN_conv_dgrad_bn_x, CR_F32, 1, 1, x);
    PUT(t, CR_IN_conv_dgrad_mean_rstd, CR_F32, 2, 1, mean, rstd);
    PUT(t, CR_IN_conv_dgrad_gamma, CR_F32, 1, 1, gamma);
    PUT(t, CR_IN_conv_dgrad_beta, CR_F32, 1, 1, beta);
    t->op.attr.conv.stride                 = 1;
    t->op.out[CR_OUT_conv_dgrad_dx]        = cr_tensor_add(&t->p, "dx", CR_F32, CR_REGION_POOL, 1, 1, 1, 1);
    t->op.out[CR_OUT_conv_dgrad_grad_sums] = CR_NEW;
    emit(t);
    good(t);
}

/* A ReLU mask with an uncertain bit makes 0 or all of a gradient: both are correct; a value in between is wrong. */
TEST(masked_gradients_are_all_or_zero) {
    const double x = (double)1.1f, mean = (double)0.3f, rstd = (double)1.7f, gamma = (double)1.3f,
                 pre = (x - mean) * rstd * gamma;
    const int   dx = CR_OUT_conv_dgrad_dx, grad_sums = CR_OUT_conv_dgrad_grad_sums;
    OWNED(tiny) t = {0};
    dgrad_open(&t, x, mean, rstd, gamma, (double)(float)-pre); /* 0 except for a rounding */
    CHECK(accepted(&t, dx, 0, 0) && ratio < 0.5);
    CHECK(accepted(&t, dx, 0, 15) && ratio < 0.5);
    CHECK(!accepted(&t, dx, 0, 14.999) && !accepted(&t, dx, 0, 7.5) && !accepted(&t, dx, 0, 1e-3) &&
          !accepted(&t, dx, 0, -15));
    CHECK(accepted(&t, grad_sums, 0, 0) && accepted(&t, grad_sums, 0, 15) && ratio < 0.5);
    CHECK(!accepted(&t, grad_sums, 0, 14.9) && !accepted(&t, grad_sums, 0, 7.5) && !accepted(&t, grad_sums, 0, 1e-3));
    dgrad_open(&t, x, mean, rstd, gamma, (double)(float)(-pre * 1.0001));
    CHECK(accepted(&t, dx, 0, 0) && !accepted(&t, dx, 0, 15));
    dgrad_open(&t, x, mean, rstd, gamma, (double)(float)(-pre * 0.9999));
    CHECK(!accepted(&t, dx, 0, 0) && accepted(&t, dx, 0, 15));
}

TEST(masks_are_verified_bit_by_bit) {
    const float x = 1.1f, scale = 1.3f;
    OWNED(tiny) t = {0};
    tiny_open(&t, CR_OP_bn_apply, CR_F32);
    PUT(&t, CR_IN_bn_apply_x, CR_F32, 1, 8, 1, -1, 0, (double)x, 2, -2, 0, 3);
    const double edge = (double)(float)(-(double)x * (double)scale);
    PUT(&t, CR_IN_bn_apply_scale_bias, CR_F32, 2, 8, 1, 1, 1, (double)scale, 1, 1, 1, 1, 0, 0, 0, edge, 0, 0, 0, 0);
    t.op.attr.bn.relu              = true;
    t.op.out[CR_OUT_bn_apply_mask] = CR_NEW;
    emit(&t);
    good(&t);
    /* bit 3 may be 0 or 1 */
    CHECK(accepted(&t, CR_OUT_bn_apply_mask, 0, 0x91) && accepted(&t, CR_OUT_bn_apply_mask, 0, 0x99));
    for (int bit = 0; bit < 8; bit++)
        if (bit != 3) CHECK(!accepted(&t, CR_OUT_bn_apply_mask, 0, 0x91 ^ (1 << bit)));
}

/* The index of a pooled act is free where another tap is as large, except for a rounding. */
static void pool_index(double first, double second, double scale, double bias, bool other_is_accepted) {
    OWNED(tiny) t = {0};
    tiny_open(&t, CR_OP_maxpool, CR_F16);
    t.op.in[CR_IN_maxpool_x] = cr_tensor_add(&t.p, "x", CR_F16, CR_REGION_POOL, 1, 2, 2, 1);
    for (int i = 0; i < 4; i++) cr_number_store(CR_F16, t.in[0], i, (const double[]){first, second, -9, -9}[i]);
    t.io.in[0] = t.in[0];
    PUT(&t, CR_IN_maxpool_scale_bias, CR_F32, 2, 1, scale, bias);
    t.op.attr.conv                 = (struct cr_conv_attr){.window = 2, .stride = 2};
    t.op.out[CR_OUT_maxpool_index] = CR_NEW;
    emit(&t);
    good(&t);
    const double winner = ((const uint8_t *)t.out[CR_OUT_maxpool_index])[0];
    CHECK(accepted(&t, CR_OUT_maxpool_index, 0, winner));
    CHECK(accepted(&t, CR_OUT_maxpool_index, 0, 1 - winner) == other_is_accepted);
}
TEST(pooled_index_of_equal_values_is_free) {
    const double step = 0x1p-10, middle = 1.5 + step / 2, x = 1 + 3 * step;
    pool_index(1, 2, 1, 0, false);
    pool_index(2, 2, 1, 0, false);                          /* equal: the first */
    pool_index(-1, -2, 1, 0, false);                        /* both are 0 */
    pool_index(x, x, (double)(float)(middle / x), 0, true); /* equal, but each may be rounded */
}

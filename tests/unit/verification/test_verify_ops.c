/* tests/unit/verification/test_verify_ops.c: differences that the verifier allows, and those that it must not allow:
 * roundings and signs near their edges, sums of rounded numbers, 16-bit tensors: where a kernel may round, where it
 * must not, and which results must be infinite. The ops have one or two channels and one pixel, so that every correct
 * result can be written here. */
#include "tests/harness/tiny_op.h"

#include <float.h>

static double ratio; /* relative to the bound, of the last call */

/* True when `got` in output `slot` is accepted while the other outputs are those of the reference. */
static bool accepted(struct tiny *t, int slot, int64_t i, double got) {
    const struct cr_verify_result r = tiny_try(t, CR_MATH_F32, slot, i, got);
    ratio                           = r.worst;
    return r.ok;
}

static bool accepted_by(struct tiny *t, enum cr_math math, double got) {
    return tiny_try(t, math, 0, 0, got).ok;
}

/* A 1x1 convolution with weight 1 outputs act(x) itself. */
static void conv_open(struct tiny *t, double x, double scale, double bias, bool sums) {
    tiny_open(t, CR_OP_conv, CR_F16);
    PUT(t, CR_IN_conv_x, CR_F16, 1, 1, x);
    PUT(t, CR_IN_conv_w, CR_F16, 1, 1, 1);
    PUT(t, CR_IN_conv_scale_bias, CR_F32, 2, 1, scale, bias);
    t->op.attr.conv.stride      = 1;
    t->op.out[CR_OUT_conv_sums] = sums ? CR_NEW : CR_NONE;
    tiny_emit(t);
    tiny_run(t);
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
    tiny_emit(&t);
    tiny_run(&t);
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
    tiny_emit(t);
    tiny_run(t);
}

TEST(relu_masks_near_zero_may_be_0_or_1) {
    const double x = (double)1.1f, scale = (double)1.3f;
    OWNED(tiny)  t = {0};
    relu_mask_open(&t, x, scale, (double)(float)(-x * scale)); /* 0 except for a rounding */
    CHECK(accepted(&t, 0, 0, 0) && accepted(&t, 0, 0, 5) && !accepted(&t, 0, 0, 11));
    CHECK(!accepted(&t, 0, 0, 2.5) && !accepted(&t, 0, 0, 4.999) &&
          !accepted(&t, 0, 0, -1e-3)); /* 0 or the gradient, no value between them */
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
    tiny_emit(t);
    tiny_run(t);
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
    tiny_emit(&t);
    tiny_run(&t);
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
    tiny_emit(&t);
    tiny_run(&t);
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

/* ---- 16 bits ---- */

/* dw = before + x * dy in an f32 tensor, x and dy of 16 bits. */
static void wgrad_open(struct tiny *t, enum cr_dtype dtype, double x, double dy, double before) {
    tiny_open(t, CR_OP_dense_wgrad, CR_F32);
    PUT(t, CR_IN_dense_wgrad_x, dtype, 1, 1, x);
    PUT(t, CR_IN_dense_wgrad_dy, dtype, 1, 1, dy);
    t->op.attr.dense.accumulate      = true;
    t->op.out[CR_OUT_dense_wgrad_dw] = cr_tensor_add(&t->p, "dw", CR_F32, CR_REGION_POOL, 1, 1, 1, 1);
    tiny_emit(t);
    cr_number_store(CR_F32, t->before, 0, before);
    t->io.before[0] = t->before;
}

/* The sum may be rounded to 16 bits before it is added to the f32 tensor; the previous value may not. */
TEST(sum_may_be_rounded_to_16_bits) {
    OWNED(tiny) t = {0};
    wgrad_open(&t, CR_F16, 1 + 0x1p-10, 1 + 0x1p-10, 10); /* the product is 1 + 2^-9 + 2^-20 */
    CHECK(accepted_by(&t, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-20));
    CHECK(accepted_by(&t, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-11));
    CHECK(!accepted_by(&t, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-9));
    CHECK(!accepted_by(&t, CR_MATH_F32, 11 + 0x1p-9 + 0x1p-9));
    CHECK(!accepted_by(&t, CR_MATH_F16, 11.03125));
    wgrad_open(&t, CR_F16, 300, 300, 0); /* 90000 is too large for f16 */
    CHECK(accepted_by(&t, CR_MATH_F16, 90000) && accepted_by(&t, CR_MATH_F16, INFINITY));
    CHECK(!accepted_by(&t, CR_MATH_F32, INFINITY));
    wgrad_open(&t, CR_F16, 255, 255, 0); /* 65025 is not */
    CHECK(!accepted_by(&t, CR_MATH_F16, INFINITY));
    wgrad_open(&t, CR_BF16, 300, 300, 0);
    CHECK(!accepted_by(&t, CR_MATH_BF16, INFINITY));
    CHECK(accepted_by(&t, CR_MATH_BF16, 90000 + 200) && !accepted_by(&t, CR_MATH_BF16, 90000 + 400));
    wgrad_open(&t, CR_F16, 0x1p-14, 0x1p-12, 0); /* below half of the smallest step of f16: may be lost */
    CHECK(accepted_by(&t, CR_MATH_F16, 0) && accepted_by(&t, CR_MATH_F16, 0x1p-26));
    CHECK(!accepted_by(&t, CR_MATH_F32, 0));
}

static bool unary_accepted(enum cr_op_kind kind, enum cr_dtype from, enum cr_dtype to, double x, double second,
                           double got) {
    OWNED(tiny) t = {0};
    tiny_open(&t, kind, CR_F32);
    PUT(&t, 0, from, 1, 1, x);
    if (kind == CR_OP_add) PUT(&t, 1, from, 1, 1, second);
    t.op.out[0] = cr_tensor_add(&t.p, "y", to, CR_REGION_POOL, 1, 1, 1, 1);
    tiny_emit(&t);
    return accepted(&t, 0, 0, got);
}

/* A cast has one correct result: the nearest number, of two equally near ones the even one. */
TEST(cast_is_exact) {
    static const struct {
        enum cr_dtype to;
        double        x, want, wrong;
    } casts[] = {
        {CR_F16, 1 + 0x1p-11, 1, 1 + 0x1p-10},
        {CR_F16, 1 + 0x3p-11, 1 + 0x1p-9, 1 + 0x1p-10},
        {CR_F16, -1.9999, -2, -(2 - 0x1p-10)},
        {CR_F16, 65519, 65504, INFINITY},
        {CR_F16, 65520, INFINITY, 65504},
        {CR_F16, -1e9, -INFINITY, INFINITY},
        {CR_F16, 0x1.8p-25, 0x1p-24, 0},
        {CR_F16, 0x1p-25, 0, 0x1p-24},
        {CR_BF16, 1 + 0x1p-8, 1, 1 + 0x1p-7},
        {CR_BF16, 1 + 0x3p-8, 1 + 0x1p-6, 1 + 0x1p-7},
        {CR_BF16, 0x1p-133 * 1.5, 0x1p-132, 0x1p-133},
        {CR_BF16, FLT_MAX, INFINITY, 0x1.fep127},
        {CR_F16, NAN, NAN, 1},
        {CR_BF16, INFINITY, INFINITY, NAN},
    };
    for (size_t i = 0; i < CR_COUNT(casts); i++) {
        CHECK(unary_accepted(CR_OP_cast, CR_F32, casts[i].to, casts[i].x, 0, casts[i].want));
        CHECK(!unary_accepted(CR_OP_cast, CR_F32, casts[i].to, casts[i].x, 0, casts[i].wrong));
    }
}

/* f32 arithmetic on 16-bit data rounds once, at the end: neighbours of the correct number are wrong. */
TEST(f32_math_rounds_once_to_16_bits) {
    CHECK(unary_accepted(CR_OP_add, CR_F16, CR_F16, 1, 0x1p-11 + 0x1p-13, 1 + 0x1p-10));
    CHECK(!unary_accepted(CR_OP_add, CR_F16, CR_F16, 1, 0x1p-11 + 0x1p-13, 1)); /* truncated */
    CHECK(unary_accepted(CR_OP_add, CR_BF16, CR_BF16, 3, 0x1p-7 + 0x1p-9, 3 + 0x1p-6));
    CHECK(!unary_accepted(CR_OP_add, CR_BF16, CR_BF16, 3, 0x1p-7 + 0x1p-9, 3));
    CHECK(unary_accepted(CR_OP_add, CR_F16, CR_F16, 65504, 65504, INFINITY));
    CHECK(!unary_accepted(CR_OP_add, CR_F16, CR_F16, 65504, 65504, 65504));
    CHECK(!unary_accepted(CR_OP_add, CR_F16, CR_F16, 65472, 16, INFINITY));
    CHECK(!unary_accepted(CR_OP_relu, CR_F16, CR_F16, 1 + 0x1p-10, 0, 1));
}

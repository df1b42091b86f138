/* tests/unit/compiler/test_fusion_patterns.c: fusion by patterns: which ops are fused, which must not be, and that any
 * mixture of fusions computes the same results as the unfused program (on the reference kernels, in double). */
#include "tests/harness/fusion_network.h"
#include "tests/harness/hand_program.h"

static void bn_fuses_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu");
}

static void bn_fuses_sum_from_either_side(void) {
    for (int side = 0; side < 2; side++) {
        struct hand h;
        hand_open(&h);
        int b = bn(&h, h.x, "b"), z = relu(&h, h.x, "z");
        keep(&h, side ? add(&h, z, b, "s") : add(&h, b, z, "s"));
        check_fused(&h, NULL, "relu z = x:x; bn_apply s = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:z");
    }
}

static void bn_fuses_sum_and_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, h.x, bn(&h, h.x, "b"), "s"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x relu");
}

static void bn_fuses_shortcut_bn(void) {
    struct hand h;
    hand_open(&h);
    int a = bn(&h, h.x, "a"), u = relu(&h, h.x, "u"), b = bn(&h, u, "b");
    keep(&h, relu(&h, add(&h, a, b, "s"), "y"));
    check_fused(&h, NULL,
                "relu u = x:x; bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:u "
                "add_scale_bias:scale_bias relu");
}

static void bn_gradient_fuses_relu_gradient(void) {
    struct hand h;
    hand_open(&h);
    int y = relu(&h, bn(&h, h.x, "b"), "y");
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, y, "g"), h.x, "dx"));
    check_fused(&h, NULL,
                "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu; bn_grad_sums dx.sums = dy:x x:x "
                "mean_rstd:mean_rstd scale_bias:scale_bias; "
                "bn_grad_apply dx = dy:x x:x coeffs:scale_bias scale_bias:scale_bias");
}

/* The mask belongs to a sum: the input of the BN does not determine it, but one bit per element stores it. */
static void block_end_stores_bits(void) {
    struct hand h;
    hand_open(&h);
    int y = bn_relu(&h, h.x, h.x, "y");
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, y, "g"), h.x, "dx"));
    check_fused(&h, NULL,
                "bn_apply y = x:x scale_bias:scale_bias add:x relu; bn_grad_sums dx.sums = dy:x x:x "
                "mean_rstd:mean_rstd y:y.mask; "
                "bn_grad_apply dx = dy:x x:x coeffs:scale_bias y:y.mask");
}

static void block_end_fuses_sum_and_bn_sums(void) {
    struct hand h;
    hand_open(&h);
    int u = relu(&h, h.x, "u"), v = relu(&h, h.x, "v"), g = relu_grad(&h, add(&h, u, v, "s"), h.x, "g");
    keep(&h, bn_grad(&h, g, u, "a"));
    keep(&h, bn_grad(&h, g, v, "b"));
    check_fused(&h, NULL,
                "relu u = x:x; relu v = x:x; relu_grad g = dy:u y:x add:v bn_x:u mean_rstd:mean_rstd bn2_x:v "
                "mean_rstd2:mean_rstd; "
                "bn_grad_apply a = dy:g x:u coeffs:scale_bias; bn_grad_apply b = dy:g x:v coeffs:scale_bias");
}

static void maxpool_fuses_bn(void) {
    struct hand h;
    hand_open(&h);
    struct cr_op pool = cr_op_make(CR_OP_maxpool, CR_NONE), loss = cr_op_make(CR_OP_loss_grad, CR_NONE);
    pool.in[0]     = relu(&h, bn(&h, h.x, "b"), "r");
    pool.attr.conv = (struct cr_conv_attr){.window = 2, .stride = 2};
    keep(&h, emit1(&h, pool, "y"));
    loss.in[0] = loss.in[1] = loss.in[2] = h.x; /* a program with gradients */
    keep(&h, emit1(&h, loss, "dx"));
    check_fused(&h, NULL, "maxpool y = x:x scale_bias:scale_bias; loss_grad dx = logits:x labels:x state:x");
}

/* ---- ops that must stay separate ---- */

static void no_fusion_when_another_op_reads(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, relu(&h, b, "y"));
    keep(&h, relu(&h, b, "z"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b; relu z = x:b");
}

static void no_fusion_when_one_op_reads_twice(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, add(&h, b, b, "s"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; add s = a:b b:b");
}

static void no_fusion_of_persistent_tensors(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, b);
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

static void persistent_sum(void) {
    struct hand h;
    hand_open(&h);
    int s = add(&h, bn(&h, h.x, "b"), h.x, "s");
    keep(&h, s);
    keep(&h, relu(&h, s, "y"));
    check_fused(&h, NULL, "bn_apply s = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x; relu y = x:s");
}

static void no_fusion_across_streams(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    h.p.op[1].stream = CR_STREAM_TO_HOST;
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

static void no_fusion_across_a_write(void) {
    struct hand h;
    hand_open(&h);
    int          b    = bn(&h, h.x, "b");
    struct cr_op zero = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[0]       = h.scale_bias; /* scale_bias changes before the ReLU */
    cr_emit(&h.p, &zero, "");
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL,
                "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; zero scale_bias =; relu y = x:b");
}

/* Cost model that knows only the plain gradient of a ReLU. */
static bool plain_relu_grad(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_relu_grad || cr_op_uses_only(op, 3, 1);
}
static const struct cr_cost_model plain_cost_model = {.alignment = 64, .accepts = plain_relu_grad};

static void gradients_of_two_readers(void) {
    struct hand h;
    hand_open(&h);
    int g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    keep(&h, add(&h, g, h.x, "s"));
    check_fused(
        &h, &plain_cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias; "
        "add s = a:g b:x");
}

static void gradients_of_two_bns(void) {
    struct hand h;
    hand_open(&h);
    int u = relu(&h, h.x, "u"), g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    h.p.op[h.p.ops - 1].in[CR_IN_bn_grad_apply_x] = u; /* sums of one BN, apply of another */
    check_fused(&h, &plain_cost_model,
                "relu u = x:x; relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; "
                "bn_grad_apply dx = dy:g x:u coeffs:scale_bias");
}

/* ---- cost models that know only some of the forms ---- */

static bool no_plain_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE || op->attr.bn.relu;
}
static bool no_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE;
}
static bool no_second_bn(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add_scale_bias] == CR_NONE;
}
static bool half_of_the_gradient(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    if (op->kind == CR_OP_relu_grad) return cr_op_uses_only(op, 3, 1);
    return op->kind != CR_OP_bn_grad_apply; /* then the sums must not be fused either */
}

static void cost_model_decides(void) {
    struct cr_cost_model cost_model = {.alignment = 64, .accepts = no_plain_sum};
    struct hand          h;
    hand_open(&h); /* the widest pattern is fused although the one below it is refused */
    keep(&h, relu(&h, add(&h, bn(&h, h.x, "b"), h.x, "s"), "y"));
    check_fused(&h, &cost_model, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x relu");

    cost_model.accepts = no_sum;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, bn(&h, relu(&h, bn(&h, h.x, "a"), "u"), "b"), h.x, "s"), "y"));
    check_fused(
        &h, &cost_model,
        "bn_apply u = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu; bn_apply b = x:u scale_bias:scale_bias "
        "mean_rstd:mean_rstd; add s = a:b b:x; "
        "relu y = x:s");

    cost_model.accepts = no_second_bn;
    hand_open(&h);
    keep(&h, add(&h, bn(&h, h.x, "a"), bn(&h, h.x, "b"), "s"));
    check_fused(&h, &cost_model,
                "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; bn_apply s = x:x scale_bias:scale_bias "
                "mean_rstd:mean_rstd add:b");

    cost_model.accepts = half_of_the_gradient;
    hand_open(&h);
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, h.x, "g"), h.x, "dx"));
    check_fused(
        &h, &cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias");
}

/* ---- bookkeeping ---- */

TESTS(CASE(bn_fuses_relu), CASE(bn_fuses_sum_from_either_side), CASE(bn_fuses_sum_and_relu), CASE(bn_fuses_shortcut_bn),
      CASE(bn_gradient_fuses_relu_gradient), CASE(block_end_stores_bits), CASE(block_end_fuses_sum_and_bn_sums),
      CASE(maxpool_fuses_bn), CASE(no_fusion_when_another_op_reads), CASE(no_fusion_when_one_op_reads_twice),
      CASE(no_fusion_of_persistent_tensors), CASE(persistent_sum), CASE(no_fusion_across_streams),
      CASE(no_fusion_across_a_write), CASE(gradients_of_two_readers), CASE(gradients_of_two_bns),
      CASE(cost_model_decides))

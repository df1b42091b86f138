/* tests/unit/compiler/test_fusion_patterns.c: fusion by patterns: ops that must not be fused, and what a cost model
 * refuses. What is fused in the shipped networks: tests/guard; that all forms are used and give the results of the
 * unfused program: test_fusion_networks.c. */
#include "tests/harness/fusion_network.h"
#include "tests/harness/hand_program.h"

/* ---- ops that must stay separate ---- */

TEST(no_fusion_when_another_op_reads) {
    struct hand h = hand_open();
    int         b = bn(&h, h.x, "b");
    keep(&h, relu(&h, b, "y"));
    keep(&h, relu(&h, b, "z"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b; relu z = x:b");
}

TEST(no_fusion_when_one_op_reads_twice) {
    struct hand h = hand_open();
    int         b = bn(&h, h.x, "b");
    keep(&h, add(&h, b, b, "s"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; add s = a:b b:b");
}

TEST(no_fusion_of_persistent_tensors) {
    struct hand h = hand_open();
    int         b = bn(&h, h.x, "b");
    keep(&h, b);
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

TEST(persistent_sum) {
    struct hand h = hand_open();
    int         s = add(&h, bn(&h, h.x, "b"), h.x, "s");
    keep(&h, s);
    keep(&h, relu(&h, s, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; add s = a:b b:x; relu y = x:s");
}

TEST(no_fusion_across_streams) {
    struct hand h = hand_open();
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    h.p.op[1].stream = CR_STREAM_TO_HOST;
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

TEST(no_fusion_across_a_write) {
    struct hand  h    = hand_open();
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
    return op->kind != CR_OP_relu_grad || cr_op_uses_only(op, 3, 1);
}
static const struct cr_cost_model plain_cost_model = {.alignment = 64, .accepts = plain_relu_grad};

TEST(gradients_of_two_readers) {
    struct hand h = hand_open();
    int         g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    keep(&h, add(&h, g, h.x, "s"));
    check_fused(
        &h, &plain_cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias; "
        "add s = a:g b:x");
}

TEST(gradients_of_two_bns) {
    struct hand h = hand_open();
    int         u = relu(&h, h.x, "u"), g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    h.p.op[h.p.ops - 1].in[CR_IN_bn_grad_apply_x] = u; /* sums of one BN, apply of another */
    check_fused(&h, &plain_cost_model,
                "relu u = x:x; relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; "
                "bn_grad_apply dx = dy:g x:u coeffs:scale_bias");
}

static bool no_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE;
}
static bool no_second_bn(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add_scale_bias] == CR_NONE;
}
static bool half_of_the_gradient(void *self, const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_relu_grad) return cr_op_uses_only(op, 3, 1);
    return op->kind != CR_OP_bn_grad_apply; /* then the sums must not be fused either */
}

TEST(cost_model_decides) {
    struct cr_cost_model cost_model = {.alignment = 64, .accepts = no_sum};
    struct hand          h          = hand_open();
    keep(&h, relu(&h, add(&h, bn(&h, relu(&h, bn(&h, h.x, "a"), "u"), "b"), h.x, "s"), "y"));
    check_fused(
        &h, &cost_model,
        "bn_apply u = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu; bn_apply b = x:u scale_bias:scale_bias "
        "mean_rstd:mean_rstd; add s = a:b b:x; "
        "relu y = x:s");

    cost_model.accepts = no_second_bn;
    h                  = hand_open();
    keep(&h, relu(&h, add(&h, bn(&h, h.x, "a"), bn(&h, h.x, "b"), "s"), "y"));
    check_fused(&h, &cost_model,
                "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; bn_apply y = x:x scale_bias:scale_bias "
                "mean_rstd:mean_rstd add:b relu");

    cost_model.accepts = half_of_the_gradient;
    h                  = hand_open();
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, h.x, "g"), h.x, "dx"));
    check_fused(
        &h, &cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias");
}

/* tests/unit/compiler/test_conv_fusion_forms.c: fused forms of convolutions are used exactly where they pay and where
 * the device accepts them, one form at a time. */
#include "tests/harness/fusion_forms.h"

/* The same, but a convolution with more than its own work costs more than it saves. */
static cr_status expensive_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    CR_TRY(flat_cost(self, p, op, seconds));
    if (is_fused_conv(op)) *seconds = 100;
    return CR_OK;
}

/* 53 convolutions, 16 blocks of three, four with a projection; the end of the last block and the ends of two BNs cannot
 * be fused. */
static void resnet50_fuses_what_pays(void) {
    unsigned             known      = 0;
    struct cr_cost_model cost_model = {.self = &known, .alignment = 64, .accepts = accepts_features, .cost = flat_cost};
    struct cr_program    p;
    known = S;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_OUT(&p, conv, sums), 53);
    CHECK_INT(count_kind(&p, CR_OP_bn_sums), 0);
    CHECK_INT(count_kind(&p, CR_OP_bn_apply), 48);
    cr_program_free(&p);

    known = P | WIDE; /* bn_apply would have to remain for the gradient of the filter */
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv, scale_bias), 0);
    cr_program_free(&p);

    known = P | W | WIDE;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv, scale_bias), 32);
    CHECK_INT(COUNT_IN(&p, conv_wgrad, scale_bias), 32);
    CHECK_INT(count_kind(&p, CR_OP_bn_apply), 16);
    CHECK_INT(count_kind(&p, CR_OP_bn_sums), 53);
    cr_program_free(&p);

    known = D;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv_dgrad, bn_x), 32);
    CHECK_INT(COUNT_IN(&p, conv_dgrad, add), 1); /* after the max-pooling, where no ReLU is */
    CHECK_INT(count_kind(&p, CR_OP_bn_grad_sums), 0);
    CHECK_INT(COUNT_IN(&p, bn_grad_apply, scale_bias), 0);
    CHECK_INT(count_kind(&p, CR_OP_relu_grad), 16);
    CHECK_INT(COUNT_IN(&p, relu_grad, add), 15);
    CHECK_INT(COUNT_OUT(&p, relu_grad, grad_sums2), 4);
    CHECK_INT(count_kind(&p, CR_OP_add), 0);
    cr_program_free(&p);

    known = D | B | J;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(count_kind(&p, CR_OP_conv_grad), 52);
    CHECK_INT(count_kind(&p, CR_OP_bn_grad_apply), 0);
    CHECK_INT(count_kind(&p, CR_OP_pool_bn_grad_apply), 0);
    CHECK_INT(count_kind(&p, CR_OP_conv_wgrad), 0);
    CHECK_INT(count_kind(&p, CR_OP_conv_pool_grad), 1); /* the stem */
    CHECK_INT(count_kind(&p, CR_OP_conv_dgrad), 0);
    CHECK_INT(COUNT_IN(&p, conv_grad, bn_x), 32 + 11);
    CHECK_INT(count_kind(&p, CR_OP_relu_grad), 5);
    CHECK_INT(COUNT_OUT(&p, bn_apply, mask), 5);
    CHECK_INT(count_kind(&p, CR_OP_bn_apply), 48);
    cr_program_free(&p);

    known = S | P | W | D | B | J | WIDE;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv_grad, scale_bias), 32);
    CHECK_INT(COUNT_IN(&p, conv_grad, bn_x), 11);
    CHECK_INT(count_kind(&p, CR_OP_bn_apply), 16);
    cr_program_free(&p);
}

/* By the bytes that move, even fusing the ends of blocks with a projection pays: the sums of the second BN remain an
 * op. */
static void block_ends_with_two_bns_are_split(void) {
    unsigned             known      = D | B | J;
    struct cr_cost_model cost_model = {
        .self = &known, .alignment = 64, .accepts = accepts_features, .bytes_per_s = 1e12};
    struct cr_program p;
    if (!open_fused(&p, "resnet50", CR_F32, &cost_model)) return;
    CHECK_INT(count_kind(&p, CR_OP_relu_grad), 1);
    CHECK_INT(count_kind(&p, CR_OP_bn_grad_sums), 4);
    CHECK_INT(COUNT_IN(&p, conv_grad, bn_x), 32 + 15);
    cr_program_free(&p);
}

static void costly_fusions_are_not_chosen(void) {
    unsigned             known      = S | P | W | D | B | J | WIDE;
    struct cr_cost_model cost_model = {
        .self = &known, .alignment = 64, .accepts = accepts_features, .cost = expensive_cost};
    const char *const archs[] = {"resnet18", "resnet20", "resnet50"};
    for (size_t i = 0; i < CR_COUNT(archs); i++) {
        struct cr_program p;
        if (!open_fused(&p, archs[i], CR_F32, &cost_model)) return;
        for (int k = 0; k < p.ops; k++) CHECK(!is_fused_conv(&p.op[k]));
        cr_program_free(&p);
    }
}

/* Basic blocks, one conv fusion each; the gradient of a CIFAR stem is masked by the block after it. */
static void small_networks_fuse_what_pays(void) {
    unsigned             known      = S | P | W | D | B | J | WIDE;
    struct cr_cost_model cost_model = {.self = &known, .alignment = 64, .accepts = accepts_features, .cost = flat_cost};
    struct cr_program    p;
    if (!open_fused(&p, "resnet18", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv, scale_bias), 8);
    CHECK_INT(COUNT_OUT(&p, conv, sums), 20);
    CHECK_INT(count_kind(&p, CR_OP_conv_grad), 19);
    CHECK_INT(count_kind(&p, CR_OP_bn_apply), 8);
    cr_program_free(&p);

    if (!open_fused(&p, "resnet20", CR_F32, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv, scale_bias), 9);
    CHECK_INT(COUNT_OUT(&p, conv, sums), 19);
    CHECK_INT(COUNT_IN(&p, conv_grad, dy_x), 19); /* all BNs, including that of the stem */
    CHECK_INT(count_kind(&p, CR_OP_bn_grad_apply), 0);
    CHECK_INT(count_kind(&p, CR_OP_relu_grad), 1); /* that of the last block */
    cr_program_free(&p);
}

static void scale_bias_has_the_accepted_type(void) {
    unsigned             known      = 0;
    struct cr_cost_model cost_model = {.self = &known, .alignment = 64, .accepts = accepts_features, .cost = flat_cost};
    struct cr_program    p;
    for (int half = 0; half < 2; half++) {
        known = P | W | (half ? HALF : WIDE);
        if (!open_fused(&p, "resnet18", CR_F16, &cost_model)) return;
        CHECK_INT(COUNT_OUT(&p, bn_finalize, scale_bias_half), half ? 8 : 0);
        for (int i = 0; i < p.ops; i++) {
            int scale_bias = p.op[i].kind == CR_OP_conv ? p.op[i].in[CR_IN_conv_scale_bias] : CR_NONE;
            if (scale_bias >= 0) CHECK_INT(p.tensor[scale_bias].dtype, half ? CR_F16 : CR_F32);
        }
        CHECK_INT(COUNT_IN(&p, conv_wgrad, scale_bias), 8);
        cr_program_free(&p);
    }
    known = P | W | J | HALF; /* conv_grad reads f32 next to a convolution that reads f16 */
    if (!open_fused(&p, "resnet18", CR_F16, &cost_model)) return;
    CHECK_INT(COUNT_IN(&p, conv_grad, scale_bias), 8);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_conv_grad && p.op[i].in[CR_IN_conv_grad_scale_bias] >= 0)
            CHECK_INT(p.tensor[p.op[i].in[CR_IN_conv_grad_scale_bias]].dtype, CR_F32);
    cr_program_free(&p);
}

TESTS(CASE(resnet50_fuses_what_pays), CASE(block_ends_with_two_bns_are_split), CASE(costly_fusions_are_not_chosen),
      CASE(small_networks_fuse_what_pays), CASE(scale_bias_has_the_accepted_type))

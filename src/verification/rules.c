/* verification/rules.c: the rule of the error bound (how A is found) for every op kind.
 *
 * The table has one rule for each op kind. cr_verify_rule asserts that a kind has one, so a new op needs a rule. */
#include "verification/verify.h"

/* relu_grad is a copy unless it adds a gradient or computes sums. */
enum { RELU_GRAD_NOT_EXACT = 1u << CR_IN_relu_grad_add | 1u << CR_IN_relu_grad_bn_x | 1u << CR_IN_relu_grad_bn2_x };

static const struct cr_verify_rule rules[CR_OP_COUNT] = {
    [CR_OP_normalize]          = {.magnitude = "kk", .extra = 5},
    [CR_OP_mix]                = {.exact = true},
    [CR_OP_conv]               = {.magnitude = "kakaakkkkka", .extra = 1, .products = true, .pads = true},
    [CR_OP_conv_pool]          = {.magnitude = "aaa", .extra = 1, .products = true, .pads = true},
    [CR_OP_conv_pair]          = {.magnitude = "aaaaaaaaaaa", .extra = 2, .products = true, .pads = true},
    [CR_OP_group_conv]         = {.magnitude = "aa", .extra = 1, .products = true, .pads = true},
    [CR_OP_bn_sums]            = {.magnitude = "a", .extra = 2},
    [CR_OP_bn_finalize]        = {.extra = 4, .by_unit = true},
    [CR_OP_gram]               = {.extra = 2},
    [CR_OP_gram_bn_finalize]   = {.extra = 6, .by_unit = true},
    [CR_OP_gram_bn_sums]       = {.extra = 6, .by_unit = true},
    [CR_OP_bn_scale_bias]      = {.magnitude = "aank", .extra = 6},
    [CR_OP_fold_bn]            = {.magnitude = "aaank", .extra = 6},
    [CR_OP_bn_apply]           = {.magnitude = "aakaa", .extra = 6},
    [CR_OP_relu]               = {.exact = true},
    [CR_OP_add]                = {.magnitude = "aa", .extra = 1},
    [CR_OP_maxpool]            = {.exact = true, .unless = 1u << CR_IN_maxpool_scale_bias},
    [CR_OP_avgpool]            = {.magnitude = "a", .extra = 3},
    [CR_OP_avgpool2x2]         = {.magnitude = "a", .extra = 3},
    [CR_OP_blurpool]           = {.magnitude = "a", .extra = 3},
    [CR_OP_se_scale]           = {.magnitude = "ak", .extra = 8},
    [CR_OP_channel_conv]       = {.magnitude = "aa", .extra = 1},
    [CR_OP_channel_conv_dgrad] = {.magnitude = "aa", .extra = 1},
    [CR_OP_channel_conv_wgrad] = {.magnitude = "aa", .before = 'a', .extra = 1},
    [CR_OP_drop]               = {.magnitude = "a", .extra = 1},
    [CR_OP_pad_shortcut]       = {.exact = true},
    [CR_OP_dense]              = {.magnitude = "aaa", .extra = 2, .products = true},
    [CR_OP_loss]               = {.extra = 4},
    [CR_OP_loss_grad]          = {.extra = 6},
    [CR_OP_head]               = {.extra = 12},
    [CR_OP_dense_dgrad]        = {.magnitude = "aa", .extra = 1, .products = true},
    [CR_OP_dense_wgrad]        = {.magnitude = "aa", .before = 'a', .extra = 1, .products = true},
    [CR_OP_dense_bgrad]        = {.magnitude = "a", .before = 'a', .extra = 1},
    [CR_OP_avgpool_grad]       = {.magnitude = "a", .extra = 3},
    [CR_OP_maxpool_grad]       = {.magnitude = "ak"},
    [CR_OP_avgpool2x2_grad]    = {.magnitude = "a", .extra = 3},
    [CR_OP_blurpool_grad]      = {.magnitude = "a", .extra = 3},
    [CR_OP_se_scale_grad]      = {.magnitude = "aak", .extra = 12},
    [CR_OP_pad_shortcut_grad]  = {.exact = true},
    [CR_OP_relu_grad]          = {.exact = true, .unless = RELU_GRAD_NOT_EXACT, .extra = 1},
    [CR_OP_bn_grad_sums]       = {.extra = 9},
    /* negative grad_sums and mean make every term of the three coefficients positive, and of dgamma and dbeta negative
     */
    [CR_OP_bn_grad_finalize]   = {.magnitude = "nas", .before = 'n', .extra = 9},
    [CR_OP_bn_grad_apply]      = {.extra = 5},
    [CR_OP_pool_bn_grad_sums]  = {.extra = 9},
    [CR_OP_pool_bn_grad_apply] = {.extra = 5},
    [CR_OP_channel_scale]      = {.magnitude = "aa", .extra = 1},
    [CR_OP_conv_dgrad]         = {.magnitude = "aaakkkk", .extra = 1, .products = true, .pads = true},
    [CR_OP_conv_wgrad]         = {.magnitude = "kak", .before = 'a', .extra = 1, .products = true, .pads = true},
    [CR_OP_conv_grad]         = {.magnitude = "kkkakkkakkk", .before = 'a', .extra = 1, .products = true, .pads = true},
    [CR_OP_gram_bn_grad_sums] = {.magnitude = "aaas", .extra = 4},
    [CR_OP_gram_bn_grad]      = {.extra = 12, .by_unit = true},
    [CR_OP_gram_dgrad]        = {.magnitude = "aakaakka", .extra = 4, .products = true},
    [CR_OP_group_conv_dgrad]  = {.magnitude = "aa", .extra = 1, .products = true, .pads = true},
    [CR_OP_group_conv_wgrad]  = {.magnitude = "aa", .before = 'a', .extra = 1, .products = true, .pads = true},
    [CR_OP_s2d_filter]        = {.exact = true},
    [CR_OP_s2d_filter_grad]   = {.magnitude = "a", .before = 'a'},
    [CR_OP_fused]             = {.exact = true}, /* verification/program.c compares its parts */
    [CR_OP_grad_norm]         = {.extra = 4},
    [CR_OP_sgd]               = {.magnitude = "aaakkk", .extra = 12},
    [CR_OP_adamw]             = {.extra = 24},
    [CR_OP_param_norms]       = {.magnitude = "aak", .extra = 4},
    [CR_OP_lars]              = {.extra = 24},
    [CR_OP_lamb_norms]        = {.extra = 24},
    [CR_OP_lamb]              = {.extra = 24},
    [CR_OP_muon_direction]    = {.extra = 24},
    [CR_OP_muon]              = {.extra = 24},
    [CR_OP_ema]               = {.extra = 6},
    [CR_OP_cast]              = {.exact = true, .rounds = true},
    [CR_OP_zero]              = {.exact = true},
    [CR_OP_offload]           = {.exact = true},
    [CR_OP_prefetch]          = {.exact = true},
    [CR_OP_all_reduce]        = {.exact = true}, /* with one rank the sum is a copy */
    [CR_OP_barrier]           = {.exact = true, .no_value = true},
    /* the layout depends on the weight format; the convolutions that use it are compared */
    [CR_OP_sparse_filter]     = {.exact = true, .no_value = true},
    [CR_OP_pack_filter]       = {.exact = true, .no_value = true},
    [CR_OP_fake_quant]        = {.exact = true, .rounds = true},
    [CR_OP_fake_quant_filter] = {.exact = true, .rounds = true},
    [CR_OP_quantize]          = {.exact = true},
    [CR_OP_dequantize]        = {.exact = true, .rounds = true},
    [CR_OP_quantize_filter]   = {.exact = true},
    [CR_OP_qconv_coeffs]      = {.exact = true},
    [CR_OP_qconv]             = {.extra = 4},
    [CR_OP_qconv_pair]        = {.exact = true},
    [CR_OP_qstem]             = {.exact = true},
    /* computed in FP64 where it matters */
    [CR_OP_distill]      = {.extra = 4},
    [CR_OP_distill_grad] = {.extra = 4},
};

const struct cr_verify_rule *cr_verify_rule(enum cr_op_kind kind) {
    const struct cr_verify_rule *rule = &rules[kind];
    CR_ASSERT(rule->exact || rule->magnitude || rule->extra > 0); /* a new op kind needs a rule above */
    return rule;
}

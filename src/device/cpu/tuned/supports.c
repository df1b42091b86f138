/* device/cpu/tuned/supports.c: the slots of an op that the tuned and the oneDNN kernels support. */
#include "device/cpu/cpu.h"

bool cr_cpu_supports(const struct cr_op *op) {
    const unsigned all = ~0u;
    switch (op->kind) {
    case CR_OP_normalize: return !op->attr.input.s2d;
    case CR_OP_conv_pair:
    case CR_OP_conv_pool:
    case CR_OP_conv_pool_grad:
    case CR_OP_head:
    case CR_OP_qconv_pair:
    case CR_OP_qstem: return false;
    case CR_OP_conv:
        return cr_op_uses_only(op, 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y) && !op->attr.conv.relu;
    case CR_OP_conv_dgrad:
        return cr_op_uses_only(op, 1u << CR_IN_conv_dgrad_dy | 1u << CR_IN_conv_dgrad_w, 1u << CR_OUT_conv_dgrad_dx);
    case CR_OP_conv_wgrad: return cr_op_uses_only(op, ~(1u << CR_IN_conv_wgrad_scale_bias), 1u << CR_OUT_conv_wgrad_dw);
    case CR_OP_bn_apply: return cr_op_uses_only(op, all, ~(1u << CR_OUT_bn_apply_mask));
    case CR_OP_bn_grad_sums: return cr_op_uses_only(op, ~(1u << CR_IN_bn_grad_sums_scale_bias), all);
    case CR_OP_bn_grad_apply: return cr_op_uses_only(op, ~(1u << CR_IN_bn_grad_apply_scale_bias), all);
    case CR_OP_relu_grad:
        return cr_op_uses_only(op, 1u << CR_IN_relu_grad_dy | 1u << CR_IN_relu_grad_y, 1u << CR_OUT_relu_grad_dx);
    case CR_OP_maxpool: return cr_op_uses_only(op, 1u << CR_IN_maxpool_x, all);
    default: return true;
    }
}

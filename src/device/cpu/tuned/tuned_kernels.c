/* device/cpu/tuned/tuned_kernels.c: the table of the tuned kernels, and the slots that the tuned and the oneDNN kernels
 * support. */
#include "device/cpu/simd.h"

const struct cr_kernel *const cr_cpu_fast_kernels[] = {&cr_cpu_bn_sums,
                                                       &cr_cpu_bn_apply,
                                                       &cr_cpu_bn_grad_sums,
                                                       &cr_cpu_bn_grad_apply,
                                                       &cr_cpu_relu,
                                                       &cr_cpu_relu_grad,
                                                       &cr_cpu_add,
                                                       &cr_cpu_channel_scale,
                                                       &cr_cpu_normalize,
                                                       &cr_cpu_pad_shortcut,
                                                       &cr_cpu_pad_shortcut_grad,
                                                       &cr_cpu_maxpool,
                                                       &cr_cpu_maxpool_grad,
                                                       &cr_cpu_avgpool,
                                                       &cr_cpu_avgpool_grad,
                                                       &cr_cpu_grad_norm,
                                                       &cr_cpu_sgd,
                                                       &cr_cpu_adamw,
                                                       &cr_cpu_lars,
                                                       &cr_cpu_param_norms,
                                                       &cr_cpu_ema,
                                                       &cr_cpu_dense,
                                                       &cr_cpu_dense_dgrad,
                                                       &cr_cpu_dense_wgrad,
                                                       &cr_cpu_conv3,
                                                       &cr_cpu_conv3_dgrad,
                                                       &cr_cpu_conv3_wgrad,
                                                       &cr_cpu_sparse_kernel,
                                                       &cr_cpu_sparse_filter,
                                                       &cr_cpu_sparse_dgrad,
                                                       &cr_cpu_sparse_wgrad_kernel,
                                                       &cr_shm_all_reduce,
                                                       NULL};

bool cr_cpu_supports(const struct cr_op *op) {
    const unsigned all = ~0u;
    switch (op->kind) {
    case CR_OP_normalize: return !op->attr.input.s2d;
    case CR_OP_conv:
        return cr_op_uses_only(op, 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y) && !op->attr.conv.relu;
    case CR_OP_conv_dgrad:
        return cr_op_uses_only(op, 1u << CR_IN_conv_dgrad_dy | 1u << CR_IN_conv_dgrad_w, 1u << CR_OUT_conv_dgrad_dx);
    case CR_OP_conv_wgrad: return cr_op_uses_only(op, ~(1u << CR_IN_conv_wgrad_scale_bias), all);
    case CR_OP_bn_apply: return cr_op_uses_only(op, all, ~(1u << CR_OUT_bn_apply_mask));
    case CR_OP_bn_grad_sums: return cr_op_uses_only(op, ~(1u << CR_IN_bn_grad_sums_scale_bias), all);
    case CR_OP_bn_grad_apply: return cr_op_uses_only(op, ~(1u << CR_IN_bn_grad_apply_scale_bias), all);
    case CR_OP_relu_grad:
        return cr_op_uses_only(op, 1u << CR_IN_relu_grad_dy | 1u << CR_IN_relu_grad_y, 1u << CR_OUT_relu_grad_dx);
    case CR_OP_maxpool: return cr_op_uses_only(op, 1u << CR_IN_maxpool_x, all);
    default: return true;
    }
}

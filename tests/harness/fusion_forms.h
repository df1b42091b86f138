/* tests/harness/fusion_forms.h: cost models that accept some fused forms of convolutions; a network fused by them. */
#ifndef CR_TEST_FUSION_FORMS_H
#define CR_TEST_FUSION_FORMS_H

#include "tests/harness/fusion_network.h"

static inline bool is_fused_conv(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_conv: return !cr_op_uses_only(op, 3, 1);
    case CR_OP_conv_dgrad: return !cr_op_uses_only(op, 3, 1);
    case CR_OP_conv_wgrad: return op->in[CR_IN_conv_wgrad_scale_bias] >= 0;
    case CR_OP_conv_grad: return true;
    default: return false;
    }
}

/* HALF, WIDE: the types of scale_bias that conv and conv_wgrad accept. */
enum feature { S = 1, P = 2, W = 4, D = 8, B = 16, J = 32, HALF = 64, WIDE = 128 };

static inline bool accepts_features(void *self, const struct cr_program *p, const struct cr_op *op) {
    unsigned known = *(const unsigned *)self, used = 0;
    int      scale_bias = CR_NONE;
    if (op->kind == CR_OP_conv) {
        scale_bias = op->in[CR_IN_conv_scale_bias];
        used       = (op->out[CR_OUT_conv_sums] >= 0 ? S : 0u) | (scale_bias >= 0 ? P : 0u);
    } else if (op->kind == CR_OP_conv_wgrad) {
        scale_bias = op->in[CR_IN_conv_wgrad_scale_bias];
        used       = scale_bias >= 0 ? W : 0u;
    } else if (op->kind == CR_OP_conv_dgrad) {
        used = cr_op_uses_only(op, 3, 1) ? 0u : D;
    } else if (op->kind == CR_OP_conv_grad) {
        used = J | (op->in[CR_IN_conv_grad_scale_bias] >= 0 ? W : 0u) | (op->in[CR_IN_conv_grad_dy_x] >= 0 ? B : 0u);
        if (op->out[CR_OUT_conv_grad_grad_sums] >= 0 || op->in[CR_IN_conv_grad_add] >= 0) used |= D;
    }
    if (scale_bias >= 0) used |= p->tensor[scale_bias].dtype == CR_F32 ? WIDE : HALF;
    return (used & ~known) == 0;
}

/* A convolution costs the same with every fused op, and both gradients in one op cost no more than one; every other op
 * costs 1. */
static inline cr_status flat_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    bool conv = op->kind == CR_OP_conv || op->kind == CR_OP_conv_dgrad || op->kind == CR_OP_conv_wgrad ||
                op->kind == CR_OP_conv_grad;
    *seconds = conv ? 10 : 1;
    return CR_OK;
}

#endif

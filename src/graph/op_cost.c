/* graph/op_cost.c: memory traffic (bytes) and floating-point operations (FLOPs) of each op, for roofline times. */
#include "graph/graph.h"

static double elems_of(const struct cr_program *p, int id) {
    return id < 0 ? 0 : (double)cr_tensor_elems(&p->tensor[id]);
}

/* Multiply-adds of a convolution: every output element reduces over R*S*C (padding is counted, as is customary). */
static double conv_flops(const struct cr_program *p, int y, int w) {
    const struct cr_tensor *filter = &p->tensor[w];
    return 2.0 * elems_of(p, y) * (double)(filter->dim[1] * filter->dim[2] * filter->dim[3]);
}

/* Of the convolution, whose output is not stored. */
static double conv_pool_flops(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const int64_t *x = p->tensor[op->in[CR_IN_conv_pool_x]].dim, *w = p->tensor[op->in[CR_IN_conv_pool_w]].dim;
    const int64_t  P = (x[1] + 2 * a->pad - w[1]) / a->stride + 1, Q = (x[2] + 2 * a->pad - w[2]) / a->stride + 1;
    return 2.0 * (double)(x[0] * P * Q) * elems_of(p, op->in[CR_IN_conv_pool_w]);
}

/* The op gram: the products of all channels with all channels, at the pixels that the convolution reads. */
static double gram_flops(const struct cr_program *p, const struct cr_op *op) {
    const int64_t *x = p->tensor[op->in[CR_IN_gram_x]].dim, s = op->attr.conv.stride;
    return 2.0 * (double)(x[0] * ((x[1] - 1) / s + 1) * ((x[2] - 1) / s + 1) * x[3]) * (double)x[3];
}

/* The 3x3 convolution `w` in front of a pair of convolutions, or that of its shortcut, or CR_NONE. */
static double first_flops(const struct cr_program *p, const struct cr_op *op, int w) {
    const int64_t *y = p->tensor[op->out[0]].dim;
    return w < 0 ? 0 : 2.0 * (double)(y[0] * y[1] * y[2]) * elems_of(p, w);
}

/* A tensor that one part writes and another one reads counts twice. */
static void fused_cost(const struct cr_program *p, const struct cr_op *op, double *bytes, double *flops) {
    *bytes = *flops = 0;
    for (int k = 0; k < op->attr.fused.parts; k++) {
        double part_bytes, part_flops;
        cr_op_cost(p, &op->attr.fused.part[k], &part_bytes, &part_flops);
        *bytes += part_bytes;
        *flops += part_flops;
    }
}

void cr_op_cost(const struct cr_program *p, const struct cr_op *op, double *bytes, double *flops) {
    if (op->kind == CR_OP_fused) {
        fused_cost(p, op, bytes, flops);
        return;
    }
    int    ids[2 * CR_OP_IDS_MAX], n = cr_op_operands(op, ids);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)p->tensor[ids[i]].bytes;
    *bytes = op->kind == CR_OP_barrier ? 0 : sum; /* a barrier moves no data */
    switch (op->kind) {
    /* the slots of conv, conv_dgrad and conv_wgrad */
    case CR_OP_group_conv:
    case CR_OP_dense:
    case CR_OP_qconv:
    case CR_OP_conv: *flops = conv_flops(p, op->out[CR_OUT_conv_y], op->in[CR_IN_conv_w]); break;
    case CR_OP_group_conv_dgrad:
    case CR_OP_dense_dgrad:
    case CR_OP_conv_dgrad: *flops = conv_flops(p, op->in[CR_IN_conv_dgrad_dy], op->in[CR_IN_conv_dgrad_w]); break;
    case CR_OP_group_conv_wgrad:
    case CR_OP_dense_wgrad:
    case CR_OP_conv_wgrad: *flops = conv_flops(p, op->in[CR_IN_conv_wgrad_dy], op->out[CR_OUT_conv_wgrad_dw]); break;
    case CR_OP_conv_pair:
        *flops = conv_flops(p, op->out[CR_OUT_conv_pair_y], op->in[CR_IN_conv_pair_w]) +
                 conv_flops(p, op->out[CR_OUT_conv_pair_z], op->in[CR_IN_conv_pair_next_w]) +
                 first_flops(p, op, op->in[CR_IN_conv_pair_first_w]) +
                 first_flops(p, op, op->in[CR_IN_conv_pair_shortcut_w]);
        break;
    case CR_OP_qconv_pair:
        *flops = conv_flops(p, op->out[CR_OUT_qconv_pair_y], op->in[CR_IN_qconv_pair_w]) +
                 conv_flops(p, op->out[CR_OUT_qconv_pair_z], op->in[CR_IN_qconv_pair_next_w]) +
                 first_flops(p, op, op->in[CR_IN_qconv_pair_first_w]);
        break;
    case CR_OP_conv_pool: *flops = conv_pool_flops(p, op); break;
    case CR_OP_qstem: *flops = 4 * conv_flops(p, op->out[CR_OUT_qstem_y], op->in[CR_IN_qstem_w]); break;
    case CR_OP_conv_grad:
        *flops = conv_flops(p, op->in[CR_IN_conv_grad_g], op->in[CR_IN_conv_grad_w]);
        if (op->out[CR_OUT_conv_grad_dx] >= 0 && op->out[CR_OUT_conv_grad_dw] >= 0) *flops *= 2;
        break;
    case CR_OP_gram: *flops = gram_flops(p, op); break;
    case CR_OP_gram_bn_sums: /* the filter of 1x1 is the first slot of the three */
    case CR_OP_gram_bn_finalize: *flops = conv_flops(p, op->in[0], op->in[0]); break;
    case CR_OP_gram_bn_grad: *flops = 2 * conv_flops(p, op->in[0], op->in[0]); break;
    case CR_OP_gram_dgrad:
        *flops = 2.0 * elems_of(p, op->in[CR_IN_gram_dgrad_g]) * (double)p->tensor[op->in[CR_IN_gram_dgrad_x]].dim[3] +
                 2.0 * elems_of(p, op->in[CR_IN_gram_dgrad_x]) * (double)p->tensor[op->in[CR_IN_gram_dgrad_x]].dim[3];
        break;
    case CR_OP_offload:
    case CR_OP_prefetch:
    case CR_OP_all_reduce:
    case CR_OP_barrier: *flops = 0; break;
    default: /* pointwise: about two operations for each element of the first operand */
        *flops = 2.0 * elems_of(p, op->in[0] >= 0 ? op->in[0] : op->out[0]);
    }
    if (cr_op_has_sparsity_pattern(op))
        *flops *= (double)op->attr.conv.pattern.nnz / (double)p->store->param[op->attr.conv.pattern.param].elems;
}

/* graph/print.c: prints a program. See graph/graph.h. */
#include "graph/graph.h"

/* Attributes of a convolution that also finalizes the sums of a BN. */
static void print_bn(const struct cr_op *op, struct cr_text *out) {
    const struct cr_bn_attr *a = &op->attr.conv.bn;
    if (op->kind == CR_OP_conv && op->in[CR_IN_conv_gamma] >= 0)
        cr_text_add(out, " eps=%g momentum=%g count=%lld", (double)a->eps, (double)a->momentum, (long long)a->count);
    if (op->kind == CR_OP_conv_grad && op->in[CR_IN_conv_grad_gamma] >= 0)
        cr_text_add(out, " count=%lld%s", (long long)a->count, a->accumulate ? " accumulate_bn" : "");
}

static void print_pattern(const struct cr_op *op, struct cr_text *out) {
    const struct cr_sparsity_attr *a = &op->attr.conv.pattern;
    if (a->nnz) cr_text_add(out, "  nnz=%lld format=%d", (long long)a->nnz, cr_sparse_format_number(a->format));
}

static void print_loss(const struct cr_op *op, struct cr_text *out) {
    const struct cr_loss_attr *a = &op->attr.loss;
    cr_text_add(out, "  smoothing=%g", (double)a->smoothing);
    if (op->kind == CR_OP_loss_grad) cr_text_add(out, " weight=%g", (double)a->weight);
    if (a->gamma != 0) cr_text_add(out, " gamma=%g", (double)a->gamma);
    if (a->sigmoid) cr_text_add(out, " sigmoid");
    if (a->threshold > 0) cr_text_add(out, " threshold=%g", (double)a->threshold);
    if (a->several) cr_text_add(out, " several");
}

static void print_attributes(const struct cr_op *op, struct cr_text *out) {
    switch (op->kind) {
    case CR_OP_qconv:
        cr_text_add(out, "  stride=%d pad=%d%s", op->attr.conv.stride, op->attr.conv.pad,
                    op->attr.conv.relu ? " relu" : "");
        break;
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_conv_grad:
    case CR_OP_group_conv:
    case CR_OP_group_conv_dgrad:
    case CR_OP_group_conv_wgrad:
        cr_text_add(out, "  stride=%d pad=%d%s%s", op->attr.conv.stride, op->attr.conv.pad,
                    op->attr.conv.relu ? " relu" : "", op->attr.conv.accumulate ? " accumulate" : "");
        if (op->attr.conv.add_pad_c) cr_text_add(out, " add_pad_c=%d", op->attr.conv.add_pad_c);
        print_pattern(op, out);
        print_bn(op, out);
        break;
    case CR_OP_gram:
    case CR_OP_gram_dgrad:
        cr_text_add(out, "  stride=%d%s", op->attr.conv.stride, op->attr.conv.relu ? " relu" : "");
        break;
    case CR_OP_conv_pool: cr_text_add(out, "  stride=%d pad=%d", op->attr.conv.stride, op->attr.conv.pad); break;
    case CR_OP_sparse_filter: print_pattern(op, out); break;
    case CR_OP_mix:
    case CR_OP_normalize:
        cr_text_add(out, "%s", op->attr.input.s2d ? "  s2d" : op->attr.input.wide ? "  wide" : "");
        break;
    case CR_OP_s2d_filter_grad: cr_text_add(out, "%s", op->attr.conv.accumulate ? "  accumulate" : ""); break;
    case CR_OP_maxpool:
    case CR_OP_maxpool_grad:
        cr_text_add(out, "  window=%d stride=%d pad=%d", op->attr.conv.window, op->attr.conv.stride, op->attr.conv.pad);
        break;
    case CR_OP_pad_shortcut:
    case CR_OP_pad_shortcut_grad:
        cr_text_add(out, "  stride=%d pad_c=%d", op->attr.conv.stride, op->attr.conv.pad_c);
        break;
    case CR_OP_bn_finalize:
    case CR_OP_gram_bn_finalize:
        cr_text_add(out, "  eps=%g momentum=%g count=%lld", (double)op->attr.bn.eps, (double)op->attr.bn.momentum,
                    (long long)op->attr.bn.count);
        break;
    case CR_OP_fold_bn:
    case CR_OP_bn_scale_bias: cr_text_add(out, "  eps=%g", (double)op->attr.bn.eps); break;
    case CR_OP_drop: cr_text_add(out, "  rate=%g%s", op->attr.drop.rate, op->attr.drop.images ? " images" : ""); break;
    case CR_OP_bn_apply: cr_text_add(out, "%s", op->attr.bn.relu ? "  relu" : ""); break;
    case CR_OP_gram_bn_sums:
    case CR_OP_gram_bn_grad:
    case CR_OP_bn_grad_finalize:
        cr_text_add(out, "  count=%lld%s", (long long)op->attr.bn.count, op->attr.bn.accumulate ? " accumulate" : "");
        if (op->attr.bn.ranks > 1) cr_text_add(out, " ranks=%d", op->attr.bn.ranks);
        break;
    case CR_OP_all_reduce:
        if (op->attr.reduce.wire != CR_F32) cr_text_add(out, "  wire=%s", cr_dtype_name(op->attr.reduce.wire));
        break;
    case CR_OP_channel_conv_wgrad:
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: cr_text_add(out, "%s", op->attr.dense.accumulate ? "  accumulate" : ""); break;
    case CR_OP_loss:
    case CR_OP_loss_grad: print_loss(op, out); break;
    case CR_OP_head:
        cr_text_add(out, "  smoothing=%g weight=%g count=%lld%s", (double)op->attr.head.loss.smoothing,
                    (double)op->attr.head.loss.weight, (long long)op->attr.head.bn.count,
                    op->attr.head.bn.accumulate ? " accumulate" : "");
        break;
    case CR_OP_distill:
    case CR_OP_distill_grad:
        cr_text_add(out, "  weight=%g temperature=%g", (double)op->attr.distill.weight,
                    (double)op->attr.distill.temperature);
        break;
    case CR_OP_adamw:
    case CR_OP_lamb:
    case CR_OP_muon:
    case CR_OP_lamb_norms: cr_text_add(out, "  beta2=%g eps=%g", op->attr.sgd.beta2, op->attr.sgd.eps); break;
    case CR_OP_lars:
        cr_text_add(out, "%s  trust=%g eps=%g", op->attr.sgd.nesterov ? "  nesterov" : "", op->attr.sgd.trust,
                    op->attr.sgd.eps);
        break;
    case CR_OP_ema: cr_text_add(out, "  decay=%g%s", op->attr.ema.decay, op->attr.ema.warmup ? " warmup" : ""); break;
    case CR_OP_muon_direction:
    case CR_OP_sgd: cr_text_add(out, "%s", op->attr.sgd.nesterov ? "  nesterov" : ""); break;
    default: break;
    }
}

/* Outputs, inputs and attributes of an op or of a part. */
static void print_operands(const struct cr_program *p, const struct cr_op *op, struct cr_text *out) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    const char              *sep  = "";
    for (int s = 0; s < info->outs; s++) {
        if (op->out[s] < 0) continue;
        cr_text_add(out, "%s%s ", sep, p->tensor[op->out[s]].name);
        cr_tensor_add_shape(&p->tensor[op->out[s]], out);
        sep = ", ";
    }
    cr_text_add(out, " =");
    for (int s = 0; s < info->ins; s++)
        if (op->in[s] >= 0) cr_text_add(out, " %s:%s", info->in_name[s], p->tensor[op->in[s]].name);
    print_attributes(op, out);
}

/* A fused op is followed by a line for each of its parts. */
static void print_op(const struct cr_program *p, int index, struct cr_text *out) {
    const struct cr_op *op = &p->op[index], *part;
    int                 parts;
    cr_text_add(out, "%4d %-17s ", index, cr_op_info(op->kind)->name);
    if (op->kind == CR_OP_fused)
        cr_text_add(out, "parts=%d", op->attr.fused.parts);
    else
        print_operands(p, op, out);
    if (op->workspace >= 0) cr_text_add(out, "  workspace=%zu", p->tensor[op->workspace].bytes);
    if (op->stream != CR_STREAM_COMPUTE) cr_text_add(out, "  stream=%s", cr_stream_name(op->stream));
    for (int i = 0; i < CR_OP_WAIT_MAX && op->wait[i] >= 0; i++) cr_text_add(out, "  wait=%d", op->wait[i]);
    cr_text_add(out, "\n");
    part = cr_op_parts(op, &parts);
    for (int k = 0; k < parts && part != op; k++) {
        cr_text_add(out, "     - %-15s ", cr_op_info(part[k].kind)->name);
        print_operands(p, &part[k], out);
        cr_text_add(out, "\n");
    }
}

void cr_program_print(const struct cr_program *p, struct cr_text *out) {
    cr_text_add(out, "program %s: %d ops, %d tensors\n", p->name, p->ops, p->tensors);
    for (int i = 0; i < p->ops; i++) print_op(p, i, out);
}

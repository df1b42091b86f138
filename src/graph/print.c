/* graph/print.c: prints a program and checks its invariants. See graph/graph.h. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- print ---- */

static void print_tensor(const struct cr_program *p, int id, bool with_shape, struct cr_text *out) {
    const struct cr_tensor *t = &p->tensor[id];
    cr_text_add(out, "%s", t->name);
    if (!with_shape) return;
    cr_text_add(out, " %s[%lld,%lld,%lld,%lld]", cr_dtype_name(t->dtype), (long long)t->dim[0], (long long)t->dim[1],
                (long long)t->dim[2], (long long)t->dim[3]);
}

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
        cr_text_add(out, "  stride=%d pad=%d%s%s", op->attr.conv.stride, op->attr.conv.pad,
                    op->attr.conv.relu ? " relu" : "", op->attr.conv.accumulate ? " accumulate" : "");
        print_pattern(op, out);
        print_bn(op, out);
        break;
    case CR_OP_sparse_filter: print_pattern(op, out); break;
    case CR_OP_normalize: cr_text_add(out, "%s", op->attr.input.s2d ? "  s2d" : ""); break;
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
        cr_text_add(out, "  eps=%g momentum=%g count=%lld", (double)op->attr.bn.eps, (double)op->attr.bn.momentum,
                    (long long)op->attr.bn.count);
        break;
    case CR_OP_fold_bn:
    case CR_OP_bn_scale_bias: cr_text_add(out, "  eps=%g", (double)op->attr.bn.eps); break;
    case CR_OP_bn_apply: cr_text_add(out, "%s", op->attr.bn.relu ? "  relu" : ""); break;
    case CR_OP_bn_grad_finalize:
        cr_text_add(out, "  count=%lld%s", (long long)op->attr.bn.count, op->attr.bn.accumulate ? " accumulate" : "");
        if (op->attr.bn.ranks > 1) cr_text_add(out, " ranks=%d", op->attr.bn.ranks);
        break;
    case CR_OP_all_reduce:
        if (op->attr.reduce.wire != CR_F32) cr_text_add(out, "  wire=%s", cr_dtype_name(op->attr.reduce.wire));
        break;
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: cr_text_add(out, "%s", op->attr.dense.accumulate ? "  accumulate" : ""); break;
    case CR_OP_loss: cr_text_add(out, "  smoothing=%g", (double)op->attr.loss.smoothing); break;
    case CR_OP_loss_grad:
        cr_text_add(out, "  smoothing=%g weight=%g", (double)op->attr.loss.smoothing, (double)op->attr.loss.weight);
        break;
    case CR_OP_adamw: cr_text_add(out, "  beta2=%g eps=%g", op->attr.sgd.beta2, op->attr.sgd.eps); break;
    case CR_OP_lars:
        cr_text_add(out, "%s  trust=%g eps=%g", op->attr.sgd.nesterov ? "  nesterov" : "", op->attr.sgd.trust,
                    op->attr.sgd.eps);
        break;
    case CR_OP_ema: cr_text_add(out, "  decay=%g%s", op->attr.ema.decay, op->attr.ema.warmup ? " warmup" : ""); break;
    case CR_OP_sgd: cr_text_add(out, "%s", op->attr.sgd.nesterov ? "  nesterov" : ""); break;
    default: break;
    }
}

static void print_op(const struct cr_program *p, int index, struct cr_text *out) {
    const struct cr_op      *op   = &p->op[index];
    const struct cr_op_info *info = cr_op_info(op->kind);
    cr_text_add(out, "%4d %-17s ", index, info->name);
    const char *sep = "";
    for (int s = 0; s < info->outs; s++) {
        if (op->out[s] < 0) continue;
        cr_text_add(out, "%s", sep);
        print_tensor(p, op->out[s], true, out);
        sep = ", ";
    }
    cr_text_add(out, " =");
    for (int s = 0; s < info->ins; s++) {
        if (op->in[s] < 0) continue;
        cr_text_add(out, " %s:", info->in_name[s]);
        print_tensor(p, op->in[s], false, out);
    }
    print_attributes(op, out);
    if (op->workspace >= 0) cr_text_add(out, "  workspace=%zu", p->tensor[op->workspace].bytes);
    if (op->stream != CR_STREAM_COMPUTE) cr_text_add(out, "  stream=%s", cr_stream_name(op->stream));
    for (int i = 0; i < CR_OP_WAIT_MAX && op->wait[i] >= 0; i++) cr_text_add(out, "  wait=%d", op->wait[i]);
    cr_text_add(out, "\n");
}

void cr_program_print(const struct cr_program *p, struct cr_text *out) {
    cr_text_add(out, "program %s: %d ops, %d tensors\n", p->name, p->ops, p->tensors);
    for (int i = 0; i < p->ops; i++) print_op(p, i, out);
}

/* ---- check ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static cr_status check_names(const struct cr_program *p) {
    const char **names = cr_alloc((size_t)p->tensors, sizeof *names);
    if (!names) return CR_NO_MEMORY((size_t)p->tensors * sizeof *names);
    cr_status status = CR_OK;
    for (int i = 0; i < p->tensors; i++) names[i] = p->tensor[i].name;
    qsort(names, (size_t)p->tensors, sizeof *names, compare_names);
    for (int i = 1; i < p->tensors && status == CR_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = CR_FAIL(CR_ERR_DEVICE, "program %s: two tensors are named %s", p->name, names[i]);
    cr_free(names);
    return status;
}

static cr_status check_slots(const struct cr_program *p, int index) {
    const struct cr_op      *op   = &p->op[index];
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins + info->outs; s++) {
        bool in = s < info->ins;
        int  k = in ? s : s - info->ins, id = in ? op->in[k] : op->out[k];
        bool optional = in ? info->in_optional[k] : info->out_optional[k];
        if (id >= p->tensors || id < CR_NONE || (id == CR_NONE && !optional))
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s): slot %s holds no tensor", p->name, index, info->name,
                           in ? info->in_name[k] : info->out_name[k]);
    }
    return CR_OK;
}

/* POOL and HOST tensors have one writer, which precedes every reader. */
static bool is_transient(const struct cr_program *p, int id) {
    return id >= 0 && (p->tensor[id].region == CR_REGION_POOL || p->tensor[id].region == CR_REGION_HOST);
}

/* written[id] is set when an earlier op writes tensor id. */
static cr_status check_order(const struct cr_program *p, int index, bool *written) {
    const struct cr_op      *op   = &p->op[index];
    const struct cr_op_info *info = cr_op_info(op->kind);
    for (int s = 0; s < info->ins; s++) {
        int id = op->in[s];
        if (is_transient(p, id) && !written[id])
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s) reads %s before any op writes it", p->name, index,
                           info->name, p->tensor[id].name);
    }
    for (int s = 0; s < info->outs; s++) {
        int id = op->out[s];
        if (!is_transient(p, id)) continue;
        bool updated_in_place = false; /* metrics: the same tensor is read and written */
        for (int k = 0; k < info->ins; k++) updated_in_place |= op->in[k] == id;
        if (written[id] && !updated_in_place)
            return CR_FAIL(CR_ERR_DEVICE, "program %s: op %d (%s) writes %s a second time", p->name, index, info->name,
                           p->tensor[id].name);
        written[id] = true;
    }
    return CR_OK;
}

static bool overlaps(const struct cr_program *p, int tensor, size_t begin, size_t end) {
    if (tensor < 0) return false;
    const struct cr_tensor *t = &p->tensor[tensor];
    return t->region == CR_REGION_STORE && t->offset < end && begin < t->offset + t->bytes;
}

static bool writes_gradient(const struct cr_program *p, const struct cr_op *op, size_t begin, size_t end) {
    for (int s = 0; s < cr_op_info(op->kind)->outs && op->kind != CR_OP_all_reduce; s++)
        if (overlaps(p, op->out[s], begin, end)) return true;
    return false;
}

/* In programs that sum gradients over ranks: one all_reduce covers the whole gradient of each trainable parameter,
 * after its last writer and before its first reader. */
static cr_status check_all_reduce(const struct cr_program *p, const struct cr_param *q, size_t begin, size_t end) {
    int sums = 0, last_writer = -1, first_reader = p->ops, at = -1;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (op->kind == CR_OP_all_reduce) {
            if (!overlaps(p, op->out[0], begin, end)) continue;
            const struct cr_tensor *t = &p->tensor[op->out[0]];
            sums += t->offset <= begin && end <= t->offset + t->bytes && op->in[0] == op->out[0]
                        ? 1
                        : 2; /* part of a gradient: an error */
            at = i;
            continue;
        }
        if (writes_gradient(p, op, begin, end)) last_writer = i;
        for (int s = 0; s < cr_op_info(op->kind)->ins; s++)
            if (overlaps(p, op->in[s], begin, end)) first_reader = CR_MIN(first_reader, i);
    }
    if (q->frozen) return CR_OK; /* a bucket may contain the zeros of frozen parameters */
    if (sums == 1 && at > last_writer && at < first_reader) return CR_OK;
    return CR_FAIL(
        CR_ERR_DEVICE,
        "program %s: the gradient of %s must be summed over the ranks exactly once, between its writer (op %d) "
        "and its reader (op %d): %d sums, the last is op %d",
        p->name, q->name, last_writer, first_reader, sums, at);
}

static bool reduces_gradients(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_all_reduce && p->tensor[p->op[i].out[0]].buffer == CR_BUFFER_GRAD) return true;
    return false;
}

/* In a program with a loss gradient exactly one op writes each trainable parameter's slice of the gradient buffer. */
static cr_status check_gradients(const struct cr_program *p) {
    bool has_backward = false;
    for (int i = 0; i < p->ops; i++) has_backward |= p->op[i].kind == CR_OP_loss_grad;
    if (!has_backward || !p->store) return CR_OK;
    size_t     base = cr_param_store_buffer_offset(p->store, CR_BUFFER_GRAD), size = cr_dtype_bytes(p->store->real);
    const bool reduced = reduces_gradients(p);
    for (int k = 0; k < p->store->params; k++) {
        const struct cr_param *q = &p->store->param[k];
        if (cr_param_is_running(q->role)) continue;
        size_t begin = base + (size_t)q->offset * size, end = begin + (size_t)q->elems * size;
        int    writers = 0;
        for (int i = 0; i < p->ops; i++) writers += writes_gradient(p, &p->op[i], begin, end);
        if (writers != (q->frozen ? 0 : 1))
            return CR_FAIL(CR_ERR_DEVICE, "program %s: the gradient of %s has %d writers", p->name, q->name, writers);
        if (reduced) CR_TRY(check_all_reduce(p, q, begin, end));
    }
    return CR_OK;
}

cr_status cr_program_check(const struct cr_program *p) {
    if (p->failed) return CR_NO_MEMORY(0);
    bool *written = cr_alloc((size_t)CR_MAX(p->tensors, 1), sizeof *written);
    if (!written) return CR_NO_MEMORY((size_t)p->tensors);
    cr_status status = check_names(p);
    for (int i = 0; i < p->ops && status == CR_OK; i++) {
        status = check_slots(p, i);
        if (status == CR_OK) status = check_order(p, i, written);
    }
    if (status == CR_OK) status = check_gradients(p);
    cr_free(written);
    return status;
}

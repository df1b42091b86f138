/* runtime/launch_overlap.c: finds ops that must not overlap with launches before them (programmatic dependent launch).
 *
 * With programmatic dependent launch a kernel begins while the launches before it end. It waits for them, but some
 * inputs it reads before this wait: its filter, or in the backward pass the activations of the forward pass. The table
 * below names these inputs, and kernels read them without asking. Where one of the launches before writes such an
 * input, the executor separates the op from them (`separate` of struct cr_async).
 *
 * Two ops before are examined, because one of them may launch nothing, or may let the next launch begin before it has
 * waited itself. Ops that never launch a kernel on the stream are not counted: those of other streams, and barriers.
 * The op head has two launches. Its second launch begins after all launches before the op have ended, so nothing
 * before head is examined. All launches before a separation are complete, and so are those before the first op and
 * before the first op that is not hoisted (runtime/executor.c).
 *
 * In a captured graph, a launch that waits for another stream begins early too, while the kernel there still runs. So
 * where the op or one of the two ops before it waits for another stream, the ops of all other streams are examined too.
 *
 * Bytes are compared, not tensors, because the memory planner lets tensors share memory. */
#include "runtime/executor_internal.h"

#define IN(kind, slot) CR_IN_BIT(kind, slot)

/* Bits of the inputs that a kernel may read before its wait: `old` where neither of the two launches before writes
 * them, `before_last` where the last one does not. in_fused: only where the op is a part of the op `fused`. The op
 * before such a part is a convolution of the same chain, or its gradient (compiler/schedule/bn_chains.c), which has
 * waited for the launches before it. */
static const struct early_inputs {
    unsigned old, before_last;
    bool     in_fused;
} early_inputs[CR_OP_COUNT] = {
    [CR_OP_conv]             = {.old = IN(conv, w) | IN(conv, bias)},
    [CR_OP_conv_grad]        = {.old = IN(conv_grad, w) | IN(conv_grad, x) | IN(conv_grad, dy_x) | IN(conv_grad, bn_x) |
                                       IN(conv_grad, scale_bias) | IN(conv_grad, mean_rstd)},
    [CR_OP_bn_finalize]      = {.old = IN(bn_finalize, gamma) | IN(bn_finalize, beta) | IN(bn_finalize, running_mean) |
                                       IN(bn_finalize, running_var),
                                .in_fused = true},
    [CR_OP_pad_shortcut]     = {.before_last = IN(pad_shortcut, x), .in_fused = true},
    [CR_OP_bn_apply]         = {.before_last = IN(bn_apply, add), .in_fused = true},
    [CR_OP_bn_grad_finalize] = {.old = IN(bn_grad_finalize, gamma) | IN(bn_grad_finalize, mean_rstd), .in_fused = true},
    [CR_OP_conv_wgrad]       = {.before_last = IN(conv_wgrad, x) | IN(conv_wgrad, dy) | IN(conv_wgrad, scale_bias),
                                .in_fused    = true},
    [CR_OP_conv_pair]        = {.old = IN(conv_pair, w) | IN(conv_pair, bias) | IN(conv_pair, next_w) |
                                       IN(conv_pair, next_bias) | IN(conv_pair, first_w) | IN(conv_pair, first_bias) |
                                       IN(conv_pair, shortcut_w) | IN(conv_pair, shortcut_bias)},
    [CR_OP_qconv]            = {.old = IN(qconv, packed) | IN(qconv, coeffs)},
    [CR_OP_qconv_pair]       = {.old = IN(qconv_pair, packed) | IN(qconv_pair, coeffs) | IN(qconv_pair, next_packed) |
                                       IN(qconv_pair, next_coeffs) | IN(qconv_pair, first_packed) |
                                       IN(qconv_pair, first_coeffs)},
};

/* Op `writer` writes one of these inputs of `op`; the workspace counts as written. */
static bool writes(const struct cr_program *p, const struct cr_op *writer, const struct cr_op *op, unsigned inputs) {
    int ids[CR_OP_IDS_MAX], n = cr_op_writes(writer, ids);
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        for (int k = 0; (inputs & 1u << s) && op->in[s] >= 0 && k < n; k++)
            if (cr_tensors_overlap(&p->tensor[ids[k]], &p->tensor[op->in[s]])) return true;
    return false;
}

/* Op `writer`, the last one before the op or the one before that, writes an input that a kernel of the op may read
 * before its wait. */
static bool writes_early(const struct cr_program *p, const struct cr_op *writer, const struct cr_op *op, bool is_last) {
    int                 parts;
    const struct cr_op *part = cr_op_parts(op, &parts);
    for (int k = 0; k < parts; k++) {
        const struct early_inputs *e = &early_inputs[part[k].kind];
        if (writes(p, writer, &part[k], e->old | (is_last ? e->before_last : 0))) return true;
    }
    return false;
}

static bool reads_early(const struct cr_op *op) {
    return op->kind == CR_OP_fused || (early_inputs[op->kind].old && !early_inputs[op->kind].in_fused);
}

/* An op of another stream, before op `index`, writes an input that a kernel of this op may read before its wait. */
static bool other_streams_write(const struct cr_program *p, int index) {
    const struct cr_op *op = &p->op[index];
    for (int i = index < p->hoisted ? 0 : p->hoisted; i < index; i++)
        if (p->op[i].stream != op->stream && writes_early(p, &p->op[i], op, true)) return true;
    return false;
}

static bool must_separate(const struct cr_program *p, const struct cr_bound_op *bound, int index) {
    const struct cr_op *op       = &p->op[index];
    int                 launches = 0;
    for (int i = index; reads_early(op) && launches < 2; i--) {
        const struct cr_op *before = &p->op[i];
        if (before->stream == op->stream) {
            const bool launch = i < index && before->kind != CR_OP_barrier;
            if (launch && writes_early(p, before, op, launches == 0)) return true;
            if (bound[i].separated) return false;
            if (before->wait[0] >= 0 && other_streams_write(p, index)) return true;
            launches += before->kind == CR_OP_head ? 2 : launch;
        }
        if (i == 0 || i == p->hoisted) return false;
    }
    return false;
}

void cr_exec_find_separations(const struct cr_program *p, struct cr_bound_op *bound) {
    for (int i = 0; i < p->ops; i++) bound[i].separated = must_separate(p, bound, i);
}

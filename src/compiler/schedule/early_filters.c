/* compiler/schedule/early_filters.c: marks the convolutions whose kernels may read the filter early.
 *
 * A kernel that starts before the launches before it have ended may load its filter first, provided that none of these
 * launches writes it. Two ops are examined, because one of them may launch nothing. */
#include "compiler/passes.h"

enum { OPS_BEFORE = 2 };

static int filter_of(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_conv: return op->in[CR_IN_conv_w];
    case CR_OP_conv_grad: return op->in[CR_IN_conv_grad_w];
    default: return CR_NONE;
    }
}

static bool overlap(const struct cr_tensor *a, const struct cr_tensor *b) {
    return a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static bool writes(const struct cr_program *p, const struct cr_op *op, int tensor) {
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0 && overlap(&p->tensor[op->out[s]], &p->tensor[tensor])) return true;
    return false;
}

/* The ops before the first ones are not known: they belong to the program that ran before. */
void cr_pass_early_filters(struct cr_program *p) {
    for (int i = OPS_BEFORE; i < p->ops; i++) {
        const int w = filter_of(&p->op[i]);
        if (w == CR_NONE) continue;
        bool early = true;
        for (int before = i - OPS_BEFORE; before < i; before++) early &= !writes(p, &p->op[before], w);
        p->op[i].attr.conv.early_filter = early;
    }
}

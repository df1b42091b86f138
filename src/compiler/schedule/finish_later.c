/* compiler/schedule/finish_later.c: a convolution finishes the BN of the convolution before it.
 *
 * A convolution that computes the sums of the BN behind it and finishes them needs a second, small launch: the sums of
 * all its blocks must exist before one of them is finished. Where the next op reads the resulting scale_bias, its
 * blocks can add the sums themselves, and the small launch is not needed. The results are written by the next launch,
 * so no op of another stream may use them. */
#include "compiler/passes.h"

static bool overlap(const struct cr_program *p, int a, int b) {
    const struct cr_tensor *s = &p->tensor[a], *t = &p->tensor[b];
    if (a == b) return true;
    return s->region == CR_REGION_STORE && t->region == CR_REGION_STORE && s->offset < t->offset + t->bytes &&
           t->offset < s->offset + s->bytes;
}

/* An op of another stream reads or writes what finishing the BN of `last` reads or writes. */
static bool is_used_elsewhere(const struct cr_program *p, const struct cr_op *last) {
    int mine[2 * CR_OP_IDS_MAX], count = 0;
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++)
        if (last->in[s] >= 0) mine[count++] = last->in[s];
    for (int s = CR_OUT_conv_sums; s <= CR_OUT_conv_running_var; s++)
        if (last->out[s] >= 0) mine[count++] = last->out[s];
    for (int i = 0; i < p->ops; i++) {
        if (p->op[i].stream == last->stream) continue;
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++)
            for (int m = 0; m < count; m++)
                if (overlap(p, ids[k], mine[m])) return true;
    }
    return false;
}

static bool fits(const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    if (last->kind != CR_OP_conv || op->kind != CR_OP_conv || last->stream != op->stream) return false;
    if (last->in[CR_IN_conv_gamma] < 0 || op->in[CR_IN_conv_scale_bias] < 0) return false;
    return op->in[CR_IN_conv_scale_bias] == last->out[CR_OUT_conv_next_scale_bias] &&
           op->in[CR_IN_conv_x] == last->out[CR_OUT_conv_y] && !is_used_elsewhere(p, last);
}

void cr_pass_finish_later(struct cr_program *p, const struct cr_cost_model *cost_model) {
    if (!cost_model->finishes) return;
    for (int i = 1; i < p->ops; i++) {
        struct cr_op       *last = &p->op[i - 1];
        const struct cr_op *op   = &p->op[i];
        if (i != p->hoisted && fits(p, last, op) && cost_model->finishes(cost_model->self, p, last, op))
            last->attr.conv.finish_later = true;
    }
}

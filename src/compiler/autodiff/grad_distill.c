/* compiler/autodiff/grad_distill.c: gradients of knowledge distillation. The teacher's tensors have no gradient. Each
 * gradient op adds to the gradient that the tensor has from its other readers. */
#include "compiler/autodiff/backward.h"

#include <stdio.h>
#include <string.h>

/* Both ops have the logits and the labels in the same slots. */
_Static_assert((int)CR_IN_distill_logits == (int)CR_IN_distill_grad_logits &&
                   (int)CR_IN_distill_labels == (int)CR_IN_distill_grad_labels &&
                   (int)CR_IN_distill_teacher == (int)CR_IN_distill_grad_teacher,
               "distill and its gradient");

static int find(const struct cr_program *p, int logits) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_distill && p->op[i].in[CR_IN_distill_logits] == logits) return i;
    return CR_NONE;
}

float cr_grad_label_weight(const struct backward *b, int logits) {
    const int distilled = find(b->p, logits);
    return distilled == CR_NONE ? 1 : 1 - b->p->op[distilled].attr.distill.weight;
}

int cr_grad_distill(struct backward *b, int logits, int dy) {
    struct cr_program *p         = b->p;
    const int          distilled = p->failed ? CR_NONE : find(p, logits);
    if (distilled == CR_NONE) return dy;
    const struct cr_op     forward = p->op[distilled];
    const struct cr_tensor like    = p->tensor[logits];
    struct cr_op           g       = cr_op_make(CR_OP_distill_grad, forward.layer);
    char                   name[256];
    g.in[CR_IN_distill_grad_logits]  = logits;
    g.in[CR_IN_distill_grad_labels]  = forward.in[CR_IN_distill_labels];
    g.in[CR_IN_distill_grad_state]   = cr_tensor_store(p, CR_BUFFER_STATE, CR_NONE);
    g.in[CR_IN_distill_grad_teacher] = forward.in[CR_IN_distill_teacher];
    g.in[CR_IN_distill_grad_dy]      = dy;
    g.attr                           = forward.attr;
    g.attr.distill.weight *= b->weight;
    snprintf(name, sizeof name, "d.%s.distilled", like.name);
    g.out[CR_OUT_distill_grad_dx] =
        cr_tensor_add(p, name, like.dtype, CR_REGION_POOL, like.dim[0], like.dim[1], like.dim[2], like.dim[3]);
    cr_emit(p, &g, "");
    return p->failed ? dy : g.out[CR_OUT_distill_grad_dx];
}

/* compiler/autodiff/backward.h: the state of the pass grad, for the files of compiler/autodiff. */
#ifndef CR_BACKWARD_H
#define CR_BACKWARD_H

#include "compiler/passes.h"

struct backward {
    struct cr_program *p;
    bool               accumulate;
    float              weight, smoothing;
    int                forward_tensors; /* tensors that existed before the pass */
    bool              *needs_grad;      /* [tensors] the tensor depends on a trainable parameter */
    int               *grad;            /* [tensors] its gradient so far, or CR_NONE */
};

/* ---- grad_distill.c: knowledge distillation ---- */

/* Factor of the gradient of the loss of the labels; 1 without distillation of these logits. */
float cr_grad_label_weight(const struct backward *b, int logits);
/* dy is the whole gradient of the logits without distillation. Returns it with the gradient of the op distill that
 * reads them, or dy when there is no such op. */
int cr_grad_distill(struct backward *b, int logits, int dy);

#endif

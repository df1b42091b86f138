/* layers/distill.c: the loss of knowledge distillation (temperature, Hinton et al. 2015), in training programs only. */
#include "layers/layer.h"

void cr_layer_distill(struct cr_net *net, int logits) {
    struct cr_program *p = net->program;
    cr_net_layer(net, "distill");
    struct cr_op op                = cr_op_make(CR_OP_distill, net->layer);
    op.in[CR_IN_distill_logits]    = logits;
    op.in[CR_IN_distill_labels]    = p->labels;
    op.in[CR_IN_distill_metrics]   = p->metrics;
    op.in[CR_IN_distill_teacher]   = net->teacher_logits;
    op.out[CR_OUT_distill_metrics] = p->metrics;
    op.attr.distill.weight         = (float)net->config->distill.weight;
    op.attr.distill.temperature    = (float)net->config->distill.temperature;
    if (!p->failed) cr_emit(p, &op, "");
}

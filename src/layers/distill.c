/* layers/distill.c: the losses of knowledge distillation (Hinton et al. 2015; stage outputs as in FitNets, Romero et
 * al. 2015, without a regressor). They belong to training programs only. */
#include "layers/layer.h"

#include <string.h>

/* Both ops have x (or logits), labels, metrics and teacher in the same slots (compiler/autodiff/grad_distill.c). */
static void emit(struct cr_net *net, enum cr_op_kind kind, int x, int teacher, double weight) {
    struct cr_program *p           = net->program;
    struct cr_op       op          = cr_op_make(kind, net->layer);
    op.in[CR_IN_distill_logits]    = x;
    op.in[CR_IN_distill_labels]    = p->labels;
    op.in[CR_IN_distill_metrics]   = p->metrics;
    op.in[CR_IN_distill_teacher]   = teacher;
    op.out[CR_OUT_distill_metrics] = p->metrics;
    op.attr.distill.weight         = (float)weight;
    op.attr.distill.temperature    = (float)net->config->distill.temperature;
    if (!p->failed) cr_emit(p, &op, "");
}

static bool same_shape(const struct cr_program *p, int a, int b) {
    return memcmp(p->tensor[a].dim, p->tensor[b].dim, sizeof p->tensor[a].dim) == 0;
}

int cr_layer_distill(struct cr_net *net) {
    const double features = net->config->distill.features;
    int          count    = 0;
    cr_net_layer(net, "distill");
    emit(net, CR_OP_distill, net->y.logits, net->teacher.logits, net->config->distill.weight);
    for (int s = 0; features > 0 && !net->program->failed && s < CR_MIN(net->y.stages, net->teacher.stages); s++)
        if (same_shape(net->program, net->y.stage[s], net->teacher.stage[s])) {
            emit(net, CR_OP_distill_features, net->y.stage[s], net->teacher.stage[s], features);
            count++;
        }
    return count;
}

/* layers/loss.c: the loss (cross-entropy with label smoothing, class weights or focal loss; BCE) and counts of correct
 * predictions, summed into one tensor. Class weights, focal loss and BCE of one label: training programs only. */
#include "layers/layer.h"

/* An input whose values the executor copies with each batch. */
static int add_class_weights(struct cr_net *net, int logits) {
    struct cr_program *p = net->program;
    p->class_weights = cr_tensor_add(p, "class_weights", CR_F32, CR_REGION_INPUT, 1, 1, 1, p->tensor[logits].dim[3]);
    p->class_weight_values = net->class_weights;
    return p->class_weights;
}

static struct cr_loss_attr loss_of(const struct cr_net *net, float smoothing) {
    const struct cr_config *c       = net->config;
    const bool              several = c->data.multi_label;
    struct cr_loss_attr     attr    = {.smoothing = smoothing, .weight = 1, .sigmoid = several, .several = several};
    if (!net->training) return attr;
    attr.gamma     = (float)c->loss.focal_gamma;
    attr.sigmoid   = cr_config_is_binary(c);
    attr.threshold = attr.sigmoid ? (float)c->loss.target_threshold : 0;
    return attr;
}

int cr_layer_loss(struct cr_net *net, int logits, float smoothing) {
    struct cr_program *p = net->program;
    cr_net_layer(net, "loss");
    if (p->failed) return 0;
    p->logits              = logits;
    p->tensor[logits].keep = true;
    enum cr_dtype wide     = p->real == CR_F64 ? CR_F64 : CR_F32;
    p->metrics             = cr_tensor_add(p, "metrics", wide, CR_REGION_POOL, 1, 1, 1, 4);
    if (p->failed) return 0;
    p->tensor[p->metrics].keep = true;

    struct cr_op zero       = cr_op_make(CR_OP_zero, net->layer);
    zero.out[CR_OUT_zero_y] = p->metrics;
    cr_emit(p, &zero, "metrics");
    struct cr_op op           = cr_op_make(CR_OP_loss, net->layer);
    op.in[CR_IN_loss_logits]  = logits;
    op.in[CR_IN_loss_labels]  = p->labels;
    op.in[CR_IN_loss_metrics] = p->metrics;
    if (net->training && cr_config_mixes_labels(net->config)) op.in[CR_IN_loss_mixes] = p->mixes;
    op.out[CR_OUT_loss_metrics] = p->metrics;
    op.attr.loss                = loss_of(net, smoothing);
    if (net->training && net->class_weights) op.in[CR_IN_loss_class_weights] = add_class_weights(net, logits);
    return cr_emit(p, &op, "metrics");
}

void cr_layer_metrics_over_ranks(struct cr_net *net) {
    struct cr_program *p = net->program;
    if (p->failed) return;
    struct cr_op op           = cr_op_make(CR_OP_all_reduce, net->layer);
    op.in[CR_IN_all_reduce_x] = p->metrics;
    op.attr.reduce.wire       = p->tensor[p->metrics].dtype;
    const int index           = cr_emit(p, &op, "metrics.all");
    if (p->failed) return;
    p->tensor[p->metrics].keep = false;
    p->metrics                 = p->op[index].out[CR_OUT_all_reduce_y];
    p->tensor[p->metrics].keep = true;
}

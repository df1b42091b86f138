/* input.c: the batch as the loader delivers it, and its normalisation. */
#include "layers/layer.h"

int cr_layer_input(struct cr_net *net, int64_t batch, int64_t size) {
    struct cr_program *p = net->program;
    cr_net_layer(net, "input");
    p->images = cr_tensor_add(p, "images", CR_U8, CR_REGION_INPUT, batch, size, size, 3);
    p->labels = cr_tensor_add(p, "labels", CR_I32, CR_REGION_INPUT, batch, 1, 1, 1);

    /* Training pictures are shifted and mirrored on the device. */
    if (net->training) p->boxes = cr_tensor_add(p, "boxes", CR_I32, CR_REGION_INPUT, batch, 1, 1, 4);

    struct cr_op op               = cr_op_make(CR_OP_normalize, net->layer);
    op.in[CR_IN_normalize_images] = p->images;
    op.in[CR_IN_normalize_boxes]  = p->boxes;
    for (int c = 0; c < 3; c++) {
        op.attr.input.mean[c] = (float)net->config->data.mean.at[c];
        op.attr.input.std[c]  = (float)net->config->data.std.at[c];
    }
    return cr_net_emit(net, &op, "input");
}

/* layers/pool.c: max pooling, with the index of the maximum when a gradient needs it, anti-aliased subsampling, and
 * global average pooling. */
#include "layers/layer.h"

int cr_layer_maxpool(struct cr_net *net, const char *path, int x, int window, int stride, int pad) {
    cr_net_layer(net, path);
    struct cr_op op        = cr_op_make(CR_OP_maxpool, net->layer);
    op.in[CR_IN_maxpool_x] = x;
    op.attr.conv           = (struct cr_conv_attr){.stride = stride, .pad = pad, .window = window};
    if (net->training && !net->frozen) op.out[CR_OUT_maxpool_index] = CR_NEW;
    return cr_net_emit(net, &op, path);
}

int cr_layer_blurpool(struct cr_net *net, const char *path, int x) {
    cr_net_layer(net, path);
    return cr_net_emit_of(net, CR_OP_blurpool, path, x);
}

int cr_layer_avgpool(struct cr_net *net, const char *path, int x) {
    cr_net_layer(net, path);
    return cr_net_emit_of(net, CR_OP_avgpool, path, x);
}

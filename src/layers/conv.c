/* layers/conv.c: convolution without bias, since a batch normalisation follows each convolution. */
#include "layers/layer.h"

int cr_layer_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride, int pad) {
    cr_net_layer(net, path);
    struct cr_op op     = cr_op_make(CR_OP_conv, net->layer);
    op.in[CR_IN_conv_x] = x;
    op.in[CR_IN_conv_w] =
        cr_net_param(net, path, "weight", CR_ROLE_CONV, filters, window, window, cr_net_channels(net, x));
    op.attr.conv = (struct cr_conv_attr){.stride = stride, .pad = pad, .window = window};
    return cr_net_emit(net, &op, path);
}

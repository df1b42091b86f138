/* layers/conv.c: convolution without bias, since a batch normalisation follows each convolution. */
#include "layers/layer.h"

int cr_layer_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride, int pad) {
    cr_net_layer(net, path);
    struct cr_op op = cr_op_make(CR_OP_conv, net->layer);
    const int    w  = cr_net_param(net, path, "weight", CR_ROLE_CONV, filters, window, window, cr_net_channels(net, x));
    const bool   quantized = cr_layer_is_quantized(net, path);
    op.in[CR_IN_conv_x]    = quantized ? cr_layer_quantize(net, x) : x;
    op.in[CR_IN_conv_w]    = quantized ? cr_layer_quantize_filter(net, path, w) : w;
    op.attr.conv           = (struct cr_conv_attr){.stride = stride, .pad = pad, .window = window};
    return cr_net_emit(net, &op, path);
}

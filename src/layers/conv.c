/* layers/conv.c: convolution and grouped convolution, without bias, since a batch normalisation follows. */
#include "layers/layer.h"

int cr_layer_group_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride,
                        int64_t groups) {
    if (groups == 1) return cr_layer_conv(net, path, x, filters, window, stride, window / 2);
    cr_net_layer(net, path);
    struct cr_op  op          = cr_op_make(CR_OP_group_conv, net->layer);
    const int64_t inputs      = cr_net_channels(net, x) / groups;
    op.in[CR_IN_group_conv_x] = x;
    op.in[CR_IN_group_conv_w] = cr_net_param(net, path, "weight", CR_ROLE_CONV, filters, window, window, inputs);
    op.attr.conv              = (struct cr_conv_attr){.stride = stride, .pad = window / 2, .window = window};
    return cr_net_emit(net, &op, path);
}

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

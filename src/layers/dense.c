/* layers/dense.c: fully connected layer (the classifier). */
#include "layers/layer.h"

int cr_layer_dense(struct cr_net *net, const char *path, int x, int64_t classes) {
    cr_net_layer(net, path);
    struct cr_op op = cr_op_make(CR_OP_dense, net->layer);
    net->classifier = true;
    const int  w    = cr_net_param(net, path, "weight", CR_ROLE_DENSE_WEIGHT, classes, 1, 1, cr_net_channels(net, x));
    const bool quantized = cr_layer_is_quantized(net, path);
    op.in[CR_IN_dense_x] = quantized ? cr_layer_quantize(net, x) : x;
    op.in[CR_IN_dense_w] = quantized ? cr_layer_quantize_filter(net, path, w) : w;
    op.in[CR_IN_dense_b] = cr_net_param(net, path, "bias", CR_ROLE_DENSE_BIAS, 1, 1, 1, classes);
    net->classifier      = false;
    return cr_net_emit(net, &op, path);
}

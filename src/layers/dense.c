/* layers/dense.c: fully connected layer (the classifier). */
#include "layers/layer.h"

int cr_layer_dense(struct cr_net *net, const char *path, int x, int64_t classes) {
    cr_net_layer(net, path);
    struct cr_op op      = cr_op_make(CR_OP_dense, net->layer);
    net->classifier      = true;
    op.in[CR_IN_dense_x] = x;
    op.in[CR_IN_dense_w] =
        cr_net_param(net, path, "weight", CR_ROLE_DENSE_WEIGHT, classes, 1, 1, cr_net_channels(net, x));
    op.in[CR_IN_dense_b] = cr_net_param(net, path, "bias", CR_ROLE_DENSE_BIAS, 1, 1, 1, classes);
    net->classifier      = false;
    return cr_net_emit(net, &op, path);
}

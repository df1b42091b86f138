/* layers/activation.c: ReLU. */
#include "layers/layer.h"

int cr_layer_relu(struct cr_net *net, const char *path, int x) {
    struct cr_op op     = cr_op_make(CR_OP_relu, net->layer);
    op.in[CR_IN_relu_x] = x;
    return cr_net_emit(net, &op, path);
}

/* layers/activation.c: the activation function of every network, ReLU. */
#include "layers/layer.h"

int cr_layer_relu(struct cr_net *net, const char *path, int x) {
    return cr_net_emit_of(net, CR_OP_relu, path, x);
}

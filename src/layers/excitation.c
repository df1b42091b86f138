/* layers/excitation.c: squeeze and excitation (Hu et al. 2018), as timm's SEModule. The mean over H,W passes through
 * two dense layers with a ReLU between them; the sigmoid of the result is a factor for each channel. */
#include "layers/layer.h"

#include <stdio.h>

enum { REDUCTION = 16, DIVISOR = 8 };

/* A dense layer whose weights are stored in files as a 1x1 convolution: O,I,1,1. */
static int pointwise(struct cr_net *net, const char *path, const char *part, int x, int64_t channels) {
    char name[256];
    snprintf(name, sizeof name, "%s.%s", path, part);
    cr_net_layer(net, name);
    struct cr_op op      = cr_op_make(CR_OP_dense, net->layer);
    op.in[CR_IN_dense_x] = x;
    op.in[CR_IN_dense_w] = cr_net_param(net, name, "weight", CR_ROLE_CONV, channels, 1, 1, cr_net_channels(net, x));
    op.in[CR_IN_dense_b] = cr_net_param(net, name, "bias", CR_ROLE_DENSE_BIAS, 1, 1, 1, channels);
    return cr_net_emit(net, &op, name);
}

int cr_layer_excitation(struct cr_net *net, const char *path, int x) {
    const int64_t channels = cr_net_channels(net, x),
                  reduced  = (channels / REDUCTION + DIVISOR / 2) / DIVISOR * DIVISOR;
    char name[256];
    snprintf(name, sizeof name, "%s.mean", path);
    int s = pointwise(net, path, "fc1", cr_layer_avgpool(net, name, x), CR_MAX(reduced, (int64_t)DIVISOR));
    snprintf(name, sizeof name, "%s.act", path);
    s = pointwise(net, path, "fc2", cr_layer_relu(net, name, s), channels);
    cr_net_layer(net, path);
    struct cr_op op             = cr_op_make(CR_OP_se_scale, net->layer);
    op.in[CR_IN_se_scale_x]     = x;
    op.in[CR_IN_se_scale_logit] = s;
    return cr_net_emit(net, &op, path);
}

/* layers/excitation.c: squeeze and excitation (Hu et al. 2018), as timm's SEModule, and efficient channel attention
 * (Wang et al. 2020), as timm's EcaModule. The mean over H,W passes through two dense layers with a ReLU between
 * them, or through a convolution over the channels; the sigmoid of the result is a factor for each channel. */
#include "layers/layer.h"

#include <math.h>
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

/* timm's EcaModule: |log2(C) + 1| / 2, rounded up to an odd number, at least 3. */
static int64_t channel_taps(int64_t channels) {
    const int64_t t = (int64_t)(fabs(log2((double)channels) + 1) / 2);
    return CR_MAX(t % 2 ? t : t + 1, (int64_t)3);
}

static int scale(struct cr_net *net, const char *path, int x, int logit) {
    cr_net_layer(net, path);
    struct cr_op op             = cr_op_make(CR_OP_se_scale, net->layer);
    op.in[CR_IN_se_scale_x]     = x;
    op.in[CR_IN_se_scale_logit] = logit;
    return cr_net_emit(net, &op, path);
}

int cr_layer_channel_attention(struct cr_net *net, const char *path, int x) {
    char name[256];
    snprintf(name, sizeof name, "%s.mean", path);
    const int mean = cr_layer_avgpool(net, name, x);
    snprintf(name, sizeof name, "%s.conv", path);
    cr_net_layer(net, name);
    struct cr_op op             = cr_op_make(CR_OP_channel_conv, net->layer);
    op.in[CR_IN_channel_conv_x] = mean;
    op.in[CR_IN_channel_conv_w] =
        cr_net_param(net, name, "weight", CR_ROLE_CHANNEL_CONV, 1, 1, 1, channel_taps(cr_net_channels(net, x)));
    return scale(net, path, x, cr_net_emit(net, &op, name));
}

int64_t cr_excitation_reduced(int64_t channels) {
    const int64_t reduced = (channels / REDUCTION + DIVISOR / 2) / DIVISOR * DIVISOR;
    return CR_MAX(reduced, (int64_t)DIVISOR);
}

int cr_layer_excitation(struct cr_net *net, const char *path, int x, int64_t reduced) {
    char name[256];
    snprintf(name, sizeof name, "%s.mean", path);
    int s = pointwise(net, path, "fc1", cr_layer_avgpool(net, name, x), reduced);
    snprintf(name, sizeof name, "%s.act", path);
    s = pointwise(net, path, "fc2", cr_layer_relu(net, name, s), cr_net_channels(net, x));
    return scale(net, path, x, s);
}

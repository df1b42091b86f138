/* layers/shortcut.c: the residual sum, and the shortcuts of blocks that change the shape.
 *
 * Option A (He et al. 2016) has no parameters: every stride-th pixel, with zero channels on both sides, as in the CIFAR
 * networks. Option B is a 1x1 convolution and a BN. ResNet-D replaces the stride of option B by average pooling. */
#include "layers/layer.h"

#include <stdio.h>

int cr_layer_add(struct cr_net *net, const char *path, int a, int b) {
    struct cr_op op    = cr_op_make(CR_OP_add, net->layer);
    op.in[CR_IN_add_a] = a;
    op.in[CR_IN_add_b] = b;
    return cr_net_emit(net, &op, path);
}

int cr_layer_shortcut_a(struct cr_net *net, const char *path, int x, int64_t channels, int stride) {
    int64_t added = channels - cr_net_channels(net, x);
    CR_ASSERT(net->program->failed || (added >= 0 && added % 2 == 0)); /* model/resnet.c has checked the widths */
    cr_net_layer(net, path);
    struct cr_op op             = cr_op_make(CR_OP_pad_shortcut, net->layer);
    op.in[CR_IN_pad_shortcut_x] = x;
    op.attr.conv                = (struct cr_conv_attr){.stride = stride, .window = 1, .pad_c = (int)(added / 2)};
    return cr_net_emit(net, &op, path);
}

static int conv_bn(struct cr_net *net, const char *path, int number, int x, int64_t channels, int stride) {
    char name[256];
    snprintf(name, sizeof name, "%s.%d", path, number);
    int y = cr_layer_conv(net, name, x, channels, 1, stride, 0);
    snprintf(name, sizeof name, "%s.%d", path, number + 1);
    return cr_layer_batchnorm(net, name, y, false);
}

int cr_layer_shortcut_d(struct cr_net *net, const char *path, int x, int64_t channels, int stride) {
    char name[256];
    CR_ASSERT(stride == 1 || stride == 2);
    snprintf(name, sizeof name, "%s.0", path);
    if (stride == 2) {
        cr_net_layer(net, name);
        x = cr_net_emit_of(net, CR_OP_avgpool2x2, name, x);
    }
    return conv_bn(net, path, 1, x, channels, 1);
}

int cr_layer_shortcut_b(struct cr_net *net, const char *path, int x, int64_t channels, int stride) {
    return conv_bn(net, path, 0, x, channels, stride);
}

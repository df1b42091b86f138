/* layers/stage.c: residual blocks: basic, and bottleneck with the stride in its 3x3 (torchvision's v1.5). */
#include "layers/layer.h"

#include <stdio.h>

enum { BOTTLENECK_EXPANSION = 4 };

struct block {
    const struct cr_stage *stage;
    char                   path[64]; /* "layer2.0" */
    struct cr_block_widths widths;
    int64_t                out;
    bool                   reshapes; /* the shortcut changes the shape */
    int                    stride;
    double                 drop; /* rate of stochastic depth */
};

static const char *join(char *buf, size_t size, const struct block *b, const char *part) {
    snprintf(buf, size, "%s.%s", b->path, part);
    return buf;
}

static int group_conv_bn(struct cr_net *net, const struct block *b, int number, int x, int64_t filters, int window,
                         int stride, int64_t groups, bool zero) {
    char part[16], name[128];
    snprintf(part, sizeof part, "conv%d", number);
    int y = cr_layer_group_conv(net, join(name, sizeof name, b, part), x, filters, window, stride, groups);
    snprintf(part, sizeof part, "bn%d", number);
    return cr_layer_batchnorm(net, join(name, sizeof name, b, part), y, zero);
}

static int conv_bn(struct cr_net *net, const struct block *b, int number, int x, int64_t filters, int window,
                   int stride, bool zero) {
    return group_conv_bn(net, b, number, x, filters, window, stride, 1, zero);
}

static int relu_after(struct cr_net *net, const struct block *b, const char *part, int x) {
    char name[128];
    return cr_layer_relu(net, join(name, sizeof name, b, part), x);
}

/* With model.blur_pool the convolution before it has stride 1; names and places as in timm. */
static int subsample(struct cr_net *net, const struct block *b, int x) {
    char name[128];
    if (b->stride == 1 || !net->config->model.blur_pool) return x;
    return cr_layer_blurpool(net, join(name, sizeof name, b, "aa"), x);
}

static int conv_stride(const struct cr_net *net, const struct block *b) {
    return net->config->model.blur_pool ? 1 : b->stride;
}

static int basic_branch(struct cr_net *net, const struct block *b, int x) {
    const int64_t inner = b->widths.inner[0];
    int           y     = relu_after(net, b, "relu1", conv_bn(net, b, 1, x, inner, 3, conv_stride(net, b), false));
    y                   = subsample(net, b, y);
    return conv_bn(net, b, 2, y, b->out, 3, 1, net->config->model.zero_init_last);
}

static int bottleneck_branch(struct cr_net *net, const struct block *b, int x) {
    const int64_t *inner = b->widths.inner;
    int            y     = relu_after(net, b, "relu1", conv_bn(net, b, 1, x, inner[0], 1, 1, false));
    y                    = group_conv_bn(net, b, 2, y, inner[1], 3, conv_stride(net, b), b->stage->groups, false);
    y                    = relu_after(net, b, "relu2", y);
    y                    = subsample(net, b, y);
    return conv_bn(net, b, 3, y, b->out, 1, 1, net->config->model.zero_init_last);
}

static int residual_block(struct cr_net *net, const struct block *b, int x) {
    const struct cr_stage *stage = b->stage;
    const bool             basic = stage->block == CR_BLOCK_BASIC;
    char                   name[128];

    int branch = basic ? basic_branch(net, b, x) : bottleneck_branch(net, b, x);
    if (net->config->model.excitation)
        branch = cr_layer_excitation(net, join(name, sizeof name, b, "se"), branch, b->widths.reduced);
    if (net->config->model.eca) branch = cr_layer_channel_attention(net, join(name, sizeof name, b, "se"), branch);
    branch = cr_layer_drop(net, join(name, sizeof name, b, "drop"), branch, b->drop, true);
    /* The last convolution of the branch adds the shortcut while it stores its output. Behind squeeze and excitation
     * the addition is in floating point. */
    const bool quantized = !net->config->model.excitation && !net->config->model.eca &&
                           cr_layer_is_quantized(net, join(name, sizeof name, b, basic ? "conv2" : "conv3"));
    if (quantized) x = cr_layer_quantize(net, x);
    int shortcut = x;
    if (b->reshapes && stage->shortcut == CR_SHORTCUT_A)
        shortcut = cr_layer_shortcut_a(net, join(name, sizeof name, b, "shortcut"), x, b->out, b->stride);
    else if (b->reshapes && stage->shortcut == CR_SHORTCUT_D)
        shortcut = cr_layer_shortcut_d(net, join(name, sizeof name, b, "downsample"), x, b->out, b->stride);
    else if (b->reshapes)
        shortcut = cr_layer_shortcut_b(net, join(name, sizeof name, b, "downsample"), x, b->out, b->stride);
    if (quantized) shortcut = cr_layer_quantize(net, shortcut);
    int sum = cr_layer_add(net, join(name, sizeof name, b, "add"), branch, shortcut);
    return relu_after(net, b, "relu", sum);
}

/* Sets the channels of block `i`, whose input is x. */
static void set_widths(const struct cr_net *net, struct block *b, int i, int x) {
    const struct cr_stage *stage = b->stage;
    if (stage->widths) {
        b->widths   = stage->widths->block[i];
        b->out      = stage->widths->out;
        b->reshapes = i == 0 && stage->widths->reshapes;
        return;
    }
    const bool    basic = stage->block == CR_BLOCK_BASIC;
    const int64_t inner = !basic && stage->inner ? stage->inner : stage->width;
    b->out              = basic ? stage->width : stage->width * BOTTLENECK_EXPANSION;
    b->reshapes         = b->stride != 1 || cr_net_channels(net, x) != b->out;
    b->widths           = (struct cr_block_widths){.inner = {inner, inner}, .reduced = cr_excitation_reduced(b->out)};
}

int cr_layer_stage(struct cr_net *net, const struct cr_stage *stage, int x) {
    for (int i = 0; i < stage->depth; i++) {
        struct block b = {.stage = stage, .stride = i == 0 ? stage->stride : 1};
        set_widths(net, &b, i, x);
        if (stage->blocks > 1)
            b.drop = net->config->model.stochastic_depth * (stage->first_block + i) / (stage->blocks - 1);
        snprintf(b.path, sizeof b.path, "%s.%d", stage->path, i);
        x = residual_block(net, &b, x);
    }
    return x;
}

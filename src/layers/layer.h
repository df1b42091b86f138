/* layer.h: layers emit ops. A layer function takes the net being built, its path (the torchvision name) and its input
 * tensor, adds its parameters to the store (or finds them there), appends its ops and returns its output tensor.
 *
 * Laws
 *   - Layers only emit the plain forward ops. Gradients, fusion, memory and devices are the passes' business.
 *   - Parameter names are torchvision's; parameters appear in torchvision's order of definition.
 *   - Errors are sticky (program->failed, store->failed): layers return a tensor id in any case.
 * Knows graph/graph.h and config/config.h. */
#ifndef CR_LAYER_H
#define CR_LAYER_H

#include "graph/graph.h"

struct cr_net {
    struct cr_program      *program;
    struct cr_param_store  *store; /* parameters are added on first use, found afterwards */
    const struct cr_config *config;
    bool                    training; /* BN uses the batch's statistics */
    bool                    frozen;   /* the part being built: no gradients, BN uses its running statistics */
    int                     bn_ranks; /* BN's statistics are sums over so many ranks; 0, 1: each rank's own */
    int                     layer;    /* current layer, for messages and profiles */
};

/* cast.c: makes the 16-bit copy of all parameters, which the layers of a 16-bit program read their weights from */
void cr_layer_cast(struct cr_net *net);
/* input.c: the batch. Returns the normalised images [N,H,W,3]; sets program->images, ->labels and, in training,
 * ->boxes. */
int cr_layer_input(struct cr_net *net, int64_t batch, int64_t size);
/* conv.c: window x window filter, square stride, no bias. "path.weight" */
int cr_layer_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride, int pad);
/* batchnorm.c: "path.weight", ".bias", ".running_mean", ".running_var"; zero: gamma starts at 0 */
int cr_layer_batchnorm(struct cr_net *net, const char *path, int x, bool zero);
/* activation.c */
int cr_layer_relu(struct cr_net *net, const char *path, int x);
/* shortcut.c: sum of a block's branches; option A's free shortcut; option B's convolution and BN ("path.0", "path.1")
 */
int cr_layer_add(struct cr_net *net, const char *path, int a, int b);
int cr_layer_shortcut_a(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
int cr_layer_shortcut_b(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
/* ... of ResNet-D (He et al. 2019): 2x2 means in place of the stride, then "path.1" and "path.2" as timm names them */
int cr_layer_shortcut_d(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
/* excitation.c: squeeze and excitation (Hu et al. 2018), "path.fc1" and "path.fc2", 1x1 convolutions with bias in the
 * file */
int cr_layer_excitation(struct cr_net *net, const char *path, int x);
/* pool.c */
int cr_layer_maxpool(struct cr_net *net, const char *path, int x, int window, int stride, int pad);
int cr_layer_avgpool(struct cr_net *net, const char *path, int x);
/* dense.c: "path.weight", "path.bias" */
int cr_layer_dense(struct cr_net *net, const char *path, int x, int64_t classes);
/* loss.c: cross entropy and counts into program->metrics; returns the loss op's index */
int cr_layer_loss(struct cr_net *net, int logits, float smoothing);
/* ... the sums of them over all ranks take their place: every rank logs, and judges, the same */
void cr_layer_metrics_over_ranks(struct cr_net *net);
/* stage.c: `depth` residual blocks, the first with `stride`; bottleneck blocks are four times wider outside */
struct cr_stage {
    const char      *path; /* "layer2" */
    enum cr_block    block;
    enum cr_shortcut shortcut;
    int64_t          width, inner; /* inner: channels of a bottleneck's 3x3, 0: width */
    int              depth, stride;
    bool             excite; /* squeeze and excitation at the end of each branch */
};
int cr_layer_stage(struct cr_net *net, const struct cr_stage *stage, int x);

/* layers.c: for layers' own use */
int cr_net_param(struct cr_net *net, const char *path, const char *suffix, enum cr_param_role role, int64_t k,
                 int64_t r, int64_t s, int64_t c); /* tensor id of the parameter's value (or running statistic); weights
                                                    * of convolutions and classifiers are in the program's type */
void    cr_net_layer(struct cr_net *net, const char *path); /* following ops belong to this layer */
int     cr_net_emit(struct cr_net *net, const struct cr_op *op,
                    const char *path); /* first output "path.y"; its tensor id */
int64_t cr_net_channels(const struct cr_net *net, int x);

#endif

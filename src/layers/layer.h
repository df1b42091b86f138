/* layers/layer.h: layer functions append ops to a program.
 *
 * A layer function gets the network being built, its path (the torchvision name, e.g. "layer1.0.conv1") and its input
 * tensor. It adds its parameters to the parameter store, or finds them there, appends its ops to the program and
 * returns the id of its output tensor. Activations are N,H,W,C.
 *
 * Invariants
 *   - Layers append only plain forward ops. Compiler passes add gradients, fusion, memory planning and device details.
 *   - Parameters have torchvision's names and are added in torchvision's order of definition.
 *   - Errors are sticky (program->failed, store->failed): a layer function returns a tensor id in any case. */
#ifndef CR_LAYER_H
#define CR_LAYER_H

#include "config/config.h"
#include "graph/graph.h"

struct cr_net {
    struct cr_program      *program;
    struct cr_param_store  *store; /* parameters are added on first use and found afterwards */
    const struct cr_config *config;
    const float            *class_weights; /* of the loss in training, [classes]; NULL: none */
    int                     classes;
    bool                    training; /* batch norms use batch statistics */
    bool                    frozen;   /* the current part is frozen: no gradients, batch norms use running statistics */
    bool                    classifier; /* the current layer is the classifier */
    bool                    f32_input;  /* the program's images are normalised f32 values instead of bytes */
    bool                    calibrate;  /* the host reads the tensors that a quantised network quantises */
    int bn_ranks;       /* number of ranks whose statistics a batch norm combines; 0 or 1 without SyncBN */
    int layer;          /* index of the current layer, for messages and profiles */
    int drops;          /* ops drop so far */
    int teacher_logits; /* of the network that this one learns from; in a program with a teacher */
};

/* ---- layers; each is in the file of its name ---- */

/* cast.c: makes the 16-bit copy of all parameters from which the layers of a 16-bit program read their weights. */
void cr_layer_cast(struct cr_net *net);
/* input.c: adds the input tensors of a batch (program->images, ->labels and, in training, ->boxes and ->mixes). Returns
 * the normalised images [batch,size,width,channels]; the width is [data] image_width, or `size`. */
int cr_layer_input(struct cr_net *net, int64_t batch, int64_t size);
/* conv.c: convolution with a window x window filter, the same stride in both directions, and no bias. Parameter
 * "path.weight". */
int cr_layer_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride, int pad);
/* The same with padding window/2, and the channels in `groups` groups. One group is cr_layer_conv. */
int cr_layer_group_conv(struct cr_net *net, const char *path, int x, int64_t filters, int window, int stride,
                        int64_t groups);
/* batchnorm.c: parameters "path.weight" (gamma), "path.bias" (beta), "path.running_mean", "path.running_var". With
 * `zero` the initial gamma is 0. */
int cr_layer_batchnorm(struct cr_net *net, const char *path, int x, bool zero);
/* activation.c: ReLU. */
int cr_layer_relu(struct cr_net *net, const char *path, int x);
/* shortcut.c: the sum of a residual block, a + b. */
int cr_layer_add(struct cr_net *net, const char *path, int a, int b);
/* Shortcuts of blocks that change the shape. Option A: subsampling and zero channels, no parameters. Option B: 1x1
 * convolution "path.0" and BN "path.1". ResNet-D (He et al. 2019): 2x2 average pooling instead of a stride, then
 * convolution "path.1" and BN "path.2", with timm's names. */
int cr_layer_shortcut_a(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
int cr_layer_shortcut_b(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
int cr_layer_shortcut_d(struct cr_net *net, const char *path, int x, int64_t channels, int stride);
/* excitation.c: squeeze and excitation (Hu et al. 2018). "path.fc1", with `reduced` channels, and "path.fc2" are 1x1
 * convolutions with bias in files. */
int cr_layer_excitation(struct cr_net *net, const char *path, int x, int64_t reduced);
/* The number of reduced channels for a layer of `channels` channels, as in timm. */
int64_t cr_excitation_reduced(int64_t channels);
/* Efficient channel attention (Wang et al. 2020): parameter "path.conv.weight", 1,1,L in files. */
int cr_layer_channel_attention(struct cr_net *net, const char *path, int x);
/* pool.c: max pooling, and the mean over H,W (-> [N,1,1,C]). */
int cr_layer_maxpool(struct cr_net *net, const char *path, int x, int window, int stride, int pad);
int cr_layer_avgpool(struct cr_net *net, const char *path, int x);
/* Anti-aliased subsampling by two (Zhang 2019): BlurPool2d of timm, without parameters. */
int cr_layer_blurpool(struct cr_net *net, const char *path, int x);
/* drop.c: sets elements, or with `images` whole images, to 0 with probability `rate` and scales the others, in the
 * unfrozen parts of training programs; elsewhere, and with rate 0, returns x. */
int cr_layer_drop(struct cr_net *net, const char *path, int x, double rate, bool images);
/* dense.c: the classifier, a fully connected layer with parameters "path.weight" and "path.bias". */
int cr_layer_dense(struct cr_net *net, const char *path, int x, int64_t classes);
/* quantize.c: quantised networks ([quant] type = int8): evaluation programs. */
/* True when the convolution (or classifier) `path` computes with 8-bit integers. */
bool cr_layer_is_quantized(const struct cr_net *net, const char *path);
/* Returns x as a tensor of quantised values with the parameter "PATH.scale", where "PATH.y" is the name of x. Returns x
 * itself if x has such values already. With net->calibrate it returns x, which the host can then read. */
int cr_layer_quantize(struct cr_net *net, int x);
/* Returns the filter `w` with quantised values and the parameter "path.weight_scale". */
int cr_layer_quantize_filter(struct cr_net *net, const char *path, int w);
/* loss.c: cross entropy and the counts of correct predictions, added to program->metrics. Returns the index of the loss
 * op. */
int cr_layer_loss(struct cr_net *net, int logits, float smoothing);
/* distill.c: adds to the loss of the logits, which is in program->metrics, that of knowledge distillation from
 * net->teacher_logits ([distill]). */
void cr_layer_distill(struct cr_net *net, int logits);
/* Replaces program->metrics by its sum over all ranks, so that every rank sees the same metrics. */
void cr_layer_metrics_over_ranks(struct cr_net *net);

/* stage.c: `depth` residual blocks; the first one has the stride. The output of bottleneck blocks has 4 * width
 * channels.
 */
struct cr_block_widths {
    int64_t inner[2]; /* channels of conv1 and, in a bottleneck, of conv2 */
    int64_t reduced;  /* with squeeze and excitation: channels between its layers */
};
struct cr_stage_widths {
    int64_t                       out;      /* channels of the stage's output */
    bool                          reshapes; /* the shortcut of the first block changes the shape */
    const struct cr_block_widths *block;    /* [depth] */
};
struct cr_stage {
    const char      *path; /* "layer2" */
    enum cr_block    block;
    enum cr_shortcut shortcut;
    int64_t          width, inner; /* inner: channels of a bottleneck's 3x3 convolution, 0 uses width */
    int64_t          groups;       /* of a bottleneck's 3x3 convolution */
    /* The channels of every layer, instead of width and inner; NULL: they follow from width and inner. */
    const struct cr_stage_widths *widths;
    int                           depth, stride;
    /* Index in the network of the stage's first block, and number of blocks of the network: by these, the rate of
     * stochastic depth rises from 0 to model.stochastic_depth. */
    int first_block, blocks;
};
int cr_layer_stage(struct cr_net *net, const struct cr_stage *stage, int x);

/* ---- helpers for layer functions (layers.c) ---- */

/* Returns the tensor of the parameter "path.suffix" with shape [k,r,s,c]. Weights of convolutions and dense layers have
 * the program's type; all other parameters and the running statistics are f32. */
int cr_net_param(struct cr_net *net, const char *path, const char *suffix, enum cr_param_role role, int64_t k,
                 int64_t r, int64_t s, int64_t c);
/* Starts a new layer: the following ops belong to it. */
void cr_net_layer(struct cr_net *net, const char *path);
/* Appends the op; returns the id of its first output, which is named "path.y". */
int cr_net_emit(struct cr_net *net, const struct cr_op *op, const char *path);
/* The same with the name "path.suffix". */
int cr_net_emit_named(struct cr_net *net, const struct cr_op *op, const char *path, const char *suffix);
/* Appends an op that has the input x and no attributes. */
int cr_net_emit_of(struct cr_net *net, enum cr_op_kind kind, const char *path, int x);
/* Number of channels of tensor x. */
int64_t cr_net_channels(const struct cr_net *net, int x);

#endif

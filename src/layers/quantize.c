/* layers/quantize.c: fake quantisation in evaluation programs: floating-point ops with rounded values. The pass
 * cr_pass_quantize (compiler/passes.h) replaces them by 8-bit ops where the device has kernels for them. */
#include "layers/layer.h"

#include <stdio.h>
#include <string.h>

static bool in_list(const char *list, const char *path) {
    const size_t length = strlen(path);
    while (*list) {
        list += strspn(list, ", \t");
        const size_t word = strcspn(list, ", \t");
        if (word == length && strncmp(list, path, word) == 0) return true;
        list += word;
    }
    return false;
}

bool cr_layer_is_quantized(const struct cr_net *net, const char *path) {
    const struct cr_config *c = net->config;
    return c->quant.type == CR_QUANT_INT8 && !net->training && !in_list(c->quant.keep, path);
}

static const struct cr_op *writer_of(const struct cr_program *p, int tensor) {
    const int writer = cr_program_writer(p, tensor);
    return writer == CR_NONE ? NULL : &p->op[writer];
}

/* Pooling and zero channels keep the values and their scale. A program that calibrates has no fake_quant: there the
 * host reads the tensors that the network quantises. Both programs must have the same scales, because the offsets of a
 * program's tensors in the parameter store are wrong once a later layer adds a parameter. */
static bool has_quantized_values(const struct cr_net *net, int tensor) {
    const struct cr_program *p  = net->program;
    const struct cr_op      *op = writer_of(p, tensor);
    while (op && (op->kind == CR_OP_maxpool || op->kind == CR_OP_pad_shortcut)) {
        tensor = op->in[0];
        op     = writer_of(p, tensor);
    }
    return net->calibrate ? p->tensor[tensor].keep : op && op->kind == CR_OP_fake_quant;
}

/* A ReLU, and a mean over the pixels behind a ReLU, have no negative values. */
static bool may_be_negative(const struct cr_program *p, int tensor) {
    const struct cr_op *op = writer_of(p, tensor);
    return !op || (op->kind != CR_OP_relu && op->kind != CR_OP_avgpool);
}

/* The path of the layer that wrote x: "layer1.0.relu1.y" without ".y"; "input" for the images. */
static void path_of(const struct cr_program *p, int x, char *path, size_t size) {
    const char  *name   = p->tensor[x].name;
    const size_t length = strlen(name);
    const bool   images = x == p->images, suffix = length > 2 && strcmp(name + length - 2, ".y") == 0;
    snprintf(path, size, "%.*s", images ? (int)strlen("input") : (int)(suffix ? length - 2 : length),
             images ? "input" : name);
}

int cr_layer_quantize(struct cr_net *net, int x) {
    struct cr_program *p = net->program;
    char               path[240], name[256];
    if (p->failed || has_quantized_values(net, x)) return x;
    path_of(p, x, path, sizeof path);
    const int scale = cr_net_param(net, path, "scale", CR_ROLE_SCALE, 1, 1, 1, 1);
    if (net->calibrate && !p->failed) p->tensor[x].keep = true;
    if (net->calibrate || p->failed) return x;
    snprintf(name, sizeof name, "%s.q", path);
    const int done = cr_tensor_find(p, name);
    if (done != CR_NONE) return done;
    struct cr_op op               = cr_op_make(CR_OP_fake_quant, net->layer);
    op.in[CR_IN_fake_quant_x]     = x;
    op.in[CR_IN_fake_quant_scale] = scale;
    op.attr.quant.is_signed       = may_be_negative(p, x);
    return cr_net_emit_named(net, &op, path, "q");
}

int cr_layer_quantize_filter(struct cr_net *net, const char *path, int w) {
    struct cr_program *p = net->program;
    if (p->failed) return w;
    const int64_t filters = p->tensor[w].dim[0];
    const int     scale   = cr_net_param(net, path, "weight_scale", CR_ROLE_SCALE, 1, 1, 1, filters);
    if (net->calibrate || p->failed) return w;
    struct cr_op op                      = cr_op_make(CR_OP_fake_quant_filter, net->layer);
    op.in[CR_IN_fake_quant_filter_w]     = w;
    op.in[CR_IN_fake_quant_filter_scale] = scale;
    return cr_net_emit_named(net, &op, path, "weight.q");
}

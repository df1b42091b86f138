/* model/onnx_nodes.c: converts ops and weights to ONNX nodes and initializers. See model/onnx.h. */
#include "model/onnx_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- nodes ---- */

void cr_onnx_attribute_int(struct cr_text *node, const char *name, int64_t value) {
    struct cr_text a = {0};
    cr_pb_add_string(&a, ATTR_NAME, name);
    cr_pb_add_int(&a, ATTR_I, value);
    cr_pb_add_int(&a, ATTR_TYPE, TYPE_INT);
    cr_pb_add_message(node, NODE_ATTRIBUTE, &a);
}

void cr_onnx_attribute_ints(struct cr_text *node, const char *name, int count, const int64_t *values) {
    struct cr_text a = {0};
    cr_pb_add_string(&a, ATTR_NAME, name);
    for (int i = 0; i < count; i++) cr_pb_add_int(&a, ATTR_INTS, values[i]);
    cr_pb_add_int(&a, ATTR_TYPE, TYPE_INTS);
    cr_pb_add_message(node, NODE_ATTRIBUTE, &a);
}

struct cr_text cr_onnx_node_begin(const char *op_type, const char *output, const char *const *inputs) {
    struct cr_text node = {0};
    for (int i = 0; inputs[i]; i++) cr_pb_add_string(&node, NODE_INPUT, inputs[i]);
    cr_pb_add_string(&node, NODE_OUTPUT, output);
    cr_pb_add_string(&node, NODE_NAME, output);
    cr_pb_add_string(&node, NODE_OP_TYPE, op_type);
    return node;
}

void cr_onnx_node_end(struct cr_onnx *x, struct cr_text *node) {
    cr_pb_add_message(&x->nodes, GRAPH_NODE, node);
}

void cr_onnx_put_node(struct cr_onnx *x, const char *op_type, const char *output, const char *const *inputs) {
    struct cr_text node = cr_onnx_node_begin(op_type, output, inputs);
    cr_onnx_node_end(x, &node);
}

const char *cr_onnx_layer(const struct cr_onnx *x, const struct cr_op *op) {
    return op->layer >= 0 ? x->p->layer[op->layer] : "node";
}

void cr_onnx_part_names(const struct cr_onnx *x, const struct cr_op *op, int count, const char *const *parts,
                        char (*names)[256]) {
    for (int i = 0; i < count; i++) snprintf(names[i], sizeof names[i], "%s.%s", cr_onnx_layer(x, op), parts[i]);
}

const char *cr_onnx_name(const struct cr_onnx *x, int tensor) {
    if (tensor == x->p->logits) return "logits";
    for (int i = 0; i < x->p->ops; i++)
        if (x->p->op[i].kind == CR_OP_normalize && x->p->op[i].out[CR_OUT_normalize_y] == tensor) return "input";
    return x->p->tensor[tensor].name;
}

/* ---- weights ---- */

void cr_onnx_put_tensor(struct cr_onnx *x, const char *name, enum data_type type, int dims, const int64_t *dim,
                        const void *data, size_t bytes) {
    struct cr_text t = {0};
    for (int i = 0; i < dims; i++) cr_pb_add_int(&t, TENSOR_DIMS, dim[i]);
    cr_pb_add_int(&t, TENSOR_DATA_TYPE, type);
    cr_pb_add_string(&t, TENSOR_NAME, name);
    cr_pb_add_bytes(&t, TENSOR_RAW_DATA, data, bytes);
    cr_pb_add_message(&x->initializers, GRAPH_INITIALIZER, &t);
}

const float *cr_onnx_data(const struct cr_onnx *x, int param) {
    const struct cr_param *q = &x->p->store->param[param];
    return (cr_param_is_running(q->role) ? x->n->running : x->n->value) + q->offset;
}

/* Adds a vector, or a dense weight K,1,1,C as the matrix [K,C]. */
static void put_array(struct cr_onnx *x, int param, bool matrix) {
    const struct cr_param *q      = &x->p->store->param[param];
    const int64_t          dim[2] = {matrix ? q->dim[0] : q->elems, q->dim[3]};
    cr_onnx_put_tensor(x, q->name, DATA_FLOAT, matrix ? 2 : 1, dim, cr_onnx_data(x, param),
                       (size_t)q->elems * sizeof(float));
}

/* Adds a filter K,R,S,C as K,C,R,S; filter k is multiplied by factor[k] (factor may be NULL). */
static cr_status put_filter(struct cr_onnx *x, int param, const double *factor) {
    const struct cr_param *q   = &x->p->store->param[param];
    const float           *src = cr_onnx_data(x, param);
    const int64_t          K = q->dim[0], R = q->dim[1], S = q->dim[2], C = q->dim[3], dim[4] = {K, C, R, S};
    float                 *oihw;
    CR_ALLOC(oihw, (size_t)q->elems);
    for (int64_t k = 0; k < K; k++)
        for (int64_t rs = 0; rs < R * S; rs++)
            for (int64_t c = 0; c < C; c++) {
                const float w                  = src[(k * R * S + rs) * C + c];
                oihw[(k * C + c) * R * S + rs] = factor ? (float)((double)w * factor[k]) : w;
            }
    cr_onnx_put_tensor(x, q->name, DATA_FLOAT, 4, dim, oihw, (size_t)q->elems * sizeof *oihw);
    cr_free(oihw);
    return CR_OK;
}

/* ---- ops ---- */

int cr_onnx_reader(const struct cr_program *p, int tensor, int *count) {
    int found = CR_NONE;
    *count    = 0;
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < CR_OP_IN_MAX; s++)
            if (p->op[i].in[s] == tensor) {
                found = i;
                (*count)++;
            }
    return found;
}

bool cr_onnx_bn_params(const struct cr_onnx *x, int scale_bias, int param[4], float *eps) {
    const int writer = cr_program_writer(x->p, scale_bias);
    if (writer < 0 || x->p->op[writer].kind != CR_OP_bn_scale_bias) return false;
    const struct cr_op *op = &x->p->op[writer];
    const int slots[]      = {CR_IN_bn_scale_bias_gamma, CR_IN_bn_scale_bias_beta, CR_IN_bn_scale_bias_running_mean,
                              CR_IN_bn_scale_bias_running_var};
    for (int i = 0; i < 4; i++) {
        param[i] = x->p->tensor[op->in[slots[i]]].param;
        if (param[i] < 0) return false;
    }
    *eps = op->attr.bn.eps;
    return true;
}

/* Adds a convolution with its BN folded in: filter w*gamma/sqrt(var+eps) and bias beta - mean*gamma/sqrt(var+eps),
 * computed in double and rounded once. */
static cr_status put_folded(struct cr_onnx *x, int filter, const int bn[4], float eps, const char *bias) {
    const int64_t K     = x->p->store->param[filter].dim[0];
    const float  *gamma = cr_onnx_data(x, bn[0]), *beta = cr_onnx_data(x, bn[1]), *mean = cr_onnx_data(x, bn[2]),
                *var = cr_onnx_data(x, bn[3]);
    double   *factor = cr_alloc((size_t)K, sizeof *factor);
    float    *shift  = cr_alloc((size_t)K, sizeof *shift);
    cr_status status = factor && shift ? CR_OK : CR_NO_MEMORY((size_t)K * sizeof *factor);
    for (int64_t k = 0; status == CR_OK && k < K; k++) {
        factor[k] = (double)gamma[k] / sqrt((double)var[k] + (double)eps);
        shift[k]  = (float)((double)beta[k] - (double)mean[k] * factor[k]);
    }
    if (status == CR_OK) status = put_filter(x, filter, factor);
    if (status == CR_OK) cr_onnx_put_tensor(x, bias, DATA_FLOAT, 1, &K, shift, (size_t)K * sizeof *shift);
    cr_free(factor);
    cr_free(shift);
    return status;
}

void cr_onnx_put_conv_node(struct cr_onnx *x, const struct cr_op *op, int output, const char *const *inputs) {
    const struct cr_tensor *w   = &x->p->tensor[op->in[CR_IN_conv_w]];
    const int64_t           pad = op->attr.conv.pad, stride = op->attr.conv.stride;
    struct cr_text          node = cr_onnx_node_begin("Conv", cr_onnx_name(x, output), inputs);
    cr_onnx_attribute_ints(&node, "dilations", 2, (const int64_t[]){1, 1});
    cr_onnx_attribute_int(&node, "group", x->p->tensor[op->in[CR_IN_conv_x]].dim[3] / w->dim[3]);
    cr_onnx_attribute_ints(&node, "kernel_shape", 2, (const int64_t[]){w->dim[1], w->dim[2]});
    cr_onnx_attribute_ints(&node, "pads", 4, (const int64_t[]){pad, pad, pad, pad});
    cr_onnx_attribute_ints(&node, "strides", 2, (const int64_t[]){stride, stride});
    cr_onnx_node_end(x, &node);
}

static cr_status put_conv(struct cr_onnx *x, const struct cr_op *op) {
    const int filter    = x->p->tensor[op->in[CR_IN_conv_w]].param;
    int       output    = op->out[CR_OUT_conv_y], readers, bn[4];
    char      bias[256] = "";
    float     eps;
    if (cr_onnx_is_quantized(x, op->in[CR_IN_conv_w])) return cr_onnx_put_quantized(x, op);
    if (filter < 0 || !cr_op_uses_only(op, 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y))
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: a fused convolution has no equivalent", cr_onnx_layer(x, op));
    const struct cr_param *q    = &x->p->store->param[filter];
    const int              next = cr_onnx_reader(x->p, output, &readers);
    if (x->n->fold && readers == 1 && x->p->op[next].kind == CR_OP_bn_apply &&
        cr_onnx_bn_params(x, x->p->op[next].in[CR_IN_bn_apply_scale_bias], bn, &eps)) {
        const size_t stem = strlen(q->name) - (strlen(q->name) > 7 ? strlen(".weight") : 0);
        snprintf(bias, sizeof bias, "%.*s.bias", (int)stem, q->name);
        CR_TRY(put_folded(x, filter, bn, eps, bias));
        x->folded[next] = true;
        output          = x->p->op[next].out[CR_OUT_bn_apply_y];
    } else
        CR_TRY(put_filter(x, filter, NULL));
    const char *const inputs[] = {cr_onnx_name(x, op->in[CR_IN_conv_x]), q->name, *bias ? bias : NULL, NULL};
    cr_onnx_put_conv_node(x, op, output, inputs);
    return CR_OK;
}

static cr_status put_batchnorm(struct cr_onnx *x, const struct cr_op *op) {
    int   bn[4];
    float eps;
    if (!cr_op_uses_only(op, 1u << CR_IN_bn_apply_x | 1u << CR_IN_bn_apply_scale_bias, 1u << CR_OUT_bn_apply_y) ||
        !cr_onnx_bn_params(x, op->in[CR_IN_bn_apply_scale_bias], bn, &eps) || op->attr.bn.relu)
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: a fused batch normalisation has no equivalent", cr_onnx_layer(x, op));
    const struct cr_param *q        = x->p->store->param;
    const char *const      value    = cr_onnx_name(x, op->in[CR_IN_bn_apply_x]);
    const char *const      inputs[] = {value, q[bn[0]].name, q[bn[1]].name, q[bn[2]].name, q[bn[3]].name, NULL};
    for (int i = 0; i < 4; i++) put_array(x, bn[i], false);
    struct cr_text node = cr_onnx_node_begin("BatchNormalization", cr_onnx_name(x, op->out[CR_OUT_bn_apply_y]), inputs);
    struct cr_text epsilon = {0};
    cr_pb_add_string(&epsilon, ATTR_NAME, "epsilon");
    cr_pb_add_float(&epsilon, ATTR_F, eps);
    cr_pb_add_int(&epsilon, ATTR_TYPE, TYPE_FLOAT);
    cr_pb_add_message(&node, NODE_ATTRIBUTE, &epsilon);
    cr_onnx_node_end(x, &node);
    return CR_OK;
}

static void put_simple(struct cr_onnx *x, const struct cr_op *op, const char *type) {
    const char *inputs[3] = {0};
    for (int s = 0, n = 0; s < 2; s++)
        if (op->in[s] >= 0) inputs[n++] = cr_onnx_name(x, op->in[s]);
    cr_onnx_put_node(x, type, cr_onnx_name(x, op->out[0]), inputs);
}

static cr_status put_maxpool(struct cr_onnx *x, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    if (op->in[CR_IN_maxpool_scale_bias] >= 0)
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: a fused max pooling has no equivalent");
    struct cr_text node = cr_onnx_node_begin("MaxPool", cr_onnx_name(x, op->out[CR_OUT_maxpool_y]),
                                             CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_maxpool_x])));
    cr_onnx_attribute_ints(&node, "kernel_shape", 2, (const int64_t[]){a->window, a->window});
    cr_onnx_attribute_ints(&node, "pads", 4, (const int64_t[]){a->pad, a->pad, a->pad, a->pad});
    cr_onnx_attribute_ints(&node, "strides", 2, (const int64_t[]){a->stride, a->stride});
    cr_onnx_node_end(x, &node);
    return CR_OK;
}

/* The mean over H,W, flattened for the classifier. */
static void put_avgpool(struct cr_onnx *x, const struct cr_op *op) {
    char pooled[256];
    snprintf(pooled, sizeof pooled, "%s.pooled", cr_onnx_layer(x, op));
    cr_onnx_put_node(x, "GlobalAveragePool", pooled, CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_avgpool_x])));
    struct cr_text node =
        cr_onnx_node_begin("Flatten", cr_onnx_name(x, op->out[CR_OUT_avgpool_y]), CR_ONNX_INPUTS(pooled));
    cr_onnx_attribute_int(&node, "axis", 1);
    cr_onnx_node_end(x, &node);
}

static cr_status put_dense(struct cr_onnx *x, const struct cr_op *op) {
    const int w = x->p->tensor[op->in[CR_IN_dense_w]].param, b = x->p->tensor[op->in[CR_IN_dense_b]].param;
    if (cr_onnx_is_quantized(x, op->in[CR_IN_dense_w])) return cr_onnx_put_quantized(x, op);
    if (w < 0 || b < 0) return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: its weights are not parameters", cr_onnx_layer(x, op));
    const char *const inputs[] = {cr_onnx_name(x, op->in[CR_IN_dense_x]), x->p->store->param[w].name,
                                  x->p->store->param[b].name, NULL};
    put_array(x, w, true);
    put_array(x, b, false);
    struct cr_text node = cr_onnx_node_begin("Gemm", cr_onnx_name(x, op->out[CR_OUT_dense_y]), inputs);
    cr_onnx_attribute_int(&node, "transB", 1);
    cr_onnx_node_end(x, &node);
    return CR_OK;
}

static void put_int64s(struct cr_onnx *x, const char *name, int64_t count, const int64_t *values) {
    cr_onnx_put_tensor(x, name, DATA_INT64, 1, &count, values, (size_t)count * sizeof *values);
}

/* Shortcut option A: every stride-th pixel, then zero channels on both sides. */
static void put_shortcut(struct cr_onnx *x, const struct cr_op *op) {
    const struct cr_tensor *in  = &x->p->tensor[op->in[CR_IN_pad_shortcut_x]],
                           *out = &x->p->tensor[op->out[CR_OUT_pad_shortcut_y]];
    const int64_t stride = op->attr.conv.stride, front = op->attr.conv.pad_c, back = out->dim[3] - in->dim[3] - front;
    static const char *const part[] = {"starts", "ends", "axes", "steps", "pads", "sliced"};
    char                     name[CR_COUNT(part)][256];
    cr_onnx_part_names(x, op, (int)CR_COUNT(part), part, name);
    put_int64s(x, name[0], 2, (const int64_t[]){0, 0});
    put_int64s(x, name[1], 2, (const int64_t[]){INT64_MAX, INT64_MAX});
    put_int64s(x, name[2], 2, (const int64_t[]){2, 3});
    put_int64s(x, name[3], 2, (const int64_t[]){stride, stride});
    put_int64s(x, name[4], 8, (const int64_t[]){0, front, 0, 0, 0, back, 0, 0});
    cr_onnx_put_node(x, "Slice", name[5],
                     CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_pad_shortcut_x]), name[0], name[1], name[2], name[3]));
    /* the defaults: mode constant, value 0 */
    cr_onnx_put_node(x, "Pad", cr_onnx_name(x, op->out[CR_OUT_pad_shortcut_y]), CR_ONNX_INPUTS(name[5], name[4]));
}

/* 2x2 average pooling; for odd sizes the last windows have one row or column. */
static void put_avgpool2x2(struct cr_onnx *x, const struct cr_op *op) {
    struct cr_text node = cr_onnx_node_begin("AveragePool", cr_onnx_name(x, op->out[CR_OUT_avgpool2x2_y]),
                                             CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_avgpool2x2_x])));
    cr_onnx_attribute_int(&node, "ceil_mode", 1);
    cr_onnx_attribute_int(&node, "count_include_pad", 0);
    cr_onnx_attribute_ints(&node, "kernel_shape", 2, (const int64_t[]){2, 2});
    cr_onnx_attribute_ints(&node, "strides", 2, (const int64_t[]){2, 2});
    cr_onnx_node_end(x, &node);
}

/* The factor of squeeze and excitation is [batch, C] in ONNX, and is broadcast over H,W. */
static void put_se_scale(struct cr_onnx *x, const struct cr_op *op) {
    static const char *const part[] = {"sigmoid", "axes", "spread"};
    char                     name[CR_COUNT(part)][256];
    cr_onnx_part_names(x, op, (int)CR_COUNT(part), part, name);
    put_int64s(x, name[1], 2, (const int64_t[]){2, 3});
    cr_onnx_put_node(x, "Sigmoid", name[0], CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_se_scale_logit])));
    cr_onnx_put_node(x, "Unsqueeze", name[2], CR_ONNX_INPUTS(name[0], name[1]));
    cr_onnx_put_node(x, "Mul", cr_onnx_name(x, op->out[CR_OUT_se_scale_y]),
                     CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_se_scale_x]), name[2]));
}

/* A one-dimensional convolution: [batch, C] as [batch, 1, C]. */
static void put_channel_conv(struct cr_onnx *x, const struct cr_op *op) {
    static const char *const part[] = {"axes", "row", "sum"};
    char                     name[CR_COUNT(part)][256];
    const struct cr_param   *q    = &x->p->store->param[x->p->tensor[op->in[CR_IN_channel_conv_w]].param];
    const int64_t            taps = q->dim[3], dim[3] = {1, 1, taps};
    cr_onnx_part_names(x, op, (int)CR_COUNT(part), part, name);
    put_int64s(x, name[0], 1, (const int64_t[]){1});
    cr_onnx_put_tensor(x, q->name, DATA_FLOAT, 3, dim,
                       cr_onnx_data(x, x->p->tensor[op->in[CR_IN_channel_conv_w]].param), (size_t)taps * sizeof(float));
    cr_onnx_put_node(x, "Unsqueeze", name[1], CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_channel_conv_x]), name[0]));
    struct cr_text node = cr_onnx_node_begin("Conv", name[2], CR_ONNX_INPUTS(name[1], q->name));
    cr_onnx_attribute_ints(&node, "kernel_shape", 1, &taps);
    cr_onnx_attribute_ints(&node, "pads", 2, (const int64_t[]){taps / 2, taps / 2});
    cr_onnx_node_end(x, &node);
    cr_onnx_put_node(x, "Squeeze", cr_onnx_name(x, op->out[CR_OUT_channel_conv_y]), CR_ONNX_INPUTS(name[2], name[0]));
}

cr_status cr_onnx_put_op(struct cr_onnx *x, int index) {
    const struct cr_op *op = &x->p->op[index];
    switch (op->kind) {
    case CR_OP_normalize:
        return x->n->preprocess
                   ? cr_onnx_put_preprocess(x, &op->attr.input, x->p->tensor[op->out[CR_OUT_normalize_y]].dim[3])
                   : CR_OK;       /* the model's input is already normalised */
    case CR_OP_bn_scale_bias:     /* part of its bn_apply */
    case CR_OP_fake_quant_filter: /* part of the convolution that reads it */
    case CR_OP_loss:
    case CR_OP_zero: return CR_OK;
    case CR_OP_fake_quant: cr_onnx_put_fake_quant(x, op); break;
    case CR_OP_group_conv: /* the slots of conv */
    case CR_OP_conv: return put_conv(x, op);
    case CR_OP_bn_apply: return x->folded[index] ? CR_OK : put_batchnorm(x, op);
    case CR_OP_relu: put_simple(x, op, "Relu"); break;
    case CR_OP_add: put_simple(x, op, "Add"); break;
    case CR_OP_maxpool: return put_maxpool(x, op);
    case CR_OP_avgpool: put_avgpool(x, op); break;
    case CR_OP_dense: return put_dense(x, op);
    case CR_OP_pad_shortcut: put_shortcut(x, op); break;
    case CR_OP_avgpool2x2: put_avgpool2x2(x, op); break;
    case CR_OP_blurpool: return cr_onnx_put_blurpool(x, op);
    case CR_OP_se_scale: put_se_scale(x, op); break;
    case CR_OP_channel_conv: put_channel_conv(x, op); break;
    default:
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: the op %s has no equivalent", cr_onnx_layer(x, op),
                       cr_op_info(op->kind)->name);
    }
    return CR_OK;
}

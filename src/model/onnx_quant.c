/* model/onnx_quant.c: quantised networks as ONNX: QuantizeLinear and DequantizeLinear around each activation, and 8-bit
 * filters with DequantizeLinear. Runtimes fuse these nodes with the convolutions between them. */
#include "model/onnx_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool cr_onnx_is_quantized(const struct cr_onnx *x, int w) {
    const int writer = cr_program_writer(x->p, w);
    return writer != CR_NONE && x->p->op[writer].kind == CR_OP_fake_quant_filter;
}

/* ---- activations ---- */

static float scale_of(const struct cr_onnx *x, const struct cr_op *fake_quant) {
    return *cr_onnx_data(x, x->p->tensor[fake_quant->in[CR_IN_fake_quant_scale]].param);
}

void cr_onnx_put_fake_quant(struct cr_onnx *x, const struct cr_op *op) {
    const char   *output = cr_onnx_name(x, op->out[CR_OUT_fake_quant_y]);
    const float   scale  = scale_of(x, op);
    const uint8_t zero   = 0;
    char          integer[300], scale_name[300], zero_name[300];
    snprintf(integer, sizeof integer, "%s.integer", output);
    snprintf(scale_name, sizeof scale_name, "%s.scale", output);
    snprintf(zero_name, sizeof zero_name, "%s.zero", output);
    cr_onnx_put_tensor(x, scale_name, DATA_FLOAT, 0, NULL, &scale, sizeof scale);
    cr_onnx_put_tensor(x, zero_name, op->attr.quant.is_signed ? DATA_INT8 : DATA_UINT8, 0, NULL, &zero, sizeof zero);
    cr_onnx_put_node(x, "QuantizeLinear", integer,
                     CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_fake_quant_x]), scale_name, zero_name));
    cr_onnx_put_node(x, "DequantizeLinear", output, CR_ONNX_INPUTS(integer, scale_name, zero_name));
}

/* The fake_quant whose values a tensor has, through pooling and zero channels. */
static const struct cr_op *source_of(const struct cr_onnx *x, int tensor) {
    int writer = cr_program_writer(x->p, tensor);
    while (writer != CR_NONE && (x->p->op[writer].kind == CR_OP_maxpool || x->p->op[writer].kind == CR_OP_pad_shortcut))
        writer = cr_program_writer(x->p, x->p->op[writer].in[0]);
    return writer != CR_NONE && x->p->op[writer].kind == CR_OP_fake_quant ? &x->p->op[writer] : NULL;
}

/* ---- filters ---- */

/* A filter as integers with the factor of its BN: weight = integer * scale, bias = integer * input scale * scale. */
struct filter {
    int          param, bn[4]; /* bn[0] CR_NONE: none */
    float        eps, x_scale;
    int64_t      K, C, taps;
    int8_t      *integer; /* [K][C][taps] */
    float       *scale;   /* [K] */
    float       *bias_scale;
    int32_t     *bias;
    const float *dense_bias; /* NULL: the bias is that of the BN */
};

/* Factor and bias of channel k. */
static void bn_of(const struct cr_onnx *x, const struct filter *f, int64_t k, double *factor, double *bias) {
    *factor = 1;
    *bias   = f->dense_bias ? (double)f->dense_bias[k] : 0;
    if (f->bn[0] == CR_NONE) return;
    *factor = (double)cr_onnx_data(x, f->bn[0])[k] / sqrt((double)cr_onnx_data(x, f->bn[3])[k] + (double)f->eps);
    *bias   = (double)cr_onnx_data(x, f->bn[1])[k] - (double)cr_onnx_data(x, f->bn[2])[k] * *factor;
}

static double clamp(double v, double most) {
    return fmax(-most, fmin(v, most));
}

/* The factor of the BN becomes part of the scale, its sign part of the integers. A factor near 0 would leave no room
 * for the bias in 32 bits; the scale is then larger. */
static void fill_channel(struct cr_onnx *x, struct filter *f, const float *w_scale, int64_t k) {
    const double bias_max = 0x1p30;
    const float *w        = cr_onnx_data(x, f->param);
    double       factor, bias;
    bn_of(x, f, k, &factor, &bias);
    const double exact = (double)w_scale[k] * fabs(factor), least = fabs(bias) / ((double)f->x_scale * bias_max);
    const float  scale = (float)fmax(fmax(exact, least), 0x1p-126);
    f->scale[k]        = scale;
    f->bias_scale[k]   = f->x_scale * scale;
    f->bias[k]         = (int32_t)clamp(rint(bias / (double)f->bias_scale[k]), 0x1p31 - 1);
    for (int64_t c = 0; c < f->C; c++)
        for (int64_t t = 0; t < f->taps; t++) {
            const double q        = clamp(rint((double)w[(k * f->taps + t) * f->C + c] / (double)w_scale[k]), 127);
            const double signed_q = exact >= (double)scale ? copysign(1, factor) * q
                                                           : rint(q * (double)w_scale[k] * factor / (double)scale);
            f->integer[(k * f->C + c) * f->taps + t] = (int8_t)signed_q;
            x->integer_max                           = CR_MAX(x->integer_max, abs((int)signed_q));
        }
}

/* Adds integers with a scale for each channel and the node that multiplies them. The zero points are all 0. They are
 * written although ONNX makes them optional: onnxruntime's session.x64quantprecision refuses weights without them. */
static void put_channels(struct cr_onnx *x, const char *output, enum data_type type, int dims, const int64_t *dim,
                         const void *integer, size_t bytes, const float *scale, const int32_t *zeros) {
    static const char *const part[] = {"integer", "scale", "zero"};
    const size_t             K = (size_t)dim[0], width = type == DATA_INT8 ? sizeof(int8_t) : sizeof(int32_t);
    char                     name[CR_COUNT(part)][300];
    for (size_t i = 0; i < CR_COUNT(part); i++) snprintf(name[i], sizeof name[i], "%s.%s", output, part[i]);
    cr_onnx_put_tensor(x, name[0], type, dims, dim, integer, bytes);
    cr_onnx_put_tensor(x, name[1], DATA_FLOAT, 1, dim, scale, K * sizeof *scale);
    cr_onnx_put_tensor(x, name[2], type, 1, dim, zeros, K * width);
    struct cr_text node = cr_onnx_node_begin("DequantizeLinear", output, CR_ONNX_INPUTS(name[0], name[1], name[2]));
    cr_onnx_attribute_int(&node, "axis", 0);
    cr_onnx_node_end(x, &node);
}

static cr_status put_integers(struct cr_onnx *x, const struct filter *f, bool dense, const char *weight,
                              const char *bias) {
    const struct cr_param *q      = &x->p->store->param[f->param];
    const int64_t          dim[4] = {f->K, f->C, q->dim[1], q->dim[2]};
    int32_t               *zeros;
    CR_ALLOC(zeros, (size_t)f->K);
    put_channels(x, weight, DATA_INT8, dense ? 2 : 4, dim, f->integer, (size_t)(f->K * f->C * f->taps), f->scale,
                 zeros);
    put_channels(x, bias, DATA_INT32, 1, dim, f->bias, (size_t)f->K * sizeof *f->bias, f->bias_scale, zeros);
    cr_free(zeros);
    return CR_OK;
}

static cr_status fill(struct cr_onnx *x, const struct cr_op *filter_op, struct filter *f) {
    const struct cr_param *q       = &x->p->store->param[f->param];
    const float           *w_scale = cr_onnx_data(x, x->p->tensor[filter_op->in[CR_IN_fake_quant_filter_scale]].param);
    f->K                           = q->dim[0];
    f->taps                        = q->dim[1] * q->dim[2];
    f->C                           = q->dim[3];
    CR_ALLOC(f->integer, (size_t)q->elems);
    CR_ALLOC(f->scale, (size_t)f->K);
    CR_ALLOC(f->bias_scale, (size_t)f->K);
    CR_ALLOC(f->bias, (size_t)f->K);
    for (int64_t k = 0; k < f->K; k++) fill_channel(x, f, w_scale, k);
    return CR_OK;
}

static void filter_free(struct filter *f) {
    cr_free(f->integer);
    cr_free(f->scale);
    cr_free(f->bias_scale);
    cr_free(f->bias);
}

/* Adds the node: a convolution whose output is that of its BN, or the classifier. */
static void put_node(struct cr_onnx *x, const struct cr_op *op, int output, const char *weight, const char *bias) {
    const char *const inputs[] = {cr_onnx_name(x, op->in[CR_IN_conv_x]), weight, bias, NULL};
    if (op->kind == CR_OP_conv) {
        cr_onnx_put_conv_node(x, op, output, inputs);
        return;
    }
    struct cr_text node = cr_onnx_node_begin("Gemm", cr_onnx_name(x, output), inputs);
    cr_onnx_attribute_int(&node, "transB", 1);
    cr_onnx_node_end(x, &node);
}

cr_status cr_onnx_put_quantized(struct cr_onnx *x, const struct cr_op *op) {
    const bool          dense     = op->kind == CR_OP_dense;
    const struct cr_op *filter_op = &x->p->op[cr_program_writer(x->p, op->in[CR_IN_conv_w])],
                       *source    = source_of(x, op->in[CR_IN_conv_x]);
    struct filter f      = {.param = x->p->tensor[filter_op->in[CR_IN_fake_quant_filter_w]].param, .bn = {CR_NONE}};
    int           output = op->out[CR_OUT_conv_y], readers;
    char          bias[256];
    if (f.param < 0 || !source)
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: its quantised operands are no parameters", cr_onnx_layer(x, op));
    f.x_scale          = scale_of(x, source);
    const int   next   = cr_onnx_reader(x->p, output, &readers);
    const char *weight = x->p->tensor[op->in[CR_IN_conv_w]].name;
    if (dense)
        f.dense_bias = cr_onnx_data(x, x->p->tensor[op->in[CR_IN_dense_b]].param);
    else if (readers != 1 || x->p->op[next].kind != CR_OP_bn_apply ||
             !cr_onnx_bn_params(x, x->p->op[next].in[CR_IN_bn_apply_scale_bias], f.bn, &f.eps))
        return CR_FAIL(CR_ERR_FORMAT, "ONNX: %s: no batch normalisation follows", cr_onnx_layer(x, op));
    else {
        x->folded[next] = true;
        output          = x->p->op[next].out[CR_OUT_bn_apply_y];
    }
    snprintf(bias, sizeof bias, "%s.bias.q", cr_onnx_layer(x, op));
    cr_status status = fill(x, filter_op, &f);
    if (status == CR_OK) status = put_integers(x, &f, dense, weight, bias);
    if (status == CR_OK) put_node(x, op, output, weight, bias);
    filter_free(&f);
    return status;
}

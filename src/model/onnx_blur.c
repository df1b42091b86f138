/* model/onnx_blur.c: exports anti-aliased subsampling (blur pooling) to ONNX as Pad and Conv. */
#include "model/onnx_internal.h"

/* A border of one reflected pixel, then a grouped convolution with one group a channel. */
cr_status cr_onnx_put_blurpool(struct cr_onnx *x, const struct cr_op *op) {
    static const int64_t     pads[] = {0, 0, 1, 1, 0, 0, 1, 1};
    static const char *const part[] = {"pads", "filter", "padded"};
    const struct cr_tensor  *in     = &x->p->tensor[op->in[CR_IN_blurpool_x]];
    const int64_t            C      = in->dim[3];
    char                     name[CR_COUNT(part)][256];
    float                   *filter;
    if (in->dim[1] < 2 || in->dim[2] < 2)
        return CR_FAIL(CR_ERR_CONFIG,
                       "ONNX: %s: a feature map of one row or column cannot be reflected: raise "
                       "data.image_size",
                       cr_onnx_layer(x, op));
    CR_ALLOC(filter, (size_t)C * 9);
    for (int64_t i = 0; i < C * 9; i++) filter[i] = (float)((1 + (i / 3 % 3 == 1)) * (1 + (i % 3 == 1))) / 16;
    cr_onnx_part_names(x, op, (int)CR_COUNT(part), part, name);
    cr_onnx_put_tensor(x, name[0], DATA_INT64, 1, (const int64_t[]){8}, pads, sizeof pads);
    cr_onnx_put_tensor(x, name[1], DATA_FLOAT, 4, (const int64_t[]){C, 1, 3, 3}, filter,
                       (size_t)C * 9 * sizeof *filter);
    cr_free(filter);
    struct cr_text mode = {0};
    struct cr_text node =
        cr_onnx_node_begin("Pad", name[2], CR_ONNX_INPUTS(cr_onnx_name(x, op->in[CR_IN_blurpool_x]), name[0]));
    cr_pb_add_string(&mode, ATTR_NAME, "mode");
    cr_pb_add_string(&mode, ATTR_S, "reflect");
    cr_pb_add_int(&mode, ATTR_TYPE, TYPE_STRING);
    cr_pb_add_message(&node, NODE_ATTRIBUTE, &mode);
    cr_onnx_node_end(x, &node);
    node = cr_onnx_node_begin("Conv", cr_onnx_name(x, op->out[CR_OUT_blurpool_y]), CR_ONNX_INPUTS(name[2], name[1]));
    cr_onnx_attribute_int(&node, "group", C);
    cr_onnx_attribute_ints(&node, "kernel_shape", 2, (const int64_t[]){3, 3});
    cr_onnx_attribute_ints(&node, "strides", 2, (const int64_t[]){2, 2});
    cr_onnx_node_end(x, &node);
    return CR_OK;
}

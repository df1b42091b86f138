/* model/onnx_internal.h: declarations shared by onnx.c and onnx_nodes.c. Names as in onnx.proto, with field numbers. */
#ifndef CR_ONNX_INTERNAL_H
#define CR_ONNX_INTERNAL_H

#include "formats/protobuf.h"
#include "model/onnx.h"

enum model_field {
    MODEL_IR_VERSION       = 1,
    MODEL_PRODUCER_NAME    = 2,
    MODEL_PRODUCER_VERSION = 3,
    MODEL_GRAPH            = 7,
    MODEL_OPSET_IMPORT     = 8,
    MODEL_METADATA         = 14
};
enum graph_field { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12 };
enum node_field { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP_TYPE = 4, NODE_ATTRIBUTE = 5 };
enum attribute_field { ATTR_NAME = 1, ATTR_F = 2, ATTR_I = 3, ATTR_S = 4, ATTR_INTS = 8, ATTR_TYPE = 20 };
enum attribute_type { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_STRING = 3, TYPE_INTS = 7 };
enum tensor_field { TENSOR_DIMS = 1, TENSOR_DATA_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW_DATA = 9 };
enum data_type { DATA_FLOAT = 1, DATA_UINT8 = 2, DATA_INT8 = 3, DATA_UINT16 = 4, DATA_INT32 = 6, DATA_INT64 = 7 };

/* A model being written. */
struct cr_onnx {
    const struct cr_onnx_network *n;
    const struct cr_program      *p;
    struct cr_text                nodes, initializers; /* encoded fields of GraphProto */
    bool                         *folded;      /* [ops]: this batch norm is folded into the convolution before it */
    int                           integer_max; /* largest magnitude of an 8-bit weight so far */
};

/* ---- onnx_nodes.c ---- */

/* The argument `inputs`: the names of the inputs of a node. */
#define CR_ONNX_INPUTS(...) ((const char *const[]){__VA_ARGS__, NULL})
/* Starts a node without attributes. The node has the name of its output; `inputs` ends with NULL. */
struct cr_text cr_onnx_node_begin(const char *op_type, const char *output, const char *const *inputs);
void           cr_onnx_attribute_int(struct cr_text *node, const char *name, int64_t value);
void           cr_onnx_attribute_ints(struct cr_text *node, const char *name, int count, const int64_t *values);
void           cr_onnx_node_end(struct cr_onnx *onnx, struct cr_text *node);
/* Adds a node without attributes. */
void cr_onnx_put_node(struct cr_onnx *onnx, const char *op_type, const char *output, const char *const *inputs);
/* Adds a convolution that writes the tensor `output`. */
void cr_onnx_put_conv_node(struct cr_onnx *onnx, const struct cr_op *op, int output, const char *const *inputs);
/* Adds an initializer. raw_data is little-endian, like every machine that cresnet runs on. */
void cr_onnx_put_tensor(struct cr_onnx *onnx, const char *name, enum data_type type, int dims, const int64_t *dim,
                        const void *data, size_t bytes);
/* The name of a value: "input", "logits", or the tensor's name in the program. */
const char *cr_onnx_name(const struct cr_onnx *onnx, int tensor);
/* Writes the names "LAYER.PART" of the inner values of an op. */
void        cr_onnx_part_names(const struct cr_onnx *onnx, const struct cr_op *op, int count, const char *const *parts,
                               char (*names)[256]);
const char *cr_onnx_layer(const struct cr_onnx *onnx, const struct cr_op *op);
/* Values of a parameter. */
const float *cr_onnx_data(const struct cr_onnx *onnx, int param);
/* The last op that reads a tensor (*count: number of readers). CR_NONE: none. */
int cr_onnx_reader(const struct cr_program *program, int tensor, int *count);
/* Finds the parameters of the BN whose tensor scale_bias is given: gamma, beta, mean, variance. */
bool cr_onnx_bn_params(const struct cr_onnx *onnx, int scale_bias, int param[4], float *eps);

/* ---- onnx_quant.c: quantised values as QuantizeLinear and DequantizeLinear ---- */

/* True for a filter with quantised values. */
bool cr_onnx_is_quantized(const struct cr_onnx *onnx, int w);
/* Adds a convolution with its BN, or a dense layer, with an 8-bit filter and a 32-bit bias. */
CR_MUST cr_status cr_onnx_put_quantized(struct cr_onnx *onnx, const struct cr_op *op);
void              cr_onnx_put_fake_quant(struct cr_onnx *onnx, const struct cr_op *op);

/* onnx_blur.c: anti-aliased subsampling. CR_ERR_CONFIG when a feature map is too small to be reflected. */
CR_MUST cr_status cr_onnx_put_blurpool(struct cr_onnx *onnx, const struct cr_op *op);

/* onnx_preprocess.c: adds the nodes from "images" to "input", which the op normalize with this attribute makes.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_onnx_put_preprocess(struct cr_onnx *onnx, const struct cr_input_attr *attr, int64_t channels);

/* onnx_nodes.c: appends the nodes and weights of one op. CR_ERR_FORMAT when ONNX has no equivalent. */
CR_MUST cr_status cr_onnx_put_op(struct cr_onnx *onnx, int index);

#endif

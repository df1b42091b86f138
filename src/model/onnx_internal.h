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
enum attribute_field { ATTR_NAME = 1, ATTR_F = 2, ATTR_I = 3, ATTR_INTS = 8, ATTR_TYPE = 20 };
enum attribute_type { TYPE_FLOAT = 1, TYPE_INT = 2, TYPE_INTS = 7 };
enum tensor_field { TENSOR_DIMS = 1, TENSOR_DATA_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW_DATA = 9 };
enum data_type { DATA_FLOAT = 1, DATA_INT64 = 7 };

/* A model being written. */
struct cr_onnx {
    const struct cr_onnx_network *n;
    const struct cr_program      *p;
    struct cr_text                nodes, initializers; /* encoded fields of GraphProto */
    bool                         *folded; /* [ops]: this batch norm is folded into the convolution before it */
};

/* onnx_nodes.c: appends the nodes and weights of one op. CR_ERR_FORMAT when ONNX has no equivalent. */
CR_MUST cr_status cr_onnx_put_op(struct cr_onnx *onnx, int index);

#endif

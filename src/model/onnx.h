/* model/onnx.h: a network as an ONNX model (opset 17), for other runtimes.
 *
 * Format: protocol buffers of onnx.proto (ModelProto and what it holds), IR version 8; weights as little-endian
 * raw_data. Input "input": f32 [batch, 3, H, W], normalised (pixel/255 - mean) / std, red, green, blue, as
 * torchvision's models take it; output "logits": f32 [batch, classes]; batch is any. Parameters keep torchvision's
 * names. The metadata say mean, std and the class names (JSON lists).
 *
 * Laws
 *   - The graph is the forward program, op by op: an op without a counterpart here is an error that names it.
 *   - Equal networks give equal bytes.
 * Sees programs and stores only. */
#ifndef CR_ONNX_H
#define CR_ONNX_H

#include "graph/graph.h"

enum { CR_ONNX_OPSET = 17, CR_ONNX_IR_VERSION = 8 };

struct cr_onnx_network {
    const struct cr_program *eval;            /* as cr_model_program makes it: f32, no pass has run */
    const float             *value, *running; /* the store's planes */
    const char *const       *class_names;     /* may be NULL */
    int                      classes;
    bool                     fold; /* BN goes into the convolution before it */
};
/* Writes the file through a temporary one. CR_ERR_FORMAT: no counterpart, or beyond the 2 GB of a protocol buffer. */
CR_MUST cr_status cr_onnx_write(const struct cr_onnx_network *network, const char *path);

#endif

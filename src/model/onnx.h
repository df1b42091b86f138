/* model/onnx.h: exports a network as an ONNX model (opset 17).
 *
 * Format: protocol buffers of onnx.proto (ModelProto), IR version 8, weights as little-endian raw_data.
 *   input   "input", f32 [batch, channels, H, W]: (pixel/255 - mean) / std (16 bits: pixel/65535), the channels of
 *           [data] channels, as in torchvision
 *   output  "logits", f32 [batch, classes]; with several labels per image also "probabilities", their sigmoids
 * The batch size is dynamic. Parameters have torchvision's names. The metadata contain mean, std and the class names as
 * JSON lists, and with several labels per image the thresholds of the classes.
 *
 * Invariants
 *   - The graph is the forward program, op by op. An op without an ONNX equivalent is an error that names the op.
 *   - Equal networks give identical files. */
#ifndef CR_ONNX_H
#define CR_ONNX_H

#include "graph/graph.h"

enum { CR_ONNX_OPSET = 17, CR_ONNX_IR_VERSION = 8 };

struct cr_onnx_network {
    const struct cr_program *eval;            /* from cr_model_program, f32, before compiler passes */
    const float             *value, *running; /* host copies of the parameter store's buffers */
    const char *const       *class_names;     /* may be NULL */
    int                      classes;
    const double            *thresholds; /* [classes], with several labels per image; else NULL */
    bool                     fold;       /* fold batch norms into the convolutions before them */
};
/* Writes the file atomically. CR_ERR_FORMAT: an op has no equivalent, or the model exceeds the 2 GB limit of protocol
 * buffers. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_onnx_write(const struct cr_onnx_network *network, const char *path);

#endif

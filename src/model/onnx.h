/* model/onnx.h: exports a network as an ONNX model (opset 17).
 *
 * Format: protocol buffers of onnx.proto (ModelProto), IR version 8, weights as little-endian raw_data.
 *   input   "input", f32 [batch, channels, H, W]: (pixel/255 - mean) / std (16 bits: pixel/65535), the channels of
 *           [data] channels, as in torchvision
 *   or      "images", u8 (16 bits: u16) [batch, H, W, channels], with `preprocess`: the nodes before "input" resize,
 *           cut and normalise as an evaluation does
 *   output  "logits", f32 [batch, classes]; with several labels per image also "probabilities", their sigmoids
 * The batch size is dynamic; with `dynamic`, H and W too. Parameters have torchvision's names. All values of the
 * metadata are JSON:
 *   mean, std       a number for each channel
 *   resize          the height, in pixels, of the rectangle of the shape of `crop` that a resized image covers; of a
 *                   square: its shorter side
 *   interpolation   "bilinear", whose support grows with the reduction (antialiased)
 *   crop            [H, W], cut from the centre; with other words of `fit`, the size of the result
 *   fit             "crop", "squash" or "letterbox", as [data] fit
 *   preprocess      true, if the graph does all this
 *   bits            of a channel: 8 or 16
 *   class_names     a list, if they are known
 *   thresholds      with several labels per image: a number for each class
 *   reject_score    "logit", "energy" or "distance", if cresnet eval --reject has chosen a score for these weights
 *   reject_threshold  an image whose score is less is of none of the classes
 *   reject_means    with "distance": a list for each class, of length 1; the score is the largest cosine of the
 *                   features, the input of the last Gemm, and one of them, minus 1
 *
 * Invariants
 *   - The graph is the forward program, op by op. An op without an ONNX equivalent is an error that names the op.
 *   - Equal networks give identical files. */
#ifndef CR_ONNX_H
#define CR_ONNX_H

#include "data/data.h"
#include "graph/graph.h"

enum { CR_ONNX_OPSET = 17, CR_ONNX_IR_VERSION = 8 };

struct cr_onnx_network {
    const struct cr_program *eval;            /* from cr_model_program, f32, before compiler passes */
    const float             *value, *running; /* host copies of the parameter store's buffers */
    const struct cr_prepare *prepare;         /* of evaluation images */
    const char *const       *class_names;     /* may be NULL */
    int                      classes;
    const double            *thresholds;   /* [classes], with several labels per image; else NULL */
    const char              *reject_score; /* NULL: none was chosen */
    double                   reject_threshold;
    const float             *reject_means; /* [classes][features]; NULL but for "distance" */
    int                      features;
    bool                     fold;       /* fold batch norms into the convolutions before them */
    bool                     preprocess; /* the graph prepares images of bytes */
    bool                     dynamic;    /* height and width of the graph's input are free */
};
/* Writes the file atomically. *integer_max becomes the largest magnitude of an 8-bit weight; 0: all weights are floats.
 * CR_ERR_FORMAT: an op has no equivalent, or the model exceeds the 2 GB limit of protocol buffers. CR_ERR_IO,
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_onnx_write(const struct cr_onnx_network *network, const char *path, int *integer_max);

#endif

/* cudnn_conv.h: the plans that cuDNN has for a convolution: looked for once a shape, then kept on the device.
 *
 * Laws
 *   - Plans are found by kind, shapes, types, math and whether dw is added to; ops that agree in these share them.
 *   - Only engines that give the same bits each time, and that neither transform (FFT, Winograd) nor shorten sums below
 * f32.
 *   - cuDNN has no engine that writes the f32 dw of 16-bit images: such plans write it in 16 bits, and the row
 * converts. */
#ifndef CR_CUDNN_CONV_H
#define CR_CUDNN_CONV_H

#include "cudnn_graph.h"

#include "backend.h"

struct cuda_device;

enum { CR_CUDNN_CANDIDATES = 4, CR_CUDNN_X = 0, CR_CUDNN_W = 1, CR_CUDNN_Y = 2, CR_CUDNN_OPERANDS = 3 };

struct cudnn_conv_plans {
    struct cudnn_graph graph;                     /* its tensors are numbered CR_CUDNN_X, W, Y */
    struct cudnn_plan  plan[CR_CUDNN_CANDIDATES]; /* as cuDNN ranks them */
    int                plans;                     /* 0: cuDNN has none */
    int                chosen;                    /* the one that ops prepared from now on launch */
    size_t             half_bytes; /* of the 16-bit dw that stands before the plan's workspace; 0: no conversion */
};

/* The device's plans for the op, at least `wanted` of them where cuDNN has so many (rows want 1; who times them, more);
 * they live as long as the device. CR_ERR_DEVICE when cuDNN breaks, not when it has none. */
CR_MUST cr_status cr_cudnn_conv_plans(struct cuda_device *device, const struct cr_program *program,
                                      const struct cr_op *op, enum cr_math math, int wanted,
                                      struct cudnn_conv_plans **out);

/* What cuDNN would run for the op on a GPU of compute capability cc (80, 90), asked without a GPU. CR_ERR_DEVICE when
 * the libraries are not there. */
struct cudnn_support {
    bool     supported;
    int64_t  engine;
    unsigned notes;           /* numerical notes of the engine, as bits */
    size_t   workspace_bytes; /* of the op */
};
CR_MUST cr_status cr_cudnn_support(int cc, const struct cr_program *program, const struct cr_op *op, enum cr_math math,
                                   struct cudnn_support *out);

#endif

/* cuda/conv/cudnn/cudnn_conv.h: what cuDNN's rows for convolutions share: what is asked for (a key), the graph that
 * says it to cuDNN (cuda/conv/cudnn/cudnn_fused.c), its plans, looked for once a key and then kept on the device
 * (cuda/conv/cudnn/cudnn_conv.c), and the rows (cuda/conv/cudnn/cudnn_kernels.c).
 *
 * Laws
 *   - Plans are found by key alone; ops that agree in it share them. The slots that an op uses are part of the key.
 *   - Only engines that give the same bits each time, and that neither transform (FFT, Winograd) nor shorten sums below
 *     f32.
 *   - cuDNN has no engine that writes the f32 dw of 16-bit images: such plans write it in 16 bits, and the row
 * converts.
 *   - Tensors of 2^31 elements and more are worked on in slices of the batch: a plan never sees one. */
#ifndef CR_CUDNN_CONV_H
#define CR_CUDNN_CONV_H

#include "cuda/conv/cudnn/cudnn_graph.h"

#include "device/device.h"

struct cuda_device;

/* The operands of the forward convolution, whatever the op calls them. */
enum { CR_CUDNN_X = 0, CR_CUDNN_W = 1, CR_CUDNN_Y = 2, CR_CUDNN_OPERANDS = 3 };

/* What an op does besides its convolution. */
enum {
    CR_CUDNN_SCALE_BIAS = 1 << 0, /* x is act(x) */
    CR_CUDNN_SUMS       = 1 << 1, /* sums of y or, with BN, of dx */
    CR_CUDNN_BIAS       = 1 << 2,
    CR_CUDNN_WIDE_BIAS  = 1 << 3, /* the bias is f32, the images are not */
    CR_CUDNN_ADD        = 1 << 4,
    CR_CUDNN_RELU       = 1 << 5,
    CR_CUDNN_BN         = 1 << 6 /* dgrad: dx passes the ReLU behind a BN */
};

/* All that a plan depends on; whole numbers of one size, so that keys can be compared byte by byte. */
struct cudnn_conv_key {
    int64_t kind; /* enum cudnn_conv_kind */
    int64_t type; /* cudnnDataType_t of the images */
    int64_t full; /* f32 means f32: no matrix units */
    int64_t accumulate, stride, pad, uses, dim[CR_CUDNN_OPERANDS][4];
};
/* false: cuDNN's rows of this math do not take the op. The key is for the whole batch. */
bool cr_cudnn_key_of(const struct cr_program *program, const struct cr_op *op, enum cr_math math,
                     struct cudnn_conv_key *out);

/* false: cuDNN has no compiled kernel for such a key, whatever the device. Known without asking: the answer no takes
 * cuDNN up to 0.4 s. true says nothing. */
bool cr_cudnn_may_have(const struct cudnn_conv_key *key);

/* A batch in slices, of equal size as far as that goes: the last may be smaller. */
struct cudnn_slices {
    int64_t count, images; /* of a slice */
};
/* false: a single picture, or the filter, is too large. */
bool cr_cudnn_slices_of(const struct cudnn_conv_key *key, struct cudnn_slices *out);
/* The key of slice `index`. dw is a sum over the slices: those behind the first add to it. */
struct cudnn_conv_key cr_cudnn_slice_key(const struct cudnn_conv_key *key, const struct cudnn_slices *slices,
                                         int64_t index);

/* ---- the graph of a key: cuda/conv/cudnn/cudnn_fused.c ---- */

/* Where a tensor of the graph is when the op runs. */
enum cudnn_operand_kind { CR_CUDNN_VIRTUAL /* virtual */, CR_CUDNN_IN, CR_CUDNN_OUT, CR_CUDNN_SCRATCH };
struct cudnn_operand {
    enum cudnn_operand_kind where;
    int                     slot;        /* of IN, OUT */
    size_t                  offset;      /* from the start of the slot's tensor or of the op's scratch, bytes */
    size_t                  image_bytes; /* how far the next picture is; 0: the same for all slices */
    bool                    sum;         /* each slice has its own, and they are added up */
};
/* A graph, and what the op's scratch holds for it before a plan's own workspace; offsets in scratch are multiples of
 * CR_CUDA_ALIGN. */
struct cudnn_problem {
    struct cudnn_graph   graph;
    struct cudnn_operand operand[CR_CUDNN_TENSORS];
    size_t               scratch_bytes;
    size_t               half_dw, half_bias; /* offsets in scratch, when the key asks for them */
};
/* Never fails: what cuDNN refuses shows when plans are asked for. */
void cr_cudnn_problem_open(struct cudnn_device gpu, const struct cudnn_conv_key *key, struct cudnn_problem *out);
void cr_cudnn_problem_close(struct cudnn_problem *problem);
/* Is dw written in 16 bits, into scratch? */
static inline bool cudnn_has_half_dw(const struct cudnn_conv_key *k) {
    return k->kind == CR_CUDNN_WGRAD && k->type != CUDNN_DATA_FLOAT;
}
/* Is `add` brought into dx before the convolution adds to it? (With BN, the graph adds.) */
static inline bool cudnn_adds_in_output(const struct cudnn_conv_key *k) {
    return k->kind == CR_CUDNN_DGRAD && (k->uses & CR_CUDNN_ADD) && !(k->uses & CR_CUDNN_BN);
}

/* ---- plans ---- */

enum { CR_CUDNN_CANDIDATES = 4 };

struct cudnn_conv_plans {
    struct cudnn_conv_key key;
    struct cudnn_problem  problem;
    struct cudnn_search   search;
    struct cudnn_plan     plan[CR_CUDNN_CANDIDATES]; /* as cuDNN ranks them */
    int                   plans;                     /* built so far; 0: cuDNN has none */
    bool                  all;                       /* there are no more, or no more are wanted */
    bool                  queried, available;        /* whether it is known that cuDNN has a plan, and whether it has */
};

/* The device's plans for the key of a slice, at least `wanted` of them where cuDNN has so many; they live as long as
 * the device, and plans that were built stay where they are. CR_ERR_DEVICE when cuDNN breaks, not when it has none. */
CR_MUST cr_status cr_cudnn_conv_plans(struct cuda_device *device, const struct cudnn_conv_key *key, int wanted,
                                      struct cudnn_conv_plans **out);

/* Has cuDNN a plan for the key of a slice? Cheaper than to look for the best one. */
CR_MUST cr_status cr_cudnn_conv_has(struct cuda_device *device, const struct cudnn_conv_key *key, bool *out);

/* What cuDNN would run for the op on a GPU of compute capability cc (80, 90), asked without a GPU. CR_ERR_DEVICE when
 * the libraries are not there. */
struct cudnn_support {
    bool     supported;
    int      ways; /* up to CR_CUDNN_CANDIDATES when `count_algos`, else 0 or 1 */
    int64_t  engine;
    unsigned notes;           /* numerical notes of the engine, as bits */
    size_t   workspace_bytes; /* of a slice */
    int64_t  slices;
};
CR_MUST cr_status cr_cudnn_support(int cc, const struct cr_program *program, const struct cr_op *op, enum cr_math math,
                                   bool count_algos, struct cudnn_support *out);

#endif

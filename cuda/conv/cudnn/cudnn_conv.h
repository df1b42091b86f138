/* cuda/conv/cudnn/cudnn_conv.h: types and functions that cuDNN's convolution kernels share: the key of an op, the graph
 * of a key (cuda/conv/cudnn/cudnn_fused.c), plans, searched once for each key and cached on the device
 * (cuda/conv/cudnn/cudnn_conv.c), and the kernel table (cuda/conv/cudnn/cudnn_kernels.c).
 *
 * Invariants
 *   - Plans are found by key alone. Ops with equal keys share them. The slots that an op uses are part of the key.
 *   - Only engines that give bitwise identical results in each run, and that neither transform (FFT, Winograd) nor
 *     accumulate below f32, are used.
 *   - cuDNN has no engine that writes the f32 dw of 16-bit images. Such plans write dw in 16 bits, and the kernel
 *     converts it.
 *   - Tensors of 2^31 elements and more are processed in slices of the batch. A plan never gets such a tensor. */
#ifndef CR_CUDNN_CONV_H
#define CR_CUDNN_CONV_H

#include "cuda/conv/cudnn/cudnn_graph.h"

#include "device/kernel.h"

struct cuda_device;

/* The operands of the forward convolution, for all op kinds. */
enum { CR_CUDNN_X = 0, CR_CUDNN_W = 1, CR_CUDNN_Y = 2, CR_CUDNN_OPERANDS = 3 };

/* Features of an op in addition to its convolution. */
enum {
    CR_CUDNN_SCALE_BIAS = 1 << 0, /* x is act(x) */
    CR_CUDNN_BIAS       = 1 << 1,
    CR_CUDNN_WIDE_BIAS  = 1 << 2, /* the bias is f32 and the images have 16 bits */
    CR_CUDNN_ADD        = 1 << 3,
    CR_CUDNN_RELU       = 1 << 4
};

/* All values that a plan depends on. They are integers of one size, so that keys can be compared byte by byte. */
struct cudnn_conv_key {
    int64_t kind; /* enum cudnn_conv_kind */
    int64_t type; /* cudnnDataType_t of the images */
    int64_t full; /* f32 products without tensor cores */
    int64_t accumulate, stride, pad, uses, dim[CR_CUDNN_OPERANDS][4];
};
/* Fills in the key of the whole batch. Returns false when cuDNN's kernels of this math do not support the op. */
bool cr_cudnn_key_of(const struct cr_program *program, const struct cr_op *op, enum cr_math math,
                     struct cudnn_conv_key *out);

/* Returns false when cuDNN has no compiled kernel for such a key on any device. The answer comes from a table, because
 * a query of cuDNN would take up to 0.4 s. A result of true does not guarantee that such a kernel exists. */
bool cr_cudnn_may_have(const struct cudnn_conv_key *key);

/* A batch in slices of equal size; the last one may be smaller. */
struct cudnn_slices {
    int64_t count, images; /* of a slice */
};
/* Returns false when a single image or the filter is too large. */
bool cr_cudnn_slices_of(const struct cudnn_conv_key *key, struct cudnn_slices *out);
/* The key of slice `index`. dw is a sum over the slices: slices after the first add to it. */
struct cudnn_conv_key cr_cudnn_slice_key(const struct cudnn_conv_key *key, const struct cudnn_slices *slices,
                                         int64_t index);

/* ---- the graph of a key: cuda/conv/cudnn/cudnn_fused.c ---- */

/* Location of a graph's tensor when the op runs. */
enum cudnn_operand_kind { CR_CUDNN_VIRTUAL /* not in memory */, CR_CUDNN_IN, CR_CUDNN_OUT, CR_CUDNN_SCRATCH };
struct cudnn_operand {
    enum cudnn_operand_kind where;
    int                     slot;        /* for IN and OUT */
    size_t                  offset;      /* from the start of the slot's tensor or of the op's scratch, in bytes */
    size_t                  image_bytes; /* distance of images in bytes; 0 when all slices use the same data */
};
/* A graph, and the contents of the op's scratch in front of a plan's workspace. Offsets in scratch are multiples of
 * CR_CUDA_ALIGN. */
struct cudnn_problem {
    struct cudnn_graph   graph;
    struct cudnn_operand operand[CR_CUDNN_TENSORS];
    size_t               scratch_bytes;
    size_t               half_dw, half_bias; /* offsets in scratch, when the key requires them */
};
/* Never fails: a graph that cuDNN rejects has no plans. */
void cr_cudnn_problem_open(struct cudnn_device gpu, const struct cudnn_conv_key *key, struct cudnn_problem *out);
void cr_cudnn_problem_close(struct cudnn_problem *problem);
/* Returns whether dw is written to scratch in 16 bits. */
static inline bool cudnn_has_half_dw(const struct cudnn_conv_key *k) {
    return k->kind == CR_CUDNN_WGRAD && k->type != CUDNN_DATA_FLOAT;
}
/* Returns whether `add` is copied to dx before the convolution adds to it. */
static inline bool cudnn_adds_in_output(const struct cudnn_conv_key *k) {
    return k->kind == CR_CUDNN_DGRAD && (k->uses & CR_CUDNN_ADD);
}

/* ---- plans ---- */

enum { CR_CUDNN_CANDIDATES = 4 };

struct cudnn_conv_plans {
    struct cudnn_conv_key key;
    struct cudnn_problem  problem;
    struct cudnn_search   search;
    struct cudnn_plan     plan[CR_CUDNN_CANDIDATES]; /* as cuDNN ranks them */
    int                   plans;                     /* number built so far; 0: cuDNN has none */
    bool                  all;                       /* no more plans exist or are needed */
    bool                  queried, available;        /* queried: `available` is known; available: cuDNN has a plan */
};

/* The device's plans for the key of a slice, at least `wanted` of them if cuDNN has so many. The device owns the
 * plans; their addresses stay valid until the device is closed. CR_ERR_DEVICE when cuDNN fails, but not when it has no
 * plan. */
CR_MUST cr_status cr_cudnn_conv_plans(struct cuda_device *device, const struct cudnn_conv_key *key, int wanted,
                                      struct cudnn_conv_plans **out);

/* Returns whether cuDNN has a plan for the key of a slice. Faster than a search for the best one. */
CR_MUST cr_status cr_cudnn_conv_has(struct cuda_device *device, const struct cudnn_conv_key *key, bool *out);

/* cuda/conv/cudnn/refused_engines.c: writes the engines that are refused for this key; -1 in the rest of `refused`. */
void cr_cudnn_refused_engines(const struct cudnn_conv_key *key, int64_t refused[CR_CUDNN_REFUSED]);

#endif

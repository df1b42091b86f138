/* graph/graph.h: tensors, ops, programs and the parameter store, the central data structure of cresnet.
 *
 * A program is a list of ops over named tensors. Layers append ops to a program, compiler passes rewrite the list,
 * the memory planner assigns an offset to each tensor, and the executor runs the ops. A program is plain data: it can
 * be printed, compared and tested without a device.
 *
 * Invariants
 *   - One op writes each tensor (single assignment). STORE tensors are the exception: ops may update them in place.
 *   - `offset` counts bytes from the start of the tensor's region. Offsets in STORE, INPUT and HOST are fixed when the
 *     tensor is created; the memory planner sets offsets in POOL. Two tensors overlap in memory exactly when they have
 *     the same region and their ranges [offset, offset + bytes) intersect.
 *   - The functions that build a program return no error code. Out of memory sets `failed`, and a tensor larger than
 *     CR_TENSOR_BYTES_MAX sets `failed` and `too_large`; both flags stay set. A wrong shape is a bug (assertion).
 *   - This file depends on no device. */
#ifndef CR_GRAPH_H
#define CR_GRAPH_H

#include "graph/loss.h"
#include "graph/param_store.h"
#include "sparsity/format.h"

/* ---- ops ---- */

enum {
    CR_OP_IN_MAX  = 11,
    CR_OP_OUT_MAX = 8,
    CR_FUSED_MAX  = 112,                  /* parts of a fused op */
    CR_OP_IDS_MAX = 3 * CR_FUSED_MAX + 1, /* tensors that an op, or a fused op, reads (or writes), with its workspace */
    CR_OP_WAIT_MAX = 4,
    CR_NONE        = -1, /* no tensor, op, kernel, layer or parameter */
    CR_SEVERAL     = -3  /* cr_tensor.param: several parameters, but not the whole buffer */
};

enum cr_op_kind {
#define OP(op, what) CR_OP_##op,
#include "graph/ops.def"
    CR_OP_COUNT
};

/* A slot is a named position in op.in or op.out: op.in[CR_IN_conv_x], op.out[CR_OUT_conv_y]. CR_INS_conv and
 * CR_OUTS_conv are the numbers of input and output slots of the op `conv`. */
// clang-format off
#define OP(op, what)          enum {
#define IN(op, slot, ...)     CR_IN_##op##_##slot,
#define OPT_IN(op, slot, ...) CR_IN_##op##_##slot,
#define END(op)               CR_INS_##op };
#include "graph/ops.def"
#define OP(op, what)           enum {
#define OUT(op, slot, ...)     CR_OUT_##op##_##slot,
#define OPT_OUT(op, slot, ...) CR_OUT_##op##_##slot,
#define END(op)                CR_OUTS_##op };
#include "graph/ops.def"
// clang-format on

/* The type of a slot. All slots of an op without a type in graph/ops.def have one type, the type of the op's data. */
enum cr_slot_type {
    CR_SLOT_,     /* data */
    CR_SLOT_WIDE, /* f64 where the data is f64, else f32: sums, statistics, gradients of parameters */
    CR_SLOT_F64,
    CR_SLOT_I32,
    CR_SLOT_U8,
    CR_SLOT_ANY /* the kernels of the op say which types they read or write */
};

/* The entry of an op kind in graph/ops.def. */
struct cr_op_info {
    const char       *name, *what; /* "conv"; its formula */
    int               ins, outs;   /* number of slots */
    const char       *in_name[CR_OP_IN_MAX], *out_name[CR_OP_OUT_MAX];
    enum cr_slot_type in_type[CR_OP_IN_MAX], out_type[CR_OP_OUT_MAX];
    bool              in_optional[CR_OP_IN_MAX], out_optional[CR_OP_OUT_MAX];
};
const struct cr_op_info *cr_op_info(enum cr_op_kind kind);
/* Returns a bit mask of input slots. Bit i: output slot `out` may reuse the storage of input slot i, provided that this
 * op is the last use of the input tensor and both tensors have the same size in bytes. */
unsigned cr_op_inplace(enum cr_op_kind kind, int out);

/* Streams of a device. Ops of one stream run in program order; `wait` orders ops of different streams. */
enum cr_stream {
    CR_STREAM_COMPUTE,
    CR_STREAM_TO_HOST,
    CR_STREAM_TO_DEVICE,
    CR_STREAM_COMM,
    CR_STREAM_SIDE, /* compute ops that the chain of the compute stream does not wait for */
    CR_STREAMS
};
const char *cr_stream_name(enum cr_stream stream);

/* What a kernel states about itself in plain data, so that passes, which know no devices, read it too: a value in the
 * row of the kernel, and a line in the pass that asks cr_device_view.traits for it. */
struct cr_kernel_traits {
    bool any_stream;   /* a collective that may run on the compute stream */
    bool sparse_cores; /* uses sparse tensor cores: see cr_cost_table_has_lasting_effect */
};

/* ---- attributes of ops ---- */

struct cr_bn_attr {
    float   eps, momentum;
    int64_t count;      /* bn_finalize, bn_grad_finalize: number of elements behind each channel's sums, M = N*H*W */
    bool    relu;       /* bn_apply: apply ReLU to the result */
    bool    accumulate; /* bn_grad_finalize, gram_bn_grad: add to gradients of parameters instead of assigning */
    int ranks; /* bn_grad_finalize, gram_bn_*: number of ranks that grad_sums covers; dgamma, dbeta are divided by it,
                         * since gradients are summed over all ranks later. 0 or 1 when only this rank is covered */
};

/* Upper bound of (estimated time / measured time) of a good kernel: a candidate whose estimate exceeds the best known
 * time by more than this factor cannot be the fastest. See `estimate` of struct cr_kernel in device/kernel.h. */
#define CR_ESTIMATE_MARGIN 2.5

/* Sparsity pattern of a convolution with a pruned filter. Kernels that skip pruned weights (device/kernel.h) rely on
 * the following: w is 0 wherever the bit in cr_param_store.pattern is 0, and the gradient of w is set to 0 there (an
 * accumulating op leaves it unchanged there). */
struct cr_sparsity_attr {
    int64_t                 nnz;      /* number of nonzero weights; 0 for a dense op */
    int                     param;    /* index in the parameter store of the filter that the pattern describes */
    struct cr_sparse_format format;   /* weight format */
    int64_t                 image[3]; /* sparse_filter: N, H, W of the convolution's input x */
};
/* Types of the operands of a qconv. */
struct cr_qconv_types {
    bool          has_add;
    enum cr_dtype x, add, y;
};
/* Attributes of conv*, maxpool* and pad_shortcut*. Windows are R x S; stride and padding are the same for H and W. */
struct cr_conv_attr {
    int  stride, pad;
    int  window;     /* maxpool: R = S = window; convolutions use R, S of the filter */
    int  pad_c;      /* pad_shortcut*: number of zero channels before the input's channels */
    int  add_pad_c;  /* conv_grad: not 0: the summand is pad_shortcut_grad(add) with this pad_c and attr.conv.stride */
    bool accumulate; /* conv_wgrad, conv_grad, s2d_filter_grad: add to dw instead of assigning */
    bool relu;       /* conv: apply ReLU to y; gram_dgrad: see graph/ops.def */
    struct cr_qconv_types   types;   /* pack_filter: of the qconv that reads the packed filter */
    struct cr_bn_attr       bn;      /* conv, conv_grad with slot gamma: the batch norm whose sums the op finalizes */
    struct cr_sparsity_attr pattern; /* conv, conv_dgrad, conv_wgrad, sparse_filter */
};
/* Parts of the op `fused`, in their order; they have no workspace and no waits. The array belongs to the program. */
struct cr_fused_attr {
    struct cr_op *part; /* [parts] */
    int           parts;
};
struct cr_quant_attr {
    bool is_signed; /* fake_quant, quantize: i8 instead of u8 */
};
struct cr_head_attr {
    struct cr_loss_attr loss; /* a softmax cross-entropy without class weights; weight: that of loss_grad */
    struct cr_bn_attr   bn;   /* that of bn_grad_finalize */
};
struct cr_drop_attr {
    double   rate;   /* probability of 0; at least 0 and below 1 */
    bool     images; /* one random number for each image (stochastic depth), else for each element (dropout) */
    uint32_t index;  /* of the op in the network: ops with different indices have independent random numbers */
};
struct cr_dense_attr {
    bool accumulate; /* dense_wgrad, dense_bgrad: add to dw, db instead of assigning */
};
struct cr_input_attr {
    float mean[4], std[4]; /* per channel, in units of [0, 1] */
    bool  s2d;             /* space to depth: see normalize in graph/ops.def */
    bool  wide;            /* a sample is two bytes of the images, a uint16_t */
};
/* Indices into the numbers of one sample in the tensor `mixes`, i32 [N,1,1,CR_MIX_NUMBERS]: random erasing, MixUp and
 * CutMix of the op mix, and the label weights of loss and loss_grad. Weights are fixed point, CR_MIX_ONE = 1.0. */
enum cr_mix {
    CR_MIX_PARTNER,                  /* index in the batch of the image that this image is mixed with */
    CR_MIX_LABEL_WEIGHT,             /* weight of the sample's own label in the target */
    CR_MIX_WEIGHT,                   /* weight of the sample's own pixels outside the CutMix rectangle */
    CR_MIX_CUT,                      /* CutMix rectangle y0, x0, y1, x1 (y1 and x1 exclusive): pixels of the partner */
    CR_MIX_ERASE   = CR_MIX_CUT + 4, /* erased rectangle, the same four numbers */
    CR_MIX_NUMBERS = 12,
    CR_MIX_ONE     = 65536
};
struct cr_sgd_attr {      /* the update rules, lamb_norms, muon_direction */
    bool   nesterov;      /* sgd, lars, muon_direction */
    bool   moving_scale;  /* dynamic loss scale: halved after an overflow, doubled after a run of successful updates */
    int    micro_batches; /* number of training forward passes that belong to one update; added to CR_STATE_BATCHES */
    double eps;           /* adamw, lars, lamb, muon */
    double beta2;         /* adamw, lamb, muon */
    double trust;         /* lars: trust coefficient */
};
struct cr_ema_attr {
    double decay;
    bool   warmup; /* smaller decay during the first updates: see ema in graph/ops.def */
};
struct cr_reduce_attr {
    enum cr_dtype wire; /* type in which the values are sent between ranks, at most as wide as the tensor's type */
};

struct cr_op {
    enum cr_op_kind kind;
    enum cr_stream  stream;
    int             layer;                /* index into program.layer, or CR_NONE */
    int             in[CR_OP_IN_MAX];     /* tensor ids by slot; CR_NONE = absent */
    int             out[CR_OP_OUT_MAX];   /* the same */
    int             workspace;            /* tensor id or CR_NONE; scratch memory whose lifetime is this op */
    int             wait[CR_OP_WAIT_MAX]; /* ops on other streams that must complete first; CR_NONE ends the list */
    int             kernel; /* index of the chosen kernel in the backend's table; CR_NONE before selection */
    int             algo;   /* algorithm (or tile config) of the kernel; 0 is the kernel's default */
    union {
        struct cr_conv_attr    conv; /* conv*, maxpool*, pad_shortcut*; avgpool* has it but does not read it */
        struct cr_bn_attr      bn;
        struct cr_quant_attr   quant;
        struct cr_loss_attr    loss; /* loss, loss_grad */
        struct cr_head_attr    head;
        struct cr_distill_attr distill; /* distill* */
        struct cr_dense_attr   dense;
        struct cr_drop_attr    drop;
        struct cr_input_attr   input; /* normalize, mix, qstem */
        struct cr_sgd_attr     sgd;   /* the update rules, lamb_norms, muon_direction */
        struct cr_ema_attr     ema;
        struct cr_reduce_attr  reduce;
        struct cr_fused_attr   fused;
    } attr;
};

/* The shift of the op gram, from `a` at CR_GRAM_SAMPLES pixels: that of pixel CR_GRAM_CENTER, truncated to a multiple
 * of 2^(n-3), where 2^n is the largest power of two that is not above the largest magnitude of the samples. A shift
 * with so few bits is subtracted without rounding from values of its size and above. 0 below 2^-100; not truncated if
 * a sample is infinite or NaN. */
enum { CR_GRAM_SAMPLES = 8, CR_GRAM_CENTER = 4 };
int64_t cr_gram_sample(int i, int64_t pixels);
double  cr_gram_shift(const double sample[CR_GRAM_SAMPLES]);

/* The op drop sets an element to 0 when its random word is below the threshold, and multiplies it by the scale
 * otherwise. */
uint32_t cr_drop_threshold(const struct cr_drop_attr *attr);
float    cr_drop_scale(const struct cr_drop_attr *attr);

/* ---- tensors ---- */

enum cr_region {
    CR_REGION_STORE, /* persistent: parameters, gradients, optimizer state, running statistics, device-owned state */
    CR_REGION_POOL,  /* activations and other transient tensors, placed by the memory planner */
    CR_REGION_INPUT, /* the batch: images, labels, in training boxes, mixes, class weights; the executor fills it */
    CR_REGION_HOST,  /* page-locked host memory that holds offloaded tensors: see offload in graph/ops.def */
    CR_REGIONS
};
const char *cr_region_name(enum cr_region region);

struct cr_tensor {
    const char    *name; /* unique in its program: "layer3.0.conv2.y"; its gradient: "d.layer3.0.conv2.y" */
    enum cr_dtype  dtype;
    enum cr_region region;
    int64_t        dim[4]; /* order as in graph/ops.def (N,H,W,C or K,R,S,C); unused dimensions are 1 */
    size_t         bytes;
    bool           keep;        /* the lifetime extends to the end of the program, because the host reads the tensor */
    int            first, last; /* lifetime as op indices, inclusive, -1 when unused; set by cr_program_lifetimes */
    int            alias;       /* tensor whose storage this tensor reuses, or CR_NONE; set by the memory planner */
    int            buffer;      /* STORE: enum cr_param_buffer, else CR_NONE; set by cr_tensor_store */
    int            param;       /* STORE: the parameter; CR_SEVERAL; CR_NONE: the whole buffer; else CR_NONE */
    int            copy_of; /* first tensor with this value, if this one recomputes or prefetches it; else CR_NONE */
    size_t         offset;  /* bytes from the start of the region */
};
/* 1 PiB: more than any machine has, and sums of such sizes cannot overflow 64 bits. */
#define CR_TENSOR_BYTES_MAX ((size_t)1 << 50)
int64_t cr_tensor_elems(const struct cr_tensor *tensor);
/* Appends type and shape: "f32[128,32,32,16]". */
void cr_tensor_add_shape(const struct cr_tensor *tensor, struct cr_text *out);
/* Returns whether two tensors, whose offsets are set, share bytes. */
static inline bool cr_tensors_overlap(const struct cr_tensor *a, const struct cr_tensor *b) {
    return a->region == b->region && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* ---- program ---- */

struct cr_program {
    const char                  *name;  /* "step", "micro_first", "micro", "micro_last", "eval" */
    const struct cr_param_store *store; /* borrowed */
    enum cr_dtype                real;  /* type of activations: f32; f64 in tests; f16 or bf16 on a GPU */
    struct cr_tensor            *tensor;
    int                          tensors, tensor_capacity;
    struct cr_op                *op;
    int                          ops, op_capacity;
    const char                 **layer; /* layer names for messages and profiles */
    int                          layers, layer_capacity;
    int          hoisted; /* ops 0..hoisted-1 depend on the parameter store only and run again after it has changed */
    size_t       region_bytes[CR_REGIONS]; /* set by the memory planner (POOL) and by cr_tensor_add (INPUT, HOST) */
    size_t       bound_bytes;              /* lower bound of the size of POOL; set by the memory planner */
    int          images, labels, boxes, mixes, features, logits, metrics; /* tensor ids, CR_NONE when absent */
    int          maps;                /* the same: output of the last stage, when the host reads it */
    int          class_weights;       /* the same: f32 [1,1,1,classes], INPUT; the executor fills it with ... */
    const float *class_weight_values; /* ... these values [classes]; borrowed from the model */
    int          grad_norm;           /* the same: the output of the op grad_norm, which the host reads */
    bool         failed;              /* out of memory while building, or too_large */
    bool         too_large;           /* a tensor larger than CR_TENSOR_BYTES_MAX was requested */
    struct cr_arena arena;            /* owns the names */
};
/* Returns whether an inference program computes the tensor once for many runs: a parameter or a result of a hoisted op.
 * Kernels prepare such operands once (kernel.h: complete). */
bool cr_program_is_constant(const struct cr_program *program, int tensor);
/* Makes an empty program; the caller frees it with cr_program_free. `store` is borrowed. */
void cr_program_init(struct cr_program *program, const char *name, const struct cr_param_store *store);
void cr_program_free(struct cr_program *program);
/* Makes a deep copy, so that a pass can be undone or two results compared; the caller frees it with cr_program_free.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_program_copy(const struct cr_program *from, struct cr_program *to);

/* Adds a layer name; returns its index. */
int cr_program_layer(struct cr_program *program, const char *name);
/* Adds a tensor of shape [d0,d1,d2,d3]; returns its id, or 0 on failure (program->failed). The name is copied. */
int cr_tensor_add(struct cr_program *program, const char *name, enum cr_dtype dtype, enum cr_region region, int64_t d0,
                  int64_t d1, int64_t d2, int64_t d3);
/* Returns the tensor of one parameter's slice of a buffer ("layer1.0.conv1.weight", "grad.layer1.0.conv1.weight"), or
 * of a whole buffer when param = CR_NONE ("buffer.grad"). The first call creates the tensor. The mask buffer
 * is available only as a whole. */
int cr_tensor_store(struct cr_program *program, enum cr_param_buffer buffer, int param);
/* Returns the tensor that cr_tensor_store created, or CR_NONE. */
int cr_tensor_store_find(const struct cr_program *program, enum cr_param_buffer buffer, int param);
/* Adds a tensor named `of` + suffix, with apostrophes behind it while the name is taken. As cr_tensor_add. */
int cr_tensor_derive(struct cr_program *program, const char *of, const char *suffix, enum cr_dtype dtype,
                     enum cr_region region, const int64_t dim[4]);
/* Returns the id of the tensor with this name, or CR_NONE. */
int cr_tensor_find(const struct cr_program *program, const char *name);
/* Returns the tensor of which this one is a copy (copy_of), or the tensor itself. */
static inline int cr_tensor_origin(const struct cr_program *program, int tensor) {
    const int first = program->tensor[tensor].copy_of;
    return first == CR_NONE ? tensor : first;
}

/* Returns an op on the compute stream with all slots, waits and the kernel set to CR_NONE. */
struct cr_op cr_op_make(enum cr_op_kind kind, int layer);
/* Appends an op and returns its index. A required output slot that is CR_NONE gets a new POOL tensor of the inferred
 * shape; an optional output slot gets one when it is CR_NEW. The tensor of slot 0 is named `name`, any other tensor
 * "name.<slot>". */
enum { CR_NEW = -2 };
int cr_emit(struct cr_program *program, const struct cr_op *op, const char *name);
/* The same at index `at`; the ops from there on move up by one. */
void cr_emit_at(struct cr_program *program, int at, const struct cr_op *op, const char *name);
/* Infers shape and type of output slot `slot` from the inputs and attributes; asserts that they fit together. */
void cr_op_infer(const struct cr_program *program, const struct cr_op *op, int slot, enum cr_dtype *dtype,
                 int64_t dim[4]);
/* Computes the bytes that must move when each operand moves once, and the floating-point operations (a multiply-add
 * counts as 2). */
void cr_op_cost(const struct cr_program *program, const struct cr_op *op, double *bytes, double *flops);

/* Write the ids of the tensors that an op reads, writes, or first reads and then writes, to `ids` and return their
 * number. Reads and writes include the workspace. */
int cr_op_reads(const struct cr_op *op, int ids[CR_OP_IDS_MAX]);
int cr_op_writes(const struct cr_op *op, int ids[CR_OP_IDS_MAX]);
int cr_op_operands(const struct cr_op *op, int ids[2 * CR_OP_IDS_MAX]);
/* Returns the first op that writes the tensor, or CR_NONE. */
int cr_program_writer(const struct cr_program *program, int tensor);

/* Makes the op `fused` of `count` parts (at most CR_FUSED_MAX), which are copied into the program's arena. Without
 * memory, sets `failed`. */
struct cr_op cr_op_fuse(struct cr_program *program, const struct cr_op *part, int count);
/* Returns the parts of a fused op, or the op itself, and their number in *count. */
static inline const struct cr_op *cr_op_parts(const struct cr_op *op, int *count) {
    *count = op->kind == CR_OP_fused ? op->attr.fused.parts : 1;
    return op->kind == CR_OP_fused ? op->attr.fused.part : op;
}
/* Number of rows [2,C] in which a tensor of sums or grad_sums holds them: see graph/ops.def. */
static inline int64_t cr_sum_rows(const struct cr_tensor *sums) {
    return sums->dim[0] / 2;
}

/* True when every slot that the op uses is in these sets (bit s: slot s). */
bool cr_op_uses_only(const struct cr_op *op, unsigned in, unsigned out);
/* Whether the op's data has one type of the set `dtypes` (bit t: enum cr_dtype t) and all other slots have the types of
 * graph/ops.def. Of the op `fused`: each part; those before the last may also be in f32, like bn_finalize. */
bool cr_op_has_types(const struct cr_program *program, const struct cr_op *op, unsigned dtypes);
/* True for an op with the weights of a layer, which are in the slot CR_IN_conv_w. */
static inline bool cr_op_has_weights(const struct cr_op *op) {
    return op->kind == CR_OP_conv || op->kind == CR_OP_group_conv || op->kind == CR_OP_dense;
}
/* True for a convolution, or a gradient of one, with a sparsity pattern. */
bool cr_op_has_sparsity_pattern(const struct cr_op *op);

/* Sets first and last of every tensor. */
void cr_program_lifetimes(struct cr_program *program);
/* Checks the invariants above. Further checks: required slots are filled, transient tensors are written before they are
 * read, names are unique, and in programs with gradients exactly one op writes each trainable parameter's gradient.
 * CR_ERR_DEVICE on the first violation; CR_ERR_MEMORY. */
CR_MUST cr_status cr_program_check(const struct cr_program *program);
/* Appends one line for each op, of the form
 *   "  12 conv              conv1.y f32[128,32,32,16] = x:stem.relu.y w:conv1.weight  stride=1 pad=1" */
void cr_program_print(const struct cr_program *program, struct cr_text *out);

#endif

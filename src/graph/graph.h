/* graph/graph.h: tensors, ops, programs and the store: the one data structure of cresnet.
 *
 * A program is a list of ops over named tensors. Layers append to it, passes rewrite it, the planner gives its tensors
 * offsets, exec runs it. It is plain data: it can be printed, compared and tested without a device.
 *
 * Laws
 *   - Tensors are written by one op (single assignment), except STORE tensors, which ops may update in place.
 *   - `offset` is in bytes from the start of the tensor's region; STORE, INPUT and HOST offsets are fixed when the
 * tensor is made, POOL offsets by plan. Two tensors conflict exactly when region and [offset, offset + bytes) overlap.
 *   - Building never returns an error code: out of memory is sticky in `failed`, a size beyond all reason in
 * `too_large` too; wrong shapes are our mistake (assert). Knows nothing of devices. */
#ifndef CR_GRAPH_H
#define CR_GRAPH_H

#include "config/config.h"
#include "core/dtype.h"

/* ---- ops ---- */

enum {
    CR_OP_IN_MAX   = 10,
    CR_OP_OUT_MAX  = 6,
    CR_OP_IDS_MAX  = CR_OP_IN_MAX + 1, /* what an op reads, or writes: its slots and its workspace */
    CR_OP_WAIT_MAX = 4,
    CR_NONE        = -1
};

enum cr_op_kind {
#define OP(op, what) CR_OP_##op,
#include "graph/ops.def"
    CR_OP_COUNT
};

/* Slots: op.in[CR_IN_conv_x], op.out[CR_OUT_conv_y]; CR_INS_conv and CR_OUTS_conv are their numbers. */
#define OP(op, what) enum {
#define IN(op, slot) CR_IN_##op##_##slot,
#define OPT_IN(op, slot) CR_IN_##op##_##slot,
#define END(op)                                                                                                        \
    CR_INS_##op                                                                                                        \
    }                                                                                                                  \
    ;
#include "graph/ops.def"
#define OP(op, what) enum {
#define OUT(op, slot) CR_OUT_##op##_##slot,
#define OPT_OUT(op, slot) CR_OUT_##op##_##slot,
#define END(op)                                                                                                        \
    CR_OUTS_##op                                                                                                       \
    }                                                                                                                  \
    ;
#include "graph/ops.def"

struct cr_op_info {
    const char *name, *what;
    int         ins, outs;
    const char *in_name[CR_OP_IN_MAX], *out_name[CR_OP_OUT_MAX];
    bool        in_optional[CR_OP_IN_MAX], out_optional[CR_OP_OUT_MAX];
    bool        has_grad;
};
const struct cr_op_info *cr_op_info(enum cr_op_kind kind);
/* Bit i: output slot `out` may take over the storage of input slot i when that tensor dies here and has as many bytes.
 */
unsigned cr_op_inplace(enum cr_op_kind kind, int out);

enum cr_stream { CR_STREAM_COMPUTE, CR_STREAM_TO_HOST, CR_STREAM_TO_DEVICE, CR_STREAM_COMM, CR_STREAMS };
const char *cr_stream_name(enum cr_stream lane);

struct cr_bn_attr {
    float   eps, momentum;
    int64_t count;      /* bn_finalize, bn_grad_finalize: M = N*H*W, elements a channel's sums run over */
    bool    relu;       /* bn_apply */
    bool    accumulate; /* bn_grad_finalize adds to dgamma, dbeta */
    int ranks; /* bn_grad_finalize: dstats are sums over so many ranks, dgamma and dbeta get their share, so that the
                  sum of the gradients over ranks is whole again; 0: as 1 */
};
/* Of a convolution whose filter is mostly pruned, for rows that skip what is (device/device.h): w is 0 wherever the
 * store's pattern has no bit, and a gradient of w is made 0 there (adding: stays as it was). A layout is one of a
 * device's forms of the kept weights, with the kernel that reads it; layouts are numbered from 0. */
enum { CR_FORMATS_MAX = 80 };
#define CR_ESTIMATE_MARGIN                                                                                             \
    2.5 /* how often what a kernel really takes goes into what arithmetic foresees, at most: see device/device.h */
struct cr_pattern_attr {
    int64_t nnz;   /* weights; 0: no pattern, as any convolution */
    int     param; /* in the store, whose bits are the filter's */
    int     format;
    int64_t image[3]; /* sparse_filter: N, H, W of the convolution's x */
};
struct cr_conv_attr { /* conv*, maxpool*, pad_shortcut*: windows are R x S, square stride and padding */
    int                    stride, pad;
    int                    window;     /* maxpool: R = S; conv takes R, S from the filter */
    int                    pad_c;      /* pad_shortcut: zero channels in front */
    bool                   accumulate; /* conv_wgrad, conv_grad, s2d_filter_grad add to dw */
    bool                   relu;       /* conv: ReLU at the end (inference) */
    struct cr_bn_attr      bn;         /* conv, conv_grad with gamma: of the BN whose sums they finish */
    struct cr_pattern_attr pattern;    /* conv, conv_dgrad, conv_wgrad, sparse_filter */
};
struct cr_loss_attr {
    float smoothing;
    float weight; /* loss_grad: 1/(accumulate * ranks): gradients are added up, not averaged */
};
struct cr_dense_attr {
    bool accumulate; /* dense_wgrad, dense_bgrad add to dw, db */
};
struct cr_input_attr {
    float mean[3], std[3];
    bool  s2d; /* space to depth: see normalize in graph/ops.def */
};
/* What is done to a picture of a batch beside its box: op mix, and the labels of loss and loss_grad. i32 numbers. */
enum cr_mix {
    CR_MIX_PARTNER,                  /* index in the batch */
    CR_MIX_LABEL_WEIGHT,             /* of its own label in the target, of CR_MIX_ONE */
    CR_MIX_WEIGHT,                   /* of its own pixels outside the cut, of CR_MIX_ONE */
    CR_MIX_CUT,                      /* four: y0, x0, y1, x1; rows y0 to y1 - 1: the partner's pixels */
    CR_MIX_ERASE   = CR_MIX_CUT + 4, /* four */
    CR_MIX_NUMBERS = 12,
    CR_MIX_ONE     = 65536
};
struct cr_sgd_attr {      /* sgd, lars, adamw */
    bool   nesterov;      /* sgd, lars */
    bool   moving_scale;  /* the loss scale halves after an overflow and doubles after a run of good updates */
    int    micro_batches; /* training forward passes an update stands for: moves CR_STATE_BATCHES */
    double eps;           /* adamw, lars */
    double beta2;         /* adamw */
    double trust;         /* lars */
};
struct cr_ema_attr {
    double decay;
    bool   warmup;
};

struct cr_reduce_attr {
    enum cr_dtype wire; /* type that values are rounded to for the way; their own where it is as wide */
};

struct cr_op {
    enum cr_op_kind kind;
    enum cr_stream  stream;
    int             layer;            /* index into program.layer, or CR_NONE */
    int             in[CR_OP_IN_MAX]; /* tensor ids by slot; CR_NONE = absent */
    int             out[CR_OP_OUT_MAX];
    int             workspace; /* tensor id or CR_NONE; lives during this op only */
    int wait[CR_OP_WAIT_MAX];  /* op indices on other lanes that must be complete first; CR_NONE ends the list */
    int kernel;                /* chosen kernel row (backend's index), CR_NONE before select */
    int algo;                  /* which of the row's ways (a library's algorithms); 0: the row's own favourite */
    union {
        struct cr_conv_attr   conv; /* conv*, maxpool*, pad_shortcut*, avgpool* (unused there) */
        struct cr_bn_attr     bn;
        struct cr_loss_attr   loss; /* loss, loss_grad */
        struct cr_dense_attr  dense;
        struct cr_input_attr  input; /* normalize, mix */
        struct cr_sgd_attr    sgd;   /* sgd, lars, adamw */
        struct cr_ema_attr    ema;
        struct cr_reduce_attr reduce;
    } attr;
};

/* ---- tensors ---- */

enum cr_region {
    CR_REGION_STORE, /* persistent: parameters, gradients, optimizer state, running statistics, device-owned state */
    CR_REGION_POOL,  /* transient, planned */
    CR_REGION_INPUT, /* the batch: images, labels and in training boxes and mixes, written by exec before a run */
    CR_REGION_HOST,  /* copies of transients in the host's memory, which the device's copies reach: see offload */
    CR_REGIONS
};
const char *cr_region_name(enum cr_region region);

struct cr_tensor {
    const char    *name; /* unique in its program: "layer3.0.conv2.y"; its gradient: "d.layer3.0.conv2.y" */
    enum cr_dtype  dtype;
    enum cr_region region;
    int64_t        dim[4]; /* see graph/ops.def for the order; unused dims are 1 */
    size_t         bytes;
    bool           keep;        /* lives to the end of the program: something outside reads it */
    int            first, last; /* op indices, inclusive; set by cr_program_lifetimes */
    int            alias;       /* tensor whose storage this one takes over, or CR_NONE; set by plan */
    size_t         offset;
};
/* 1 PiB: far beyond any machine, and sums of such sizes stay far from overflow. */
#define CR_TENSOR_BYTES_MAX ((size_t)1 << 50)
int64_t cr_tensor_elems(const struct cr_tensor *tensor);

/* ---- store ---- */

/* Each plane holds the same parameters at the same element offsets (running: the BN buffers); the state plane holds
 * CR_STATE_COUNT f64; the half plane, which only 16-bit programs have, is the value plane rounded to 16 bits, made anew
 * by the op `cast` at the start of each program. The mask plane, which only the stores of pruned networks have, is one
 * bit an element of the value plane, u8, bit i%8 of byte i/8: 1 kept, 0 pruned; padding and what is not pruned has 1.
 * One bit, because the update reads it: 0.6 % of what that moves anyway, where a byte would be 5 %. second: AdamW's
 * mean of squared gradients; ema and ema_running: moving averages of the value and the running plane. All planes lie in
 * one region, one after the other. */
enum cr_param_buffer {
    CR_BUFFER_VALUE,
    CR_BUFFER_GRAD,
    CR_BUFFER_MOMENTUM,
    CR_BUFFER_RUNNING,
    CR_BUFFER_STATE,
    CR_BUFFER_HALF,
    CR_BUFFER_MASK,
    CR_BUFFER_SECOND,
    CR_BUFFER_EMA,
    CR_BUFFER_EMA_RUNNING,
    CR_BUFFERS
};
const char *cr_param_buffer_name(enum cr_param_buffer plane);

/* Device-owned scalars (f64): written by kernels only, saved in state.safetensors. */
enum cr_state {
    CR_STATE_LOSS_SCALE, /* gradients are multiplied by it; 1 in fp32 */
    CR_STATE_GROWTH,     /* updates since the scale last changed */
    CR_STATE_UPDATES,    /* updates applied */
    CR_STATE_BATCHES,    /* training forward passes: num_batches_tracked */
    CR_STATE_NONFINITE,  /* 1 when the last update was suppressed */
    CR_STATE_SKIPPED,    /* updates suppressed so far */
    CR_STATE_COUNT = 8
};

enum cr_param_role {
    CR_ROLE_CONV,
    CR_ROLE_DENSE_WEIGHT,
    CR_ROLE_DENSE_BIAS,
    CR_ROLE_GAMMA,
    CR_ROLE_BETA,
    CR_ROLE_MEAN,
    CR_ROLE_VAR
};

struct cr_param {
    const char        *name; /* torchvision's: "layer1.0.bn2.weight" */
    enum cr_param_role role;
    int64_t            dim[4]; /* K,R,S,C for filters and K,1,1,C for dense weights; 1,1,1,C for vectors */
    int64_t            elems;
    int64_t            offset;          /* elements from the start of its plane; multiple of 64 */
    bool               decay;           /* weight decay applies */
    bool               frozen;          /* has no gradient, is not updated */
    bool               zero;            /* gamma that starts at 0 (model.zero_init_last) */
    int64_t            fan_in, fan_out; /* of the layer the parameter belongs to */
    int                layer;
};

struct cr_param_store {
    struct cr_param *param; /* trainable ones and running statistics, in torchvision's order of definition */
    int              params, capacity;
    int64_t          value_elems, running_elems; /* of the planes, with padding */
    enum cr_dtype    real;                       /* of all planes but state, half and mask: f32; f64 in tests */
    enum cr_dtype    half; /* of the half plane: f16 or bf16, the type of 16-bit programs; f32: there is none */
    bool             has_momentum;
    bool             has_mask;
    const uint8_t   *pattern; /* on the host, bits as in a mask plane: the masks that programs may rely on; NULL: none.
                                 The owner's */
    bool            has_second;
    bool            has_ema;
    bool            failed;
    struct cr_arena arena;
};
/* Adds a parameter (name is copied); returns its index. MEAN and VAR go to the running plane, all else to value. */
int cr_param_store_add(struct cr_param_store *store, const char *name, enum cr_param_role role, const int64_t dim[4],
                       int layer);
int cr_param_store_find(const struct cr_param_store *store, const char *name); /* CR_NONE: none */
enum cr_dtype cr_param_store_buffer_dtype(const struct cr_param_store *store, enum cr_param_buffer plane);
size_t        cr_param_store_buffer_offset(const struct cr_param_store *store,
                                           enum cr_param_buffer         plane); /* bytes; a multiple of 256 */
size_t        cr_param_store_buffer_bytes(const struct cr_param_store *store, enum cr_param_buffer plane);
size_t        cr_param_store_bytes(const struct cr_param_store *store); /* the whole region */
bool          cr_param_is_running(enum cr_param_role role);
/* The parameter whose slice of the value, grad or half plane begins at this offset of the region; CR_NONE: none. */
int     cr_param_store_find_offset(const struct cr_param_store *store, size_t offset);
int64_t cr_param_store_trainable(
    const struct cr_param_store *store); /* parameters as people count them: no running statistics */
/* Initial value of one element given by its index in the file's order (OIHW): He-normal and so on. */
float cr_param_store_initial(const struct cr_param_store *store, int param, int64_t oihw,
                             const struct cr_config *config);
/* Fills the value and running planes on the host: `plane` pointers as laid out in the region. */
void cr_param_store_init_host(const struct cr_param_store *store, const struct cr_config *config, float *value,
                              float *running);
void cr_param_store_free(struct cr_param_store *store);

/* ---- program ---- */

struct cr_program {
    const char                  *name; /* "step", "micro_first", "micro", "micro_last", "eval" */
    const struct cr_param_store *store;
    enum cr_dtype                real; /* type of activations: f32; f64 in tests; 16-bit on a GPU */
    struct cr_tensor            *tensor;
    int                          tensors, tensor_capacity;
    struct cr_op                *op;
    int                          ops, op_capacity;
    const char                 **layer; /* names for messages and profiles */
    int                          layers, layer_capacity;
    int             hoisted; /* the first so many ops depend on the store only: run again when it has changed */
    size_t          region_bytes[CR_REGIONS];                      /* set by plan (POOL) and by the builder */
    size_t          bound_bytes;                                   /* lower bound of the pool; set by plan */
    int             images, labels, boxes, mixes, logits, metrics; /* tensor ids, CR_NONE when absent */
    bool            failed;                                        /* out of memory while building, or too_large */
    bool            too_large; /* a tensor beyond CR_TENSOR_BYTES_MAX was asked for */
    struct cr_arena arena;
};
void cr_program_init(struct cr_program *program, const char *name, const struct cr_param_store *store);
void cr_program_free(struct cr_program *program);
/* A deep copy, so that a pass can be undone or compared. */
CR_MUST cr_status cr_program_copy(const struct cr_program *from, struct cr_program *to);

int cr_program_layer(struct cr_program *program, const char *name);
int cr_tensor_add(struct cr_program *program, const char *name, enum cr_dtype dtype, enum cr_region region, int64_t d0,
                  int64_t d1, int64_t d2, int64_t d3);
/* The tensor of a parameter's slice of a plane ("layer1.0.conv1.weight", "grad.layer1..."), or of a whole plane
 * (param = CR_NONE: "plane.grad"; of the mask nothing else); made on first use, found afterwards. */
int cr_tensor_store(struct cr_program *program, enum cr_param_buffer plane, int param);
int cr_tensor_find(const struct cr_program *program, const char *name);

struct cr_op cr_op_make(enum cr_op_kind kind, int layer); /* all slots CR_NONE */
/* Appends an op. Output slots left CR_NONE that are not optional get a new tensor of the inferred shape, named `name`
 * for the first and `name.<slot>` for the others; optional ones are made when named CR_NEW. Returns the op's index. */
enum { CR_NEW = -2 };
int cr_emit(struct cr_program *program, const struct cr_op *op, const char *name);
/* Shape and type of output slot `slot` from the inputs and attributes; asserts that they fit together. */
void cr_op_infer(const struct cr_program *program, const struct cr_op *op, int slot, enum cr_dtype *dtype,
                 int64_t dim[4]);
/* Bytes that must move (each operand once) and floating-point operations (a multiply-add counts 2). */
void cr_op_cost(const struct cr_program *program, const struct cr_op *op, double *bytes, double *flops);

/* Reads and writes of an op, workspace in both; returns how many ids were put. */
int cr_op_reads(const struct cr_op *op, int ids[CR_OP_IDS_MAX]);
int cr_op_writes(const struct cr_op *op, int ids[CR_OP_IDS_MAX]);

/* Are all slots that the op uses among these (bit s: slot s)? A row that does not know a slot must refuse an op that
 * uses it. */
bool cr_op_uses_only(const struct cr_op *op, unsigned in, unsigned out);
/* Is it a convolution, or a gradient of one, for rows that skip pruned weights? */
bool cr_op_has_pattern(const struct cr_op *op);

void cr_program_lifetimes(struct cr_program *program); /* sets first and last of every tensor */
/* The laws above plus: slots filled, written before read, unique names, each trainable parameter's gradient written
 * exactly once (in programs that have gradients). */
CR_MUST cr_status cr_program_check(const struct cr_program *program);
/* One line an op: "  12 conv            layer1.0.conv1.y f32[128,32,32,16] = x:stem.relu.y w:layer1.0.conv1.weight
 * stride=1 pad=1" */
void cr_program_print(const struct cr_program *program, struct cr_text *out);

#endif

/* cuda/conv/cudnn/cudnn_fused.c: builds the graph of a key: a plain convolution, or one with the additional operations
 * that cuDNN's engines support; see cuda/conv/cudnn/cudnn_conv.h.
 *
 * The forms are those for which cuDNN has compiled kernels (checked with 9.19 without a GPU;
 * tests/gpu/test_cudnn_support.c repeats the check):
 *   - act(x): scale, bias and intermediate tensors have the type of the images. It is supported only in front of a
 *     convolution with sums of y, which go to scratch, or of a wgrad.
 *   - bias: in the type of the images, behind `add`; intermediate tensors are f32. An f32 bias is first converted into
 *     scratch.
 *   - dgrad with `add`: the graph adds to dx, which holds a copy of `add`. */
#include "cuda/conv/cudnn/cudnn_conv.h"

#include "cuda/core/cuda_device.h"

/* A graph being built. */
struct building {
    struct cudnn_problem        *p;
    const struct cudnn_conv_key *k;
    int                          conv[CR_CUDNN_OPERANDS]; /* tensors that the convolution itself reads and writes */
};

static size_t type_bytes(cudnnDataType_t type) {
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static cudnnDataType_t type_of(const struct building *b) {
    return (cudnnDataType_t)b->k->type;
}

static size_t take_scratch(struct cudnn_problem *p, size_t bytes) {
    const size_t at  = p->scratch_bytes;
    p->scratch_bytes = at + (bytes + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
    return at;
}

/* ---- tensors ---- */

/* A tensor like x, w or y, and its location. */
static int like(struct building *b, int operand, struct cudnn_operand gpu) {
    const int64_t *dim = b->k->dim[operand];
    const int      t   = cr_cudnn_tensor(&b->p->graph, type_of(b), dim, false);
    if (operand != CR_CUDNN_W) gpu.image_bytes = (size_t)(dim[1] * dim[2] * dim[3]) * type_bytes(type_of(b));
    b->p->operand[t] = gpu;
    return t;
}

static struct cudnn_operand at_in(int slot) {
    return (struct cudnn_operand){.where = CR_CUDNN_IN, .slot = slot};
}

static struct cudnn_operand at_out(int slot) {
    return (struct cudnn_operand){.where = CR_CUDNN_OUT, .slot = slot};
}

static int between(struct building *b, int operand, cudnnDataType_t type) {
    return cr_cudnn_tensor(&b->p->graph, type, b->k->dim[operand], true);
}

/* Row `row` of a slot whose rows have `channels` channels. */
static int channels_in(struct building *b, int slot, int row, int64_t channels, cudnnDataType_t type) {
    const int t      = cr_cudnn_tensor(&b->p->graph, type, (int64_t[4]){1, 1, 1, channels}, false);
    b->p->operand[t] = (struct cudnn_operand){
        .where = CR_CUDNN_IN, .slot = slot, .offset = (size_t)(row * channels) * type_bytes(type)};
    return t;
}

static int channels_scratch(struct building *b, int64_t channels) {
    const int t = cr_cudnn_tensor(&b->p->graph, CUDNN_DATA_FLOAT, (int64_t[4]){1, 1, 1, channels}, false);
    b->p->operand[t] =
        (struct cudnn_operand){.where = CR_CUDNN_SCRATCH, .offset = take_scratch(b->p, (size_t)channels * 4)};
    return t;
}

/* ---- operations in front of and behind a convolution ---- */

static int pointwise(struct building *b, cudnnPointwiseMode_t mode, int a, int c, int y) {
    cr_cudnn_pointwise(&b->p->graph, mode, a, c, y);
    return y;
}

/* act(x) of tensor x; scale and bias are in `slot`. */
static int act(struct building *b, int x, int slot) {
    const cudnnDataType_t type  = type_of(b);
    const int64_t         C     = b->k->dim[CR_CUDNN_X][3];
    const int             scale = channels_in(b, slot, 0, C, type), bias = channels_in(b, slot, 1, C, type);
    x = pointwise(b, CUDNN_POINTWISE_MUL, x, scale, between(b, CR_CUDNN_X, type));
    x = pointwise(b, CUDNN_POINTWISE_ADD, x, bias, between(b, CR_CUDNN_X, type));
    return pointwise(b, CUDNN_POINTWISE_RELU_FWD, x, CR_CUDNN_NO_TENSOR, between(b, CR_CUDNN_X, type));
}

static void convolve(struct building *b, bool accumulate) {
    const struct cudnn_window window = {.stride = b->k->stride, .pad = b->k->pad};
    cr_cudnn_conv(&b->p->graph, (enum cudnn_conv_kind)b->k->kind, &window, b->conv[CR_CUDNN_X], b->conv[CR_CUDNN_W],
                  b->conv[CR_CUDNN_Y], accumulate);
}

/* ---- the three kinds ---- */

static int bias_tensor(struct building *b) {
    const int64_t K = b->k->dim[CR_CUDNN_Y][3];
    const int     t = channels_in(b, CR_IN_conv_bias, 0, K, type_of(b));
    if (b->k->uses & CR_CUDNN_WIDE_BIAS) {
        b->p->half_bias  = take_scratch(b->p, (size_t)K * type_bytes(type_of(b)));
        b->p->operand[t] = (struct cudnn_operand){.where = CR_CUDNN_SCRATCH, .offset = b->p->half_bias};
    }
    return t;
}

/* y = convolution (+ add) + bias, then ReLU. */
static void finish_forward(struct building *b, int y) {
    const int64_t uses = b->k->uses;
    const int     bias = bias_tensor(b);
    int           v    = b->conv[CR_CUDNN_Y];
    if (uses & CR_CUDNN_ADD)
        v = pointwise(b, CUDNN_POINTWISE_ADD, v, like(b, CR_CUDNN_Y, at_in(CR_IN_conv_add)),
                      between(b, CR_CUDNN_Y, CUDNN_DATA_FLOAT));
    if (!(uses & CR_CUDNN_RELU)) {
        pointwise(b, CUDNN_POINTWISE_ADD, v, bias, y);
        return;
    }
    v = pointwise(b, CUDNN_POINTWISE_ADD, v, bias, between(b, CR_CUDNN_Y, CUDNN_DATA_FLOAT));
    pointwise(b, CUDNN_POINTWISE_RELU_FWD, v, CR_CUDNN_NO_TENSOR, y);
}

static void build_forward(struct building *b) {
    const int64_t uses = b->k->uses;
    const int     x = like(b, CR_CUDNN_X, at_in(CR_IN_conv_x)), y = like(b, CR_CUDNN_Y, at_out(CR_OUT_conv_y));
    b->conv[CR_CUDNN_W] = like(b, CR_CUDNN_W, at_in(CR_IN_conv_w));
    b->conv[CR_CUDNN_X] = uses & CR_CUDNN_SCALE_BIAS ? act(b, x, CR_IN_conv_scale_bias) : x;
    b->conv[CR_CUDNN_Y] = uses & CR_CUDNN_BIAS ? between(b, CR_CUDNN_Y, CUDNN_DATA_FLOAT) : y;
    convolve(b, false);
    if (uses & CR_CUDNN_BIAS) finish_forward(b, y);
    if (uses & CR_CUDNN_SCALE_BIAS) {
        const int64_t K   = b->k->dim[CR_CUDNN_Y][3];
        const int     sum = channels_scratch(b, K), squares = channels_scratch(b, K);
        cr_cudnn_sums(&b->p->graph, y, sum, squares);
    }
}

static void build_wgrad(struct building *b) {
    const int x         = like(b, CR_CUDNN_X, at_in(CR_IN_conv_wgrad_x));
    b->conv[CR_CUDNN_X] = b->k->uses & CR_CUDNN_SCALE_BIAS ? act(b, x, CR_IN_conv_wgrad_scale_bias) : x;
    b->conv[CR_CUDNN_Y] = like(b, CR_CUDNN_Y, at_in(CR_IN_conv_wgrad_dy));
    if (cudnn_has_half_dw(b->k)) {
        const int64_t *d = b->k->dim[CR_CUDNN_W];
        b->p->half_dw    = take_scratch(b->p, (size_t)(d[0] * d[1] * d[2] * d[3]) * type_bytes(type_of(b)));
        b->conv[CR_CUDNN_W] =
            like(b, CR_CUDNN_W, (struct cudnn_operand){.where = CR_CUDNN_SCRATCH, .offset = b->p->half_dw});
    } else
        b->conv[CR_CUDNN_W] = like(b, CR_CUDNN_W, at_out(CR_OUT_conv_wgrad_dw));
    convolve(b, b->k->accumulate != 0);
}

static void build_dgrad(struct building *b) {
    b->conv[CR_CUDNN_X] = like(b, CR_CUDNN_X, at_out(CR_OUT_conv_dgrad_dx));
    b->conv[CR_CUDNN_W] = like(b, CR_CUDNN_W, at_in(CR_IN_conv_dgrad_w));
    b->conv[CR_CUDNN_Y] = like(b, CR_CUDNN_Y, at_in(CR_IN_conv_dgrad_dy));
    convolve(b, cudnn_adds_in_output(b->k));
}

void cr_cudnn_problem_open(struct cudnn_device gpu, const struct cudnn_conv_key *k, struct cudnn_problem *out) {
    struct building b = {.p = out, .k = k};
    *out              = (struct cudnn_problem){0};
    cr_cudnn_graph_init(&out->graph, gpu);
    switch ((enum cudnn_conv_kind)k->kind) {
    case CR_CUDNN_FORWARD: build_forward(&b); break;
    case CR_CUDNN_DGRAD: build_dgrad(&b); break;
    case CR_CUDNN_WGRAD: build_wgrad(&b); break;
    }
}

void cr_cudnn_problem_close(struct cudnn_problem *p) {
    cr_cudnn_graph_close(&p->graph);
}

/* cuda/conv/cudnn/cudnn_kernels.c: kernel table for convolution and its two gradients through cuDNN, plain and fused;
 * see cuda/conv/cudnn/cudnn_conv.h.
 *
 * Workspace of an op: the graph's scratch, then the plan's workspace. */
#include "cuda/conv/cudnn/cudnn_conv.h"

#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <stdio.h>
#include <string.h>

/* ---- accepted ops, algorithms ---- */

/* The kernels of an op kind differ in this. */
struct variant {
    bool tf32;      /* in f32: products in TF32 */
    bool relu_mask; /* of conv_dgrad: the ReLU mask and the BN's sums in a separate kernel behind the convolution */
};

static enum cr_math math_of(const struct cr_program *p, const struct cr_op *op, const struct variant *v) {
    switch (cuda_in(p, op, 0)->dtype) {
    case CR_F16: return CR_MATH_F16;
    case CR_BF16: return CR_MATH_BF16;
    default: return v->tf32 ? CR_MATH_TF32 : CR_MATH_F32;
    }
}

/* The part of the op that cuDNN runs. */
static struct cr_op cudnn_part(const struct cr_op *op, const struct variant *v) {
    struct cr_op plain = *op;
    if (!v->relu_mask) return plain;
    plain.in[CR_IN_conv_dgrad_bn_x] = plain.in[CR_IN_conv_dgrad_mean_rstd] = CR_NONE;
    plain.in[CR_IN_conv_dgrad_gamma] = plain.in[CR_IN_conv_dgrad_beta] = plain.out[CR_OUT_conv_dgrad_grad_sums] =
        CR_NONE;
    return plain;
}

static bool fits_relu_mask(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_dgrad_bn_x);
    return x && x->dim[3] % 8 == 0 && cuda_in(p, op, CR_IN_conv_dgrad_mean_rstd) &&
           cuda_in(p, op, CR_IN_conv_dgrad_gamma) && cuda_in(p, op, CR_IN_conv_dgrad_beta) &&
           cuda_out(p, op, CR_OUT_conv_dgrad_grad_sums);
}

/* prepare reports a failure of cuDNN, which it gets again. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    const struct variant *v) {
    const struct cr_op    plain = cudnn_part(op, v);
    struct cudnn_conv_key key;
    struct cudnn_slices   slices;
    if ((v->tf32 && !device->options.tf32) || (v->relu_mask && !fits_relu_mask(p, op))) return false;
    if (!cr_cudnn_key_of(p, &plain, math_of(p, op, v), &key) || !cr_cudnn_slices_of(&key, &slices)) return false;
    bool there = true;
    for (int64_t i = 0; i < slices.count && there; i++) {
        if (i > 1 && i < slices.count - 1) continue; /* slices between them equal slice 1 */
        const struct cudnn_conv_key slice = cr_cudnn_slice_key(&key, &slices, i);
        if (cr_cudnn_conv_has(cuda_of(device), &slice, &there) == CR_OK) continue;
        cr_error_clear();
        return true;
    }
    return there;
}

/* Algorithms of the first slice; see prepare_slices for the other slices. */
static int algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                      const struct variant *v) {
    const struct cr_op       plain = cudnn_part(op, v);
    struct cudnn_conv_key    key;
    struct cudnn_slices      slices;
    struct cudnn_conv_plans *plans;
    if (!cr_cudnn_key_of(p, &plain, math_of(p, op, v), &key) || !cr_cudnn_slices_of(&key, &slices)) return 1;
    key = cr_cudnn_slice_key(&key, &slices, 0);
    if (cr_cudnn_conv_plans(cuda_of(device), &key, CR_CUDNN_CANDIDATES, &plans) == CR_OK)
        return CR_MAX(plans->plans, 1);
    cr_error_clear();
    return 1;
}

/* ---- prepare ---- */

static void describe(const char *slot, const struct cr_tensor *t, char *text, size_t size) {
    if (snprintf(text, size, "%s %s[%lld,%lld,%lld,%lld]", slot, cr_dtype_name(t->dtype), (long long)t->dim[0],
                 (long long)t->dim[1], (long long)t->dim[2], (long long)t->dim[3]) < 0)
        *text = 0;
}

static cr_status explained(cr_status status, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_op_info *info = cr_op_info(op->kind);
    char                     text[3][100];
    describe(info->in_name[0], cuda_in(p, op, 0), text[0], sizeof text[0]);
    describe(info->in_name[1], cuda_in(p, op, 1), text[1], sizeof text[1]);
    describe(info->out_name[0], cuda_out(p, op, 0), text[2], sizeof text[2]);
    return CR_FAIL(status, "%s; requested: %s of layer %s, NHWC, %s, %s, %s, stride %d, pad %d, algorithm %d",
                   cr_error_message(), info->name, op->layer >= 0 ? p->layer[op->layer] : "?", text[0], text[1],
                   text[2], op->attr.conv.stride, op->attr.conv.pad, op->algo);
}

/* One slice. The pack holds addresses: it is made at the first launch, and again when the addresses change. */
struct slice {
    const struct cudnn_conv_plans *plans;
    const struct cudnn_plan       *plan;
    cudnnBackendDescriptor_t       pack;
    void                          *pointer[CR_CUDNN_TENSORS], *workspace;
};

struct prepared_conv {
    struct cudnn_conv_key key; /* of the whole batch */
    struct cudnn_slices   slices;
    struct slice         *slice;
    size_t                plan_at;      /* offset in the workspace */
    size_t                relu_mask_at; /* offset in the workspace, when `masks_relu` */
    bool                  masks_relu;   /* ck_bn_relu_grad runs behind the convolution */
    void                 *half_bias; /* device memory [K]: a constant f32 bias in the type of the images; NULL: each ...
                                      * ... launch converts the bias into the workspace */
    bool                  has_half_bias;
};

static void release(void *opaque) {
    struct prepared_conv *s = opaque;
    if (!s) return;
    for (int64_t i = 0; s->slice && i < s->slices.count; i++) cr_cudnn_pack_close(s->slice[i].pack);
    if (s->half_bias) (void)cudaFree(s->half_bias);
    cr_free(s->slice);
    cr_free(s);
}

/* A smaller last slice may have fewer plans than the other slices; it then uses its first plan. */
static cr_status prepare_slices(struct cuda_device *device, struct prepared_conv *s, int algo, size_t *plan_bytes) {
    for (int64_t i = 0; i < s->slices.count; i++) {
        const struct cudnn_conv_key key = cr_cudnn_slice_key(&s->key, &s->slices, i);
        struct cudnn_conv_plans    *plans;
        CR_TRY(cr_cudnn_conv_plans(device, &key, algo + 1, &plans));
        if (plans->plans == 0 || (i == 0 && algo >= plans->plans))
            return CR_FAIL(CR_ERR_DEVICE, "cuDNN has no plan number %d", algo);
        s->slice[i].plans = plans;
        s->slice[i].plan  = &plans->plan[algo < plans->plans ? algo : 0];
        *plan_bytes       = CR_MAX(*plan_bytes, s->slice[i].plan->workspace_bytes);
    }
    return CR_OK;
}

static size_t aligned(size_t bytes) {
    return (bytes + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
}

static cr_status prepare_new(struct cuda_device *device, const struct cr_program *p, const struct cr_op *op,
                             enum cr_math math, struct prepared_conv *s, size_t *workspace_bytes) {
    size_t plan_bytes = 0;
    if (!cr_cudnn_key_of(p, op, math, &s->key) || !cr_cudnn_slices_of(&s->key, &s->slices))
        CR_ASSERT(!"accepts rejects this op");
    CR_ALLOC(s->slice, (size_t)s->slices.count);
    CR_TRY(prepare_slices(device, s, op->algo, &plan_bytes));
    s->plan_at       = s->slice[0].plans->problem.scratch_bytes; /* for filters and channels: the same for all slices */
    *workspace_bytes = s->plan_at + plan_bytes;
    /* An offline device has no memory: it only plans. */
    if (!device->offline && (s->key.uses & CR_CUDNN_WIDE_BIAS) && cr_program_is_constant(p, op->in[CR_IN_conv_bias]))
        CUDA_TRY(cudaMalloc(&s->half_bias, p->tensor[op->in[CR_IN_conv_bias]].bytes / 2));
    return CR_OK;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         const struct variant *v, void **prepared, size_t *workspace_bytes) {
    const struct cr_op    plain = cudnn_part(op, v);
    struct prepared_conv *s;
    CR_ALLOC(s, 1);
    *prepared        = s;
    cr_status status = prepare_new(cuda_of(device), p, &plain, math_of(p, op, v), s, workspace_bytes);
    if (status != CR_OK) return explained(status, p, op);
    if (!v->relu_mask) return CR_OK;
    s->masks_relu    = true;
    s->relu_mask_at  = aligned(*workspace_bytes);
    *workspace_bytes = s->relu_mask_at + cr_cuda_bn_relu_grad_workspace(device, p, op);
    return CR_OK;
}

/* ---- launch ---- */

static void *mutable(const void *p) {
    return (void *)(uintptr_t)p;
}

/* Address of tensor `t` of the graph for slice `index`; NULL for a virtual tensor. */
static void *address(const struct prepared_conv *s, int64_t index, int t, const struct cr_call *call) {
    const struct cudnn_operand *o = &s->slice[index].plans->problem.operand[t];
    char                       *base;
    switch (o->where) {
    case CR_CUDNN_IN: base = mutable(call->in[o->slot]); break;
    case CR_CUDNN_OUT: base = call->out[o->slot]; break;
    case CR_CUDNN_SCRATCH:
        if (s->half_bias) return s->half_bias; /* a forward convolution with a bias has no other scratch tensor */
        base = call->workspace;
        break;
    default: return NULL;
    }
    return base + o->offset + (size_t)(index * s->slices.images) * o->image_bytes;
}

static cr_status bind(struct prepared_conv *s, int64_t index, const struct cr_call *call) {
    struct slice             *slice     = &s->slice[index];
    const struct cudnn_graph *graph     = &slice->plans->problem.graph;
    void                     *workspace = slice->plan->workspace_bytes ? (char *)call->workspace + s->plan_at : NULL;
    void                     *pointer[CR_CUDNN_TENSORS] = {0};
    for (int t = 0; t < graph->tensors; t++) pointer[t] = address(s, index, t, call);
    if (slice->pack && memcmp(slice->pointer, pointer, sizeof pointer) == 0 && slice->workspace == workspace)
        return CR_OK;
    cr_cudnn_pack_close(slice->pack);
    slice->pack = NULL;
    memcpy(slice->pointer, pointer, sizeof pointer);
    slice->workspace = workspace;
    return cr_cudnn_pack_open(graph, pointer, workspace, &slice->pack);
}

static cudaError_t convert_bias(struct prepared_conv *s, const struct cr_call *call, cudaStream_t stream) {
    const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_conv_y);
    void             *to = s->half_bias ? s->half_bias : (char *)call->workspace + s->slice[0].plans->problem.half_bias;
    const cudaError_t error = ck_cast(call->in[CR_IN_conv_bias], cuda_type(y), to, y->dim[3], stream);
    s->has_half_bias        = s->half_bias && error == cudaSuccess;
    return error;
}

/* Runs when the parameters have changed. */
static void complete(struct cr_device *device, const struct cr_call *call) {
    struct prepared_conv *s = call->prepared;
    if (s->half_bias) (void)convert_bias(s, call, cr_cuda_stream(device, call));
}

/* Copies and conversions before the convolution runs. */
static cr_status before(struct prepared_conv *s, const struct cr_call *call, cudaStream_t stream) {
    if ((s->key.uses & CR_CUDNN_WIDE_BIAS) && !s->has_half_bias) CUDA_TRY(convert_bias(s, call, stream));
    if (cudnn_adds_in_output(&s->key) && call->in[CR_IN_conv_dgrad_add] != call->out[CR_OUT_conv_dgrad_dx])
        CUDA_TRY(cudaMemcpyAsync(call->out[CR_OUT_conv_dgrad_dx], call->in[CR_IN_conv_dgrad_add],
                                 cuda_out(call->program, call->op, CR_OUT_conv_dgrad_dx)->bytes,
                                 cudaMemcpyDeviceToDevice, stream));
    return CR_OK;
}

static cr_status after_slice(const struct prepared_conv *s, int64_t index, const struct cr_call *call,
                             cudaStream_t stream) {
    if (!cudnn_has_half_dw(&s->key)) return CR_OK;
    const struct cr_tensor *x  = cuda_in(call->program, call->op, CR_IN_conv_wgrad_x);
    const struct cr_tensor *dw = cuda_out(call->program, call->op, CR_OUT_conv_wgrad_dw);
    return CUDA_STATUS(ck_convert_add(cuda_type(x), (char *)call->workspace + s->slice[index].plans->problem.half_dw,
                                      call->out[CR_OUT_conv_wgrad_dw], cr_tensor_elems(dw),
                                      index > 0 || call->op->attr.conv.accumulate, stream));
}

static cr_status run(struct cr_device *device, const struct cr_call *call) {
    struct prepared_conv *s      = call->prepared;
    const cudaStream_t    stream = cr_cuda_stream(device, call);
    cudnnHandle_t         handle;
    CR_TRY(cr_cuda_cudnn(cuda_of(device), &handle));
    CUDNN_TRY(cudnnSetStream(handle, stream));
    CR_TRY(before(s, call, stream));
    for (int64_t i = 0; i < s->slices.count; i++) {
        CR_TRY(bind(s, i, call));
        CUDNN_TRY(cudnnBackendExecute(handle, s->slice[i].plan->plan, s->slice[i].pack));
        CR_TRY(after_slice(s, i, call, stream));
    }
    return CR_OK;
}

/* With a ReLU mask: cuDNN's own sums have no fixed order. */
static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared_conv *s      = call->prepared;
    cr_status                   status = run(device, call);
    if (status == CR_OK && s->masks_relu) status = cr_cuda_bn_relu_grad(device, call, s->relu_mask_at);
    return status == CR_OK ? CR_OK : explained(status, call->program, call->op);
}

/* ---- the table ---- */

#define VARIANT(name, ...)                                                                                             \
    static const struct variant name = {__VA_ARGS__};                                                                  \
    static bool name##_accepts(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {        \
        return accepts(d, p, op, &name);                                                                               \
    }                                                                                                                  \
    static int name##_algo_count(struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {            \
        return algo_count(d, p, op, &name);                                                                            \
    }                                                                                                                  \
    static cr_status name##_prepare(struct cr_device *d, const struct cr_program *p, const struct cr_op *op,           \
                                    void **prepared, size_t *workspace_bytes) {                                        \
        return prepare(d, p, op, &name, prepared, workspace_bytes);                                                    \
    }
VARIANT(plain, .tf32 = false)
VARIANT(tf32, .tf32 = true)
VARIANT(relu_mask, .relu_mask = true)
VARIANT(tf32_relu_mask, .tf32 = true, .relu_mask = true)

enum { WHOLE = CR_RELAXED_NAN_RELU, HALF = CR_RELAXED_NAN_RELU | CR_RELAXED_HALF_BIAS | CR_RELAXED_ROUNDED_SUM };

/* The slots that request_op of cudnn_conv.c knows. */
#define conv_SLOTS .optional_in = CR_IN_BIT(conv, scale_bias) | CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add)
#define conv_dgrad_SLOTS CUDA_DGRAD_SLOTS
#define conv_wgrad_SLOTS .optional_in = CR_IN_BIT(conv_wgrad, scale_bias)
#define group_conv_SLOTS .optional_in = 0
#define group_conv_dgrad_SLOTS .optional_in = 0
#define group_conv_wgrad_SLOTS .optional_in = 0

#define KERNEL(kind, named, types, of_math, variant_name, freedom)                                                     \
    {                                                                                                                  \
        .name = "cudnn." #kind "." #named, .op = CR_OP_##kind, .math = CR_MATH_##of_math, .dtypes = types,             \
        kind##_SLOTS, .deterministic = true, .relaxations = freedom, .accepts = variant_name##_accepts,                \
        .algo_count = variant_name##_algo_count, .prepare = variant_name##_prepare, .complete = complete,              \
        .launch = launch, .release = release                                                                           \
    }
#define KERNELS(kind)                                                                                                  \
    KERNEL(kind, tf32, CR_TYPES_F32, TF32, tf32, WHOLE), KERNEL(kind, f32, CR_TYPES_F32, F32, plain, WHOLE),           \
        KERNEL(kind, *, CR_TYPES_HALF, DATA, plain, HALF)

// clang-format off
const struct cr_kernel cr_cudnn_conv_kernels[] = {
    KERNELS(conv),
    KERNELS(conv_dgrad),
    KERNEL(conv_dgrad, tf32_relu_mask, CR_TYPES_F32, TF32, tf32_relu_mask, WHOLE),
    KERNEL(conv_dgrad, f32_relu_mask, CR_TYPES_F32, F32, relu_mask, WHOLE),
    KERNEL(conv_dgrad, *_relu_mask, CR_TYPES_HALF, DATA, relu_mask, HALF),
    KERNELS(conv_wgrad),
    KERNELS(group_conv),
    KERNELS(group_conv_dgrad),
    KERNELS(group_conv_wgrad),
    {0}};
// clang-format on

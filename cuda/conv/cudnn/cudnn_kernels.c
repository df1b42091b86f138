/* cuda/conv/cudnn/cudnn_kernels.c: kernel table for convolution and its two gradients through cuDNN, plain and fused;
 * see cuda/conv/cudnn/cudnn_conv.h.
 *
 * Workspace of an op: the graph's scratch, then the sums of each slice if there are several, then the plan's workspace.
 * All ops run on CR_STREAM_COMPUTE, which is the handle's stream. */
#include "cuda/conv/cudnn/cudnn_conv.h"

#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <stdio.h>
#include <string.h>

/* ---- accepted ops, algorithms ---- */

/* cuDNN adds the sums of a convolution in the order in which blocks finish, so two runs may differ. */
static bool sums_as_they_come(const struct cudnn_conv_key *key) {
    return (key->uses & CR_CUDNN_SUMS) != 0;
}

/* `sums`: whether the kernel is the one for such sums. prepare reports a failure of cuDNN, which it gets again. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    enum cr_math math, bool sums) {
    struct cudnn_conv_key key;
    struct cudnn_slices   slices;
    if (!cr_cudnn_key_of(p, op, math, &key) || sums_as_they_come(&key) != sums || !cr_cudnn_slices_of(&key, &slices))
        return false;
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
static int algo_count_of(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_math math) {
    struct cudnn_conv_key    key;
    struct cudnn_slices      slices;
    struct cudnn_conv_plans *plans;
    if (!cr_cudnn_key_of(p, op, math, &key) || !cr_cudnn_slices_of(&key, &slices)) return 1;
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
    size_t                sums_at, plan_at; /* offsets in the workspace */
    size_t                sums_bytes;       /* bytes of a slice's sums; 0 when they are written to their final place */
    size_t                relu_mask_at;     /* offset in the workspace, when `masks_relu` */
    bool                  masks_relu;       /* ck_bn_relu_grad runs behind the convolution */
};

static void release(void *opaque) {
    struct prepared_conv *s = opaque;
    if (!s) return;
    for (int64_t i = 0; s->slice && i < s->slices.count; i++) cr_cudnn_pack_close(s->slice[i].pack);
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

static int64_t channels_of_sums(const struct cudnn_conv_key *k) {
    return k->dim[k->kind == CR_CUDNN_FORWARD ? CR_CUDNN_Y : CR_CUDNN_X][3];
}

static cr_status prepare_new(struct cuda_device *device, const struct cr_program *p, const struct cr_op *op,
                             enum cr_math math, struct prepared_conv *s, size_t *workspace_bytes) {
    size_t scratch, plan_bytes = 0;
    if (!cr_cudnn_key_of(p, op, math, &s->key) || !cr_cudnn_slices_of(&s->key, &s->slices))
        CR_ASSERT(!"accepts rejects this op");
    CR_ALLOC(s->slice, (size_t)s->slices.count);
    CR_TRY(prepare_slices(device, s, op->algo, &plan_bytes));
    scratch = s->slice[0].plans->problem.scratch_bytes; /* scratch for filters and channels: the same for all slices */
    if (s->slices.count > 1 && (s->key.uses & CR_CUDNN_SUMS))
        s->sums_bytes = aligned((size_t)channels_of_sums(&s->key) * 2 * sizeof(float));
    s->sums_at       = scratch;
    s->plan_at       = scratch + (size_t)s->slices.count * s->sums_bytes;
    *workspace_bytes = s->plan_at + plan_bytes;
    return CR_OK;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_math math, void **prepared, size_t *workspace_bytes) {
    struct prepared_conv *s;
    CR_ALLOC(s, 1);
    cr_status status = prepare_new(cuda_of(device), p, op, math, s, workspace_bytes);
    if (status != CR_OK) {
        release(s);
        return explained(status, p, op);
    }
    *prepared = s;
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
    case CR_CUDNN_SCRATCH: base = call->workspace; break;
    default: return NULL;
    }
    if (o->sum && s->sums_bytes) base = (char *)call->workspace + s->sums_at + (size_t)index * s->sums_bytes;
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

/* Copies and conversions before the convolution runs. */
static cr_status before(const struct prepared_conv *s, const struct cr_call *call, cudaStream_t stream) {
    const struct cudnn_problem *problem = &s->slice[0].plans->problem;
    if (s->key.uses & CR_CUDNN_WIDE_BIAS) {
        const struct cr_tensor *y = cuda_out(call->program, call->op, CR_OUT_conv_y);
        CUDA_TRY(ck_cast(call->in[CR_IN_conv_bias], cuda_type(y), (char *)call->workspace + problem->half_bias,
                         y->dim[3], stream));
    }
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
    CUDA_TRY(ck_convert_add(cuda_type(x), (char *)call->workspace + s->slice[index].plans->problem.half_dw,
                            call->out[CR_OUT_conv_wgrad_dw], cr_tensor_elems(dw),
                            index > 0 || call->op->attr.conv.accumulate, stream));
    return CR_OK;
}

static cr_status after(const struct prepared_conv *s, const struct cr_call *call, cudaStream_t stream) {
    if (!s->sums_bytes) return CR_OK;
    float *sums = call->out[s->key.kind == CR_CUDNN_FORWARD ? (int)CR_OUT_conv_sums : (int)CR_OUT_conv_dgrad_grad_sums];
    CUDA_TRY(ck_sum_slices((const float *)((char *)call->workspace + s->sums_at), sums, s->slices.count,
                           (int64_t)(s->sums_bytes / sizeof(float)), 2 * channels_of_sums(&s->key), stream));
    return CR_OK;
}

static cr_status run(struct cr_device *device, const struct cr_call *call) {
    struct prepared_conv *s      = call->prepared;
    const cudaStream_t    stream = cr_cuda_stream(device, call);
    cudnnHandle_t         handle;
    CR_ASSERT(call->op->stream == CR_STREAM_COMPUTE);
    CR_TRY(cr_cuda_cudnn(cuda_of(device), &handle));
    CR_TRY(before(s, call, stream));
    for (int64_t i = 0; i < s->slices.count; i++) {
        CR_TRY(bind(s, i, call));
        CUDNN_TRY(cudnnBackendExecute(handle, s->slice[i].plan->plan, s->slice[i].pack));
        CR_TRY(after_slice(s, i, call, stream));
    }
    return after(s, call, stream);
}

/* ---- a data gradient, then the ReLU mask and the BN's sums in a separate kernel: cuDNN's sums have no fixed order
 * ---- */

/* The part of the op that cuDNN runs. */
static struct cr_op without_relu_mask(const struct cr_op *op) {
    struct cr_op plain              = *op;
    plain.in[CR_IN_conv_dgrad_bn_x] = plain.in[CR_IN_conv_dgrad_mean_rstd] = CR_NONE;
    plain.in[CR_IN_conv_dgrad_gamma] = plain.in[CR_IN_conv_dgrad_beta] = plain.out[CR_OUT_conv_dgrad_grad_sums] =
        CR_NONE;
    return plain;
}

static bool is_f32(const struct cr_tensor *t) {
    return t && t->dtype == CR_F32;
}

static bool relu_mask_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              enum cr_math math) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_dgrad_bn_x), *dx = cuda_out(p, op, CR_OUT_conv_dgrad_dx);
    const struct cr_op      plain = without_relu_mask(op);
    return x && x->dtype == dx->dtype && x->dim[3] % 8 == 0 && is_f32(cuda_in(p, op, CR_IN_conv_dgrad_mean_rstd)) &&
           is_f32(cuda_in(p, op, CR_IN_conv_dgrad_gamma)) && is_f32(cuda_in(p, op, CR_IN_conv_dgrad_beta)) &&
           is_f32(cuda_out(p, op, CR_OUT_conv_dgrad_grad_sums)) && accepts(device, p, &plain, math, false);
}

static int relu_mask_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                enum cr_math math) {
    const struct cr_op plain = without_relu_mask(op);
    return algo_count_of(device, p, &plain, math);
}

static cr_status relu_mask_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                   enum cr_math math, void **prepared, size_t *workspace_bytes) {
    const struct cr_op plain = without_relu_mask(op);
    CR_TRY(prepare(device, p, &plain, math, prepared, workspace_bytes));
    struct prepared_conv *s = *prepared;
    s->masks_relu           = true;
    s->relu_mask_at         = aligned(*workspace_bytes);
    *workspace_bytes        = s->relu_mask_at + cr_cuda_bn_relu_grad_workspace(device, p, op);
    return CR_OK;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared_conv *s      = call->prepared;
    cr_status                   status = run(device, call);
    if (status == CR_OK && s->masks_relu) status = cr_cuda_bn_relu_grad(device, call, s->relu_mask_at);
    return status == CR_OK ? CR_OK : explained(status, call->program, call->op);
}

/* ---- the table ---- */

#define BY_MATH(type, MATH)                                                                                            \
    static cr_status prepare_##type(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,      \
                                    void **prepared, size_t *workspace_bytes) {                                        \
        return prepare(device, p, op, CR_MATH_##MATH, prepared, workspace_bytes);                                      \
    }                                                                                                                  \
    static int algo_count_##type(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {       \
        return algo_count_of(device, p, op, CR_MATH_##MATH);                                                           \
    }                                                                                                                  \
    static bool accepts_##type(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {   \
        return (CR_MATH_##MATH != CR_MATH_TF32 || device->options.tf32) &&                                             \
               accepts(device, p, op, CR_MATH_##MATH, false);                                                          \
    }
BY_MATH(f32, F32)
BY_MATH(tf32, TF32)
BY_MATH(f16, F16)
BY_MATH(bf16, BF16)
#define RELU_MASK_BY_MATH(type, MATH)                                                                                  \
    static cr_status prepare_##type##_relu_mask(struct cr_device *device, const struct cr_program *p,                  \
                                                const struct cr_op *op, void **prepared, size_t *workspace_bytes) {    \
        return relu_mask_prepare(device, p, op, CR_MATH_##MATH, prepared, workspace_bytes);                            \
    }                                                                                                                  \
    static int algo_count_##type##_relu_mask(struct cr_device *device, const struct cr_program *p,                     \
                                             const struct cr_op *op) {                                                 \
        return relu_mask_algo_count(device, p, op, CR_MATH_##MATH);                                                    \
    }                                                                                                                  \
    static bool accepts_##type##_relu_mask(const struct cr_device *device, const struct cr_program *p,                 \
                                           const struct cr_op *op) {                                                   \
        return (CR_MATH_##MATH != CR_MATH_TF32 || device->options.tf32) &&                                             \
               relu_mask_accepts(device, p, op, CR_MATH_##MATH);                                                       \
    }
RELU_MASK_BY_MATH(f32, F32)
RELU_MASK_BY_MATH(tf32, TF32)
RELU_MASK_BY_MATH(f16, F16)
RELU_MASK_BY_MATH(bf16, BF16)
static bool accepts_sums(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return accepts(device, p, op, CR_MATH_F16, true);
}

enum {
    WHOLE          = CR_RELAXED_NAN_RELU,
    HALF           = CR_RELAXED_NAN_RELU | CR_RELAXED_HALF_BIAS | CR_RELAXED_ROUNDED_SUM,
    HALF_RELU_MASK = HALF | CR_RELAXED_ZERO_GRADIENT
};

#define KERNEL(kind, named, type, MATH, repeats, accept, freedom)                                                      \
    static const struct cr_kernel kind##_##named = {.name          = "cudnn." #kind "." #named,                        \
                                                    .op            = CR_OP_##kind,                                     \
                                                    .math          = CR_MATH_##MATH,                                   \
                                                    .deterministic = repeats,                                          \
                                                    .relaxations   = freedom,                                          \
                                                    .accepts       = accept,                                           \
                                                    .algo_count    = algo_count_##type,                                \
                                                    .prepare       = prepare_##type,                                   \
                                                    .launch        = launch,                                           \
                                                    .release       = release};
#define KERNELS(kind)                                                                                                  \
    KERNEL(kind, tf32, tf32, TF32, true, accepts_tf32, WHOLE)                                                          \
    KERNEL(kind, f32, f32, F32, true, accepts_f32, WHOLE)                                                              \
    KERNEL(kind, f16, f16, F16, true, accepts_f16, HALF_RELU_MASK)                                                     \
    KERNEL(kind, bf16, bf16, BF16, true, accepts_bf16, HALF)
KERNELS(conv)
KERNELS(conv_dgrad)
KERNELS(conv_wgrad)
KERNELS(group_conv)
KERNELS(group_conv_dgrad)
KERNELS(group_conv_wgrad)
KERNEL(conv, f16_sums, f16, F16, false, accepts_sums, HALF)
KERNEL(conv_dgrad, f16_sums, f16, F16, false, accepts_sums, HALF_RELU_MASK)
KERNEL(conv_dgrad, tf32_relu_mask, tf32_relu_mask, TF32, true, accepts_tf32_relu_mask, WHOLE)
KERNEL(conv_dgrad, f32_relu_mask, f32_relu_mask, F32, true, accepts_f32_relu_mask, WHOLE)
KERNEL(conv_dgrad, f16_relu_mask, f16_relu_mask, F16, true, accepts_f16_relu_mask, HALF)
KERNEL(conv_dgrad, bf16_relu_mask, bf16_relu_mask, BF16, true, accepts_bf16_relu_mask, HALF)

#define BEST_FIRST(kind) &kind##_tf32, &kind##_f32, &kind##_f16, &kind##_bf16
const struct cr_kernel *const cr_cudnn_conv_kernels[] = {BEST_FIRST(conv),
                                                         &conv_f16_sums,
                                                         BEST_FIRST(conv_dgrad),
                                                         &conv_dgrad_f16_sums,
                                                         &conv_dgrad_tf32_relu_mask,
                                                         &conv_dgrad_f32_relu_mask,
                                                         &conv_dgrad_f16_relu_mask,
                                                         &conv_dgrad_bf16_relu_mask,
                                                         BEST_FIRST(conv_wgrad),
                                                         BEST_FIRST(group_conv),
                                                         BEST_FIRST(group_conv_dgrad),
                                                         BEST_FIRST(group_conv_wgrad),
                                                         NULL};

/* cudnn_conv.c: the GPU's rows for convolution and its two gradients through cuDNN; see cudnn_conv.h.
 *
 * Workspace of an op: the 16-bit dw, where there is one, then what the plan asks for. */
#include "cudnn_conv.h"

#include "cuda.h"
#include "cuda_libs.h"

#include <string.h>

/* ---- what is asked for ---- */

/* The three operands of the forward convolution, whatever the op calls them. */
struct operands {
    const struct cr_tensor *tensor[CR_CUDNN_OPERANDS];
};

static struct operands operands_of(const struct cr_program *p, const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_conv_dgrad:
        return (struct operands){{cuda_out(p, op, CR_OUT_conv_dgrad_dx), cuda_in(p, op, CR_IN_conv_dgrad_w),
                                  cuda_in(p, op, CR_IN_conv_dgrad_dy)}};
    case CR_OP_conv_wgrad:
        return (struct operands){{cuda_in(p, op, CR_IN_conv_wgrad_x), cuda_out(p, op, CR_OUT_conv_wgrad_dw),
                                  cuda_in(p, op, CR_IN_conv_wgrad_dy)}};
    default:
        CR_ASSERT(op->kind == CR_OP_conv);
        return (struct operands){
            {cuda_in(p, op, CR_IN_conv_x), cuda_in(p, op, CR_IN_conv_w), cuda_out(p, op, CR_OUT_conv_y)}};
    }
}

static enum cudnn_conv_kind kind_of(const struct cr_op *op) {
    return op->kind == CR_OP_conv ? CR_CUDNN_FORWARD : op->kind == CR_OP_conv_dgrad ? CR_CUDNN_DGRAD : CR_CUDNN_WGRAD;
}

static enum cr_dtype dtype_of(enum cr_math math) {
    return math == CR_MATH_F16 ? CR_F16 : math == CR_MATH_BF16 ? CR_BF16 : CR_F32;
}

/* The gradient of a filter is f32 in programs of every type. */
/* cuDNN says yes to tensors of 2^31 elements and more, which its engines do not promise to index: those are for own rows. */
static bool fits(const struct operands *o, const struct cr_op *op, enum cr_math math) {
    const enum cr_dtype real = dtype_of(math), filter = op->kind == CR_OP_conv_wgrad ? CR_F32 : real;
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++)
        if (cr_tensor_elems(o->tensor[i]) > INT32_MAX) return false;
    return o->tensor[CR_CUDNN_X]->dtype == real && o->tensor[CR_CUDNN_W]->dtype == filter &&
           o->tensor[CR_CUDNN_Y]->dtype == real;
}

/* All that a plan depends on; whole numbers of one size, so that keys can be compared byte by byte. */
struct conv_key {
    int64_t kind, type, full, accumulate, stride, pad, dim[CR_CUDNN_OPERANDS][4];
};

static struct conv_key key_of(const struct operands *o, const struct cr_op *op, enum cr_math math) {
    const struct cr_conv_attr *a    = &op->attr.conv;
    const bool                 half = dtype_of(math) != CR_F32;
    struct conv_key k = {.kind = kind_of(op), .stride = a->stride, .pad = a->pad, .full = math == CR_MATH_F32};
    k.type = math == CR_MATH_F16 ? CUDNN_DATA_HALF : math == CR_MATH_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    k.accumulate = op->kind == CR_OP_conv_wgrad && a->accumulate && !half; /* of 16-bit dw, the conversion adds */
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++) memcpy(k.dim[i], o->tensor[i]->dim, sizeof k.dim[i]);
    return k;
}

/* ---- plans ---- */

static size_t bytes_of(const struct conv_key *k, int operand) {
    const int64_t *d = k->dim[operand];
    return (size_t)(d[0] * d[1] * d[2] * d[3]) * (k->type == CUDNN_DATA_FLOAT ? 4 : 2);
}

/* cuDNN 9's forward engine for few channels. In f16 it writes 0 where a sum is below -65504 (a row must write -inf), which
 * would hide an overflow; found by checkops on an H200. */
enum { ENGINE_THAT_LOSES_MINUS_INFINITY = 47 };

/* Room to hold every operand once more, in another layout or with padded channels: some engines work so. */
static struct cudnn_rules rules_of(const struct conv_key *k) {
    struct cudnn_rules r = {.workspace_bytes = (size_t)256 << 20, .refused_engine = -1};
    if (k->kind == CR_CUDNN_FORWARD && k->type == CUDNN_DATA_HALF) r.refused_engine = ENGINE_THAT_LOSES_MINUS_INFINITY;
    r.refused_notes = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                      1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                      1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                      1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    if (k->full) r.refused_notes |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++) r.workspace_bytes += bytes_of(k, i);
    return r;
}

static cr_status find_plans(struct cudnn_place place, const struct conv_key *k, int wanted,
                            struct cudnn_conv_plans *out) {
    const struct cudnn_window window = {.stride = k->stride, .pad = k->pad};
    const struct cudnn_rules  rules  = rules_of(k);
    cr_cudnn_graph_init(&out->graph, place);
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++)
        (void)cr_cudnn_tensor(&out->graph, (cudnnDataType_t)k->type, k->dim[i], false);
    cr_cudnn_conv(&out->graph, (enum cudnn_conv_kind)k->kind, &window, CR_CUDNN_X, CR_CUDNN_W, CR_CUDNN_Y,
                  k->accumulate);
    if (k->kind == CR_CUDNN_WGRAD && k->type != CUDNN_DATA_FLOAT)
        out->half_bytes = (bytes_of(k, CR_CUDNN_W) + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
    return cr_cudnn_graph_plans(&out->graph, &rules, out->plan, CR_MIN(wanted, (int)CR_CUDNN_CANDIDATES), &out->plans);
}

static void close_plans(struct cudnn_conv_plans *plans) {
    for (int i = 0; i < plans->plans; i++) cr_cudnn_plan_close(&plans->plan[i]);
    cr_cudnn_graph_close(&plans->graph);
}

/* ---- the device's ---- */

struct cache_entry {
    struct cache_entry     *next;
    struct conv_key         key;
    int                     wanted;
    struct cudnn_conv_plans plans;
};
struct cudnn_cache {
    struct cache_entry *first; /* a network has some hundred: a walk is cheaper than anything cuDNN does */
};

void cr_cudnn_cache_close(struct cudnn_cache *cache) {
    if (!cache) return;
    for (struct cache_entry *e = cache->first, *next; e; e = next) {
        next = e->next;
        close_plans(&e->plans);
        cr_free(e);
    }
    cr_free(cache);
}

cr_status cr_cudnn_conv_plans(struct cuda_device *device, const struct cr_program *p, const struct cr_op *op,
                              enum cr_math math, int wanted, struct cudnn_conv_plans **out) {
    const struct operands o     = operands_of(p, op);
    const struct conv_key key   = key_of(&o, op, math);
    struct cudnn_place    place = {0};
    struct cache_entry   *e;
    CR_TRY(cr_cuda_cudnn(device, &place.handle));
    if (!device->plans) CR_ALLOC(device->plans, 1);
    for (e = device->plans->first; e; e = e->next)
        if (e->wanted >= wanted && memcmp(&e->key, &key, sizeof key) == 0) break;
    if (!e) { /* an entry with too few stays: ops may be prepared with it */
        CR_ALLOC(e, 1);
        e->key           = key;
        e->wanted        = wanted;
        cr_status status = find_plans(place, &key, wanted, &e->plans);
        if (status != CR_OK) {
            close_plans(&e->plans);
            cr_free(e);
            return cr_error_forward(status, __FILE__, __LINE__);
        }
        e->next              = device->plans->first;
        device->plans->first = e;
    }
    *out = &e->plans;
    return CR_OK;
}

cr_status cr_cudnn_support(int cc, const struct cr_program *p, const struct cr_op *op, enum cr_math math,
                           struct cudnn_support *out) {
    const struct operands   o     = operands_of(p, op);
    struct cudnn_conv_plans plans = {0};
    struct cudnn_place      place;
    if (cr_cuda_libs_missing()) return CR_FAIL(CR_ERR_DEVICE, "%s", cr_cuda_libs_missing());
    *out = (struct cudnn_support){0};
    if (!fits(&o, op, math)) return CR_OK;
    const struct conv_key key = key_of(&o, op, math);
    CR_TRY(cr_cudnn_place_described(cc, &place));
    cr_status status = find_plans(place, &key, 1, &plans);
    if (plans.plans)
        *out = (struct cudnn_support){.supported       = true,
                                      .engine          = plans.plan[0].engine,
                                      .notes           = plans.plan[0].notes,
                                      .workspace_bytes = plans.half_bytes + plans.plan[0].workspace_bytes};
    close_plans(&plans);
    cr_cudnn_place_close(&place);
    return status;
}

/* ---- accepts, prepare ---- */

/* What breaks is told by prepare, which meets it again. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    enum cr_math math) {
    const struct operands    o = operands_of(p, op);
    struct cudnn_conv_plans *plans;
    if (!fits(&o, op, math)) return false;
    if (cr_cudnn_conv_plans(cuda_of(device), p, op, math, 1, &plans) == CR_OK) return plans->plans > 0;
    cr_error_clear();
    return true;
}

static cr_status explained(cr_status status, const struct cr_program *p, const struct cr_op *op) {
    const struct operands      o = operands_of(p, op);
    const struct cr_tensor    *x = o.tensor[CR_CUDNN_X], *w = o.tensor[CR_CUDNN_W], *y = o.tensor[CR_CUDNN_Y];
    const struct cr_conv_attr *a = &op->attr.conv;
    return CR_FAIL(status,
                   "%s; asked for: %s of layer %s, NHWC, x %s[%lld,%lld,%lld,%lld], w %s[%lld,%lld,%lld,%lld], "
                   "y %s[%lld,%lld,%lld,%lld], stride %d, pad %d",
                   cr_error_message(), cr_op_info(op->kind)->name, op->layer >= 0 ? p->layer[op->layer] : "?",
                   cr_dtype_name(x->dtype), (long long)x->dim[0], (long long)x->dim[1], (long long)x->dim[2],
                   (long long)x->dim[3], cr_dtype_name(w->dtype), (long long)w->dim[0], (long long)w->dim[1],
                   (long long)w->dim[2], (long long)w->dim[3], cr_dtype_name(y->dtype), (long long)y->dim[0],
                   (long long)y->dim[1], (long long)y->dim[2], (long long)y->dim[3], a->stride, a->pad);
}

/* One prepared op. The pack holds addresses: it is made at the first launch, and again when they are others. */
struct conv_state {
    const struct cudnn_conv_plans *plans;
    const struct cudnn_plan       *plan;
    cudnnBackendDescriptor_t       pack;
    void                          *operand[CR_CUDNN_OPERANDS], *workspace;
};

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_math math, void **prepared, size_t *workspace_bytes) {
    struct cudnn_conv_plans *plans;
    struct conv_state       *s;
    cr_status                status = cr_cudnn_conv_plans(cuda_of(device), p, op, math, 1, &plans);
    if (status != CR_OK) return explained(status, p, op);
    CR_ASSERT(plans->chosen < plans->plans);
    CR_ALLOC(s, 1);
    s->plans         = plans;
    s->plan          = &plans->plan[plans->chosen];
    *workspace_bytes = plans->half_bytes + s->plan->workspace_bytes;
    *prepared        = s;
    return CR_OK;
}

static void release(void *opaque) {
    struct conv_state *s = opaque;
    if (!s) return;
    cr_cudnn_pack_close(s->pack);
    cr_free(s);
}

/* ---- launch ---- */

static void *mutable(const void *p) {
    return (void *)(uintptr_t)p;
}

static void gather(const struct cr_call *call, void *operand[CR_CUDNN_OPERANDS]) {
    switch (call->op->kind) {
    case CR_OP_conv_dgrad:
        operand[CR_CUDNN_X] = call->out[CR_OUT_conv_dgrad_dx];
        operand[CR_CUDNN_W] = mutable(call->in[CR_IN_conv_dgrad_w]);
        operand[CR_CUDNN_Y] = mutable(call->in[CR_IN_conv_dgrad_dy]);
        break;
    case CR_OP_conv_wgrad:
        operand[CR_CUDNN_X] = mutable(call->in[CR_IN_conv_wgrad_x]);
        operand[CR_CUDNN_W] = call->out[CR_OUT_conv_wgrad_dw];
        operand[CR_CUDNN_Y] = mutable(call->in[CR_IN_conv_wgrad_dy]);
        break;
    default:
        operand[CR_CUDNN_X] = mutable(call->in[CR_IN_conv_x]);
        operand[CR_CUDNN_W] = mutable(call->in[CR_IN_conv_w]);
        operand[CR_CUDNN_Y] = call->out[CR_OUT_conv_y];
    }
}

static cr_status bind(struct conv_state *s, void *const operand[CR_CUDNN_OPERANDS], void *workspace) {
    if (s->pack && memcmp(s->operand, operand, sizeof s->operand) == 0 && s->workspace == workspace) return CR_OK;
    cr_cudnn_pack_close(s->pack);
    s->pack = NULL;
    memcpy(s->operand, operand, sizeof s->operand);
    s->workspace = workspace;
    return cr_cudnn_pack_open(&s->plans->graph, operand, workspace, &s->pack);
}

/* The handle's stream is lane COMPUTE, where all of these ops run. */
static cr_status run(struct cr_device *device, const struct cr_call *call) {
    struct conv_state *s    = call->prepared;
    const size_t       half = s->plans->half_bytes;
    void              *operand[CR_CUDNN_OPERANDS];
    cudnnHandle_t      handle;
    CR_ASSERT(call->op->lane == CR_LANE_COMPUTE);
    CR_TRY(cr_cuda_cudnn(cuda_of(device), &handle));
    gather(call, operand);
    if (half) operand[CR_CUDNN_W] = call->workspace;
    CR_TRY(bind(s, operand, s->plan->workspace_bytes ? (char *)call->workspace + half : NULL));
    CUDNN_TRY(cudnnBackendExecute(handle, s->plan->plan, s->pack));
    if (!half) return CR_OK;
    const struct cr_tensor *x  = cuda_in(call->program, call->op, CR_IN_conv_wgrad_x);
    const struct cr_tensor *dw = cuda_out(call->program, call->op, CR_OUT_conv_wgrad_dw);
    CUDA_TRY(ck_convert_add(cuda_type(x), call->workspace, call->out[CR_OUT_conv_wgrad_dw], cr_tensor_elems(dw),
                            call->op->attr.conv.accumulate, cr_cuda_stream(device, call)));
    return CR_OK;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    cr_status status = run(device, call);
    return status == CR_OK ? CR_OK : explained(status, call->program, call->op);
}

/* ---- the table ---- */

#define BY_MATH(type, MATH)                                                                                            \
    static cr_status prepare_##type(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,      \
                                    void **prepared, size_t *workspace_bytes) {                                        \
        return prepare(device, p, op, CR_MATH_##MATH, prepared, workspace_bytes);                                      \
    }                                                                                                                  \
    static bool accepts_##type(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {   \
        return (CR_MATH_##MATH != CR_MATH_TF32 || device->options.tf32) && accepts(device, p, op, CR_MATH_##MATH);     \
    }
BY_MATH(f32, F32)
BY_MATH(tf32, TF32)
BY_MATH(f16, F16)
BY_MATH(bf16, BF16)

#define ROW(kind, type, MATH)                                                                                          \
    static const struct cr_kernel kind##_##type = {.name          = "cudnn." #kind "." #type,                          \
                                                   .op            = CR_OP_##kind,                                      \
                                                   .math          = CR_MATH_##MATH,                                    \
                                                   .deterministic = true,                                              \
                                                   .accepts       = accepts_##type,                                    \
                                                   .prepare       = prepare_##type,                                    \
                                                   .launch        = launch,                                            \
                                                   .release       = release};
#define ROWS(kind) ROW(kind, tf32, TF32) ROW(kind, f32, F32) ROW(kind, f16, F16) ROW(kind, bf16, BF16)
ROWS(conv)
ROWS(conv_dgrad)
ROWS(conv_wgrad)

#define BEST_FIRST(kind) &kind##_tf32, &kind##_f32, &kind##_f16, &kind##_bf16
const struct cr_kernel *const cr_cudnn_conv_rows[] = {BEST_FIRST(conv), BEST_FIRST(conv_dgrad), BEST_FIRST(conv_wgrad),
                                                      NULL};

/* cuda/conv/cudnn/cudnn_conv.c: cuDNN convolutions: keys of ops, slices of large batches, and the device's cache of
 * plans; see cuda/conv/cudnn/cudnn_conv.h. */
#include "cuda/conv/cudnn/cudnn_conv.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"
#include "cuda/core/libraries.h"
#include "cuda/core/op_shapes.h"

#include <string.h>

/* ---- keys ---- */

#define IN(kind, slot) cuda_in(p, op, CR_IN_##kind##_##slot)
#define OUT(kind, slot) cuda_out(p, op, CR_OUT_##kind##_##slot)

/* Each function sets the operands of an op kind and the features that the op uses. Returns false when cuDNN's kernels
 * do not support the op, whose slots the row of the kernel names. `real` is the type of the images. */
struct conv_request {
    enum cudnn_conv_kind    kind;
    const struct cr_tensor *tensor[CR_CUDNN_OPERANDS];
    int64_t                 uses;
};

static bool request_conv(const struct cr_program *p, const struct cr_op *op, enum cr_dtype real,
                         struct conv_request *a) {
    const struct cr_tensor *scale_bias = IN(conv, scale_bias), *bias = IN(conv, bias), *add = IN(conv, add);
    a->tensor[CR_CUDNN_X] = IN(conv, x);
    a->tensor[CR_CUDNN_W] = IN(conv, w);
    a->tensor[CR_CUDNN_Y] = OUT(conv, y);
    if (scale_bias) a->uses |= CR_CUDNN_SCALE_BIAS;
    if (bias) a->uses |= CR_CUDNN_BIAS;
    if (bias && real != CR_F32) a->uses |= CR_CUDNN_WIDE_BIAS;
    if (add) a->uses |= CR_CUDNN_ADD;
    if (op->attr.conv.relu) a->uses |= CR_CUDNN_RELU;
    if (!bias && (add || op->attr.conv.relu)) return false;
    if ((bias && scale_bias) || OUT(conv, sums)) return false;
    return !scale_bias || (scale_bias->dtype == real && real != CR_F32);
}

static bool request_wgrad(const struct cr_program *p, const struct cr_op *op, enum cr_dtype real,
                          struct conv_request *a) {
    const struct cr_tensor *scale_bias = IN(conv_wgrad, scale_bias);
    a->tensor[CR_CUDNN_X]              = IN(conv_wgrad, x);
    a->tensor[CR_CUDNN_W]              = OUT(conv_wgrad, dw);
    a->tensor[CR_CUDNN_Y]              = IN(conv_wgrad, dy);
    if (scale_bias) a->uses |= CR_CUDNN_SCALE_BIAS;
    return !scale_bias || (scale_bias->dtype == real && real != CR_F32);
}

static bool request_dgrad(const struct cr_program *p, const struct cr_op *op, struct conv_request *a) {
    a->tensor[CR_CUDNN_X] = OUT(conv_dgrad, dx);
    a->tensor[CR_CUDNN_W] = IN(conv_dgrad, w);
    a->tensor[CR_CUDNN_Y] = IN(conv_dgrad, dy);
    if (IN(conv_dgrad, add)) a->uses |= CR_CUDNN_ADD;
    return !IN(conv_dgrad, bn_x) && !OUT(conv_dgrad, grad_sums) && !IN(conv_dgrad, mean_rstd) &&
           !IN(conv_dgrad, gamma) && !IN(conv_dgrad, beta);
}

/* cuDNN takes the number of groups from the channels of x and of the filters. */
static bool request_op(const struct cr_program *p, const struct cr_op *op, enum cr_dtype real, struct conv_request *a) {
    switch (op->kind) {
    case CR_OP_group_conv:
    case CR_OP_conv: a->kind = CR_CUDNN_FORWARD; return request_conv(p, op, real, a);
    case CR_OP_group_conv_dgrad:
    case CR_OP_conv_dgrad: a->kind = CR_CUDNN_DGRAD; return request_dgrad(p, op, a);
    default: a->kind = CR_CUDNN_WGRAD; return request_wgrad(p, op, real, a);
    }
}

static cudnnDataType_t type_of(enum cr_dtype real) {
    return real == CR_F16 ? CUDNN_DATA_HALF : real == CR_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

bool cr_cudnn_key_of(const struct cr_program *p, const struct cr_op *op, enum cr_math math,
                     struct cudnn_conv_key *out) {
    const enum cr_dtype real = math == CR_MATH_F16 ? CR_F16 : math == CR_MATH_BF16 ? CR_BF16 : CR_F32;
    struct conv_request a    = {0};
    if (!cr_op_has_types(p, op, 1u << real) || !request_op(p, op, real, &a)) return false;
    *out = (struct cudnn_conv_key){.kind   = a.kind,
                                   .type   = type_of(real),
                                   .full   = math == CR_MATH_F32,
                                   .stride = op->attr.conv.stride,
                                   .pad    = op->attr.conv.pad,
                                   .uses   = a.uses};
    /* the conversion of a 16-bit dw adds */
    out->accumulate = a.kind == CR_CUDNN_WGRAD && op->attr.conv.accumulate && real == CR_F32;
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++) memcpy(out->dim[i], a.tensor[i]->dim, sizeof out->dim[i]);
    return true;
}

/* act(x) in a convolution graph is supported for f16 only, with whole vectors of channels and filters up to 5x5
 * (tests/gpu/test_cudnn_support.c checks this against cuDNN). */
static bool is_fused_for_training(const struct cudnn_conv_key *k) {
    return (k->uses & CR_CUDNN_SCALE_BIAS) != 0;
}

bool cr_cudnn_may_have(const struct cudnn_conv_key *k) {
    if (!is_fused_for_training(k)) return true;
    const int64_t *w = k->dim[CR_CUDNN_W];
    return k->type == CUDNN_DATA_HALF && w[0] % 8 == 0 && w[3] % 8 == 0 && w[1] <= 5 && w[2] <= 5;
}

/* ---- slices ---- */

static int64_t elems_behind_first(const int64_t dim[4]) {
    return dim[1] * dim[2] * dim[3];
}

/* Slices begin at 16-byte addresses: at any image, or at every eighth image where the size of an image is not a
 * multiple of 16 bytes. Slices of equal size share their plans, so the function looks for a slice count that divides
 * the batch, up to twice the smallest count. */
bool cr_cudnn_slices_of(const struct cudnn_conv_key *k, struct cudnn_slices *out) {
    const int64_t batch = k->dim[CR_CUDNN_X][0], w = elems_behind_first(k->dim[CR_CUDNN_W]);
    const int64_t x = elems_behind_first(k->dim[CR_CUDNN_X]), y = elems_behind_first(k->dim[CR_CUDNN_Y]);
    const int64_t step = x % 8 || y % 8 ? 8 : 1,
                  most = INT32_MAX / CR_MAX(x, y); /* the largest index that cuDNN's engines support */
    if (k->dim[CR_CUDNN_W][0] > INT32_MAX / w) return false;
    *out = (struct cudnn_slices){.count = 1, .images = batch};
    if (batch <= most) return true;
    if (most < step) return false;
    const int64_t least = (batch + most / step * step - 1) / (most / step * step);
    int64_t       count = least;
    while (count < 2 * least && batch % (count * step)) count++;
    if (batch % (count * step)) count = least;
    out->images = ((batch + count - 1) / count + step - 1) / step * step;
    out->count  = (batch + out->images - 1) / out->images;
    return true;
}

struct cudnn_conv_key cr_cudnn_slice_key(const struct cudnn_conv_key *key, const struct cudnn_slices *slices,
                                         int64_t index) {
    struct cudnn_conv_key k      = *key;
    const int64_t         images = CR_MIN(slices->images, key->dim[CR_CUDNN_X][0] - index * slices->images);
    k.dim[CR_CUDNN_X][0] = k.dim[CR_CUDNN_Y][0] = images;
    if (k.kind == CR_CUDNN_WGRAD && !cudnn_has_half_dw(&k) && index > 0) k.accumulate = true;
    return k;
}

/* ---- plans ---- */

static size_t bytes_of(const struct cudnn_conv_key *k, int operand) {
    const int64_t *d = k->dim[operand];
    return (size_t)(d[0] * d[1] * d[2] * d[3]) * (k->type == CUDNN_DATA_FLOAT ? 4 : 2);
}

/* Workspace limit: enough for a second copy of every operand, in another layout or with padded channels, which some
 * engines need. */
static struct cudnn_rules rules_of(const struct cudnn_conv_key *k) {
    struct cudnn_rules r = {.workspace_bytes = (size_t)256 << 20};
    cr_cudnn_refused_engines(k, r.refused_engine);
    r.refused_notes = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                      1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                      1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                      1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    if (k->full) r.refused_notes |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    for (int i = 0; i < CR_CUDNN_OPERANDS; i++) r.workspace_bytes += bytes_of(k, i);
    return r;
}

static void open_plans(struct cudnn_conv_plans *s, struct cudnn_device gpu, const struct cudnn_conv_key *key) {
    const struct cudnn_rules rules = rules_of(key);
    *s                             = (struct cudnn_conv_plans){.key = *key};
    cr_cudnn_problem_open(gpu, key, &s->problem);
    cr_cudnn_search_open(&s->problem.graph, &rules, &s->search);
}

static cr_status want_plans(struct cudnn_conv_plans *s, int wanted) {
    while (!s->all && s->plans < wanted) {
        bool found;
        CR_TRY(cr_cudnn_search_next(&s->search, &s->plan[s->plans], &found));
        s->plans += found;
        s->all = !found || s->plans == CR_CUDNN_CANDIDATES;
        if (s->all) cr_cudnn_search_close(&s->search);
    }
    return CR_OK;
}

/* Where the heuristic is quick, the plan is built now, because it will be used. */
static cr_status query_available(struct cudnn_conv_plans *s) {
    if (s->queried) return CR_OK;
    if (!is_fused_for_training(&s->key)) {
        CR_TRY(want_plans(s, 1));
        s->available = s->plans > 0;
    } else {
        const struct cudnn_rules rules = rules_of(&s->key);
        CR_TRY(cr_cudnn_graph_has(&s->problem.graph, &rules, &s->available));
    }
    s->queried = true;
    return CR_OK;
}

static void close_plans(struct cudnn_conv_plans *s) {
    cr_cudnn_search_close(&s->search);
    for (int i = 0; i < s->plans; i++) cr_cudnn_plan_close(&s->plan[i]);
    cr_cudnn_problem_close(&s->problem);
}

/* ---- the device's cache ---- */

struct cache_entry {
    struct cache_entry     *next;
    struct cudnn_conv_plans plans;
};
struct cudnn_cache {
    /* a network has about a hundred entries; a list search is faster than any call of cuDNN */
    struct cache_entry *first;
    struct cudnn_device gpu; /* of an offline device; otherwise the handle, which the device owns, is used */
};

void cr_cudnn_cache_close(struct cudnn_cache *cache) {
    if (!cache) return;
    for (struct cache_entry *e = cache->first, *next; e; e = next) {
        next = e->next;
        close_plans(&e->plans);
        cr_free(e);
    }
    if (cache->gpu.offline) cr_cudnn_device_close(&cache->gpu);
    cr_free(cache);
}

static cr_status find_entry(struct cuda_device *device, const struct cudnn_conv_key *key, struct cache_entry **out) {
    struct cache_entry *e;
    if (!device->plans) CR_ALLOC(device->plans, 1);
    struct cudnn_device *gpu = &device->plans->gpu;
    if (!device->offline)
        CR_TRY(cr_cuda_cudnn(device, &gpu->handle));
    else if (!gpu->offline)
        CR_TRY(cr_cudnn_device_open_offline(device->offline, gpu));
    for (e = device->plans->first; e; e = e->next)
        if (memcmp(&e->plans.key, key, sizeof *key) == 0) break;
    if (!e) {
        CR_ALLOC(e, 1);
        open_plans(&e->plans, *gpu, key);
        e->next              = device->plans->first;
        device->plans->first = e;
    }
    *out = e;
    return CR_OK;
}

cr_status cr_cudnn_conv_plans(struct cuda_device *device, const struct cudnn_conv_key *key, int wanted,
                              struct cudnn_conv_plans **out) {
    struct cache_entry *e;
    CR_TRY(find_entry(device, key, &e));
    CR_TRY(want_plans(&e->plans, CR_MIN(wanted, (int)CR_CUDNN_CANDIDATES)));
    *out = &e->plans;
    return CR_OK;
}

cr_status cr_cudnn_conv_has(struct cuda_device *device, const struct cudnn_conv_key *key, bool *out) {
    struct cache_entry *e;
    *out = false;
    if (!cr_cudnn_may_have(key)) return CR_OK;
    CR_TRY(find_entry(device, key, &e));
    CR_TRY(query_available(&e->plans));
    *out = e->plans.available;
    return CR_OK;
}

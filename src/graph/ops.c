/* graph/ops.c: shape and type inference (infer_<op>: output shapes) of every op kind of graph/ops.def. */
#include "graph/graph.h"

#include <string.h>

/* Arguments and result of an inference rule. */
struct rule {
    const struct cr_program *p;
    const struct cr_op      *op;
    int                      slot; /* output slot to infer */
    enum cr_dtype            dtype;
    int64_t                 *dim;
};

static const struct cr_tensor *input(const struct rule *r, int slot) {
    return &r->p->tensor[r->op->in[slot]];
}
static bool has(const struct rule *r, int slot) {
    return r->op->in[slot] != CR_NONE;
}

static void set(struct rule *r, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t dim[4] = {a, b, c, d};
    r->dtype             = dtype;
    memcpy(r->dim, dim, sizeof dim);
}
static void set_like(struct rule *r, const struct cr_tensor *t) {
    set(r, t->dtype, t->dim[0], t->dim[1], t->dim[2], t->dim[3]);
}
static bool same_shape(const struct cr_tensor *a, const struct cr_tensor *b) {
    return memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

/* Statistics and sums are f32 for all types of activations, except f64 in an f64 program. */
static enum cr_dtype wide(const struct cr_tensor *t) {
    return t->dtype == CR_F64 ? CR_F64 : CR_F32;
}

/* An optional slot holds [rows, C] coefficients for the channels of t. */
static void check_coefficients(const struct rule *r, int slot, int64_t rows, const struct cr_tensor *t) {
    if (has(r, slot)) CR_ASSERT(input(r, slot)->dim[0] == rows && input(r, slot)->dim[3] == t->dim[3]);
}
static void check_like(const struct rule *r, int slot, const struct cr_tensor *t) {
    if (has(r, slot)) CR_ASSERT(same_shape(input(r, slot), t));
}
/* A slot for a ReLU mask: the activation, or its mask of bits. */
static void check_mask(const struct rule *r, int slot, const struct cr_tensor *t) {
    if (!has(r, slot)) return;
    const struct cr_tensor *y = input(r, slot);
    if (y->dtype == CR_U8)
        CR_ASSERT(t->dim[3] % 8 == 0 && cr_tensor_elems(y) * 8 == cr_tensor_elems(t));
    else
        CR_ASSERT(same_shape(y, t));
}
/* Sums for each channel: [2, C]. */
static void set_sums(struct rule *r, const struct cr_tensor *t, int64_t channels) {
    set(r, wide(t), 2, 1, 1, channels);
}

static int64_t window_out(int64_t in, int64_t window, int stride, int pad) {
    CR_ASSERT(stride > 0 && pad >= 0 && in + 2 * pad >= window);
    return (in + 2 * pad - window) / stride + 1;
}

/* ---- forward ---- */

/* The channels of a batch of images. */
static int64_t image_channels(const struct rule *r, const struct cr_tensor *x) {
    const int64_t bytes = r->op->attr.input.wide ? 2 : 1, channels = x->dim[3] / bytes;
    CR_ASSERT(x->dtype == CR_U8 && x->dim[3] % bytes == 0 && (channels == 1 || channels == 3 || channels == 4));
    return channels;
}

static void infer_normalize(struct rule *r) {
    const struct cr_tensor *x        = input(r, CR_IN_normalize_images);
    const int64_t           channels = image_channels(r, x);
    if (r->op->in[CR_IN_normalize_boxes] != CR_NONE) {
        const struct cr_tensor *boxes = input(r, CR_IN_normalize_boxes);
        CR_ASSERT(boxes->dtype == CR_I32 && boxes->dim[0] == x->dim[0] && cr_tensor_elems(boxes) == 4 * x->dim[0]);
    }
    if (!r->op->attr.input.s2d) {
        set(r, r->p->real, x->dim[0], x->dim[1], x->dim[2], channels);
        return;
    }
    CR_ASSERT(x->dim[1] % 2 == 0 && x->dim[2] % 2 == 0 && x->dim[3] == 3 && !r->op->attr.input.wide);
    set(r, r->p->real, x->dim[0], x->dim[1] / 2 + 3, x->dim[2] / 2 + 3, 16);
}

/* y and z of two 1x1 convolutions, with or without a 3x3 convolution in front */
static void set_pair(struct rule *r, int w_slot, int next_slot, int first) {
    const struct cr_tensor *x = input(r, 0), *w = input(r, w_slot), *next = input(r, next_slot);
    CR_ASSERT((has(r, first) ? input(r, first)->dim[0] : x->dim[3]) == w->dim[3] && w->dim[0] == next->dim[3]);
    set(r, x->dtype, x->dim[0], x->dim[1], x->dim[2], r->slot == 0 ? w->dim[0] : next->dim[0]);
}

static void infer_mix(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_mix_images), *boxes = input(r, CR_IN_mix_boxes),
                           *mixes = input(r, CR_IN_mix_mixes);
    CR_ASSERT(image_channels(r, x) && cr_tensor_elems(boxes) == 4 * x->dim[0]);
    CR_ASSERT(mixes->dtype == CR_I32 && cr_tensor_elems(mixes) == CR_MIX_NUMBERS * x->dim[0]);
    set_like(r, x);
}

static void infer_conv(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_conv_x), *w = input(r, CR_IN_conv_w);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    CR_ASSERT(x->dim[3] == w->dim[3]);
    check_coefficients(r, CR_IN_conv_scale_bias, 2, x);
    if (has(r, CR_IN_conv_bias)) CR_ASSERT(input(r, CR_IN_conv_bias)->dim[3] == w->dim[0]);
    if (has(r, CR_IN_conv_gamma))
        CR_ASSERT(input(r, CR_IN_conv_gamma)->dim[3] == w->dim[0] && r->op->out[CR_OUT_conv_sums] != CR_NONE &&
                  a->bn.count > 0);
    if (has(r, CR_IN_conv_out_scale_bias))
        CR_ASSERT(input(r, CR_IN_conv_out_scale_bias)->dim[3] == w->dim[0] && !has(r, CR_IN_conv_bias) &&
                  r->op->out[CR_OUT_conv_sums] == CR_NONE);
    const bool mask = r->slot == CR_OUT_conv_mask;
    CR_ASSERT(!mask || (w->dim[0] % 8 == 0 && a->relu && has(r, CR_IN_conv_out_scale_bias)));
    if (r->slot != CR_OUT_conv_y &&
        !mask) { /* sums, next_scale_bias, mean_rstd; the running statistics belong to the parameter store */
        CR_ASSERT(r->slot <= CR_OUT_conv_mean_rstd);
        set_sums(r, x, w->dim[0]);
        return;
    }
    set(r, mask ? CR_U8 : x->dtype, x->dim[0], window_out(x->dim[1], w->dim[1], a->stride, a->pad),
        window_out(x->dim[2], w->dim[2], a->stride, a->pad), mask ? w->dim[0] / 8 : w->dim[0]);
}

/* Max pooling of a convolution: windows of 3x3, stride 2, padding 1. */
static void set_pooled(struct rule *r, enum cr_dtype dtype, const struct cr_tensor *x, const struct cr_tensor *w,
                       int stride, int pad) {
    CR_ASSERT(x->dim[3] == w->dim[3]);
    set(r, dtype, x->dim[0], window_out(window_out(x->dim[1], w->dim[1], stride, pad), 3, 2, 1),
        window_out(window_out(x->dim[2], w->dim[2], stride, pad), 3, 2, 1), w->dim[0]);
}

static void infer_conv_pool(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_conv_pool_x), *w = input(r, CR_IN_conv_pool_w);
    CR_ASSERT(input(r, CR_IN_conv_pool_bias)->dim[3] == w->dim[0]);
    set_pooled(r, x->dtype, x, w, r->op->attr.conv.stride, r->op->attr.conv.pad);
}

static void infer_group_conv(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_group_conv_x), *w = input(r, CR_IN_group_conv_w);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    CR_ASSERT(x->dim[3] % w->dim[3] == 0 && w->dim[0] % (x->dim[3] / w->dim[3]) == 0);
    set(r, x->dtype, x->dim[0], window_out(x->dim[1], w->dim[1], a->stride, a->pad),
        window_out(x->dim[2], w->dim[2], a->stride, a->pad), w->dim[0]);
}

static void infer_bn_sums(struct rule *r) {
    set_sums(r, input(r, CR_IN_bn_sums_x), input(r, CR_IN_bn_sums_x)->dim[3]);
}

static void infer_bn_finalize(struct rule *r) {
    const struct cr_tensor *sums = input(r, CR_IN_bn_finalize_sums);
    CR_ASSERT(r->slot <= CR_OUT_bn_finalize_mean_rstd ||
              r->slot == CR_OUT_bn_finalize_scale_bias_half); /* the running statistics belong to the parameter store */
    CR_ASSERT(input(r, CR_IN_bn_finalize_gamma)->dim[3] == sums->dim[3] && r->op->attr.bn.count > 0);
    check_coefficients(r, CR_IN_bn_finalize_center, 1, sums);
    set(r, sums->dtype, 2, 1, 1, sums->dim[3]);
    if (r->slot == CR_OUT_bn_finalize_scale_bias_half) r->dtype = r->p->real;
}
static void infer_bn_scale_bias(struct rule *r) {
    const struct cr_tensor *gamma = input(r, CR_IN_bn_scale_bias_gamma);
    set(r, gamma->dtype, 2, 1, 1, gamma->dim[3]);
}
static void infer_fold_bn(struct rule *r) {
    const struct cr_tensor *w = input(r, CR_IN_fold_bn_w), *gamma = input(r, CR_IN_fold_bn_gamma);
    CR_ASSERT(gamma->dim[3] == w->dim[0]);
    if (r->slot == CR_OUT_fold_bn_bias)
        set_like(r, gamma);
    else
        set(r, r->p->real, w->dim[0], w->dim[1], w->dim[2], w->dim[3]);
}
static void infer_bn_apply(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_bn_apply_x);
    CR_ASSERT(input(r, CR_IN_bn_apply_scale_bias)->dim[3] == x->dim[3]);
    check_like(r, CR_IN_bn_apply_add, x);
    set_like(r, x);
    if (r->slot != CR_OUT_bn_apply_mask) return;
    CR_ASSERT(x->dim[3] % 8 == 0 && r->op->attr.bn.relu);
    set(r, CR_U8, x->dim[0], x->dim[1], x->dim[2], x->dim[3] / 8);
}

/* Ops whose output has the shape and type of the first input. */
static void infer_like_first(struct rule *r) {
    set_like(r, input(r, 0));
}
#define infer_relu infer_like_first
#define infer_drop infer_like_first
#define infer_all_reduce infer_like_first
#define infer_prefetch infer_like_first
#define infer_offload infer_like_first
#define infer_channel_scale infer_like_first
#define infer_channel_conv infer_like_first
#define infer_channel_conv_dgrad infer_like_first

static void infer_add(struct rule *r) {
    CR_ASSERT(same_shape(input(r, CR_IN_add_a), input(r, CR_IN_add_b)));
    set_like(r, input(r, CR_IN_add_a));
}

static void infer_maxpool(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_maxpool_x);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    CR_ASSERT(a->window * a->window <= 256 && 2 * a->pad <= a->window);
    check_coefficients(r, CR_IN_maxpool_scale_bias, 2, x);
    set(r, r->slot == CR_OUT_maxpool_index ? CR_U8 : x->dtype, x->dim[0],
        window_out(x->dim[1], a->window, a->stride, a->pad), window_out(x->dim[2], a->window, a->stride, a->pad),
        x->dim[3]);
}

static void infer_avgpool(struct rule *r) {
    set(r, input(r, 0)->dtype, input(r, 0)->dim[0], 1, 1, input(r, 0)->dim[3]);
}

static void infer_avgpool2x2(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_avgpool2x2_x);
    set(r, x->dtype, x->dim[0], (x->dim[1] + 1) / 2, (x->dim[2] + 1) / 2, x->dim[3]);
}
#define infer_blurpool infer_avgpool2x2

static void infer_se_scale(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_se_scale_x), *logit = input(r, CR_IN_se_scale_logit);
    CR_ASSERT(logit->dim[0] == x->dim[0] && logit->dim[1] == 1 && logit->dim[2] == 1 && logit->dim[3] == x->dim[3]);
    set_like(r, x);
}

/* The number of output channels is no attribute: C plus pad_c zero channels on both sides. */
static void infer_pad_shortcut(struct rule *r) {
    const struct cr_tensor    *x = input(r, CR_IN_pad_shortcut_x);
    const struct cr_conv_attr *a = &r->op->attr.conv;
    set(r, x->dtype, x->dim[0], (x->dim[1] - 1) / a->stride + 1, (x->dim[2] - 1) / a->stride + 1,
        x->dim[3] + 2 * a->pad_c);
}

static void infer_dense(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_dense_x), *w = input(r, CR_IN_dense_w);
    CR_ASSERT(x->dim[1] == 1 && x->dim[2] == 1 && x->dim[3] == w->dim[3]);
    set(r, x->dtype, x->dim[0], 1, 1, w->dim[0]);
}
static void infer_loss(struct rule *r) {
    cr_loss_check(r->p, r->op);
    set(r, wide(input(r, CR_IN_loss_logits)), 1, 1, 1, 4);
}

static void infer_s2d_filter(struct rule *r) {
    const struct cr_tensor *w = input(r, CR_IN_s2d_filter_w);
    CR_ASSERT(w->dim[1] == 7 && w->dim[2] == 7 && w->dim[3] == 3);
    set(r, w->dtype, w->dim[0], 4, 4, 16);
}

/* ---- quantisation ---- */

static void infer_fake_quant(struct rule *r) {
    CR_ASSERT(cr_tensor_elems(input(r, CR_IN_fake_quant_scale)) == 1);
    set_like(r, input(r, CR_IN_fake_quant_x));
}
static void infer_fake_quant_filter(struct rule *r) {
    const struct cr_tensor *w = input(r, CR_IN_fake_quant_filter_w);
    CR_ASSERT(input(r, CR_IN_fake_quant_filter_scale)->dim[3] == w->dim[0]);
    set_like(r, w);
}
static void infer_quantize(struct rule *r) {
    set_like(r, input(r, CR_IN_quantize_x));
    r->dtype = r->op->attr.quant.is_signed ? CR_I8 : CR_U8;
}
static void infer_dequantize(struct rule *r) {
    set_like(r, input(r, CR_IN_dequantize_x));
    r->dtype = r->p->real;
}
static void infer_quantize_filter(struct rule *r) {
    set_like(r, input(r, CR_IN_quantize_filter_w));
    r->dtype = CR_I8;
}
static void infer_qstem(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_qstem_images), *w = input(r, CR_IN_qstem_w);
    CR_ASSERT(x->dtype == CR_U8 && x->dim[3] == 3 && w->dim[1] == 7 && w->dim[2] == 7 && w->dim[3] == 3);
    set_pooled(r, CR_U8, x, w, 2, 3);
}
static void infer_conv_pair(struct rule *r) {
    set_pair(r, CR_IN_conv_pair_w, CR_IN_conv_pair_next_w, CR_IN_conv_pair_first_w);
}
static void infer_qconv_pair(struct rule *r) {
    set_pair(r, CR_IN_qconv_pair_w, CR_IN_qconv_pair_next_w, CR_IN_qconv_pair_first_w);
}
static void infer_qconv_coeffs(struct rule *r) {
    set(r, CR_F32, 3, 1, 1, input(r, CR_IN_qconv_coeffs_w_scale)->dim[3]);
}

/* ---- backward ---- */

/* Gradients of parameters are tensors of the parameter store. The shape of some input gradients cannot be inferred from
 * the op's inputs, so the pass that emits these ops (compiler/autodiff/grad.c) creates the tensors. */

static void infer_loss_grad(struct rule *r) {
    cr_loss_check(r->p, r->op);
    set_like(r, input(r, CR_IN_loss_grad_logits));
}
static void infer_dense_dgrad(struct rule *r) {
    const struct cr_tensor *dy = input(r, CR_IN_dense_dgrad_dy), *w = input(r, CR_IN_dense_dgrad_w);
    set(r, dy->dtype, dy->dim[0], 1, 1, w->dim[3]);
}
static void infer_se_scale_grad(struct rule *r) {
    set_like(r, input(r, r->slot == CR_OUT_se_scale_grad_dx ? CR_IN_se_scale_grad_dy : CR_IN_se_scale_grad_logit));
}
static void infer_relu_grad(struct rule *r) {
    const struct cr_tensor *dy = input(r, CR_IN_relu_grad_dy);
    check_mask(r, CR_IN_relu_grad_y, dy);
    check_like(r, CR_IN_relu_grad_add, dy);
    check_like(r, CR_IN_relu_grad_bn_x, dy);
    check_like(r, CR_IN_relu_grad_bn2_x, dy);
    if (r->slot == CR_OUT_relu_grad_dx)
        set_like(r, dy);
    else
        set_sums(r, dy, dy->dim[3]);
}
static void infer_bn_grad_sums(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_bn_grad_sums_x);
    CR_ASSERT(same_shape(x, input(r, CR_IN_bn_grad_sums_dy)));
    check_mask(r, CR_IN_bn_grad_sums_y, x);
    check_coefficients(r, CR_IN_bn_grad_sums_scale_bias, 2, x);
    set_sums(r, x, x->dim[3]);
}
static void infer_bn_grad_finalize(struct rule *r) {
    const struct cr_tensor *sums = input(r, CR_IN_bn_grad_finalize_grad_sums);
    CR_ASSERT(r->slot == CR_OUT_bn_grad_finalize_coeffs && r->op->attr.bn.count > 0);
    set(r, sums->dtype, 3, 1, 1, sums->dim[3]);
}
#define infer_bn_grad_apply infer_like_first
static void infer_pool_bn_grad_sums(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_pool_bn_grad_sums_x);
    check_coefficients(r, CR_IN_pool_bn_grad_sums_scale_bias, 2, x);
    CR_ASSERT(same_shape(input(r, CR_IN_pool_bn_grad_sums_dy), input(r, CR_IN_pool_bn_grad_sums_index)));
    set_sums(r, x, x->dim[3]);
}
static void infer_pool_bn_grad_apply(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_pool_bn_grad_apply_x);
    check_coefficients(r, CR_IN_pool_bn_grad_apply_scale_bias, 2, x);
    check_coefficients(r, CR_IN_pool_bn_grad_apply_coeffs, 3, x);
    CR_ASSERT(same_shape(input(r, CR_IN_pool_bn_grad_apply_dy), input(r, CR_IN_pool_bn_grad_apply_index)));
    set_like(r, x);
}

/* For ops whose outputs must exist before the op is emitted; the header lists them. */
static void infer_given(struct rule *r) {
    CR_ASSERT(!r && "this output must be given");
}
#include "graph/ops_given.h"
#include "graph/ops_gram.h"
static void infer_conv_dgrad(struct rule *r) {
    CR_ASSERT(r->slot == CR_OUT_conv_dgrad_grad_sums); /* dx must be given */
    set_sums(r, input(r, CR_IN_conv_dgrad_dy), input(r, CR_IN_conv_dgrad_w)->dim[3]);
}
static void infer_conv_grad(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_conv_grad_x);
    CR_ASSERT(r->slot != CR_OUT_conv_grad_dw && r->slot != CR_OUT_conv_grad_dgamma); /* they must be given */
    check_coefficients(r, CR_IN_conv_grad_gamma, 1, x);
    check_coefficients(r, CR_IN_conv_grad_scale_bias, 2, x);
    check_coefficients(r, CR_IN_conv_grad_dy_coeffs, 3, input(r, CR_IN_conv_grad_g));
    check_mask(r, CR_IN_conv_grad_y, x);
    if (r->op->attr.conv.add_pad_c) check_like(r, CR_IN_conv_grad_add, input(r, CR_IN_conv_grad_g));
    if (r->slot == CR_OUT_conv_grad_dx || r->slot == CR_OUT_conv_grad_dy)
        set_like(r, r->slot == CR_OUT_conv_grad_dx ? x : input(r, CR_IN_conv_grad_g));
    else
        set(r, wide(x), r->slot == CR_OUT_conv_grad_grad_coeffs ? 3 : 2, 1, 1, x->dim[3]);
}

/* ---- offloading: the offload pass creates the tensors in the HOST region ---- */

static void infer_barrier(struct rule *r) {
    set(r, CR_U8, 1, 1, 1, 1);
}

/* ---- update ---- */

static void infer_grad_norm(struct rule *r) {
    set(r, wide(input(r, CR_IN_grad_norm_grad)), 1, 1, 1, 2);
}
#define infer_muon_direction infer_like_first
#define infer_lamb_norms infer_param_norms
static void infer_param_norms(struct rule *r) {
    set(r, wide(input(r, CR_IN_param_norms_grad)), CR_MAX(r->p->store->params, 1), 1, 1, 2);
}

void cr_op_infer(const struct cr_program *p, const struct cr_op *op, int slot, enum cr_dtype *dtype, int64_t dim[4]) {
    static void (*const rules[CR_OP_COUNT])(struct rule *) = {
#define OP(op, what) [CR_OP_##op] = infer_##op,
#include "graph/ops.def"
    };
    struct rule r = {.p = p, .op = op, .slot = slot, .dim = dim};
    rules[op->kind](&r);
    *dtype = r.dtype;
}

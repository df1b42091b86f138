/* tests/checkops/checkops_unit_ops.c: makes the operands and attributes of the op of a case. checkops_unit_conv.c does
 * this for convolutions, checkops_unit_train.c for losses and updates. */
#include "tests/checkops/checkops.h"

#include <stdio.h>

static int tensor(struct checkops_build *b, const char *name, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                  int64_t d3) {
    return cr_tensor_add(b->p, name, dtype, CR_REGION_POOL, d0, d1, d2, d3);
}

void checkops_build_in(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                       int64_t d3) {
    b->op.in[slot] = tensor(b, cr_op_info(b->c->kind)->in_name[slot], dtype, d0, d1, d2, d3);
}
void checkops_build_image(struct checkops_build *b, int slot) {
    checkops_build_in(b, slot, b->real, b->c->N, b->c->H, b->c->W, b->c->C);
}
void checkops_build_mask(struct checkops_build *b, int slot) {
    if (!(b->c->flags & CHECKOPS_BITS))
        checkops_build_image(b, slot);
    else
        checkops_build_in(b, slot, CR_U8, b->c->N, b->c->H, b->c->W, b->c->C / 8);
}
void checkops_build_out(struct checkops_build *b, int slot, enum cr_dtype dtype, int64_t d0, int64_t d1, int64_t d2,
                        int64_t d3) {
    char name[64];
    snprintf(name, sizeof name, "out.%s", cr_op_info(b->c->kind)->out_name[slot]);
    b->op.out[slot] = tensor(b, name, dtype, d0, d1, d2, d3);
}

#define in(...) checkops_build_in(__VA_ARGS__)
#define out(...) checkops_build_out(__VA_ARGS__)
#define in_image(b, slot) checkops_build_image(b, slot)
static void in_vector(struct checkops_build *b, int slot, int64_t rows) {
    in(b, slot, b->wide, rows, 1, 1, b->c->C);
}
static void out_image(struct checkops_build *b, int slot) {
    out(b, slot, b->real, b->c->N, b->c->H, b->c->W, b->c->C);
}

int64_t checkops_window_out(int64_t size, const struct checkops_case *c) {
    return (size + 2 * c->pad - c->window) / c->stride + 1;
}

static void build_pool(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    const int64_t               P = checkops_window_out(c->H, c), Q = checkops_window_out(c->W, c);
    b->op.attr.conv = (struct cr_conv_attr){.stride = c->stride, .pad = c->pad, .window = c->window};
    switch (c->kind) {
    case CR_OP_maxpool:
        in(b, CR_IN_maxpool_x, c->flags & CHECKOPS_BYTES ? CR_U8 : b->real, c->N, c->H, c->W, c->C);
        if (c->flags & CHECKOPS_SCALE_BIAS) in_vector(b, CR_IN_maxpool_scale_bias, 2);
        b->op.out[CR_OUT_maxpool_index] = c->flags & CHECKOPS_NO_INDEX ? CR_NONE : CR_NEW;
        return;
    case CR_OP_maxpool_grad:
        in(b, CR_IN_maxpool_grad_dy, b->real, c->N, P, Q, c->C);
        in(b, CR_IN_maxpool_grad_index, CR_U8, c->N, P, Q, c->C);
        out_image(b, CR_OUT_maxpool_grad_dx);
        return;
    case CR_OP_pool_bn_grad_sums: in_vector(b, CR_IN_pool_bn_grad_sums_mean_rstd, 2); break;
    default: in_vector(b, CR_IN_pool_bn_grad_apply_coeffs, 3);
    }
    /* the first four slots of both */
    in(b, CR_IN_pool_bn_grad_sums_dy, b->real, c->N, P, Q, c->C);
    in(b, CR_IN_pool_bn_grad_sums_index, CR_U8, c->N, P, Q, c->C);
    in_image(b, CR_IN_pool_bn_grad_sums_x);
    in_vector(b, CR_IN_pool_bn_grad_sums_scale_bias, 2);
}

static void build_shortcut(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv               = (struct cr_conv_attr){.stride = c->stride, .pad_c = c->pad};
    if (c->kind == CR_OP_pad_shortcut) {
        in(b, CR_IN_pad_shortcut_x, c->flags & CHECKOPS_BYTES ? CR_U8 : b->real, c->N, c->H, c->W, c->C);
        return;
    }
    in(b, CR_IN_pad_shortcut_grad_dy, b->real, c->N, (c->H - 1) / c->stride + 1, (c->W - 1) / c->stride + 1,
       c->C + 2 * c->pad);
    out_image(b, CR_OUT_pad_shortcut_grad_dx);
}

static void build_dense(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.dense.accumulate   = (c->flags & CHECKOPS_ACCUMULATE) != 0;
    switch (c->kind) {
    case CR_OP_dense:
        in(b, CR_IN_dense_x, b->real, c->N, 1, 1, c->C);
        in(b, CR_IN_dense_w, b->real, c->K, 1, 1, c->C);
        in(b, CR_IN_dense_b, b->wide, 1, 1, 1, c->K);
        break;
    case CR_OP_dense_dgrad:
        in(b, CR_IN_dense_dgrad_dy, b->real, c->N, 1, 1, c->K);
        in(b, CR_IN_dense_dgrad_w, b->real, c->K, 1, 1, c->C);
        break;
    case CR_OP_dense_wgrad:
        in(b, CR_IN_dense_wgrad_x, b->real, c->N, 1, 1, c->C);
        in(b, CR_IN_dense_wgrad_dy, b->real, c->N, 1, 1, c->K);
        out(b, CR_OUT_dense_wgrad_dw, b->wide, c->K, 1, 1, c->C);
        break;
    default:
        in(b, CR_IN_dense_bgrad_dy, b->real, c->N, 1, 1, c->K);
        out(b, CR_OUT_dense_bgrad_db, b->wide, 1, 1, 1, c->K);
    }
}

static void build_bn_small(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.bn                 = (struct cr_bn_attr){.eps        = 1e-5f,
                                                        .momentum   = 0.1f,
                                                        .count      = c->N * c->H * c->W,
                                                        .accumulate = (c->flags & CHECKOPS_ACCUMULATE) != 0};
    switch (c->kind) {
    case CR_OP_bn_finalize:
        in_vector(b, CR_IN_bn_finalize_sums, 2);
        for (int s = CR_IN_bn_finalize_gamma; s <= CR_IN_bn_finalize_running_var; s++) in_vector(b, s, 1);
        b->op.out[CR_OUT_bn_finalize_running_mean] = b->op.in[CR_IN_bn_finalize_running_mean];
        b->op.out[CR_OUT_bn_finalize_running_var]  = b->op.in[CR_IN_bn_finalize_running_var];
        if (c->flags & CHECKOPS_SCALE_BIAS_HALF) b->op.out[CR_OUT_bn_finalize_scale_bias_half] = CR_NEW;
        if (c->flags & CHECKOPS_BN) in_vector(b, CR_IN_bn_finalize_center, 1);
        break;
    case CR_OP_bn_scale_bias:
        for (int s = 0; s < CR_INS_bn_scale_bias; s++) in_vector(b, s, 1);
        break;
    default:
        if (c->flags & CHECKOPS_ACCUMULATE) b->op.attr.bn.ranks = 3;
        in_vector(b, CR_IN_bn_grad_finalize_grad_sums, 2);
        in_vector(b, CR_IN_bn_grad_finalize_gamma, 1);
        in_vector(b, CR_IN_bn_grad_finalize_mean_rstd, 2);
        out(b, CR_OUT_bn_grad_finalize_dgamma, b->wide, 1, 1, 1, c->C);
        out(b, CR_OUT_bn_grad_finalize_dbeta, b->wide, 1, 1, 1, c->C);
    }
}

static void build_bn_image(struct checkops_build *b) {
    const unsigned f = b->c->flags;
    b->op.attr.bn    = (struct cr_bn_attr){.eps = 1e-5f, .relu = (f & CHECKOPS_RELU) != 0};
    in_image(b, 0);
    switch (b->c->kind) {
    case CR_OP_bn_apply:
        in_vector(b, CR_IN_bn_apply_scale_bias, 2);
        if (f & CHECKOPS_MEAN_RSTD) in_vector(b, CR_IN_bn_apply_mean_rstd, 2);
        if (f & CHECKOPS_ADD) in_image(b, CR_IN_bn_apply_add);
        if (f & CHECKOPS_ADD_SCALE_BIAS) in_vector(b, CR_IN_bn_apply_add_scale_bias, 2);
        if (f & CHECKOPS_BITS) b->op.out[CR_OUT_bn_apply_mask] = CR_NEW;
        break;
    case CR_OP_bn_grad_sums:
        in_image(b, CR_IN_bn_grad_sums_x);
        in_vector(b, CR_IN_bn_grad_sums_mean_rstd, 2);
        if (f & CHECKOPS_MASK) checkops_build_mask(b, CR_IN_bn_grad_sums_y);
        if (f & CHECKOPS_MASK_FROM_X) in_vector(b, CR_IN_bn_grad_sums_scale_bias, 2);
        break;
    case CR_OP_bn_grad_apply:
        in_image(b, CR_IN_bn_grad_apply_x);
        in_vector(b, CR_IN_bn_grad_apply_coeffs, 3);
        if (f & CHECKOPS_MASK) checkops_build_mask(b, CR_IN_bn_grad_apply_y);
        if (f & CHECKOPS_MASK_FROM_X) in_vector(b, CR_IN_bn_grad_apply_scale_bias, 2);
        break;
    case CR_OP_channel_scale: in_vector(b, CR_IN_channel_scale_scale_bias, 2); break;
    default: break; /* bn_sums */
    }
}

static void build_relu_grad(struct checkops_build *b) {
    const unsigned f = b->c->flags;
    in_image(b, CR_IN_relu_grad_dy);
    checkops_build_mask(b, CR_IN_relu_grad_y);
    if (f & CHECKOPS_ADD) in_image(b, CR_IN_relu_grad_add);
    if (f & CHECKOPS_BN) {
        in_image(b, CR_IN_relu_grad_bn_x);
        in_vector(b, CR_IN_relu_grad_mean_rstd, 2);
        b->op.out[CR_OUT_relu_grad_grad_sums] = CR_NEW;
    }
    if (f & CHECKOPS_BN2) {
        in_image(b, CR_IN_relu_grad_bn2_x);
        in_vector(b, CR_IN_relu_grad_mean_rstd2, 2);
        b->op.out[CR_OUT_relu_grad_grad_sums2] = CR_NEW;
    }
}

/* K classes; the images have C channels. */
static void build_head(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.head =
        (struct cr_head_attr){.loss = {.smoothing = c->flags & CHECKOPS_SMOOTH ? 0.1f : 0, .weight = 0.5f},
                              .bn = {.count = c->N * c->H * c->W, .accumulate = (c->flags & CHECKOPS_ACCUMULATE) != 0}};
    in_image(b, CR_IN_head_x);
    in_vector(b, CR_IN_head_scale_bias, 2);
    in_vector(b, CR_IN_head_mean_rstd, 2);
    in_image(b, CR_IN_head_add);
    in(b, CR_IN_head_w, b->real, c->K, 1, 1, c->C);
    in(b, CR_IN_head_b, b->wide, 1, 1, 1, c->K);
    in(b, CR_IN_head_labels, CR_I32, c->N, 1, 1, 1);
    in(b, CR_IN_head_state, CR_F64, 1, 1, 1, CR_STATE_COUNT);
    in_vector(b, CR_IN_head_gamma, 1);
    if (c->flags & CHECKOPS_MIXES) in(b, CR_IN_head_mixes, CR_I32, c->N, 1, 1, CR_MIX_NUMBERS);
    out_image(b, CR_OUT_head_dx);
    out(b, CR_OUT_head_logits, b->real, c->N, 1, 1, c->K);
    out(b, CR_OUT_head_metrics, b->wide, 1, 1, 1, 4);
    out(b, CR_OUT_head_dw, b->wide, c->K, 1, 1, c->C);
    out(b, CR_OUT_head_db, b->wide, 1, 1, 1, c->K);
    out(b, CR_OUT_head_dgamma, b->wide, 1, 1, 1, c->C);
    out(b, CR_OUT_head_dbeta, b->wide, 1, 1, 1, c->C);
    out(b, CR_OUT_head_coeffs, b->wide, 3, 1, 1, c->C);
}

static void build_s2d_filter(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    if (c->kind == CR_OP_s2d_filter) {
        in(b, CR_IN_s2d_filter_w, b->real, c->K, 7, 7, 3);
        return;
    }
    b->op.attr.conv.accumulate = (c->flags & CHECKOPS_ACCUMULATE) != 0;
    in(b, CR_IN_s2d_filter_grad_dy, b->wide, c->K, 4, 4, 16);
    out(b, CR_OUT_s2d_filter_grad_dw, b->wide, c->K, 7, 7, 3);
}

static void build_fold(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.bn                 = (struct cr_bn_attr){.eps = 1e-5f};
    in(b, CR_IN_fold_bn_w, b->wide, c->K, c->window, c->window, c->C);
    for (int s = CR_IN_fold_bn_gamma; s <= CR_IN_fold_bn_running_var; s++) in(b, s, b->wide, 1, 1, 1, c->K);
}

/* Large enough for every weight format: rows in slices of 32, the run of each channel padded, blocks of 64 x 64, or
 * fragments of 16 channels x 32 columns (288 numbers), where each block of 8 columns of 64 channels may need 4 more
 * halves and each chunk of columns 8 more. */
static void build_sparse_filter(struct checkops_build *b) {
    const struct checkops_case *c   = b->c;
    const int64_t               row = c->window * c->window * c->C;
    b->op.attr.conv.stride          = c->stride;
    b->op.attr.conv.pad             = c->pad;
    in(b, CR_IN_sparse_filter_w, b->real, c->K, c->window, c->window, c->C);
    const int64_t blocks = c->window * c->window * ((c->C + 7) / 8),
                  rows   = (c->K + 64) * (2 * row + 4 * c->C + c->window * c->window * 64);
    const int64_t union_ = 288 * ((c->K + 63) / 64 * (2 * blocks + 8 * ((c->C + 7) / 8)) + 1) + c->K + 512;
    out(b, CR_OUT_sparse_filter_y, CR_F32, 1, 1, 1, rows > union_ ? rows : union_);
}

/* The case's C chooses between images of 1, 3 and 4 channels; with TWO they have 16 bits. */
static void input_images(struct checkops_build *b, int slot, struct cr_input_attr attr) {
    const struct checkops_case *c        = b->c;
    const int64_t               channels = (const int64_t[]){3, 1, 4}[c->C % 3];
    attr.wide                            = (c->flags & CHECKOPS_TWO) != 0;
    b->op.attr.input                     = attr;
    in(b, slot, CR_U8, c->N, c->H, c->W, attr.wide ? 2 * channels : channels);
}

static void build_other(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    switch (c->kind) {
    case CR_OP_normalize:
        input_images(b, CR_IN_normalize_images,
                     (struct cr_input_attr){.mean = {0.485f, 0.456f, 0.406f, 0.449f},
                                            .std  = {0.229f, 0.224f, 0.225f, 0.226f},
                                            .s2d  = (c->flags & CHECKOPS_S2D) != 0});
        if (c->flags & CHECKOPS_BOXES) in(b, CR_IN_normalize_boxes, CR_I32, c->N, 1, 1, 4);
        break;
    case CR_OP_mix:
        input_images(b, CR_IN_mix_images,
                     (struct cr_input_attr){.mean = {0.485f, 0.456f, 0.406f, 0.449f}, .std = {1, 1, 1, 1}});
        in(b, CR_IN_mix_boxes, CR_I32, c->N, 1, 1, 4);
        in(b, CR_IN_mix_mixes, CR_I32, c->N, 1, 1, CR_MIX_NUMBERS);
        break;
    case CR_OP_avgpool_grad:
        in(b, CR_IN_avgpool_grad_dy, b->real, c->N, 1, 1, c->C);
        out_image(b, CR_OUT_avgpool_grad_dx);
        break;
    case CR_OP_avgpool2x2_grad:
        in(b, CR_IN_avgpool2x2_grad_dy, b->real, c->N, (c->H + 1) / 2, (c->W + 1) / 2, c->C);
        out_image(b, CR_OUT_avgpool2x2_grad_dx);
        break;
    case CR_OP_blurpool_grad:
        in(b, CR_IN_blurpool_grad_dy, b->real, c->N, (c->H + 1) / 2, (c->W + 1) / 2, c->C);
        out_image(b, CR_OUT_blurpool_grad_dx);
        break;
    case CR_OP_se_scale:
        in_image(b, CR_IN_se_scale_x);
        in(b, CR_IN_se_scale_logit, b->real, c->N, 1, 1, c->C);
        break;
    case CR_OP_se_scale_grad:
        in_image(b, CR_IN_se_scale_grad_dy);
        in_image(b, CR_IN_se_scale_grad_x);
        in(b, CR_IN_se_scale_grad_logit, b->real, c->N, 1, 1, c->C);
        break;
    case CR_OP_channel_conv:
    case CR_OP_channel_conv_dgrad:
        in_image(b, CR_IN_channel_conv_x);
        in(b, CR_IN_channel_conv_w, b->wide, 1, 1, 1, c->window);
        break;
    case CR_OP_channel_conv_wgrad:
        b->op.attr.dense.accumulate = (c->flags & CHECKOPS_ACCUMULATE) != 0;
        in_image(b, CR_IN_channel_conv_wgrad_x);
        in_image(b, CR_IN_channel_conv_wgrad_dy);
        out(b, CR_OUT_channel_conv_wgrad_dw, b->wide, 1, 1, 1, c->window);
        break;
    case CR_OP_drop:
        b->op.attr.drop = (struct cr_drop_attr){0.3, (c->flags & CHECKOPS_MASK) != 0, 5};
        in_image(b, CR_IN_drop_x);
        break;
    case CR_OP_zero: out_image(b, CR_OUT_zero_y); break;
    case CR_OP_prefetch:
        in_image(b, CR_IN_prefetch_x);
        in(b, CR_IN_prefetch_event, CR_U8, 1, 1, 1, 1);
        break;
    case CR_OP_barrier:
        in_image(b, CR_IN_barrier_x);
        b->op.out[CR_OUT_barrier_event] = CR_NEW;
        break;
    case CR_OP_cast:
        in(b, CR_IN_cast_x, CR_F32, c->N, c->H, c->W, c->C);
        out_image(b, CR_OUT_cast_y);
        break;
    default: /* relu, add, avgpool: inputs of shape N,H,W,C only */
        for (int s = 0; s < cr_op_info(c->kind)->ins; s++) in_image(b, s);
    }
}

bool checkops_is_update(enum cr_op_kind kind) {
    return kind == CR_OP_sgd || kind == CR_OP_adamw || kind == CR_OP_lars || kind == CR_OP_lamb || kind == CR_OP_muon ||
           kind == CR_OP_ema;
}

void checkops_build_op(struct checkops_build *b) {
    switch (b->c->kind) {
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_conv_grad: checkops_build_conv(b); return;
    case CR_OP_group_conv:
    case CR_OP_group_conv_dgrad:
    case CR_OP_group_conv_wgrad: checkops_build_group_conv(b); return;
    case CR_OP_conv_pair: checkops_build_conv_pair(b); return;
    case CR_OP_conv_pool: checkops_build_conv_pool(b); return;
    case CR_OP_maxpool:
    case CR_OP_maxpool_grad:
    case CR_OP_pool_bn_grad_sums:
    case CR_OP_pool_bn_grad_apply: build_pool(b); return;
    case CR_OP_pad_shortcut:
    case CR_OP_pad_shortcut_grad: build_shortcut(b); return;
    case CR_OP_dense:
    case CR_OP_dense_dgrad:
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: build_dense(b); return;
    case CR_OP_loss:
    case CR_OP_loss_grad: checkops_build_loss(b); return;
    case CR_OP_distill:
    case CR_OP_distill_grad: checkops_build_distill(b); return;
    case CR_OP_fake_quant:
    case CR_OP_fake_quant_filter:
    case CR_OP_quantize:
    case CR_OP_dequantize:
    case CR_OP_quantize_filter:
    case CR_OP_pack_filter:
    case CR_OP_qconv_coeffs:
    case CR_OP_qconv:
    case CR_OP_qconv_pair:
    case CR_OP_qstem: checkops_build_quant(b); return;
    case CR_OP_gram:
    case CR_OP_gram_bn_finalize:
    case CR_OP_gram_bn_sums:
    case CR_OP_gram_bn_grad_sums:
    case CR_OP_gram_bn_grad:
    case CR_OP_gram_dgrad: checkops_build_gram(b); return;
    case CR_OP_bn_finalize:
    case CR_OP_bn_scale_bias:
    case CR_OP_bn_grad_finalize: build_bn_small(b); return;
    case CR_OP_bn_sums:
    case CR_OP_bn_apply:
    case CR_OP_bn_grad_sums:
    case CR_OP_bn_grad_apply:
    case CR_OP_channel_scale: build_bn_image(b); return;
    case CR_OP_fold_bn: build_fold(b); return;
    case CR_OP_sparse_filter: build_sparse_filter(b); return;
    case CR_OP_relu_grad: build_relu_grad(b); return;
    case CR_OP_head: build_head(b); return;
    case CR_OP_s2d_filter:
    case CR_OP_s2d_filter_grad: build_s2d_filter(b); return;
    case CR_OP_grad_norm:
    case CR_OP_param_norms:
    case CR_OP_adamw:
    case CR_OP_lars:
    case CR_OP_lamb:
    case CR_OP_lamb_norms:
    case CR_OP_muon_direction:
    case CR_OP_muon:
    case CR_OP_sgd: checkops_build_update(b); return;
    case CR_OP_ema: checkops_build_ema(b); return;
    default: build_other(b);
    }
}

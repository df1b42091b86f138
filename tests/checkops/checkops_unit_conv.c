/* tests/checkops/checkops_unit_conv.c: makes the program of one op for a convolution and its gradients, plain and
 * fused. */
#include "tests/checkops/checkops.h"

#define in(...) checkops_build_in(__VA_ARGS__)
#define out(...) checkops_build_out(__VA_ARGS__)
#define in_image(b, slot) checkops_build_image(b, slot)

static bool has_flag(const struct checkops_build *b, unsigned flag) {
    return (b->c->flags & flag) != 0;
}

static void in_vector(struct checkops_build *b, int slot, int64_t rows, int64_t channels) {
    in(b, slot, b->wide, rows, 1, 1, channels);
}
static void in_scale_bias(struct checkops_build *b, int slot) {
    if (has_flag(b, CHECKOPS_SCALE_BIAS))
        in(b, slot, has_flag(b, CHECKOPS_SCALE_BIAS_HALF) ? b->real : b->wide, 2, 1, 1, b->c->C);
}
static void in_filter(struct checkops_build *b, int slot) {
    in(b, slot, b->real, b->c->K, b->c->window, b->c->window, b->c->C);
}
static void in_output(struct checkops_build *b, int slot) { /* the shape of y */
    in(b, slot, b->real, b->c->N, checkops_window_out(b->c->H, b->c), checkops_window_out(b->c->W, b->c), b->c->K);
}
static void out_filter(struct checkops_build *b, int slot) {
    out(b, slot, b->wide, b->c->K, b->c->window, b->c->window, b->c->C);
}

static struct cr_bn_attr bn_of(const struct checkops_build *b, int64_t count) {
    return (struct cr_bn_attr){
        .eps = 1e-5f, .momentum = 0.1f, .count = count, .accumulate = has_flag(b, CHECKOPS_ACCUMULATE)};
}

/* Inputs and outputs of bn_finalize. */
static void forward_finish(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv.bn            = bn_of(b, c->N * checkops_window_out(c->H, c) * checkops_window_out(c->W, c));
    for (int s = CR_IN_conv_gamma; s <= CR_IN_conv_running_var; s++) in_vector(b, s, 1, c->K);
    b->op.out[CR_OUT_conv_next_scale_bias] = b->op.out[CR_OUT_conv_mean_rstd] = CR_NEW;
    b->op.out[CR_OUT_conv_running_mean]                                       = b->op.in[CR_IN_conv_running_mean];
    b->op.out[CR_OUT_conv_running_var]                                        = b->op.in[CR_IN_conv_running_var];
}

/* Inputs and outputs of bn_grad_finalize. */
static void grad_finish(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv.bn            = bn_of(b, c->N * c->H * c->W);
    in_vector(b, CR_IN_conv_grad_gamma, 1, c->C);
    out(b, CR_OUT_conv_grad_dgamma, b->wide, 1, 1, 1, c->C);
    out(b, CR_OUT_conv_grad_dbeta, b->wide, 1, 1, 1, c->C);
    b->op.out[CR_OUT_conv_grad_grad_coeffs] = CR_NEW;
}

static void build_forward(struct checkops_build *b) {
    in_image(b, CR_IN_conv_x);
    in_filter(b, CR_IN_conv_w);
    in_scale_bias(b, CR_IN_conv_scale_bias);
    if (has_flag(b, CHECKOPS_BIAS)) in_vector(b, CR_IN_conv_bias, 1, b->c->K);
    if (has_flag(b, CHECKOPS_ADD)) in_output(b, CR_IN_conv_add);
    if (has_flag(b, CHECKOPS_SUMS)) b->op.out[CR_OUT_conv_sums] = CR_NEW;
    if (has_flag(b, CHECKOPS_FINISH)) forward_finish(b);
    if (has_flag(b, CHECKOPS_OUT_SCALE_BIAS)) in_vector(b, CR_IN_conv_out_scale_bias, 2, b->c->K);
    if (has_flag(b, CHECKOPS_BITS)) b->op.out[CR_OUT_conv_mask] = CR_NEW;
}

static void build_dgrad(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    in_output(b, CR_IN_conv_dgrad_dy);
    in_filter(b, CR_IN_conv_dgrad_w);
    if (has_flag(b, CHECKOPS_ADD)) in_image(b, CR_IN_conv_dgrad_add);
    if (has_flag(b, CHECKOPS_BN)) {
        in_image(b, CR_IN_conv_dgrad_bn_x);
        in_vector(b, CR_IN_conv_dgrad_mean_rstd, 2, c->C);
        in_vector(b, CR_IN_conv_dgrad_gamma, 1, c->C);
        in_vector(b, CR_IN_conv_dgrad_beta, 1, c->C);
        b->op.out[CR_OUT_conv_dgrad_grad_sums] = CR_NEW;
    }
    out(b, CR_OUT_conv_dgrad_dx, b->real, c->N, c->H, c->W, c->C);
}

static void build_grad(struct checkops_build *b) {
    in_output(b, CR_IN_conv_grad_g);
    if (has_flag(b, CHECKOPS_FROZEN_BN)) {
        in_output(b, CR_IN_conv_grad_dy_x);
        in_vector(b, CR_IN_conv_grad_dy_coeffs, 3, b->c->K);
    }
    in_filter(b, CR_IN_conv_grad_w);
    in_image(b, CR_IN_conv_grad_x);
    in_scale_bias(b, CR_IN_conv_grad_scale_bias);
    if (has_flag(b, CHECKOPS_TWO)) {
        b->op.attr.conv.add_pad_c = (int)(b->c->K - b->c->C) / 2;
        in_output(b, CR_IN_conv_grad_add);
    } else if (has_flag(b, CHECKOPS_ADD))
        in_image(b, CR_IN_conv_grad_add);
    if (has_flag(b, CHECKOPS_BN)) {
        in_vector(b, CR_IN_conv_grad_mean_rstd, 2, b->c->C);
        if (!has_flag(b, CHECKOPS_SCALE_BIAS)) in_image(b, CR_IN_conv_grad_bn_x);
        b->op.out[CR_OUT_conv_grad_grad_sums] = CR_NEW;
    }
    if (has_flag(b, CHECKOPS_MASK) && has_flag(b, CHECKOPS_BITS)) checkops_build_mask(b, CR_IN_conv_grad_y);
    if (has_flag(b, CHECKOPS_MASK) && !has_flag(b, CHECKOPS_BITS))
        b->op.in[CR_IN_conv_grad_y] = b->op.in[CR_IN_conv_grad_x]; /* a block's output is its own mask */
    b->op.out[CR_OUT_conv_grad_dx] = has_flag(b, CHECKOPS_NO_DX) ? CR_NONE : CR_NEW;
    out_filter(b, CR_OUT_conv_grad_dw);
    if (has_flag(b, CHECKOPS_FINISH)) grad_finish(b);
}

/* 2 groups, or with TWO 4. */
void checkops_build_group_conv(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    const int64_t               D = c->C / (has_flag(b, CHECKOPS_TWO) ? 4 : 2), P = checkops_window_out(c->H, c),
                  Q = checkops_window_out(c->W, c);
    b->op.attr.conv = (struct cr_conv_attr){
        .stride = c->stride, .pad = c->pad, .window = c->window, .accumulate = has_flag(b, CHECKOPS_ACCUMULATE)};
    if (c->kind != CR_OP_group_conv_dgrad) in_image(b, CR_IN_group_conv_x);
    if (c->kind != CR_OP_group_conv_wgrad) in(b, CR_IN_group_conv_w, b->real, c->K, c->window, c->window, D);
    if (c->kind == CR_OP_group_conv_dgrad) {
        in(b, CR_IN_group_conv_dgrad_dy, b->real, c->N, P, Q, c->K);
        out(b, CR_OUT_group_conv_dgrad_dx, b->real, c->N, c->H, c->W, c->C);
    }
    if (c->kind == CR_OP_group_conv_wgrad) {
        in(b, CR_IN_group_conv_wgrad_dy, b->real, c->N, P, Q, c->K);
        out(b, CR_OUT_group_conv_wgrad_dw, b->wide, c->K, c->window, c->window, D);
    }
}

void checkops_build_conv(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv               = (struct cr_conv_attr){.stride     = c->stride,
                                                          .pad        = c->pad,
                                                          .accumulate = has_flag(b, CHECKOPS_ACCUMULATE),
                                                          .relu       = has_flag(b, CHECKOPS_RELU)};
    switch (c->kind) {
    case CR_OP_conv: build_forward(b); break;
    case CR_OP_conv_dgrad: build_dgrad(b); break;
    case CR_OP_conv_grad: build_grad(b); break;
    default:
        in_image(b, CR_IN_conv_wgrad_x);
        in_output(b, CR_IN_conv_wgrad_dy);
        in_scale_bias(b, CR_IN_conv_wgrad_scale_bias);
        out_filter(b, CR_OUT_conv_wgrad_dw);
        if (has_flag(b, CHECKOPS_SUMS)) b->op.out[CR_OUT_conv_wgrad_dy_sums] = CR_NEW;
    }
}

/* ---- BN statistics from a Gram matrix: filters of 1x1 ---- */

static void build_gram_grad(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    in(b, CR_IN_gram_bn_grad_gram, b->wide, c->C + 2, 1, 1, c->C);
    in(b, CR_IN_gram_bn_grad_m, b->wide, c->K, 1, 1, c->C);
    in_vector(b, CR_IN_gram_bn_grad_dy_sums, 1, c->K);
    in_vector(b, CR_IN_gram_bn_grad_gamma, 1, c->K);
    in_vector(b, CR_IN_gram_bn_grad_mean_rstd, 2, c->K);
    if (has_flag(b, CHECKOPS_SUMS)) in_vector(b, CR_IN_gram_bn_grad_grad_sums, 2, c->K);
    for (int s = CR_OUT_gram_bn_grad_w_g; s <= CR_OUT_gram_bn_grad_factor_bias; s++) b->op.out[s] = CR_NEW;
    out_filter(b, CR_OUT_gram_bn_grad_dw);
    out(b, CR_OUT_gram_bn_grad_dgamma, b->wide, 1, 1, 1, c->K);
    out(b, CR_OUT_gram_bn_grad_dbeta, b->wide, 1, 1, 1, c->K);
}

static void build_gram_dgrad(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    in_output(b, CR_IN_gram_dgrad_g);
    in(b, CR_IN_gram_dgrad_w_g, b->real, c->C, 1, 1, c->K);
    in_image(b, CR_IN_gram_dgrad_x);
    in(b, CR_IN_gram_dgrad_w_x, b->real, c->C, 1, 1, c->C);
    in_vector(b, CR_IN_gram_dgrad_factor_bias, 2, c->C);
    in_scale_bias(b, CR_IN_gram_dgrad_scale_bias);
    if (has_flag(b, CHECKOPS_ADD)) in_image(b, CR_IN_gram_dgrad_add);
    if (!has_flag(b, CHECKOPS_BN)) return;
    in_vector(b, CR_IN_gram_dgrad_mean_rstd, 2, c->C);
    b->op.out[CR_OUT_gram_dgrad_grad_sums] = CR_NEW;
}

static void build_gram_statistics(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    if (c->kind == CR_OP_gram_bn_grad_sums) {
        in(b, CR_IN_gram_bn_grad_sums_m, b->wide, c->K, 1, 1, c->C);
        in_vector(b, CR_IN_gram_bn_grad_sums_dy_sums, 1, c->K);
        in_vector(b, CR_IN_gram_bn_grad_sums_mean_rstd, 2, c->K);
        return;
    }
    in(b, CR_IN_gram_bn_finalize_gram, b->wide, c->C + 2, 1, 1, c->C);
    if (c->kind == CR_OP_gram_bn_sums) {
        in_vector(b, CR_IN_gram_bn_sums_center, 1, c->K);
        return;
    }
    for (int s = CR_IN_gram_bn_finalize_gamma; s <= CR_IN_gram_bn_finalize_running_var; s++) in_vector(b, s, 1, c->K);
    b->op.out[CR_OUT_gram_bn_finalize_running_mean] = b->op.in[CR_IN_gram_bn_finalize_running_mean];
    b->op.out[CR_OUT_gram_bn_finalize_running_var]  = b->op.in[CR_IN_gram_bn_finalize_running_var];
}

void checkops_build_gram(struct checkops_build *b) {
    const struct checkops_case *c     = b->c;
    const int                   ranks = c->kind == CR_OP_gram_bn_sums || has_flag(b, CHECKOPS_SUMS) ? 2 : 1;
    if (c->kind == CR_OP_gram || c->kind == CR_OP_gram_dgrad) {
        b->op.attr.conv = (struct cr_conv_attr){.stride = c->stride, .relu = has_flag(b, CHECKOPS_RELU)};
        if (c->kind == CR_OP_gram_dgrad) {
            build_gram_dgrad(b);
            return;
        }
        in_image(b, CR_IN_gram_x);
        in_scale_bias(b, CR_IN_gram_scale_bias);
        return;
    }
    b->op.attr.bn       = bn_of(b, c->N * checkops_window_out(c->H, c) * checkops_window_out(c->W, c) * ranks);
    b->op.attr.bn.ranks = ranks;
    in(b, 0, b->real, c->K, 1, 1, c->C); /* w */
    if (c->kind == CR_OP_gram_bn_grad)
        build_gram_grad(b);
    else
        build_gram_statistics(b);
}

/* z has c->window channels. TWO: a 3x3 convolution of as many channels as x has comes first. BIAS: a convolution of as
 * many channels instead of add. */
void checkops_build_conv_pair(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    in(b, CR_IN_conv_pair_x, b->real, c->N, c->H, c->W, c->C);
    in(b, CR_IN_conv_pair_w, b->real, c->K, 1, 1, c->C);
    in(b, CR_IN_conv_pair_bias, b->wide, 1, 1, 1, c->K);
    if (!(c->flags & CHECKOPS_BIAS)) in(b, CR_IN_conv_pair_add, b->real, c->N, c->H, c->W, c->K);
    in(b, CR_IN_conv_pair_next_w, b->real, c->window, 1, 1, c->K);
    in(b, CR_IN_conv_pair_next_bias, b->wide, 1, 1, 1, c->window);
    if (c->flags & CHECKOPS_BIAS) {
        in(b, CR_IN_conv_pair_shortcut_x, b->real, c->N, c->H, c->W, c->C);
        in(b, CR_IN_conv_pair_shortcut_w, b->real, c->K, 1, 1, c->C);
        in(b, CR_IN_conv_pair_shortcut_bias, b->wide, 1, 1, 1, c->K);
    }
    if (!(c->flags & CHECKOPS_TWO)) return;
    in(b, CR_IN_conv_pair_first_w, b->real, c->C, 3, 3, c->C);
    in(b, CR_IN_conv_pair_first_bias, b->wide, 1, 1, 1, c->C);
}

void checkops_build_conv_pool(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv               = (struct cr_conv_attr){.stride = c->stride, .pad = c->pad};
    in(b, CR_IN_conv_pool_x, b->real, c->N, c->H, c->W, c->C);
    in(b, CR_IN_conv_pool_w, b->real, c->K, c->window, c->window, c->C);
    in(b, CR_IN_conv_pool_bias, b->wide, 1, 1, 1, c->K);
}

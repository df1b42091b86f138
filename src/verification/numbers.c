/* verification/numbers.c: numbers of the error bound: lengths of reductions, error models of arithmetic, and roundings
 * of number types. See verification/verify.h. */
#include "verification/bound.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- n: lengths of reductions ---- */

static double window_overlap(int64_t window, int stride) {
    return (double)((window + stride - 1) / stride);
}

bool cr_verify_is_exact(const struct cr_op *op) {
    const struct cr_verify_rule *rule = cr_verify_rule(op->kind);
    return rule->exact && cr_op_uses_only(op, ~rule->unless, ~0u);
}

static double pixels(const struct cr_program *p, int tensor) {
    return (double)(elems(p, tensor) / dim(p, tensor, 3));
}

static double dgrad_terms(const struct cr_program *p, int w, int stride) {
    return (double)dim(p, w, 0) * window_overlap(dim(p, w, 1), stride) * window_overlap(dim(p, w, 2), stride);
}

static double conv_reduction(const struct cr_program *p, const struct cr_op *op, int slot) {
    const int *in = op->in;
    switch (op->kind) {
    case CR_OP_conv:
        if (slot == CR_OUT_conv_sums) return pixels(p, op->out[CR_OUT_conv_y]);
        return (double)(elems(p, in[CR_IN_conv_w]) / dim(p, in[CR_IN_conv_w], 0)) + (in[CR_IN_conv_bias] >= 0) +
               (in[CR_IN_conv_add] >= 0);
    case CR_OP_conv_dgrad:
        if (slot == CR_OUT_conv_dgrad_grad_sums) return pixels(p, op->out[CR_OUT_conv_dgrad_dx]);
        return dgrad_terms(p, in[CR_IN_conv_dgrad_w], op->attr.conv.stride) + (in[CR_IN_conv_dgrad_add] >= 0);
    case CR_OP_group_conv: return (double)(elems(p, in[CR_IN_group_conv_w]) / dim(p, in[CR_IN_group_conv_w], 0));
    case CR_OP_group_conv_dgrad: /* filters of one group */
        return dgrad_terms(p, in[CR_IN_group_conv_dgrad_w], op->attr.conv.stride) *
               (double)dim(p, in[CR_IN_group_conv_dgrad_w], 3) / (double)dim(p, op->out[CR_OUT_group_conv_dgrad_dx], 3);
    case CR_OP_group_conv_wgrad: return pixels(p, in[CR_IN_group_conv_wgrad_dy]);
    case CR_OP_conv_wgrad: return pixels(p, in[CR_IN_conv_wgrad_dy]);
    default:
        if (slot == CR_OUT_conv_grad_dw) return pixels(p, in[CR_IN_conv_grad_g]);
        if (slot == CR_OUT_conv_grad_dy) return 3;
        if (slot == CR_OUT_conv_grad_grad_sums) return pixels(p, in[CR_IN_conv_grad_x]);
        return dgrad_terms(p, in[CR_IN_conv_grad_w], op->attr.conv.stride) + (in[CR_IN_conv_grad_add] >= 0);
    }
}

static double reduction(const struct cr_program *p, const struct cr_op *op, int slot) {
    const int    *in     = op->in;
    const int     stride = op->attr.conv.stride;
    const int64_t all    = in[0] >= 0 ? elems(p, in[0]) : 1;
    switch (op->kind) {
    case CR_OP_conv:
    case CR_OP_conv_dgrad:
    case CR_OP_conv_wgrad:
    case CR_OP_group_conv:
    case CR_OP_group_conv_dgrad:
    case CR_OP_group_conv_wgrad:
    case CR_OP_conv_grad: return conv_reduction(p, op, slot);
    case CR_OP_gram: /* the P pixels that the convolution reads */
        return (double)(dim(p, in[CR_IN_gram_x], 0) * ((dim(p, in[CR_IN_gram_x], 1) - 1) / stride + 1) *
                        ((dim(p, in[CR_IN_gram_x], 2) - 1) / stride + 1));
    case CR_OP_gram_bn_finalize:
    case CR_OP_gram_bn_sums:
    case CR_OP_gram_bn_grad_sums: return (double)dim(p, in[0], 3);
    case CR_OP_gram_bn_grad: return (double)(dim(p, in[0], 0) + dim(p, in[0], 3));
    case CR_OP_gram_dgrad:
        if (slot == CR_OUT_gram_dgrad_grad_sums) return pixels(p, in[CR_IN_gram_dgrad_x]);
        return (double)(dim(p, in[CR_IN_gram_dgrad_g], 3) + dim(p, in[CR_IN_gram_dgrad_x], 3));
    case CR_OP_conv_pool: /* the terms of one sum, and its bias: the maximum has the error of one of its operands */
        return (double)(elems(p, in[CR_IN_conv_pool_w]) / dim(p, in[CR_IN_conv_pool_w], 0)) + 1;
    case CR_OP_conv_pair: /* the terms of t lead to y, and those of y to z */
        return (double)dim(p, in[CR_IN_conv_pair_w], 3) + 2 +
               (in[CR_IN_conv_pair_first_w] < 0 ? 0 : 9 * (double)dim(p, in[CR_IN_conv_pair_x], 3) + 1) +
               (in[CR_IN_conv_pair_shortcut_w] < 0 ? 0 : (double)dim(p, in[CR_IN_conv_pair_shortcut_w], 3) + 1) +
               (slot == CR_OUT_conv_pair_z ? (double)dim(p, in[CR_IN_conv_pair_next_w], 3) + 1 : 0);
    case CR_OP_channel_conv:
    case CR_OP_channel_conv_dgrad: return (double)dim(p, in[1], 3);
    case CR_OP_channel_conv_wgrad: return (double)all;
    case CR_OP_dense: return (double)dim(p, in[CR_IN_dense_x], 3);
    case CR_OP_dense_dgrad: return (double)dim(p, in[CR_IN_dense_dgrad_dy], 3);
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: return (double)dim(p, in[0], 0);
    case CR_OP_bn_sums:
    case CR_OP_bn_grad_sums: return pixels(p, in[0]);
    case CR_OP_relu_grad: return slot == CR_OUT_relu_grad_dx ? 0 : pixels(p, in[0]);
    case CR_OP_pool_bn_grad_sums:
        return pixels(p, in[CR_IN_pool_bn_grad_sums_x]) + pow(window_overlap(op->attr.conv.window, stride), 2);
    case CR_OP_avgpool2x2: return 4;
    case CR_OP_blurpool: return 9;
    case CR_OP_blurpool_grad: return 16; /* in an image of three rows or columns, 4 taps of an axis meet a pixel */
    case CR_OP_se_scale_grad:
        return slot == CR_OUT_se_scale_grad_dx ? 0 : (double)(dim(p, in[0], 1) * dim(p, in[0], 2));
    case CR_OP_avgpool: return (double)(dim(p, in[0], 1) * dim(p, in[0], 2));
    case CR_OP_pool_bn_grad_apply:
    case CR_OP_maxpool_grad: return pow(window_overlap(op->attr.conv.window, stride), 2);
    case CR_OP_loss: return (double)(dim(p, in[0], 0) + dim(p, in[0], 3));
    case CR_OP_loss_grad: return (double)dim(p, in[0], 3);
    case CR_OP_head: return pixels(p, in[CR_IN_head_x]) + (double)dim(p, in[CR_IN_head_w], 0);
    case CR_OP_bn_finalize: return (double)cr_sum_rows(&p->tensor[in[CR_IN_bn_finalize_sums]]) - 1;
    case CR_OP_bn_grad_finalize: return (double)cr_sum_rows(&p->tensor[in[CR_IN_bn_grad_finalize_grad_sums]]) - 1;
    case CR_OP_param_norms:
    case CR_OP_lamb_norms:
    case CR_OP_grad_norm: return (double)all;
    default: return 0;
    }
}

/* Sums of dx*xhat include the roundings of xhat, like those of bn_grad_sums. */
static double extra(const struct cr_op *op, int slot) {
    const double of_sums = cr_verify_rule(CR_OP_bn_grad_sums)->extra;
    if (op->kind == CR_OP_conv && slot == CR_OUT_conv_sums) return cr_verify_rule(CR_OP_bn_sums)->extra;
    if (op->kind == CR_OP_conv_dgrad && slot == CR_OUT_conv_dgrad_grad_sums) return of_sums;
    if (op->kind == CR_OP_conv_grad && slot == CR_OUT_conv_grad_grad_sums) return of_sums;
    if (op->kind == CR_OP_gram_dgrad && slot == CR_OUT_gram_dgrad_grad_sums) return of_sums;
    if (op->kind == CR_OP_relu_grad && slot != CR_OUT_relu_grad_dx) return of_sums;
    return cr_verify_rule(op->kind)->extra;
}

double cr_verify_terms(const struct cr_program *p, const struct cr_op *op, int out_slot) {
    return reduction(p, op, out_slot) + extra(op, out_slot) + (cr_verify_accumulates(op, out_slot) ? 1 : 0);
}

bool cr_verify_accumulates(const struct cr_op *op, int out_slot) {
    switch (op->kind) {
    case CR_OP_conv_grad:
        if (out_slot == CR_OUT_conv_grad_dgamma || out_slot == CR_OUT_conv_grad_dbeta)
            return op->attr.conv.bn.accumulate;
        return op->attr.conv.accumulate && out_slot == CR_OUT_conv_grad_dw;
    case CR_OP_s2d_filter_grad:
    case CR_OP_group_conv_wgrad: return op->attr.conv.accumulate;
    case CR_OP_conv_wgrad: return op->attr.conv.accumulate && out_slot == CR_OUT_conv_wgrad_dw;
    case CR_OP_gram_bn_grad: return op->attr.bn.accumulate && out_slot >= CR_OUT_gram_bn_grad_dw;
    case CR_OP_channel_conv_wgrad:
    case CR_OP_dense_wgrad:
    case CR_OP_dense_bgrad: return op->attr.dense.accumulate;
    case CR_OP_head: return op->attr.head.bn.accumulate && out_slot >= CR_OUT_head_dw && out_slot != CR_OUT_head_coeffs;
    case CR_OP_bn_grad_finalize: return op->attr.bn.accumulate && out_slot != CR_OUT_bn_grad_finalize_coeffs;
    default: return false;
    }
}

/* ---- error models of arithmetic ---- */

/* F32 and F64: each operation rounds to nearest, and roundings are independent, so sqrt(n) of them count.
 *
 * Tensor cores (TF32, F16, BF16) multiply exactly and add in f32, but not as IEEE 754 defines it. A group of products
 * is aligned with the largest of them and of the partial sum. Bits beyond one or two more than f32 has are truncated,
 * and the new partial sum is truncated instead of rounded (Fasi et al. 2021 measured this on three generations).
 *   - sum is four times that of f32: truncation costs up to a whole unit in the last place, rounding costs half, and it
 *     affects every term.
 *   - drift: truncation always makes numbers smaller. If all terms have the sign of the sum, so have the losses: on
 *     average half a unit one bit beyond the last, relative to a partial sum that is on average half of the result:
 *     2^-26 of the result per term. If signs alternate, so do the losses. So drift multiplies the result and not A.
 *   - operand: TF32 operands have 10 fraction bits and may be truncated to them, which loses less than 2^-10 of each
 *     factor. F16 and BF16 operands are 16-bit tensors and lose nothing.
 *   - bf16_factors (AMX): f32 operands are rounded to bf16 first. The reference computes with rounded operands, too, so
 *     that only the errors of f32 sums remain.
 *   - result: a sum that is stored in f32 (a weight gradient) may be rounded to 16 bits first, because some kernels of
 *     libraries only write the type that they read. This costs half a unit in the last place and overflows where the
 *     16-bit type does. */
const struct cr_verify_unit *cr_verify_unit(enum cr_math math) {
    static const struct cr_verify_unit products = {.sum = 0x1p-24, .result = CR_F64, .bf16_factors = true};
    static const struct cr_verify_unit f64      = {.sum = 0x1p-53, .result = CR_F64},
                                       f32      = {.sum = 0x1p-24, .result = CR_F64},
                                       tf32     = {.sum     = 0x1p-22,
                                                   .drift   = 0x1p-26,
                                                   .operand = 2 * 0x1p-10,
                                                   .result  = CR_F64},
                                       f16      = {.sum = 0x1p-22, .drift = 0x1p-26, .result = CR_F16},
                                       bf16     = {.sum = 0x1p-22, .drift = 0x1p-26, .result = CR_BF16};
    switch (math) {
    case CR_MATH_F64: return &f64;
    case CR_MATH_TF32: return &tf32;
    case CR_MATH_F16: return &f16;
    case CR_MATH_BF16: return &bf16;
    case CR_MATH_BF16_PRODUCTS: return &products;
    case CR_MATH_DATA: /* of rows only, not of the kernels of a device */
    case CR_MATH_EXACT:
    case CR_MATH_F32: break;
    }
    return &f32;
}

/* A mean may be computed as a sum followed by a division. */
double cr_verify_peak(const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_avgpool ? reduction(p, op, CR_OUT_avgpool_y) : 1;
}

/* Largest finite magnitude of an operand; 0 where it is absent or has no floating-point numbers. */
static double largest_of(const struct cr_verify_values *v, int slot) {
    const double *x   = v->in[slot];
    double        top = 0;
    if (!x || v->program->tensor[v->op->in[slot]].dtype != CR_F64) return 0;
    const int64_t n = elems(v->program, v->op->in[slot]);
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i]) > top && isfinite(x[i])) top = fabs(x[i]);
    return top;
}
/* Largest magnitude of all operands, at least 1. */
static double largest_operand(const struct cr_verify_values *v) {
    double top = 1;
    for (int s = 0; s < CR_OP_IN_MAX; s++) top = fmax(top, largest_of(v, s));
    return top;
}

double cr_verify_loss_grad_factor(const struct cr_verify_values *v) {
    const int32_t *label = v->in[CR_IN_loss_grad_labels];
    const double  *state = v->in[CR_IN_loss_grad_state];
    const int      id    = v->op->in[CR_IN_loss_grad_logits];
    const int64_t  N = dim(v->program, id, 0), K = dim(v->program, id, 3);
    const int64_t  words = dim(v->program, v->op->in[CR_IN_loss_grad_labels], 3);
    int64_t        valid = 0;
    for (int64_t n = 0; n < N; n++) valid += label[n * words] >= 0 && label[n * words] < K;
    return fabs(state[CR_STATE_LOSS_SCALE] * v->op->attr.loss.weight) / (double)CR_MAX(valid, 1);
}

/* Each product may lose half the smallest denormal, multiplied by the factors that follow. In sums of products an
 * operand below the smallest normal f32 may be treated as 0, because libraries do not specify denormals. All other
 * kernels keep denormals. f16 operands are normal numbers in f32; rounding of their sums to f16 is covered by `result`
 * and `round`. With CR_RELAXED_SPLIT_INPUT the errors of the inputs, which are independent, are added. */
double cr_verify_tiny(const struct cr_verify_values *v, int out_slot) {
    const double n = cr_verify_terms(v->program, v->op, out_slot), unit = 0x1p-149;
    const bool acts = v->op->kind == CR_OP_conv || v->op->kind == CR_OP_conv_wgrad || v->op->kind == CR_OP_conv_grad ||
                      v->op->kind == CR_OP_gram_dgrad;
    if (cr_verify_rule(v->op->kind)->products) { /* scale factors of operands multiply their loss */
        const double top   = largest_operand(v);
        const double split = v->relaxations & CR_RELAXED_SPLIT_INPUT
                                 ? 0x1p-29 * largest_of(v, CR_IN_conv_x) * largest_of(v, CR_IN_conv_w)
                                 : 0;
        return n * FLT_MIN * (acts ? top * top : top) + sqrt(n) * split;
    }
    switch (v->op->kind) {
    case CR_OP_loss_grad: return cr_verify_loss_grad_factor(v) * n * FLT_MIN; /* exp may flush to zero */
    case CR_OP_bn_grad_sums:
    case CR_OP_pool_bn_grad_sums:
    case CR_OP_relu_grad: return n * unit * largest_operand(v); /* rstd is an operand */
    case CR_OP_grad_norm: {
        const double scale = in_at(v, CR_IN_grad_norm_state, CR_STATE_LOSS_SCALE);
        return n * unit * CR_MAX(1, 1 / (scale * scale));
    }
    default: return n * unit;
    }
}

/* The power of two below x, times 2^-bits. It is taken from the bits of x, because the function is called for every
 * element of every output. */
static double half_step(double x, int bits, double least) {
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    word &= (uint64_t)0x7ff << 52;
    memcpy(&x, &word, sizeof x);
    return CR_MAX(x * (1.0 / (double)((uint64_t)1 << bits)), least);
}

double cr_verify_half_ulp(enum cr_dtype dtype, double x) {
    if (!isfinite(x)) return 0;
    switch (dtype) {
    case CR_F32: return half_step(x, 24, 0x1p-150);
    case CR_F64: return half_step(x, 53, 0);
    case CR_F16: return half_step(x, 11, 0x1p-25);
    case CR_BF16: return half_step(x, 8, 0x1p-134);
    default: return 0;
    }
}

double cr_verify_largest(enum cr_dtype dtype) {
    switch (dtype) {
    case CR_F64: return DBL_MAX;
    case CR_F16: return 65504.0;
    case CR_BF16: return 0x1.fep127;
    default: return FLT_MAX;
    }
}

/* tests/checkops/checkops_unit_quant.c: makes the operands and attributes of ops on quantised values. Flags: RELU of an
 * op with one activation: unsigned integers. qconv: RELU: y is u8, else i8; BIAS: x is i8, else u8; ADD: with a
 * summand, which is i8 with ADD_SCALE_BIAS, else u8; MEAN_RSTD: y is f32. */
#include "tests/checkops/checkops.h"

#include <string.h>

#define in(...) checkops_build_in(__VA_ARGS__)
#define out(...) checkops_build_out(__VA_ARGS__)
#define in_image(b, slot) checkops_build_image(b, slot)

static bool has_flag(const struct checkops_build *b, unsigned flag) {
    return (b->c->flags & flag) != 0;
}

static void in_scale(struct checkops_build *b, int slot, int64_t count) {
    in(b, slot, CR_F32, 1, 1, 1, count);
}

static void build_qconv(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    const int64_t               P = checkops_window_out(c->H, c), Q = checkops_window_out(c->W, c);
    const enum cr_dtype y = has_flag(b, CHECKOPS_MEAN_RSTD) ? CR_F32 : has_flag(b, CHECKOPS_RELU) ? CR_U8 : CR_I8;
    b->op.attr.conv       = (struct cr_conv_attr){
              .stride = c->stride, .pad = c->pad, .relu = has_flag(b, CHECKOPS_RELU), .window = c->window};
    in(b, CR_IN_qconv_x, has_flag(b, CHECKOPS_BIAS) ? CR_I8 : CR_U8, c->N, c->H, c->W, c->C);
    in(b, CR_IN_qconv_w, CR_I8, c->K, c->window, c->window, c->C);
    in(b, CR_IN_qconv_coeffs, CR_F32, 3, 1, 1, c->K);
    if (has_flag(b, CHECKOPS_ADD))
        in(b, CR_IN_qconv_add, has_flag(b, CHECKOPS_ADD_SCALE_BIAS) ? CR_I8 : CR_U8, c->N, P, Q, c->K);
    out(b, CR_OUT_qconv_y, y, c->N, P, Q, c->K);
}

/* z has c->window channels. TWO: a 3x3 convolution of as many channels as x has comes first. */
static void build_pair(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    in(b, CR_IN_qconv_pair_x, CR_U8, c->N, c->H, c->W, c->C);
    in(b, CR_IN_qconv_pair_w, CR_I8, c->K, 1, 1, c->C);
    in(b, CR_IN_qconv_pair_coeffs, CR_F32, 3, 1, 1, c->K);
    in(b, CR_IN_qconv_pair_add, has_flag(b, CHECKOPS_ADD_SCALE_BIAS) ? CR_I8 : CR_U8, c->N, c->H, c->W, c->K);
    in(b, CR_IN_qconv_pair_next_w, CR_I8, c->window, 1, 1, c->K);
    in(b, CR_IN_qconv_pair_next_coeffs, CR_F32, 3, 1, 1, c->window);
    if (!has_flag(b, CHECKOPS_TWO)) return;
    in(b, CR_IN_qconv_pair_first_w, CR_I8, c->C, 3, 3, c->C);
    in(b, CR_IN_qconv_pair_first_coeffs, CR_F32, 3, 1, 1, c->C);
}

static void build_stem(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.input = (struct cr_input_attr){.mean = {0.485f, 0.456f, 0.406f}, .std = {0.229f, 0.224f, 0.225f}};
    in(b, CR_IN_qstem_images, CR_U8, c->N, c->H, c->W, 3);
    in_scale(b, CR_IN_qstem_scale, 1);
    in(b, CR_IN_qstem_w, CR_I8, c->K, 7, 7, 3);
    in(b, CR_IN_qstem_coeffs, CR_F32, 3, 1, 1, c->K);
}

static void build_pack(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.conv               = (struct cr_conv_attr){.stride = c->stride, .pad = c->pad, .window = c->window};
    b->op.attr.conv.types         = (struct cr_qconv_types){.x = CR_U8, .add = CR_U8, .y = CR_U8};
    memcpy(b->op.attr.conv.pattern.image, (const int64_t[]){c->N, c->H, c->W}, 3 * sizeof(int64_t));
    in(b, CR_IN_pack_filter_w, CR_I8, c->K, c->window, c->window, c->C);
    /* larger than any device's layout: channels rounded up to 64, a sum for each output channel, weights three times */
    out(b, CR_OUT_pack_filter_y, CR_U8, 1, 1, 1, 4 * (c->K + 64) * ((c->C + 64) * c->window * c->window + 64));
}

static void build_coeffs(struct checkops_build *b) {
    const int64_t K = b->c->C;
    in_scale(b, CR_IN_qconv_coeffs_x_scale, 1);
    in_scale(b, CR_IN_qconv_coeffs_w_scale, K);
    if (has_flag(b, CHECKOPS_BIAS))
        in_scale(b, CR_IN_qconv_coeffs_bias, K);
    else
        in(b, CR_IN_qconv_coeffs_scale_bias, CR_F32, 2, 1, 1, K);
    if (has_flag(b, CHECKOPS_RELU)) in_scale(b, CR_IN_qconv_coeffs_y_scale, 1);
    if (has_flag(b, CHECKOPS_ADD)) in_scale(b, CR_IN_qconv_coeffs_add_scale, 1);
}

void checkops_build_quant(struct checkops_build *b) {
    const struct checkops_case *c = b->c;
    b->op.attr.quant              = (struct cr_quant_attr){.is_signed = !has_flag(b, CHECKOPS_RELU)};
    switch (c->kind) {
    case CR_OP_fake_quant:
        in_image(b, CR_IN_fake_quant_x);
        in_scale(b, CR_IN_fake_quant_scale, 1);
        break;
    case CR_OP_fake_quant_filter:
    case CR_OP_quantize_filter: /* the same slots; N filters */
        in_image(b, CR_IN_quantize_filter_w);
        in_scale(b, CR_IN_quantize_filter_scale, c->N);
        break;
    case CR_OP_quantize:
        in_image(b, CR_IN_quantize_x);
        in_scale(b, CR_IN_quantize_scale, 1);
        break;
    case CR_OP_dequantize:
        in(b, CR_IN_dequantize_x, has_flag(b, CHECKOPS_RELU) ? CR_U8 : CR_I8, c->N, c->H, c->W, c->C);
        in_scale(b, CR_IN_dequantize_scale, 1);
        break;
    case CR_OP_pack_filter: build_pack(b); break;
    case CR_OP_qconv_coeffs: build_coeffs(b); break;
    case CR_OP_qstem: build_stem(b); break;
    case CR_OP_qconv_pair: build_pair(b); break;
    default: build_qconv(b);
    }
}

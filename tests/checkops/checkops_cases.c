/* tests/checkops/checkops_cases.c: the cases of plain ops, one table of shapes per group of ops. The shapes are
 * small, odd or prime, one more and one less than a vector, and those of the layers of the configurations in
 * configs/ (batch 1 or 2, ImageNet's at reduced size; checkops_layers.c has the full size). */
#include "tests/checkops/checkops.h"

#include <stdio.h>
#include <string.h>

static const struct checkops_shape images[] = {
    {1, 1, 1, 1, 0, 0, 0, 0, false},    {1, 1, 1, 3, 0, 0, 0, 0, false},    {2, 3, 5, 7, 0, 0, 0, 0, false},
    {1, 7, 7, 16, 0, 0, 0, 0, false},   {3, 5, 3, 17, 0, 0, 0, 0, false},   {2, 4, 4, 64, 0, 0, 0, 0, false},
    {5, 1, 1, 13, 0, 0, 0, 0, false},   {1, 3, 3, 15, 0, 0, 0, 0, false},   {1, 1, 31, 33, 0, 0, 0, 0, false},
    {1, 1, 1, 1000, 0, 0, 0, 0, false}, {17, 2, 1, 31, 0, 0, 0, 0, false},  {1, 16, 16, 16, 0, 0, 0, 0, true},
    {1, 1, 241, 17, 0, 0, 0, 0, true},  {2, 32, 32, 16, 0, 0, 0, 0, true},  {3, 16, 16, 32, 0, 0, 0, 0, true},
    {4, 8, 8, 64, 0, 0, 0, 0, true},    {1, 28, 28, 128, 0, 0, 0, 0, true}, {1, 14, 14, 256, 0, 0, 0, 0, true},
    {2, 7, 7, 512, 0, 0, 0, 0, true},   {1, 4, 4, 2048, 0, 0, 0, 0, true},  {1, 56, 56, 64, 0, 0, 0, 0, true},
};

static const struct checkops_shape convs[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, false},
    {1, 3, 3, 1, 1, 3, 1, 1, false},
    {2, 5, 4, 3, 7, 3, 1, 1, false},
    {2, 5, 5, 7, 3, 3, 2, 1, false},
    {1, 7, 5, 16, 17, 3, 1, 1, false},
    {2, 6, 6, 17, 16, 1, 1, 0, false},
    {2, 7, 7, 16, 64, 1, 2, 0, false},
    {1, 9, 9, 3, 16, 7, 2, 3, false},
    {3, 4, 4, 64, 13, 3, 1, 1, false},
    {1, 8, 8, 5, 5, 5, 1, 2, false},
    {2, 6, 5, 3, 4, 2, 2, 0, false},
    {1, 5, 5, 4, 4, 3, 1, 0, false},
    {1, 11, 11, 3, 8, 3, 3, 1, false},
    {1, 6, 6, 8, 8, 1, 3, 0, false},
    {1, 2, 2, 16, 16, 3, 1, 1, false},
    {1, 4, 3, 15, 33, 3, 2, 1, false},
    {1, 1, 1, 32, 48, 3, 2, 1, false},
    /* widths that are multiples of 8 and 16 pixels, channels that fill vectors */
    {1, 3, 16, 16, 16, 3, 1, 1, false},
    {2, 5, 48, 16, 16, 3, 1, 1, false},
    {1, 3, 8, 32, 32, 3, 1, 1, false},
    {2, 4, 16, 32, 64, 3, 1, 1, false},
    {1, 3, 32, 64, 16, 3, 1, 1, false},
    /* odd sizes and paddings of 0 and 2, where kernels divide images into tiles; sums of several parts */
    {2, 9, 11, 64, 96, 3, 1, 1, false},
    {1, 13, 12, 80, 64, 3, 1, 0, false},
    {1, 10, 9, 64, 64, 3, 1, 2, false},
    {1, 10, 10, 400, 64, 3, 1, 1, true},
    /* enough tiles for Winograd's algorithm: F(4x4), the least of its channels, and images that do not fill tiles */
    {3, 13, 14, 32, 96, 3, 1, 1, false},
    {2, 16, 15, 16, 16, 3, 1, 1, false},
    /* and for filter gradients by it: one unit of channels, whole and partial units */
    {8, 8, 7, 64, 72, 3, 1, 1, true},
    {5, 11, 10, 80, 64, 3, 1, 0, true},
    {3, 13, 11, 136, 200, 3, 1, 2, true},
    /* cifar10-resnet20 */
    {2, 32, 32, 3, 16, 3, 1, 1, true},
    {2, 32, 32, 16, 16, 3, 1, 1, true},
    {2, 32, 32, 16, 32, 3, 2, 1, true},
    {3, 16, 16, 32, 32, 3, 1, 1, true},
    {2, 16, 16, 32, 64, 3, 2, 1, true},
    {4, 8, 8, 64, 64, 3, 1, 1, true},
    /* resnet18, resnet50 */
    {1, 33, 33, 3, 64, 7, 2, 3, true},
    {1, 14, 14, 64, 64, 3, 1, 1, true},
    {1, 14, 14, 64, 256, 1, 1, 0, true},
    {2, 7, 7, 256, 64, 1, 1, 0, true},
    {1, 14, 14, 64, 128, 3, 2, 1, true},
    {1, 14, 14, 64, 128, 1, 2, 0, true},
    {1, 8, 8, 128, 128, 3, 2, 1, true},
    {1, 7, 7, 256, 256, 3, 1, 1, true},
    {1, 8, 8, 256, 512, 1, 2, 0, true},
    {1, 4, 4, 512, 512, 3, 1, 1, true},
    {1, 4, 4, 1024, 512, 1, 1, 0, true},
    {1, 4, 4, 512, 2048, 1, 1, 0, true},
    {1, 4, 4, 1024, 2048, 1, 2, 0, true},
};

/* of grouped convolutions: 2 groups, or with TWO 4 */
static const struct checkops_shape grouped[] = {
    {1, 1, 1, 4, 4, 1, 1, 0, false},  {2, 5, 4, 4, 8, 3, 1, 1, false},   {1, 7, 5, 8, 4, 3, 2, 1, false},
    {1, 9, 9, 16, 16, 5, 2, 2, true}, {1, 6, 6, 12, 20, 3, 1, 1, false}, {1, 7, 7, 64, 64, 3, 1, 1, true},
};

static const struct checkops_shape pools[] = {
    {1, 1, 1, 1, 0, 1, 1, 0, false},  {1, 2, 2, 3, 0, 2, 2, 0, false},   {2, 5, 4, 7, 0, 3, 2, 1, false},
    {1, 7, 7, 16, 0, 3, 2, 1, false}, {2, 6, 6, 17, 0, 2, 1, 0, false},  {1, 8, 5, 5, 0, 3, 1, 1, false},
    {1, 9, 9, 33, 0, 5, 3, 2, false}, {1, 16, 16, 64, 0, 3, 2, 1, true}, {1, 56, 56, 64, 0, 3, 2, 1, true},
};

/* two 1x1 convolutions; window: channels of the second output */
static const struct checkops_shape pairs[] = {
    {1, 1, 1, 64, 128, 64, 1, 0, false},  {1, 9, 8, 64, 128, 128, 1, 0, false}, {1, 3, 5, 128, 128, 128, 1, 0, false},
    {1, 1, 2, 3, 7, 5, 1, 0, false},      {1, 13, 10, 64, 256, 64, 1, 0, true}, {1, 7, 12, 128, 512, 128, 1, 0, true},
    {1, 5, 7, 256, 256, 256, 1, 0, true}, {1, 6, 6, 128, 512, 256, 1, 0, true},
};

static const struct checkops_shape chains[] = {
    {1, 1, 1, 64, 64, 64, 1, 0, false},  {1, 9, 8, 64, 128, 128, 1, 0, false}, {1, 8, 17, 64, 64, 64, 1, 0, false},
    {1, 3, 2, 3, 7, 5, 1, 0, false},     {2, 13, 10, 64, 256, 64, 1, 0, true}, {1, 16, 24, 64, 256, 128, 1, 0, true},
    {1, 6, 6, 128, 256, 64, 1, 0, true},
};

/* of the 8-bit stem: images of one and of several segments and bands */
static const struct checkops_shape stems[] = {
    {1, 2, 2, 3, 64, 0, 0, 0, false},  {2, 10, 6, 3, 64, 0, 0, 0, false},  {3, 18, 34, 3, 128, 0, 0, 0, false},
    {1, 64, 30, 3, 64, 0, 0, 0, true}, {1, 10, 460, 3, 64, 0, 0, 0, true},
};

/* convolutions with pooling; in space-to-depth form y has 3 rows and columns less than x. Even and odd heights, blocks
 * that begin inside an image, the widest line */
static const struct checkops_shape pooled[] = {
    {1, 4, 4, 16, 64, 4, 1, 0, false},    {2, 7, 5, 3, 7, 3, 2, 1, false},     {3, 5, 6, 16, 64, 4, 1, 0, false},
    {1, 9, 11, 5, 6, 7, 2, 3, false},     {2, 14, 20, 16, 64, 4, 1, 0, false}, {1, 115, 10, 16, 64, 4, 1, 0, true},
    {1, 12, 115, 16, 128, 4, 1, 0, true}, {120, 34, 6, 16, 64, 4, 1, 0, true}, {13, 30, 5, 16, 64, 4, 1, 0, true},
    {1, 6, 116, 16, 64, 4, 1, 0, true},
};

static const struct checkops_shape shortcuts[] = {
    /* pad: number of channels of zeros before and after the input channels */
    {1, 1, 1, 1, 0, 1, 1, 1, false},    {2, 5, 5, 3, 0, 1, 2, 2, false},  {1, 4, 6, 16, 0, 1, 2, 8, false},
    {1, 3, 3, 7, 0, 1, 1, 0, false},    {1, 7, 7, 17, 0, 1, 3, 5, false}, {2, 32, 32, 16, 0, 1, 2, 8, true},
    {2, 16, 16, 32, 0, 1, 2, 16, true},
};

static const struct checkops_shape denses[] = {
    /* N, C, K */
    {1, 1, 1, 1, 1, 0, 0, 0, false},   {2, 1, 1, 3, 7, 0, 0, 0, false},     {3, 1, 1, 17, 16, 0, 0, 0, false},
    {5, 1, 1, 16, 13, 0, 0, 0, false}, {1, 1, 1, 65, 10, 0, 0, 0, false},   {13, 1, 1, 64, 10, 0, 0, 0, false},
    {4, 1, 1, 64, 100, 0, 0, 0, true}, {2, 1, 1, 512, 1000, 0, 0, 0, true}, {2, 1, 1, 2048, 100, 0, 0, 0, true},
};

static const struct checkops_shape losses[] = {
    /* N, K classes */
    {1, 1, 1, 0, 1, 0, 0, 0, false},   {2, 1, 1, 0, 3, 0, 0, 0, false},   {7, 1, 1, 0, 10, 0, 0, 0, false},
    {16, 1, 1, 0, 5, 0, 0, 0, false},  {33, 1, 1, 0, 17, 0, 0, 0, false}, {128, 1, 1, 0, 10, 0, 0, 0, true},
    {8, 1, 1, 0, 1000, 0, 0, 0, true},
};

/* of the op head: N, H, W, C, and K classes */
static const struct checkops_shape heads[] = {
    {1, 8, 8, 64, 10, 0, 0, 0, false},  {2, 3, 2, 5, 3, 0, 0, 0, false},    {3, 8, 8, 8, 1, 0, 0, 0, false},
    {7, 8, 8, 24, 10, 0, 0, 0, false},  {33, 4, 16, 64, 7, 0, 0, 0, false}, {5, 8, 8, 64, 100, 0, 0, 0, false},
    {300, 8, 8, 16, 33, 0, 0, 0, true}, {128, 8, 8, 64, 10, 0, 0, 0, true}, {130, 8, 8, 64, 128, 0, 0, 0, true},
};

/* ---- the list ---- */

struct checkops_case checkops_case_of(const struct checkops_shape *t, enum cr_op_kind kind, unsigned flags) {
    return (struct checkops_case){.kind   = kind,
                                  .N      = t->N,
                                  .H      = t->H,
                                  .W      = t->W,
                                  .C      = t->C,
                                  .K      = t->K,
                                  .window = t->window,
                                  .stride = t->stride,
                                  .pad    = t->pad,
                                  .flags  = flags,
                                  .real   = CR_F32,
                                  .big    = t->big};
}

void checkops_list_add(struct checkops_list *list, const struct checkops_case *c) {
    if (list->failed) return;
    if (list->count == list->capacity) {
        int   wanted = CR_MAX(256, list->capacity * 2);
        void *fresh  = cr_realloc(list->item, (size_t)wanted, sizeof *list->item);
        if (!fresh) {
            list->failed = true;
            return;
        }
        list->item     = fresh;
        list->capacity = wanted;
    }
    list->item[list->count++] = *c;
}

void checkops_list_free(struct checkops_list *list) {
    cr_free(list->item);
    *list = (struct checkops_list){0};
}

bool checkops_has_half(enum cr_op_kind kind) {
    switch (kind) {
    case CR_OP_bn_finalize:
    case CR_OP_bn_scale_bias:
    case CR_OP_bn_grad_finalize:
    case CR_OP_grad_norm:
    case CR_OP_all_reduce:
    case CR_OP_s2d_filter_grad:
    case CR_OP_adamw:
    case CR_OP_lars:
    case CR_OP_lamb:
    case CR_OP_lamb_norms:
    case CR_OP_param_norms:
    case CR_OP_muon:
    case CR_OP_ema:
    case CR_OP_quantize:
    case CR_OP_quantize_filter:
    case CR_OP_pack_filter:
    case CR_OP_qconv_coeffs:
    case CR_OP_qconv:
    case CR_OP_qconv_pair:
    case CR_OP_qstem:
    case CR_OP_sgd: return false;
    default: return true;
    }
}

/* Adds an f32 case and, for small shapes at the start of a table, the same case in f64: kernels must compute it
 * correctly or refuse it. 16-bit types: all cases if the device has kernels for them; otherwise one case per op
 * kind, for the 16-bit reference. */
void checkops_list_add_types(struct checkops_list *list, const struct checkops_case *of, size_t place) {
    struct checkops_case c = *of;
    if (c.kind != CR_OP_cast) {
        checkops_list_add(list, &c);
        c.real = CR_F64;
        if (!c.big && place >= 2 && place <= 4) checkops_list_add(list, &c);
        if (!checkops_has_half(c.kind)) return;
        if (list->extent == CHECKOPS_WIDE && (c.big || place != 2)) return;
    }
    c.real = CR_F16;
    checkops_list_add(list, &c);
    c.real = CR_BF16;
    checkops_list_add(list, &c);
}

static void list_variants(struct checkops_list *list, enum cr_op_kind kind, struct checkops_table table,
                          const unsigned *flags, size_t variants) {
    for (size_t i = 0; i < table.shapes; i++)
        for (size_t v = 0; v < variants; v++) {
            const struct checkops_case c = checkops_case_of(&table.shape[i], kind, flags[v]);
            checkops_list_add_types(list, &c, i);
        }
}

#define FLAGS CHECKOPS_FLAGS
#define TABLE CHECKOPS_TABLE

/* N, C, and the taps of a filter over channels */
static const struct checkops_shape rows[] = {{1, 1, 1, 1, 0, 3, 1, 0, false},
                                             {2, 1, 1, 4, 0, 3, 1, 0, false},
                                             {3, 1, 1, 17, 0, 5, 1, 0, false},
                                             {5, 1, 1, 256, 0, 7, 1, 0, true}};

static void list_pointwise(struct checkops_list *list) {
    static const enum cr_op_kind plain[] = {CR_OP_bn_sums, CR_OP_bn_finalize, CR_OP_bn_scale_bias, CR_OP_relu,
                                            CR_OP_add, CR_OP_avgpool, CR_OP_avgpool_grad, CR_OP_relu_grad,
                                            CR_OP_channel_scale, CR_OP_zero, CR_OP_cast, CR_OP_avgpool2x2,
                                            CR_OP_avgpool2x2_grad, CR_OP_blurpool, CR_OP_blurpool_grad, CR_OP_se_scale,
                                            CR_OP_se_scale_grad, CR_OP_offload, CR_OP_prefetch, CR_OP_barrier,
                                            /* all_reduce of one rank; several ranks have tests of their own */
                                            CR_OP_all_reduce};
    for (size_t i = 0; i < CR_COUNT(plain); i++) list_variants(list, plain[i], TABLE(images), FLAGS(0));
    /* TWO: images of 16 bits */
    list_variants(list, CR_OP_normalize, TABLE(images),
                  FLAGS(0, CHECKOPS_BOXES, CHECKOPS_TWO, CHECKOPS_TWO | CHECKOPS_BOXES));
    list_variants(list, CR_OP_mix, TABLE(images), FLAGS(0, CHECKOPS_TWO));
    list_variants(list, CR_OP_channel_conv, TABLE(rows), FLAGS(0));
    list_variants(list, CR_OP_channel_conv_dgrad, TABLE(rows), FLAGS(0));
    list_variants(list, CR_OP_channel_conv_wgrad, TABLE(rows), FLAGS(0, CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_drop, TABLE(images), FLAGS(0, CHECKOPS_MASK)); /* MASK: whole images */
    list_variants(list, CR_OP_bn_apply, TABLE(images),
                  FLAGS(0, CHECKOPS_RELU, CHECKOPS_ADD, CHECKOPS_ADD | CHECKOPS_RELU,
                        CHECKOPS_ADD | CHECKOPS_ADD_SCALE_BIAS, CHECKOPS_ADD | CHECKOPS_ADD_SCALE_BIAS | CHECKOPS_RELU,
                        CHECKOPS_MEAN_RSTD | CHECKOPS_RELU));
    list_variants(list, CR_OP_bn_grad_sums, TABLE(images), FLAGS(0, CHECKOPS_MASK));
    list_variants(list, CR_OP_bn_grad_finalize, TABLE(images), FLAGS(0, CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_bn_grad_apply, TABLE(images), FLAGS(0, CHECKOPS_MASK));
}

static void list_convs(struct checkops_list *list, enum cr_op_kind kind, const unsigned *flags, size_t variants) {
    list_variants(list, kind, TABLE(convs), flags, variants);
    if (list->extent == CHECKOPS_HALF) checkops_list_layers(list, kind);
}

/* The meaning of the flags is in checkops_unit_quant.c. */
static void list_quant(struct checkops_list *list) {
    enum { RELU = CHECKOPS_RELU, X_SIGNED = CHECKOPS_BIAS, ADD = CHECKOPS_ADD, F32 = CHECKOPS_MEAN_RSTD };
    list_variants(list, CR_OP_fake_quant, TABLE(images), FLAGS(0, RELU));
    list_variants(list, CR_OP_fake_quant_filter, TABLE(images), FLAGS(0));
    list_variants(list, CR_OP_quantize, TABLE(images), FLAGS(0, RELU));
    list_variants(list, CR_OP_dequantize, TABLE(images), FLAGS(0, RELU));
    list_variants(list, CR_OP_quantize_filter, TABLE(images), FLAGS(0));
    list_variants(list, CR_OP_qconv_coeffs, TABLE(images), FLAGS(0, CHECKOPS_BIAS, RELU | ADD));
    list_variants(list, CR_OP_pack_filter, TABLE(convs), FLAGS(0));
    list_variants(list, CR_OP_qconv, TABLE(convs),
                  FLAGS(0, RELU, X_SIGNED, F32, RELU | ADD, RELU | ADD | CHECKOPS_ADD_SCALE_BIAS, F32 | RELU | ADD,
                        X_SIGNED | RELU | ADD));
    list_variants(list, CR_OP_qconv_pair, TABLE(pairs), FLAGS(0, CHECKOPS_ADD_SCALE_BIAS));
    list_variants(list, CR_OP_qconv_pair, TABLE(chains), FLAGS(CHECKOPS_TWO, CHECKOPS_TWO | CHECKOPS_ADD_SCALE_BIAS));
    list_variants(list, CR_OP_qstem, TABLE(stems), FLAGS(0));
}

static void list_all(struct checkops_list *list) {
    list_pointwise(list);
    list_quant(list);
    list_convs(list, CR_OP_conv, FLAGS(0));
    list_variants(list, CR_OP_conv_pair, TABLE(pairs), FLAGS(0));
    /* TWO: after a 3x3 convolution; BIAS: with a shortcut */
    list_variants(list, CR_OP_conv_pair, TABLE(chains),
                  FLAGS(CHECKOPS_TWO, CHECKOPS_BIAS, CHECKOPS_TWO | CHECKOPS_BIAS));
    list_variants(list, CR_OP_conv_pool, TABLE(pooled), FLAGS(0));
    list_convs(list, CR_OP_conv_dgrad, FLAGS(0));
    list_convs(list, CR_OP_conv_wgrad, FLAGS(0, CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_group_conv, TABLE(grouped), FLAGS(0, CHECKOPS_TWO));
    list_variants(list, CR_OP_group_conv_dgrad, TABLE(grouped), FLAGS(0, CHECKOPS_TWO));
    list_variants(list, CR_OP_group_conv_wgrad, TABLE(grouped),
                  FLAGS(0, CHECKOPS_TWO, CHECKOPS_ACCUMULATE, CHECKOPS_TWO | CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_maxpool, TABLE(pools), FLAGS(0, CHECKOPS_NO_INDEX, CHECKOPS_NO_INDEX | CHECKOPS_BYTES));
    list_variants(list, CR_OP_maxpool_grad, TABLE(pools), FLAGS(0));
    list_variants(list, CR_OP_pad_shortcut, TABLE(shortcuts), FLAGS(0, CHECKOPS_BYTES));
    list_variants(list, CR_OP_pad_shortcut_grad, TABLE(shortcuts), FLAGS(0));
    list_variants(list, CR_OP_dense, TABLE(denses), FLAGS(0));
    list_variants(list, CR_OP_dense_dgrad, TABLE(denses), FLAGS(0));
    list_variants(list, CR_OP_dense_wgrad, TABLE(denses), FLAGS(0, CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_dense_bgrad, TABLE(denses), FLAGS(0, CHECKOPS_ACCUMULATE));
    list_variants(list, CR_OP_loss, TABLE(losses),
                  FLAGS(0, CHECKOPS_SMOOTH, CHECKOPS_MIXES, CHECKOPS_MIXES | CHECKOPS_SMOOTH));
    list_variants(list, CR_OP_loss_grad, TABLE(losses),
                  FLAGS(0, CHECKOPS_SMOOTH, CHECKOPS_SCALED, CHECKOPS_MIXES, CHECKOPS_MIXES | CHECKOPS_SMOOTH));
    for (int kind = CR_OP_loss; kind <= CR_OP_loss_grad; kind += CR_OP_loss_grad - CR_OP_loss)
        for (unsigned several = 0; several <= CHECKOPS_SEVERAL; several += CHECKOPS_SEVERAL) {
            list_variants(list, (enum cr_op_kind)kind, TABLE(losses),
                          FLAGS(several | CHECKOPS_WEIGHTS, several | CHECKOPS_FOCAL,
                                several | CHECKOPS_WEIGHTS | CHECKOPS_FOCAL | CHECKOPS_SMOOTH | CHECKOPS_SCALED,
                                several | CHECKOPS_WEIGHTS | CHECKOPS_MIXES | CHECKOPS_SMOOTH));
        }
    list_variants(list, CR_OP_head, TABLE(heads),
                  FLAGS(0, CHECKOPS_SMOOTH | CHECKOPS_SCALED, CHECKOPS_MIXES,
                        CHECKOPS_ACCUMULATE | CHECKOPS_SMOOTH | CHECKOPS_MIXES));
    list_variants(list, CR_OP_distill, TABLE(losses), FLAGS(0, CHECKOPS_SMOOTH));
    list_variants(list, CR_OP_distill_grad, TABLE(losses), FLAGS(0, CHECKOPS_SMOOTH | CHECKOPS_SCALED));
    for (int kind = CR_OP_loss; kind <= CR_OP_loss_grad; kind += CR_OP_loss_grad - CR_OP_loss)
        list_variants(list, (enum cr_op_kind)kind, TABLE(losses),
                      FLAGS(CHECKOPS_TWO, CHECKOPS_TWO | CHECKOPS_SMOOTH | CHECKOPS_WEIGHTS,
                            CHECKOPS_TWO | CHECKOPS_MIXES | CHECKOPS_SMOOTH));
    static const struct checkops_shape stores[] = {
        {1, 1, 1, 1, 0, 0, 0, 0, false}, {1, 1, 1, 1, 0, 0, 0, 0, false}, {1, 1, 1, 1, 0, 0, 0, 0, false}};
    list_variants(list, CR_OP_grad_norm, TABLE(stores), FLAGS(0, CHECKOPS_SCALED));
    list_variants(list, CR_OP_sgd, TABLE(stores),
                  FLAGS(0, CHECKOPS_NESTEROV, CHECKOPS_CLIP, CHECKOPS_NESTEROV | CHECKOPS_CLIP | CHECKOPS_SCALED,
                        CHECKOPS_BITS, CHECKOPS_BITS | CHECKOPS_NESTEROV | CHECKOPS_CLIP));
    list_variants(list, CR_OP_adamw, TABLE(stores),
                  FLAGS(0, CHECKOPS_CLIP | CHECKOPS_SCALED, CHECKOPS_BITS | CHECKOPS_CLIP));
    list_variants(list, CR_OP_param_norms, TABLE(stores), FLAGS(0, CHECKOPS_SCALED));
    list_variants(list, CR_OP_lars, TABLE(stores),
                  FLAGS(0, CHECKOPS_NESTEROV, CHECKOPS_CLIP | CHECKOPS_SCALED,
                        CHECKOPS_BITS | CHECKOPS_NESTEROV | CHECKOPS_CLIP));
    list_variants(list, CR_OP_lamb_norms, TABLE(stores),
                  FLAGS(0, CHECKOPS_CLIP | CHECKOPS_SCALED, CHECKOPS_BITS | CHECKOPS_CLIP));
    list_variants(list, CR_OP_lamb, TABLE(stores),
                  FLAGS(0, CHECKOPS_CLIP | CHECKOPS_SCALED, CHECKOPS_BITS | CHECKOPS_CLIP));
    list_variants(list, CR_OP_muon_direction, TABLE(stores),
                  FLAGS(0, CHECKOPS_NESTEROV, CHECKOPS_CLIP | CHECKOPS_SCALED,
                        CHECKOPS_BITS | CHECKOPS_NESTEROV | CHECKOPS_CLIP));
    list_variants(list, CR_OP_muon, TABLE(stores),
                  FLAGS(0, CHECKOPS_CLIP | CHECKOPS_SCALED, CHECKOPS_BITS | CHECKOPS_CLIP));
    list_variants(list, CR_OP_ema, TABLE(stores), FLAGS(0, CHECKOPS_SMOOTH, CHECKOPS_BITS));
    checkops_list_fused(list);
    if (list->extent == CHECKOPS_HALF) checkops_list_fused_layers(list);
}

cr_status checkops_list_make(enum checkops_extent extent, struct checkops_list *list) {
    *list = (struct checkops_list){.extent = extent};
    list_all(list);
    if (!list->failed) return CR_OK;
    checkops_list_free(list);
    return CR_NO_MEMORY(sizeof *list->item);
}

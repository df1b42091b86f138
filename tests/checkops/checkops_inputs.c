/* tests/checkops/checkops_inputs.c: fills the inputs of a unit from a family. One letter per slot names the meaning
 * of the operand, so that its values are plausible: sums of plausible numbers, positive reciprocal deviations,
 * indices inside the image. */
#include "tests/checkops/checkops_operands.h"

#include <stdio.h>
#include <string.h>

static const char *const family_names[FAMILIES] = {"normal", "half zero", "large mean", "equal",
                                                   "huge",   "denormal",  "non-finite"};

/* x data, S sums of data, p value buffer, G gradient and momentum buffers, u pixels, z coefficients of qconv, g
 * gamma, b offset, m running mean, v running variance, c (scale, bias), k (a, b, c), h (mean, rstd), y output of a
 * ReLU or its bits, L labels, M metrics, T state, s buffer of mean squares, n squares of norms, r buffer of
 * running statistics, R Gram matrix, K bits of pruned weights, I pool index, Q norm, B boxes of images, X mixes of
 * images, . bytes that are not read */
static const char *const meaning[CR_OP_COUNT] = {
    [CR_OP_mix]                = "uBX",
    [CR_OP_avgpool2x2]         = "x",
    [CR_OP_blurpool]           = "x",
    [CR_OP_fake_quant]         = "xv",
    [CR_OP_fake_quant_filter]  = "xv",
    [CR_OP_quantize]           = "xv",
    [CR_OP_dequantize]         = "xv",
    [CR_OP_quantize_filter]    = "xv",
    [CR_OP_pack_filter]        = "x",
    [CR_OP_qconv_coeffs]       = "vvcbvv",
    [CR_OP_qconv]              = "xxzx.",
    [CR_OP_qconv_pair]         = "xxzxxz..xz.",
    [CR_OP_qstem]              = "uvxz",
    [CR_OP_avgpool2x2_grad]    = "x",
    [CR_OP_blurpool_grad]      = "x",
    [CR_OP_se_scale]           = "xx",
    [CR_OP_drop]               = "x",
    [CR_OP_channel_conv]       = "xx",
    [CR_OP_channel_conv_dgrad] = "xx",
    [CR_OP_channel_conv_wgrad] = "xx",
    [CR_OP_se_scale_grad]      = "xxx",
    [CR_OP_normalize]          = "uB",
    [CR_OP_conv]               = "xxcbxgbmv.c",
    [CR_OP_group_conv]         = "xx",
    [CR_OP_group_conv_dgrad]   = "xx",
    [CR_OP_group_conv_wgrad]   = "xx",
    [CR_OP_conv_pool]          = "xxb",
    [CR_OP_conv_pair]          = "xxbxxbxbxxb",
    [CR_OP_bn_sums]            = "x",
    [CR_OP_bn_finalize]        = "Sgbmvm",
    [CR_OP_gram]               = "xc",
    [CR_OP_gram_bn_finalize]   = "xRgbmv",
    [CR_OP_gram_bn_sums]       = "xRm",
    [CR_OP_gram_bn_grad_sums]  = "xxxh",
    [CR_OP_gram_bn_grad]       = "xRxxghx",
    [CR_OP_gram_dgrad]         = "xxxxkchx",
    [CR_OP_bn_scale_bias]      = "gbmv",
    [CR_OP_bn_apply]           = "xchxc",
    [CR_OP_relu]               = "x",
    [CR_OP_add]                = "xx",
    [CR_OP_maxpool]            = "xc",
    [CR_OP_avgpool]            = "x",
    [CR_OP_pad_shortcut]       = "x",
    [CR_OP_dense]              = "xxb",
    [CR_OP_loss]               = "xLMXW",
    [CR_OP_loss_grad]          = "xLTXW",
    [CR_OP_dense_dgrad]        = "xx",
    [CR_OP_dense_wgrad]        = "xx",
    [CR_OP_dense_bgrad]        = "x",
    [CR_OP_avgpool_grad]       = "x",
    [CR_OP_maxpool_grad]       = "xI",
    [CR_OP_pad_shortcut_grad]  = "x",
    [CR_OP_head]               = "xchxxbLTgX",
    [CR_OP_relu_grad]          = "xyxxhxh",
    [CR_OP_bn_grad_sums]       = "xxhyc",
    [CR_OP_bn_grad_finalize]   = "xgh",
    [CR_OP_bn_grad_apply]      = "xxkyc",
    [CR_OP_channel_scale]      = "xc",
    [CR_OP_conv_dgrad]         = "xxxxhgb",
    [CR_OP_conv_wgrad]         = "xxc",
    [CR_OP_adamw]              = "pGGQTKs",
    [CR_OP_param_norms]        = "pGT",
    [CR_OP_lars]               = "pGGQTKn",
    [CR_OP_lamb_norms]         = "pGGQTKs",
    [CR_OP_lamb]               = "pGGQTKsn",
    [CR_OP_muon_direction]     = "GGQTK",
    [CR_OP_muon]               = "pGGQTKsG",
    [CR_OP_ema]                = "prQTGrK",
    [CR_OP_grad_norm]          = "GMT",
    [CR_OP_sgd]                = "pGGQTK",
    [CR_OP_zero]               = "",
    [CR_OP_cast]               = "x",
    [CR_OP_conv_grad]          = "xxkxxchxxgy",
    [CR_OP_pool_bn_grad_sums]  = "xIxch",
    [CR_OP_fold_bn]            = "xgbmv",
    [CR_OP_pool_bn_grad_apply] = "xIxck",
    [CR_OP_s2d_filter]         = "x",
    [CR_OP_s2d_filter_grad]    = "x",
    [CR_OP_offload]            = "x",
    [CR_OP_prefetch]           = "x.",
    [CR_OP_barrier]            = "x",
    [CR_OP_sparse_filter]      = "x",
    [CR_OP_all_reduce]         = "x",
    /* the logits of two networks */
    [CR_OP_distill]      = "xLMx",
    [CR_OP_distill_grad] = "xLTxx",
};

static char letter(const struct checkops_unit *unit, int slot) {
    const char *m = meaning[unit->op->kind];
    CR_ASSERT(m && slot < (int)strlen(m)); /* a new op kind needs a line above */
    return m[slot];
}

/* ---- draws ---- */

/* Sums of dot products: with equal numbers the errors of all dot products are equal, but the error bound of such
 * sums assumes independent errors. */
static bool sums_dot_products(const struct checkops_unit *unit) {
    return checkops_has_products(unit) && (unit->c.flags & (CHECKOPS_SUMS | CHECKOPS_BN));
}

static bool is_target(char c, enum checkops_family family) {
    return strchr("xSpG", c) != NULL || (family == FAMILY_NONFINITE && (c == 'M' || c == 'Q'));
}

/* Kernels that skip pruned weights do not read the inputs of these weights, so 0 times NaN gives no NaN. */
static bool may_spoil(const struct checkops_unit *unit, enum checkops_family family) {
    return !(unit->c.flags & CHECKOPS_PATTERN) || family != FAMILY_NONFINITE;
}

int checkops_draws(const struct checkops_unit *unit, int index, struct checkops_draw draws[CHECKOPS_DRAWS_MAX]) {
    int n      = 0;
    draws[n++] = (struct checkops_draw){FAMILY_NORMAL, CR_NONE};
    if (unit->c.big) {
        static const enum checkops_family turns[] = {FAMILY_HALF_ZERO, FAMILY_LARGE_MEAN, FAMILY_EQUAL};
        draws[n++] = (struct checkops_draw){turns[index % (sums_dot_products(unit) ? 2 : 3)], CR_NONE};
        return n;
    }
    for (int f = FAMILY_HALF_ZERO; f <= (sums_dot_products(unit) ? FAMILY_LARGE_MEAN : FAMILY_EQUAL); f++)
        draws[n++] = (struct checkops_draw){(enum checkops_family)f, CR_NONE};
    for (int f = FAMILY_HUGE; f < FAMILIES; f++)
        for (int s = 0; s < cr_op_info(unit->op->kind)->ins; s++)
            if (unit->op->in[s] >= 0 && is_target(letter(unit, s), (enum checkops_family)f) &&
                may_spoil(unit, (enum checkops_family)f))
                draws[n++] = (struct checkops_draw){(enum checkops_family)f, s};
    CR_ASSERT(n <= CHECKOPS_DRAWS_MAX);
    return n;
}

void checkops_draw_text(const struct checkops_unit *unit, const struct checkops_draw *draw, char *text, size_t size) {
    const char *slot = draw->target >= 0 ? cr_op_info(unit->op->kind)->in_name[draw->target] : "";
    snprintf(text, size, "%s%s%s", family_names[draw->family], draw->target >= 0 ? " " : "", slot);
}

/* Weights outside the sparsity pattern are 0. */
static void prune_filter(const struct checkops_unit *unit, const struct cr_tensor *t, void *data) {
    const int64_t first = unit->store.param[unit->op->attr.conv.pattern.param].offset;
    for (int64_t i = 0; i < cr_tensor_elems(t); i++)
        if (!(unit->pattern[(first + i) / 8] >> ((first + i) % 8) & 1)) cr_number_store(t->dtype, data, i, 0);
}

cr_status checkops_inputs_make(const struct checkops_unit *unit, const struct checkops_draw *draw,
                               struct checkops_inputs *inputs) {
    const struct cr_op     *op     = unit->op;
    const uint32_t          family = (uint32_t)draw->family;
    struct checkops_drawing d      = {.unit  = unit,
                                      .draw  = *draw,
                                      .limit = checkops_huge_limit(unit),
                                      .rng   = cr_rng_make(20, CR_RNG_TEST, (uint64_t)op->kind, family)};
    const int               filter = op->kind == CR_OP_conv_dgrad ? (int)CR_IN_conv_dgrad_w
                                     : op->kind == CR_OP_conv     ? (int)CR_IN_conv_w
                                                                  : CR_NONE;
    cr_status               status = CR_OK;
    *inputs                        = (struct checkops_inputs){0};
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (op->in[s] < 0) continue;
        const struct cr_tensor *t = &unit->program.tensor[op->in[s]];
        inputs->in[s]             = cr_alloc(t->bytes, 1);
        if (!inputs->in[s]) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for inputs");
        checkops_draw_operand(&d, letter(unit, s), s, t, inputs->in[s]);
        for (int i = 0; i < s; i++) /* one tensor in two slots */
            if (op->in[i] == op->in[s]) memcpy(inputs->in[s], inputs->in[i], t->bytes);
        if (cr_op_has_sparsity_pattern(op) && s == filter) prune_filter(unit, t, inputs->in[s]);
    }
    for (int s = 0; s < CR_OP_OUT_MAX; s++) {
        if (op->out[s] < 0 || !cr_verify_accumulates(op, s)) continue;
        const struct cr_tensor *t = &unit->program.tensor[op->out[s]];
        inputs->before[s]         = cr_alloc(t->bytes, 1);
        if (!inputs->before[s]) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for inputs");
        for (int64_t i = 0; i < cr_tensor_elems(t); i++)
            cr_number_store(t->dtype, inputs->before[s], i, (double)cr_rng_normal(&d.rng));
    }
out:
    if (status != CR_OK) checkops_inputs_free(inputs);
    return status;
}

void checkops_inputs_free(struct checkops_inputs *inputs) {
    for (int s = 0; s < CR_OP_IN_MAX; s++) cr_free(inputs->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++) cr_free(inputs->before[s]);
    *inputs = (struct checkops_inputs){0};
}

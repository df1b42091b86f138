/* autotune/renamed.c: old names of kernels, ops and slots in stored kernel times.
 *
 * Version 0.3 renamed kernels, ops and slots. Checkpoints of version 0.1 hold kernel times under the old names. These
 * tables translate a line when it is read, so that such a run resumes with the kernels that it was built on. A kernel
 * that is renamed later gets one more line here. */
#include "autotune/cost_table_internal.h"

#include <string.h>

struct renamed {
    const char *old, *now;
};

enum { SLOTS_MAX = 6 };

struct renamed_op {
    const char    *old, *now;
    struct renamed slot[SLOTS_MAX]; /* ends at the first slot without a name */
};

static const struct renamed kernels[] = {
    {"ref.bn_stats", "ref.bn_sums"},
    {"ref.bn_coef", "ref.bn_scale_bias"},
    {"ref.meanpool", "ref.avgpool2x2"},
    {"ref.gate", "ref.se_scale"},
    {"ref.meanpool_grad", "ref.avgpool2x2_grad"},
    {"ref.gate_grad", "ref.se_scale_grad"},
    {"ref.bn_grad_stats", "ref.bn_grad_sums"},
    {"ref.pool_bn_grad_stats", "ref.pool_bn_grad_sums"},
    {"ref.grad_check", "ref.grad_norm"},
    {"ref.swap_out", "ref.offload"},
    {"ref.swap_in", "ref.prefetch"},
    {"ref.sync", "ref.barrier"},
    {"cpu.bn_stats", "cpu.bn_sums"},
    {"cpu.bn_grad_stats", "cpu.bn_grad_sums"},
    {"cpu.grad_check", "cpu.grad_norm"},
    {"cuda.bn_stats", "cuda.bn_sums"},
    {"cuda.bn_coef", "cuda.bn_scale_bias"},
    {"cuda.bn_grad_stats", "cuda.bn_grad_sums"},
    {"cuda.pool_bn_grad_stats", "cuda.pool_bn_grad_sums"},
    {"cuda.gate", "cuda.se_scale"},
    {"cuda.gate_grad", "cuda.se_scale_grad"},
    {"cuda.meanpool", "cuda.avgpool2x2"},
    {"cuda.meanpool_grad", "cuda.avgpool2x2_grad"},
    {"cuda.swap_out", "cuda.offload"},
    {"cuda.swap_in", "cuda.prefetch"},
    {"cuda.sync", "cuda.barrier"},
    {"cuda.grad_check", "cuda.grad_norm"},
    {"cudnn.conv_dgrad.tf32_gate", "cudnn.conv_dgrad.tf32_relu_mask"},
    {"cudnn.conv_dgrad.f32_gate", "cudnn.conv_dgrad.f32_relu_mask"},
    {"cudnn.conv_dgrad.f16_gate", "cudnn.conv_dgrad.f16_relu_mask"},
    {"cudnn.conv_dgrad.bf16_gate", "cudnn.conv_dgrad.bf16_relu_mask"},
    {"cuda.small_conv.f16", "cuda.cifar_conv.f16"},
    {"cuda.small_conv.bf16", "cuda.cifar_conv.bf16"},
    {"cuda.small_conv_grad.f16", "cuda.cifar_conv_grad.f16"},
    {"cuda.small_conv_grad.bf16", "cuda.cifar_conv_grad.bf16"},
    {"cuda.small_dense.f16", "cuda.cifar_dense.f16"},
    {"cuda.small_dense.bf16", "cuda.cifar_dense.bf16"},
    {"cuda.small_dense_dgrad.f16", "cuda.cifar_dense_dgrad.f16"},
    {"cuda.small_dense_dgrad.bf16", "cuda.cifar_dense_dgrad.bf16"},
    {"cuda.small_dense_wgrad.f16", "cuda.cifar_dense_wgrad.f16"},
    {"cuda.small_dense_wgrad.bf16", "cuda.cifar_dense_wgrad.bf16"},
    {"cuda.sparse_conv", "cuda.sparse_direct"},
    {"cuda.sparse_conv_plain", "cuda.sparse_sell"},
    {"cuda.sparse_union", "cuda.mma_sp"},
    {"cuda.sparse_union_filter", "cuda.mma_sp_filter"},
    {"cuda.sparse_walks", "cuda.wgmma_sp"},
    {"cuda.sparse_walks_filter", "cuda.wgmma_sp_filter"},
    {"cuda.sparse_nm.f16", "cuda.two_four.f16"},
    {"cuda.sparse_nm.bf16", "cuda.two_four.bf16"},
    {"cuda.sparse_nm_filter", "cuda.two_four_filter"},
    {"cuda.block_conv.f16", "cuda.block_sparse.f16"},
    {"cuda.block_conv.bf16", "cuda.block_sparse.bf16"},
    {"cuda.block_filter", "cuda.block_sparse_filter"},
};

static const struct renamed_op ops[] = {
    {"conv",
     "conv",
     {{"coef", "scale_bias"},
      {"kept", "packed"},
      {"stats", "sums"},
      {"next", "next_scale_bias"},
      {"saved", "mean_rstd"}}},
    {"bn_stats", "bn_sums", {{"stats", "sums"}}},
    {"bn_finalize",
     "bn_finalize",
     {{"stats", "sums"}, {"coef", "scale_bias"}, {"saved", "mean_rstd"}, {"coef_half", "scale_bias_half"}}},
    {"bn_coef", "bn_scale_bias", {{"coef", "scale_bias"}}},
    {"bn_apply", "bn_apply", {{"coef", "scale_bias"}, {"saved", "mean_rstd"}, {"add_coef", "add_scale_bias"}}},
    {"maxpool", "maxpool", {{"coef", "scale_bias"}}},
    {"meanpool", "avgpool2x2", {{NULL, NULL}}},
    {"gate", "se_scale", {{"gate", "logit"}}},
    {"meanpool_grad", "avgpool2x2_grad", {{NULL, NULL}}},
    {"gate_grad", "se_scale_grad", {{"gate", "logit"}, {"dgate", "dlogit"}}},
    {"relu_grad",
     "relu_grad",
     {{"saved", "mean_rstd"}, {"saved2", "mean_rstd2"}, {"dstats", "grad_sums"}, {"dstats2", "grad_sums2"}}},
    {"bn_grad_stats", "bn_grad_sums", {{"saved", "mean_rstd"}, {"act", "scale_bias"}, {"dstats", "grad_sums"}}},
    {"bn_grad_finalize", "bn_grad_finalize", {{"dstats", "grad_sums"}, {"saved", "mean_rstd"}, {"coef", "coeffs"}}},
    {"bn_grad_apply", "bn_grad_apply", {{"coef", "coeffs"}, {"act", "scale_bias"}}},
    {"channel_scale", "channel_scale", {{"coef", "scale_bias"}}},
    {"pool_bn_grad_stats",
     "pool_bn_grad_sums",
     {{"act", "scale_bias"}, {"saved", "mean_rstd"}, {"dstats", "grad_sums"}}},
    {"pool_bn_grad_apply", "pool_bn_grad_apply", {{"act", "scale_bias"}, {"coef", "coeffs"}}},
    {"conv_dgrad", "conv_dgrad", {{"saved", "mean_rstd"}, {"dstats", "grad_sums"}}},
    {"conv_wgrad", "conv_wgrad", {{"coef", "scale_bias"}}},
    {"conv_grad",
     "conv_grad",
     {{"coef", "scale_bias"},
      {"saved", "mean_rstd"},
      {"dstats", "grad_sums"},
      {"dy_coef", "dy_coeffs"},
      {"grad_coef", "grad_coeffs"}}},
    {"grad_check", "grad_norm", {{NULL, NULL}}},
    {"swap_out", "offload", {{NULL, NULL}}},
    {"swap_in", "prefetch", {{"token", "event"}}},
    {"sync", "barrier", {{"token", "event"}}},
};

/* Whole signatures of copies between host and device, which are not ops of a program. */
static const struct renamed copies[] = {
    {"swap_out beside swap_in, 64 MiB", "offload during prefetch, 64 MiB"},
    {"swap_in beside swap_out, 64 MiB", "prefetch during offload, 64 MiB"},
    {"swap_out alone, 64 MiB", "offload alone, 64 MiB"},
    {"swap_in alone, 64 MiB", "prefetch alone, 64 MiB"},
    {"swap_out alone, 256 B", "offload alone, 256 B"},
    {"swap_out beside add, 64 MiB", "offload during add, 64 MiB"},
    {"swap_out beside bn_stats, 64 MiB", "offload during bn_sums, 64 MiB"},
    {"swap_out beside conv, 64 MiB", "offload during conv, 64 MiB"},
    {"add beside swap_out, 32 of 128 MiB", "add during offload, 32 of 128 MiB"},
    {"add beside swap_in, 32 of 128 MiB", "add during prefetch, 32 of 128 MiB"},
};

static const struct renamed_op *find_op(const char *old, size_t length) {
    for (size_t i = 0; i < CR_COUNT(ops); i++)
        if (strlen(ops[i].old) == length && strncmp(ops[i].old, old, length) == 0) return &ops[i];
    return NULL;
}

const char *cr_cost_kernel_now(const char *name) {
    for (size_t i = 0; i < CR_COUNT(kernels); i++)
        if (strcmp(kernels[i].old, name) == 0) return kernels[i].now;
    return name;
}

static const char *slot_now(const struct renamed_op *op, const char *old, size_t length) {
    for (int i = 0; op && i < SLOTS_MAX && op->slot[i].old; i++)
        if (strlen(op->slot[i].old) == length && strncmp(op->slot[i].old, old, length) == 0) return op->slot[i].now;
    return NULL;
}

static bool starts_number(const char *word, size_t length, const char *prefix) {
    const size_t n = strlen(prefix);
    return length > n && strncmp(word, prefix, n) == 0 && strchr("0123456789", word[n]);
}

/* Translates a word after the op: an attribute, "slot=type[shape]", a slot without a shape, or the arrow. */
static void add_word(const struct renamed_op *op, const char *word, size_t length, struct cr_text *out) {
    const char  *equals = memchr(word, '=', length);
    const size_t name   = equals ? (size_t)(equals - word) : length;
    const char  *now    = slot_now(op, word, name);
    if (now)
        cr_text_add(out, "%s%.*s", now, (int)(length - name), word + name);
    else if (starts_number(word, length, "kept"))
        cr_text_add(out, "nnz%.*s", (int)length - 4, word + 4);
    else if (starts_number(word, length, "layout"))
        cr_text_add(out, "format%.*s", (int)length - 6, word + 6);
    else
        cr_text_add(out, "%.*s", (int)length, word);
}

void cr_cost_signature_now(const char *old, struct cr_text *out) {
    const struct renamed_op *op    = NULL;
    bool                     named = false; /* the op's name has been read */
    for (size_t i = 0; i < CR_COUNT(copies); i++)
        if (strcmp(copies[i].old, old) == 0) {
            cr_text_add(out, "%s", copies[i].now);
            return;
        }
    while (*old) {
        const size_t length = strcspn(old, " ");
        const bool   option =
            !named && ((length == 3 && strncmp(old, "any", 3) == 0) || (length == 4 && strncmp(old, "tf32", 4) == 0));
        if (named) {
            add_word(op, old, length, out);
        } else if (option) {
            cr_text_add(out, "%.*s", (int)length, old);
        } else {
            op    = find_op(old, length);
            named = true;
            if (op)
                cr_text_add(out, "%s", op->now);
            else
                cr_text_add(out, "%.*s", (int)length, old);
        }
        old += length;
        if (*old == ' ') {
            cr_text_add(out, " ");
            old++;
        }
    }
}

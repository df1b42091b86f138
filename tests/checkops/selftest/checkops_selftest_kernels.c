/* tests/checkops/selftest/checkops_selftest_kernels.c: the table of kernels with deliberate errors, and of unusual
 * kernels that are correct. */
#include "device/cpu/cpu.h"
#include "tests/checkops/selftest/checkops_selftest.h"

#include <math.h>
#include <string.h>

static bool is_f32(const struct cr_call *call) {
    return checkops_out_tensor(call, 0)->dtype == CR_F32;
}

static void scale_element(const struct cr_call *call, int slot, int64_t i, double factor) {
    if (is_f32(call))
        ((float *)call->out[slot])[i] *= (float)factor;
    else
        ((double *)call->out[slot])[i] *= factor;
}

static cr_status inexact_last(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    scale_element(call, 0, cr_tensor_elems(checkops_out_tensor(call, 0)) - 1, 1 + 0x1p-18);
    return CR_OK;
}

static cr_status forgets_last(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t    = checkops_out_tensor(call, 0);
    const size_t            size = cr_dtype_bytes(t->dtype);
    unsigned char           old[8];
    memcpy(old, (char *)call->out[0] + t->bytes - size, size);
    CR_TRY(checkops_reference(device, call));
    memcpy((char *)call->out[0] + t->bytes - size, old, size);
    return CR_OK;
}

static cr_status writes_after_end(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    ((char *)call->out[0])[checkops_out_tensor(call, 0)->bytes] = 0;
    return CR_OK;
}

static cr_status writes_before_start(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    ((char *)call->out[0])[-1] = 0;
    return CR_OK;
}

static cr_status reads_after_end(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[0]];
    CR_TRY(checkops_reference(device, call));
    if (is_f32(call)) scale_element(call, 0, 0, 1 + 0x1p-30 * (double)((const float *)call->in[0])[cr_tensor_elems(x)]);
    return CR_OK;
}

static cr_status changes_input(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    ((char *)(uintptr_t)call->in[1])[0] ^= 1;
    return CR_OK;
}

/* Every second run of a prepared kernel differs in the last bit: within any error bound, but not deterministic.
 * Infinity and 0 are not changed: a neighbour is NaN, or a denormal number outside a bound of 0. */
static cr_status count_prepare(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op;
    int *runs;
    CR_ALLOC(runs, 1);
    *prepared        = runs;
    *workspace_bytes = 0;
    return CR_OK;
}
static cr_status varies_between_runs(struct cr_device *device, const struct cr_call *call) {
    int *runs = call->prepared;
    CR_TRY(checkops_reference(device, call));
    const double first = cr_number_load(checkops_out_tensor(call, 0)->dtype, call->out[0], 0);
    if ((*runs)++ % 2 && isfinite(first) && first != 0) ((char *)call->out[0])[0] ^= 1;
    return CR_OK;
}

static cr_status forgets_to_add(struct cr_device *device, const struct cr_call *call) {
    memset(call->out[0], 0, checkops_out_tensor(call, 0)->bytes);
    return checkops_reference(device, call);
}

static cr_status workspace_prepare(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                   void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op;
    *prepared        = NULL;
    *workspace_bytes = 12;
    return CR_OK;
}
static cr_status workspace_too_small(struct cr_device *device, const struct cr_call *call) {
    memset(call->workspace, 0, 16);
    return checkops_reference(device, call);
}
static cr_status assumes_zeroed_workspace(struct cr_device *device, const struct cr_call *call) {
    float dirt;
    CR_TRY(checkops_reference(device, call));
    memcpy(&dirt, call->workspace, sizeof dirt);
    scale_element(call, 0, 0, 1 + (double)dirt);
    return CR_OK;
}
static void release_nothing(void *prepared) {
    (void)prepared;
}

static cr_status prepare_refuses(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op, (void)prepared, (void)workspace_bytes;
    return CR_FAIL(CR_ERR_DEVICE, "no plan for this shape");
}

static cr_status drops_nan(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    for (int64_t i = 0; i < cr_tensor_elems(checkops_out_tensor(call, 0)); i++)
        if (is_f32(call) && isnan(((float *)call->out[0])[i])) ((float *)call->out[0])[i] = 0;
    return CR_OK;
}

/* The index depends on the order of the search: the last of equal maxima. */
static cr_status last_of_equals(struct cr_device *device, const struct cr_call *call) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    const struct cr_tensor    *x = &call->program->tensor[call->op->in[0]], *y = checkops_out_tensor(call, 0);
    const int64_t              C = y->dim[3];
    CR_TRY(checkops_reference(device, call));
    if (!is_f32(call) || !call->out[CR_OUT_maxpool_index]) return CR_OK;
    for (int64_t i = 0; i < cr_tensor_elems(y); i++)
        for (int tap = 0; tap < a->window * a->window; tap++) {
            const int64_t q = i / C % y->dim[2], p = i / C / y->dim[2] % y->dim[1], n = i / C / y->dim[2] / y->dim[1];
            const int64_t h = p * a->stride - a->pad + tap / a->window, w = q * a->stride - a->pad + tap % a->window;
            if (h < 0 || h >= x->dim[1] || w < 0 || w >= x->dim[2]) continue;
            const int64_t at = ((n * x->dim[1] + h) * x->dim[2] + w) * C + i % C;
            if (((const float *)call->in[0])[at] == ((const float *)call->out[0])[i])
                ((uint8_t *)call->out[CR_OUT_maxpool_index])[i] = (uint8_t)tap;
        }
    return CR_OK;
}

/* y = a, then y += b: correct unless y has the storage of b. */
static cr_status reads_after_writing(struct cr_device *device, const struct cr_call *call) {
    if (!is_f32(call)) return checkops_reference(device, call);
    float       *y = call->out[0];
    const float *b = call->in[1];
    memmove(y, call->in[0], checkops_out_tensor(call, 0)->bytes);
    for (int64_t i = 0; i < cr_tensor_elems(checkops_out_tensor(call, 0)); i++) y[i] += b[i];
    return CR_OK;
}

static cr_status rounds_inputs(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x      = &call->program->tensor[call->op->in[0]];
    struct cr_call          narrow = *call;
    if (!is_f32(call)) return checkops_reference(device, call);
    float *copy;
    CR_ALLOC(copy, (size_t)cr_tensor_elems(x));
    for (int64_t i = 0; i < cr_tensor_elems(x); i++)
        copy[i] = cr_bf16_to_f32(cr_f32_to_bf16(((const float *)call->in[0])[i]));
    narrow.in[0]     = copy;
    cr_status status = checkops_reference(device, &narrow);
    cr_free(copy);
    return status;
}

static bool never(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device, (void)program, (void)op;
    return false;
}

static cr_status updates_frozen(struct cr_device *device, const struct cr_call *call) {
    const struct cr_param_store *store = call->program->store;
    CR_TRY(checkops_reference(device, call));
    scale_element(call, CR_OUT_sgd_value, store->param[cr_param_store_find(store, "frozen.weight")].offset,
                  1 - 0x1p-20);
    return CR_OK;
}

/* Updates pruned weights too. */
static cr_status forgets_mask(struct cr_device *device, const struct cr_call *call) {
    struct cr_call without     = *call;
    without.in[CR_IN_sgd_mask] = NULL;
    return checkops_reference(device, &without);
}

/* The direction of the plain momentum: every element is slightly off. */
static cr_status forgets_nesterov(struct cr_device *device, const struct cr_call *call) {
    struct cr_call without = *call;
    struct cr_op   op      = *call->op;
    op.attr.sgd.nesterov   = false;
    without.op             = &op;
    return checkops_reference(device, &without);
}

static cr_status counts_twice(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    scale_element(call, 0, 2, 1.25); /* number of correct images in the metrics */
    return CR_OK;
}

static cr_status wrong_variance(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(checkops_reference(device, call));
    scale_element(call, CR_OUT_bn_finalize_running_var, 0, 1 + 1e-4);
    return CR_OK;
}

/* Treats every tensor as f32. */
static cr_status ignores_type(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(checkops_out_tensor(call, 0)); i++) {
        const float x              = ((const float *)call->in[0])[i];
        ((float *)call->out[0])[i] = x < 0 ? 0 : x;
    }
    return CR_OK;
}

/* Sequential summation in f32: accurate enough for small M, so it must pass. */
static cr_status float_sums(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[0]];
    const int64_t           C = x->dim[3], M = cr_tensor_elems(x) / C;
    if (!is_f32(call)) return checkops_reference(device, call);
    float *sums = call->out[0];
    memset(sums, 0, checkops_out_tensor(call, 0)->bytes);
    for (int64_t i = 0; i < M * C; i++) {
        const float v = ((const float *)call->in[0])[i];
        sums[i % C] += v;
        sums[C + i % C] += v * v;
    }
    return CR_OK;
}

/* Version 14 of clang-format moves a backslash beyond column 120. */
/* clang-format off */
#define BAD(text, kind, function)                                                                                      \
    {                                                                                                                  \
        .kernel = {.name          = "bad." text,                                                                       \
                   .op            = CR_OP_##kind,                                                                      \
                   .math          = CR_MATH_F32,                                                                       \
                   .deterministic = true,                                                                              \
                   .accepts       = checkops_not_half,                                                                 \
                   .launch        = function},                                                                         \
        .wrong  = true                                                                                                 \
    }
#define BAD_HALF(text, kind, how, function)                                                                            \
    {                                                                                                                  \
        .kernel = {.name          = "bad." text,                                                                       \
                   .op            = CR_OP_##kind,                                                                      \
                   .math          = CR_MATH_##how,                                                                     \
                   .deterministic = true,                                                                              \
                   .accepts       = checkops_only_half,                                                                \
                   .launch        = function},                                                                         \
        .wrong  = true                                                                                                 \
    }
#define BAD_DIRECTION(text, how, who, function)                                                                        \
    {                                                                                                                  \
        .kernel = {.name          = "bad." text,                                                                       \
                   .op            = CR_OP_muon_direction,                                                              \
                   .math          = CR_MATH_##how,                                                                     \
                   .deterministic = true,                                                                              \
                   .accepts       = who,                                                                               \
                   .workspace     = cr_ref_workspace,                                                                  \
                   .launch        = function},                                                                         \
        .wrong  = true                                                                                                 \
    }
/* clang-format on */
const struct checkops_wrong_kernel checkops_wrong_kernels[] = {
    BAD("inexact_last", add, inexact_last),
    BAD("inexact_last_conv", conv, inexact_last),
    BAD("forgets_last", relu, forgets_last),
    BAD("writes_after_end", relu, writes_after_end),
    BAD("writes_before_start", bn_sums, writes_before_start),
    BAD("reads_after_end", bn_sums, reads_after_end),
    BAD("changes_input", conv, changes_input),
    BAD("forgets_to_add", conv_wgrad, forgets_to_add),
    BAD("drops_nan", relu, drops_nan),
    BAD("last_of_equals", maxpool, last_of_equals),
    BAD("reads_after_writing", add, reads_after_writing),
    BAD("rounds_inputs", conv, rounds_inputs),
    BAD("updates_frozen", sgd, updates_frozen),
    BAD("forgets_mask", sgd, forgets_mask),
    BAD_DIRECTION("forgets_nesterov", F32, checkops_not_half, forgets_nesterov),
    BAD_DIRECTION("forgets_nesterov_f16", F16, checkops_not_half, forgets_nesterov),
    BAD("counts_twice", loss, counts_twice),
    BAD("wrong_variance", bn_finalize, wrong_variance),
    BAD("ignores_type", relu, ignores_type),
    {{.name          = "bad.varies_between_runs",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .prepare       = count_prepare,
      .launch        = varies_between_runs,
      .release       = cr_free},
     true},
    {{.name          = "bad.workspace_too_small",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .prepare       = workspace_prepare,
      .launch        = workspace_too_small,
      .release       = release_nothing},
     true},
    {{.name          = "bad.assumes_zeroed_workspace",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .prepare       = workspace_prepare,
      .launch        = assumes_zeroed_workspace,
      .release       = release_nothing},
     true},
    {{.name          = "bad.accepts_then_refuses",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .prepare       = prepare_refuses,
      .launch        = checkops_reference,
      .release       = release_nothing},
     true},
    {{.name          = "bad.accepts_nothing",
      .op            = CR_OP_relu,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = never,
      .launch        = checkops_reference},
     true},
    BAD_HALF("sums_in_16_bits", dense, F16, checkops_sums_in_16_bits),
    BAD_HALF("truncates_result", add, F32, checkops_truncates_result),
    BAD_HALF("saturates", channel_scale, F32, checkops_saturates),
    BAD_HALF("rounds_ties_up", cast, EXACT, checkops_rounds_ties_up),
    BAD("truncates_to_tf32_in_f32", conv, checkops_truncates_to_tf32),
    {{.name          = "bad.rounds_to_bf16",
      .op            = CR_OP_conv_dgrad,
      .math          = CR_MATH_TF32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .launch        = rounds_inputs},
     true},
    {{.name          = "good.truncates_to_tf32",
      .op            = CR_OP_conv,
      .math          = CR_MATH_TF32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .launch        = checkops_truncates_to_tf32},
     false},
    {{.name          = "good.float_sums",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = checkops_not_half,
      .launch        = float_sums},
     false},
    {{.name          = "good.not_deterministic",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = false,
      .accepts       = checkops_not_half,
      .prepare       = count_prepare,
      .launch        = varies_between_runs,
      .release       = cr_free},
     false},
};
const int checkops_wrong_kernel_count = CR_COUNT(checkops_wrong_kernels);

/* tests/checkops/selftest/checkops_selftest_kernels.c: the table of kernels with deliberate errors, and of unusual
 * kernels that are correct. Rounding to 16 bits and to tf32: tests/unit/verification/. */
#include "device/cpu/cpu.h"
#include "tests/checkops/selftest/checkops_selftest.h"

#include <math.h>
#include <string.h>

/* ---- whether a kernel accepts an op ---- */

static bool is_half(enum cr_dtype dtype) {
    return dtype == CR_F16 || dtype == CR_BF16;
}
static bool only_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device;
    return is_half(program->tensor[op->out[0]].dtype);
}
static bool not_half(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0 && is_half(program->tensor[op->in[s]].dtype)) return false;
    return !is_half(program->tensor[op->out[0]].dtype);
}

/* ---- kernels ---- */

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

/* ---- the op head in 16 bits: one of the ops that it joins is wrong ---- */

static cr_status head_without(struct cr_device *device, const struct cr_call *call, int slot) {
    struct cr_call without = *call;
    char          *zeros;
    CR_ALLOC(zeros, call->program->tensor[call->op->in[slot]].bytes);
    without.in[slot]       = zeros;
    const cr_status status = checkops_reference(device, &without);
    cr_free(zeros);
    return status;
}
static cr_status head_forgets_add(struct cr_device *device, const struct cr_call *call) {
    return head_without(device, call, CR_IN_head_add);
}
static cr_status head_forgets_bias(struct cr_device *device, const struct cr_call *call) {
    return head_without(device, call, CR_IN_head_b);
}
static cr_status head_takes_first_label(struct cr_device *device, const struct cr_call *call) {
    return head_without(device, call, CR_IN_head_labels);
}

/* The loss of the reference with other options. */
static cr_status head_with_loss(struct cr_device *device, const struct cr_call *call, struct cr_loss_attr loss) {
    struct cr_call other = *call;
    struct cr_op   op    = *call->op;
    op.attr.head.loss    = loss;
    other.op             = &op;
    return checkops_reference(device, &other);
}
static cr_status head_smooths_more(struct cr_device *device, const struct cr_call *call) {
    struct cr_loss_attr loss = call->op->attr.head.loss;
    loss.smoothing += 0.1f;
    return head_with_loss(device, call, loss);
}
static cr_status head_forgets_weight(struct cr_device *device, const struct cr_call *call) {
    struct cr_loss_attr loss = call->op->attr.head.loss;
    loss.weight              = 1;
    return head_with_loss(device, call, loss);
}

/* Half of one output, by its slot. */
static cr_status head_halves(struct cr_device *device, const struct cr_call *call, int slot) {
    const struct cr_tensor *t = &call->program->tensor[call->op->out[slot]];
    CR_TRY(checkops_reference(device, call));
    for (int64_t i = 0; i < cr_tensor_elems(t); i++)
        cr_number_store(t->dtype, call->out[slot], i, cr_number_load(t->dtype, call->out[slot], i) / 2);
    return CR_OK;
}
static cr_status head_halves_dx(struct cr_device *device, const struct cr_call *call) {
    return head_halves(device, call, CR_OUT_head_dx);
}
static cr_status head_halves_dw(struct cr_device *device, const struct cr_call *call) {
    return head_halves(device, call, CR_OUT_head_dw);
}
static cr_status head_halves_db(struct cr_device *device, const struct cr_call *call) {
    return head_halves(device, call, CR_OUT_head_db);
}
static cr_status head_halves_dgamma(struct cr_device *device, const struct cr_call *call) {
    return head_halves(device, call, CR_OUT_head_dgamma);
}
static cr_status head_halves_coeffs(struct cr_device *device, const struct cr_call *call) {
    return head_halves(device, call, CR_OUT_head_coeffs);
}

/* Version 14 of clang-format moves a backslash beyond column 120. */
/* clang-format off */
#define PREPARED(text, kind, fixed, who, before, function, after)                                                      \
    {                                                                                                                  \
        .name          = text,                                                                                         \
        .op            = CR_OP_##kind,                                                                                 \
        .math          = CR_MATH_F32,                                                                                  \
        .deterministic = fixed,                                                                                        \
        .accepts       = who,                                                                                          \
        .prepare       = before,                                                                                       \
        .launch        = function,                                                                                     \
        .release       = after                                                                                         \
    }
#define WITH_WORKSPACE(text, kind, how, who, function)                                                                 \
    {                                                                                                                  \
        .name          = text,                                                                                         \
        .op            = CR_OP_##kind,                                                                                 \
        .math          = CR_MATH_##how,                                                                                \
        .deterministic = true,                                                                                         \
        .accepts       = who,                                                                                          \
        .workspace     = cr_ref_workspace,                                                                             \
        .launch        = function                                                                                      \
    }
/* clang-format on */
#define KERNEL CHECKOPS_KERNEL
const struct cr_kernel checkops_wrong_kernels[] = {
    KERNEL("bad.inexact_last", add, F32, not_half, inexact_last),
    KERNEL("bad.inexact_last_conv", conv, F32, not_half, inexact_last),
    KERNEL("bad.forgets_last", relu, F32, not_half, forgets_last),
    KERNEL("bad.writes_after_end", relu, F32, not_half, writes_after_end),
    KERNEL("bad.writes_before_start", bn_sums, F32, not_half, writes_before_start),
    KERNEL("bad.reads_after_end", bn_sums, F32, not_half, reads_after_end),
    KERNEL("bad.changes_input", conv, F32, not_half, changes_input),
    KERNEL("bad.forgets_to_add", conv_wgrad, F32, not_half, forgets_to_add),
    KERNEL("bad.drops_nan", relu, F32, not_half, drops_nan),
    KERNEL("bad.last_of_equals", maxpool, F32, not_half, last_of_equals),
    KERNEL("bad.reads_after_writing", add, F32, not_half, reads_after_writing),
    KERNEL("bad.rounds_inputs", conv, F32, not_half, rounds_inputs),
    KERNEL("bad.updates_frozen", sgd, F32, not_half, updates_frozen),
    KERNEL("bad.forgets_mask", sgd, F32, not_half, forgets_mask),
    WITH_WORKSPACE("bad.forgets_nesterov", muon_direction, F32, not_half, forgets_nesterov),
    WITH_WORKSPACE("bad.forgets_nesterov_f16", muon_direction, F16, not_half, forgets_nesterov),
    KERNEL("bad.counts_twice", loss, F32, not_half, counts_twice),
    KERNEL("bad.wrong_variance", bn_finalize, F32, not_half, wrong_variance),
    KERNEL("bad.ignores_type", relu, F32, not_half, ignores_type),
    PREPARED("bad.varies_between_runs", bn_sums, true, not_half, count_prepare, varies_between_runs, cr_free),
    PREPARED("bad.workspace_too_small", avgpool, true, not_half, workspace_prepare, workspace_too_small,
             release_nothing),
    PREPARED("bad.assumes_zeroed_workspace", avgpool, true, not_half, workspace_prepare, assumes_zeroed_workspace,
             release_nothing),
    PREPARED("bad.accepts_then_refuses", avgpool, true, NULL, prepare_refuses, checkops_reference, release_nothing),
    KERNEL("bad.accepts_nothing", relu, F32, never, checkops_reference),
    KERNEL("bad.rounds_to_bf16", conv_dgrad, TF32, not_half, rounds_inputs),
    KERNEL("good.float_sums", bn_sums, F32, not_half, float_sums),
    PREPARED("good.not_deterministic", bn_sums, false, not_half, count_prepare, varies_between_runs, cr_free),
    WITH_WORKSPACE("bad.head_forgets_add", head, F32, only_half, head_forgets_add),
    WITH_WORKSPACE("bad.head_forgets_bias", head, F32, only_half, head_forgets_bias),
    WITH_WORKSPACE("bad.head_takes_first_label", head, F32, only_half, head_takes_first_label),
    WITH_WORKSPACE("bad.head_smooths_more", head, F32, only_half, head_smooths_more),
    WITH_WORKSPACE("bad.head_forgets_weight", head, F32, only_half, head_forgets_weight),
    WITH_WORKSPACE("bad.head_halves_dx", head, F32, only_half, head_halves_dx),
    WITH_WORKSPACE("bad.head_halves_dw", head, F32, only_half, head_halves_dw),
    WITH_WORKSPACE("bad.head_halves_db", head, F32, only_half, head_halves_db),
    WITH_WORKSPACE("bad.head_halves_dgamma", head, F32, only_half, head_halves_dgamma),
    WITH_WORKSPACE("bad.head_halves_coeffs", head, F32, only_half, head_halves_coeffs),
};
const int checkops_wrong_kernel_count = CR_COUNT(checkops_wrong_kernels);

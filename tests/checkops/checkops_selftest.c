/* tests/checkops/checkops_selftest.c: kernels with deliberate errors, each of a kind that real kernels have had.
 * checkops must detect every one of them; a test that cannot fail proves nothing. */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The device under test has only the wrong kernel; the reference is another device. */
static const struct cr_kernel *const *reference_kernels;

static cr_status reference(struct cr_device *device, const struct cr_call *call) {
    for (const struct cr_kernel *const *kernel = reference_kernels; *kernel; kernel++)
        if ((*kernel)->op == call->op->kind && strncmp((*kernel)->name, "ref.", 4) == 0)
            return (*kernel)->launch(device, call);
    return CR_FAIL(CR_ERR_DEVICE, "no reference kernel");
}

static const struct cr_tensor *out_tensor(const struct cr_call *call, int slot) {
    return &call->program->tensor[call->op->out[slot]];
}
static bool is_f32(const struct cr_call *call) {
    return out_tensor(call, 0)->dtype == CR_F32;
}

static void scale_element(const struct cr_call *call, int slot, int64_t i, double factor) {
    if (is_f32(call))
        ((float *)call->out[slot])[i] *= (float)factor;
    else
        ((double *)call->out[slot])[i] *= factor;
}

static cr_status inexact_last(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    scale_element(call, 0, cr_tensor_elems(out_tensor(call, 0)) - 1, 1 + 0x1p-18);
    return CR_OK;
}

static cr_status forgets_last(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *t    = out_tensor(call, 0);
    const size_t            size = cr_dtype_bytes(t->dtype);
    unsigned char           old[8];
    memcpy(old, (char *)call->out[0] + t->bytes - size, size);
    CR_TRY(reference(device, call));
    memcpy((char *)call->out[0] + t->bytes - size, old, size);
    return CR_OK;
}

static cr_status writes_behind(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    ((char *)call->out[0])[out_tensor(call, 0)->bytes] = 0;
    return CR_OK;
}

static cr_status writes_in_front(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    ((char *)call->out[0])[-1] = 0;
    return CR_OK;
}

static cr_status reads_behind(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[0]];
    CR_TRY(reference(device, call));
    if (is_f32(call)) scale_element(call, 0, 0, 1 + 0x1p-30 * (double)((const float *)call->in[0])[cr_tensor_elems(x)]);
    return CR_OK;
}

static cr_status changes_input(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    ((char *)(uintptr_t)call->in[1])[0] ^= 1;
    return CR_OK;
}

/* Every second run of a prepared kernel differs in the last bit: within any error bound, but not deterministic.
 * Infinity is not changed: its neighbour is NaN. */
static cr_status count_prepare(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op;
    int *runs;
    CR_ALLOC(runs, 1);
    *prepared        = runs;
    *workspace_bytes = 0;
    return CR_OK;
}
static cr_status changes_its_mind(struct cr_device *device, const struct cr_call *call) {
    int *runs = call->prepared;
    CR_TRY(reference(device, call));
    const double first = cr_number_load(out_tensor(call, 0)->dtype, call->out[0], 0);
    if ((*runs)++ % 2 && isfinite(first)) ((char *)call->out[0])[0] ^= 1;
    return CR_OK;
}

static cr_status forgets_to_add(struct cr_device *device, const struct cr_call *call) {
    memset(call->out[0], 0, out_tensor(call, 0)->bytes);
    return reference(device, call);
}

static cr_status scratch_prepare(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op;
    *prepared        = NULL;
    *workspace_bytes = 12;
    return CR_OK;
}
static cr_status scratch_too_small(struct cr_device *device, const struct cr_call *call) {
    memset(call->workspace, 0, 16);
    return reference(device, call);
}
static cr_status scratch_taken_for_zero(struct cr_device *device, const struct cr_call *call) {
    float dirt;
    CR_TRY(reference(device, call));
    memcpy(&dirt, call->workspace, sizeof dirt);
    scale_element(call, 0, 0, 1 + (double)dirt);
    return CR_OK;
}
static void nothing(void *prepared) {
    (void)prepared;
}

static cr_status prepare_refuses(struct cr_device *device, const struct cr_program *program, const struct cr_op *op,
                                 void **prepared, size_t *workspace_bytes) {
    (void)device, (void)program, (void)op, (void)prepared, (void)workspace_bytes;
    return CR_FAIL(CR_ERR_DEVICE, "no plan for this shape");
}

static cr_status swallows_nan(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    for (int64_t i = 0; i < cr_tensor_elems(out_tensor(call, 0)); i++)
        if (is_f32(call) && isnan(((float *)call->out[0])[i])) ((float *)call->out[0])[i] = 0;
    return CR_OK;
}

/* The index depends on the order of the search: the last of equal maxima. */
static cr_status last_of_equals(struct cr_device *device, const struct cr_call *call) {
    const struct cr_conv_attr *a = &call->op->attr.conv;
    const struct cr_tensor    *x = &call->program->tensor[call->op->in[0]], *y = out_tensor(call, 0);
    const int64_t              C = y->dim[3];
    CR_TRY(reference(device, call));
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
    if (!is_f32(call)) return reference(device, call);
    float       *y = call->out[0];
    const float *b = call->in[1];
    memmove(y, call->in[0], out_tensor(call, 0)->bytes);
    for (int64_t i = 0; i < cr_tensor_elems(out_tensor(call, 0)); i++) y[i] += b[i];
    return CR_OK;
}

static cr_status rounds_inputs(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x      = &call->program->tensor[call->op->in[0]];
    struct cr_call          narrow = *call;
    if (!is_f32(call)) return reference(device, call);
    float *copy;
    CR_ALLOC(copy, (size_t)cr_tensor_elems(x));
    for (int64_t i = 0; i < cr_tensor_elems(x); i++)
        copy[i] = cr_bf16_to_f32(cr_f32_to_bf16(((const float *)call->in[0])[i]));
    narrow.in[0]     = copy;
    cr_status status = reference(device, &narrow);
    cr_free(copy);
    return status;
}

/* ---- 16 bits, tensor cores ---- */

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

/* The mantissa is truncated to 10 bits, as tf32 may do and f32 may not. */
static cr_status cuts_to_tf32(struct cr_device *device, const struct cr_call *call) {
    struct cr_call narrow  = *call;
    uint32_t      *copy[2] = {NULL, NULL};
    cr_status      status  = CR_OK;
    if (!is_f32(call)) return reference(device, call);
    for (int s = 0; s < 2; s++) {
        const size_t bytes = call->program->tensor[call->op->in[s]].bytes;
        copy[s]            = cr_alloc(bytes, 1);
        if (!copy[s]) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a copy");
        memcpy(copy[s], call->in[s], bytes);
        for (size_t i = 0; i < bytes / 4; i++) copy[s][i] &= ~0x1fffu;
        narrow.in[s] = copy[s];
    }
    CR_TRY_OUT(reference(device, &narrow));
out:
    for (int s = 0; s < 2; s++) cr_free(copy[s]);
    return status;
}

/* Sums are accumulated in the type of the data. */
static cr_status sums_in_16_bits(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[CR_IN_dense_x]], *y = out_tensor(call, 0);
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        uint64_t sum = 0; /* one number of y's type */
        for (int64_t c = 0; c < x->dim[3]; c++) {
            const double product = cr_number_load(x->dtype, call->in[CR_IN_dense_x], i / y->dim[3] * x->dim[3] + c) *
                                   cr_number_load(x->dtype, call->in[CR_IN_dense_w], i % y->dim[3] * x->dim[3] + c);
            cr_number_store(y->dtype, &sum, 0, cr_number_load(y->dtype, &sum, 0) + product);
        }
        cr_number_store(y->dtype, call->out[0], i,
                        cr_number_load(y->dtype, &sum, 0) +
                            (double)((const float *)call->in[CR_IN_dense_b])[i % y->dim[3]]);
    }
    return CR_OK;
}

/* The conversion to 16 bits truncates instead of rounding. */
static cr_status cuts_the_result(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = out_tensor(call, 0);
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        const double sum  = cr_number_load(y->dtype, call->in[0], i) + cr_number_load(y->dtype, call->in[1], i);
        uint64_t     near = 0; /* one number of y's type */
        cr_number_store(y->dtype, &near, 0, sum);
        if (isfinite(sum) && fabs(cr_number_load(y->dtype, &near, 0)) > fabs(sum)) near--;
        memcpy((uint16_t *)call->out[0] + i, &near, sizeof(uint16_t));
    }
    return CR_OK;
}

/* Overflow gives the largest number instead of infinity. */
static cr_status saturates(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = out_tensor(call, 0);
    CR_TRY(reference(device, call));
    for (int64_t i = 0; i < cr_tensor_elems(y); i++)
        if (y->dtype == CR_F16 && (((uint16_t *)call->out[0])[i] & 0x7fff) == 0x7c00) ((uint16_t *)call->out[0])[i]--;
    return CR_OK;
}

/* Ties are rounded up instead of to even. */
static cr_status rounds_ties_up(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *y = out_tensor(call, 0);
    if (y->dtype != CR_BF16) return reference(device, call);
    for (int64_t i = 0; i < cr_tensor_elems(y); i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)call->in[0] + i, sizeof bits);
        ((uint16_t *)call->out[0])[i] = (uint16_t)((bits + 0x8000u) >> 16);
    }
    return CR_OK;
}

static bool never(const struct cr_device *device, const struct cr_program *program, const struct cr_op *op) {
    (void)device, (void)program, (void)op;
    return false;
}

static cr_status moves_frozen(struct cr_device *device, const struct cr_call *call) {
    const struct cr_param_store *store = call->program->store;
    CR_TRY(reference(device, call));
    scale_element(call, CR_OUT_sgd_value, store->param[cr_param_store_find(store, "frozen.weight")].offset,
                  1 - 0x1p-20);
    return CR_OK;
}

/* Updates pruned weights too. */
static cr_status forgets_mask(struct cr_device *device, const struct cr_call *call) {
    struct cr_call without     = *call;
    without.in[CR_IN_sgd_mask] = NULL;
    return reference(device, &without);
}

static cr_status counts_twice(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    scale_element(call, 0, 2, 1.25); /* number of correct images in the metrics */
    return CR_OK;
}

static cr_status other_variance(struct cr_device *device, const struct cr_call *call) {
    CR_TRY(reference(device, call));
    scale_element(call, CR_OUT_bn_finalize_running_var, 0, 1 + 1e-4);
    return CR_OK;
}

/* Treats every tensor as f32. */
static cr_status blind_to_type(struct cr_device *device, const struct cr_call *call) {
    (void)device;
    for (int64_t i = 0; i < cr_tensor_elems(out_tensor(call, 0)); i++) {
        const float x              = ((const float *)call->in[0])[i];
        ((float *)call->out[0])[i] = x < 0 ? 0 : x;
    }
    return CR_OK;
}

/* Sequential summation in f32: accurate enough for small M, so it must pass. */
static cr_status honest_floats(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = &call->program->tensor[call->op->in[0]];
    const int64_t           C = x->dim[3], M = cr_tensor_elems(x) / C;
    if (!is_f32(call)) return reference(device, call);
    float *sums = call->out[0];
    memset(sums, 0, out_tensor(call, 0)->bytes);
    for (int64_t i = 0; i < M * C; i++) {
        const float v = ((const float *)call->in[0])[i];
        sums[i % C] += v;
        sums[C + i % C] += v * v;
    }
    return CR_OK;
}

#define BAD(text, kind, function)                                                                                      \
    {                                                                                                                  \
        {.name          = "bad." text,                                                                                 \
         .op            = CR_OP_##kind,                                                                                \
         .math          = CR_MATH_F32,                                                                                 \
         .deterministic = true,                                                                                        \
         .accepts       = not_half,                                                                                    \
         .launch        = function},                                                                                          \
            true                                                                                                       \
    }
#define BAD_HALF(text, kind, how, function)                                                                            \
    {                                                                                                                  \
        {.name          = "bad." text,                                                                                 \
         .op            = CR_OP_##kind,                                                                                \
         .math          = CR_MATH_##how,                                                                               \
         .deterministic = true,                                                                                        \
         .accepts       = only_half,                                                                                   \
         .launch        = function},                                                                                          \
            true                                                                                                       \
    }
static const struct {
    struct cr_kernel kernel;
    bool             wrong;
} wrong_kernels[] = {
    BAD("inexact_last", add, inexact_last),
    BAD("inexact_last_conv", conv, inexact_last),
    BAD("forgets_last", relu, forgets_last),
    BAD("writes_behind", relu, writes_behind),
    BAD("writes_in_front", bn_sums, writes_in_front),
    BAD("reads_behind", bn_sums, reads_behind),
    BAD("changes_input", conv, changes_input),
    BAD("forgets_to_add", conv_wgrad, forgets_to_add),
    BAD("swallows_nan", relu, swallows_nan),
    BAD("last_of_equals", maxpool, last_of_equals),
    BAD("reads_after_writing", add, reads_after_writing),
    BAD("rounds_inputs", conv, rounds_inputs),
    BAD("moves_frozen", sgd, moves_frozen),
    BAD("forgets_mask", sgd, forgets_mask),
    BAD("counts_twice", loss, counts_twice),
    BAD("other_variance", bn_finalize, other_variance),
    BAD("blind_to_type", relu, blind_to_type),
    {{.name          = "bad.changes_its_mind",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = not_half,
      .prepare       = count_prepare,
      .launch        = changes_its_mind,
      .release       = cr_free},
     true},
    {{.name          = "bad.scratch_too_small",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = not_half,
      .prepare       = scratch_prepare,
      .launch        = scratch_too_small,
      .release       = nothing},
     true},
    {{.name          = "bad.scratch_taken_for_zero",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = not_half,
      .prepare       = scratch_prepare,
      .launch        = scratch_taken_for_zero,
      .release       = nothing},
     true},
    {{.name          = "bad.accepts_too_much",
      .op            = CR_OP_avgpool,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .prepare       = prepare_refuses,
      .launch        = reference,
      .release       = nothing},
     true},
    {{.name          = "bad.out_of_reach",
      .op            = CR_OP_relu,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = never,
      .launch        = reference},
     true},
    BAD_HALF("sums_in_16_bits", dense, F16, sums_in_16_bits),
    BAD_HALF("cuts_the_result", add, F32, cuts_the_result),
    BAD_HALF("saturates", channel_scale, F32, saturates),
    BAD_HALF("rounds_ties_up", cast, EXACT, rounds_ties_up),
    BAD("cuts_to_tf32_in_f32", conv, cuts_to_tf32),
    {{.name          = "bad.rounds_to_bf16",
      .op            = CR_OP_conv_dgrad,
      .math          = CR_MATH_TF32,
      .deterministic = true,
      .accepts       = not_half,
      .launch        = rounds_inputs},
     true},
    {{.name          = "good.cuts_to_tf32",
      .op            = CR_OP_conv,
      .math          = CR_MATH_TF32,
      .deterministic = true,
      .accepts       = not_half,
      .launch        = cuts_to_tf32},
     false},
    {{.name          = "good.floats",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = true,
      .accepts       = not_half,
      .launch        = honest_floats},
     false},
    {{.name          = "good.not_deterministic",
      .op            = CR_OP_bn_sums,
      .math          = CR_MATH_F32,
      .deterministic = false,
      .accepts       = not_half,
      .prepare       = count_prepare,
      .launch        = changes_its_mind,
      .release       = cr_free},
     false},
};

/* The small cases of the kernel's op kind; for plain ops, the first contiguous group, which has no fused options. */
static struct checkops_list small_cases(const struct checkops_list *list, enum cr_op_kind kind) {
    struct checkops_list small = {.item = list->item};
    while (small.item < list->item + list->count && small.item->kind != kind) small.item++;
    while (small.item + small.count < list->item + list->count && small.item[small.count].kind == kind &&
           !small.item[small.count].big)
        small.count++;
    return small;
}

static cr_status run_kernel(struct cr_device *cpu, const struct checkops_list *cases, const struct cr_kernel *kernel,
                            struct checkops_runner *runner) {
    cr_status                      status;
    const struct cr_kernel *const  table[] = {kernel, NULL};
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    struct cr_device              *device;
    CR_TRY(cpu->backend->open(&options, &device));
    reference_kernels = cpu->kernels;
    device->kernels   = table;
    *runner           = (struct checkops_runner){.device = device, .cpu = cpu, .wide_cpu = cpu, .until_failure = true};
    status            = checkops_runner(runner, cases);
    checkops_arena_close(&runner->arena);
    cr_device_close(device);
    return status;
}

struct selftest {
    struct cr_device       *cpu;
    struct checkops_list    list, fused; /* fused: small cases of fused ops */
    struct checkops_runner *runner;
};

static bool verdict_is_correct(struct selftest *t, const struct checkops_list *cases, const struct cr_kernel *kernel,
                               bool wrong) {
    const struct checkops_tally *found = &t->runner->tally[0];
    const cr_status              st    = run_kernel(t->cpu, cases, kernel, t->runner);
    const bool blamed = found->failures > 0 || found->runs == 0, correct = st == CR_OK && blamed == wrong;
    printf("%-4s selftest %-28s %s: %.300s\n", correct ? "ok" : "FAIL", kernel->name, blamed ? "detected" : "passed",
           st != CR_OK        ? cr_error_message()
           : found->runs == 0 ? "no case reaches the kernel"
                              : found->why);
    return correct;
}

static bool blames_fused(void *self, const struct cr_kernel *kernel, bool wrong) {
    struct selftest *t = self;
    return verdict_is_correct(t, &t->fused, kernel, wrong);
}

/* Plain loops are slow. */
static bool is_quick(const struct checkops_case *c) {
    return !c->big && c->N * c->H * c->W * c->C * c->K * c->window * c->window <= 60000 * c->stride * c->stride;
}

static cr_status selftest_run(struct selftest *t, int *missed, int *tried) {
    CR_ALLOC(t->runner, 1);
    CR_TRY(checkops_list_make(CHECKOPS_HALF, &t->list));
    t->fused.extent = CHECKOPS_HALF;
    checkops_list_fused(&t->fused);
    int small = 0;
    for (int i = 0; i < t->fused.count; i++)
        if (is_quick(&t->fused.item[i])) t->fused.item[small++] = t->fused.item[i];
    t->fused.count = small;
    if (t->fused.failed) return CR_NO_MEMORY(sizeof *t->fused.item);
    for (size_t i = 0; i < CR_COUNT(wrong_kernels); i++) {
        const struct checkops_list cases = small_cases(&t->list, wrong_kernels[i].kernel.op);
        *missed += !verdict_is_correct(t, &cases, &wrong_kernels[i].kernel, wrong_kernels[i].wrong);
    }
    *tried += (int)CR_COUNT(wrong_kernels);
    *missed += checkops_selftest_fused(blames_fused, t, tried);
    return CR_OK;
}

int checkops_selftest(struct cr_device *cpu, int *tried) {
    struct selftest t      = {.cpu = cpu};
    int             missed = 0;
    *tried                 = 0;
    if (selftest_run(&t, &missed, tried) != CR_OK) missed = ++*tried;
    checkops_list_free(&t.list);
    checkops_list_free(&t.fused);
    cr_free(t.runner);
    return missed;
}

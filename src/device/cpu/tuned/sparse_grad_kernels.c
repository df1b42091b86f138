/* device/cpu/tuned/sparse_grad_kernels.c: kernels for the gradients of a sparse convolution.
 *
 * The input gradient is a convolution of dy with the transposed filter (sparsity/sparsity.h). With stride 1
 * device/cpu/tuned/sparse_conv.c computes it. Other strides use dense kernels. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/sparse_conv.h"

#include <string.h>

struct prepared {
    struct cr_cpu_sparse_plan plan;
    struct cr_linear_filter   filter; /* offsets of the entries; values are not used */
    size_t                    entry_bytes;
};

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (s) cr_linear_filter_free(&s->filter);
    cr_free(s);
}

static bool is_supported(const struct cr_program *p, const struct cr_op *op) {
    return p->store->pattern && op->attr.conv.pattern.format.kernel == CR_SPARSE_ROWS;
}

static cr_status read_pattern(const struct cr_program *p, const struct cr_op *op, int filter,
                              struct cr_sparse *sparse) {
    const int64_t *w = p->tensor[filter].dim;
    return cr_sparse_from_bits(p->store->pattern, p->store->param[op->attr.conv.pattern.param].offset, w[0], w[1], w[2],
                               w[3], sparse);
}

/* ---- input gradient ---- */

static struct cr_transposition transposition_of(const struct cr_program *p, const struct cr_op *op) {
    const int64_t *w = p->tensor[op->in[CR_IN_conv_dgrad_w]].dim;
    return cr_sparse_transposition(w[1], w[2], 1, op->attr.conv.pad, 0, 0);
}

CR_CPU_ACCEPTS(dgrad_accepts) {
    const struct cr_transposition t = transposition_of(p, op);
    return is_supported(p, op) && op->attr.conv.stride == 1 && !t.first_r && !t.first_s;
}

static cr_status transposed_filter(const struct cr_program *p, const struct cr_op *op, struct prepared *s) {
    const int64_t                *dy = p->tensor[op->in[CR_IN_conv_dgrad_dy]].dim;
    const struct cr_transposition t  = transposition_of(p, op);
    struct cr_sparse              sparse, transposed = {0};
    cr_status                     status;
    CR_TRY(read_pattern(p, op, op->in[CR_IN_conv_dgrad_w], &sparse));
    CR_TRY_OUT(cr_sparse_transpose(&sparse, &t, &transposed));
    s->plan = cr_cpu_sparse_conv_plan(dy[0], dy[1], dy[2], sparse.K, sparse.C, t.R, t.S, 1, t.pad);
    const struct cr_linear_layout layout = cr_cpu_sparse_conv_layout(&s->plan);
    CR_TRY_OUT(cr_sparse_linearize(&transposed, &layout, &s->filter));
out:
    cr_sparse_free(&transposed);
    cr_sparse_free(&sparse);
    return status;
}

/* The workspace holds the entries, then the workspace of the convolution. */
static cr_status dgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    struct prepared *s;
    CR_ALLOC(s, 1);
    const cr_status status = transposed_filter(p, op, s);
    if (status != CR_OK) {
        release(s);
        return status;
    }
    s->entry_bytes =
        ((size_t)s->filter.entries * sizeof(struct cr_sparse_entry) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
    *prepared        = s;
    *workspace_bytes = s->entry_bytes + cr_cpu_sparse_conv_workspace(&s->plan, cr_cpu_threads(device));
    return CR_OK;
}

CR_CPU_LAUNCH(dgrad_launch) {
    const struct prepared  *s     = call->prepared;
    const float            *w     = call->in[CR_IN_conv_dgrad_w];
    struct cr_sparse_entry *entry = call->workspace;
    struct cr_linear_filter view  = s->filter;
    for (int64_t i = 0; i < s->filter.entries; i++)
        entry[i] = (struct cr_sparse_entry){.value  = s->filter.from[i] == CR_SPARSE_FILL ? 0.0f : w[s->filter.from[i]],
                                            .offset = s->filter.entry[i].offset};
    view.entry                           = entry;
    const struct cr_cpu_sparse_call conv = {.x      = call->in[CR_IN_conv_dgrad_dy],
                                            .add    = call->in[CR_IN_conv_dgrad_add],
                                            .filter = &view,
                                            .y      = call->out[CR_OUT_conv_dgrad_dx]};
    cr_cpu_sparse_conv(&s->plan, &conv, (char *)call->workspace + s->entry_bytes, cr_cpu_threads(device));
}

/* ---- gradient of the nonzeros ---- */

CR_CPU_ACCEPTS(wgrad_accepts) {
    return is_supported(p, op);
}

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    const int64_t   *x = p->tensor[op->in[CR_IN_conv_wgrad_x]].dim, *w = p->tensor[op->out[CR_OUT_conv_wgrad_dw]].dim;
    struct cr_sparse sparse = {0};
    cr_status        status = CR_OK;
    struct prepared *s;
    CR_ALLOC(s, 1);
    s->plan =
        cr_cpu_sparse_conv_plan(x[0], x[1], x[2], w[3], w[0], w[1], w[2], op->attr.conv.stride, op->attr.conv.pad);
    const struct cr_linear_layout layout = cr_cpu_sparse_conv_layout(&s->plan);
    CR_TRY_OUT(read_pattern(p, op, op->out[CR_OUT_conv_wgrad_dw], &sparse));
    CR_TRY_OUT(cr_sparse_linearize(&sparse, &layout, &s->filter));
    *workspace_bytes = cr_cpu_sparse_wgrad_workspace(&s->plan, &s->filter, cr_cpu_threads(device));
    *prepared        = s;
    s                = NULL;
out:
    cr_sparse_free(&sparse);
    release(s);
    return status;
}

CR_CPU_LAUNCH(wgrad_launch) {
    const struct prepared           *s    = call->prepared;
    const struct cr_cpu_sparse_wgrad grad = {.x          = call->in[CR_IN_conv_wgrad_x],
                                             .dy         = call->in[CR_IN_conv_wgrad_dy],
                                             .filter     = &s->filter,
                                             .dw         = call->out[CR_OUT_conv_wgrad_dw],
                                             .accumulate = call->op->attr.conv.accumulate};
    cr_cpu_sparse_wgrad(&s->plan, &grad, call->workspace, cr_cpu_threads(device));
}

#define SPARSE_GRAD(kind, ...)                                                                                         \
    {                                                                                                                  \
        CR_KERNEL("cpu.sparse_" #kind, conv_##kind, CR_MATH_F32),                                                      \
            .dtypes = CR_TYPES_F32, .sparse = true, .accepts = kind##_accepts, .prepare = kind##_prepare,              \
            .launch = kind##_launch, .release = release, __VA_ARGS__                                                   \
    }
const struct cr_kernel cr_cpu_sparse_grad_kernels[] = {
    SPARSE_GRAD(dgrad, .optional_in = CR_IN_BIT(conv_dgrad, add)), SPARSE_GRAD(wgrad), {0}};

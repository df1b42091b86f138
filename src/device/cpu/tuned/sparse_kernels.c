/* device/cpu/tuned/sparse_kernels.c: kernels for sparse convolutions (device/cpu/tuned/sparse_conv.c) and their
 * gradients. There is one weight format: (value, offset) pairs in the order of cr_sparse_linearize, which sparse_filter
 * writes.
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

static const int64_t *dims_of(const struct cr_program *p, int id) {
    return p->tensor[id].dim;
}

static struct cr_cpu_sparse_plan plan_of(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const int64_t             *w, *x;
    switch (op->kind) {
    case CR_OP_sparse_filter:
        w = dims_of(p, op->in[CR_IN_sparse_filter_w]);
        x = a->pattern.image;
        break;
    case CR_OP_conv_wgrad:
        w = dims_of(p, op->out[CR_OUT_conv_wgrad_dw]);
        x = dims_of(p, op->in[CR_IN_conv_wgrad_x]);
        break;
    default: w = dims_of(p, op->in[CR_IN_conv_w]); x = dims_of(p, op->in[CR_IN_conv_x]);
    }
    return cr_cpu_sparse_conv_plan(x[0], x[1], x[2], w[3], w[0], w[1], w[2], a->stride, a->pad);
}

/* Computes the plan of the convolution and the linearised offsets of its nonzeros. */
static cr_status linearize(const struct cr_program *p, const struct cr_op *op, struct cr_cpu_sparse_plan *plan,
                           struct cr_linear_filter *to) {
    const struct cr_param *q = &p->store->param[op->attr.conv.pattern.param];
    struct cr_sparse       sparse;
    *plan                                = plan_of(p, op);
    const struct cr_linear_layout layout = cr_cpu_sparse_conv_layout(plan);
    CR_TRY(cr_sparse_from_bits(p->store->pattern, q->offset, plan->K, plan->R, plan->S, plan->C, &sparse));
    const cr_status status = cr_sparse_linearize(&sparse, &layout, to);
    cr_sparse_free(&sparse);
    return status;
}

CR_CPU_ACCEPTS(accepts) {
    return p->store->pattern && op->attr.conv.pattern.format.kernel == CR_SPARSE_ROWS;
}

/* ---- input gradient: the transposed filter ---- */

static struct cr_transposition transposition_of(const struct cr_program *p, const struct cr_op *op) {
    const int64_t *w = dims_of(p, op->in[CR_IN_conv_dgrad_w]);
    return cr_sparse_transposition(w[1], w[2], 1, op->attr.conv.pad, 0, 0);
}

CR_CPU_ACCEPTS(dgrad_accepts) {
    const struct cr_transposition t = transposition_of(p, op);
    return accepts(device, p, op) && op->attr.conv.stride == 1 && !t.first_r && !t.first_s;
}

static cr_status linearize_transposed(const struct cr_program *p, const struct cr_op *op,
                                      struct cr_cpu_sparse_plan *plan, struct cr_linear_filter *to) {
    const struct cr_param *q  = &p->store->param[op->attr.conv.pattern.param];
    const int64_t         *dy = dims_of(p, op->in[CR_IN_conv_dgrad_dy]), *w = dims_of(p, op->in[CR_IN_conv_dgrad_w]);
    const struct cr_transposition t = transposition_of(p, op);
    struct cr_sparse              sparse, transposed = {0};
    cr_status                     status;
    CR_TRY(cr_sparse_from_bits(p->store->pattern, q->offset, w[0], w[1], w[2], w[3], &sparse));
    CR_TRY_OUT(cr_sparse_transpose(&sparse, &t, &transposed));
    *plan = cr_cpu_sparse_conv_plan(dy[0], dy[1], dy[2], sparse.K, sparse.C, t.R, t.S, 1, t.pad);
    const struct cr_linear_layout layout = cr_cpu_sparse_conv_layout(plan);
    CR_TRY_OUT(cr_sparse_linearize(&transposed, &layout, to));
out:
    cr_sparse_free(&transposed);
    cr_sparse_free(&sparse);
    return status;
}

/* ---- kernels ---- */

int64_t cr_cpu_packed_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct cr_cpu_sparse_plan plan;
    struct cr_linear_filter   filter;
    if (device->options.ref_only) return 0;
#ifdef CR_WITH_ONEDNN
    const int64_t bytes = op->kind == CR_OP_qconv ? cr_cpu_qconv_packed_bytes(device, p, op) : 0;
    if (op->kind == CR_OP_qconv && bytes >= 0) return bytes;
#endif
    if (op->kind == CR_OP_qconv) return cr_cpu_qconv_own_bytes(p, op);
    if (!accepts(device, p, op)) return 0;
    if (linearize(p, op, &plan, &filter) != CR_OK) {
        cr_error_clear(); /* out of memory: the format is not available */
        return 0;
    }
    const int64_t elems = 2 * CR_MAX(filter.entries, 1);
    cr_linear_filter_free(&filter);
    return elems;
}

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (s) cr_linear_filter_free(&s->filter);
    cr_free(s);
}

/* Without packed weights the workspace of a convolution begins with the entries. */
static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const int        threads = cr_cpu_threads(device);
    struct prepared *s;
    CR_ALLOC(s, 1);
    const cr_status status =
        (op->kind == CR_OP_conv_dgrad ? linearize_transposed : linearize)(p, op, &s->plan, &s->filter);
    if (status != CR_OK) {
        release(s);
        return status;
    }
    *prepared = s;
    if (op->kind == CR_OP_sparse_filter) return CR_OK;
    if (op->kind == CR_OP_conv_wgrad) {
        *workspace_bytes = cr_cpu_sparse_wgrad_workspace(&s->plan, &s->filter, threads);
        return CR_OK;
    }
    if (op->kind == CR_OP_conv_dgrad || op->in[CR_IN_conv_packed] < 0)
        s->entry_bytes = ((size_t)s->filter.entries * sizeof(struct cr_sparse_entry) + CR_CPU_ALIGN - 1) /
                         CR_CPU_ALIGN * CR_CPU_ALIGN;
    *workspace_bytes = s->entry_bytes + cr_cpu_sparse_conv_workspace(&s->plan, threads);
    return CR_OK;
}

static void put_entries(const struct prepared *s, const float *w, struct cr_sparse_entry *to) {
    for (int64_t i = 0; i < s->filter.entries; i++)
        to[i] = (struct cr_sparse_entry){.value  = s->filter.from[i] == CR_SPARSE_FILL ? 0.0f : w[s->filter.from[i]],
                                         .offset = s->filter.entry[i].offset};
}

CR_CPU_LAUNCH(filter_launch) {
    put_entries(call->prepared, call->in[CR_IN_sparse_filter_w], call->out[CR_OUT_sparse_filter_y]);
}

CR_CPU_LAUNCH(launch) {
    const struct prepared    *s      = call->prepared;
    const void               *packed = call->in[CR_IN_conv_packed];
    struct cr_linear_filter   view   = s->filter;
    struct cr_cpu_sparse_call conv   = {.x      = call->in[CR_IN_conv_x],
                                        .bias   = call->in[CR_IN_conv_bias],
                                        .add    = call->in[CR_IN_conv_add],
                                        .filter = &view,
                                        .y      = call->out[CR_OUT_conv_y],
                                        .relu   = call->op->attr.conv.relu};
    if (!packed) put_entries(s, call->in[CR_IN_conv_w], call->workspace);
    view.entry = (struct cr_sparse_entry *)(uintptr_t)(packed ? packed : call->workspace); /* read only */
    cr_cpu_sparse_conv(&s->plan, &conv, (char *)call->workspace + s->entry_bytes, cr_cpu_threads(device));
}

CR_CPU_LAUNCH(dgrad_launch) {
    const struct prepared  *s    = call->prepared;
    struct cr_linear_filter view = s->filter;
    put_entries(s, call->in[CR_IN_conv_dgrad_w], call->workspace);
    view.entry                           = call->workspace;
    const struct cr_cpu_sparse_call conv = {.x      = call->in[CR_IN_conv_dgrad_dy],
                                            .add    = call->in[CR_IN_conv_dgrad_add],
                                            .filter = &view,
                                            .y      = call->out[CR_OUT_conv_dgrad_dx]};
    cr_cpu_sparse_conv(&s->plan, &conv, (char *)call->workspace + s->entry_bytes, cr_cpu_threads(device));
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

const struct cr_kernel cr_cpu_sparse_kernels[] = {
    {CR_KERNEL("cpu.sparse_conv", conv, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true,
     .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add) | CR_IN_BIT(conv, packed), .accepts = accepts,
     .prepare = prepare, .launch = launch, .release = release},
    {CR_KERNEL("cpu.sparse_filter", sparse_filter, CR_MATH_EXACT), .dtypes = CR_TYPES_F32, .accepts = accepts,
     .prepare = prepare, .launch = filter_launch, .release = release},
    {CR_KERNEL("cpu.sparse_dgrad", conv_dgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true,
     .optional_in = CR_IN_BIT(conv_dgrad, add), .accepts = dgrad_accepts, .prepare = prepare, .launch = dgrad_launch,
     .release = release},
    {CR_KERNEL("cpu.sparse_wgrad", conv_wgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true, .accepts = accepts,
     .prepare = prepare, .launch = wgrad_launch, .release = release},
    {0}};

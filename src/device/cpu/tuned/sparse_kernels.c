/* device/cpu/tuned/sparse_kernels.c: kernels for sparse convolutions (device/cpu/tuned/sparse_conv.c). There is one
 * weight format: (value, offset) pairs in the order of cr_sparse_linearize, which sparse_filter writes. */
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
    const struct cr_conv_attr *a      = &op->attr.conv;
    const bool                 filter = op->kind == CR_OP_sparse_filter;
    const int64_t             *w      = dims_of(p, op->in[filter ? CR_IN_sparse_filter_w : CR_IN_conv_w]);
    const int64_t             *x      = filter ? a->pattern.image : dims_of(p, op->in[CR_IN_conv_x]);
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

CR_CPU_ACCEPTS(filter_accepts) {
    return p->store->pattern && op->attr.conv.pattern.format.kernel == CR_SPARSE_ROWS;
}

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

/* Without packed weights the workspace begins with the entries. */
static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    struct prepared *s;
    CR_ALLOC(s, 1);
    const cr_status status = linearize(p, op, &s->plan, &s->filter);
    if (status != CR_OK) {
        cr_free(s);
        return status;
    }
    s->entry_bytes =
        ((size_t)s->filter.entries * sizeof(struct cr_sparse_entry) + CR_CPU_ALIGN - 1) / CR_CPU_ALIGN * CR_CPU_ALIGN;
    *prepared        = s;
    *workspace_bytes = 0;
    if (op->kind == CR_OP_sparse_filter) return CR_OK;
    if (op->in[CR_IN_conv_packed] >= 0) s->entry_bytes = 0;
    *workspace_bytes = s->entry_bytes + cr_cpu_sparse_conv_workspace(&s->plan, cr_cpu_threads(device));
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

const struct cr_kernel cr_cpu_sparse_kernels[] = {
    {CR_KERNEL("cpu.sparse_conv", conv, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true,
     .optional_in = CR_IN_BIT(conv, bias) | CR_IN_BIT(conv, add) | CR_IN_BIT(conv, packed), .accepts = accepts,
     .prepare = prepare, .launch = launch, .release = release},
    {CR_KERNEL("cpu.sparse_filter", sparse_filter, CR_MATH_EXACT), .dtypes = CR_TYPES_F32, .accepts = filter_accepts,
     .prepare = prepare, .launch = filter_launch, .release = release},
    {0}};

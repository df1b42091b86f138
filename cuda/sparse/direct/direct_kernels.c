/* cuda/sparse/direct/direct_kernels.c: kernels of sparse convolutions without tensor cores.
 *
 * Weight format CR_SPARSE_ROWS is that of ck_sell_conv; tile i of CR_SPARSE_DIRECT is tile config i + 1 of
 * ck_sparse_conv.
 *
 * prepare() makes the data that do not depend on the weights (offsets, row starts, the source of each value) and copies
 * them to the device. The input `packed` has the values alone, in the order of the format, which sparse_filter gathers.
 */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/sparse_kernels.h"

#include <string.h>

struct prepared {
    struct ck_conv            conv;
    struct ck_sparse_plan     plan;
    struct cuda_linear_filter filter;
};

/* ---- shapes and plans ---- */

bool cr_cuda_sparse_plan(const struct cr_device *device, const struct ck_conv *conv, int64_t nnz,
                         struct cr_sparse_format format, bool wgrad, struct ck_sparse_plan *plan) {
    *plan = (struct ck_sparse_plan){0};
    if (format.kernel == CR_SPARSE_ROWS) return !wgrad && ck_sell_conv_supports(conv);
    if (format.kernel != CR_SPARSE_DIRECT) return false;
    return (wgrad ? ck_sparse_wgrad_plan : ck_sparse_conv_plan)(
        conv, nnz, format.tile + 1, cuda_of(device)->multiprocessors, cuda_of(device)->multiprocessor_bytes, plan);
}

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_conv *conv, struct ck_sparse_plan *plan) {
    const struct cr_sparsity_attr *a = &op->attr.conv.pattern;
    *conv                            = cuda_sparse_conv_shape(p, op);
    return p->store->pattern && cr_cuda_sparse_plan(device, conv, a->nnz, a->format, false, plan);
}

static struct cr_linear_layout linear_layout_of(const struct ck_conv *conv, const struct ck_sparse_plan *plan) {
    const struct ck_sparse_steps steps = ck_sparse_conv_steps(conv, plan);
    return (struct cr_linear_layout){.stride   = conv->stride,
                                     .chunk    = plan->chunk,
                                     .c_step   = steps.c_step,
                                     .r_phase  = steps.r_step,
                                     .r_step   = steps.r_step * conv->stride,
                                     .s_phase  = steps.s_phase,
                                     .s_step   = steps.s_step,
                                     .rows     = plan->k_blocks * plan->channels,
                                     .multiple = CK_SPARSE_PAIR};
}

cr_status cr_cuda_sparse_order(const struct cr_sparse *sparse, const struct ck_conv *conv,
                               const struct ck_sparse_plan *plan, enum cr_sparse_kernel kernel,
                               struct cr_linear_filter *to) {
    const struct cr_linear_layout layout = linear_layout_of(conv, plan);
    return kernel == CR_SPARSE_ROWS ? cr_sparse_sell(sparse, SELL_LANES, to) : cr_sparse_linearize(sparse, &layout, to);
}

static cr_status csr_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        const struct ck_conv *conv, const struct cr_sparse **csr) {
    struct cuda_filter *filter;
    CR_TRY(cr_cuda_filter_of(device, p, op, conv, &filter));
    return cr_cuda_filter_csr(filter, csr);
}

/* Number of entries of the op's format. */
static cr_status count_entries(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               const struct ck_conv *conv, const struct ck_sparse_plan *plan, int64_t *entries) {
    const struct cr_sparse *csr;
    CR_TRY(csr_of(device, p, op, conv, &csr));
    if (cuda_sparse_format(op).kernel != CR_SPARSE_ROWS) {
        const struct cr_linear_layout layout = linear_layout_of(conv, plan);
        return cr_sparse_linearize_count(csr, &layout, entries);
    }
    *entries = cr_sparse_sell_count(csr, SELL_LANES);
    return CR_OK;
}

static bool has_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv        conv;
    struct ck_sparse_plan plan;
    return plan_of(device, p, op, &conv, &plan);
}

int64_t cr_cuda_packed_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_qconv) return cr_cuda_int8_packed_bytes(device, p, op);
    struct ck_conv        conv;
    struct ck_sparse_plan plan;
    int64_t               entries;
    switch (cuda_sparse_format(op).kernel) {
    case CR_SPARSE_MMA_SP: return cr_cuda_mma_sp_elems(device, p, op);
    case CR_SPARSE_TWO_FOUR: return cr_cuda_two_four_elems(device, p, op);
    case CR_SPARSE_WGMMA_SP: return cr_cuda_wgmma_sp_elems(device, p, op);
    case CR_SPARSE_BLOCK: return cr_cuda_block_sparse_elems(device, p, op);
    default: break;
    }
    if (!plan_of(device, p, op, &conv, &plan)) return 0;
    if (count_entries(device, p, op, &conv, &plan, &entries) != CR_OK) {
        cr_error_clear(); /* without memory for the encoding the format is not available */
        return 0;
    }
    return CR_MAX(entries, 1);
}

/* ---- estimates and names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv        conv;
    struct ck_sparse_plan plan;
    return plan_of(device, p, op, &conv, &plan) ? cr_cuda_cycles_to_seconds(device, plan.cycles) : 0;
}

void cr_cuda_sparse_format_name(const struct cr_op *op, struct cr_text *out) {
    int tile[3];
    if (cuda_sparse_format(op).kernel == CR_SPARSE_ROWS) {
        cr_text_add(out, "sell");
        return;
    }
    ck_sparse_conv_tile(cuda_sparse_format(op).tile + 1, tile);
    cr_text_add(out, "direct %dx%d/%d", tile[0], tile[1], tile[2]);
}

/* ---- device memory ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (s) cr_cuda_linear_free(&s->filter);
    cr_free(s);
}

/* Encodes the filter for the plan of *s. */
static cr_status make_filter(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             bool gathers, bool convolves, struct prepared *s) {
    struct cr_linear_filter filter = {0};
    const struct cr_sparse *csr;
    cr_status               status;
    CR_TRY(csr_of(device, p, op, &s->conv, &csr));
    CR_TRY_OUT(cr_cuda_sparse_order(csr, &s->conv, &s->plan, cuda_sparse_format(op).kernel, &filter));
    CR_TRY_OUT(cr_cuda_linear_upload(&filter, gathers, convolves, &s->filter));
out:
    cr_linear_filter_free(&filter);
    return status;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool       convolves = op->kind == CR_OP_conv, gathers = !convolves || op->in[CR_IN_conv_packed] < 0;
    struct prepared *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_of(device, p, op, &s->conv, &s->plan)); /* the accepts function has checked this */
    CR_TRY(make_filter(device, p, op, gathers, convolves, s));
    *workspace_bytes = convolves && gathers ? (size_t)CR_MAX(s->filter.entries, 1) * sizeof(float) : 0;
    return CR_OK;
}

/* ---- sparse_filter ---- */

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    return CUDA_STATUS(ck_sparse_gather(
        call->in[CR_IN_sparse_filter_w], cuda_type(cuda_in(call->program, call->op, CR_IN_sparse_filter_w)),
        s->filter.from, s->filter.entries, call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
}

/* ---- convolutions ---- */

static bool sell_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_sparse_format(op).kernel == CR_SPARSE_ROWS && has_format(device, p, op);
}
static bool direct_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_sparse_format(op).kernel == CR_SPARSE_DIRECT && has_format(device, p, op);
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    struct ck_sparse_args  args   = {.conv    = s->conv,
                                     .x       = call->in[CR_IN_conv_x],
                                     .values  = call->in[CR_IN_conv_packed],
                                     .offsets = s->filter.offsets,
                                     .start   = s->filter.start,
                                     .bias    = call->in[CR_IN_conv_bias],
                                     .add     = call->in[CR_IN_conv_add],
                                     .relu    = call->op->attr.conv.relu,
                                     .y       = call->out[CR_OUT_conv_y]};
    if (!args.values) {
        CUDA_TRY(ck_sparse_gather(call->in[CR_IN_conv_w], cuda_type(cuda_in(call->program, call->op, CR_IN_conv_w)),
                                  s->filter.from, s->filter.entries, call->workspace, stream));
        args.values = call->workspace;
    }
    if (cuda_sparse_format(call->op).kernel == CR_SPARSE_ROWS)
        CUDA_TRY(ck_sell_conv(&args, stream));
    else
        CUDA_TRY(ck_sparse_conv(&args, &s->plan, stream));
    return CR_OK;
}

/* ---- the gradient of the nonzero weights ---- */

static bool plan_wgrad(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                       struct prepared *s) {
    const struct cr_sparsity_attr *a = &op->attr.conv.pattern;
    s->conv = cuda_conv_shape(op, cuda_in(p, op, CR_IN_conv_wgrad_x), cuda_out(p, op, CR_OUT_conv_wgrad_dw),
                              cuda_in(p, op, CR_IN_conv_wgrad_dy));
    return cr_cuda_sparse_plan(device, &s->conv, a->nnz, a->format, true, &s->plan);
}

static bool wgrad_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct prepared s;
    return p->store->pattern && plan_wgrad(device, p, op, &s);
}

static cr_status wgrad_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                               void **prepared, size_t *workspace_bytes) {
    struct prepared *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_wgrad(device, p, op, s)); /* the accepts function has checked this */
    CR_TRY(make_filter(device, p, op, true, true, s));
    *workspace_bytes = ck_sparse_wgrad_workspace(&s->plan, CR_MAX(s->filter.entries, 1));
    return CR_OK;
}

static cr_status wgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared       *s    = call->prepared;
    const struct ck_sparse_wgrad args = {.conv       = s->conv,
                                         .x          = call->in[CR_IN_conv_wgrad_x],
                                         .dy         = call->in[CR_IN_conv_wgrad_dy],
                                         .offsets    = s->filter.offsets,
                                         .start      = s->filter.start,
                                         .from       = s->filter.from,
                                         .entries    = s->filter.entries,
                                         .dw         = call->out[CR_OUT_conv_wgrad_dw],
                                         .accumulate = call->op->attr.conv.accumulate};
    return CUDA_STATUS(ck_sparse_wgrad(&args, &s->plan, call->workspace, cr_cuda_stream(device, call)));
}

/* ---- kernels ---- */

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    cr_cuda_sparse_format_name(op, out);
}

const struct cr_kernel cr_cuda_direct_kernels[] = {
    {CUDA_SPARSE_CONV("cuda.sparse_sell", CR_MATH_F32, CR_TYPES_FLOAT), .accepts = sell_accepts, .launch = conv_launch},
    {CUDA_SPARSE_CONV("cuda.sparse_direct", CR_MATH_F32, CR_TYPES_FLOAT), .accepts = direct_accepts,
     .estimate = estimate, .launch = conv_launch},
    CUDA_SPARSE_FILTER("cuda.sparse_filter", CR_TYPES_FLOAT),
    {CR_KERNEL("cuda.sparse_wgrad", conv_wgrad, CR_MATH_F32), .dtypes = CR_TYPES_F32, .sparse = true,
     .algo_name = algo_name, .accepts = wgrad_accepts, .prepare = wgrad_prepare, .release = release,
     .launch = wgrad_launch},
    {0}};

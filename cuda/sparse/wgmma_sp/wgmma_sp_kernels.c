/* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: f32 convolutions with a pattern on Hopper's sparse tensor cores. Layout
 * CUDA_FORMAT_WGMMA_SP + i is way i + 1 of cuda/sparse/wgmma_sp/wgmma_sp.h. `kept` is the values and scales, as
 * ck_wgmma_sp_fill makes them. What the kernel goes by is packed once, by prepare, and is no part of `kept`, which
 * holds anything at all while a choice is timed. */
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"

enum { LEAST_TERMS = 16 /* of a sum: what the parts of a product lose shows in shorter ones */ };

struct prepared {
    struct ck_wgmma_sp_plan plan;
    int64_t                 units;
    uint32_t               *start, *words, *from; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_wgmma_sp_plan *plan) {
    const struct ck_conv conv = cuda_sparse_conv_shape(p, op);
    const int            way  = op->attr.conv.pattern.format - CUDA_FORMAT_WGMMA_SP + 1;
    return way >= 1 && way <= ck_wgmma_sp_configs() && p->store->pattern && !cuda_of(device)->offline &&
           conv.R * conv.S * conv.C >= LEAST_TERMS &&
           ck_wgmma_sp_make_plan(&conv, op->attr.conv.pattern.nnz, way, cuda_of(device)->cc,
                                 cuda_of(device)->multiprocessors, plan);
}

/* What is kept, a byte each; the plan's convolution has the filter's sides. */
static cr_status kept_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         const struct ck_wgmma_sp_plan *plan, const uint8_t **kept) {
    struct cuda_filter *filter;
    CR_TRY(cr_cuda_filter_of(device, p, op, &plan->conv, &filter));
    return cr_cuda_filter_mask(filter, kept);
}

int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    const uint8_t          *kept;
    if (!plan_of(device, p, op, &plan)) return 0;
    if (kept_of(device, p, op, &plan, &kept) != CR_OK) {
        cr_error_clear(); /* without memory for it there is no such layout */
        return 0;
    }
    return (int64_t)(ck_wgmma_sp_bytes(&plan, ck_wgmma_sp_pack(&plan, kept, NULL, NULL, NULL)) / sizeof(float));
}

/* ---- forecasts, names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    return plan_of(device, p, op, &plan) ? cr_cuda_cycles_to_seconds(device, plan.tile.cycles) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int cut[4];
    ck_wgmma_sp_tile(op->attr.conv.pattern.format - CUDA_FORMAT_WGMMA_SP + 1, cut);
    cr_text_add(out, "wgmma_sp %dx%d%s", cut[0] * cut[2], cut[1], cut[3] > 1 ? " pairs" : "");
}

/* ---- what stays on the device ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    (void)cudaFree(s->start);
    (void)cudaFree(s->words);
    (void)cudaFree(s->from);
    cr_free(s);
}

static cr_status send_filter(const uint8_t *kept, bool fills, bool convolves, struct prepared *s) {
    const int64_t starts = s->plan.tile.blocks * s->plan.parts + 1;
    uint32_t     *start, *words = NULL, *from = NULL;
    cr_status     status = CR_OK;
    s->units             = ck_wgmma_sp_pack(&s->plan, kept, NULL, NULL, NULL);
    CR_ALLOC(start, (size_t)starts);
    if (convolves) words = cr_alloc((size_t)(s->units * CK_WGMMA_SP_WORDS), sizeof *words);
    if (fills) from = cr_alloc((size_t)(s->units * CK_WGMMA_SP_VALUES), sizeof *from);
    if ((convolves && !words) || (fills && !from))
        CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a packed filter of %lld units", (long long)s->units);
    ck_wgmma_sp_pack(&s->plan, kept, start, words, from);
    if (fills) CR_TRY_OUT(cr_cuda_sparse_upload(from, s->units * CK_WGMMA_SP_VALUES, &s->from));
    if (convolves) CR_TRY_OUT(cr_cuda_sparse_upload(words, s->units * CK_WGMMA_SP_WORDS, &s->words));
    if (convolves) CR_TRY_OUT(cr_cuda_sparse_upload(start, starts, &s->start));
out:
    cr_free(start);
    cr_free(words);
    cr_free(from);
    return status;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool       convolves = op->kind == CR_OP_conv, fills = !convolves || op->in[CR_IN_conv_packed] < 0;
    cr_status        status = CR_OK;
    const uint8_t   *kept;
    struct prepared *s;
    CR_ALLOC(s, 1);
    CR_ASSERT(plan_of(device, p, op, &s->plan)); /* as accepted */
    CR_TRY_OUT(kept_of(device, p, op, &s->plan, &kept));
    CR_TRY_OUT(send_filter(kept, fills, convolves, s));
    *workspace_bytes = convolves && fills ? ck_wgmma_sp_bytes(&s->plan, s->units) : 0;
    *prepared        = s;
    s                = NULL;
out:
    release(s);
    return status;
}

/* ---- sparse_filter ---- */

static bool filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    return cuda_is_data(cuda_in(p, op, CR_IN_sparse_filter_w)) &&
           cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32 && plan_of(device, p, op, &plan);
}

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    CUDA_TRY(ck_wgmma_sp_fill(&s->plan, call->in[CR_IN_sparse_filter_w], s->from, s->units,
                              call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- convolutions ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    return cuda_sparse_operands_fit(p, op) && cuda_in(p, op, CR_IN_conv_x)->dtype == CR_F32 &&
           cuda_in(p, op, CR_IN_conv_w)->dtype == CR_F32 && plan_of(device, p, op, &plan);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *kept   = call->in[CR_IN_conv_packed];
    if (!kept) {
        CUDA_TRY(ck_wgmma_sp_fill(&s->plan, call->in[CR_IN_conv_w], s->from, s->units, call->workspace, stream));
        kept = call->workspace;
    }
    const struct ck_wgmma_sp_args args = {
        .x      = call->in[CR_IN_conv_x],
        .bias   = call->in[CR_IN_conv_bias],
        .add    = call->in[CR_IN_conv_add],
        .filter = {s->start, s->words, kept, (const float *)(const void *)(kept + ck_wgmma_sp_scale_at(s->units))},
        .relu   = call->op->attr.conv.relu,
        .y      = call->out[CR_OUT_conv_y]};
    CUDA_TRY(ck_wgmma_sp_conv(&args, &s->plan, cuda_of(device)->multiprocessors, stream));
    return CR_OK;
}

/* ---- the rows ---- */

static const struct cr_kernel row_conv   = {.name          = "cuda.wgmma_sp",
                                            .op            = CR_OP_conv,
                                            .math          = CR_MATH_F32,
                                            .deterministic = true,
                                            .sparse        = true,
                                            .sparse_cores  = true,
                                            .accepts       = accepts,
                                            .algo_name     = algo_name,
                                            .estimate      = estimate,
                                            .prepare       = prepare,
                                            .launch        = launch,
                                            .release       = release};
static const struct cr_kernel row_filter = {.name          = "cuda.wgmma_sp_filter",
                                            .op            = CR_OP_sparse_filter,
                                            .math          = CR_MATH_EXACT,
                                            .deterministic = true,
                                            .accepts       = filter_accepts,
                                            .algo_name     = algo_name,
                                            .prepare       = prepare,
                                            .launch        = filter_launch,
                                            .release       = release};

const struct cr_kernel *const cr_cuda_wgmma_sp_kernels[] = {&row_conv, &row_filter, NULL};

/* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: kernels of FP32 sparse convolutions on the sparse tensor cores of compute
 * capability 9.0.
 *
 * Tile i of weight format CR_SPARSE_WGMMA_SP is tile config i + 1 of cuda/sparse/wgmma_sp/wgmma_sp.h. The input
 * `packed` has the values and scales, as ck_wgmma_sp_fill writes them. prepare() packs the words that control the
 * kernel once; they are not part of `packed`, whose contents are arbitrary during autotuning. */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"

/* Minimum terms of a sum: the error of splitting FP32 numbers is visible in shorter sums. */
enum { MIN_TERMS = 16 };

struct prepared {
    struct ck_wgmma_sp_plan plan;
    int64_t                 units;
    uint32_t               *start, *words, *from; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_wgmma_sp_plan *plan) {
    const struct ck_conv conv   = cuda_sparse_conv_shape(p, op);
    const int            config = cuda_sparse_tile(op, CR_SPARSE_WGMMA_SP) + 1;
    return config >= 1 && config <= ck_wgmma_sp_configs() && p->store->pattern &&
           conv.R * conv.S * conv.C >= MIN_TERMS &&
           ck_wgmma_sp_make_plan(&conv, op->attr.conv.pattern.nnz, config, cuda_of(device)->cc,
                                 cuda_of(device)->multiprocessors, plan);
}

/* Gives the byte mask of the nonzeros. The plan's convolution has the sizes of the filter. */
static cr_status nonzero_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            const struct ck_wgmma_sp_plan *plan, const uint8_t **nonzero) {
    struct cuda_filter *filter;
    CR_TRY(cr_cuda_filter_of(device, p, op, &plan->conv, &filter));
    return cr_cuda_filter_mask(filter, nonzero);
}

int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    const uint8_t          *nonzero;
    if (!plan_of(device, p, op, &plan)) return 0;
    if (nonzero_of(device, p, op, &plan, &nonzero) != CR_OK) {
        cr_error_clear(); /* without memory for the mask the format is not available */
        return 0;
    }
    return (int64_t)(ck_wgmma_sp_bytes(&plan, ck_wgmma_sp_pack(&plan, nonzero, NULL, NULL, NULL)) / sizeof(float));
}

static bool has_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    return plan_of(device, p, op, &plan);
}

/* ---- estimates and names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_wgmma_sp_plan plan;
    return plan_of(device, p, op, &plan) ? cr_cuda_cycles_to_seconds(device, plan.tile.cycles) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int tile[4];
    ck_wgmma_sp_tile(cuda_sparse_format(op).tile + 1, tile);
    cr_text_add(out, "wgmma_sp %dx%d%s", tile[0] * tile[2], tile[1], tile[3] > 1 ? " pairs" : "");
}

/* ---- device memory ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    (void)cudaFree(s->start);
    (void)cudaFree(s->words);
    (void)cudaFree(s->from);
    cr_free(s);
}

static cr_status upload_filter(const uint8_t *nonzero, bool fills, bool convolves, struct prepared *s) {
    const int64_t starts = s->plan.tile.blocks * s->plan.parts + 1;
    uint32_t     *start, *words = NULL, *from = NULL;
    cr_status     status = CR_OK;
    s->units             = ck_wgmma_sp_pack(&s->plan, nonzero, NULL, NULL, NULL);
    CR_ALLOC(start, (size_t)starts);
    if (convolves) words = cr_alloc((size_t)(s->units * CK_WGMMA_SP_WORDS), sizeof *words);
    if (fills) from = cr_alloc((size_t)(s->units * CK_WGMMA_SP_VALUES), sizeof *from);
    if ((convolves && !words) || (fills && !from))
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for a packed filter of %lld units", (long long)s->units);
    ck_wgmma_sp_pack(&s->plan, nonzero, start, words, from);
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
    const uint8_t   *nonzero;
    struct prepared *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_of(device, p, op, &s->plan)); /* the accepts function has checked this */
    CR_TRY(nonzero_of(device, p, op, &s->plan, &nonzero));
    CR_TRY(upload_filter(nonzero, fills, convolves, s));
    *workspace_bytes = convolves && fills ? ck_wgmma_sp_bytes(&s->plan, s->units) : 0;
    return CR_OK;
}

/* ---- sparse_filter ---- */

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    return CUDA_STATUS(ck_wgmma_sp_fill(&s->plan, call->in[CR_IN_sparse_filter_w], s->from, s->units,
                                        call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
}

/* ---- convolutions ---- */

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *packed = call->in[CR_IN_conv_packed];
    if (!packed) {
        CUDA_TRY(ck_wgmma_sp_fill(&s->plan, call->in[CR_IN_conv_w], s->from, s->units, call->workspace, stream));
        packed = call->workspace;
    }
    const struct ck_wgmma_sp_args args = {
        .x      = call->in[CR_IN_conv_x],
        .bias   = call->in[CR_IN_conv_bias],
        .add    = call->in[CR_IN_conv_add],
        .filter = {s->start, s->words, packed, (const float *)(const void *)(packed + ck_wgmma_sp_scale_at(s->units))},
        .relu   = call->op->attr.conv.relu,
        .y      = call->out[CR_OUT_conv_y]};
    return CUDA_STATUS(ck_wgmma_sp_conv(&args, &s->plan, cuda_of(device)->multiprocessors, stream));
}

/* ---- kernels ---- */

const struct cr_kernel cr_cuda_wgmma_sp_kernels[] = {
    {CUDA_SPARSE_CONV("cuda.wgmma_sp", CR_MATH_F32, CR_TYPES_F32), .relaxations = CR_RELAXED_SPLIT_INPUT,
     .traits.sparse_cores = true, .accepts = has_format, .estimate = estimate, .launch = launch},
    CUDA_SPARSE_FILTER("cuda.wgmma_sp_filter", CR_TYPES_FLOAT),
    {0}};

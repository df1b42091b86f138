/* cuda/sparse/mma_sp/mma_sp_kernels.c: convolutions with a pattern on the sparse tensor cores: the layouts
 * (attr.conv.pattern.format) behind those of cuda/sparse/direct/direct_kernels.c, one a way of cutting. `kept` holds
 * fragments with weights, places and scales, as cuda/sparse/mma_sp/mma_sp.h's fill makes them. */
#include "cuda/sparse/mma_sp/mma_sp.h"
#include "cuda/sparse/sparse_kernels.h"
#include "sparsity/band_2_4.h"

enum { LEAST_TERMS = 16 /* of a sum: what the parts of a product lose shows in shorter ones of f32 */ };

struct prepared {
    struct ck_conv        conv;
    struct ck_mma_sp_plan plan;
    int64_t               fragments, bands;
    uint32_t             *run, *offset, *from, *places; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct ck_conv *conv, const struct cr_pattern_attr *a,
                    struct ck_mma_sp_plan *plan) {
    const int way    = a->format - ck_sparse_conv_configs(); /* layout 0 is the plain kernel's */
    int       shared = 0;
    if (way < 1 || way > ck_mma_sp_conv_configs() || cuda_of(device)->cc < 80) return false;
    if (conv->type == CK_F32 && conv->R * conv->S * conv->C < LEAST_TERMS) return false;
    if (cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cuda_of(device)->index) !=
        cudaSuccess)
        return false;
    return ck_mma_sp_conv_plan(conv, a->nnz, way, cuda_of(device)->multiprocessors, shared, plan);
}

/* Fragments depend on the type of the input, which sparse_filter does not see: it must be the filter's. */
static bool types_agree(const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_conv || cuda_in(p, op, CR_IN_conv_x)->dtype == cuda_in(p, op, CR_IN_conv_w)->dtype;
}

static bool has_layout(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv  conv = cuda_sparse_conv_shape(p, op);
    struct ck_mma_sp_plan plan;
    return types_agree(p, op) && p->store->pattern && !cuda_of(device)->offline &&
           plan_of(device, &conv, &op->attr.conv.pattern, &plan);
}

/* What is kept, and how it is cut. */
static cr_status cut_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        const struct ck_conv *conv, const struct ck_mma_sp_plan *plan, const struct cr_mma_sp_map **map,
                        struct cr_mma_sp_layout *how) {
    const struct ck_mma_sp_steps steps = ck_mma_sp_conv_steps(plan);
    struct cuda_filter          *filter;
    *how = (struct cr_mma_sp_layout){.stride  = conv->stride,
                                     .chunk   = plan->chunk,
                                     .c_step  = steps.c_step,
                                     .r_step  = steps.r_step,
                                     .s_phase = steps.s_phase,
                                     .s_step  = steps.s_step,
                                     .bands   = plan->k_blocks * plan->bands};
    CR_TRY(cr_cuda_filter_of(device, p, op, conv, &filter));
    return cr_cuda_filter_bands(filter, map);
}

int64_t cr_cuda_mma_sp_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv        conv = cuda_sparse_conv_shape(p, op);
    const struct cr_mma_sp_map *map;
    struct cr_mma_sp_layout     how;
    struct ck_mma_sp_plan       plan;
    if (!has_layout(device, p, op) || !plan_of(device, &conv, &op->attr.conv.pattern, &plan)) return 0;
    if (cut_of(device, p, op, &conv, &plan, &map, &how) != CR_OK) {
        cr_error_clear(); /* without memory for it there is no such layout */
        return 0;
    }
    return (int64_t)(ck_mma_sp_bytes(conv.type, cr_mma_sp_count(map, &how), how.bands) / sizeof(float));
}

/* ---- forecasts, names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv  conv = cuda_sparse_conv_shape(p, op);
    struct ck_mma_sp_plan plan;
    return plan_of(device, &conv, &op->attr.conv.pattern, &plan) ? cr_cuda_cycles_to_seconds(device, plan.cycles) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int cut[3];
    ck_mma_sp_conv_tile(op->attr.conv.pattern.format - ck_sparse_conv_configs(), cut);
    cr_text_add(out, "mma_sp %dx%d", cut[0], cut[1]);
    if (cut[2] > 1) cr_text_add(out, "/%d", cut[2]);
}

/* ---- what stays on the device ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    void *const memory[] = {s->run, s->offset, s->from, s->places};
    for (size_t i = 0; i < CR_COUNT(memory); i++) (void)cudaFree(memory[i]);
    cr_free(s);
}

static cr_status send_filter(const struct cr_mma_sp *f, bool fills, bool convolves, struct prepared *s) {
    s->fragments = f->fragments;
    s->bands     = f->bands;
    if (fills) {
        CR_TRY(cr_cuda_sparse_upload(f->from, f->fragments * CR_MMA_SP_LANES * 8, &s->from));
        CR_TRY(cr_cuda_sparse_upload(f->places, f->fragments * CR_MMA_SP_LANES, &s->places));
    }
    if (!convolves) return CR_OK;
    CR_TRY(cr_cuda_sparse_upload(f->run, (f->chunks * f->bands * (CR_MMA_SP_GROUPS + 1) + 1) * 2, &s->run));
    return cr_cuda_sparse_upload(f->offset, (f->steps + 1) * CR_MMA_SP_BLOCKS, &s->offset);
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool                  convolves = op->kind == CR_OP_conv, fills = !convolves || op->in[CR_IN_conv_packed] < 0;
    struct cr_mma_sp            filter = {0};
    cr_status                   status = CR_OK;
    struct prepared            *s;
    const struct cr_mma_sp_map *map;
    struct cr_mma_sp_layout     how;
    CR_ALLOC(s, 1);
    s->conv = cuda_sparse_conv_shape(p, op);
    CR_ASSERT(plan_of(device, &s->conv, &op->attr.conv.pattern, &s->plan)); /* as accepted */
    CR_TRY_OUT(cut_of(device, p, op, &s->conv, &s->plan, &map, &how));
    CR_TRY_OUT(cr_mma_sp_make(map, &how, fills, &filter));
    CR_TRY_OUT(send_filter(&filter, fills, convolves, s));
    *prepared        = s;
    *workspace_bytes = convolves && fills ? ck_mma_sp_bytes(s->conv.type, s->fragments, s->bands) : 0;
    s                = NULL;
out:
    cr_mma_sp_free(&filter);
    release(s);
    return status;
}

static cudaError_t fill(const struct prepared *s, const void *w, void *to, cudaStream_t stream) {
    const struct ck_mma_sp_fill_args args = {.w         = w,
                                             .type      = s->conv.type,
                                             .K         = s->conv.K,
                                             .taps      = s->conv.R * s->conv.S * s->conv.C,
                                             .bands     = s->bands,
                                             .fragments = s->fragments,
                                             .from      = s->from,
                                             .places    = s->places,
                                             .to        = to};
    return ck_mma_sp_fill(&args, stream);
}

/* ---- sparse_filter ---- */

static bool filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_is_data(cuda_in(p, op, CR_IN_sparse_filter_w)) &&
           cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32 && has_layout(device, p, op);
}

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(fill(call->prepared, call->in[CR_IN_sparse_filter_w], call->out[CR_OUT_sparse_filter_y],
                  cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- convolutions ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_sparse_operands_fit(p, op) && has_layout(device, p, op);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *kept   = call->in[CR_IN_conv_packed];
    if (!kept) {
        CUDA_TRY(fill(s, call->in[CR_IN_conv_w], call->workspace, stream));
        kept = call->workspace;
    }
    const struct ck_mma_sp_args args = {
        .conv     = s->conv,
        .x        = call->in[CR_IN_conv_x],
        .run      = s->run,
        .offset   = s->offset,
        .fragment = kept,
        .scale    = (const float *)(const void *)(kept + ck_mma_sp_scale_at(s->conv.type, s->fragments)),
        .bias     = call->in[CR_IN_conv_bias],
        .add      = call->in[CR_IN_conv_add],
        .relu     = call->op->attr.conv.relu,
        .y        = call->out[CR_OUT_conv_y]};
    CUDA_TRY(ck_mma_sp_conv(&args, &s->plan, stream));
    return CR_OK;
}

/* ---- the rows ---- */

static const struct cr_kernel row_conv   = {.name          = "cuda.mma_sp",
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
static const struct cr_kernel row_filter = {.name          = "cuda.mma_sp_filter",
                                            .op            = CR_OP_sparse_filter,
                                            .math          = CR_MATH_EXACT,
                                            .deterministic = true,
                                            .accepts       = filter_accepts,
                                            .algo_name     = algo_name,
                                            .prepare       = prepare,
                                            .launch        = filter_launch,
                                            .release       = release};

const struct cr_kernel *const cr_cuda_mma_sp_kernels[] = {&row_conv, &row_filter, NULL};

/* cuda/sparse/mma_sp/mma_sp_kernels.c: kernels of sparse convolutions on the sparse tensor cores with mma.sp.
 *
 * Tile i of weight format CR_SPARSE_MMA_SP is tile config i + 1 of cuda/sparse/mma_sp/mma_sp.h. The input `packed`
 * has the fragments with weights, metadata and scales, as ck_mma_sp_fill writes them. */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/mma_sp/mma_sp.h"
#include "cuda/sparse/sparse_kernels.h"
#include "sparsity/band_2_4.h"

/* Minimum terms of an FP32 sum: the error of splitting FP32 numbers is visible in shorter sums. */
enum { MIN_TERMS = 16 };

struct prepared {
    struct ck_conv        conv;
    struct ck_mma_sp_plan plan;
    int64_t               fragments, bands;
    uint32_t             *run, *offset, *from, *places; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_conv *conv, struct ck_mma_sp_plan *plan) {
    const int config = cuda_sparse_tile(op, CR_SPARSE_MMA_SP) + 1;
    *conv            = cuda_sparse_conv_shape(p, op);
    return config >= 1 && config <= ck_mma_sp_conv_configs() && p->store->pattern &&
           (conv->type != CK_F32 || conv->R * conv->S * conv->C >= MIN_TERMS) &&
           ck_mma_sp_conv_plan(conv, op->attr.conv.pattern.nnz, config, cuda_of(device)->multiprocessors,
                               cuda_of(device)->multiprocessor_bytes, plan);
}

static bool has_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv        conv;
    struct ck_mma_sp_plan plan;
    return plan_of(device, p, op, &conv, &plan);
}

/* Gives the map of the nonzeros and the byte steps of the staged input for the plan. */
static cr_status map_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        const struct ck_conv *conv, const struct ck_mma_sp_plan *plan, const struct cr_mma_sp_map **map,
                        struct cr_mma_sp_layout *layout) {
    const struct ck_mma_sp_steps steps = ck_mma_sp_conv_steps(plan);
    struct cuda_filter          *filter;
    *layout = (struct cr_mma_sp_layout){.stride  = conv->stride,
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
    struct ck_conv              conv;
    const struct cr_mma_sp_map *map;
    struct cr_mma_sp_layout     layout;
    struct ck_mma_sp_plan       plan;
    if (!plan_of(device, p, op, &conv, &plan)) return 0;
    if (map_of(device, p, op, &conv, &plan, &map, &layout) != CR_OK) {
        cr_error_clear(); /* without memory for the encoding the format is not available */
        return 0;
    }
    return (int64_t)(ck_mma_sp_bytes(conv.type, cr_mma_sp_count(map, &layout), layout.bands) / sizeof(float));
}

/* ---- estimates and names ---- */

static double estimate(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_conv        conv;
    struct ck_mma_sp_plan plan;
    return plan_of(device, p, op, &conv, &plan) ? cr_cuda_cycles_to_seconds(device, plan.cycles) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int tile[3];
    ck_mma_sp_conv_tile(cuda_sparse_format(op).tile + 1, tile);
    cr_text_add(out, "mma_sp %dx%d", tile[0], tile[1]);
    if (tile[2] > 1) cr_text_add(out, "/%d", tile[2]);
}

/* ---- device memory ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    void *const memory[] = {s->run, s->offset, s->from, s->places};
    for (size_t i = 0; i < CR_COUNT(memory); i++) (void)cudaFree(memory[i]);
    cr_free(s);
}

static cr_status upload_filter(const struct cr_mma_sp *f, bool fills, bool convolves, struct prepared *s) {
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
    struct cr_mma_sp_layout     layout;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_of(device, p, op, &s->conv, &s->plan)); /* the accepts function has checked this */
    CR_TRY_OUT(map_of(device, p, op, &s->conv, &s->plan, &map, &layout));
    CR_TRY_OUT(cr_mma_sp_make(map, &layout, fills, &filter));
    CR_TRY_OUT(upload_filter(&filter, fills, convolves, s));
    *workspace_bytes = convolves && fills ? ck_mma_sp_bytes(s->conv.type, s->fragments, s->bands) : 0;
out:
    cr_mma_sp_free(&filter);
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

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    return CUDA_STATUS(fill(call->prepared, call->in[CR_IN_sparse_filter_w], call->out[CR_OUT_sparse_filter_y],
                            cr_cuda_stream(device, call)));
}

/* ---- convolutions ---- */

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *packed = call->in[CR_IN_conv_packed];
    if (!packed) {
        CUDA_TRY(fill(s, call->in[CR_IN_conv_w], call->workspace, stream));
        packed = call->workspace;
    }
    const struct ck_mma_sp_args args = {
        .conv     = s->conv,
        .x        = call->in[CR_IN_conv_x],
        .run      = s->run,
        .offset   = s->offset,
        .fragment = packed,
        .scale    = (const float *)(const void *)(packed + ck_mma_sp_scale_at(s->conv.type, s->fragments)),
        .bias     = call->in[CR_IN_conv_bias],
        .add      = call->in[CR_IN_conv_add],
        .relu     = call->op->attr.conv.relu,
        .y        = call->out[CR_OUT_conv_y],
        .l2_bytes = cuda_of(device)->l2_bytes};
    return CUDA_STATUS(ck_mma_sp_conv(&args, &s->plan, stream));
}

/* ---- kernels ---- */

const struct cr_kernel cr_cuda_mma_sp_kernels[] = {{CUDA_SPARSE_CONV("cuda.mma_sp", CR_MATH_F32, CR_TYPES_FLOAT),
                                                    .traits.sparse_cores = true, .accepts = has_format,
                                                    .estimate = estimate, .launch = launch},
                                                   CUDA_SPARSE_FILTER("cuda.mma_sp_filter", CR_TYPES_FLOAT),
                                                   {0}};

/* cuda/sparse/mma_sp/mma_sp_kernels.c: convolutions with a pattern on the sparse tensor cores: the layouts (attr.conv.pattern.layout) behind those of
 * cuda/sparse/direct/direct_kernels.c, one a way of cutting. `kept` holds fragments with weights, places and scales, as cuda/sparse/mma_sp/mma_sp.h's fill makes them. */
#include "cuda/sparse/sparse_kernels.h"
#include "sparsity/band_2_4.h"
#include "cuda/sparse/mma_sp/mma_sp.h"

enum { LEAST_TERMS = 16 /* of a sum: what the parts of a product lose shows in shorter ones of f32 */ };

struct prepared {
    struct ck_conv       conv;
    struct ck_union_plan plan;
    int64_t              fragments, bands;
    uint32_t            *run, *offset, *from, *places; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct ck_conv *conv, const struct cr_pattern_attr *a, struct ck_union_plan *plan) {
    const int way    = a->layout - ck_sparse_conv_ways(); /* layout 0 is the plain kernel's */
    int       shared = 0;
    if (way < 1 || way > ck_union_conv_ways() || cuda_of(device)->cc < 80) return false;
    if (conv->type == CK_F32 && conv->R * conv->S * conv->C < LEAST_TERMS) return false;
    if (cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cuda_of(device)->index) != cudaSuccess) return false;
    return ck_union_conv_plan(conv, a->kept, way, cuda_of(device)->multiprocessors, shared, plan);
}

/* Fragments depend on the type of the input, which sparse_filter does not see: it must be the filter's. */
static bool types_agree(const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_conv || cuda_in(p, op, CR_IN_conv_x)->dtype == cuda_in(p, op, CR_IN_conv_w)->dtype;
}

static bool has_layout(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv conv = cuda_pattern_shape(p, op);
    struct ck_union_plan plan;
    return types_agree(p, op) && p->store->pattern && !cuda_of(device)->described && plan_of(device, &conv, &op->attr.conv.pattern, &plan);
}

/* What is kept, and how it is cut. */
static cr_status cut_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, const struct ck_conv *conv,
                        const struct ck_union_plan *plan, const struct cr_union_map **map, struct cr_union_how *how) {
    const struct ck_union_steps steps = ck_union_conv_steps(plan);
    struct cuda_filter         *filter;
    *how = (struct cr_union_how){.stride = conv->stride, .chunk = plan->chunk, .c_step = steps.c_step, .r_step = steps.r_step,
                                 .s_phase = steps.s_phase, .s_step = steps.s_step, .bands = plan->k_blocks * plan->bands};
    CR_TRY(cr_cuda_filter_of(device, p, op, conv, &filter));
    return cr_cuda_filter_map(filter, map);
}

int64_t cr_cuda_union_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv       conv = cuda_pattern_shape(p, op);
    const struct cr_union_map *map;
    struct cr_union_how        how;
    struct ck_union_plan       plan;
    if (!has_layout(device, p, op) || !plan_of(device, &conv, &op->attr.conv.pattern, &plan)) return 0;
    if (cut_of(device, p, op, &conv, &plan, &map, &how) != CR_OK) {
        cr_error_clear(); /* without memory for it there is no such layout */
        return 0;
    }
    return (int64_t)(ck_union_bytes(conv.type, cr_union_count(map, &how), how.bands) / sizeof(float));
}

/* ---- forecasts, names ---- */

static double foresee(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct ck_conv conv = cuda_pattern_shape(p, op);
    struct ck_union_plan plan;
    return plan_of(device, &conv, &op->attr.conv.pattern, &plan) ? cr_cuda_cycles(device, plan.cycles) : 0;
}

static void name_way(const struct cr_op *op, struct cr_text *out) {
    int cut[3];
    ck_union_conv_cut(op->attr.conv.pattern.layout - ck_sparse_conv_ways(), cut);
    cr_text_add(out, "union %dx%d", cut[0], cut[1]);
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

static cr_status send_filter(const struct cr_union *f, bool fills, bool convolves, struct prepared *s) {
    s->fragments = f->fragments;
    s->bands     = f->bands;
    if (fills) {
        CR_TRY(cr_cuda_sparse_send(f->from, f->fragments * CR_UNION_LANES * 8, &s->from));
        CR_TRY(cr_cuda_sparse_send(f->places, f->fragments * CR_UNION_LANES, &s->places));
    }
    if (!convolves) return CR_OK;
    CR_TRY(cr_cuda_sparse_send(f->run, (f->chunks * f->bands * (CR_UNION_GROUPS + 1) + 1) * 2, &s->run));
    return cr_cuda_sparse_send(f->offset, (f->steps + 1) * CR_UNION_BLOCKS, &s->offset);
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared, size_t *workspace_bytes) {
    const bool       convolves = op->kind == CR_OP_conv, fills = !convolves || op->in[CR_IN_conv_kept] < 0;
    struct cr_union  filter    = {0};
    cr_status        status    = CR_OK;
    struct prepared *s;
    const struct cr_union_map *map;
    struct cr_union_how        how;
    CR_ALLOC(s, 1);
    s->conv = cuda_pattern_shape(p, op);
    CR_ASSERT(plan_of(device, &s->conv, &op->attr.conv.pattern, &s->plan)); /* as accepted */
    CR_TRY_OUT(cut_of(device, p, op, &s->conv, &s->plan, &map, &how));
    CR_TRY_OUT(cr_union_make(map, &how, fills, &filter));
    CR_TRY_OUT(send_filter(&filter, fills, convolves, s));
    *prepared        = s;
    *workspace_bytes = convolves && fills ? ck_union_bytes(s->conv.type, s->fragments, s->bands) : 0;
    s                = NULL;
out:
    cr_union_free(&filter);
    release(s);
    return status;
}

static cudaError_t fill(const struct prepared *s, const void *w, void *to, cudaStream_t stream) {
    const struct ck_union_fill_args args = {.w = w, .type = s->conv.type, .K = s->conv.K, .taps = s->conv.R * s->conv.S * s->conv.C,
                                            .bands = s->bands, .fragments = s->fragments, .from = s->from, .places = s->places, .to = to};
    return ck_union_fill(&args, stream);
}

/* ---- sparse_filter ---- */

static bool filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_is_data(cuda_in(p, op, CR_IN_sparse_filter_w)) && cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32 &&
           has_layout(device, p, op);
}

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    CUDA_TRY(fill(call->prepared, call->in[CR_IN_sparse_filter_w], call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- convolutions ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return cuda_pattern_slots(p, op) && has_layout(device, p, op);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *kept   = call->in[CR_IN_conv_kept];
    if (!kept) {
        CUDA_TRY(fill(s, call->in[CR_IN_conv_w], call->workspace, stream));
        kept = call->workspace;
    }
    const struct ck_union_args args = {.conv = s->conv, .x = call->in[CR_IN_conv_x], .run = s->run, .offset = s->offset, .fragment = kept,
                                       .scale = (const float *)(const void *)(kept + ck_union_scale_at(s->conv.type, s->fragments)),
                                       .bias = call->in[CR_IN_conv_bias], .add = call->in[CR_IN_conv_add],
                                       .relu = call->op->attr.conv.relu, .y = call->out[CR_OUT_conv_y]};
    CUDA_TRY(ck_union_conv(&args, &s->plan, stream));
    return CR_OK;
}

/* ---- the rows ---- */

static const struct cr_kernel row_conv = {.name = "cuda.sparse_union", .op = CR_OP_conv, .math = CR_MATH_F32, .deterministic = true,
                                          .sparse = true, .sparse_cores = true, .accepts = accepts, .name_way = name_way, .foresee = foresee, .prepare = prepare, .launch = launch, .release = release};
static const struct cr_kernel row_filter = {.name = "cuda.sparse_union_filter", .op = CR_OP_sparse_filter, .math = CR_MATH_EXACT,
                                            .deterministic = true, .accepts = filter_accepts, .name_way = name_way, .prepare = prepare,
                                            .launch = filter_launch, .release = release};

const struct cr_kernel *const cr_cuda_union_rows[] = {&row_conv, &row_filter, NULL};

/* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: f32 convolutions with a pattern on Hopper's sparse tensor cores. Layout CUDA_LAYOUT_WALKS + i is way i + 1 of
 * cuda/sparse/wgmma_sp/wgmma_sp.h. `kept` is the values and scales, as ck_walks_fill makes them. What the kernel goes by is packed once, by prepare, and is
 * no part of `kept`, which holds anything at all while a choice is timed. */
#include "cuda/sparse/sparse_kernels.h"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"

enum { LEAST_TERMS = 16 /* of a sum: what the parts of a product lose shows in shorter ones */ };

struct prepared {
    struct ck_walks_plan plan;
    int64_t              units;
    uint32_t            *start, *words, *from; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, struct ck_walks_plan *plan) {
    const struct ck_conv conv = cuda_pattern_shape(p, op);
    const int            way  = op->attr.conv.pattern.layout - CUDA_LAYOUT_WALKS + 1;
    return way >= 1 && way <= ck_walks_ways() && p->store->pattern && !cuda_of(device)->described && conv.R * conv.S * conv.C >= LEAST_TERMS &&
           ck_walks_make(&conv, op->attr.conv.pattern.kept, way, cuda_of(device)->cc, cuda_of(device)->multiprocessors, plan);
}

/* What is kept, a byte each; the plan's convolution has the filter's sides. */
static cr_status kept_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op, const struct ck_walks_plan *plan,
                         const uint8_t **kept) {
    struct cuda_filter *filter;
    CR_TRY(cr_cuda_filter_of(device, p, op, &plan->conv, &filter));
    return cr_cuda_filter_kept(filter, kept);
}

int64_t cr_cuda_walks_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_walks_plan plan;
    const uint8_t       *kept;
    if (!plan_of(device, p, op, &plan)) return 0;
    if (kept_of(device, p, op, &plan, &kept) != CR_OK) {
        cr_error_clear(); /* without memory for it there is no such layout */
        return 0;
    }
    return (int64_t)(ck_walks_bytes(&plan, ck_walks_pack(&plan, kept, NULL, NULL, NULL)) / sizeof(float));
}

/* ---- forecasts, names ---- */

static double foresee(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_walks_plan plan;
    return plan_of(device, p, op, &plan) ? cr_cuda_cycles(device, plan.tile.cycles) : 0;
}

static void name_way(const struct cr_op *op, struct cr_text *out) {
    int cut[4];
    ck_walks_cut(op->attr.conv.pattern.layout - CUDA_LAYOUT_WALKS + 1, cut);
    cr_text_add(out, "walks %dx%d%s", cut[0] * cut[2], cut[1], cut[3] > 1 ? " pairs" : "");
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
    s->units         = ck_walks_pack(&s->plan, kept, NULL, NULL, NULL);
    CR_ALLOC(start, (size_t)starts);
    if (convolves) words = cr_alloc((size_t)(s->units * CK_WALKS_WORDS), sizeof *words);
    if (fills) from = cr_alloc((size_t)(s->units * CK_WALKS_VALUES), sizeof *from);
    if ((convolves && !words) || (fills && !from)) CR_FAIL_OUT(CR_ERR_MEMORY, "no memory for a packed filter of %lld units", (long long)s->units);
    ck_walks_pack(&s->plan, kept, start, words, from);
    if (fills) CR_TRY_OUT(cr_cuda_sparse_send(from, s->units * CK_WALKS_VALUES, &s->from));
    if (convolves) CR_TRY_OUT(cr_cuda_sparse_send(words, s->units * CK_WALKS_WORDS, &s->words));
    if (convolves) CR_TRY_OUT(cr_cuda_sparse_send(start, starts, &s->start));
out:
    cr_free(start);
    cr_free(words);
    cr_free(from);
    return status;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared, size_t *workspace_bytes) {
    const bool       convolves = op->kind == CR_OP_conv, fills = !convolves || op->in[CR_IN_conv_kept] < 0;
    cr_status        status    = CR_OK;
    const uint8_t   *kept;
    struct prepared *s;
    CR_ALLOC(s, 1);
    CR_ASSERT(plan_of(device, p, op, &s->plan)); /* as accepted */
    CR_TRY_OUT(kept_of(device, p, op, &s->plan, &kept));
    CR_TRY_OUT(send_filter(kept, fills, convolves, s));
    *workspace_bytes = convolves && fills ? ck_walks_bytes(&s->plan, s->units) : 0;
    *prepared        = s;
    s                = NULL;
out:
    release(s);
    return status;
}

/* ---- sparse_filter ---- */

static bool filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_walks_plan plan;
    return cuda_is_data(cuda_in(p, op, CR_IN_sparse_filter_w)) && cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32 &&
           plan_of(device, p, op, &plan);
}

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    CUDA_TRY(ck_walks_fill(&s->plan, call->in[CR_IN_sparse_filter_w], s->from, s->units, call->out[CR_OUT_sparse_filter_y],
                           cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- convolutions ---- */

static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    struct ck_walks_plan plan;
    return cuda_pattern_slots(p, op) && cuda_in(p, op, CR_IN_conv_x)->dtype == CR_F32 && cuda_in(p, op, CR_IN_conv_w)->dtype == CR_F32 &&
           plan_of(device, p, op, &plan);
}

static cr_status launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s      = call->prepared;
    cudaStream_t           stream = cr_cuda_stream(device, call);
    const char            *kept   = call->in[CR_IN_conv_kept];
    if (!kept) {
        CUDA_TRY(ck_walks_fill(&s->plan, call->in[CR_IN_conv_w], s->from, s->units, call->workspace, stream));
        kept = call->workspace;
    }
    const struct ck_walks_args args = {.x = call->in[CR_IN_conv_x], .bias = call->in[CR_IN_conv_bias], .add = call->in[CR_IN_conv_add],
                                       .filter = {s->start, s->words, kept, (const float *)(const void *)(kept + ck_walks_scale_at(s->units))},
                                       .relu = call->op->attr.conv.relu, .y = call->out[CR_OUT_conv_y]};
    CUDA_TRY(ck_walks_conv(&args, &s->plan, cuda_of(device)->multiprocessors, stream));
    return CR_OK;
}

/* ---- the rows ---- */

static const struct cr_kernel row_conv = {.name = "cuda.sparse_walks", .op = CR_OP_conv, .math = CR_MATH_F32, .deterministic = true, .sparse = true, .sparse_cores = true,
                                          .accepts = accepts, .name_way = name_way, .foresee = foresee, .prepare = prepare, .launch = launch, .release = release};
static const struct cr_kernel row_filter = {.name = "cuda.sparse_walks_filter", .op = CR_OP_sparse_filter, .math = CR_MATH_EXACT,
                                            .deterministic = true, .accepts = filter_accepts, .name_way = name_way, .prepare = prepare,
                                            .launch = filter_launch, .release = release};

const struct cr_kernel *const cr_cuda_walks_rows[] = {&row_conv, &row_filter, NULL};

/* cuda/sparse/block/block_sparse_kernels.c: convolutions whose filter is kept in blocks of 64 x 64 channels, on the
 * tensor cores of compute capability 9.0 in f16 and bf16. Layout CUDA_FORMAT_BLOCK_SPARSE + i is way i of
 * cuda/sparse/block/block_sparse.h. A filter whose kept weights lie anywhere has such layouts too, as long as whole
 * blocks of it are empty. The lists are made by prepare and lie on the device; `kept` is the packed blocks, which
 * sparse_filter makes. */
#include "cuda/sparse/block/block_sparse.h"
#include "cuda/sparse/sparse_kernels.h"

/* Of all blocks: above this share of kept ones the dense kernels win. */
static const double share_most = 0.85;

struct prepared {
    struct ck_conv              conv;
    struct ck_block_sparse_plan plan;
    struct ck_block_sparse_list list;
    uint32_t                    from; /* offset of the part of the table that says what is packed where */
    int64_t                     blocks;
    uint32_t                   *table; /* device memory */
};

/* ---- shapes and plans ---- */

static struct ck_conv shape_of(const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_conv)
        return cuda_conv_shape(op, cuda_in(p, op, CR_IN_conv_x), cuda_in(p, op, CR_IN_conv_w),
                               cuda_out(p, op, CR_OUT_conv_y));
    return cuda_filter_shape(op, cuda_in(p, op, CR_IN_sparse_filter_w));
}

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_conv *conv, struct ck_block_sparse_plan *plan) {
    const int way = op->attr.conv.pattern.format - CUDA_FORMAT_BLOCK_SPARSE;
    *conv         = shape_of(p, op);
    return way >= 0 && p->store->pattern && !cuda_of(device)->offline && cuda_of(device)->cc == 90 &&
           ck_block_sparse_conv_plan(conv, way, cuda_of(device)->multiprocessors, plan);
}

static const struct cr_param *param_of(const struct cr_program *p, const struct cr_op *op) {
    return &p->store->param[op->attr.conv.pattern.param];
}

/* Blocks with anything in them, and those that are stored. Without memory to remember them they are counted each time.
 */
static int64_t count_blocks(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            const struct ck_conv *c, int64_t *stored) {
    struct cuda_filter *filter;
    int64_t             kept;
    if (cr_cuda_filter_of(device, p, op, c, &filter) != CR_OK) {
        cr_error_clear();
        return cr_sparse_count_blocks(p->store->pattern, param_of(p, op)->offset, c->K, c->R, c->S, c->C,
                                      CK_BLOCK_SPARSE_SIDE, stored);
    }
    cr_cuda_filter_blocks(filter, CK_BLOCK_SPARSE_SIDE, &kept, stored);
    return kept;
}

/* Is there such a layout? Few enough blocks must have anything in them. */
static bool find_layout(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        int64_t *stored) {
    struct ck_conv              c;
    struct ck_block_sparse_plan plan;
    if (!plan_of(device, p, op, &c, &plan)) return false;
    const int64_t kept = count_blocks(device, p, op, &c, stored);
    return (double)(kept * CK_BLOCK_SPARSE_SIDE * CK_BLOCK_SPARSE_SIDE) <= share_most * (double)(c.K * c.R * c.S * c.C);
}

static bool has_layout(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    int64_t stored;
    return find_layout(device, p, op, &stored);
}

static cr_status list_of(const struct cr_program *p, const struct cr_op *op, const struct ck_conv *c,
                         const struct ck_block_sparse_plan *plan, struct cr_blocks *blocks) {
    const struct cr_block_layout how = {
        .side = CK_BLOCK_SPARSE_SIDE, .teams = plan->teams, .patch = plan->patch, .pitch = plan->pitch};
    return cr_sparse_blocks(p->store->pattern, param_of(p, op)->offset, c->K, c->R, c->S, c->C, &how, blocks);
}

int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    int64_t stored;
    return find_layout(device, p, op, &stored) ? stored * (CK_BLOCK_SPARSE_BYTES / (int64_t)sizeof(float)) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int cut[4];
    ck_block_sparse_conv_tile(op->attr.conv.pattern.format - CUDA_FORMAT_BLOCK_SPARSE, cut);
    cr_text_add(out, "block_sparse %dx%dx%d%s", cut[0], cut[1], cut[2], cut[3] ? " patch" : "");
}

/* ---- what stays on the device ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    (void)cudaFree(s->table);
    cr_free(s);
}

static cr_status send(const struct cr_blocks *b, struct prepared *s) {
    const size_t bytes = (size_t)b->words * sizeof *b->table;
    s->list            = (struct ck_block_sparse_list){.steps   = b->steps,
                                                       .step    = b->step,
                                                       .items   = b->items,
                                                       .item    = b->item,
                                                       .entries = b->entries,
                                                       .entry   = b->entry,
                                                       .block   = b->block};
    s->from            = b->from;
    s->blocks          = b->blocks;
    CUDA_TRY(cudaMalloc((void **)&s->table, bytes));
    CUDA_TRY(cudaMemcpy(s->table, b->table, bytes, cudaMemcpyHostToDevice));
    return CR_OK;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool       packs  = op->kind == CR_OP_conv && op->in[CR_IN_conv_packed] < 0;
    struct cr_blocks blocks = {0};
    cr_status        status = CR_OK;
    struct prepared *s;
    CR_ALLOC(s, 1);
    CR_ASSERT(plan_of(device, p, op, &s->conv, &s->plan)); /* as accepted */
    CR_TRY_OUT(list_of(p, op, &s->conv, &s->plan, &blocks));
    CR_TRY_OUT(send(&blocks, s));
    *prepared        = s;
    *workspace_bytes = packs ? (size_t)blocks.blocks * CK_BLOCK_SPARSE_BYTES : 0;
    s                = NULL;
out:
    cr_blocks_free(&blocks);
    release(s);
    return status;
}

/* ---- sparse_filter ---- */

static bool filter_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = cuda_in(p, op, CR_IN_sparse_filter_w);
    return (w->dtype == CR_F16 || w->dtype == CR_BF16) && cuda_out(p, op, CR_OUT_sparse_filter_y)->dtype == CR_F32 &&
           has_layout(device, p, op);
}

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    CUDA_TRY(ck_block_sparse_pack(&s->conv, call->in[CR_IN_sparse_filter_w], s->table + s->from, s->blocks,
                                  call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
    return CR_OK;
}

/* ---- convolutions ---- */

static bool conv_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                         enum cr_dtype type) {
    const unsigned known = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w | 1u << CR_IN_conv_bias | 1u << CR_IN_conv_add |
                           1u << CR_IN_conv_packed;
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_x), *bias = cuda_in(p, op, CR_IN_conv_bias),
                           *add = cuda_in(p, op, CR_IN_conv_add);
    if (!cr_op_uses_only(op, known, 1u << CR_OUT_conv_y) || x->dtype != type ||
        cuda_in(p, op, CR_IN_conv_w)->dtype != type)
        return false;
    if (cuda_out(p, op, CR_OUT_conv_y)->dtype != type || (bias && bias->dtype != CR_F32) || (add && add->dtype != type))
        return false;
    return has_layout(device, p, op);
}
static bool conv_accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_F16);
}
static bool conv_accepts_bf16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return conv_accepts(device, p, op, CR_BF16);
}

static cr_status conv_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared      *s      = call->prepared;
    cudaStream_t                stream = cr_cuda_stream(device, call);
    struct ck_block_sparse_args args   = {.conv   = s->conv,
                                          .x      = call->in[CR_IN_conv_x],
                                          .blocks = call->in[CR_IN_conv_packed],
                                          .table  = s->table,
                                          .list   = s->list,
                                          .bias   = call->in[CR_IN_conv_bias],
                                          .add    = call->in[CR_IN_conv_add],
                                          .relu   = call->op->attr.conv.relu,
                                          .y      = call->out[CR_OUT_conv_y]};
    if (!args.blocks) {
        CUDA_TRY(ck_block_sparse_pack(&s->conv, call->in[CR_IN_conv_w], s->table + s->from, s->blocks, call->workspace,
                                      stream));
        args.blocks = call->workspace;
    }
    CUDA_TRY(ck_block_sparse_conv(&args, &s->plan, stream));
    return CR_OK;
}

/* ---- the rows ---- */

static const struct cr_kernel row_f16    = {.name          = "cuda.block_sparse.f16",
                                            .op            = CR_OP_conv,
                                            .math          = CR_MATH_F16,
                                            .deterministic = true,
                                            .sparse        = true,
                                            .accepts       = conv_accepts_f16,
                                            .algo_name     = algo_name,
                                            .prepare       = prepare,
                                            .launch        = conv_launch,
                                            .release       = release};
static const struct cr_kernel row_bf16   = {.name          = "cuda.block_sparse.bf16",
                                            .op            = CR_OP_conv,
                                            .math          = CR_MATH_BF16,
                                            .deterministic = true,
                                            .sparse        = true,
                                            .accepts       = conv_accepts_bf16,
                                            .algo_name     = algo_name,
                                            .prepare       = prepare,
                                            .launch        = conv_launch,
                                            .release       = release};
static const struct cr_kernel row_filter = {.name          = "cuda.block_sparse_filter",
                                            .op            = CR_OP_sparse_filter,
                                            .math          = CR_MATH_EXACT,
                                            .deterministic = true,
                                            .accepts       = filter_accepts,
                                            .algo_name     = algo_name,
                                            .prepare       = prepare,
                                            .launch        = filter_launch,
                                            .release       = release};

const struct cr_kernel *const cr_cuda_block_sparse_kernels[] = {&row_f16, &row_bf16, &row_filter, NULL};

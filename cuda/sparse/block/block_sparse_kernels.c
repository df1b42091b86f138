/* cuda/sparse/block/block_sparse_kernels.c: kernels of block-sparse convolutions on the tensor cores of compute
 * capability 9.0, in FP16 and BF16.
 *
 * Tile i of weight format CR_SPARSE_BLOCK is tile config i of cuda/sparse/block/block_sparse.h. A filter with any
 * sparsity pattern has these formats as long as whole blocks of it are zero. prepare() makes the lists of blocks and
 * copies them to the device. The input `packed` has the packed blocks, which sparse_filter makes. */
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/sparse/block/block_sparse.h"
#include "cuda/sparse/sparse_kernels.h"

/* Above this fraction of nonzero blocks the dense kernels are faster. */
static const double max_block_fraction = 0.85;

struct prepared {
    struct ck_conv              conv;
    struct ck_block_sparse_plan plan;
    struct ck_block_sparse_list list;
    uint32_t                    from; /* word offset in the table of the first element of each packed block */
    int64_t                     blocks;
    uint32_t                   *table; /* device memory */
};

/* ---- shapes and plans ---- */

static bool plan_of(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                    struct ck_conv *conv, struct ck_block_sparse_plan *plan) {
    const int config = cuda_sparse_tile(op, CR_SPARSE_BLOCK);
    *conv            = cuda_sparse_conv_shape(p, op);
    return config >= 0 && p->store->pattern && cuda_of(device)->cc == 90 &&
           ck_block_sparse_conv_plan(conv, config, cuda_of(device)->multiprocessors, cuda_of(device)->l2_bytes, plan);
}

static const struct cr_param *param_of(const struct cr_program *p, const struct cr_op *op) {
    return &p->store->param[op->attr.conv.pattern.param];
}

/* Returns the number of nonzero blocks and gives the number of stored blocks. Without memory for the cache the blocks
 * are counted at each call. */
static int64_t count_blocks(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                            const struct ck_conv *c, int64_t *stored) {
    struct cuda_filter *filter;
    int64_t             nnz_blocks;
    if (cr_cuda_filter_of(device, p, op, c, &filter) != CR_OK) {
        cr_error_clear();
        return cr_block_sparse_count(p->store->pattern, param_of(p, op)->offset, c->K, c->R, c->S, c->C,
                                     CK_BLOCK_SPARSE_SIDE, stored);
    }
    cr_cuda_filter_blocks(filter, CK_BLOCK_SPARSE_SIDE, &nnz_blocks, stored);
    return nnz_blocks;
}

/* Returns whether the filter has the op's format: few enough blocks must be nonzero. */
static bool find_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                        int64_t *stored) {
    struct ck_conv              c;
    struct ck_block_sparse_plan plan;
    if (!plan_of(device, p, op, &c, &plan)) return false;
    const int64_t nnz_blocks = count_blocks(device, p, op, &c, stored);
    return (double)(nnz_blocks * CK_BLOCK_SPARSE_SIDE * CK_BLOCK_SPARSE_SIDE) <=
           max_block_fraction * (double)(c.K * c.R * c.S * c.C);
}

static bool has_format(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    int64_t stored;
    return find_format(device, p, op, &stored);
}

static cr_status make_list(const struct cr_program *p, const struct cr_op *op, const struct ck_conv *c,
                           const struct ck_block_sparse_plan *plan, struct cr_block_sparse *blocks) {
    const struct cr_block_layout layout = {
        .side = CK_BLOCK_SPARSE_SIDE, .teams = plan->teams, .patch = plan->patch, .pitch = plan->pitch};
    return cr_block_sparse_encode(p->store->pattern, param_of(p, op)->offset, c->K, c->R, c->S, c->C, &layout, blocks);
}

int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    int64_t stored;
    return find_format(device, p, op, &stored) ? stored * (CK_BLOCK_SPARSE_BYTES / (int64_t)sizeof(float)) : 0;
}

static void algo_name(const struct cr_op *op, struct cr_text *out) {
    int tile[4];
    ck_block_sparse_conv_tile(cuda_sparse_format(op).tile, tile);
    cr_text_add(out, "block_sparse %dx%dx%d%s", tile[0], tile[1], tile[2], tile[3] ? " patch" : "");
}

/* ---- device memory ---- */

static void release(void *prepared) {
    struct prepared *s = prepared;
    if (!s) return;
    (void)cudaFree(s->table);
    cr_free(s);
}

static cr_status upload_list(const struct cr_block_sparse *b, struct prepared *s) {
    s->list   = (struct ck_block_sparse_list){.steps   = b->steps,
                                              .step    = b->step,
                                              .items   = b->items,
                                              .item    = b->item,
                                              .entries = b->entries,
                                              .entry   = b->entry,
                                              .block   = b->block};
    s->from   = b->from;
    s->blocks = b->blocks;
    return cr_cuda_sparse_upload(b->table, b->words, &s->table);
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const bool             packs  = op->kind == CR_OP_conv && op->in[CR_IN_conv_packed] < 0;
    struct cr_block_sparse blocks = {0};
    cr_status              status = CR_OK;
    struct prepared       *s;
    CR_ALLOC(s, 1);
    *prepared = s;
    CR_ASSERT(plan_of(device, p, op, &s->conv, &s->plan)); /* the accepts function has checked this */
    CR_TRY_OUT(make_list(p, op, &s->conv, &s->plan, &blocks));
    CR_TRY_OUT(upload_list(&blocks, s));
    *workspace_bytes = packs ? (size_t)blocks.blocks * CK_BLOCK_SPARSE_BYTES : 0;
out:
    cr_block_sparse_free(&blocks);
    return status;
}

/* ---- sparse_filter ---- */

static cr_status filter_launch(struct cr_device *device, const struct cr_call *call) {
    const struct prepared *s = call->prepared;
    return CUDA_STATUS(ck_block_sparse_pack(&s->conv, call->in[CR_IN_sparse_filter_w], s->table + s->from, s->blocks,
                                            call->out[CR_OUT_sparse_filter_y], cr_cuda_stream(device, call)));
}

/* ---- convolutions ---- */

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
    return CUDA_STATUS(ck_block_sparse_conv(&args, &s->plan, stream));
}

/* ---- kernels ---- */

const struct cr_kernel cr_cuda_block_sparse_kernels[] = {
    {CUDA_SPARSE_CONV("cuda.block_sparse.*", CR_MATH_DATA, CR_TYPES_HALF), .accepts = has_format,
     .launch = conv_launch},
    CUDA_SPARSE_FILTER("cuda.block_sparse_filter", CR_TYPES_HALF),
    {0}};

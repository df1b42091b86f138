/* cuda/train/muon_kernels.c: kernel table for Muon's direction of the filters, by matrix products.
 *
 * Filters of the same shape are multiplied together, as strided batches. Their matrices are copied to the workspace in
 * the type of the products: f16 with sums in f32, or f32 for train.precision = fp32. All matrices of the iteration have
 * singular values below 6, so f16 cannot overflow, and it has as many fraction bits as TF32. No copy is transposed:
 * cuBLAS stores matrices by columns, so a filter of K rows and N columns is M, N x K. With A the smaller of the two
 * products of M and M',
 *   K <= N:  A = M' M (K x K),  M = M (a I + b A + c A A)
 *   K >  N:  A = M M' (N x N),  M = (a I + b A + c A A) M
 * The products of one group of small matrices use only a few multiprocessors, so the groups run at the same time, on
 * BRANCHES streams: each waits until the input of the iteration is written, and the op's stream waits for all of them.
 * Each branch has its own workspace.
 * Deterministic: a group's result does not depend on its branch, and no algorithm is chosen by timing. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/train/muon.h"
#include "cuda/train/update_tables.h"
#include "graph/muon.h"

#include <limits.h>

/* ---- the plan: groups of filters ---- */

enum { ALIGN = 256, GROUP_ELEMS = 1 << 26, BRANCHES = 4 };

struct group {
    int64_t rows, columns; /* of a filter, not transposed */
    int     first, count;  /* filters */
    int     branch;
};

struct plan {
    struct group        *group;
    int                 *param; /* [filters], sorted by group; indices into the parameter store */
    int                  groups, filters, tiles;
    struct ck_norm_tile *tile; /* device memory, like the next two; NULL on an offline device */
    int32_t             *first_tile;
    int64_t             *offset;           /* [filters] */
    cudaStream_t         stream[BRANCHES]; /* NULL for branch 0, which uses the op's stream, and on offline devices */
    cudaEvent_t          ready, done[BRANCHES];
};

static int64_t smaller(const struct group *g) {
    return CR_MIN(g->rows, g->columns);
}

static bool is_of_group(const struct group *g, const struct cr_param *q) {
    return q->dim[0] == g->rows && cr_muon_columns(q) == g->columns && (g->count + 1) * q->elems <= GROUP_ELEMS;
}

/* Fills group[] and param[]. Each pass takes the first filter without a group, and all others of its shape that fit. */
static void make_groups(const struct cr_param_store *store, struct plan *plan, bool *taken) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (taken[i] || !cr_muon_has_direction(q)) continue;
        struct group *g = &plan->group[plan->groups++];
        *g              = (struct group){.rows = q->dim[0], .columns = cr_muon_columns(q), .first = plan->filters};
        for (int k = i; k < store->params; k++) {
            if (taken[k] || !cr_muon_has_direction(&store->param[k])) continue;
            if (k > i && !is_of_group(g, &store->param[k])) continue;
            taken[k]                     = true;
            plan->param[plan->filters++] = k;
            g->count++;
        }
    }
}

/* Assigns each group to the branch with the least work so far, in reverse order: the last groups have the largest
 * filters, and the small groups that follow balance the branches. */
static void assign_branches(const struct plan *plan) {
    const double launches       = 1.5e10; /* operations that take as long as the launches of a group */
    double       load[BRANCHES] = {0};
    for (int i = plan->groups - 1; i >= 0; i--) {
        struct group *g = &plan->group[i];
        const double  m = (double)smaller(g), matrix = (double)g->rows * (double)g->columns;
        for (int b = 1; b < BRANCHES; b++)
            if (load[b] < load[g->branch]) g->branch = b;
        load[g->branch] += launches + CR_MUON_ITERATIONS * g->count * (4 * m * matrix + 2 * m * m * m);
    }
}

static void plan_release(void *prepared) {
    struct plan *plan = prepared;
    if (!plan) return;
    for (int b = 0; b < BRANCHES; b++) {
        if (plan->stream[b]) (void)cudaStreamDestroy(plan->stream[b]);
        if (plan->done[b]) (void)cudaEventDestroy(plan->done[b]);
    }
    if (plan->ready) (void)cudaEventDestroy(plan->ready);
    (void)cudaFree(plan->tile);
    (void)cudaFree(plan->first_tile);
    (void)cudaFree(plan->offset);
    cr_free(plan->group);
    cr_free(plan->param);
    cr_free(plan);
}

static int tiles_of(const struct cr_param *q) {
    return (int)((q->elems + CK_NORM_TILE - 1) / CK_NORM_TILE);
}

static void fill_tables(const struct cr_param_store *store, const struct plan *plan, struct ck_norm_tile *tile,
                        int32_t *first_tile, int64_t *offset) {
    int t = 0;
    for (int f = 0; f < plan->filters; f++) {
        const struct cr_param *q = &store->param[plan->param[f]];
        first_tile[f]            = t;
        offset[f]                = q->offset;
        for (int64_t at = 0; at < q->elems; at += CK_NORM_TILE)
            tile[t++] = (struct ck_norm_tile){.first = q->offset + at,
                                              .elems = (int32_t)CR_MIN(q->elems - at, (int64_t)CK_NORM_TILE)};
    }
    first_tile[plan->filters] = t;
}

static cr_status make_branches(struct plan *plan) {
    CUDA_TRY(cudaEventCreateWithFlags(&plan->ready, cudaEventDisableTiming));
    for (int b = 1; b < BRANCHES; b++) {
        CUDA_TRY(cudaStreamCreateWithFlags(&plan->stream[b], cudaStreamNonBlocking));
        CUDA_TRY(cudaEventCreateWithFlags(&plan->done[b], cudaEventDisableTiming));
    }
    return CR_OK;
}

static cr_status make_tables(struct cr_device *device, const struct cr_param_store *store, struct plan *plan) {
    const size_t         filters = (size_t)plan->filters, tiles = (size_t)plan->tiles;
    struct ck_norm_tile *tile   = cr_alloc(tiles + 1, sizeof *tile);
    int32_t             *first  = cr_alloc(filters + 1, sizeof *first);
    int64_t             *offset = cr_alloc(filters + 1, sizeof *offset);
    cr_status            status = CR_OK;
    if (!tile || !first || !offset) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of filters");
    fill_tables(store, plan, tile, first, offset);
    CR_TRY_OUT(cr_cuda_table(device, tile, tiles * sizeof *tile, (void **)&plan->tile));
    CR_TRY_OUT(cr_cuda_table(device, first, (filters + 1) * sizeof *first, (void **)&plan->first_tile));
    CR_TRY_OUT(cr_cuda_table(device, offset, filters * sizeof *offset, (void **)&plan->offset));
    CR_TRY_OUT(make_branches(plan));
out:
    cr_free(tile);
    cr_free(first);
    cr_free(offset);
    return status;
}

/* ---- the workspace: inverse norms, sums of tiles, then for each branch the workspace of cuBLAS, X, the next X, A and
 * A A of one group after the other ---- */

struct layout {
    size_t x, next, a, square, end; /* bytes from the start of the branch */
};

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static struct layout layout_of(const struct group *g, size_t elem) {
    const size_t  X = aligned((size_t)(g->count * g->rows * g->columns) * elem);
    const size_t  A = (size_t)(g->count * smaller(g) * smaller(g));
    struct layout l = {.x = CR_CUDA_BLAS_BYTES};
    l.next          = l.x + X;
    l.a             = l.next + X;
    l.square        = l.a + aligned(A * elem);
    l.end           = l.square + aligned(A * sizeof(float));
    return l;
}

static size_t part_bytes(const struct plan *plan) {
    return aligned((size_t)plan->filters * sizeof(double));
}

/* Where a branch starts; for BRANCHES the end of the workspace. */
static size_t branch_start(const struct plan *plan, int branch, size_t elem) {
    size_t start = part_bytes(plan) + aligned(ck_muon_input_workspace(plan->tiles));
    for (int b = 0; b < branch; b++) {
        size_t most = 0;
        for (int g = 0; g < plan->groups; g++)
            if (plan->group[g].branch == b) most = CR_MAX(most, layout_of(&plan->group[g], elem).end);
        start += aligned(most);
    }
    return start;
}

static cr_status make_plan(const struct cr_param_store *store, struct plan *plan) {
    bool *taken = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *taken);
    plan->group = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *plan->group);
    plan->param = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *plan->param);
    if (!taken || !plan->group || !plan->param) {
        cr_free(taken);
        return CR_NO_MEMORY((size_t)store->params * sizeof *plan->group);
    }
    make_groups(store, plan, taken);
    assign_branches(plan);
    for (int f = 0; f < plan->filters; f++) plan->tiles += tiles_of(&store->param[plan->param[f]]);
    cr_free(taken);
    return CR_OK;
}

static cr_status prepare(struct cr_device *device, const struct cr_program *p, size_t elem, void **prepared,
                         size_t *workspace_bytes) {
    cr_status    status = CR_OK;
    struct plan *plan;
    *prepared        = NULL;
    *workspace_bytes = 0;
    CR_ALLOC(plan, 1);
    CR_TRY_OUT(make_plan(p->store, plan));
    *workspace_bytes = branch_start(plan, BRANCHES, elem);
    if (!cuda_of(device)->offline) {
        cublasHandle_t blas; /* opened here, because a launch may not allocate */
        CR_TRY_OUT(cr_cuda_cublas(cuda_of(device), &blas));
        CR_TRY_OUT(make_tables(device, p->store, plan));
    }
    *prepared = plan;
out:
    if (status != CR_OK) plan_release(plan);
    return status;
}

static cr_status prepare_f16(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             void **prepared, size_t *workspace_bytes) {
    (void)op;
    return prepare(device, p, sizeof(uint16_t), prepared, workspace_bytes);
}
static cr_status prepare_f32(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                             void **prepared, size_t *workspace_bytes) {
    (void)op;
    return prepare(device, p, sizeof(float), prepared, workspace_bytes);
}

/* ---- the iteration ---- */

/* A matrix stored by columns: element (i, j) of filter f is data[f * step + j * lead + i]. */
struct matrix {
    void             *data;
    cublasOperation_t how;
    int64_t           lead, step;
};

struct work {
    cublasHandle_t      blas;
    cudaStream_t        stream;
    cudaDataType        type; /* of X and A */
    const struct group *group;
    char               *x, *next, *a, *square;
};

/* out (m x n) = how(a) * how(b), reduced over `depth`. */
static cr_status multiply(const struct work *w, struct matrix a, struct matrix b, int64_t m, int64_t n, int64_t depth,
                          void *out, cudaDataType out_type) {
    const float one = 1.0f, zero = 0.0f;
    CUBLAS_TRY(cublasGemmStridedBatchedEx(w->blas, a.how, b.how, (int)m, (int)n, (int)depth, &one, a.data, w->type,
                                          (int)a.lead, a.step, b.data, w->type, (int)b.lead, b.step, &zero, out,
                                          out_type, (int)m, m * n, w->group->count, CUBLAS_COMPUTE_32F,
                                          CUBLAS_GEMM_DEFAULT));
    return CR_OK;
}

static cr_status iterate(struct work *w) {
    const int64_t             K = w->group->rows, N = w->group->columns, m = smaller(w->group);
    const bool                wide = K <= N;
    const struct matrix       x = {w->x, CUBLAS_OP_N, N, K * N}, across = {w->x, CUBLAS_OP_T, N, K * N};
    const struct matrix       a  = {w->a, CUBLAS_OP_N, m, m * m};
    struct ck_muon_polynomial of = {.type  = w->type == CUDA_R_16F ? CK_F16 : CK_F32,
                                    .p     = w->a,
                                    .q     = (const float *)(const void *)w->square,
                                    .rows  = m,
                                    .count = w->group->count,
                                    .a     = (float)CR_MUON_A,
                                    .b     = (float)CR_MUON_B,
                                    .c     = (float)CR_MUON_C};
    CR_TRY(multiply(w, wide ? across : x, wide ? x : across, m, m, CR_MAX(K, N), w->a, w->type));
    CR_TRY(multiply(w, a, a, m, m, m, w->square, CUDA_R_32F));
    CUDA_TRY(ck_muon_polynomial(&of, w->stream));
    CR_TRY(multiply(w, wide ? x : a, wide ? a : x, N, K, m, w->next, w->type));
    char *old = w->x;
    w->x = w->next, w->next = old;
    return CR_OK;
}

static cr_status launch_group(struct work *w, const struct plan *plan, const double *inverse, float *y) {
    const struct group        *g    = w->group;
    const struct ck_muon_group args = {.type    = w->type == CUDA_R_16F ? CK_F16 : CK_F32,
                                       .offset  = plan->offset + g->first,
                                       .inverse = inverse + g->first,
                                       .elems   = g->rows * g->columns,
                                       .filters = g->count};
    CUDA_TRY(ck_muon_load(&args, y, w->x, w->stream));
    for (int i = 0; i < CR_MUON_ITERATIONS; i++) CR_TRY(iterate(w));
    CUDA_TRY(ck_muon_store(&args, w->x, y, w->stream));
    return CR_OK;
}

static struct ck_muon_input input_of(struct cr_device *device, const struct cr_call *call) {
    const struct plan *plan = call->prepared;
    return (struct ck_muon_input){.grad       = call->in[CR_IN_muon_direction_grad],
                                  .momentum   = call->in[CR_IN_muon_direction_momentum],
                                  .norm       = call->in[CR_IN_muon_direction_norm],
                                  .state      = call->in[CR_IN_muon_direction_state],
                                  .mask       = call->in[CR_IN_muon_direction_mask],
                                  .step       = cuda_of(device)->step,
                                  .tile       = plan->tile,
                                  .first_tile = plan->first_tile,
                                  .y          = call->out[CR_OUT_muon_direction_y],
                                  .elems      = call->program->store->value_elems,
                                  .least      = CR_MUON_EPS,
                                  .tiles      = plan->tiles,
                                  .filters    = plan->filters,
                                  .nesterov   = call->op->attr.sgd.nesterov};
}

/* Launches the groups of a branch on w->stream. */
static cr_status launch_branch(struct work *w, const struct plan *plan, int branch, char *workspace, float *y) {
    const size_t  elem    = w->type == CUDA_R_16F ? sizeof(uint16_t) : sizeof(float);
    const double *inverse = (const double *)(const void *)workspace;
    char *const   base    = workspace + branch_start(plan, branch, elem);
    CUBLAS_TRY(cublasSetStream(w->blas, w->stream));
    CUBLAS_TRY(cublasSetWorkspace(w->blas, base, CR_CUDA_BLAS_BYTES));
    for (int g = 0; g < plan->groups; g++) {
        const struct layout l = layout_of(&plan->group[g], elem);
        if (plan->group[g].branch != branch) continue;
        w->group = &plan->group[g];
        w->x = base + l.x, w->next = base + l.next, w->a = base + l.a, w->square = base + l.square;
        CR_TRY(launch_group(w, plan, inverse, y));
    }
    return CR_OK;
}

/* Launches all branches: the other streams wait for the stream of branch 0, and that one waits for them. */
static cr_status launch_branches(struct work *w, const struct plan *plan, char *workspace, float *y) {
    const cudaStream_t stream = w->stream;
    const int          used   = CR_MIN(BRANCHES, plan->groups);
    CUDA_TRY(cudaEventRecord(plan->ready, stream));
    for (int b = 1; b < used; b++) {
        w->stream = plan->stream[b];
        CUDA_TRY(cudaStreamWaitEvent(w->stream, plan->ready, 0));
        CR_TRY(launch_branch(w, plan, b, workspace, y));
        CUDA_TRY(cudaEventRecord(plan->done[b], w->stream));
    }
    w->stream = stream;
    CR_TRY(launch_branch(w, plan, 0, workspace, y));
    for (int b = 1; b < used; b++) CUDA_TRY(cudaStreamWaitEvent(stream, plan->done[b], 0));
    return CR_OK;
}

static cr_status launch(struct cr_device *device, const struct cr_call *call, cudaDataType type) {
    struct cuda_device        *d       = cuda_of(device);
    const struct plan         *plan    = call->prepared;
    const struct ck_muon_input args    = input_of(device, call);
    double                    *inverse = call->workspace;
    struct work                w       = {.stream = cr_cuda_stream(device, call), .type = type};
    CR_ASSERT(call->op->stream == CR_STREAM_COMPUTE); /* the stream of the handle */
    CR_TRY(cr_cuda_cublas(d, &w.blas));
    CUBLAS_TRY(cublasSetMathMode(w.blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    CUDA_TRY(ck_muon_input(&args, inverse, (char *)call->workspace + part_bytes(plan), w.stream));
    const cr_status status = launch_branches(&w, plan, call->workspace, args.y);
    CUBLAS_TRY(cublasSetStream(w.blas, d->stream[CR_STREAM_COMPUTE]));
    CUBLAS_TRY(cublasSetWorkspace(w.blas, d->blas_workspace, CR_CUDA_BLAS_BYTES));
    return status;
}

static cr_status launch_f16(struct cr_device *device, const struct cr_call *call) {
    return launch(device, call, CUDA_R_16F);
}
static cr_status launch_f32(struct cr_device *device, const struct cr_call *call) {
    return launch(device, call, CUDA_R_32F);
}

static bool accepts_f32(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    if (!p->store || !cr_cuda_is_values(p, op->in[CR_IN_muon_direction_grad], CR_BUFFER_GRAD) ||
        !cr_cuda_is_values(p, op->in[CR_IN_muon_direction_momentum], CR_BUFFER_MOMENTUM) ||
        !cr_cuda_is_mask(p, op->in[CR_IN_muon_direction_mask]))
        return false;
    for (int i = 0; i < p->store->params; i++)
        if (p->store->param[i].elems > INT_MAX) return false; /* cuBLAS takes sizes as int */
    return true;
}

static bool accepts_f16(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return (device->options.tf32 || p->real == CR_F16 || p->real == CR_BF16) && accepts_f32(device, p, op);
}

/* ---- the table ---- */

#define KERNEL(name_, how, ...)                                                                                        \
    {                                                                                                                  \
        CR_KERNEL("cublas.muon_direction." name_, muon_direction, how),                                                \
            .dtypes = CR_TYPES_F32, .optional_in = CR_IN_BIT(muon_direction, mask), .release = plan_release,           \
            __VA_ARGS__                                                                                                \
    }
const struct cr_kernel cr_cuda_muon_kernels[] = {
    KERNEL("f16", CR_MATH_F16, .accepts = accepts_f16, .prepare = prepare_f16, .launch = launch_f16),
    KERNEL("f32", CR_MATH_F32, .accepts = accepts_f32, .prepare = prepare_f32, .launch = launch_f32),
    {0}};

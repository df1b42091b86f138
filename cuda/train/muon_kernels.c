/* cuda/train/muon_kernels.c: kernel table for Muon's direction of the filters, by matrix products.
 *
 * Filters of the same shape are multiplied together, as strided batches. Their matrices are copied to the workspace in
 * the type of the products: f16 with sums in f32, or f32 for train.precision = fp32. All matrices of the iteration have
 * singular values below 6, so f16 cannot overflow, and it has as many fraction bits as TF32. No copy is transposed:
 * cuBLAS stores matrices by columns, so a filter of K rows and N columns is M, N x K. With A the smaller of the two
 * products of M and M',
 *   K <= N:  A = M' M (K x K),  M = M (a I + b A + c A A)
 *   K >  N:  A = M M' (N x N),  M = (a I + b A + c A A) M
 * Where M is large, two iterations are done together, because M is several times as large as A and they need fewer
 * products with it: with P = a I + b A + c A A the next A is P A P, and M after both iterations is P2 P1 M. In f16 this
 * is as exact as two single iterations; three together are not.
 *
 * The products of one group of small matrices use only a few multiprocessors, so the groups run at the same time, on
 * MUON_BRANCHES streams: each waits until the input of the iteration is written, and the op's stream waits for all of
 * them. Each branch has its own workspace.
 * Deterministic: a group's result does not depend on its branch, and no algorithm is chosen by timing. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"
#include "cuda/train/muon_plan.h"
#include "cuda/train/update_tables.h"

#include <limits.h>

/* ---- prepare ---- */

static cr_status prepare(struct cr_device *device, const struct cr_program *p, size_t elem, void **prepared,
                         size_t *workspace_bytes) {
    struct muon_plan *plan;
    cublasHandle_t    blas; /* opened here, because a launch may not allocate */
    CR_TRY(cr_cuda_cublas(cuda_of(device), &blas));
    CR_TRY(cr_muon_plan_open(device, p->store, &plan));
    *workspace_bytes = cr_muon_branch_start(plan, MUON_BRANCHES, elem);
    *prepared        = plan;
    return CR_OK;
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
    cublasHandle_t           blas;
    cudaStream_t             stream;
    cudaDataType             type; /* of all matrices but the square */
    const struct muon_group *group;
    char                    *x, *next, *a, *p, *q, *t; /* t: scratch */
    float                   *square;                   /* A A */
};

static struct matrix square_matrix(const struct work *w, void *data) {
    const int64_t m = muon_smaller(w->group);
    return (struct matrix){data, CUBLAS_OP_N, m, m * m};
}

static void exchange(char **a, char **b) {
    char *old = *a;
    *a = *b, *b = old;
}

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

/* out = a b, all of them m x m */
static cr_status multiply_squares(const struct work *w, void *a, void *b, void *out, cudaDataType out_type) {
    const int64_t m = muon_smaller(w->group);
    return multiply(w, square_matrix(w, a), square_matrix(w, b), m, m, m, out, out_type);
}

/* p = a I + b A + c A A */
static cr_status make_polynomial(const struct work *w) {
    const struct ck_muon_polynomial of = {.type   = w->type == CUDA_R_16F ? CK_F16 : CK_F32,
                                          .from   = w->a,
                                          .square = w->square,
                                          .p      = w->p,
                                          .rows   = muon_smaller(w->group),
                                          .count  = w->group->count,
                                          .a      = (float)CR_MUON_A,
                                          .b      = (float)CR_MUON_B,
                                          .c      = (float)CR_MUON_C};
    CR_TRY(multiply_squares(w, w->a, w->a, w->square, CUDA_R_32F));
    return CUDA_STATUS(ck_muon_polynomial(&of, w->stream));
}

/* `count` iterations, 1 or 2. */
static cr_status iterate(struct work *w, int count) {
    const int64_t       K = w->group->rows, N = w->group->columns, m = muon_smaller(w->group);
    const bool          wide = K <= N;
    const struct matrix x = {w->x, CUBLAS_OP_N, N, K * N}, across = {w->x, CUBLAS_OP_T, N, K * N};
    CR_TRY(multiply(w, wide ? across : x, wide ? x : across, m, m, CR_MAX(K, N), w->a, w->type));
    CR_TRY(make_polynomial(w));
    if (count == 2) {
        CR_TRY(multiply_squares(w, w->p, w->a, w->t, w->type));
        CR_TRY(multiply_squares(w, w->t, w->p, w->a, w->type));
        exchange(&w->p, &w->q);
        CR_TRY(make_polynomial(w));
        CR_TRY(multiply_squares(w, w->p, w->q, w->t, w->type));
        exchange(&w->p, &w->t);
    }
    const struct matrix p = square_matrix(w, w->p);
    CR_TRY(multiply(w, wide ? x : p, wide ? p : x, N, K, m, w->next, w->type));
    exchange(&w->x, &w->next);
    return CR_OK;
}

static cr_status launch_group(struct work *w, const struct muon_plan *plan, const double *inverse, float *y) {
    const struct muon_group   *g    = w->group;
    const struct ck_muon_group args = {.type    = w->type == CUDA_R_16F ? CK_F16 : CK_F32,
                                       .offset  = plan->offset + g->first,
                                       .inverse = inverse + g->first,
                                       .elems   = g->rows * g->columns,
                                       .filters = g->count};
    CUDA_TRY(ck_muon_load(&args, y, w->x, w->stream));
    const int together = g->joins ? 2 : 1;
    for (int i = 0; i < CR_MUON_ITERATIONS; i += together) CR_TRY(iterate(w, CR_MIN(together, CR_MUON_ITERATIONS - i)));
    return CUDA_STATUS(ck_muon_store(&args, w->x, y, w->stream));
}

static struct ck_muon_input input_of(struct cr_device *device, const struct cr_call *call) {
    const struct muon_plan *plan = call->prepared;
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
static cr_status launch_branch(struct work *w, const struct muon_plan *plan, int branch, char *workspace, float *y) {
    const size_t  elem    = w->type == CUDA_R_16F ? sizeof(uint16_t) : sizeof(float);
    const double *inverse = (const double *)(const void *)workspace;
    char *const   base    = workspace + cr_muon_branch_start(plan, branch, elem);
    CUBLAS_TRY(cublasSetStream(w->blas, w->stream));
    CUBLAS_TRY(cublasSetWorkspace(w->blas, base, CR_CUDA_BLAS_BYTES));
    for (int g = 0; g < plan->groups; g++) {
        const struct muon_layout l = cr_muon_layout(&plan->group[g], elem);
        if (plan->group[g].branch != branch) continue;
        w->group = &plan->group[g];
        w->x = base + l.x, w->next = base + l.next, w->a = base + l.a, w->p = base + l.p, w->q = base + l.q;
        w->t = base + l.t, w->square = (float *)(void *)(base + l.square);
        CR_TRY(launch_group(w, plan, inverse, y));
    }
    return CR_OK;
}

static cr_status launch_branches(struct work *w, const struct muon_plan *plan, char *workspace, float *y) {
    const cudaStream_t stream = w->stream;
    const int          used   = CR_MIN(MUON_BRANCHES, plan->groups);
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
    const struct muon_plan    *plan    = call->prepared;
    const struct ck_muon_input args    = input_of(device, call);
    double                    *inverse = call->workspace;
    struct work                w       = {.stream = cr_cuda_stream(device, call), .type = type};
    CR_ASSERT(call->op->stream == CR_STREAM_COMPUTE); /* the stream of the handle */
    CR_TRY(cr_cuda_cublas(d, &w.blas));
    CUBLAS_TRY(cublasSetMathMode(w.blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    CUDA_TRY(ck_muon_input(&args, inverse, (char *)call->workspace + cr_muon_part_start(plan), w.stream));
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
            .dtypes = CR_TYPES_F32, .optional_in = CR_IN_BIT(muon_direction, mask), .release = cr_muon_plan_close,     \
            __VA_ARGS__                                                                                                \
    }
const struct cr_kernel cr_cuda_muon_kernels[] = {
    KERNEL("f16", CR_MATH_F16, .accepts = accepts_f16, .prepare = prepare_f16, .launch = launch_f16),
    KERNEL("f32", CR_MATH_F32, .accepts = accepts_f32, .prepare = prepare_f32, .launch = launch_f32),
    {0}};

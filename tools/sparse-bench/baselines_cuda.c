/* tools/sparse-bench/baselines_cuda.c: benchmark baselines that compute a convolution as a matrix product, as papers on
 * sparse kernels do.
 *
 * cresnet-sparse-bench times these kernels; kernel selection never chooses them. The baselines are as fast as
 * they can be: a 1x1 convolution with stride 1 needs no im2col, one product covers the whole batch, descriptors and
 * analysis are made before timing, and each layout of the operands is an algorithm of its own. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/op_shapes.h"
#include "sparsity/sparsity.h"
#include "tools/sparse-bench/bench.h"
#include "tools/sparse-bench/cusparse_cuda.h"
#include "tools/sparse-bench/im2col.h"

#include <limits.h>
#include <string.h>

static bool is_supported(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x = cuda_in(p, op, CR_IN_conv_x), *w = cuda_in(p, op, CR_IN_conv_w),
                           *y = cuda_out(p, op, CR_OUT_conv_y);
    const unsigned known      = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w;
    return cr_op_uses_only(op, known, 1u << CR_OUT_conv_y) && !op->attr.conv.relu && cuda_is_data(x) &&
           w->dtype == x->dtype && cuda_pixels(y) <= INT_MAX && w->dim[1] * w->dim[2] * w->dim[3] < 65536;
}

static struct ck_conv shape_of(const struct cr_program *p, const struct cr_op *op) {
    return cuda_conv_shape(op, cuda_in(p, op, CR_IN_conv_x), cuda_in(p, op, CR_IN_conv_w),
                           cuda_out(p, op, CR_OUT_conv_y));
}

static bool needs_no_im2col(const struct ck_conv *c) {
    return c->R == 1 && c->S == 1 && c->stride == 1 && c->pad == 0;
}
static int64_t depth_of(const struct ck_conv *c) {
    return c->R * c->S * c->C;
}
static size_t matrix_bytes(const struct ck_conv *c) {
    const size_t bytes = (size_t)(c->N * c->P * c->Q * depth_of(c)) * (c->type == CK_F32 ? 4 : 2);
    return needs_no_im2col(c) ? 0 : (bytes + CR_CUDA_ALIGN - 1) / CR_CUDA_ALIGN * CR_CUDA_ALIGN;
}
static cudaDataType type_of(const struct ck_conv *c) {
    return c->type == CK_F32 ? CUDA_R_32F : c->type == CK_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* ---- cuBLAS ---- */

static cr_status blas_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              void **prepared, size_t *workspace_bytes) {
    const struct ck_conv c = shape_of(p, op);
    cublasHandle_t       handle;
    *prepared        = NULL;
    *workspace_bytes = matrix_bytes(&c);
    return cr_cuda_cublas(cuda_of(device), &handle);
}

static cr_status blas_launch(struct cr_device *device, const struct cr_call *call) {
    static const float   one = 1, zero = 0;
    const struct ck_conv c = shape_of(call->program, call->op);
    const void          *x = call->in[CR_IN_conv_x];
    const int            K = (int)c.K, pixels = (int)(c.N * c.P * c.Q), depth = (int)depth_of(&c);
    cublasHandle_t       handle;
    CR_TRY(cr_cuda_cublas(cuda_of(device), &handle));
    if (!needs_no_im2col(&c)) {
        CUDA_TRY(ck_im2col(&c, x, call->workspace, cr_cuda_stream(device, call)));
        x = call->workspace;
    }
    CUBLAS_TRY(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, K, pixels, depth, &one, call->in[CR_IN_conv_w],
                            type_of(&c), depth, x, type_of(&c), depth, &zero, call->out[CR_OUT_conv_y], type_of(&c), K,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return CR_OK;
}

static bool blas_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return !cuda_of(device)->offline && is_supported(p, op);
}
static void release_nothing(void *prepared) {
    (void)prepared;
}

static const struct cr_kernel kernel_cublas = {CR_KERNEL("im2col+cublas", conv, CR_MATH_F32), .accepts = blas_accepts,
                                               .prepare = blas_prepare, .launch = blas_launch,
                                               .release = release_nothing};

/* ---- cuSPARSE ---- */

#ifdef CR_HAS_CUSPARSE

#define CUSPARSE_TRY(call)                                                                                             \
    do {                                                                                                               \
        const cusparseStatus_t error_ = (call);                                                                        \
        if (error_ != CUSPARSE_STATUS_SUCCESS)                                                                         \
            return CR_FAIL(CR_ERR_DEVICE, "cuSPARSE: %s (%s)", cr_cusparse()->cusparseGetErrorString(error_), #call);  \
    } while (0)

/* With `planes` false, x and y are column-major matrices with one pixel per column (NHWC). With `planes` true, x is
 * C,N,H,W and y is K,N,P,Q, row-major, which the library prefers; the benchmark then assumes that the caller's data
 * have this layout. */
static const struct algo {
    bool              planes;
    cusparseSpMMAlg_t algorithm;
} algos[] = {{false, CUSPARSE_SPMM_CSR_ALG1},
             {true, CUSPARSE_SPMM_CSR_ALG2},
             {true, CUSPARSE_SPMM_CSR_ALG3},
             {false, CUSPARSE_SPMM_CSR_ALG3}};

struct product {
    struct ck_conv       conv;
    struct algo          algo;
    cusparseHandle_t     handle;
    cusparseSpMatDescr_t filter;
    cusparseDnMatDescr_t x, y;
    void                *row, *column, *values, *buffer;
    bool                 analysed;
};

static void product_close(void *prepared) {
    struct product           *s   = prepared;
    const struct cr_cusparse *lib = cr_cusparse();
    if (!s) return;
    if (s->filter) (void)lib->cusparseDestroySpMat(s->filter);
    if (s->x) (void)lib->cusparseDestroyDnMat(s->x);
    if (s->y) (void)lib->cusparseDestroyDnMat(s->y);
    if (s->handle) (void)lib->cusparseDestroy(s->handle);
    void *const memory[] = {s->row, s->column, s->values, s->buffer};
    for (size_t i = 0; i < CR_COUNT(memory); i++) (void)cudaFree(memory[i]);
    cr_free(s);
}

static cr_status upload_int32(const int32_t *host, int64_t count, void **device) {
    const size_t bytes = (size_t)count * sizeof *host;
    CUDA_TRY(cudaMalloc(device, CR_MAX(bytes, sizeof *host)));
    CUDA_TRY(cudaMemcpy(*device, host, bytes, cudaMemcpyHostToDevice));
    return CR_OK;
}

/* Uploads the row starts and the column indices. The values are an arbitrary constant pattern: the result is never
 * read, only the time is measured. */
static cr_status send_filter(struct product *s, const struct cr_sparse *sparse) {
    const int64_t nnz = cr_sparse_nnz(sparse);
    int32_t      *row;
    CR_ALLOC(row, (size_t)sparse->K + 1);
    for (int64_t k = 0; k <= sparse->K; k++) row[k] = (int32_t)sparse->row[k];
    cr_status status = upload_int32(row, sparse->K + 1, &s->row);
    cr_free(row);
    CR_TRY(status);
    CR_TRY(upload_int32((const int32_t *)(const void *)sparse->index, nnz, &s->column));
    CUDA_TRY(cudaMalloc(&s->values, (size_t)CR_MAX(nnz, 1) * sizeof(float)));
    CUDA_TRY(cudaMemset(s->values, 0x34, (size_t)CR_MAX(nnz, 1) * sizeof(float)));
    return CR_OK;
}

static cr_status create_descriptors(struct product *s, int64_t nnz, void *x, void *y) {
    const struct cr_cusparse *lib    = cr_cusparse();
    const struct ck_conv     *c      = &s->conv;
    const int64_t             pixels = c->N * c->P * c->Q, depth = depth_of(c);
    const cusparseOrder_t     order = s->algo.planes ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL;
    CUSPARSE_TRY(lib->cusparseCreateCsr(&s->filter, c->K, depth, nnz, s->row, s->column, s->values, CUSPARSE_INDEX_32I,
                                        CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, type_of(c)));
    CUSPARSE_TRY(lib->cusparseCreateDnMat(&s->x, depth, pixels, s->algo.planes ? pixels : depth, x, type_of(c), order));
    CUSPARSE_TRY(lib->cusparseCreateDnMat(&s->y, c->K, pixels, s->algo.planes ? pixels : c->K, y, type_of(c), order));
    return CR_OK;
}

static cr_status product_open(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                              struct product *s) {
    static const float        one = 1, zero = 0;
    const struct cr_cusparse *lib = cr_cusparse();
    const struct cr_param    *q   = &p->store->param[op->attr.conv.pattern.param];
    size_t                    bytes;
    struct cr_sparse          sparse;
    s->conv = shape_of(p, op);
    s->algo = algos[op->algo];
    CR_TRY(cr_sparse_from_bits(p->store->pattern, q->offset, s->conv.K, s->conv.R, s->conv.S, s->conv.C, &sparse));
    const int64_t nnz    = cr_sparse_nnz(&sparse);
    cr_status     status = send_filter(s, &sparse);
    cr_sparse_free(&sparse);
    CR_TRY(status);
    CUSPARSE_TRY(lib->cusparseCreate(&s->handle));
    CUSPARSE_TRY(lib->cusparseSetStream(s->handle, cuda_of(device)->stream[CR_STREAM_COMPUTE]));
    CR_TRY(create_descriptors(s, nnz, s->values, s->values)); /* placeholder addresses, which each launch replaces */
    CUSPARSE_TRY(lib->cusparseSpMM_bufferSize(s->handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                              CUSPARSE_OPERATION_NON_TRANSPOSE, &one, s->filter, s->x, &zero, s->y,
                                              CUDA_R_32F, s->algo.algorithm, &bytes));
    CUDA_TRY(cudaMalloc(&s->buffer, CR_MAX(bytes, (size_t)16)));
    return CR_OK;
}

static cr_status sparse_prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op,
                                void **prepared, size_t *workspace_bytes) {
    struct product *s;
    CR_ALLOC(s, 1);
    const cr_status status = product_open(device, p, op, s);
    if (status != CR_OK) {
        product_close(s);
        return status;
    }
    *prepared        = s;
    *workspace_bytes = matrix_bytes(&s->conv);
    return CR_OK;
}

static cr_status sparse_launch(struct cr_device *device, const struct cr_call *call) {
    static const float        one = 1, zero = 0;
    struct product           *s            = call->prepared;
    const struct cr_cusparse *lib          = cr_cusparse();
    const struct ck_conv     *c            = &s->conv;
    const cusparseOperation_t no_transpose = CUSPARSE_OPERATION_NON_TRANSPOSE;
    cudaStream_t              stream       = cr_cuda_stream(device, call);
    /* cuSPARSE takes a non-const pointer but only reads */
    void *x = (void *)(uintptr_t)call->in[CR_IN_conv_x];
    if (!needs_no_im2col(c)) {
        if (s->algo.planes)
            CUDA_TRY(ck_im2col_channels_first(c, x, call->workspace, stream));
        else
            CUDA_TRY(ck_im2col(c, x, call->workspace, stream));
        x = call->workspace;
    }
    CUSPARSE_TRY(lib->cusparseDnMatSetValues(s->x, x));
    CUSPARSE_TRY(lib->cusparseDnMatSetValues(s->y, call->out[CR_OUT_conv_y]));
    if (!s->analysed)
        CUSPARSE_TRY(lib->cusparseSpMM_preprocess(s->handle, no_transpose, no_transpose, &one, s->filter, s->x, &zero,
                                                  s->y, CUDA_R_32F, s->algo.algorithm, s->buffer));
    s->analysed = true;
    CUSPARSE_TRY(lib->cusparseSpMM(s->handle, no_transpose, no_transpose, &one, s->filter, s->x, &zero, s->y,
                                   CUDA_R_32F, s->algo.algorithm, s->buffer));
    return CR_OK;
}

static bool sparse_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return !cuda_of(device)->offline && is_supported(p, op) && p->store->pattern && cr_cusparse();
}
static int sparse_algo_count(struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device, (void)p, (void)op;
    return (int)CR_COUNT(algos);
}

static const struct cr_kernel kernel_cusparse = {CR_KERNEL("im2col+cusparse", conv, CR_MATH_F32),
                                                 .sparse     = true,
                                                 .accepts    = sparse_accepts,
                                                 .algo_count = sparse_algo_count,
                                                 .prepare    = sparse_prepare,
                                                 .launch     = sparse_launch,
                                                 .release    = product_close};

const struct cr_kernel *const cr_sparse_bench_baselines[] = {&kernel_cublas, &kernel_cusparse, NULL};
#else
const struct cr_kernel *const cr_sparse_bench_baselines[] = {&kernel_cublas, NULL};
#endif

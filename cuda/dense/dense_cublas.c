/* cuda/dense/dense_cublas.c: kernels for the classifier (dense layer): three matrix products by cuBLAS, the bias
 * kernels, and a kernel for a few images.
 *
 * cuBLAS stores matrices by columns. Read that way, cresnet's x[N][C] is the C x N matrix X' (' means transposed) with
 * leading dimension C; w[K][C] is W', C x K; y[N][K] is Y', K x N. The products of graph/ops.def, both sides
 * transposed:
 *   y  = x w'   ->  Y'  (K x N) = W X'    = op_T(w) * op_N(x)     reduced over C
 *   dx = dy w   ->  DX' (C x N) = W' DY'  = op_N(w) * op_N(dy)    reduced over K
 *   dw = dy' x  ->  DW' (C x K) = X' DY   = op_N(x) * op_T(dy)    reduced over N
 * The leading dimension of each operand is the length of its rows in cresnet's order.
 *
 * Products of 16-bit operands are summed in f32. The bias is added to the logits in f32 and the result is rounded once,
 * so the product goes through a workspace. dw is f32 for all operand types. Deterministic: one stream, one fixed
 * workspace (the backend's), no choice of algorithm by timing. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"
#include "cuda/core/op_shapes.h"

#include <limits.h>

/* ---- one product ---- */

struct operand {
    const void             *data;
    const struct cr_tensor *tensor; /* rows of tensor->dim[3] elements */
    cublasOperation_t       how;
};

/* out (columns first: m x n) = (accumulate ? out : 0) + how(a) * how(b), reduced over `depth`. out_type is f32 or the
 * type of a. */
struct product {
    struct operand a, b;
    void          *out;
    int64_t        m, n, depth;
    cudaDataType   out_type;
    bool           accumulate, tf32;
};

static cudaDataType type_of(const struct cr_tensor *t) {
    return t->dtype == CR_F16 ? CUDA_R_16F : t->dtype == CR_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The handle's stream is CR_STREAM_COMPUTE, on which all of these ops run. */
static cr_status multiply(struct cr_device *device, const struct cr_call *call, const struct product *p) {
    const float               one = 1.0f, zero = 0.0f;
    const cublasComputeType_t compute = p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const struct cr_tensor   *a = p->a.tensor, *b = p->b.tensor;
    cublasHandle_t            blas;
    CR_ASSERT(call->op->stream == CR_STREAM_COMPUTE);
    CR_TRY(cr_cuda_cublas(cuda_of(device), &blas));
    /* Partial sums of 16-bit products stay f32 when cuBLAS splits a product. */
    CUBLAS_TRY(cublasSetMathMode(blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    CUBLAS_TRY(cublasGemmEx(blas, p->a.how, p->b.how, (int)p->m, (int)p->n, (int)p->depth, &one, p->a.data, type_of(a),
                            (int)a->dim[3], p->b.data, type_of(b), (int)b->dim[3], p->accumulate ? &one : &zero, p->out,
                            p->out_type, (int)p->m, compute, CUBLAS_GEMM_DEFAULT));
    return CR_OK;
}

/* ---- accepted ops ---- */

/* Opens the library, because a launch may not allocate. A product of `dense` with 16-bit operands is stored in f32
 * until the bias is added. */
static cr_status prepare(struct cr_device *device, const struct cr_program *p, const struct cr_op *op, void **prepared,
                         size_t *workspace_bytes) {
    const struct cr_tensor *y = cuda_out(p, op, 0);
    cublasHandle_t          blas;
    (void)prepared;
    if (op->kind == CR_OP_dense && y->dtype != CR_F32) *workspace_bytes = (size_t)cr_tensor_elems(y) * sizeof(float);
    return cr_cuda_cublas(cuda_of(device), &blas);
}

/* cuBLAS takes sizes as int. */
static bool fits(const struct cr_tensor *t) {
    return cuda_pixels(t) <= INT_MAX && t->dim[3] <= INT_MAX;
}

/* The first two inputs of every op are the operands. */
static bool accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    (void)device;
    return fits(cuda_in(p, op, 0)) && fits(cuda_in(p, op, 1));
}

static bool accepts_tf32(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return device->options.tf32 && accepts(device, p, op);
}

/* ---- dense ---- */

static cr_status dense(struct cr_device *device, const struct cr_call *call, bool tf32) {
    const struct cr_tensor *x       = cuda_in(call->program, call->op, CR_IN_dense_x),
                           *w       = cuda_in(call->program, call->op, CR_IN_dense_w);
    const struct cr_tensor *y       = cuda_out(call->program, call->op, CR_OUT_dense_y);
    float                  *sums    = y->dtype == CR_F32 ? call->out[CR_OUT_dense_y] : call->workspace;
    const struct product    product = {.a        = {call->in[CR_IN_dense_w], w, CUBLAS_OP_T},
                                       .b        = {call->in[CR_IN_dense_x], x, CUBLAS_OP_N},
                                       .out      = sums,
                                       .m        = y->dim[3],
                                       .n        = y->dim[0],
                                       .depth    = x->dim[3],
                                       .out_type = CUDA_R_32F,
                                       .tf32     = tf32};
    CR_TRY(multiply(device, call, &product));
    return CUDA_STATUS(ck_dense_bias(cuda_type(y), sums, call->in[CR_IN_dense_b], call->out[CR_OUT_dense_y], y->dim[0],
                                     y->dim[3], cr_cuda_stream(device, call)));
}

/* ---- dense_dgrad, dense_wgrad ---- */

static cr_status dense_dgrad(struct cr_device *device, const struct cr_call *call, bool tf32) {
    const struct cr_tensor *dy      = cuda_in(call->program, call->op, CR_IN_dense_dgrad_dy);
    const struct cr_tensor *w       = cuda_in(call->program, call->op, CR_IN_dense_dgrad_w);
    const struct cr_tensor *dx      = cuda_out(call->program, call->op, CR_OUT_dense_dgrad_dx);
    const struct product    product = {.a        = {call->in[CR_IN_dense_dgrad_w], w, CUBLAS_OP_N},
                                       .b        = {call->in[CR_IN_dense_dgrad_dy], dy, CUBLAS_OP_N},
                                       .out      = call->out[CR_OUT_dense_dgrad_dx],
                                       .m        = dx->dim[3],
                                       .n        = dx->dim[0],
                                       .depth    = dy->dim[3],
                                       .out_type = type_of(dx),
                                       .tf32     = tf32};
    return multiply(device, call, &product);
}

static cr_status dense_wgrad(struct cr_device *device, const struct cr_call *call, bool tf32) {
    const struct cr_tensor *x       = cuda_in(call->program, call->op, CR_IN_dense_wgrad_x);
    const struct cr_tensor *dy      = cuda_in(call->program, call->op, CR_IN_dense_wgrad_dy);
    const struct product    product = {.a          = {call->in[CR_IN_dense_wgrad_x], x, CUBLAS_OP_N},
                                       .b          = {call->in[CR_IN_dense_wgrad_dy], dy, CUBLAS_OP_T},
                                       .out        = call->out[CR_OUT_dense_wgrad_dw],
                                       .m          = x->dim[3],
                                       .n          = dy->dim[3],
                                       .depth      = x->dim[0],
                                       .out_type   = CUDA_R_32F,
                                       .accumulate = call->op->attr.dense.accumulate,
                                       .tf32       = tf32};
    return multiply(device, call, &product);
}

/* ---- dense_bgrad ---- */

static cr_status bgrad_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *dy = cuda_in(call->program, call->op, CR_IN_dense_bgrad_dy);
    return CUDA_STATUS(ck_dense_bgrad(cuda_type(dy), call->in[CR_IN_dense_bgrad_dy], call->out[CR_OUT_dense_bgrad_db],
                                      dy->dim[0], dy->dim[3], call->op->attr.dense.accumulate,
                                      cr_cuda_stream(device, call)));
}

/* ---- dense for a few images: a program for one image then needs no cuBLAS, whose first product takes 40 to 80 ms,
 * because it loads its kernels ---- */

static bool few_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *x     = cuda_in(p, op, CR_IN_dense_x);
    const int64_t           elems = (int64_t)(16 / cr_dtype_bytes(x->dtype));
    (void)device;
    return cuda_pixels(x) <= CK_DENSE_FEW_ROWS && x->dim[3] % elems == 0;
}

static cr_status few_launch(struct cr_device *device, const struct cr_call *call) {
    const struct cr_tensor *x = cuda_in(call->program, call->op, CR_IN_dense_x),
                           *y = cuda_out(call->program, call->op, CR_OUT_dense_y);
    return CUDA_STATUS(ck_dense_few(cuda_type(x), call->in[CR_IN_dense_x], call->in[CR_IN_dense_w],
                                    call->in[CR_IN_dense_b], call->out[CR_OUT_dense_y], (int)cuda_pixels(x), y->dim[3],
                                    x->dim[3], cr_cuda_stream(device, call)));
}

/* ---- the table ---- */

#define LAUNCHES(kind)                                                                                                 \
    static cr_status kind##_launch(struct cr_device *device, const struct cr_call *call) {                             \
        return kind(device, call, false);                                                                              \
    }                                                                                                                  \
    static cr_status kind##_launch_tf32(struct cr_device *device, const struct cr_call *call) {                        \
        return kind(device, call, true);                                                                               \
    }
LAUNCHES(dense)
LAUNCHES(dense_dgrad)
LAUNCHES(dense_wgrad)

#define KERNELS(kind)                                                                                                  \
    {CR_KERNEL("cublas." #kind ".tf32", kind, CR_MATH_TF32), .dtypes = CR_TYPES_F32, .accepts = accepts_tf32,          \
     .prepare = prepare, .launch = kind##_launch_tf32},                                                                \
    {                                                                                                                  \
        CR_KERNEL("cublas." #kind ".*", kind, CR_MATH_DATA), .dtypes = CR_TYPES_FLOAT, .accepts = accepts,             \
                                                             .prepare = prepare, .launch = kind##_launch               \
    }
const struct cr_kernel cr_cuda_dense_kernels[] = {
    KERNELS(dense),
    KERNELS(dense_dgrad),
    KERNELS(dense_wgrad),
    {CR_KERNEL("cuda.dense_bgrad", dense_bgrad, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .launch = bgrad_launch},
    {CR_KERNEL("cuda.dense_few", dense, CR_MATH_F32), .dtypes = CR_TYPES_FLOAT, .accepts = few_accepts,
     .launch = few_launch},
    {0}};

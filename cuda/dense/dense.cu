/* cuda/dense/dense.cu: the classifier's bias and its gradient, which cuBLAS does not compute. Reference:
 * device/cpu/reference/ref_dense.c. Logits are few (N * classes). Limiter of both kernels: latency, a few microseconds.
 * Above some million logits the limiter is memory: 6 or 8 bytes an element for the bias and 2 or 4 for its gradient. */
#include "cuda/common/common.cuh"

enum { ROWS = 8, COLUMNS_A_THREAD = 4, COLUMNS = CK_WARP * COLUMNS_A_THREAD, GRID_Y_MOST = 65535 };

/* A warp processes 128 columns of a row at a time, so no division is needed for the column. y may be the product. */
template <typename T>
static __global__ void __launch_bounds__(CK_WARP *ROWS)
    bias_kernel(const float *product, const float *bias, T *y, int64_t rows, int64_t columns) {
    const int64_t first = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    float         b[COLUMNS_A_THREAD];
#pragma unroll
    for (int j = 0; j < COLUMNS_A_THREAD; j++) b[j] = first + j * CK_WARP < columns ? bias[first + j * CK_WARP] : 0.0f;
    for (int64_t n = (int64_t)blockIdx.y * ROWS + threadIdx.y; n < rows; n += (int64_t)gridDim.y * ROWS) {
        float sum[COLUMNS_A_THREAD];
#pragma unroll
        for (int j = 0; j < COLUMNS_A_THREAD; j++) {
            const int64_t k = first + j * CK_WARP;
            sum[j]          = k < columns ? product[n * columns + k] + b[j] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < COLUMNS_A_THREAD; j++) {
            const int64_t k = first + j * CK_WARP;
            if (k < columns) y[n * columns + k] = ck_round<T>(sum[j]);
        }
    }
}

cudaError_t ck_dense_bias(enum ck_type type, const float *product, const float *bias, void *y, int64_t rows,
                          int64_t columns, cudaStream_t stream) {
    const dim3 grid(ck_blocks(columns, COLUMNS, INT32_MAX), ck_blocks(rows, ROWS, GRID_Y_MOST)), threads(CK_WARP, ROWS);
    CK_BY_TYPE(type, bias_kernel<T><<<grid, threads, 0, stream>>>(product, bias, (T *)y, rows, columns));
    return cudaGetLastError();
}

enum { SUM_WARPS = 32 };

/* A block sums 32 columns: warp j sums rows j, j+32, ...; then the first warp adds the 32 sums in order. */
template <typename T>
static __global__ void __launch_bounds__(CK_WARP *SUM_WARPS)
    bgrad_kernel(const T *dy, float *db, int64_t rows, int64_t columns, bool accumulate) {
    __shared__ float part[SUM_WARPS][CK_WARP];
    const int64_t    k   = (int64_t)blockIdx.x * CK_WARP + threadIdx.x;
    float            sum = 0;
    ck_begin_after_last();
    if (k < columns) {
#pragma unroll 4
        for (int64_t n = threadIdx.y; n < rows; n += SUM_WARPS) sum += ck_float(dy[n * columns + k]);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || k >= columns) return;
    double total = accumulate ? (double)db[k] : 0;
    for (int j = 0; j < SUM_WARPS; j++) total += (double)part[j][threadIdx.x];
    db[k] = (float)total;
}

cudaError_t ck_dense_bgrad(enum ck_type type, const void *dy, float *db, int64_t rows, int64_t columns, bool accumulate,
                           cudaStream_t stream) {
    const unsigned blocks = ck_blocks(columns, CK_WARP, INT32_MAX);
    const dim3     threads(CK_WARP, SUM_WARPS);
    CK_BY_TYPE(type, return ck_launch(bgrad_kernel<T>, blocks, threads, 0, stream, (const T *)dy, db, rows, columns,
                                      accumulate));
}

/* cuda/dense/dense_few.cu: the classifier (dense layer) for a few images. A warp computes one class of all images, so
 * the weights are read once. Limiter: the bytes of the weights, 4 MB for 1,000 classes of ResNet-50 in 16 bits. */
#include "cuda/common/common.cuh"

enum { WARPS = 4 };

template <typename T, int ROWS>
static __global__ void __launch_bounds__(CK_WARP *WARPS)
    few_kernel(const T *x, const T *w, const float *bias, T *y, int rows, int64_t classes, int64_t depth) {
    constexpr int ELEMS = ck_vector_elems<T>();
    const int64_t k = (int64_t)blockIdx.x * WARPS + threadIdx.y, vectors = depth / ELEMS;
    float         sum[ROWS] = {};
    ck_begin_after_last();
    if (k >= classes) return;
#pragma unroll 4
    for (int64_t v = threadIdx.x; v < vectors; v += CK_WARP) {
        float a[ELEMS], b[ELEMS];
        ck_unpack<T>(ck_load(w, k * vectors + v), a);
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            if (n >= rows) break;
            ck_unpack<T>(ck_load(x, n * vectors + v), b);
#pragma unroll
            for (int i = 0; i < ELEMS; i++) sum[n] += a[i] * b[i];
        }
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        if (n >= rows) break;
        const float all = ck_warp_sum(sum[n]);
        if (threadIdx.x == 0) y[n * classes + k] = ck_round<T>(all + bias[k]);
    }
}

cudaError_t ck_dense_few(enum ck_type type, const void *x, const void *w, const float *bias, void *y, int rows,
                         int64_t classes, int64_t depth, cudaStream_t stream) {
    const dim3 grid(ck_blocks(classes, WARPS, INT32_MAX)), threads(CK_WARP, WARPS);
    CK_BY_TYPE(type, return ck_launch(rows == 1 ? few_kernel<T, 1> : few_kernel<T, CK_DENSE_FEW_ROWS>, grid, threads, 0,
                                      stream, (const T *)x, (const T *)w, bias, (T *)y, rows, classes, depth));
}

/* cuda/conv/generic/group_conv.cu: grouped convolutions of any shape, for shapes that cuDNN does not support.
 * Reference: device/cpu/reference/ref_conv.c.
 *
 * One thread computes an element of y or dx, one block an element of dw, with fma in a fixed order. The kernels come
 * after cuDNN's in the kernel table and are not tuned: no operand is reused from shared memory. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 1 << 20 };

template <typename T>
__global__ void __launch_bounds__(THREADS)
    forward(struct ck_conv v, int64_t D, const T *x, const T *w, T *y, int64_t elems) {
    const int64_t filters = v.K / (v.C / D);
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += (int64_t)gridDim.x * THREADS) {
        const int64_t k = i % v.K, q = i / v.K % v.Q, p = i / v.K / v.Q % v.P, n = i / v.K / v.Q / v.P;
        const int64_t c0  = k / filters * D;
        float         sum = 0;
        for (int r = 0; r < v.R; r++)
            for (int s = 0; s < v.S; s++) {
                const int64_t h = p * v.stride - v.pad + r, at = q * v.stride - v.pad + s;
                if (h < 0 || h >= v.H || at < 0 || at >= v.W) continue;
                const T *from = x + ((n * v.H + h) * v.W + at) * v.C + c0, *filter = w + ((k * v.R + r) * v.S + s) * D;
                for (int64_t c = 0; c < D; c++) sum = fmaf(ck_float(from[c]), ck_float(filter[c]), sum);
            }
        y[i] = ck_round<T>(sum);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    dgrad(struct ck_conv v, int64_t D, const T *dy, const T *w, T *dx, int64_t elems) {
    const int64_t filters = v.K / (v.C / D);
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += (int64_t)gridDim.x * THREADS) {
        const int64_t c = i % v.C, at = i / v.C % v.W, h = i / v.C / v.W % v.H, n = i / v.C / v.W / v.H;
        const int64_t k0  = c / D * filters;
        float         sum = 0;
        for (int r = 0; r < v.R; r++)
            for (int s = 0; s < v.S; s++) {
                const int64_t down = h + v.pad - r, right = at + v.pad - s, p = down / v.stride, q = right / v.stride;
                if (down < 0 || right < 0 || down % v.stride || right % v.stride || p >= v.P || q >= v.Q) continue;
                const T *from = dy + ((n * v.P + p) * v.Q + q) * v.K;
                for (int64_t k = k0; k < k0 + filters; k++)
                    sum = fmaf(ck_float(from[k]), ck_float(w[((k * v.R + r) * v.S + s) * D + c % D]), sum);
            }
        dx[i] = ck_round<T>(sum);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    wgrad(struct ck_conv v, int64_t D, const T *x, const T *dy, float *dw, int64_t elems, bool accumulate) {
    const int64_t filters = v.K / (v.C / D), pixels = v.N * v.P * v.Q;
    for (int64_t i = blockIdx.x; i < elems; i += gridDim.x) {
        const int64_t c = i % D, s = i / D % v.S, r = i / D / v.S % v.R, k = i / D / v.S / v.R;
        const int64_t from = k / filters * D + c;
        double        sum  = 0;
        for (int64_t m = threadIdx.x; m < pixels; m += THREADS) {
            const int64_t h = m / v.Q % v.P * v.stride - v.pad + r, at = m % v.Q * v.stride - v.pad + s;
            if (h < 0 || h >= v.H || at < 0 || at >= v.W) continue;
            const int64_t n = m / v.Q / v.P;
            sum += (double)(ck_float(dy[m * v.K + k]) * ck_float(x[((n * v.H + h) * v.W + at) * v.C + from]));
        }
        sum = ck_block_sum<THREADS>(sum);
        if (threadIdx.x == 0) dw[i] = (float)(accumulate ? (double)dw[i] + sum : sum);
        __syncthreads(); /* ck_block_sum uses its shared memory again */
    }
}

} // namespace

cudaError_t ck_group_conv_forward(const struct ck_conv *v, int64_t D, const void *x, const void *w, void *y,
                                  cudaStream_t stream) {
    const int64_t  elems  = v->N * v->P * v->Q * v->K;
    const unsigned blocks = ck_blocks(elems, THREADS, BLOCKS);
    CK_BY_TYPE(v->type, (forward<T><<<blocks, THREADS, 0, stream>>>(*v, D, (const T *)x, (const T *)w, (T *)y, elems)));
    return cudaGetLastError();
}

cudaError_t ck_group_conv_dgrad(const struct ck_conv *v, int64_t D, const void *dy, const void *w, void *dx,
                                cudaStream_t stream) {
    const int64_t  elems  = v->N * v->H * v->W * v->C;
    const unsigned blocks = ck_blocks(elems, THREADS, BLOCKS);
    CK_BY_TYPE(v->type, (dgrad<T><<<blocks, THREADS, 0, stream>>>(*v, D, (const T *)dy, (const T *)w, (T *)dx, elems)));
    return cudaGetLastError();
}

cudaError_t ck_group_conv_wgrad(const struct ck_conv *v, int64_t D, const void *x, const void *dy, float *dw,
                                bool accumulate, cudaStream_t stream) {
    const int64_t  elems  = v->K * v->R * v->S * D;
    const unsigned blocks = ck_blocks(elems, 1, BLOCKS);
    CK_BY_TYPE(v->type,
               (wgrad<T><<<blocks, THREADS, 0, stream>>>(*v, D, (const T *)x, (const T *)dy, dw, elems, accumulate)));
    return cudaGetLastError();
}

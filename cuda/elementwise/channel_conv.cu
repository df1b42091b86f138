/* cuda/elementwise/channel_conv.cu: the convolution over channels of efficient channel attention and its gradients.
 * Reference: device/cpu/reference/ref_channel_conv.c. The tensors have one pixel: the launch is the limiter. */
#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 65535 };

template <typename T>
__global__ void __launch_bounds__(THREADS)
    channel_conv(const T *x, const float *w, T *y, int64_t elems, int64_t C, int taps, int direction) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elems; i += (int64_t)gridDim.x * THREADS) {
        const int64_t c   = i % C;
        float         sum = 0;
        for (int j = 0; j < taps; j++) {
            const int64_t from = c + direction * (j - taps / 2);
            if (from >= 0 && from < C) sum = fmaf(w[j], ck_float(x[i - c + from]), sum);
        }
        y[i] = ck_round<T>(sum);
    }
}

/* One block for each tap. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    channel_conv_wgrad(const T *x, const T *dy, float *dw, int64_t elems, int64_t C, int taps, bool accumulate) {
    const int j   = (int)blockIdx.x;
    double    sum = 0;
    for (int64_t i = threadIdx.x; i < elems; i += THREADS) {
        const int64_t c = i % C, from = c + j - taps / 2;
        if (from >= 0 && from < C) sum += (double)(ck_float(dy[i]) * ck_float(x[i - c + from]));
    }
    sum = ck_block_sum<THREADS>(sum);
    if (threadIdx.x == 0) dw[j] = (float)(accumulate ? (double)dw[j] + sum : sum);
}

} // namespace

cudaError_t ck_channel_conv(enum ck_type type, const void *x, const float *w, void *y, int64_t N, int64_t C, int taps,
                            int direction, cudaStream_t stream) {
    const unsigned blocks = ck_blocks(N * C, THREADS, BLOCKS);
    CK_BY_TYPE(type,
               (channel_conv<T><<<blocks, THREADS, 0, stream>>>((const T *)x, w, (T *)y, N * C, C, taps, direction)));
    return cudaGetLastError();
}

cudaError_t ck_channel_conv_wgrad(enum ck_type type, const void *x, const void *dy, float *dw, int64_t N, int64_t C,
                                  int taps, bool accumulate, cudaStream_t stream) {
    CK_BY_TYPE(type, (channel_conv_wgrad<T><<<(unsigned)taps, THREADS, 0, stream>>>((const T *)x, (const T *)dy, dw,
                                                                                    N * C, C, taps, accumulate)));
    return cudaGetLastError();
}

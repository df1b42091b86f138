/* cuda/conv/cifar/stem/cifar_stem.cuh: forward of the first convolution of a CIFAR network: 3 -> 16 channels. See
 * cuda/conv/cifar/cifar_conv.cu. */
#ifndef CK_CIFAR_STEM_CUH
#define CK_CIFAR_STEM_CUH

#include "cuda/conv/cifar/cifar_forward.cuh"

namespace cifar {
namespace {

enum { RESIDENT = 2 /* maximum blocks a multiprocessor of a forward launch */ };

enum { STEM_MT = 4 };

template <typename T, bool ANY> __global__ void __launch_bounds__(THREADS, 3) stem_kernel(forward_args a) {
    constexpr int NT = 2, W_PITCH = 48 * 2 + 16;
    const int     K = ANY ? a.K : (int)STEM_K;
    __shared__ __align__(16) char tile[STEM_BYTES];
    __shared__ __align__(16) char filter[STEM_K * W_PITCH];
    __shared__ float              rows[WARPS * 2 * STEM_K];
    const int                     lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    float                         first[2 * NT] = {}, second[2 * NT] = {};
    for (int i = (int)threadIdx.x; i < WARPS * 2 * STEM_K; i += THREADS) rows[i] = 0;
    ck_begin_after_last();
    for (int i = (int)threadIdx.x; i < STEM_K * 48; i += THREADS) { /* [k][r][4 columns][4 channels] */
        const int k = i / 48, r = i / 16 % 3, s = i / 4 % 4, c = i % 4;
        uint16_t  v = 0;
        if (s < 3 && c < 3 && (!ANY || k < K)) v = ((const uint16_t *)a.w)[((k * 3 + r) * 3 + s) * 3 + c];
        *reinterpret_cast<uint16_t *>(filter + column_of<NT>(k) * W_PITCH + i % 48 * 2) = v;
    }
    const uint32_t b0 = ck_shared(filter) + (uint32_t)(((lane & 7) + (lane >> 4) * 8) * W_PITCH + (lane >> 3 & 1) * 16);
    for (int64_t job = blockIdx.x; job < a.N * STEM_TILES; job += gridDim.x) {
        const int64_t image = job / STEM_TILES;
        const int     y0    = (int)(job % STEM_TILES) * STEM_TH;
        stem_fill(tile, (const T *)a.x + image * STEM_SIDE * STEM_SIDE * 3, y0 - 1);
        __syncthreads();
        float    acc[STEM_MT][NT][4] = {};
        uint32_t at[STEM_MT];
#pragma unroll
        for (int m = 0; m < STEM_MT; m++) {
            const int pixel = (warp * STEM_MT + m) * 16 + (lane & 15);
            at[m] = ck_shared(tile) + stem_pixel(pixel / STEM_SIDE, pixel % STEM_SIDE) + (uint32_t)(lane >> 4) * 16;
        }
#pragma unroll
        for (int r = 0; r < 3; r++) {
            uint32_t bf[4], af[4];
            ck_ldmatrix(bf, b0 + (uint32_t)(r * 32));
#pragma unroll
            for (int m = 0; m < STEM_MT; m++) {
                ck_ldmatrix(af, at[m] + (uint32_t)(r * STEM_LINE));
                mma<T>(acc[m][0], af, bf[0], bf[1]);
                mma<T>(acc[m][1], af, bf[2], bf[3]);
            }
        }
        const int     channel = lane % 4 * 2 * NT;
        const bool    works   = !ANY || channel < K;
        const int64_t to      = ((image * STEM_SIDE + y0) * STEM_SIDE + warp * STEM_MT * 16 + lane / 4) * K + channel;
        const auto    element = [=](int m, int half) { return (m * 16 + half * 8) * K; };
        if constexpr (ANY)
            if (a.bias && works) inference_end<T>(a, acc, channel, (const T *)a.add + to, element);
        piece<NT> out[STEM_MT][2];
#pragma unroll
        for (int m = 0; m < STEM_MT; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) out[m][half] = forward_round<T, NT>(acc[m], half, first, second);
        if (a.sums && job + gridDim.x >= a.N * STEM_TILES)
            forward_sums<NT, STEM_K, WARPS, ANY>(a, first, second, rows, 0);
        T *y = (T *)a.y + to;
        if (works)
#pragma unroll
            for (int m = 0; m < STEM_MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) piece_store<NT>(y + element(m, half), out[m][half]);
        __syncthreads();
    }
}

template <typename T, bool ANY>
cudaError_t stem_run(const forward_args &a, const finish_args &finish, int multiprocessors, cudaStream_t stream) {
    const unsigned    blocks = ck_blocks(a.N * STEM_TILES, 1, (int64_t)multiprocessors * RESIDENT);
    const cudaError_t error  = launch(stem_kernel<T, ANY>, a, blocks, THREADS, 0, stream);
    return error != cudaSuccess ? error : finish_run < ANY ? 0 : (int)STEM_K > (finish, blocks, stream);
}

} // namespace
} // namespace cifar

#endif

/* cuda/collectives/reduce.cu: device code for sums over ranks: converts 16-bit gradients back to f32, and sums the
 * parts of ranks that write into each other's memory: large ones that copies have brought, small ones that the kernels
 * exchange themselves. */
#include "cuda/common/common.cuh"
#include "cuda/common/launchers.h"

namespace {

/* Reads 2 bytes and writes 4 for each element. Limiter: memory, mainly L2, because the values have just been
 * written. */
enum { THREADS = 256, WORD = 4 };

template <typename T> __global__ void __launch_bounds__(THREADS) widen(const T *x, float *y, int64_t elems) {
    const int64_t step = (int64_t)gridDim.x * THREADS, words = elems / WORD;
    int64_t       i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t w = i; w < words; w += step) {
        const uint2 bits                 = reinterpret_cast<const uint2 *>(x)[w];
        const T    *v                    = reinterpret_cast<const T *>(&bits);
        reinterpret_cast<float4 *>(y)[w] = make_float4(ck_float(v[0]), ck_float(v[1]), ck_float(v[2]), ck_float(v[3]));
    }
    for (int64_t k = words * WORD + i; k < elems; k += step) y[k] = ck_float(x[k]);
}

template <typename T> cudaError_t widen_run(const void *x, float *y, int64_t elems, cudaStream_t stream) {
    widen<T><<<ck_blocks(elems / WORD, THREADS * 4, 4096), THREADS, 0, stream>>>((const T *)x, y, elems);
    return cudaGetLastError();
}

/* ---- sums ---- */

enum { SUM_THREADS = 512 };

/* 4 (N + 1) bytes an element. Limiter: memory, mainly L2, because half of the data has just arrived. */
template <int N> __global__ void __launch_bounds__(SUM_THREADS) sum_ranks(struct ck_sum_ranks sum) {
    const int64_t step = (int64_t)gridDim.x * SUM_THREADS, words = sum.elems / WORD;
    const int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    for (int64_t w = i; w < words; w += step) {
        float4 x[N];
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = reinterpret_cast<const float4 *>(sum.part[k])[w];
#pragma unroll
        for (int k = 1; k < N; k++)
            x[0] = make_float4(x[0].x + x[k].x, x[0].y + x[k].y, x[0].z + x[k].z, x[0].w + x[k].w);
        reinterpret_cast<float4 *>(sum.to)[w] = x[0];
    }
    for (int64_t e = words * WORD + i; e < sum.elems; e += step) {
        float x = sum.part[0][e];
#pragma unroll
        for (int k = 1; k < N; k++) x += sum.part[k][e];
        sum.to[e] = x;
    }
}

template <int N> cudaError_t sum_run(const struct ck_sum_ranks *sum, int multiprocessors, cudaStream_t stream) {
    sum_ranks<N>
        <<<ck_blocks(sum->elems / WORD, SUM_THREADS, 2 * (int64_t)multiprocessors), SUM_THREADS, 0, stream>>>(*sum);
    return cudaGetLastError();
}

/* ---- small sums ---- */

enum { LINE_THREADS = 256, LINE_ELEMS = 2 };

/* A line of 16 bytes carries two values, each with the number of the round: the 8 bytes of a value and its number
 * arrive together, so the receiver needs no other flag. */
__device__ void send(uint4 *line, float a, float b, unsigned round) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line), "r"(__float_as_uint(a)), "r"(round),
                 "r"(__float_as_uint(b))
                 : "memory");
}
__device__ float2 receive(const uint4 *line, unsigned round, const volatile unsigned *aborted) {
    unsigned a, b, a_round, b_round;
    do
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(a_round), "=r"(b), "=r"(b_round)
                     : "l"(line)
                     : "memory");
    while ((a_round != round || b_round != round) && !*aborted);
    return make_float2(__uint_as_float(a), __uint_as_float(b));
}

/* Limiter: one latency of the link between the GPUs. */
__global__ void __launch_bounds__(LINE_THREADS) sum_small(struct ck_sum_small sum) {
    const unsigned round = sum.round[blockIdx.x] + 1;
    const int      i     = (int)(blockIdx.x * LINE_THREADS + threadIdx.x);
    const int64_t  e     = (int64_t)LINE_ELEMS * i;
    const bool     two   = e + 1 < sum.elems;
    const int      half  = (int)(round & 1) * sum.ranks * CK_SUM_LINES + i;
    if (e < sum.elems) {
        const float2 mine  = make_float2(sum.x[e], two ? sum.x[e + 1] : 0);
        float2       total = make_float2(0, 0);
        for (int r = 0; r < sum.ranks; r++)
            if (r != sum.rank) send(sum.lines[r] + half + sum.rank * CK_SUM_LINES, mine.x, mine.y, round);
        for (int r = 0; r < sum.ranks; r++) {
            const float2 v =
                r == sum.rank ? mine : receive(sum.lines[sum.rank] + half + r * CK_SUM_LINES, round, sum.aborted);
            total = r ? make_float2(total.x + v.x, total.y + v.y) : v;
        }
        sum.y[e] = total.x;
        if (two) sum.y[e + 1] = total.y;
    }
    __syncthreads();
    if (threadIdx.x == 0) sum.round[blockIdx.x] = round;
}

} // namespace

cudaError_t ck_sum_small(const struct ck_sum_small *sum, cudaStream_t stream) {
    sum_small<<<ck_blocks(sum->elems, LINE_THREADS * LINE_ELEMS, CK_SUM_BLOCKS), LINE_THREADS, 0, stream>>>(*sum);
    return cudaGetLastError();
}

cudaError_t ck_sum_ranks(const struct ck_sum_ranks *sum, int multiprocessors, cudaStream_t stream) {
    switch (sum->ranks) {
    case 2: return sum_run<2>(sum, multiprocessors, stream);
    case 3: return sum_run<3>(sum, multiprocessors, stream);
    case 4: return sum_run<4>(sum, multiprocessors, stream);
    case 5: return sum_run<5>(sum, multiprocessors, stream);
    case 6: return sum_run<6>(sum, multiprocessors, stream);
    case 7: return sum_run<7>(sum, multiprocessors, stream);
    case 8: return sum_run<8>(sum, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

cudaError_t ck_widen(enum ck_type type, const void *x, float *y, int64_t elems, cudaStream_t stream) {
    switch (type) {
    case CK_F16: return widen_run<__half>(x, y, elems, stream);
    case CK_BF16: return widen_run<__nv_bfloat16>(x, y, elems, stream);
    case CK_F32: break;
    }
    return cudaErrorInvalidValue;
}

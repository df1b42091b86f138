/* cuda/core/reference_work.cu: a fixed amount of arithmetic, whose time shows whether other processes share the GPU. */
#include "cuda/common/common.cuh"

constexpr int REFERENCE_THREADS = 512, REFERENCE_PIECES = 11, REFERENCE_STEPS = 250;

/* 16 warps with four independent sums each keep the FP32 units of a multiprocessor busy. They leave most registers and
 * all shared memory free, so that blocks of another process run at the same time and slow them down. A piece takes the
 * same number of clock cycles on all multiprocessors at any frequency: 4000 with 128 multiply-adds in a cycle. The
 * first piece, which loads the code, does not count. No value is negative, so the store that depends on them never
 * happens; the compiler does not know this and keeps the arithmetic. */
static __global__ void __launch_bounds__(REFERENCE_THREADS) reference_work(uint64_t *ticks) {
    float    a = (float)threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    uint64_t sum = 0, shortest = ~(uint64_t)0;
#pragma unroll 1
    for (int piece = 0; piece < REFERENCE_PIECES; piece++) {
        __syncthreads();
        const long long begin = clock64();
#pragma unroll 10
        for (int i = 0; i < REFERENCE_STEPS; i++) {
            a = fmaf(a, 0.999f, 0.5f);
            b = fmaf(b, 0.998f, 0.5f);
            c = fmaf(c, 0.997f, 0.5f);
            d = fmaf(d, 0.996f, 0.5f);
        }
        __syncthreads();
        const uint64_t taken = (uint64_t)(clock64() - begin);
        if (piece == 0) continue;
        sum += taken;
        shortest = taken < shortest ? taken : shortest;
    }
    uint64_t *mine = ticks + 3 * (int64_t)blockIdx.x;
    if (a + b + c + d < 0) mine[0] = 0;
    if (threadIdx.x) return;
    mine[0] += sum;
    mine[1] += REFERENCE_PIECES - 1;
    mine[2] = mine[2] == 0 || shortest < mine[2] ? shortest : mine[2];
}

cudaError_t ck_reference_work(int multiprocessors, int most, uint64_t *ticks, cudaStream_t stream) {
    const int blocks = multiprocessors < most ? multiprocessors : most;
    reference_work<<<(unsigned)blocks, REFERENCE_THREADS, 0, stream>>>(ticks);
    return cudaGetLastError();
}

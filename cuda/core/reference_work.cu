/* cuda/core/reference_work.cu: a fixed amount of arithmetic, whose time shows whether other processes use the GPU. */
#include "cuda/common/common.cuh"

constexpr int REFERENCE_THREADS = 512, REFERENCE_STEPS = 2500;

/* 16 warps with four independent sums each keep the FP32 units of a multiprocessor busy. They leave most registers and
 * all shared memory free, so that blocks of another process run at the same time and slow them down. No value is
 * negative, so nothing is stored; the compiler does not know this and keeps the arithmetic. */
static __global__ void __launch_bounds__(REFERENCE_THREADS) reference_work(float *never_written) {
    float a = (float)threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
#pragma unroll 10
    for (int i = 0; i < REFERENCE_STEPS; i++) {
        a = fmaf(a, 0.999f, 0.5f);
        b = fmaf(b, 0.998f, 0.5f);
        c = fmaf(c, 0.997f, 0.5f);
        d = fmaf(d, 0.996f, 0.5f);
    }
    if (a + b + c + d < 0) *never_written = a;
}

cudaError_t ck_reference_work(int multiprocessors, void *never_written, cudaStream_t stream) {
    reference_work<<<(unsigned)multiprocessors, REFERENCE_THREADS, 0, stream>>>(static_cast<float *>(never_written));
    return cudaGetLastError();
}

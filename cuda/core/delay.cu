/* cuda/core/delay.cu: kernels without data: one that only takes time (sleep), by which tests delay streams relative to
 * each other, and one that separates launches. */
#include "cuda/common/common.cuh"

constexpr uint64_t DELAY_MOST_NS    = 1000 * 1000;
constexpr int      DELAY_MOST_LOOKS = 1 << 20;

static __device__ __forceinline__ uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* One thread, no memory. The number of iterations is bounded: if the timer stands still, the stream continues after a
 * few ms. */
static __global__ void __launch_bounds__(32) delay(uint64_t ns) {
    const uint64_t begin = now_ns();
    for (int look = 0; look < DELAY_MOST_LOOKS && now_ns() - begin < ns; look++) {
    }
}

cudaError_t ck_delay(int64_t ns, cudaStream_t stream) {
    if (ns <= 0) return cudaSuccess;
    delay<<<1, 1, 0, stream>>>((uint64_t)ns < DELAY_MOST_NS ? (uint64_t)ns : DELAY_MOST_NS);
    return cudaGetLastError();
}

static __global__ void separate() {}

/* The launch is a normal one, so it begins when all earlier ones are complete, and no launch behind it begins before it
 * has ended. */
cudaError_t ck_separate(cudaStream_t stream) {
    separate<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

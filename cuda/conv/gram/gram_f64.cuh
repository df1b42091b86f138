/* cuda/conv/gram/gram_f64.cuh: matrix products in f64 on tensor cores, for the statistics and gradients of a BN from a
 * Gram matrix. Element (i, k) of the left matrix is in shared memory; the right matrix is read from global memory.
 *
 * Fragments of a warp, with g = lane / 4 and t = lane % 4, of 16 x 8 results and 8 steps of the reduced dimension:
 *   left   (g, t) (g+8, t) (g, t+4) (g+8, t+4)
 *   right  (t, g) (t+4, g)
 *   result (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
 * Column g of tile n of NT tiles is column NT*g + n of the warp, so that a lane reads NT neighbours at once. */
#ifndef CK_GRAM_F64_CUH
#define CK_GRAM_F64_CUH

#include "cuda/common/common.cuh"

namespace {

constexpr int PANEL = 16; /* rows of the left matrix */

/* Sums over the lanes of a warp, the result in all lanes. */
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* Length of a row of the left matrix in shared memory: the rows of a fragment are in different banks. */
__host__ __device__ constexpr int row_length(int depth) {
    return (depth + 15) / 16 * 16 + 4;
}

__device__ __forceinline__ void multiply_f64(double (&c)[4], const double (&a)[4], double b0, double b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1])
                     : "d"(a[i]), "d"(i < 2 ? b0 : b1));
#endif
}

/* Fragment of the left matrix from step k on. */
__device__ __forceinline__ void get_left(double (&a)[4], const double *left, int length, int k) {
    const int     g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const double *at = left + g * length + k + t;
    a[0] = at[0], a[1] = at[8 * length], a[2] = at[4], a[3] = at[8 * length + 4];
}

/* sum[n] += left[16][depth] * right for the NT tiles of a warp. Elements of left from `depth` to the next multiple of 8
 * are 0. read(k, v): v[n] = right(k, column of this lane + n) for k < depth, without branches: then the reads of a run
 * of STEPS steps are in flight together, and start before the products of the run before. */
template <int NT, int STEPS, class Read>
__device__ __forceinline__ void add_panel(double (&sum)[NT][4], const double *left, int length, int depth,
                                          const Read &read) {
    const int  t = (int)threadIdx.x % 4;
    float      next[STEPS][2][NT];
    const auto read_run = [&](int k) {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = k + 8 * s + 4 * half + t;
                read(row < depth ? row : depth - 1, next[s][half]);
            }
    };
    if (depth <= 0) return;
    read_run(0);
    for (int k = 0; k < depth; k += 8 * STEPS) {
        double b[STEPS][2][NT];
#pragma unroll
        for (int i = 0; i < STEPS * 2 * NT; i++) {
            const int row    = k + i / NT * 4 + t;
            (&b[0][0][0])[i] = row < depth ? (double)(&next[0][0][0])[i] : 0.0;
        }
        if (k + 8 * STEPS < depth) read_run(k + 8 * STEPS);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            double a[4];
            if (k + 8 * s >= depth) break;
            get_left(a, left, length, k + 8 * s);
#pragma unroll
            for (int n = 0; n < NT; n++) multiply_f64(sum[n], a, b[s][0][n], b[s][1][n]);
        }
    }
}

} // namespace

#endif

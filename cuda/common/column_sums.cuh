/* cuda/common/column_sums.cuh: adds the sums over columns that the blocks of a convolution stored in the
 * workspace. */
#ifndef CK_COLUMN_SUMS_CUH
#define CK_COLUMN_SUMS_CUH

#include "cuda/common/common.cuh"

namespace {

/* partial[rows][2][width] -> sums[2][K], in double; a block processes 32 columns. */
enum { SUM_LANES = 32 };
__global__ void __launch_bounds__(32 * SUM_LANES)
    point_sums(const float *partial, float *sums, int rows, int64_t width, int64_t K) {
    __shared__ double part[SUM_LANES][33];
    const int64_t     column = (int64_t)blockIdx.x * 32 + threadIdx.x, of = column / width, k = column % width;
    double            sum = 0.0;
    for (int r = (int)threadIdx.y; r < rows; r += SUM_LANES) sum += (double)partial[r * 2 * width + column];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && k < K) {
        for (int r = 1; r < SUM_LANES; r++) sum += part[r][threadIdx.x];
        sums[of * K + k] = (float)sum;
    }
}

/* width is a multiple of 16. */
inline cudaError_t add_column_sums(const float *partial, float *sums, int rows, int64_t width, int64_t K,
                                   cudaStream_t stream) {
    point_sums<<<(unsigned)(2 * width / 32), dim3(32, SUM_LANES), 0, stream>>>(partial, sums, rows, width, K);
    return cudaGetLastError();
}

} // namespace

#endif

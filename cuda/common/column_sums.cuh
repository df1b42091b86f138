/* cuda/common/column_sums.cuh: adds the sums over columns that the blocks of a convolution stored in the
 * workspace. */
#ifndef CK_COLUMN_SUMS_CUH
#define CK_COLUMN_SUMS_CUH

#include "cuda/common/common.cuh"

namespace {

/* partial[rows][2][width] -> sums[2][K], in double. A block adds 8 columns; few rows are left for a thread, whose reads
 * are in flight together. */
enum { SUM_COLUMNS = 8, SUM_LANES = 128, SUM_WARPS = SUM_COLUMNS * SUM_LANES / CK_WARP };
__global__ void __launch_bounds__(SUM_COLUMNS *SUM_LANES)
    point_sums(const float *partial, float *sums, int rows, int64_t width, int64_t K) {
    __shared__ double part[SUM_COLUMNS][SUM_WARPS];
    const int         warp = (int)threadIdx.x / CK_WARP, lane = (int)threadIdx.x % CK_WARP;
    const int64_t     first = (int64_t)blockIdx.x * SUM_COLUMNS, column = first + lane % SUM_COLUMNS;
    double            sum = 0.0;
    ck_begin_after_last();
#pragma unroll 4
    for (int r = (int)threadIdx.x / SUM_COLUMNS; r < rows; r += SUM_LANES)
        sum += (double)partial[r * 2 * width + column];
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane < SUM_COLUMNS) part[lane][warp] = sum;
    __syncthreads();
    if (warp >= SUM_COLUMNS) return;
    sum = part[warp][lane];
#pragma unroll
    for (int i = CK_WARP / 2; i; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const int64_t of = (first + warp) / width, k = (first + warp) % width;
    if (lane == 0 && k < K) sums[of * K + k] = (float)sum;
}
static_assert((int)SUM_WARPS == (int)CK_WARP, "a lane for each warp");

/* width is a multiple of 16. */
inline cudaError_t add_column_sums(const float *partial, float *sums, int rows, int64_t width, int64_t K,
                                   cudaStream_t stream) {
    return ck_launch(point_sums, dim3((unsigned)(2 * width / SUM_COLUMNS)), dim3(SUM_COLUMNS * SUM_LANES), 0, stream,
                     partial, sums, rows, width, K);
}

} // namespace

#endif

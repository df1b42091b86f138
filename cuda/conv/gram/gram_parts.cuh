/* cuda/conv/gram/gram_parts.cuh: adds the parts of sums that the blocks of a kernel stored in the workspace. */
#ifndef CK_GRAM_PARTS_CUH
#define CK_GRAM_PARTS_CUH

#include "cuda/common/common.cuh"

namespace {

/* to[i] = sum over the parts of from[part][i] for i < first, then to_rest; in f64 and in a fixed order. length % 4 == 0
 * and first % 4 == 0. With C, `from` begins with a matrix [C][C], and elements outside of the blocks of 128 x 128 on
 * its diagonal have `far` parts. */
enum { PART_LANES = 16 };
__global__ void __launch_bounds__(32 * PART_LANES)
    add_parts(const float *from, int parts, int64_t length, float *to, int64_t first, float *to_rest, int C, int far) {
    __shared__ double share[PART_LANES][4][32];
    const int64_t     i      = ((int64_t)blockIdx.x * 32 + threadIdx.x) * 4;
    double            sum[4] = {};
    ck_begin_after_last();
    if (C && i < (int64_t)C * C && i / C / 128 != i % C / 128) parts = far;
    if (i < length)
#pragma unroll 4
        for (int p = (int)threadIdx.y; p < parts; p += PART_LANES) {
            const float4 v = *(const float4 *)(from + p * length + i);
            sum[0] += (double)v.x, sum[1] += (double)v.y, sum[2] += (double)v.z, sum[3] += (double)v.w;
        }
#pragma unroll
    for (int j = 0; j < 4; j++) share[threadIdx.y][j][threadIdx.x] = sum[j];
    __syncthreads();
    if (threadIdx.y || i >= length) return;
    for (int l = 1; l < PART_LANES; l++)
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] += share[l][j][threadIdx.x];
    *(float4 *)(i < first ? to + i : to_rest + (i - first)) =
        make_float4((float)sum[0], (float)sum[1], (float)sum[2], (float)sum[3]);
}

inline cudaError_t start_add(const float *from, int parts, int64_t length, float *to, int64_t first, float *to_rest,
                             cudaStream_t stream, int C = 0, int far = 0) {
    return ck_launch(add_parts, dim3((unsigned)((length / 4 + 31) / 32)), dim3(32, PART_LANES), 0, stream, from, parts,
                     length, to, first, to_rest, C, far);
}

} // namespace

#endif

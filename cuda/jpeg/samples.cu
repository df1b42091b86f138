/* cuda/jpeg/samples.cu: the inverse cosine transform (IDCT) of JPEG: coefficients times the quantiser's steps to
 * samples. Eight threads transform a block of 8 x 8, first its columns, then its rows, in the 13-bit fixed point of
 * libjpeg's slow integer transform (Loeffler, Ligtenberg and Moschytz 1989): the samples are bitwise those of libjpeg
 * and of data/image/jpeg_pixels_avx2.c. Values beyond the limits within which all of libjpeg's transforms agree set
 * `failed`. Limiter: memory. */
#include "cuda/common/common.cuh"
#include "cuda/jpeg/jpeg_launchers.h"

enum {
    SIDE         = 8,
    BLOCKS       = 32, /* blocks of 8 x 8 that a thread block transforms */
    THREADS      = BLOCKS * SIDE,
    FRACTION     = 13,
    PASS_BITS    = 2,
    SUM_LIMIT    = 1 << 14,
    RESULT_LIMIT = 512,
};

/* Transforms v[8]; the results are shifted right by SHIFT and rounded. The constants are cosine products times 2^13. */
template <int SHIFT> __device__ __forceinline__ void transform(int v[SIDE]) {
    const int half   = 1 << (SHIFT - 1);
    const int shared = (v[2] + v[6]) * 4433, low = shared - v[6] * 15137, high = shared + v[2] * 6270;
    const int sum = ((v[0] + v[4]) << FRACTION) + half, diff = ((v[0] - v[4]) << FRACTION) + half;
    const int even[4] = {sum + high, diff + low, diff - low, sum - high};
    const int both    = (v[7] + v[3] + v[5] + v[1]) * 9633;
    const int outer = (v[7] + v[1]) * -7373, inner = (v[5] + v[3]) * -20995;
    const int a = (v[7] + v[3]) * -16069 + both, b = (v[5] + v[1]) * -3196 + both;
    const int odd[4] = {v[1] * 12299 + outer + b, v[3] * 25172 + inner + a, v[5] * 16819 + inner + b,
                        v[7] * 2446 + outer + a};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i]     = (even[i] + odd[i]) >> SHIFT;
        v[7 - i] = (even[i] - odd[i]) >> SHIFT;
    }
}

/* The bitwise or of x for x >= 0 and of -x - 1 for x < 0. */
__device__ __forceinline__ int magnitude(const int v[SIDE]) {
    int all = 0;
#pragma unroll
    for (int i = 0; i < SIDE; i++) all |= v[i] ^ v[i] >> 31;
    return all;
}

/* The number of a block of component c among the stored ones, which are in the order of the scan. */
__device__ __forceinline__ int number_of(const ck_jpeg_image &im, int c, int column, int row) {
    const int luma = im.scan.h * im.scan.v, h = c ? 1 : im.scan.h, v = c ? 1 : im.scan.v;
    const int per_mcu = im.scan.components == 1 ? 1 : luma + 2,
              across  = (im.scan.width + 8 * im.scan.h - 1) / (8 * im.scan.h);
    const int mcu     = row / v * across + im.x0 + column / h;
    return mcu * per_mcu + (c ? luma + c - 1 : row % v * h + column % h);
}

__global__ void __launch_bounds__(THREADS) samples_kernel(const ck_jpeg_batch batch) {
    __shared__ int       turn[BLOCKS][SIDE][SIDE + 1];
    const ck_jpeg_image &im = batch.image[blockIdx.y];
    int                  n = blockIdx.x * BLOCKS + threadIdx.x / SIDE, c = 0;
    const int            lane = threadIdx.x % SIDE, mine = threadIdx.x / SIDE;
    while (c < im.scan.components && n >= im.rows[c] * im.columns[c]) n -= im.rows[c] * im.columns[c], c++;
    if (c == im.scan.components) return; /* all eight threads of the block */
    const unsigned group   = 0xffu << (threadIdx.x % CK_WARP / SIDE * SIDE);
    const int      columns = im.columns[c], row = n / columns, column = n - row * columns;
    const int16_t *from = (const int16_t *)(batch.work + im.coefficients) + (int64_t)number_of(im, c, column, row) * 64;
    int            v[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) v[i] = from[i * SIDE + lane] * im.scan.step[c][i * SIDE + lane];
    int large = magnitude(v);
    transform<FRACTION - PASS_BITS>(v);
    large |= magnitude(v);
#pragma unroll
    for (int i = 0; i < SIDE; i++) turn[mine][i][lane] = v[i];
    __syncwarp(group);
#pragma unroll
    for (int i = 0; i < SIDE; i++) v[i] = turn[mine][lane][i];
    transform<FRACTION + PASS_BITS + 3>(v);
    if (large >= SUM_LIMIT || magnitude(v) >= RESULT_LIMIT) batch.failed[im.place] = 1;
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < SIDE; i++) word[i / 4] |= (uint32_t)min(max(v[i] + 128, 0), 255) << 8 * (i % 4);
    *(uint2 *)(batch.work + im.samples[c] + ((int64_t)(row * SIDE + lane) * columns + column) * SIDE) =
        make_uint2(word[0], word[1]);
}

cudaError_t ck_jpeg_samples(const struct ck_jpeg_batch *batch, cudaStream_t stream) {
    const dim3 grid((unsigned)(batch->blocks + BLOCKS - 1) / BLOCKS, (unsigned)batch->images);
    samples_kernel<<<grid, THREADS, 0, stream>>>(*batch);
    return cudaGetLastError();
}

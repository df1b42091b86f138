/* cuda/conv/gram/gram_conv.cu: a 1x1 convolution with the BN behind it, the sum of both branches, ReLU and its mask. */
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

/* Results of half a tile wait in f32, in rows of K + 4 elements, so that rows lie in different banks. */
constexpr int HALF = 32, RESULT_ROW = (K + 4) * 4, W_AT = 0, X_AT = K * C_ROW, VECTORS_AT = X_AT + 2 * C_TILE,
              RESULT_AT = VECTORS_AT + 2 * K * 4, SHARED = RESULT_AT + HALF * RESULT_ROW;

/* The products of 32 pixels; warp w: columns 32*w to +31. */
template <typename T>
__device__ __forceinline__ void multiply_half(float (&acc)[2][4][4], uint32_t x, uint32_t w, int row, int n) {
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < C; k += 16) {
        uint32_t b[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) ck_mma_b(b[j], w, C_ROW, n + j * 16, k);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t a[4];
            ck_mma_a(a, x, C_ROW, row + m * 16, k);
#pragma unroll
            for (int j = 0; j < 4; j++) ck_mma<T>(acc[m][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

__device__ __forceinline__ void put_results(const float (&acc)[2][4][4], uint32_t to, int n) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t at =
                    to + (uint32_t)((m * 16 + lane / 4 + half * 8) * RESULT_ROW + (n + j * 8 + lane % 4 * 2) * 4);
                ck_put4(at, acc[m][j][half * 2]);
                ck_put4(at + 4, acc[m][j][half * 2 + 1]);
            }
}

__device__ __forceinline__ void get8(float (&v)[8], uint32_t from) {
    const uint4 low = ck_get16(from), high = ck_get16(from + 16);
    v[0] = __uint_as_float(low.x), v[1] = __uint_as_float(low.y);
    v[2] = __uint_as_float(low.z), v[3] = __uint_as_float(low.w);
    v[4] = __uint_as_float(high.x), v[5] = __uint_as_float(high.y);
    v[6] = __uint_as_float(high.z), v[7] = __uint_as_float(high.w);
}

/* One vector of the result: BN, sum, ReLU, mask. at: its number in y. */
template <typename T>
__device__ __forceinline__ void finish_vector(const struct ck_gram_conv &a, uint32_t from, const float (&scale)[8],
                                              const float (&bias)[8], uint4 add, int64_t at) {
    float v[8], other[8] = {};
    get8(v, from);
    if (a.add) ck_unpack<T>(add, other);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = fmaf(v[j], scale[j], bias[j]) + other[j];
        if (a.relu) v[j] = ck_relu(v[j]);
    }
    const uint4 word = ck_pack<T>(v);
    ck_store((T *)a.y, at, word);
    if (!a.mask) return;
    unsigned bits = 0;
    ck_unpack<T>(word, v);
#pragma unroll
    for (int j = 0; j < 8; j++) bits |= (v[j] > 0.0f ? 1u : 0u) << j;
    a.mask[at] = (unsigned char)bits;
}

/* The 32 pixels from `first` on. A thread finishes the same 8 channels of every 8th row. */
template <typename T>
__device__ __forceinline__ void finish(const struct ck_gram_conv &a, uint32_t base, int64_t first) {
    const int vector = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32;
    float     scale[8], bias[8];
    uint4     add[4] = {};
    get8(scale, base + VECTORS_AT + (uint32_t)vector * 32);
    get8(bias, base + VECTORS_AT + K * 4 + (uint32_t)vector * 32);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (a.add && first + row + 8 * i < a.pixels)
            add[i] = ck_load((const T *)a.add, (first + row + 8 * i) * (K / 8) + vector);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + row + 8 * i < a.pixels)
            finish_vector<T>(a, base + RESULT_AT + (uint32_t)((row + 8 * i) * RESULT_ROW + vector * 32), scale, bias,
                             add[i], (first + row + 8 * i) * (K / 8) + vector);
}

template <typename T, bool ACT> __global__ void __launch_bounds__(THREADS, 2) gram_conv(const struct ck_gram_conv a) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 base  = ck_shared(memory);
    const int                                      n     = (int)threadIdx.x / 32 * 32;
    const int64_t                                  tiles = (a.pixels + TILE - 1) / TILE;
    reader<T, ACT>                                 in(a.x, a.scale_bias, a.pixels);
    copy_matrix(base + W_AT, (const T *)a.w, K, C);
    ck_copy_commit();
    for (int i = (int)threadIdx.x; i < 2 * K; i += THREADS)
        ck_put4(base + (uint32_t)(VECTORS_AT + i * 4), a.out_scale_bias[i]);
    in.load(blockIdx.x);
    ck_copy_wait_all();
    int turn = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        const uint32_t x = base + (uint32_t)(X_AT + turn * C_TILE);
        in.store(tile, x);
        __syncthreads();
        in.load(tile + gridDim.x);
#pragma unroll
        for (int row = 0; row < TILE; row += HALF) {
            float acc[2][4][4];
            multiply_half<T>(acc, x, base + W_AT, row, n);
            __syncthreads(); /* the results before are written */
            put_results(acc, base + RESULT_AT, n);
            __syncthreads();
            finish<T>(a, base, tile * TILE + row);
        }
    }
}

template <typename T, bool ACT>
cudaError_t start(const struct ck_gram_conv *a, int multiprocessors, cudaStream_t stream) {
    const cudaError_t error = ck_allow_shared(gram_conv<T, ACT>, SHARED);
    if (error != cudaSuccess) return error;
    gram_conv<T, ACT><<<ck_blocks(tiles_of(a->pixels), 1, 2 * (int64_t)multiprocessors), THREADS, SHARED, stream>>>(*a);
    return cudaGetLastError();
}

} // namespace

cudaError_t ck_gram_conv(const struct ck_gram_conv *a, int multiprocessors, cudaStream_t stream) {
    if (a->type == CK_F16)
        return a->scale_bias ? start<__half, true>(a, multiprocessors, stream)
                             : start<__half, false>(a, multiprocessors, stream);
    return a->scale_bias ? start<__nv_bfloat16, true>(a, multiprocessors, stream)
                         : start<__nv_bfloat16, false>(a, multiprocessors, stream);
}

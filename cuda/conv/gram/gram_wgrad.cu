/* cuda/conv/gram/gram_wgrad.cu: dw = dy^T a and the sums of dy. The sums are the product with a column of ones. Sums
 * are in f32 within a block; the blocks are added in f64 and in order. */
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

constexpr int LENGTH = K * C + K, STAGES = 3, A_AT = STAGES * K_TILE, SHARED = A_AT + 2 * C_TILE, BLOCKS_PER_SM = 1;

template <typename T> __device__ __forceinline__ uint32_t ones() {
    return ck_pack_word<T>(1.0f, 1.0f);
}

/* Warp w: lines 32*w to +31 of dw. acc[.][8]: the sums, eight times. */
template <typename T>
__device__ __forceinline__ void multiply_tile(float (&acc)[2][9][4], uint32_t dy, uint32_t x, int m) {
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ck_mma_a_transposed(a[i], dy, K_ROW, m + i * 16, k);
            ck_mma<T>(acc[i][8], a[i], ones<T>(), ones<T>());
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t b[4];
            ck_mma_b_transposed(b, x, C_ROW, j * 8, k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ck_mma<T>(acc[i][j], a[i], b[0], b[1]);
                ck_mma<T>(acc[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

template <typename T, bool ACT>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) gram_wgrad(const struct ck_gram_wgrad a, float *partial) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 base = ck_shared(memory);
    const int                                      m = (int)threadIdx.x / 32 * 32, lane = (int)threadIdx.x % 32;
    const int64_t                                  tiles = (a.pixels + TILE - 1) / TILE, step = gridDim.x;
    reader<T, ACT>                                 in(a.x, a.scale_bias, a.pixels);
    float                                          acc[2][9][4] = {};
    int                                            turn         = 0;
    /* from the end: see gram_ring.cuh */
    const auto from_end = [&](int64_t tile) { return tile < tiles ? tiles - 1 - tile : tiles; };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        copy_wide(base + (uint32_t)(s * K_TILE), (const T *)a.dy, from_end(blockIdx.x + s * step), tiles, a.pixels);
        ck_copy_commit();
    }
    in.load(from_end(blockIdx.x));
    for (int64_t tile = blockIdx.x; tile < tiles; tile += step, turn++) {
        const uint32_t dy = base + (uint32_t)(turn % STAGES * K_TILE), x = base + (uint32_t)(A_AT + turn % 2 * C_TILE);
        in.store(from_end(tile), x);
        ck_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there, and all warps have left the stage that is filled next */
        in.load(from_end(tile + step));
        copy_wide(base + (uint32_t)((turn + STAGES - 1) % STAGES * K_TILE), (const T *)a.dy,
                  from_end(tile + (STAGES - 1) * step), tiles, a.pixels);
        ck_copy_commit();
        multiply_tile<T>(acc, dy, x, m);
    }
    float *to = partial + (int64_t)blockIdx.x * LENGTH;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = m + i * 16 + lane / 4 + e / 2 * 8;
#pragma unroll
            for (int j = 0; j < 8; j++) to[row * C + j * 8 + lane % 4 * 2 + e % 2] = acc[i][j][e];
            if (lane % 4 == 0 && e % 2 == 0) to[K * C + row] = acc[i][8][e];
        }
}

template <typename T, bool ACT>
cudaError_t start(const struct ck_gram_wgrad *a, float *partial, int blocks, cudaStream_t stream) {
    const cudaError_t error = ck_allow_shared(gram_wgrad<T, ACT>, SHARED);
    if (error != cudaSuccess) return error;
    gram_wgrad<T, ACT><<<blocks, THREADS, SHARED, stream>>>(*a, partial);
    add_blocks<<<(LENGTH + THREADS - 1) / THREADS, THREADS, 0, stream>>>(partial, blocks, LENGTH, a->dw, K * C,
                                                                         a->dy_sums);
    return cudaGetLastError();
}

} // namespace

int ck_gram_wgrad_shared(void) {
    return SHARED;
}

size_t ck_gram_wgrad_workspace(int multiprocessors) {
    return sizeof(float) * LENGTH * BLOCKS_PER_SM * (size_t)multiprocessors;
}

cudaError_t ck_gram_wgrad(const struct ck_gram_wgrad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const int    blocks  = (int)ck_blocks(tiles_of(a->pixels), 1, (int64_t)multiprocessors * BLOCKS_PER_SM);
    float *const partial = static_cast<float *>(workspace);
    if (a->type == CK_F16)
        return a->scale_bias ? start<__half, true>(a, partial, blocks, stream)
                             : start<__half, false>(a, partial, blocks, stream);
    return a->scale_bias ? start<__nv_bfloat16, true>(a, partial, blocks, stream)
                         : start<__nv_bfloat16, false>(a, partial, blocks, stream);
}

/* cuda/conv/gram/gram.cu: the Gram matrix of the input of a 1x1 convolution, its sums and its shift.
 *
 * The operands are a - t, rounded to 16 bits. Products are summed in f32 over runs of 512 pixels; the runs of a block
 * are added in f32, the blocks in f64, both in order. */
#include "cuda/conv/gram/gram_shift.cuh"
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

constexpr int LENGTH = C * C + C, BLOCKS_PER_SM = 2, RUN = 8; /* of a block's result; tiles of a run */

template <typename T, bool ACT> struct shifted : reader<T, ACT> {
    float      t[8], sum[8];
    __device__ shifted(const struct ck_gram &a) : reader<T, ACT>(a.x, a.scale_bias, a.pixels) {
        shifts_of(t, a.pixels, [&](int64_t pixel, float(&v)[8]) {
            ck_unpack<T>(ck_load(this->x, pixel * C / 8 + this->vector), v);
            this->activate(v);
            ck_unpack<T>(ck_pack<T>(v), v);
        });
        if (blockIdx.x == 0 && threadIdx.x < 8)
            for (int i = 0; i < 8; i++) a.gram[(C + 1) * C + this->vector * 8 + i] = t[i];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = 0.0f;
    }
    __device__ __forceinline__ void store_centered(int64_t tile, uint32_t to) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[8];
            ck_unpack<T>(this->held[i], v);
            if (ACT) {
                this->activate(v);
                ck_unpack<T>(ck_pack<T>(v), v);
            }
            uint4 word = make_uint4(0, 0, 0, 0);
            if (this->exists(tile, i)) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    v[j] -= t[j];
                    sum[j] += v[j];
                }
                word = ck_pack<T>(v);
            }
            ck_put16(ck_chunk_at(to, C_ROW, this->row + 32 * i, this->vector), word);
        }
    }
};

/* Warp w: lines 16*(w%4) to +15 and columns 32*(w/4) to +31 of the matrix. */
template <typename T, bool ACT>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) gram_blocks(const struct ck_gram a, float *partial) {
    __shared__ __align__(128) unsigned char memory[2 * C_TILE];
    const uint32_t                          base = ck_shared(memory);
    const int       warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, m = warp % 4 * 16, n = warp / 4 * 32;
    const int64_t   tiles = (a.pixels + TILE - 1) / TILE;
    shifted<T, ACT> in(a);
    float           acc[4][4] = {}, total[4][4] = {};
    int             turn = 0;
    in.load(blockIdx.x);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn++) {
        const uint32_t at = base + (uint32_t)(turn % 2 * C_TILE);
        in.store_centered(tile, at);
        __syncthreads();
        in.load(tile + gridDim.x);
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            uint32_t l[4], b[4];
            ck_mma_a_transposed(l, at, C_ROW, m, k);
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                ck_mma_b_transposed(b, at, C_ROW, n + j * 8, k);
                ck_mma<T>(acc[j], l, b[0], b[1]);
                ck_mma<T>(acc[j + 1], l, b[2], b[3]);
            }
        }
        if (turn % RUN < RUN - 1) continue;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            total[i / 4][i % 4] += acc[i / 4][i % 4];
            acc[i / 4][i % 4] = 0.0f;
        }
    }
    float *to = partial + (int64_t)blockIdx.x * LENGTH;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(m + lane / 4 + i / 2 * 8) * C + n + j * 8 + lane % 4 * 2 + i % 2] = total[j][i] + acc[j][i];
    __syncthreads();
    float *sums = reinterpret_cast<float *>(memory); /* [32 rows][C] */
#pragma unroll
    for (int i = 0; i < 8; i++) sums[in.row * C + in.vector * 8 + i] = in.sum[i];
    __syncthreads();
    if (threadIdx.x >= C) return;
    float sum = 0.0f;
    for (int r = 0; r < 32; r++) sum += sums[r * C + (int)threadIdx.x];
    to[C * C + (int)threadIdx.x] = sum;
}

int blocks_of(int64_t pixels, int multiprocessors) {
    return (int)ck_blocks(tiles_of(pixels), 1, (int64_t)multiprocessors * BLOCKS_PER_SM);
}

template <typename T, bool ACT>
cudaError_t start(const struct ck_gram *a, float *partial, int blocks, cudaStream_t stream) {
    gram_blocks<T, ACT><<<blocks, THREADS, 0, stream>>>(*a, partial);
    add_blocks<<<(LENGTH + THREADS - 1) / THREADS, THREADS, 0, stream>>>(partial, blocks, LENGTH, a->gram, LENGTH,
                                                                         nullptr);
    return cudaGetLastError();
}

} // namespace

size_t ck_gram_workspace(int multiprocessors) {
    return sizeof(float) * LENGTH * BLOCKS_PER_SM * (size_t)multiprocessors;
}

cudaError_t ck_gram(const struct ck_gram *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const int    blocks  = blocks_of(a->pixels, multiprocessors);
    float *const partial = static_cast<float *>(workspace);
    if (a->type == CK_F16)
        return a->scale_bias ? start<__half, true>(a, partial, blocks, stream)
                             : start<__half, false>(a, partial, blocks, stream);
    return a->scale_bias ? start<__nv_bfloat16, true>(a, partial, blocks, stream)
                         : start<__nv_bfloat16, false>(a, partial, blocks, stream);
}

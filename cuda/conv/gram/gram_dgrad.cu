/* cuda/conv/gram/gram_dgrad.cu: the gradient by the input of a 1x1 convolution and the BN behind it, from g and the
 * input itself; optional: the sum with the gradient of another branch, the mask of the ReLU before it, and the gradient
 * sums of the BN before that. */
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

constexpr int STAGES = 3, RESULT_ROW = (C + 4) * 4, W_G_AT = STAGES * K_TILE, W_X_AT = W_G_AT + C * K_ROW,
              A_AT = W_X_AT + C * C_ROW, RESULT_AT = A_AT + 2 * C_TILE, SHARED = RESULT_AT + TILE * RESULT_ROW;

/* acc = w_g g + factor * (w_x a) + bias; warp w: pixels 16*(w%4) to +15, columns 32*(w/4) to +31. */
template <typename T>
__device__ __forceinline__ void multiply_tile(float (&acc)[4][4], uint32_t g, uint32_t w_g, uint32_t x, uint32_t w_x,
                                              const float (&factor)[8], const float (&bias)[8], int m, int n) {
#pragma unroll
    for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < C; k += 16) {
        uint32_t a[4], b[4];
        ck_mma_a(a, x, C_ROW, m, k);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            ck_mma_b(b, w_x, C_ROW, n + j * 8, k);
            ck_mma<T>(acc[j], a, b[0], b[1]);
            ck_mma<T>(acc[j + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[j][i] = fmaf(acc[j][i], factor[j * 2 + i % 2], bias[j * 2 + i % 2]);
#pragma unroll 4
    for (int k = 0; k < K; k += 16) {
        uint32_t a[4], b[4];
        ck_mma_a(a, g, K_ROW, m, k);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            ck_mma_b(b, w_g, K_ROW, n + j * 8, k);
            ck_mma<T>(acc[j], a, b[0], b[1]);
            ck_mma<T>(acc[j + 1], a, b[2], b[3]);
        }
    }
}

/* The same 8 channels of every 32nd row. x, mean_rstd and sums only with BN. */
template <typename T, bool BN> struct finisher {
    int   vector, row;
    float scale[8], bias[8], mean[8], rstd[8], sum[8], product[8];

    __device__ finisher(const struct ck_gram_dgrad &a) : vector((int)threadIdx.x % 8), row((int)threadIdx.x / 8) {
#pragma unroll
        for (int i = 0; i < 8 && BN; i++) {
            const int c = vector * 8 + i;
            scale[i]    = a.scale_bias[c];
            bias[i]     = a.scale_bias[C + c];
            mean[i]     = a.mean_rstd[c];
            rstd[i]     = a.mean_rstd[C + c];
            sum[i] = product[i] = 0.0f;
        }
    }
    __device__ __forceinline__ void mask(float (&v)[8], uint4 word) {
        float x[8];
        ck_unpack<T>(word, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = fmaf(x[j], scale[j], bias[j]) > 0.0f ? v[j] : 0.0f;
            sum[j] += v[j];
            product[j] = fmaf(v[j], (x[j] - mean[j]) * rstd[j], product[j]);
        }
    }
    __device__ __forceinline__ void run(const struct ck_gram_dgrad &a, uint32_t from, int64_t tile) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t p = tile * TILE + row + 32 * i, at = p * (C / 8) + vector;
            if (p >= a.pixels) break;
            const uint32_t in  = from + (uint32_t)((row + 32 * i) * RESULT_ROW + vector * 32);
            const uint4    low = ck_get16(in), high = ck_get16(in + 16);
            float          v[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),  __uint_as_float(low.z),
                                   __uint_as_float(low.w),  __uint_as_float(high.x), __uint_as_float(high.y),
                                   __uint_as_float(high.z), __uint_as_float(high.w)};
            if (a.add) {
                float other[8];
                ck_unpack<T>(ck_load((const T *)a.add, at), other);
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] += other[j];
            }
            if (BN) mask(v, ck_load((const T *)a.x, at));
            ck_store((T *)a.dx, at, ck_pack<T>(v));
        }
    }
    /* partial[2][C] of the block; memory: [32 rows][2][C] f32. */
    __device__ __forceinline__ void put_sums(float *memory, float *partial) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            memory[(row * 2) * C + vector * 8 + i]     = sum[i];
            memory[(row * 2 + 1) * C + vector * 8 + i] = product[i];
        }
        __syncthreads();
        if (threadIdx.x >= 2 * C) return;
        float total = 0.0f;
        for (int r = 0; r < 32; r++) total += memory[r * 2 * C + (int)threadIdx.x];
        partial[(int64_t)blockIdx.x * 2 * C + (int)threadIdx.x] = total;
    }
};

template <typename T, bool ACT, bool BN>
__global__ void __launch_bounds__(THREADS, 1) gram_dgrad(const struct ck_gram_dgrad a, float *partial) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 base = ck_shared(memory);
    const int       warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, m = warp % 4 * 16, n = warp / 4 * 32;
    const int64_t   tiles = (a.pixels + TILE - 1) / TILE, step = gridDim.x;
    reader<T, ACT>  in(a.x, a.scale_bias, a.pixels);
    finisher<T, BN> end(a);
    float           factor[8], bias[8]; /* of this thread's columns of acc */
    int             turn = 0;
    copy_matrix(base + W_G_AT, (const T *)a.w_g, C, K);
    copy_matrix(base + W_X_AT, (const T *)a.w_x, C, C);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        factor[i] = a.factor_bias[n + i / 2 * 8 + lane % 4 * 2 + i % 2];
        bias[i]   = a.factor_bias[C + n + i / 2 * 8 + lane % 4 * 2 + i % 2];
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        copy_wide(base + (uint32_t)(s * K_TILE), (const T *)a.g, blockIdx.x + s * step, tiles, a.pixels);
        ck_copy_commit();
    }
    in.load(blockIdx.x);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += step, turn++) {
        const uint32_t x = base + (uint32_t)(A_AT + turn % 2 * C_TILE);
        float          acc[4][4];
        in.store(tile, x);
        ck_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there; all warps have left the stage that is filled next, and the results */
        in.load(tile + step);
        copy_wide(base + (uint32_t)((turn + STAGES - 1) % STAGES * K_TILE), (const T *)a.g, tile + (STAGES - 1) * step,
                  tiles, a.pixels);
        ck_copy_commit();
        multiply_tile<T>(acc, base + (uint32_t)(turn % STAGES * K_TILE), base + W_G_AT, x, base + W_X_AT, factor, bias,
                         m, n);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                ck_put4(base + (uint32_t)(RESULT_AT + (m + lane / 4 + i / 2 * 8) * RESULT_ROW +
                                          (n + j * 8 + lane % 4 * 2 + i % 2) * 4),
                        acc[j][i]);
        __syncthreads();
        end.run(a, base + RESULT_AT, tile);
    }
    if (!BN) return;
    ck_copy_wait_all();
    __syncthreads();
    end.put_sums(reinterpret_cast<float *>(memory), partial);
}

template <typename T, bool ACT, bool BN>
cudaError_t start(const struct ck_gram_dgrad *a, float *partial, int blocks, cudaStream_t stream) {
    const cudaError_t error = ck_allow_shared(gram_dgrad<T, ACT, BN>, SHARED);
    if (error != cudaSuccess) return error;
    gram_dgrad<T, ACT, BN><<<blocks, THREADS, SHARED, stream>>>(*a, partial);
    if (BN) add_blocks<<<1, THREADS, 0, stream>>>(partial, blocks, 2 * C, a->grad_sums, 2 * C, nullptr);
    return cudaGetLastError();
}

template <typename T>
cudaError_t start_as(const struct ck_gram_dgrad *a, float *partial, int blocks, cudaStream_t stream) {
    if (a->mean_rstd) return start<T, true, true>(a, partial, blocks, stream);
    return a->scale_bias ? start<T, true, false>(a, partial, blocks, stream)
                         : start<T, false, false>(a, partial, blocks, stream);
}

} // namespace

int ck_gram_dgrad_shared(void) {
    return SHARED;
}

size_t ck_gram_dgrad_workspace(int multiprocessors) {
    return sizeof(float) * 2 * C * (size_t)multiprocessors;
}

cudaError_t ck_gram_dgrad(const struct ck_gram_dgrad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const int    blocks  = (int)ck_blocks(tiles_of(a->pixels), 1, multiprocessors);
    float *const partial = static_cast<float *>(workspace);
    return a->type == CK_F16 ? start_as<__half>(a, partial, blocks, stream)
                             : start_as<__nv_bfloat16>(a, partial, blocks, stream);
}

/* cuda/conv/gram/gram.cu: the Gram matrix of the input of a 1x1 convolution, its sums and its shift, with mma.sync:
 * the family gram (cuda/conv/gram/gram.h).
 *
 * A block reads every n-th tile. Copies (cp.async) run three tiles ahead; a thread replaces the 16-byte chunks that it
 * has copied itself by a - t, rounded to 16 bits. Products are summed in f32 over runs of 512 pixels; the runs of a
 * block are added in f32, the blocks in f64, both in order. */
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/gram/gram_parts.cuh"
#include "cuda/conv/gram/gram_shift.cuh"
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

enum { RING = 4 /* tiles in flight and in use */, RUN = 8 /* tiles of a run */ };

template <typename T, bool ACT, int C> struct centered : reader<T, ACT, C> {
    using base = reader<T, ACT, C>;
    using base::at, base::BYTES, base::c, base::COUNT, base::exists, base::from, base::pixel, base::row, base::STEP;
    const uint32_t ring, tiles; /* raw chunks, thread by thread; two tiles of a - t */
    float          t[8], sum[8];

    __device__ centered(const source &x, uint32_t shared, float *gram)
        : base(x, 0), ring(shared), tiles(shared + RING * BYTES) {
        shifts_of(t, x.pixels, [&](int64_t pixel, float(&v)[8]) {
            unpack<T>(this->activated(*reinterpret_cast<const uint4 *>(at((int)pixel))), v);
        });
        if (blockIdx.x == 0 && row == 0)
            for (int i = 0; i < 8; i++) gram[(C + 1) * C + c + i] = t[i];
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = 0.0f;
    }
    __device__ __forceinline__ uint32_t chunk(int turn, int i) const {
        return ring + (uint32_t)(turn % RING * BYTES + (i * THREADS + (int)threadIdx.x) * 16);
    }
    __device__ __forceinline__ void copy(int turn, int tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const bool is = exists(tile, i);
            ck_copy16(chunk(turn, i), at(is ? pixel(tile, i) : 0), is);
        }
        ck_copy_commit();
    }
    __device__ __forceinline__ void convert(int turn, int tile) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float v[8];
            uint4 word = make_uint4(0, 0, 0, 0);
            unpack<T>(this->activated(ck_get16(chunk(turn, i))), v);
            if (exists(tile, i)) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    v[j] -= t[j];
                    sum[j] += v[j];
                }
                word = ck_pack<T>(v);
            }
            ck_put16(ck_chunk_at(tiles + (uint32_t)(turn % 2 * BYTES), C * 2, row + STEP * i, this->vector), word);
        }
    }
    /* Stores the block's sums; memory: [STEP][C] f32. All threads call. */
    __device__ __forceinline__ void put_sums(float *memory, float *to) const {
#pragma unroll
        for (int i = 0; i < 8; i++) memory[row * C + c + i] = sum[i];
        __syncthreads();
        if (threadIdx.x >= C) return;
        float all = 0.0f;
        for (int r = 0; r < STEP; r++) all += memory[r * C + (int)threadIdx.x];
        to[threadIdx.x] = all;
    }
};

/* A warp has C/4 rows and C/2 columns of the matrix. */
template <typename T, int C> struct products {
    static constexpr int M = C / 64, N = C / 16; /* fragments of 16 x 8 */
    const int            m, n;
    float                acc[M][N][4], total[M][N][4];

    __device__ products() : m((int)threadIdx.x / 32 % 4 * (C / 4)), n((int)threadIdx.x / 128 * (C / 2)) {
        clear(acc);
        clear(total);
    }
    static __device__ __forceinline__ void clear(float (&f)[M][N][4]) {
#pragma unroll
        for (int i = 0; i < M * N * 4; i++) f[i / (N * 4)][i / 4 % N][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void add_tile(uint32_t tile) {
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++) ck_mma_a_transposed(a[i], tile, C * 2, m + i * 16, k);
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                uint32_t b[4];
                ck_mma_b_transposed(b, tile, C * 2, n + j * 8, k);
#pragma unroll
                for (int i = 0; i < M; i++) {
                    ck_mma<T>(acc[i][j], a[i], b[0], b[1]);
                    ck_mma<T>(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    __device__ __forceinline__ void end_run() {
#pragma unroll
        for (int i = 0; i < M * N * 4; i++) total[i / (N * 4)][i / 4 % N][i % 4] += acc[i / (N * 4)][i / 4 % N][i % 4];
        clear(acc);
    }
    __device__ __forceinline__ void put(float *to) const {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    to[(m + i * 16 + lane / 4 + e / 2 * 8) * C + n + j * 8 + lane % 4 * 2 + e % 2] = total[i][j][e];
    }
};

template <int C> constexpr int shared_of = (RING + 2) * TILE *C * 2;
template <int C> constexpr int resident  = C == 64 ? 2 : 1; /* blocks of a multiprocessor */

template <typename T, bool ACT, int C>
__global__ void __launch_bounds__(THREADS, resident<C>) gram_mma(const source x, float *gram, float *partial) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int                                      step = (int)gridDim.x;
    ck_begin_after_last();
    centered<T, ACT, C> in(x, ck_shared(memory), gram);
    products<T, C>      out;
    int                 turn = 0;
    /* from the end: see gram_ring.cuh */
    const auto from_end = [&](int tile) { return tile < x.tiles ? x.tiles - 1 - tile : x.tiles; };
    for (int s = 0; s < RING - 1; s++) in.copy(s, from_end((int)blockIdx.x + s * step));
    for (int tile = (int)blockIdx.x; tile < x.tiles; tile += step, turn++) {
        ck_copy_wait<RING - 2>();
        in.convert(turn, from_end(tile));
        in.copy(turn + RING - 1, from_end(tile + (RING - 1) * step));
        __syncthreads(); /* the tile is complete, and all warps have left the tile before */
        out.add_tile(in.tiles + (uint32_t)(turn % 2 * in.BYTES));
        if (turn % RUN == RUN - 1) out.end_run();
    }
    out.end_run();
    float *to = partial + (int64_t)blockIdx.x * (C * C + C);
    out.put(to);
    ck_copy_wait_all();
    __syncthreads();
    in.put_sums(reinterpret_cast<float *>(memory), to + C * C);
}

int blocks_of(const struct ck_gram_matrix *a, int multiprocessors) {
    const source x = source_of(a->x, nullptr, a->N, a->H, a->W, a->C, a->stride);
    return (int)ck_blocks(x.tiles, 1, (int64_t)multiprocessors * (a->C == 64 ? resident<64> : resident<128>));
}

template <typename T, bool ACT, int C>
cudaError_t start(const struct ck_gram_matrix *a, float *partial, int blocks, cudaStream_t stream) {
    const source      x     = source_of(a->x, a->scale_bias, a->N, a->H, a->W, a->C, a->stride);
    const cudaError_t error = ck_launch_shared(gram_mma<T, ACT, C>, dim3((unsigned)blocks), dim3(THREADS), shared_of<C>,
                                               stream, x, a->gram, partial);
    return error != cudaSuccess ? error : start_add(partial, blocks, C * C + C, a->gram, C * C + C, nullptr, stream);
}
template <typename T, bool ACT>
cudaError_t start_as(const struct ck_gram_matrix *a, float *partial, int blocks, cudaStream_t stream) {
    return a->C == 64 ? start<T, ACT, 64>(a, partial, blocks, stream) : start<T, ACT, 128>(a, partial, blocks, stream);
}

int configs(const struct ck_gram_matrix *a, const struct ck_gpu *) {
    return a->type != CK_F32 && (a->C == 64 || a->C == 128) && ck_fits_ints(a->N, a->H, a->W, a->stride);
}

size_t workspace_of(const struct ck_gram_matrix *a, const struct ck_gpu *gpu) {
    return sizeof(float) * (size_t)(a->C * a->C + a->C) * (size_t)blocks_of(a, gpu->multiprocessors);
}

cudaError_t launch(const struct ck_gram_matrix *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!configs(a, gpu)) return cudaErrorInvalidValue;
    const int    blocks  = blocks_of(a, gpu->multiprocessors);
    float *const partial = static_cast<float *>(workspace);
    return ck_by_half(a->type, [&](auto t) {
        using T = decltype(t);
        return a->scale_bias ? start_as<T, true>(a, partial, blocks, stream)
                             : start_as<T, false>(a, partial, blocks, stream);
    });
}

} // namespace

const struct ck_conv_family ck_gram_mma = ck_family<ck_gram_matrix, configs, workspace_of, launch>();

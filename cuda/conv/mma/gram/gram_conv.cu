/* cuda/conv/mma/gram/gram_conv.cu: a 1x1 convolution of 64 or 128 channels with the BN behind it, the sum of both
 * branches, ReLU and its mask, with mma.sync: the first tile configs of the family point_gram (point_gram_mma.cu),
 * which checks the arguments.
 *
 * A block has 128 columns, whose filters stay in shared memory, and every groups-th tile of 64 or 128 pixels. Copies
 * (cp.async) of x run one tile ahead. `add` is copied to where the results of the warp will stand: a warp adds it to
 * its fragments, stores the results in its place as 16-bit elements, moves them to memory by rows of 128 bytes, and
 * starts the copy for its next tile. So no load is waited for while there is other work. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/common/mma.cuh"

namespace {

enum { COLUMNS = 128, WARPS = 8, THREADS = WARPS * 32, ROW = 128 /* bytes of 64 elements */ };

struct params {
    const void    *x, *w, *add;
    const float   *scale_bias, *out_scale_bias;
    void          *y;
    unsigned char *mask;
    int            rows, K, tiles, groups, blocks_k;
    int            stride, H, W, P, Q;
    bool           relu;
};

/* Of a block's shared memory. x has a tile of 64 channels behind the other. */
template <int ROWS, int C> struct layout {
    static constexpr int STEPS = C / 64, X_STEP = ROWS * ROW, X_STAGE = STEPS * X_STEP, W_STEP = COLUMNS * ROW;
    static constexpr int WARP_ROWS = ROWS / 4, FRAGMENTS = WARP_ROWS / 16, RESULTS = WARP_ROWS * ROW; /* of a warp */
    static constexpr int X_AT = STEPS * W_STEP, RESULT_AT = X_AT + 2 * X_STAGE, SCALE_AT = RESULT_AT + WARPS * RESULTS,
                         BYTES = SCALE_AT + 2 * C * 4;
};

template <typename T, int ROWS, int C, bool ACT> struct worker {
    using L = layout<ROWS, C>;
    const params  &p;
    const uint32_t shared, results;
    const int      lane, part, first_row, column; /* of the warp: 64 columns, first row of a tile; of the block */
    float          acc[L::FRAGMENTS][8][4];

    __device__ worker(const params &p_, uint32_t shared_, int column_)
        : p(p_), shared(shared_), results(shared_ + (uint32_t)(L::RESULT_AT + (int)threadIdx.x / 32 * L::RESULTS)),
          lane((int)threadIdx.x % 32), part((int)threadIdx.x / 32 % 2), first_row((int)threadIdx.x / 64 * L::WARP_ROWS),
          column(column_) {}

    /* ---- copies ---- */

    __device__ __forceinline__ int64_t pixel_of(int r) const {
        if (p.stride == 1) return r;
        const int n = r / (p.P * p.Q), rest = r - n * (p.P * p.Q), h = rest / p.Q;
        return ((int64_t)n * p.H + h * p.stride) * p.W + (rest - h * p.Q) * p.stride;
    }
    __device__ __forceinline__ void copy_w() const {
        constexpr int CHUNKS = C / 8;
#pragma unroll
        for (int i = 0; i < COLUMNS * CHUNKS / THREADS; i++) {
            const int  at = (int)threadIdx.x + i * THREADS, row = at / CHUNKS, chunk = at % CHUNKS;
            const bool is = column + row < p.K;
            ck_copy16(ck_chunk_at(shared + (uint32_t)(chunk / 8 * L::W_STEP), ROW, row, chunk % 8),
                      static_cast<const T *>(p.w) + (is ? (int64_t)(column + row) * C + chunk * 8 : 0), is);
        }
    }
    __device__ __forceinline__ void copy_x(int tile, int stage) const {
        constexpr int  CHUNKS = C / 8;
        const uint32_t to     = shared + (uint32_t)(L::X_AT + stage * L::X_STAGE);
        if (tile < p.tiles) {
#pragma unroll
            for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
                const int at = (int)threadIdx.x + i * THREADS, row = at / CHUNKS, chunk = at % CHUNKS,
                          r   = tile * ROWS + row;
                const bool is = r < p.rows;
                ck_copy16(ck_chunk_at(to + (uint32_t)(chunk / 8 * L::X_STEP), ROW, row, chunk % 8),
                          static_cast<const T *>(p.x) + (is ? pixel_of(r) * C + chunk * 8 : 0), is);
            }
        }
        ck_copy_commit();
    }
    /* Number in y of the first element of this lane's vector i of the warp's part of a tile; its row. */
    __device__ __forceinline__ int row_of(int tile, int i) const {
        return tile * ROWS + first_row + i * 4 + lane / 8;
    }
    __device__ __forceinline__ int64_t element_of(int row) const {
        return (int64_t)row * p.K + column + part * 64 + lane % 8 * 8;
    }
    __device__ __forceinline__ uint32_t vector_at(int i) const {
        return ck_chunk_at(results, ROW, i * 4 + lane / 8, lane % 8);
    }
    __device__ __forceinline__ bool exists(int row) const {
        return row < p.rows && column + part * 64 < p.K;
    }
    __device__ __forceinline__ void copy_add(int tile) const {
        if (p.add && tile < p.tiles) {
#pragma unroll
            for (int i = 0; i < L::WARP_ROWS / 4; i++) {
                const int  row = row_of(tile, i);
                const bool is  = exists(row);
                ck_copy16(vector_at(i), static_cast<const T *>(p.add) + (is ? element_of(row) : 0), is);
            }
        }
        ck_copy_commit();
    }

    /* ---- products ---- */

    __device__ __forceinline__ void set_vectors() const {
        if (ACT)
            for (int i = (int)threadIdx.x; i < 2 * C; i += THREADS)
                ck_put4(shared + (uint32_t)(L::SCALE_AT + i * 4), p.scale_bias[i]);
    }
    /* act(x) of 16 channels from c on. */
    __device__ __forceinline__ void activate(uint32_t (&a)[L::FRAGMENTS][4], int c) const {
        const uint32_t at = shared + (uint32_t)(L::SCALE_AT + (c + lane % 4 * 2) * 4);
#pragma unroll
        for (int half = 0; half < 2; half++) { /* channels 0..7 and 8..15: words 0, 1 and 2, 3 */
            const float2 scale = ck_get8(at + (uint32_t)(half * 32)),
                         bias  = ck_get8(at + (uint32_t)((half * 8 + C) * 4));
#pragma unroll
            for (int m = 0; m < L::FRAGMENTS; m++)
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++) {
                    const float2 v = ck_pair<T>(a[m][j]);
                    a[m][j]        = ck_pack_relu<T>(fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y));
                }
        }
    }
    __device__ __forceinline__ void multiply(int stage) {
#pragma unroll
        for (int i = 0; i < L::FRAGMENTS * 32; i++) acc[i / 32][i / 4 % 8][i % 4] = 0.0f;
#pragma unroll 2
        for (int c = 0; c < C; c += 16) {
            const uint32_t x = shared + (uint32_t)(L::X_AT + stage * L::X_STAGE + c / 64 * L::X_STEP),
                           w = shared + (uint32_t)(c / 64 * L::W_STEP);
            uint32_t a[L::FRAGMENTS][4];
#pragma unroll
            for (int m = 0; m < L::FRAGMENTS; m++) ck_mma_a(a[m], x, ROW, first_row + m * 16, c % 64);
            if (ACT) activate(a, c);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b[4];
                ck_mma_b(b, w, ROW, part * 64 + n * 16, c % 64);
#pragma unroll
                for (int m = 0; m < L::FRAGMENTS; m++) {
                    ck_mma<T>(acc[m][2 * n], a[m], b[0], b[1]);
                    ck_mma<T>(acc[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* ---- results ---- */

    /* Replaces add in shared memory by the results. */
    template <bool ADD, bool RELU> __device__ __forceinline__ void put_results() const {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int    k    = column + part * 64 + n * 8 + lane % 4 * 2;
            const float2 none = make_float2(0.0f, 0.0f), *const pair =
                                                             reinterpret_cast<const float2 *>(p.out_scale_bias + k);
            const float2 scale = k < p.K ? __ldg(pair) : none, bias = k < p.K ? __ldg(pair + p.K / 2) : none;
#pragma unroll
            for (int m = 0; m < L::FRAGMENTS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint32_t at =
                        ck_chunk_at(results, ROW, m * 16 + half * 8 + lane / 4, n) + (uint32_t)(lane % 4 * 4);
                    float low  = fmaf(acc[m][n][2 * half], scale.x, bias.x),
                          high = fmaf(acc[m][n][2 * half + 1], scale.y, bias.y);
                    if (ADD) {
                        const float2 other = ck_pair<T>(ck_get4(at));
                        low += other.x;
                        high += other.y;
                    }
                    ck_put4(at, RELU ? ck_pack_relu<T>(low, high) : ck_pack_pair<T>(low, high));
                }
        }
    }
    __device__ __forceinline__ void put_mask(uint4 word, int64_t at) const {
        float    v[8];
        unsigned bits = 0;
        ck_unpack<T>(word, v);
#pragma unroll
        for (int i = 0; i < 8; i++) bits |= (v[i] > 0.0f ? 1u : 0u) << i;
        p.mask[at / 8] = (unsigned char)bits;
    }
    __device__ __forceinline__ void finish(int tile) const {
        __syncwarp(); /* add is there */
        if (p.add)
            p.relu ? put_results<true, true>() : put_results<true, false>();
        else
            p.relu ? put_results<false, true>() : put_results<false, false>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < L::WARP_ROWS / 4; i++) {
            const int row = row_of(tile, i);
            if (!exists(row)) continue;
            const uint4 word = ck_get16(vector_at(i));
            ck_store_whole(static_cast<T *>(p.y) + element_of(row), word);
            if (p.mask) put_mask(word, element_of(row));
        }
        __syncwarp();
    }
};

template <typename T, int ROWS, int C, bool ACT>
__global__ void __launch_bounds__(THREADS, 2) gram_conv(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int                                      group = (int)blockIdx.x / p.blocks_k;
    worker<T, ROWS, C, ACT>                        worker(p, ck_shared(memory), (int)blockIdx.x % p.blocks_k * COLUMNS);
    ck_begin_after_last();
    worker.copy_w();
    worker.set_vectors();
    worker.copy_x(group, 0);
    worker.copy_add(group);
    int stage = 0;
    for (int tile = group; tile < p.tiles; tile += p.groups, stage ^= 1) {
        ck_copy_wait<1>();
        __syncthreads(); /* x is complete, and all warps have left the other stage */
        worker.copy_x(tile + p.groups, stage ^ 1);
        worker.multiply(stage);
        ck_copy_wait<1>();
        worker.finish(tile);
        worker.copy_add(tile + p.groups);
    }
}

/* ---- host side ---- */

template <typename T, int ROWS, int C> cudaError_t start_shape(const params &p, cudaStream_t stream) {
    const auto kernel = p.scale_bias ? gram_conv<T, ROWS, C, true> : gram_conv<T, ROWS, C, false>;
    return ck_launch_shared(kernel, dim3((unsigned)(p.groups * p.blocks_k)), dim3(THREADS), layout<ROWS, C>::BYTES,
                            stream, p);
}
template <typename T> cudaError_t start(const params &p, int rows, int64_t C, cudaStream_t stream) {
    if (C == 64) return rows == 128 ? start_shape<T, 128, 64>(p, stream) : start_shape<T, 64, 64>(p, stream);
    return rows == 128 ? start_shape<T, 128, 128>(p, stream) : start_shape<T, 64, 128>(p, stream);
}

int bytes_of(int rows, int64_t C) {
    if (C == 64) return rows == 128 ? layout<128, 64>::BYTES : layout<64, 64>::BYTES;
    return rows == 128 ? layout<128, 128>::BYTES : layout<64, 128>::BYTES;
}
/* Pixels of a tile. The first config has the largest tiles of which two blocks share a multiprocessor of 8.0. */
int rows_of(int config, int64_t C) {
    return (C == 64) == (config == 0) ? 128 : 64;
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    if (a->has_second || (a->C != 64 && a->C != 128)) return 0;
    static_assert(layout<128, 64>::BYTES <= 99 << 10 && layout<64, 128>::BYTES <= 99 << 10, "what every GPU has");
    return bytes_of(rows_of(1, a->C), a->C) <= gpu->block_bytes ? 2 : 1;
}

cudaError_t launch(const struct ck_fused_conv *a, void *, const struct ck_gpu *gpu, cudaStream_t stream) {
    const int rows = rows_of(a->config, a->C), bytes = bytes_of(rows, a->C);
    params    p        = {};
    p.x                = a->x;
    p.w                = a->w;
    p.add              = a->add;
    p.scale_bias       = a->scale_bias;
    p.out_scale_bias   = a->out_scale_bias;
    p.y                = a->y;
    p.mask             = a->mask;
    p.stride           = a->stride;
    p.H                = (int)a->H;
    p.W                = (int)a->W;
    p.P                = (int)a->P;
    p.Q                = (int)a->Q;
    p.rows             = (int)a->N * p.P * p.Q;
    p.K                = (int)a->K;
    p.tiles            = (p.rows + rows - 1) / rows;
    p.blocks_k         = (int)((a->K + COLUMNS - 1) / COLUMNS);
    p.relu             = a->relu;
    const int resident = 2 * (bytes + 1024) <= gpu->multiprocessor_bytes ? 2 : 1,
              most     = resident * gpu->multiprocessors;
    p.groups           = (int)ck_blocks(p.tiles, 1, most > p.blocks_k ? most / p.blocks_k : 1);
    return ck_by_half(a->type, [&](auto t) { return start<decltype(t)>(p, rows, a->C, stream); });
}

} // namespace

const struct ck_conv_family ck_gram_conv_mma = ck_family<ck_fused_conv, configs, ck_no_workspace, launch>();

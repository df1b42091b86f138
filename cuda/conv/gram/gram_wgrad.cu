/* cuda/conv/gram/gram_wgrad.cu: dw = dy^T a and the sums of dy, with mma.sync: the family
 * gram_product (cuda/conv/gram/gram.h).
 *
 * A block computes a slice of dw, 256 x 64 or 128 x 128 elements, over every n-th tile of 64 pixels; the blocks of the
 * slices of one tile run at the same time, so that all but one read it from the L2 cache. A warp has 32 lines and 64
 * columns of the slice. The sums of dy are the product with a column of ones. Sums are in f32 within a block; the
 * blocks are added in f64 and in order. */
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/gram/gram_parts.cuh"
#include "cuda/conv/gram/gram_tile.cuh"

namespace {

/* WIDTH: columns of a slice. */
template <int WIDTH> constexpr int lines                 = WIDTH == 64 ? 256 : 128;
template <int WIDTH> constexpr int a_tile                = TILE *WIDTH * 2;
template <int WIDTH> constexpr int dy_tile               = TILE *lines<WIDTH> * 2;
template <int WIDTH, int STAGES> constexpr int shared_of = STAGES *dy_tile<WIDTH> + 2 * a_tile<WIDTH>;

struct params {
    source      x;
    const void *dy;
    int         K, slices, across; /* slices of dw; across its columns */
    float      *partial;           /* [groups][K*C + K] */
};

template <typename T> __device__ __forceinline__ uint32_t ones() {
    return ck_pack_word<T>(1.0f, 1.0f);
}

template <typename T, bool ACT, int WIDTH, int STAGES> struct multiplier : reader<T, ACT, WIDTH> {
    using base = reader<T, ACT, WIDTH>;
    using base::COUNT, base::exists, base::from, base::row, base::STEP;
    static constexpr int DOWN = lines<WIDTH> / 32, ROW = lines<WIDTH> * 2; /* warps; bytes of a row of dy */
    const params        &p;
    const uint32_t       shared;
    const int            line, m, n; /* first line of the slice; first line and column of the warp in it */
    const bool           sums;       /* the warp adds dy */
    uint4                held[COUNT];
    float                acc[2][9][4]; /* [.][8]: the sums, eight times */

    __device__ multiplier(const params &p_, uint32_t shared_)
        : base(p_.x, (int)blockIdx.x % p_.slices % p_.across * WIDTH), p(p_), shared(shared_),
          line((int)blockIdx.x % p_.slices / p_.across * lines<WIDTH>), m((int)threadIdx.x / 32 % DOWN * 32),
          n((int)threadIdx.x / 32 / DOWN * 64), sums(n == 0 && (int)blockIdx.x % p_.slices % p_.across == 0) {
#pragma unroll
        for (int i = 0; i < 72; i++) acc[i / 36][i / 4 % 9][i % 4] = 0.0f;
    }
    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            held[i] = make_uint4(0, 0, 0, 0);
            if (exists(tile, i)) held[i] = *reinterpret_cast<const uint4 *>(this->at(this->pixel(tile, i)));
        }
    }
    __device__ __forceinline__ uint32_t a_at(int turn) const {
        return shared + (uint32_t)(STAGES * dy_tile<WIDTH> + turn % 2 * a_tile<WIDTH>);
    }
    /* Stores a of the loaded tile; rows behind the last pixel are 0. */
    __device__ __forceinline__ void store(int turn, int tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            ck_put16(ck_chunk_at(a_at(turn), WIDTH * 2, row + STEP * i, this->vector),
                     exists(tile, i) ? this->activated(held[i]) : make_uint4(0, 0, 0, 0));
    }
    /* Starts the copies of a tile of dy; what does not exist becomes 0. */
    __device__ __forceinline__ void copy_dy(int turn, int tile) const {
        constexpr int  VECTORS = lines<WIDTH> / 8, ROWS_AT_ONCE = THREADS / VECTORS;
        const int      vector = (int)threadIdx.x % VECTORS, k = line + vector * 8;
        const uint32_t to = shared + (uint32_t)(turn % STAGES * dy_tile<WIDTH>);
#pragma unroll
        for (int i = 0; i < TILE / ROWS_AT_ONCE; i++) {
            const int  r = (int)threadIdx.x / VECTORS + ROWS_AT_ONCE * i, pixel = tile * TILE + r;
            const bool is = tile < from.tiles && pixel < from.pixels && k < p.K;
            ck_copy16(ck_chunk_at(to, ROW, r, vector),
                      static_cast<const T *>(p.dy) + (is ? (int64_t)pixel * p.K + k : 0), is);
        }
        ck_copy_commit();
    }
    __device__ __forceinline__ void multiply(int turn) {
        const uint32_t dy = shared + (uint32_t)(turn % STAGES * dy_tile<WIDTH>), x = a_at(turn);
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            uint32_t a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ck_mma_a_transposed(a[i], dy, ROW, m + i * 16, k);
                if (sums) ck_mma<T>(acc[i][8], a[i], ones<T>(), ones<T>());
            }
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t b[4];
                ck_mma_b_transposed(b, x, WIDTH * 2, n + j * 8, k);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    ck_mma<T>(acc[i][j], a[i], b[0], b[1]);
                    ck_mma<T>(acc[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
    }
    __device__ __forceinline__ void put() const {
        const int lane = (int)threadIdx.x % 32, C = from.C, first = (int)blockIdx.x % p.slices % p.across * WIDTH + n;
        float    *to = p.partial + (int64_t)((int)blockIdx.x / p.slices) * ((int64_t)p.K * C + p.K);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = line + m + i * 16 + lane / 4 + half * 8;
                if (k >= p.K) continue;
#pragma unroll
                for (int j = 0; j < 8; j++)
                    *reinterpret_cast<float2 *>(to + (int64_t)k * C + first + j * 8 + lane % 4 * 2) =
                        make_float2(acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
                if (sums && lane % 4 == 0) to[(int64_t)p.K * C + k] = acc[i][8][half * 2];
            }
    }
};

template <typename T, bool ACT, int WIDTH, int STAGES>
__global__ void __launch_bounds__(THREADS, 1) gram_wgrad(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int first = (int)blockIdx.x / p.slices, step = (int)gridDim.x / p.slices, tiles = p.x.tiles;
    ck_begin_after_last();
    multiplier<T, ACT, WIDTH, STAGES> in(p, ck_shared(memory));
    int                               turn = 0;
    /* from the end: see gram_ring.cuh */
    const auto from_end = [&](int tile) { return tile < tiles ? tiles - 1 - tile : tiles; };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) in.copy_dy(s, from_end(first + s * step));
    in.load(from_end(first));
    for (int tile = first; tile < tiles; tile += step, turn++) {
        in.store(turn, from_end(tile));
        ck_copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile is there, and all warps have left the stage that is filled next */
        in.load(from_end(tile + step));
        in.copy_dy(turn + STAGES - 1, from_end(tile + (STAGES - 1) * step));
        in.multiply(turn);
    }
    in.put();
}

/* ---- host side ---- */

int64_t slices_of(const struct ck_gram_product *a) {
    return a->C == 64 ? (a->K + lines<64> - 1) / lines<64> : a->C / 128 * ((a->K + lines<128> - 1) / lines<128>);
}
int groups_of(const struct ck_gram_product *a, int multiprocessors) {
    const int64_t most = multiprocessors / slices_of(a);
    return (int)ck_blocks(source_of(a->x, nullptr, a->N, a->H, a->W, a->C, a->stride).tiles, 1, most > 0 ? most : 1);
}

template <typename T, bool ACT, int WIDTH, int STAGES>
cudaError_t start(const params &p, int groups, cudaStream_t stream) {
    return ck_launch_shared(gram_wgrad<T, ACT, WIDTH, STAGES>, dim3((unsigned)(groups * p.slices)), dim3(THREADS),
                            shared_of<WIDTH, STAGES>, stream, p);
}
/* With less than 112 KiB of shared memory for a block, the kernel for C = 64 has two stages instead of three. */
template <typename T, bool ACT>
cudaError_t start_as(const params &p, int groups, int block_bytes, cudaStream_t stream) {
    if (p.x.C != 64) return start<T, ACT, 128, 4>(p, groups, stream);
    return block_bytes >= shared_of<64, 3> ? start<T, ACT, 64, 3>(p, groups, stream)
                                           : start<T, ACT, 64, 2>(p, groups, stream);
}

int configs(const struct ck_gram_product *a, const struct ck_gpu *gpu) {
    static_assert(shared_of<64, 2> <= 99 << 10 && shared_of<128, 4> <= 99 << 10, "what every GPU has");
    return a->type != CK_F32 && (a->C == 64 || a->C % 128 == 0) && a->C > 0 && a->K >= 64 && a->K % 64 == 0 &&
           ck_fits_ints(a->N, a->H, a->W, a->stride) && slices_of(a) <= gpu->multiprocessors;
}

size_t workspace_of(const struct ck_gram_product *a, const struct ck_gpu *gpu) {
    return sizeof(float) * (size_t)(a->K * a->C + a->K) * (size_t)groups_of(a, gpu->multiprocessors);
}

cudaError_t launch(const struct ck_gram_product *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!configs(a, gpu)) return cudaErrorInvalidValue;
    const int         groups = groups_of(a, gpu->multiprocessors);
    const params      p      = {source_of(a->x, a->scale_bias, a->N, a->H, a->W, a->C, a->stride),
                                a->dy,
                                (int)a->K,
                                (int)slices_of(a),
                      a->C == 64 ? 1 : (int)a->C / 128,
                                static_cast<float *>(workspace)};
    const cudaError_t error  = ck_by_half(a->type, [&](auto t) {
        using T = decltype(t);
        return a->scale_bias ? start_as<T, true>(p, groups, gpu->block_bytes, stream)
                              : start_as<T, false>(p, groups, gpu->block_bytes, stream);
    });
    if (error != cudaSuccess) return error;
    return start_add(p.partial, groups, a->K * a->C + a->K, a->dw, a->K * a->C, a->dy_sums, stream);
}

} // namespace

const struct ck_conv_family ck_gram_product_mma = ck_family<ck_gram_product, configs, workspace_of, launch>();

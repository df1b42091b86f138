/* cuda/conv/gram/gram_wgrad_sm90a.cu: dw = dy^T a and the sums of dy, on compute capability 9.0: the family
 * gram_product (cuda/conv/gram/gram.h).
 *
 * A block computes a slice of dw: 256 output channels x 64 or 128 input channels, over every n-th tile of 64 pixels.
 * Two warpgroups multiply. With 128 input channels each has 64 of them; with 64 they take tiles in turn. They compute
 * dw^T = a^T dy: a^T goes from shared memory to registers, where act is applied, and dy is read from shared memory.
 * While the products run, the warps add dy over the tile's pixels. */
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/gram/gram.h"
#include "cuda/conv/gram/gram_ring.cuh"

namespace {

constexpr int DY_CHUNKS = 4, COLUMNS = DY_CHUNKS * 64, SUMS_BYTES = 2 * COLUMNS * (int)sizeof(float);

/* A: chunks of a in a tile. */
template <int A> constexpr int stage_bytes = (DY_CHUNKS + A) * CHUNK;
/* An even number: with A = 1, where the warpgroups take tiles in turn, each then always reads the same stages. If a
 * stage were read by both in turn, a warpgroup could take the phase of the barrier for the other one's tile for its
 * own. */
template <int A> constexpr int stages                         = 4;
template <int A> constexpr int bars_at                        = stages<A> *stage_bytes<A>;
template <int A> constexpr int                      sums_at   = bars_at<A> + BAR_BYTES;
template <int A> constexpr int                      shared_of = sums_at<A> + SUMS_BYTES;

struct params {
    source       dy, x;
    const float *scale_bias;
    float       *partial; /* [parts][K*C + K] */
    int          C, K, tiles, slices_c, slices_k;
};

#if CK_HAS_SM90A

struct slice {
    int   c, k, group; /* first channels; number of this block among those of the slice */
    share tiles;

    __device__ slice(const params &p, int channels) {
        const int slices = p.slices_c * p.slices_k, at = (int)blockIdx.x % slices;
        c     = at % p.slices_c * channels;
        k     = at / p.slices_c * COLUMNS;
        group = (int)blockIdx.x / slices;
        tiles = {group, (int)gridDim.x / slices, p.tiles};
    }
};

template <int A> __device__ __forceinline__ void load_tiles(const params &p, uint32_t shared) {
    const slice   s(p, A * 64);
    ck_ring_place at;
    for (int tile = s.tiles.first; tile < s.tiles.end; tile += s.tiles.step) {
        const uint32_t full = shared + (uint32_t)bars_at<A> + 8 * (uint32_t)at.at,
                       to   = shared + (uint32_t)(at.at * stage_bytes<A>);
        ck_mbar_wait(full + 8 * STAGES_MAX, at.parity ^ 1);
        ck_mbar_expect(full, stage_bytes<A>);
        const int from = s.tiles.in_tensor(tile);
#pragma unroll
        for (int i = 0; i < A; i++) load_chunk(to + (DY_CHUNKS + i) * CHUNK, p.x, full, s.c + i * 64, from);
#pragma unroll
        for (int i = 0; i < DY_CHUNKS; i++) load_chunk(to + i * CHUNK, p.dy, full, s.k + i * 64, from);
        at.next(stages<A>);
    }
}

template <typename T, int A, bool ACT> struct multiplier {
    static constexpr int ROWS = A == 1 ? PIXELS : PIXELS / 2; /* of a tile whose sums a thread adds */

    const params  &p;
    const slice    s;
    const uint32_t shared;
    const int      me, thread, warp, lane;
    float          acc[128], scale[2], bias[2], sum[2];

    __device__ multiplier(const params &p_, uint32_t shared_)
        : p(p_), s(p_, A * 64), shared(shared_), me((int)threadIdx.x / GROUP - 1), thread((int)threadIdx.x % GROUP),
          warp(thread / 32), lane(thread % 32) {
#pragma unroll
        for (int i = 0; i < 128; i++) acc[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[i] = ACT ? p.scale_bias[channel(i)] : 1.0f;
            bias[i]  = ACT ? p.scale_bias[p.C + channel(i)] : 0.0f;
            sum[i]   = 0.0f;
        }
    }
    /* Channel of the thread's lower (0) and upper (1) rows of dw^T. */
    __device__ __forceinline__ int channel(int upper) const {
        return s.c + (A == 2 ? me * 64 : 0) + warp * 16 + upper * 8 + lane / 4;
    }
    /* a^T of 16 channels x 64 pixels: word j of a[i] has channel 8*(j%2) and pixels 16*i + 8*(j/2). */
    __device__ __forceinline__ void read_a(uint32_t (&a)[4][4], uint32_t from) const {
        const int row = lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
            ck_ldmatrix_trans(a[i], from + (uint32_t)((i * 16 + row) * 128 + (chunk ^ row % 8) * 16));
#pragma unroll
        for (int i = 0; i < 16 && ACT; i++) {
            const float2 v = ck_pair<T>(a[i / 4][i % 4]);
            a[i / 4][i % 4] =
                ck_pack_relu<T>(fmaf(v.x, scale[i % 2], bias[i % 2]), fmaf(v.y, scale[i % 2], bias[i % 2]));
        }
    }
    /* Two neighbouring columns of dy. A = 1: all rows; A = 2: half of the rows of this warpgroup's half of dy. */
    __device__ __forceinline__ int column() const {
        return A == 1 ? thread * 2 : me * 128 + thread % 64 * 2;
    }
    __device__ __forceinline__ void add_sums(uint32_t dy) {
        const uint32_t from = dy + (uint32_t)(column() / 64 * CHUNK + (A == 1 ? 0 : thread / 64 * ROWS * 128)),
                       word = (uint32_t)(column() % 8 * 2), sixteen = (uint32_t)(column() % 64 / 8 * 16);
        float x = 0.0f, y = 0.0f;
#pragma unroll 16
        for (int r = 0; r < ROWS; r++) {
            const float2 v =
                ck_pair<T>(ck_get4(from + word + (sixteen ^ (uint32_t)(r % 8 * 16)) + (uint32_t)(r * 128)));
            x += v.x;
            y += v.y;
        }
        sum[0] += x;
        sum[1] += y;
    }
    __device__ __forceinline__ void process_tile(int at, uint32_t parity) {
        const uint32_t dy = shared + (uint32_t)(at * stage_bytes<A>),
                       x  = dy + (uint32_t)((DY_CHUNKS + (A == 2 ? me : 0)) * CHUNK);
        const uint64_t b  = ck_operand_transposed(dy, CHUNK);
        uint32_t       a[4][4];
        ck_mbar_wait(shared + (uint32_t)bars_at<A> + 8 * (uint32_t)at, parity);
        read_a(a, x);
        ck_wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) ck_wgmma<T, COLUMNS>::template left<1>(acc, a[i], b + (uint64_t)(2048 / 16 * i), 1);
        ck_wgmma_commit();
        if (s.c == 0) add_sums(dy);
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
        release_stage(shared + (uint32_t)bars_at<A>, at);
    }
    __device__ __forceinline__ void run() {
        ck_ring_place at;
        const int     turns = A == 1 ? GROUPS : 1;
        int           turn  = 0;
        for (int tile = s.tiles.first; tile < s.tiles.end; tile += s.tiles.step) {
            if (turns == 1 || turn == me) process_tile(at.at, at.parity);
            at.next(stages<A>);
            turn ^= 1;
        }
        const int64_t length = (int64_t)p.K * p.C + p.K;
        put(p.partial + (A == 1 ? s.group * GROUPS + me : s.group) * length);
    }
    __device__ __forceinline__ void put(float *to) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            to[(int64_t)(s.k + i / 4 * 8 + lane % 4 * 2 + i % 2) * p.C + channel(i / 2 % 2)] = acc[i];
        if (s.c != 0) return;
        float *sums = to + (int64_t)p.K * p.C + s.k;
        if (A == 1) {
            *(float2 *)(sums + column()) = make_float2(sum[0], sum[1]);
            return;
        }
        const uint32_t at = shared + (uint32_t)sums_at<A>;
        ck_put4(at + (uint32_t)((thread / 64 * COLUMNS + column()) * 4), sum[0]);
        ck_put4(at + (uint32_t)((thread / 64 * COLUMNS + column() + 1) * 4), sum[1]);
        ck_barrier(1, GROUPS * GROUP);
        const uint32_t mine = at + (uint32_t)((me * GROUP + thread) * 4);
        sums[me * GROUP + thread] =
            __uint_as_float(ck_get4(mine)) + __uint_as_float(ck_get4(mine + COLUMNS * (uint32_t)sizeof(float)));
    }
};

#endif

template <typename T, int A, bool ACT>
__global__ void __launch_bounds__(BLOCK, 1) wgrad(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    set_barriers(shared + (uint32_t)bars_at<A>, stages<A>, A == 1 ? GROUP / 32 : GROUPS * GROUP / 32);
    if (threadIdx.x < GROUP) {
        ck_registers_decrease<24>();
        ck_begin_after_last();
        if (threadIdx.x == 0) load_tiles<A>(p, shared);
    } else {
        ck_registers_increase<240>();
        ck_begin_after_last();
        multiplier<T, A, ACT>(p, shared).run();
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

struct layout {
    int     slices_c, slices_k, tiles, groups, parts;
    int64_t length;
};

struct layout layout_of(const struct ck_gram_product *a, int multiprocessors) {
    const int64_t pixels = a->N * ((a->H - 1) / a->stride + 1) * ((a->W - 1) / a->stride + 1);
    struct layout l;
    l.slices_c = a->C == 64 ? 1 : (int)(a->C / 128);
    l.slices_k = (int)(a->K / COLUMNS);
    l.tiles    = (int)((pixels + PIXELS - 1) / PIXELS);
    l.groups   = (int)ck_blocks(l.tiles, 1, ck_blocks(multiprocessors / (l.slices_c * l.slices_k), 1, INT32_MAX));
    l.parts    = a->C == 64 ? l.groups * GROUPS : l.groups;
    l.length   = a->K * a->C + a->K;
    return l;
}

template <typename T, bool ACT> cudaError_t start(const params *p, int blocks, cudaStream_t stream) {
    const bool one = p->C == 64;
    return ck_launch_shared(one ? wgrad<T, 1, ACT> : wgrad<T, 2, ACT>, dim3((unsigned)blocks), dim3(BLOCK),
                            one ? shared_of<1> : shared_of<2>, stream, *p);
}

int configs(const struct ck_gram_product *a, const struct ck_gpu *) {
    return a->type != CK_F32 && ck_fits_ints(a->N, a->H, a->W, a->stride) && a->C <= 1024 && a->K <= 4096 &&
           (a->C == 64 || a->C % 128 == 0) && a->C > 0 && a->K > 0 && a->K % COLUMNS == 0;
}

size_t workspace_of(const struct ck_gram_product *a, const struct ck_gpu *gpu) {
    const struct layout l = layout_of(a, gpu->multiprocessors);
    return sizeof(float) * (size_t)l.parts * (size_t)l.length;
}

cudaError_t launch(const struct ck_gram_product *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    const struct layout l = layout_of(a, gpu->multiprocessors);
    params              p = {};
    if (!map_source(&p.x, a->type, a->x, a->N, a->H, a->W, a->C, a->stride) ||
        !map_source(&p.dy, a->type, a->dy, a->N, p.x.P, p.x.Q, a->K, 1))
        return cudaErrorNotSupported;
    p.scale_bias             = a->scale_bias;
    p.partial                = static_cast<float *>(workspace);
    p.C                      = (int)a->C;
    p.K                      = (int)a->K;
    p.tiles                  = l.tiles;
    p.slices_c               = l.slices_c;
    p.slices_k               = l.slices_k;
    const int         blocks = l.groups * l.slices_c * l.slices_k;
    const cudaError_t error  = ck_by_half(a->type, [&](auto t) {
        using T = decltype(t);
        return a->scale_bias ? start<T, true>(&p, blocks, stream) : start<T, false>(&p, blocks, stream);
    });
    if (error != cudaSuccess) return error;
    return start_add(p.partial, l.parts, l.length, a->dw, a->K * a->C, a->dy_sums, stream);
}

} // namespace

const struct ck_conv_family ck_gram_product_wgmma = ck_family<ck_gram_product, configs, workspace_of, launch>();

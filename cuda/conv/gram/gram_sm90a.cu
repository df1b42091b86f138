/* cuda/conv/gram/gram_sm90a.cu: the Gram matrix of the input of a 1x1 convolution, its sums and its shift, on compute
 * capability 9.0: the family gram (cuda/conv/gram/gram.h).
 *
 * A block computes 64 x 64 (C = 64) or 128 x 128 elements of the matrix over every n-th tile of 64 pixels; of a larger
 * matrix only the blocks on and above the diagonal. The warps replace a tile in shared memory by a - t, rounded to 16
 * bits, and then multiply it with itself. With C = 64 the two warpgroups take tiles in turn; otherwise each has 64
 * rows of the block. Products are summed in f32 over runs of 512 pixels, the runs of a block in f32, blocks in f64. */
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/gram/gram.h"
#include "cuda/conv/gram/gram_ring.cuh"
#include "cuda/conv/gram/gram_shift.cuh"

namespace {

constexpr int SCRATCH_BYTES = 16 * 128 * (int)sizeof(float); /* [16][128] or [2][16][64] sums */

/* CHUNKS: of a stage. 1: C = 64. 2: C = 128. 4: larger; blocks on the diagonal use two of them. */
template <int CHUNKS> constexpr int stages    = CHUNKS == 1 ? 16 : CHUNKS == 2 ? 12 : 6;
template <int CHUNKS> constexpr int bars_at   = stages<CHUNKS> *CHUNKS *CHUNK;
template <int CHUNKS> constexpr int shared_of = bars_at<CHUNKS> + BAR_BYTES + SCRATCH_BYTES;

struct params {
    source       x;
    const void  *data;
    const float *scale_bias;
    float       *gram, *partial; /* partial[parts][C*C + C] */
    int          H, W, C, pixels, tiles;
    int          near, far; /* blocks of a slice on and above the diagonal */
};

#if CK_HAS_SM90A
constexpr int RUN = 8, PAIR = 2; /* tiles: summed in registers before they are added up; multiplied together */

/* The block's part of the matrix: its first row is i, its first column is j. */
struct slice {
    int   i, j, group;
    share tiles;

    /* The blocks of slices on the diagonal come first. */
    __device__ slice(const params &p) {
        const int wide = p.C < 128 ? 1 : p.C / 128, near = wide * p.near, far = wide * (wide - 1) / 2;
        int       block = (int)blockIdx.x, row = 0, column = 0;
        if (block < near) {
            row = column = block % wide;
            group        = block / wide;
        } else {
            block -= near;
            group  = block / far;
            column = block % far + 1;
            for (int columns = wide - 1; column > row + columns; columns--, row++) column -= columns - 1;
        }
        i     = row * 128;
        j     = column * 128;
        tiles = {group, row == column ? p.near : p.far, p.tiles};
    }
};

template <int CHUNKS> __device__ __forceinline__ void load_tiles(const params &p, uint32_t shared) {
    const slice   s(p);
    const int     chunks = CHUNKS == 4 && s.i == s.j ? 2 : CHUNKS;
    ck_ring_place at;
    for (int tile = s.tiles.first; tile < s.tiles.end; tile += s.tiles.step) {
        const uint32_t full = shared + (uint32_t)bars_at<CHUNKS> + 8 * (uint32_t)at.at,
                       to   = shared + (uint32_t)(at.at * CHUNKS * CHUNK);
        ck_mbar_wait(full + 8 * STAGES_MAX, at.parity ^ 1);
        ck_mbar_expect(full, (uint32_t)(chunks * CHUNK));
        for (int c = 0; c < chunks; c++)
            load_chunk(to + (uint32_t)(c * CHUNK), p.x, full, c < 2 ? s.i + c * 64 : s.j + (c - 2) * 64,
                       s.tiles.in_tensor(tile));
        at.next(stages<CHUNKS>);
    }
}

/* A warpgroup. STAGE: chunks of a stage; CHUNKS: those that are used. */
template <typename T, int STAGE, int CHUNKS, bool ACT> struct multiplier {
    static constexpr bool ALONE = CHUNKS == 1; /* the warpgroup has its own tiles */
    static constexpr int  WIDTH = ALONE ? 64 : 128, ACC = WIDTH / 2, THREADS = ALONE ? GROUP : GROUPS * GROUP;
    static constexpr int  VECTORS = CHUNKS * 8, ROWS = THREADS / VECTORS; /* of a pass; a thread has one vector */

    const params  &p;
    const slice    s;
    const uint32_t shared;
    const int      me, thread, warp, lane, vector, row, c; /* c: the first of this thread's eight channels */
    float          acc[ACC], total[ACC], scale[8], bias[8], t[8], sum[8];

    __device__ multiplier(const params &p_, uint32_t shared_)
        : p(p_), s(p_), shared(shared_), me((int)threadIdx.x / GROUP - 1),
          thread((int)threadIdx.x - GROUP - (ALONE ? me * GROUP : 0)), warp((int)threadIdx.x % GROUP / 32),
          lane((int)threadIdx.x % 32), vector(thread % VECTORS), row(thread / VECTORS),
          c(vector < 16 ? s.i + vector * 8 : s.j + (vector - 16) * 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            scale[i] = ACT ? p.scale_bias[c + i] : 1.0f;
            bias[i]  = ACT ? p.scale_bias[p.C + c + i] : 0.0f;
            sum[i]   = 0.0f;
        }
        shifts_of(t, p.pixels, [&](int64_t pixel, float(&v)[8]) {
            unpack(ck_load((const T *)p.data, (pixel_at((int)pixel) * p.C + c) / 8), v);
            activate(v);
        });
#pragma unroll
        for (int i = 0; i < ACC; i++) acc[i] = total[i] = 0.0f;
        if (s.group == 0 && me == 0 && row == 0 && s.i == s.j)
            for (int i = 0; i < 8; i++) p.gram[(int64_t)(p.C + 1) * p.C + c + i] = t[i];
    }
    /* Number in x of pixel `i` of those that are read. */
    __device__ __forceinline__ int64_t pixel_at(int i) const {
        const int n = i / (p.x.P * p.x.Q), rest = i - n * (p.x.P * p.x.Q), h = rest / p.x.Q;
        return ((int64_t)n * p.H + h * p.x.stride) * p.W + (rest - h * p.x.Q) * p.x.stride;
    }
    static __device__ __forceinline__ void unpack(const uint4 &word, float (&v)[8]) {
        const uint32_t pair[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = ck_pair<T>(pair[i]);
            v[2 * i] = two.x, v[2 * i + 1] = two.y;
        }
    }
    __device__ __forceinline__ void activate(float (&v)[8]) const {
        if (!ACT) return;
        uint4 word;
        word.x = ck_pack_relu<T>(fmaf(v[0], scale[0], bias[0]), fmaf(v[1], scale[1], bias[1]));
        word.y = ck_pack_relu<T>(fmaf(v[2], scale[2], bias[2]), fmaf(v[3], scale[3], bias[3]));
        word.z = ck_pack_relu<T>(fmaf(v[4], scale[4], bias[4]), fmaf(v[5], scale[5], bias[5]));
        word.w = ck_pack_relu<T>(fmaf(v[6], scale[6], bias[6]), fmaf(v[7], scale[7], bias[7]));
        unpack(word, v);
    }
    __device__ __forceinline__ uint32_t stage_at(int at) const {
        return shared + (uint32_t)(at * STAGE * CHUNK);
    }
    __device__ __forceinline__ uint32_t place(int at, int r) const {
        return stage_at(at) + (uint32_t)(vector / 8 * CHUNK + r * 128 + (vector % 8 ^ r % 8) * 16);
    }
    /* Replaces this thread's part of TILES tiles, at stages `at`, by a - t; the first tile has `valid` pixels. TAIL:
     * this may be less than PIXELS; rows behind the last pixel become 0. */
    template <int TILES, bool TAIL> __device__ __forceinline__ void center_rows(const int (&at)[PAIR], int valid) {
        constexpr int PASSES = PIXELS / ROWS;
        uint4         word[TILES][PASSES]; /* all loads first */
#pragma unroll
        for (int i = 0; i < TILES * PASSES; i++)
            word[i / PASSES][i % PASSES] = ck_get16(place(at[i / PASSES], row + i % PASSES * ROWS));
#pragma unroll
        for (int i = 0; i < TILES * PASSES; i++) {
            const bool is = !TAIL || row + i * ROWS < valid;
            float      v[8];
            unpack(word[i / PASSES][i % PASSES], v);
            activate(v);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                v[j] = is ? v[j] - t[j] : 0.0f;
                sum[j] += v[j];
            }
            ck_put16(place(at[i / PASSES], row + i % PASSES * ROWS), ck_pack<T>(v));
        }
    }
    /* Only the first tile of the kernel, the last one of the tensor, has less than PIXELS. */
    __device__ __forceinline__ void center_tiles(const int (&at)[PAIR], int tiles, int tile) {
        const int last[PAIR] = {at[1], at[1]}, end = p.pixels - s.tiles.in_tensor(tile) * PIXELS;
        if (CHUNKS < 4 && tiles == 2 && end >= PIXELS) { /* with four chunks, a tile has enough loads */
            center_rows<2, false>(at, PIXELS);
        } else {
            center_rows<1, true>(at, end);
            if (tiles == 2) center_rows<1, false>(last, PIXELS);
        }
        ck_fence_async();
    }
    __device__ __forceinline__ void barrier() const {
        ck_barrier(1 + (ALONE ? me : 0), THREADS);
    }
    __device__ __forceinline__ void multiply(int at, int keep) {
        const uint32_t left  = stage_at(at) + (uint32_t)((ALONE ? 0 : me) * CHUNK),
                       right = stage_at(at) + (uint32_t)(CHUNKS == 4 ? 2 * CHUNK : 0);
        const uint64_t a = ck_operand_transposed(left, CHUNK), b = ck_operand_transposed(right, CHUNK);
        ck_wgmma_fence();
#pragma unroll
        for (int i = 0; i < PIXELS / 16; i++)
            ck_wgmma<T, WIDTH>::template both<1, 1>(acc, a + (uint64_t)(2048 / 16 * i), b + (uint64_t)(2048 / 16 * i),
                                                    keep + i > 0);
        ck_wgmma_commit();
    }
    /* Waits for the products of the tile before. */
    __device__ __forceinline__ void complete() {
        ck_wgmma_wait<0>();
        ck_wgmma_hold(acc);
    }
    /* Tiles in pairs: the loads of both overlap, and they share waits and barriers. */
    __device__ __forceinline__ void run() {
        const int      turns = ALONE ? GROUPS : 1, step = s.tiles.step * turns;
        const uint32_t bars = shared + (uint32_t)bars_at<STAGE>;
        int            tile = s.tiles.first + (ALONE ? me * s.tiles.step : 0), before = 0, stage[PAIR], last[PAIR];
        ck_ring_place  at;
        if (ALONE) at.skip(me, stages<STAGE>);
        while (tile < s.tiles.end) {
            for (int n = 0; n < RUN && tile < s.tiles.end; n += PAIR, tile += PAIR * step) {
                const int tiles = tile + step < s.tiles.end ? 2 : 1;
#pragma unroll
                for (int i = 0; i < PAIR; i++) {
                    stage[i] = at.at;
                    if (i >= tiles) continue;
                    ck_mbar_wait(bars + 8 * (uint32_t)at.at, at.parity);
                    at.skip(turns, stages<STAGE>);
                }
                center_tiles(stage, tiles, tile);
                complete();
#pragma unroll
                for (int i = 0; i < PAIR; i++)
                    if (i < before) release_stage(bars, last[i]);
                barrier();
                multiply(stage[0], n > 0);
                if (tiles == 2) multiply(stage[1], 1);
                before = tiles;
#pragma unroll
                for (int i = 0; i < PAIR; i++) last[i] = stage[i];
            }
            complete();
#pragma unroll
            for (int i = 0; i < ACC; i++) total[i] += acc[i];
        }
        put(p.partial + (int64_t)(ALONE ? s.group * GROUPS + me : s.group) * ((int64_t)p.C * p.C + p.C));
    }
    __device__ __forceinline__ void put(float *to) {
#pragma unroll
        for (int i = 0; i < ACC; i++) {
            const int line                   = s.i + (ALONE ? 0 : me * 64) + warp * 16 + i / 2 % 2 * 8 + lane / 4,
                      column                 = s.j + i / 4 * 8 + lane % 4 * 2 + i % 2;
            to[(int64_t)line * p.C + column] = total[i];
            if (CHUNKS == 4) to[(int64_t)column * p.C + line] = total[i];
        }
        if (CHUNKS == 4) return;
        const uint32_t scratch = shared + (uint32_t)(bars_at<STAGE> + BAR_BYTES + (ALONE ? me : 0) * ROWS * WIDTH * 4);
#pragma unroll
        for (int i = 0; i < 8; i++) ck_put4(scratch + (uint32_t)((row * WIDTH + vector * 8 + i) * 4), sum[i]);
        barrier();
        if (thread >= WIDTH) return;
        float all = 0.0f;
        for (int r = 0; r < ROWS; r++) all += __uint_as_float(ck_get4(scratch + (uint32_t)((r * WIDTH + thread) * 4)));
        to[(int64_t)p.C * p.C + s.i + thread] = all;
    }
};

#endif

template <typename T, int CHUNKS, bool ACT>
__global__ void __launch_bounds__(BLOCK, 1) gram_matrix(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    set_barriers(shared + (uint32_t)bars_at<CHUNKS>, stages<CHUNKS>, (CHUNKS == 1 ? GROUP : GROUPS * GROUP) / 32);
    if (threadIdx.x < GROUP) {
        ck_registers_decrease<24>();
        ck_begin_after_last();
        if (threadIdx.x == 0) load_tiles<CHUNKS>(p, shared);
    } else {
        ck_registers_increase<240>();
        ck_begin_after_last();
        if constexpr (CHUNKS == 4) {
            const slice s(p);
            if (s.i == s.j)
                multiplier<T, CHUNKS, 2, ACT>(p, shared).run();
            else
                multiplier<T, CHUNKS, 4, ACT>(p, shared).run();
        } else {
            multiplier<T, CHUNKS, CHUNKS, ACT>(p, shared).run();
        }
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

struct layout {
    int     near, far, blocks, parts, tiles, pixels;
    int64_t length;
};

/* A block above the diagonal reads twice as many channels, and takes about 3/2 of the time of one on the diagonal. */
struct layout layout_of(const struct ck_gram_matrix *a, int multiprocessors) {
    const int     wide = a->C < 128 ? 1 : (int)(a->C / 128), above = wide * (wide - 1) / 2;
    struct layout l;
    l.pixels = (int)(a->N * ((a->H - 1) / a->stride + 1) * ((a->W - 1) / a->stride + 1));
    l.tiles  = (l.pixels + PIXELS - 1) / PIXELS;
    l.far    = 3 * multiprocessors / (2 * wide + 3 * above);
    l.near   = (multiprocessors - above * l.far) / wide;
    l.far    = (int)ck_blocks(l.far, 1, l.tiles);
    l.near   = (int)ck_blocks(l.near, 1, l.tiles);
    l.blocks = wide * l.near + above * l.far;
    l.parts  = a->C == 64 ? l.near * GROUPS : l.near > l.far ? l.near : l.far;
    l.length = a->C * a->C + a->C;
    return l;
}

template <typename T, bool ACT> cudaError_t start(const params *p, int blocks, cudaStream_t stream) {
    const auto kernel = p->C == 64    ? gram_matrix<T, 1, ACT>
                        : p->C == 128 ? gram_matrix<T, 2, ACT>
                                      : gram_matrix<T, 4, ACT>;
    const int  bytes  = p->C == 64 ? shared_of<1> : p->C == 128 ? shared_of<2> : shared_of<4>;
    return ck_launch_shared(kernel, dim3((unsigned)blocks), dim3(BLOCK), bytes, stream, *p);
}

int configs(const struct ck_gram_matrix *a, const struct ck_gpu *) {
    return a->type != CK_F32 && ck_fits_ints(a->N, a->H, a->W, a->stride) &&
           (a->C == 64 || (a->C > 0 && a->C % 128 == 0 && a->C <= 512));
}

size_t workspace_of(const struct ck_gram_matrix *a, const struct ck_gpu *gpu) {
    const struct layout l = layout_of(a, gpu->multiprocessors);
    return sizeof(float) * (size_t)l.parts * (size_t)l.length;
}

cudaError_t launch(const struct ck_gram_matrix *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    const struct layout l = layout_of(a, gpu->multiprocessors);
    params              p = {};
    if (!map_source(&p.x, a->type, a->x, a->N, a->H, a->W, a->C, a->stride)) return cudaErrorNotSupported;
    p.data                  = a->x;
    p.scale_bias            = a->scale_bias;
    p.gram                  = a->gram;
    p.partial               = static_cast<float *>(workspace);
    p.H                     = (int)a->H;
    p.W                     = (int)a->W;
    p.C                     = (int)a->C;
    p.pixels                = l.pixels;
    p.tiles                 = l.tiles;
    p.near                  = l.near;
    p.far                   = l.far;
    const cudaError_t error = ck_by_half(a->type, [&](auto t) {
        using T = decltype(t);
        return a->scale_bias ? start<T, true>(&p, l.blocks, stream) : start<T, false>(&p, l.blocks, stream);
    });
    if (error != cudaSuccess) return error;
    const int near = a->C == 64 ? l.parts : l.near;
    return start_add(p.partial, near, l.length, a->gram, l.length, nullptr, stream, (int)a->C, l.far);
}

} // namespace

const struct ck_conv_family ck_gram_wgmma = ck_family<ck_gram_matrix, configs, workspace_of, launch>();

/* cuda/conv/mma/conv3x3_mma.cu: 3x3 convolutions (the family conv3x3) from compute capability 8.0 on
 * (cuda/common/fused_conv.h): 64 channels to 64 channels.
 *
 * Bytes a pixel: 256, with bn_x 384; 73,728 operations a pixel. The limiter is the tensor cores.
 *
 * A block has the whole filter in shared memory and consecutive tiles of 256 positions, which two groups of 4 warps
 * take in turn: one multiplies while the other stores its results and starts copies. A warp computes 64 positions x 64
 * channels; the fragments of the next 16 channels are on their way during the products of these. */
#include "cuda/common/column_sums.cuh"
#include "cuda/common/conv_family.cuh"
#include "cuda/common/fused_conv.h"
#include "cuda/conv/mma/conv3x3_mma.cuh"

namespace {

template <typename T, int KIND> struct worker {
    static constexpr bool W_TRANSPOSED = KIND == TRANSPOSED || KIND == GRADIENT;
    const params         &p;
    const uint32_t        shared, panel;
    const int             group, warp, lane;
    float                 acc[EACH][8][4];
    column_sums           sums;

    __device__ worker(const params &params_, uint32_t shared_)
        : p(params_), shared(shared_), panel(shared_ + (uint32_t)(PANELS_AT + (int)threadIdx.x / 32 * PANEL_HALF)),
          group((int)threadIdx.x / THREADS), warp((int)threadIdx.x % THREADS / 32), lane((int)threadIdx.x % 32) {}

    /* ---- constants of the block ---- */

    __device__ __forceinline__ void copy_filters() const {
        for (int i = (int)threadIdx.x; i < W_BYTES / 16; i += GROUPS * THREADS)
            ck_copy16(ck_chunk_at(shared, W_ROW, i / (W_ROW / 16), i % (W_ROW / 16)),
                      static_cast<const T *>(p.w) + i * 8, true);
    }
    /* Bias; or scale and bias of the BN, rstd and -mean*rstd. */
    __device__ __forceinline__ void set_vectors() const {
        const int k = (int)threadIdx.x;
        if (k >= CHANNELS) return;
        const uint32_t to = shared + (uint32_t)(VECTORS_AT + k * 4);
        if (KIND == INFER) ck_put4(to, p.bias ? p.bias[k] : 0.0f);
        if (KIND == GRADIENT) {
            const float mean = p.mean_rstd[k], rstd = p.mean_rstd[CHANNELS + k], scale = p.gamma[k] * rstd;
            ck_put4(to, scale);
            ck_put4(to + 4 * CHANNELS, p.beta[k] - mean * scale);
            ck_put4(to + 8 * CHANNELS, rstd);
            ck_put4(to + 12 * CHANNELS, -mean * rstd);
        }
    }

    /* ---- products ---- */

    struct fragments {
        uint32_t a[EACH][4], b[4][4];
    };
    struct addresses {
        uint32_t a[EACH], b; /* of channels 0 to 15 of a filter position */
    };
    /* first: slot of the lane's first position, of fragment 0. */
    __device__ __forceinline__ void find(addresses &at, int first, int tap) const {
        const int distance = tap / SIDE * p.shape.pitch + tap % SIDE;
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            uint32_t slot = (uint32_t)(first + m * 16 + distance);
            slot          = min(slot, slot - (uint32_t)p.shape.slots); /* below 0 is a large number */
            at.a[m]       = ck_chunk_at(shared + RING_AT, ROW, (int)slot, lane / 16);
        }
        if (W_TRANSPOSED)
            at.b =
                ck_chunk_at(shared, W_ROW, lane / 8 % 2 * 8 + lane % 8, lane / 16) + (uint32_t)((TAPS - 1 - tap) * ROW);
        else
            at.b = ck_chunk_at(shared, W_ROW, lane / 16 * 8 + lane % 8, lane / 8 % 2) + (uint32_t)(tap * ROW);
    }
    /* Channels 16*step to 16*step + 15. */
    __device__ __forceinline__ void load(fragments &f, const addresses &at, int step) const {
#pragma unroll
        for (int m = 0; m < EACH; m++) ck_ldmatrix(f.a[m], at.a[m] ^ (uint32_t)(step << 5));
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (W_TRANSPOSED)
                ck_ldmatrix_trans(f.b[n], (at.b ^ (uint32_t)(n << 5)) + (uint32_t)(step * 16 * W_ROW));
            else
                ck_ldmatrix(f.b[n], (at.b ^ (uint32_t)(step << 5)) + (uint32_t)(n * 16 * W_ROW));
    }
    __device__ __forceinline__ void add(const fragments &f) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                ck_mma<T>(acc[m][2 * n], f.a[m], f.b[n][0], f.b[n][1]);
                ck_mma<T>(acc[m][2 * n + 1], f.a[m], f.b[n][2], f.b[n][3]);
            }
    }
    __device__ __forceinline__ void multiply(int tile) {
        const int first = (tile * TILE + warp * (EACH * 16)) % p.shape.slots + lane % 16;
        addresses at;
        fragments even, odd;
        find(at, first, 0);
        load(even, at, 0);
        clear();
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap++) {
            load(odd, at, 1);
            add(even);
            load(even, at, 2);
            add(odd);
            load(odd, at, 3);
            add(even);
            find(at, first, tap + 1 < TAPS ? tap + 1 : 0); /* the last one is not used */
            load(even, at, 0);
            add(odd);
        }
    }
    /* The products start from the bias. */
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 bias = make_float2(0.0f, 0.0f);
            if (KIND == INFER) bias = ck_get8(shared + (uint32_t)(VECTORS_AT + (n * 8 + lane % 4 * 2) * 4));
#pragma unroll
            for (int m = 0; m < EACH; m++) {
                acc[m][n][0] = acc[m][n][2] = bias.x;
                acc[m][n][1] = acc[m][n][3] = bias.y;
            }
        }
    }

    /* ---- results: 8 positions at a time through the warp's panel; a lane has 8 channels of two of them ---- */

    struct rows {
        int   pixel[2];
        uint4 add[2], bn[2];
    };
    __device__ __forceinline__ void find_rows(rows &r, int position) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r.pixel[i]       = p.shape.result(position + lane / 8 + 4 * i);
            const int64_t at = (int64_t)r.pixel[i] * 8 + lane % 8;
            r.add[i] = r.bn[i] = make_uint4(0, 0, 0, 0);
            if (W_TRANSPOSED && p.add && r.pixel[i] >= 0) r.add[i] = ck_load(static_cast<const T *>(p.add), at);
            if (KIND == GRADIENT && r.pixel[i] >= 0) r.bn[i] = ck_load(static_cast<const T *>(p.bn_x), at);
        }
    }
    __device__ __forceinline__ uint32_t vector_at(int i) const {
        return panel + (uint32_t)((lane / 8 + 4 * i) * HALF_ROW + lane % 8 * 16);
    }
    __device__ __forceinline__ uint32_t word_at(int n) const {
        return panel + (uint32_t)(lane / 4 * HALF_ROW + n * 16 + lane % 4 * 4);
    }
    template <int HALF> __device__ __forceinline__ void add_rows(float (&of)[8][4], const rows &r) const {
#pragma unroll
        for (int i = 0; i < 2; i++) ck_put16(vector_at(i), r.add[i]);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 v = ck_pair<T>(ck_get4(word_at(n)));
            of[n][2 * HALF] += v.x;
            of[n][2 * HALF + 1] += v.y;
        }
        __syncwarp();
    }
    struct numbers {
        float scale[8], bias[8], rstd[8], shift[8]; /* of the lane's channels */
    };
    __device__ __forceinline__ uint4 mask(uint4 word, uint4 bn, const numbers &of) {
        float v[8], x[8];
        ck_unpack<T>(word, v);
        ck_unpack<T>(bn, x);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = fmaf(x[i], of.scale[i], of.bias[i]) > 0.0f ? v[i] : 0.0f;
            sums.first[i] += v[i];
            sums.second[i] = fmaf(v[i], fmaf(x[i], of.rstd[i], of.shift[i]), sums.second[i]);
        }
        return ck_pack<T>(v);
    }
    template <int HALF>
    __device__ __forceinline__ void finish_half(float (&of)[8][4], const rows &r, const numbers &bn) {
        if (W_TRANSPOSED && p.add) add_rows<HALF>(of, r);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float low = of[n][2 * HALF], high = of[n][2 * HALF + 1];
            ck_put4(word_at(n), KIND == INFER && p.relu ? ck_pack_relu<T>(low, high) : ck_pack_pair<T>(low, high));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 word = ck_get16(vector_at(i));
            if (r.pixel[i] < 0) continue;
            if (KIND == GRADIENT) word = mask(word, r.bn[i], bn);
            if (KIND == PLAIN && p.partial) sums.template add<T>(word);
            ck_store_whole(static_cast<T *>(p.y) + (int64_t)r.pixel[i] * CHANNELS + lane % 8 * 8, word);
        }
        __syncwarp();
    }
    __device__ __forceinline__ void finish(int tile) {
        numbers bn = {};
        if (KIND == GRADIENT) {
            const uint32_t from = shared + (uint32_t)(VECTORS_AT + lane % 8 * 32);
            get8(bn.scale, from), get8(bn.bias, from + 4 * CHANNELS), get8(bn.rstd, from + 8 * CHANNELS),
                get8(bn.shift, from + 12 * CHANNELS);
        }
        const int position = tile * TILE + warp * (EACH * 16);
        rows      low, high;
        find_rows(low, position);
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            find_rows(high, position + m * 16 + 8);
            finish_half<0>(acc[m], low, bn);
            if (m + 1 < EACH) find_rows(low, position + m * 16 + 16);
            finish_half<1>(acc[m], high, bn);
        }
    }

    /* ---- groups ---- */

    enum { ALONE = 1 /* barriers of one group */, TURN = 3 /* a group's turn with the products */ };
    __device__ __forceinline__ void sync() const {
        ck_group_wait(ALONE + group, THREADS);
    }
    /* The positions of a tile that the tile before it does not have. */
    __device__ __forceinline__ void copy(int tile, int last) const {
        if (tile < last)
            copy_positions<T>(p, shared + RING_AT, tile * TILE + p.shape.reach(), (tile + 1) * TILE + p.shape.reach(),
                              warp * 32 + lane);
        ck_copy_commit();
    }
    /* Tiles first to last-1, in turn. Copies of a tile overwrite what its group has just read. */
    __device__ __forceinline__ void run(int first, int last) {
        copy_filters();
        set_vectors();
        if (group == 0)
            copy_positions<T>(p, shared + RING_AT, first * TILE, first * TILE + p.shape.reach(), warp * 32 + lane);
        copy(first + group, last);
        ck_copy_wait_all();
        __syncthreads(); /* filters, vectors and the first positions are complete */
        if (group == 1 && first < last) ck_group_arrive(TURN, GROUPS * THREADS);
        for (; first < last; first += GROUPS) {
            const int tile = first + group;
            ck_copy_wait_all();
            ck_group_wait(TURN + group, GROUPS * THREADS); /* the group's copies are complete */
            if (tile < last) multiply(tile);
            if (group == 0 || first + GROUPS < last) ck_group_arrive(TURN + (group ^ 1), GROUPS * THREADS);
            sync(); /* the group has read its positions */
            copy(tile + GROUPS, last);
            if (tile < last) finish(tile);
        }
    }
    /* Stores the group's sums in row `row` of the workspace. */
    __device__ __forceinline__ void write_sums(int row) {
        const uint32_t to = shared + (uint32_t)(PANELS_AT + group * (WARPS * PANEL_HALF)); /* f32 [WARPS][2][64] */
        sums.add_lanes();
        sync();
        if (lane < 8) sums.put(to + (uint32_t)(warp * 512));
        sync();
        const int i   = warp * 32 + lane;
        float     sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += __uint_as_float(ck_get4(to + (uint32_t)(w * 512 + i * 4)));
        p.partial[(int64_t)row * (2 * CHANNELS) + i] = sum;
    }
};
static_assert(THREADS == 2 * CHANNELS, "a thread for each sum");

template <typename T, int KIND> __global__ void __launch_bounds__(GROUPS *THREADS, 1) conv3x3_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int64_t                                  block = blockIdx.x, tiles = p.shape.tiles, blocks = p.shape.blocks;
    ck_begin_after_last();
    worker<T, KIND> worker(p, ck_shared(memory));
    worker.run((int)(block * tiles / blocks), (int)((block + 1) * tiles / blocks));
    if ((KIND == PLAIN || KIND == GRADIENT) && p.partial) worker.write_sums((int)block * GROUPS + worker.group);
}

/* ---- host side ---- */

shape shape_of(const struct ck_fused_conv *a, int multiprocessors) {
    shape s;
    s.N = (int)a->N, s.H = (int)a->P, s.W = (int)a->Q;
    s.pitch   = s.W + 1;
    s.slots   = (GROUPS * TILE + s.reach() + 7) / 8 * 8;
    s.tiles   = (int)((a->N * (a->P + 1) * (a->Q + 1) + TILE - 1) / TILE);
    s.blocks  = multiprocessors < s.tiles ? multiprocessors : s.tiles;
    s.pitches = ck_divisor_of(s.W + 1);
    s.lines   = ck_divisor_of(s.H + 1);
    return s;
}
int64_t bytes_of(const shape &s) {
    return RING_AT + (int64_t)s.slots * ROW;
}
enum kind kind_of(const struct ck_fused_conv *a) {
    if (a->transposed) return a->has_bn_x ? GRADIENT : TRANSPOSED;
    return a->has_bias || a->relu ? INFER : PLAIN;
}

template <typename T> cudaError_t start(const params &p, enum kind kind, cudaStream_t stream) {
    const auto kernel = kind == PLAIN        ? conv3x3_mma<T, PLAIN>
                        : kind == INFER      ? conv3x3_mma<T, INFER>
                        : kind == TRANSPOSED ? conv3x3_mma<T, TRANSPOSED>
                                             : conv3x3_mma<T, GRADIENT>;
    return ck_launch_shared(kernel, dim3((unsigned)p.shape.blocks), dim3(GROUPS * THREADS), bytes_of(p.shape), stream,
                            p);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    const int64_t most = INT32_MAX / 2;
    if (!ck_is_conv3x3(a) || !ck_has_64_channels(a) || a->Q > 1024 || a->P > most / (a->Q + 2) / 1024) return 0;
    /* positions behind the last tile too, in 32 bits, also times the divisors */
    if (a->N > most / ((a->P + 1) * (a->Q + 1)) / (a->P > a->Q ? a->P + 2 : a->Q + 2) - 1) return 0;
    return bytes_of(shape_of(a, gpu->multiprocessors)) <= gpu->block_bytes;
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    const shape s = shape_of(a, gpu->multiprocessors);
    return a->has_sums ? sizeof(float) * 2 * CHANNELS * GROUPS * (size_t)s.blocks : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    if (!configs(a, gpu)) return cudaErrorInvalidValue;
    params p    = {};
    p.shape     = shape_of(a, gpu->multiprocessors);
    p.x         = a->x;
    p.w         = a->w;
    p.add       = a->add;
    p.bn_x      = a->bn_x;
    p.bias      = a->bias;
    p.mean_rstd = a->mean_rstd;
    p.gamma     = a->gamma;
    p.beta      = a->beta;
    p.y         = a->y;
    p.partial   = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    p.relu      = a->relu;

    const cudaError_t error = ck_by_half(a->type, [&](auto t) { return start<decltype(t)>(p, kind_of(a), stream); });
    if (error != cudaSuccess || !a->has_sums) return error;
    return add_column_sums(p.partial, a->sums, p.shape.blocks * GROUPS, CHANNELS, CHANNELS, stream);
}

} // namespace

const struct ck_conv_family ck_conv3x3_mma = ck_family<ck_fused_conv, configs, workspace_of, launch>();

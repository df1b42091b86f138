/* cuda/sparse/mma_sp/mma_sp.cu: convolution with a sparse filter on the sparse tensor cores.
 *
 * A block stages a chunk of the input's channels of a tile, [place][channels] (f32: high parts, then low parts), a
 * place being a pixel with its neighbours under the filter; the places of one phase of the stride lie side by side, so
 * that a tap is a shift. A warp takes 64 output channels and some columns of 8 pixels; a step multiplies 4 blocks of 8
 * channels of any taps, read by one ldmatrix, as the band's list says. The filter's operands come from memory in the
 * order in which they are used, one ahead (other warps of the block, and of the other block of the multiprocessor, find
 * them in L1). Sums stay in registers while chunks pass; those of f32 go straight to y, 32 bytes of a pixel at a time,
 * those that several warps share and those of 16 bits through shared memory.
 *
 * f32: the scale of the input is tried on the way: a warp notes the largest number it staged, and if that was too large
 * or too small for f16 the chunk is staged once more with a better scale, and the sums are rescaled by a power of two.
 *
 * Bytes: y once, the residual once, x once a block's output channels (from L2 but for the first), 2.25 bytes a weight
 * of the dense filter (16 bits: 1.25) a tile. Limiter: the tensor cores, 3 products (16 bits: 1) of half of the dense
 * count, 916 TFLOP/s of dense products on one H200; below that the latency of staging, which only the other block
 * hides; for filters of 1 x 1 L2. */
#include "cuda/sparse/mma_sp/mma_sp.cuh"
#include "cuda/sparse/mma_sp/mma_sp.h"
#include "cuda/sparse/sparse_conv.cuh"

namespace mma_sp {
namespace {

enum { GROUPS = CK_MMA_SP_GROUPS, LISTS = GROUPS + 1, TOGETHER = 4 };
enum { STAYS = 32 << 20 /* bytes of an input that the second-level cache keeps beside an output on its way */ };
/* What the largest staged number of a chunk should be, so that two f16 numbers hold it and its neighbours; what it
 * becomes otherwise. */
constexpr float MOST = 32768.0f, LEAST = 4.0f, AIM = 1024.0f, FIRST_SCALE = 16.0f, LARGEST_SCALE = 0x1p120f;

/* Division by a number that the host knows, of what is below 2^31. */
struct quick {
    uint32_t by, multiply, shift;
};
quick quick_of(int64_t by) {
    quick q = {(uint32_t)by, 0, 0};
    while (((int64_t)1 << q.shift) < by) q.shift++;
    if (by > 1) q.multiply = (uint32_t)((((uint64_t)1 << (31 + q.shift)) + (uint64_t)by - 1) / (uint64_t)by), q.shift--;
    return q;
}
__device__ __forceinline__ uint32_t operator/(uint32_t n, const quick &q) {
    return q.by == 1 ? n : __umulhi(n, q.multiply) >> q.shift;
}

struct kernel_args {
    ck_sparse_args  a; /* the end of an output, as the other sparse kernels have it */
    const uint2    *run;
    const uint32_t *offset;
    const char     *fragment;
    const float    *scale;
    ck_mma_sp_plan  plan;
    uint32_t        patches, places;    /* of all; of a tile's input */
    int   table_at, points_at, most_at; /* bytes: pixels of places, pixels of outputs, largest numbers of warps */
    bool  filter_first;                 /* neighbouring blocks have the same part of the filter, else of the input */
    bool  linear;                       /* pixels of input and output are the same ones, one after the other */
    quick picture, row, pitch, high, phase, size, across; /* by patches of a picture, of a row, ... */
};

struct place {
    uint32_t patch;
    int      n, p0, q0; /* picture and first output pixel */
};
__device__ __forceinline__ place place_of(const kernel_args &k, uint32_t tile, uint32_t group) {
    place at;
    at.patch         = tile * (uint32_t)k.plan.groups + group;
    const uint32_t n = at.patch / k.picture, rest = at.patch - n * k.picture.by, row = rest / k.row;
    at.n  = (int)n;
    at.p0 = (int)row * k.plan.TP;
    at.q0 = (int)(rest - row * k.row.by) * k.plan.TQ;
    return at;
}

/* Input pixel of each place; -1: outside the picture, or no patch. */
__device__ __forceinline__ void fill_table(const kernel_args &k, uint32_t tile, int *table) {
    const ck_conv &c = k.a.conv;
    const int      H = (int)c.H, W = (int)c.W;
    for (uint32_t i = threadIdx.x; i < k.places; i += blockDim.x) {
        if (k.linear) {
            const uint32_t pixel = tile * (uint32_t)k.plan.groups + i;
            table[i]             = pixel < k.patches ? (int)pixel : -1;
            continue;
        }
        const uint32_t row = i / k.pitch, column = i - row * k.pitch.by, patch = row / k.high, phase = column / k.phase;
        const place    at = place_of(k, tile, patch);
        const int      h  = at.p0 * c.stride - c.pad + (int)(row - patch * k.high.by);
        const int      w  = at.q0 * c.stride - c.pad + (int)(column - phase * k.phase.by) * c.stride + (int)phase;
        const bool     in = at.patch < k.patches && h >= 0 && h < H && w >= 0 && w < W;
        table[i]          = in ? (at.n * H + h) * W + w : -1;
    }
}
/* Output pixel of each item; -1: none. */
__device__ __forceinline__ void fill_points(const kernel_args &k, uint32_t tile, uint32_t items, int *points) {
    const ck_conv &c = k.a.conv;
    const int      P = (int)c.P, Q = (int)c.Q;
    for (uint32_t i = threadIdx.x; i < items; i += blockDim.x) {
        if (k.linear) {
            const uint32_t pixel = tile * (uint32_t)k.plan.groups + i;
            points[i]            = i < (uint32_t)k.plan.groups && pixel < k.patches ? (int)pixel : -1;
            continue;
        }
        const uint32_t patch = i / k.size, of = i - patch * k.size.by, down = of / k.across;
        const place    at = place_of(k, tile, patch);
        const int      p = at.p0 + (int)down, q = at.q0 + (int)(of - down * k.across.by);
        const bool     out = patch < (uint32_t)k.plan.groups && at.patch < k.patches && p < P && q < Q;
        points[i]          = out ? (at.n * P + p) * Q + q : -1;
    }
}

/* ---- staging ---- */

/* 8 channels from c on of a pixel (-1: none), as they come from memory. */
template <typename T> struct eight { uint4 v[sizeof(T) / 2]; };
/* WHOLE: channels come in 16 bytes. */
template <typename T, bool WHOLE>
__device__ __forceinline__ eight<T> load_eight(const kernel_args &k, int pixel, int c) {
    eight<T>  to   = {};
    const int left = pixel >= 0 ? (int)k.a.conv.C - c : 0;
    const T  *from = (const T *)k.a.x + (int64_t)pixel * k.a.conv.C + c;
    if constexpr (WHOLE) {
#pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 2; i++)
            if (i * ck_vector_elems<T>() < left)
                to.v[i] = __ldg(reinterpret_cast<const uint4 *>(from + i * ck_vector_elems<T>()));
    } else {
        float one[8];
#pragma unroll
        for (int i = 0; i < 8; i++) one[i] = i < left ? ck_float(from[i]) : 0.0f;
#pragma unroll
        for (int i = 0; i < (int)sizeof(T) / 2; i++) to.v[i] = ck_pack<T>(one + i * ck_vector_elems<T>());
    }
    return to;
}

/* To shared memory; for f32 also the largest finite number so far. */
template <typename T>
__device__ __forceinline__ void store_eight(const eight<T> &from, char *to, int low_at, float scale, float *most) {
    if constexpr (sizeof(T) == 2)
        *reinterpret_cast<uint4 *>(to) = from.v[0];
    else {
        float x[8];
        ck_unpack<float>(from.v[0], x);
        ck_unpack<float>(from.v[1], x + 4);
#pragma unroll
        for (int i = 0; i < 8; i++) *most = fmaxf(*most, fabsf(x[i]) < INFINITY ? fabsf(x[i]) : 0.0f);
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) split(x[2 * i] * scale, x[2 * i + 1] * scale, &high[i], &low[i]);
        *reinterpret_cast<uint4 *>(to)          = make_uint4(high[0], high[1], high[2], high[3]);
        *reinterpret_cast<uint4 *>(to + low_at) = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

/* `eights` times 8 channels from c0 on of all places. Gives this thread's largest number. */
template <typename T, bool WHOLE>
__device__ __forceinline__ float stage(const kernel_args &k, const int *table, char *memory, int c0, int eights,
                                       float scale) {
    const int over = (int)blockDim.x % eights, down = (int)blockDim.x / eights, low_at = k.plan.chunk * 2;
    int       at = (int)threadIdx.x / eights, c = (int)threadIdx.x % eights;
    float     most = 0;
    while (at < (int)k.places) {
        constexpr int MANY = WHOLE ? (int)TOGETHER : 1;
        eight<T>      v[MANY];
        char         *to[MANY];
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            to[i] = at < (int)k.places ? memory + (int64_t)at * k.plan.place_bytes + c * 16 : nullptr;
            v[i]  = load_eight<T, WHOLE>(k, at < (int)k.places ? table[at] : -1, c0 + c * 8);
            at += down, c += over;
            if (c >= eights) at++, c -= eights;
        }
#pragma unroll
        for (int i = 0; i < MANY; i++)
            if (to[i]) store_eight<T>(v[i], to[i], low_at, scale, &most);
    }
    return most;
}

/* Stages a chunk, f32 with a scale that suits it, `ceiling` at most; begins and ends with a barrier. Gives the scale.
 */
template <typename T>
__device__ __forceinline__ float stage_scaled(const kernel_args &k, const int *table, char *memory, float *largest,
                                              int chunk, float scale, float ceiling) {
    const int c0 = chunk * k.plan.chunk, left = (int)k.a.conv.C - c0;
    const int eights = ((left < k.plan.chunk ? left : k.plan.chunk) + 7) / 8;
    for (;;) {
        __syncthreads();
        float most = k.a.conv.C % ck_vector_elems<T>() == 0 ? stage<T, true>(k, table, memory, c0, eights, scale)
                                                            : stage<T, false>(k, table, memory, c0, eights, scale);
        if constexpr (sizeof(T) == 4) {
            most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
            if (threadIdx.x % CK_WARP == 0) largest[threadIdx.x / CK_WARP] = most;
        }
        __syncthreads();
        if constexpr (sizeof(T) == 4)
#pragma unroll
            for (int i = 0; i < MAX_WARPS; i++) most = i * CK_WARP < (int)blockDim.x ? fmaxf(most, largest[i]) : most;
        const bool fits = most * scale <= MOST && (most * scale >= LEAST || scale >= ceiling);
        if (sizeof(T) == 2 || most == 0.0f || fits) return scale;
        scale = fminf(ldexpf(1.0f, ilogbf(AIM) - ilogbf(most)), ceiling);
    }
}

/* ---- products ---- */

/* The filter's part of a product, as it comes from memory; `low` is f32's. */
template <typename T, bool EARLY> struct fragment {
    static constexpr int            BYTES = fragment_bytes(sizeof(T));
    uint4                           high, low;
    uint32_t                        places;
    __device__ __forceinline__ void load(const char *from, int lane) {
        high   = __ldg(reinterpret_cast<const uint4 *>(from) + lane);
        places = __ldg(reinterpret_cast<const uint32_t *>(from + BYTES - CK_WARP * 4) + lane);
        if (sizeof(T) == 4 && EARLY) load_low(from, lane);
    }
    __device__ __forceinline__ void load_low(const char *from, int lane) {
        low = __ldg(reinterpret_cast<const uint4 *>(from) + CK_WARP + lane);
    }
};

/* The input's part: 32 columns of 8*COLUMNS pixels. */
template <typename T, int COLUMNS> struct taken {
    uint32_t                        high[COLUMNS][4], low[sizeof(T) == 4 ? COLUMNS : 1][4];
    __device__ __forceinline__ void load(const uint32_t (&base)[COLUMNS], uint32_t offset, uint32_t low_at) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) load_rows(high[n], base[n] + offset);
        if constexpr (sizeof(T) == 4)
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) load_rows(low[n], base[n] + offset + low_at);
    }
};

/* The tensor cores cut sums off instead of rounding them; for f32 therefore only the products of a step are summed
 * there, small ones first. WAVE: columns under way. */
template <typename T, int COLUMNS, typename F>
__device__ __forceinline__ void products(float (&sum)[COLUMNS][4], const F &w, const taken<T, COLUMNS> &x) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) product<T, true>::add(sum[n], w.high, x.high[n], w.places);
    } else {
        constexpr int WAVE  = COLUMNS > 3 ? 2 : COLUMNS;
        const uint4   small = smaller(w.high);
#pragma unroll
        for (int first = 0; first < COLUMNS; first += WAVE) {
            float part[WAVE][4];
#pragma unroll
            for (int n = 0; n < WAVE; n++) product<__half, false>::add(part[n], small, x.low[first + n], w.places);
#pragma unroll
            for (int n = 0; n < WAVE; n++) product<__half, true>::add(part[n], w.low, x.high[first + n], w.places);
#pragma unroll
            for (int n = 0; n < WAVE; n++) product<__half, true>::add(part[n], w.high, x.high[first + n], w.places);
#pragma unroll
            for (int n = 0; n < WAVE; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[first + n][i] += part[n][i];
        }
    }
}

/* This warp's part of one run of a band: steps of all groups, then those of single groups. Lane i has entry i of the
 * run's list. */
template <typename T, int COLUMNS> struct walker {
    static constexpr bool EARLY = COLUMNS != 4; /* registers are few */
    using filter                = fragment<T, EARLY>;
    const kernel_args &k;
    const int          lane;
    const uint32_t    *offset;
    const char        *from;
    uint32_t           at; /* offset of the next step: there is one more than steps, as there is of fragments */
    filter             next;

    __device__ __forceinline__ walker(const kernel_args &args) : k(args), lane((int)threadIdx.x % CK_WARP) {}

    __device__ __forceinline__ void go_to(uint32_t step, uint32_t first) {
        offset = k.offset + (int64_t)step * 4 + lane / 8;
        from   = k.fragment + (int64_t)first * filter::BYTES;
        at     = __ldg(offset);
        next.load(from, lane);
    }
    __device__ __forceinline__ void take(taken<T, COLUMNS> &x, const uint32_t (&base)[COLUMNS]) {
        x.load(base, at, (uint32_t)k.plan.chunk * 2);
        at = __ldg(offset += 4);
    }
    __device__ __forceinline__ void multiply(const taken<T, COLUMNS> &x, float (&sum)[COLUMNS][4]) {
        filter w = next;
        if (sizeof(T) == 4 && !EARLY) w.load_low(from, lane);
        next.load(from += filter::BYTES, lane);
        products<T, COLUMNS>(sum, w, x);
    }

    __device__ __forceinline__ void walk(const uint2 &run, int part, const uint32_t (&base)[COLUMNS],
                                         float (&sum)[GROUPS][COLUMNS][4]) {
        const uint32_t all = 0xffffffffu, split = (uint32_t)k.plan.split, first = __shfl_sync(all, run.x, 0);
        const uint32_t most = __shfl_sync(all, run.x, 1) - first, begin = most * (uint32_t)part / split;
        int            steps = (int)(most * (uint32_t)(part + 1) / split - begin);
        go_to(first + begin, __shfl_sync(all, run.y, 0) + begin * GROUPS);
#pragma unroll 1
        for (; steps > 0; steps--) {
            taken<T, COLUMNS> x;
            take(x, base);
#pragma unroll
            for (int m = 0; m < GROUPS; m++) multiply(x, sum[m]);
        }
#pragma unroll
        for (int m = 0; m < GROUPS; m++) {
            const uint32_t step = __shfl_sync(all, run.x, m + 1), fragment = __shfl_sync(all, run.y, m + 1);
            steps = (int)(__shfl_sync(all, run.x, m + 2) - step);
            if (split > 1 && steps > 0) { /* one part takes such a list */
                if (m % split == (uint32_t)part)
                    go_to(step, fragment);
                else
                    steps = 0;
            }
#pragma unroll 1
            for (; steps > 0; steps--) {
                taken<T, COLUMNS> x;
                take(x, base);
                multiply(x, sum[m]);
            }
        }
    }
};

/* ---- the kernel ---- */

/* This thread's sums straight to y: 8 channels of a pixel are one sector of 32 bytes. `first`: output channel of the
 * warp's first sum. */
template <int COLUMNS>
__device__ __forceinline__ void write_sums(const kernel_args &k, const float (&sum)[GROUPS][COLUMNS][4],
                                           const int *points, int64_t first, float by) {
    const int     lane = (int)threadIdx.x % CK_WARP;
    const int64_t K = k.a.conv.K, channel = first + lane / 4;
    const float  *add = (const float *)k.a.add;
    float         scale[GROUPS][2], bias[GROUPS][2];
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            scale[m][half] = __ldg(k.scale + channel + m * 16 + half * 8) * by; /* powers of two */
            bias[m][half] =
                k.a.bias && channel + m * 16 + half * 8 < K ? __ldg(k.a.bias + channel + m * 16 + half * 8) : 0.0f;
        }
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int     pixel = points[n * 8 + lane % 4 * 2 + i];
            const int64_t at    = pixel * K + channel;
            if (pixel < 0) continue;
#pragma unroll
            for (int m = 0; m < GROUPS; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int to = m * 16 + half * 8;
                    float     v  = fmaf(sum[m][n][half * 2 + i], scale[m][half], bias[m][half]);
                    if (channel + to >= K) continue;
                    if (add) v += add[at + to];
                    ((float *)k.a.y)[at + to] = k.a.relu ? ck_relu(v) : v;
                }
        }
}

/* Sums to out[item][channels of the block + 4], made what they are without the scales; `more`: to what is there. */
template <int COLUMNS>
__device__ __forceinline__ void put(const kernel_args &k, bool more, float (&sum)[GROUPS][COLUMNS][4], float *out,
                                    int first, int item, int64_t k0, float by) {
    const int lane = (int)threadIdx.x % CK_WARP, pitch = k.plan.bands * CK_MMA_SP_BAND + 4;
#pragma unroll
    for (int m = 0; m < GROUPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int   channel = first + m * 16 + half * 8 + lane / 4;
            const float scale   = __ldg(k.scale + k0 + channel) * by; /* powers of two */
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &to = out[(item + n * 8 + lane % 4 * 2 + i) * pitch + channel];
                    to        = sum[m][n][half * 2 + i] * scale + (more ? to : 0.0f);
                }
        }
}

/* Bias, residual and ReLU, and to memory: 4 channels a thread. */
template <typename T>
__device__ __forceinline__ void finish(const kernel_args &k, const float *out, const int *points, int count,
                                       int64_t k0) {
    const int channels = k.plan.bands * CK_MMA_SP_BAND, fours = channels / 4,
              shift = __ffs(fours) - 1; /* a power of two */
    const int64_t K = k.a.conv.K;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < count * fours; i += (int)blockDim.x) {
        const int     point = i >> shift, pixel = points[point];
        const int64_t first = k0 + (i & (fours - 1)) * 4;
        if (pixel < 0 || first >= K) continue;
        const float4 u    = *reinterpret_cast<const float4 *>(out + point * (channels + 4) + (i & (fours - 1)) * 4);
        float        v[4] = {u.x, u.y, u.z, u.w};
        sparse::write_four<T>(k.a, (int64_t)pixel * K + first, first,
                              K % 4 == 0 ? 4 : (int)(K - first < 4 ? K - first : 4), K % 4 == 0, v);
    }
}

template <int COLUMNS, typename T>
__global__ void __launch_bounds__(warps_of(COLUMNS) * CK_WARP, 2) kernel(const __grid_constant__ kernel_args k) {
    extern __shared__ __align__(16) char memory[];
    int *table = reinterpret_cast<int *>(memory + k.table_at), *points = reinterpret_cast<int *>(memory + k.points_at);
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP, bands = k.plan.bands;
    const uint32_t tile = k.filter_first ? blockIdx.x % (uint32_t)k.plan.tiles : blockIdx.x / (uint32_t)k.plan.k_blocks;
    const uint32_t block_k =
        k.filter_first ? blockIdx.x / (uint32_t)k.plan.tiles : blockIdx.x - tile * (uint32_t)k.plan.k_blocks;
    const int64_t k0    = (int64_t)block_k * bands * CK_MMA_SP_BAND;
    const int     spans = warps_of(COLUMNS) / bands / k.plan.split, items = spans * COLUMNS * 8;
    const int     band = warp % bands, span = warp / bands % spans, part = warp / bands / spans;

    fill_table(k, tile, table);
    fill_points(k, tile, (uint32_t)items, points);
    uint32_t base[COLUMNS];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        const uint32_t item = (uint32_t)((span * COLUMNS + n) * 8 + lane % 8), patch = item / k.size,
                       of = item - patch * k.size.by, down = of / k.across;
        const uint32_t row = patch * k.high.by + down * (uint32_t)k.a.conv.stride;
        const uint32_t at  = patch < (uint32_t)k.plan.groups ? row * k.pitch.by + (of - down * k.across.by) : 0;
        base[n]            = address_of(memory) + at * (uint32_t)k.plan.place_bytes;
    }
    float        sum[GROUPS][COLUMNS][4] = {};
    float        scale = sizeof(T) == 4 ? FIRST_SCALE : 1.0f, ceiling = LARGEST_SCALE;
    const uint2 *run = k.run + (block_k * bands + band) * k.plan.chunks * LISTS;
    const bool   any = k0 + band * CK_MMA_SP_BAND < k.a.conv.K;
    for (int chunk = 0; chunk < k.plan.chunks; chunk++) {
        const uint2 list = run[chunk * LISTS + (lane <= LISTS ? lane : 0)];
        const float now =
            stage_scaled<T>(k, table, memory, reinterpret_cast<float *>(memory + k.most_at), chunk, scale, ceiling);
        ceiling = fminf(ceiling, now * 0x1p64f); /* sums that are made larger by more might leave f32 */
        if (now != scale) {
            const float by = now / scale;
#pragma unroll
            for (int m = 0; m < GROUPS; m++)
#pragma unroll
                for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[m][n][i] *= by;
            scale = now;
        }
        if (any) walker<T, COLUMNS>(k).walk(list, part, base, sum);
    }
    if constexpr (sizeof(T) == 4) {
        if (k.plan.split == 1) {
            if (any) write_sums<COLUMNS>(k, sum, points + span * COLUMNS * 8, k0 + band * CK_MMA_SP_BAND, 1.0f / scale);
            return;
        }
    }
    __syncthreads();
    for (int i = 0; i < k.plan.split; i++) {
        if (i == part)
            put<COLUMNS>(k, i > 0, sum, reinterpret_cast<float *>(memory), band * CK_MMA_SP_BAND, span * COLUMNS * 8,
                         k0, 1.0f / scale);
        __syncthreads();
    }
    finish<T>(k, reinterpret_cast<const float *>(memory), points, items, k0);
}

/* ---- launching ---- */

template <int COLUMNS, typename T> cudaError_t launch(const kernel_args &k, cudaStream_t stream) {
    const cudaError_t e =
        cudaFuncSetAttribute(kernel<COLUMNS, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)k.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    kernel<COLUMNS, T>
        <<<(unsigned)(k.plan.tiles * k.plan.k_blocks), warps_of(COLUMNS) * CK_WARP, k.plan.shared_bytes, stream>>>(k);
    return cudaGetLastError();
}
template <typename T> cudaError_t launch_cut(const kernel_args &k, cudaStream_t stream) {
    switch (k.plan.columns) {
    case 8: return launch<8, T>(k, stream);
    case 4: return launch<4, T>(k, stream);
    case 3: return launch<3, T>(k, stream);
    case 2: return launch<2, T>(k, stream);
    case 1: return launch<1, T>(k, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace
} // namespace mma_sp

cudaError_t ck_mma_sp_conv(const struct ck_mma_sp_args *args, const struct ck_mma_sp_plan *plan, cudaStream_t stream) {
    mma_sp::kernel_args k = {};
    k.a.conv = args->conv, k.a.x = args->x, k.a.bias = args->bias, k.a.add = args->add, k.a.relu = args->relu,
    k.a.y = args->y;
    k.run = reinterpret_cast<const uint2 *>(args->run), k.offset = args->offset,
    k.fragment = (const char *)args->fragment, k.scale = args->scale;
    k.plan         = *plan;
    k.patches      = (uint32_t)(args->conv.N * plan->patches_p * plan->patches_q);
    k.places       = (uint32_t)mma_sp::places_of(*plan);
    k.filter_first = args->conv.N * args->conv.P * args->conv.Q * args->conv.C * (args->conv.type == CK_F32 ? 4 : 2) <=
                     mma_sp::STAYS;
    k.linear  = args->conv.R == 1 && args->conv.S == 1 && args->conv.stride == 1 && args->conv.pad == 0;
    k.picture = mma_sp::quick_of((int64_t)plan->patches_p * plan->patches_q), k.row = mma_sp::quick_of(plan->patches_q),
    k.pitch = mma_sp::quick_of(plan->pitch);
    k.high = mma_sp::quick_of(plan->IH), k.phase = mma_sp::quick_of(plan->phase),
    k.size      = mma_sp::quick_of(plan->TP * plan->TQ);
    k.across    = mma_sp::quick_of(plan->TQ);
    k.table_at  = (int)(plan->shared_bytes - mma_sp::tables_bytes(*plan));
    k.points_at = k.table_at + (int)k.places * 4;
    k.most_at   = k.points_at + mma_sp::items_of(*plan) * 4;
    switch (args->conv.type) {
    case CK_F32: return mma_sp::launch_cut<float>(k, stream);
    case CK_F16: return mma_sp::launch_cut<__half>(k, stream);
    case CK_BF16: return mma_sp::launch_cut<__nv_bfloat16>(k, stream);
    }
    return cudaErrorInvalidValue;
}

/* cuda/sparse/mma_sp/mma_sp_stage.cuh: the arguments of the kernel in cuda/sparse/mma_sp/mma_sp.cu, and the staging of
 * its input in shared memory. */
#ifndef CK_MMA_SP_STAGE_CUH
#define CK_MMA_SP_STAGE_CUH

#include "cuda/sparse/mma_sp/mma_sp.cuh"
#include "cuda/sparse/sparse_conv.cuh"

namespace mma_sp {
namespace {

enum { GROUPS = CK_MMA_SP_GROUPS, LISTS = GROUPS + 1, LOADS_IN_FLIGHT = 4 };
/* Limits of the largest staged number of a chunk, so that two FP16 numbers hold it and its neighbours, and the value to
 * which it is scaled otherwise. */
constexpr float MAX_STAGED = 32768.0f, MIN_STAGED = 4.0f, TARGET = 1024.0f, FIRST_SCALE = 16.0f,
                LARGEST_SCALE = 0x1p120f;

/* Division of numbers below 2^31 by a divisor that the host knows. */
struct fast_divisor {
    uint32_t by, multiply, shift;
};
fast_divisor fast_divisor_of(int64_t by) {
    fast_divisor q = {(uint32_t)by, 0, 0};
    while (((int64_t)1 << q.shift) < by) q.shift++;
    if (by > 1) q.multiply = (uint32_t)((((uint64_t)1 << (31 + q.shift)) + (uint64_t)by - 1) / (uint64_t)by), q.shift--;
    return q;
}
__device__ __forceinline__ uint32_t operator/(uint32_t n, const fast_divisor &q) {
    return q.by == 1 ? n : __umulhi(n, q.multiply) >> q.shift;
}

struct kernel_args {
    ck_sparse_args  a; /* arguments of the epilogue that the sparse kernels share */
    const uint2    *run;
    const uint32_t *offset;
    const char     *fragment;
    const float    *scale;
    ck_mma_sp_plan  plan;
    uint32_t        patches, places; /* number of patches; staged pixels of a tile */
    /* byte offsets in shared memory: pixels of places, pixels of outputs, largest number of each warp */
    int table_at, points_at, max_at;
    /* consecutive thread blocks share a part of the filter, otherwise a part of the input */
    bool filter_first;
    /* input pixel i is output pixel i, for all i */
    bool linear;
    /* divisors: patches per image, patches per row, the plan's pitch, IH and phase, pixels per patch, TQ */
    fast_divisor patches_per_image, patches_per_row, pitch, patch_rows, phase, patch_pixels, patch_width;
};

struct place {
    uint32_t patch;
    int      n, p0, q0; /* image and first output pixel */
};
__device__ __forceinline__ place place_of(const kernel_args &k, uint32_t tile, uint32_t group) {
    place at;
    at.patch         = tile * (uint32_t)k.plan.groups + group;
    const uint32_t n = at.patch / k.patches_per_image, rest = at.patch - n * k.patches_per_image.by,
                   row = rest / k.patches_per_row;
    at.n               = (int)n;
    at.p0              = (int)row * k.plan.TP;
    at.q0              = (int)(rest - row * k.patches_per_row.by) * k.plan.TQ;
    return at;
}

/* Input pixel of each place; -1: outside the image, or no patch. */
__device__ __forceinline__ void fill_table(const kernel_args &k, uint32_t tile, int *table) {
    const ck_conv &c = k.a.conv;
    const int      H = (int)c.H, W = (int)c.W;
    for (uint32_t i = threadIdx.x; i < k.places; i += blockDim.x) {
        if (k.linear) {
            const uint32_t pixel = tile * (uint32_t)k.plan.groups + i;
            table[i]             = pixel < k.patches ? (int)pixel : -1;
            continue;
        }
        const uint32_t row = i / k.pitch, column = i - row * k.pitch.by, patch = row / k.patch_rows,
                       phase = column / k.phase;
        const place at       = place_of(k, tile, patch);
        const int   h        = at.p0 * c.stride - c.pad + (int)(row - patch * k.patch_rows.by);
        const int   w        = at.q0 * c.stride - c.pad + (int)(column - phase * k.phase.by) * c.stride + (int)phase;
        const bool  in       = at.patch < k.patches && h >= 0 && h < H && w >= 0 && w < W;
        table[i]             = in ? (at.n * H + h) * W + w : -1;
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
        const uint32_t patch = i / k.patch_pixels, of = i - patch * k.patch_pixels.by, down = of / k.patch_width;
        const place    at = place_of(k, tile, patch);
        const int      p = at.p0 + (int)down, q = at.q0 + (int)(of - down * k.patch_width.by);
        const bool     out = patch < (uint32_t)k.plan.groups && at.patch < k.patches && p < P && q < Q;
        points[i]          = out ? (at.n * P + p) * Q + q : -1;
    }
}

/* ---- staging ---- */

/* 8 channels of a pixel from channel c on, as they are in memory; zeros when the pixel is -1. */
template <typename T> struct eight { uint4 v[sizeof(T) / 2]; };
/* WHOLE: C is a multiple of a 16-byte vector. */
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

/* Stores 8 channels to shared memory; for FP32 also updates the largest finite number. */
template <typename T>
__device__ __forceinline__ void store_eight(const eight<T> &from, char *to, int low_at, float scale, float *max_abs) {
    if constexpr (sizeof(T) == 2)
        *reinterpret_cast<uint4 *>(to) = from.v[0];
    else {
        float x[8];
        ck_unpack<float>(from.v[0], x);
        ck_unpack<float>(from.v[1], x + 4);
#pragma unroll
        for (int i = 0; i < 8; i++) *max_abs = fmaxf(*max_abs, fabsf(x[i]) < INFINITY ? fabsf(x[i]) : 0.0f);
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) split(x[2 * i] * scale, x[2 * i + 1] * scale, &high[i], &low[i]);
        *reinterpret_cast<uint4 *>(to)          = make_uint4(high[0], high[1], high[2], high[3]);
        *reinterpret_cast<uint4 *>(to + low_at) = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

/* Stages `eights` x 8 channels from c0 on of all places. Returns this thread's largest finite number (FP32). */
template <typename T, bool WHOLE>
__device__ __forceinline__ float stage(const kernel_args &k, const int *table, char *memory, int c0, int eights,
                                       float scale) {
    const int over = (int)blockDim.x % eights, down = (int)blockDim.x / eights, low_at = k.plan.chunk * 2;
    int       at = (int)threadIdx.x / eights, c = (int)threadIdx.x % eights;
    float     max_abs = 0;
    while (at < (int)k.places) {
        constexpr int LOADS = WHOLE ? (int)LOADS_IN_FLIGHT : 1;
        eight<T>      v[LOADS];
        char         *to[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            to[i] = at < (int)k.places ? memory + (int64_t)at * k.plan.place_bytes + c * 16 : nullptr;
            v[i]  = load_eight<T, WHOLE>(k, at < (int)k.places ? table[at] : -1, c0 + c * 8);
            at += down, c += over;
            if (c >= eights) at++, c -= eights;
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            if (to[i]) store_eight<T>(v[i], to[i], low_at, scale, &max_abs);
    }
    return max_abs;
}

/* Stages a chunk. For FP32 with a scale that fits it and is at most `ceiling`. Begins and ends with a barrier. Returns
 * the scale. */
template <typename T>
__device__ __forceinline__ float stage_scaled(const kernel_args &k, const int *table, char *memory, float *warp_max,
                                              int chunk, float scale, float ceiling) {
    const int c0 = chunk * k.plan.chunk, left = (int)k.a.conv.C - c0;
    const int eights = ((left < k.plan.chunk ? left : k.plan.chunk) + 7) / 8;
    for (;;) {
        __syncthreads();
        float max_abs = k.a.conv.C % ck_vector_elems<T>() == 0 ? stage<T, true>(k, table, memory, c0, eights, scale)
                                                               : stage<T, false>(k, table, memory, c0, eights, scale);
        if constexpr (sizeof(T) == 4) {
            max_abs = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(max_abs)));
            if (threadIdx.x % CK_WARP == 0) warp_max[threadIdx.x / CK_WARP] = max_abs;
        }
        __syncthreads();
        if constexpr (sizeof(T) == 4)
#pragma unroll
            for (int i = 0; i < MAX_WARPS; i++)
                max_abs = i * CK_WARP < (int)blockDim.x ? fmaxf(max_abs, warp_max[i]) : max_abs;
        const bool fits = max_abs * scale <= MAX_STAGED && (max_abs * scale >= MIN_STAGED || scale >= ceiling);
        if (sizeof(T) == 2 || max_abs == 0.0f || fits) return scale;
        scale = fminf(ldexpf(1.0f, ilogbf(TARGET) - ilogbf(max_abs)), ceiling);
    }
}

} // namespace
} // namespace mma_sp

#endif

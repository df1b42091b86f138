/* cuda/sparse/direct/direct_tile.cuh: stages a tile of the input in shared memory, as ck_sparse_plan divides it.
 * cuda/sparse/direct/direct_conv.cu and cuda/sparse/direct/direct_wgrad.cu share this file. */
#ifndef CK_DIRECT_TILE_CUH
#define CK_DIRECT_TILE_CUH

#include "cuda/sparse/sparse_conv.cuh"

namespace sparse {

struct kernel_args {
    ck_sparse_args a;
    ck_sparse_plan plan;
    int64_t        patches;
    /* slots: 4-float slots of a tile's input per channel; plane: slots from one channel to the next */
    int slots, plane;
    /* byte offsets in shared memory: pixels of slots, pixels of outputs, rings of entries */
    int table_at, points_at, ring_at;
};

struct place {
    int64_t patch;
    int     n, p0, q0; /* image and first output pixel */
};
__device__ __forceinline__ place place_of(const kernel_args &k, int64_t tile, int group, int member) {
    place         at;
    const int64_t per_image = (int64_t)k.plan.patches_p * k.plan.patches_q;
    at.patch                = (tile * k.plan.groups + group) * 4 + member;
    at.n                    = (int)(at.patch / per_image);
    const int rest          = (int)(at.patch % per_image);
    at.p0                   = rest / k.plan.patches_q * k.plan.TP;
    at.q0                   = rest % k.plan.patches_q * k.plan.TQ;
    return at;
}

/* Input pixel of each staged float of a channel; -1: outside the image, or no patch. */
__device__ __forceinline__ void fill_table(const kernel_args &k, int64_t tile, int *table) {
    const ck_conv &c = k.a.conv;
    for (int i = (int)threadIdx.x; i < k.slots * 4; i += (int)blockDim.x) {
        const int   slot = i / 4, row = slot / k.plan.pitch, column = slot % k.plan.pitch;
        const place at     = place_of(k, tile, row / k.plan.IH, i % 4);
        const int   h      = at.p0 * c.stride - c.pad + row % k.plan.IH;
        const int   w      = at.q0 * c.stride - c.pad + column % k.plan.columns * c.stride + column / k.plan.columns;
        const bool  inside = at.patch < k.patches && h >= 0 && h < c.H && w >= 0 && w < c.W;
        table[i]           = inside ? (int)((at.n * c.H + h) * c.W + w) : -1;
    }
}

/* Output pixel of point member*items + item; -1: none. */
__device__ __forceinline__ void fill_points(const kernel_args &k, int64_t tile, int items, int *points) {
    const ck_conv &c    = k.a.conv;
    const int      size = k.plan.TP * k.plan.TQ;
    for (int i = (int)threadIdx.x; i < items * 4; i += (int)blockDim.x) {
        const int   item = k.plan.order[i % items];
        const place at   = place_of(k, tile, item / size, i / items);
        const int   p = at.p0 + item % size / k.plan.TQ, q = at.q0 + item % k.plan.TQ;
        const bool  out = item != 0xffff && at.patch < k.patches && p < c.P && q < c.Q;
        points[i]       = out ? (int)output_pixel(k.a, at.n, p, q) : -1;
    }
}

/* 4 channels from `from` on; zeros when not `inside`. */
template <typename T> __device__ __forceinline__ float4 four_at(const T *from, bool inside) {
    if constexpr (sizeof(T) == 4)
        return inside ? *reinterpret_cast<const float4 *>(from) : make_float4(0, 0, 0, 0);
    else {
        const uint2  v   = inside ? *reinterpret_cast<const uint2 *>(from) : make_uint2(0, 0);
        const float2 low = ck_unpack_word<T>(v.x), high = ck_unpack_word<T>(v.y);
        return make_float4(low.x, low.y, high.x, high.y);
    }
}

/* Stages channels [c0, c0 + count) of the tile's input: xs[channel][slot][4]. A warp reads 32 channels of the 4 pixels
 * of a slot, in whole cache lines. Lane (group of 4 channels, pixel) writes its channels rotated by half its group
 * number: 8 groups then access 8 different banks, because a plane is an odd number of slots long. TOGETHER: number of
 * loads in flight. */
template <int TOGETHER, typename T>
__device__ __forceinline__ void stage_lines(const kernel_args &k, const int *table, float *xs, int c0, int count) {
    const int lane = (int)threadIdx.x % CK_WARP, pixel_of = lane % 4, rotation = lane / 8, plane = k.plane * 4,
              warps = k.plan.warps;
    for (int c = lane / 4 * 4; c < count; c += CK_WARP)
        for (int slot = (int)threadIdx.x / CK_WARP; slot < k.slots; slot += TOGETHER * warps) {
            float4 v[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int at    = slot + i * warps;
                const int pixel = at < k.slots ? table[at * 4 + pixel_of] : -1;
                v[i]            = four_at((const T *)k.a.x + (int64_t)pixel * k.a.conv.C + c0 + c, pixel >= 0);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int at = slot + i * warps;
                if (at >= k.slots) break;
                float *to = xs + (int64_t)c * plane + at * 4 + pixel_of;
                if (rotation & 1) v[i] = make_float4(v[i].y, v[i].z, v[i].w, v[i].x);
                if (rotation & 2) v[i] = make_float4(v[i].z, v[i].w, v[i].x, v[i].y);
                to[rotation * plane]             = v[i].x;
                to[((rotation + 1) & 3) * plane] = v[i].y;
                to[((rotation + 2) & 3) * plane] = v[i].z;
                to[((rotation + 3) & 3) * plane] = v[i].w;
            }
        }
}

/* The same one channel at a time, where C is not a multiple of 4. */
template <typename T>
__device__ __forceinline__ void stage_single(const kernel_args &k, const int *table, float *xs, int c0, int count) {
    for (int i = (int)threadIdx.x; i < k.slots * 4; i += (int)blockDim.x) {
        const int pixel = table[i];
        const T  *from  = (const T *)k.a.x + (int64_t)pixel * k.a.conv.C + c0;
        for (int c = 0; c < count; c++) xs[(int64_t)c * k.plane * 4 + i] = pixel >= 0 ? ck_float(from[c]) : 0.0f;
    }
}

template <int TOGETHER, typename T>
__device__ __forceinline__ void stage(const kernel_args &k, const int *table, float *xs, int c0, int count) {
    if (k.a.conv.C % 4 == 0)
        stage_lines<TOGETHER, T>(k, table, xs, c0, count);
    else
        stage_single<T>(k, table, xs, c0, count);
}

/* Byte offsets in shared memory of the items of lane `lane`. */
template <int QUADS>
__device__ __forceinline__ void find_bases(const kernel_args &k, int lane, uint32_t (&base)[QUADS]) {
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        const int item = k.plan.order[j * CK_WARP + lane], size = k.plan.TP * k.plan.TQ;
        const int row = item / size * k.plan.IH + item % size / k.plan.TQ * k.a.conv.stride;
        base[j]       = item == 0xffff ? 0 : (uint32_t)(row * k.plan.pitch + item % size % k.plan.TQ) * CK_VECTOR_BYTES;
    }
}

/* The nonzero weights of a warp's rows in one chunk: entries [first, first + total), row by row. `start` points to the
 * start of the warp's first row in the chunk. When `split` warps share one row, this warp has part `part` of it. */
template <int ROWS> struct row_entries {
    uint32_t                   begin; /* in lane i: first entry of row i */
    uint32_t                   first;
    int                        total;
    __device__ __forceinline__ row_entries(const uint32_t *start, int part, int split) {
        const int lane = (int)threadIdx.x % CK_WARP;
        begin          = start[lane <= ROWS ? lane : 0];
        if constexpr (ROWS == 1) {
            const uint32_t row   = __shfl_sync(0xffffffffu, begin, 0),
                           pairs = (__shfl_sync(0xffffffffu, begin, 1) - row) / CK_SPARSE_PAIR;
            begin                = row + pairs * (uint32_t)(part + (lane == 1)) / (uint32_t)split * CK_SPARSE_PAIR;
        }
        first = __shfl_sync(0xffffffffu, begin, 0);
        total = (int)(__shfl_sync(0xffffffffu, begin, ROWS) - first);
    }
    /* End of row r, relative to `first`. */
    __device__ __forceinline__ int end(int r) const { return (int)(__shfl_sync(0xffffffffu, begin, r + 1) - first); }
};

/* Quads and rows of the kernels that are instantiated. */
#define SPARSE_TILES(DO) DO(4, 4) DO(2, 8) DO(2, 4) DO(1, 8) DO(1, 4) DO(1, 2) DO(1, 1)

/* Implements ck_sparse_conv_plan for a kernel whose warps each need `warp_bytes` of shared memory. Defined in
 * cuda/sparse/direct/direct_plan.cu. */
bool plan_tiles(const ck_conv &conv, int64_t nnz, int config, int multiprocessors, int shared_bytes, int warp_bytes,
                ck_sparse_plan *plan);
/* The arguments of a launch. Byte offsets in shared memory follow from the plan. Defined in
 * cuda/sparse/direct/direct_plan.cu. */
kernel_args tile_args(const ck_sparse_args &args, const ck_sparse_plan &plan);

} // namespace sparse

#endif

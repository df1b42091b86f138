/* cuda/sparse/mma_sp/mma_sp_product.cuh: the products of a warp for the kernel in cuda/sparse/mma_sp/mma_sp.cu. */
#ifndef CK_MMA_SP_PRODUCT_CUH
#define CK_MMA_SP_PRODUCT_CUH

#include "cuda/sparse/mma_sp/mma_sp_stage.cuh"

namespace mma_sp {
namespace {

/* The filter operand of a product, as it comes from memory; `low` is for FP32. PREFETCH_LOW: `low` is loaded together
 * with `high`. */
template <typename T, bool PREFETCH_LOW> struct fragment {
    static constexpr int            BYTES = fragment_bytes(sizeof(T));
    uint4                           high, low;
    uint32_t                        places;
    __device__ __forceinline__ void load(const char *from, int lane) {
        high   = __ldg(reinterpret_cast<const uint4 *>(from) + lane);
        places = __ldg(reinterpret_cast<const uint32_t *>(from + BYTES - CK_WARP * 4) + lane);
        if (sizeof(T) == 4 && PREFETCH_LOW) load_low(from, lane);
    }
    __device__ __forceinline__ void load_low(const char *from, int lane) {
        low = __ldg(reinterpret_cast<const uint4 *>(from) + CK_WARP + lane);
    }
};

/* The input operand: 32 columns of 8*COLUMNS pixels. */
template <typename T, int COLUMNS> struct input_fragment {
    uint32_t                        high[COLUMNS][4], low[sizeof(T) == 4 ? COLUMNS : 1][4];
    __device__ __forceinline__ void load(const uint32_t (&base)[COLUMNS], uint32_t offset, uint32_t low_at) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) load_rows(high[n], base[n] + offset);
        if constexpr (sizeof(T) == 4)
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) load_rows(low[n], base[n] + offset + low_at);
    }
};

/* Adds the products of a step. The tensor cores truncate sums instead of rounding them. For FP32 they therefore sum
 * only the products of one step, small ones first. WAVE: columns in flight. */
template <typename T, int COLUMNS, typename F>
__device__ __forceinline__ void products(float (&sum)[COLUMNS][4], const F &w, const input_fragment<T, COLUMNS> &x) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) product<T, true>::add(sum[n], w.high, x.high[n], w.places);
    } else {
        constexpr int WAVE  = COLUMNS > 3 ? 2 : COLUMNS;
        const uint4   small = divide_by_low_scale(w.high);
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

/* Multiplies this warp's part of one run of a band: the steps of all groups, then those of single groups. Lane i has
 * entry i of the run's list. */
template <typename T, int COLUMNS> struct run_multiplier {
    static constexpr bool PREFETCH_LOW = COLUMNS != 4; /* too few registers otherwise */
    using filter                       = fragment<T, PREFETCH_LOW>;
    const kernel_args &k;
    const int          lane;
    const uint32_t    *offset;
    const char        *from;
    /* offset of the next step; the offsets and fragments have one more element than there are steps */
    uint32_t at;
    filter   next;

    __device__ __forceinline__ run_multiplier(const kernel_args &args) : k(args), lane((int)threadIdx.x % CK_WARP) {}

    __device__ __forceinline__ void seek(uint32_t step, uint32_t first) {
        offset = k.offset + (int64_t)step * 4 + lane / 8;
        from   = k.fragment + (int64_t)first * filter::BYTES;
        at     = __ldg(offset);
        next.load(from, lane);
    }
    __device__ __forceinline__ void load_input(input_fragment<T, COLUMNS> &x, const uint32_t (&base)[COLUMNS]) {
        x.load(base, at, (uint32_t)k.plan.chunk * 2);
        at = __ldg(offset += 4);
    }
    __device__ __forceinline__ void multiply(const input_fragment<T, COLUMNS> &x, float (&sum)[COLUMNS][4]) {
        filter w = next;
        if (sizeof(T) == 4 && !PREFETCH_LOW) w.load_low(from, lane);
        next.load(from += filter::BYTES, lane);
        products<T, COLUMNS>(sum, w, x);
    }

    __device__ __forceinline__ void multiply_run(const uint2 &run, int part, const uint32_t (&base)[COLUMNS],
                                                 float (&sum)[GROUPS][COLUMNS][4]) {
        const uint32_t all = 0xffffffffu, split = (uint32_t)k.plan.split, first = __shfl_sync(all, run.x, 0);
        const uint32_t all_steps = __shfl_sync(all, run.x, 1) - first, begin = all_steps * (uint32_t)part / split;
        int            steps = (int)(all_steps * (uint32_t)(part + 1) / split - begin);
        seek(first + begin, __shfl_sync(all, run.y, 0) + begin * GROUPS);
#pragma unroll 1
        for (; steps > 0; steps--) {
            input_fragment<T, COLUMNS> x;
            load_input(x, base);
#pragma unroll
            for (int m = 0; m < GROUPS; m++) multiply(x, sum[m]);
        }
#pragma unroll
        for (int m = 0; m < GROUPS; m++) {
            const uint32_t step = __shfl_sync(all, run.x, m + 1), fragment = __shfl_sync(all, run.y, m + 1);
            steps = (int)(__shfl_sync(all, run.x, m + 2) - step);
            if (split > 1 && steps > 0) { /* one part computes the whole list */
                if (m % split == (uint32_t)part)
                    seek(step, fragment);
                else
                    steps = 0;
            }
#pragma unroll 1
            for (; steps > 0; steps--) {
                input_fragment<T, COLUMNS> x;
                load_input(x, base);
                multiply(x, sum[m]);
            }
        }
    }
};

} // namespace
} // namespace mma_sp

#endif

/* tools/spdnn/group.cuh: computes groups of rows of a layer for 128 inputs, see tools/spdnn/layer.cu. */
#ifndef CK_SPDNN_GROUP_CUH
#define CK_SPDNN_GROUP_CUH

#include "cuda/common/common.cuh"
#include "tools/spdnn/kernels.h"

enum {
    THREADS             = 128,
    WARPS               = THREADS / CK_WARP,
    LANE_INPUTS         = CK_SPDNN_CHUNK / CK_WARP,
    PIECE               = 32,
    FLAGS               = 16,
    MAX_GROUPS_PER_WARP = 8
};

struct call {
    struct ck_spdnn_layer layer;
    struct ck_spdnn_state state;
    const float          *x;
    float                *y;
    int64_t               stride;
    int                   index;
    bool                  keep, overlap;
    int64_t               cache_bytes; /* a larger result is stored with a streaming hint, to bypass L2 */
};

/* A column's weights in shared memory. The padding lets 32 lanes write their weights to different banks. */
template <int ROWS> struct pitch { static constexpr int value = ROWS >= 4 ? ROWS + 4 : ROWS; };
template <int ROWS> struct staged {
    alignas(16) float weight[PIECE][pitch<ROWS>::value];
    alignas(16) uint32_t column[PIECE];
};

/* ---- weights ---- */

/* Copies BYTES bytes. `from` is aligned to the smaller of BYTES and 16. */
template <int BYTES> __device__ __forceinline__ void load_bytes(const void *from, uint32_t (&word)[(BYTES + 3) / 4]) {
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            const uint4 v   = static_cast<const uint4 *>(from)[i];
            word[4 * i]     = v.x;
            word[4 * i + 1] = v.y;
            word[4 * i + 2] = v.z;
            word[4 * i + 3] = v.w;
        }
    } else if constexpr (BYTES == 8) {
        const uint2 v = *static_cast<const uint2 *>(from);
        word[0]       = v.x;
        word[1]       = v.y;
    } else if constexpr (BYTES == 4)
        word[0] = *static_cast<const uint32_t *>(from);
    else
        word[0] = *static_cast<const uint16_t *>(from);
}

template <typename W> __device__ __forceinline__ float weight_of(const uint32_t *word, int r) {
    if constexpr (sizeof(W) == 4)
        return __uint_as_float(word[r]);
    else {
        const float2 pair = ck_unpack_word<__half>(word[r / 2]);
        return r % 2 ? pair.y : pair.x;
    }
}

/* Lane i loads column i of the piece. After the last column the weights are 0. */
template <int ROWS, typename W>
__device__ __forceinline__ void stage(const struct ck_spdnn_layer &f, uint32_t first, uint32_t count,
                                      struct staged<ROWS> &to, unsigned lane) {
    constexpr int BYTES = ROWS * (int)sizeof(W);
    uint32_t      word[(BYTES + 3) / 4];
    const bool    valid = lane < count;
    const int64_t k     = (int64_t)first + (valid ? lane : count - 1);
    __syncwarp(); /* every lane has read the piece before */
    to.column[lane] = f.column[k];
    load_bytes<BYTES>(static_cast<const W *>(f.weight) + k * ROWS, word);
#pragma unroll
    for (int i = 0; i < (BYTES + 3) / 4; i++) word[i] = valid ? word[i] : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) to.weight[lane][r] = weight_of<W>(word, r);
    __syncwarp();
}

/* ---- a group ---- */

/* The inputs of a lane: four contiguous ones; or, through the list, one of each 32. */
template <bool WHOLE> struct lane_inputs {
    uint32_t at[WHOLE ? 1 : LANE_INPUTS];

    __device__ __forceinline__ void open(const struct call &c, int64_t base, int live, unsigned lane) {
        if constexpr (WHOLE)
            at[0] = (uint32_t)base + LANE_INPUTS * lane;
        else {
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) {
                const int64_t i = base + lane + CK_WARP * t;
                at[t]           = (uint32_t)c.state.list[i < live ? i : live - 1];
            }
        }
    }
    __device__ __forceinline__ void load(const float *x, float (&v)[LANE_INPUTS]) const {
        if constexpr (WHOLE) {
            const float4 w = *reinterpret_cast<const float4 *>(x + at[0]);
            v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
        } else {
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) v[t] = x[at[t]];
        }
    }
    /* Column where input t of the lane is written. */
    static __device__ __forceinline__ int64_t place(int64_t base, unsigned lane, int t) {
        return WHOLE ? base + LANE_INPUTS * lane + t : base + lane + CK_WARP * t;
    }
};

template <int ROWS> __device__ __forceinline__ void load_weights(const float *from, float (&w)[ROWS]) {
    if constexpr (ROWS >= 4) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(from + r);
            w[r] = v.x, w[r + 1] = v.y, w[r + 2] = v.z, w[r + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) w[r] = from[r];
    }
}

template <int STEP, bool WHOLE>
__device__ __forceinline__ void load_columns(const struct call &c, const uint32_t *column,
                                             const struct lane_inputs<WHOLE> &in, float (&v)[STEP][LANE_INPUTS]) {
#pragma unroll
    for (int a = 0; a < STEP; a++) in.load(c.x + (int64_t)column[a] * c.stride, v[a]);
}

template <int ROWS, bool WHOLE>
__device__ __forceinline__ void add_piece(const struct call &c, const struct staged<ROWS> &s, uint32_t count,
                                          const struct lane_inputs<WHOLE> &in, float (&sum)[ROWS][LANE_INPUTS]) {
    constexpr int STEP = ROWS >= 16 ? 2 : 4; /* columns per step, limited by registers */
    float         now[STEP][LANE_INPUTS], next[STEP][LANE_INPUTS];
    if constexpr (WHOLE) load_columns<STEP>(c, &s.column[0], in, now);
#pragma unroll 1
    for (uint32_t k = 0; k < count; k += STEP) {
        /* Loads the next columns during the computation; at the end the last columns again. */
        if constexpr (WHOLE)
            load_columns<STEP>(c, &s.column[k + STEP < count ? k + STEP : k], in, next);
        else
            load_columns<STEP>(c, &s.column[k], in, now);
#pragma unroll
        for (int a = 0; a < STEP; a++) {
            float w[ROWS];
            load_weights<ROWS>(s.weight[k + a], w);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int t = 0; t < LANE_INPUTS; t++) sum[r][t] = fmaf(w[r], now[a][t], sum[r][t]);
        }
        if constexpr (WHOLE) {
#pragma unroll
            for (int a = 0; a < STEP; a++)
#pragma unroll
                for (int t = 0; t < LANE_INPUTS; t++) now[a][t] = next[a][t];
        }
    }
}

template <int ROWS, bool WHOLE>
__device__ __forceinline__ void write_group(const struct call &c, bool bypass_cache, int group, int64_t base,
                                            unsigned lane, const float (&sum)[ROWS][LANE_INPUTS], unsigned &alive) {
    float          largest[LANE_INPUTS] = {};
    const unsigned rows                 = lane < ROWS ? c.layer.row[(int64_t)group * ROWS + lane] : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float *to = c.y + (int64_t)__shfl_sync(0xffffffffu, rows, r) * c.stride;
        float  v[LANE_INPUTS];
#pragma unroll
        for (int t = 0; t < LANE_INPUTS; t++) {
            v[t]       = fminf(fmaxf(sum[r][t] + c.layer.bias, 0.0f), c.layer.ceiling);
            largest[t] = fmaxf(largest[t], v[t]);
        }
        if constexpr (WHOLE) {
            float4 *whole = reinterpret_cast<float4 *>(to + base + LANE_INPUTS * lane);
            if (bypass_cache)
                __stcs(whole, make_float4(v[0], v[1], v[2], v[3]));
            else
                *whole = make_float4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) to[base + lane + CK_WARP * t] = v[t];
        }
    }
#pragma unroll
    for (int t = 0; t < LANE_INPUTS; t++) alive |= (largest[t] > 0.0f ? 1u : 0u) << t;
}

/* Computes groups [first, end) for the 128 inputs from `base` on. The warps of the block share the groups. */
template <int ROWS, typename W, bool WHOLE>
__device__ __forceinline__ void run_item(const struct call &c, struct staged<ROWS> &s, int first, int end, int64_t base,
                                         int live) {
    const unsigned            lane = threadIdx.x % CK_WARP, warp = threadIdx.x / CK_WARP;
    struct lane_inputs<WHOLE> in;
    const bool bypass_cache = (int64_t)c.layer.groups * ROWS * live * (int64_t)sizeof(float) > c.cache_bytes;
    unsigned   alive        = 0; /* bit t: input t of the lane has a nonzero activation */
    in.open(c, base, live, lane);
    if constexpr (!WHOLE) {
        if (first == 0 && warp == 0) { /* one work item of these inputs moves their indices */
            const int parity = *c.state.current;
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) {
                const int64_t i = in.place(base, lane, t);
                if (i < live) c.state.origin[parity ^ 1][i] = c.state.origin[parity][in.at[t]];
            }
        }
    }
    for (int g = first + (int)warp; g < end; g += WARPS) {
        float          sum[ROWS][LANE_INPUTS] = {};
        const uint32_t from = c.layer.start[g], to = c.layer.start[g + 1];
#pragma unroll 1
        for (uint32_t k = from; k < to; k += PIECE) {
            const uint32_t count = to - k < PIECE ? to - k : PIECE;
            stage<ROWS, W>(c.layer, k, count, s, lane);
            add_piece<ROWS, WHOLE>(c, s, count, in, sum);
        }
        write_group<ROWS, WHOLE>(c, bypass_cache, g, base, lane, sum, alive);
    }
#pragma unroll
    for (int t = 0; t < LANE_INPUTS; t++) {
        const int64_t i = in.place(base, lane, t);
        if ((alive >> t & 1u) && i < live) c.state.alive[i] = 1;
    }
}

#endif

/* tools/spdnn/deep_layer.cuh: computes the layers of a launch of tools/spdnn/deep.cu on one tile of inputs.
 */
#ifndef CK_SPDNN_DEEP_LAYER_CUH
#define CK_SPDNN_DEEP_LAYER_CUH

#include "cuda/common/common.cuh"
#include "tools/spdnn/kernels.h"

enum {
    ROWS    = CK_SPDNN_DEEP_ROWS,
    TILE    = CK_SPDNN_DEEP_TILE,
    THREADS = 512,
    WARPS   = THREADS / CK_WARP,
    /* parts of a warp; each part computes one group */
    PARTS  = 4,
    LANES  = CK_WARP / PARTS,
    INPUTS = TILE / LANES, /* inputs per lane */
    PIECE  = LANES,        /* columns that are loaded together, one per lane */
    /* floats between two groups' weights of a column; with PITCH all lanes access different banks */
    PART  = ROWS + 4,
    PITCH = PARTS * PART + 4, /* floats between two columns */
    ROW   = TILE * 4          /* bytes of a neuron's inputs */
};
static_assert(WARPS * PARTS == CK_SPDNN_DEEP_GROUPS && INPUTS == 4, "a thread block holds the sums of a layer");

struct deep_layer {
    const uint32_t *start;
    const uint16_t *row, *column;
    const void     *weight;
    int             groups;
    float           bias, ceiling;
};
struct deep_call {
    struct deep_layer          layer[CK_SPDNN_DEEP_LAYERS];
    struct ck_spdnn_deep_state state;
    const float               *x;
    const uint32_t            *bit; /* replaces x when it is not NULL */
    int64_t                    words;
    float                     *y;
    int                        count, index, neurons, parity;
    bool                       keep, last;
    uint32_t                   epoch;
};

/* Shared memory of one warp. */
struct staged {
    float    weight[PIECE * PITCH];
    uint32_t at[PARTS * PIECE]; /* byte offset of each column's inputs */
};

/* The column of its group that a lane has loaded. */
template <typename W> struct prefetched {
    uint4    word[ROWS * sizeof(W) / 16];
    uint32_t column;
};

/* The columns of a group. */
struct column_range {
    uint32_t begin, end;
};

/* ---- weights ---- */

/* Only issues the loads; the first use of their results waits. */
__device__ __forceinline__ struct column_range range_of(const struct deep_call &c, int l, int group) {
    struct column_range s = {0, 0};
    if (group < c.layer[l].groups) {
        s.begin = c.layer[l].start[group];
        s.end   = c.layer[l].start[group + 1];
    }
    return s;
}

/* Number of pieces of the longest of the warp's groups; at least one. */
__device__ __forceinline__ uint32_t count_pieces(const struct column_range &s) {
    const uint32_t largest = __reduce_max_sync(0xffffffffu, s.end - s.begin);
    return largest > PIECE ? (largest + PIECE - 1) / PIECE : 1;
}

/* After the last column the weights are 0. */
template <typename W>
__device__ __forceinline__ void fetch(const struct deep_call &c, int l, const struct column_range &s, uint32_t piece,
                                      unsigned lane, struct prefetched<W> &to) {
    const uint32_t k = s.begin + piece * PIECE + lane % LANES;
    to.column        = 0;
#pragma unroll
    for (int i = 0; i < (int)(ROWS * sizeof(W) / 16); i++) to.word[i] = make_uint4(0, 0, 0, 0);
    if (k < s.end) {
        const uint4 *from = static_cast<const uint4 *>(c.layer[l].weight) + (int64_t)k * (int)(ROWS * sizeof(W) / 16);
        to.column         = c.layer[l].column[k];
#pragma unroll
        for (int i = 0; i < (int)(ROWS * sizeof(W) / 16); i++) to.word[i] = __ldg(&from[i]);
    }
}

template <typename W>
__device__ __forceinline__ void store_weights(struct staged &s, unsigned lane, const struct prefetched<W> &from) {
    float4 *to = reinterpret_cast<float4 *>(&s.weight[lane % LANES * PITCH + lane / LANES * PART]);
    __syncwarp(); /* every lane has read the piece before */
    s.at[lane] = from.column * ROW;
#pragma unroll
    for (int i = 0; i < (int)(ROWS * sizeof(W) / 16); i++) {
        float w[ck_vector_elems<W>()];
        ck_unpack<W>(from.word[i], w);
#pragma unroll
        for (int f = 0; f < ck_vector_elems<W>() / 4; f++)
            to[i * (ck_vector_elems<W>() / 4) + f] = make_float4(w[4 * f], w[4 * f + 1], w[4 * f + 2], w[4 * f + 3]);
    }
    __syncwarp();
}

/* ---- a layer ---- */

__device__ __forceinline__ void add_piece(const unsigned char *x, const struct staged &s, unsigned lane,
                                          float (&sum)[ROWS][INPUTS]) {
    const uint32_t *at     = &s.at[lane / LANES * LANES];
    const float    *weight = &s.weight[lane / LANES * PART];
#pragma unroll
    for (int k = 0; k < PIECE; k += 4) {
        const uint4    four    = *reinterpret_cast<const uint4 *>(at + k);
        const uint32_t from[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int a = 0; a < 4; a++) {
            const float4 in        = *reinterpret_cast<const float4 *>(x + from[a]);
            const float  v[INPUTS] = {in.x, in.y, in.z, in.w};
#pragma unroll
            for (int r = 0; r < ROWS; r += 4) {
                const float4 four_rows = *reinterpret_cast<const float4 *>(weight + (k + a) * PITCH + r);
                const float  w[4]      = {four_rows.x, four_rows.y, four_rows.z, four_rows.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int t = 0; t < INPUTS; t++) sum[r + i][t] = fmaf(w[i], v[t], sum[r + i][t]);
            }
        }
    }
}

/* max(min(v, ceiling), 0), computed on the bits as integers: floats from 0 on have the same order, and negative floats
 * are negative integers. */
__device__ __forceinline__ float clip(float v, float ceiling) {
    return __int_as_float(__vimin_s32_relu(__float_as_int(v), __float_as_int(ceiling)));
}

/* Adds the bias and clips. Bit i of the result: input i has a value above 0 in one of the warp's rows. */
__device__ __forceinline__ uint32_t clip_all(float bias, float ceiling, unsigned lane, float (&sum)[ROWS][INPUTS]) {
    uint32_t nonzero_bits[INPUTS] = {}, mine = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 2)
#pragma unroll
        for (int t = 0; t < INPUTS; t++) {
            sum[r][t]       = clip(sum[r][t] + bias, ceiling);
            sum[r + 1][t]   = clip(sum[r + 1][t] + bias, ceiling);
            nonzero_bits[t] = nonzero_bits[t] | __float_as_uint(sum[r][t]) | __float_as_uint(sum[r + 1][t]);
        }
#pragma unroll
    for (int t = 0; t < INPUTS; t++) mine |= (nonzero_bits[t] ? 1u : 0u) << t;
    return __reduce_or_sync(0xffffffffu, mine << lane % LANES * INPUTS);
}

/* Lane j of a quarter of a warp has the row indices 2j and 2j+1 of its group in `rows`. */
__device__ __forceinline__ void write_rows(unsigned char *x, uint32_t rows, bool exists, unsigned lane,
                                           const float (&sum)[ROWS][INPUTS]) {
    uint32_t two[ROWS / 2];
#pragma unroll
    for (int r = 0; r < ROWS / 2; r++) two[r] = __shfl_sync(0xffffffffu, rows, r, LANES);
    if (!exists) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        *reinterpret_cast<float4 *>(x + (r % 2 ? two[r / 2] >> 16 : two[r / 2] & 0xffffu) * ROW) =
            make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

/* Computes layers [from, end) of the launch on the tile in x. `valid` is the mask of its inputs. Adds the live inputs
 * of each layer but the launch's last one to the counts. Thread 0 returns the mask of the live inputs after the last
 * layer. */
template <typename W>
__device__ __forceinline__ uint32_t run_layers(const struct deep_call &c, unsigned char *x, struct staged &s,
                                               uint32_t *alive, int from, int end, uint32_t valid_mask) {
    const unsigned       lane      = threadIdx.x % CK_WARP;
    const int            group     = (int)(threadIdx.x / LANES);
    unsigned char       *mine      = x + lane % LANES * 16;
    uint32_t             live_mask = valid_mask;
    struct column_range  range     = range_of(c, from, group);
    struct prefetched<W> next;
    fetch<W>(c, from, range, 0, lane, next);
#pragma unroll 1
    for (int l = from; l < end; l++) {
        float                     sum[ROWS][INPUTS] = {};
        const bool                exists            = group < c.layer[l].groups;
        const int                 next_layer        = l + 1 < end ? l + 1 : l;
        const struct column_range next_range        = range_of(c, next_layer, group);
        const uint32_t            rows =
            exists ? reinterpret_cast<const uint32_t *>(c.layer[l].row)[group * (ROWS / 2) + (int)(lane % LANES)] : 0;
        const uint32_t pieces = count_pieces(range);
#pragma unroll 1
        for (uint32_t p = 1; p <= pieces; p++) {
            store_weights<W>(s, lane, next);
            if (p < pieces)
                fetch<W>(c, l, range, p, lane, next);
            else
                fetch<W>(c, next_layer, next_range, 0, lane, next);
            add_piece(mine, s, lane, sum);
        }
        const uint32_t nonzero = clip_all(c.layer[l].bias, c.layer[l].ceiling, lane, sum);
        if (lane == 0) atomicOr(&alive[l % 2], nonzero);
        __syncthreads(); /* all warps have read the layer's input */
        write_rows(mine, rows, exists, lane, sum);
        __syncthreads();
        if (threadIdx.x == 0) { /* other threads write this word again only after two more barriers */
            live_mask    = c.keep && !(c.last && l + 1 == c.count) ? valid_mask : alive[l % 2] & valid_mask;
            alive[l % 2] = 0;
            if (l + 1 < c.count) atomicAdd(&c.state.live[c.index + l + 1], __popc(live_mask));
        }
        range = next_range;
    }
    return live_mask;
}

#endif

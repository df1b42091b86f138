/* cuda/spdnn/spdnn_deep.cu: several layers of a small sparse deep network in one launch: a block holds all activations
 * of 32 inputs in shared memory and takes them through layer after layer without a word to the other blocks. The truth
 * is device/cpu/spdnn.c; sums run over a row's columns in the same order as there and in cuda/spdnn/spdnn_layer.cu.
 *
 * A layer's results do not fit beside what they are made of; they wait in registers until all warps have read: 16 warps
 * by 4 groups of 16 rows by 32 inputs, 64 sums a thread. A quarter of a warp has a group, a lane 4 inputs: a column
 * costs a lane one 16-byte read of inputs and four of weights for 64 multiply-adds. Weights come from L2, eight columns
 * ahead, and become floats on their way into the warp's own part of shared memory.
 *
 * Between launches inputs lie in tiles of 32, [tile][neuron][32], those that live side by side, in whichever order
 * blocks end: results do not depend on it, and the list of categories is made by input at the end. An input that dies
 * within a launch is computed to the launch's end.
 *
 * Work is shared out by McNaughton's wrap-around rule (1959): all tiles' layers in a row, cut into equal parts. A tile
 * that a cut goes through begins as the first work of one block and is ended as the last work of another, which waits
 * for it, seldom long. It waits for a block with a smaller index, so that it has begun even where not all blocks fit
 * the device at once.
 *
 * Bytes: weights, once a layer and block, from L2; 8 a neuron and input a launch. Limiter: multiply-adds, roof 128 a
 * clock and multiprocessor; shared memory is busy three quarters of the time. On one H200 16 T a second where 4,482 of
 * 60,000 inputs are left, half of the roof at 1.98 GHz. */
#include "cuda/spdnn/spdnn_kernel.h"

#include "cuda/common/common.cuh"

enum {
    ROWS    = CK_SPDNN_DEEP_ROWS,
    TILE    = CK_SPDNN_DEEP_TILE,
    THREADS = 512,
    WARPS   = THREADS / CK_WARP,
    PARTS   = 4, /* of a warp: each has a group */
    LANES   = CK_WARP / PARTS,
    INPUTS  = TILE / LANES, /* of a lane */
    PIECE   = LANES,        /* columns that are brought at once, one a lane */
    PART    = ROWS + 4,     /* floats between two groups' weights of a column; with PITCH no two lanes meet in a bank */
    PITCH   = PARTS * PART + 4, /* between two columns' */
    ROW     = TILE * 4          /* bytes of a neuron's inputs */
};
static_assert(WARPS * PARTS == CK_SPDNN_DEEP_GROUPS && INPUTS == 4, "a block's sums are a layer's");

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
    const uint32_t            *bit; /* instead of x */
    int64_t                    words;
    float                     *y;
    int                        count, index, neurons, turn;
    bool                       keep, last;
    uint32_t                   epoch;
};

/* A warp's own. */
struct staged {
    float    weight[PIECE * PITCH];
    uint32_t at[PARTS * PIECE]; /* of a column's inputs, bytes */
};

/* What a lane brings: a column of its group. */
template <typename W> struct carried {
    uint4    word[ROWS * sizeof(W) / 16];
    uint32_t column;
};

/* A group's columns. */
struct span {
    uint32_t begin, end;
};

/* ---- weights ---- */

/* Nothing is computed from what is loaded, so that nobody waits for it here. */
__device__ __forceinline__ struct span open_span(const struct deep_call &c, int l, int group) {
    struct span s = {0, 0};
    if (group < c.layer[l].groups) {
        s.begin = c.layer[l].start[group];
        s.end   = c.layer[l].start[group + 1];
    }
    return s;
}

/* Of the longest of the warp's groups; at least one. */
__device__ __forceinline__ uint32_t count_pieces(const struct span &s) {
    const uint32_t most = __reduce_max_sync(0xffffffffu, s.end - s.begin);
    return most > PIECE ? (most + PIECE - 1) / PIECE : 1;
}

/* Behind the last column come ones that add nothing. */
template <typename W>
__device__ __forceinline__ void fetch(const struct deep_call &c, int l, const struct span &s, uint32_t piece,
                                      unsigned lane, struct carried<W> &to) {
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
__device__ __forceinline__ void put(struct staged &s, unsigned lane, const struct carried<W> &from) {
    float4 *to = reinterpret_cast<float4 *>(&s.weight[lane % LANES * PITCH + lane / LANES * PART]);
    __syncwarp(); /* the piece before has been read */
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

/* max (min (v, ceiling), 0) as whole numbers: floats from 0 on are in the same order, and what is below 0 is as well
 * there. */
__device__ __forceinline__ float clip(float v, float ceiling) {
    return __int_as_float(__vimin_s32_relu(__float_as_int(v), __float_as_int(ceiling)));
}

/* Bias and ceiling; bit i of the result: input i has a value above 0 in one of the warp's rows. */
__device__ __forceinline__ uint32_t clip_all(float bias, float ceiling, unsigned lane, float (&sum)[ROWS][INPUTS]) {
    uint32_t any[INPUTS] = {}, mine = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r += 2)
#pragma unroll
        for (int t = 0; t < INPUTS; t++) {
            sum[r][t]     = clip(sum[r][t] + bias, ceiling);
            sum[r + 1][t] = clip(sum[r + 1][t] + bias, ceiling);
            any[t]        = any[t] | __float_as_uint(sum[r][t]) | __float_as_uint(sum[r + 1][t]);
        }
#pragma unroll
    for (int t = 0; t < INPUTS; t++) mine |= (any[t] ? 1u : 0u) << t;
    return __reduce_or_sync(0xffffffffu, mine << lane % LANES * INPUTS);
}

/* Lane j of a quarter has numbers 2j and 2j+1 of its group's rows in `rows`. */
__device__ __forceinline__ void write_rows(unsigned char *x, uint32_t rows, bool there, unsigned lane,
                                           const float (&sum)[ROWS][INPUTS]) {
    uint32_t two[ROWS / 2];
#pragma unroll
    for (int r = 0; r < ROWS / 2; r++) two[r] = __shfl_sync(0xffffffffu, rows, r, LANES);
    if (!there) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        *reinterpret_cast<float4 *>(x + (r % 2 ? two[r / 2] >> 16 : two[r / 2] & 0xffffu) * ROW) =
            make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

/* Layers [from, end) of the launch on the tile in x; `valid`: its inputs. Counts the living, but not of the launch's
 * last layer. What it returns counts in thread 0: who lives behind the last one. */
template <typename W>
__device__ __forceinline__ uint32_t run_layers(const struct deep_call &c, unsigned char *x, struct staged &s,
                                               uint32_t *alive, int from, int end, uint32_t valid) {
    const unsigned    lane  = threadIdx.x % CK_WARP;
    const int         group = (int)(threadIdx.x / LANES);
    unsigned char    *mine  = x + lane % LANES * 16;
    uint32_t          left  = valid;
    struct span       now   = open_span(c, from, group);
    struct carried<W> next;
    fetch<W>(c, from, now, 0, lane, next);
#pragma unroll 1
    for (int l = from; l < end; l++) {
        float             sum[ROWS][INPUTS] = {};
        const bool        there             = group < c.layer[l].groups;
        const int         behind            = l + 1 < end ? l + 1 : l;
        const struct span after             = open_span(c, behind, group);
        const uint32_t    rows =
            there ? reinterpret_cast<const uint32_t *>(c.layer[l].row)[group * (ROWS / 2) + (int)(lane % LANES)] : 0;
        const uint32_t pieces = count_pieces(now);
#pragma unroll 1
        for (uint32_t p = 1; p <= pieces; p++) {
            put<W>(s, lane, next);
            if (p < pieces)
                fetch<W>(c, l, now, p, lane, next);
            else
                fetch<W>(c, behind, after, 0, lane, next);
            add_piece(mine, s, lane, sum);
        }
        const uint32_t some = clip_all(c.layer[l].bias, c.layer[l].ceiling, lane, sum);
        if (lane == 0) atomicOr(&alive[l % 2], some);
        __syncthreads(); /* all have read */
        write_rows(mine, rows, there, lane, sum);
        __syncthreads();
        if (threadIdx.x == 0) { /* the others set this word again two barriers from here */
            left         = c.keep && !(c.last && l + 1 == c.count) ? valid : alive[l % 2] & valid;
            alive[l % 2] = 0;
            if (l + 1 < c.count) atomicAdd(&c.state.live[c.index + l + 1], __popc(left));
        }
        now = after;
    }
    return left;
}

/* ---- tiles ---- */

__device__ __forceinline__ void load_tile(const float *from, unsigned char *x, int neurons) {
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(x);
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < neurons * (ROW / 16); i += THREADS)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (uint32_t)i * 16),
                     "l"(from + (int64_t)i * 4)
                     : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void load_bits(const struct deep_call &c, int64_t tile, unsigned char *x) {
    const int lane = (int)threadIdx.x % CK_WARP;
    for (int n = (int)threadIdx.x - lane; n < c.neurons; n += THREADS) {
        const uint32_t word = n + lane < c.neurons ? c.bit[(int64_t)(n + lane) * c.words + tile] : 0;
        const int      rows = c.neurons - n < CK_WARP ? c.neurons - n : CK_WARP;
#pragma unroll 8
        for (int r = 0; r < rows; r++)
            reinterpret_cast<float *>(x + (n + r) * ROW)[lane] =
                (float)(__shfl_sync(0xffffffffu, word, r) >> lane & 1u);
    }
}

__device__ __forceinline__ void copy_tile(const unsigned char *x, float *to, int neurons) {
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < neurons * (ROW / 16); i += THREADS)
        reinterpret_cast<float4 *>(to)[i] = reinterpret_cast<const float4 *>(x)[i];
}

/* Inputs of `left` go to places from `base` on. */
__device__ __forceinline__ void store_tile(const struct deep_call &c, const unsigned char *x, int64_t tile,
                                           uint32_t left, int base) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int at = base + __popc(left & ((1u << lane) - 1u));
    if (warp == 0 && left >> lane & 1u) {
        const int32_t origin = c.index ? c.state.origin[c.turn][tile * TILE + lane] : (int32_t)tile * TILE + lane;
        c.state.origin[c.turn ^ 1][at] = origin;
        if (c.last) {
            c.state.alive[origin] = 1;
            c.state.place[origin] = at;
        }
    }
    if (left == 0xffffffffu && base % TILE == 0) {
        copy_tile(x, c.y + (int64_t)base * c.neurons, c.neurons);
        return;
    }
    float *to = c.y + (int64_t)(at / TILE) * TILE * c.neurons + at % TILE;
    if (left >> lane & 1u)
#pragma unroll 8
        for (int n = warp; n < c.neurons; n += WARPS)
            to[(int64_t)n * TILE] = reinterpret_cast<const float *>(x + n * ROW)[lane];
}

__device__ __forceinline__ void wait_for(const uint32_t *mark, uint32_t epoch) {
    if (threadIdx.x == 0) {
        uint32_t now;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(mark) : "memory");
        while (now != epoch);
    }
    __syncthreads();
}

__device__ __forceinline__ void set_mark(uint32_t *mark, uint32_t epoch) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(mark), "r"(epoch) : "memory");
}

/* Layers [from, end) of a tile: begun from what the launch before left or from what block `other` has handed over;
 * handed over under our own number where they are not the launch's last. */
template <typename W>
__device__ __forceinline__ void run_tile(const struct deep_call &c, unsigned char *x, struct staged &s,
                                         uint32_t *shared, int64_t tile, int from, int end, int live) {
    const int      mine  = (int)blockIdx.x;
    const int64_t  room  = (int64_t)c.neurons * TILE;
    const int64_t  there = live - tile * TILE;
    const uint32_t valid = there >= TILE ? 0xffffffffu : (1u << there) - 1u;
    if (from > 0) {
        wait_for(&c.state.ready[mine - 1], c.epoch);
        load_tile(c.state.handoff + (mine - 1) * room, x, c.neurons);
    } else if (c.bit)
        load_bits(c, tile, x);
    else
        load_tile(c.x + tile * room, x, c.neurons);
    __syncthreads();
    const uint32_t left = run_layers<W>(c, x, s, shared, from, end, valid);
    if (end < c.count) {
        copy_tile(x, c.state.handoff + mine * room, c.neurons);
        set_mark(&c.state.ready[mine], c.epoch);
    } else {
        if (threadIdx.x == 0) {
            shared[2] = left;
            shared[3] = (uint32_t)atomicAdd(&c.state.live[c.index + c.count], __popc(left));
        }
        __syncthreads();
        store_tile(c, x, tile, shared[2], (int)shared[3]);
    }
    __syncthreads();
}

template <typename W>
static __global__ void __launch_bounds__(THREADS, 1) deep_kernel(const __grid_constant__ struct deep_call c) {
    extern __shared__ __align__(16) unsigned char x[];
    __shared__ struct staged                      s[WARPS];
    __shared__ uint32_t shared[4]; /* who lives after even and odd layers, after the last; where they go */
    const int           live  = c.state.live[c.index];
    const int64_t       tiles = (live + TILE - 1) / TILE, work = tiles * c.count;
    const int64_t       share = (work + gridDim.x - 1) / gridDim.x, most = share > c.count ? share : c.count;
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * most, end = first + most < work ? first + most : work;
    if (threadIdx.x < 2) shared[threadIdx.x] = 0;
    for (int64_t at = first; at < end;) {
        const int64_t tile = at / c.count;
        const int     from = (int)(at % c.count), rest = c.count - from, now = end - at < rest ? (int)(end - at) : rest;
        /* A tile cut in two: whose share begins within it does its first layers, whose share ends in it the others. */
        if (from > 0)
            run_tile<W>(c, x, s[threadIdx.x / CK_WARP], shared, tile, 0, rest, live);
        else
            run_tile<W>(c, x, s[threadIdx.x / CK_WARP], shared, tile, c.count - now, c.count, live);
        at += now;
    }
}

/* ---- launches ---- */

template <typename W> static cudaError_t launch_deep(const struct deep_call &c, int blocks, cudaStream_t stream) {
    const int         bytes = c.neurons * ROW;
    const cudaError_t error = cudaFuncSetAttribute(deep_kernel<W>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    deep_kernel<W><<<blocks, THREADS, bytes, stream>>>(c);
    return cudaGetLastError();
}

extern "C" bool ck_spdnn_deep_fits(int64_t neurons, int shared_bytes) {
    return neurons <= CK_SPDNN_DEEP_GROUPS * ROWS &&
           neurons * ROW + (int64_t)sizeof(struct staged) * WARPS + 1024 <= shared_bytes;
}

extern "C" cudaError_t ck_spdnn_deep(const struct ck_spdnn_layer *layer, const struct ck_spdnn_deep *deep,
                                     const struct ck_spdnn_deep_state *state, cudaStream_t stream) {
    struct deep_call c = {};
    if (deep->count < 1 || deep->count > CK_SPDNN_DEEP_LAYERS) return cudaErrorInvalidValue;
    for (int l = 0; l < deep->count; l++) {
        if (layer[l].rows != ROWS || layer[l].groups > CK_SPDNN_DEEP_GROUPS || layer[l].weights != layer[0].weights)
            return cudaErrorInvalidValue;
        c.layer[l] = {layer[l].start,  layer[l].row,  layer[l].column, layer[l].weight,
                      layer[l].groups, layer[l].bias, layer[l].ceiling};
    }
    c.state   = *state;
    c.bit     = deep->bit;
    c.words   = deep->words;
    c.x       = deep->x;
    c.y       = deep->y;
    c.count   = deep->count;
    c.index   = deep->index;
    c.neurons = deep->neurons;
    c.turn    = (int)(deep->launch % 2);
    c.keep    = deep->keep;
    c.last    = deep->last;
    c.epoch   = deep->launch + 1;
    return layer[0].weights == CK_F16 ? launch_deep<__half>(c, deep->blocks, stream)
                                      : launch_deep<float>(c, deep->blocks, stream);
}

static __global__ void __launch_bounds__(256)
    deep_start_kernel(int layers, int64_t count, int64_t stride, int blocks, struct ck_spdnn_deep_state s) {
    const int64_t at = (int64_t)blockIdx.x * 256 + threadIdx.x, step = (int64_t)gridDim.x * 256;
    for (int64_t i = at; i < stride; i += step) s.alive[i] = 0;
    for (int64_t i = at; i <= layers; i += step) s.live[i] = i ? 0 : (int32_t)count;
    for (int64_t i = at; i < blocks; i += step) s.ready[i] = 0;
}

extern "C" cudaError_t ck_spdnn_deep_start(int layers, int64_t count, int64_t stride, int blocks,
                                           const struct ck_spdnn_deep_state *state, cudaStream_t stream) {
    deep_start_kernel<<<ck_blocks(stride, 256, 8192), 256, 0, stream>>>(layers, count, stride, blocks, *state);
    return cudaGetLastError();
}

/* One block: a thread takes a run of inputs, so that one scan places all. */
static __global__ void __launch_bounds__(1024)
    deep_list_kernel(int64_t count, struct ck_spdnn_deep_state s, int32_t *category, int32_t *order) {
    __shared__ int part[CK_WARP];
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int64_t  run = (count + 1023) / 1024, first = threadIdx.x * run,
                  end = first + run < count ? first + run : count;
    int mine          = 0;
    for (int64_t i = first; i < end; i++) mine += s.alive[i];
    int upto = mine;
    for (int offset = 1; offset < CK_WARP; offset *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, upto, offset);
        if (lane >= offset) upto += before;
    }
    if (lane == CK_WARP - 1) part[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warp; w++) upto += part[w];
    int at = upto - mine;
    for (int64_t i = first; i < end; i++)
        if (s.alive[i]) {
            category[at] = (int32_t)i;
            order[at++]  = s.place[i];
        }
}

static __global__ void __launch_bounds__(256)
    deep_values_kernel(const int32_t *live, const int32_t *order, const float *y, int64_t neurons, int64_t stride,
                       float *packed) {
    for (int64_t n = blockIdx.x; n < neurons; n += gridDim.x)
        for (int i = (int)threadIdx.x; i < *live; i += 256)
            packed[n * stride + i] = y[((int64_t)(order[i] / TILE) * neurons + n) * TILE + order[i] % TILE];
}

extern "C" cudaError_t ck_spdnn_deep_finish(int layers, int64_t launches, int64_t count, const float *y,
                                            int64_t neurons, int64_t stride, const struct ck_spdnn_deep_state *state,
                                            int32_t *category, float *packed, cudaStream_t stream) {
    int32_t *order = state->origin[(launches + 1) % 2]; /* nobody reads that one any more */
    deep_list_kernel<<<1, 1024, 0, stream>>>(count, *state, category, order);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess || !packed) return error;
    deep_values_kernel<<<ck_blocks(neurons, 1, 8192), 256, 0, stream>>>(&state->live[layers], order, y, neurons, stride,
                                                                        packed);
    return cudaGetLastError();
}

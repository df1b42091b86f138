/* cuda/spdnn/spdnn_layer.cu: a layer of a sparse deep network in one launch: sparse product, bias, clipped ReLU, which
 * inputs are still alive, and the list of them for the next layer. The truth is device/cpu/spdnn.c; sums run over a
 * row's columns in the same order.
 *
 * Activations are [neuron][input]: a warp takes 128 inputs of a group of rows that have the same columns. Per column it
 * loads 512 bytes of inputs once for all rows of the group, and the rows' weights from shared memory, where the warp
 * has put them as floats. Four warps work on neighbouring groups, which share columns as far as the matrix lets them:
 * these meet in L1. Blocks take items (128 inputs, some groups) in an order that keeps inputs in L2 until all groups
 * have read them.
 *
 * Bytes an edge and input with groups of 16 rows: 4/16 read from L2, half of it when neighbours share half of their
 * columns, and 4 bytes of result a row. Limiter: L2, then HBM where a layer's activations are larger than L2: 8 bytes a
 * neuron and input. Roof of multiply-adds: 128 a clock and multiprocessor.
 *
 * No input waits for the host: the last block to end counts flags, and where some input died, writes the list of the
 * others. The next layer reads through that list and writes side by side, so that a list is needed only directly behind
 * a death. */
#include "cuda/spdnn/spdnn_kernel.h"

#include "cuda/common/common.cuh"

enum {
    THREADS     = 128,
    WARPS       = THREADS / CK_WARP,
    LANE_INPUTS = CK_SPDNN_CHUNK / CK_WARP,
    PIECE       = 32,
    FLAGS       = 16,
    SPREAD      = 8
};

struct call {
    struct ck_spdnn_layer layer;
    struct ck_spdnn_state state;
    const float          *x;
    float                *y;
    int64_t               stride;
    int                   index;
    bool                  keep, overlap;
    int64_t               cache_bytes; /* a larger result goes past L2 as far as that can be asked for */
};

/* A column's weights in shared memory; the space between lets 32 lanes write theirs without meeting in a bank. */
template <int ROWS> struct pitch { static constexpr int value = ROWS >= 4 ? ROWS + 4 : ROWS; };
template <int ROWS> struct staged {
    alignas(16) float weight[PIECE][pitch<ROWS>::value];
    alignas(16) uint32_t column[PIECE];
};

/* ---- weights ---- */

/* Copies ROWS * sizeof (W) bytes, which begin at a multiple of that or of 16. */
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

/* Lane i brings column i of the piece; behind the last column come ones that add nothing. */
template <int ROWS, typename W>
__device__ __forceinline__ void stage(const struct ck_spdnn_layer &f, uint32_t first, uint32_t count,
                                      struct staged<ROWS> &to, unsigned lane) {
    constexpr int BYTES = ROWS * (int)sizeof(W);
    uint32_t      word[(BYTES + 3) / 4];
    const bool    there = lane < count;
    const int64_t k     = (int64_t)first + (there ? lane : count - 1);
    __syncwarp(); /* the piece before has been read */
    to.column[lane] = f.column[k];
    load_bytes<BYTES>(static_cast<const W *>(f.weight) + k * ROWS, word);
#pragma unroll
    for (int i = 0; i < (BYTES + 3) / 4; i++) word[i] = there ? word[i] : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) to.weight[lane][r] = weight_of<W>(word, r);
    __syncwarp();
}

/* ---- a group ---- */

/* Which inputs a lane has: four side by side, or by the list, one of each 32. */
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
    /* Where input t of the lane is written. */
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
    constexpr int STEP = ROWS >= 16 ? 2 : 4; /* columns at once: as many as registers are left */
    float         now[STEP][LANE_INPUTS], next[STEP][LANE_INPUTS];
    if constexpr (WHOLE) load_columns<STEP>(c, &s.column[0], in, now);
#pragma unroll 1
    for (uint32_t k = 0; k < count; k += STEP) {
        /* The next are on their way while we compute; behind the end the last ones again. */
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
__device__ __forceinline__ void write_group(const struct call &c, bool past_cache, int group, int64_t base,
                                            unsigned lane, const float (&sum)[ROWS][LANE_INPUTS], unsigned &alive) {
    float          most[LANE_INPUTS] = {};
    const unsigned rows              = lane < ROWS ? c.layer.row[(int64_t)group * ROWS + lane] : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float *to = c.y + (int64_t)__shfl_sync(0xffffffffu, rows, r) * c.stride;
        float  v[LANE_INPUTS];
#pragma unroll
        for (int t = 0; t < LANE_INPUTS; t++) {
            v[t]    = fminf(fmaxf(sum[r][t] + c.layer.bias, 0.0f), c.layer.ceiling);
            most[t] = fmaxf(most[t], v[t]);
        }
        if constexpr (WHOLE) {
            float4 *whole = reinterpret_cast<float4 *>(to + base + LANE_INPUTS * lane);
            if (past_cache)
                __stcs(whole, make_float4(v[0], v[1], v[2], v[3]));
            else
                *whole = make_float4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) to[base + lane + CK_WARP * t] = v[t];
        }
    }
#pragma unroll
    for (int t = 0; t < LANE_INPUTS; t++) alive |= (most[t] > 0.0f ? 1u : 0u) << t;
}

/* Groups [first, end) for 128 inputs from `base` on, shared by the block's warps. */
template <int ROWS, typename W, bool WHOLE>
__device__ __forceinline__ void run_item(const struct call &c, struct staged<ROWS> &s, int first, int end, int64_t base,
                                         int live) {
    const unsigned            lane = threadIdx.x % CK_WARP, warp = threadIdx.x / CK_WARP;
    struct lane_inputs<WHOLE> in;
    const bool past_cache = (int64_t)c.layer.groups * ROWS * live * (int64_t)sizeof(float) > c.cache_bytes;
    unsigned   alive      = 0; /* bit t: input t of the lane */
    in.open(c, base, live, lane);
    if constexpr (!WHOLE) {
        if (first == 0 && warp == 0) { /* one item of these inputs: their numbers move with them */
            const int turn = *c.state.current;
#pragma unroll
            for (int t = 0; t < LANE_INPUTS; t++) {
                const int64_t i = in.place(base, lane, t);
                if (i < live) c.state.origin[turn ^ 1][i] = c.state.origin[turn][in.at[t]];
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
        write_group<ROWS, WHOLE>(c, past_cache, g, base, lane, sum, alive);
    }
#pragma unroll
    for (int t = 0; t < LANE_INPUTS; t++) {
        const int64_t i = in.place(base, lane, t);
        if ((alive >> t & 1u) && i < live) c.state.alive[i] = 1;
    }
}

/* ---- who lives: by the last block ---- */

/* Sum of this and all threads before; *all: of the block. Begins and ends with a barrier. */
__device__ __forceinline__ int scan(int x, int *all) {
    __shared__ int part[WARPS];
    const unsigned lane = threadIdx.x % CK_WARP, warp = threadIdx.x / CK_WARP;
#pragma unroll
    for (int offset = 1; offset < CK_WARP; offset *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, x, offset);
        if (lane >= (unsigned)offset) x += before;
    }
    __syncthreads();
    if (lane == CK_WARP - 1) part[warp] = x;
    __syncthreads();
    int sum = 0;
    for (unsigned w = 0; w < WARPS; w++) {
        if (w == warp) x += sum;
        sum += part[w];
    }
    *all = sum;
    __syncthreads();
    return x;
}

__device__ __forceinline__ int count_flags(uint4 v) {
    return __popc(v.x) + __popc(v.y) + __popc(v.z) + __popc(v.w);
}

/* A thread looks at a run of flags, so that one scan places all of its list. */
__device__ __forceinline__ void settle(const struct call &c, int live, bool whole) {
    uint4    *flags = reinterpret_cast<uint4 *>(c.state.alive);
    const int all = (live + FLAGS - 1) / FLAGS, run = (all + THREADS - 1) / THREADS, first = (int)threadIdx.x * run;
    const int end  = first + run < all ? first + run : all;
    int       mine = 0, now = live;
    if (!c.keep) {
#pragma unroll 4
        for (int i = first; i < end; i++) mine += count_flags(__ldcg(&flags[i]));
        int at = scan(mine, &now) - mine;
        if (now < live)
            for (int i = first; i < end; i++) {
                const uint4    v       = __ldcg(&flags[i]);
                const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int b = 0; b < FLAGS; b++)
                    if (word[b / 4] >> b % 4 * 8 & 1) c.state.list[at++] = i * FLAGS + b;
            }
    }
    for (int i = first; i < end; i++) flags[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        c.state.live[c.index + 1] = now;
        if (!whole) *c.state.current ^= 1;
        *c.state.blocks_done = 0;
    }
}

__device__ __forceinline__ bool is_last_block(uint32_t *done) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

template <int ROWS, typename W>
static __global__ void __launch_bounds__(THREADS, CK_SPDNN_BLOCKS) layer_kernel(struct call c) {
    __shared__ struct staged<ROWS> s[WARPS];
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion(); /* the next layer's blocks may come as ours go; they wait here for all of
                                                  them */
    cudaGridDependencySynchronize();
#endif
    const int      live   = c.state.live[c.index];
    const bool     whole  = c.index == 0 || live == c.state.live[c.index - 1];
    const unsigned chunks = (unsigned)(live + CK_SPDNN_CHUNK - 1) / CK_SPDNN_CHUNK, groups = (unsigned)c.layer.groups;
    /* Some groups a warp where there is work enough to spread all the same. */
    const uint64_t turns = (uint64_t)chunks * groups / (WARPS * 4u * gridDim.x);
    const unsigned step  = WARPS * (unsigned)(turns < 1 ? 1 : turns < SPREAD ? turns : SPREAD);
    const unsigned tiles = (groups + step - 1) / step;
    for (unsigned item = blockIdx.x; item < chunks * tiles; item += gridDim.x) {
        const unsigned chunk = item / tiles, first = item % tiles * step,
                       end = first + step < groups ? first + step : groups;
        const int64_t base = (int64_t)chunk * CK_SPDNN_CHUNK;
        if (whole)
            run_item<ROWS, W, true>(c, s[threadIdx.x / CK_WARP], (int)first, (int)end, base, live);
        else
            run_item<ROWS, W, false>(c, s[threadIdx.x / CK_WARP], (int)first, (int)end, base, live);
    }
    if (is_last_block(c.state.blocks_done)) settle(c, live, whole);
}

template <int ROWS, typename W> static cudaError_t launch_layer(const struct call &c, int blocks, cudaStream_t stream) {
    cudaLaunchAttribute overlap[1];
    cudaLaunchConfig_t  config = {};
    cudaFuncAttributes  code;
    const cudaError_t   error = cudaFuncGetAttributes(&code, layer_kernel<ROWS, W>);
    if (error != cudaSuccess) return error;
    overlap[0].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap[0].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim                                        = dim3((unsigned)blocks);
    config.blockDim                                       = dim3(THREADS);
    config.stream                                         = stream;
    config.attrs                                          = overlap;
    config.numAttrs = c.overlap && code.ptxVersion >= 90 ? 1 : 0; /* as __CUDA_ARCH__ was: older code does not wait */
    return cudaLaunchKernelEx(&config, layer_kernel<ROWS, W>, c);
}

template <typename W> static cudaError_t launch_rows(const struct call &c, int blocks, cudaStream_t stream) {
    switch (c.layer.rows) {
    case 1: return launch_layer<1, W>(c, blocks, stream);
    case 2: return launch_layer<2, W>(c, blocks, stream);
    case 4: return launch_layer<4, W>(c, blocks, stream);
    case 8: return launch_layer<8, W>(c, blocks, stream);
    case 16: return launch_layer<16, W>(c, blocks, stream);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t ck_spdnn_layer(const struct ck_spdnn_layer *layer, int index, unsigned how, const float *x,
                                      float *y, int64_t stride, const struct ck_spdnn_state *state,
                                      const struct ck_spdnn_chip *chip, cudaStream_t stream) {
    const struct call c = {
        *layer,           *state, x, y, stride, index, (how & CK_SPDNN_KEEP) != 0, (how & CK_SPDNN_OVERLAP) != 0,
        chip->cache_bytes};
    const int blocks = chip->multiprocessors * CK_SPDNN_BLOCKS;
    return layer->weights == CK_F16 ? launch_rows<__half>(c, blocks, stream) : launch_rows<float>(c, blocks, stream);
}

/* ---- before and after ---- */

/* A block a neuron at a time; the first ones set the state, too. */
static __global__ void __launch_bounds__(THREADS)
    start_kernel(const uint32_t *bit, int64_t words, int64_t neurons, int64_t count, float *x, int64_t stride,
                 struct ck_spdnn_state s) {
    for (int64_t n = blockIdx.x; n < neurons; n += gridDim.x)
        for (int64_t i = threadIdx.x; i < stride; i += THREADS)
            x[n * stride + i] = i < count ? (float)(bit[n * words + i / 32] >> i % 32 & 1u) : 0.0f;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < stride; i += (int64_t)gridDim.x * THREADS) {
        s.origin[0][i] = (int32_t)i;
        s.alive[i]     = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        s.live[0]      = (int32_t)count;
        *s.current     = 0;
        *s.blocks_done = 0;
    }
}

extern "C" cudaError_t ck_spdnn_start(const uint32_t *bit, int64_t words, int64_t neurons, int64_t count, float *x,
                                      int64_t stride, const struct ck_spdnn_state *state, cudaStream_t stream) {
    start_kernel<<<ck_blocks(neurons, 1, 8192), THREADS, 0, stream>>>(bit, words, neurons, count, x, stride, *state);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS)
    finish_kernel(int layers, const float *y, int64_t neurons, int64_t stride, struct ck_spdnn_state s,
                  int32_t *category, float *packed) {
    const int      live   = s.live[layers];
    const bool     whole  = layers == 0 || live == s.live[layers - 1];
    const int32_t *origin = s.origin[*s.current];
    if (blockIdx.x == 0)
        for (int i = (int)threadIdx.x; i < live; i += THREADS) category[i] = origin[whole ? i : s.list[i]];
    if (!packed) return;
    for (int64_t n = blockIdx.x; n < neurons; n += gridDim.x)
        for (int i = (int)threadIdx.x; i < live; i += THREADS)
            packed[n * stride + i] = y[n * stride + (whole ? i : s.list[i])];
}

extern "C" cudaError_t ck_spdnn_finish(int layers, const float *y, int64_t neurons, int64_t stride,
                                       const struct ck_spdnn_state *state, int32_t *category, float *packed,
                                       cudaStream_t stream) {
    finish_kernel<<<packed ? ck_blocks(neurons, 1, 8192) : 1, THREADS, 0, stream>>>(layers, y, neurons, stride, *state,
                                                                                    category, packed);
    return cudaGetLastError();
}

/* tools/spdnn/deep.cu: computes several layers of a small sparse deep network in one launch.
 *
 * A thread block holds all activations of 32 inputs in shared memory and computes layer after layer without
 * communication. The reference is tools/spdnn/run_cpu.c; sums run over a row's columns in the order of the reference
 * and of tools/spdnn/layer.cu.
 *
 * Shared memory cannot hold a layer's results and its input together. The results stay in registers until all warps
 * have read the input: 16 warps x 4 groups of 16 rows x 32 inputs are 64 sums per thread. A quarter of a warp computes
 * one group and a lane 4 inputs: a column costs a lane one 16-byte read of inputs and four of weights for 64
 * multiply-adds. Weights come from L2, eight columns ahead, and are converted to floats when they are stored to the
 * warp's part of shared memory.
 *
 * Between launches the inputs are stored in tiles of 32, [tile][neuron][32]. The live inputs are contiguous, in the
 * order in which thread blocks end; the results do not depend on that order, and the list of categories is made by
 * input at the end. An input that is removed within a launch is computed until the launch ends.
 *
 * The work is divided by McNaughton's wrap-around rule (1959): the layers of all tiles form one sequence, which is cut
 * into equal parts. A tile that is cut is begun as the first work of one block and completed as the last work of
 * another block, which seldom waits long. A block waits only for a block with a smaller index, which has started even
 * where the device cannot hold all blocks together.
 *
 * Bytes: the weights from L2 once per layer and block; 8 per neuron, input and launch. Limiter: multiply-adds, with a
 * roofline of 128 per clock and multiprocessor; shared memory is busy three quarters of the time. On one H200: 16 T
 * multiply-adds per second with 4,482 of 60,000 inputs live, which is half of the roofline at 1.98 GHz. */
#include "tools/spdnn/deep_layer.cuh"

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

/* Stores the inputs of the mask `live` to the columns from `base` on. */
__device__ __forceinline__ void store_tile(const struct deep_call &c, const unsigned char *x, int64_t tile,
                                           uint32_t live_mask, int base) {
    const int lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int at = base + __popc(live_mask & ((1u << lane) - 1u));
    if (warp == 0 && live_mask >> lane & 1u) {
        const int32_t origin = c.index ? c.state.origin[c.parity][tile * TILE + lane] : (int32_t)tile * TILE + lane;
        c.state.origin[c.parity ^ 1][at] = origin;
        if (c.last) {
            c.state.alive[origin] = 1;
            c.state.place[origin] = at;
        }
    }
    if (live_mask == 0xffffffffu && base % TILE == 0) {
        copy_tile(x, c.y + (int64_t)base * c.neurons, c.neurons);
        return;
    }
    float *to = c.y + (int64_t)(at / TILE) * TILE * c.neurons + at % TILE;
    if (live_mask >> lane & 1u)
#pragma unroll 8
        for (int n = warp; n < c.neurons; n += WARPS)
            to[(int64_t)n * TILE] = reinterpret_cast<const float *>(x + n * ROW)[lane];
}

__device__ __forceinline__ void wait_for(const uint32_t *flag, uint32_t epoch) {
    if (threadIdx.x == 0) {
        uint32_t value;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
        while (value != epoch);
    }
    __syncthreads();
}

__device__ __forceinline__ void set_flag(uint32_t *flag, uint32_t epoch) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory");
}

/* Computes layers [from, end) of a tile. The input comes from the launch before or from block blockIdx.x - 1. A tile
 * whose last layer of the launch is not `end` is passed on in this block's `handoff` buffer. */
template <typename W>
__device__ __forceinline__ void run_tile(const struct deep_call &c, unsigned char *x, struct staged &s,
                                         uint32_t *shared, int64_t tile, int from, int end, int live) {
    const int      block      = (int)blockIdx.x;
    const int64_t  room       = (int64_t)c.neurons * TILE;
    const int64_t  inputs     = live - tile * TILE;
    const uint32_t valid_mask = inputs >= TILE ? 0xffffffffu : (1u << inputs) - 1u;
    if (from > 0) {
        wait_for(&c.state.ready[block - 1], c.epoch);
        load_tile(c.state.handoff + (block - 1) * room, x, c.neurons);
    } else if (c.bit)
        load_bits(c, tile, x);
    else
        load_tile(c.x + tile * room, x, c.neurons);
    __syncthreads();
    const uint32_t live_mask = run_layers<W>(c, x, s, shared, from, end, valid_mask);
    if (end < c.count) {
        copy_tile(x, c.state.handoff + block * room, c.neurons);
        set_flag(&c.state.ready[block], c.epoch);
    } else {
        if (threadIdx.x == 0) {
            shared[2] = live_mask;
            shared[3] = (uint32_t)atomicAdd(&c.state.live[c.index + c.count], __popc(live_mask));
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
    /* masks of the live inputs after even and odd layers and after the last one; the column where the tile is stored */
    __shared__ uint32_t shared[4];
    const int           live  = c.state.live[c.index];
    const int64_t       tiles = (live + TILE - 1) / TILE, work = tiles * c.count;
    const int64_t part_work = (work + gridDim.x - 1) / gridDim.x, largest = part_work > c.count ? part_work : c.count;
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * largest,
                  end   = first + largest < work ? first + largest : work;
    if (threadIdx.x < 2) shared[threadIdx.x] = 0;
    for (int64_t at = first; at < end;) {
        const int64_t tile = at / c.count;
        const int from = (int)(at % c.count), rest = c.count - from, layers = end - at < rest ? (int)(end - at) : rest;
        /* A tile that is cut: the block whose part begins within the tile computes the first layers, the block whose
         * part ends in it the others. */
        if (from > 0)
            run_tile<W>(c, x, s[threadIdx.x / CK_WARP], shared, tile, 0, rest, live);
        else
            run_tile<W>(c, x, s[threadIdx.x / CK_WARP], shared, tile, c.count - layers, c.count, live);
        at += layers;
    }
}

/* ---- launches ---- */

template <typename W> static cudaError_t launch_deep(const struct deep_call &c, int blocks, cudaStream_t stream) {
    const int         bytes = c.neurons * ROW;
    const cudaError_t error = ck_allow_shared(deep_kernel<W>, (int64_t)bytes);
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
    c.parity  = (int)(deep->launch % 2);
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

/* One block. A thread processes consecutive inputs, so that one scan gives all positions. */
static __global__ void __launch_bounds__(1024)
    deep_list_kernel(int64_t count, struct ck_spdnn_deep_state s, int32_t *category, int32_t *order) {
    __shared__ int part[CK_WARP];
    const int      lane = (int)threadIdx.x % CK_WARP, warp = (int)threadIdx.x / CK_WARP;
    const int64_t  run = (count + 1023) / 1024, first = threadIdx.x * run,
                  end = first + run < count ? first + run : count;
    int mine          = 0;
    for (int64_t i = first; i < end; i++) mine += s.alive[i];
    int prefix = mine;
    for (int offset = 1; offset < CK_WARP; offset *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, prefix, offset);
        if (lane >= offset) prefix += before;
    }
    if (lane == CK_WARP - 1) part[warp] = prefix;
    __syncthreads();
    for (int w = 0; w < warp; w++) prefix += part[w];
    int at = prefix - mine;
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
    int32_t *order = state->origin[(launches + 1) % 2]; /* this array is no longer read */
    deep_list_kernel<<<1, 1024, 0, stream>>>(count, *state, category, order);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess || !packed) return error;
    deep_values_kernel<<<ck_blocks(neurons, 1, 8192), 256, 0, stream>>>(&state->live[layers], order, y, neurons, stride,
                                                                        packed);
    return cudaGetLastError();
}

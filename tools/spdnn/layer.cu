/* tools/spdnn/layer.cu: computes one layer of a sparse deep network in one launch: sparse product, bias, clipped
 * ReLU, and the list of live inputs for the next layer.
 *
 * The reference is tools/spdnn/run_cpu.c; sums run over a row's columns in the same order.
 *
 * Activations are [neuron][input]. A warp processes 128 inputs for a group of rows that have the same columns. For each
 * column the warp loads 512 bytes of inputs once for all rows of the group, and the rows' weights from shared memory,
 * where the warp has stored them as floats. Four warps process neighbouring groups, which often share columns; shared
 * columns are found in L1. Thread blocks process work items (128 inputs, some groups) in an order that keeps inputs in
 * L2 until all groups have read them.
 *
 * Bytes per edge and input with groups of 16 rows: 4/16 from L2, half of it when neighbouring groups share half of
 * their columns, and 4 bytes of result per row. Limiter: L2; HBM where a layer's activations are larger than L2: 8
 * bytes per neuron and input. Roofline of multiply-adds: 128 per clock and multiprocessor.
 *
 * No input waits for the host. The last thread block to end counts the flags and, where an input was removed, writes
 * the list of the live inputs. The next layer reads through that list and writes contiguously, so that only the layer
 * after a removal needs a list. */
#include "tools/spdnn/group.cuh"

/* ---- list of live inputs, by the last thread block ---- */

/* Sum of x over this thread and all threads before it. *all gets the sum over the block. Begins and ends with a
 * barrier. */
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

/* Each thread processes consecutive flags, so that one scan gives all positions in the list. */
__device__ __forceinline__ void compact_live(const struct call &c, int live, bool whole) {
    uint4    *flags = reinterpret_cast<uint4 *>(c.state.alive);
    const int all = (live + FLAGS - 1) / FLAGS, run = (all + THREADS - 1) / THREADS, first = (int)threadIdx.x * run;
    const int end       = first + run < all ? first + run : all;
    int       own_count = 0, now = live;
    if (!c.keep) {
#pragma unroll 4
        for (int i = first; i < end; i++) own_count += count_flags(__ldcg(&flags[i]));
        int at = scan(own_count, &now) - own_count;
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
    /* The next layer's blocks may start while the blocks of this launch end; they wait here until all have ended. */
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
#endif
    const int      live   = c.state.live[c.index];
    const bool     whole  = c.index == 0 || live == c.state.live[c.index - 1];
    const unsigned chunks = (unsigned)(live + CK_SPDNN_CHUNK - 1) / CK_SPDNN_CHUNK, groups = (unsigned)c.layer.groups;
    /* Several groups per warp when there is enough work for all multiprocessors. */
    const uint64_t groups_per_warp = (uint64_t)chunks * groups / (WARPS * 4u * gridDim.x);
    const unsigned step            = WARPS * (unsigned)(groups_per_warp < 1                     ? 1
                                                        : groups_per_warp < MAX_GROUPS_PER_WARP ? groups_per_warp
                                                                                                : MAX_GROUPS_PER_WARP);
    const unsigned tiles           = (groups + step - 1) / step;
    for (unsigned item = blockIdx.x; item < chunks * tiles; item += gridDim.x) {
        const unsigned chunk = item / tiles, first = item % tiles * step,
                       end = first + step < groups ? first + step : groups;
        const int64_t base = (int64_t)chunk * CK_SPDNN_CHUNK;
        if (whole)
            run_item<ROWS, W, true>(c, s[threadIdx.x / CK_WARP], (int)first, (int)end, base, live);
        else
            run_item<ROWS, W, false>(c, s[threadIdx.x / CK_WARP], (int)first, (int)end, base, live);
    }
    if (is_last_block(c.state.blocks_done)) compact_live(c, live, whole);
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
    /* code for older architectures does not wait, see layer_kernel */
    config.numAttrs = c.overlap && code.ptxVersion >= 90 ? 1 : 0;
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

extern "C" cudaError_t ck_spdnn_layer(const struct ck_spdnn_layer *layer, int index, unsigned flags, const float *x,
                                      float *y, int64_t stride, const struct ck_spdnn_state *state,
                                      const struct ck_spdnn_chip *chip, cudaStream_t stream) {
    const struct call c = {
        *layer,           *state, x, y, stride, index, (flags & CK_SPDNN_KEEP) != 0, (flags & CK_SPDNN_OVERLAP) != 0,
        chip->cache_bytes};
    const int blocks = chip->multiprocessors * CK_SPDNN_BLOCKS;
    return layer->weights == CK_F16 ? launch_rows<__half>(c, blocks, stream) : launch_rows<float>(c, blocks, stream);
}

/* ---- first and last step ---- */

/* A thread block processes one neuron at a time. The first blocks also initialise the state. */
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

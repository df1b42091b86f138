/* cuda/sparse/wgmma_sp/wgmma_sp_sm90a.cu: the kernel of cuda/sparse/wgmma_sp/wgmma_sp.h, on the sparse form of wgmma.
 *
 * The inputs of a tile are in shared memory, 32 channels of one phase of the stride at a time, once for all taps: rows
 * of 128 bytes, one per position. TMA loads 32 FP32 numbers per position, and some warps convert them in place to 32
 * high parts and 32 low parts in FP16. A tap reads the same bytes from another position on. Positions outside an image
 * are zeros. Rows of images may be one column longer than those of y; the results of that column are discarded.
 *
 * A unit of the filter is three instructions, sparse or dense: low parts x high parts, high x low, high x high. The
 * tensor cores truncate each sum: for terms of one sign, 54 units lost up to 1.7 times the error of FP32 on one H200.
 * The tensor cores therefore sum at most 8 units; then those sums are added in FP32 and the accumulators start again
 * from 0. Registers hold a tile's sums twice, so that tiles have few columns.
 *
 * Each multiprocessor runs one or two thread blocks for the whole launch: 3, 6 or 9 warps that convert inputs; with
 * each three of them one warp that may load inputs or a worker's filter by TMA and bulk copies; and 1 or 2 workers,
 * each with 64 output channels of the same tile. Each worker has its own ring of filter units, so that one worker can
 * be ahead of the other and multiply while the other stores. Results go directly to y: the threads of a warp exchange
 * sums until each has four neighbouring channels of a pixel, and four threads write 64 bytes of it.
 *
 * Where one round of tiles leaves multiprocessors idle, thread blocks are paired, one cluster per pair. Both blocks of
 * a pair compute all of a tile's outputs over half of the channels, exchange sums through shared memory, and each
 * writes half of the columns.
 *
 * Bytes: y once, the residual once, x once for every two blocks of output channels (from L2, except the first time),
 * the filter's units (4.3 KB for 64 x 32 weights) once per tile. Limiter: shared memory, 128 bytes per cycle. TMA
 * writes 128 bytes for each position of a chunk; the conversion reads and writes them; workers read 192 of them for a
 * sparse unit or for two dense ones. Operand A, 6 KB per unit, and its loading come on top. */
#include "cuda/sparse/wgmma_sp/wgmma_sp_worker.cuh"

namespace wgmma_sp {
namespace {

#if CK_HAS_SM90A

/* Initialises the barriers, one per thread. */
template <int THREADS> __device__ __forceinline__ void make_barriers(const params &p, uint32_t shared) {
    static_assert(BARS <= THREADS, "one thread initialises each barrier");
    const int i = (int)threadIdx.x;
    if (i < BARS) {
        const bool by_worker = i >= BAR_EMPTY && i < BAR_RELOAD, by_warp = i >= BAR_USED || i == BAR_LEAD;
        ck_mbar_init(shared + 8 * (uint32_t)i, by_worker ? 4 * (uint32_t)p.plan.workers : by_warp ? 4 : 1);
        ck_mbar_init_fence();
    }
    if (i < p.plan.phases) ck_tma_prefetch(&p.x[i]);
}
/* Run by the workers while the first inputs are loaded. Clears the positions after the rows of each stage, which no
 * load writes, and stores the pixel of each column. */
template <int WORKERS> __device__ __forceinline__ void prepare(const params &p, unsigned char *memory) {
    for (int s = 0; s < p.plan.stages; s++)
        for (int i = (int)inputs_bytes(p) + (int)threadIdx.x * 16; i < p.plan.stage_bytes; i += WORKERS * GROUP * 16)
            *reinterpret_cast<uint4 *>(memory + p.l.stages + s * p.plan.stage_bytes + i) = make_uint4(0, 0, 0, 0);
    for (int j = (int)threadIdx.x; j < p.plan.columns; j += WORKERS * GROUP) {
        const two_four::column c                         = two_four::column_of(p.conv, p.plan, j);
        reinterpret_cast<int *>(memory + p.l.pixels)[j]  = c.pixel;
        reinterpret_cast<int *>(memory + p.l.corners)[j] = c.image << 16 | c.row;
    }
    ck_fence_async();
    ck_barrier(BARRIER_PREPARED, WORKERS * GROUP);
}

#endif

/* Shape of a thread block. With few columns two thread blocks share a multiprocessor. The sums determine the registers
 * per thread, and so the number of warps: in addition to the workers there are GROUPS groups of one loading warp and 3
 * converting warps. */
template <int N, int WORKERS> struct block_shape {
    enum {
        BLOCKS = WORKERS == 1 && N <= 128 ? 2 : 1,
        GROUPS = BLOCKS == 2                ? 1
                 : WORKERS == 1 || N <= 120 ? 3
                 : N <= 160                 ? 2
                                            : 1
    };
    /* Registers per thread: at the launch, and after redistribution. Together they are no more than the block had at
     * the launch. */
    enum {
        LAUNCH_REGISTERS = 512 / BLOCKS / (GROUPS + WORKERS) / 8 * 8,
        LOADER_REGISTERS = WORKERS == 2 ? 56 : 88,
        IN_FLIGHT        = LOADER_REGISTERS < 88 ? 2 : 4, /* positions that a thread converts together */
        REMAINING        = ((GROUPS + WORKERS) * LAUNCH_REGISTERS - GROUPS * LOADER_REGISTERS) / WORKERS / 8 * 8,
        WORKER_REGISTERS = REMAINING < 240 ? REMAINING : 240
    };
    static_assert(WORKER_REGISTERS >= N + 32, "the sums must fit in registers");
    static_assert(LOADER_REGISTERS <= LAUNCH_REGISTERS && LAUNCH_REGISTERS <= WORKER_REGISTERS &&
                      WORKERS * WORKER_REGISTERS + GROUPS * LOADER_REGISTERS <= (WORKERS + GROUPS) * LAUNCH_REGISTERS,
                  "a block has this many registers");
};

template <int N, int WORKERS, bool PAIR>
__global__ void __launch_bounds__((block_shape<N, WORKERS>::GROUPS + WORKERS) * GROUP, block_shape<N, WORKERS>::BLOCKS)
    conv_kernel(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    make_barriers<(block_shape<N, WORKERS>::GROUPS + WORKERS) * GROUP>(p, shared);
    __syncthreads();
    const int     warp   = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    constexpr int GROUPS = block_shape<N, WORKERS>::GROUPS;
    const int     loader = warp - WORKERS * GROUP / CK_WARP;
    if (loader < 0) {
        ck_registers_increase<block_shape<N, WORKERS>::WORKER_REGISTERS>();
        prepare<WORKERS>(p, memory);
        ck_begin_after_last();
        worker<N, PAIR>(p, shared, warp * CK_WARP / GROUP).run();
        return;
    }
    ck_registers_decrease<block_shape<N, WORKERS>::LOADER_REGISTERS>();
    ck_begin_after_last();
    if (loader >= GROUPS)
        converter<GROUPS, block_shape<N, WORKERS>::IN_FLIGHT>(p, shared,
                                                              (int)threadIdx.x - WORKERS * GROUP - GROUPS * CK_WARP)
            .run();
    else if (threadIdx.x % CK_WARP == 0)
        load<GROUPS, WORKERS>(p, shared, loader);
#else
    __trap();
#endif
}

/* ---- launches ---- */

template <int N, int WORKERS, bool PAIR> cudaError_t launch(const params &p, int multiprocessors, cudaStream_t stream) {
    const auto        kernel = conv_kernel<N, WORKERS, PAIR>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p.plan.shared_bytes);
    const int max_blocks = multiprocessors * (p.plan.shared_bytes <= SHARED_HALF ? block_shape<N, WORKERS>::BLOCKS : 1);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t  config        = {};
    if (e != cudaSuccess) return e;
    attributes[0].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id                                         = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x                           = 2;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim          = dim3((unsigned)(PAIR ? p.items * 2 : p.items < max_blocks ? p.items : max_blocks));
    config.blockDim         = dim3((block_shape<N, WORKERS>::GROUPS + WORKERS) * GROUP);
    config.dynamicSmemBytes = (size_t)p.plan.shared_bytes;
    config.stream           = stream;
    config.attrs            = attributes;
    config.numAttrs         = PAIR ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, p);
}
/* The columns that the tile configs can have. */
template <int WORKERS, bool PAIR> cudaError_t launch_as(const params &p, int multiprocessors, cudaStream_t stream) {
    switch (p.plan.columns) {
    case 64:
        if constexpr (!PAIR) return launch<64, WORKERS, PAIR>(p, multiprocessors, stream);
        break;
    case 96: return launch<96, WORKERS, PAIR>(p, multiprocessors, stream);
    case 104: return launch<104, WORKERS, PAIR>(p, multiprocessors, stream);
    case 112: return launch<112, WORKERS, PAIR>(p, multiprocessors, stream);
    case 120: return launch<120, WORKERS, PAIR>(p, multiprocessors, stream);
    case 160: return launch<160, WORKERS, PAIR>(p, multiprocessors, stream);
    case 192: return launch<192, WORKERS, PAIR>(p, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t conv(const ck_wgmma_sp_args &args, const ck_wgmma_sp_plan &plan, int multiprocessors, cudaStream_t stream) {
    const ck_two_four_plan &tile = plan.tile;
    params                  p    = {{}, args, plan.conv, tile, layout(tile), 0, 0, plan.parts};
    p.k_groups                   = (int)((tile.blocks + tile.workers - 1) / tile.workers);
    p.items                      = p.k_groups * (int)tile.tiles;
    if (!two_four::map_inputs(plan.conv, tile, args.x, p.x)) return cudaErrorNotSupported;
    if (plan.parts == 2) return launch_as<2, true>(p, multiprocessors, stream);
    return tile.workers == 2 ? launch_as<2, false>(p, multiprocessors, stream)
                             : launch_as<1, false>(p, multiprocessors, stream);
}

} // namespace wgmma_sp

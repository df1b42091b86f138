/* cuda/sparse/two_four/two_four_sm90a.cu: the kernel of cuda/sparse/two_four/two_four.h, on the sparse form of wgmma.
 *
 * The inputs of a tile are in shared memory once for all taps of a phase of the stride: rows of 128 bytes, one per
 * position, as TMA stores them with the 128-byte swizzle. A tap reads the same bytes from another position on. TMA
 * fills positions outside an image with zeros. Rows are one column longer than those of y; the results of that column
 * are discarded.
 *
 * Shared memory is the limiter. A unit of 64 channels of the sum x 64 channels of y reads 128 bytes per position and
 * the filter's 4,608 bytes in N cycles of the tensor cores, which is the full bandwidth of shared memory (128 bytes per
 * cycle). Writing the filter and, for 3x3, a ninth of the tile comes on top. Roofline: about 3/4 of the rate of the
 * sparse tensor cores; the discarded columns cost another tenth.
 *
 * Each multiprocessor runs one thread block for the whole launch: a warpgroup that loads by TMA and bulk copies, and 1
 * or 2 workers, each with 64 output channels of the same tile. Each worker has its own ring of filter units, so that
 * one worker can be ahead of the other and multiply while the other stores. */
#include "cuda/sparse/two_four/two_four_worker.cuh"

namespace two_four {
namespace {

template <typename T, int N>
__global__ void __launch_bounds__(3 * GROUP, 1) conv_kernel(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    prepare(p, memory, shared);
    ck_begin_after_last();
    __syncthreads();
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (warp < 4) {
        ck_registers_decrease<40>();
        if (threadIdx.x == 0) load_inputs(p, shared);
        if (threadIdx.x % 32 == 0 && warp > 0 && warp <= p.plan.workers) load_filter(p, shared, warp - 1);
    } else {
        ck_registers_increase<232>();
        worker<T, N> worker(p, shared, warp / 4 - 1);
        worker.run();
    }
#else
    __trap();
#endif
}

/* ---- launches ---- */

/* Makes the TMA descriptor of the pixels of a phase. Dimensions: channels, images, columns, rows. */
bool map_phase(const ck_conv &c, const ck_two_four_plan &q, const void *x, int phase, CUtensorMap *map) {
    const int64_t size = c.type == CK_F32 ? 4 : 2, fr = q.phase_r[phase], fs = q.phase_s[phase], row = c.W * c.C * size;
    const cuuint64_t dim[4]   = {(cuuint64_t)c.C, (cuuint64_t)c.N, (cuuint64_t)((c.W - fs + c.stride - 1) / c.stride),
                                 (cuuint64_t)((c.H - fr + c.stride - 1) / c.stride)};
    const cuuint64_t pitch[3] = {(cuuint64_t)(c.H * row), (cuuint64_t)(c.stride * c.C * size),
                                 (cuuint64_t)(c.stride * row)};
    const cuuint32_t box[4]   = {(cuuint32_t)(POSITION / size), (cuuint32_t)q.images, (cuuint32_t)q.pitch,
                                 (cuuint32_t)q.rows};
    return ck_tma_boxes(map, c.type, 4, static_cast<const char *>(x) + fr * row + fs * c.C * size, dim, pitch, box);
}

template <typename T, int N> cudaError_t launch(const params &p, int multiprocessors, cudaStream_t stream) {
    const cudaError_t e =
        cudaFuncSetAttribute(conv_kernel<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, p.plan.shared_bytes);
    if (e != cudaSuccess) return e;
    cudaLaunchAttribute attribute                        = {};
    cudaLaunchConfig_t  config                           = {};
    attribute.id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim          = dim3((unsigned)(p.items < multiprocessors ? p.items : multiprocessors));
    config.blockDim         = dim3((unsigned)((1 + p.plan.workers) * GROUP));
    config.dynamicSmemBytes = (size_t)p.plan.shared_bytes;
    config.stream           = stream;
    config.attrs            = &attribute;
    config.numAttrs         = 1;
    return cudaLaunchKernelEx(&config, conv_kernel<T, N>, p);
}
template <typename T> cudaError_t launch_columns(const params &p, int multiprocessors, cudaStream_t stream) {
    switch (p.plan.columns) {
    case 104: return launch<T, 104>(p, multiprocessors, stream);
    case 112: return launch<T, 112>(p, multiprocessors, stream);
    case 128: return launch<T, 128>(p, multiprocessors, stream);
    case 208: return launch<T, 208>(p, multiprocessors, stream);
    case 216: return launch<T, 216>(p, multiprocessors, stream);
    case 224: return launch<T, 224>(p, multiprocessors, stream);
    case 232: return launch<T, 232>(p, multiprocessors, stream);
    case 256: return launch<T, 256>(p, multiprocessors, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

bool map_inputs(const ck_conv &c, const ck_two_four_plan &p, const void *x, CUtensorMap *maps) {
    for (int i = 0; i < p.phases; i++)
        if (!map_phase(c, p, x, i, &maps[i])) return false;
    return true;
}

cudaError_t conv(const ck_two_four_args &args, const ck_two_four_plan &plan, int multiprocessors, cudaStream_t stream) {
    params p   = {{}, args, plan, layout(plan), {}, 0, 0};
    p.k_groups = (int)((plan.blocks + plan.workers - 1) / plan.workers);
    p.items    = p.k_groups * (int)plan.tiles;
    for (int i = 0; i < plan.taps; i++)
        p.taps[i] = plan.at[i] * (POSITION / 16) * 4 | (int)(plan.first >> i & 1) | (int)(plan.last >> i & 1) * 2;
    if (!map_inputs(args.conv, plan, args.x, p.x)) return cudaErrorNotSupported;
    if (args.conv.type == CK_F16) return launch_columns<__half>(p, multiprocessors, stream);
    if (args.conv.type == CK_BF16) return launch_columns<__nv_bfloat16>(p, multiprocessors, stream);
    return cudaErrorInvalidValue;
}

} // namespace two_four

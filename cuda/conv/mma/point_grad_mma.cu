/* cuda/conv/mma/point_grad_mma.cu: the whole backward of a 1x1 convolution with stride 1 in one pass over memory, as
 * cuda/conv/pointwise/point_grad_sm90a.cu computes it for 9.0: the gradient of the BN behind it (dy), dgrad, wgrad, the
 * mask of the ReLU in front of it, and the sums for the BN in front of it.
 *
 * A block of 16 warps has a multiprocessor, a slice of C channels of x, all K channels of dy, and every step-th tile of
 * 32 or 64 pixels. w stays in shared memory, dw in registers from the first tile to the last. For each tile:
 *   - dy = a*g + b*dy_x + c, rounded, and xa go from registers to shared memory
 *   - the loads of the next tile and of add and bn_x start; they are in flight during the products
 *   - dw += dy^T xa and v = dy w; v goes through shared memory in f32, because its rows are finished and stored whole
 *   - dx = v + add, masked; a thread has the same 8 channels in all tiles and sums them
 * A second kernel adds the blocks' dw and sums in a fixed order.
 *
 * Bytes a pixel: see point_grad_sm90a.cu. The limiter is memory, followed closely by shared memory: for 64 pixels of
 * K 256, C 64, fragments are 384 KiB, 3,000 of the 4,900 cycles that 80 KiB of memory take. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/point_grad_fold.cuh"
#include "cuda/conv/mma/point_grad_mma_work.cuh"

namespace {

/* w, and the vectors over channels. */
template <typename T, typename P>
__device__ __forceinline__ void load_constants(const params &p, uint32_t shared, int slice) {
    constexpr int VECTORS = P::C / 8; /* of a row of w */
    for (int i = (int)threadIdx.x; i < P::K * VECTORS; i += P::THREADS) {
        const int k = i / VECTORS, v = i % VECTORS;
        ck_copy16(ck_chunk_at(shared, P::C * 2, k, v), static_cast<const T *>(p.w) + (int64_t)k * p.C + slice + v * 8,
                  true);
    }
    ck_copy_commit();
    for (int i = (int)threadIdx.x; i < 3 * P::K; i += P::THREADS)
        ck_put4(shared + (uint32_t)(P::ABC_AT + i / P::K * P::K * 4 + channel_at<8>(i % P::K, P::K)), p.dy_coeffs[i]);
    for (int c = (int)threadIdx.x; c < P::C && P::MODE != PLAIN; c += P::THREADS) {
        const uint32_t at = shared + (uint32_t)(P::CHANNEL_AT + channel_at<P::CE>(c, P::C));
        ck_put4(at, p.mean_rstd[slice + c]);
        if (P::MODE == INNER) {
            ck_put4(at + P::C * 4, p.scale_bias[slice + c]);
            ck_put4(at + P::C * 8, p.scale_bias[p.C + slice + c]);
        }
    }
    ck_copy_wait_all();
    __syncthreads();
}

template <typename T, typename P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) point_grad_mma(const params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    const uint32_t                                 shared = ck_shared(memory);
    const int slice = (int)blockIdx.x % p.slices * P::C, group = (int)blockIdx.x / p.slices;
    load_constants<T, P>(p, shared, slice);
    worker<T, P> worker(p, shared, slice);
    worker.run(group, (int)gridDim.x / p.slices);
    worker.write_dw(group);
    if (P::MODE != PLAIN) worker.write_sums(group);
}

/* ---- host side ---- */

struct layout {
    int    tiles, slices, groups;
    size_t dw_bytes, sums_bytes;
};
template <typename P> layout layout_of(const struct ck_point_grad *a, int multiprocessors) {
    layout l;
    l.tiles  = (int)((a->pixels + P::TILE - 1) / P::TILE);
    l.slices = (int)(a->C / P::C);
    l.groups = multiprocessors * P::BLOCKS / l.slices > 1 ? multiprocessors * P::BLOCKS / l.slices : 1;
    if (l.groups > l.tiles) l.groups = l.tiles;
    l.dw_bytes   = (size_t)l.groups * (size_t)(a->K * a->C) * sizeof(float);
    l.sums_bytes = (size_t)l.groups * 2 * (size_t)a->C * sizeof(float);
    return l;
}

template <typename T, typename P>
cudaError_t start(const struct ck_point_grad *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    const layout l = layout_of<P>(a, multiprocessors);
    params       p = {};
    p.g = a->g, p.dy_x = a->dy_x, p.w = a->w, p.x = a->x, p.add = a->add, p.bn_x = a->bn_x;
    p.dy_coeffs = a->dy_coeffs, p.scale_bias = a->scale_bias, p.mean_rstd = a->mean_rstd, p.dx = a->dx;
    p.dw_part = static_cast<float *>(workspace), p.sums_part = p.dw_part + l.dw_bytes / sizeof(float);
    p.pixels = (int)a->pixels, p.C = (int)a->C, p.tiles = l.tiles, p.slices = l.slices;
    const auto  kernel = point_grad_mma<T, P>;
    cudaError_t error  = ck_allow_shared(kernel, P::BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)(l.groups * l.slices), P::THREADS, P::BYTES, stream>>>(p);
    error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    const struct ck_parts parts = {p.dw_part, p.sums_part, l.groups, l.groups};
    return ck_fold_parts(&parts, P::MODE == PLAIN ? NULL : p.mean_rstd, a->dw, a->grad_sums, (int)a->K, (int)a->C,
                         a->accumulate, stream);
}

/* The kernels: channels of dy and of a slice of x, mode, pixels of a tile, copies, warps, early loads. Those that
 * fit are the tile configs, in this order. The autotuner chooses the fastest one. */
#define PLANS(DO)                                                                                                      \
    DO(256, 64, INNER, 64)                                                                                             \
    DO(256, 128, BLOCK, 32, 2)                                                                                         \
    DO(512, 64, INNER, 32, 1)                                                                                          \
    DO(64, 128, BLOCK, 32, 0, 8)                                                                                       \
    DO(64, 128, BLOCK, 64, 0, 16, true)                                                                                \
    DO(128, 128, BLOCK, 32)                                                                                            \
    DO(64, 64, PLAIN, 32, 0, 8)                                                                                        \
    DO(256, 64, PLAIN, 64)

enum { SLICES_MAX = 8, PIXELS_MAX = 1 << 30 };

/* The mode `masked` has no kernels here. `block` computes sums that nobody reads, of a BN that does not exist: x is its
 * input, (mean, rstd) are zeros in the workspace, and the sums follow them. */
bool is_masked(const struct ck_point_grad *a) {
    return a->has_bn_x && !a->has_mean_rstd && !a->has_scale_bias;
}
size_t unused_bytes(const struct ck_point_grad *a) {
    return is_masked(a) ? 2 * sizeof(float) * (size_t)a->C : 0; /* a multiple of 512 */
}

int mode_of(const struct ck_point_grad *a) {
    if (is_masked(a)) return BLOCK;
    if (a->has_scale_bias && a->has_mean_rstd && !a->has_bn_x && !a->has_add) return INNER;
    if (!a->has_scale_bias && a->has_mean_rstd && a->has_bn_x) return BLOCK;
    if (!a->has_scale_bias && !a->has_mean_rstd && !a->has_bn_x) return PLAIN;
    return -1;
}
template <typename P> bool fits(const struct ck_point_grad *a, const struct ck_gpu *gpu) {
    return mode_of(a) == P::MODE && a->K == P::K && a->C % P::C == 0 && a->C / P::C <= SLICES_MAX &&
           P::BYTES <= gpu->block_bytes;
}

int configs(const struct ck_point_grad *a, const struct ck_gpu *gpu) {
    int count = 0;
    if ((a->type != CK_F16 && a->type != CK_BF16) || !a->has_dy_x || a->pixels < 1 || a->pixels > PIXELS_MAX) return 0;
#define COUNT(...) count += fits<plan<__VA_ARGS__>>(a, gpu);
    PLANS(COUNT)
    return count;
}

/* Calls use with a value of plan a->config of those that fit, and returns its result; `none` if there is none. */
template <class Result, class Use>
Result with_plan(const struct ck_point_grad *a, const struct ck_gpu *gpu, Result none, const Use &use) {
    int config = a->config;
#define USE(...)                                                                                                       \
    if (fits<plan<__VA_ARGS__>>(a, gpu) && config-- == 0) return use(plan<__VA_ARGS__>());
    PLANS(USE)
    return none;
}

size_t workspace_of(const struct ck_point_grad *a, const struct ck_gpu *gpu) {
    return 2 * unused_bytes(a) + with_plan(a, gpu, (size_t)0, [&](auto plan) {
               const layout l = layout_of<decltype(plan)>(a, gpu->multiprocessors);
               return l.dw_bytes + l.sums_bytes;
           });
}

cudaError_t launch(const struct ck_point_grad *args, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    const size_t         unused = unused_bytes(args);
    struct ck_point_grad a      = *args;
    char                *work   = static_cast<char *>(workspace);
    if (unused) {
        const cudaError_t error = cudaMemsetAsync(work, 0, unused, stream);
        if (error != cudaSuccess) return error;
        a.mean_rstd = static_cast<const float *>(workspace);
        a.grad_sums = reinterpret_cast<float *>(work + unused);
        a.bn_x      = a.x;
    }
    return ck_by_half(a.type, [&](auto t) {
        return with_plan(&a, gpu, cudaErrorInvalidValue, [&](auto plan) {
            return start<decltype(t), decltype(plan)>(&a, work + 2 * unused, gpu->multiprocessors, stream);
        });
    });
}

} // namespace

const struct ck_conv_family ck_point_grad_mma = ck_family<ck_point_grad, configs, workspace_of, launch>();

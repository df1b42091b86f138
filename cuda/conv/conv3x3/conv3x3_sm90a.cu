/* cuda/conv/conv3x3/conv3x3_sm90a.cu: 3x3 convolutions (family conv3x3, cuda/common/fused_conv.h) on compute capability
 * 9.0, 64 channels to 64; other numbers are in cuda/conv/conv3x3/conv3x3_wide_sm90a.cu.
 *
 * Bytes: 256 a pixel, with bn_x 384; 73,728 floating-point operations a pixel. The limiter is the tensor cores.
 *
 * With 64 channels on both sides, a product whose operands both come from shared memory reads as many bytes as shared
 * memory delivers. So the product is transposed: y^T = w x^T. The filter is the left operand and stays in registers for
 * the whole launch, and 128 pixels are the right operand. One block for each multiprocessor: a thread that loads by
 * TMA, and two warpgroups ("workers") that multiply 128 neighbouring positions each.
 *
 * A tile of x is loaded once for all nine filter positions. Positions are pixels of images with one zero row on top and
 * one zero column on the left, which are the zeros below and on the right of their neighbours. A filter position is
 * then a constant distance in this order, so each of its products reads the same rows of shared memory from another
 * address.
 *
 * The gradient of the input is the same product with the filter rotated and transposed. Another thread loads bn_x.
 *
 * The sums over the pixels are made while the workers store y, when the registers of the products are free. */
#include "cuda/common/column_sums.cuh"
#include "cuda/common/conv_family.cuh"
#include "cuda/conv/conv3x3/conv3x3_work.cuh"

namespace {

#if CK_HAS_SM90A

/* Scale and bias of the BN in front, rstd and -mean*rstd. */
__device__ __forceinline__ void set_bn(const params &p, uint32_t shared) {
    const int k = (int)threadIdx.x;
    if (k >= CHANNELS) return;
    const uint32_t to   = shared + (uint32_t)(p.plan.bn_at + k * 4);
    const float    mean = p.mean_rstd[k], rstd = p.mean_rstd[CHANNELS + k], scale = p.gamma[k] * rstd;
    ck_put4(to, scale);
    ck_put4(to + 4 * CHANNELS, p.beta[k] - mean * scale);
    ck_put4(to + 8 * CHANNELS, rstd);
    ck_put4(to + 12 * CHANNELS, -mean * rstd);
}

#endif

template <typename T, int KIND>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) conv3x3(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int                                       group = (int)threadIdx.x / GROUP, bar = (int)threadIdx.x;
    if (bar < BAR_COUNT) {
        const bool full = bar < BAR_EMPTY || (bar >= BAR_BN && bar < BAR_BN_EMPTY);
        ck_mbar_init(shared + (uint32_t)(p.plan.bar_at + 8 * bar), full ? 1 : bar < BAR_BN ? 4 * WORKERS : 4);
        ck_mbar_init_fence();
    }
    if (threadIdx.x == WORKERS * GROUP) ck_tma_prefetch(&p.x);
    if (KIND == GRADIENT) { /* the BN's vectors may be those of the last launch */
        ck_begin_after_last();
        set_bn(p, shared);
    }
    __syncthreads();
    if (group == WORKERS) {
        ck_registers_decrease<24>();
        if (KIND != GRADIENT) ck_begin_after_last();
        if (threadIdx.x == WORKERS * GROUP) load_tiles(p, shared);
        if (KIND == GRADIENT && threadIdx.x == WORKERS * GROUP + 32) load_bn_x(p, shared);
    } else {
        ck_registers_increase<240>();
        worker<T, KIND> worker(p, shared, group);
        if (KIND == FORWARD && p.positions)
            worker.load_filter(); /* without the condition, which holds, registers spill */
        if (KIND != GRADIENT) ck_begin_after_last();
        if (KIND != FORWARD) worker.load_filter();
        worker.run();
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

bool make_plan(struct plan *p, const struct ck_fused_conv *a) {
    if (!ck_is_conv3x3(a) || a->Q > 1024) return false;
    if (a->P >= INT32_MAX / 2 / (a->Q + 1) || a->N >= INT32_MAX / 2 / ((a->P + 1) * (a->Q + 1))) return false;
    const int64_t positions = a->N * (a->P + 1) * (a->Q + 1);
    const int     bn_x = a->has_bn_x ? WORKERS * Y_BYTES : 0, sums = a->has_sums ? SUMS_BYTES : 0,
              bn  = a->has_bn_x ? BN_BYTES : 0;
    p->rows       = ((TILE + 2 * ((int)a->Q + 1) + 2) + 7) / 8 * 8;
    p->slot_bytes = p->rows * ROW;
    p->slots      = (SHARED_LIMIT - WORKERS * Y_BYTES - bn_x - sums - bn - 8 * BAR_COUNT) / p->slot_bytes;
    if (p->slots > SLOTS_MAX) p->slots = SLOTS_MAX;
    p->y_at    = p->slots * p->slot_bytes;
    p->bn_x_at = p->y_at + WORKERS * Y_BYTES;
    p->sums_at = p->bn_x_at + bn_x;
    p->bn_at   = p->sums_at + sums;
    p->bar_at  = p->bn_at + bn;
    p->bytes   = p->bar_at + 8 * BAR_COUNT;
    p->tiles   = (int)((positions + TILE - 1) / TILE);
    return p->slots >= 2 && p->rows <= 1024;
}

bool make_maps(struct params *p, const struct ck_fused_conv *a) {
    const int before[2] = {-1, -1}, none[2] = {0, 0}, behind[2] = {1, 1};
    return ck_tma_pixels(&p->x, a->type, a->x, a->N, a->P, a->Q, CHANNELS, before, none, 1, p->plan.rows) &&
           (!a->has_bn_x ||
            ck_tma_pixels(&p->bn_x, a->type, a->bn_x, a->N, a->P, a->Q, CHANNELS, none, behind, 1, COLUMNS));
}

template <typename T> cudaError_t start(const struct params *p, enum kind kind, int blocks, cudaStream_t stream) {
    const auto kernel = kind == FORWARD      ? conv3x3<T, FORWARD>
                        : kind == TRANSPOSED ? conv3x3<T, TRANSPOSED>
                                             : conv3x3<T, GRADIENT>;
    return ck_launch_shared(kernel, dim3((unsigned)blocks), dim3((1 + WORKERS) * GROUP), p->plan.bytes, stream, *p);
}

int configs(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return ck_has_64_channels(a) ? make_plan(&plan, a) : ck_conv3x3_wide_wgmma.configs(a, gpu);
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    if (!ck_has_64_channels(a)) return ck_conv3x3_wide_wgmma.workspace(a, gpu);
    return a->has_sums ? sizeof(float) * (size_t)gpu->multiprocessors * WORKERS * 2 * CHANNELS : 0;
}

cudaError_t launch(const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p = {};
    if (!ck_has_64_channels(a)) return ck_conv3x3_wide_wgmma.launch(a, workspace, gpu, stream);
    if (!make_plan(&p.plan, a)) return cudaErrorInvalidValue;
    p.w         = a->w;
    p.add       = a->add;
    p.bias      = a->bias;
    p.mean_rstd = a->mean_rstd;
    p.gamma     = a->gamma;
    p.beta      = a->beta;
    p.y         = a->y;
    p.partial   = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    p.positions = (int)(a->N * (a->P + 1) * (a->Q + 1));
    p.H         = (int)a->P;
    p.W         = (int)a->Q;
    p.relu      = a->relu;
    if (!make_maps(&p, a)) return cudaErrorNotSupported;
    const int         blocks = p.plan.tiles < gpu->multiprocessors ? p.plan.tiles : gpu->multiprocessors;
    const enum kind   kind   = !a->transposed ? FORWARD : a->has_bn_x ? GRADIENT : TRANSPOSED;
    const cudaError_t error = ck_by_half(a->type, [&](auto t) { return start<decltype(t)>(&p, kind, blocks, stream); });
    if (error != cudaSuccess || !a->has_sums) return error;
    return add_column_sums(p.partial, a->sums, blocks * WORKERS, CHANNELS, CHANNELS, stream);
}

} // namespace

const struct ck_conv_family ck_conv3x3_wgmma = ck_family<ck_fused_conv, configs, workspace_of, launch>();

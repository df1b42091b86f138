/* cuda/conv/pair/conv_pair_sm90a.cu: the family conv_pair (conv_pair.h): two 1x1 convolutions, back-to-back.
 *
 * Bytes: C + 2*K + L elements a pixel; the two convolutions one by one move K more (y is read again). 2*K*(C + L)
 * operations a pixel. The limiter is memory as long as the filters stay in shared memory.
 *
 * One block for each multiprocessor, for the whole launch: threads that load by TMA, and warpgroups ("workers") of 64
 * pixels each. A worker computes a chunk of y, writes it to shared memory in place of its summand, and adds the chunk's
 * part of z to sums in registers. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pair/conv_pair_pack.cuh"
#include "cuda/conv/pair/conv_pair_plan.cuh"
#include "cuda/conv/pair/conv_pair_work.cuh"

namespace {

#if CK_HAS_SM90A
__device__ __forceinline__ void init_barriers(uint32_t bars) {
    const int i = (int)threadIdx.x;
    if (i >= BAR_COUNT) return;
    ck_mbar_init(bars + 8 * (uint32_t)i, i < BAR_FULL ? 1 : 4);
    ck_mbar_init_fence();
}
#endif

template <typename T, int L, int X_PANEL>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) conv_pair(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int  group = (int)threadIdx.x / GROUP, warp = (int)threadIdx.x / 32 - 4 * WORKERS;
    const bool loads_filters = warp == 3;
    init_barriers(shared + (uint32_t)p.plan.bar_at);
    set_coeffs<T, L>(p, shared + (uint32_t)p.plan.coeffs_at);
    if (threadIdx.x == 0) ck_tma_prefetch(&p.x);
    if (threadIdx.x == 32) ck_tma_prefetch(&p.w);
    if (threadIdx.x == 64) ck_tma_prefetch(&p.next_w);
    if (threadIdx.x == 96) ck_tma_prefetch(&p.add);
    __syncthreads();
    if (!loads_filters) ck_begin_after_last();
    if (group == WORKERS) {
        ck_registers_decrease<40>();
        if (threadIdx.x % 32 == 0) {
            if (loads_filters) load_filters(p, shared, PANEL / (int)sizeof(T));
            if (warp < WORKERS) load_x(p, shared, warp);
        }
    } else {
        ck_registers_increase<232>();
        worker<T, L, X_PANEL>(p, shared, group).run();
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

bool make_maps(struct params *p, const struct ck_conv_pair *a) {
    const int     size = size_of(a), channels = PANEL / size;
    const int64_t pixels = a->N * a->H * a->W;
    return ck_tma_byte_matrix(&p->x, a->x, pixels, a->C * size, p->plan.x_panel, ROWS) &&
           ck_tma_byte_matrix(&p->w, a->w, a->K, a->C * size, p->plan.x_panel, channels) &&
           ck_tma_byte_matrix(&p->next_w, a->next_w, a->L, a->K * size, PANEL, (int)a->L) &&
           ck_tma_byte_matrix(&p->add, a->add, pixels, a->K * size, PANEL, ROWS) &&
           ck_tma_byte_matrix(&p->y, a->y, pixels, a->K * size, PANEL, ROWS) &&
           (size == 1 || ck_tma_byte_matrix(&p->z, a->z, pixels, a->L * size, PANEL, ROWS));
}

template <typename T> cudaError_t start(const struct params *p, cudaStream_t stream) {
    auto kernel = p->plan.L == 64 ? conv_pair<T, 64, 128> : conv_pair<T, 128, 128>;
    if constexpr (sizeof(T) == 1)
        if (p->plan.x_panel == 64) kernel = p->plan.L == 64 ? conv_pair<T, 64, 64> : conv_pair<T, 128, 64>;
    return ck_launch_shared(kernel, dim3((unsigned)p->plan.grid), dim3((1 + WORKERS) * GROUP), p->plan.bytes, stream,
                            *p);
}

int configs(const struct ck_conv_pair *a, const struct ck_gpu *) {
    struct plan plan = {};
    return make_plan(&plan, a);
}

cudaError_t launch(const struct ck_conv_pair *args, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params       p = {};
    struct ck_conv_pair a = *args;
    if (!make_plan(&p.plan, &a)) return cudaErrorInvalidValue;
    const cudaError_t error = pack_filters(&a, workspace, stream);
    if (error != cudaSuccess) return error;
    p.plan.grid   = p.plan.tiles < gpu->multiprocessors ? p.plan.tiles : gpu->multiprocessors;
    p.coeffs      = a.coeffs;
    p.next_coeffs = a.next_coeffs;
    p.to          = a.z;
    p.pixels      = (int)(a.N * a.H * a.W);
    p.K           = (int)a.K;
    p.z_panels    = size_of(&a) == 1 ? 0 : (int)a.L * 2 / PANEL;
    p.add_given   = true;
    p.add_signed  = a.add_signed;
    if (!make_maps(&p, &a)) return cudaErrorNotSupported;
    switch (a.type) {
    case CK_PAIR_U8: return start<uint8_t>(&p, stream);
    case CK_PAIR_F16: return start<__half>(&p, stream);
    default: return start<__nv_bfloat16>(&p, stream);
    }
}

} // namespace

const struct ck_conv_family ck_conv_pair_wgmma = ck_family<ck_conv_pair, configs, workspace_of, launch>();

/* cuda/conv/pair/conv_pair_sm90a.cu: device code and launcher of cuda/conv/pair/conv_pair.h.
 *
 * Bytes: C + 2*K + L elements a pixel; the two convolutions one by one move K more (y is read again). 2*K*(C + L)
 * operations a pixel. The limiter is memory as long as the filters stay in shared memory.
 *
 * One block for each multiprocessor, for the whole launch: threads that load by TMA, and warpgroups ("workers") of 64
 * pixels each. A worker computes a chunk of y, writes it to shared memory in place of its summand, and adds the chunk's
 * part of z to sums in registers. */
#include "cuda/common/tma.cuh"
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
    if (p.early) set_coeffs<T, L>(p, shared + (uint32_t)p.plan.coeffs_at);
    if (threadIdx.x == 0) ck_tma_prefetch(&p.x);
    if (threadIdx.x == 32) ck_tma_prefetch(&p.w);
    if (threadIdx.x == 64) ck_tma_prefetch(&p.next_w);
    if (threadIdx.x == 96) ck_tma_prefetch(&p.add);
    __syncthreads();
    if (!p.early || !loads_filters) ck_begin_after_last();
    if (!p.early) {
        set_coeffs<T, L>(p, shared + (uint32_t)p.plan.coeffs_at);
        __syncthreads();
    }
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
    (void)p;
    __trap();
#endif
}

/* ---- host side ---- */

bool make_maps(struct params *p, const struct ck_conv_pair *a) {
    const int size = size_of(a), channels = PANEL / size;
    return ck_tma_byte_matrix(&p->x, a->x, a->pixels, a->C * size, p->plan.x_panel, ROWS) &&
           ck_tma_byte_matrix(&p->w, a->w, a->K, a->C * size, p->plan.x_panel, channels) &&
           ck_tma_byte_matrix(&p->next_w, a->next_w, a->L, a->K * size, PANEL, (int)a->L) &&
           ck_tma_byte_matrix(&p->add, a->add, a->pixels, a->K * size, PANEL, ROWS) &&
           ck_tma_byte_matrix(&p->y, a->y, a->pixels, a->K * size, PANEL, ROWS) &&
           (size == 1 || ck_tma_byte_matrix(&p->z, a->z, a->pixels, a->L * size, PANEL, ROWS));
}

template <typename T, int L, int X_PANEL> cudaError_t start(const struct params *p, cudaStream_t stream) {
    const auto        kernel = conv_pair<T, L, X_PANEL>;
    const cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p->plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)p->plan.grid), dim3((1 + WORKERS) * GROUP), (size_t)p->plan.bytes, stream,
                     *p);
}

template <typename T> cudaError_t start_any(const struct params *p, cudaStream_t stream) {
    const bool wide = p->plan.x_panel == 128;
    if (sizeof(T) == 1 && !wide && p->plan.L == 64) return start<uint8_t, 64, 64>(p, stream);
    if (sizeof(T) == 1 && !wide) return start<uint8_t, 128, 64>(p, stream);
    return p->plan.L == 64 ? start<T, 64, 128>(p, stream) : start<T, 128, 128>(p, stream);
}

} // namespace

bool ck_conv_pair_supports(const struct ck_conv_pair *a) {
    struct plan plan = {};
    return make_plan(&plan, a);
}

cudaError_t ck_conv_pair(const struct ck_conv_pair *a, int multiprocessors, cudaStream_t stream) {
    struct params p = {};
    if (!make_plan(&p.plan, a)) return cudaErrorInvalidValue;
    p.plan.grid   = p.plan.tiles < multiprocessors ? p.plan.tiles : multiprocessors;
    p.coeffs      = a->coeffs;
    p.next_coeffs = a->next_coeffs;
    p.to          = a->z;
    p.pixels      = (int)a->pixels;
    p.K           = (int)a->K;
    p.z_panels    = size_of(a) == 1 ? 0 : (int)a->L * 2 / PANEL;
    p.add_given   = true;
    p.add_signed  = a->add_signed;
    p.early       = a->early;
    if (!make_maps(&p, a)) return cudaErrorNotSupported;
    switch (a->type) {
    case CK_PAIR_U8: return start_any<uint8_t>(&p, stream);
    case CK_PAIR_F16: return start_any<__half>(&p, stream);
    default: return start_any<__nv_bfloat16>(&p, stream);
    }
}

/* cuda/conv/pair/conv_chain_sm90a.cu: the family conv_chain (conv_pair.h): a 3x3 and two 1x1 convolutions at once.
 *
 * Bytes: 64 + 2*K + L elements a pixel; the 3x3 convolution by itself moves 128 more (t is written and read).
 * 73,728 + 2*K*(64 + L) operations a pixel. The limiter is memory.
 *
 * One block for each multiprocessor, for the whole launch. A tile is 8 x 8 pixels. One warpgroup computes t of a tile
 * from x and the pixels around it, and writes it to shared memory. Two warpgroups ("workers") compute y and z of
 * alternate tiles from there as conv_pair does. The threads of a fourth one load. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pair/conv_chain_first.cuh"
#include "cuda/conv/pair/conv_pair_pack.cuh"

namespace {

enum { THREADS = (WORKERS + 2) * GROUP };

/* Registers of a thread: a multiprocessor has 512 for four threads of different warpgroups. */
template <typename T, int L> struct registers {
    static constexpr int FIRST = sizeof(T) == 1 ? 104 : 208,
                         WORK  = sizeof(T) == 1 ? 192
                                 : L == 128     ? 136
                                                : 128,
                         LOAD  = 24;
};

#if CK_HAS_SM90A
/* A full barrier counts one arrival, except that four warps write t and one thread loads shortcut_x. An empty barrier
 * counts four warps. */
__device__ __forceinline__ void init_barriers(uint32_t bars, bool shortcut) {
    const int  i    = (int)threadIdx.x;
    const bool full = (i >= BAR_Y && i < BAR_FULL) || (i >= BAR_IMAGE && i < BAR_IMAGE_EMPTY);
    if (i >= BAR_CHAIN) return;
    ck_mbar_init(bars + 8 * (uint32_t)i, full ? 1 : i < BAR_Y && shortcut ? 5 : 4);
    ck_mbar_init_fence();
}

/* The biases of y's two operands are added. */
template <typename T, int L, bool SHORTCUT>
__device__ __forceinline__ void set_all_coeffs(const chain_params &p, uint32_t to) {
    set_coeffs<T, L>(p, to);
    if (SHORTCUT)
        for (int i = (int)threadIdx.x; i < p.K; i += (int)blockDim.x)
            ck_put4(to + 4 * (uint32_t)i, p.coeffs[i] + p.shortcut_bias[i]);
}

template <typename T, bool SHORTCUT>
__device__ __forceinline__ void load(const chain_params &p, uint32_t shared, int warp) {
    if (warp < WORKERS) {
        load_adds(p, shared, warp);
    } else if (warp == WORKERS) {
        load_images(p, shared);
    } else {
        if (is_byte<T>) load_first(p, shared);
        if (SHORTCUT)
            load_shortcut_filters(p, shared);
        else
            load_filters(p, shared, PANEL / (int)sizeof(T));
    }
}
#endif

template <typename T, int L, bool SHORTCUT>
__global__ void __launch_bounds__(THREADS, 1) conv_chain(const __grid_constant__ chain_params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int  group = (int)threadIdx.x / GROUP, warp = (int)threadIdx.x / 32 - 4 * (WORKERS + 1);
    const bool loads_filters = warp == 3;
    init_barriers(shared + (uint32_t)p.plan.bar_at, SHORTCUT);
    set_all_coeffs<T, L, SHORTCUT>(p, shared + (uint32_t)p.plan.coeffs_at);
    if (threadIdx.x == 0) ck_tma_prefetch(&p.image);
    if (threadIdx.x == 32) ck_tma_prefetch(&p.w);
    if (threadIdx.x == 64) ck_tma_prefetch(&p.next_w);
    if (threadIdx.x == 96) ck_tma_prefetch(SHORTCUT ? &p.shortcut : &p.add);
    __syncthreads();
    if (group == WORKERS + 1) {
        ck_registers_decrease<registers<T, L>::LOAD>();
        if (!loads_filters) ck_begin_after_last();
        if (threadIdx.x % 32 == 0) load<T, SHORTCUT>(p, shared, warp);
    } else if (group == WORKERS) {
        if (is_byte<T>)
            ck_registers_decrease<registers<T, L>::FIRST>();
        else
            ck_registers_increase<registers<T, L>::FIRST>();
        typename std::conditional<is_byte<T>, first_byte, first_half<T>>::type first(p, shared);
        first.load_filter();
        ck_begin_after_last();
        first.run();
    } else {
        if (registers<T, L>::WORK > 128) ck_registers_increase<registers<T, L>::WORK>();
        ck_begin_after_last();
        worker<T, L, CHANNELS *(int)sizeof(T), box_tile, chain_params, !SHORTCUT>(p, shared, group).run();
    }
#else
    __trap();
#endif
}

/* ---- host side ---- */

int rounded(int bytes, int to) {
    return (bytes + to - 1) / to * to;
}

/* A config: pixels of a row of x in shared memory, slots of x and of t. */
const struct { int wide, image_slots, x_slots; } rings[] = {{16, 2, 1}, {HALO, 2, 1}, {HALO, 3, 2}, {HALO, 3, 1}};

/* Computes the offsets in shared memory: 1x1 filters, y, t, x, the 8-bit 3x3 filter, coefficients, barriers.
 * Returns false when the rings do not fit. */
bool lay_out(struct chain_params *p, int size) {
    struct plan *plan    = &p->plan;
    const int    filters = plan->chunks * plan->filter_bytes, images = p->image_slots * p->image_bytes;
    const int    first = size == 1 ? TAPS * FIRST_BYTES : 0, t = WORKERS * plan->x_slots * plan->x_bytes;
    const int    coeffs = (p->K + plan->L) * (size == 1 ? 8 : 4);
    const int    room   = SHARED_LIMIT - filters - images - first - t - coeffs - 8 * BAR_CHAIN;
    plan->y_slots       = room <= 0 ? 0 : room / (WORKERS * SLOT_BYTES);
    if (plan->y_slots < 3) return false;
    if (plan->y_slots > Y_SLOTS_MAX) plan->y_slots = Y_SLOTS_MAX;
    plan->y_at      = filters;
    plan->x_at      = plan->y_at + WORKERS * plan->y_slots * SLOT_BYTES;
    p->image_at     = plan->x_at + t;
    p->first_at     = p->image_at + images;
    plan->coeffs_at = p->first_at + first;
    plan->bar_at    = plan->coeffs_at + coeffs;
    plan->bytes     = plan->bar_at + 8 * BAR_CHAIN;
    return true;
}

bool make_plan(struct chain_params *p, const struct ck_conv_pair *a, int config) {
    const int64_t across = (a->W + SIDE - 1) / SIDE, down = (a->H + SIDE - 1) / SIDE;
    const int     size = a->type == CK_PAIR_U8 ? 1 : 2;
    if (a->N < 1 || a->H < 1 || a->W < 1 || a->H > 65535 || a->W > 65535) return false;
    if (!a->has_first || a->C != CHANNELS || (a->has_shortcut && size == 1)) return false;
    if (a->K < 64 || a->K > 4096 || a->K * size % PANEL || (a->L != 64 && a->L != 128)) return false;
    if (a->N >= INT32_MAX / 2 / (across * down * SIDE * SIDE)) return false;
    p->K                 = (int)a->K;
    p->H                 = (int)a->H;
    p->W                 = (int)a->W;
    p->across            = (int)across;
    p->down              = (int)down;
    p->z_panels          = size == 1 ? 0 : (int)a->L * 2 / PANEL;
    p->row               = CHANNELS * size;
    p->wide              = rings[config].wide;
    p->image_slots       = rings[config].image_slots;
    p->image_bytes       = rounded(HALO * p->wide * p->row, 1024);
    p->plan.L            = (int)a->L;
    p->plan.x_panel      = p->row;
    p->plan.panels       = a->has_shortcut ? 2 : 1;
    p->plan.chunks       = (int)a->K * size / PANEL;
    p->plan.x_bytes      = p->plan.panels * ROWS * p->row;
    p->plan.x_slots      = rings[config].x_slots;
    p->plan.filter_bytes = p->plan.panels * PANEL * CHANNELS + (int)a->L * PANEL;
    p->plan.tiles        = (int)(a->N * across * down);
    return lay_out(p, size);
}

/* Boxes of `bytes` bytes of width x height pixels of an image, in shared memory as rows of so many bytes with the
 * swizzle of that width. */
bool map_boxes(CUtensorMap *map, const struct ck_conv_pair *a, const void *data, int64_t channel_bytes, int bytes,
               int width, int height) {
    static const auto encode =
        reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(ck_driver_function("cuTensorMapEncodeTiled"));
    const cuuint64_t dim[4]   = {(cuuint64_t)channel_bytes / 2, (cuuint64_t)a->W, (cuuint64_t)a->H, (cuuint64_t)a->N};
    const cuuint64_t pitch[3] = {2 * dim[0], 2 * dim[0] * dim[1], 2 * dim[0] * dim[1] * dim[2]};
    const cuuint32_t box[4]   = {(cuuint32_t)bytes / 2, (cuuint32_t)width, (cuuint32_t)height, 1};
    const cuuint32_t every[4] = {1, 1, 1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void *>(data), dim, pitch, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, ck_tma_swizzle(bytes), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool map_shortcut(struct chain_params *p, const struct ck_conv_pair *a) {
    return map_boxes(&p->shortcut, a, a->shortcut_x, p->row, PANEL, SIDE, SIDE) &&
           ck_tma_byte_matrix(&p->shortcut_w, a->shortcut_w, a->K, p->row, PANEL, CHANNELS);
}

bool make_maps(struct chain_params *p, const struct ck_conv_pair *a) {
    const int size = a->type == CK_PAIR_U8 ? 1 : 2;
    return map_boxes(&p->image, a, a->x, p->row, p->row, p->wide, HALO) &&
           (a->has_shortcut ? map_shortcut(p, a) : map_boxes(&p->add, a, a->add, a->K * size, PANEL, SIDE, SIDE)) &&
           map_boxes(&p->y, a, a->y, a->K * size, PANEL, SIDE, SIDE) &&
           (size == 1 || map_boxes(&p->z, a, a->z, a->L * size, PANEL, SIDE, SIDE)) &&
           (size == 2 || ck_tma_byte_matrix(&p->first, a->first_w, CHANNELS, TAPS * CHANNELS, CHANNELS, CHANNELS)) &&
           ck_tma_byte_matrix(&p->w, a->w, a->K, p->row, p->row, PANEL / size) &&
           ck_tma_byte_matrix(&p->next_w, a->next_w, a->L, a->K * size, PANEL, (int)a->L);
}

template <typename T> cudaError_t start(const struct chain_params *p, cudaStream_t stream) {
    auto kernel = p->plan.L == 64 ? conv_chain<T, 64, false> : conv_chain<T, 128, false>;
    if constexpr (sizeof(T) == 2)
        if (!p->add_given) kernel = p->plan.L == 64 ? conv_chain<T, 64, true> : conv_chain<T, 128, true>;
    return ck_launch_shared(kernel, dim3((unsigned)p->plan.grid), dim3(THREADS), p->plan.bytes, stream, *p);
}

int configs(const struct ck_conv_pair *a, const struct ck_gpu *) {
    struct chain_params p     = {};
    int                 count = 0;
    while (count < (int)(sizeof rings / sizeof *rings) && make_plan(&p, a, count)) count++;
    return count;
}

cudaError_t launch(const struct ck_conv_pair *args, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct chain_params p = {};
    struct ck_conv_pair a = *args;
    if (a.config < 0 || a.config >= configs(&a, gpu) || !make_plan(&p, &a, a.config)) return cudaErrorInvalidValue;
    const cudaError_t error = pack_filters(&a, workspace, stream);
    if (error != cudaSuccess) return error;
    p.plan.grid     = p.plan.tiles < gpu->multiprocessors ? p.plan.tiles : gpu->multiprocessors;
    p.coeffs        = a.coeffs;
    p.next_coeffs   = a.next_coeffs;
    p.first_w       = a.first_w;
    p.first_coeffs  = a.first_coeffs;
    p.to            = a.z;
    p.shortcut_bias = a.shortcut_bias;
    p.add_given     = !a.has_shortcut;
    p.add_signed    = a.add_signed;
    if (!make_maps(&p, &a)) return cudaErrorNotSupported;
    switch (a.type) {
    case CK_PAIR_U8: return start<uint8_t>(&p, stream);
    case CK_PAIR_F16: return start<__half>(&p, stream);
    default: return start<__nv_bfloat16>(&p, stream);
    }
}

} // namespace

const struct ck_conv_family ck_conv_chain_wgmma = ck_family<ck_conv_pair, configs, workspace_of, launch>();

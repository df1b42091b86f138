/* cuda/conv/int8/int8_conv_sm90a.cu: the family int8_conv on compute capability 9.0 (wgmma).
 *
 * Bytes: C + K a pixel, K more with add; 2*R*S*C*K operations a pixel, exact in i32. A convolution is a product of
 * pixels and filters. One block for each multiprocessor, for the whole launch: threads that load by TMA, and warpgroups
 * ("workers") that multiply, scale, round and store. Convolutions of 3x3 with stride 1 can load a tile of x once for
 * all nine filter positions (halo): positions are pixels of images with one zero row on top and one zero column on the
 * left, which are the zeros below and on the right of their neighbours. A filter position is then a constant distance
 * in this order, so each of its products reads the same rows of shared memory from another address. */
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/int8/int8_conv_plan.cuh"
#include "cuda/conv/int8/int8_conv_work.cuh"

namespace {

#if CK_HAS_SM90A
/* A full barrier counts one arrival, an empty one the warps that read: of one worker, or of all `team` workers. */
__device__ __forceinline__ void init_barriers(uint32_t bars, int team) {
    const int  i    = (int)threadIdx.x;
    const bool full = i < BAR_X_EMPTY || (i >= BAR_ADD && i < BAR_ADD_EMPTY) || (i >= BAR_W && i < BAR_W_EMPTY);
    if (i >= BAR_COUNT) return;
    ck_mbar_init(bars + 8 * (uint32_t)i, full ? 1 : 4 * (uint32_t)team);
    ck_mbar_init_fence();
}

/* Coefficients of the block's columns: [2][columns], 0 where there is no channel. */
__device__ __forceinline__ void set_coeffs(const params &p, uint32_t to) {
    const plan &plan  = p.plan;
    const int   first = plan.config.resident ? (int)blockIdx.x % plan.blocks_k * plan.config.columns : 0;
    const int   count = plan.config.resident ? plan.config.columns : plan.blocks_k * plan.config.columns;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const int      k  = first + i;
        const uint32_t at = to + (uint32_t)(16 * coeff_place(i / 4) + i % 4 * 4);
        ck_put4(at, k < p.K ? p.coeffs[k] : 0.0f);
        ck_put4(at + (uint32_t)(4 * count), k < p.K ? p.coeffs[p.K + k] : 0.0f);
    }
}
#endif

template <int COLUMNS, int HEIGHT, int WORKERS, bool RESIDENT, int CHUNK, bool SIGNED>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) int8_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory);
    const int  group = (int)threadIdx.x / GROUP, loader = (int)threadIdx.x / 32 - 4 * WORKERS;
    const bool loads_w = loader == 3;
    init_barriers(shared + (uint32_t)p.plan.bar_at, RESIDENT ? 1 : WORKERS);
    set_coeffs(p, shared + (uint32_t)p.plan.coeffs_at);
    if (threadIdx.x == 0) ck_tma_prefetch(&p.x);
    if (threadIdx.x == 32) ck_tma_prefetch(&p.w);
    if (threadIdx.x == 64 && p.add_given) ck_tma_prefetch(&p.add);
    __syncthreads();
    if (!loads_w) ck_begin_after_last();
    if (group == WORKERS) {
        ck_registers_decrease<40>();
        if (threadIdx.x % 32 == 0) {
            if (loads_w) load_w(p, shared);
            if (loader < (RESIDENT ? WORKERS : 1)) load_x(p, shared, loader);
        }
    } else {
        ck_registers_increase<WORKERS == 3 ? 152 : 232>();
        worker<COLUMNS, HEIGHT, WORKERS, RESIDENT, CHUNK, SIGNED>(p, shared, group).run();
    }
#else
    __trap();
#endif
}

/* packed[64 g + 8 j + 2 q + e] = w[64 g + 16 q + 2 j + e]; rows beyond K are 0. One block a row. */
__global__ void __launch_bounds__(256) pack_rows(const int8_t *w, int8_t *packed, int64_t K, int64_t row) {
    const int64_t n = blockIdx.x, in = n % 64, k = n / 64 * 64 + in / 2 % 4 * 16 + in / 8 * 2 + in % 2;
    for (int64_t i = threadIdx.x; i < row; i += blockDim.x) packed[n * row + i] = k < K ? w[k * row + i] : (int8_t)0;
}

/* ---- host side ---- */

/* x as a matrix, pixel by pixel with padding and stride, or with one zero row and column for each image (halo). */
bool make_x_map(struct params *p, const struct ck_int8_conv *a) {
    const int low[2] = {-a->pad, -a->pad}, high[2] = {a->pad - (a->S - 1), a->pad - (a->R - 1)};
    const int none[2] = {0, 0}, before[2] = {-1, -1};
    const int chunk = p->plan.chunk, rows = p->plan.rows;
    if (p->plan.config.halo)
        return ck_tma_byte_pixels(&p->x, a->x, a->N, a->H, a->W, a->C, before, none, 1, chunk, rows);
    if (p->by_pixel) return ck_tma_byte_pixels(&p->x, a->x, a->N, a->H, a->W, a->C, low, high, a->stride, chunk, rows);
    return ck_tma_byte_matrix(&p->x, a->x, a->N * a->P * a->Q, a->C, chunk, rows);
}

bool make_add_map(struct params *p, const struct ck_int8_conv *a) {
    const struct tile_config *c = &p->plan.config;
    const int tall = c->height * ROWS * (c->resident ? 1 : c->workers), panel = c->columns < 128 ? 64 : 128;
    const int none[2] = {0, 0}, one[2] = {1, 1};
    if (!a->has_add) return true;
    if (c->halo) return ck_tma_byte_pixels(&p->add, a->add, a->N, a->P, a->Q, a->K, none, one, 1, panel, tall);
    return ck_tma_byte_matrix(&p->add, a->add, a->N * a->P * a->Q, a->K, panel, tall);
}

bool make_maps(struct params *p, const struct ck_int8_conv *a) {
    const int64_t filters = (a->K + 63) / 64 * 64, row = a->R * a->S * a->C;
    return make_x_map(p, a) && make_add_map(p, a) &&
           ck_tma_byte_matrix(&p->w, a->packed, filters, row, p->plan.chunk, p->plan.config.columns);
}

/* A tile for which kernels are compiled. */
template <int COLUMNS, int HEIGHT, int WORKERS, bool RESIDENT> struct tile {
    static bool is_of(const struct tile_config &c) {
        return c.columns == COLUMNS && c.height == HEIGHT && c.workers == WORKERS && c.resident == RESIDENT;
    }
    template <int CHUNK> static auto kernel_of(bool is_signed) {
        return is_signed ? int8_conv<COLUMNS, HEIGHT, WORKERS, RESIDENT, CHUNK, true>
                         : int8_conv<COLUMNS, HEIGHT, WORKERS, RESIDENT, CHUNK, false>;
    }
    static cudaError_t start(const struct params *p, bool is_signed, cudaStream_t stream) {
        return ck_launch_shared(p->plan.chunk == 64 ? kernel_of<64>(is_signed) : kernel_of<128>(is_signed),
                                dim3((unsigned)p->plan.grid), dim3((1 + WORKERS) * GROUP), p->plan.bytes, stream, *p);
    }
};
template <class... Tiles> cudaError_t start_any(const struct params *p, bool is_signed, cudaStream_t stream) {
    cudaError_t error = cudaErrorInvalidValue;
    (void)((Tiles::is_of(p->plan.config) && (error = Tiles::start(p, is_signed, stream), true)) || ...);
    return error;
}
constexpr auto start_tile =
    start_any<tile<256, 1, 2, true>, tile<128, 2, 2, true>, tile<128, 1, 3, true>, tile<64, 4, 2, true>,
              tile<64, 2, 3, true>, tile<64, 1, 2, true>, tile<64, 1, 1, true>, tile<64, 1, 1, false>,
              tile<64, 1, 2, false>, tile<256, 1, 2, false>, tile<128, 2, 2, false>>;

bool supports(const struct ck_int8_conv *a) {
    const int64_t most = INT32_MAX / 2;
    if (a->C < 64 || a->C % 64 || a->C > 8192 || a->K < 1 || a->K > 8192 || a->N < 1) return false;
    if (a->R > 16 || a->S > 16 || a->stride > 8 || a->pad > 15 || a->P < 1 || a->Q < 1) return false;
    if (a->has_add && a->K % 16) return false;
    return (a->H + 1) <= most / (a->W + 1) && a->N <= most / ((a->H + 1) * (a->W + 1));
}

/* Tile configs of this file; those of int8_split_sm90a.cu follow them. */
int tile_count(const struct ck_int8_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    return supports(a) ? find_plan(&plan, a, -1, gpu->multiprocessors) : 0;
}

int configs(const struct ck_int8_conv *a, const struct ck_gpu *gpu) {
    const int tiles = tile_count(a, gpu);
    return tiles ? tiles + ck_int8_split_wgmma.configs(a, gpu) : 0;
}

size_t workspace_of(const struct ck_int8_conv *a, const struct ck_gpu *) {
    return a->has_packed ? 0 : ck_int8_packed_bytes(a->K, a->R, a->S, a->C);
}

cudaError_t launch_tile(const struct ck_int8_conv *a, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct params p = {};
    if (a->config < 0 || !supports(a) || find_plan(&p.plan, a, a->config, gpu->multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    p.coeffs     = a->coeffs;
    p.y          = a->y;
    p.positions  = (int)(p.plan.config.halo ? a->N * (a->H + 1) * (a->W + 1) : a->N * a->P * a->Q);
    p.K          = (int)a->K;
    p.chunks     = (int)(a->C / p.plan.chunk);
    p.H          = (int)a->H;
    p.W          = (int)a->W;
    p.P          = (int)a->P;
    p.Q          = (int)a->Q;
    p.S          = a->S;
    p.stride     = a->stride;
    p.pad        = a->pad;
    p.y_type     = a->y_type;
    p.least      = a->relu ? 0.0f : -INFINITY;
    p.add_given  = a->has_add;
    p.add_signed = a->add_type == CK_INT8_I8;
    p.by_pixel   = a->stride > 1 || a->pad > 0 || a->R > 1 || a->S > 1;
    if (!make_maps(&p, a)) return cudaErrorNotSupported;
    return start_tile(&p, a->x_type == CK_INT8_I8, stream);
}

cudaError_t launch(const struct ck_int8_conv *args, void *workspace, const struct ck_gpu *gpu, cudaStream_t stream) {
    struct ck_int8_conv a     = *args;
    const int           tiles = tile_count(args, gpu);
    if (!a.has_packed) {
        cudaError_t error = ck_int8_pack(a.w, static_cast<int8_t *>(workspace), a.K, a.R, a.S, a.C, stream);
        if (error == cudaSuccess) error = ck_separate(stream); /* packed filters are read before the wait */
        if (error != cudaSuccess) return error;
        a.packed = static_cast<const int8_t *>(workspace);
    }
    if (a.config < tiles) return launch_tile(&a, gpu, stream);
    a.config -= tiles;
    return ck_int8_split_wgmma.launch(&a, workspace, gpu, stream);
}

} // namespace

const struct ck_conv_family ck_int8_conv_wgmma = ck_family<ck_int8_conv, configs, workspace_of, launch>();

size_t ck_int8_packed_bytes(int64_t K, int R, int S, int64_t C) {
    return C % 64 ? 0 : (size_t)((K + 63) / 64 * 64 * R * S * C);
}

cudaError_t ck_int8_pack(const int8_t *w, int8_t *packed, int64_t K, int R, int S, int64_t C, cudaStream_t stream) {
    pack_rows<<<(unsigned)((K + 63) / 64 * 64), 256, 0, stream>>>(w, packed, K, R * S * C);
    return cudaGetLastError();
}

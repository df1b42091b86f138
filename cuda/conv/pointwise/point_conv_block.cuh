/* cuda/conv/pointwise/point_conv_block.cuh: a thread block of the families point_conv and point_gram on compute
 * capability 9.0 (cuda/common/fused_conv.h), and the host half that both share.
 *
 * Bytes: 2*(C + K) a pixel; add and bn_x 2*K more each; plus w and the vectors. 2*C*K floating-point operations a
 * pixel. Up to C*K/(C + K) of about 200 the limiter is memory (all of ResNet-50's stages 1 and 2), above it the tensor
 * cores.
 *
 * One block for each multiprocessor, for the whole launch: a warpgroup that only loads (TMA) and WORKERS that multiply.
 * A tile is 64 rows (pixels) x COLUMNS for each worker; a step is 64 channels of the reduced dimension. Two divisions
 * of the work:
 *   - resident: the block has one set of columns and holds their filters in shared memory. Each worker has its own
 *     tiles and its own ring of stages, so that one multiplies while another stores.
 *   - streamed: the filters do not fit. The workers of a team process neighbouring rows of one tile, whose stages have
 *     x and w. Two teams process tiles alternately: one multiplies while the other stores.
 * act is applied between shared memory and registers; wgmma then reads x from registers. Each warp sends its 16 rows of
 * a result through its own ring of panels (16 x 64). add and bn_x are loaded into a panel ahead of time, y replaces add
 * and is stored by TMA, and sums are computed down the panel's columns. Sums of a worker (resident) or of a tile
 * (streamed) go to the workspace; a second kernel adds them in a fixed order. */
#ifndef CK_POINT_CONV_BLOCK_CUH
#define CK_POINT_CONV_BLOCK_CUH

#include "cuda/common/column_sums.cuh"
#include "cuda/common/conv_family.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pointwise/point_conv_plan.cuh"
#include "cuda/conv/pointwise/point_conv_work.cuh"

namespace {

#if CK_HAS_SM90A
/* A block of a kernel. run(worker) calls run_as with the features of the arguments as template parameters. */
template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE, class Run>
__device__ __forceinline__ void point_block(const params &p, const Run &run) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t                                  shared = ck_shared(memory), bar = shared + (uint32_t)p.plan.bar_at;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WORKERS_MAX * STAGES_MAX; i++) {
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_FULL + i), 1);
            ck_mbar_init(bar + 8 * (uint32_t)(BAR_EMPTY + i),
                         4 * team_of<WORKERS, RESIDENT>()); /* warps that read the stage */
        }
        for (int i = 0; i < 4 * PANELS_MAX; i++) ck_mbar_init(bar + 8 * (uint32_t)(BAR_PANEL + i), 1);
        ck_mbar_init(bar + 8 * BAR_FILTERS, 1);
        for (int i = 0; i < 2; i++) ck_mbar_init(bar + 8 * (uint32_t)(BAR_ORDER + i), 4 * team_of<WORKERS, RESIDENT>());
        ck_mbar_init_fence();
    }
    __syncthreads();
    const int group = (int)threadIdx.x / GROUP;
    if (group == 0) {
        ck_registers_decrease<WORKERS == 4 ? 24 : 40>();
        const int warp = (int)threadIdx.x / 32;
        if (warp < (RESIDENT ? WORKERS : 1) && threadIdx.x % 32 == 0)
            load<COLUMNS, WORKERS, RESIDENT, MODE>(p, shared, warp);
    } else {
        ck_registers_increase<WORKERS == 2 ? 232 : WORKERS == 3 ? 152 : 112>();
        ck_begin_after_last();
        worker<T, COLUMNS, WORKERS, RESIDENT, MODE> worker(p, shared, group - 1);
        run(worker);
    }
}
#endif

/* ---- host side ---- */

/* Every stride-th pixel of every stride-th row of x, 64 channels of `pixels` pixels a box. */
bool map_pixels(CUtensorMap *map, const struct ck_fused_conv *a, const void *data, int64_t channels, int pixels) {
    const int corner[2] = {0, 0};
    return ck_tma_pixels(map, a->type, data, a->N, a->H, a->W, channels, corner, corner, a->stride, pixels);
}

/* second_x has as many columns as y, and second_w is square. */
bool make_second_maps(struct params *p, const struct ck_fused_conv *a, int64_t rows, int x_rows) {
    return (a->stride > 1 ? map_pixels(&p->second_x, a, a->second_x, a->K, x_rows)
                          : ck_tma_matrix(&p->second_x, a->type, a->second_x, rows, a->K, x_rows)) &&
           ck_tma_matrix(&p->second_w, a->type, a->second_w, a->K, a->K, p->plan.columns);
}

/* A tensor like y, in boxes of a panel. */
bool map_result(CUtensorMap *map, const struct ck_fused_conv *a, const void *data, int64_t rows) {
    return a->stride > 1 && a->has_second ? map_pixels(map, a, data, a->K, STRIP)
                                          : ck_tma_matrix(map, a->type, data, rows, a->K, STRIP);
}

bool make_maps(struct params *p, const struct ck_fused_conv *a) {
    const int     x_rows  = p->plan.resident ? ROWS : team(&p->plan) * ROWS;
    const int64_t rows    = a->N * a->P * a->Q;
    const bool    strided = a->stride > 1 && !a->has_second;
    const bool    x =
        strided ? map_pixels(&p->x, a, a->x, a->C, x_rows) : ck_tma_matrix(&p->x, a->type, a->x, rows, a->C, x_rows);
    const bool w = a->transposed ? ck_tma_matrix(&p->w, a->type, a->w, a->C, a->K, 64)
                                 : ck_tma_matrix(&p->w, a->type, a->w, a->K, a->C, p->plan.columns);
    return x && w && (!a->has_second || make_second_maps(p, a, rows, x_rows)) &&
           ck_tma_matrix(&p->y, a->type, a->y, rows, a->K, STRIP) &&
           (!a->has_add || map_result(&p->add, a, a->add, rows)) &&
           (!a->has_bn_x || map_result(&p->bn_x, a, a->bn_x, rows));
}

/* Fills the arguments of a kernel. Returns false when the driver rejects the sizes. */
bool make_params(struct params *to, const struct ck_fused_conv *a, const struct plan *plan, void *workspace) {
    struct params p  = {};
    p.plan           = *plan;
    p.scale_bias     = a->scale_bias;
    p.bias           = a->bias;
    p.mean_rstd      = a->mean_rstd;
    p.gamma          = a->gamma;
    p.beta           = a->beta;
    p.out_scale_bias = a->out_scale_bias;
    p.factor_bias    = a->factor_bias;
    p.mask           = a->mask;
    p.partial        = a->has_sums ? static_cast<float *>(workspace) : nullptr;
    p.rows           = (int)(a->N * a->P * a->Q);
    p.C              = (int)a->C;
    p.K              = (int)a->K;
    p.stride         = a->stride;
    p.data           = a->y;
    p.H              = (int)a->H;
    p.W              = (int)a->W;
    p.P              = (int)a->P;
    p.Q              = (int)a->Q;
    p.add_given      = a->has_add;
    p.bn_given       = a->has_bn_x;
    p.relu           = a->relu;
    *to              = p;
    return make_maps(to, a);
}

/* A tile for which kernels are compiled. */
template <int COLUMNS_, int WORKERS_, bool RESIDENT_> struct tile {
    static constexpr int  COLUMNS = COLUMNS_, WORKERS = WORKERS_;
    static constexpr bool RESIDENT = RESIDENT_;
    static bool is_of(const plan &p) { return p.columns == COLUMNS && p.workers == WORKERS && p.resident == RESIDENT; }
};
/* Calls start with the tile of the plan. */
template <class... Tiles> struct tile_list {
    template <class Start> static cudaError_t start(const plan &p, const Start &start) {
        cudaError_t error = cudaErrorInvalidValue;
        (void)((Tiles::is_of(p) && (error = start(Tiles()), true)) || ...);
        return error;
    }
};
template <class Tile> cudaError_t start_tile(void (*kernel)(params), const struct params *p, cudaStream_t stream) {
    return ck_launch_shared(kernel, dim3((unsigned)p->plan.grid), dim3((1 + Tile::WORKERS) * GROUP), p->plan.bytes,
                            stream, *p);
}

/* The second launch: the sums over the blocks. */
cudaError_t start_sums(const struct params *p, const struct ck_fused_conv *a, cudaStream_t stream) {
    const int64_t width = (int64_t)p->plan.blocks_k * p->plan.columns;
    if (!a->has_sums) return cudaSuccess;
    return add_column_sums(p->partial, a->sums, p->plan.partial_rows, width, a->K, stream);
}

size_t workspace_of(const struct ck_fused_conv *a, const struct ck_gpu *gpu) {
    struct plan plan;
    if (!a->has_sums || find_plan(&plan, a, a->config, gpu->multiprocessors) <= a->config) return 0;
    return sizeof(float) * 2 * (size_t)plan.partial_rows * (size_t)plan.blocks_k * (size_t)plan.columns;
}

/* Fills the arguments of the kernel for config a->config. */
cudaError_t prepare(struct params *p, const struct ck_fused_conv *a, void *workspace, const struct ck_gpu *gpu) {
    struct plan plan;
    if (a->config < 0 || find_plan(&plan, a, a->config, gpu->multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    return make_params(p, a, &plan, workspace) ? cudaSuccess : cudaErrorNotSupported;
}

} // namespace

#endif

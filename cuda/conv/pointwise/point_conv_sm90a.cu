/* cuda/conv/pointwise/point_conv_sm90a.cu: device code and launchers of cuda/conv/pointwise/point_conv.h.
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
#include "cuda/common/column_sums.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/conv/pointwise/point_conv_plan.cuh"
#include "cuda/conv/pointwise/point_conv_work.cuh"

namespace {

#if CK_HAS_SM90A
/* Runs a worker with the features of the arguments as template parameters. */
template <int MODE, class Worker> __device__ __forceinline__ void run_worker(Worker &worker) {
    if constexpr (MODE == ACT) {
        worker.template run_as<false, false, false>();
    } else if constexpr (MODE == AS_IS) {
        if (worker.p.add_given)
            worker.template run_as<true, true, false>();
        else if (worker.p.bias || worker.p.relu)
            worker.template run_as<true, false, false>();
        else
            worker.template run_as<false, false, false>();
    } else {
        if (worker.p.bn_given && worker.p.add_given)
            worker.template run_as<false, true, true>();
        else if (worker.p.bn_given)
            worker.template run_as<false, false, true>();
        else if (worker.p.add_given)
            worker.template run_as<false, true, false>();
        else
            worker.template run_as<false, false, false>();
    }
}
#endif

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) point_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
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
        run_worker<MODE>(worker);
    }
#else
    (void)p;
    __trap();
#endif
}

/* ---- host side ---- */

/* Every stride-th pixel of every stride-th row of x, 64 channels of `pixels` pixels a box. */
bool map_pixels(CUtensorMap *map, const struct ck_point_conv *a, int pixels) {
    const int corner[2] = {0, 0};
    return ck_tma_pixels(map, a->type, a->x, a->N, a->H, a->W, a->C, corner, corner, a->stride, pixels);
}

bool make_maps(struct params *p, const struct ck_point_conv *a) {
    const int     x_rows = p->plan.resident ? ROWS : team(&p->plan) * ROWS;
    const int64_t rows   = rows_of(a);
    const bool    x =
        a->stride > 1 ? map_pixels(&p->x, a, x_rows) : ck_tma_matrix(&p->x, a->type, a->x, rows, a->C, x_rows);
    const bool w = a->transposed ? ck_tma_matrix(&p->w, a->type, a->w, a->C, a->K, 64)
                                 : ck_tma_matrix(&p->w, a->type, a->w, a->K, a->C, p->plan.columns);
    return x && w && ck_tma_matrix(&p->y, a->type, a->y, rows, a->K, STRIP) &&
           (!a->add || ck_tma_matrix(&p->add, a->type, a->add, rows, a->K, STRIP)) &&
           (!a->bn_x || ck_tma_matrix(&p->bn_x, a->type, a->bn_x, rows, a->K, STRIP));
}

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
cudaError_t start(const struct params *p, cudaStream_t stream) {
    const auto        kernel = point_conv<T, COLUMNS, WORKERS, RESIDENT, MODE>;
    const cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p->plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)p->plan.grid), dim3((1 + WORKERS) * GROUP), (size_t)p->plan.bytes, stream,
                     *p);
}

template <typename T, int MODE> cudaError_t start_as(const struct params *p, cudaStream_t stream) {
    const struct plan *plan = &p->plan;
    const int          kind = plan->columns * 10 + plan->workers;
    if (plan->resident) {
        if (kind == 2562) return start<T, 256, 2, true, MODE>(p, stream);
        if (kind == 1282) return start<T, 128, 2, true, MODE>(p, stream);
        if (kind == 1283) return start<T, 128, 3, true, MODE>(p, stream);
        if (kind == 644) return start<T, 64, 4, true, MODE>(p, stream);
    } else {
        if (kind == 2562) return start<T, 256, 2, false, MODE>(p, stream);
        if (kind == 1282) return start<T, 128, 2, false, MODE>(p, stream);
        if (kind == 1283) return start<T, 128, 3, false, MODE>(p, stream);
        if (kind == 1284) return start<T, 128, 4, false, MODE>(p, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T> cudaError_t start_mode(const struct params *p, bool transposed, cudaStream_t stream) {
    if (transposed) return start_as<T, TRANSPOSED>(p, stream);
    return p->scale_bias ? start_as<T, ACT>(p, stream) : start_as<T, AS_IS>(p, stream);
}

cudaError_t launch(const struct ck_point_conv *a, const struct plan *plan, void *workspace, cudaStream_t stream) {
    struct params p = {};
    p.plan          = *plan;
    p.scale_bias    = a->scale_bias;
    p.bias          = a->bias;
    p.mean_rstd     = a->mean_rstd;
    p.gamma         = a->gamma;
    p.beta          = a->beta;
    p.partial       = a->sums ? static_cast<float *>(workspace) : nullptr;
    p.rows          = (int)rows_of(a);
    p.C             = (int)a->C;
    p.K             = (int)a->K;
    p.stride        = a->stride;
    p.P             = (int)side_of(a->H, a->stride);
    p.Q             = (int)side_of(a->W, a->stride);
    p.add_given     = a->add != nullptr;
    p.bn_given      = a->bn_x != nullptr;
    p.relu          = a->relu;
    p.early         = a->early && !a->scale_bias;
    if (!make_maps(&p, a)) return cudaErrorNotSupported;
    const cudaError_t error = a->type == CK_F16 ? start_mode<__half>(&p, a->transposed, stream)
                                                : start_mode<__nv_bfloat16>(&p, a->transposed, stream);
    if (error != cudaSuccess || !a->sums) return error;
    const int64_t width = (int64_t)plan->blocks_k * plan->columns;
    return add_column_sums(p.partial, a->sums, plan->partial_rows, width, a->K, stream);
}

} // namespace

bool ck_point_conv_supports(const struct ck_point_conv *a) {
    const int64_t most = INT32_MAX / 2;
    if (a->type == CK_F32 || a->stride < 1 || a->stride > 8 || a->N < 1 || a->H < 1 || a->W < 1) return false;
    if (a->C < 8 || a->C % 8 || a->C > most || a->K < 8 || a->K % 8 || a->K > most / 8) return false;
    if (a->H > most / a->W || a->N > most / (a->H * a->W)) return false;
    if (a->scale_bias && (a->C % STEP || a->transposed || a->bias || a->add || a->relu)) return false;
    if (a->transposed && (a->bias || a->relu || a->stride > 1)) return false;
    if (a->bn_x && !(a->transposed && a->mean_rstd && a->gamma && a->beta)) return false;
    if (a->sums && (a->bias || a->relu || (a->add && !a->bn_x))) return false;
    return ck_point_conv_configs(a, 1) > 0;
}

int ck_point_conv_configs(const struct ck_point_conv *a, int multiprocessors) {
    struct plan plan;
    return find_plan(&plan, a, -1, multiprocessors);
}

size_t ck_point_conv_workspace(const struct ck_point_conv *a, int multiprocessors) {
    struct plan plan;
    if (!a->sums || find_plan(&plan, a, a->config, multiprocessors) <= a->config) return 0;
    return sizeof(float) * 2 * (size_t)plan.partial_rows * (size_t)plan.blocks_k * (size_t)plan.columns;
}

cudaError_t ck_point_conv(const struct ck_point_conv *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    struct plan plan;
    if (a->config < 0 || !ck_point_conv_supports(a) || find_plan(&plan, a, a->config, multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    return launch(a, &plan, workspace, stream);
}

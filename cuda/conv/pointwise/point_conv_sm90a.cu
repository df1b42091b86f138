/* cuda/conv/pointwise/point_conv_sm90a.cu: the kernels of cuda/conv/pointwise/point_conv.h; the code is in
 * cuda/conv/pointwise/point_conv_block.cuh. */
#include "cuda/conv/pointwise/point_conv_block.cuh"

namespace {

#if CK_HAS_SM90A
/* Runs a worker with the features of the arguments as template parameters. */
template <int MODE> struct run_worker {
    template <class Worker> __device__ __forceinline__ void operator()(Worker &worker) const {
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
};
#endif

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) point_conv(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    point_block<T, COLUMNS, WORKERS, RESIDENT, MODE>(p, run_worker<MODE>());
#else
    (void)p;
    __trap();
#endif
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
    struct params p;
    if (!make_params(&p, a, plan, workspace)) return cudaErrorNotSupported;
    const cudaError_t error = a->type == CK_F16 ? start_mode<__half>(&p, a->transposed, stream)
                                                : start_mode<__nv_bfloat16>(&p, a->transposed, stream);
    return error == cudaSuccess ? start_sums(&p, a, stream) : error;
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
    if (a->out_scale_bias || a->mask || a->second_x) return false;
    return ck_point_conv_configs(a, 1) > 0;
}

int ck_point_conv_configs(const struct ck_point_conv *a, int multiprocessors) {
    return configs_of(a, multiprocessors);
}

size_t ck_point_conv_workspace(const struct ck_point_conv *a, int multiprocessors) {
    return workspace_of(a, multiprocessors);
}

cudaError_t ck_point_conv(const struct ck_point_conv *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    struct plan plan;
    if (a->config < 0 || !ck_point_conv_supports(a) || find_plan(&plan, a, a->config, multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    return launch(a, &plan, workspace, stream);
}

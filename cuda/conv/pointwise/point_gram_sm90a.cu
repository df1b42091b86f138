/* cuda/conv/pointwise/point_gram_sm90a.cu: 1x1 convolutions whose BN has its statistics from a Gram matrix, and the
 * gradients of their inputs, on compute capability 9.0: the kernels of ck_point_gram. The code
 * is in cuda/conv/pointwise/point_conv_block.cuh. */
#include "cuda/conv/pointwise/point_conv_block.cuh"

namespace {

#if CK_HAS_SM90A
template <int MODE> struct run_gram {
    template <class Worker> __device__ __forceinline__ void operator()(Worker &worker) const {
        if constexpr (MODE == JOINED) {
            if (worker.p.bn_given && worker.p.add_given)
                worker.template run_as<0, true, true>();
            else if (worker.p.bn_given)
                worker.template run_as<0, false, true>();
            else if (worker.p.add_given)
                worker.template run_as<0, true, false>();
            else
                worker.template run_as<0, false, false>();
        } else {
            if (worker.p.add_given)
                worker.template run_as<SCALE, true, false>();
            else
                worker.template run_as<SCALE, false, false>();
        }
    }
};
#endif

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
__global__ void __launch_bounds__((1 + WORKERS) * GROUP, 1) point_gram(const __grid_constant__ params p) {
#if CK_HAS_SM90A
    point_block<T, COLUMNS, WORKERS, RESIDENT, MODE>(p, run_gram<MODE>());
#else
    (void)p;
    __trap();
#endif
}

template <typename T, int COLUMNS, int WORKERS, bool RESIDENT, int MODE>
cudaError_t start(const struct params *p, cudaStream_t stream) {
    const auto        kernel = point_gram<T, COLUMNS, WORKERS, RESIDENT, MODE>;
    const cudaError_t error  = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, p->plan.bytes);
    if (error != cudaSuccess) return error;
    return ck_launch(kernel, dim3((unsigned)p->plan.grid), dim3((1 + WORKERS) * GROUP), (size_t)p->plan.bytes, stream,
                     *p);
}

template <typename T, int MODE> cudaError_t start_conv(const struct params *p, cudaStream_t stream) {
    const struct plan *plan = &p->plan;
    const int          kind = plan->columns * 10 + plan->workers;
    if (plan->resident) {
        if (kind == 2562) return start<T, 256, 2, true, MODE>(p, stream);
        if (kind == 1283) return start<T, 128, 3, true, MODE>(p, stream);
    } else {
        if (kind == 2562) return start<T, 256, 2, false, MODE>(p, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T> cudaError_t start_dgrad(const struct params *p, cudaStream_t stream) {
    const struct plan *plan = &p->plan;
    const int          kind = plan->columns * 10 + plan->workers;
    if (plan->resident) {
        if (kind == 644) return start<T, 64, 4, true, JOINED>(p, stream);
        if (kind == 643) return start<T, 64, 3, true, JOINED>(p, stream);
        if (kind == 642) return start<T, 64, 2, true, JOINED>(p, stream);
    } else {
        if (kind == 2562) return start<T, 256, 2, false, JOINED>(p, stream);
        if (kind == 1282) return start<T, 128, 2, false, JOINED>(p, stream);
        if (kind == 1283) return start<T, 128, 3, false, JOINED>(p, stream);
    }
    return cudaErrorInvalidValue;
}

template <typename T> cudaError_t start_as(const struct params *p, bool second, cudaStream_t stream) {
    if (second) return start_dgrad<T>(p, stream);
    return p->scale_bias ? start_conv<T, ACT>(p, stream) : start_conv<T, AS_IS>(p, stream);
}

} // namespace

bool ck_point_gram_supports(const struct ck_point_conv *a) {
    const int64_t most = INT32_MAX / 2;
    if (a->type == CK_F32 || a->stride < 1 || a->stride > 8 || a->N < 1 || a->H < 1 || a->W < 1) return false;
    if (a->C < 64 || a->C % 64 || a->C > most || a->K < 64 || a->K % 64 || a->K > most / 8) return false;
    if (a->H > most / a->W || a->N > most / (a->H * a->W) || a->transposed || a->bias || a->gamma || a->beta)
        return false;
    if (a->second_x) {
        if (!a->second_w || !a->factor_bias || a->out_scale_bias || a->mask || a->relu) return false;
        const bool relu = a->bn_x && !a->mean_rstd; /* bn_x is the output of a ReLU */
        if (relu && (!a->add || a->scale_bias || a->sums)) return false;
        if (a->bn_x && !relu && (a->add || !a->scale_bias || !a->sums || a->stride > 1)) return false;
        if (!a->bn_x && (a->sums || a->mean_rstd)) return false;
    } else if (!a->out_scale_bias || a->sums || a->bn_x || a->mean_rstd || a->factor_bias) {
        return false;
    }
    return configs_of(a, 1) > 0;
}

int ck_point_gram_configs(const struct ck_point_conv *a, int multiprocessors) {
    return configs_of(a, multiprocessors);
}

size_t ck_point_gram_workspace(const struct ck_point_conv *a, int multiprocessors) {
    return workspace_of(a, multiprocessors);
}

cudaError_t ck_point_gram(const struct ck_point_conv *a, void *workspace, int multiprocessors, cudaStream_t stream) {
    struct plan   plan;
    struct params p;
    if (a->config < 0 || !ck_point_gram_supports(a) || find_plan(&plan, a, a->config, multiprocessors) <= a->config)
        return cudaErrorInvalidValue;
    if (!make_params(&p, a, &plan, workspace)) return cudaErrorNotSupported;
    if (a->second_x && a->stride > 1 && a->add && a->add != a->y) { /* the pixels that the kernel does not write */
        const size_t      bytes = (size_t)(a->N * a->H * a->W * a->K) * 2;
        const cudaError_t error = cudaMemcpyAsync(a->y, a->add, bytes, cudaMemcpyDeviceToDevice, stream);
        if (error != cudaSuccess) return error;
    }
    const cudaError_t error = a->type == CK_F16 ? start_as<__half>(&p, a->second_x != nullptr, stream)
                                                : start_as<__nv_bfloat16>(&p, a->second_x != nullptr, stream);
    return error == cudaSuccess ? start_sums(&p, a, stream) : error;
}

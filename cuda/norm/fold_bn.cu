/* cuda/norm/fold_bn.cu: folds batch normalisation with fixed statistics into the filter in front of it. Reference:
 * device/cpu/reference/ref_bn.c. It runs once for many batches. Limiter: the launch, then memory (6 bytes an element
 * in 16-bit programs). */
#include "cuda/common/common.cuh"

enum { THREADS = 256 };

/* One block for each filter. */
template <typename T> static __global__ void __launch_bounds__(THREADS) fold_kernel(struct ck_fold_bn f, T *y) {
    const int64_t k     = blockIdx.x;
    const float   scale = f.gamma[k] / sqrtf(f.var[k] + f.eps);
    if (threadIdx.x == 0) f.bias[k] = fmaf(-f.mean[k], scale, f.beta[k]);
    for (int64_t i = threadIdx.x; i < f.elems; i += THREADS)
        y[k * f.elems + i] = ck_round<T>(f.w[k * f.elems + i] * scale);
}

cudaError_t ck_fold_bn(const struct ck_fold_bn *f, enum ck_type type, void *y, cudaStream_t stream) {
    const unsigned blocks = (unsigned)f->filters;
    if (type == CK_F16)
        fold_kernel<<<blocks, THREADS, 0, stream>>>(*f, (__half *)y);
    else if (type == CK_BF16)
        fold_kernel<<<blocks, THREADS, 0, stream>>>(*f, (__nv_bfloat16 *)y);
    else
        fold_kernel<<<blocks, THREADS, 0, stream>>>(*f, (float *)y);
    return cudaGetLastError();
}

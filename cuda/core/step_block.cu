/* cuda/core/step_block.cu: copies a step's inputs to the device and its results to the host, one kernel each.
 * One kernel replaces a copy of each piece: a small copy occupies the stream for 1.5 to 2 us, as long as a launch, and
 * networks for small images run 2,000 steps a second. Limiter: the launch. */
#include "cuda/common/common.cuh"

/* The block is an argument of the kernel. The launch copies it, so the caller may change it at once. */
static __global__ void set_step_kernel(struct ck_step *to, struct ck_step step) {
    ck_begin_after_last();
    *to = step;
}

cudaError_t ck_set_step(struct ck_step *to, const struct ck_step *step, cudaStream_t stream) {
    return ck_launch(set_step_kernel, 1, 1, 0, stream, to, *step);
}

cudaError_t ck_ptx_version(int *version) {
    cudaFuncAttributes attributes = {};
    const cudaError_t  error      = cudaFuncGetAttributes(&attributes, set_step_kernel);
    *version                      = attributes.ptxVersion;
    return error;
}

static int shared_limit;

void ck_limit_shared(int bytes) {
    shared_limit = bytes;
}
int ck_shared_limit(void) {
    return shared_limit;
}

static __global__ void __launch_bounds__(CK_WARP) fetch_kernel(const struct ck_fetch f) {
    ck_begin_after_last();
    for (int p = 0; p < f.pieces; p++)
        for (int i = (int)threadIdx.x; i < f.words[p]; i += CK_WARP) f.to[p][i] = f.from[p][i];
}

cudaError_t ck_fetch(const struct ck_fetch *f, cudaStream_t stream) {
    if (f->pieces < 0 || f->pieces > CK_FETCH_PIECES) return cudaErrorInvalidValue;
    return ck_launch(fetch_kernel, 1, CK_WARP, 0, stream, *f);
}

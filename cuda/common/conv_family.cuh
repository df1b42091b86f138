/* cuda/common/conv_family.cuh: what the host halves of the convolution families share: a family from functions with
 * typed arguments, a launch with more than 48 KiB of shared memory, the element type as a template parameter. */
#ifndef CK_CONV_FAMILY_CUH
#define CK_CONV_FAMILY_CUH

#include "cuda/common/common.cuh"
#include "cuda/common/conv_family.h"

template <class Args, int (*CONFIGS)(const Args *, const ck_gpu *), size_t (*WORKSPACE)(const Args *, const ck_gpu *),
          cudaError_t (*LAUNCH)(const Args *, void *, const ck_gpu *, cudaStream_t)>
constexpr struct ck_conv_family ck_family() {
    return {[](const void *args, const ck_gpu *gpu) { return CONFIGS(static_cast<const Args *>(args), gpu); },
            [](const void *args, const ck_gpu *gpu) { return WORKSPACE(static_cast<const Args *>(args), gpu); },
            [](const void *args, void *workspace, const ck_gpu *gpu, cudaStream_t stream) {
                return LAUNCH(static_cast<const Args *>(args), workspace, gpu, stream);
            }};
}
template <class Args> size_t ck_no_workspace(const Args *, const ck_gpu *) {
    return 0;
}

/* ck_launch with `bytes` of dynamic shared memory, which may be more than 48 KiB. */
template <typename... Parameters, typename... Args>
static cudaError_t ck_launch_shared(void (*kernel)(Parameters...), dim3 grid, dim3 block, int64_t bytes,
                                    cudaStream_t stream, const Args &...args) {
    const cudaError_t error = ck_allow_shared(kernel, bytes);
    return error == cudaSuccess ? ck_launch(kernel, grid, block, (size_t)bytes, stream, args...) : error;
}

/* Calls start with a value of the element type:  ck_by_half(type, [&](auto t) { return start<decltype(t)>(p); }); */
template <class Start> static cudaError_t ck_by_half(enum ck_type type, const Start &start) {
    return type == CK_F16 ? start(__half()) : start(__nv_bfloat16());
}

#endif

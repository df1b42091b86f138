/* cuda/conv/cifar/cifar_conv_grad_last.cu: the backward of CIFAR convolutions that completes the launch before it; see
 * cuda/conv/cifar/cifar_conv_grad.cu and cuda/conv/cifar/cifar_grad_last.cuh. */
#include "cuda/conv/cifar/cifar_grad_run.cuh"

namespace cifar {
namespace {

/* What the launch of `last` has left; a.each and a.rows as in its add_run. */
last_grad left_by(const struct ck_cifar_conv_grad *last, const void *workspace, int multiprocessors) {
    const struct ck_conv *v = &last->conv;
    last_grad             a = {};
    a.dw_partial            = (const float *)workspace;
    a.sums_partial          = (const float *)workspace + dw_floats(v, multiprocessors);
    a.dw = last->dw, a.grad_sums = last->grad_sums, a.accumulate = last->accumulate;
    a.C = (int)v->C, a.K = (int)v->K;
    a.finish           = last->finish;
    a.finish.mean_rstd = last->mean_rstd;
    a.inverse          = 1 / (double)last->finish.count;
    if (last->filter_later) { /* ck_cifar_wgrads computes dw */
        a.sums_partial = left_sums(v, (void *)workspace), a.rows = dgrad_rows(v, multiprocessors), a.K = 0;
        return a;
    }
    (void)run_shape<false>(v, [&](auto s) {
        using D = grad_tiling<decltype(s)>;
        a.rows  = (int)grad_blocks<decltype(s)>(v->N, multiprocessors);
        a.each  = D::JOINT ? a.rows : (int)D::GROUP;
        static_assert(s.R == 1 ||
                          ((int)D::KB == (s.K < 32 ? (int)s.K : 32) && (int)D::CB == (s.C < 32 ? (int)s.C : 32)),
                      "the layout that last_store expects");
        return cudaSuccess;
    });
    return a;
}

template <typename T>
cudaError_t run(const struct ck_cifar_conv_grad *args, const grad_last_args &a, int multiprocessors, int block_bytes,
                cudaStream_t stream) {
    const grad_end end = end_of(args);
    if (args->conv.C == 3) return stem_grad_run<T, false>(a, end, multiprocessors, stream);
    return run_shape<false>(
        &args->conv, [&](auto s) { return grad_run<decltype(s), T>(a, end, multiprocessors, block_bytes, stream); });
}

} // namespace

int last_grad_bytes(const struct ck_conv *v) {
    int bytes = STEM_ALL + last_grad_sums<STEM_K, STEM_K, WARPS, true>::ROOM;
    static_assert(STEM_ALL % 16 == 0, "room for vectors");
    if (v->C == 3) return bytes;
    (void)run_shape<false>(v, [&](auto s) {
        using D = grad_tiling<decltype(s)>;
        bytes   = D::BYTES + last_grad_sums<decltype(s)::K, decltype(s)::K, D::DX_WARPS, true>::ROOM;
        static_assert(D::BYTES % 16 == 0, "room for vectors");
        static_assert(D::JOINT || 2 * (D::BYTES + (int)last_grad_sums<64, 64, WARPS, true>::ROOM + 1024) <= 233472,
                      "two blocks a multiprocessor");
        return cudaSuccess;
    });
    return bytes;
}

cudaError_t last_grad_run(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors, int block_bytes,
                          cudaStream_t stream) {
    grad_last_args a            = {};
    static_cast<grad_args &>(a) = args_of(args, workspace, multiprocessors);
    a.last                      = left_by(args->last, args->last_workspace, multiprocessors);
    return args->conv.type == CK_F16 ? run<__half>(args, a, multiprocessors, block_bytes, stream)
                                     : run<__nv_bfloat16>(args, a, multiprocessors, block_bytes, stream);
}

} // namespace cifar

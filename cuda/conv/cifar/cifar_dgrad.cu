/* cuda/conv/cifar/cifar_dgrad.cu: the input gradient of a CIFAR convolution without the gradient of its filter: the
 * BN's gradient applied while dy is read, product, addition, mask and sums. A second, small launch adds the sums of the
 * blocks and finishes the BN, as in cuda/conv/cifar/cifar_conv_grad.cu. */
#include "cuda/conv/cifar/cifar_apart.h"
#include "cuda/conv/cifar/cifar_dgrad.cuh"

namespace cifar {
namespace {

/* Algorithm 0 has parts of images, for small batches, algorithm 1 whole images. At 8x8 pixels both are the same. */
template <class S, int ALGO> struct dx_choice { using type = dx_shape<S, 8, 8, 2>; };
template <> struct dx_choice<shape<16, 16, 32, 1, 3>, 0> { using type = dx_shape<shape<16, 16, 32, 1, 3>, 16, 8, 2>; };
template <> struct dx_choice<shape<16, 16, 32, 1, 3>, 1> { using type = dx_shape<shape<16, 16, 32, 1, 3>, 32, 16, 1>; };
template <> struct dx_choice<shape<16, 32, 32, 2, 3>, 1> { using type = dx_shape<shape<16, 32, 32, 2, 3>, 16, 16, 1>; };
template <> struct dx_choice<shape<32, 32, 16, 1, 3>, 1> { using type = dx_shape<shape<32, 32, 16, 1, 3>, 16, 8, 2>; };

template <typename Run> cudaError_t dx_run_shape(const struct ck_conv *v, int algo, Run run) {
    return run_shape<false>(v, [&](auto s) {
        using S = decltype(s);
        if constexpr (S::R == 3) {
            if constexpr (S::P > 8)
                if (algo == 1) return run(typename dx_choice<S, 1>::type());
            return run(typename dx_choice<S, 0>::type());
        }
        return cudaErrorInvalidValue;
    });
}

template <class S, typename T>
cudaError_t dgrad_run(const grad_args &a, const struct ck_bn_grad_finalize &finish, int multiprocessors,
                      cudaStream_t stream) {
    using D                 = grad_tiling<S>;
    const unsigned    blocks = ck_blocks(a.N * D::TILES, 1, (int64_t)multiprocessors * S::BLOCKS);
    const dx_args     args   = {.grad = a, .last = {}, .dy = NULL};
    const cudaError_t error  = launch(dx_kernel<S, T, false>, args, blocks, D::DX_THREADS, D::BYTES, stream);
    return error != cudaSuccess || !a.grad_sums ? error : dx_sums_run<S::C>(a, finish, (int)blocks, stream);
}

template <typename T>
cudaError_t dgrad_any(const struct ck_conv *v, int algo, const grad_args &a, const struct ck_bn_grad_finalize &f,
                      int multiprocessors, cudaStream_t stream) {
    return dx_run_shape(v, algo, [&](auto s) { return dgrad_run<decltype(s), T>(a, f, multiprocessors, stream); });
}

/* The most shared memory of a block. */
int dgrad_bytes(const struct ck_conv *v) {
    int most = 0;
    for (int algo = 0; algo < 2; algo++)
        (void)dx_run_shape(v, algo, [&](auto s) {
            return most = grad_tiling<decltype(s)>::BYTES > most ? grad_tiling<decltype(s)>::BYTES : most, cudaSuccess;
        });
    return most;
}
int dgrad_blocks(const struct ck_conv *v, int algo) {
    int blocks = 0;
    (void)dx_run_shape(v, algo, [&](auto s) { return blocks = decltype(s)::BLOCKS, cudaSuccess; });
    return blocks;
}

} // namespace
} // namespace cifar

enum { WGRADS_BYTES = 92 * 1024 /* cifar_wgrads.cu asserts it */ };

bool ck_cifar_apart_supports(const struct ck_conv *v, int block_bytes) {
    return ck_cifar_conv_supports(v) && !cifar::is_narrow(v) && v->C != 3 && v->R == 3 && cifar::dgrad_bytes(v) <= block_bytes &&
           (int)WGRADS_BYTES <= block_bytes;
}

int ck_cifar_dgrad_algos(const struct ck_conv *v) {
    return v->P > 8 ? 2 : 1;
}
size_t ck_cifar_dgrad_workspace(const struct ck_conv *v, int algo, int multiprocessors) {
    return (size_t)multiprocessors * (size_t)cifar::dgrad_blocks(v, algo) * 2 * (size_t)v->C * sizeof(float);
}

cudaError_t ck_cifar_dgrad(const struct ck_cifar_conv_grad *args, int algo, void *workspace, int multiprocessors,
                           int block_bytes, cudaStream_t stream) {
    const cifar::grad_args a = {.g            = args->g,
                                .dy_x         = args->dy_x,
                                .w            = args->w,
                                .x            = args->x,
                                .add          = args->add,
                                .bn_x         = args->bn_x,
                                .dy_coeffs    = args->dy_coeffs,
                                .scale_bias   = args->scale_bias,
                                .mean_rstd    = args->mean_rstd,
                                .dx           = args->dx,
                                .dw           = NULL,
                                .grad_sums    = args->grad_sums,
                                .dw_partial   = NULL,
                                .sums_partial = (float *)workspace,
                                .N            = args->conv.N,
                                .C            = (int)args->conv.C,
                                .K            = (int)args->conv.K,
                                .accumulate   = false,
                                .w_new        = args->w_new,
                                .x_new        = args->x_new,
                                .one_stage    = false};
    if (!ck_cifar_apart_supports(&args->conv, block_bytes) || args->dw || !args->dx) return cudaErrorInvalidValue;
    if (!args->mean_rstd != !args->grad_sums || !args->dy_x != !args->dy_coeffs) return cudaErrorInvalidValue;
    if ((args->mean_rstd && !args->bn_x && !args->scale_bias) || (args->finish.coeffs && !args->grad_sums))
        return cudaErrorInvalidValue;
    return args->conv.type == CK_F16
               ? cifar::dgrad_any<__half>(&args->conv, algo, a, args->finish, multiprocessors, stream)
               : cifar::dgrad_any<__nv_bfloat16>(&args->conv, algo, a, args->finish, multiprocessors, stream);
}

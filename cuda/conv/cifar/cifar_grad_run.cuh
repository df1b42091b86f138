/* cuda/conv/cifar/cifar_grad_run.cuh: launches the backward of CIFAR convolutions; see
 * cuda/conv/cifar/cifar_conv_grad.cu. */
#ifndef CK_CIFAR_GRAD_RUN_CUH
#define CK_CIFAR_GRAD_RUN_CUH

#include "cuda/conv/cifar/cifar_grad_kernels.cuh"

namespace cifar {
namespace {

enum { RESIDENT = 2 };
inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

enum { SHARED_LEAST = 99 * 1024 /* every GPU of compute capability 8.0 or later has it */ };

/* Shared memory that the smallest variant needs. */
template <class S> constexpr int least_bytes() {
    return (int)grad_tiling<S>::BYTES <= SHARED_LEAST ? (int)grad_tiling<S>::BYTES : (int)grad_tiling<small<S>>::BYTES;
}

template <class S> unsigned grad_blocks(int64_t N, int multiprocessors) { /* of dx */
    using D                 = grad_tiling<S>;
    const int64_t dx_blocks = larger((int64_t)multiprocessors * RESIDENT - SPLIT_DW_BLOCKS, SPLIT_DX_LEAST);
    return ck_blocks(N * D::TILES, 1, D::JOINT ? (int64_t)multiprocessors : dx_blocks);
}

template <class S, typename T>
cudaError_t grad_run(grad_args a, const struct ck_bn_grad_finalize &finish, int multiprocessors, int block_bytes,
                     cudaStream_t stream) {
    using D   = grad_tiling<S>;
    int bytes = D::BYTES;
    if constexpr (!S::SMALL && (int)D::BYTES > (int)SHARED_LEAST) {
        if constexpr (!S::ANY)
            if (block_bytes < D::BYTES) return grad_run<small<S>, T>(a, finish, multiprocessors, block_bytes, stream);
        if (S::ANY && block_bytes < D::BYTES) a.one_stage = true, bytes = grad_tiling<small<S>>::BYTES;
    }
    const unsigned most = grad_blocks<S>(a.N, multiprocessors);
    cudaError_t    error;
    if constexpr (D::JOINT)
        error = launch(joint_kernel<S, T>, a, most, D::BLOCK, bytes, stream);
    else
        error = launch(split_kernel<S, T>, a, SPLIT_DW_BLOCKS + most, D::BLOCK, bytes, stream);
    return error != cudaSuccess
               ? error
               : add_run<dw_place<S>>(a, finish, D::JOINT ? (int64_t)most : D::group(a.C, a.K), most, stream);
}

template <typename T, bool ANY, class Args>
cudaError_t stem_grad_run(const Args &a, int multiprocessors, cudaStream_t stream) {
    const unsigned    blocks = ck_blocks(a.N * STEM_TILES, 1, (int64_t)multiprocessors * RESIDENT);
    const int         bytes  = STEM_ALL + (Args::FINISH ? (int)stem_sums<STEM_K, WARPS>::ROOM : 0);
    const cudaError_t error  = launch(stem_grad_kernel<T, ANY, Args>, a, blocks, THREADS, bytes, stream);
    static_assert(STEM_ALL % 16 == 0, "room for vectors");
    return error != cudaSuccess ? error : add_run<stem_place<ANY>>(a, {}, blocks, 0, stream);
}

template <typename T, bool ANY>
cudaError_t grad_any(const struct ck_conv *v, const grad_args &a, const struct ck_bn_grad_finalize &finish,
                     int multiprocessors, int block_bytes, cudaStream_t stream) {
    if (v->C == 3) return stem_grad_run<T, ANY>(a, multiprocessors, stream);
    return run_shape<ANY>(
        v, [&](auto s) { return grad_run<decltype(s), T>(a, finish, multiprocessors, block_bytes, stream); });
}

/* Most blocks that store sums, and floats of the parts of dw that the blocks store. */
inline int64_t most_blocks(int multiprocessors) {
    return larger((int64_t)multiprocessors * RESIDENT, SPLIT_DW_BLOCKS);
}
template <bool ANY> int64_t dw_floats_of(const struct ck_conv *v, int multiprocessors) {
    int64_t floats = (int64_t)STEM_DW * multiprocessors * RESIDENT;
    if (v->C != 3)
        (void)run_shape<ANY>(v, [&](auto s) {
            using D       = grad_tiling<decltype(s)>;
            return floats = (int64_t)D::DW * (D::JOINT ? multiprocessors : (int)SPLIT_DW_BLOCKS), cudaSuccess;
        });
    return floats;
}
inline int64_t dw_floats(const struct ck_conv *v, int multiprocessors) {
    return is_narrow(v) ? dw_floats_of<true>(v, multiprocessors) : dw_floats_of<false>(v, multiprocessors);
}

inline grad_args args_of(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors) {
    return {.g            = args->g,
            .dy_x         = args->dy_x,
            .w            = args->w,
            .x            = args->x,
            .add          = args->add,
            .bn_x         = args->bn_x,
            .dy_coeffs    = args->dy_coeffs,
            .scale_bias   = args->scale_bias,
            .mean_rstd    = args->mean_rstd,
            .dx           = args->dx,
            .dw           = args->dw,
            .grad_sums    = args->grad_sums,
            .dw_partial   = (float *)workspace,
            .sums_partial = (float *)workspace + dw_floats(&args->conv, multiprocessors),
            .N            = args->conv.N,
            .accumulate   = args->accumulate,
            .one_stage    = false,
            .C            = (uint8_t)args->conv.C,
            .K            = (uint8_t)args->conv.K,
            .add_pad      = (uint8_t)args->add_pad};
}

/* All convolutions whose channels are those of tiles, or with ANY all others. */
template <bool ANY>
cudaError_t grad(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors, int block_bytes,
                 cudaStream_t stream) {
    const grad_args a = args_of(args, workspace, multiprocessors);
    return args->conv.type == CK_F16
               ? grad_any<__half, ANY>(&args->conv, a, args->finish, multiprocessors, block_bytes, stream)
               : grad_any<__nv_bfloat16, ANY>(&args->conv, a, args->finish, multiprocessors, block_bytes, stream);
}

} // namespace

/* Defined in cuda/conv/cifar/cifar_narrow_grad.cu: two files are compiled at the same time. */
cudaError_t narrow_grad(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors, int block_bytes,
                        cudaStream_t stream);
/* With args->dy: cuda/conv/cifar/cifar_dgrad.cu. */
cudaError_t dgrad(const struct ck_cifar_conv_grad *args, int multiprocessors, cudaStream_t stream);
enum { WGRADS_BYTES = 96 * 1024 /* shared memory of a block of cuda/conv/cifar/cifar_wgrads.cu */ };

} // namespace cifar

#endif

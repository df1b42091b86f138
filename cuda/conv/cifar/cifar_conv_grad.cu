/* cuda/conv/cifar/cifar_conv_grad.cu: the whole backward of a CIFAR convolution: the BN's gradient applied while dy is
 * read, the gradient of the input with mask, addition and sums, and the gradient of the filters.
 *
 * Two divisions of the work:
 *   - joint: a block reads its tiles of dy and x once and computes both gradients concurrently. Its first warps prepare
 *     dy and compute dx. The last 8 warps prepare x and compute dw, whose sums stay in their registers until the end.
 *     Copies of the next tile are in flight meanwhile. One block for each multiprocessor. For dw of up to 32*32*9
 *     elements.
 *   - split: for larger dw. Some blocks compute dx, image by image. Each of the other blocks computes one part of 32 x
 *     32 channels of dw over many images, of which it reads 32 channels only. Both kinds run concurrently on a
 *     multiprocessor.
 * Blocks store their parts of dw and of the sums in the workspace. A second, small launch adds them in a fixed order.
 * (Two variants were slower. Clusters that add through each other's shared memory: clusters of 8 leave a tenth of the
 * multiprocessors without work, which is a second wave at 128 images. A last block that adds: one block alone reads too
 * slowly.)
 *
 * Bytes an element, 16 bits: g, dy_x and x 2 each, read 1 to 1.13 times (joint) or 2 to 3 times, from the L2 cache
 * (split); add, bn_x and x a second time 2 each; dx 2. Roofline: 4.3 TB/s, or about 600 TFLOP/s of mma.sync. At 128
 * images on an H200, joint 16->16, the first launch takes 18,500 clocks: about 5,000 until the first tile has arrived;
 * 4,400 a tile for dx, whose warps also do mask, addition and sums; 1,850 for dw; 1,600 to store sums and dw. */
#include "cuda/conv/cifar/cifar_grad_run.cuh"

namespace cifar {
namespace {

/* The stem, which finishes the BN behind it. */
cudaError_t stem_finish_run(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors,
                            cudaStream_t stream) {
    stem_finish_args a          = {};
    static_cast<grad_args &>(a) = args_of(args, workspace, multiprocessors);
    a.before                    = {.partial = args->before.rows,
                                   .rows    = args->before.count,
                                   .finish  = args->before.finish,
                                   .inverse = 1 / (double)args->before.finish.count};
    return args->conv.type == CK_F16 ? stem_grad_run<__half, false>(a, multiprocessors, stream)
                                     : stem_grad_run<__nv_bfloat16, false>(a, multiprocessors, stream);
}

/* Whether dy and args->before are valid. */
bool can_finish(const struct ck_cifar_conv_grad *args, int multiprocessors, int block_bytes) {
    if (args->dy && (!ck_cifar_dgrad_supports(&args->conv, multiprocessors, block_bytes) || !args->dy_x || args->dw ||
                     !args->grad_sums || args->finish.coeffs))
        return false;
    if (!args->before.rows) return args->dw || args->dy;
    return args->dy_x && args->before.finish.coeffs &&
           (args->dy || ck_cifar_conv_grad_finishes(&args->conv, block_bytes));
}

} // namespace
} // namespace cifar

size_t ck_cifar_conv_grad_workspace(const struct ck_conv *v, int multiprocessors) {
    const int64_t sums = cifar::most_blocks(multiprocessors) * 2 * v->C;
    return (size_t)(cifar::dw_floats(v, multiprocessors) + sums) * sizeof(float);
}

bool ck_cifar_conv_grad_supports(const struct ck_conv *v, int block_bytes) {
    int need = cifar::STEM_ALL;
    if (!ck_cifar_conv_supports(v)) return false;
    if (v->C != 3)
        (void)cifar::run_shape<true>(v, [&](auto s) { return need = cifar::least_bytes<decltype(s)>(), cudaSuccess; });
    return need <= block_bytes;
}

bool ck_cifar_conv_grad_finishes(const struct ck_conv *v, int block_bytes) {
    return ck_cifar_conv_grad_supports(v, block_bytes) && v->C == 3 && !cifar::is_narrow(v) &&
           cifar::STEM_ALL + (int)cifar::stem_sums<cifar::STEM_K, cifar::WARPS>::ROOM <= block_bytes;
}

cudaError_t ck_cifar_conv_grad(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors,
                               int block_bytes, cudaStream_t stream) {
    if (!ck_cifar_conv_grad_supports(&args->conv, block_bytes)) return cudaErrorInvalidValue;
    if (!args->mean_rstd != !args->grad_sums || !args->dy_x != !args->dy_coeffs) return cudaErrorInvalidValue;
    if ((args->mean_rstd && !args->bn_x && !args->scale_bias) || (args->finish.coeffs && !args->grad_sums))
        return cudaErrorInvalidValue;
    if ((args->conv.C == 3) != !args->dx || (!args->dx && (args->mean_rstd || args->scale_bias || args->add)))
        return cudaErrorInvalidValue;
    if (args->add_pad && (args->conv.stride != 2 || args->conv.R != 3 || args->add_pad % 8 != 0 || !args->add))
        return cudaErrorInvalidValue;
    if (!cifar::can_finish(args, multiprocessors, block_bytes)) return cudaErrorInvalidValue;
    if (args->dy) return cifar::dgrad(args, multiprocessors, stream);
    if (args->before.rows) return cifar::stem_finish_run(args, workspace, multiprocessors, stream);
    return cifar::is_narrow(&args->conv) ? cifar::narrow_grad(args, workspace, multiprocessors, block_bytes, stream)
                                         : cifar::grad<false>(args, workspace, multiprocessors, block_bytes, stream);
}

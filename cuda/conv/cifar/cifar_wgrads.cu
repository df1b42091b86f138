/* cuda/conv/cifar/cifar_wgrads.cu: the filter gradients of several CIFAR convolutions in one launch.
 *
 * A block computes a part of at most 32 x 32 channels of one filter over a slice of the images; copies of its next tile
 * are in flight meanwhile. The BN's gradient is applied while dy is read, BN and ReLU while x is read. A second launch
 * adds the slices in a fixed order. */
#include "cuda/conv/cifar/cifar_apart.h"
#include "cuda/conv/cifar/cifar_wgrad.cuh"

namespace cifar {
namespace {

enum { DW_BLOCKS = 2 /* a multiprocessor */, SLICES = 12, SLICES_64 = 4 /* of the images, for each part */ };

struct dw_sizes { int shape, parts, floats, adds, bytes; };
template <class S> dw_sizes sizes_of(int shape) {
    using D = grad_tiling<S>;
    static_assert((int)D::BYTES <= 92 * 1024, "ck_cifar_apart_supports");
    return {shape, D::PARTS, D::DW, D::DW / 4 / DW_COLUMNS * D::PARTS, D::BYTES};
}
dw_sizes sizes_of(const struct ck_conv *v) {
    if (v->C == 16) return v->K == 16 ? sizes_of<dw_16>(0) : sizes_of<dw_16_32>(1);
    if (v->C == 32) return v->K == 32 ? sizes_of<dw_32>(2) : sizes_of<dw_32_64>(3);
    return sizes_of<dw_64>(4);
}

/* Depends on the shape only, so that a filter gradient does not depend on the convolutions beside it. */
int slices_of(const dw_sizes &s, int64_t N) {
    const int64_t most = s.parts > 2 ? SLICES_64 : s.parts > 1 ? SLICES_64 * 2 : SLICES;
    return (int)(N < most ? N : most);
}

} // namespace
} // namespace cifar

size_t ck_cifar_wgrads_workspace(const struct ck_cifar_wgrads *args, int multiprocessors) {
    size_t floats = 0;
    (void)multiprocessors;
    for (int i = 0; i < args->convs; i++) {
        const cifar::dw_sizes s = cifar::sizes_of(&args->conv[i].conv);
        floats += (size_t)s.parts * (size_t)s.floats * (size_t)cifar::slices_of(s, args->conv[i].conv.N);
    }
    return floats * sizeof(float);
}

cudaError_t ck_cifar_wgrads(const struct ck_cifar_wgrads *args, void *workspace, int multiprocessors,
                            cudaStream_t stream) {
    cifar::dw_list list   = {};
    float         *at     = (float *)workspace;
    int            blocks = 0, adds = 0, bytes = 0;
    (void)multiprocessors;
    if (args->convs < 1 || args->convs > CK_CIFAR_WGRADS) return cudaErrorInvalidValue;
    for (int i = 0; i < args->convs; i++) {
        const auto           &c      = args->conv[i];
        const cifar::dw_sizes s      = cifar::sizes_of(&c.conv);
        const int             slices = cifar::slices_of(s, c.conv.N);
        if (!ck_cifar_conv_supports(&c.conv) || cifar::is_narrow(&c.conv) || c.conv.R != 3 || c.conv.C == 3 || c.conv.N != args->conv[0].conv.N)
            return cudaErrorInvalidValue;
        list.conv[i] = {.g           = c.g,
                        .dy_x        = c.dy_x,
                        .x           = c.x,
                        .dy_coeffs   = c.dy_coeffs,
                        .scale_bias  = c.scale_bias,
                        .partial     = at,
                        .dw          = c.dw,
                        .shape       = s.shape,
                        .slices      = slices,
                        .first_block = blocks,
                        .first_add   = adds};
        blocks += s.parts * slices, adds += s.adds, at += (int64_t)s.parts * s.floats * slices;
        bytes = s.bytes > bytes ? s.bytes : bytes;
    }
    list.convs = args->convs, list.accumulate = args->accumulate, list.N = args->conv[0].conv.N;
    const cudaError_t error =
        args->conv[0].conv.type == CK_F16
            ? cifar::launch(cifar::dw_kernel<__half>, list, blocks, cifar::THREADS, bytes, stream)
            : cifar::launch(cifar::dw_kernel<__nv_bfloat16>, list, blocks, cifar::THREADS, bytes, stream);
    return error != cudaSuccess ? error
                                : cifar::launch(cifar::dw_add_kernel, list, adds, cifar::THREADS, 0, stream);
}

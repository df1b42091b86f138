/* cuda/registry.c: collects all kernels of the GPU in one table. When several kernels accept an op and no times are
 * measured, the first one is selected: cresnet's own kernels for small channel counts, then cuDNN, then cresnet's
 * generic kernels. */
#include "cuda/core/cuda_device.h"
#include "cuda/core/kernel_tables.h"

static const struct cr_kernel *const tables[] = {
    cr_cuda_cifar_kernels,        cr_cuda_cifar_fused_kernels,    cr_cudnn_conv_kernels,
    cr_cuda_fused_conv_kernels,   cr_cuda_fused_grad_kernels,     cr_cuda_gram_kernels,
    cr_cuda_stem_kernels,         cr_cuda_conv_kernels,           cr_cuda_dense_kernels,
    cr_cuda_bn_kernels,           cr_cuda_pointwise_kernels,      cr_cuda_peer_copy_kernels,
    cr_cuda_nccl_kernels,         cr_cuda_squeeze_excite_kernels, cr_cuda_loss_kernels,
    cr_cuda_optimizer_kernels,    cr_cuda_direct_kernels,         cr_cuda_direct_grad_kernels,
    cr_cuda_mma_sp_kernels,       cr_cuda_two_four_kernels,       cr_cuda_wgmma_sp_kernels,
    cr_cuda_block_sparse_kernels, cr_cuda_quantize_kernels,       cr_cuda_int8_conv_kernels,
    cr_cuda_conv_pair_kernels,    cr_cuda_cifar_head_kernels,     cr_cuda_muon_kernels};

void cr_cuda_collect_kernels(struct cuda_device *device) {
    for (size_t t = 0; t < CR_COUNT(tables); t++) cr_kernel_list_add(&device->kernels, tables[t]);
}

/* cuda/core/kernel_tables.h: the kernel tables, best first. cuda/registry.c collects them. */
#ifndef CR_CUDA_KERNEL_TABLES_H
#define CR_CUDA_KERNEL_TABLES_H

#include "cuda/core/cuda_device.h"

/* cr_cuda_x_kernels is in x_kernels.c, those of cuBLAS, NCCL and copies between GPUs in dense_cublas.c, nccl.c and
 * peer_copy.c. */
extern const struct cr_kernel cr_cuda_cifar_kernels[], cr_cuda_cifar_fused_kernels[], cr_cudnn_conv_kernels[],
    cr_cuda_fused_conv_kernels[], cr_cuda_fused_grad_kernels[], cr_cuda_gram_kernels[], cr_cuda_stem_kernels[],
    cr_cuda_conv_kernels[], cr_cuda_dense_kernels[], cr_cuda_bn_kernels[], cr_cuda_pointwise_kernels[],
    cr_cuda_peer_copy_kernels[], cr_cuda_nccl_kernels[], cr_cuda_squeeze_excite_kernels[], cr_cuda_loss_kernels[],
    cr_cuda_optimizer_kernels[], cr_cuda_direct_kernels[], cr_cuda_direct_grad_kernels[], cr_cuda_mma_sp_kernels[],
    cr_cuda_two_four_kernels[], cr_cuda_wgmma_sp_kernels[], cr_cuda_block_sparse_kernels[], cr_cuda_quantize_kernels[],
    cr_cuda_int8_conv_kernels[], cr_cuda_conv_pair_kernels[], cr_cuda_cifar_head_kernels[], cr_cuda_muon_kernels[];

/* Size of a packed filter in f32 elements, in the op's weight format (attr.conv.pattern); 0 when the family does not
 * support the format for this convolution. cr_cuda_packed_elems (cr_backend.packed_elems) calls the family of the
 * format. */
int64_t cr_cuda_two_four_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_mma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);

/* Size of the packed filter of a qconv in bytes; 0 when the kernel reads the filter itself. */
int64_t cr_cuda_int8_packed_bytes(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
void    cr_cuda_collect_kernels(struct cuda_device *device); /* cuda/registry.c: fills device->kernels */

#endif

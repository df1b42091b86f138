/* cuda/core/kernel_tables.h: the kernel tables, best first. cuda/registry.c collects them. */
#ifndef CR_CUDA_KERNEL_TABLES_H
#define CR_CUDA_KERNEL_TABLES_H

#include "cuda/core/cuda_device.h"

/* cuda/conv/cudnn/cudnn_kernels.c */
extern const struct cr_kernel cr_cudnn_conv_kernels[];
/* cuda/conv/fused/fused_conv_kernels.c: convolutions with fused operations and the gradients of their inputs */
extern const struct cr_kernel cr_cuda_fused_conv_kernels[];
/* cuda/conv/fused/fused_grad_kernels.c: the whole backward of 1x1 convolutions, Gram matrices */
extern const struct cr_kernel cr_cuda_fused_grad_kernels[];
/* cuda/conv/generic/conv_kernels.c: plain and grouped convolutions that cuDNN does not support */
extern const struct cr_kernel cr_cuda_conv_kernels[];
/* cuda/dense/dense_cublas.c */
extern const struct cr_kernel cr_cuda_dense_kernels[];
/* cuda/dense/dense_few_kernels.c: the classifier for a few images */
extern const struct cr_kernel cr_cuda_dense_few_kernels[];
/* cuda/norm/bn_kernels.c */
extern const struct cr_kernel cr_cuda_bn_kernels[];
/* cuda/norm/pool_bn_kernels.c */
extern const struct cr_kernel cr_cuda_pool_bn_kernels[];
/* cuda/conv/cifar/cifar_kernels.c */
extern const struct cr_kernel cr_cuda_cifar_kernels[];
/* cuda/conv/cifar/cifar_fused_kernels.c: chains of these convolutions */
extern const struct cr_kernel cr_cuda_cifar_fused_kernels[];
/* cuda/conv/cifar/head/cifar_head_kernels.c: the ops around the loss of CIFAR networks */
extern const struct cr_kernel cr_cuda_cifar_head_kernels[];
/* cuda/conv/gram/gram_kernels.c: BN statistics from Gram matrices, the small kernels */
extern const struct cr_kernel cr_cuda_gram_kernels[];
/* cuda/conv/stem/stem_kernels.c */
extern const struct cr_kernel cr_cuda_stem_kernels[];
/* cuda/norm/fold_bn_kernels.c */
extern const struct cr_kernel cr_cuda_fold_bn_kernels[];
/* cuda/elementwise/pointwise_kernels.c: input, relu, add, pooling, shortcut, cast, zero */
extern const struct cr_kernel cr_cuda_pointwise_kernels[];
/* cuda/elementwise/host_copy_kernels.c: copies to host memory and back */
extern const struct cr_kernel cr_cuda_host_copy_kernels[];
/* cuda/collectives/nccl.c: sums over ranks */
extern const struct cr_kernel cr_cuda_nccl_kernels[];
/* cuda/collectives/peer_copy.c: sums of gradients over ranks by copy engines */
extern const struct cr_kernel cr_cuda_peer_copy_kernels[];
/* cuda/train/loss_kernels.c: loss, gradient norm */
extern const struct cr_kernel cr_cuda_loss_kernels[];
/* cuda/train/distill_kernels.c: knowledge distillation */
extern const struct cr_kernel cr_cuda_distill_kernels[];
/* cuda/elementwise/squeeze_excite_kernels.c: squeeze-and-excitation scale, 2x2 average pooling */
extern const struct cr_kernel cr_cuda_squeeze_excite_kernels[];
/* cuda/elementwise/fake_quant_kernels.c: quantised values in floating point */
extern const struct cr_kernel cr_cuda_fake_quant_kernels[];
/* cuda/elementwise/quantize_kernels.c: conversions to and from 8-bit integers, pooling of 8-bit tensors */
extern const struct cr_kernel cr_cuda_quantize_kernels[];
/* cuda/conv/int8/int8_conv_kernels.c: 8-bit convolutions and the 8-bit stem */
extern const struct cr_kernel cr_cuda_int8_conv_kernels[];
/* cuda/train/optimizer_kernels.c: sgd, adamw, lars, lamb, norms of parameters, moving averages */
extern const struct cr_kernel cr_cuda_optimizer_kernels[];
/* cuda/train/muon_kernels.c: muon and its direction */
extern const struct cr_kernel cr_cuda_muon_kernels[];
/* cuda/sparse/direct/direct_kernels.c: convolutions with a sparsity pattern */
extern const struct cr_kernel cr_cuda_direct_kernels[];
/* cuda/sparse/two_four/two_four_kernels.c: 2:4 patterns on the sparse tensor cores */
extern const struct cr_kernel cr_cuda_two_four_kernels[];
/* cuda/sparse/wgmma_sp/wgmma_sp_kernels.c: f32 on Hopper's sparse tensor cores */
extern const struct cr_kernel cr_cuda_wgmma_sp_kernels[];
/* cuda/sparse/mma_sp/mma_sp_kernels.c: any pattern on the sparse tensor cores */
extern const struct cr_kernel cr_cuda_mma_sp_kernels[];
/* cuda/sparse/direct/direct_grad_kernels.c: gradients of convolutions with a sparsity pattern */
extern const struct cr_kernel cr_cuda_direct_grad_kernels[];
/* cuda/sparse/block/block_sparse_kernels.c: patterns of whole blocks of channels */
extern const struct cr_kernel cr_cuda_block_sparse_kernels[];

/* Size of a packed filter in f32 elements, in the op's weight format (attr.conv.pattern); 0 when the family does not
 * support the format for this convolution. cr_cuda_packed_elems (cr_backend.packed_elems) calls the family of the
 * format. */
int64_t cr_cuda_two_four_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_wgmma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_block_sparse_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_mma_sp_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
/* cuda/conv/pair/conv_pair_kernels.c: two 1x1 convolutions in one kernel, also behind a 3x3 convolution */
extern const struct cr_kernel cr_cuda_conv_pair_kernels[];

/* Size of the packed filter of a qconv in bytes; 0 when the kernel reads the filter itself. */
int64_t cr_cuda_int8_packed_bytes(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
int64_t cr_cuda_packed_elems(struct cr_device *device, const struct cr_program *program, const struct cr_op *op);
void    cr_cuda_collect_kernels(struct cuda_device *device); /* cuda/registry.c: fills device->kernels */

#endif

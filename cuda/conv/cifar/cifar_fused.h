/* cuda/conv/cifar/cifar_fused.h: arguments and workspace of the CIFAR launchers, for the kernels of the op `fused` as
 * well. */
#ifndef CR_CUDA_CIFAR_FUSED_H
#define CR_CUDA_CIFAR_FUSED_H

#include "cuda/conv/cifar/cifar_conv.h"
#include "device/kernel.h"

/* The call of a conv or a conv_grad, which may be a part of a fused op. */
struct ck_cifar_conv      cr_cuda_cifar_conv_of(const struct cr_call *call);
struct ck_cifar_conv_grad cr_cuda_cifar_grad_of(const struct cr_call *call);
/* Bytes for such an op. */
size_t cr_cuda_cifar_conv_workspace(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op);
size_t cr_cuda_cifar_grad_workspace(const struct cr_device *device, const struct cr_program *program,
                                    const struct cr_op *op);

#endif

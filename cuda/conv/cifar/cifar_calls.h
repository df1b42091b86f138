/* cuda/conv/cifar/cifar_calls.h: arguments of the launchers of this folder from the calls of a program. */
#ifndef CR_CUDA_CIFAR_CALLS_H
#define CR_CUDA_CIFAR_CALLS_H

#include "cuda/conv/cifar/cifar_conv.h"
#include "device/kernel.h"

/* Arguments of a convolution that this folder's kernels accept. */
struct ck_cifar_conv cuda_cifar_conv_args(const struct cr_call *call);

#endif

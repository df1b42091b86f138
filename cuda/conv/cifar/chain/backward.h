/* cuda/conv/cifar/chain/backward.h: launchers of the backward pass of consecutive convolutions of a CIFAR ResNet.
 * Conventions: cuda/common/launchers.h.
 *
 * One cooperative launch computes the gradients of all inputs, one image a thread block: the gradient of an output
 * stays
 * in shared memory, and only the sums of the BN's gradients cross between blocks. A second launch computes the parts of
 * all filter gradients, a third one adds them. All results are bitwise those of ck_cifar_conv_grad with as many
 * multiprocessors. */
#ifndef CK_CHAIN_BACKWARD_H
#define CK_CHAIN_BACKWARD_H

#include "cuda/conv/cifar/cifar_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_BACKWARD_STEPS_MAX = 112 };

struct ck_backward_step {
    struct ck_cifar_conv_grad grad;
    /* The gradient of a shortcut without parameters whose output has the gradient dx: N,2H,2W,C/2, the middle channels
     * of dx at every second pixel, 0 elsewhere; or NULL. Not in the last step; C is 32 or 64. */
    void *pad_dx;
};

/* Whether N images fit one a multiprocessor, and two tiles of an image do not. */
bool ck_cifar_backward_supports(int64_t images, int multiprocessors, int block_bytes);
/* Whether a convolution can be in the middle of a chain: 3x3 filters, 16 channels or more. */
bool ck_cifar_backward_accepts(const struct ck_conv *conv);
/* Bytes of memory for the exchange of sums. It must be zeroed once, before the first launch, and only launches that
 * follow each other may use it. */
size_t ck_cifar_backward_exchange(void);
/* Bytes for the parts of the filter gradients and the gradients of the outputs, scratch memory of one launch. */
size_t ck_cifar_backward_workspace(const struct ck_backward_step *steps, int count);
/* The backward of `count` convolutions in their order: each one's g is the dx of the one before it, its dy_x the input
 * of the BN whose gradient that one finishes, its dy_coeffs what it computes. All have finish.coeffs; the last one may
 * be the stem, without dx. cudaErrorCooperativeLaunchTooLarge when the GPU cannot run N blocks at the same time;
 * cudaErrorInvalidValue for unsupported arguments. */
cudaError_t ck_cifar_backward(const struct ck_backward_step *steps, int count, void *exchange, void *workspace,
                              int multiprocessors, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

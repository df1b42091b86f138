/* cuda/conv/cifar/cifar_narrow_grad.cu: the backward of CIFAR convolutions with fewer channels than tiles have, as
 * channel pruning leaves them; see cuda/conv/cifar/cifar_conv_grad.cu. */
#include "cuda/conv/cifar/cifar_grad_run.cuh"

cudaError_t cifar::narrow_grad(const struct ck_cifar_conv_grad *args, void *workspace, int multiprocessors,
                               int block_bytes, cudaStream_t stream) {
    return grad<true>(args, workspace, multiprocessors, block_bytes, stream);
}

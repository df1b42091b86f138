/* cuda/conv/cifar/cifar_apart.h: launchers of the two gradients of CIFAR convolutions as separate kernels: the input
 * gradient of one convolution, and the filter gradients of several. Conventions: cuda/common/launchers.h.
 *
 * Shapes: the 3x3 convolutions with 16 or more channels of cuda/conv/cifar/cifar_conv.h. All results are
 * deterministic. */
#ifndef CK_CIFAR_APART_H
#define CK_CIFAR_APART_H

#include "cuda/conv/cifar/cifar_conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether both functions below support the shape on a GPU whose blocks have up to block_bytes of shared memory. */
bool ck_cifar_apart_supports(const struct ck_conv *conv, int block_bytes);

/* As ck_cifar_conv_grad without dw: dw is NULL. algo: 0 to ck_cifar_dgrad_algos() - 1, divisions of the work. */
int         ck_cifar_dgrad_algos(const struct ck_conv *conv);
size_t      ck_cifar_dgrad_workspace(const struct ck_conv *conv, int algo, int multiprocessors);
cudaError_t ck_cifar_dgrad(const struct ck_cifar_conv_grad *args, int algo, void *workspace, int multiprocessors,
                           int block_bytes, cudaStream_t stream);

/* The filter gradients of up to CK_CIFAR_WGRADS convolutions with the same type and N. Two launches; the second adds the
 * parts that the blocks of the first stored in the workspace. The order of the sums does not depend on the other
 * convolutions. */
enum { CK_CIFAR_WGRADS = 6 };
struct ck_cifar_wgrads {
    int convs;
    struct {
        struct ck_conv conv;
        const void    *g, *dy_x, *x;           /* as in struct ck_cifar_conv_grad */
        const float   *dy_coeffs, *scale_bias; /* or NULL */
        float         *dw;
    } conv[CK_CIFAR_WGRADS];
    bool accumulate; /* dw += */
};
size_t      ck_cifar_wgrads_workspace(const struct ck_cifar_wgrads *args, int multiprocessors);
cudaError_t ck_cifar_wgrads(const struct ck_cifar_wgrads *args, void *workspace, int multiprocessors,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

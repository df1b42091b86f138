/* cuda/conv/cifar/cifar_dense.h: launchers of a small classifier, as in CIFAR ResNets. Conventions:
 * cuda/common/launchers.h. Types are 16 bits, sums f32; each launcher is one launch. Results are deterministic. */
#ifndef CK_CIFAR_DENSE_H
#define CK_CIFAR_DENSE_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ck_dense {
    enum ck_type type;
    int64_t      N, C, K;
};
/* Returns whether the sizes are supported: C a multiple of 8 and at most 256, K at most 128, N at most 65,536. */
bool ck_cifar_dense_supports(const struct ck_dense *v);

/* y[N][K] = x[N][C] * w[K][C]' + b[K], b f32 */
cudaError_t ck_cifar_dense(const struct ck_dense *v, const void *x, const void *w, const float *b, void *y,
                           cudaStream_t stream);
/* dx[N][C] = dy[N][K] * w[K][C] */
cudaError_t ck_cifar_dense_dgrad(const struct ck_dense *v, const void *dy, const void *w, void *dx,
                                 cudaStream_t stream);
/* dw[K][C] (+)= dy[N][K]' * x[N][C], f32 */
cudaError_t ck_cifar_dense_wgrad(const struct ck_dense *v, const void *x, const void *dy, float *dw, bool accumulate,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

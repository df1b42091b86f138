/* cuda/conv/cifar/cifar_head.h: launcher of the end of the forward pass of a CIFAR ResNet and the begin of its backward
 * pass: the last block's BN, addition and ReLU, the pooling, the classifier, the loss, and the gradients back to the
 * last block. Conventions: cuda/common/launchers.h. */
#ifndef CK_CIFAR_HEAD_H
#define CK_CIFAR_HEAD_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_HEAD_PIXELS = 64, CK_HEAD_CHANNELS = 64, CK_HEAD_CLASSES_MOST = 128 };

/* z = relu(x*scale_bias[0] + scale_bias[1] + add); features = mean of z over the pixels; logits = features w^T + bias;
 * the results of ck_loss and ck_loss_grad for these logits; dw (+)= and db (+)= the classifier's gradients;
 * dx = the gradient of the loss by z where z > 0, else 0; and the results of ck_bn_grad_finalize for x, dx and
 * mean_rstd. z, features and logits are not stored. There are two launches. */
struct ck_cifar_head {
    const void                *x, *add;                    /* loss.samples, 8, 8, 64, in type loss.type: 16 bits */
    const float               *scale_bias;                 /* [2][64] */
    const float               *add_scale_bias, *mean_rstd; /* [2][64]; add_scale_bias: BN of add, or NULL */
    const void                *w;                          /* loss.classes, 64 */
    const float               *bias;                       /* loss.classes */
    struct ck_loss             loss;                       /* its logits are not read */
    float                      weight;                     /* as in ck_loss_grad */
    const double              *state;                      /* as in ck_loss_grad */
    float                     *metrics;                    /* [4] = sums of this batch, as ck_loss after zeros */
    void                      *dx;                         /* as x */
    float                     *dw, *db;
    bool                       accumulate_dw, accumulate_db;
    float                     *grad_sums; /* [2][64] */
    struct ck_bn_grad_finalize finish;    /* its own grad_sums, mean_rstd and channels are not read */
};

bool ck_cifar_head_supports(enum ck_type type, int64_t samples, int64_t classes);
/* Bytes of scratch memory. */
size_t      ck_cifar_head_workspace(int64_t samples, int64_t classes);
cudaError_t ck_cifar_head(const struct ck_cifar_head *args, void *workspace, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* cuda/conv/cifar/head/cifar_head.h: launcher of the op head for CIFAR ResNets: the end of the forward pass and the
 * start of the backward pass. Conventions: cuda/common/launchers.h. */
#ifndef CK_CIFAR_HEAD_H
#define CK_CIFAR_HEAD_H

#include "cuda/common/launchers.h"

CK_C_BEGIN

/* Images of 8x8 pixels. */
enum { CK_HEAD_PIXELS = 64, CK_HEAD_CHANNELS_MOST = 64, CK_HEAD_CLASSES_MOST = 128 };

/* z = max(x*scale_bias[0] + scale_bias[1] + add, 0); features = mean of z over the pixels;
 * logits = features w^T + bias; metrics as of ck_loss, and the gradient of ck_loss_grad for these logits; dw (+)= and
 * db (+)= the gradients of the classifier; dx = the gradient by z where z > 0, else 0; and the results of
 * ck_bn_grad_finalize for x, dx and mean_rstd. z and features are not stored. All but the sums are rounded to 16 bits
 * in between, as if they were. Two launches. */
struct ck_cifar_head {
    const void                *x, *add;    /* [loss.samples][64][channels] in loss.type, 16 bits */
    const float               *scale_bias; /* [2][channels] */
    const float               *mean_rstd;  /* [2][channels] */
    const void                *w;          /* [loss.classes][channels] */
    const float               *bias;       /* [loss.classes] */
    struct ck_loss             loss;       /* `logits` is not read */
    int64_t                    channels;
    float                      weight;  /* as in ck_loss_grad */
    const double              *state;   /* as in ck_loss_grad */
    void                      *logits;  /* [loss.samples][loss.classes] */
    float                     *metrics; /* [4] = the sums of this batch */
    void                      *dx;      /* as x */
    float                     *dw, *db; /* finish.accumulate: are added to */
    struct ck_bn_grad_finalize finish;  /* grad_sums, mean_rstd and channels are not read */
};

bool ck_cifar_head_supports(enum ck_type type, int64_t samples, int64_t channels, int64_t classes);
/* Bytes of scratch memory. */
size_t      ck_cifar_head_workspace(int64_t samples, int64_t channels, int64_t classes);
cudaError_t ck_cifar_head(const struct ck_cifar_head *args, void *workspace, cudaStream_t stream);

CK_C_END

#endif

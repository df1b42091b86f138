/* cuda/conv/cifar/chain/forward.h: launcher of the forward pass of a CIFAR ResNet, from its first convolution to its
 * last
 * block, as one cooperative launch: convolutions, BN sums and their finalization, BN, ReLU and shortcuts. Conventions:
 * cuda/common/launchers.h.
 *
 * A thread block has one image, whose activations stay in its shared memory. Only BN sums cross between blocks. All
 * results are bitwise those of ck_cifar_conv, ck_bn_apply and ck_pad_shortcut. */
#ifndef CK_CHAIN_FORWARD_H
#define CK_CHAIN_FORWARD_H

#include "cuda/common/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CK_CHAIN_STEPS_MAX = 112 /* ResNet-110 with convolutions in its two shortcuts: 111 */ };

/* What a convolution adds to its normalised output before the ReLU. */
enum ck_chain_skip {
    CK_CHAIN_PLAIN,    /* nothing */
    CK_CHAIN_IDENTITY, /* the block's input, or what the block's shortcut made of it */
    CK_CHAIN_SHORTCUT  /* the output of the block's 1x1 convolution, with a BN of its own */
};

/* A convolution in the order of the launch: the stem; then for each block its first convolution, that of its shortcut
 * if it has one, and its second convolution. */
struct ck_chain_step {
    struct ck_conv        conv; /* one of the shapes of ck_cifar_conv */
    const void           *w;    /* K,R,S,C */
    void                 *y;    /* N,P,Q,K */
    float                *sums; /* [2][K] */
    struct ck_bn_finalize finish;
    /* act(y), with the addition, where a block (or the stem) ends: N,P,Q,K; otherwise NULL */
    void              *z;
    uint8_t           *mask; /* bits of z > 0, or NULL */
    enum ck_chain_skip skip; /* of a step with z */
    bool pad; /* this first convolution of a block with stride 2 has a shortcut without parameters: every second pixel,
               * channels padded with zeros on both sides */
};

/* Whether a step's convolution has a supported shape, and whether N images fit one a multiprocessor. */
bool ck_cifar_chain_supports(int64_t images, int multiprocessors, int block_bytes);
/* Bytes of memory for the exchange of sums. It must be zeroed once, before the first launch, and only launches that
 * follow each other may use it. */
size_t ck_cifar_chain_exchange(void);
/* x: the images, N,32,32,3, in the type of the steps. cudaErrorCooperativeLaunchTooLarge when the GPU cannot run N
 * blocks at the same time; cudaErrorInvalidValue for unsupported arguments. */
cudaError_t ck_cifar_chain(const struct ck_chain_step *steps, int count, const void *x, void *exchange,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

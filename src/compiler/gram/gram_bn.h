/* compiler/gram/gram_bn.h: batch normalisation behind a 1x1 convolution without storing the convolution's output.
 *
 * A candidate is a 1x1 convolution y = w a with fewer input than output channels and a BN with batch statistics
 * behind it. The statistics of y follow from the sums and the Gram matrix of a, and so does the gradient of the BN.
 * The rewrite replaces
 *
 *   conv, bn_sums, bn_finalize, bn_apply          by  gram, gram_bn_finalize, conv with out_scale_bias
 *   bn_grad_sums, bn_grad_finalize,               by  conv_wgrad with dy_sums, gram_bn_grad, gram_dgrad
 *   bn_grad_apply, conv_wgrad, conv_dgrad
 *
 * and with SyncBN the sums of both directions by gram_bn_sums and gram_bn_grad_sums before their all_reduce. y then
 * does not exist. The derivation is in docs/internals/gram-bn.md. A convolution whose neighbours do not match (frozen
 * filter or BN, another reader of y, grouped or padded convolution) keeps its plain ops. The rewrite runs before the
 * fusion patterns, which then fuse the new ops with their neighbours (gram_patterns.c). */
#ifndef CR_GRAM_BN_H
#define CR_GRAM_BN_H

#include "compiler/fusion/fusion.h"

/* The ops of a candidate: op indices; CR_NONE: absent. */
struct cr_gram_candidate {
    int conv, sums, reduce, finalize, apply; /* reduce: all_reduce of the sums (SyncBN) */
    int grad_sums, grad_reduce, grad_finalize, grad_apply, wgrad;
    int dgrad; /* absent when nothing before the candidate learns */
};

/* Returns whether op `conv` begins a candidate, and fills *candidate. */
bool cr_gram_match(const struct cr_edit *edit, int conv, struct cr_gram_candidate *candidate);
/* Rewrites the candidate when the device accepts all ops; returns whether it did. */
bool cr_gram_rewrite(struct cr_edit *edit, const struct cr_gram_candidate *candidate);

#endif

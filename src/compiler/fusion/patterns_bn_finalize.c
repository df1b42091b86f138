/* compiler/fusion/patterns_bn_finalize.c: fuses bn_finalize into the convolution that computes the BN's sums.
 *
 * The fusion saves two launches per BN on a few channels of data. It is applied where the fused op takes no longer than
 * both ops: a library convolution may be faster than any kernel that supports the fusion. The fused op stands where the
 * convolution stood, because all readers of scale_bias come behind both ops. */
#include "compiler/fusion/fusion.h"

/* The convolution that writes `sums` (its output `slot`) for the op at `root` only; CR_NONE: none, or the op at `root`
 * cannot move there. */
static int producer_of(const struct cr_edit *edit, int root, int sums, enum cr_op_kind kind, int slot) {
    int producer = cr_edit_private_writer(edit, sums, kind);
    if (producer == CR_NONE || cr_fuse_op(edit, producer)->out[slot] != sums) return CR_NONE;
    return cr_fuse_same_stream(edit, producer, root) && cr_edit_can_move_up(edit, root, producer) ? producer : CR_NONE;
}

/* Without measured times always, because the roofline ignores launch overhead. */
static bool fuse_into_producer(struct cr_edit *edit, int producer, int root, const struct cr_op *fused) {
    if (edit->cost_model->cost) return cr_fuse_parts(edit, fused, (const int[]){producer, root}, 2, producer);
    return cr_fuse_replace(edit, producer, fused, root, CR_NONE);
}

/* conv -> bn_finalize */
bool cr_fuse_conv_finalize(struct cr_edit *edit, int root) {
    const struct cr_op *finalize = cr_fuse_op(edit, root);
    int conv = producer_of(edit, root, finalize->in[CR_IN_bn_finalize_sums], CR_OP_conv, CR_OUT_conv_sums);
    if (conv == CR_NONE || finalize->out[CR_OUT_bn_finalize_scale_bias_half] != CR_NONE) return false;
    struct cr_op fused                     = *cr_fuse_op(edit, conv);
    fused.in[CR_IN_conv_gamma]             = finalize->in[CR_IN_bn_finalize_gamma];
    fused.in[CR_IN_conv_beta]              = finalize->in[CR_IN_bn_finalize_beta];
    fused.in[CR_IN_conv_running_mean]      = finalize->in[CR_IN_bn_finalize_running_mean];
    fused.in[CR_IN_conv_running_var]       = finalize->in[CR_IN_bn_finalize_running_var];
    fused.out[CR_OUT_conv_next_scale_bias] = finalize->out[CR_OUT_bn_finalize_scale_bias];
    fused.out[CR_OUT_conv_mean_rstd]       = finalize->out[CR_OUT_bn_finalize_mean_rstd];
    fused.out[CR_OUT_conv_running_mean]    = finalize->out[CR_OUT_bn_finalize_running_mean];
    fused.out[CR_OUT_conv_running_var]     = finalize->out[CR_OUT_bn_finalize_running_var];
    fused.attr.conv.bn                     = finalize->attr.bn;
    return fuse_into_producer(edit, conv, root, &fused);
}

/* conv_grad -> bn_grad_finalize of the same BN */
bool cr_fuse_conv_grad_finalize(struct cr_edit *edit, int root) {
    const struct cr_op *finalize = cr_fuse_op(edit, root);
    int                 grad = producer_of(edit, root, finalize->in[CR_IN_bn_grad_finalize_grad_sums], CR_OP_conv_grad,
                                           CR_OUT_conv_grad_grad_sums);
    if (grad == CR_NONE) return false;
    struct cr_op fused = *cr_fuse_op(edit, grad);
    if (fused.in[CR_IN_conv_grad_mean_rstd] != finalize->in[CR_IN_bn_grad_finalize_mean_rstd]) return false;
    fused.in[CR_IN_conv_grad_gamma]         = finalize->in[CR_IN_bn_grad_finalize_gamma];
    fused.out[CR_OUT_conv_grad_dgamma]      = finalize->out[CR_OUT_bn_grad_finalize_dgamma];
    fused.out[CR_OUT_conv_grad_dbeta]       = finalize->out[CR_OUT_bn_grad_finalize_dbeta];
    fused.out[CR_OUT_conv_grad_grad_coeffs] = finalize->out[CR_OUT_bn_grad_finalize_coeffs];
    fused.attr.conv.bn                      = finalize->attr.bn;
    return fuse_into_producer(edit, grad, root, &fused);
}

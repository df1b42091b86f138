/* compiler/fusion/patterns_bn_finalize.c: a convolution that makes the sums of a BN makes its coefficients of them too:
 * two launches over a handful of channels less a BN. It is done where the joined op takes no longer than both: a
 * library's convolution may be faster than any that knows how. See compiler/fusion/fusion.h.
 *
 * The joined op stands where the convolution stood: who reads the coefficients comes later than both. */
#include "compiler/fusion/fusion.h"

/* The convolution that makes the sums in `sums` (its output `slot`) for the op at `root` alone; CR_NONE: none, or
 * something stands between. */
static int maker_of(const struct cr_edit *edit, int root, int sums, enum cr_op_kind kind, int slot) {
    int maker = cr_edit_private_writer(edit, sums, kind);
    if (maker == CR_NONE || cr_fuse_op(edit, maker)->out[slot] != sums) return CR_NONE;
    return cr_fuse_same_stream(edit, maker, root) && cr_edit_can_move_up(edit, root, maker) ? maker : CR_NONE;
}

static bool add_seconds(struct cr_edit *edit, const struct cr_cost_model *target, const struct cr_op *op, double *sum) {
    double one = cr_op_seconds(target, edit->program, op);
    if (target->cost) edit->failure = target->cost(target->self, edit->program, op, &one);
    *sum += one;
    return edit->failure == CR_OK;
}

/* Only who knows times can say no: the roofline sees no launches. */
static bool pays(struct cr_edit *edit, const struct cr_cost_model *target, int maker, int root,
                 const struct cr_op *joined) {
    double apart = 0, together = 0;
    if (!target->cost) return true;
    return edit->failure == CR_OK && add_seconds(edit, target, cr_fuse_op(edit, maker), &apart) &&
           add_seconds(edit, target, cr_fuse_op(edit, root), &apart) && add_seconds(edit, target, joined, &together) &&
           together <= apart;
}

static bool put(struct cr_edit *edit, const struct cr_cost_model *target, int maker, int root,
                const struct cr_op *joined) {
    if (!cr_fuse_accepted(edit, target, joined) || !pays(edit, target, maker, root, joined)) return false;
    cr_edit_remove(edit, root);
    cr_edit_replace(edit, maker, joined);
    return true;
}

/* conv -> bn_finalize */
bool cr_fuse_conv_finalize(struct cr_edit *edit, const struct cr_cost_model *target, int root) {
    const struct cr_op *fin  = cr_fuse_op(edit, root);
    int                 conv = maker_of(edit, root, fin->in[CR_IN_bn_finalize_sums], CR_OP_conv, CR_OUT_conv_sums);
    if (conv == CR_NONE || fin->out[CR_OUT_bn_finalize_scale_bias_half] != CR_NONE) return false;
    struct cr_op joined                     = *cr_fuse_op(edit, conv);
    joined.in[CR_IN_conv_gamma]             = fin->in[CR_IN_bn_finalize_gamma];
    joined.in[CR_IN_conv_beta]              = fin->in[CR_IN_bn_finalize_beta];
    joined.in[CR_IN_conv_running_mean]      = fin->in[CR_IN_bn_finalize_running_mean];
    joined.in[CR_IN_conv_running_var]       = fin->in[CR_IN_bn_finalize_running_var];
    joined.out[CR_OUT_conv_next_scale_bias] = fin->out[CR_OUT_bn_finalize_scale_bias];
    joined.out[CR_OUT_conv_mean_rstd]       = fin->out[CR_OUT_bn_finalize_mean_rstd];
    joined.out[CR_OUT_conv_running_mean]    = fin->out[CR_OUT_bn_finalize_running_mean];
    joined.out[CR_OUT_conv_running_var]     = fin->out[CR_OUT_bn_finalize_running_var];
    joined.attr.conv.bn                     = fin->attr.bn;
    return put(edit, target, conv, root, &joined);
}

/* conv_grad -> bn_grad_finalize of the same BN */
bool cr_fuse_conv_grad_finalize(struct cr_edit *edit, const struct cr_cost_model *target, int root) {
    const struct cr_op *fin = cr_fuse_op(edit, root);
    int                 grad =
        maker_of(edit, root, fin->in[CR_IN_bn_grad_finalize_grad_sums], CR_OP_conv_grad, CR_OUT_conv_grad_grad_sums);
    if (grad == CR_NONE) return false;
    struct cr_op joined = *cr_fuse_op(edit, grad);
    if (joined.in[CR_IN_conv_grad_mean_rstd] != fin->in[CR_IN_bn_grad_finalize_mean_rstd]) return false;
    joined.in[CR_IN_conv_grad_gamma]       = fin->in[CR_IN_bn_grad_finalize_gamma];
    joined.out[CR_OUT_conv_grad_dgamma]    = fin->out[CR_OUT_bn_grad_finalize_dgamma];
    joined.out[CR_OUT_conv_grad_dbeta]     = fin->out[CR_OUT_bn_grad_finalize_dbeta];
    joined.out[CR_OUT_conv_grad_grad_coef] = fin->out[CR_OUT_bn_grad_finalize_coef];
    joined.attr.conv.bn                    = fin->attr.bn;
    return put(edit, target, grad, root, &joined);
}

/* graph/ops_gram.h: shape inference of the ops that take BN statistics from a Gram matrix. Part of graph/ops.c. */
#ifndef CR_OPS_GRAM_H
#define CR_OPS_GRAM_H

static void infer_conv_wgrad(struct rule *r) {
    const struct cr_tensor *dy = input(r, CR_IN_conv_wgrad_dy);
    CR_ASSERT(r->slot == CR_OUT_conv_wgrad_dy_sums); /* dw must be given */
    set(r, wide(dy), 1, 1, 1, dy->dim[3]);
}
static void infer_gram(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_gram_x);
    check_coefficients(r, CR_IN_gram_scale_bias, 2, x);
    CR_ASSERT(r->op->attr.conv.stride > 0);
    set(r, wide(x), x->dim[3] + 2, 1, 1, x->dim[3]);
}
/* w is K,1,1,C and gram C+2,1,1,C. */
static void check_gram(const struct rule *r, int w, int gram) {
    CR_ASSERT(input(r, w)->dim[3] == input(r, gram)->dim[3] && input(r, gram)->dim[0] == input(r, gram)->dim[3] + 2);
    CR_ASSERT(r->op->attr.bn.count > 0);
}
static void infer_gram_bn_finalize(struct rule *r) {
    check_gram(r, CR_IN_gram_bn_finalize_w, CR_IN_gram_bn_finalize_gram);
    CR_ASSERT(r->slot <= CR_OUT_gram_bn_finalize_mean_rstd); /* the running statistics belong to the parameter store */
    set_sums(r, input(r, CR_IN_gram_bn_finalize_gram), input(r, CR_IN_gram_bn_finalize_w)->dim[0]);
}
static void infer_gram_bn_sums(struct rule *r) {
    check_gram(r, CR_IN_gram_bn_sums_w, CR_IN_gram_bn_sums_gram);
    set_sums(r, input(r, CR_IN_gram_bn_sums_gram), input(r, CR_IN_gram_bn_sums_w)->dim[0]);
}
static void infer_gram_bn_grad_sums(struct rule *r) {
    const struct cr_tensor *m = input(r, CR_IN_gram_bn_grad_sums_m);
    CR_ASSERT(cr_tensor_elems(m) == cr_tensor_elems(input(r, CR_IN_gram_bn_grad_sums_w)));
    set_sums(r, m, m->dim[0]);
}
static void infer_gram_bn_grad(struct rule *r) {
    const struct cr_tensor *w = input(r, CR_IN_gram_bn_grad_w), *gram = input(r, CR_IN_gram_bn_grad_gram);
    check_gram(r, CR_IN_gram_bn_grad_w, CR_IN_gram_bn_grad_gram);
    CR_ASSERT(r->slot <= CR_OUT_gram_bn_grad_factor_bias); /* gradients of parameters must be given */
    if (r->slot == CR_OUT_gram_bn_grad_factor_bias)
        set_sums(r, gram, w->dim[3]);
    else
        set(r, w->dtype, w->dim[3], 1, 1, w->dim[r->slot == CR_OUT_gram_bn_grad_w_g ? 0 : 3]);
}
static void infer_gram_dgrad(struct rule *r) {
    const struct cr_tensor *x = input(r, CR_IN_gram_dgrad_x), *g = input(r, CR_IN_gram_dgrad_g);
    CR_ASSERT(input(r, CR_IN_gram_dgrad_w_g)->dim[3] == g->dim[3] &&
              input(r, CR_IN_gram_dgrad_w_x)->dim[3] == x->dim[3]);
    check_coefficients(r, CR_IN_gram_dgrad_scale_bias, 2, x);
    check_coefficients(r, CR_IN_gram_dgrad_mean_rstd, 2, x);
    check_like(r, CR_IN_gram_dgrad_add, x);
    if (r->slot == CR_OUT_gram_dgrad_dx)
        set_like(r, x);
    else
        set_sums(r, x, x->dim[3]);
}

#endif

/* tests/unit/device/test_ref_grad_gram.c: the gradients of BN behind a 1x1 convolution, from the Gram matrix of its
 * input, against finite differences, in double. */
#include "tests/harness/finite_differences.h"

/* BN behind a 1x1 convolution, from the Gram matrix of its input. */
static void check_gram(int64_t C, int64_t K, int stride) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int64_t P = 4, Q = 3;
    const int     x = ref_leaf(&run, "x", 2, stride * P, stride * Q, C), w = ref_leaf(&run, "w", K, 1, 1, C),
              gamma = ref_named_leaf(&run, "bn", "gamma", K), beta = ref_named_leaf(&run, "bn", "beta", K),
              mean = ref_named_leaf(&run, "bn", "mean", K), var = ref_named_leaf(&run, "bn", "var", K),
              dy = ref_leaf(&run, "dy", 2, P, Q, K), dw = ref_leaf(&run, "dw", K, 1, 1, C),
              m = ref_leaf(&run, "m", K, 1, 1, C), dgamma = ref_named_leaf(&run, "bn", "dgamma", K),
              dbeta   = ref_named_leaf(&run, "bn", "dbeta", K);
    struct cr_op gram = cr_op_make(CR_OP_gram, CR_NONE), fin = cr_op_make(CR_OP_gram_bn_finalize, CR_NONE),
                 conv = cr_op_make(CR_OP_conv, CR_NONE), wgrad = cr_op_make(CR_OP_conv_wgrad, CR_NONE),
                 grad = cr_op_make(CR_OP_gram_bn_grad, CR_NONE), dgrad = cr_op_make(CR_OP_gram_dgrad, CR_NONE);
    gram.attr.conv.stride = conv.attr.conv.stride = wgrad.attr.conv.stride = dgrad.attr.conv.stride = stride;
    gram.in[CR_IN_gram_x]                                                                           = x;
    fin.in[CR_IN_gram_bn_finalize_w]                                                                = w;
    fin.in[CR_IN_gram_bn_finalize_gram]         = ref_emit(&run, &gram, "gram");
    fin.in[CR_IN_gram_bn_finalize_gamma]        = gamma;
    fin.in[CR_IN_gram_bn_finalize_beta]         = beta;
    fin.in[CR_IN_gram_bn_finalize_running_mean] = fin.out[CR_OUT_gram_bn_finalize_running_mean] = mean;
    fin.in[CR_IN_gram_bn_finalize_running_var] = fin.out[CR_OUT_gram_bn_finalize_running_var] = var;
    fin.attr.bn                            = (struct cr_bn_attr){.eps = 1e-3f, .momentum = 0.1f, .count = 2 * P * Q};
    const int finalize                     = cr_emit(&run.p, &fin, "fin");
    conv.in[CR_IN_conv_x]                  = x;
    conv.in[CR_IN_conv_w]                  = w;
    conv.in[CR_IN_conv_out_scale_bias]     = run.p.op[finalize].out[CR_OUT_gram_bn_finalize_scale_bias];
    struct fd f                            = {.run = &run, .forward_ops = 3, .y = ref_emit(&run, &conv, "y"), .dy = dy};
    wgrad.in[CR_IN_conv_wgrad_x]           = x;
    wgrad.in[CR_IN_conv_wgrad_dy]          = dy;
    wgrad.out[CR_OUT_conv_wgrad_dw]        = m;
    wgrad.out[CR_OUT_conv_wgrad_dy_sums]   = CR_NEW;
    grad.in[CR_IN_gram_bn_grad_dy_sums]    = ref_emit_slot(&run, &wgrad, "wgrad", CR_OUT_conv_wgrad_dy_sums);
    grad.in[CR_IN_gram_bn_grad_w]          = w;
    grad.in[CR_IN_gram_bn_grad_gram]       = fin.in[CR_IN_gram_bn_finalize_gram];
    grad.in[CR_IN_gram_bn_grad_m]          = m;
    grad.in[CR_IN_gram_bn_grad_gamma]      = gamma;
    grad.in[CR_IN_gram_bn_grad_mean_rstd]  = run.p.op[finalize].out[CR_OUT_gram_bn_finalize_mean_rstd];
    grad.out[CR_OUT_gram_bn_grad_dw]       = dw;
    grad.out[CR_OUT_gram_bn_grad_dgamma]   = dgamma;
    grad.out[CR_OUT_gram_bn_grad_dbeta]    = dbeta;
    grad.attr.bn                           = fin.attr.bn;
    const int back                         = cr_emit(&run.p, &grad, "grad");
    dgrad.in[CR_IN_gram_dgrad_g]           = dy;
    dgrad.in[CR_IN_gram_dgrad_x]           = x;
    dgrad.in[CR_IN_gram_dgrad_w_g]         = run.p.op[back].out[CR_OUT_gram_bn_grad_w_g];
    dgrad.in[CR_IN_gram_dgrad_w_x]         = run.p.op[back].out[CR_OUT_gram_bn_grad_w_x];
    dgrad.in[CR_IN_gram_dgrad_factor_bias] = run.p.op[back].out[CR_OUT_gram_bn_grad_factor_bias];
    const int dx                           = ref_emit(&run, &dgrad, "dx");
    REQUIRE_OK(ref_bind(&run));
    ref_fill(&run, x, 2, 1);
    ref_fill(&run, w, 0, 1);
    ref_fill(&run, gamma, 1, 0.5);
    ref_fill(&run, beta, 0, 0.5);
    ref_fill(&run, dy, 0, 1);
    if (fd_run(&f)) {
        fd_check(&f, x, dx, 1);
        fd_check(&f, w, dw, 1);
        fd_check(&f, gamma, dgamma, 1);
        fd_check(&f, beta, dbeta, 1);
        fd_finish(&f);
    }
    ref_close(&run);
}

static void gram_bn(void) {
    check_gram(3, 5, 1);
    check_gram(4, 7, 2);
}

TESTS(CASE(gram_bn))

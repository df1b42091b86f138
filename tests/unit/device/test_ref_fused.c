/* tests/unit/device/test_ref_fused.c: fused reference ops equal the chain of unfused ops: ends of blocks, ReLU masks,
 * pooling, the stem. Convolutions: tests/unit/device/test_ref_fused_conv.c. */
#include "tests/harness/reference_fused.h"

/* ---- the end of a block, bit masks ---- */

static void block_end(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int x = ref_leaf(&run, "x", 3, 5, 4, 24), dy = like(&run, x, "dy"), add = like(&run, x, "add"),
              x2          = like(&run, x, "x2");
    const struct bn bn[2] = {bn_leaves(&run, "bn", 24), bn_leaves(&run, "bn2", 24)};
    struct cr_op    apply = op_of(CR_OP_bn_apply), grad = op_of(CR_OP_relu_grad);
    apply.in[CR_IN_bn_apply_x]          = x;
    apply.in[CR_IN_bn_apply_scale_bias] = bn[0].scale_bias;
    apply.attr.bn.relu                  = true;
    apply.out[CR_OUT_bn_apply_mask]     = CR_NEW;
    const int y = ref_emit(&run, &apply, "y"), mask = run.p.op[0].out[CR_OUT_bn_apply_mask];
    grad.in[CR_IN_relu_grad_dy]          = dy;
    grad.in[CR_IN_relu_grad_y]           = mask;
    grad.in[CR_IN_relu_grad_add]         = add;
    grad.in[CR_IN_relu_grad_bn_x]        = x;
    grad.in[CR_IN_relu_grad_mean_rstd]   = bn[0].mean_rstd;
    grad.in[CR_IN_relu_grad_bn2_x]       = x2;
    grad.in[CR_IN_relu_grad_mean_rstd2]  = bn[1].mean_rstd;
    grad.out[CR_OUT_relu_grad_grad_sums] = grad.out[CR_OUT_relu_grad_grad_sums2] = CR_NEW;
    const int dx                                                                 = ref_emit(&run, &grad, "dx");
    const int sums = run.p.op[1].out[CR_OUT_relu_grad_grad_sums], sums2 = run.p.op[1].out[CR_OUT_relu_grad_grad_sums2];
    const int want       = relu_masked(&run, summed(&run, dy, add, "sum"), y, "want");
    const int want_sums  = grad_sums(&run, want, x, bn[0].mean_rstd, "want.sums"),
              want_sums2 = grad_sums(&run, want, x2, bn[1].mean_rstd, "want.sums2");
    FILL_AND_RUN(&run, bn, 2, x, dy, add, x2);
    same(&run, dx, want);
    same(&run, sums, want_sums);
    same(&run, sums2, want_sums2);
    for (int64_t i = 0; i < cr_tensor_elems(&run.p.tensor[x]); i++)
        if (((int)ref_at(&run, mask, i / 8) >> (i % 8) & 1) != (ref_at(&run, y, i) > 0))
            TEST_FAIL_("bit %lld", (long long)i);
    ref_close(&run);
}

/* The ReLU mask of the gradient of a BN: from the activation, from its bits, or recomputed from act. */
static void bn_gradient_relu_masks(void) {
    struct ref_run run;
    int            dx[3], sums[3];
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int x = ref_leaf(&run, "x", 2, 5, 3, 16), dy = like(&run, x, "dy"), k = ref_leaf(&run, "k", 3, 1, 1, 16);
    const struct bn bn                  = bn_leaves(&run, "bn", 16);
    struct cr_op    apply               = op_of(CR_OP_bn_apply);
    apply.in[CR_IN_bn_apply_x]          = x;
    apply.in[CR_IN_bn_apply_scale_bias] = bn.scale_bias;
    apply.attr.bn.relu                  = true;
    apply.out[CR_OUT_bn_apply_mask]     = CR_NEW;
    const int y = ref_emit(&run, &apply, "y"), mask = run.p.op[0].out[CR_OUT_bn_apply_mask];
    for (int i = 0; i < 3; i++) {
        struct cr_op sums_op = op_of(CR_OP_bn_grad_sums), grad = op_of(CR_OP_bn_grad_apply);
        sums_op.in[CR_IN_bn_grad_sums_dy] = grad.in[CR_IN_bn_grad_apply_dy] = dy;
        sums_op.in[CR_IN_bn_grad_sums_x] = grad.in[CR_IN_bn_grad_apply_x] = x;
        sums_op.in[CR_IN_bn_grad_sums_mean_rstd]                          = bn.mean_rstd;
        grad.in[CR_IN_bn_grad_apply_coeffs]                               = k;
        if (i < 2)
            sums_op.in[CR_IN_bn_grad_sums_y] = grad.in[CR_IN_bn_grad_apply_y] = i ? mask : y;
        else
            sums_op.in[CR_IN_bn_grad_sums_scale_bias] = grad.in[CR_IN_bn_grad_apply_scale_bias] = bn.scale_bias;
        char name[32];
        snprintf(name, sizeof name, "sums%d", i);
        sums[i] = ref_emit(&run, &sums_op, name);
        snprintf(name, sizeof name, "dx%d", i);
        dx[i] = ref_emit(&run, &grad, name);
    }
    FILL_AND_RUN(&run, &bn, 1, x, dy, k);
    for (int i = 1; i < 3; i++) {
        same(&run, sums[i], sums[0]);
        same(&run, dx[i], dx[0]);
    }
    ref_close(&run);
}

/* ---- pooling ---- */

static void pooling_reads_act(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const int x = ref_leaf(&run, "x", 2, 7, 6, 12), dy = ref_leaf(&run, "dy", 2, 4, 3, 12),
              k          = ref_leaf(&run, "k", 3, 1, 1, 12);
    const struct bn bn   = bn_leaves(&run, "bn", 12);
    struct cr_op    pool = op_of(CR_OP_maxpool), back = op_of(CR_OP_maxpool_grad);
    struct cr_op    sums = op_of(CR_OP_pool_bn_grad_sums), apply = op_of(CR_OP_pool_bn_grad_apply),
                 grad = op_of(CR_OP_bn_grad_apply);
    pool.attr.conv = back.attr.conv = sums.attr.conv = apply.attr.conv =
        (struct cr_conv_attr){.window = 3, .stride = 2, .pad = 1};
    pool.out[CR_OUT_maxpool_index]    = CR_NEW;
    pool.in[CR_IN_maxpool_x]          = x;
    pool.in[CR_IN_maxpool_scale_bias] = bn.scale_bias;
    const int y = ref_emit(&run, &pool, "y"), index = run.p.op[0].out[CR_OUT_maxpool_index];
    pool.in[CR_IN_maxpool_x]          = activated(&run, x, bn.scale_bias, "xa");
    pool.in[CR_IN_maxpool_scale_bias] = CR_NONE;
    const int want = ref_emit(&run, &pool, "want.y"), want_index = run.p.op[2].out[CR_OUT_maxpool_index];
    sums.in[CR_IN_pool_bn_grad_sums_dy] = apply.in[CR_IN_pool_bn_grad_apply_dy] = back.in[CR_IN_maxpool_grad_dy] = dy;
    sums.in[CR_IN_pool_bn_grad_sums_index] = apply.in[CR_IN_pool_bn_grad_apply_index] =
        back.in[CR_IN_maxpool_grad_index]  = index;
    sums.in[CR_IN_pool_bn_grad_sums_x] = apply.in[CR_IN_pool_bn_grad_apply_x] = grad.in[CR_IN_bn_grad_apply_x] = x;
    sums.in[CR_IN_pool_bn_grad_sums_scale_bias] = apply.in[CR_IN_pool_bn_grad_apply_scale_bias] = bn.scale_bias;
    sums.in[CR_IN_pool_bn_grad_sums_mean_rstd]                                                  = bn.mean_rstd;
    apply.in[CR_IN_pool_bn_grad_apply_coeffs] = grad.in[CR_IN_bn_grad_apply_coeffs] = k;
    const int fused_sums = ref_emit(&run, &sums, "grad_sums"), dx = ref_emit(&run, &apply, "dx");
    back.out[CR_OUT_maxpool_grad_dx] = like(&run, x, "pool.dx");
    ref_emit(&run, &back, "");
    grad.in[CR_IN_bn_grad_apply_dy] =
        relu_masked(&run, back.out[CR_OUT_maxpool_grad_dx], pool.in[CR_IN_maxpool_x], "g");
    const int want_dx   = ref_emit(&run, &grad, "want.dx"),
              want_sums = grad_sums(&run, grad.in[CR_IN_bn_grad_apply_dy], x, bn.mean_rstd, "want.sums");
    FILL_AND_RUN(&run, &bn, 1, x, dy, k);
    same(&run, y, want);
    same(&run, index, want_index);
    same(&run, fused_sums, want_sums);
    same(&run, dx, want_dx);
    ref_close(&run);
}

/* ---- the space-to-depth stem ---- */

static void stem_in_depth(bool boxes) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 2));
    const struct shape wide = {2, 10, 14, 3, 5, 7, 2, 3}, deep = {2, 8, 10, 16, 5, 4, 1, 0};
    const int          images = cr_tensor_add(&run.p, "images", CR_U8, CR_REGION_INPUT, 2, 10, 14, 3);
    const int          box    = cr_tensor_add(&run.p, "boxes", CR_I32, CR_REGION_INPUT, 2, 1, 1, 4);
    const int          w = w_of(&run, &wide), dy = y_of(&run, &wide, "dy"), dw = like(&run, w, "dw"),
              want_dw      = like(&run, w, "want.dw");
    const int    deep_dw   = ref_leaf(&run, "deep.dw", 5, 4, 4, 16);
    struct cr_op normalize = op_of(CR_OP_normalize), filter = op_of(CR_OP_s2d_filter), wgrad = op_of(CR_OP_conv_wgrad),
                 back    = op_of(CR_OP_s2d_filter_grad);
    normalize.attr.input = (struct cr_input_attr){.mean = {0.485f, 0.456f, 0.406f}, .std = {0.229f, 0.224f, 0.225f}};
    normalize.in[CR_IN_normalize_images] = images;
    if (boxes) normalize.in[CR_IN_normalize_boxes] = box;
    const int x                   = ref_emit(&run, &normalize, "x");
    normalize.attr.input.s2d      = true;
    const int x16                 = ref_emit(&run, &normalize, "x16");
    filter.in[CR_IN_s2d_filter_w] = w;
    const int w16 = ref_emit(&run, &filter, "w16"), y = convolved(&run, &deep, x16, w16, "y"),
              want                = convolved(&run, &wide, x, w, "want.y");
    wgrad.in[CR_IN_conv_wgrad_dy] = dy;
    for (int plain = 0; plain < 2; plain++) {
        wgrad.in[CR_IN_conv_wgrad_x]    = plain ? x : x16;
        wgrad.out[CR_OUT_conv_wgrad_dw] = plain ? want_dw : deep_dw;
        wgrad.attr.conv                 = window_of(plain ? &wide : &deep);
        wgrad.attr.conv.accumulate      = plain;
        ref_emit(&run, &wgrad, "");
    }
    back.in[CR_IN_s2d_filter_grad_dy]   = deep_dw;
    back.out[CR_OUT_s2d_filter_grad_dw] = dw;
    back.attr.conv.accumulate           = true;
    ref_emit(&run, &back, "");
    REQUIRE_OK(ref_bind(&run));
    for (int64_t i = 0; i < cr_tensor_elems(&run.p.tensor[images]); i++)
        ref_set(&run, images, i, (double)(i * 37 % 251));
    for (int i = 0; i < 8; i++) ref_set(&run, box, i, (const double[]){1, -2, 1, 0, -3, 4, 0, 0}[i]);
    ref_fill(&run, w, 0, 1);
    ref_fill(&run, dy, 0, 1);
    ref_fill(&run, dw, 5, 0);
    ref_fill(&run, want_dw, 5, 0);
    REQUIRE_OK(ref_exec(&run, 0, run.p.ops));
    same(&run, y, want);
    same(&run, dw, want_dw);
    ref_close(&run);
}

static void stem(void) {
    stem_in_depth(false);
    stem_in_depth(true);
}

static void scale_bias_has_a_half_copy(void) {
    struct ref_run run;
    REQUIRE_OK(ref_open(&run, CR_F64, 1));
    struct cr_op op               = op_of(CR_OP_bn_finalize);
    op.in[CR_IN_bn_finalize_sums] = ref_leaf(&run, "sums", 2, 1, 1, 5);
    for (int i = 1; i < 5; i++) op.in[i] = ref_leaf(&run, cr_op_info(CR_OP_bn_finalize)->in_name[i], 1, 1, 1, 5);
    op.out[CR_OUT_bn_finalize_running_mean]    = op.in[CR_IN_bn_finalize_running_mean];
    op.out[CR_OUT_bn_finalize_running_var]     = op.in[CR_IN_bn_finalize_running_var];
    op.out[CR_OUT_bn_finalize_scale_bias_half] = CR_NEW;
    op.attr.bn                                 = (struct cr_bn_attr){.eps = 0.25f, .momentum = 0.5f, .count = 4};
    const int scale_bias                       = ref_emit(&run, &op, "scale_bias"),
              copy                             = run.p.op[0].out[CR_OUT_bn_finalize_scale_bias_half];
    REQUIRE_OK(ref_bind(&run));
    for (int i = 0; i < 5; i++) ref_fill(&run, op.in[i], 1, 1);
    for (int c = 0; c < 5; c++) ref_set(&run, op.in[CR_IN_bn_finalize_sums], 5 + c, 40 + c);
    REQUIRE_OK(ref_exec(&run, 0, 1));
    same(&run, copy, scale_bias);
    ref_close(&run);
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(block_end), CASE(bn_gradient_relu_masks), CASE(pooling_reads_act), CASE(stem),
      CASE(scale_bias_has_a_half_copy))

/* tests/unit/compiler/test_fusion_patterns.c: fusion by patterns: which ops are fused, which must not be, and that any
 * mixture of fusions computes the same results as the unfused program (on the reference kernels, in double). */
#include "tests/harness/fusion_network.h"

/* ---- hand-built programs ---- */

struct hand {
    struct cr_program p;
    int               x, scale_bias, saved; /* leaves */
};

static void hand_open(struct hand *h) {
    cr_program_init(&h->p, "hand", NULL);
    h->x          = cr_tensor_add(&h->p, "x", CR_F32, CR_REGION_INPUT, 2, 4, 4, 8);
    h->scale_bias = cr_tensor_add(&h->p, "scale_bias", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
    h->saved      = cr_tensor_add(&h->p, "mean_rstd", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
}

static int emit1(struct hand *h, struct cr_op op, const char *name) {
    int index = cr_emit(&h->p, &op, name); /* may reallocate the array */
    return h->p.op[index].out[0];
}

static int bn(struct hand *h, int x, const char *name) {
    struct cr_op op                  = cr_op_make(CR_OP_bn_apply, CR_NONE);
    op.in[CR_IN_bn_apply_x]          = x;
    op.in[CR_IN_bn_apply_scale_bias] = h->scale_bias;
    op.in[CR_IN_bn_apply_mean_rstd]  = h->saved;
    return emit1(h, op, name);
}

static int relu(struct hand *h, int x, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_relu, CR_NONE);
    op.in[0]        = x;
    return emit1(h, op, name);
}

static int add(struct hand *h, int a, int b, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_add, CR_NONE);
    op.in[0]        = a;
    op.in[1]        = b;
    return emit1(h, op, name);
}

static int bn_relu(struct hand *h, int x, int with, const char *name) {
    struct cr_op op                  = cr_op_make(CR_OP_bn_apply, CR_NONE);
    op.in[CR_IN_bn_apply_x]          = x;
    op.in[CR_IN_bn_apply_scale_bias] = h->scale_bias;
    op.in[CR_IN_bn_apply_add]        = with;
    op.attr.bn.relu                  = true;
    return emit1(h, op, name);
}

static int relu_grad(struct hand *h, int dy, int y, const char *name) {
    struct cr_op op = cr_op_make(CR_OP_relu_grad, CR_NONE);
    op.in[0]        = dy;
    op.in[1]        = y;
    return emit1(h, op, name);
}

/* sums and apply of the gradient of a BN; returns dx */
static int bn_grad(struct hand *h, int dy, int x, const char *name) {
    char         text[64];
    struct cr_op sums = cr_op_make(CR_OP_bn_grad_sums, CR_NONE), apply = cr_op_make(CR_OP_bn_grad_apply, CR_NONE);
    sums.in[CR_IN_bn_grad_sums_dy]        = dy;
    sums.in[CR_IN_bn_grad_sums_x]         = x;
    sums.in[CR_IN_bn_grad_sums_mean_rstd] = h->saved;
    snprintf(text, sizeof text, "%s.sums", name);
    emit1(h, sums, text);
    apply.in[CR_IN_bn_grad_apply_dy]     = dy;
    apply.in[CR_IN_bn_grad_apply_x]      = x;
    apply.in[CR_IN_bn_grad_apply_coeffs] = h->scale_bias;
    return emit1(h, apply, name);
}

static void keep(struct hand *h, int tensor) {
    h->p.tensor[tensor].keep = true;
}

/* Text of the fused program: one line per op, "kind slot:name slot:name ...", outputs first. */
static void fused_text(struct hand *h, const struct cr_cost_model *cost_model, struct cr_text *out) {
    cr_status status = cr_pass_fuse(&h->p, cost_model);
    if (status == CR_OK) status = cr_program_check(&h->p);
    CHECK_STATUS(status, CR_OK);
    for (int i = 0; i < h->p.ops; i++) {
        const struct cr_op      *op   = &h->p.op[i];
        const struct cr_op_info *info = cr_op_info(op->kind);
        cr_text_add(out, "%s%s %s =", i ? "; " : "", info->name, h->p.tensor[op->out[0]].name);
        for (int s = 0; s < info->ins; s++)
            if (op->in[s] >= 0) cr_text_add(out, " %s:%s", info->in_name[s], h->p.tensor[op->in[s]].name);
        if (op->kind == CR_OP_bn_apply && op->attr.bn.relu) cr_text_add(out, " relu");
    }
}

static void check_fused(struct hand *h, const struct cr_cost_model *cost_model, const char *want) {
    static const struct cr_cost_model any  = {.alignment = 64};
    struct cr_text                    text = {0};
    fused_text(h, cost_model ? cost_model : &any, &text);
    CHECK_STR(text.data, want);
    cr_text_free(&text);
    cr_program_free(&h->p);
}

static void bn_fuses_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu");
}

static void bn_fuses_sum_from_either_side(void) {
    for (int side = 0; side < 2; side++) {
        struct hand h;
        hand_open(&h);
        int b = bn(&h, h.x, "b"), z = relu(&h, h.x, "z");
        keep(&h, side ? add(&h, z, b, "s") : add(&h, b, z, "s"));
        check_fused(&h, NULL, "relu z = x:x; bn_apply s = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:z");
    }
}

static void bn_fuses_sum_and_relu(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, h.x, bn(&h, h.x, "b"), "s"), "y"));
    check_fused(&h, NULL, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x relu");
}

static void bn_fuses_shortcut_bn(void) {
    struct hand h;
    hand_open(&h);
    int a = bn(&h, h.x, "a"), u = relu(&h, h.x, "u"), b = bn(&h, u, "b");
    keep(&h, relu(&h, add(&h, a, b, "s"), "y"));
    check_fused(&h, NULL,
                "relu u = x:x; bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:u "
                "add_scale_bias:scale_bias relu");
}

static void bn_gradient_fuses_relu_gradient(void) {
    struct hand h;
    hand_open(&h);
    int y = relu(&h, bn(&h, h.x, "b"), "y");
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, y, "g"), h.x, "dx"));
    check_fused(&h, NULL,
                "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu; bn_grad_sums dx.sums = dy:x x:x "
                "mean_rstd:mean_rstd scale_bias:scale_bias; "
                "bn_grad_apply dx = dy:x x:x coeffs:scale_bias scale_bias:scale_bias");
}

/* The mask belongs to a sum: the input of the BN does not determine it, but one bit per element stores it. */
static void block_end_stores_bits(void) {
    struct hand h;
    hand_open(&h);
    int y = bn_relu(&h, h.x, h.x, "y");
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, y, "g"), h.x, "dx"));
    check_fused(&h, NULL,
                "bn_apply y = x:x scale_bias:scale_bias add:x relu; bn_grad_sums dx.sums = dy:x x:x "
                "mean_rstd:mean_rstd y:y.mask; "
                "bn_grad_apply dx = dy:x x:x coeffs:scale_bias y:y.mask");
}

static void block_end_fuses_sum_and_bn_sums(void) {
    struct hand h;
    hand_open(&h);
    int u = relu(&h, h.x, "u"), v = relu(&h, h.x, "v"), g = relu_grad(&h, add(&h, u, v, "s"), h.x, "g");
    keep(&h, bn_grad(&h, g, u, "a"));
    keep(&h, bn_grad(&h, g, v, "b"));
    check_fused(&h, NULL,
                "relu u = x:x; relu v = x:x; relu_grad g = dy:u y:x add:v bn_x:u mean_rstd:mean_rstd bn2_x:v "
                "mean_rstd2:mean_rstd; "
                "bn_grad_apply a = dy:g x:u coeffs:scale_bias; bn_grad_apply b = dy:g x:v coeffs:scale_bias");
}

static void maxpool_fuses_bn(void) {
    struct hand h;
    hand_open(&h);
    struct cr_op pool = cr_op_make(CR_OP_maxpool, CR_NONE), loss = cr_op_make(CR_OP_loss_grad, CR_NONE);
    pool.in[0]     = relu(&h, bn(&h, h.x, "b"), "r");
    pool.attr.conv = (struct cr_conv_attr){.window = 2, .stride = 2};
    keep(&h, emit1(&h, pool, "y"));
    loss.in[0] = loss.in[1] = loss.in[2] = h.x; /* a program with gradients */
    keep(&h, emit1(&h, loss, "dx"));
    check_fused(&h, NULL, "maxpool y = x:x scale_bias:scale_bias; loss_grad dx = logits:x labels:x state:x");
}

/* ---- convolutions that finalize the sums they compute ---- */

/* conv with its sums, then bn_finalize. */
struct finishing {
    struct hand h;
    int         run[2], sums, w;
};

static void finishing_open(struct finishing *f) {
    struct cr_op op = cr_op_make(CR_OP_conv, CR_NONE);
    hand_open(&f->h);
    struct cr_program *p        = &f->h.p;
    f->w                        = cr_tensor_add(p, "w", CR_F32, CR_REGION_INPUT, 8, 1, 1, 8);
    f->run[0]                   = cr_tensor_add(p, "mean", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8);
    f->run[1]                   = cr_tensor_add(p, "var", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8);
    p->tensor[f->run[0]].offset = 1 << 20; /* apart from the other leaves */
    p->tensor[f->run[1]].offset = 2 << 20;
    op.in[CR_IN_conv_x]         = f->h.x;
    op.in[CR_IN_conv_w]         = f->w;
    op.out[CR_OUT_conv_sums]    = CR_NEW;
    op.attr.conv.stride         = 1;
    keep(&f->h, emit1(&f->h, op, "y"));
    f->sums = p->op[0].out[CR_OUT_conv_sums];
}

static void finishing_ends(struct finishing *f, bool half) {
    struct cr_op op                       = cr_op_make(CR_OP_bn_finalize, CR_NONE);
    op.in[CR_IN_bn_finalize_sums]         = f->sums;
    op.in[CR_IN_bn_finalize_gamma]        = f->run[0];
    op.in[CR_IN_bn_finalize_beta]         = f->run[1];
    op.in[CR_IN_bn_finalize_running_mean] = op.out[CR_OUT_bn_finalize_running_mean] = f->run[0];
    op.in[CR_IN_bn_finalize_running_var] = op.out[CR_OUT_bn_finalize_running_var] = f->run[1];
    op.out[CR_OUT_bn_finalize_scale_bias_half]                                    = half ? CR_NEW : CR_NONE;
    op.attr.bn = (struct cr_bn_attr){.eps = 1, .momentum = 0.5f, .count = 32};
    keep(&f->h, emit1(&f->h, op, "next"));
}

static const char apart[] =
    "conv y = x:x w:w; bn_finalize next = sums:y.sums gamma:mean beta:var running_mean:mean running_var:var";

static void conv_fuses_finalize(void) {
    struct finishing f;
    finishing_open(&f);
    finishing_ends(&f, false);
    struct cr_cost_model cost_model = {.alignment = 64};
    REQUIRE_OK(cr_pass_fuse(&f.h.p, &cost_model));
    const struct cr_op *op = &f.h.p.op[0];
    CHECK_INT(f.h.p.ops, 1);
    CHECK_STR(f.h.p.tensor[op->out[CR_OUT_conv_next_scale_bias]].name, "next");
    CHECK_STR(f.h.p.tensor[op->out[CR_OUT_conv_running_var]].name, "var");
    CHECK_STR(f.h.p.tensor[op->in[CR_IN_conv_beta]].name, "var");
    CHECK_INT(op->attr.conv.bn.count, 32);
    CHECK_INT(op->attr.conv.stride, 1);
    cr_program_free(&f.h.p);
}

static bool no_finishing(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_conv || op->in[CR_IN_conv_gamma] == CR_NONE;
}

/* No fusion: a cost model without this form; sums, or their 16-bit copy, that other ops read; another stream. */
static void finalize_is_not_fused(void) {
    const struct cr_cost_model cannot = {.alignment = 64, .accepts = no_finishing};
    for (int why = 0; why < 4; why++) {
        struct finishing f;
        finishing_open(&f);
        finishing_ends(&f, why == 1);
        if (why == 2) keep(&f.h, f.sums);
        if (why == 3) f.h.p.op[1].stream = CR_STREAM_TO_HOST;
        check_fused(&f.h, why == 0 ? &cannot : NULL, apart);
    }
}

/* No fusion: an op in between reads an output of bn_finalize or writes one of its inputs, and would see other
 * values. */
static void finalize_is_not_fused_across_other_ops(void) {
    for (int writes = 0; writes < 2; writes++) {
        struct finishing f;
        struct cr_op     op = cr_op_make(writes ? CR_OP_zero : CR_OP_relu, CR_NONE);
        finishing_open(&f);
        if (writes)
            op.out[0] = f.run[1];
        else
            op.in[0] = f.run[0];
        keep(&f.h, emit1(&f.h, op, "z"));
        finishing_ends(&f, false);
        struct cr_cost_model cost_model = {.alignment = 64};
        REQUIRE_OK(cr_pass_fuse(&f.h.p, &cost_model));
        CHECK_INT(count_kind(&f.h.p, CR_OP_bn_finalize), 1);
        CHECK_INT(COUNT_IN(&f.h.p, conv, gamma), 0);
        cr_program_free(&f.h.p);
    }
}

/* Every launch has the same cost: then everything is fused. */
static cr_status costs_a_launch(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    (void)self, (void)p, (void)op;
    *seconds = 1e-6;
    return CR_OK;
}

/* Only the gradient of the BN of the last block remains, because no convolution computes its sums; for the BNs of the
 * shortcuts (B) the end of the block computes the sums. */
static void cifar_fuses_finalize_into_convolutions(void) {
    for (int b_shortcut = 0; b_shortcut < 2; b_shortcut++) {
        struct bench_model b;
        struct cr_program  p;
        const char        *overrides[]  = {"model.arch=resnet20", b_shortcut ? "model.shortcut=B" : "model.shortcut=A"};
        struct cr_cost_model cost_model = {.alignment = 64, .cost = costs_a_launch};
        REQUIRE_OK(bench_open(&b, overrides, 2, 32));
        REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_STEP, 4, &p));
        REQUIRE_OK(cr_pass_fuse(&p, &cost_model));
        REQUIRE_OK(cr_program_check(&p));
        const int bns = b_shortcut ? 21 : 19;
        CHECK_INT(count_kind(&p, CR_OP_bn_finalize), 0);
        CHECK_INT(COUNT_OUT(&p, conv, next_scale_bias), bns);
        CHECK_INT(COUNT_OUT(&p, conv_grad, grad_sums), COUNT_OUT(&p, conv_grad, grad_coeffs));
        CHECK_INT(COUNT_OUT(&p, conv_grad, grad_coeffs) + count_kind(&p, CR_OP_bn_grad_finalize), bns);
        for (int i = 0; i < p.ops; i++) {
            if (p.op[i].kind != CR_OP_bn_grad_finalize) continue;
            for (int k = 0; k < i; k++)
                CHECK(p.op[k].kind != CR_OP_conv_grad ||
                      p.op[k].out[CR_OUT_conv_grad_grad_sums] != p.op[i].in[CR_IN_bn_grad_finalize_grad_sums]);
        }
        if (!b_shortcut) CHECK_INT(count_kind(&p, CR_OP_bn_grad_finalize), 1);
        cr_program_free(&p);
        bench_close(&b);
    }
}

/* ---- ops that must stay separate ---- */

static void no_fusion_when_another_op_reads(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, relu(&h, b, "y"));
    keep(&h, relu(&h, b, "z"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b; relu z = x:b");
}

static void no_fusion_when_one_op_reads_twice(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, add(&h, b, b, "s"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; add s = a:b b:b");
}

static void no_fusion_of_persistent_tensors(void) {
    struct hand h;
    hand_open(&h);
    int b = bn(&h, h.x, "b");
    keep(&h, b);
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

static void persistent_sum(void) {
    struct hand h;
    hand_open(&h);
    int s = add(&h, bn(&h, h.x, "b"), h.x, "s");
    keep(&h, s);
    keep(&h, relu(&h, s, "y"));
    check_fused(&h, NULL, "bn_apply s = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x; relu y = x:s");
}

static void no_fusion_across_streams(void) {
    struct hand h;
    hand_open(&h);
    keep(&h, relu(&h, bn(&h, h.x, "b"), "y"));
    h.p.op[1].stream = CR_STREAM_TO_HOST;
    check_fused(&h, NULL, "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; relu y = x:b");
}

static void no_fusion_across_a_write(void) {
    struct hand h;
    hand_open(&h);
    int          b    = bn(&h, h.x, "b");
    struct cr_op zero = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[0]       = h.scale_bias; /* scale_bias changes before the ReLU */
    cr_emit(&h.p, &zero, "");
    keep(&h, relu(&h, b, "y"));
    check_fused(&h, NULL,
                "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; zero scale_bias =; relu y = x:b");
}

/* Cost model that knows only the plain gradient of a ReLU. */
static bool plain_relu_grad(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_relu_grad || cr_op_uses_only(op, 3, 1);
}
static const struct cr_cost_model plain_cost_model = {.alignment = 64, .accepts = plain_relu_grad};

static void gradients_of_two_readers(void) {
    struct hand h;
    hand_open(&h);
    int g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    keep(&h, add(&h, g, h.x, "s"));
    check_fused(
        &h, &plain_cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias; "
        "add s = a:g b:x");
}

static void gradients_of_two_bns(void) {
    struct hand h;
    hand_open(&h);
    int u = relu(&h, h.x, "u"), g = relu_grad(&h, h.x, h.x, "g");
    keep(&h, bn_grad(&h, g, h.x, "dx"));
    h.p.op[h.p.ops - 1].in[CR_IN_bn_grad_apply_x] = u; /* sums of one BN, apply of another */
    check_fused(&h, &plain_cost_model,
                "relu u = x:x; relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; "
                "bn_grad_apply dx = dy:g x:u coeffs:scale_bias");
}

/* ---- cost models that know only some of the forms ---- */

static bool no_plain_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE || op->attr.bn.relu;
}
static bool no_sum(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add] == CR_NONE;
}
static bool no_second_bn(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    return op->kind != CR_OP_bn_apply || op->in[CR_IN_bn_apply_add_scale_bias] == CR_NONE;
}
static bool half_of_the_gradient(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self, (void)p;
    if (op->kind == CR_OP_relu_grad) return cr_op_uses_only(op, 3, 1);
    return op->kind != CR_OP_bn_grad_apply; /* then the sums must not be fused either */
}

static void cost_model_decides(void) {
    struct cr_cost_model cost_model = {.alignment = 64, .accepts = no_plain_sum};
    struct hand          h;
    hand_open(&h); /* the widest pattern is fused although the one below it is refused */
    keep(&h, relu(&h, add(&h, bn(&h, h.x, "b"), h.x, "s"), "y"));
    check_fused(&h, &cost_model, "bn_apply y = x:x scale_bias:scale_bias mean_rstd:mean_rstd add:x relu");

    cost_model.accepts = no_sum;
    hand_open(&h);
    keep(&h, relu(&h, add(&h, bn(&h, relu(&h, bn(&h, h.x, "a"), "u"), "b"), h.x, "s"), "y"));
    check_fused(
        &h, &cost_model,
        "bn_apply u = x:x scale_bias:scale_bias mean_rstd:mean_rstd relu; bn_apply b = x:u scale_bias:scale_bias "
        "mean_rstd:mean_rstd; add s = a:b b:x; "
        "relu y = x:s");

    cost_model.accepts = no_second_bn;
    hand_open(&h);
    keep(&h, add(&h, bn(&h, h.x, "a"), bn(&h, h.x, "b"), "s"));
    check_fused(&h, &cost_model,
                "bn_apply b = x:x scale_bias:scale_bias mean_rstd:mean_rstd; bn_apply s = x:x scale_bias:scale_bias "
                "mean_rstd:mean_rstd add:b");

    cost_model.accepts = half_of_the_gradient;
    hand_open(&h);
    keep(&h, bn_grad(&h, relu_grad(&h, h.x, h.x, "g"), h.x, "dx"));
    check_fused(
        &h, &cost_model,
        "relu_grad g = dy:x y:x; bn_grad_sums dx.sums = dy:g x:x mean_rstd:mean_rstd; bn_grad_apply dx = dy:g x:x "
        "coeffs:scale_bias");
}

/* ---- bookkeeping ---- */

static void references_are_updated(void) {
    struct bench_model   b;
    struct cr_program    p;
    const char          *overrides[] = {"model.arch=resnet20"};
    struct cr_cost_model cost_model  = {.alignment = 64};
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_STEP, 4, &p));
    int ops = p.ops, tensors = p.tensors;
    REQUIRE_OK(cr_pass_fuse(&p, &cost_model));
    REQUIRE_OK(cr_program_check(&p));
    /* 19 ReLUs and 9 sums forward; backward the ReLUs of the stem and inside the blocks, whose gradient one BN reads.
     * Each fusion removes one transient. At the end of the nine blocks: the sum of the gradients (for the last block
     * there is only one) and the sums of the BN; there the mask is one more transient. */
    CHECK_INT(ops - p.ops, 19 + 9 + 1 + 9 + 8 + 9);
    CHECK_INT(tensors - p.tensors, 19 + 9 + 1 + 9 + 8 - 9);
    CHECK_STR(p.tensor[p.images].name, "images");
    CHECK_STR(p.tensor[p.labels].name, "labels");
    CHECK_STR(p.tensor[p.logits].name, "fc.y");
    CHECK_STR(p.tensor[p.metrics].name, "metrics");
    for (int i = 0; i < p.ops; i++) CHECK(p.op[i].kind != CR_OP_relu);
    ops = p.ops;
    REQUIRE_OK(cr_pass_fuse(&p, &cost_model)); /* a second run finds nothing */
    CHECK_INT(p.ops, ops);
    cr_program_free(&p);
    bench_close(&b);
}

static void shortcut_b_fuses_two_bns(void) {
    struct bench_model   b;
    struct cr_program    p;
    const char          *overrides[] = {"model.arch=resnet18"};
    struct cr_cost_model cost_model  = {.alignment = 64};
    int                  joined      = 0;
    REQUIRE_OK(bench_open(&b, overrides, 1, 64));
    REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_EVAL, 4, &p));
    REQUIRE_OK(cr_pass_fuse(&p, &cost_model));
    for (int i = 0; i < p.ops; i++)
        joined += p.op[i].kind == CR_OP_bn_apply && p.op[i].in[CR_IN_bn_apply_add_scale_bias] >= 0;
    CHECK_INT(joined, 3); /* layer2, layer3, layer4 */
    cr_program_free(&p);
    bench_close(&b);
}

TESTS(CASE(bn_fuses_relu), CASE(bn_fuses_sum_from_either_side), CASE(bn_fuses_sum_and_relu), CASE(bn_fuses_shortcut_bn),
      CASE(bn_gradient_fuses_relu_gradient), CASE(block_end_stores_bits), CASE(block_end_fuses_sum_and_bn_sums),
      CASE(maxpool_fuses_bn), CASE(conv_fuses_finalize), CASE(finalize_is_not_fused),
      CASE(finalize_is_not_fused_across_other_ops), CASE(cifar_fuses_finalize_into_convolutions),
      CASE(no_fusion_when_another_op_reads), CASE(no_fusion_when_one_op_reads_twice),
      CASE(no_fusion_of_persistent_tensors), CASE(persistent_sum), CASE(no_fusion_across_streams),
      CASE(no_fusion_across_a_write), CASE(gradients_of_two_readers), CASE(gradients_of_two_bns),
      CASE(cost_model_decides), CASE(references_are_updated), CASE(shortcut_b_fuses_two_bns))

/* tests/unit/compiler/test_fusion_finalize.c: convolutions that compute BN sums and finalize them: which programs
 * must not be fused. */
#include "tests/harness/fusion_network.h"
#include "tests/harness/hand_program.h"

/* conv with its sums, then bn_finalize. */
struct finishing {
    struct hand h;
    int         run[2], sums, w;
};

static void finishing_open(struct finishing *f) {
    f->h                        = hand_open();
    struct cr_program *p        = &f->h.p;
    f->w                        = cr_tensor_add(p, "w", CR_F32, CR_REGION_INPUT, 8, 1, 1, 8);
    f->run[0]                   = cr_tensor_add(p, "mean", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8);
    f->run[1]                   = cr_tensor_add(p, "var", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8);
    p->tensor[f->run[0]].offset = 1 << 20; /* apart from the other leaves */
    p->tensor[f->run[1]].offset = 2 << 20;
    struct cr_op op             = op_on(CR_OP_conv, f->h.x, f->w);
    op.out[CR_OUT_conv_sums]    = CR_NEW;
    op.attr.conv.stride         = 1;
    keep(&f->h, emitted(&f->h.p, op, "y"));
    f->sums = p->op[0].out[CR_OUT_conv_sums];
}

static void finishing_ends(struct finishing *f, bool half) {
    struct cr_op op                       = op_on(CR_OP_bn_finalize, f->sums, f->run[0], f->run[1]);
    op.in[CR_IN_bn_finalize_running_mean] = op.out[CR_OUT_bn_finalize_running_mean] = f->run[0];
    op.in[CR_IN_bn_finalize_running_var] = op.out[CR_OUT_bn_finalize_running_var] = f->run[1];
    op.out[CR_OUT_bn_finalize_scale_bias_half]                                    = half ? CR_NEW : CR_NONE;
    op.attr.bn = (struct cr_bn_attr){.eps = 1, .momentum = 0.5f, .count = 32};
    keep(&f->h, emitted(&f->h.p, op, "next"));
}

static const char apart[] =
    "conv y = x:x w:w; bn_finalize next = sums:y.sums gamma:mean beta:var running_mean:mean running_var:var";

static bool no_finishing(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind != CR_OP_conv || op->in[CR_IN_conv_gamma] == CR_NONE;
}

/* No fusion: a cost model without this form; sums, or their 16-bit copy, that other ops read; another stream. */
TEST(finalize_is_not_fused) {
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
TEST(finalize_is_not_fused_across_other_ops) {
    for (int writes = 0; writes < 2; writes++) {
        struct finishing f;
        struct cr_op     op = cr_op_make(writes ? CR_OP_zero : CR_OP_relu, CR_NONE);
        finishing_open(&f);
        if (writes)
            op.out[0] = f.run[1];
        else
            op.in[0] = f.run[0];
        keep(&f.h, emitted(&f.h.p, op, "z"));
        finishing_ends(&f, false);
        struct cr_cost_model cost_model = {.alignment = 64};
        REQUIRE_OK(cr_pass_fuse(&f.h.p, &cost_model));
        CHECK_INT(count_kind(&f.h.p, CR_OP_bn_finalize), 1);
        CHECK_INT(COUNT_IN(&f.h.p, conv, gamma), 0);
        cr_program_free(&f.h.p);
    }
}

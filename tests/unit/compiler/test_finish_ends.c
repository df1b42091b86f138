/* tests/unit/compiler/test_finish_ends.c: the bn_apply at the end of a residual block. It can complete the convolution
 * before it, and the next convolution can compute it. */
#include "tests/harness/finish_support.h"

static bool finishes_ends(void *self, const struct cr_program *p, const struct cr_op *last, const struct cr_op *op) {
    (void)self, (void)p;
    return last->kind == CR_OP_conv && op->kind == CR_OP_bn_apply;
}
static bool finishes_and_applies(void *self, const struct cr_program *p, const struct cr_op *last,
                                 const struct cr_op *op) {
    return finishes_ends(self, p, last, op) || (last->kind == CR_OP_bn_apply && op->attr.conv.stride == 1);
}

/* A bn_apply completes the second convolution of each block, and the convolution of the stem. The op of the shortcut
 * may run between the two. If another op reads the result of the convolution, the convolution completes itself. */
static void ends_of_blocks_are_marked(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_ends};
    struct bench_model         b;
    struct cr_program          p;
    int                        last = CR_NONE, between = 0;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9 + 1);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++) {
        const int before = cr_op_before(&p, i);
        if (p.op[i].kind != CR_OP_bn_apply) {
            CHECK(before < 0 || !cr_op_finishes_later(&p.op[before])); /* only one op completes a convolution */
            continue;
        }
        CHECK(before >= 0 && cr_op_finishes_later(&p.op[before]));
        CHECK_INT(p.op[i].in[CR_IN_bn_apply_scale_bias], p.op[before].out[CR_OUT_conv_next_scale_bias]);
        CHECK_INT(p.tensor[p.op[before].workspace].last, i);
        between += i - before - 1;
        last = i;
    }
    CHECK_INT(between, 2);
    for (int i = 0; i < p.ops; i++)
        if (cr_op_finishes_later(&p.op[i])) p.op[i].attr.conv.finish_later = false;
    p.op[last].in[CR_IN_bn_apply_add] = p.op[last].in[CR_IN_bn_apply_x];
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9);
    cr_program_free(&p);
    bench_close(&b);
}

/* A convolution with a stride of 1 computes the bn_apply whose result it reads. The workspace of the convolution before
 * the bn_apply, and the tensors that the bn_apply leaves to be completed, then stay allocated until that convolution.
 * A bn_apply whose result is copied to the host has a launch of its own. */
static void ends_of_blocks_are_left_to_convolutions(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_and_applies};
    struct bench_model         b;
    struct cr_program          p;
    int                        left = 0, ids[CR_OP_IDS_MAX], last = CR_NONE;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9 + 1 + 7);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++) {
        if (p.op[i].kind != CR_OP_bn_apply || !cr_op_finishes_later(&p.op[i])) continue;
        const int before = cr_op_before(&p, i);
        CHECK(before >= 0 && cr_op_finishes_later(&p.op[before]));
        CHECK_INT(p.op[i + 1].in[CR_IN_conv_x], p.op[i].out[CR_OUT_bn_apply_y]);
        CHECK_INT(cr_op_before(&p, i + 1), i);
        CHECK_INT(p.tensor[p.op[before].workspace].last, i + 1);
        for (int n = cr_op_finish_ids(&p.op[i], ids); n > 0; n--) CHECK(p.tensor[ids[n - 1]].last >= i + 1);
        last = i;
        left++;
    }
    CHECK_INT(left, 7);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_bn_apply) p.op[i].attr.bn.finish_later = false;
    struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
    copy.stream       = CR_STREAM_TO_HOST;
    copy.in[0]        = p.op[last].out[CR_OUT_bn_apply_y];
    copy.out[0]       = cr_tensor_add(&p, "copy", CR_F32, CR_REGION_HOST, 4, 8, 8, 64);
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9 + 1 + 6);
    cr_program_free(&p);
    bench_close(&b);
}

static bool finishes_shortcuts(void *self, const struct cr_program *p, const struct cr_op *last,
                               const struct cr_op *op) {
    return finishes_and_applies(self, p, last, op) || last->kind == CR_OP_pad_shortcut;
}

/* A convolution that computes the bn_apply behind a pad_shortcut also reads the input of the pad_shortcut. This input
 * then stays allocated until the convolution. The pad_shortcut has its own launch if another op reads its result, or if
 * the kernel of the convolution cannot read the input. */
static void shortcuts_are_left_to_convolutions(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_shortcuts};
    struct bench_model         b;
    struct cr_program          p;
    int                        left = 0, last = CR_NONE;
    if (!open_program(&b, &p)) return;
    add_workspaces(&p, CR_OP_conv);
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9 + 1 + 7 + 2);
    cr_program_lifetimes(&p);
    for (int i = 0; i < p.ops; i++) {
        if (p.op[i].kind != CR_OP_pad_shortcut) continue;
        CHECK(cr_op_finishes_later(&p.op[i]) && cr_op_finishes_later(&p.op[i + 1]));
        CHECK_INT(cr_op_shortcut(&p, i + 1), i);
        CHECK_INT(cr_op_before(&p, i + 2), i + 1);
        CHECK(p.tensor[p.op[i].in[CR_IN_pad_shortcut_x]].last >= i + 2);
        CHECK_INT(p.tensor[p.op[i].out[CR_OUT_pad_shortcut_y]].last, i + 2);
        last = i;
        left++;
    }
    CHECK_INT(left, 2);
    for (int i = 0; i < p.ops; i++)
        if (p.op[i].kind == CR_OP_pad_shortcut) p.op[i].attr.conv.finish_later = false;
    struct cr_op copy = cr_op_make(CR_OP_relu, CR_NONE);
    copy.in[0]        = p.op[last].out[CR_OUT_pad_shortcut_y];
    (void)cr_emit(&p, &copy, "copy");
    cr_pass_finish_later(&p, &model);
    CHECK_INT(marked(&p), 9 + 1 + 7 + 1);
    cr_program_free(&p);
    bench_close(&b);
}

/* A pad_shortcut also has its own launch if the host reads its result after the step (`keep`), or if an op of another
 * stream reads its input. A convolution behind the hoisted ops runs more often than a bn_apply among them, so it
 * computes neither the bn_apply nor the pad_shortcut. */
static void ends_that_do_not_fit_are_not_left(void) {
    const struct cr_cost_model model = {.alignment = 64, .finishes = finishes_shortcuts};
    for (int n = 0; n < 3; n++) {
        struct bench_model b;
        struct cr_program  p;
        int                shortcut = 0;
        if (!open_program(&b, &p)) return;
        while (p.op[shortcut].kind != CR_OP_pad_shortcut) shortcut++;
        if (n == 0) p.tensor[p.op[shortcut].out[CR_OUT_pad_shortcut_y]].keep = true;
        if (n == 1) p.hoisted = shortcut + 2;
        struct cr_op copy = cr_op_make(CR_OP_offload, CR_NONE);
        copy.stream       = CR_STREAM_TO_HOST;
        copy.in[0]        = p.op[shortcut].in[CR_IN_pad_shortcut_x];
        copy.out[0]       = cr_tensor_add(&p, "copy", CR_F32, CR_REGION_HOST, 4, 32, 32, 16);
        if (n == 2) (void)cr_emit(&p, &copy, "copy");
        cr_pass_finish_later(&p, &model);
        CHECK(!cr_op_finishes_later(&p.op[shortcut]));
        CHECK(cr_op_finishes_later(&p.op[shortcut + 1]) == (n != 1)); /* the bn_apply */
        cr_program_free(&p);
        bench_close(&b);
    }
}

TESTS(CASE(ends_of_blocks_are_marked), CASE(ends_that_do_not_fit_are_not_left),
      CASE(ends_of_blocks_are_left_to_convolutions), CASE(shortcuts_are_left_to_convolutions))

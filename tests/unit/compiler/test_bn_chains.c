/* tests/unit/compiler/test_bn_chains.c: ops that finish the BN before them, and filter gradients in one op. Programs
 * with them compute what the plain program computes, on the reference kernels in FP64. */
#include "tests/harness/fusion_network.h"

enum { ROWS = 3 };

/* A conv_grad that reads the gradient of a shortcut takes as long as all ops that it replaces. */
static cr_status costs_a_launch(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    *seconds = 1e-6;
    return CR_OK;
}

static int rows_of_all(void *self, const struct cr_program *p, const struct cr_op *op) {
    return ROWS;
}
static int no_rows_of_gradients(void *self, const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_conv ? ROWS : CR_NONE;
}
static bool no_bn_apply(void *self, const struct cr_program *p, const struct cr_op *op) {
    for (int k = 0; op->kind == CR_OP_fused && k < op->attr.fused.parts; k++)
        if (op->attr.fused.part[k].kind == CR_OP_bn_apply) return false;
    return true;
}

/* Opens a network of six basic blocks with everything fused, and runs it; pass: with cr_pass_bn_chains. */
static cr_status run_network(const struct net_case *c, const struct cr_cost_model *chains, size_t limit,
                             struct ref_run *run) {
    const struct cr_cost_model fuse = {.alignment = 64, .cost = costs_a_launch};
    CR_TRY(emit_run(run, NULL, c));
    CR_TRY(cr_pass_fuse(&run->p, &fuse));
    if (chains) CR_TRY(cr_pass_bn_chains(&run->p, chains, limit));
    return finish_run(run);
}

static void check(const struct net_case *c, const struct cr_cost_model *chains, size_t limit, bool forward,
                  bool backward) {
    OWNED(ref_run) plain = {0}, chained = {0};
    CHECK_STATUS(run_network(c, NULL, SIZE_MAX, &plain), CR_OK);
    CHECK_STATUS(run_network(c, chains, limit, &chained), CR_OK);
    CHECK_INT(fused_ops(&chained.p, CR_OP_conv) > 0, forward);
    CHECK_INT(fused_ops(&chained.p, CR_OP_conv_grad) > 0, backward);
    CHECK_INT(fused_ops(&chained.p, CR_OP_conv_wgrad), backward);
    check_same(&plain, &chained);
}

static const struct net_case six_blocks = {.block = CR_BLOCK_BASIC, .shortcut = CR_SHORTCUT_A, .width = 4, .depth = 3};

TEST(chains_compute_the_same) {
    const struct cr_cost_model all = {.alignment = 64, .device.sum_rows = rows_of_all};
    struct net_case            c   = six_blocks;
    check(&c, &all, SIZE_MAX, true, true);
    c.accumulate = true;
    check(&c, &all, SIZE_MAX, true, true);
}

/* Without kernels, nothing changes; a convolution need not compute the bn_apply before it; other shortcuts interrupt
 * the chain of the backward pass, and few filter gradients are not fused. */
TEST(only_what_kernels_accept) {
    const struct cr_cost_model none = {.alignment = 64}, all = {.alignment = 64, .device.sum_rows = rows_of_all},
                               forward = {.alignment = 64, .device.sum_rows = no_rows_of_gradients},
                               inner   = {.alignment = 64, .device.sum_rows = rows_of_all, .accepts = no_bn_apply};
    struct net_case c                  = six_blocks;
    check(&c, &none, SIZE_MAX, false, false);
    check(&c, &forward, SIZE_MAX, true, false);
    check(&c, &inner, SIZE_MAX, true, true);
    c.shortcut = CR_SHORTCUT_B;
    check(&c, &all, SIZE_MAX, true, false);
    c       = six_blocks;
    c.depth = 2;
    check(&c, &all, SIZE_MAX, true, false);
}

/* Filter gradients need all dy at once. */
TEST(filter_gradients_stay_apart_without_memory) {
    const struct cr_cost_model all = {.alignment = 64, .device.sum_rows = rows_of_all};
    check(&six_blocks, &all, 1, true, false);
}

/* A program with fused ops can be copied, planned and printed; the copy does not depend on the original. */
TEST(fused_ops_are_part_of_the_program) {
    const struct cr_cost_model all      = {.alignment = 64, .device.sum_rows = rows_of_all};
    struct ref_run             run      = {0};
    OWNED(program)             copy     = {0};
    struct cr_text             texts[2] = {{0}};
    REQUIRE_OK(run_network(&six_blocks, &all, SIZE_MAX, &run));
    REQUIRE_OK(cr_program_copy(&run.p, &copy));
    cr_program_print(&run.p, &texts[0]);
    ref_close(&run);
    cr_program_print(&copy, &texts[1]);
    CHECK_STR(texts[0].data, texts[1].data);
    CHECK_STATUS(cr_pass_plan(&copy, 64, true), CR_OK);
    CHECK_STATUS(cr_plan_check(&copy, 64), CR_OK);
    cr_text_free(&texts[0]);
    cr_text_free(&texts[1]);
}

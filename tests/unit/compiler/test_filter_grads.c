/* tests/unit/compiler/test_filter_grads.c: filter gradients of several convolutions in one op: where the pass makes
 * them, and that whole networks compute the same results. */
#include "tests/harness/fusion_network.h"

struct costs {
    double dx, all;     /* of a conv_grad without dw, of conv_wgrads; conv_grad with both: 10 */
    bool   no_stride_2; /* the device does not accept an input gradient alone with stride 2 */
};

/* Everything is fused but the slots that only some kernels have. */
static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct costs *c = self;
    (void)p;
    if (op->kind != CR_OP_conv_grad) return true;
    return !c->no_stride_2 || op->out[CR_OUT_conv_grad_dw] >= 0 || op->attr.conv.stride == 1;
}
static cr_status cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const struct costs *c = self;
    (void)p;
    *seconds = op->kind == CR_OP_conv_wgrads                                                                ? c->all
               : op->kind == CR_OP_conv_grad && (op->out[CR_OUT_conv_grad_dw] < 0)                          ? c->dx
               : op->kind == CR_OP_conv_grad                                                                ? 10
               : op->kind == CR_OP_conv || op->kind == CR_OP_conv_dgrad || op->kind == CR_OP_conv_wgrad ? 10
                                                                                                            : 1;
    return CR_OK;
}

/* Filter gradients of all conv_wgrads. */
static int filters(const struct cr_program *p) {
    int n = 0;
    for (int i = 0; i < p->ops; i++)
        for (int k = 0; p->op[i].kind == CR_OP_conv_wgrads && k < CR_WGRADS; k++) n += p->op[i].out[k] >= 0;
    return n;
}

static void compare(const struct net_case *c, struct costs *costs, int *split, int *alone) {
    struct cr_cost_model cost_model = {.self = costs, .accepts = accepts, .cost = cost};
    struct cr_config     config;
    struct ref_run       plain, fused;
    REQUIRE_OK(cr_config_open(&config, NULL, NULL, 0));
    REQUIRE_OK(ref_open(&plain, CR_F64, 1));
    REQUIRE_OK(ref_open(&fused, CR_F64, 1));
    REQUIRE_OK(emit_run(&plain, &config, c));
    REQUIRE_OK(emit_run(&fused, &config, c));
    REQUIRE_OK(cr_pass_fuse(&fused.p, &cost_model));
    REQUIRE_OK(cr_pass_filter_grads(&fused.p, &cost_model));
    REQUIRE_OK(finish_run(&plain));
    REQUIRE_OK(finish_run(&fused));
    check_same(&plain, &fused);
    *split = filters(&fused.p);
    *alone = 0;
    for (int i = 0; i < fused.p.ops; i++)
        *alone += fused.p.op[i].kind == CR_OP_conv_grad && fused.p.op[i].out[CR_OUT_conv_grad_dw] < 0;
    ref_close(&plain);
    ref_close(&fused);
    cr_config_close(&config);
}

static void split_networks_give_the_same_results(void) {
    for (int round = 0; round < 16; round++) {
        struct net_case c     = {.block      = round & 1 ? CR_BLOCK_BOTTLENECK : CR_BLOCK_BASIC,
                                 .shortcut   = round & 2 ? CR_SHORTCUT_A : CR_SHORTCUT_B,
                                 .accumulate = round & 4,
                                 .width      = 4};
        struct costs    costs = {.dx = 6, .all = 1, .no_stride_2 = round & 8};
        int             split, alone;
        compare(&c, &costs, &split, &alone);
        CHECK(split >= (c.block == CR_BLOCK_BASIC ? 6 : 10));
        CHECK_INT(alone, split);
    }
}

/* A group is split only where that takes less time; without times nothing is. */
static void only_what_is_faster_is_split(void) {
    const struct net_case c = {.block = CR_BLOCK_BASIC, .shortcut = CR_SHORTCUT_A, .width = 4};
    int                   split, alone;
    compare(&c, &(struct costs){.dx = 9, .all = 100}, &split, &alone);
    CHECK_INT(split, 0);
    compare(&c, &(struct costs){.dx = 11, .all = 1}, &split, &alone);
    CHECK_INT(split, 0);
    CHECK_INT(alone, 0);
}

TESTS(CASE(split_networks_give_the_same_results), CASE(only_what_is_faster_is_split))

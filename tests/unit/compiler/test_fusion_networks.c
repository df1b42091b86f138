/* tests/unit/compiler/test_fusion_networks.c: whole networks with any mixture of fusions compute the same results as
 * the unfused program. */
#include "tests/harness/fusion_network.h"

struct refuser { /* cost model that accepts a random part of the fusions */
    struct cr_rng rng;
    int           accepted_quarters; /* of 4 */
};

static bool accepts_some(void *self, const struct cr_program *p, const struct cr_op *op) {
    struct refuser *r = self;
    return draw(&r->rng, 1, 4) <= r->accepted_quarters;
}

/* Any number is valid: the choice must not change the results. */
static cr_status costs_anything(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    struct refuser *r = self;
    *seconds          = 1e-6 * (double)draw(&r->rng, 1, 1000);
    return CR_OK;
}

/* Slots that some fused program has used: bit s of [kind]. */
static unsigned used_in[CR_OP_COUNT], used_out[CR_OP_COUNT];

static void note_slots(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        for (int s = 0; s < CR_OP_IN_MAX; s++) used_in[op->kind] |= (unsigned)(op->in[s] >= 0) << s;
        for (int s = 0; s < CR_OP_OUT_MAX; s++) used_out[op->kind] |= (unsigned)(op->out[s] >= 0) << s;
    }
}

/* Compares one network unfused and fused. */
static void compare(const struct cr_config *config, const struct net_case *c, struct cr_cost_model *cost_model,
                    bool fold, enum cr_gram_mode gram, int *joined) {
    OWNED(ref_run) plain = {0}, fused = {0};
    REQUIRE_OK(emit_run(&plain, config, c));
    REQUIRE_OK(emit_run(&fused, config, c));
    *joined = fused.p.ops;
    if (fold) REQUIRE_OK(cr_pass_fold(&fused.p, cost_model));
    REQUIRE_OK(cr_pass_gram(&fused.p, cost_model, gram));
    REQUIRE_OK(cr_pass_fuse(&fused.p, cost_model));
    *joined -= fused.p.ops;
    note_slots(&fused.p);
    REQUIRE_OK(finish_run(&plain));
    REQUIRE_OK(finish_run(&fused));
    check_same(&plain, &fused);
}

/* Otherwise the comparison tests nothing. Slots of 16-bit programs and of inference are not used here. */
static void every_form_was_used(void) {
    static const enum cr_op_kind kinds[] = {CR_OP_conv,
                                            CR_OP_conv_dgrad,
                                            CR_OP_conv_wgrad,
                                            CR_OP_conv_grad,
                                            CR_OP_relu_grad,
                                            CR_OP_bn_grad_sums,
                                            CR_OP_bn_grad_apply,
                                            CR_OP_maxpool,
                                            CR_OP_s2d_filter,
                                            CR_OP_bn_apply,
                                            CR_OP_pool_bn_grad_sums,
                                            CR_OP_pool_bn_grad_apply,
                                            CR_OP_s2d_filter_grad,
                                            CR_OP_gram,
                                            CR_OP_gram_bn_finalize,
                                            CR_OP_gram_bn_grad,
                                            CR_OP_gram_dgrad};
    for (size_t i = 0; i < CR_COUNT(kinds); i++) {
        const struct cr_op_info *info = cr_op_info(kinds[i]);
        unsigned                 all = (1u << info->ins) - 1, outs = (1u << info->outs) - 1,
                 not_here = kinds[i] == CR_OP_conv
                                ? 1u << CR_IN_conv_bias | 1u << CR_IN_conv_add | 1u << CR_IN_conv_packed
                                : 0;
        if (kinds[i] == CR_OP_gram_bn_grad) all &= ~(1u << CR_IN_gram_bn_grad_grad_sums); /* SyncBN: test_gram_bn */
        if (kinds[i] == CR_OP_conv_grad) outs &= ~(1u << CR_OUT_conv_grad_dy); /* written by chains: test_bn_chains */
        if ((used_in[kinds[i]] | not_here) != all || used_out[kinds[i]] != outs)
            TEST_FAIL_("%s: inputs %x of %x, outputs %x were used", info->name, used_in[kinds[i]], all,
                       used_out[kinds[i]]);
    }
}

/* Compares a network whose fusions are accepted at random; returns the number of ops that fusing saved. */
static int compare_some(const struct cr_config *config, const struct net_case *c, int seed, int accepted_quarters,
                        bool fold, enum cr_gram_mode gram) {
    struct refuser       refuser    = {.rng = test_rng((uint64_t)seed), .accepted_quarters = accepted_quarters};
    struct cr_cost_model cost_model = {.self = &refuser, .accepts = accepts_some, .cost = costs_anything};
    int                  joined     = 0;
    compare(config, c, &cost_model, fold, gram, &joined);
    return joined;
}

/* Block, shortcut and stem by the lowest bits of the round. */
static struct net_case case_of(int round) {
    return (struct net_case){.block    = round & 1 ? CR_BLOCK_BOTTLENECK : CR_BLOCK_BASIC,
                             .shortcut = round & 2 ? CR_SHORTCUT_A : CR_SHORTCUT_B,
                             .large    = round & 4,
                             .width    = 4};
}

TEST(any_mixture_gives_the_same_results) {
    int total = 0;
    for (int round = 0; round < 192; round++) {
        struct net_case c = case_of(round);
        c.accumulate      = round & 8;
        c.width           = round & 16 ? 8 : 2;
        total +=
            compare_some(NULL, &c, round, round & 32 ? 4 : 2 + round / 64, false, (enum cr_gram_mode)(round / 2 % 3));
    }
    CHECK(total > 64);
    every_form_was_used();
}

TEST(frozen_parameters_give_the_same_results) {
    for (int round = 0; round < 128; round += TEST_SANITIZED ? 5 : 1) {
        struct net_case c = case_of(round);
        c.frozen          = (unsigned[]){1, 2, 3, 4}[round / 8 % 4];
        CHECK(compare_some(NULL, &c, 100 + round, 4 - round / 4 % 2, false, CR_GRAM_ALL) > 0);
    }
}

/* Space to depth, before a plain convolution and before one with fused BN and ReLU. */
TEST(evaluation_gives_the_same_results) {
    for (int round = 0; round < 16; round++) {
        struct net_case c = case_of(round);
        c.eval            = true;
        memset(used_in, 0, sizeof used_in);
        (void)compare_some(NULL, &c, 300 + round, 4, round & 8, CR_GRAM_ALL);
        CHECK_INT(used_in[CR_OP_s2d_filter] != 0, c.large);
    }
}

TEST(zero_gammas_give_the_same_results) {
    OWNED(config) config      = NULL;
    const char   *overrides[] = {"model.zero_init_last=yes"};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, 1));
    for (int round = 0; round < 8; round++) {
        const struct net_case c = case_of(round & 1);
        (void)compare_some(config, &c, 200 + round, 4, false, CR_GRAM_ALL);
    }
}

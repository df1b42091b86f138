/* tests/unit/compiler/test_fold_bn.c: batch normalisation folded into the filters. The folded evaluation program gives
 * the logits of the unfolded one (on the reference kernels), has no pass over activations left except convolutions, and
 * folds once for many batches, and again on request. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/inference_support.h"

enum { SIZE = 16 };

static void check_net(const char *const *overrides, int count) {
    OWNED(net) plain = {0}, folded = {0};
    float      a[LOGITS], b[LOGITS];
    CHECK_STATUS(open_eval(&plain, overrides, count, SIZE, false, true), CR_OK);
    CHECK_STATUS(open_eval(&folded, overrides, count, SIZE, true, true), CR_OK);
    if (plain.exec && folded.exec) {
        fill_store(&plain, 1);
        fill_store(&folded, 1);
        for (uint64_t batch = 0; batch < 2; batch++) { /* the second batch finds the folded filters in memory */
            run_batch(&plain, batch, a);
            run_batch(&folded, batch, b);
            compare_logits(a, b, 2e-5);
        }
        const int convs = count_kind(&plain.program, CR_OP_conv);
        CHECK(convs > 3 && count_kind(&folded.program, CR_OP_fold_bn) == convs);
        CHECK(count_kind(&folded.program, CR_OP_bn_apply) == 0 && count_kind(&folded.program, CR_OP_relu) == 0);
        CHECK(count_kind(&folded.program, CR_OP_add) == 0 && count_kind(&folded.program, CR_OP_bn_scale_bias) == 0);
        CHECK(folded.program.hoisted >= convs && plain.program.hoisted == 0);
    }
}

#define NET(name, ...)                                                                                                 \
    TEST(name) {                                                                                                       \
        static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=16", "train.device=cpu",       \
                                                "model.arch=custom", __VA_ARGS__};                                     \
        check_net(overrides, (int)CR_COUNT(overrides));                                                                \
    }
NET(basic_blocks, "model.block=basic", "model.depths=2,1", "model.widths=8,16", "model.stem=cifar", "model.shortcut=B")
NET(padded_shortcuts, "model.block=basic", "model.depths=1,2", "model.widths=8,16", "model.stem=cifar",
    "model.shortcut=A")
NET(bottlenecks_and_the_large_stem, "model.block=bottleneck", "model.depths=1,2", "model.widths=8,8",
    "model.stem=imagenet", "model.shortcut=B")

static const char *const small[] = {"data.kind=synthetic", "data.image_size=16", "train.device=cpu",
                                    "model.arch=custom",   "model.block=basic",  "model.depths=1,1",
                                    "model.widths=8,16",   "model.stem=cifar"};

TEST(folding_is_done_once_until_invalidated) {
    struct net n;
    float      first[LOGITS], stale[LOGITS], fresh[LOGITS], want[LOGITS];
    REQUIRE_OK(open_eval(&n, small, (int)CR_COUNT(small), SIZE, true, true));
    fill_store(&n, 1);
    run_batch(&n, 0, first);
    fill_store(&n, 2);
    run_batch(&n, 0, stale);
    cr_exec_refresh(n.exec);
    run_batch(&n, 0, fresh);
    CHECK(memcmp(stale, fresh, sizeof stale) != 0);
    net_close(&n);
    REQUIRE_OK(open_eval(&n, small, (int)CR_COUNT(small), SIZE, false, true));
    fill_store(&n, 2);
    run_batch(&n, 0, want);
    compare_logits(want, fresh, 2e-5);
    net_close(&n);
}

/* Cost model: a convolution with an addition takes `*self` seconds, every other op one second. */
static cr_status price(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    *seconds = op->kind == CR_OP_conv && op->in[CR_IN_conv_add] != CR_NONE ? *(double *)self : 1;
    return CR_OK;
}

/* Number of sums that remain separate ops when a convolution with addition and ReLU takes `with_sum` seconds. */
static int sums_left(double with_sum, int *relus) {
    struct cr_cost_model cost_model = {.self = &with_sum, .cost = price};
    OWNED(config)        config     = NULL;
    OWNED(model)         model      = {0};
    OWNED(program)       p          = {0};
    int                  sums       = -1;
    CHECK_STATUS(cr_config_open(&config, NULL, small, (int)CR_COUNT(small)), CR_OK);
    CHECK_STATUS(cr_model_open(config, CLASSES, SIZE, SIZE, &model), CR_OK);
    CHECK_STATUS(cr_model_program(&model, config, CR_PROGRAM_EVAL, BATCH, &p), CR_OK);
    CHECK_STATUS(cr_pass_fold(&p, &cost_model), CR_OK);
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    sums   = count_kind(&p, CR_OP_add);
    *relus = count_kind(&p, CR_OP_relu);
    return sums;
}

TEST(costly_fused_sum_is_a_separate_op) {
    int relus;
    CHECK_INT(sums_left(3, &relus), 0); /* conv, add, ReLU: the same time as separate ops */
    CHECK_INT(relus, 0);
    CHECK_INT(sums_left(3.5, &relus), 2); /* two blocks */
    CHECK_INT(relus, 2);
}

TEST(poisoned_memory_changes_nothing) {
    OWNED(net) n = {0};
    float      a[LOGITS], b[LOGITS];
    REQUIRE_OK(open_eval(&n, small, (int)CR_COUNT(small), SIZE, true, true));
    fill_store(&n, 1);
    run_batch(&n, 0, a);
    REQUIRE_OK(cr_exec_poison(n.exec));
    run_batch(&n, 1, b);
    run_batch(&n, 0, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
}

/* tests/gpu/test_cuda_prune.c: pruned networks on the GPU: updates keep zeros, checkpoints are bitwise identical,
 * and a run that is interrupted while it prunes resumes bitwise identically, in fp32 and in 16 bits. (test_checkops
 * compares the update itself with the reference.) */
#include "tests/harness/pruning_session.h"
#include "tests/harness/test_gpu.h"
#include "tests/harness/train_support.h"

TEST(zeros_remain_zero) {
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=fp16", "train.precision=bf16"};
    NEED_GPU();
    for (size_t k = 0; k < CR_COUNT(precisions); k++) {
        char               dir[SUPPORT_PATH];
        OWNED(pruned)      a = {0}, b = {0};
        struct cr_position at;
        int64_t            alive, count;
        make_folder(dir);
        REQUIRE_OK(pruned_open(&a, (const char *const[]){"train.device=cuda", precisions[k], NULL}));
        REQUIRE_OK(pruned_nonzeros(&a, &alive, &count));
        CHECK_INT(count, 0);                       /* a new mask keeps all weights */
        for (int round = 1; round <= 3; round++) { /* masks change between launches of a captured graph */
            REQUIRE_OK(pruned_prune(&a, round / 3.0));
            REQUIRE_OK(pruned_steps(&a, 4));
            REQUIRE_OK(pruned_nonzeros(&a, &alive, &count));
            CHECK_INT(alive, 0);
            CHECK(count > 1200 * round);
        }
        REQUIRE_OK(pruned_save(&a, dir, 1));
        REQUIRE_OK(pruned_open(&b, (const char *const[]){"train.device=cuda", precisions[k], NULL}));
        REQUIRE_OK(cr_state_load(&b.session, formatted("%s/step-1", dir), &at));
        CHECK(pruned_same(&a, &b));
        REQUIRE_OK(pruned_steps(&a, 3));
        CHECK(!pruned_same(&a, &b));
        REQUIRE_OK(pruned_steps(&b, 3));
        CHECK(pruned_same(&a, &b));
    }
}

TEST(resumed_runs_are_bitwise_identical) {
    static const char *const precisions[] = {"train.precision=fp32", "train.precision=fp16"};
    NEED_GPU();
    for (size_t k = 0; k < CR_COUNT(precisions); k++) {
        const char *const keys[] = {precisions[k],     "train.device=cuda", "model.widths=8,16", "prune.sparsity=0.9",
                                    "prune.start=0.3", "prune.end=1.5",     "prune.frequency=2"};
        struct run        r      = prepare();
        for (size_t i = 0; i < CR_COUNT(keys); i++) give(&r, keys[i]);
        resumes_bitwise(&r, 11, 2);
    }
}

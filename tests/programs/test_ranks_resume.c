/* tests/programs/test_ranks_resume.c: runs of several ranks that resume, also with another number of ranks. Ranks are
 * forked processes that communicate over shared memory. */
#include "tests/harness/ranks_support.h"

static struct run prepare(void) {
    struct run r = prepare_run();
    give(&r, "train.device=cpu", "train.precision=fp32");
    return r;
}

/* A checkpoint of two ranks in the middle of an epoch: one rank and four ranks resume with the same images in the
 * same updates. */
static void check_resume(int size) {
    struct run r = prepare();
    double     whole[STEPS_MAX], parts[STEPS_MAX];
    give(&r, "model.sync_bn=yes", "train.batch=12");
    CHECK(TRAIN(2, &r, "whole", "train.steps=20") == 0);
    CHECK(TRAIN(2, &r, "parts", "train.steps=11") == 0);
    r.count--; /* train.batch: stored in the run */
    CHECK(RESUME(size, &r, "parts", "train.steps=20") == 0);
    CHECK(losses_of(&r, "whole", whole) == 20 && losses_of(&r, "parts", parts) == 20);
    for (int i = 11; i < 16; i++) CHECK(relative(whole[i], parts[i]) <= 1e-4);
}
TEST(two_ranks_save_one_resumes) {
    check_resume(1);
}
TEST(two_ranks_save_four_resume) {
    check_resume(4);
}

/* Without synchronised BN: the running statistics of each rank are in the state. Steps 7 and 11 are not due for
 * saving, as when a signal arrives: saving and evaluating must not change later results. */
static void check_unscheduled(int size, const char *batch) {
    struct run r = prepare();
    give(&r, batch, "ema.decay=0.9");
    CHECK(TRAIN(size, &r, "whole", "train.steps=20") == 0);
    CHECK(TRAIN(size, &r, "parts", "train.steps=7") == 0);
    CHECK(RESUME(size, &r, "parts", "train.steps=11") == 0);
    CHECK(RESUME(size, &r, "parts", "train.steps=20") == 0);
    CHECK(TRAIN(size, &r, "often", "train.steps=20", "train.save_every=3", "train.eval_every=1") == 0);
    static const char *const files[] = {"model.safetensors", "state.safetensors", "ema.safetensors"};
    for (size_t i = 0; i < CR_COUNT(files); i++) {
        CHECK(same_file(&r, "whole", "parts", files[i]));
        CHECK(same_file(&r, "whole", "often", files[i]));
    }
}
TEST(ranks_resume_bitwise_identically) {
    check_unscheduled(2, "train.batch=12");
    check_unscheduled(3, "train.batch=8");
}

/* The state of each rank is for the same number of ranks; another number uses the mean, and refuses a state that
 * does not fit. */
TEST(rank_statistics_need_the_same_ranks) {
    struct run r = prepare();
    CHECK(TRAIN(2, &r, "run", "train.batch=12", "train.steps=5") == 0);
    CHECK(RESUME(4, &r, "run", "train.steps=8") == 0);
    CHECK(RESUME(1, &r, "run", "train.steps=10") == 0);
    CHECK(RESUME(2, &r, "run", "train.steps=12") == 0);
    CHECK(TRAIN(2, &r, "sync", "train.batch=12", "train.steps=5", "model.sync_bn=yes") == 0);
    CHECK(RESUME(2, &r, "sync", "train.steps=8") == 0);
}

/* BN per rank: saved averages of running statistics are means over all ranks, and runs resume from them. */
static void averages_resume(const char *const keys[3]) {
    struct run r = prepare();
    give(&r, "train.batch=12");
    for (int i = 0; i < 3; i++) give(&r, keys[i]);
    CHECK(TRAIN(2, &r, "whole", "train.steps=20") == 0);
    CHECK(TRAIN(2, &r, "parts", "train.steps=11") == 0);
    CHECK(RESUME(2, &r, "parts", "train.steps=20") == 0);
    CHECK(same_weights(&r, "whole", "parts"));
    CHECK(same_file(&r, "whole", "parts", "ema.safetensors"));
}

TEST(averages_resume_bitwise_identically) {
    averages_resume((const char *const[]){"ema.decay=0.9", "optim.kind=adamw", "optim.lr=0.001"});
    averages_resume((const char *const[]){"ema.swa_start=1", "ema.swa_batches=3", "train.tensorboard=no"});
}

/* Ten images cannot be divided among four ranks. */
TEST(an_indivisible_batch_is_refused) {
    struct run r = prepare();
    CHECK(TRAIN(2, &r, "run", "train.batch=5", "train.steps=3") == 0);
    CHECK(RESUME(4, &r, "run", "train.steps=6") == 2);
}

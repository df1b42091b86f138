/* tests/unit/training/test_train_rules.c: runs with the other update rules, schedules and moving averages: resume is
 * bitwise identical from any step, pruned or not; averages begin and end on request. */
#include "tests/harness/train_support.h"

static void check_all(const struct run *r, const char *a, const char *b, bool averages) {
    check_same(r, a, b);
    if (averages) CHECK(same_file(r, a, b, "ema.safetensors"));
}

/* Stopped after some of the twelve updates, `more` as in TRAIN. */
static void check_cuts(const char *const *keys, bool averages) {
    static const int cuts[] = {1, 4, 6, 11};
    struct run       r      = prepare();
    give_all(&r, keys);
    REQUIRE_OK(TRAIN(&r, "whole", "train.steps=0"));
    for (size_t i = 0; i < CR_COUNT(cuts); i++) {
        const char *const name = formatted("cut%d", cuts[i]);
        REQUIRE_OK(TRAIN(&r, name, formatted("train.steps=%d", cuts[i])));
        REQUIRE_OK(RESUME(&r, name, "train.steps=0"));
        check_all(&r, "whole", name, averages);
    }
    REQUIRE_OK(TRAIN(&r, "other", "optim.weight_decay=0.3"));
    CHECK(!same_file(&r, "whole", "other", "model.safetensors")); /* the comparison can fail */
    if (averages) CHECK(!same_file(&r, "whole", "other", "ema.safetensors"));
}
#define CUTS(averages, ...) check_cuts((const char *const[]){__VA_ARGS__, NULL}, averages)
#define PRUNED "prune.sparsity=0.8", "prune.initial=0.1", "prune.start=0.5", "prune.end=1.7", "prune.frequency=2"

TEST(adamw_resumes) {
    CUTS(false, "optim.kind=adamw", "optim.lr=0.01", "optim.nesterov=no");
    CUTS(true, "optim.kind=adamw", "optim.lr=0.01", "optim.nesterov=no", "ema.decay=0.9", PRUNED);
}
TEST(lamb_resumes) {
    CUTS(true, "optim.kind=lamb", "optim.lr=0.01", "optim.nesterov=no", "train.clip_norm=1", "ema.decay=0.9", PRUNED);
}
TEST(muon_resumes) {
    CUTS(true, "optim.kind=muon", "optim.lr=0.005", "optim.nesterov=yes", "train.clip_norm=1", "ema.decay=0.9", PRUNED);
}
/* Masks depend on the step, and not on what ran before. */
TEST(dropped_runs_resume) {
    CUTS(false, "model.stochastic_depth=0.5", "model.dropout=0.5", "train.accumulate=2");
}
TEST(lars_resumes) {
    CUTS(true, "optim.kind=lars", "optim.lr=1", "ema.decay=0.9", "ema.warmup=no");
}
TEST(mixed_images_resume) {
    CUTS(false, "data.mixup=0.4", "data.cutmix=1", "data.erase=0.5", "data.augment=trivial",
         "data.jitter=0.4,0.4,0.4,0.1");
}
TEST(sgd_with_averages_resumes) {
    CUTS(true, "ema.decay=0.9", PRUNED);
    CUTS(true, "ema.decay=0.9", "schedule.kind=one_cycle", "schedule.warmup_epochs=0", "schedule.low_momentum=0.8");
}

/* Equal averages: of the weights after both epochs. */
TEST(averages_of_epochs_resume) {
    CUTS(true, "ema.swa_start=1", "ema.swa_batches=2");
}

TEST(own_rates_resume) {
    CUTS(true, "optim.layer_decay=0.6", "optim.head_lr=0.5", "ema.decay=0.9");
    CUTS(false, "optim.kind=adamw", "optim.lr=0.01", "optim.nesterov=no", "optim.layer_decay=0.6", PRUNED);
}

/* A resumed run may add averages, and may continue without them. */
TEST(averages_start_on_request) {
    struct run r = prepare();
    REQUIRE_OK(TRAIN(&r, "a", "train.steps=4"));
    REQUIRE_OK(RESUME(&r, "a", "train.steps=8", "ema.decay=0.5"));
    REQUIRE_OK(RESUME(&r, "a", "train.steps=10", "ema.decay=0.5"));
    REQUIRE_OK(RESUME(&r, "a", "train.steps=0", "ema.decay=0"));
    REQUIRE_OK(TRAIN(&r, "b", "train.steps=0"));
    check_same(&r, "a", "b");
}

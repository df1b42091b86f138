/* tests/unit/training/test_unfreeze.c: model.unfreeze: parts of the network are frozen for some epochs and trained
 * afterwards. The truth is a run that is stopped, and resumed with another model.freeze by --force. */
#include "tests/harness/train_support.h"

/* The run equals the one that is stopped after an epoch (`first`) and then continues with `rest` frozen. */
static void check_by_hand(const char *freeze, const char *unfreeze, const char *rest, const char *extra,
                          const char *first) {
    struct run r = prepare();
    give(&r, extra);
    REQUIRE_OK(TRAIN(&r, "gradual", freeze, unfreeze));
    REQUIRE_OK(TRAIN(&r, "hand", freeze, first));
    REQUIRE_OK(train(&r, "hand", "auto", true, (const char *const[]){rest, "train.steps=0", NULL}));
    check_same(&r, "gradual", "hand");
    REQUIRE_OK(TRAIN(&r, "never", freeze));
    CHECK(!same_file(&r, "gradual", "never", "model.safetensors"));
    REQUIRE_OK(TRAIN(&r, "always", rest));
    CHECK(!same_file(&r, "gradual", "always", "model.safetensors"));
}

TEST(parts_are_trained_later) {
    check_by_hand("model.freeze=stem,layer1,layer2", "model.unfreeze=1", "model.freeze=", "ema.decay=0.9",
                  "train.steps=6");
    check_by_hand("model.freeze=layer2, stem", "model.unfreeze=1,0", "model.freeze=stem", "optim.layer_decay=0.7",
                  "train.steps=6");
    check_by_hand("model.freeze=stem,layer1", "model.unfreeze=0,1", "model.freeze=stem", "train.accumulate=2",
                  "train.steps=3");
    check_by_hand("model.freeze=layer1", "model.unfreeze=1", "model.freeze=", "prune.sparsity=0.5", "train.steps=6");
}

TEST(resume_is_bitwise) {
    RESUMES("model.unfreeze=2", 18, "train.epochs=3", "model.freeze=stem,layer1,layer2", "model.unfreeze=2,2,1",
            "ema.decay=0.9");
}

/* An epoch need not end with a checkpoint. */
TEST(checkpoints_may_be_rare) {
    struct run r = prepare();
    give(&r, "model.freeze=stem", "model.unfreeze=1");
    REQUIRE_OK(TRAIN(&r, "rare", "train.save_every=5"));
    REQUIRE_OK(TRAIN(&r, "often", "train.save_every=1"));
    check_same(&r, "rare", "often");
}

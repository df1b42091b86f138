/* tests/programs/test_ranks_train.c: several ranks train like one rank with the whole batch: losses, weights,
 * evaluation, order of the images. Resumed runs: test_ranks_resume.c. Ranks are forked processes that communicate over
 * shared memory. */
#include "tests/harness/ranks_support.h"

static struct run prepare(void) {
    struct run r = prepare_run();
    give(&r, "train.device=cpu", "train.precision=fp32");
    return r;
}

/* ---- like one rank with the whole batch ---- */

/* With synchronised BN, k ranks compute the results of one rank, except for rounding. `spread`: the distance between
 * runs of one rank whose kernels sum in another order. */
static void check_like_one(int size, const char *batch, const char *accumulate) {
    struct run r = prepare();
    double     one[STEPS_MAX], plain[STEPS_MAX], three[STEPS_MAX], many[STEPS_MAX], spread = 0, far = 0;
    const int  steps = TEST_SANITIZED ? 8 : 50;
    give(&r, TEST_SANITIZED ? "train.steps=8" : "train.steps=50");
    CHECK(TRAIN(1, &r, "one", "train.batch=24") == 0);
    CHECK(TRAIN(1, &r, "plain", "train.batch=24", "train.fuse=no", "train.threads=2") == 0);
    CHECK(TRAIN(1, &r, "three", "train.batch=24", "train.threads=3") == 0);
    CHECK(TRAIN(size, &r, "many", batch, accumulate, "model.sync_bn=yes") == 0);
    CHECK(losses_of(&r, "one", one) == steps && losses_of(&r, "plain", plain) == steps);
    CHECK(losses_of(&r, "three", three) == steps && losses_of(&r, "many", many) == steps);
    for (int i = 0; i < steps; i++) {
        if (i < 5) CHECK(relative(one[i], many[i]) <= 1e-4);
        spread = fmax(spread, fmax(relative(one[i], plain[i]), relative(one[i], three[i])));
        far    = fmax(far, relative(one[i], many[i]));
    }
    fprintf(stderr, "    %d ranks: first step %.1e, largest of %d %.1e; three variants of one rank: %.1e\n", size,
            relative(one[0], many[0]), steps, far, spread);
    CHECK(far <= fmax(2 * spread, 1e-4));
}

TEST(ranks_train_like_one) {
    check_like_one(2, "train.batch=12", "train.accumulate=1");
    check_like_one(3, "train.batch=8", "train.accumulate=1");
    check_like_one(4, "train.batch=6", "train.accumulate=1");
}

/* Micro-batches: each update has the same images in the same micro-batches. Clipping and the logged norm use the
 * whole gradient. The size of the images changes after two steps on every rank. */
TEST(settings_are_those_of_the_whole_batch) {
    static const struct {
        const char *key, *batch_one, *batch_two;
    } settings[] = {{"train.accumulate=3", "train.batch=8", "train.batch=4"},
                    {"train.clip_norm=0.1", "train.batch=24", "train.batch=12"},
                    {"data.image_sizes=8@0,12@1", "train.batch=72", "train.batch=36"}};
    for (size_t i = 0; i < CR_COUNT(settings); i++) {
        struct run r = prepare();
        give(&r, settings[i].key);
        CHECK(TRAIN(1, &r, "one", settings[i].batch_one, "train.steps=5") == 0);
        CHECK(TRAIN(2, &r, "two", settings[i].batch_two, "train.steps=5", "model.sync_bn=yes") == 0);
        check_same_losses(&r, "one", "two", 5);
    }
}

/* No evaluation comes between the checkpoint and the ranks that read it. */
TEST(unfrozen_parts_are_the_same) {
    struct run r = prepare();
    give(&r, "model.freeze=stem", "model.unfreeze=1", "train.eval_every=0", "model.sync_bn=yes");
    CHECK(TRAIN(1, &r, "one", "train.batch=72", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=36", "train.steps=5") == 0);
    check_same_losses(&r, "one", "two", 5);
}

/* Without synchronised BN each rank normalises by its own images: the results differ, but not much. */
TEST(without_sync_bn_results_differ) {
    struct run r = prepare();
    double     one[STEPS_MAX], two[STEPS_MAX];
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5") == 0);
    CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
    CHECK(relative(one[0], two[0]) > 1e-6 && relative(one[0], two[0]) < 0.2);
}

TEST(mixed_images_are_the_same) {
    static const char *const batches[] = {"train.batch=24", "train.batch=12", "train.batch=8", "train.batch=6"};
    struct run               r         = prepare();
    give(&r, "model.sync_bn=yes", "data.mixup=0.4", "data.cutmix=1", "data.erase=0.25");
    for (int k = 0; k < 4; k++) {
        const char *const name = formatted("of%d", k + 1);
        CHECK(TRAIN(k + 1, &r, name, batches[k], "train.steps=5") == 0);
        check_same_losses(&r, "of1", name, 5);
    }
}

/* Each image has the same masks for any number of ranks. */
TEST(dropped_images_are_the_same) {
    struct run r = prepare();
    double     one[STEPS_MAX], other[STEPS_MAX];
    give(&r, "model.sync_bn=yes", "model.stochastic_depth=0.6", "model.dropout=0.4");
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5") == 0);
    CHECK(TRAIN(3, &r, "three", "train.batch=8", "train.steps=5") == 0);
    CHECK(TRAIN(1, &r, "other", "train.batch=24", "train.steps=5", "model.dropout=0") == 0);
    check_same_losses(&r, "one", "three", 5);
    CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "other", other) == 5);
    CHECK(relative(one[0], other[0]) > 1e-3); /* the comparison can fail */
}

/* Two ranks choose the masks of one rank, with the gradients of the whole batch. */
TEST(schedules_of_pruning_are_the_same) {
    static const char *const keys[][4] = {
        {"prune.schedule=acdc", "prune.start=0.25", "prune.sparse_epochs=0.25", "prune.dense_epochs=0.25"},
        {"prune.schedule=rigl", "prune.scope=erk", "prune.frequency=3", "prune.drop_fraction=0.5"}};
    double one[STEPS_MAX], plain[STEPS_MAX];
    for (size_t k = 0; k < CR_COUNT(keys); k++) {
        struct run r = prepare();
        CHECK(TRAIN(1, &r, "plain", "train.batch=24", "train.steps=12", "model.sync_bn=yes") == 0);
        give(&r, "model.sync_bn=yes", "prune.sparsity=0.7", "prune.end=1");
        for (int i = 0; i < 4; i++) give(&r, keys[k][i]);
        CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=12") == 0);
        CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=12") == 0);
        check_same_losses(&r, "one", "two", 12);
        CHECK(losses_of(&r, "one", one) == 12 && losses_of(&r, "plain", plain) == 12);
        CHECK(relative(one[11], plain[11]) > 1e-3);
    }
}

/* ---- bitwise identical results ---- */

TEST(equal_ranks_are_bitwise_identical) {
    struct run r = prepare();
    CHECK(TRAIN(3, &r, "a", "train.batch=8", "train.steps=7") == 0);
    CHECK(TRAIN(3, &r, "b", "train.batch=8", "train.steps=7", "data.workers=0") == 0);
    CHECK(same_weights(&r, "a", "b"));
}

/* However the gradients are split into buckets, each is added once. */
TEST(buckets_are_bitwise_identical) {
    struct run r = prepare();
    CHECK(TRAIN(2, &r, "a", "train.batch=8", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "b", "train.batch=8", "train.steps=5", "ranks.bucket_mib=25") == 0);
    CHECK(TRAIN(2, &r, "c", "train.batch=8", "train.steps=5", "ranks.bucket_mib=0.001") == 0);
    CHECK(same_weights(&r, "a", "b"));
    CHECK(same_weights(&r, "a", "c"));
}

/* 24 images per update with a learning rate for 6: four times the rate, or twice. */
TEST(learning_rate_scales_with_the_batch) {
    static const struct {
        const char *rule;
        double      lr;
    } rules[] = {{"none", 0.02}, {"linear", 0.08}, {"sqrt", 0.04}};
    for (size_t i = 0; i < CR_COUNT(rules); i++) {
        struct run r = prepare();
        char       line[1024];
        double     lr = 0;
        CHECK(TRAIN(2, &r, "run", "train.batch=6", "train.accumulate=2", "train.steps=2", "optim.lr_base_batch=6",
                    "schedule.kind=constant", formatted("optim.lr_scaling=%s", rules[i].rule)) == 0);
        OWNED(file) f = fopen(formatted("%s/run/log.jsonl", r.dir), "r");
        while (f && fgets(line, sizeof line, f))
            if (strstr(line, "\"lr\":")) lr = strtod(strstr(line, "\"lr\":") + 5, NULL);
        CHECK_NEAR(lr, rules[i].lr, 1e-6);
    }
}

/* Other update rules, whose norms and moments are of the whole gradient; averages of weights, and of the statistics
 * of each rank. */
TEST(other_rules_and_averages) {
    static const char *const rules[] = {"optim.kind=adamw", "optim.kind=lars", "optim.kind=muon"};
    for (size_t i = 0; i < CR_COUNT(rules); i++) {
        struct run r = prepare();
        give(&r, rules[i], "ema.decay=0.9");
        CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5", "optim.lr=0.01") == 0);
        CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5", "optim.lr=0.01", "model.sync_bn=yes") == 0);
        check_same_losses(&r, "one", "two", 5);
        CHECK(TRAIN(2, &r, "own", "train.batch=12", "train.steps=4", "data.mixup=0.2") == 0);
        CHECK(RESUME(2, &r, "own", "train.steps=6") == 0);
        CHECK(TRAIN(2, &r, "whole", "train.batch=12", "train.steps=6", "data.mixup=0.2", "train.save_every=4") == 0);
        CHECK(RESUME(1, &r, "whole", "train.steps=8") == 0); /* its checkpoint has the usual format */
    }
}

/* Rank 0 searches for the largest batch size; all ranks train with it, under the memory limit of the search. */
TEST(one_batch_size_is_found_for_all) {
    struct run r = prepare();
    double     loss[STEPS_MAX];
    CHECK(TRAIN(2, &r, "run", "train.batch=auto", "memory.limit=3MiB", "train.steps=2") == 0);
    CHECK(losses_of(&r, "run", loss) == 2);
}

TEST(gradients_may_be_sent_in_16_bits) {
    static const char *const types[] = {"ranks.reduce=fp16", "ranks.reduce=bf16"};
    struct run               r       = prepare();
    double                   wide[STEPS_MAX], half[STEPS_MAX];
    CHECK(TRAIN(2, &r, "wide", "train.batch=8", "train.steps=5") == 0);
    for (size_t i = 0; i < CR_COUNT(types); i++) {
        CHECK(TRAIN(2, &r, i ? "bf16" : "fp16", "train.batch=8", "train.steps=5", types[i]) == 0);
        CHECK(losses_of(&r, "wide", wide) == 5 && losses_of(&r, i ? "bf16" : "fp16", half) == 5);
        CHECK(!same_weights(&r, "wide", i ? "bf16" : "fp16"));
        for (int k = 0; k < 5; k++) CHECK(relative(wide[k], half[k]) < 0.02);
    }
}

static long number_of(const char *line, const char *key) {
    const char *at = strstr(line, key);
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* 37 images in batches of 4: the last rank has fewer images, sometimes none. */
static void check_evaluation(int size, const char *eval_batch) {
    struct run r = prepare();
    char       line[1024];
    long       images = -1;
    CHECK(TRAIN(size, &r, "run", "train.batch=6", "train.steps=3", eval_batch) == 0);
    OWNED(file) f = fopen(formatted("%s/run/log.jsonl", r.dir), "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "\"event\":\"eval\"")) images = number_of(line, "\"images\":");
    CHECK(images == 37);
    CHECK(RESUME(1, &r, "run", "train.steps=3") == 0); /* no change: a single rank can read it */
}
TEST(evaluation_counts_each_image_once) {
    check_evaluation(2, "train.eval_batch=4");
    check_evaluation(4, "train.eval_batch=16");
    check_evaluation(3, "train.eval_batch=5");
}

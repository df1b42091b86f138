/* tests/programs/test_ranks_train.c: several ranks train as one rank with their whole batch does: losses, weights,
 * evaluation, order of the pictures; runs go on with another number of ranks. Ranks are forked processes over shared
 * memory. */
#include "tests/harness/ranks_support.h"

static void prepare(struct run *r) {
    prepare_run(r);
    give(r, "train.device=cpu");
    give(r, "train.precision=fp32");
}

/* ---- as one rank with the whole batch ---- */

/* With BN over all ranks the k ranks compute what one does; rounding apart. `spread`: how far runs of one rank come
 * apart whose kernels add up in another order. */
static void check_like_one(int size, const char *batch, const char *accumulate) {
    struct run r;
    double     one[STEPS_MAX], plain[STEPS_MAX], three[STEPS_MAX], many[STEPS_MAX], spread = 0, far = 0;
    prepare(&r);
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=50") == 0);
    CHECK(TRAIN(1, &r, "plain", "train.batch=24", "train.steps=50", "train.fuse=no", "train.threads=2") == 0);
    CHECK(TRAIN(1, &r, "three", "train.batch=24", "train.steps=50", "train.threads=3") == 0);
    CHECK(TRAIN(size, &r, "many", batch, accumulate, "train.steps=50", "model.sync_bn=yes") == 0);
    CHECK(losses_of(&r, "one", one) == 50 && losses_of(&r, "plain", plain) == 50);
    CHECK(losses_of(&r, "three", three) == 50 && losses_of(&r, "many", many) == 50);
    for (int i = 0; i < 50; i++) {
        if (i < 5) CHECK(relative(one[i], many[i]) <= 1e-4);
        spread = fmax(spread, fmax(relative(one[i], plain[i]), relative(one[i], three[i])));
        far    = fmax(far, relative(one[i], many[i]));
    }
    fprintf(stderr, "    %d ranks: first step %.1e, worst of 50 %.1e; three ways of one rank: %.1e\n", size,
            relative(one[0], many[0]), far, spread);
    CHECK(far <= fmax(2 * spread, 1e-4));
    finish(&r);
}

static void two_ranks_train_like_one(void) {
    check_like_one(2, "train.batch=12", "train.accumulate=1");
}
static void three_ranks_train_like_one(void) {
    check_like_one(3, "train.batch=8", "train.accumulate=1");
}
static void four_ranks_train_like_one(void) {
    check_like_one(4, "train.batch=6", "train.accumulate=1");
}

/* Micro-batches of two ranks against those of one: each update has the same pictures in the same micro-batches. */
static void ranks_accumulate_like_one(void) {
    struct run r;
    double     one[STEPS_MAX], two[STEPS_MAX];
    prepare(&r);
    CHECK(TRAIN(1, &r, "one", "train.batch=8", "train.accumulate=3", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=4", "train.accumulate=3", "train.steps=5", "model.sync_bn=yes") == 0);
    CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
    for (int i = 0; i < 5; i++) CHECK(relative(one[i], two[i]) <= 1e-4);
    finish(&r);
}

/* Without it each rank normalises by its own pictures: other numbers, and not far away. */
static void without_sync_bn_numbers_are_others(void) {
    struct run r;
    double     one[STEPS_MAX], two[STEPS_MAX];
    prepare(&r);
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5") == 0);
    CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
    CHECK(relative(one[0], two[0]) > 1e-6 && relative(one[0], two[0]) < 0.2);
    finish(&r);
}

/* Clipping and the norm in the log are those of the whole gradient. */
static void clipping_is_of_the_whole_gradient(void) {
    struct run r;
    double     one[STEPS_MAX], two[STEPS_MAX];
    prepare(&r);
    CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5", "train.clip_norm=0.1") == 0);
    CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5", "train.clip_norm=0.1", "model.sync_bn=yes") == 0);
    CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
    for (int i = 0; i < 5; i++) CHECK(relative(one[i], two[i]) <= 1e-4);
    finish(&r);
}

/* Pictures are mixed with the same partners, however many ranks share them. */
static void mixed_pictures_are_the_same(void) {
    static const char *const batches[] = {"train.batch=24", "train.batch=12", "train.batch=8", "train.batch=6"};
    struct run               r;
    double                   loss[4][STEPS_MAX];
    prepare(&r);
    give(&r, "model.sync_bn=yes");
    give(&r, "data.mixup=0.4");
    give(&r, "data.cutmix=1");
    give(&r, "data.erase=0.25");
    for (int k = 0; k < 4; k++) {
        char name[SUPPORT_PATH];
        CHECK(TRAIN(k + 1, &r, text_into(name, "of%d", k + 1), batches[k], "train.steps=5") == 0);
        CHECK(losses_of(&r, name, loss[k]) == 5);
        for (int i = 0; i < 5; i++) CHECK(relative(loss[0][i], loss[k][i]) <= 1e-4);
    }
    finish(&r);
}

/* ---- the same bits ---- */

static void the_same_ranks_give_the_same_bits(void) {
    struct run r;
    prepare(&r);
    CHECK(TRAIN(3, &r, "a", "train.batch=8", "train.steps=7") == 0);
    CHECK(TRAIN(3, &r, "b", "train.batch=8", "train.steps=7", "data.workers=0") == 0);
    CHECK(same_weights(&r, "a", "b"));
    finish(&r);
}

/* However the gradients are cut, each is added up once. */
static void buckets_change_no_bit(void) {
    struct run r;
    prepare(&r);
    CHECK(TRAIN(2, &r, "a", "train.batch=8", "train.steps=5") == 0);
    CHECK(TRAIN(2, &r, "b", "train.batch=8", "train.steps=5", "ranks.bucket_mib=25") == 0);
    CHECK(TRAIN(2, &r, "c", "train.batch=8", "train.steps=5", "ranks.bucket_mib=0.001") == 0);
    CHECK(same_weights(&r, "a", "b"));
    CHECK(same_weights(&r, "a", "c"));
    finish(&r);
}

/* 24 pictures an update, a rate meant for 6: four times as much, or twice. */
static void the_rate_grows_with_the_update(void) {
    static const struct {
        const char *rule;
        double      lr;
    } rules[] = {{"none", 0.02}, {"linear", 0.08}, {"sqrt", 0.04}};
    for (size_t i = 0; i < CR_COUNT(rules); i++) {
        struct run r;
        char       rule[SUPPORT_PATH], path[SUPPORT_PATH], line[1024];
        double     lr = 0;
        prepare(&r);
        CHECK(TRAIN(2, &r, "run", "train.batch=6", "train.accumulate=2", "train.steps=2", "optim.lr_base_batch=6",
                    "schedule.kind=constant", text_into(rule, "optim.lr_scaling=%s", rules[i].rule)) == 0);
        FILE *f = fopen(text_into(path, "%s/run/log.jsonl", r.dir), "r");
        while (f && fgets(line, sizeof line, f))
            if (strstr(line, "\"lr\":")) lr = strtod(strstr(line, "\"lr\":") + 5, NULL);
        if (f) fclose(f);
        CHECK_NEAR(lr, rules[i].lr, 1e-6);
        finish(&r);
    }
}

/* Other rules, whose norms and moments are of the whole gradient; averages of weights, and of each rank's own
 * statistics. */
static void other_rules_and_averages(void) {
    static const char *const rules[] = {"optim.kind=adamw", "optim.kind=lars"};
    for (size_t i = 0; i < CR_COUNT(rules); i++) {
        struct run r;
        double     one[STEPS_MAX], two[STEPS_MAX];
        prepare(&r);
        give(&r, rules[i]);
        give(&r, "ema.decay=0.9");
        CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5", "optim.lr=0.01") == 0);
        CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5", "optim.lr=0.01", "model.sync_bn=yes") == 0);
        CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
        for (int k = 0; k < 5; k++) CHECK(relative(one[k], two[k]) <= 1e-4);
        CHECK(TRAIN(2, &r, "own", "train.batch=12", "train.steps=4", "data.mixup=0.2") == 0);
        CHECK(RESUME(2, &r, "own", "train.steps=6") == 0);
        CHECK(TRAIN(2, &r, "whole", "train.batch=12", "train.steps=6", "data.mixup=0.2", "train.save_every=4") == 0);
        CHECK(RESUME(1, &r, "whole", "train.steps=8") == 0); /* its checkpoint is like any other */
        finish(&r);
    }
}

/* Rank 0 looks for the largest batch; all train with it, under the limit that it was found for. */
static void a_batch_is_found_for_all(void) {
    struct run r;
    double     loss[STEPS_MAX];
    prepare(&r);
    CHECK(TRAIN(2, &r, "run", "train.batch=auto", "memory.limit=3MiB", "train.steps=2") == 0);
    CHECK(losses_of(&r, "run", loss) == 2);
    finish(&r);
}

/* Half the bytes on the way: near, but not the same. */
static void gradients_may_travel_in_16_bits(void) {
    static const char *const types[] = {"ranks.reduce=fp16", "ranks.reduce=bf16"};
    struct run               r;
    double                   wide[STEPS_MAX], half[STEPS_MAX];
    prepare(&r);
    CHECK(TRAIN(2, &r, "wide", "train.batch=8", "train.steps=5") == 0);
    for (size_t i = 0; i < CR_COUNT(types); i++) {
        CHECK(TRAIN(2, &r, i ? "bf16" : "fp16", "train.batch=8", "train.steps=5", types[i]) == 0);
        CHECK(losses_of(&r, "wide", wide) == 5 && losses_of(&r, i ? "bf16" : "fp16", half) == 5);
        CHECK(!same_weights(&r, "wide", i ? "bf16" : "fp16"));
        for (int k = 0; k < 5; k++) CHECK(relative(wide[k], half[k]) < 0.02);
    }
    finish(&r);
}

/* ---- going on ---- */

/* Saved by two ranks in the middle of an epoch: one, and four, go on with the same pictures in the same updates. */
static void check_resume(int size) {
    struct run r;
    double     whole[STEPS_MAX], parts[STEPS_MAX];
    prepare(&r);
    give(&r, "model.sync_bn=yes");
    give(&r, "train.batch=12");
    CHECK(TRAIN(2, &r, "whole", "train.steps=20") == 0);
    CHECK(TRAIN(2, &r, "parts", "train.steps=11") == 0);
    r.count--; /* train.batch: the run knows its own */
    CHECK(RESUME(size, &r, "parts", "train.steps=20") == 0);
    CHECK(losses_of(&r, "whole", whole) == 20 && losses_of(&r, "parts", parts) == 20);
    for (int i = 11; i < 16; i++) CHECK(relative(whole[i], parts[i]) <= 1e-4);
    finish(&r);
}
static void two_ranks_save_one_goes_on(void) {
    check_resume(1);
}
static void two_ranks_save_four_go_on(void) {
    check_resume(4);
}

/* Without SyncBN: each rank's own running statistics are in the state. Nothing is due at steps 7 and 11, as nothing is
 * when a signal comes: a save and an evaluation leave no trace in what follows. */
static void check_unscheduled(int size, const char *batch) {
    struct run r;
    prepare(&r);
    give(&r, batch);
    give(&r, "ema.decay=0.9");
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
    finish(&r);
}
static void ranks_stop_anywhere_and_go_on_to_the_bit(void) {
    check_unscheduled(2, "train.batch=12");
    check_unscheduled(3, "train.batch=8");
}

/* What each rank has kept is for as many ranks; others take the mean, and refuse what does not fit. */
static void own_statistics_are_for_as_many_ranks(void) {
    struct run r;
    prepare(&r);
    CHECK(TRAIN(2, &r, "run", "train.batch=12", "train.steps=5") == 0);
    CHECK(RESUME(4, &r, "run", "train.steps=8") == 0);
    CHECK(RESUME(1, &r, "run", "train.steps=10") == 0);
    CHECK(RESUME(2, &r, "run", "train.steps=12") == 0);
    CHECK(TRAIN(2, &r, "sync", "train.batch=12", "train.steps=5", "model.sync_bn=yes") == 0);
    CHECK(RESUME(2, &r, "sync", "train.steps=8") == 0);
    finish(&r);
}

/* LARS and AdamW, each with averages. */
static const char *const rule_keys[2][2] = {{"optim.kind=lars", "optim.lr=1"}, {"optim.kind=adamw", "optim.lr=0.001"}};

static void the_other_rules_train_like_one(void) {
    for (int k = 0; k < 2; k++) {
        struct run r;
        double     one[STEPS_MAX], two[STEPS_MAX];
        prepare(&r);
        for (int i = 0; i < 2; i++) give(&r, rule_keys[k][i]);
        give(&r, "ema.decay=0.9");
        CHECK(TRAIN(1, &r, "one", "train.batch=24", "train.steps=5") == 0);
        CHECK(TRAIN(2, &r, "two", "train.batch=12", "train.steps=5", "model.sync_bn=yes") == 0);
        CHECK(losses_of(&r, "one", one) == 5 && losses_of(&r, "two", two) == 5);
        for (int i = 0; i < 5; i++) CHECK(relative(one[i], two[i]) <= 1e-4);
        finish(&r);
    }
}

/* BN a rank: saved averages of running statistics are those of all ranks, and runs go on from them. */
static void averages_go_on_to_the_bit(void) {
    struct run r;
    char       path[2][SUPPORT_PATH], *bytes[2] = {NULL, NULL};
    size_t     length[2];
    prepare(&r);
    give(&r, "train.batch=12");
    give(&r, "ema.decay=0.9");
    for (int i = 0; i < 2; i++) give(&r, rule_keys[1][i]);
    CHECK(TRAIN(2, &r, "whole", "train.steps=20") == 0);
    CHECK(TRAIN(2, &r, "parts", "train.steps=11") == 0);
    CHECK(RESUME(2, &r, "parts", "train.steps=20") == 0);
    CHECK(same_weights(&r, "whole", "parts"));
    for (int i = 0; i < 2; i++) {
        text_into(path[i], "%s/%s/last/ema.safetensors", r.dir, i ? "parts" : "whole");
        REQUIRE_OK(cr_file_read(path[i], 1 << 20, &bytes[i], &length[i]));
    }
    CHECK(length[0] == length[1] && memcmp(bytes[0], bytes[1], length[0]) == 0);
    for (int i = 0; i < 2; i++) cr_free(bytes[i]);
    finish(&r);
}

/* Ten pictures cannot be shared by four. */
static void an_update_that_cannot_be_shared_is_refused(void) {
    struct run r;
    prepare(&r);
    CHECK(TRAIN(2, &r, "run", "train.batch=5", "train.steps=3") == 0);
    CHECK(RESUME(4, &r, "run", "train.steps=6") == 2);
    finish(&r);
}

/* ---- evaluation ---- */

static long number_of(const char *line, const char *key) {
    const char *at = strstr(line, key);
    return at ? strtol(at + strlen(key), NULL, 10) : -1;
}

/* 37 pictures in batches of 4: the last rank's share is smaller, and at times empty. */
static void check_evaluation(int size, const char *eval_batch) {
    struct run r;
    char       path[SUPPORT_PATH], line[1024];
    long       images = -1;
    prepare(&r);
    CHECK(TRAIN(size, &r, "run", "train.batch=6", "train.steps=3", eval_batch) == 0);
    FILE *f = fopen(text_into(path, "%s/run/log.jsonl", r.dir), "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "\"event\":\"eval\"")) images = number_of(line, "\"images\":");
    if (f) fclose(f);
    CHECK(images == 37);
    CHECK(RESUME(1, &r, "run", "train.steps=3") == 0); /* nothing to do: readable by one */
    finish(&r);
}
static void evaluation_counts_each_picture_once(void) {
    check_evaluation(2, "train.eval_batch=4");
    check_evaluation(4, "train.eval_batch=16");
    check_evaluation(3, "train.eval_batch=5");
}

TESTS(CASE(two_ranks_train_like_one), CASE(three_ranks_train_like_one), CASE(four_ranks_train_like_one),
      CASE(ranks_accumulate_like_one), CASE(without_sync_bn_numbers_are_others),
      CASE(clipping_is_of_the_whole_gradient), CASE(mixed_pictures_are_the_same),
      CASE(the_same_ranks_give_the_same_bits), CASE(buckets_change_no_bit), CASE(the_rate_grows_with_the_update),
      CASE(other_rules_and_averages), CASE(a_batch_is_found_for_all), CASE(gradients_may_travel_in_16_bits),
      CASE(two_ranks_save_one_goes_on), CASE(two_ranks_save_four_go_on), CASE(ranks_stop_anywhere_and_go_on_to_the_bit),
      CASE(own_statistics_are_for_as_many_ranks), CASE(the_other_rules_train_like_one), CASE(averages_go_on_to_the_bit),
      CASE(an_update_that_cannot_be_shared_is_refused), CASE(evaluation_counts_each_picture_once))

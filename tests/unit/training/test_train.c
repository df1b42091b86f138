/* tests/unit/training/test_train.c: training runs: resume is bitwise identical from any step, frozen parameters do not
 * change, a loss that is not finite ends the run without damage, weights are loaded or refused according to model.head,
 * evaluation counts every image once, and the step loop does not allocate. */
#include "tests/harness/train_support.h"

/* ---- resume ---- */

/* Stopped after every single step, at the end of an epoch and in the middle, with batches left over. */
TEST(resume_is_bitwise_identical) {
    RESUMES("train.seed=2", 12, "train.accumulate=1");
}
TEST(resume_with_batches_left_over) {
    RESUMES("train.seed=2", 2, "train.accumulate=4"); /* one update and two remaining batches per epoch */
    RESUMES("train.seed=2", 6, "train.accumulate=2");
}

/* Pruning before updates 3, 5, 7, 9 and after the last: stopped at, before and after each. */
#define GRADUAL "prune.sparsity=0.8", "prune.initial=0.1", "prune.start=0.5", "prune.end=1.7", "prune.frequency=2"
TEST(resume_in_the_middle_of_pruning) {
    RESUMES("prune.frequency=3", 12, GRADUAL);
    RESUMES("prune.frequency=3", 6, GRADUAL, "train.accumulate=2");
}

TEST(changed_config_needs_force) {
    struct run r = prepare();
    REQUIRE_OK(TRAIN(&r, "a", "train.steps=3"));
    CHECK_STATUS(RESUME(&r, "a", "train.steps=4", "train.batch=2"), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "train.batch: 4 -> 2");
    CHECK_STATUS(RESUME(&r, "a", "train.steps=4", "model.widths=4,8"), CR_ERR_CONFIG);
    CHECK_STATUS(RESUME(&r, "a", "train.steps=4", "data.train_images=27"), CR_ERR_CONFIG);
    REQUIRE_OK(RESUME(&r, "a", "train.steps=4", "optim.lr=0.01")); /* neither model nor data order */
    const char *const forced[] = {"train.steps=5", "train.batch=2", NULL};
    REQUIRE_OK(train(&r, "a", "auto", true, forced));
    CHECK_STATUS(TRAIN(&r, "a", "train.steps=9"), CR_ERR_CONFIG); /* in use */
}

/* The same command line continues with the batch size that was found when the run began, for any amount of memory. */
TEST(found_batch_size_is_reused) {
    struct run r = prepare();
    REQUIRE_OK(TRAIN(&r, "whole", "train.batch=24", "train.steps=2"));
    REQUIRE_OK(TRAIN(&r, "cut", "train.batch=auto", "memory.limit=1GiB", "train.steps=1"));
    REQUIRE_OK(RESUME(&r, "cut", "train.batch=auto", "memory.limit=2GiB", "train.steps=2"));
    check_same(&r, "whole", "cut");
    CHECK_STATUS(TRAIN(&r, "few", "train.batch=auto", "train.accumulate=27"), CR_ERR_CONFIG); /* of 26 images */
    CHECK_HAS(cr_error_message(), "the training set has 26");
}

/* ---- parameters of a session, read through the lists that checkpoints use ---- */

#define OPEN_SESSION(s, run, ...)                                                                                      \
    open_session((s), (run), (struct cr_session_options){.train = true, .eval = true, .execute = true},                \
                 (const char *const[]){__VA_ARGS__, NULL})

static const float *values_of(const struct cr_session *s, int param) {
    const struct cr_param *q      = &s->model.store.param[param];
    enum cr_param_buffer   buffer = cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE;
    const char            *base   = s->memory.region[CR_REGION_STORE];
    return (const float *)(const void *)(base + cr_param_store_buffer_offset(&s->model.store, buffer)) + q->offset;
}

/* Compares each parameter of two sessions; `frozen` names the prefixes that must be bitwise identical; all others must
 * differ. */
static void check_frozen(const struct cr_session *before, const struct cr_session *after, const char *const *frozen) {
    for (int i = 0; i < before->model.store.params; i++) {
        const struct cr_param *q    = &before->model.store.param[i];
        bool                   held = false;
        for (int k = 0; frozen[k]; k++) held |= strncmp(q->name, frozen[k], strlen(frozen[k])) == 0;
        bool same = memcmp(values_of(before, i), values_of(after, i), (size_t)q->elems * sizeof(float)) == 0;
        if (same != held) TEST_FAIL_("%s %s", q->name, same ? "did not change" : "changed");
    }
}

static void check_freeze(const char *freeze, const char *const *frozen) {
    struct run    r      = prepare();
    OWNED(opened) before = {0}, after = {0};
    /* weights whose running statistics differ from those of a new network */
    REQUIRE_OK(TRAIN(&r, "start", "train.steps=3"));
    const char *const start = formatted("%s/start/last", r.dir);
    REQUIRE_OK(TRAIN(&r, "frozen", formatted("model.weights=%s", start), freeze, "optim.weight_decay=0.1",
                     "optim.decay_norm_bias=yes"));
    REQUIRE_OK(OPEN_SESSION(&before, &r, NULL));
    REQUIRE_OK(OPEN_SESSION(&after, &r, NULL));
    REQUIRE_OK(cr_session_load_weights(&before.session, start, true));
    REQUIRE_OK(cr_session_load_weights(&after.session, formatted("%s/frozen/last", r.dir), true));
    check_frozen(&before.session, &after.session, frozen);
}
TEST(frozen_parameters_do_not_change) {
    check_freeze("model.freeze=stem,layer1", (const char *const[]){"conv1", "bn1", "layer1", NULL});
    check_freeze("model.freeze=layer2", (const char *const[]){"layer2", NULL});
    check_freeze("model.freeze=stem,layer1,layer2", (const char *const[]){"conv1", "bn1", "layer1", "layer2", NULL});
    check_freeze("model.freeze=fc", (const char *const[]){"fc", NULL});
}

/* A large product of decay and learning rate makes the weights grow without bound. */
TEST(infinite_loss_stops_without_damage) {
    struct run    r = prepare();
    OWNED(opened) s = {0};
    give(&r, "optim.lr=1000", "optim.weight_decay=10", "schedule.kind=constant", "schedule.warmup_epochs=0",
         "optim.decay_norm_bias=yes", "train.save_every=1");
    CHECK_STATUS(TRAIN(&r, "a", "train.epochs=9"), CR_ERR_NUMERIC);
    CHECK_HAS(cr_error_message(), "is not finite");
    CHECK_HAS(cr_error_message(), "optim.lr");
    REQUIRE_OK(OPEN_SESSION(&s, &r, "train.steps=0"));
    REQUIRE_OK(cr_session_load_weights(&s.session, formatted("%s/a", r.dir), true));
    for (int i = 0; i < s.session.model.store.params; i++)
        for (int64_t k = 0; k < s.session.model.store.param[i].elems; k++)
            if (!isfinite(values_of(&s.session, i)[k]))
                TEST_FAIL_("%s is not finite", s.session.model.store.param[i].name);
}

TEST(weights_are_loaded_or_refused) {
    struct run    r = prepare();
    struct opened s;
    REQUIRE_OK(TRAIN(&r, "three", "train.steps=1"));
    const char *const path    = formatted("%s/three", r.dir);
    const char *const weights = formatted("model.weights=%s", path);
    /* another number of classes */
    CHECK_STATUS(TRAIN(&r, "keep", weights, "model.classes=7", "model.head=keep"), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "3 classes");
    REQUIRE_OK(TRAIN(&r, "auto", weights, "model.classes=7", "train.steps=1"));
    /* another width */
    CHECK_STATUS(TRAIN(&r, "wide", weights, "model.widths=4,8"), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "has shape");
    CHECK_HAS(cr_error_message(), "layer2.0.conv1.weight");
    /* head = new replaces a classifier that would fit, keep loads it */
    for (int fresh = 0; fresh < 2; fresh++) {
        REQUIRE_OK(OPEN_SESSION(&s, &r, fresh ? "model.head=new" : "model.head=keep", "train.seed=9"));
        int fc            = cr_param_store_find(&s.session.model.store, "fc.weight"),
            conv          = cr_param_store_find(&s.session.model.store, "conv1.weight");
        const float first = *values_of(&s.session, fc), conv_first = *values_of(&s.session, conv);
        REQUIRE_OK(cr_session_load_weights(&s.session, path, false));
        CHECK((*values_of(&s.session, fc) == first) == (fresh == 1));
        CHECK(*values_of(&s.session, conv) != conv_first);
        close_session(&s);
    }
}

/* Some updates; the loader starts again each time. */
static void train_a_little(struct cr_session *s, const struct cr_dataset *set) {
    const struct cr_loader_options options = {
        .split = CR_SPLIT_TRAIN, .prepare = s->prepare_train, .batch = 4, .seed = 1, .prefetch = 2, .drop_last = true};
    const struct cr_step_block block  = {.lr = 0.05f, .momentum = 0.9f};
    OWNED(loader)              loader = NULL;
    REQUIRE_OK(cr_loader_open(set, &options, &loader));
    for (int step = 0; step < 3; step++) {
        struct cr_batch batch;
        REQUIRE_OK(cr_loader_next(loader, &batch));
        REQUIRE_OK(cr_exec_feed(s->train_exec[0], batch.images, batch.labels, batch.boxes));
        cr_loader_release(loader, &batch);
        REQUIRE_OK(cr_exec_run(s->train_exec[0], &block));
    }
}

/* Data that evaluation computes once for many batches must not persist over the training between two evaluations. */
TEST(earlier_evaluation_changes_nothing) {
    struct run r = prepare();
    double     loss[2];
    for (int before = 0; before < 2; before++) {
        OWNED(opened)    s         = {0};
        OWNED(dataset)   train_set = NULL, val_set = NULL;
        struct cr_scores scores;
        REQUIRE_OK(OPEN_SESSION(&s, &r, NULL));
        REQUIRE_OK(cr_dataset_open(s.config, CR_SPLIT_TRAIN, &train_set));
        REQUIRE_OK(cr_dataset_open(s.config, CR_SPLIT_VAL, &val_set));
        CHECK(s.session.eval.hoisted > 0);
        if (before) REQUIRE_OK(cr_session_evaluate(&s.session, val_set, NULL, &scores));
        train_a_little(&s.session, train_set);
        REQUIRE_OK(cr_session_evaluate(&s.session, val_set, NULL, &scores));
        loss[before] = scores.loss_sum;
    }
    CHECK(isfinite(loss[0]) && loss[0] > 0 && loss[0] == loss[1]);
}

TEST(step_loop_does_not_allocate) {
    static const char *const worker_options[] = {"data.workers=0", "data.workers=2"};
    for (size_t w = 0; w < CR_COUNT(worker_options); w++) {
        struct run     r           = prepare();
        OWNED(opened)  s           = {0};
        OWNED(dataset) set         = NULL;
        OWNED(loader)  loader      = NULL;
        uint64_t       after_first = 0;
        REQUIRE_OK(OPEN_SESSION(&s, &r, worker_options[w]));
        REQUIRE_OK(cr_dataset_open(s.config, CR_SPLIT_TRAIN, &set));
        const struct cr_loader_options options = {.split     = CR_SPLIT_TRAIN,
                                                  .prepare   = s.session.prepare_train,
                                                  .batch     = 4,
                                                  .seed      = 1,
                                                  .workers   = (int)s.config->data.workers,
                                                  .prefetch  = 2,
                                                  .drop_last = true};
        const struct cr_step_block     block   = {.lr = 0.01f, .momentum = 0.9f};
        REQUIRE_OK(cr_loader_open(set, &options, &loader));
        for (int step = 1; step <= 100; step++) {
            struct cr_batch batch;
            float           metrics[4];
            REQUIRE_OK(cr_loader_next(loader, &batch));
            REQUIRE_OK(cr_exec_feed(s.session.train_exec[0], batch.images, batch.labels, batch.boxes));
            cr_loader_release(loader, &batch);
            REQUIRE_OK(cr_exec_run(s.session.train_exec[0], &block));
            REQUIRE_OK(cr_exec_get(s.session.train_exec[0], s.session.train[0].metrics, metrics));
            /* a worker allocates its scratch memory with its first image: with workers that may be a few steps later */
            if (step == (s.config->data.workers ? 30 : 1)) after_first = cr_alloc_calls();
        }
        CHECK_INT(cr_alloc_calls(), after_first);
    }
}

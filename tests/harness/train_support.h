/* tests/harness/train_support.h: a tiny training run in its own folder, and bitwise comparison of two such runs. */
#ifndef CR_TEST_TRAIN_SUPPORT_H
#define CR_TEST_TRAIN_SUPPORT_H

#include "session/checkpoint_tensors.h"
#include "tests/harness/run_support.h"

/* A tiny run of 26 images: batches of 4, six per epoch. */
static inline struct run prepare(void) {
    struct run               r;
    static const char *const tiny[] = {"model.arch=custom",  "model.depths=1,1",      "model.widths=4,6",
                                       "model.shortcut=B",   "model.classes=3",       "data.kind=synthetic",
                                       "data.image_size=8",  "data.crop=pad",         "data.train_images=26",
                                       "data.val_images=5",  "data.workers=1",        "train.batch=4",
                                       "train.epochs=2",     "train.device=cpu",      "train.threads=1",
                                       "optim.nesterov=yes", "train.save_every=1000", "schedule.warmup_epochs=0.5"};
    prepare_run_with(&r, tiny, CR_COUNT(tiny));
    return r;
}

static inline cr_status train(const struct run *base, const char *name, const char *resume, bool force,
                              const char *const *more) {
    return train_run(base, name, (struct cr_train_options){.resume = resume, .force = force}, more);
}
#define TRAIN(run, name, ...) train((run), (name), NULL, false, (const char *const[]){__VA_ARGS__, NULL})
#define RESUME(run, name, ...) train((run), (name), "auto", false, (const char *const[]){__VA_ARGS__, NULL})

static inline void check_same(const struct run *r, const char *a, const char *b) {
    CHECK(same_file(r, a, b, "model.safetensors"));
    CHECK(same_file(r, a, b, "state.safetensors"));
}

/* The session of a run's configuration with more overrides (ended by NULL), with new parameters. */
struct opened {
    const struct cr_config *config;
    struct cr_session       session;
};
static inline cr_status open_session(struct opened *o, const struct run *r, struct cr_session_options options,
                                     const char *const *more) {
    struct run all = *r;
    give_all(&all, more);
    *o = (struct opened){0};
    CR_TRY(cr_config_open(&o->config, NULL, all.value, all.count));
    CR_TRY(cr_session_open(o->config, &options, &o->session));
    return options.execute ? cr_session_init(&o->session) : CR_OK;
}
static inline void close_session(struct opened *o) {
    cr_session_close(&o->session);
    cr_config_close(o->config);
}
OWNABLE(opened, struct opened, close_session(x))

/* The number after "key": in JSON; NaN without it. */
static inline double json_number(const char *text, const char *key) {
    const char *quoted = formatted("\"%s\":", key), *at = strstr(text, quoted);
    return at ? strtod(at + strlen(quoted), NULL) : NAN;
}

/* Trains without interruption, and again stopped after each `every`-th step before `total` and resumed: the files must
 * be bitwise identical. */
static inline void resumes_bitwise(const struct run *r, int total, int every) {
    REQUIRE_OK(TRAIN(r, "whole", "train.steps=0"));
    for (int cut = 1; cut < total; cut += every) {
        const char *const name = formatted("cut%d", cut);
        REQUIRE_OK(TRAIN(r, name, formatted("train.steps=%d", cut)));
        REQUIRE_OK(RESUME(r, name, "train.steps=0"));
        check_same(r, "whole", name);
    }
}
/* Trains with one changed value: the files must differ, which shows that the comparison can fail. */
static inline void changes_the_weights(const struct run *r, const char *changed) {
    REQUIRE_OK(TRAIN(r, "other", changed));
    CHECK(!same_file(r, "whole", "other", "model.safetensors"));
}
/* Both, for a run with these keys (ended by NULL). */
static inline void keys_resume(const char *changed, int total, const char *const *keys) {
    struct run r = prepare();
    give_all(&r, keys);
    resumes_bitwise(&r, total, 1);
    changes_the_weights(&r, changed);
}
#define RESUMES(changed, total, ...) keys_resume((changed), (total), (const char *const[]){__VA_ARGS__, NULL})

#endif

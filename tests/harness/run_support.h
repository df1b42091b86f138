/* tests/harness/run_support.h: a folder for runs, the overrides of their configuration, trainings in it. */
#ifndef CR_TEST_RUN_SUPPORT_H
#define CR_TEST_RUN_SUPPORT_H

#include "tests/harness/data_support.h"
#include "training/training.h"

enum { MOST = 48 };

struct run {
    char        dir[SUPPORT_PATH];
    const char *value[MOST];
    int         count;
};

/* Overrides for all later trainings of the run. */
#define give(r, ...) give_all((r), (const char *const[]){__VA_ARGS__, NULL})
static inline void give_all(struct run *r, const char *const *values) {
    for (; *values; values++) {
        CR_ASSERT(r->count < MOST);
        r->value[r->count++] = *values;
    }
}

/* Starts a list of overrides in a new folder. */
static inline void prepare_run_with(struct run *r, const char *const *values, size_t count) {
    make_folder(r->dir);
    r->count = 0;
    for (size_t i = 0; i < count; i++) give(r, values[i]);
}

/* Trains in dir/name with more overrides (ended by NULL). The overrides in `options` are set here. */
static inline cr_status train_run(const struct run *base, const char *name, struct cr_train_options options,
                                  const char *const *more) {
    struct run    r      = *base;
    OWNED(config) config = NULL;
    int           signal_taken;
    give(&r, formatted("train.output=%s/%s", base->dir, name));
    give_all(&r, more);
    CR_TRY(cr_config_open(&config, NULL, r.value, r.count));
    options.overrides      = r.value;
    options.override_count = r.count;
    return cr_train(config, &options, &signal_taken);
}

/* True when this file of the last checkpoint is bitwise identical in both runs. */
static inline bool same_file(const struct run *r, const char *a, const char *b, const char *file) {
    return same_bytes(formatted("%s/%s/last/%s", r->dir, a, file), formatted("%s/%s/last/%s", r->dir, b, file));
}

#endif

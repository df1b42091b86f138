/* tests/harness/run_support.h: a folder for runs, the overrides of their configuration, trainings in it. */
#ifndef CR_TEST_RUN_SUPPORT_H
#define CR_TEST_RUN_SUPPORT_H

#include "session/session.h"
#include "tests/harness/data_support.h"
#include "training/training.h"

enum { MOST = 48 };

struct run {
    char        dir[SUPPORT_PATH];
    const char *value[MOST];
    int         count;
};

static inline void give(struct run *r, const char *value) {
    CR_ASSERT(r->count < MOST);
    r->value[r->count++] = value;
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
    struct run              r = *base;
    const struct cr_config *config;
    char                    output[SUPPORT_PATH + 64];
    int                     signal_taken;
    snprintf(output, sizeof output, "train.output=%s/%s", base->dir, name);
    give(&r, output);
    for (; *more; more++) give(&r, *more);
    CR_TRY(cr_config_open(&config, NULL, r.value, r.count));
    options.overrides      = r.value;
    options.override_count = r.count;
    cr_status status       = cr_train(config, &options, &signal_taken);
    cr_config_close(config);
    return status;
}

/* True when this file of the last checkpoint is bitwise identical in both runs. */
static inline bool same_file(const struct run *r, const char *a, const char *b, const char *file) {
    char path_a[SUPPORT_PATH], path_b[SUPPORT_PATH];
    return same_bytes(text_into(path_a, "%s/%s/last/%s", r->dir, a, file),
                      text_into(path_b, "%s/%s/last/%s", r->dir, b, file));
}

#endif

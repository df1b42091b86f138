/* cli/compress/recalibrate.c: recalibrates the BN running statistics of a pruned network. */
#include "cli/compress/compress.h"
#include "data/data.h"

#define BATCH "train.batch=64" /* with train.batch = auto */

struct job {
    const struct cr_config *stored, *config; /* as stored; for the statistics */
    struct cr_dataset      *train;
    struct cr_session       session, plain;
    float                  *running;
};

/* The running statistics, from training batches in the order of the first epoch. */
static cr_status estimate(struct job *j, int classes) {
    const struct cr_bn_options      bn      = {.batches = j->config->ema.swa_batches};
    const struct cr_session_options options = {
        .train = true, .train_data = j->train, .execute = true, .masks = true, .classes = classes};
    CR_TRY(cr_session_open(j->config, &options, &j->session));
    CR_TRY(cr_session_init(&j->session));
    CR_TRY(cr_session_load_weights(&j->session, j->config->model.weights, true));
    CR_TRY(cr_session_bn_statistics(&j->session, j->train, &bn, NULL));
    return cr_state_buffer_copy(&j->session, CR_BUFFER_RUNNING, &j->running);
}

/* Writes the network with these statistics. */
static cr_status save(struct job *j, int classes, const char *from, const char *to) {
    const struct cr_session_options options = {
        .eval = true, .execute = true, .masks = true, .eval_batch = 1, .classes = classes};
    const struct cr_config *local = NULL;
    cr_status               status;
    CR_TRY_OUT(cr_config_derive(&local, j->stored, 0, CR_CHANGES(CR_CMD_ON_CPU)));
    CR_TRY_OUT(cr_session_open(local, &options, &j->plain));
    CR_TRY_OUT(cr_session_init(&j->plain));
    CR_TRY_OUT(cr_session_load_weights(&j->plain, from, true));
    if (j->running) CR_TRY_OUT(cr_state_buffer_put(&j->plain, CR_BUFFER_RUNNING, j->running));
    CR_TRY_OUT(cr_config_set(&j->stored, "train.output", to));
    CR_TRY_OUT(cr_config_set(&j->stored, "model.weights", ""));
    CR_TRY_OUT(cr_prune_save(&j->plain, j->stored, from));
out:
    cr_config_close(local);
    return status;
}

static cr_status open_config(const struct cr_compress *c, const char *folder, struct job *j) {
    char ini[CR_PATH_MAX];
    CR_TRY(cr_path_join(ini, folder, "last/config.ini"));
    CR_TRY(cr_config_open_stored(&j->stored, ini, c->args->override, c->args->overrides));
    CR_TRY(cr_config_derive(&j->config, j->stored, CR_DECIDES_UPDATE,
                            CR_CHANGES("train.precision=fp32", "train.accumulate=1", "quant.type=none",
                                       "distill.teacher=", "prune.sparsity=0")));
    CR_TRY(cr_config_set(&j->config, "model.weights", folder));
    if (j->config->train.batch == 0) CR_TRY(cr_config_change(&j->config, CR_CHANGES(BATCH)));
    return CR_OK;
}

cr_status cr_compress_recalibrate(const struct cr_compress *c, const char *from, const char *to) {
    struct job j = {0};
    int        classes;
    cr_status  status;
    CR_TRY_OUT(open_config(c, from, &j));
    CR_TRY_OUT(cr_dataset_open(j.config, CR_SPLIT_TRAIN, &j.train));
    classes = j.train->classes;
    /* without a momentum the network has the statistics that it was given */
    if (j.config->model.bn_momentum > 0) CR_TRY_OUT(estimate(&j, classes));
    CR_TRY_OUT(save(&j, classes, from, to));
out:
    cr_free(j.running);
    cr_session_close(&j.plain);
    cr_session_close(&j.session);
    cr_dataset_close(j.train);
    cr_config_close(j.config);
    cr_config_close(j.stored);
    return status;
}

/* training/ranks.c: start of distributed training: ranks agree on configuration, batch size, learning-rate scaling. */
#include "training/run.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t cr_run_batch(const struct cr_run *run) {
    return run->session.state.batch ? run->session.state.batch : run->config->train.batch;
}

int64_t cr_run_update_images(const struct cr_run *run) {
    return cr_run_batch(run) * run->config->train.accumulate * cr_comm_size(run->comm);
}

/* ---- folders ---- */

struct folders {
    char dir[PATH_MAX], from[PATH_MAX]; /* `from` is "" for a new run */
};

cr_status cr_run_share_folders(struct cr_run *run) {
    struct folders *f;
    if (cr_comm_size(run->comm) == 1) return CR_OK;
    CR_ALLOC(f, 1);
    if (run->dir) snprintf(f->dir, sizeof f->dir, "%s", run->dir);
    if (run->from) snprintf(f->from, sizeof f->from, "%s", run->from);
    cr_status status = cr_comm_broadcast(run->comm, f, sizeof *f, 0);
    if (status == CR_OK && cr_comm_rank(run->comm) > 0) {
        run->dir  = cr_strdup(f->dir);
        run->from = *f->from ? cr_strdup(f->from) : NULL;
        if (!run->dir || (*f->from && !run->from)) status = CR_NO_MEMORY(sizeof *f);
    }
    cr_free(f);
    return status;
}

/* ---- data ---- */

cr_status cr_run_open_data_one_rank_at_a_time(struct cr_run *run, cr_status (*open)(struct cr_run *run)) {
    if (cr_comm_size(run->comm) == 1) return open(run);
    const bool first = cr_comm_rank_info(run->comm, cr_comm_rank(run->comm))->local_rank == 0;
    if (first) CR_TRY(open(run));
    CR_TRY(cr_comm_barrier(run->comm));
    if (first) return CR_OK;
    cr_dataset_warnings(false); /* the first rank of this host has logged them */
    return open(run);
}

/* Compares all keys but those of one host. */
static cr_status check_configs_agree(struct cr_run *run) {
    const struct cr_config *c;
    struct cr_text          text = {0};
    CR_TRY(cr_config_derive(&c, run->config, CR_DECIDES_HOST, NULL, 0));
    cr_config_dump(c, &text);
    cr_config_close(c);
    int64_t   length = (int64_t)text.length;
    cr_status status =
        text.failed ? CR_NO_MEMORY(4096) : cr_comm_same(run->comm, &length, sizeof length, "the configuration");
    if (status == CR_OK) status = cr_comm_same(run->comm, text.data, text.length, "the configuration");
    cr_text_free(&text);
    return status;
}

cr_status cr_run_check_ranks_agree(struct cr_run *run) {
    const uint64_t data[] = {run->train->fingerprint, run->val->fingerprint};
    if (cr_comm_size(run->comm) == 1) return CR_OK;
    CR_TRY(check_configs_agree(run));
    const uint64_t teacher = run->teacher ? run->teacher->hash : 0;
    CR_TRY(cr_comm_same(run->comm, &teacher, sizeof teacher, "the network of distill.teacher"));
    return cr_comm_same(run->comm, data, sizeof data, "the dataset (names, labels, sizes)");
}

/* ---- resume with another number of ranks ---- */

cr_status cr_run_fit_batch(struct cr_run *run, const struct cr_config *stored, bool force, bool *same_update) {
    const struct cr_config *c    = run->config;
    const int64_t           size = cr_comm_size(run->comm);
    struct cr_position      at;
    CR_TRY(cr_state_position(run->from, &at));
    const int64_t stored_ranks = at.ranks, images = stored->train.batch * stored->train.accumulate * stored_ranks,
                  parts  = c->train.accumulate * size;
    const bool untouched = c->train.batch == stored->train.batch && c->train.accumulate == stored->train.accumulate;
    if (untouched && stored_ranks != size && !force) {
        if (images % parts)
            return CR_FAIL(CR_ERR_CONFIG,
                           "%s: an update has %" PRId64 " images (%" PRId64 " rank%s), which %" PRId64
                           " rank%s with train.accumulate = %" PRId64
                           " cannot divide evenly: use another number of ranks, or train.batch=... with --force",
                           run->from, images, stored_ranks, stored_ranks == 1 ? "" : "s", size, size == 1 ? "" : "s",
                           c->train.accumulate);
        char batch[40];
        snprintf(batch, sizeof batch, "train.batch=%" PRId64, images / parts);
        CR_TRY(cr_config_change(&run->config, CR_CHANGES(batch)));
        cr_log(CR_LOG_INFO,
               "resume: %" PRId64 " rank%s with %" PRId64 " images each, before %" PRId64 " with %" PRId64
               ": the images of each update and their order do not change",
               size, size == 1 ? "" : "s", run->config->train.batch * run->config->train.accumulate, stored_ranks,
               stored->train.batch * stored->train.accumulate);
    }
    *same_update = cr_run_update_images(run) == images;
    return CR_OK;
}

/* ---- the learning rate ---- */

double cr_training_lr_factor(const struct cr_config *c, int64_t images) {
    const double             scale = (double)images / (double)c->optim.lr_base_batch;
    const enum cr_lr_scaling rule  = c->optim.lr_scaling;
    return rule == CR_LR_SCALING_LINEAR ? scale : rule == CR_LR_SCALING_SQRT ? sqrt(scale) : 1;
}

void cr_run_scale_lr(struct cr_run *run) {
    const struct cr_config  *c    = run->config;
    const int64_t            n    = cr_run_update_images(run);
    const enum cr_lr_scaling rule = c->optim.lr_scaling;
    run->lr_factor                = cr_training_lr_factor(c, n);
    if (cr_comm_size(run->comm) == 1 && rule == CR_LR_SCALING_NONE) return;
    char details[96] = "";
    if (rule != CR_LR_SCALING_NONE)
        snprintf(details, sizeof details, " (optim.lr = %g, %s, %" PRId64 " / %" PRId64 " images)", c->optim.lr,
                 cr_word_lr_scaling(rule), n, c->optim.lr_base_batch);
    cr_log(CR_LOG_INFO, "ranks   %d on %d host%s; %" PRId64 " images per update; learning rate %g%s; %s",
           cr_comm_size(run->comm), CR_MAX(cr_comm_hosts(run->comm), 1), cr_comm_hosts(run->comm) > 1 ? "s" : "", n,
           run->lr_factor * c->optim.lr, details,
           c->model.sync_bn ? "BN statistics over all ranks" : "BN statistics per rank");
}

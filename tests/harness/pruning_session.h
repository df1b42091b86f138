/* tests/harness/pruning_session.h: sessions of a small pruned network and copies of their buffers, for
 * tests/unit/pruning/test_mask_state.c and tests/gpu/test_cuda_prune.c. */
#ifndef CR_PRUNE_SESSION_H
#define CR_PRUNE_SESSION_H

#include "core/rng.h"
#include "pruning/pruning.h"
#include "session/checkpoint_tensors.h"
#include "tests/harness/data_support.h"

struct pruned {
    const struct cr_config *config;
    struct cr_session       session;
};

/* `more` ends with NULL. */
static inline cr_status pruned_open(struct pruned *p, const char *const *more) {
    const char *list[32] = {"model.arch=custom", "model.depths=1,1",    "model.widths=8,16", "model.shortcut=B",
                            "model.classes=3",   "data.kind=synthetic", "data.image_size=8", "train.batch=4",
                            "train.threads=1",   "prune.sparsity=0.9"};
    int         count    = 10;
    for (; *more; more++) list[count++] = *more;
    const struct cr_session_options options = {.train = true, .eval = true, .execute = true, .classes = 3};
    CR_TRY(cr_config_open(&p->config, NULL, list, count));
    CR_TRY(cr_session_open(p->config, &options, &p->session));
    return cr_session_init(&p->session);
}

static inline void pruned_close(struct pruned *p) {
    cr_session_close(&p->session);
    cr_config_close(p->config);
}
OWNABLE(pruned, struct pruned, pruned_close(x))

/* Prunes in the session; momenta of weights that remain become nonzero. */
static inline cr_status pruned_prune(struct pruned *p, double sparsity) {
    const struct cr_param_store *store = &p->session.model.store;
    struct cr_state_buffers      buffers;
    struct cr_prune              prune;
    CR_TRY(cr_prune_open(store, p->config, &prune));
    cr_status status = cr_state_buffers_get(&p->session, &buffers);
    if (status == CR_OK) status = cr_prune_masks(&prune, sparsity, buffers.value, buffers.mask);
    for (int i = 0; i < store->params && status == CR_OK; i++)
        for (int64_t k = 0; k < store->param[i].elems && !cr_param_is_running(store->param[i].role); k++)
            buffers.momentum[store->param[i].offset + k] = (float)(k % 7 + 1);
    if (status == CR_OK) {
        cr_prune_zero(store, buffers.mask, buffers.value);
        cr_prune_zero(store, buffers.mask, buffers.momentum);
        status = cr_state_buffers_put(&p->session, &buffers);
    }
    cr_state_buffers_free(&buffers);
    cr_prune_close(&prune);
    return status;
}

/* Updates on random images, with every program of the training step. */
static inline cr_status pruned_steps(struct pruned *p, int steps) {
    const struct cr_program   *program = &p->session.train[0];
    const int64_t              count   = program->tensor[program->labels].dim[0];
    const size_t               bytes   = program->tensor[program->images].bytes;
    const struct cr_step_block block   = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-4f};
    uint8_t                   *images  = cr_alloc(bytes, 1);
    int32_t      *labels = cr_alloc((size_t)count, sizeof *labels), *boxes = cr_alloc((size_t)count, 4 * sizeof *boxes);
    struct cr_rng rng = cr_rng_make(5, CR_RNG_TEST, 0, 0);
    struct cr_exec_result result;
    cr_status             status = images && labels && boxes ? CR_OK : CR_NO_MEMORY(bytes);
    for (int k = 0; k < steps && status == CR_OK; k++) {
        for (size_t i = 0; i < bytes; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
        for (int64_t i = 0; i < count; i++) labels[i] = (int32_t)cr_rng_below(&rng, 3);
        status = cr_exec_feed(p->session.train_exec[0], images, labels, boxes);
        if (status == CR_OK) status = cr_exec_run(p->session.train_exec[0], &block);
        if (status == CR_OK)
            status = cr_exec_result(p->session.train_exec[0], cr_exec_runs(p->session.train_exec[0]), &result);
    }
    cr_free(images);
    cr_free(labels);
    cr_free(boxes);
    return status;
}

/* Counts the elements of value and momentum that are not 0 at pruned places, and the pruned elements. */
static inline cr_status pruned_nonzeros(struct pruned *p, int64_t *nonzeros, int64_t *count) {
    struct cr_state_buffers buffers;
    CR_TRY(cr_state_buffers_get(&p->session, &buffers));
    *nonzeros = *count = 0;
    for (int64_t i = 0; i < p->session.model.store.value_elems; i++) {
        if (buffers.mask[i / 8] >> (i % 8) & 1) continue;
        ++*count;
        *nonzeros += buffers.value[i] != 0 || buffers.momentum[i] != 0;
    }
    cr_state_buffers_free(&buffers);
    return CR_OK;
}

static inline bool pruned_same(struct pruned *a, struct pruned *b) {
    struct cr_state_buffers x = {0}, y = {0};
    const size_t            elems = (size_t)a->session.model.store.value_elems;
    if (cr_state_buffers_get(&a->session, &x) != CR_OK) return false;
    bool same = cr_state_buffers_get(&b->session, &y) == CR_OK;
    same      = same && !memcmp(x.value, y.value, elems * sizeof(float)) &&
           !memcmp(x.momentum, y.momentum, elems * sizeof(float)) && !memcmp(x.mask, y.mask, elems / 8);
    cr_state_buffers_free(&x);
    cr_state_buffers_free(&y);
    return same;
}

static inline cr_status pruned_save(struct pruned *p, const char *dir, int64_t step) {
    static const char *const names[] = {"a", "b", "c"};
    const struct cr_position at      = {.step = step, .steps_per_epoch = 1};
    return cr_state_save(&p->session, &at, dir, "", names, 3);
}

#endif

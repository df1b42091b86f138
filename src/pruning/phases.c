/* pruning/phases.c: what pruning does at a step (gradual, AC/DC, RigL); RigL's first masks. See pruning/pruning.h. */
#include "config/config.h"
#include "core/rng.h"
#include "pruning/pruning.h"
#include "pruning/shrink.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static int64_t steps_of(double epochs, int64_t steps_per_epoch) {
    return llround(epochs * (double)steps_per_epoch);
}

/* ---- AC/DC ---- */

/* True when the masks are in force after `step` updates. */
static bool is_sparse(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    const int64_t first = steps_of(c->prune.start, steps_per_epoch), last = steps_of(c->prune.end, steps_per_epoch);
    const int64_t sparse = CR_MAX(steps_of(c->prune.sparse_epochs, steps_per_epoch), 1);
    const int64_t cycle  = sparse + CR_MAX(steps_of(c->prune.dense_epochs, steps_per_epoch), 1);
    if (step < first) return false;
    if (step >= last) return true;
    const int64_t at = step - first;
    return at / cycle < (last - first) / cycle && at % cycle < sparse;
}

static struct cr_prune_step acdc_step(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    const bool now = is_sparse(c, step, steps_per_epoch), before = step > 0 && is_sparse(c, step - 1, steps_per_epoch);
    if (now == before) return (struct cr_prune_step){CR_PRUNE_NOTHING, 0};
    return now ? (struct cr_prune_step){CR_PRUNE_TO, 1} : (struct cr_prune_step){CR_PRUNE_FREE, 0};
}

bool cr_prune_is_dense_later(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    return cr_config_prunes(c) && c->prune.schedule == CR_PRUNE_SCHEDULE_ACDC &&
           step < steps_of(c->prune.end, steps_per_epoch);
}

/* ---- RigL ---- */

static struct cr_prune_step rigl_step(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    const int64_t first = steps_of(c->prune.start, steps_per_epoch), last = steps_of(c->prune.end, steps_per_epoch);
    if (step == first)
        return (struct cr_prune_step){step == 0 && !*c->model.weights ? CR_PRUNE_RANDOM : CR_PRUNE_TO, 1};
    if (step < first || step >= last || (step - first) % c->prune.frequency)
        return (struct cr_prune_step){CR_PRUNE_NOTHING, 0};
    const double progress = (double)(step - first) / (double)(last - first);
    return (struct cr_prune_step){CR_PRUNE_MOVE, c->prune.drop_fraction / 2 * (1 + cos(pi * progress))};
}

struct cr_prune_step cr_prune_step_at(const struct cr_config *c, int64_t step, int64_t steps_per_epoch) {
    struct cr_prune_step due = {CR_PRUNE_TO, 0};
    if (!cr_config_prunes(c)) return (struct cr_prune_step){CR_PRUNE_NOTHING, 0};
    switch (c->prune.schedule) {
    case CR_PRUNE_SCHEDULE_ACDC: return acdc_step(c, step, steps_per_epoch);
    case CR_PRUNE_SCHEDULE_RIGL: return rigl_step(c, step, steps_per_epoch);
    default: break;
    }
    if (!cr_prune_due(c, step, steps_per_epoch, &due.fraction)) due.action = CR_PRUNE_NOTHING;
    return due;
}

/* ---- masks ---- */

void cr_prune_free_masks(struct cr_prune *prune, uint8_t *mask) {
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_param *q = &prune->store->param[prune->layer[l].param];
        for (int64_t i = q->offset; i < q->offset + q->elems && !prune->layer[l].dense; i++) cr_mask_set(mask, i, true);
    }
    cr_prune_recount(prune, mask);
}

/* The smallest of random numbers are pruned: the counts are those of magnitude pruning. */
cr_status cr_prune_random_masks(struct cr_prune *prune, uint8_t *mask) {
    const struct cr_param_store *store = prune->store;
    const uint64_t               seed  = (uint64_t)prune->config->train.seed;
    float                       *score;
    CR_ALLOC(score, (size_t)store->value_elems);
    for (int l = 0; l < prune->layers; l++) {
        const struct cr_param *q   = &store->param[prune->layer[l].param];
        struct cr_rng          rng = cr_rng_make(seed, CR_RNG_MASK, (uint64_t)prune->layer[l].param, 0);
        for (int64_t i = 0; i < q->elems; i++) score[q->offset + i] = (float)(cr_rng_u32(&rng) >> 8);
    }
    const cr_status status = cr_prune_masks(prune, 1, score, mask);
    cr_free(score);
    return status;
}

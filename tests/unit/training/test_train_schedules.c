/* tests/unit/training/test_train_schedules.c: runs with the schedules acdc and rigl: resume
 * is bitwise identical from every step; the weights before and after each change of the masks are those that the
 * papers define, computed here from checkpoints and from gradients of a network without masks. */
#include "tests/harness/train_support.h"

#include "optim/optim.h"
#include "pruning/pruning.h"

/* Steps of an epoch: 6. Dense until step 2, sparse until 4, dense until 6, sparse, dense until 10, sparse. */
#define ACDC                                                                                                           \
    "prune.sparsity=0.8", "prune.schedule=acdc", "prune.start=0.34", "prune.end=1.67", "prune.sparse_epochs=0.34",     \
        "prune.dense_epochs=0.33"
/* Masks at step 0, mask updates at steps 3, 6 and 9. */
#define RIGL                                                                                                           \
    "prune.sparsity=0.8", "prune.schedule=rigl", "prune.scope=erk", "prune.end=1.84", "prune.frequency=3",             \
        "prune.drop_fraction=0.5"

TEST(acdc_resumes) {
    RESUMES("prune.dense_epochs=0.5", 12, ACDC);
    RESUMES("prune.start=0.17", 12, ACDC, "prune.pattern=2:4", "prune.sparsity=0.5", "model.widths=8,8",
            "optim.kind=adamw", "optim.lr=0.01", "optim.nesterov=no", "ema.decay=0.9");
}
TEST(rigl_resumes) {
    RESUMES("prune.drop_fraction=0.3", 12, RIGL);
    RESUMES("train.seed=2", 12, RIGL, "train.clip_norm=1", "ema.decay=0.9", "optim.kind=lars", "optim.lr=1");
}

struct state {
    struct opened           run;
    struct cr_state_buffers at;
};

/* Trains `steps` steps in dir/name, and reads the checkpoint. */
static cr_status run_to(const struct run *r, const char *name, int steps, struct state *s) {
    const struct cr_session_options options = {.train = true, .execute = true, .masks = true, .classes = 3};
    struct cr_position              position;
    CR_TRY(TRAIN(r, name, formatted("train.steps=%d", steps)));
    CR_TRY(open_session(&s->run, r, options, (const char *[]){NULL}));
    CR_TRY(cr_state_load(&s->run.session, formatted("%s/%s/step-%d", r->dir, name, steps), &position));
    return cr_state_buffers_get(&s->run.session, &s->at);
}

static void forget(struct state *s) {
    cr_state_buffers_free(&s->at);
    close_session(&s->run);
}

static bool bit(const struct state *s, int64_t i) {
    return s->at.mask[i / 8] >> (i % 8) & 1;
}

/* Layers that may be pruned; the caller frees them with cr_prune_close. */
static struct cr_prune layers_of(const struct state *s) {
    struct cr_prune p = {0};
    if (cr_prune_open(&s->run.session.model.store, s->run.config, &p) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return p;
}

/* The warm-up is that of a dense run. A sparse phase begins with the smallest weights of all layers at 0, a dense phase
 * with all momenta at 0, and the weights that were pruned train again. */
TEST(acdc_phases) {
    static const char *const keys[] = {ACDC};
    struct run               plain = prepare(), r = plain;
    struct state             dense, sparse, freed, later, last;
    for (size_t i = 0; i < CR_COUNT(keys); i++) give(&r, keys[i]);
    REQUIRE_OK(run_to(&plain, "dense", 2, &dense));
    REQUIRE_OK(run_to(&r, "sparse", 2, &sparse));
    REQUIRE_OK(run_to(&r, "freed", 4, &freed));
    REQUIRE_OK(run_to(&r, "later", 5, &later));
    REQUIRE_OK(run_to(&r, "last", 12, &last));
    struct cr_prune p       = layers_of(&sparse);
    double          largest = 0, smallest = INFINITY; /* of the pruned weights; of all other weights */
    int64_t         pruned = 0, regrown = 0, end = 0;
    for (int l = 0; l < p.layers; l++) {
        const struct cr_param *q = &sparse.run.session.model.store.param[p.layer[l].param];
        for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
            const double w = fabs((double)dense.at.value[i]);
            CHECK(sparse.at.value[i] == (bit(&sparse, i) ? dense.at.value[i] : 0));
            CHECK(sparse.at.momentum[i] == (bit(&sparse, i) ? dense.at.momentum[i] : 0));
            CHECK(bit(&freed, i) && freed.at.momentum[i] == 0);
            if (p.layer[l].dense) continue;
            end += !bit(&last, i);
            if (bit(&sparse, i)) {
                smallest = fmin(smallest, w);
                continue;
            }
            pruned++;
            largest = fmax(largest, w);
            CHECK(freed.at.value[i] == 0);
            regrown += later.at.value[i] != 0;
        }
    }
    CHECK(largest <= smallest);
    CHECK_INT(pruned, llround(0.8 * (double)p.elems));
    CHECK_INT(end, pruned);
    CHECK(regrown > pruned * 9 / 10); /* a gradient of 0 is rare */
    cr_prune_close(&p);
    forget(&dense);
    forget(&sparse);
    forget(&freed);
    forget(&later);
    forget(&last);
}

struct gradients {
    int    wanted, calls;
    float *grad;
    size_t bytes;
};
static cr_status keep_one(void *self, const float *grad) {
    struct gradients *g = self;
    if (g->calls++ == g->wanted) memcpy(g->grad, grad, g->bytes);
    return CR_OK;
}

/* Gradients of the weights of a checkpoint in a network without masks, on batch `step` of the first epoch. */
static cr_status dense_gradients(const struct run *plain, const char *folder, int step, struct gradients *g) {
    const struct cr_session_options options = {.train = true, .execute = true, .classes = 3};
    OWNED(opened)                   o       = {0};
    OWNED(dataset)                  train   = NULL;
    *g                                      = (struct gradients){.wanted = step};
    CR_TRY(open_session(&o, plain, options, (const char *[]){NULL}));
    g->bytes = cr_param_store_buffer_bytes(&o.session.model.store, CR_BUFFER_GRAD);
    CR_ALLOC(g->grad, g->bytes / sizeof *g->grad);
    cr_status status = cr_session_load_weights(&o.session, folder, true);
    if (status == CR_OK) status = cr_dataset_open(o.config, CR_SPLIT_TRAIN, &train);
    if (status == CR_OK) status = cr_session_gradients(&o.session, train, step + 1, keep_one, g);
    return status;
}

/* Number of elements of a layer with a magnitude above |x[i]|, or equal and before i, among those that `in` has. */
static int64_t rank_of(const float *x, const bool *in, int64_t elems, int64_t i) {
    int64_t rank = 0;
    for (int64_t k = 0; k < elems; k++)
        rank += in[k] && (fabsf(x[k]) > fabsf(x[i]) || (fabsf(x[k]) == fabsf(x[i]) && k < i));
    return rank;
}

/* A layer before and after the mask update of step 3, by the rule of the paper. */
static void check_layer(const struct cr_param *q, const struct state *before, const struct state *after,
                        const float *grad, double fraction, int64_t *moved) {
    const int64_t n = q->elems, at = q->offset;
    bool         *active = cr_alloc((size_t)n, sizeof *active), *kept = cr_alloc((size_t)n, sizeof *kept),
         *free_   = cr_alloc((size_t)n, sizeof *free_);
    int64_t ones  = 0;
    int     wrong = 0;
    REQUIRE(active && kept && free_);
    for (int64_t i = 0; i < n; i++) ones += active[i] = bit(before, at + i);
    const int64_t drop = (int64_t)floor((double)ones * fraction);
    for (int64_t i = 0; i < n; i++) kept[i] = active[i] && rank_of(before->at.value + at, active, n, i) < ones - drop;
    for (int64_t i = 0; i < n; i++) free_[i] = !kept[i];
    for (int64_t i = 0; i < n; i++) {
        const bool grown = free_[i] && rank_of(grad + at, free_, n, i) < drop, on = kept[i] || grown;
        wrong += bit(after, at + i) != on;
        wrong += after->at.value[at + i] != (on && active[i] ? before->at.value[at + i] : 0);
        if (!on || !active[i]) wrong += after->at.momentum[at + i] != 0;
        *moved += grown && !active[i];
    }
    CHECK_INT(wrong, 0);
    cr_free(active);
    cr_free(kept);
    cr_free(free_);
}

/* Expects a fraction from `least` to `most`, and at least `moves` weights that move. */
static void check_rigl(const char *drop, double least, double most, int64_t moves) {
    const char *const keys[] = {RIGL, drop};
    struct run        plain = prepare(), r = plain;
    struct state      first, before, after, next;
    struct gradients  g;
    int64_t           moved = 0, new = 0, trained = 0;
    give(&plain, "model.widths=16,32"); /* so many weights that some are nearly equal */
    r = plain;
    for (size_t i = 0; i < CR_COUNT(keys); i++) give(&r, keys[i]);
    REQUIRE_OK(run_to(&r, "first", 1, &first));
    REQUIRE_OK(run_to(&r, "before", 2, &before));
    REQUIRE_OK(run_to(&r, "after", 3, &after));
    REQUIRE_OK(run_to(&r, "next", 4, &next));
    REQUIRE_OK(dense_gradients(&plain, formatted("%s/before/step-2", plain.dir), 2, &g));
    const double    fraction = cr_prune_step_at(before.run.config, 3, 6).fraction;
    struct cr_prune p        = layers_of(&before);
    CHECK(fraction > least && fraction < most);
    for (int l = 0; l < p.layers; l++) {
        const struct cr_param *q      = &before.run.session.model.store.param[p.layer[l].param];
        int64_t                pruned = 0;
        if (p.layer[l].dense) continue;
        for (int64_t i = q->offset; i < q->offset + q->elems; i++) {
            pruned += !bit(&first, i);
            CHECK(bit(&first, i) == bit(&before, i));
            const bool is_new = bit(&after, i) && !bit(&before, i);
            new += is_new;
            trained += is_new && next.at.value[i] != 0;
        }
        CHECK_INT(pruned, llround((double)q->elems * p.layer[l].sparsity));
        check_layer(q, &before, &after, g.grad, fraction, &moved);
    }
    CHECK(moved >= moves && moved == new &&trained >= new / 2); /* dead ReLUs have gradients of 0 */
    cr_free(g.grad);
    cr_prune_close(&p);
    forget(&first);
    forget(&before);
    forget(&after);
    forget(&next);
}

TEST(rigl_moves_by_dense_gradients) {
    check_rigl("prune.drop_fraction=0.5", 0.3, 0.5, 20);
    check_rigl("prune.drop_fraction=1", 0.6, 1, 40);
    check_rigl("prune.drop_fraction=0.05", 0.03, 0.05, 1);
    check_rigl("prune.drop_fraction=0.001", 0.0006, 0.001, 0);
}

/* tests/unit/session/test_bn_statistics.c: BN statistics computed again from batches equal the means of the statistics
 * of each batch alone, and change nothing else. Those of moving averages: tests/programs/test_golden_train.c, against
 * PyTorch. */
#include "tests/harness/pruning_session.h"

enum { BATCHES = 3 };

static const char *const keys[] = {"data.train_images=14", "data.augment=trivial", "model.freeze=stem,layer1",
                                   "optim.momentum=0.9",   "train.device=cpu",     NULL};

OWNABLE(state_buffers, struct cr_state_buffers, cr_state_buffers_free(x))

struct sums {
    struct cr_session *session;
    double            *mean;
};

/* With bn_momentum 1 the running statistics are those of the last batch. */
static cr_status add_running(void *self, const float *grad) {
    const struct sums *s       = self;
    OWNED(floats)      running = NULL;
    CR_TRY(cr_state_buffer_copy(s->session, CR_BUFFER_RUNNING, &running));
    for (int64_t i = 0; i < s->session->model.store.running_elems; i++) s->mean[i] += (double)running[i] / BATCHES;
    return CR_OK;
}

static void expected(const char *momentum, double **out) {
    const char    *more[8] = {momentum};
    OWNED(pruned)  p       = {0};
    OWNED(dataset) train   = NULL;
    for (int i = 0; keys[i]; i++) more[i + 1] = keys[i];
    REQUIRE_OK(pruned_open(&p, more));
    *out = cr_alloc((size_t)p.session.model.store.running_elems, sizeof **out);
    REQUIRE(*out);
    struct sums sums = {&p.session, *out};
    REQUIRE_OK(cr_dataset_open(p.config, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_session_gradients(&p.session, train, BATCHES, add_running, &sums));
}

TEST(means_of_batches) {
    const struct cr_bn_options options = {.batches = 100}; /* the training set has three batches */
    OWNED(pruned)              p       = {0};
    OWNED(dataset)             train   = NULL;
    OWNED(doubles)             want    = NULL;
    OWNED(floats)              start = NULL, running = NULL;
    OWNED(state_buffers)       before = {0}, after = {0};
    int64_t                    used, changed = 0, frozen = 0;
    expected("model.bn_momentum=1", &want);
    REQUIRE(want);
    REQUIRE_OK(pruned_open(&p, keys));
    REQUIRE_OK(cr_dataset_open(p.config, CR_SPLIT_TRAIN, &train));
    REQUIRE_OK(cr_state_buffers_get(&p.session, &before));
    for (int64_t i = 0; i < p.session.model.store.value_elems; i++) before.momentum[i] = (float)(i % 5);
    REQUIRE_OK(cr_state_buffers_put(&p.session, &before));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_RUNNING, &start));
    REQUIRE_OK(cr_session_bn_statistics(&p.session, train, &options, &used));
    REQUIRE_OK(cr_state_buffers_get(&p.session, &after));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_RUNNING, &running));
    const struct cr_param_store *store = &p.session.model.store;
    const size_t                 bytes = cr_param_store_buffer_bytes(store, CR_BUFFER_VALUE);
    CHECK_INT(used, BATCHES);
    CHECK(memcmp(before.value, after.value, bytes) == 0 && memcmp(before.momentum, after.momentum, bytes) == 0);
    CHECK(memcmp(before.mask, after.mask, (size_t)store->value_elems / 8) == 0);
    for (int k = 0; k < store->params; k++) {
        const struct cr_param *q = &store->param[k];
        for (int64_t i = q->offset; i < q->offset + q->elems && cr_param_is_running(q->role); i++) {
            if (q->frozen)
                frozen += running[i] == start[i];
            else {
                changed += running[i] != start[i];
                CHECK_NEAR((double)running[i], want[i], 1e-5 * fmax(1, fabs(want[i])));
            }
        }
    }
    CHECK(changed > 60 && frozen == 48);
}

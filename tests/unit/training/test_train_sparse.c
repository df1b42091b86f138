/* tests/unit/training/test_train_sparse.c: fine-tuning of a pruned network on sparse kernels: sparse kernels are
 * selected, their steps equal those of dense kernels except for rounding, resume is bitwise identical from any step,
 * and convolutions without a reliable sparse kernel stay dense. */
#include "tests/harness/pruning_session.h"
#include "tests/harness/train_support.h"

/* A network with 10 % nonzeros in dir/step-1; its configuration is that of pruned_open. */
static void make_pruned(const struct run *r) {
    OWNED(pruned) p = {0};
    REQUIRE_OK(pruned_open(&p, (const char *const[]){"train.device=cpu", NULL}));
    REQUIRE_OK(pruned_prune(&p, 1));
    REQUIRE_OK(pruned_save(&p, r->dir, 1));
}

static char weights[SUPPORT_PATH + 32]; /* model.weights = the pruned network */

/* Steps of 4 of 26 images: six per epoch. */
static struct run begin(void) {
    struct run r = prepare();
    make_pruned(&r);
    give(&r, "model.widths=8,16");
    snprintf(weights, sizeof weights, "model.weights=%s/step-1", r.dir);
    give(&r, weights);
    return r;
}

static int count_patterns(const struct cr_program *p, enum cr_op_kind kind) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) count += p->op[i].kind == kind && cr_op_has_sparsity_pattern(&p->op[i]);
    return count;
}

/* Number of ops of each kind on sparse kernels in the first training program. */
static void count_rows(const struct run *r, const char *const *more, int *forward, int *dgrad, int *wgrad) {
    OWNED(opened)                   o       = {0};
    const struct cr_session_options options = {
        .train = true, .classes = 3, .masks = true, .masks_from = weights + strlen("model.weights=")};
    REQUIRE_OK(open_session(&o, r, options, more));
    *forward = count_patterns(&o.session.train[0], CR_OP_conv);
    *dgrad   = count_patterns(&o.session.train[0], CR_OP_conv_dgrad);
    *wgrad   = count_patterns(&o.session.train[0], CR_OP_conv_wgrad);
}
#define COUNT(run, ...) count_rows((run), (const char *const[]){__VA_ARGS__, NULL}, &forward, &dgrad, &wgrad)

TEST(sparse_kernels_need_fixed_masks) {
    struct run r = begin();
    int        forward, dgrad, wgrad;
    COUNT(&r, "train.sparse=yes");
    CHECK_INT(forward, 4); /* all 3x3 layers except the first convolution */
    CHECK_INT(wgrad, 4);
    CHECK_INT(dgrad, 3); /* one of them has stride 2, for which the CPU has no kernel */
    COUNT(&r, "train.sparse=no");
    CHECK_INT(forward + dgrad + wgrad, 0);
    COUNT(&r, "prune.sparsity=0.95"); /* masks that change in training */
    CHECK_INT(forward + dgrad + wgrad, 0);
    COUNT(&r, "train.clip_norm=1"); /* the norm covers all gradients */
    CHECK_INT(wgrad, 0);
    CHECK(forward == 4 && dgrad == 3);
    COUNT(&r, "optim.kind=lars");
    CHECK_INT(wgrad, 0);
}

/* The value buffer of the last checkpoint of a run; the caller frees it with cr_free. */
static cr_status values_of(const struct run *r, const char *name, float **value, int64_t *count) {
    const struct cr_session_options options = {.eval = true, .execute = true, .masks = true, .classes = 3};
    OWNED(opened)                   o       = {0};
    struct cr_state_buffers         at      = {0};
    cr_status                       status  = open_session(&o, r, options, (const char *[]){NULL});
    if (status == CR_OK)
        status = cr_session_load_weights(&o.session, formatted("%s/%s/last/model.safetensors", r->dir, name), true);
    if (status == CR_OK) status = cr_state_buffers_get(&o.session, &at);
    if (status == CR_OK) {
        *count   = o.session.model.store.value_elems;
        *value   = at.value;
        at.value = NULL;
    }
    cr_state_buffers_free(&at);
    return status;
}

/* The largest difference of the weights of two runs; zeros must be zeros in both. */
static double difference(const struct run *r, const char *a, const char *b, int64_t *zeros) {
    int64_t       n = 0, m = 0;
    OWNED(floats) x = NULL, y = NULL;
    bool          read = values_of(r, a, &x, &n) == CR_OK && values_of(r, b, &y, &m) == CR_OK;
    double        most = read && x && y && n == m ? 0 : INFINITY;
    *zeros             = 0;
    for (int64_t i = 0; isfinite(most) && i < n; i++) {
        most = fmax(most, (x[i] == 0.0f) != (y[i] == 0.0f) ? INFINITY : fabs((double)x[i] - (double)y[i]));
        *zeros += x[i] == 0.0f;
    }
    return most;
}

TEST(steps_match_dense_kernels) {
    static const char *const more[] = {"train.accumulate=1", "train.accumulate=2"};
    int64_t                  zeros;
    for (size_t i = 0; i < CR_COUNT(more); i++) {
        struct run r = begin();
        give(&r, more[i]);
        REQUIRE_OK(TRAIN(&r, "sparse", "train.sparse=yes"));
        REQUIRE_OK(TRAIN(&r, "dense", "train.sparse=no"));
        REQUIRE_OK(TRAIN(&r, "other", "optim.lr=0.0999"));
        CHECK(!same_file(&r, "sparse", "dense", "model.safetensors")); /* other kernels round differently */
        const double rounding = difference(&r, "sparse", "dense", &zeros),
                     moved    = difference(&r, "sparse", "other", &zeros);
        CHECK(zeros > 4000);
        CHECK(rounding < 2e-5);
        CHECK(moved > 20 * rounding); /* the comparison can fail */
    }
}

TEST(resume_is_bitwise_identical) {
    struct run r = begin();
    resumes_bitwise(&r, 12, 2);
}

/* A run that prunes during training, resumed also after the last pruning: it stays on its initial kernels. */
TEST(resume_after_gradual_pruning) {
    struct run r = prepare();
    give(&r, "model.widths=8,16", "prune.sparsity=0.9", "prune.end=1", "prune.frequency=2");
    REQUIRE_OK(TRAIN(&r, "whole", "train.steps=0"));
    REQUIRE_OK(TRAIN(&r, "cut", "train.steps=9"));
    REQUIRE_OK(RESUME(&r, "cut", "train.steps=0"));
    check_same(&r, "whole", "cut");
}

/* tests/unit/pruning/test_taylor.c: the importance by first-order Taylor expansion equals the change of the loss when
 * the output of a unit is scaled, measured by finite differences, and so do the scores of single weights;
 * cr_session_gradients does not change the weights. */
#include "pruning/shrink.h"
#include "tests/harness/pruning_session.h"

enum { BATCH = 4 };

OWNABLE(channel_groups, struct cr_channel_groups, cr_channel_groups_free(x))
OWNABLE(prune, struct cr_prune, cr_prune_close(x))

static uint8_t images[BATCH * 8 * 8 * 3];

static cr_status run_batch(struct cr_session *s, double *loss) {
    static const int32_t       labels[BATCH] = {0, 1, 2, 1}, boxes[BATCH][4];
    const struct cr_step_block block         = {0};
    struct cr_exec_result      result;
    CR_TRY(cr_exec_feed(s->train_exec[0], images, labels, boxes[0]));
    CR_TRY(cr_exec_run(s->train_exec[0], &block));
    CR_TRY(cr_exec_result(s->train_exec[0], cr_exec_runs(s->train_exec[0]), &result));
    *loss = result.loss_sum / (double)result.valid;
    return CR_OK;
}

/* Scales gamma and beta of the unit, or the weights and bias of a dense layer that is not the classifier. */
static void scale_unit(const struct cr_channel_groups *g, int unit, float *value, double factor) {
    const struct cr_program *p = g->program;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        if (x->region != CR_REGION_STORE || x->buffer != CR_BUFFER_VALUE || x->param < 0) continue;
        const struct cr_param *q     = &p->store->param[x->param];
        const bool             dense = strstr(q->name, "fc1.weight");
        if (!dense && q->role != CR_ROLE_GAMMA && q->role != CR_ROLE_BETA && !strstr(q->name, "fc1.bias")) continue;
        const int64_t inner = dense ? q->dim[3] : 1;
        for (int64_t i = 0; i < q->elems; i++)
            if (cr_channel_unit(g, t, dense ? CR_AXIS_K : CR_AXIS_C, i / inner) == unit)
                value[q->offset + i] = (float)((double)value[q->offset + i] * factor);
    }
}

/* Initial shifts and biases are 0, and scales 1: random values replace them. */
static cr_status draw_vectors(struct cr_session *s) {
    OWNED(floats) value = NULL;
    CR_TRY(cr_state_buffer_copy(s, CR_BUFFER_VALUE, &value));
    for (int i = 0; i < s->model.store.params; i++) {
        const struct cr_param *q   = &s->model.store.param[i];
        struct cr_rng          rng = cr_rng_make(4, CR_RNG_TEST, (uint64_t)i, 0);
        if (q->role != CR_ROLE_GAMMA && q->role != CR_ROLE_BETA && q->role != CR_ROLE_DENSE_BIAS) continue;
        for (int64_t k = 0; k < q->elems; k++) value[q->offset + k] += 0.3f * (float)cr_rng_normal(&rng);
    }
    return cr_state_buffer_put(s, CR_BUFFER_VALUE, value);
}

static cr_status loss_with(struct cr_session *s, const struct cr_channel_groups *g, int unit, const float *value,
                           float *scaled, double factor, double *loss) {
    memcpy(scaled, value, cr_param_store_buffer_bytes(&s->model.store, CR_BUFFER_VALUE));
    scale_unit(g, unit, scaled, factor);
    CR_TRY(cr_state_buffer_put(s, CR_BUFFER_VALUE, scaled));
    return run_batch(s, loss);
}

static void check_network(const char *const *keys, int least) {
    const double          step    = 0.0003; /* larger steps cross kinks of ReLUs; rounding is 1e-7 */
    OWNED(pruned)         p       = {0};
    OWNED(program)        program = {0};
    OWNED(channel_groups) g       = {0};
    OWNED(floats)         value = NULL, grad = NULL, scaled = NULL;
    double                loss, largest = 0, *taylor;
    int                   count = 0;
    struct cr_rng         rng   = cr_rng_make(9, CR_RNG_TEST, 0, 0);
    REQUIRE_OK(pruned_open(&p, keys));
    REQUIRE_OK(cr_model_program(&p.session.model, p.config, CR_PROGRAM_EVAL, 1, &program));
    REQUIRE_OK(cr_channel_groups_trace(&program, &g));
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
    REQUIRE_OK(draw_vectors(&p.session));
    REQUIRE_OK(run_batch(&p.session, &loss));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &value));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &scaled));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_GRAD, &grad));
    taylor = cr_alloc((size_t)g.units, sizeof *taylor);
    REQUIRE(taylor);
    REQUIRE_OK(cr_shrink_add_taylor(&g, value, grad, taylor));
    for (int u = 0; u < g.units; u++)
        if (g.group_of[u] != CR_NONE) largest = fmax(largest, sqrt(taylor[u]));
    for (int u = 0; u < g.units; u++) {
        double more, less;
        if (g.group_of[u] == CR_NONE) continue;
        REQUIRE_OK(loss_with(&p.session, &g, u, value, scaled, 1 + step, &more));
        REQUIRE_OK(loss_with(&p.session, &g, u, value, scaled, 1 - step, &less));
        CHECK_NEAR(sqrt(taylor[u]), fabs(more - less) / (2 * step), 0.02 * largest);
        count++;
    }
    CHECK(largest > 1e-3);
    CHECK(count >= least);
    cr_free(taylor);
}

TEST(change_of_the_loss) {
    check_network((const char *const[]){"prune.sparsity=0", "model.excitation=yes", NULL}, 8 + 8 + 16 + 16 + 2 * 8);
    check_network((const char *const[]){"prune.sparsity=0", "model.shortcut=A", NULL}, 8 + 8 + 8 + 16);
    check_network((const char *const[]){"prune.sparsity=0", "model.block=bottleneck", "model.shortcut=D", NULL}, 100);
}

struct sums {
    int    calls;
    double first, last; /* sums of magnitudes of the gradients */
};

/* The score of a weight is the change of the loss when the weight is scaled, by finite differences; over several
 * batches it is the root of the mean square. The weights with the smallest scores are pruned. */
TEST(scores_of_weights) {
    const double  step  = 0.003;
    OWNED(pruned) p     = {0};
    OWNED(prune)  prune = {0};
    OWNED(floats) value = NULL, grad = NULL, scaled = NULL, score = NULL;
    double        loss, largest = 0, *sum;
    struct cr_rng rng = cr_rng_make(10, CR_RNG_TEST, 0, 0);
    REQUIRE_OK(pruned_open(&p, (const char *const[]){"prune.sparsity=0.5", NULL}));
    const struct cr_param_store *store = &p.session.model.store;
    const size_t                 elems = (size_t)store->value_elems;
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
    REQUIRE_OK(draw_vectors(&p.session));
    REQUIRE_OK(run_batch(&p.session, &loss));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &value));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_VALUE, &scaled));
    REQUIRE_OK(cr_state_buffer_copy(&p.session, CR_BUFFER_GRAD, &grad));
    sum   = cr_alloc(elems, sizeof *sum);
    score = cr_alloc(elems, sizeof *score);
    REQUIRE(sum && score);
    cr_prune_add_taylor(store, value, grad, sum);
    cr_prune_taylor_scores(store, sum, 1, score);
    const struct cr_param *q = &store->param[cr_param_store_find(store, "layer2.0.conv1.weight")];
    for (int64_t i = q->offset; i < q->offset + q->elems; i++) largest = fmax(largest, (double)score[i]);
    for (int64_t k = 0; k < 40; k++) {
        const int64_t i = q->offset + k * 27 % q->elems;
        double        more, less;
        scaled[i] = (float)((double)value[i] * (1 + step));
        REQUIRE_OK(cr_state_buffer_put(&p.session, CR_BUFFER_VALUE, scaled));
        REQUIRE_OK(run_batch(&p.session, &more));
        scaled[i] = (float)((double)value[i] * (1 - step));
        REQUIRE_OK(cr_state_buffer_put(&p.session, CR_BUFFER_VALUE, scaled));
        REQUIRE_OK(run_batch(&p.session, &less));
        scaled[i] = value[i];
        CHECK_NEAR((double)score[i], fabs(more - less) / (2 * step), 0.03 * largest);
    }
    CHECK(largest > 1e-3);
    for (size_t i = 0; i < elems; i++) grad[i] *= 7; /* a second batch: sqrt((1 + 49) / 2) */
    cr_prune_add_taylor(store, value, grad, sum);
    const double first = (double)score[q->offset];
    cr_prune_taylor_scores(store, sum, 2, score);
    CHECK_NEAR((double)score[q->offset], 5 * first, 1e-5 * first);
    OWNED(bytes) mask = cr_alloc(elems / 8, 1);
    REQUIRE(mask);
    memset(mask, 0xff, elems / 8);
    REQUIRE_OK(cr_prune_open(store, p.config, &prune));
    REQUIRE_OK(cr_prune_masks(&prune, 1, score, mask));
    double remaining = INFINITY, lost = 0;
    for (int l = 0; l < prune.layers; l++) {
        const struct cr_param *w = &store->param[prune.layer[l].param];
        for (int64_t i = w->offset; i < w->offset + w->elems && !prune.layer[l].dense; i++)
            if (mask[i / 8] >> (i % 8) & 1)
                remaining = fmin(remaining, fabs((double)value[i] * (double)grad[i]));
            else
                lost = fmax(lost, fabs((double)value[i] * (double)grad[i]));
    }
    CHECK(lost > 0 && lost <= remaining * (1 + 1e-6));
    cr_free(sum);
}

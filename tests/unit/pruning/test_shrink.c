/* tests/unit/pruning/test_shrink.c: a network without some channels has the logits of the network in which their
 * weights and BN scales are 0; the choice of channels meets the target. */
#include "model/channels.h"
#include "pruning/shrink.h"
#include "pruning/widths.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/random_network.h"
#include "tests/harness/reference_run.h"

static const struct cr_multiples *multiple_of(int64_t channels) {
    static struct cr_multiples multiples;
    multiples = (struct cr_multiples){channels, channels};
    return &multiples;
}

enum { CLASSES = 3, NETWORKS = 50 };

struct network {
    const struct cr_config *config;
    struct cr_model         model;
    struct ref_run          run;
};

static cr_status open_network(const char *const *keys, int count, int size, struct network *n) {
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    CR_TRY(cr_config_open(&n->config, NULL, keys, count));
    CR_TRY(cr_model_open(n->config, CLASSES, size, size, &n->model));
    CR_TRY(cr_model_program(&n->model, n->config, CR_PROGRAM_EVAL, 1, &n->run.p));
    CR_TRY(cr_device_open(CR_DEVICE_CPU, &options, &n->run.device));
    n->run.store = n->model.store;
    return ref_bind(&n->run);
}

static void close_network(struct network *n) {
    ref_close(&n->run); /* with the parameter store, which it shares with the model */
    n->model.store = (struct cr_param_store){0};
    cr_model_close(&n->model);
    cr_config_close(n->config);
}

static float *buffer(const struct network *n, enum cr_param_buffer which) {
    return (float *)(void *)(n->run.region + cr_param_store_buffer_offset(&n->run.store, which));
}

static struct cr_shrink_buffers buffers_of(const struct network *n) {
    return (struct cr_shrink_buffers){.value = buffer(n, CR_BUFFER_VALUE), .running = buffer(n, CR_BUFFER_RUNNING)};
}

static void fill(struct network *n, uint64_t seed) {
    for (int i = 0; i < n->run.store.params; i++) {
        const struct cr_param *q       = &n->run.store.param[i];
        const bool             running = cr_param_is_running(q->role);
        float                 *to      = buffer(n, running ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE) + q->offset;
        struct cr_rng          rng     = cr_rng_make(seed, CR_RNG_TEST, (uint64_t)i, 1);
        for (int64_t k = 0; k < q->elems; k++)
            to[k] = (running || q->role == CR_ROLE_GAMMA ? 1.0f : 0.0f) +
                    0.3f * fabsf((float)cr_rng_normal(&rng)) * (cr_rng_below(&rng, 2) ? 1.0f : -1.0f);
        if (q->role == CR_ROLE_VAR)
            for (int64_t k = 0; k < q->elems; k++) to[k] = fabsf(to[k]) + 0.1f;
    }
    for (int64_t i = 0; i < cr_tensor_elems(&n->run.p.tensor[n->run.p.images]); i++)
        ref_set(&n->run, n->run.p.images, i, (double)(i * 37 % 256));
}

/* Sets all parameters of removed channels to 0: filters that write or read them, scales, shifts, biases. */
static void zero_removed(struct network *n, const struct cr_shrink *s) {
    for (int t = 0; t < n->run.p.tensors; t++) {
        const struct cr_tensor *x = &n->run.p.tensor[t];
        if (x->region != CR_REGION_STORE || x->buffer != CR_BUFFER_VALUE || x->param < 0) continue;
        const int64_t inner = x->dim[1] * x->dim[2] * x->dim[3];
        for (int64_t i = 0; i < cr_tensor_elems(x); i++)
            if (s->removed[cr_channel_unit(s->groups, t, CR_AXIS_K, i / inner)] ||
                s->removed[cr_channel_unit(s->groups, t, CR_AXIS_C, i % x->dim[3])])
                ref_set(&n->run, t, i, 0);
    }
}

struct names {
    const struct cr_shrink      *shrink;
    const struct cr_param_store *store;
};
static int64_t width_of(void *self, const char *layer) {
    const struct names *n = self;
    return cr_shrink_width(n->shrink, n->store, layer);
}

/* Opens the smaller network with the remaining parameters of n. */
static cr_status open_small(const struct network *n, const struct cr_shrink *s, const char *const *keys, int count,
                            int size, struct network *small) {
    const char              *all[RANDOM_KEYS + 1];
    struct cr_text           text  = {0};
    struct names             names = {s, &n->run.store};
    struct cr_shrink_buffers from  = buffers_of(n), to;
    cr_text_add(&text, "model.channels=");
    cr_channels_text(&n->model, n->config, width_of, &names, &text);
    for (int i = 0; i < count; i++) all[i] = keys[i];
    all[count]       = text.data;
    cr_status status = open_network(all, count + 1, size, small);
    cr_text_free(&text);
    CR_TRY(status);
    to = buffers_of(small);
    cr_shrink_copy(s, &n->run.store, &from, &small->run.store, &to);
    memcpy(ref_data(&small->run, small->run.p.images), ref_data(&n->run, n->run.p.images),
           n->run.p.tensor[n->run.p.images].bytes);
    return CR_OK;
}

static int removed_channels; /* of all networks */

/* The sums of fp32 products differ in their order at most: the summands of removed channels are 0. */
static void compare_logits(const struct network *masked, const struct network *small, const char *name) {
    double largest = 0;
    for (int k = 0; k < CLASSES; k++) largest = fmax(largest, fabs(ref_at(&masked->run, masked->run.p.logits, k)));
    CHECK(largest > 1e-3);
    for (int k = 0; k < CLASSES; k++) {
        const double a = ref_at(&masked->run, masked->run.p.logits, k), b = ref_at(&small->run, small->run.p.logits, k);
        if (!(fabs(a - b) <= 1e-5 * largest)) TEST_FAIL_("%s: logit %d is %.9g, masked %.9g", name, k, b, a);
    }
}

static void check_network(const struct random_network *r, uint64_t i) {
    struct network           n = {0}, small = {0};
    struct cr_channel_groups groups;
    struct cr_shrink         s;
    REQUIRE_OK(open_network(r->keys, RANDOM_KEYS, r->size, &n));
    fill(&n, i);
    REQUIRE_OK(cr_channel_groups_trace(&n.run.p, &groups));
    REQUIRE_OK(cr_shrink_open(&groups, &n.run.store, i % 3 ? CR_PRUNE_IMPORTANCE_L2 : CR_PRUNE_IMPORTANCE_BN,
                              buffer(&n, CR_BUFFER_VALUE), NULL, &s));
    REQUIRE_OK(cr_shrink_choose(&s, multiple_of(1 + (int64_t)(i % 2)), i % 3 ? 1.25 : 1.1));
    for (int u = 0; u < groups.units; u++) removed_channels += s.removed[u];
    REQUIRE_OK(open_small(&n, &s, r->keys, RANDOM_KEYS, r->size, &small));
    CHECK_NEAR(cr_model_flops(&small.run.p), 2 * s.macs, 0.5);
    CHECK_NEAR(cr_model_flops(&n.run.p), 2 * s.macs_before, 0.5);
    CHECK(s.macs * (i % 3 ? 1.25 : 1.1) <= s.macs_before);
    zero_removed(&n, &s);
    REQUIRE_OK(ref_exec(&n.run, 0, n.run.p.ops));
    REQUIRE_OK(ref_exec(&small.run, 0, small.run.p.ops));
    compare_logits(&n, &small, r->name);
    cr_shrink_free(&s);
    cr_channel_groups_free(&groups);
    close_network(&small);
    close_network(&n);
}

TEST(logits_of_the_masked_network) {
    for (uint64_t i = 0; i < NETWORKS; i++) {
        struct random_network r;
        random_network(i, 2, &r);
        check_network(&r, i);
    }
    CHECK(removed_channels > 200);
}

static const char *const plain[] = {"model.arch=custom", "model.depths=1,1", "model.widths=8,16", "model.stem=cifar",
                                    "model.shortcut=B"};

/* In each group the channels with the smallest weights, or BN scales, are removed. */
TEST(smallest_first) {
    for (int by_bn = 0; by_bn < 2; by_bn++) {
        struct network           n = {0};
        struct cr_channel_groups groups;
        struct cr_shrink         s;
        REQUIRE_OK(open_network(plain, CR_COUNT(plain), 4, &n));
        fill(&n, 3);
        REQUIRE_OK(cr_channel_groups_trace(&n.run.p, &groups));
        const int param = cr_param_store_find(&n.run.store, by_bn ? "layer2.0.bn1.weight" : "layer2.0.conv1.weight");
        const int t     = cr_tensor_store_find(&n.run.p, CR_BUFFER_VALUE, param);
        for (int k = 0; k < 16; k++) /* channels 3, 8, 13, 2, ... in descending order of importance */
            for (int64_t j = 0; j < (by_bn ? 1 : 72); j++)
                ref_set(&n.run, t, by_bn ? k : k * 72 + j, (by_bn && k % 2 ? -1 : 1) * (20 - k * 13 % 16));
        REQUIRE_OK(cr_shrink_open(&groups, &n.run.store, by_bn ? CR_PRUNE_IMPORTANCE_BN : CR_PRUNE_IMPORTANCE_L2,
                                  buffer(&n, CR_BUFFER_VALUE), NULL, &s));
        REQUIRE_OK(cr_shrink_choose(&s, multiple_of(4), 2));
        const int left = (int)cr_shrink_width(&s, &n.run.store, "layer2.0.conv1");
        CHECK(left >= 4 && left < 16 && left % 4 == 0);
        for (int k = 0; k < 16; k++)
            CHECK_INT(s.removed[cr_channel_unit(&groups, t, by_bn ? CR_AXIS_C : CR_AXIS_K, k)], k * 13 % 16 >= left);
        cr_shrink_free(&s);
        cr_channel_groups_free(&groups);
        close_network(&n);
    }
}

/* `residual` keeps the channels of sums, here those of conv1 and of layer2.0.conv2; the others are removed. */
TEST(residual_channels_stay) {
    static const struct {
        const char *list;
        bool        stem, inner;
    } cases[] = {{"auto", false, false}, {"residual", true, false}, {"layer1.0.conv1, residual", true, true}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        struct network           n = {0};
        struct cr_channel_groups groups;
        struct cr_shrink         s;
        REQUIRE_OK(open_network(plain, CR_COUNT(plain), 4, &n));
        fill(&n, 5);
        REQUIRE_OK(cr_config_change(&n.config, CR_CHANGES(formatted("prune.exempt=%s", cases[i].list))));
        REQUIRE_OK(cr_channel_groups_trace(&n.run.p, &groups));
        REQUIRE_OK(
            cr_shrink_open(&groups, &n.run.store, CR_PRUNE_IMPORTANCE_L2, buffer(&n, CR_BUFFER_VALUE), NULL, &s));
        REQUIRE_OK(cr_shrink_keep_exempt(&s, &n.run.store, n.config));
        REQUIRE_OK(cr_shrink_choose(&s, multiple_of(1), 1.3));
        CHECK((cr_shrink_width(&s, &n.run.store, "conv1") == 8) == cases[i].stem);
        CHECK((cr_shrink_width(&s, &n.run.store, "layer2.0.conv2") == 16) == cases[i].stem);
        CHECK((cr_shrink_width(&s, &n.run.store, "layer1.0.conv1") == 8) == cases[i].inner);
        CHECK(!cases[i].stem || cr_shrink_width(&s, &n.run.store, "layer2.0.conv1") < 16);
        REQUIRE_OK(cr_config_change(&n.config, CR_CHANGES("prune.exempt=residual,layer9")));
        CHECK_STATUS(cr_shrink_keep_exempt(NULL, &n.run.store, n.config), CR_ERR_CONFIG);
        CHECK(strstr(cr_error_message(), "residual,layer9") && strstr(cr_error_message(), "\"layer9\""));
        cr_shrink_free(&s);
        cr_channel_groups_free(&groups);
        close_network(&n);
    }
}

static cr_status all_steps(const struct cr_config *config, const float *value, struct cr_model *m) {
    OWNED(program)           p = {0};
    struct cr_channel_groups g;
    struct cr_shrink         s;
    CR_TRY(cr_model_program(m, config, CR_PROGRAM_EVAL, 1, &p));
    cr_status status = cr_channel_groups_trace(&p, &g);
    if (status == CR_OK) {
        status = cr_shrink_open(&g, &m->store, CR_PRUNE_IMPORTANCE_L2, value, NULL, &s);
        if (status == CR_OK) {
            status = cr_shrink_choose(&s, multiple_of(1), 1.5);
            cr_shrink_free(&s);
        }
        cr_channel_groups_free(&g);
    }
    return status;
}

static int group_of(const struct cr_channel_groups *groups, int units) {
    for (int k = 0; k < groups->groups; k++)
        if (groups->group[k].units == units) return k;
    return CR_NONE;
}

/* Widths of the group with `units` channels in a network with 64 and `widest` channels, as "192 128 64". */
static void widths_are(int widest, int units, int64_t given, bool tensor_cores, int most, const char *expected) {
    char              key[64], text[256] = "";
    const char *const keys[] = {"model.arch=custom", "model.depths=1,1", key, "model.stem=cifar", "model.shortcut=B"};
    struct network    n      = {0};
    struct cr_channel_groups groups;
    struct cr_shrink         s;
    struct cr_widths         w;
    snprintf(key, sizeof key, "model.widths=64,%d", widest);
    REQUIRE_OK(open_network(keys, CR_COUNT(keys), 4, &n));
    const char *const multiple = formatted("prune.multiple=%d", (int)given);
    REQUIRE_OK(cr_config_change(&n.config, CR_CHANGES(given ? multiple : "prune.multiple=auto")));
    fill(&n, 5);
    REQUIRE_OK(cr_channel_groups_trace(&n.run.p, &groups));
    REQUIRE_OK(cr_shrink_open(&groups, &n.run.store, CR_PRUNE_IMPORTANCE_L2, buffer(&n, CR_BUFFER_VALUE), NULL, &s));
    const struct cr_multiples multiples = cr_multiples_of(n.config, tensor_cores);
    const int                 k         = group_of(&groups, units);
    REQUIRE(k != CR_NONE);
    REQUIRE_OK(cr_widths_open(&s, &multiples, !given, most, &w));
    for (int i = 1; i < w.levels[k]; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i > 1 ? " " : "", w.width[k * most + i]);
    CHECK_STR(text, expected);
    cr_widths_free(&w);
    cr_shrink_free(&s);
    cr_channel_groups_free(&groups);
    close_network(&n);
}

TEST(multiples) {
    widths_are(256, 256, 0, false, 8, "224 192 160 128 96 64 32");
    widths_are(256, 256, 0, false, 6, "192 128 64"); /* and not 208 160 112 64 16 */
    widths_are(256, 64, 0, false, 8, "56 48 40 32 24 16 8");
    widths_are(256, 256, 0, true, 8, "192 128 64");
    widths_are(256, 64, 0, true, 8, "");
    widths_are(96, 64, 0, true, 4, "48 32 16"); /* no layer has 128 channels */
    widths_are(256, 256, 24, true, 6, "240 192 144 96 48");
}

TEST(failing_allocations) {
    static const char *const keys[] = {"model.arch=custom", "model.depths=1,1", "model.widths=8,16", "model.stem=cifar",
                                       "model.channels=8/8,5/16,9"};
    static float             value[8192] = {1};
    OWNED(config)            config      = NULL;
    REQUIRE_OK(cr_config_open(&config, NULL, keys, CR_COUNT(keys)));
    for (size_t i = 0; i < CR_COUNT(value); i++) value[i] = (float)(i % 7);
    for_each_failing_alloc(f, .least = 20) {
        struct cr_model model;
        failing_alloc_begin(&f);
        cr_status status = cr_model_open(config, 3, 8, 8, &model);
        if (status == CR_OK) {
            CHECK(model.store.value_elems <= (int64_t)CR_COUNT(value));
            status = all_steps(config, value, &model);
            cr_model_close(&model);
        }
        failing_alloc_end(&f, status);
    }
}

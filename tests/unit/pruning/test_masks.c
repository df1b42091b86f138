/* tests/unit/pruning/test_masks.c: selection of the pruned weights: exact counts, ties, patterns, nesting, against a
 * plain sort; Erdos-Renyi fractions against the published ones of ResNet-50 at 90 %; the cubic schedule by hand;
 * budgets from CSV files. */
#include "core/rng.h"
#include "model/model.h"
#include "pruning/pruning.h"
#include "tests/harness/config_support.h"

/* ---- a small network: conv1, two convolutions, one that no pattern fits, fc ---- */

struct net {
    struct cr_config      config;
    struct cr_param_store store;
    struct cr_prune       prune;
    float                *value;
    uint8_t              *mask;
};

enum { A = 1, B = 2, ODD = 3 }; /* layers */

static cr_status net_open_(struct net *n, const char *const *overrides) {
    int count = 0;
    while (overrides[count]) count++;
    *n = (struct net){.store = {.real = CR_F32, .has_momentum = true, .has_mask = true}};
    CR_TRY(cr_config_open(&n->config, NULL, overrides, count));
    cr_param_store_add(&n->store, "conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 3}, CR_NONE);
    cr_param_store_add(&n->store, "bn1.weight", CR_ROLE_GAMMA, (const int64_t[4]){1, 1, 1, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer1.0.conv1.weight", CR_ROLE_CONV, (const int64_t[4]){8, 3, 3, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer1.0.conv2.weight", CR_ROLE_CONV, (const int64_t[4]){16, 1, 1, 8}, CR_NONE);
    cr_param_store_add(&n->store, "layer2.0.conv1.weight", CR_ROLE_CONV, (const int64_t[4]){9, 1, 1, 7}, CR_NONE);
    cr_param_store_add(&n->store, "fc.weight", CR_ROLE_DENSE_WEIGHT, (const int64_t[4]){10, 1, 1, 16}, CR_NONE);
    n->value = cr_alloc((size_t)n->store.value_elems, sizeof *n->value);
    n->mask  = cr_alloc((size_t)n->store.value_elems / 8, 1);
    if (!n->value || !n->mask) return CR_NO_MEMORY(0);
    memset(n->mask, 0xff, (size_t)n->store.value_elems / 8);
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int64_t i = 0; i < n->store.value_elems; i++) n->value[i] = cr_rng_normal(&rng);
    return cr_prune_open(&n->store, &n->config, &n->prune);
}
#define net_open(n, ...) net_open_(n, (const char *const[]){__VA_ARGS__, NULL})

static void net_close(struct net *n) {
    cr_prune_close(&n->prune);
    cr_free(n->value);
    cr_free(n->mask);
    cr_param_store_free(&n->store);
    cr_config_close(&n->config);
}

static const struct cr_param *param(const struct net *n, int layer) {
    return &n->store.param[n->prune.layer[layer].param];
}
static float *weights(struct net *n, int layer) {
    return n->value + param(n, layer)->offset;
}
static bool is_unpruned(const struct net *n, int layer, int64_t i) {
    const int64_t at = param(n, layer)->offset + i;
    return n->mask[at / 8] >> (at % 8) & 1;
}

/* ---- reference: a full sort ---- */

struct ranked {
    double  size;
    int     layer;
    int64_t i;
};

static int smaller_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* True when exactly the `count` smallest weights of the layers are pruned. */
static void check_smallest(struct net *n, const int *layers, int layer_count, int64_t count) {
    static struct ranked all[4096];
    int64_t              total = 0;
    for (int k = 0; k < layer_count; k++)
        for (int64_t i = 0; i < param(n, layers[k])->elems; i++)
            all[total++] = (struct ranked){fabs((double)weights(n, layers[k])[i]), layers[k], i};
    qsort(all, (size_t)total, sizeof *all, smaller_first);
    int wrong = 0;
    for (int64_t i = 0; i < total; i++) wrong += is_unpruned(n, all[i].layer, all[i].i) != (i >= count);
    CHECK_INT(wrong, 0);
}

static void uniform_prunes_the_smallest_of_each_layer(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9", "prune.scope=uniform"));
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 518);  /* 576 * 0.9 = 518.4 */
    CHECK_INT(n.prune.layer[B].pruned, 115);  /* 115.2 */
    CHECK_INT(n.prune.layer[ODD].pruned, 57); /* 56.7 */
    CHECK_INT(n.prune.layer[0].pruned, 0);
    CHECK_INT(n.prune.layer[4].pruned, 0);
    CHECK_INT(n.prune.pruned, 518 + 115 + 57);
    CHECK_INT(n.prune.elems, 576 + 128 + 63);
    check_smallest(&n, (const int[]){A}, 1, 518);
    check_smallest(&n, (const int[]){B}, 1, 115);
    net_close(&n);
}

static void global_prunes_the_smallest_of_all_layers(void) {
    static const int layers[] = {A, B, ODD};
    struct net       n;
    for (int scale = 0; scale < 2; scale++) {
        REQUIRE_OK(net_open(&n, "prune.sparsity=0.75"));
        for (int64_t i = 0; i < param(&n, B)->elems && scale; i++) weights(&n, B)[i] *= 1e-3f;
        weights(&n, A)[5] = 0; /* zeros that are not pruned are the smallest, and signs do not count */
        weights(&n, A)[6] = -0.0f;
        if (scale) weights(&n, B)[100] = 50; /* the largest weight of a layer would remain anyway */
        REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
        CHECK_INT(n.prune.pruned, 575); /* 767 * 0.75 = 575.25 */
        if (!scale)
            check_smallest(&n, layers, 3, 575);
        else
            CHECK_INT(n.prune.layer[B].pruned, 127);
        net_close(&n);
    }
}

static void ties_are_broken_by_index(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5"));
    for (int64_t i = 0; i < n.store.value_elems; i++) n.value[i] = i % 2 ? 1.0f : -1.0f;
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) == (i >= 384)); /* 767 / 2 = 383.5, rounded up */
    CHECK_INT(n.prune.layer[B].pruned + n.prune.layer[ODD].pruned, 0);
    net_close(&n);
}

static void masks_nest_and_padding_is_unchanged(void) {
    struct net n;
    uint8_t    before[512];
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9"));
    const size_t bytes = (size_t)n.store.value_elems / 8;
    REQUIRE(bytes <= sizeof before);
    memcpy(before, n.mask, bytes);
    for (int k = 1; k <= 10; k++) {
        REQUIRE_OK(cr_prune_masks(&n.prune, 0.1 * k, n.value, n.mask));
        CHECK_INT(n.prune.pruned, llround(767 * 0.9 * (0.1 * k)));
        for (size_t i = 0; i < bytes; i++) CHECK((n.mask[i] & ~before[i]) == 0);
        memcpy(before, n.mask, bytes);
        cr_prune_zero(&n.store, n.mask, n.value);
        for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) || n.value[param(&n, A)->offset + i] == 0);
        for (int64_t i = 0; i < 576; i++)
            weights(&n, A)[i] *= 0.5f; /* the remaining weights change; pruned weights do not return */
    }
    int outside = 0; /* bits of padding and of other parameters */
    for (int64_t i = 0; i < n.store.value_elems; i++) outside += !(n.mask[i / 8] >> (i % 8) & 1);
    CHECK_INT(outside, n.prune.pruned);
    REQUIRE_OK(cr_prune_masks(&n.prune, 0.2, n.value, n.mask));
    CHECK(memcmp(before, n.mask, bytes) == 0);
    net_close(&n);
}

static void each_layer_keeps_its_largest_weight(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.9999"));
    weights(&n, B)[17] = NAN; /* NaN is not small: it must stay visible */
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int l = A; l <= ODD; l++) CHECK_INT(n.prune.layer[l].pruned, n.prune.layer[l].elems - 1);
    CHECK(is_unpruned(&n, B, 17));
    net_close(&n);
}

/* ---- patterns ---- */

static void two_of_four(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=2:4", "prune.scope=uniform"));
    CHECK_HAS(n.prune.layer[ODD].dense, "7 input channels");
    for (int c = 0; c < 4; c++) weights(&n, A)[8 + c] = 1; /* equal: the later ones remain */
    REQUIRE_OK(cr_prune_masks(&n.prune, 0.5, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 144);
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 288);
    CHECK_INT(n.prune.layer[B].pruned, 64);
    for (int64_t i = 0; i < 576; i += 4) {
        double least = INFINITY, most = 0;
        int    unpruned = 0;
        for (int64_t j = i; j < i + 4; j++) {
            const double size = fabs((double)weights(&n, A)[j]);
            if (is_unpruned(&n, A, j))
                unpruned++, least = fmin(least, size);
            else
                most = fmax(most, size);
        }
        CHECK_INT(unpruned, 2);
        CHECK(most <= least);
    }
    CHECK(!is_unpruned(&n, A, 8) && !is_unpruned(&n, A, 9) && is_unpruned(&n, A, 10) && is_unpruned(&n, A, 11));
    net_close(&n);
}

static void blocks_are_pruned_whole(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.6", "prune.pattern=block", "prune.block=4"));
    CHECK_HAS(n.prune.layer[ODD].dense, "9 output channels");
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.pruned, 420); /* 704 * 0.6 = 422.4, in fours */
    double least = INFINITY, most = 0;
    for (int l = A; l <= B; l++) {
        const int64_t filter = param(&n, l)->elems / param(&n, l)->dim[0];
        for (int64_t u = 0; u < param(&n, l)->elems / 4; u++) {
            double sum      = 0;
            int    unpruned = 0;
            for (int v = 0; v < 4; v++) {
                const int64_t at = (u / filter * 4 + v) * filter + u % filter;
                unpruned += is_unpruned(&n, l, at);
                sum += fabs((double)weights(&n, l)[at]);
            }
            CHECK(unpruned == 0 || unpruned == 4);
            if (unpruned)
                least = fmin(least, sum);
            else
                most = fmax(most, sum);
        }
    }
    CHECK(most <= least * (1 + 1e-6));
    net_close(&n);
}

/* Rectangles of output x input channels at one tap, against sums of a plain loop. */
static void rectangles_are_pruned_whole(void) {
    static const char *const scopes[] = {"prune.scope=global", "prune.scope=uniform", "prune.scope=erk"};
    struct net               n;
    for (size_t scope = 0; scope < CR_COUNT(scopes); scope++) {
        REQUIRE_OK(net_open(&n, "prune.sparsity=0.6", "prune.pattern=block", "prune.block=4x8", scopes[scope]));
        CHECK_HAS(n.prune.layer[ODD].dense, "9 output channels");
        CHECK_HAS(n.prune.layer[0].dense, "exempt");
        REQUIRE_OK(cr_prune_masks(&n.prune, 0.5, n.value, n.mask));
        REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask)); /* masks nest */
        double least[2] = {INFINITY, INFINITY}, most[2] = {0, 0};
        for (int l = A; l <= B; l++) {
            const struct cr_param *q    = param(&n, l);
            const int64_t          taps = q->dim[1] * q->dim[2];
            const int              by   = scope ? l - A : 0; /* the smallest of each layer, or of all */
            for (int64_t k = 0; k < q->dim[0]; k += 4)
                for (int64_t tap = 0; tap < taps; tap++) {
                    double sum      = 0;
                    int    unpruned = 0;
                    for (int64_t i = 0; i < 4 * 8; i++) {
                        const int64_t at = ((k + i / 8) * taps + tap) * 8 + i % 8;
                        unpruned += is_unpruned(&n, l, at);
                        sum += fabs((double)weights(&n, l)[at]);
                    }
                    CHECK(unpruned == 0 || unpruned == 32);
                    if (unpruned)
                        least[by] = fmin(least[by], sum);
                    else
                        most[by] = fmax(most[by], sum);
                }
        }
        for (int i = 0; i < 2; i++) CHECK(most[i] <= least[i] * (1 + 1e-6));
        if (scope == 0) CHECK_INT(n.prune.pruned, 416);          /* 704 * 0.6 = 422.4, in blocks of 32 */
        if (scope == 1) CHECK_INT(n.prune.layer[A].pruned, 320); /* 576 * 0.6 = 345.6 */
        net_close(&n);
    }
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=block", "prune.block=1x4"));
    CHECK_HAS(n.prune.layer[ODD].dense, "7 input channels");
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    for (int64_t i = 0; i < 576; i++) CHECK(is_unpruned(&n, A, i) == is_unpruned(&n, A, i / 4 * 4));
    CHECK_INT(n.prune.pruned, 352);
    net_close(&n);
}

static void invalid_block_shapes(void) {
    static const char *const bad[] = {"",    "0",    "1",      "x",     "8x",    "x8", "1x1",
                                      "8x0", "4097", "8x4097", "8 x 8", "8x8x8", "-8", "99999999999999999999x2"};
    for (size_t i = 0; i < CR_COUNT(bad); i++) {
        struct cr_config config;
        char             text[64];
        snprintf(text, sizeof text, "prune.block=%s", bad[i]);
        CHECK(cr_config_open(&config, NULL, (const char *const[]){text}, 1) == CR_ERR_CONFIG);
        CHECK_HAS(cr_error_message(), "e.g. 64x64");
        cr_error_clear();
    }
}

static void channels_are_pruned_whole(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.5", "prune.pattern=channel", "prune.scope=uniform",
                        "prune.exempt=conv1,layer2,fc"));
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 72; i++) weights(&n, A)[k * 72 + i] = (float)(k % 2 ? 1 + k : -k); /* 0 2 2 4 4 6 6 8 */
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 288);
    for (int i = 0; i < 576; i++)
        CHECK(is_unpruned(&n, A, i) == (i >= 4 * 72)); /* of the two of 4 the first is pruned */
    CHECK_INT(n.prune.layer[ODD].pruned, 0);
    net_close(&n);
}

/* ---- fractions per layer ---- */

/* As published for ResNet-50 at 90 % (the ERK column of the table of distributions by the STR authors), in network
 * order. */
static const int published_erk[54] = {58, 0,  82, 4,  4,  4,  82, 4,  4,  82, 4,  43, 91, 52, 71, 52, 91, 52,
                                      52, 91, 52, 52, 91, 52, 71, 96, 76, 86, 76, 96, 76, 76, 96, 76, 76, 96,
                                      76, 76, 96, 76, 76, 96, 76, 86, 98, 88, 93, 88, 98, 88, 88, 98, 88, 93};

static void erk_matches_published_values(void) {
    static const char *const overrides[] = {"model.arch=resnet50", "prune.sparsity=0.9", "prune.scope=erk",
                                            "prune.exempt="};
    struct cr_config         config;
    struct cr_model          model;
    struct cr_prune          prune;
    double                   unpruned = 0, all = 0;
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, CR_COUNT(overrides)));
    REQUIRE_OK(cr_model_open(&config, 1000, 224, 224, &model));
    REQUIRE_OK(cr_prune_open(&model.store, &config, &prune));
    CHECK_INT(prune.layers, 54);
    for (int l = 0; l < prune.layers; l++) {
        CHECK_INT(llround(100 * prune.layer[l].sparsity), published_erk[l]);
        unpruned += (1 - prune.layer[l].sparsity) * (double)prune.layer[l].elems;
        all += (double)prune.layer[l].elems;
    }
    CHECK_NEAR(unpruned / all, 0.1, 1e-12);
    cr_prune_close(&prune);
    cr_model_close(&model);
    cr_config_close(&config);
}

/* By hand: densities (8+8+3+3)/576 and (16+8+1+1)/128 times e; 704 * 0.25 = 176 = e * (22 + 26), e = 3.6667. */
static void erk_by_hand(void) {
    struct net n;
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.75", "prune.scope=erk", "prune.exempt=conv1,layer2,fc"));
    CHECK_NEAR(n.prune.layer[A].sparsity, 1 - 176.0 / 48 * 22 / 576, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 1 - 176.0 / 48 * 26 / 128, 1e-12);
    net_close(&n);
    /* 704 * 0.6 = 422.4: the second would have 1.79: it is dense, and the first has 294.4 / 576. */
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.4", "prune.scope=erk", "prune.exempt=conv1,layer2,fc"));
    CHECK_NEAR(n.prune.layer[A].sparsity, 1 - 294.4 / 576, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 0, 0);
    net_close(&n);
}

static bool due(const struct cr_config *c, int64_t step, double *fraction) {
    return cr_prune_due(c, step, 10, fraction);
}

static void schedule_is_cubic(void) {
    static const char *const overrides[] = {"prune.sparsity=0.8", "prune.initial=0.2", "prune.start=1", "prune.end=3",
                                            "prune.frequency=8"};
    struct cr_config         c;
    double                   fraction = -1;
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, CR_COUNT(overrides)));
    for (int step = 0; step < 50; step++) {
        const bool wanted = step == 10 || step == 18 || step == 26 || step == 30; /* and at the end */
        CHECK(due(&c, step, &fraction) == wanted);
        /* Zhu and Gupta: s = final + (initial - final) * (1 - (t - t0)/(t1 - t0))^3 */
        if (wanted) CHECK_NEAR(0.8 * fraction, 0.8 + (0.2 - 0.8) * pow(1 - (step - 10) / 20.0, 3), 1e-12);
    }
    c.prune.initial = 0;
    CHECK(!due(&c, 10, &fraction)); /* nothing to prune yet */
    c.prune.end = c.prune.start = 0;
    CHECK(due(&c, 0, &fraction) && fraction == 1 && !due(&c, 8, &fraction));
    c.prune.sparsity = 0;
    CHECK(!due(&c, 0, &fraction));
    cr_config_close(&c);
}

/* ---- budgets ---- */

static char        budget_key[500];
static const char *budget(const char *text) {
    snprintf(budget_key, sizeof budget_key, "prune.budget=%s", file_text("budget.csv", text));
    return budget_key;
}

static void budgets(void) {
    struct net n;
    /* a table with sums, numbered layers and several columns */
    const char *wide = "\xef\xbb\xbfMetric,Params,FLOPs,Sparsity (%),,\r\nOverall,100,5,79.55,90.23,95.1\r\n"
                       "Layer 1 - conv1,216,9,50,60,70\r\nLayer 2 - layer1.0.conv1,576,9,81,91.5,95\r\n"
                       "Layer 3 - layer1.0.conv2,128,9,82,92,96\r\nAP - average pool,0,9,0,0,0\r\n";
    REQUIRE_OK(net_open(&n, budget(wide), "prune.sparsity=0.9"));
    CHECK_NEAR(n.prune.layer[0].sparsity, 0.60, 1e-12);
    CHECK_NEAR(n.prune.layer[A].sparsity, 0.915, 1e-12);
    CHECK_NEAR(n.prune.layer[ODD].sparsity, 0, 0);
    REQUIRE_OK(cr_prune_masks(&n.prune, 1, n.value, n.mask));
    CHECK_INT(n.prune.layer[A].pruned, 527); /* 527.04 */
    CHECK_INT(n.prune.layer[ODD].pruned, 0);
    net_close(&n);
    REQUIRE_OK(net_open(&n, budget(wide), "prune.sparsity=0.96", "prune.exempt=conv1"));
    CHECK(n.prune.layer[0].dense != NULL);
    CHECK_NEAR(n.prune.layer[A].sparsity, 0.95, 1e-12);
    net_close(&n);
    REQUIRE_OK(net_open(&n, budget("Layer,STR,Uniform\n1,59.8%,90%\n3,83.28%,80.00%\n"), "prune.column=uniform"));
    CHECK_NEAR(n.prune.layer[0].sparsity, 0.9, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 0.8, 1e-12);
    CHECK_NEAR(n.prune.layer[A].sparsity, 0, 0);
    net_close(&n);
    REQUIRE_OK(net_open(&n, budget("layer,sparsity\nlayer1.0.conv1.weight,0.25\n")));
    CHECK_NEAR(n.prune.layer[A].sparsity, 0.25, 0);
    net_close(&n);
}

static void invalid_budgets_are_reported(void) {
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"layer,sparsity\nlayer9.0.conv1,0.5\n", "budget.csv:2: this network has no layer \"layer9.0.conv1\""},
        {"layer,sparsity\n\nfc,1.5\n", "budget.csv:3: column 2: expected a sparsity"},
        {"layer,sparsity\nfc,half\n", "not \"half\""},
        {"layer,sparsity\nfc\n", "not \"\""},
        {"layer,sparsity\n7,0.5\n", "no layer \"7\""},
        {"layer,a,b\nfc,0.5,0.5\n", "has 2 columns and no row Overall"},
        {"layer,a,b\nOverall,0.5,0.6\nfc,0.5,0.5\n", "set the overall sparsity"},
        {"layer1.0.conv1,0.5\nfc,0.5\n", "budget.csv:1: the first line names the columns"},
        {"1,0.5\n2,0.5\n", "budget.csv:1: the first line names the columns"},
        {"layer,sparsity\nfc,0.5\n\nlayer1.0.conv1,0.1\nfc.weight,0.5\n",
         "budget.csv:5: layer fc already appears in line 2"},
        {"layer,sparsity\n2,0.5\nlayer1.0.conv1,0.5\n", "budget.csv:3: layer layer1.0.conv1 already appears in line 2"},
        {"layer;sparsity\nfc;0.5\n", "commas"},
        {"", "not a table"}};
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        struct net n;
        CHECK(net_open(&n, budget(wrong[i].text)) != CR_OK);
        CHECK_HAS(cr_error_message(), wrong[i].says);
        net_close(&n);
    }
    struct net n;
    CHECK_STATUS(net_open(&n, "prune.budget=/nowhere/b.csv"), CR_ERR_IO);
    net_close(&n);
    CHECK_STATUS(net_open(&n, budget("l,a\nfc,0.5\n"), "prune.column=b"), CR_ERR_CONFIG);
    net_close(&n);
    CHECK_STATUS(net_open(&n, budget("l,a\nlayer1.0.conv1,51%\n"), "prune.pattern=2:4"), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "budget.csv:2: 51% of layer layer1.0.conv1: must not exceed 0.5 with pattern 2:4");
    net_close(&n);
    REQUIRE_OK(net_open(&n, budget("l,a\nlayer1.0.conv1,50%\n"), "prune.pattern=2:4"));
    net_close(&n);
    CHECK_STATUS(net_open(&n, "prune.sparsity=0.5", "prune.exempt=conv1,layer7"), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "\"layer7\" is not a layer");
    net_close(&n);
    CHECK_STATUS(net_open(&n, "prune.sparsity=0.5", "prune.exempt=conv1 layer1 layer2 fc"), CR_ERR_CONFIG);
    net_close(&n);
}

TESTS(CASE(uniform_prunes_the_smallest_of_each_layer), CASE(global_prunes_the_smallest_of_all_layers),
      CASE(ties_are_broken_by_index), CASE(masks_nest_and_padding_is_unchanged),
      CASE(each_layer_keeps_its_largest_weight), CASE(two_of_four), CASE(blocks_are_pruned_whole),
      CASE(rectangles_are_pruned_whole), CASE(invalid_block_shapes), CASE(channels_are_pruned_whole),
      CASE(erk_matches_published_values), CASE(erk_by_hand), CASE(schedule_is_cubic), CASE(budgets),
      CASE(invalid_budgets_are_reported))

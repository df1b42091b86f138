/* tests/unit/pruning/test_prune_fractions.c: the fraction of pruned weights of each layer: Erdos-Renyi fractions
 * against the published ones of ResNet-50 at 90 %; the cubic schedule by hand; budgets from CSV files. */
#include "tests/harness/masks_network.h"

/* ---- fractions per layer ---- */

/* As published for ResNet-50 at 90 % (the ERK column of the table of distributions by the STR authors), in network
 * order. */
static const int published_erk[54] = {58, 0,  82, 4,  4,  4,  82, 4,  4,  82, 4,  43, 91, 52, 71, 52, 91, 52,
                                      52, 91, 52, 52, 91, 52, 71, 96, 76, 86, 76, 96, 76, 76, 96, 76, 76, 96,
                                      76, 76, 96, 76, 76, 96, 76, 86, 98, 88, 93, 88, 98, 88, 88, 98, 88, 93};

TEST(erk_matches_published_values) {
    static const char *const overrides[] = {"model.arch=resnet50", "prune.sparsity=0.9", "prune.scope=erk",
                                            "prune.exempt="};
    OWNED(config)            config      = NULL;
    OWNED(model)             model       = {0};
    struct cr_prune          prune;
    double                   unpruned = 0, all = 0;
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, CR_COUNT(overrides)));
    REQUIRE_OK(cr_model_open(config, 1000, 224, 224, &model));
    REQUIRE_OK(cr_prune_open(&model.store, config, &prune));
    CHECK_INT(prune.layers, 54);
    for (int l = 0; l < prune.layers; l++) {
        CHECK_INT(llround(100 * prune.layer[l].sparsity), published_erk[l]);
        unpruned += (1 - prune.layer[l].sparsity) * (double)prune.layer[l].elems;
        all += (double)prune.layer[l].elems;
    }
    CHECK_NEAR(unpruned / all, 0.1, 1e-12);
    cr_prune_close(&prune);
}

/* By hand: densities (8+8+3+3)/576 and (16+8+1+1)/128 times e; 704 * 0.25 = 176 = e * (22 + 26), e = 3.6667. */
TEST(erk_by_hand) {
    OWNED(net) n = {0};
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.75", "prune.scope=erk", "prune.exempt=conv1,layer2,fc"));
    CHECK_NEAR(n.prune.layer[A].sparsity, 1 - 176.0 / 48 * 22 / 576, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 1 - 176.0 / 48 * 26 / 128, 1e-12);
    /* 704 * 0.6 = 422.4: the second would have 1.79: it is dense, and the first has 294.4 / 576. */
    REQUIRE_OK(net_open(&n, "prune.sparsity=0.4", "prune.scope=erk", "prune.exempt=conv1,layer2,fc"));
    CHECK_NEAR(n.prune.layer[A].sparsity, 1 - 294.4 / 576, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 0, 0);
}

static bool due(const struct cr_config *c, int64_t step, double *fraction) {
    return cr_prune_due(c, step, 10, fraction);
}

TEST(schedule_is_cubic) {
    static const char *const overrides[] = {"prune.sparsity=0.8", "prune.initial=0.2", "prune.start=1", "prune.end=3",
                                            "prune.frequency=8"};
    OWNED(config)            c           = NULL;
    double                   fraction    = -1;
    REQUIRE_OK(cr_config_open(&c, NULL, overrides, CR_COUNT(overrides)));
    for (int step = 0; step < 50; step++) {
        const bool wanted = step == 10 || step == 18 || step == 26 || step == 30; /* and at the end */
        CHECK(due(c, step, &fraction) == wanted);
        /* Zhu and Gupta: s = final + (initial - final) * (1 - (t - t0)/(t1 - t0))^3 */
        if (wanted) CHECK_NEAR(0.8 * fraction, 0.8 + (0.2 - 0.8) * pow(1 - (step - 10) / 20.0, 3), 1e-12);
    }
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.initial=0")));
    CHECK(!due(c, 10, &fraction)); /* nothing to prune yet */
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.end=0", "prune.start=0")));
    CHECK(due(c, 0, &fraction) && fraction == 1 && !due(c, 8, &fraction));
    REQUIRE_OK(cr_config_change(&c, CR_CHANGES("prune.sparsity=0")));
    CHECK(!due(c, 0, &fraction));
}

static char        budget_key[500];
static const char *budget(const char *text) {
    snprintf(budget_key, sizeof budget_key, "prune.budget=%s", file_text("budget.csv", text));
    return budget_key;
}

TEST(budgets) {
    OWNED(net) n = {0};
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
    REQUIRE_OK(net_open(&n, budget(wide), "prune.sparsity=0.96", "prune.exempt=conv1"));
    CHECK(n.prune.layer[0].dense != NULL);
    CHECK_NEAR(n.prune.layer[A].sparsity, 0.95, 1e-12);
    REQUIRE_OK(net_open(&n, budget("Layer,STR,Uniform\n1,59.8%,90%\n3,83.28%,80.00%\n"), "prune.column=uniform"));
    CHECK_NEAR(n.prune.layer[0].sparsity, 0.9, 1e-12);
    CHECK_NEAR(n.prune.layer[B].sparsity, 0.8, 1e-12);
    CHECK_NEAR(n.prune.layer[A].sparsity, 0, 0);
    REQUIRE_OK(net_open(&n, budget("layer,sparsity\nlayer1.0.conv1.weight,0.25\n")));
    CHECK_NEAR(n.prune.layer[A].sparsity, 0.25, 0);
}

TEST(invalid_budgets_are_reported) {
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"layer,sparsity\nlayer9.0.conv1,0.5\n", "budget.csv:2: this network has no layer \"layer9.0.conv1\""},
        {"layer,sparsity\n\nfc,1.5\n", "budget.csv:3: column 2: expected a sparsity"},
        {"layer,a,b\nfc,0.5,0.5\n", "has 2 columns and no row Overall: name a column, such as prune.column=a"},
        {"layer,a,b\nOverall,0.5,0.6\nfc,0.5,0.5\n", "set the overall sparsity"},
        {"layer1.0.conv1,0.5\nfc,0.5\n", "budget.csv:1: the first line names the columns"},
        {"layer,sparsity\nfc,0.5\n\nlayer1.0.conv1,0.1\nfc.weight,0.5\n",
         "budget.csv:5: layer fc already appears in line 2"},
        {"layer,sparsity\n2,0.5\nlayer1.0.conv1,0.5\n", "budget.csv:3: layer layer1.0.conv1 already appears in line 2"},
        {"", "not a table"}};
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        OWNED(net) n = {0};
        CHECK(net_open(&n, budget(wrong[i].text)) != CR_OK);
        CHECK_HAS(cr_error_message(), wrong[i].says);
    }
    OWNED(net) n = {0};
    CHECK_STATUS(net_open(&n, "prune.budget=/nowhere/b.csv"), CR_ERR_IO);
    CHECK_STATUS(net_open(&n, budget("l,a\nfc,0.5\n"), "prune.column=b"), CR_ERR_CONFIG);
    CHECK_STATUS(net_open(&n, budget("l,a\nlayer1.0.conv1,51%\n"), "prune.pattern=2:4"), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "budget.csv:2: 51% of layer layer1.0.conv1: must not exceed 0.5 with pattern 2:4");
    REQUIRE_OK(net_open(&n, budget("l,a\nlayer1.0.conv1,50%\n"), "prune.pattern=2:4"));
    CHECK_STATUS(net_open(&n, "prune.sparsity=0.5", "prune.exempt=conv1,layer7"), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "\"layer7\" is not a layer");
    CHECK_STATUS(net_open(&n, "prune.sparsity=0.5", "prune.exempt=conv1 layer1 layer2 fc"), CR_ERR_CONFIG);
}

/* tests/unit/pruning/test_latency_target.c: the choice of sparsities for a latency target, on artificial tables,
 * against every combination. */
#include "core/rng.h"
#include "pruning/pruning.h"
#include "tests/harness/config_support.h"

enum { LAYERS_MAX = 6, POINTS = 5, PARTS = 16384 };

struct table {
    struct cr_prune_point point[LAYERS_MAX * POINTS];
    int                   layers;
};

/* The minimum loss of all combinations within the budget; INFINITY: no combination fits. */
static double brute(const struct table *t, double budget) {
    double best  = INFINITY;
    int    count = 1;
    for (int l = 0; l < t->layers; l++) count *= POINTS;
    for (int n = 0; n < count; n++) {
        double seconds = 0, lost = 0;
        for (int l = 0, rest = n; l < t->layers; l++, rest /= POINTS) {
            seconds += t->point[l * POINTS + rest % POINTS].seconds;
            lost += t->point[l * POINTS + rest % POINTS].lost;
        }
        if (seconds <= budget) best = fmin(best, lost);
    }
    return best;
}

static double least_seconds(const struct table *t) {
    double sum = 0;
    for (int l = 0; l < t->layers; l++) {
        double least = INFINITY;
        for (int i = 0; i < POINTS; i++) least = fmin(least, t->point[l * POINTS + i].seconds);
        sum += least;
    }
    return sum;
}

static double lost_of(const struct table *t, const int *choice) {
    double lost = 0;
    for (int l = 0; l < t->layers; l++) lost += t->point[l * POINTS + choice[l]].lost;
    return lost;
}

/* Losses increase; times mostly decrease, but not always, as measured times do. `whole`: times are whole numbers. */
static void invent(struct table *t, struct cr_rng *rng, bool whole) {
    t->layers = 1 + (int)cr_rng_below(rng, LAYERS_MAX);
    for (int l = 0; l < t->layers; l++) {
        double lost = 0;
        for (int i = 0; i < POINTS; i++) {
            const double seconds = (double)(100 + cr_rng_below(rng, 1000)) / (1 + i / 2);
            t->point[l * POINTS + i] =
                (struct cr_prune_point){.seconds = whole ? floor(seconds) : seconds * 1e-6, .lost = lost};
            lost += (double)(1 + cr_rng_below(rng, 100)) / 256;
        }
    }
}

/* Whole times and a slack that is a power of two: sums are exact, and so is the choice. */
static void choice_is_optimal(void) {
    struct cr_rng rng = cr_rng_make(11, CR_RNG_TEST, 0, 0);
    struct table  t;
    int           choice[LAYERS_MAX];
    for (int k = 0; k < 60; k++) {
        double seconds;
        invent(&t, &rng, true);
        const double budget = least_seconds(&t) + (double)(1 << cr_rng_below(&rng, 13));
        REQUIRE_OK(cr_prune_choose(t.point, t.layers, POINTS, budget, choice, &seconds));
        CHECK(seconds <= budget);
        CHECK_NEAR(lost_of(&t, choice), brute(&t, budget), 1e-12);
    }
}

/* Any times: within the budget, and no worse than the best of a slightly smaller budget. */
static void choice_is_near_the_optimum(void) {
    struct cr_rng rng = cr_rng_make(12, CR_RNG_TEST, 0, 0);
    struct table  t;
    int           choice[LAYERS_MAX];
    for (int k = 0; k < 60; k++) {
        double seconds;
        invent(&t, &rng, false);
        const double least = least_seconds(&t), slack = least * (double)cr_rng_below(&rng, 1000) / 500,
                     budget = least + slack;
        REQUIRE_OK(cr_prune_choose(t.point, t.layers, POINTS, budget, choice, &seconds));
        CHECK(seconds <= budget * (1 + 1e-12));
        CHECK(lost_of(&t, choice) >= brute(&t, budget * (1 + 1e-12)) - 1e-12);
        if (slack > 0) CHECK(lost_of(&t, choice) <= brute(&t, budget - slack * t.layers / PARTS) + 1e-12);
    }
}

static void choice_at_the_ends(void) {
    /* one layer that pruning does not speed up, one that it does */
    const struct cr_prune_point point[2 * 3] = {{5, 0}, {6, 0.1}, {5, 0.2}, {8, 0}, {4, 0.3}, {2, 0.6}};
    int                         choice[2];
    double                      seconds;
    REQUIRE_OK(cr_prune_choose(point, 2, 3, 13, choice, &seconds));
    CHECK(choice[0] == 0 && choice[1] == 0); /* dense fits the budget: nothing is pruned */
    REQUIRE_OK(cr_prune_choose(point, 2, 3, 12.9, choice, &seconds));
    CHECK(choice[0] == 0 && choice[1] == 1);
    CHECK_NEAR(seconds, 9, 0);
    REQUIRE_OK(cr_prune_choose(point, 2, 3, 7, choice, &seconds));
    CHECK(choice[0] == 0 && choice[1] == 2); /* zero slack */
    CHECK_NEAR(seconds, 7, 0);
    REQUIRE_OK(cr_prune_choose(point, 2, 3, 6.5, choice, &seconds));
    CHECK(choice[0] == 0 && choice[1] == 2); /* unreachable: the fastest combination, and its time */
    CHECK_NEAR(seconds, 7, 0);
    REQUIRE_OK(cr_prune_choose(point, 0, 3, 1, choice, &seconds));
    CHECK_NEAR(seconds, 0, 0);
}

TESTS(CASE(choice_is_optimal), CASE(choice_is_near_the_optimum), CASE(choice_at_the_ends))

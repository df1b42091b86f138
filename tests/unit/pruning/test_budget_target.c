/* tests/unit/pruning/test_budget_target.c: the measured time meets the target although predictions are wrong. Networks
 * and their times are made up. */
#include "core/rng.h"
#include "pruning/budget/target.h"
#include "tests/harness/test.h"

enum { NETWORKS = 200 };

/* Network i costs less than network i - 1 and loses more. */
struct invented {
    double cost[NETWORKS], seconds[NETWORKS];
    int    present, best, measured;
    int    fail_at; /* the measurement that fails; 0: none */
    int    dense_measured;
    double dense[8]; /* seconds of the network before pruning, one measurement after the other */
};

static cr_status choose(void *self, double budget, double *cost, double *loss) {
    struct invented *v = self;
    v->present         = 0;
    while (v->present < NETWORKS - 1 && v->cost[v->present] > budget) v->present++;
    *cost = v->cost[v->present];
    *loss = v->present;
    return CR_OK;
}

static cr_status measure(void *self, double *seconds) {
    struct invented *v = self;
    *seconds           = v->seconds[v->present];
    return ++v->measured == v->fail_at ? CR_FAIL(CR_ERR_DEVICE, "no time") : CR_OK;
}

static cr_status keep(void *self) {
    struct invented *v = self;
    v->best            = v->present;
    return CR_OK;
}

static cr_status measure_dense(void *self, double *seconds) {
    struct invented *v = self;
    *seconds           = v->dense[v->dense_measured++];
    return *seconds > 0 ? CR_OK : CR_FAIL(CR_ERR_DEVICE, "no time");
}

static void invent(struct invented *v) {
    *v = (struct invented){.best = -1};
    for (int i = 0; i < NETWORKS; i++) v->cost[i] = v->seconds[i] = 5e-3 * (1 - 0.004 * i);
}

static struct cr_budget_met reach(struct invented *v, double target) {
    const struct cr_budget_networks networks = {v, choose, measure, keep, NULL};
    struct cr_budget_met            met;
    CHECK_INT(cr_budget_reach(&networks, target, v->cost[0], v->seconds[0], &met), CR_OK);
    CHECK_INT(met.networks, v->measured);
    CHECK(met.networks <= CR_BUDGET_ROUNDS + 1);
    return met;
}

/* The network that loses least of those that meet the target. */
static int best_of(const struct invented *v, double target) {
    int i = 0;
    while (i < NETWORKS && v->seconds[i] > target) i++;
    return i;
}

static void check_met(const struct invented *v, const struct cr_budget_met *met, double target) {
    CHECK(met->met);
    CHECK(met->measured == v->seconds[v->best] && met->measured <= target);
    CHECK(fabs(met->predicted / met->measured - 1) <= 0.02);
    CHECK(v->best >= best_of(v, target) && v->best <= best_of(v, target) + 3);
}

TEST(right_prediction) {
    struct invented v;
    invent(&v);
    const struct cr_budget_met met = reach(&v, 3e-3);
    check_met(&v, &met, 3e-3);
    CHECK_INT(met.networks, 1);
    CHECK_INT(v.best, best_of(&v, 3e-3));
}

/* All pruned networks take 20 % longer than predicted, or 20 % less. */
TEST(wrong_scale) {
    static const double factors[] = {1.2, 0.8};
    for (size_t f = 0; f < CR_COUNT(factors); f++) {
        struct invented v;
        invent(&v);
        for (int i = 1; i < NETWORKS; i++) v.seconds[i] *= factors[f];
        const struct cr_budget_met met = reach(&v, 3e-3);
        check_met(&v, &met, 3e-3);
        CHECK(fabs(met.first * factors[f] - 1) < 1e-12);
        CHECK(met.networks <= 3);
    }
}

/* A part of the time does not depend on the network: the second prediction is correct. */
TEST(constant_part) {
    for (double target = 2.3e-3; target < 5e-3; target += 0.3e-3) {
        struct invented v;
        invent(&v);
        for (int i = 0; i < NETWORKS; i++) v.seconds[i] = 1.5e-3 + 0.7 * v.cost[i];
        const struct cr_budget_met met = reach(&v, target);
        check_met(&v, &met, target);
        CHECK(met.networks <= 3);
    }
}

/* Times that differ by up to 6 % at random: the best network that was measured stays. */
TEST(noise) {
    struct cr_rng rng = cr_rng_make(5, CR_RNG_TEST, 0, 0);
    for (int n = 0; n < 200; n++) {
        struct invented v;
        const double    target = 1.5e-3 + 1e-5 * (double)cr_rng_below(&rng, 300);
        invent(&v);
        for (int i = 0; i < NETWORKS; i++) v.seconds[i] *= 1.1 + 6e-5 * (double)cr_rng_below(&rng, 1000);
        const struct cr_budget_met met = reach(&v, target);
        CHECK(met.met && met.measured == v.seconds[v.best] && met.measured <= target);
        CHECK(fabs(met.predicted / met.measured - 1) <= 0.07);
        CHECK(met.measured > 0.85 * target);
    }
}

/* The factor of the network before alone does not show whether a target can be met. */
TEST(at_the_end) {
    struct invented v;
    invent(&v);
    for (int i = 1; i < NETWORKS; i++) v.seconds[i] *= 0.5;
    const double               least = v.seconds[NETWORKS - 1];
    const struct cr_budget_met met   = reach(&v, least);
    CHECK(met.met && v.best == NETWORKS - 1);
    invent(&v);
    for (int i = 1; i < NETWORKS; i++) v.seconds[i] *= 2;
    const struct cr_budget_met missed = reach(&v, v.cost[NETWORKS - 1]);
    CHECK(!missed.met && v.best == -1);
    CHECK(missed.least == v.seconds[NETWORKS - 1]);
}

TEST(failure) {
    struct invented                 v;
    const struct cr_budget_networks networks = {&v, choose, measure, keep, NULL};
    struct cr_budget_met            met;
    invent(&v);
    for (int i = 1; i < NETWORKS; i++) v.seconds[i] *= 1.2;
    v.fail_at = 2;
    CHECK_INT(cr_budget_reach(&networks, 3e-3, v.cost[0], v.seconds[0], &met), CR_ERR_DEVICE);
}

/* The network before pruning takes 5 ms, but other programs ran while it was measured first. */
TEST(first_time_is_too_long) {
    static const struct {
        double first, again[3];
        double left; /* the shortest time */
        int    measured;
    } v[] = {{5e-3, {5.1e-3}, 5e-3, 1},
             {5e-3, {4.6e-3}, 5e-3, 1}, /* noise */
             {15e-3, {5e-3, 5e-3}, 5e-3, 2},
             {15e-3, {7e-3, 5e-3}, 5e-3, 2},
             {15e-3, {20e-3}, 15e-3, 1}};
    for (size_t i = 0; i < CR_COUNT(v); i++) {
        struct invented                 u;
        struct cr_budget_met            met;
        double                          seconds  = v[i].first;
        const struct cr_budget_networks networks = {&u, choose, measure, keep, measure_dense};
        invent(&u);
        memcpy(u.dense, v[i].again, sizeof v[i].again);
        CHECK_INT(cr_budget_reach_speedup(&networks, 1.5, u.cost[0], &seconds, &met), CR_OK);
        CHECK(met.met && seconds == v[i].left && met.measured <= v[i].left / 1.5);
        CHECK_INT(u.dense_measured, v[i].measured);
        CHECK_INT(u.best == 0, v[i].left > 5e-3); /* nothing is pruned while the machine seems slow */
    }
}

/* Not repeated: a target that no network meets, and steady times. The error of a measurement is returned. */
TEST(times_are_not_measured_again) {
    struct invented           u;
    struct cr_budget_met      met;
    double                    seconds  = 5e-3;
    struct cr_budget_networks networks = {&u, choose, measure, keep, measure_dense};
    invent(&u);
    CHECK_INT(cr_budget_reach_speedup(&networks, 50, u.cost[0], &seconds, &met), CR_OK);
    CHECK(!met.met && u.dense_measured == 0);
    CHECK_STATUS(cr_budget_reach_speedup(&networks, 1.5, u.cost[0], &seconds, &met), CR_ERR_DEVICE);
    networks.measure_dense = NULL;
    u.dense_measured       = 0;
    CHECK_INT(cr_budget_reach_speedup(&networks, 1.5, u.cost[0], &seconds, &met), CR_OK);
    CHECK(met.met && u.dense_measured == 0);
}

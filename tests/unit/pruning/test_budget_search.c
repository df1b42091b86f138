/* tests/unit/pruning/test_budget_search.c: the choice of widths and patterns within a budget, on artificial networks,
 * against every combination. */
#include "core/rng.h"
#include "pruning/budget/search.h"
#include "tests/harness/failing_alloc.h"

enum { SCOPE = 3 };

OWNABLE(search_result, struct cr_search_result, cr_search_free(x))
OWNABLE(search_problem, struct cr_search_problem, cr_search_problem_free(x))

static int combinations_of(const struct cr_search_problem *p, const struct cr_search_factor *f) {
    int count = 1;
    for (int i = 0; i < f->variables; i++) count *= p->values[f->variable[i]];
    return count;
}

static int index_of(const struct cr_search_problem *p, const struct cr_search_factor *f, const int *value) {
    int at = 0;
    for (int i = 0; i < f->variables; i++) at = at * p->values[f->variable[i]] + value[f->variable[i]];
    return at;
}

/* A factor of up to three neighbouring variables, with times that are products of widths, as those of convolutions. */
static void invent_factor(struct cr_search_problem *p, struct cr_search_factor *f, struct cr_rng *rng, int options) {
    const int most = 1 + (int)cr_rng_below(rng, SCOPE), scope = CR_MIN(most, p->variables);
    const int begin = (int)cr_rng_below(rng, (uint32_t)(p->variables - scope + 1));
    f->variables    = scope;
    f->variable     = cr_alloc(SCOPE, sizeof *f->variable);
    for (int i = 0; i < scope; i++) f->variable[i] = begin + i;
    const int count = combinations_of(p, f);
    f->first        = cr_alloc((size_t)count + 1, sizeof *f->first);
    f->option       = cr_alloc((size_t)(count * options), sizeof *f->option);
    for (int c = 0; c < count; c++) {
        const int n = 1 + (int)cr_rng_below(rng, (uint32_t)options);
        for (int o = 0; o < n; o++)
            f->option[f->first[c] + o] = (struct cr_search_option){.cost = 1e-6 * (double)(1 + cr_rng_below(rng, 1000)),
                                                                   .loss = (double)cr_rng_below(rng, 1000) / 1024,
                                                                   .tag  = o};
        f->first[c + 1] = f->first[c] + n;
    }
}

static void invent(struct cr_search_problem *p, struct cr_rng *rng) {
    p->variables = (int)cr_rng_below(rng, 6);
    p->factors   = 1 + (int)cr_rng_below(rng, 4);
    p->values    = cr_alloc((size_t)p->variables + 1, sizeof *p->values);
    p->factor    = cr_alloc((size_t)p->factors, sizeof *p->factor);
    for (int v = 0; v < p->variables; v++) p->values[v] = 1 + (int)cr_rng_below(rng, 3);
    for (int f = 0; f < p->factors; f++) invent_factor(p, &p->factor[f], rng, 3);
}

/* The least loss of all choices within the budget, and the least cost of all. */
static double brute(const struct cr_search_problem *p, double budget, double *least_cost) {
    int    value[8] = {0}, option[4];
    double best     = INFINITY;
    *least_cost     = INFINITY;
    for (;;) {
        for (int f = 0; f < p->factors; f++) option[f] = p->factor[f].first[index_of(p, &p->factor[f], value)];
        for (bool more = true; more;) {
            double cost = 0, loss = 0;
            for (int f = 0; f < p->factors; f++) {
                cost += p->factor[f].option[option[f]].cost;
                loss += p->factor[f].option[option[f]].loss;
            }
            *least_cost = fmin(*least_cost, cost);
            if (cost <= budget * (1 + 1e-12)) best = fmin(best, loss);
            more = false;
            for (int f = 0; f < p->factors && !more; f++) {
                const int at = index_of(p, &p->factor[f], value);
                more         = ++option[f] < p->factor[f].first[at + 1];
                if (!more) option[f] = p->factor[f].first[at];
            }
        }
        int v = 0;
        while (v < p->variables && ++value[v] == p->values[v]) value[v++] = 0;
        if (v == p->variables) return best;
    }
}

/* The sums of a result are those of its choice, and each option is one of its combination. */
static void check_sums(const struct cr_search_problem *p, const struct cr_search_result *r) {
    double cost = 0, loss = 0;
    for (int f = 0; f < p->factors; f++) {
        const int at = index_of(p, &p->factor[f], r->value);
        CHECK(r->option[f] >= p->factor[f].first[at] && r->option[f] < p->factor[f].first[at + 1]);
        cost += p->factor[f].option[r->option[f]].cost;
        loss += p->factor[f].option[r->option[f]].loss;
    }
    CHECK(fabs(cost - r->cost) <= 1e-12 && fabs(loss - r->loss) <= 1e-9);
}

static void check_one(const struct cr_search_problem *p, double budget) {
    OWNED(search_result) r = {0};
    double               least, ignored;
    const double         best = brute(p, budget, &least);
    REQUIRE_OK(cr_search(p, budget, &r));
    check_sums(p, &r);
    if (isinf(best))
        CHECK(fabs(r.cost - least) < 1e-12);
    else {
        CHECK(r.cost <= budget * (1 + 1e-12));
        CHECK(r.loss >= best - 1e-9);
        CHECK(r.loss <= brute(p, budget - r.gap - 1e-12, &ignored) + 1e-9);
        CHECK(r.gap < 0.01 * budget);
    }
}

TEST(against_brute_force) {
    struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, 0, 0);
    for (int i = 0; i < 120; i++) {
        OWNED(search_problem) p = {0};
        double                least, most = 0;
        invent(&p, &rng);
        (void)brute(&p, 0, &least);
        for (int f = 0; f < p.factors; f++) most += 1e-3;
        for (int k = 0; k < 4; k++) check_one(&p, least + (most - least) * k * k / 16);
        check_one(&p, least * 0.9);
    }
}

/* A chain of 60 variables whose best choice is known: every factor is cheapest and best at equal values. */
TEST(long_chain) {
    enum { N = 60, VALUES = 8 };
    OWNED(search_problem) p = {.variables = N, .factors = N - 1};
    OWNED(search_result)  r = {0};
    p.values                = cr_alloc(N, sizeof *p.values);
    p.factor                = cr_alloc(N - 1, sizeof *p.factor);
    for (int v = 0; v < N; v++) p.values[v] = VALUES;
    for (int f = 0; f < N - 1; f++) {
        struct cr_search_factor *q = &p.factor[f];
        q->variables               = 2;
        q->variable                = cr_alloc(2, sizeof *q->variable);
        q->first                   = cr_alloc(VALUES * VALUES + 1, sizeof *q->first);
        q->option                  = cr_alloc(VALUES * VALUES, sizeof *q->option);
        q->variable[0] = f, q->variable[1] = f + 1;
        for (int i = 0; i < VALUES * VALUES; i++) {
            const int a = i / VALUES, b = i % VALUES;
            q->first[i + 1] = i + 1;
            q->option[i]    = (struct cr_search_option){.cost = VALUES - a + abs(a - b), .loss = a + 2 * abs(a - b)};
        }
    }
    /* all values 4: cost 4 each, loss 4 each */
    REQUIRE_OK(cr_search(&p, 4.0 * (N - 1), &r));
    check_sums(&p, &r);
    CHECK(r.cost <= 4.0 * (N - 1));
    CHECK(r.loss <= 4.0 * (N - 1) * (1 + r.gap / r.cost) + 8);
    CHECK(r.gap < 0.02 * r.cost);
    CHECK(cr_search_size(&p) <= VALUES * VALUES);
}

TEST(lack_of_memory) {
    struct cr_rng            rng    = cr_rng_make(9, CR_RNG_TEST, 0, 0);
    struct cr_search_problem scarce = {0};
    do {
        cr_search_problem_free(&scarce);
        invent(&scarce, &rng);
    } while (scarce.variables < 4 || scarce.factors < 4);
    for_each_failing_alloc(f, .least = 20) {
        OWNED(search_result) r = {0};
        failing_alloc_run(&f, cr_search(&scarce, 2.5e-3, &r));
    }
    cr_search_problem_free(&scarce);
}

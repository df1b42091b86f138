/* test_plan.c: the planner: hand cases, thousands of random instances judged by a check of our own, optimal plans by brute
 * force, real networks, and a proof-reader (cr_plan_check) that must refuse every corrupted plan. */
#include "passes_help.h"
#include "plan_print.h"

/* ---- the core ---- */

static size_t aligned(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

/* The test's own truth, quadratic and plain. */
static bool lives_valid(const struct cr_life *life, int n, size_t alignment, size_t peak) {
    for (int i = 0; i < n; i++) {
        if (life[i].size == 0 || life[i].lower >= life[i].upper) continue;
        if (life[i].offset % alignment || life[i].offset + life[i].size > peak) return false;
        for (int k = 0; k < i; k++) {
            bool there = life[k].size && life[k].lower < life[k].upper;
            bool time  = life[k].lower < life[i].upper && life[i].lower < life[k].upper;
            bool space = life[k].offset < life[i].offset + life[i].size && life[i].offset < life[k].offset + life[k].size;
            if (there && time && space) return false;
        }
    }
    return true;
}

static size_t plain_bound(const struct cr_life *life, int n, size_t alignment, size_t *sum) {
    size_t most = 0;
    *sum        = 0;
    for (int i = 0; i < n; i++) { /* the load is largest where some life starts */
        size_t load = 0;
        if (life[i].lower >= life[i].upper) continue;
        *sum += aligned(life[i].size, alignment);
        for (int k = 0; k < n; k++)
            if (life[k].lower <= life[i].lower && life[i].lower < life[k].upper) load += aligned(life[k].size, alignment);
        most = CR_MAX(most, load);
    }
    return most;
}

static void random_lives(struct cr_rng *rng, struct cr_life *life, int n, int64_t horizon, int64_t size) {
    for (int i = 0; i < n; i++) {
        int64_t lower = draw(rng, -5, horizon), length = draw(rng, 0, 3) ? draw(rng, 1, 6) : draw(rng, 0, horizon);
        life[i] = (struct cr_life){.lower = lower, .upper = lower + length, .size = (size_t)draw(rng, 0, size), .offset = 12345};
    }
}

static void hand_case(void) {
    /* Largest first: B at 0, A above it; C fits the gap that B leaves; D goes on top of nothing but A's end. */
    struct cr_life life[] = {{0, 4, 30, 0}, {0, 2, 50, 0}, {2, 6, 40, 0}, {4, 6, 10, 0}};
    size_t         peak, bound;
    REQUIRE_OK(cr_plan_lives(life, 4, 10, &peak, &bound));
    CHECK_INT(life[1].offset, 0);
    CHECK_INT(life[2].offset, 0);
    CHECK_INT(life[0].offset, 50);
    CHECK_INT(life[3].offset, 40);
    CHECK_INT(peak, 80);
    CHECK_INT(bound, 80);
}

static void alignment_counts(void) {
    struct cr_life life[] = {{0, 1, 1, 0}, {0, 1, 65, 0}, {0, 1, 64, 0}};
    size_t         peak, bound;
    REQUIRE_OK(cr_plan_lives(life, 3, 64, &peak, &bound));
    CHECK_INT(bound, 64 + 128 + 64);
    CHECK_INT(peak, bound);
    CHECK(lives_valid(life, 3, 64, peak));
}

static void nothing_to_plan(void) {
    size_t         peak = 7, bound = 7;
    struct cr_life life[] = {{3, 3, 100, 9}, {5, 2, 100, 9}, {0, 9, 0, 9}};
    REQUIRE_OK(cr_plan_lives(NULL, 0, 64, &peak, &bound));
    CHECK_INT(peak, 0);
    CHECK_INT(bound, 0);
    REQUIRE_OK(cr_plan_lives(life, 3, 64, &peak, &bound));
    CHECK_INT(peak, 0);
    for (int i = 0; i < 3; i++) CHECK_INT(life[i].offset, 0);
}

static void too_many_bytes(void) {
    struct cr_life life[] = {{0, 1, SIZE_MAX / 3, 0}, {1, 2, SIZE_MAX - 5, 0}};
    size_t         peak, bound;
    CHECK_STATUS(cr_plan_lives(life, 2, 256, &peak, &bound), CR_ERR_MEMORY);
    CHECK_HAS(cr_error_message(), "batch");
}

static void random_instances(void) {
    struct cr_life life[120], again[120];
    int            tight = 0;
    double         worst = 1;
    for (int round = 0; round < 3000; round++) {
        struct cr_rng rng       = test_rng((uint64_t)round);
        int           n         = (int)draw(&rng, 1, round < 2000 ? 25 : 120);
        size_t        alignment = (size_t)draw(&rng, 1, 3) * (size_t)draw(&rng, 1, 40), peak, bound, bound2, sum;
        random_lives(&rng, life, n, draw(&rng, 2, 60), draw(&rng, 1, 1) << draw(&rng, 2, 24));
        memcpy(again, life, sizeof life);
        REQUIRE_OK(cr_plan_lives(life, n, alignment, &peak, &bound));
        CHECK(lives_valid(life, n, alignment, peak));
        CHECK_INT(bound, plain_bound(life, n, alignment, &sum));
        CHECK(bound <= peak);
        CHECK(peak <= sum);
        REQUIRE_OK(cr_plan_bound(life, n, alignment, &bound2));
        CHECK_INT(bound2, bound);
        if (round % 10 == 0) {
            REQUIRE_OK(cr_plan_lives(again, n, alignment, &peak, &bound));
            for (int i = 0; i < n; i++) CHECK_INT(again[i].offset, life[i].offset);
        }
        tight += peak == bound;
        if (bound) worst = CR_MAX(worst, (double)peak / (double)bound);
    }
    printf("    3000 instances: peak = bound in %d, worst peak/bound %.4f\n", tight, worst);
    CHECK(tight > 2600);
}

/* Lowest place free of those set before, for every order: one of the orders is optimal. */
static void try_orders(struct cr_life *life, int n, unsigned used, size_t peak, size_t *best) {
    if (peak >= *best) return;
    if (used + 1 == 1u << n) {
        *best = peak;
        return;
    }
    for (int i = 0; i < n; i++) {
        if (used >> i & 1) continue;
        size_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int k = 0; k < n; k++) {
                bool time = life[k].lower < life[i].upper && life[i].lower < life[k].upper;
                if ((used >> k & 1) && time && at < life[k].offset + life[k].size && life[k].offset < at + life[i].size) {
                    at    = life[k].offset + life[k].size;
                    moved = true;
                }
            }
        }
        life[i].offset = at;
        try_orders(life, n, used | 1u << i, CR_MAX(peak, at + life[i].size), best);
    }
}

static void tiny_instances_against_the_optimum(void) {
    int optimal = 0, rounds = 1500;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng  rng = test_rng(100000 + (uint64_t)round);
        int            n   = (int)draw(&rng, 3, 6);
        struct cr_life life[6], mine[6];
        size_t         peak, bound, best = SIZE_MAX;
        for (int i = 0; i < n; i++) {
            int64_t lower = draw(&rng, 0, 6);
            life[i]       = (struct cr_life){.lower = lower, .upper = lower + draw(&rng, 1, 5), .size = (size_t)draw(&rng, 1, 9)};
        }
        memcpy(mine, life, sizeof life);
        REQUIRE_OK(cr_plan_lives(mine, n, 1, &peak, &bound));
        try_orders(life, n, 0, 0, &best);
        CHECK(bound <= best);
        CHECK(best <= peak);
        optimal += best == peak;
    }
    printf("    %d of %d tiny instances optimal\n", optimal, rounds);
    CHECK(optimal >= rounds * 99 / 100);
}

static void planning_survives_failing_allocations(void) {
    struct cr_life life[30];
    struct cr_rng  rng = test_rng(5);
    size_t         peak, bound;
    int64_t        live = cr_alloc_live();
    random_lives(&rng, life, 30, 20, 100);
    for (int n = 1;; n++) {
        cr_alloc_fail_at(n);
        cr_status status = cr_plan_lives(life, 30, 8, &peak, &bound);
        cr_alloc_fail_at(0);
        CHECK_INT(cr_alloc_live(), live);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_MEMORY);
        REQUIRE(n < 50);
    }
}

/* Hard public instances: a report of how far greedy placing goes, no bar. Their space is 1 MiB; the optimum fits. */
static void hard_instances_report(void) {
    const char *names[] = {"A", "C", "E", "G", "I", "K"};
    if (!test_data_dir()) SKIP("CRESNET_TEST_DATA is not set");
    static struct cr_life life[1000];
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        char path[1024], line[256];
        snprintf(path, sizeof path, "%s/minimalloc/%s.1048576.csv", test_data_dir(), names[i]);
        FILE *file = fopen(path, "r");
        if (!file) SKIP("no minimalloc instances there");
        int    n = 0;
        size_t peak, bound;
        while (fgets(line, sizeof line, file) && n < 1000) {
            long long lower, upper, size;
            if (sscanf(line, "%*d,%lld,%lld,%lld", &lower, &upper, &size) == 3)
                life[n++] = (struct cr_life){.lower = lower, .upper = upper, .size = (size_t)size};
        }
        fclose(file);
        int64_t begin = cr_time_ns();
        REQUIRE_OK(cr_plan_lives(life, n, 1, &peak, &bound));
        printf("    %s: %d lives, bound %zu, peak %zu, ratio %.4f, %.1f ms\n", names[i], n, bound, peak, (double)peak / (double)bound,
               (double)(cr_time_ns() - begin) * 1e-6);
        CHECK(lives_valid(life, n, 1, peak));
        CHECK(peak < bound * 3 / 2);
    }
}

/* ---- programs ---- */

/* `step` or `eval` of an architecture, compiled; false after a failed check. */
static bool compiled(struct bench_model *b, const char *arch, int64_t size, int64_t batch, enum cr_program_kind kind, bool fuse,
                     bool reuse, struct cr_program *p) {
    char override[64];
    snprintf(override, sizeof override, "model.arch=%s", arch);
    const char               *overrides[] = {override};
    struct cr_target          target      = greedy_target(256);
    struct cr_compile_options options     = {.fuse = fuse, .reuse = reuse};
    cr_status                 status      = bench_open(b, overrides, 1, size);
    if (status == CR_OK) status = cr_model_program(&b->model, &b->config, kind, batch, p);
    if (status == CR_OK) status = cr_compile(p, &target, &options);
    CHECK_STATUS(status, CR_OK);
    return status == CR_OK;
}

static void networks_meet_the_bound(void) {
    const char   *archs[]   = {"resnet18", "resnet50", "resnet152", "resnet20"};
    const int64_t batches[] = {32, 100, 256};
    for (size_t a = 0; a < CR_COUNT(archs); a++) {
        double worst = 0, slowest = 0;
        for (size_t k = 0; k < 2 * CR_COUNT(batches); k++) {
            struct bench_model b;
            struct cr_program  p;
            if (!compiled(&b, archs[a], a < 3 ? 224 : 32, batches[k / 2], CR_PROGRAM_STEP, k % 2, true, &p)) return;
            double ratio = (double)p.region_bytes[CR_REGION_POOL] / (double)p.bound_bytes;
            CHECK(ratio >= 1 && ratio <= 1.01);
            int64_t begin = cr_time_ns();
            REQUIRE_OK(cr_pass_plan(&p, 256, true));
            slowest = CR_MAX(slowest, (double)(cr_time_ns() - begin) * 1e-6);
            worst   = CR_MAX(worst, ratio);
            cr_program_free(&p);
            bench_close(&b);
        }
        printf("    %s: worst peak/bound %.6f, slowest plan %.2f ms\n", archs[a], worst, slowest);
    }
}

/* What is alive at an op can never be less than the pool; so the bound is judged from outside too. */
static void bound_is_the_largest_load(void) {
    struct bench_model b;
    struct cr_program  p;
    if (!compiled(&b, "resnet20", 32, 3, CR_PROGRAM_STEP, true, true, &p)) return;
    size_t most = 0;
    for (int i = 0; i < p.ops; i++) {
        size_t load = 0;
        for (int t = 0; t < p.tensors; t++) {
            const struct cr_tensor *x = &p.tensor[t];
            if (x->region != CR_REGION_POOL || x->first < 0 || i < x->first || i > x->last) continue;
            bool given_away = false; /* to an output of this very op */
            for (int u = 0; u < p.tensors; u++) given_away |= p.tensor[u].alias == t && p.tensor[u].first == i;
            if (!given_away) load += aligned(x->bytes, 256);
        }
        most = CR_MAX(most, load);
    }
    CHECK_INT(p.bound_bytes, most);
    cr_program_free(&p);
    bench_close(&b);
}

static void without_reuse_everything_is_apart(void) {
    struct bench_model b;
    struct cr_program  p;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, false, &p)) return;
    size_t sum = 0;
    for (int t = 0; t < p.tensors; t++) {
        CHECK_INT(p.tensor[t].alias, CR_NONE);
        if (p.tensor[t].region != CR_REGION_POOL) continue;
        sum += aligned(p.tensor[t].bytes, 256);
        for (int u = 0; u < t; u++)
            if (p.tensor[u].region == CR_REGION_POOL)
                CHECK(p.tensor[t].offset >= p.tensor[u].offset + p.tensor[u].bytes || p.tensor[u].offset >= p.tensor[t].offset + p.tensor[t].bytes);
    }
    CHECK_INT(p.region_bytes[CR_REGION_POOL], sum);
    CHECK(p.bound_bytes < sum / 2);
    cr_program_free(&p);
    bench_close(&b);
}

static int emitted(struct cr_program *p, const struct cr_op *op, const char *name) {
    int index = cr_emit(p, op, name); /* may move the array */
    return p->op[index].out[0];
}

/* zero -> a; relu: b = a; add: c = b + b; relu: d = c; add: e = c + d (c and d die) */
static void chain_program(struct cr_program *p, int id[5]) {
    cr_program_init(p, "chain", NULL);
    id[0]          = cr_tensor_add(p, "a", CR_F32, CR_REGION_POOL, 1, 1, 1, 100);
    struct cr_op z = cr_op_make(CR_OP_zero, CR_NONE), r = cr_op_make(CR_OP_relu, CR_NONE), s = cr_op_make(CR_OP_add, CR_NONE);
    z.out[0] = id[0];
    cr_emit(p, &z, "a");
    r.in[0] = id[0];
    id[1]   = emitted(p, &r, "b");
    s.in[0] = s.in[1] = id[1];
    id[2]   = emitted(p, &s, "c");
    r.in[0] = id[2];
    id[3]   = emitted(p, &r, "d");
    s.in[0] = id[2];
    s.in[1] = id[3];
    id[4]   = emitted(p, &s, "e");
}

static void storage_is_taken_over(void) {
    struct cr_program p;
    int               id[5];
    chain_program(&p, id);
    p.tensor[id[4]].keep = true;
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK_INT(p.tensor[id[1]].alias, id[0]);
    CHECK_INT(p.tensor[id[2]].alias, id[1]); /* both slots hold it, both may be taken */
    CHECK_INT(p.tensor[id[3]].alias, CR_NONE); /* c is read again */
    CHECK_INT(p.tensor[id[4]].alias, id[3]);   /* the one that came last */
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 2 * 448);
    REQUIRE_OK(cr_plan_check(&p, 64));
    p.tensor[id[1]].keep = true; /* read from outside: must not be overwritten */
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK_INT(p.tensor[id[2]].alias, CR_NONE);
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 3 * 448);
    REQUIRE_OK(cr_plan_check(&p, 64));
    cr_program_free(&p);
}

static void untouched_tensors_are_left_alone(void) {
    struct cr_program p;
    int               id[5];
    chain_program(&p, id);
    int idle  = cr_tensor_add(&p, "idle", CR_F32, CR_REGION_POOL, 1, 1, 1, 1000000);
    int input = cr_tensor_add(&p, "input", CR_F32, CR_REGION_INPUT, 1, 1, 1, 10);
    int other = cr_tensor_add(&p, "input2", CR_F32, CR_REGION_INPUT, 1, 1, 1, 10);
    size_t at = p.tensor[other].offset;
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    CHECK(p.region_bytes[CR_REGION_POOL] < 4000);
    CHECK_INT(p.tensor[idle].first, -1);
    CHECK_INT(p.tensor[input].offset, 0);
    CHECK_INT(p.tensor[other].offset, at);
    REQUIRE_OK(cr_plan_check(&p, 64));
    cr_program_free(&p);
}

/* ---- poison: memory as owners ---- */

/* Plays the program on a pool that remembers which tensor each unit belongs to; dead ranges lose their owner before every
 * op. Then every op must find its inputs whole, and every kept tensor must be whole at the end. */
static int play(const struct cr_program *p, size_t unit) {
    size_t           units = p->region_bytes[CR_REGION_POOL] / unit;
    int             *owner = cr_alloc(units + 1, sizeof *owner), faults = 0;
    struct cr_range *dead  = cr_alloc((size_t)p->tensors + 1, sizeof *dead);
    CR_ASSERT(owner && dead);
    for (int i = 0; i <= p->ops; i++) {
        int ranges = cr_plan_dead_ranges(p, i, dead);
        for (int k = 0; k < ranges; k++) {
            if (dead[k].begin >= dead[k].end || (k && dead[k].begin < dead[k - 1].end)) faults++;
            for (size_t u = (dead[k].begin + unit - 1) / unit; u < (dead[k].end + unit - 1) / unit && u < units; u++) owner[u] = -1;
        }
        for (int t = 0; t < p->tensors && i == p->ops; t++)
            for (size_t u = 0; p->tensor[t].keep && p->tensor[t].first >= 0 && u * unit < p->tensor[t].bytes; u++)
                faults += owner[p->tensor[t].offset / unit + u] != t;
        if (i == p->ops) break;
        int ids[8], n = cr_op_reads(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            const struct cr_tensor *x = &p->tensor[ids[k]];
            if (x->region != CR_REGION_POOL || ids[k] == p->op[i].workspace) continue;
            for (size_t u = 0; u * unit < x->bytes; u++) faults += owner[x->offset / unit + u] != ids[k];
        }
        n = cr_op_writes(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            const struct cr_tensor *x = &p->tensor[ids[k]];
            for (size_t u = 0; x->region == CR_REGION_POOL && u * unit < x->bytes; u++) owner[x->offset / unit + u] = ids[k];
        }
    }
    cr_free(owner);
    cr_free(dead);
    return faults;
}

static void poison_changes_nothing(void) {
    for (int k = 0; k < 8; k++) {
        struct bench_model b;
        struct cr_program  p;
        enum cr_program_kind kind = k & 4 ? CR_PROGRAM_EVAL : CR_PROGRAM_STEP;
        if (!compiled(&b, "resnet20", 32, 2, kind, k & 1, k & 2, &p)) return;
        CHECK_INT(play(&p, 256), 0);
        if (k & 2) { /* the play must be able to fail: two live tensors on one place */
            int t = p.op[1].out[0];
            for (int u = 0; u < p.tensors; u++)
                if (u != t && p.tensor[u].region == CR_REGION_POOL && p.tensor[u].first > p.tensor[t].first &&
                    p.tensor[u].first < p.tensor[t].last && p.op[p.tensor[u].first].workspace != u) {
                    p.tensor[u].offset = p.tensor[t].offset;
                    break;
                }
            CHECK(play(&p, 256) > 0);
        }
        cr_program_free(&p);
        bench_close(&b);
    }
}

/* ---- the proof-reader ---- */

static bool pair_collides(const struct cr_program *p, int t, int u) {
    const struct cr_tensor *a = &p->tensor[t], *b = &p->tensor[u];
    int  a_last = a->keep ? p->ops : a->last, b_last = b->keep ? p->ops : b->last;
    bool time  = a->first <= b_last && b->first <= a_last;
    bool space = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
    bool heirs = (a->alias == u && b->last == a->first) || (b->alias == t && a->last == b->first);
    return time && space && !heirs;
}

/* Does moving or keeping tensor t (aliases untouched) leave the plan right? */
static bool still_right(const struct cr_program *p, int t, size_t alignment) {
    const struct cr_tensor *x = &p->tensor[t];
    if (x->offset % alignment || x->offset + x->bytes > p->region_bytes[CR_REGION_POOL]) return false;
    if (x->alias != CR_NONE && p->tensor[x->alias].offset != x->offset) return false;
    for (int u = 0; u < p->tensors; u++) {
        if (u == t || p->tensor[u].region != CR_REGION_POOL || p->tensor[u].first < 0) continue;
        if (p->tensor[u].alias == t && (p->tensor[u].offset != x->offset || x->keep)) return false;
        if (pair_collides(p, t, u)) return false;
    }
    return true;
}

static void corrupted_plans_are_refused(void) {
    struct bench_model b;
    struct cr_program  p;
    int                refused = 0, fine = 0;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    struct cr_rng rng = test_rng(77);
    for (int round = 0; round < 3000; round++) {
        int              t   = (int)draw(&rng, 0, p.tensors - 1), u = (int)draw(&rng, 0, p.tensors - 1);
        struct cr_tensor *x  = &p.tensor[t], was = *x;
        if (x->region != CR_REGION_POOL || p.tensor[u].region != CR_REGION_POOL) continue;
        switch (draw(&rng, 0, 4)) {
        case 0: x->offset = p.tensor[u].offset; break;
        case 1: x->offset += (size_t)draw(&rng, 1, 511); break;
        case 2: x->offset = (size_t)draw(&rng, 0, (int64_t)(p.region_bytes[CR_REGION_POOL] / 256) + 3) * 256; break;
        case 3: x->keep = true; break;
        default: x->offset = p.region_bytes[CR_REGION_POOL] - 256; break;
        }
        bool right = still_right(&p, t, 256);
        if ((cr_plan_check(&p, 256) == CR_OK) != right) TEST_FAIL_("round %d: %s at %zu: should be %s", round, x->name, x->offset, right ? "fine" : "refused");
        refused += !right;
        fine += right;
        *x = was;
    }
    printf("    %d refused, %d fine\n", refused, fine);
    CHECK(refused > 500 && fine > 50);
    REQUIRE_OK(cr_plan_check(&p, 256));
    size_t pool = p.region_bytes[CR_REGION_POOL];
    p.region_bytes[CR_REGION_POOL] = pool - 1 - 255; /* the top life no longer fits */
    CHECK_STATUS(cr_plan_check(&p, 256), CR_ERR_DEVICE);
    p.region_bytes[CR_REGION_POOL] = pool;
    cr_program_free(&p);
    bench_close(&b);
}

static void false_aliases_are_refused(void) {
    struct cr_program p;
    int               id[5];
    chain_program(&p, id);
    REQUIRE_OK(cr_pass_plan(&p, 64, true));
    struct cr_tensor *t = p.tensor, was[5];
    for (int i = 0; i < 5; i++) was[i] = t[id[i]];
#define REFUSED(change, says)                                                                                          \
    do {                                                                                                               \
        change;                                                                                                        \
        CHECK_STATUS(cr_plan_check(&p, 64), CR_ERR_DEVICE);                                                            \
        CHECK_HAS(cr_error_message(), says);                                                                           \
        for (int i = 0; i < 5; i++) t[id[i]] = was[i];                                                                 \
        REQUIRE_OK(cr_plan_check(&p, 64));                                                                             \
    } while (0)
    REFUSED(t[id[1]].alias = CR_NONE, "share bytes");                  /* in place without saying so */
    REFUSED(t[id[3]].alias = id[2]; t[id[3]].offset = t[id[2]].offset, "does not die");
    REFUSED(t[id[4]].alias = id[0], "taken over twice");
    REFUSED(t[id[4]].alias = 99, "no such tensor");
    REFUSED(t[id[4]].alias = id[4], "no such tensor");
    REFUSED(t[id[1]].offset += 64; t[id[2]].offset += 64; t[id[0]].keep = false, "differ");
    REFUSED(t[id[3]].keep = true, "it is kept");
    REFUSED(t[id[0]].bytes -= 4, "differ");
#undef REFUSED
    p.op[4].kind = CR_OP_bn_grad_finalize; /* an op that does not work in place */
    p.op[4].out[0] = CR_NONE;
    p.op[4].out[2] = id[4];
    p.op[4].in[2]  = id[3];
    CHECK_STATUS(cr_plan_check(&p, 64), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "in place");
    cr_program_free(&p);
}

static void passes_survive_failing_allocations(void) {
    struct bench_model b;
    struct cr_program  p, q;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    cr_program_free(&p);
    REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_STEP, 2, &p));
    struct cr_target          target  = greedy_target(256);
    struct cr_compile_options options = {.fuse = true, .reuse = true};
    int64_t                   live    = cr_alloc_live();
    for (int n = 1;; n++) {
        REQUIRE_OK(cr_program_copy(&p, &q));
        cr_alloc_fail_at(n);
        cr_status status = cr_compile(&q, &target, &options);
        cr_alloc_fail_at(0);
        cr_program_free(&q);
        CHECK_INT(cr_alloc_live(), live);
        if (status == CR_OK) break;
        CHECK_STATUS(status, CR_ERR_MEMORY);
        REQUIRE(n < 500);
    }
    cr_program_free(&p);
    bench_close(&b);
}

static void unknown_passes_are_refused(void) {
    struct cr_program         p;
    int                       id[5];
    struct cr_target          target  = greedy_target(64);
    struct cr_compile_options options = {.until = "plam"};
    chain_program(&p, id);
    CHECK_STATUS(cr_compile(&p, &target, &options), CR_ERR_USAGE);
    CHECK_HAS(cr_error_message(), "\"plam\": use grad, fuse, select, order or plan");
    options.until = "select";
    REQUIRE_OK(cr_compile(&p, &target, &options));
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 0);
    cr_program_free(&p);
}

/* ---- what is printed ---- */

static void printed_lives_plan_again(void) {
    struct bench_model b;
    struct cr_program  p;
    static struct cr_life life[2000];
    int                n    = 0;
    struct cr_text     text = {0};
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    cr_plan_print_csv(&p, &text);
    REQUIRE(!text.failed && text.data);
    CHECK(strncmp(text.data, "id,lower,upper,size,offset\n", 27) == 0);
    for (char *line = strchr(text.data, '\n'); line && line[1] && n < 2000; line = strchr(line + 1, '\n')) {
        int       id;
        long long lower, upper, size, offset;
        REQUIRE(sscanf(line + 1, "%d,%lld,%lld,%lld,%lld", &id, &lower, &upper, &size, &offset) == 5);
        life[n++] = (struct cr_life){lower, upper, (size_t)size, (size_t)offset};
    }
    CHECK(n > 100);
    CHECK(lives_valid(life, n, 256, p.region_bytes[CR_REGION_POOL]));
    size_t bound;
    REQUIRE_OK(cr_plan_bound(life, n, 256, &bound));
    CHECK_INT(bound, p.bound_bytes);
    cr_text_free(&text);
    cr_program_free(&p);
    bench_close(&b);
}

static void json_is_one_line(void) {
    struct bench_model b;
    struct cr_program  p;
    struct cr_text     text = {0};
    char               want[128];
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    cr_plan_print_json(&p, &b.config, "an \"invented\" device", 2, &text);
    REQUIRE(!text.failed);
    CHECK(strchr(text.data, '\n') == text.data + text.length - 1);
    snprintf(want, sizeof want, "\"peak_bytes\": %zu, \"bound_bytes\": %zu, \"ratio\": 1.0", p.region_bytes[CR_REGION_POOL], p.bound_bytes);
    CHECK_HAS(text.data, want);
    CHECK_HAS(text.data, "\"an \\\"invented\\\" device\"");
    cr_text_free(&text);
    cr_program_free(&p);
    bench_close(&b);
}

static void printing_survives_failing_allocations(void) {
    struct bench_model b;
    struct cr_program  p;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    int64_t live = cr_alloc_live();
    for (int n = 1;; n++) {
        struct cr_text text = {0};
        cr_alloc_fail_at(n);
        cr_plan_print_summary(&p, &text);
        cr_plan_print_csv(&p, &text);
        cr_plan_print_json(&p, &b.config, "device", 2, &text);
        cr_alloc_fail_at(0);
        bool failed = text.failed;
        cr_text_free(&text);
        CHECK_INT(cr_alloc_live(), live);
        if (!failed) break;
        REQUIRE(n < 100);
    }
    cr_program_free(&p);
    bench_close(&b);
}

static void programs_without_a_plan_print(void) {
    struct cr_program p;
    int               id[5];
    struct cr_text    text = {0};
    chain_program(&p, id);
    cr_plan_print_summary(&p, &text); /* not planned */
    cr_plan_print_csv(&p, &text);
    cr_program_free(&p);
    cr_program_init(&p, "empty", NULL);
    cr_plan_print_summary(&p, &text);
    CHECK(!text.failed);
    CHECK_HAS(text.data, "program chain: 5 ops");
    cr_text_free(&text);
    cr_program_free(&p);
}

TESTS(CASE(hand_case), CASE(alignment_counts), CASE(nothing_to_plan), CASE(too_many_bytes), CASE(random_instances),
      CASE(tiny_instances_against_the_optimum), CASE(planning_survives_failing_allocations), CASE(hard_instances_report),
      CASE(networks_meet_the_bound), CASE(bound_is_the_largest_load), CASE(without_reuse_everything_is_apart),
      CASE(storage_is_taken_over), CASE(untouched_tensors_are_left_alone), CASE(poison_changes_nothing),
      CASE(corrupted_plans_are_refused), CASE(false_aliases_are_refused), CASE(passes_survive_failing_allocations),
      CASE(unknown_passes_are_refused), CASE(printed_lives_plan_again), CASE(json_is_one_line),
      CASE(printing_survives_failing_allocations), CASE(programs_without_a_plan_print))

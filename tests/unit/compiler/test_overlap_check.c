/* tests/unit/compiler/test_overlap_check.c: the plan checker (cr_plan_check) refuses every corrupted plan and no other;
 * the ranges that may be poisoned; compilation when memory runs out. */
#include "tests/harness/compiler_support.h"
#include "tests/harness/failing_alloc.h"

/* ---- poison: memory with owners ---- */

/* A range of bytes [begin, end). */
struct range {
    size_t begin, end;
};

static int compare_ranges(const void *a, const void *b) {
    const struct range *s = a, *t = b;
    return (s->begin > t->begin) - (s->begin < t->begin);
}

/* Finds the bytes of the pool that hold no live data when op `op` starts; op = program->ops stands for the end of the
 * program. Outputs of the op count as dead unless they reuse the storage of an input. Poison in these bytes must not
 * change a result. `range` has room for program->tensors + 1 ranges; they are sorted and disjoint. Returns their
 * number. The program must be planned. */
static int dead_ranges(const struct cr_program *p, int op, struct range *range) {
    int live = 0, dead = 0;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x           = &p->tensor[t];
        bool                    live_to_end = x->keep && x->first >= 0;
        if (x->region == CR_REGION_POOL && x->first >= 0 && x->first < op && (x->last >= op || live_to_end))
            range[live++] = (struct range){x->offset, x->offset + x->bytes};
    }
    qsort(range, (size_t)live, sizeof *range, compare_ranges);
    size_t top = 0;
    for (int i = 0; i < live; i++) { /* writes the gaps over the ranges: dead <= i here */
        struct range x = range[i];
        if (x.begin > top) range[dead++] = (struct range){top, x.begin};
        top = CR_MAX(top, x.end);
    }
    size_t end = p->region_bytes[CR_REGION_POOL];
    if (top < end) range[dead++] = (struct range){top, end};
    return dead;
}

/* Runs the program on a pool that records the owner of each unit; dead ranges lose their owner before every op. Every
 * op must find its inputs complete, and every kept tensor must be complete at the end. */
static int play(const struct cr_program *p, size_t unit) {
    size_t        units = p->region_bytes[CR_REGION_POOL] / unit;
    int          *owner = cr_alloc(units + 1, sizeof *owner), faults = 0;
    struct range *dead = cr_alloc((size_t)p->tensors + 1, sizeof *dead);
    CR_ASSERT(owner && dead);
    for (int i = 0; i <= p->ops; i++) {
        int ranges = dead_ranges(p, i, dead);
        for (int k = 0; k < ranges; k++) {
            if (dead[k].begin >= dead[k].end || (k && dead[k].begin < dead[k - 1].end)) faults++;
            for (size_t u = (dead[k].begin + unit - 1) / unit; u < (dead[k].end + unit - 1) / unit && u < units; u++)
                owner[u] = -1;
        }
        for (int t = 0; t < p->tensors && i == p->ops; t++)
            for (size_t u = 0; p->tensor[t].keep && p->tensor[t].first >= 0 && u * unit < p->tensor[t].bytes; u++)
                faults += owner[p->tensor[t].offset / unit + u] != t;
        if (i == p->ops) break;
        int ids[CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            const struct cr_tensor *x = &p->tensor[ids[k]];
            if (x->region != CR_REGION_POOL || ids[k] == p->op[i].workspace) continue;
            for (size_t u = 0; u * unit < x->bytes; u++) faults += owner[x->offset / unit + u] != ids[k];
        }
        n = cr_op_writes(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            const struct cr_tensor *x = &p->tensor[ids[k]];
            for (size_t u = 0; x->region == CR_REGION_POOL && u * unit < x->bytes; u++)
                owner[x->offset / unit + u] = ids[k];
        }
    }
    cr_free(owner);
    cr_free(dead);
    return faults;
}

static void poison_changes_nothing(void) {
    for (int k = 0; k < 8; k++) {
        struct bench_model   b;
        struct cr_program    p;
        enum cr_program_kind kind = k & 4 ? CR_PROGRAM_EVAL : CR_PROGRAM_STEP;
        if (!compiled(&b, "resnet20", 32, 2, kind, k & 1, k & 2, &p)) return;
        CHECK_INT(play(&p, 256), 0);
        if (k & 2) { /* the simulation must be able to fail: two live tensors in one place */
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

/* ---- the plan checker ---- */

static bool pair_collides(const struct cr_program *p, int t, int u) {
    const struct cr_tensor *a = &p->tensor[t], *b = &p->tensor[u];
    int                     a_last = a->keep ? p->ops : a->last, b_last = b->keep ? p->ops : b->last;
    bool                    time  = a->first <= b_last && b->first <= a_last;
    bool                    space = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
    bool                    heirs = (a->alias == u && b->last == a->first) || (b->alias == t && a->last == b->first);
    return time && space && !heirs;
}

/* Is the plan valid when tensor t (aliases unchanged) moves or stays? */
static bool still_valid(const struct cr_program *p, int t, size_t alignment) {
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
    int                refused = 0, accepted = 0;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    struct cr_rng rng = test_rng(77);
    for (int round = 0; round < 3000; round++) {
        int               t = (int)draw(&rng, 0, p.tensors - 1), u = (int)draw(&rng, 0, p.tensors - 1);
        struct cr_tensor *x = &p.tensor[t], was = *x;
        if (x->region != CR_REGION_POOL || p.tensor[u].region != CR_REGION_POOL) continue;
        switch (draw(&rng, 0, 4)) {
        case 0: x->offset = p.tensor[u].offset; break;
        case 1: x->offset += (size_t)draw(&rng, 1, 511); break;
        case 2: x->offset = (size_t)draw(&rng, 0, (int64_t)(p.region_bytes[CR_REGION_POOL] / 256) + 3) * 256; break;
        case 3: x->keep = true; break;
        default: x->offset = p.region_bytes[CR_REGION_POOL] - 256; break;
        }
        bool right = still_valid(&p, t, 256);
        if ((cr_plan_check(&p, 256) == CR_OK) != right)
            TEST_FAIL_("round %d: %s at %zu: should be %s", round, x->name, x->offset, right ? "accepted" : "refused");
        refused += !right;
        accepted += right;
        *x = was;
    }
    printf("    %d refused, %d accepted\n", refused, accepted);
    CHECK(refused > 500 && accepted > 50);
    REQUIRE_OK(cr_plan_check(&p, 256));
    size_t pool                    = p.region_bytes[CR_REGION_POOL];
    p.region_bytes[CR_REGION_POOL] = pool - 1 - 255; /* the topmost interval no longer fits */
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
    REFUSED(t[id[1]].alias = CR_NONE, "share bytes"); /* in place without the flag */
    REFUSED(t[id[3]].alias = id[2]; t[id[3]].offset = t[id[2]].offset, "is used later");
    REFUSED(t[id[4]].alias = id[0], "two tensors reuse");
    REFUSED(t[id[4]].alias = 99, "no such tensor");
    REFUSED(t[id[4]].alias = id[4], "no such tensor");
    REFUSED(t[id[1]].offset += 64; t[id[2]].offset += 64; t[id[0]].keep = false, "differ");
    REFUSED(t[id[3]].keep = true, "is kept to the end");
    REFUSED(t[id[0]].bytes -= 4, "differ");
#undef REFUSED
    p.op[4].kind   = CR_OP_bn_grad_finalize; /* an op that cannot work in place */
    p.op[4].out[0] = CR_NONE;
    p.op[4].out[2] = id[4];
    p.op[4].in[2]  = id[3];
    CHECK_STATUS(cr_plan_check(&p, 64), CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "in place");
    cr_program_free(&p);
}

/* ---- compilation ---- */

static void passes_survive_failing_allocations(void) {
    struct bench_model b;
    struct cr_program  p, q;
    if (!compiled(&b, "resnet20", 32, 2, CR_PROGRAM_STEP, true, true, &p)) return;
    cr_program_free(&p);
    REQUIRE_OK(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, 2, &p));
    struct cr_cost_model      cost_model = greedy_cost_model(256);
    struct cr_compile_options options    = {.fuse = true, .reuse = true};
    for_each_failing_alloc(f, .least = 20) {
        REQUIRE_OK(cr_program_copy(&p, &q));
        failing_alloc_begin(&f);
        failing_alloc_end(&f, cr_compile(&q, &cost_model, &options));
        cr_program_free(&q);
    }
    cr_program_free(&p);
    bench_close(&b);
}

static void unknown_passes_are_refused(void) {
    struct cr_program         p;
    int                       id[5];
    struct cr_cost_model      cost_model = greedy_cost_model(64);
    struct cr_compile_options options    = {.until = "plam"};
    chain_program(&p, id);
    CHECK_STATUS(cr_compile(&p, &cost_model, &options), CR_ERR_USAGE);
    CHECK_HAS(cr_error_message(), "\"plam\": use grad, fuse, select, insert_waits or plan");
    options.until = "select";
    REQUIRE_OK(cr_compile(&p, &cost_model, &options));
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 0);
    cr_program_free(&p);
}

TESTS(CASE(poison_changes_nothing), CASE(corrupted_plans_are_refused), CASE(false_aliases_are_refused),
      CASE(passes_survive_failing_allocations), CASE(unknown_passes_are_refused))

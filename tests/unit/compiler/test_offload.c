/* tests/unit/compiler/test_offload.c: tensors that are offloaded to host memory: the tensors that each score chooses,
 * the positions of the copies, and pools that need more than the live bytes. The simulation: test_simulate.c. Whole
 * networks: test_offload_networks.c. */
#include "compiler/memory/offload.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/network_support.h"
#include "tests/harness/timed_program.h"

enum { BATCH = 4, CLASSES = 5, SIZE = 32, STEPS = 3 };

/* Writes a (4 units), b (2), five small tensors, c (1); reads c; five small tensors; reads b, a. Live units: 4 at op 0,
 * 6 at 1 to 6, 7 at 7 and 8, 6 at 9 to 14, 4 at 15, plus small tensors of at most 4096 bytes. Large ops take 1 s, small
 * ones `middle`. */
struct three {
    struct hand h;
    int         x, a, b, c, small, ops;
};

static void small_op(struct three *t, double seconds, int read) {
    const int fresh = cr_tensor_add(&t->h.p, formatted("s%d", t->h.p.ops), CR_U8, CR_REGION_POOL, 1, 1, 1, 256);
    hand_op(&t->h, seconds, read >= 0 ? read : t->small, t->small, fresh);
    t->small = fresh;
}

OWNABLE(three, struct three, cr_program_free(&x->h.p))

/* Frees the program that `t` has; { 0 } at first. */
static void three_open(struct three *t, double middle) {
    cr_program_free(&t->h.p);
    cr_program_init(&t->h.p, "three", NULL);
    t->x = t->small = cr_tensor_add(&t->h.p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 1, 256);
    t->a            = hand_tensor(&t->h, "a", 4);
    t->b            = hand_tensor(&t->h, "b", 2);
    t->c            = hand_tensor(&t->h, "c", 1);
    hand_op(&t->h, 1, t->x, -1, t->a); /* 0 */
    hand_op(&t->h, 1, t->x, -1, t->b);
    for (int i = 0; i < 5; i++) small_op(t, middle, -1); /* 2 to 6 */
    hand_op(&t->h, 1, t->x, -1, t->c);
    small_op(t, 1, t->c);
    for (int i = 0; i < 5; i++) small_op(t, middle, -1); /* 9 to 13 */
    small_op(t, 1, t->b);
    small_op(t, 1, t->a);
    t->h.p.tensor[t->small].keep = true;
    t->ops                       = t->h.p.ops;
}

enum { SIX = 6 * UNIT + 4096, THREE = 3 * UNIT };

static int op_of(const struct cr_program *p, enum cr_op_kind kind,
                 const char *tensor) { /* the op that writes tensor `out`, or, for a barrier, reads it */
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        if (op->kind != kind) continue;
        const int t = kind == CR_OP_barrier && op->in[0] >= 0 ? op->in[0] : op->out[0];
        if (t >= 0 && strcmp(p->tensor[t].name, tensor) == 0) return i;
    }
    return CR_NONE;
}

/* ---- the pass on the program with three tensors ---- */

/* Small ops of 1 s, a limit of six units: b is offloaded, from 2 s to 4 s; with a margin of 5 % the copy has ended at
 * op 5. b is read at 14 s: its copy back is planned for 11.9 s, and op 11 begins at 11 s. No op waits. */
TEST(a_copy_hides) {
    OWNED(three)         t = {0};
    struct cr_fit_report r = {0};
    struct cr_simulation time;
    three_open(&t, 1);
    struct cr_cost_model cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, SIX, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK_INT(r.offloaded, 1);
    CHECK_INT(r.offload_bytes, 2 * UNIT); /* b is enough, and smaller than a */
    CHECK(r.before > 7 * UNIT && r.after <= SIX);
    CHECK_NEAR(r.seconds_before, 16, 1e-9);
    CHECK_NEAR(r.seconds, 16, 1e-9);
    CHECK_NEAR(r.stalled, 0, 1e-9);
    const struct cr_program *p = &t.h.p;
    /* ops 0, 1, offload, 2, 3, 4, sync, 5 to 10, sync, prefetch, 11 ... */
    CHECK_INT(op_of(p, CR_OP_offload, "b.host"), 2);
    CHECK_INT(op_of(p, CR_OP_barrier, "b.host"), 6);
    CHECK_INT(op_of(p, CR_OP_barrier, "b.event"), 13);
    CHECK_INT(op_of(p, CR_OP_prefetch, "b'"), 14);
    CHECK(p->ops == t.ops + 4 && p->op[2].in[0] == t.b && p->op[2].stream == CR_STREAM_TO_HOST &&
          p->op[14].stream == CR_STREAM_TO_DEVICE);
    CHECK_INT(p->tensor[p->op[2].out[0]].region, CR_REGION_HOST);
    CHECK_INT(p->region_bytes[CR_REGION_HOST], 2 * UNIT);
    CHECK_INT(p->op[18].in[0], p->op[14].out[0]); /* the readers of b now read b' */
    CHECK_INT(p->op[19].in[0], t.a);
    CHECK(plan_of(&t.h.p) <= SIX);
    CHECK_STATUS(cr_program_predict(&t.h.p, &cost_model, &time), CR_OK);
    CHECK_NEAR(time.total, 16, 1e-9); /* the predicted time is the time of the finished list */
    CHECK_NEAR(time.stalled, 0, 1e-9);
}

/* Small ops of 1 ms: b is copied out at 4 s, before c can be written: op 7 waits for 1.995 s. c is read at 6 s: only
 * then is there room for b', whose copy ends at 8 s; b' is needed at 6.005 s: 1.995 s again. */
TEST(copies_that_do_not_hide_stall) {
    OWNED(three)         t = {0};
    struct cr_fit_report r = {0};
    struct cr_simulation time;
    three_open(&t, 0.001);
    struct cr_cost_model cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, SIX, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK_INT(r.offloaded, 1);
    CHECK_NEAR(r.seconds_before, 6.01, 1e-9);
    CHECK_NEAR(r.seconds, 10, 1e-9);
    CHECK_NEAR(r.stalled, 3.99, 1e-9);
    CHECK(plan_of(&t.h.p) <= SIX);
    CHECK_STATUS(cr_program_predict(&t.h.p, &cost_model, &time), CR_OK);
    CHECK_NEAR(time.total, 10, 1e-9);
    CHECK_NEAR(time.stalled, 3.99, 1e-9);
    three_open(&t, 1); /* less than a needs: as little as possible */
    cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, THREE, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK_INT(r.offloaded, 1); /* a; the op that writes it needs it in any case, and b next to c is smaller */
    CHECK_NEAR((double)r.after / UNIT, 4, 0.01);
    CHECK(plan_of(&t.h.p) <= 4 * UNIT + 4096);
    CHECK_STATUS(cr_program_predict(&t.h.p, &cost_model, &time), CR_OK);
    CHECK_NEAR(time.total, r.seconds, 1e-9);
    CHECK_NEAR(time.stalled, r.stalled, 1e-9);
}

TEST(nothing_is_offloaded_without_need) {
    OWNED(three)         t = {0};
    struct cr_fit_report r = {0};
    three_open(&t, 1);
    struct cr_cost_model cost_model = hand_cost_model(&t.h), none = hand_cost_model(&t.h);
    none.to_host_bytes_per_s = 0;
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, 8 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK(r.offloaded == 0 && r.after == r.before && t.h.p.ops == t.ops && r.seconds == r.seconds_before);
    CHECK_STATUS(cr_pass_offload(&t.h.p, &none, 4 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK); /* no streams for copies */
    CHECK(r.offloaded == 0 && r.after > 4 * UNIT && t.h.p.ops == t.ops);
    t.h.p.tensor[t.a].keep = t.h.p.tensor[t.b].keep = t.h.p.tensor[t.c].keep = true; /* other ops read them */
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, 4 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK(r.offloaded == 0 && r.after > 4 * UNIT);
}

/* Whatever allocation fails, the program is complete or unchanged, and no memory leaks. */
TEST(failing_allocations) {
    const struct cr_compile_options o = {.reuse = true, .pool_limit = SIX, .recompute = true, .offload = true};
    for_each_failing_alloc(f, .least = 21, .dense = 20, .percent = 5) {
        OWNED(three)         t = {0};
        struct cr_fit_report r;
        three_open(&t, 1);
        struct cr_cost_model cost_model = hand_cost_model(&t.h);
        const cr_status      status     = failing_alloc_run(&f, cr_pass_fit(&t.h.p, &cost_model, &o, &r));
        CHECK(status == CR_OK ? r.offloaded == 1 && t.h.p.ops == t.ops + 4 : t.h.p.ops == t.ops);
        CHECK_STATUS(cr_program_check(&t.h.p), CR_OK);
    }
}

/* Limit: three units. Small ops of 1 s: a is unused from 1 s to 15 s, b from 2 s to 14 s; both copies together take 8 s
 * and 4 s. Above the limit in the gap of a: six ops by 3 units, two by 4, six by 3; in that of b: five, two, five.
 * Small ops of 0.1 s: gaps of 5 s and 3 s, less than the copies. */
TEST(scores_by_hand) {
    OWNED(three)           t = {0};
    struct cr_offload_work w;
    three_open(&t, 1);
    struct cr_cost_model cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_offload_work_open(&t.h.p, &cost_model, THREE, &w), CR_OK);
    cr_offload_score_set(&w);
    CHECK_INT(w.count, 2); /* c is read at once */
    const double doa[] = {6, 8}, aoa[] = {24, 16}, wdoa[] = {44, 38};
    for (int k = 0; k < 2 && w.count == 2; k++) {
        CHECK_INT(w.c[k].tensor, k == 0 ? t.a : t.b);
        CHECK_INT(w.c[k].writer, k);
        CHECK_INT(w.c[k].early, k);
        CHECK_INT(w.c[k].late, 15 - k);
        CHECK_NEAR(w.c[k].doa, doa[k], 1e-9);
        CHECK_NEAR(w.c[k].aoa, aoa[k] * UNIT, 1);
        CHECK_NEAR(w.c[k].wdoa, wdoa[k] * UNIT, 0.05 * UNIT); /* small tensors count a little */
    }
    cr_arena_free(&w.arena);
    three_open(&t, 0.1);
    cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_offload_work_open(&t.h.p, &cost_model, THREE, &w), CR_OK);
    cr_offload_score_set(&w);
    for (int k = 0; k < 2 && w.count == 2; k++) CHECK_NEAR(w.c[k].aoa, (k ? -1.0 : -3.0) / (double)w.c[k].bytes, 1e-15);
    cr_arena_free(&w.arena);
}

/* Limit: six units. Each of the two suffices. DOA chooses b (8 s to 6), AOA chooses a (24 to 16). The bytes above the
 * limit lie in both gaps; of equal scores the first wins. */
TEST(scores_choose) {
    static const struct {
        enum cr_offload_score score;
        const char           *takes;
    } cases[] = {{CR_OFFLOAD_DOA, "b'"},   {CR_OFFLOAD_AOA, "a'"},   {CR_OFFLOAD_WDOA, "a'"},
                 {CR_OFFLOAD_SWDOA, "a'"}, {CR_OFFLOAD_FIRST, "a'"}, {CR_OFFLOAD_BEST, "b'"}};
    for (size_t k = 0; k < CR_COUNT(cases); k++) {
        OWNED(three)         t = {0};
        struct cr_fit_report r = {0};
        three_open(&t, 1);
        struct cr_cost_model cost_model = hand_cost_model(&t.h);
        CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, SIX, cases[k].score, &r), CR_OK);
        CHECK_INT(r.offloaded, 1);
        if (cr_tensor_find(&t.h.p, cases[k].takes) == CR_NONE)
            TEST_FAIL_("score %d did not offload %s", (int)cases[k].score, cases[k].takes);
    }
}

/* ---- the planner needs more than the live bytes ---- */

/* Thirteen tensors of which at most 7 units are live, and which no pool below 8 units holds (found by random search,
 * proved by the planner search): below 8, a tensor must be offloaded although the live bytes stay within the limit.
 * Only the planned pool shows this. */
TEST(the_planned_pool_counts) {
    static const struct {
        int write, read, units;
    } interval[] = {{0, 3, 1},  {1, 4, 2},  {2, 11, 1}, {3, 6, 2},   {4, 8, 2},   {5, 11, 1}, {6, 10, 1},
                    {7, 10, 1}, {8, 12, 1}, {9, 14, 1}, {11, 15, 3}, {12, 15, 2}, {13, 16, 1}};
    enum { INTERVALS = (int)CR_COUNT(interval), OPS = 17, LIMIT = 7 * UNIT + 8192 };
    struct hand          h = {.seconds = {0}};
    int                  id[INTERVALS];
    struct cr_fit_report r;
    cr_program_init(&h.p, "gap", NULL);
    const int x = cr_tensor_add(&h.p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 1, 256);
    for (int i = 0; i < OPS; i++) {
        int  read[2] = {x, -1}, write = CR_NONE, reads = 0;
        char name[16];
        for (int k = 0; k < INTERVALS; k++) {
            snprintf(name, sizeof name, "t%d", k);
            if (interval[k].write == i) write = id[k] = hand_tensor(&h, name, interval[k].units);
            if (interval[k].read == i) read[reads++] = id[k];
        }
        snprintf(name, sizeof name, "s%d", i);
        if (write == CR_NONE) write = cr_tensor_add(&h.p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 256);
        hand_op(&h, 1, read[0], read[1], write);
    }
    const struct cr_cost_model      cost_model = hand_cost_model(&h);
    const struct cr_compile_options o          = {.reuse = true, .pool_limit = LIMIT, .offload = true};
    CHECK_STATUS(cr_pass_fit(&h.p, &cost_model, &o, &r), CR_OK);
    CHECK(r.before >= 8 * UNIT);
    CHECK(r.offloaded > 0 && r.after <= LIMIT);
    CHECK(r.offloaded <= 4 && r.stalled < 10); /* with a slightly lower goal, without offloading all candidates */
    CHECK_INT(plan_of(&h.p), r.after);
    CHECK(h.p.bound_bytes <= LIMIT);
    cr_program_free(&h.p);
}

/* `last` reuses the storage of a; b is live while a is idle. Live units: 4, 10, 10, 10, 4, ... and 4 + c at `last`;
 * with a offloaded 6 in the middle, but at `last` both a' and the output exist: 4 + 4 + 1. */
TEST(offload_prevents_reuse_in_place) {
    struct hand          h = {.seconds = {0}};
    struct cr_fit_report r = {0};
    cr_program_init(&h.p, "last", NULL);
    const int x = cr_tensor_add(&h.p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 1, 256);
    const int a = hand_tensor(&h, "a", 4), b = hand_tensor(&h, "b", 6), c = hand_tensor(&h, "c", 1),
              y = hand_tensor(&h, "y", 4);
    const int s = cr_tensor_add(&h.p, "s", CR_U8, CR_REGION_POOL, 1, 1, 1, 256),
              e = cr_tensor_add(&h.p, "e", CR_U8, CR_REGION_POOL, 1, 1, 1, 256);
    hand_op(&h, 10, x, -1, a);
    hand_op(&h, 10, x, -1, b);
    hand_op(&h, 10, b, -1, s);
    hand_op(&h, 10, s, -1, c);
    struct cr_op last       = cr_op_make(CR_OP_relu, cr_program_layer(&h.p, "last"));
    last.in[CR_IN_relu_x]   = a;
    last.out[CR_OUT_relu_y] = y;
    h.seconds[h.p.ops]      = 10;
    cr_emit(&h.p, &last, "");
    hand_op(&h, 10, y, c, e);
    const struct cr_cost_model cost_model = hand_cost_model(&h);
    CHECK_STATUS(cr_pass_offload(&h.p, &cost_model, 8 * UNIT, CR_OFFLOAD_DOA, &r), CR_OK);
    CHECK_INT(r.offloaded, 1);
    CHECK_NEAR((double)r.before / UNIT, 10, 0.01);
    CHECK_NEAR((double)r.after / UNIT, 9, 0.01);
    CHECK_NEAR((double)plan_of(&h.p) / UNIT, 9, 0.01);
    cr_program_free(&h.p);
}

/* a is in flight from 1 s to 5 s while most is live. Recomputation, which does not count that, comes before offload. */
TEST(copies_in_flight_count) {
    struct hand          h      = {.seconds = {0}};
    struct cr_fit_report report = {0};
    struct cr_fit_report again  = {0};
    cr_program_init(&h.p, "away", NULL);
    const int    x = cr_tensor_add(&h.p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 4, UNIT);
    const int    a = hand_tensor(&h, "a", 4), b = hand_tensor(&h, "b", 5), c = hand_tensor(&h, "c", 6);
    OWNED(three) t           = {.small = x}; /* for small_op */
    struct cr_op first       = cr_op_make(CR_OP_relu, cr_program_layer(&h.p, "first"));
    first.in[CR_IN_relu_x]   = x;
    first.out[CR_OUT_relu_y] = a;
    h.seconds[0]             = 1;
    cr_emit(&h.p, &first, "");
    t.h = h;
    small_op(&t, 1, a);
    hand_op(&t.h, 1, x, -1, b); /* 9 units */
    small_op(&t, 1, b);
    for (int i = 0; i < 4; i++) small_op(&t, 1, -1);
    hand_op(&t.h, 1, x, -1, c); /* 6, or 10 with a */
    small_op(&t, 1, c);
    for (int i = 0; i < 6; i++) small_op(&t, 1, -1);
    small_op(&t, 1, a);
    const struct cr_cost_model cost_model = hand_cost_model(&t.h);
    CHECK_STATUS(cr_pass_offload(&t.h.p, &cost_model, 9 * UNIT + UNIT / 2, CR_OFFLOAD_BEST, &report), CR_OK);
    CHECK_INT(report.offloaded, 1);
    CHECK_NEAR(report.stalled, 0, 1e-9);
    CHECK_NEAR((double)report.after / UNIT, 9, 0.01);
    CHECK_STATUS(cr_pass_recompute(&t.h.p, &cost_model, 1, &again), CR_ERR_USAGE);
    CHECK_NEAR((double)plan_of(&t.h.p) / UNIT, 9, 0.01);
}

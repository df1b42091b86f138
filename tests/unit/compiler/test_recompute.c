/* tests/unit/compiler/test_recompute.c: recomputed tensors: nothing is recomputed without need, nor where an operand
 * can neither be read nor be recomputed; random programs compute the same values within less memory. Equal results and
 * limits of whole networks: test_offload_networks.c. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"

/* A limit that is already met changes nothing. */
TEST(nothing_is_recomputed_without_need) {
    static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                            "model.arch=custom",   "model.depths=1,1",   "model.widths=8,16"};
    const struct net_plan    plan        = {.overrides  = overrides,
                                            .count      = (int)CR_COUNT(overrides),
                                            .kind       = CR_PROGRAM_STEP,
                                            .classes    = 5,
                                            .size       = 32,
                                            .batch      = 4,
                                            .fuse       = true,
                                            .pool_limit = (size_t)1 << 40,
                                            .recompute  = true};
    OWNED(net)               n           = {0};
    CHECK_STATUS(net_open(&n, &plan), CR_OK);
    CHECK(n.fit.recomputed == 0 && n.fit.before == n.fit.after && n.fit.before > 0);
}

static const struct cr_cost_model model = {.alignment = 64, .bytes_per_s = 1e9, .flops_per_s = 1e9};

/* Reads `a`, which is large, at once and at the end. */
static void read_late(struct cr_program *p, int a) {
    const int b = emitted(p, op_on(CR_OP_relu, a), "b"), c = emitted(p, op_on(CR_OP_relu, b), "c");
    p->tensor[emitted(p, op_on(CR_OP_add, a, c), "s")].keep = true;
}

/* A tensor can be recomputed only where its inputs are still live. */
TEST(operands_must_be_live) {
    struct cr_program    p;
    struct cr_fit_report r = {0};
    cr_program_init(&p, "hand", NULL);
    const int x = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 8);
    read_late(&p, emitted(&p, op_on(CR_OP_relu, x), "a"));
    CHECK_STATUS(cr_pass_recompute(&p, &model, 1, &r), CR_OK);
    CHECK(r.recomputed >= 1 && cr_tensor_find(&p, "a'") != CR_NONE); /* x is input: a can be recomputed */
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    cr_program_free(&p);
    /* the same, but the operand is dead by then, and its kind must not be recomputed */
    cr_program_init(&p, "hand", NULL);
    struct cr_op op = op_on(CR_OP_avgpool_grad, cr_tensor_add(&p, "small", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8));
    op.out[0]       = cr_tensor_add(&p, "g", CR_F32, CR_REGION_POOL, 1, 8, 8, 8);
    cr_emit(&p, &op, "g");
    read_late(&p, emitted(&p, op_on(CR_OP_relu, op.out[0]), "a"));
    CHECK_STATUS(cr_pass_recompute(&p, &model, 1, &r), CR_OK);
    CHECK(r.recomputed == 0 && r.after > 1); /* g is dead when a would be needed again */
    cr_program_free(&p);
}

enum { FORWARD = 10, PIXELS = 64, WIDE = 4 }; /* tensors of the forward part; elements; the widest is WIDE times one */

/* A forward part of relu and add, and a backward part that reads its tensors in reverse order, as a network does. */
static void make_random(struct cr_program *p, struct cr_rng *rng) {
    int t[FORWARD], sum;
    cr_program_init(p, "random", NULL);
    const int x = cr_tensor_add(p, "x", CR_F32, CR_REGION_INPUT, 1, 1, 1, PIXELS);
    for (int i = 0; i < FORWARD; i++) {
        const bool   adds = i > 1 && cr_rng_below(rng, 2);
        struct cr_op op   = cr_op_make(adds ? CR_OP_add : CR_OP_relu, CR_NONE);
        op.in[0]          = i ? t[i - 1 - (int)cr_rng_below(rng, (uint32_t)CR_MIN(i, 2))] : x;
        if (adds) op.in[1] = t[cr_rng_below(rng, (uint32_t)i)];
        t[i] = emitted(p, op, formatted("t%d", i));
    }
    sum = t[FORWARD - 1];
    for (int i = FORWARD - 2; i >= 0; i--) sum = emitted(p, op_on(CR_OP_add, sum, t[i]), formatted("g%d", i));
    p->tensor[sum].keep = true;
}

/* The value that the last op writes for the input 1, and the most bytes that are live at an op: counted from first to
 * last use, by nothing but the list of ops. */
static double value_of(const struct cr_program *p, size_t *peak) {
    double v[256] = {[0] = 1};
    int    ids[2 * CR_OP_IDS_MAX], last[256] = {0}, first[256] = {0};
    CR_ASSERT(p->tensors <= 256);
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op = &p->op[i];
        int                 n  = cr_op_reads(op, ids);
        n += cr_op_writes(op, ids + n);
        for (int k = 0; k < n; k++) {
            if (!last[ids[k]]) first[ids[k]] = i + 1;
            last[ids[k]] = i + 1;
        }
        v[op->out[0]] = op->kind == CR_OP_add ? 0.75 * v[op->in[0]] + v[op->in[1]] : 0.5 * v[op->in[0]] + 1;
    }
    *peak = 0;
    for (int i = 1; i <= p->ops; i++) {
        size_t live = 0;
        for (int t = 1; t < p->tensors; t++) live += last[t] && first[t] <= i && i <= last[t] ? p->tensor[t].bytes : 0;
        *peak = CR_MAX(*peak, live);
    }
    return v[p->op[p->ops - 1].out[0]];
}

/* Number of repetitions without which the program keeps the limit: each is removed from a copy of the program, where
 * the version of its tensor before it stays live instead. */
static int needless_repetitions(const struct cr_program *p, size_t limit, double value) {
    int needless = 0;
    for (int i = 0; i < p->ops; i++) {
        OWNED(program) q   = {0};
        const int      out = p->op[i].out[0], origin = cr_tensor_origin(p, out);
        int            before = i - 1;
        size_t         peak;
        if (origin == out) continue;
        while (cr_tensor_origin(p, p->op[before].out[0]) != origin) before--;
        CHECK_STATUS(cr_program_copy(p, &q), CR_OK);
        q.ops--;
        for (int k = i; k < q.ops; k++) {
            q.op[k] = p->op[k + 1];
            for (int s = 0; s < 2; s++)
                if (q.op[k].in[s] == out) q.op[k].in[s] = p->op[before].out[0];
        }
        CHECK(value_of(&q, &peak) == value);
        needless += peak <= limit;
    }
    return needless;
}

/* The values stay the same, the pass counts the peak correctly, and it repeats no op without need. */
TEST(random_programs_keep_their_values) {
    struct cr_rng rng = cr_rng_make(7, CR_RNG_TEST, 0, 0);
    int           met = 0, chains = 0, repeated = 0, needless = 0;
    for (int round = 0; round < 300; round++) {
        OWNED(program)       p = {0};
        struct cr_fit_report r = {0};
        size_t               whole, peak;
        make_random(&p, &rng);
        const double value = value_of(&p, &whole);
        const size_t limit = whole - whole / FORWARD * (1 + cr_rng_below(&rng, 6));
        const int    ops   = p.ops;
        CHECK_STATUS(cr_pass_recompute(&p, &model, limit, &r), CR_OK);
        CHECK_STATUS(cr_program_check(&p), CR_OK);
        CHECK(value_of(&p, &peak) == value);
        CHECK(r.before == whole && r.after == peak && peak <= whole);
        CHECK_INT(p.ops - ops, r.recomputed);
        if (peak <= limit) {
            needless += needless_repetitions(&p, limit, value);
            repeated += r.recomputed;
        }
        met += peak <= limit;
        chains += cr_tensor_find(&p, "t1''") != CR_NONE;
    }
    CHECK(met > 150 && chains > 0 && repeated > 500);
    CHECK_INT(needless, 0);
}

TEST(memory_amounts) {
    static const struct {
        const char *text;
        size_t      bytes;
    } good[] = {
        {"8GiB", (size_t)8 << 30}, {"700MB", 700000000}, {"1.5G", (size_t)3 << 29}, {"64 KiB", 65536}, {"12B", 12}};
    static const char *const bad[] = {"",   "8",       "GiB",    "-1GiB",    "8gib", "8 GiBs",
                                      "0B", "1e30TiB", "nanGiB", "0x10MiB ", "8GiB "};
    size_t                   bytes;
    for (size_t i = 0; i < CR_COUNT(good); i++) CHECK(cr_bytes_parse(good[i].text, &bytes) && bytes == good[i].bytes);
    for (size_t i = 0; i < CR_COUNT(bad); i++) CHECK(!cr_bytes_parse(bad[i], &bytes));
}

/* tests/unit/compiler/test_recompute.c: recomputed tensors: training is bitwise identical, also with poisoned freed
 * memory; the load falls to the limit or as far as possible; ops that must not be recomputed are not. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"

enum { BATCH = 4, CLASSES = 5, SIZE = 32, STEPS = 3 };

static cr_status open_step(struct net *n, const char *const *overrides, int count, bool fuse, size_t limit) {
    const struct net_plan plan = {.overrides  = overrides,
                                  .count      = count,
                                  .kind       = CR_PROGRAM_STEP,
                                  .classes    = CLASSES,
                                  .size       = SIZE,
                                  .batch      = BATCH,
                                  .device     = {.threads = 2, .deterministic = true},
                                  .fuse       = fuse,
                                  .pool_limit = limit,
                                  .recompute  = true};
    CR_TRY(net_open(n, &plan));
    return n->device->backend->init_store(n->device, &n->model.store, n->config, n->memory.region[CR_REGION_STORE]);
}

static void train(struct net *n) {
    CHECK_STATUS(net_train(n, STEPS, CLASSES), CR_OK);
}

static void *store_of(const struct net *n) {
    return n->memory.region[CR_REGION_STORE];
}

enum { UNIT = 64 /* bytes; offsets are multiples */, UNITS_MAX = 1 << 16 };

static int add_units(const struct cr_program *p, int tensor, char *used) {
    const struct cr_tensor *t     = &p->tensor[tensor];
    int                     added = 0;
    if (t->region != CR_REGION_POOL) return 0;
    for (size_t u = t->offset / UNIT; u < (t->offset + t->bytes + UNIT - 1) / UNIT && u < UNITS_MAX; u++) {
        added += !used[u];
        used[u] = 1;
    }
    return added;
}

/* Bytes of the pool that the largest op uses; nothing can make the pool smaller. With kernels that need much workspace
 * (those of oneDNN on ARM), an op of a small network uses almost the whole pool. */
static size_t largest_op(const struct cr_program *p) {
    static char used[UNITS_MAX];
    int         largest = 0, ids[CR_OP_IDS_MAX];
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op *op    = &p->op[i];
        int                 units = 0;
        memset(used, 0, sizeof used);
        if (op->workspace >= 0) units += add_units(p, op->workspace, used);
        for (int k = cr_op_reads(op, ids); k > 0; k--) units += add_units(p, ids[k - 1], used);
        for (int k = cr_op_writes(op, ids); k > 0; k--) units += add_units(p, ids[k - 1], used);
        largest = CR_MAX(largest, units);
    }
    return (size_t)largest * UNIT;
}

static void check_net(const char *const *overrides, int count, bool fuse) {
    struct net plain, less;
    CHECK_STATUS(open_step(&plain, overrides, count, fuse, 0), CR_OK);
    if (!plain.exec) return net_close(&plain);
    const size_t whole = plain.program.region_bytes[CR_REGION_POOL];
    train(&plain);
    for (int percent = 90; percent >= 10; percent -= 20) {
        const size_t limit = whole / 100 * (size_t)percent;
        CHECK_STATUS(open_step(&less, overrides, count, fuse, limit), CR_OK);
        if (less.exec) {
            const struct cr_fit_report *r = &less.fit;
            CHECK(r->after <= r->before && (r->recomputed > 0) == (r->after < r->before));
            CHECK(less.program.ops == plain.program.ops + r->recomputed);
            CHECK(net_count(&less.program, CR_OP_sgd) == 1 &&
                  net_count(&less.program, CR_OP_conv_wgrad) == net_count(&plain.program, CR_OP_conv_wgrad));
            if (percent == 90 && largest_op(&plain.program) <= limit)
                CHECK(r->after <= limit && less.program.region_bytes[CR_REGION_POOL] <= limit);
            CHECK_STATUS(cr_exec_poison(less.exec), CR_OK);
            train(&less);
            CHECK(memcmp(store_of(&plain), store_of(&less), cr_param_store_bytes(&plain.model.store)) == 0);
        }
        net_close(&less);
    }
    net_close(&plain);
}

#define NET(name, fuse, ...)                                                                                           \
    static void name(void) {                                                                                           \
        static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",       \
                                                "model.arch=custom", __VA_ARGS__};                                     \
        check_net(overrides, (int)CR_COUNT(overrides), fuse);                                                          \
    }
NET(basic_blocks, true, "model.block=basic", "model.depths=2,2", "model.widths=8,16", "model.stem=cifar",
    "model.shortcut=A")
NET(basic_blocks_unfused, false, "model.block=basic", "model.depths=2,2", "model.widths=8,16", "model.stem=cifar",
    "model.shortcut=B")
NET(bottlenecks, true, "model.block=bottleneck", "model.depths=2,2", "model.widths=8,8", "model.stem=imagenet",
    "model.shortcut=B")
NET(bottlenecks_unfused, false, "model.block=bottleneck", "model.depths=2,2", "model.widths=8,8", "model.stem=imagenet",
    "model.shortcut=B")

/* A limit that is already met changes nothing. */
static void nothing_is_recomputed_without_need(void) {
    static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                            "model.arch=custom",   "model.depths=1,1",   "model.widths=8,16"};
    struct net               n;
    CHECK_STATUS(open_step(&n, overrides, (int)CR_COUNT(overrides), true, (size_t)1 << 40), CR_OK);
    CHECK(n.fit.recomputed == 0 && n.fit.before == n.fit.after && n.fit.before > 0);
    net_close(&n);
}

static int emit(struct cr_program *p, const struct cr_op *op, const char *name) {
    const int index = cr_emit(p, op, name); /* may reallocate the array */
    return p->op[index].out[0];
}

/* A tensor can be recomputed only where its inputs are still live. */
static void operands_must_be_live(void) {
    struct cr_program          p;
    struct cr_recompute_report r;
    const struct cr_cost_model cost_model = {.alignment = 64, .bytes_per_s = 1e9, .flops_per_s = 1e9};
    cr_program_init(&p, "hand", NULL);
    int          x                     = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 8);
    struct cr_op op                    = cr_op_make(CR_OP_relu, CR_NONE);
    op.in[0]                           = x;
    int a                              = emit(&p, &op, "a"); /* large, read at once and at the end */
    op.in[0]                           = a;
    int b                              = emit(&p, &op, "b");
    op.in[0]                           = b;
    int          c                     = emit(&p, &op, "c");
    struct cr_op sum                   = cr_op_make(CR_OP_add, CR_NONE);
    sum.in[0]                          = a;
    sum.in[1]                          = c;
    p.tensor[emit(&p, &sum, "s")].keep = true;
    CHECK_STATUS(cr_pass_recompute(&p, &cost_model, 1, &r), CR_OK);
    CHECK(r.recomputed >= 1 && cr_tensor_find(&p, "a'") != CR_NONE); /* x is input: a can be recomputed */
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    cr_program_free(&p);
    /* the same, but the operand is dead by then: b is a transient that dies early */
    cr_program_init(&p, "hand", NULL);
    x         = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 8);
    op        = cr_op_make(CR_OP_avgpool_grad, CR_NONE); /* a kind that must not be recomputed */
    op.in[0]  = cr_tensor_add(&p, "small", CR_F32, CR_REGION_INPUT, 1, 1, 1, 8);
    op.out[0] = cr_tensor_add(&p, "g", CR_F32, CR_REGION_POOL, 1, 8, 8, 8);
    cr_emit(&p, &op, "g");
    struct cr_op relu                  = cr_op_make(CR_OP_relu, CR_NONE);
    relu.in[0]                         = op.out[0];
    a                                  = emit(&p, &relu, "a");
    relu.in[0]                         = a;
    b                                  = emit(&p, &relu, "b");
    relu.in[0]                         = b;
    c                                  = emit(&p, &relu, "c");
    sum.in[0]                          = a;
    sum.in[1]                          = c;
    p.tensor[emit(&p, &sum, "s")].keep = true;
    CHECK_STATUS(cr_pass_recompute(&p, &cost_model, 1, &r), CR_OK);
    CHECK(r.recomputed == 0 && r.after > 1); /* g is dead when a would be needed again */
    cr_program_free(&p);
}

static void memory_amounts(void) {
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

TESTS(CASE(basic_blocks), CASE(basic_blocks_unfused), CASE(bottlenecks), CASE(bottlenecks_unfused),
      CASE(nothing_is_recomputed_without_need), CASE(operands_must_be_live), CASE(memory_amounts))

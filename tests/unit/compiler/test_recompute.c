/* tests/unit/compiler/test_recompute.c: recomputed tensors: nothing is recomputed without need, nor where an operand
 * is no longer live. Equal results and limits of whole networks: test_offload_networks.c. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"

/* A limit that is already met changes nothing. */
static void nothing_is_recomputed_without_need(void) {
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
    struct net               n;
    CHECK_STATUS(net_open(&n, &plan), CR_OK);
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

TESTS(CASE(nothing_is_recomputed_without_need), CASE(operands_must_be_live), CASE(memory_amounts))

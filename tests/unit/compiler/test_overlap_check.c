/* tests/unit/compiler/test_overlap_check.c: the plan checker (cr_plan_check) refuses every corrupted plan and no
 * other. */
#include "tests/harness/compiler_support.h"

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

TEST(corrupted_plans_are_refused) {
    OWNED(bench_model) b       = {0};
    OWNED(program)     p       = {0};
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
}

TEST(false_aliases_are_refused) {
    OWNED(program) p = {0};
    int            id[5];
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
}

TEST(unknown_passes_are_refused) {
    OWNED(program)            p = {0};
    int                       id[5];
    struct cr_cost_model      cost_model = greedy_cost_model(64);
    struct cr_compile_options options    = {.until = "plam"};
    chain_program(&p, id);
    CHECK_STATUS(cr_compile(&p, &cost_model, &options), CR_ERR_USAGE);
    CHECK_HAS(cr_error_message(), "\"plam\": use grad, fuse, select, insert_waits or plan");
    options.until = "select";
    REQUIRE_OK(cr_compile(&p, &cost_model, &options));
    CHECK_INT(p.region_bytes[CR_REGION_POOL], 0);
}

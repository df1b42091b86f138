/* tests/unit/compiler/test_insert_waits.c: streams and waits: cases by hand, random programs on up to four streams
 * verified by an independent reachability computation, and a checker (cr_waits_check) that must agree with this
 * computation on every corrupted order, before and after memory is shared. */
#include "tests/harness/compiler_support.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/waits_support.h"

/* ---- cases by hand ---- */

TEST(impossible_waits_are_refused) {
    OWNED(program) p = {0};
    cr_program_init(&p, "waits", NULL);
    int a = new_tensor(&p, CR_REGION_POOL, 4), b = new_tensor(&p, CR_REGION_POOL, 4);
    add_op(&p, CR_STREAM_COMPUTE, -1, -1, a, -1);
    add_op(&p, CR_STREAM_COMPUTE, -1, -1, b, -1);
    add_op(&p, CR_STREAM_COMM, b, -1, -1, -1);
    const int wrong[] = {0, 1, 2, 7, -5};
    for (size_t i = 0; i < CR_COUNT(wrong); i++) {
        REQUIRE_OK(cr_pass_insert_waits(&p));
        p.op[1].wait[0] = wrong[i];
        CHECK_STATUS(cr_waits_check(&p), CR_ERR_DEVICE);
        CHECK_HAS(cr_error_message(), "op 1 (sgd) waits for op");
    }
}

/* ---- random programs ---- */

static int some_tensor(struct cr_rng *rng, const struct cr_program *p, int limit) {
    return draw(rng, 0, 3) ? (int)draw(rng, 0, limit - 1) : CR_NONE;
}

/* Transients are written once, before they are read; store tensors in any order; some ops work in place. */
static void random_program(struct cr_rng *rng, struct cr_program *p) {
    cr_program_init(p, "random", NULL);
    /* without the side stream, which has waits that no data hazard requires */
    int streams = (int)draw(rng, 2, CR_STREAM_SIDE), ops = (int)draw(rng, 5, OPS_MAX - 1);
    for (int i = (int)draw(rng, 0, 6); i >= 0; i--) {
        size_t offset = (size_t)draw(rng, 0, 20) * 64;
        store_tensor(p, offset, draw(rng, 1, 200));
    }
    for (int i = 0; i < ops; i++) {
        enum cr_stream stream = draw(rng, 0, 2) ? CR_STREAM_COMPUTE : (enum cr_stream)draw(rng, 0, streams - 1);
        int            known = p->tensors, r0 = some_tensor(rng, p, known), r1 = some_tensor(rng, p, known),
            w1 = some_tensor(rng, p, known);
        if (w1 != CR_NONE && p->tensor[w1].region == CR_REGION_POOL) w1 = CR_NONE;
        if (r0 != CR_NONE && p->tensor[r0].region == CR_REGION_POOL && draw(rng, 0, 1)) {
            struct cr_op relu = cr_op_make(CR_OP_relu, CR_NONE);
            relu.stream       = stream;
            relu.in[0]        = r0;
            cr_emit(p, &relu, formatted("r%d", i));
            continue;
        }
        int fresh = draw(rng, 0, 4) ? new_tensor(p, CR_REGION_POOL, draw(rng, 1, 100)) : CR_NONE;
        int op    = add_op(p, stream, r0, r1, fresh, w1);
        if (fresh == CR_NONE && w1 == CR_NONE && r0 == CR_NONE && r1 == CR_NONE)
            p->op[op].out[0] = new_tensor(p, CR_REGION_POOL, 3);
    }
    /* add_op leaves a helper tensor that no op accesses: never read it */
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < 2; s++) {
            int t = p->op[i].in[s], written = 0;
            for (int k = 0; k < i && t >= 0; k++)
                for (int w = 0; w < 2; w++) written |= p->op[k].out[w] == t;
            if (t >= 0 && p->tensor[t].region == CR_REGION_POOL && !written)
                p->op[i].in[s] = p->op[i].kind == CR_OP_relu ? 0 : CR_NONE;
        }
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].region == CR_REGION_POOL) p->tensor[t].keep = draw(rng, 0, 15) == 0;
}

TEST(random_programs_are_ordered) {
    int       waits = 0, aliases = 0, ratios = 0;
    const int rounds = TEST_SANITIZED ? 600 : 3000;
    for (int round = 0; round < rounds; round++) {
        struct cr_rng  rng = test_rng((uint64_t)round);
        OWNED(program) p   = {0};
        random_program(&rng, &p);
        REQUIRE_OK(cr_pass_insert_waits(&p));
        CHECK(truly_ordered(&p, false));
        REQUIRE_OK(cr_waits_check(&p));
        for (int i = 0; i < p.ops; i++) { /* no wait is redundant */
            for (int k = waits_of(&p, i) - 1; k >= 0; k--) {
                struct cr_op was = p.op[i];
                waits++;
                for (int m = k; m < CR_OP_WAIT_MAX; m++)
                    p.op[i].wait[m] = m + 1 < CR_OP_WAIT_MAX ? p.op[i].wait[m + 1] : CR_NONE;
                CHECK(cr_waits_check(&p) != CR_OK);
                p.op[i] = was;
            }
        }
        REQUIRE_OK(cr_pass_plan(&p, 64, true));
        REQUIRE_OK(cr_plan_check(&p, 64));
        REQUIRE_OK(cr_waits_check(&p));
        CHECK(truly_ordered(&p, true));
        for (int t = 0; t < p.tensors; t++) aliases += p.tensor[t].alias != CR_NONE;
        ratios += p.region_bytes[CR_REGION_POOL] == p.bound_bytes;
        REQUIRE_OK(cr_pass_plan(&p, 64, false));
        REQUIRE_OK(cr_waits_check(&p));
    }
    printf("    %d programs: %d waits, %d in place, peak = bound in %d\n", rounds, waits, aliases, ratios);
    CHECK(waits > rounds && aliases > rounds / 3);
}

/* After any change of a wait, a stream or an offset, the check agrees with the reachability computation. */
TEST(corrupted_waits_are_detected) {
    int refused = 0, accepted = 0;
    for (int round = 0; round < (TEST_SANITIZED ? 1000 : 4000); round++) {
        struct cr_rng  rng = test_rng(50000 + (uint64_t)round);
        OWNED(program) p   = {0};
        random_program(&rng, &p);
        REQUIRE_OK(cr_pass_insert_waits(&p));
        bool planned = round % 2;
        if (planned) REQUIRE_OK(cr_pass_plan(&p, 64, true));
        for (int k = 0; k < 4; k++) {
            int i = (int)draw(&rng, 1, p.ops - 1), n = waits_of(&p, i), t = (int)draw(&rng, 0, p.tensors - 1);
            if (planned && p.tensor[t].region == CR_REGION_POOL && draw(&rng, 0, 1)) {
                p.tensor[t].offset = (size_t)draw(&rng, 0, (int64_t)p.region_bytes[CR_REGION_POOL] / 64) * 64;
            } else if (n) {
                int earlier = p.op[i].wait[n - 1];
                do earlier--;
                while (earlier >= 0 && p.op[earlier].stream != p.op[p.op[i].wait[n - 1]].stream);
                p.op[i].wait[n - 1] = earlier >= 0 && draw(&rng, 0, 1) ? earlier : CR_NONE;
            } else if (draw(&rng, 0, 2) == 0) {
                int other = (int)draw(&rng, 0, i - 1); /* a redundant wait does no harm */
                if (p.op[other].stream != p.op[i].stream) p.op[i].wait[0] = other;
            }
            bool right = truly_ordered(&p, planned && p.region_bytes[CR_REGION_POOL]);
            if ((cr_waits_check(&p) == CR_OK) != right)
                TEST_FAIL_("round %d.%d: should be %s", round, k, right ? "accepted" : "refused");
            refused += !right;
            accepted += right;
        }
    }
    printf("    %d refused, %d accepted\n", refused, accepted);
    CHECK(refused > 1000 && accepted > 1000);
}

/* tests/unit/runtime/test_early_inputs.c: inputs that a kernel may read before the launches before it have ended. */
#include "runtime/executor_internal.h"
#include "tests/harness/test.h"

enum { BYTES = 256, X = 1u << CR_IN_add_a, W = 1u << CR_IN_add_b };

static int tensor(struct cr_program *p, size_t offset) {
    const int id         = cr_tensor_add(p, formatted("t%d", p->tensors), CR_U8, CR_REGION_POOL, 1, 1, 1, BYTES);
    p->tensor[id].offset = offset;
    return id;
}

/* Appends an op that reads x and writes y. */
static void append(struct cr_program *p, enum cr_op_kind kind, enum cr_stream stream, int x, int y) {
    struct cr_op op = cr_op_make(kind, CR_NONE);
    op.stream       = stream;
    for (int s = 0; s < cr_op_info(kind)->ins; s++)
        if (!cr_op_info(kind)->in_optional[s]) op.in[s] = x;
    for (int s = 0; s < cr_op_info(kind)->outs; s++)
        if (!cr_op_info(kind)->out_optional[s] || kind == CR_OP_barrier) op.out[s] = y;
    (void)cr_emit(p, &op, "");
}

/* The ops before the reader of w and x: each letter is an op.
 *   w, x: writes this tensor; o: writes another one; p: writes bytes that overlap those of w; h: the op head; b: a
 *   barrier; s: another stream, which writes w; a, c: as o and b, and waits for another stream */
static struct cr_call call_behind(const char *ops) {
    OWNED(program) p = {0};
    cr_program_init(&p, "early", NULL);
    const int w = tensor(&p, 0), x = tensor(&p, BYTES), other = tensor(&p, (size_t)4 * BYTES),
              part     = tensor(&p, BYTES / 2 + (size_t)BYTES * 0);
    p.tensor[x].offset = (size_t)2 * BYTES;
    for (; *ops; ops++) {
        const int             y     = *ops == 'w' || *ops == 's' ? w : *ops == 'x' ? x : *ops == 'p' ? part : other;
        const bool            waits = *ops == 'a' || *ops == 'c';
        const enum cr_op_kind kind = *ops == 'h' ? CR_OP_head : *ops == 'b' || *ops == 'c' ? CR_OP_barrier : CR_OP_relu;
        append(&p, kind, *ops == 's' ? CR_STREAM_COMM : CR_STREAM_COMPUTE, other, y);
        if (waits) p.op[p.ops - 1].wait[0] = 0;
    }
    struct cr_op reader      = op_on(CR_OP_add, x, w);
    reader.out[CR_OUT_add_y] = other;
    const int      at        = cr_emit(&p, &reader, "");
    struct cr_call call      = {.program = &p, .op = &p.op[at]};
    cr_exec_find_early_inputs(&p, at, &call);
    return call;
}

/* The expected bits of w and x, after two launches and after one. */
TEST(inputs_of_the_last_two_launches_are_not_early) {
    static const struct {
        const char *ops;
        unsigned    early, before_last;
    } cases[] = {{"", 0, 0},
                 {"o", 0, X | W},
                 {"oo", X | W, X | W},
                 {"wo", X, X | W},
                 {"ow", X, X},
                 {"xw", 0, X},
                 {"woo", X | W, X | W},
                 {"op", X, X},
                 {"woob", X | W, X | W},
                 {"wob", X, X | W},
                 {"oos", X | W, X | W},
                 {"wos", X, X | W},
                 {"wh", X | W, X | W},
                 {"h", X | W, X | W},
                 {"who", X | W, X | W},
                 {"wxh", X | W, X | W},
                 {"oxbs", W, W},
                 {"ooa", 0, 0},
                 {"ao", 0, 0},
                 {"oco", 0, 0},
                 {"aoo", X | W, X | W}};
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const struct cr_call call = call_behind(cases[i].ops);
        if ((call.early_inputs & (X | W)) != cases[i].early ||
            (call.inputs_before_last & (X | W)) != cases[i].before_last)
            TEST_FAIL_("%s: %x, %x", cases[i].ops, call.early_inputs & (X | W), call.inputs_before_last & (X | W));
        CHECK(cr_call_reads_early(&call, X | W) == (cases[i].early == (X | W)));
    }
}

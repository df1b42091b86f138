/* tests/unit/runtime/test_launch_overlap.c: ops that begin only when the launches before them are complete. */
#include "runtime/executor_internal.h"
#include "tests/harness/test.h"

enum { BYTES = 256, OPS_MAX = 16 };

static int tensor(struct cr_program *p, size_t offset) {
    const int id         = cr_tensor_add(p, formatted("t%d", p->tensors), CR_U8, CR_REGION_POOL, 1, 1, 1, BYTES);
    p->tensor[id].offset = offset;
    return id;
}

/* An op that reads x and writes y. */
static struct cr_op op_of(enum cr_op_kind kind, int x, int y) {
    struct cr_op op = cr_op_make(kind, CR_NONE);
    for (int s = 0; s < cr_op_info(kind)->ins; s++)
        if (!cr_op_info(kind)->in_optional[s]) op.in[s] = x;
    for (int s = 0; s < cr_op_info(kind)->outs; s++)
        if (!cr_op_info(kind)->out_optional[s] || kind == CR_OP_barrier) op.out[s] = y;
    return op;
}

/* The readers of w and x. Kernels of a convolution may read the filter w before their wait, but not x; those of a
 * gradient dy_x, which is w here, but not g. A fused op has a summand x, which only the last launch must not write. */
enum reader { CONV, GRADIENT, FUSED, APPLY };

static struct cr_op reader_of(struct cr_program *p, enum reader kind, int w, int x) {
    const int    none = tensor(p, (size_t)6 * BYTES), y = tensor(p, (size_t)8 * BYTES); /* no other op writes them */
    struct cr_op conv = op_of(CR_OP_conv, none, y), apply = op_of(CR_OP_bn_apply, none, y),
                 gradient             = op_of(CR_OP_conv_grad, none, y);
    conv.in[CR_IN_conv_w]             = w;
    conv.in[CR_IN_conv_x]             = kind == FUSED ? none : x;
    gradient.in[CR_IN_conv_grad_dy_x] = w;
    gradient.in[CR_IN_conv_grad_g]    = x;
    apply.in[CR_IN_bn_apply_x]        = w;
    apply.in[CR_IN_bn_apply_add]      = x;
    const struct cr_op part[]         = {apply, conv};
    switch (kind) {
    case CONV: return conv;
    case GRADIENT: return gradient;
    case FUSED: return cr_op_fuse(p, part, CR_COUNT(part));
    default: return apply;
    }
}

/* Whether the reader is separated from the ops before it. Each letter is an op:
 *   w, x: writes this tensor; o: writes another one; p: writes bytes that overlap those of w; h: the op head; b: a
 *   barrier; s, t: another stream, which writes w or another tensor; a, c: as o and b, and waits for another stream;
 *   r: the reader itself; '|' ends the hoisted ops. */
static bool separated_behind(const char *ops, enum reader kind) {
    OWNED(program)     p              = {0};
    struct cr_bound_op bound[OPS_MAX] = {0};
    cr_program_init(&p, "overlap", NULL);
    const int w = tensor(&p, 0), x = tensor(&p, (size_t)2 * BYTES), other = tensor(&p, (size_t)4 * BYTES),
              part            = tensor(&p, BYTES / 2);
    const struct cr_op reader = reader_of(&p, kind, w, x);
    for (; *ops; ops++) {
        const int             y  = *ops == 'w' || *ops == 's' ? w : *ops == 'x' ? x : *ops == 'p' ? part : other;
        const enum cr_op_kind op = *ops == 'h' ? CR_OP_head : *ops == 'b' || *ops == 'c' ? CR_OP_barrier : CR_OP_relu;
        struct cr_op          before = op_of(op, other, y);
        before.stream                = *ops == 's' || *ops == 't' ? CR_STREAM_COMM : CR_STREAM_COMPUTE;
        before.wait[0]               = *ops == 'a' || *ops == 'c' ? 0 : before.wait[0];
        if (*ops == '|')
            p.hoisted = p.ops;
        else if (*ops == 'r')
            (void)cr_emit(&p, &reader, "");
        else
            (void)cr_emit(&p, &before, "");
    }
    const int at = cr_emit(&p, &reader, "");
    CR_ASSERT(p.ops <= OPS_MAX);
    cr_exec_find_separations(&p, bound);
    return bound[at].separated;
}

struct overlap_case {
    const char *ops;
    bool        separated;
};
static void check_cases(const struct overlap_case *cases, size_t count, enum reader kind) {
    for (size_t i = 0; i < count; i++)
        if (separated_behind(cases[i].ops, kind) != cases[i].separated)
            TEST_FAIL_("reader %d behind '%s': not %d", kind, cases[i].ops, cases[i].separated);
}

TEST(inputs_of_the_last_two_launches_are_not_read_before_the_wait) {
    static const struct overlap_case cases[] = {
        {"", false},    {"o", false},   {"oo", false}, {"w", true},    {"wo", true},    {"ow", true},   {"x", false},
        {"xx", false},  {"woo", false}, {"op", true},  {"po", true},   {"woob", false}, {"wob", true},  {"wbo", true},
        {"oos", false}, {"wos", true},  {"wh", false}, {"who", false}, {"hw", true},    {"oxbs", false}};
    check_cases(cases, CR_COUNT(cases), CONV);
    check_cases(cases, CR_COUNT(cases), GRADIENT);
}

/* Behind a wait the other stream's kernel may still run. */
TEST(inputs_that_an_awaited_stream_writes_are_not_read_before_the_wait) {
    static const struct overlap_case cases[] = {{"sa", true},     {"sao", true},   {"soaob", true}, {"sco", true},
                                                {"ta", false},    {"a", false},    {"stta", true},  {"saoo", false},
                                                {"scooo", false}, {"saho", false}, {"sar", false},  {"s|a", false},
                                                {"o|sa", true}};
    check_cases(cases, CR_COUNT(cases), CONV);
    check_cases(cases, CR_COUNT(cases), GRADIENT);
    check_cases(cases, CR_COUNT(cases), FUSED);
}

/* Nothing before a separation is examined, nor before the first op that is not hoisted: the executor begins there when
 * all earlier work is complete. */
TEST(launches_before_a_separation_are_complete) {
    static const struct overlap_case cases[] = {
        {"wr", false}, {"wor", false}, {"ar", false},   {"wro", false}, {"wrw", true},  {"wrow", true}, {"rwo", true},
        {"w|", false}, {"w|o", false}, {"wa|o", false}, {"o|w", true},  {"w|wo", true}, {"|w", true}};
    check_cases(cases, CR_COUNT(cases), CONV);
}

TEST(only_the_last_launch_must_not_write_the_summand_of_a_fused_op) {
    static const struct overlap_case cases[] = {{"x", true},  {"xo", false}, {"ox", true},   {"xb", true},
                                                {"w", true},  {"wo", true},  {"woo", false}, {"oo", false},
                                                {"hx", true}, {"xr", false}, {"xs", true}};
    check_cases(cases, CR_COUNT(cases), FUSED);
}

TEST(kernels_of_other_ops_wait_before_they_read) {
    static const struct overlap_case cases[] = {{"w", false}, {"x", false}, {"sa", false}, {"xw", false}};
    check_cases(cases, CR_COUNT(cases), APPLY);
}

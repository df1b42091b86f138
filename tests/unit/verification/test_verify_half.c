/* tests/unit/verification/test_verify_half.c: verification of 16-bit tensors: where a kernel may round, where it must
 * not, and which results must be infinite. Ops have one element, so that every bound can be written here. */
#include "tests/harness/test.h"
#include "verification/verify.h"

#include <float.h>

static struct cr_device *open_cpu(void) {
    const struct cr_device_options options = {.ref_only = true};
    struct cr_device              *device  = NULL;
    if (cr_device_open(CR_DEVICE_CPU, &options, &device) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return device;
}

struct single { /* an op with outputs and inputs of one element */
    struct cr_param_store store;
    struct cr_program     p;
    struct cr_verify_io   io;
    unsigned char         in[CR_OP_IN_MAX][8], before[8], got[8];
};

static int single_tensor(struct single *s, const char *name, enum cr_dtype dtype) {
    return cr_tensor_add(&s->p, name, dtype, CR_REGION_POOL, 1, 1, 1, 1);
}

static bool single_accepted(struct single *s, struct cr_device *cpu, enum cr_math math, double got) {
    const struct cr_op        *op                  = &s->p.op[0];
    const struct cr_step_block step                = {0};
    const void *const          outs[CR_OP_OUT_MAX] = {s->got};
    struct cr_verify_result    r                   = {0};
    cr_number_store(s->p.tensor[op->out[0]].dtype, s->got, 0, got);
    if (cr_verify_op(cpu, &s->p, op, math, &step, &s->io, outs, &r) != CR_OK) TEST_FAIL_("%s", cr_error_message());
    return r.ok;
}

/* dw = before + x * dy in an f32 tensor, x and dy of 16 bits. */
static void wgrad_open(struct single *s, enum cr_dtype dtype, double x, double dy, double before) {
    *s              = (struct single){0};
    struct cr_op op = cr_op_make(CR_OP_dense_wgrad, CR_NONE);
    cr_program_init(&s->p, "wgrad", &s->store);
    op.attr.dense.accumulate      = true;
    op.in[CR_IN_dense_wgrad_x]    = single_tensor(s, "x", dtype);
    op.in[CR_IN_dense_wgrad_dy]   = single_tensor(s, "dy", dtype);
    op.out[CR_OUT_dense_wgrad_dw] = single_tensor(s, "dw", CR_F32);
    cr_emit(&s->p, &op, "y");
    cr_number_store(dtype, s->in[CR_IN_dense_wgrad_x], 0, x);
    cr_number_store(dtype, s->in[CR_IN_dense_wgrad_dy], 0, dy);
    cr_number_store(CR_F32, s->before, 0, before);
    for (int i = 0; i < 2; i++) s->io.in[i] = s->in[i];
    s->io.before[0] = s->before;
}

/* The sum may be rounded to 16 bits before it is added to the f32 tensor; the previous value may not. */
TEST(sum_may_be_rounded_to_16_bits) {
    OWNED(device) cpu = open_cpu();
    struct single s;
    wgrad_open(&s, CR_F16, 1 + 0x1p-10, 1 + 0x1p-10, 10); /* the product is 1 + 2^-9 + 2^-20 */
    CHECK(single_accepted(&s, cpu, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-20));
    CHECK(single_accepted(&s, cpu, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-11));
    CHECK(!single_accepted(&s, cpu, CR_MATH_F16, 11 + 0x1p-9 + 0x1p-9));
    CHECK(!single_accepted(&s, cpu, CR_MATH_F32, 11 + 0x1p-9 + 0x1p-9));
    CHECK(!single_accepted(&s, cpu, CR_MATH_F16, 11.03125));
    cr_program_free(&s.p);
    wgrad_open(&s, CR_F16, 300, 300, 0); /* 90000 is too large for f16 */
    CHECK(single_accepted(&s, cpu, CR_MATH_F16, 90000) && single_accepted(&s, cpu, CR_MATH_F16, INFINITY));
    CHECK(!single_accepted(&s, cpu, CR_MATH_F32, INFINITY));
    cr_program_free(&s.p);
    wgrad_open(&s, CR_F16, 255, 255, 0); /* 65025 is not */
    CHECK(!single_accepted(&s, cpu, CR_MATH_F16, INFINITY));
    cr_program_free(&s.p);
    wgrad_open(&s, CR_BF16, 300, 300, 0);
    CHECK(!single_accepted(&s, cpu, CR_MATH_BF16, INFINITY));
    CHECK(single_accepted(&s, cpu, CR_MATH_BF16, 90000 + 200) && !single_accepted(&s, cpu, CR_MATH_BF16, 90000 + 400));
    cr_program_free(&s.p);
    wgrad_open(&s, CR_F16, 0x1p-14, 0x1p-12, 0); /* below half of the smallest step of f16: may be lost */
    CHECK(single_accepted(&s, cpu, CR_MATH_F16, 0) && single_accepted(&s, cpu, CR_MATH_F16, 0x1p-26));
    CHECK(!single_accepted(&s, cpu, CR_MATH_F32, 0));
    cr_program_free(&s.p);
}

static void unary_open(struct single *s, enum cr_op_kind kind, enum cr_dtype from, enum cr_dtype to, double x,
                       double second) {
    *s              = (struct single){0};
    struct cr_op op = cr_op_make(kind, CR_NONE);
    cr_program_init(&s->p, "single", &s->store);
    op.in[0] = single_tensor(s, "x", from);
    if (kind == CR_OP_add) op.in[1] = single_tensor(s, "second", from);
    op.out[0] = single_tensor(s, "y", to);
    cr_emit(&s->p, &op, "y");
    cr_number_store(from, s->in[0], 0, x);
    cr_number_store(from, s->in[1], 0, second);
    for (int i = 0; i < 2; i++)
        if (op.in[i] >= 0) s->io.in[i] = s->in[i];
}

static bool unary_accepted(struct cr_device *cpu, enum cr_op_kind kind, enum cr_dtype from, enum cr_dtype to, double x,
                           double second, double got) {
    struct single s;
    unary_open(&s, kind, from, to, x, second);
    const bool want = single_accepted(&s, cpu, CR_MATH_F32, got);
    cr_program_free(&s.p);
    return want;
}

/* A cast has one correct result: the nearest number, of two equally near ones the even one. */
TEST(cast_is_exact) {
    static const struct {
        enum cr_dtype to;
        double        x, want, wrong;
    } casts[] = {
        {CR_F16, 1 + 0x1p-11, 1, 1 + 0x1p-10},
        {CR_F16, 1 + 0x3p-11, 1 + 0x1p-9, 1 + 0x1p-10},
        {CR_F16, -1.9999, -2, -(2 - 0x1p-10)},
        {CR_F16, 65519, 65504, INFINITY},
        {CR_F16, 65520, INFINITY, 65504},
        {CR_F16, -1e9, -INFINITY, INFINITY},
        {CR_F16, 0x1.8p-25, 0x1p-24, 0},
        {CR_F16, 0x1p-25, 0, 0x1p-24},
        {CR_BF16, 1 + 0x1p-8, 1, 1 + 0x1p-7},
        {CR_BF16, 1 + 0x3p-8, 1 + 0x1p-6, 1 + 0x1p-7},
        {CR_BF16, 0x1p-133 * 1.5, 0x1p-132, 0x1p-133},
        {CR_BF16, FLT_MAX, INFINITY, 0x1.fep127},
        {CR_F16, NAN, NAN, 1},
        {CR_BF16, INFINITY, INFINITY, NAN},
    };
    OWNED(device) cpu = open_cpu();
    for (size_t i = 0; i < CR_COUNT(casts); i++) {
        CHECK(unary_accepted(cpu, CR_OP_cast, CR_F32, casts[i].to, casts[i].x, 0, casts[i].want));
        CHECK(!unary_accepted(cpu, CR_OP_cast, CR_F32, casts[i].to, casts[i].x, 0, casts[i].wrong));
    }
}

/* f32 arithmetic on 16-bit data rounds once, at the end: neighbours of the correct number are wrong. */
TEST(f32_math_rounds_once_to_16_bits) {
    OWNED(device) cpu = open_cpu();
    CHECK(unary_accepted(cpu, CR_OP_add, CR_F16, CR_F16, 1, 0x1p-11 + 0x1p-13, 1 + 0x1p-10));
    CHECK(!unary_accepted(cpu, CR_OP_add, CR_F16, CR_F16, 1, 0x1p-11 + 0x1p-13, 1)); /* truncated */
    CHECK(unary_accepted(cpu, CR_OP_add, CR_BF16, CR_BF16, 3, 0x1p-7 + 0x1p-9, 3 + 0x1p-6));
    CHECK(!unary_accepted(cpu, CR_OP_add, CR_BF16, CR_BF16, 3, 0x1p-7 + 0x1p-9, 3));
    CHECK(unary_accepted(cpu, CR_OP_add, CR_F16, CR_F16, 65504, 65504, INFINITY));
    CHECK(!unary_accepted(cpu, CR_OP_add, CR_F16, CR_F16, 65504, 65504, 65504));
    CHECK(!unary_accepted(cpu, CR_OP_add, CR_F16, CR_F16, 65472, 16, INFINITY));
    CHECK(!unary_accepted(cpu, CR_OP_relu, CR_F16, CR_F16, 1 + 0x1p-10, 0, 1));
}

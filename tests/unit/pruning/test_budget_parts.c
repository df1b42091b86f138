/* tests/unit/pruning/test_budget_parts.c: a fused op costs what its parts cost, on a device with invented kernels. */
#include "cli/budget/budget.h"
#include "tests/harness/test.h"

enum { N = 2, SIZE = 8 };

/* Kernels for convolutions take as many seconds as the filter has elements, poolings take 7. */
static cr_status cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const int w = op->in[op->kind == CR_OP_qconv ? CR_IN_qconv_w : CR_IN_conv_w];
    *seconds    = op->kind == CR_OP_maxpool ? 7 : (double)cr_tensor_elems(&p->tensor[w]);
    return CR_OK;
}

/* No convolution of 24 channels. The pooling reads what a convolution with stride 2 and padding 3 writes. */
static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    if (op->kind == CR_OP_maxpool) {
        const struct cr_tensor *x = &p->tensor[op->in[CR_IN_maxpool_x]];
        CHECK(x->dim[0] == N && x->dim[1] == SIZE && x->dim[2] == SIZE && op->attr.conv.window == 3);
        return true;
    }
    CHECK(op->kind == CR_OP_conv || op->kind == CR_OP_qconv);
    CHECK(op->attr.conv.relu || p->tensor[op->in[CR_IN_conv_x]].dim[3] == 8); /* a shortcut has no ReLU */
    return p->tensor[op->in[op->kind == CR_OP_qconv ? CR_IN_qconv_w : CR_IN_conv_w]].dim[0] != 24;
}

/* Packed filters exist for multiples of 64 channels. */
static int64_t packed(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = &p->tensor[op->in[CR_IN_qconv_w]];
    return w->dim[3] % 64 ? 0 : 1000 + w->dim[0];
}

static struct cr_budget_clock invented(void) {
    return (struct cr_budget_clock){.model = {.cost = cost, .accepts = accepts, .device.packed_elems = packed}};
}

/* The cost of an op, which is a whole number here; -1: unknown. */
static long cost_of_parts(struct cr_program *p, const struct cr_op *op) {
    struct cr_budget_clock clock = invented();
    double                 seconds;
    bool                   known;
    CHECK_INT(cr_budget_parts_cost(&clock, p, op, &seconds, &known), CR_OK);
    return known ? lround(seconds) : -1;
}

static int tensor(struct cr_program *p, enum cr_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    return cr_tensor_add(p, "t", dtype, CR_REGION_POOL, a, b, c, d);
}

static struct cr_op pair_of(struct cr_program *p, int64_t C, int64_t K, int64_t L) {
    struct cr_op op = op_on(CR_OP_conv_pair, tensor(p, CR_F16, N, SIZE, SIZE, C), tensor(p, CR_F16, K, 1, 1, C),
                            tensor(p, CR_F32, 1, 1, 1, K), tensor(p, CR_F16, N, SIZE, SIZE, K),
                            tensor(p, CR_F16, L, 1, 1, K), tensor(p, CR_F32, 1, 1, 1, L));
    op.layer        = 0;
    op.out[CR_OUT_conv_pair_y] = tensor(p, CR_F16, N, SIZE, SIZE, K);
    op.out[CR_OUT_conv_pair_z] = tensor(p, CR_F16, N, SIZE, SIZE, L);
    return op;
}

TEST(pairs) {
    OWNED(program) p  = {0};
    struct cr_op   op = pair_of(&p, 16, 64, 32);
    CHECK_INT(cost_of_parts(&p, &op), 16 * 64 + 64 * 32);
    op.in[CR_IN_conv_pair_first_w]    = tensor(&p, CR_F16, 16, 3, 3, 16); /* a 3x3 convolution in front */
    op.in[CR_IN_conv_pair_first_bias] = tensor(&p, CR_F32, 1, 1, 1, 16);
    CHECK_INT(cost_of_parts(&p, &op), 9 * 16 * 16 + 16 * 64 + 64 * 32);
    op.in[CR_IN_conv_pair_add]           = CR_NONE; /* and a convolution as summand */
    op.in[CR_IN_conv_pair_shortcut_x]    = tensor(&p, CR_F16, N, SIZE, SIZE, 8);
    op.in[CR_IN_conv_pair_shortcut_w]    = tensor(&p, CR_F16, 64, 1, 1, 8);
    op.in[CR_IN_conv_pair_shortcut_bias] = tensor(&p, CR_F32, 1, 1, 1, 64);
    CHECK_INT(cost_of_parts(&p, &op), 9 * 16 * 16 + 16 * 64 + 64 * 32 + 8 * 64);
    op = pair_of(&p, 16, 64, 24);
    CHECK_INT(cost_of_parts(&p, &op), -1);
    op.kind = CR_OP_add; /* has no parts */
    CHECK_INT(cost_of_parts(&p, &op), -1);
}

static struct cr_op qpair_of(struct cr_program *p, int64_t C, int64_t K, int64_t L) {
    struct cr_op op =
        op_on(CR_OP_qconv_pair, tensor(p, CR_U8, N, SIZE, SIZE, C), tensor(p, CR_I8, K, 1, 1, C),
              tensor(p, CR_F32, 3, 1, 1, K), tensor(p, CR_U8, N, SIZE, SIZE, K), tensor(p, CR_I8, L, 1, 1, K),
              tensor(p, CR_F32, 3, 1, 1, L), tensor(p, CR_U8, 1, 1, 1, 5), tensor(p, CR_U8, 1, 1, 1, 6));
    op.layer                    = 0;
    op.out[CR_OUT_qconv_pair_y] = tensor(p, CR_U8, N, SIZE, SIZE, K);
    op.out[CR_OUT_qconv_pair_z] = tensor(p, CR_U8, N, SIZE, SIZE, L);
    return op;
}

/* Both packed filters get the length for their widths. */
TEST(int8_pairs) {
    OWNED(program)         p     = {0};
    struct cr_budget_clock clock = invented();
    struct cr_op           op    = qpair_of(&p, 64, 128, 64);
    cr_budget_resize_packed(&p, &clock.model, &op);
    CHECK_INT(p.tensor[op.in[CR_IN_qconv_pair_packed]].dim[3], 1128);
    CHECK_INT(p.tensor[op.in[CR_IN_qconv_pair_next_packed]].bytes, 1064);
    CHECK_INT(cost_of_parts(&p, &op), 2 * 64 * 128);
    op = qpair_of(&p, 48, 128, 64); /* the first filter has no packed form and keeps the length */
    cr_budget_resize_packed(&p, &clock.model, &op);
    CHECK_INT(p.tensor[op.in[CR_IN_qconv_pair_packed]].dim[3], 5);
}

TEST(pooling) {
    OWNED(program) p            = {0};
    struct cr_op   op           = cr_op_make(CR_OP_conv_pool, 0);
    op.attr.conv.stride         = 2;
    op.attr.conv.pad            = 3;
    op.in[CR_IN_conv_pool_x]    = tensor(&p, CR_F16, N, 2 * SIZE, 2 * SIZE, 4);
    op.in[CR_IN_conv_pool_w]    = tensor(&p, CR_F16, 32, 7, 7, 4);
    op.in[CR_IN_conv_pool_bias] = tensor(&p, CR_F32, 1, 1, 1, 32);
    op.out[CR_OUT_conv_pool_y]  = tensor(&p, CR_F16, N, SIZE / 2, SIZE / 2, 32);
    const int tensors           = p.tensors;
    CHECK_INT(cost_of_parts(&p, &op), 32 * 49 * 4 + 7);
    CHECK_INT(p.tensors, tensors);
}

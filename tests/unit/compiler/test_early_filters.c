/* tests/unit/compiler/test_early_filters.c: which convolutions may read their filter before the launches before them
 * have ended: cases by hand, and a network whose first op writes all filters. */
#include "tests/harness/compiler_support.h"

enum { ELEMS = 16 * 9 * 16 };

/* A store tensor of `elems` numbers at a byte offset. */
static int store_tensor(struct cr_program *p, size_t offset, int64_t elems) {
    char name[32];
    snprintf(name, sizeof name, "s%d", p->tensors);
    const int id         = cr_tensor_add(p, name, CR_F32, CR_REGION_STORE, 16, 3, 3, elems / 144);
    p->tensor[id].offset = offset;
    return id;
}

static void write_tensor(struct cr_program *p, int tensor) {
    struct cr_op zero       = cr_op_make(CR_OP_zero, CR_NONE);
    zero.out[CR_OUT_zero_y] = tensor;
    cr_emit(p, &zero, NULL);
}

/* Emits a convolution with filter `w`, preceded by two ops that write the tensors at first_offset and second_offset of
 * `elems` numbers, and returns its bit. The filter begins at byte 4096. */
static bool is_early(size_t first_offset, size_t second_offset, int64_t elems, int fillers) {
    struct cr_program p;
    cr_program_init(&p, "step", NULL);
    const int x = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 16), w = store_tensor(&p, 4096, ELEMS);
    write_tensor(&p, store_tensor(&p, first_offset, elems));
    write_tensor(&p, store_tensor(&p, second_offset, elems));
    for (int i = 0; i < fillers; i++) write_tensor(&p, store_tensor(&p, 1 << 20, ELEMS));
    struct cr_op conv     = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x] = x;
    conv.in[CR_IN_conv_w] = w;
    conv.attr.conv.stride = 1;
    conv.attr.conv.pad    = 1;
    const int at          = cr_emit(&p, &conv, "y");
    CHECK(!p.failed && !p.op[at].attr.conv.early_filter);
    cr_pass_early_filters(&p);
    const bool early = p.op[at].attr.conv.early_filter;
    cr_program_free(&p);
    return early;
}

static void cases_by_hand(void) {
    const size_t elsewhere = 1 << 20, bytes = ELEMS * sizeof(float);
    CHECK(is_early(elsewhere, elsewhere, ELEMS, 0));
    CHECK(!is_early(4096, elsewhere, ELEMS, 0)); /* either of the two ops before writes the filter */
    CHECK(!is_early(elsewhere, 4096, ELEMS, 0));
    CHECK(!is_early(elsewhere, 4096, ELEMS, 1)); /* the second writer is still one of the last two */
    CHECK(is_early(4096, elsewhere, ELEMS, 1));  /* the writer is the third op before */
    CHECK(is_early(elsewhere, 4096, ELEMS, 2));
    CHECK(!is_early(4096 - 1024, elsewhere, ELEMS, 0)); /* the written bytes overlap the filter's */
    CHECK(!is_early(4096 + bytes - 4, elsewhere, ELEMS, 0));
    CHECK(is_early(4096 + bytes, 4096 - 4 * 144, 144, 0)); /* directly before and behind */
    CHECK(!is_early(0, elsewhere, 2 * ELEMS, 0));          /* a whole buffer that contains the filter */
}

/* The first convolutions of a program: an op outside the program may have written the filter. */
static void first_ops_wait(void) {
    struct cr_program p;
    cr_program_init(&p, "step", NULL);
    struct cr_op conv     = cr_op_make(CR_OP_conv, CR_NONE);
    conv.in[CR_IN_conv_x] = cr_tensor_add(&p, "x", CR_F32, CR_REGION_INPUT, 1, 8, 8, 16);
    conv.in[CR_IN_conv_w] = store_tensor(&p, 0, ELEMS);
    conv.attr.conv.stride = 1;
    conv.attr.conv.pad    = 1;
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "y%d", i);
        cr_emit(&p, &conv, name);
    }
    cr_pass_early_filters(&p);
    for (int i = 0; i < 4; i++) CHECK(p.op[i].attr.conv.early_filter == (i >= 2));
    cr_program_free(&p);
}

/* The backward of a convolution may read x early when no op that may still run has written it. */
static void activations_of_the_backward(void) {
    for (int writer = 0; writer < 3; writer++) {
        struct cr_program p;
        cr_program_init(&p, "step", NULL);
        struct cr_op grad             = cr_op_make(CR_OP_conv_grad, CR_NONE);
        grad.in[CR_IN_conv_grad_x]    = store_tensor(&p, 4 << 20, ELEMS);
        grad.in[CR_IN_conv_grad_g]    = store_tensor(&p, 5 << 20, ELEMS);
        grad.in[CR_IN_conv_grad_w]    = store_tensor(&p, 6 << 20, ELEMS);
        grad.out[CR_OUT_conv_grad_dw] = store_tensor(&p, 7 << 20, ELEMS);
        for (int i = 0; i < 3; i++)
            write_tensor(&p, i == writer ? grad.in[CR_IN_conv_grad_x] : store_tensor(&p, 1 << 20, ELEMS));
        write_tensor(&p, grad.in[CR_IN_conv_grad_g]); /* g is always new */
        const int at = p.ops;
        (void)cr_emit(&p, &grad, NULL);
        CHECK(!p.failed && p.ops == at + 1);
        cr_pass_early_filters(&p);
        CHECK(p.op[at].attr.conv.early_data == (writer < 2));
        cr_program_free(&p);
    }
}

/* A 16-bit program begins with the op that rounds all parameters. The first convolution follows directly; all others
 * may read their filter early. The bit is set by the last pass only. */
static void network_in_16_bits(void) {
    const char *const    overrides[] = {"model.arch=resnet20"};
    const char *const    passes[]    = {"select", "order", "plan"};
    struct cr_cost_model cost_model  = greedy_cost_model(64);
    struct bench_model   b;
    REQUIRE_OK(bench_open(&b, overrides, 1, 32));
    cr_model_set_real(&b.model, CR_F16);
    for (size_t pass = 0; pass < CR_COUNT(passes); pass++) {
        struct cr_compile_options options = {.fuse = true, .reuse = true, .until = passes[pass]};
        struct cr_program         p;
        int                       early = 0, late = 0, last_late = 0;
        REQUIRE_OK(cr_model_program(&b.model, &b.config, CR_PROGRAM_STEP, 2, &p));
        CHECK(cr_compile(&p, &cost_model, &options) == CR_OK && p.op[0].kind == CR_OP_cast);
        for (int i = 0; i < p.ops; i++) {
            if (p.op[i].kind != CR_OP_conv && p.op[i].kind != CR_OP_conv_grad) continue;
            early += p.op[i].attr.conv.early_filter;
            late += !p.op[i].attr.conv.early_filter;
            if (!p.op[i].attr.conv.early_filter) last_late = i;
        }
        CHECK(early + late >= 19);
        if (pass + 1 == CR_COUNT(passes))
            CHECK(late == 1 && last_late <= 2);
        else
            CHECK_INT(early, 0);
        cr_program_free(&p);
    }
    bench_close(&b);
}

TESTS(CASE(cases_by_hand), CASE(first_ops_wait), CASE(activations_of_the_backward), CASE(network_in_16_bits))

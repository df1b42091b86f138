/* tests/unit/compiler/test_side_stream.c: filter gradients on the side stream: which ops move; training steps are
 * bitwise identical to those of one stream for any interleaving of the streams; a memory limit is kept. */
#include "tests/harness/offload_run.h"

/* Compiles the training program of run `s`, with or without the side stream. */
static cr_status compile_step(struct offload_run *s, bool fuse, bool side, size_t pool_limit) {
    const struct cr_compile_options options = {.fuse = fuse, .reuse = true, .pool_limit = pool_limit};
    cr_program_free(&s->program);
    s->cost_model.concurrent_kernels = side;
    CR_TRY(cr_model_program(&s->model, s->config, CR_PROGRAM_STEP, BATCH, &s->program));
    return cr_compile(&s->program, &s->cost_model, &options);
}

static int ops_on(const struct cr_program *p, enum cr_stream stream) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) count += p->op[i].stream == stream;
    return count;
}

/* Ops of the compute stream that wait for the side stream. */
static int waits_for_side(const struct cr_program *p) {
    int count = 0;
    for (int i = 0; i < p->ops; i++)
        for (int k = 0; p->op[i].stream == CR_STREAM_COMPUTE && k < CR_OP_WAIT_MAX && p->op[i].wait[k] >= 0; k++)
            count += p->op[p->op[i].wait[k]].stream == CR_STREAM_SIDE;
    return count;
}

/* Filter gradients whose results only the update reads; that of a space-to-depth stem is converted first. */
static int filter_gradients(const struct cr_program *p) {
    int count = 0;
    for (int i = 0; i < p->ops; i++)
        count +=
            p->op[i].kind == CR_OP_conv_wgrad && p->tensor[p->op[i].out[CR_OUT_conv_wgrad_dw]].buffer == CR_BUFFER_GRAD;
    return count;
}

TEST(results_do_not_depend_on_the_streams) {
    for (int n = 0; n < (int)CR_COUNT(nets); n++) {
        struct offload_run plain, side;
        REQUIRE_OK(offload_run_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(compile_step(&plain, nets[n].fuse, false, 0));
        CHECK_INT(ops_on(&plain.program, CR_STREAM_SIDE), 0);
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        for (uint64_t seed = 1; seed <= 10; seed++) {
            REQUIRE_OK(offload_run_open(&side, &(struct how){.overrides      = nets[n].overrides,
                                                             .fuse           = nets[n].fuse,
                                                             .random_streams = true,
                                                             .seed           = seed}));
            REQUIRE_OK(compile_step(&side, nets[n].fuse, true, 0));
            CHECK(filter_gradients(&side.program) >= 8);
            CHECK_INT(ops_on(&side.program, CR_STREAM_SIDE), filter_gradients(&side.program));
            CHECK(waits_for_side(&side.program) > 1); /* that of the update, and those that bound the memory */
            REQUIRE_OK(start(&side));
            REQUIRE_OK(train(&side));
            CHECK(streams_.out_of_turn > 0);
            CHECK(same_store(&plain, &side));
            offload_run_close(&side);
        }
        offload_run_close(&plain);
    }
}

/* Without its waits the update may read gradients that are not computed yet. */
TEST(missing_waits_are_refused) {
    OWNED(offload_run) s = {0};
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = basic, .fuse = true}));
    REQUIRE_OK(compile_step(&s, true, true, 0));
    REQUIRE_OK(cr_waits_check(&s.program));
    for (int i = 0; i < s.program.ops; i++)
        for (int k = 0; k < CR_OP_WAIT_MAX; k++) s.program.op[i].wait[k] = CR_NONE;
    CHECK_STATUS(cr_waits_check(&s.program), CR_ERR_DEVICE);
}

/* The moved ops keep their inputs longer. A limit that leaves no memory for that keeps them on the compute stream. */
TEST(a_limit_is_kept) {
    OWNED(offload_run) s = {0};
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = basic, .fuse = true}));
    REQUIRE_OK(compile_step(&s, true, false, 0));
    const size_t plain_bytes = s.program.region_bytes[CR_REGION_POOL];
    REQUIRE_OK(compile_step(&s, true, true, 0));
    const size_t side_bytes = s.program.region_bytes[CR_REGION_POOL];
    CHECK(side_bytes > plain_bytes);
    REQUIRE_OK(compile_step(&s, true, true, side_bytes));
    CHECK(ops_on(&s.program, CR_STREAM_SIDE) > 0);
    REQUIRE_OK(compile_step(&s, true, true, side_bytes - 1));
    CHECK_INT(ops_on(&s.program, CR_STREAM_SIDE), 0);
    CHECK(s.program.region_bytes[CR_REGION_POOL] < side_bytes);
}

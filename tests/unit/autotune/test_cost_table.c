/* tests/unit/autotune/test_cost_table.c: the table of measured kernel times, on a fake device where each kernel takes a
 * given time, so the fastest candidate is known. Checks the choice, which kernels are measured, the file and its
 * faults, and the table of a checkpoint. */
#include "tests/harness/cost_table_support.h"

TEST(fastest_kernel_and_algo_is_selected) {
    OWNED(fixture) s = {0};
    fixture_begin(&s);
    struct cr_cost cost = best(&s);
    CHECK(cost.kernel == 1 && cost.algo == 1); /* kernel c is faster and not deterministic */
    CHECK(fabs(cost.seconds - 1e-4) < 2e-9);
    CHECK(measured(&s) == 3 && prepares == 3 && releases == 3);
    s.device.options.deterministic = false;
    s.program.tensor[0].dim[0] = s.program.tensor[1].dim[0] = 3; /* another signature */
    cost                                                    = best(&s);
    CHECK(cost.kernel == 2 && measured(&s) == 7);
    CHECK(fabs(cost.seconds - 5e-5) < 2e-9); /* as every launch in a captured graph */
}

static double estimate_s;

static double estimate(const struct cr_device *d, const struct cr_program *p, const struct cr_op *op) {
    return estimate_s;
}

/* A kernel is left out when its estimate exceeds the margin times the best time before it, and only then. */
TEST(kernel_ruled_out_by_its_estimate_is_not_measured) {
    static const struct {
        double estimate_s;
        int    kernel, measured;
    } v[] = {{0, 2, 4}, {0.99 * CR_ESTIMATE_MARGIN * 1e-4, 2, 4}, {1.01 * CR_ESTIMATE_MARGIN * 1e-4, 1, 3}};
    for (size_t i = 0; i < CR_COUNT(v); i++) {
        OWNED(fixture) s = {0};
        fixture_begin(&s);
        s.device.options.deterministic = false; /* kernel c, the fastest, too */
        kernel_c.estimate              = estimate;
        estimate_s                     = v[i].estimate_s;
        CHECK_INT(best(&s).kernel, v[i].kernel);
        CHECK_INT(measured(&s), v[i].measured);
        kernel_c.estimate = NULL;
    }
}

/* The launch of a library takes the host longer than the device: only the device time counts, in any order of the
 * kernels. */
TEST(enqueue_time_is_not_counted) {
    static const double now[3][2] = {{11e-6, 0}, {14e-6, 9e-6}, {12e-6, 0}}, enqueue[3] = {40e-6, 40e-6, 2e-6};
    OWNED(fixture)      s = {0};
    fixture_begin(&s);
    s.device.options.deterministic = false; /* all three kernels */
    memcpy(takes, now, sizeof takes);
    memcpy(enqueue_s, enqueue, sizeof enqueue_s);
    const struct cr_cost cost = best(&s);
    CHECK(cost.kernel == 1 && cost.algo == 1);
    CHECK(fabs(cost.seconds - 9e-6) < 2e-9);
}

/* The time of events does not count either: with it, two short launches would look alike. */
TEST(event_time_is_not_counted) {
    static const double now[3][2] = {{3e-6, 0}, {5e-6, 2e-6}, {4e-6, 0}};
    OWNED(fixture)      s         = {0};
    fixture_begin(&s);
    memcpy(takes, now, sizeof takes);
    event_s                   = 5e-6;
    const struct cr_cost cost = best(&s);
    CHECK(cost.kernel == 1 && cost.algo == 1);
    CHECK(fabs(cost.seconds - 2e-6) < 2e-9);
}

/* Inputs are noise, although earlier ops wrote to the same memory: for small inputs, for inputs larger than the noise
 * buffer, and when measured again. */
TEST(inputs_are_noise_each_time) {
    static const int64_t images[] = {2, 9000, 3, 700, 4, 8999, 5, 9001};
    OWNED(fixture)       s        = {0};
    fixture_begin(&s);
    memory_max = 16 << 20;
    for (size_t i = 0; i < CR_COUNT(images); i++) {
        for (int t = 0; t < 2; t++) {
            s.program.tensor[t].dim[0] = images[i];
            s.program.tensor[t].bytes  = (size_t)images[i] * 4 * 4 * 8 * 2;
        }
        best(&s);
        CHECK_INT(not_noise, 0);
    }
    CHECK(measured(&s) > 3 * 5 && launches > 3 * 5 * 3);
}

TEST(known_times_are_not_measured_again) {
    OWNED(fixture) s = {0};
    fixture_begin(&s);
    best(&s);
    best(&s);
    CHECK(measured(&s) == 3);
    cr_cost_table_flush(s.table);
    fixture_reopen(&s, "GPU A, driver 1");
    takes[1][1]         = 9; /* would be visible */
    struct cr_cost cost = best(&s);
    CHECK(cost.kernel == 1 && cost.algo == 1 && measured(&s) == 0 && launches == 0);
    s.op.attr.bn.relu = true; /* not an attribute of a ReLU: the same signature */
    best(&s);
    CHECK(measured(&s) == 0);
    s.program.tensor[0].dtype = s.program.tensor[1].dtype = CR_BF16;
    best(&s);
    CHECK(measured(&s) == 3);
}

/* The other run measured the fastest kernel as slow. */
static void make_slow(char *text) {
    char *mine = strstr(text, "100000\tfake.b\t1");
    REQUIRE(mine);
    memcpy(mine, "900000", 6);
    update_checksum(text);
}

TEST(checkpoint_table_takes_precedence) {
    OWNED(string)  text = NULL;
    OWNED(fixture) s    = {0};
    fixture_begin(&s);
    best(&s);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    make_slow(text);
    fixture_reopen(&s, "GPU A, driver 1");
    REQUIRE_OK(cr_cost_table_load_fixed(s.table, text, strlen(text), "step-1/kernel_times.txt"));
    struct cr_cost cost = best(&s);
    CHECK(cost.kernel == 1 && cost.algo == 0 && measured(&s) == 0);
    fixture_reopen(&s, "GPU A, driver 2");
    CHECK(cr_cost_table_load_fixed(s.table, text, strlen(text), "step-1/kernel_times.txt") == CR_ERR_DEVICE);
    CHECK_HAS(cr_error_message(), "another device");
    CHECK(cr_cost_table_load_fixed(s.table, "nonsense\n", 9, "step-1/kernel_times.txt") == CR_ERR_FORMAT);
    CHECK(best(&s).algo == 1 && measured(&s) == 3); /* nothing of it was used */
}

/* The kernel that the choice of a checkpoint used no longer exists. */
TEST(missing_kernel_is_reported) {
    OWNED(string)  text = NULL;
    OWNED(fixture) s    = {0};
    fixture_begin(&s);
    best(&s);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    for (char *at = text; (at = strstr(at, "fake.b")); at++) memcpy(at, "gone.", 5);
    update_checksum(text);
    fixture_reopen(&s, "GPU A, driver 1");
    CHECK(cr_cost_table_load_fixed(s.table, text, strlen(text), "step-1/kernel_times.txt") == CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "which this version no longer has");
    CHECK(best(&s).algo == 1 && measured(&s) == 3); /* nothing of it was used */
}

/* The entries of a checkpoint are for its run only: the file of the user keeps its own entries and gets the new
 * measurements. */
TEST(checkpoint_table_is_not_written_to_the_file) {
    OWNED(fixture) s    = {0};
    char          *text = NULL;
    fixture_begin(&s);
    best(&s);
    REQUIRE_OK(cr_cost_table_text(s.table, &text));
    resize(&s, 5);
    best(&s);
    cr_cost_table_flush(s.table);
    make_slow(text);
    fixture_reopen(&s, "GPU A, driver 1");
    REQUIRE_OK(cr_cost_table_load_fixed(s.table, text, strlen(text), "step-1/kernel_times.txt"));
    cr_free(text);
    CHECK(best(&s).algo == 0);
    resize(&s, 5); /* another batch in evaluation: not in the checkpoint, but in the file */
    CHECK(best(&s).algo == 1 && measured(&s) == 0);
    resize(&s, 6); /* in neither of them */
    CHECK(best(&s).algo == 1 && measured(&s) == 3);
    REQUIRE_OK(cr_cost_table_text(s.table, &text)); /* the next checkpoint holds all entries that were used */
    CHECK_HAS(text, "900000\tfake.b\t1");
    CHECK_HAS(text, "x=f16[5,");
    CHECK_HAS(text, "x=f16[6,");
    cr_cost_table_flush(s.table);
    fixture_reopen(&s, "GPU A, driver 1");
    CHECK(best(&s).algo == 1);
    resize(&s, 6);
    CHECK(best(&s).algo == 1 && measured(&s) == 0);
    cr_free(text);
}

/* A candidate that needs more memory than is available could not run either; with more memory it is tried again. */
TEST(candidates_without_memory_are_not_selected) {
    OWNED(string)  text = NULL;
    OWNED(fixture) s    = {0};
    fixture_begin(&s);
    workspace[1] = 2 << 20;
    CHECK(best(&s).kernel == 0 && fabs(best(&s).seconds - 3e-4) < 2e-9);
    REQUIRE_OK(cr_cost_table_text(s.table, &text)); /* the resumed run selects the same kernel */
    CHECK_HAS(text, "300000\tfake.a\t0");
    cr_cost_table_flush(s.table);
    fixture_reopen(&s, "GPU A, driver 1");
    CHECK(best(&s).kernel == 1 && measured(&s) == 3);
}

/* Checkpoints of version 0.3 hold times under these keys. A key that changes makes a resumed run measure again. */
TEST(keys_are_those_of_version_0_3) {
    struct cr_device device  = {.options.deterministic = true};
    struct cr_text   text[4] = {{0}};
    OWNED(program)   p       = {0};
    struct cr_op     conv = cr_op_make(CR_OP_conv, CR_NONE), pool = cr_op_make(CR_OP_maxpool, CR_NONE),
                 loss = cr_op_make(CR_OP_loss_grad, CR_NONE), gram = cr_op_make(CR_OP_gram_dgrad, CR_NONE);
    cr_program_init(&p, "p", NULL);
    conv.in[CR_IN_conv_x]   = cr_tensor_add(&p, "x", CR_F16, CR_REGION_POOL, 2, 8, 8, 16);
    conv.in[CR_IN_conv_w]   = cr_tensor_add(&p, "w", CR_F16, CR_REGION_POOL, 32, 3, 3, 16);
    conv.out[CR_OUT_conv_y] = cr_tensor_add(&p, "y", CR_F16, CR_REGION_POOL, 2, 4, 4, 32);
    conv.attr.conv = (struct cr_conv_attr){.stride = 2, .pad = 1, .relu = true, .accumulate = true, .add_pad_c = 8};
    pool.attr.conv = (struct cr_conv_attr){.stride = 2, .pad = 1, .window = 3};
    loss.attr.loss = (struct cr_loss_attr){.sigmoid = true, .several = true, .gamma = 2};
    gram.attr.conv = (struct cr_conv_attr){.stride = 2, .pad = 1};
    CHECK_STATUS(cr_cost_signature(&device, &p, &conv, &text[0]), CR_OK);
    CHECK_STATUS(cr_cost_signature(&device, &p, &pool, &text[1]), CR_OK);
    CHECK_STATUS(cr_cost_signature(&device, &p, &loss, &text[2]), CR_OK);
    CHECK_STATUS(cr_cost_signature(&device, &p, &gram, &text[3]), CR_OK);
    CHECK_STR(text[0].data,
              "conv s2 p1 w0 accumulate relu shortcut x=f16[2,8,8,16] w=f16[32,3,3,16] -> y=f16[2,4,4,32]");
    CHECK_STR(text[1].data, "maxpool s2 p1 w3 ->");
    CHECK_STR(text[2].data, "loss_grad bce several focal ->");
    CHECK_STR(text[3].data, "gram_dgrad s2 ->");
    for (size_t i = 0; i < CR_COUNT(text); i++) cr_text_free(&text[i]);
}

static bool refuses(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op) {
    return false;
}

/* A table from a file names the fastest kernel, which does not compute this op. */
TEST(a_kernel_that_refuses_the_op_is_not_selected) {
    OWNED(fixture) s = {0};
    size_t         bytes;
    fixture_begin(&s);
    const struct cr_cost_model model = cr_cost_table_model(s.table);
    CHECK_STATUS(model.select(model.self, &s.program, &s.op, &bytes), CR_OK);
    CHECK_INT(s.op.kernel, 1);
    kernel_b.accepts = refuses;
    CHECK_STATUS(model.select(model.self, &s.program, &s.op, &bytes), CR_OK);
    CHECK_INT(s.op.kernel, 0);
    kernel_b.accepts = NULL;
}

TEST(without_scratch_memory_the_first_kernel_is_selected) {
    OWNED(fixture) s = {0};
    fixture_begin(&s);
    memory_max = 0;
    CHECK(best(&s).kernel == 0 && best(&s).algo == 0 && launches == 0);
}

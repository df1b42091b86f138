/* tests/unit/runtime/test_offload_executor.c: programs with offloaded tensors, inserted without the pass: bitwise the
 * same results as without offload, in list order and on a device with a random stream order. The checks, and with
 * poison the results, detect missing waits. */
#include "compiler/intervals.h"
#include "inspect/plan_print.h"
#include "tests/harness/offload_run.h"
#include "verification/verify.h"

/* ---- cases ---- */

TEST(offload_is_bitwise_identical) {
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct offload_run plain, with;
        REQUIRE_OK(offload_run_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        CHECK_INT(plain.memory.bytes[CR_REGION_HOST], 0);
        for (int one_in = 1; one_in <= 3; one_in++) {
            const struct cr_program *all[] = {&with.program};
            size_t                   bytes = 0;
            REQUIRE_OK(offload_run_open(
                &with, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = one_in}));
            CHECK(with.offloads.count > 3);
            for (int i = 0; i < with.offloads.count; i++)
                bytes += (with.program.tensor[with.offloads.offload[i].host].bytes + 255) / 256 * 256;
            REQUIRE_OK(start(&with));
            CHECK_INT(with.program.region_bytes[CR_REGION_HOST], bytes);
            CHECK_INT(with.memory.bytes[CR_REGION_HOST], bytes);
            CHECK(cr_memory_need(with.device, &with.model.store, all, 1) <
                  cr_param_store_bytes(&with.model.store) + bytes + with.program.region_bytes[CR_REGION_POOL] +
                      with.program.region_bytes[CR_REGION_INPUT]);
            REQUIRE_OK(cr_exec_poison(with.exec));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            offload_run_close(&with);
        }
        offload_run_close(&plain);
    }
}

/* Streams in any order that the waits allow, some runs captured, with delays and poison: still bitwise identical. */
TEST(random_stream_order_is_bitwise_identical) {
    struct offload_run plain, with;
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        REQUIRE_OK(offload_run_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        for (uint64_t seed = 0; seed < 6; seed++) {
            const struct how how = {.overrides      = nets[n].overrides,
                                    .fuse           = nets[n].fuse,
                                    .random_streams = true,
                                    .one_in         = 1 + (int)(seed % 2),
                                    .seed           = seed};
            REQUIRE_OK(offload_run_open(&with, &how));
            REQUIRE_OK(start(&with));
            REQUIRE_OK(cr_exec_poison(with.exec));
            if (seed > 2) REQUIRE_OK(cr_exec_jitter(with.exec, seed));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            CHECK(streams_.out_of_turn > 10 && streams_.fills > 100 && (streams_.delays > 0) == (seed > 2) &&
                  streams_.graph_launches == STEPS - 1);
            offload_run_close(&with);
        }
        offload_run_close(&plain);
    }
}

/* The same with the offloads of the pass, for each of its scores. */
TEST(random_stream_order_after_the_pass_is_bitwise_identical) {
    struct offload_run plain, with;
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        int tensors = 0;
        REQUIRE_OK(offload_run_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        for (int score = 0; score < CR_OFFLOAD_SCORES; score++) {
            const struct how how = {.overrides      = nets[n].overrides,
                                    .fuse           = nets[n].fuse,
                                    .random_streams = true,
                                    .seed           = 100 + (uint64_t)score,
                                    .limit          = plain.program.region_bytes[CR_REGION_POOL] / 10 * 7,
                                    .score          = (enum cr_offload_score)score};
            REQUIRE_OK(offload_run_open(&with, &how));
            REQUIRE_OK(start(&with));
            REQUIRE_OK(cr_exec_poison(with.exec));
            REQUIRE_OK(cr_exec_jitter(with.exec, how.seed));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            tensors += with.report.offloaded;
            CHECK(with.report.offloaded == 0 || with.memory.bytes[CR_REGION_HOST] >= with.report.offload_bytes);
            offload_run_close(&with);
        }
        CHECK(tensors > 0);
        offload_run_close(&plain);
    }
}

/* Removes wait k of op i. */
static struct cr_op without_wait(struct cr_op op, int k) {
    for (; k + 1 < CR_OP_WAIT_MAX; k++) op.wait[k] = op.wait[k + 1];
    op.wait[CR_OP_WAIT_MAX - 1] = CR_NONE;
    return op;
}

/* Faults that the checks find also show in the results, with poison and some probability: every wait for a copy is
 * needed. */
TEST(missing_wait_changes_the_results) {
    struct offload_run plain, with;
    int                different = 0, kinds[2] = {0};
    REQUIRE_OK(offload_run_open(&plain, &(struct how){.overrides = basic, .fuse = true}));
    REQUIRE_OK(start(&plain));
    REQUIRE_OK(train(&plain));
    for (uint64_t seed = 0; seed < 12; seed++) {
        REQUIRE_OK(offload_run_open(
            &with, &(struct how){.overrides = basic, .fuse = true, .random_streams = true, .one_in = 2, .seed = seed}));
        const enum cr_op_kind kind = seed % 2 ? CR_OP_prefetch : CR_OP_barrier;
        for (int i = 0; i < with.program.ops; i++)
            if (with.program.op[i].kind == kind) with.program.op[i] = without_wait(with.program.op[i], 0);
        REQUIRE_OK(start(&with));
        REQUIRE_OK(cr_exec_poison(with.exec));
        REQUIRE_OK(train(&with));
        if (!same_store(&plain, &with)) different++, kinds[seed % 2]++;
        offload_run_close(&with);
    }
    printf("    12 runs with a missing wait, %d with different results\n", different);
    CHECK(kinds[0] > 0 && kinds[1] > 0);
    offload_run_close(&plain);
}

/* One op at a time, each verified by the values on the device, HOST tensors too. */
TEST(each_op_verifies_separately) {
    const struct cr_device_options reference = {.threads = 1, .ref_only = true};
    OWNED(device)                  cpu       = NULL;
    OWNED(offload_run)             s         = {0};
    int                            checked;
    double                         worst;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &reference, &cpu));
    REQUIRE_OK(offload_run_open(
        &s, &(struct how){.overrides = basic, .fuse = true, .random_streams = true, .one_in = 1, .seed = 5}));
    REQUIRE_OK(start(&s));
    REQUIRE_OK(train(&s));
    REQUIRE_OK(cr_verify_program(cpu, s.device, s.exec, &s.program, &block, &checked, &worst));
    CHECK_INT(checked, s.program.ops);
    const int      host  = s.offloads.offload[0].host;
    const size_t   bytes = s.program.tensor[host].bytes;
    unsigned char *given = cr_alloc(bytes, 1), *got = cr_alloc(bytes, 1);
    REQUIRE(given && got);
    memset(given, 77, bytes);
    CHECK_STATUS(cr_exec_put(s.exec, host, given), CR_OK);
    CHECK_STATUS(cr_exec_get(s.exec, host, got), CR_OK);
    CHECK(memcmp(given, got, bytes) == 0);
    cr_free(given);
    cr_free(got);
}

/* tests/unit/runtime/test_offload_executor.c: programs with offloaded tensors, inserted without the pass: bitwise the
 * same results as without offload, in list order and on a device with a random stream order. The checks, and with
 * poison the results, detect missing waits. */
#include "compiler/intervals.h"
#include "inspect/plan_print.h"
#include "tests/harness/offload_run.h"
#include "verification/verify.h"

/* ---- cases ---- */

static void offload_is_bitwise_identical(void) {
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
static void random_stream_order_is_bitwise_identical(void) {
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
static void random_stream_order_after_the_pass_is_bitwise_identical(void) {
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
            tensors += with.report.tensors;
            CHECK(with.report.tensors == 0 || with.memory.bytes[CR_REGION_HOST] >= with.report.bytes);
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

static void each_missing_wait_is_detected(void) {
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct offload_run s;
        int                waits = 0;
        REQUIRE_OK(
            offload_run_open(&s, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = 1}));
        for (int i = 0; i < s.program.ops; i++)
            for (int k = 0; k < CR_OP_WAIT_MAX && s.program.op[i].wait[k] >= 0; k++, waits++) {
                const struct cr_op whole = s.program.op[i];
                s.program.op[i]          = without_wait(whole, k);
                CHECK_STATUS(cr_waits_check(&s.program), CR_ERR_DEVICE);
                s.program.op[i] = whole;
            }
        CHECK(waits >= 3 * s.offloads.count - 2);
        CHECK_STATUS(cr_waits_check(&s.program), CR_OK);
        offload_run_close(&s);
    }
}

/* True when another tensor that is accessed after op `from` overlaps the tensor. */
static bool place_is_used_again(const struct cr_program *p, int tensor, int from) {
    const struct cr_tensor *t = &p->tensor[tensor];
    for (int u = 0; u < p->tensors; u++) {
        const struct cr_tensor *x = &p->tensor[u];
        if (u == tensor || x->region != CR_REGION_POOL || x->first < from || x->offset >= t->offset + t->bytes)
            continue;
        if (t->offset < x->offset + x->bytes) return true;
    }
    return false;
}

static bool place_was_used_before(const struct cr_program *p, int tensor, int from) {
    const struct cr_tensor *t = &p->tensor[tensor];
    for (int u = 0; u < p->tensors; u++) {
        const struct cr_tensor *x = &p->tensor[u];
        if (u == tensor || x->region != CR_REGION_POOL || x->first < 0 || x->last > from ||
            x->offset >= t->offset + t->bytes)
            continue;
        if (t->offset < x->offset + x->bytes) return true;
    }
    return false;
}

/* Without the barrier that waits for the copy out, the memory is reused too early; without the event tensor, the copy
 * back begins too early. With waits inserted again without it, but planned with it, the program must be refused. */
static void missing_barrier_is_detected(void) {
    int all[2] = {0}; /* the plan decides whether the memory is reused */
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct offload_run s;
        int                found[2] = {0};
        REQUIRE_OK(
            offload_run_open(&s, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = 2}));
        CHECK_STATUS(cr_pass_insert_waits(&s.program), CR_OK);
        CHECK_STATUS(cr_waits_check(&s.program), CR_OK); /* the rebuilt program itself is valid */
        for (int i = 0; i < s.offloads.count; i++) {
            const struct hand_offload *h    = &s.offloads.offload[i];
            struct cr_op              *sync = &s.program.op[h->barrier_op], *in = &s.program.op[h->prefetch_op];
            const bool                 again  = place_is_used_again(&s.program, h->tensor, h->barrier_op);
            const bool                 before = place_was_used_before(&s.program, h->back, h->prefetch_op);
            sync->in[CR_IN_barrier_x]         = CR_NONE;
            CHECK_STATUS(cr_pass_insert_waits(&s.program), CR_OK);
            const bool out_fails         = cr_waits_check(&s.program) != CR_OK;
            sync->in[CR_IN_barrier_x]    = h->host;
            in->in[CR_IN_prefetch_event] = CR_NONE;
            CHECK_STATUS(cr_pass_insert_waits(&s.program), CR_OK);
            const bool in_fails          = cr_waits_check(&s.program) != CR_OK;
            in->in[CR_IN_prefetch_event] = h->event;
            CHECK(again || !out_fails);
            CHECK(before || !in_fails);
            found[0] += out_fails;
            found[1] += in_fails;
        }
        all[0] += found[0];
        all[1] += found[1];
        printf("    %d offloads: a missing wait for the copy out is detected in %d, for the copy back in %d\n",
               s.offloads.count, found[0], found[1]);
        offload_run_close(&s);
    }
    CHECK(all[0] > 0 && all[1] > 0);
}

/* Planned without the barrier, the plan reserves the memory as long as no op waits for the copy: correct, and
 * larger. */
static void missing_barrier_keeps_memory_reserved(void) {
    struct offload_run with, without;
    const struct how   how = {.overrides = basic, .fuse = true, .one_in = 1};
    REQUIRE_OK(offload_run_open(&with, &how));
    REQUIRE_OK(offload_run_open(&without, &how));
    for (int i = 0; i < without.offloads.count; i++)
        without.program.op[without.offloads.offload[i].barrier_op].in[CR_IN_barrier_x] = CR_NONE;
    CHECK_STATUS(hand_finish(&without.program, &without.cost_model), CR_OK);
    CHECK(without.program.bound_bytes > with.program.bound_bytes);
    offload_run_close(&with);
    offload_run_close(&without);
}

/* Faults that the checks find also show in the results, with poison and some probability: every wait for a copy is
 * needed. */
static void missing_wait_changes_the_results(void) {
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

/* Without offload, each dead tensor is poisoned after its last access; with offload, not while a copy may still read
 * it. */
static void poison_comes_after_all_streams(void) {
    struct offload_run s;
    struct cr_fill    *fill;
    int                count, dying = 0, after = 0;
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = bottleneck, .fuse = true}));
    REQUIRE_OK(cr_fills_make(&s.program, &fill, &count));
    for (int t = 0; t < s.program.tensors; t++) {
        const struct cr_tensor *x    = &s.program.tensor[t];
        bool                    dies = x->region == CR_REGION_POOL && x->first >= 0 && !x->keep;
        for (int u = 0; u < s.program.tensors; u++) dies &= s.program.tensor[u].alias != t;
        dying += dies;
        for (int i = 0, there = 0; dies && i < count; i++) {
            there += fill[i].op == x->last && fill[i].after_launch && fill[i].begin == x->offset &&
                     fill[i].end == x->offset + x->bytes;
            if (i == count - 1) CHECK(there > 0);
        }
    }
    CHECK_INT(count, dying);
    cr_free(fill);
    offload_run_close(&s);
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = bottleneck, .fuse = true, .one_in = 1}));
    REQUIRE_OK(cr_fills_make(&s.program, &fill, &count));
    for (int k = 0; k < s.offloads.count; k++) {
        const struct hand_offload *h = &s.offloads.offload[k];
        const struct cr_tensor    *t = &s.program.tensor[h->tensor];
        for (int i = 0; i < count;
             i++) /* the barrier may come after the waits of an earlier barrier; never before them */
            after += fill[i].begin == t->offset && fill[i].end == t->offset + t->bytes && fill[i].op > t->last &&
                     fill[i].op <= h->barrier_op;
    }
    CHECK(after >= s.offloads.count / 2);
    cr_free(fill);
    offload_run_close(&s);
}

/* The printed data of a program with offload are the planned data: intervals of the plan, the tensors that
 * are offloaded, and where. */
static void printed_as_planned(void) {
    struct offload_run s;
    struct cr_text     text = {0};
    REQUIRE_OK(offload_run_open(&s, &(struct how){.overrides = basic, .fuse = true, .one_in = 1}));
    cr_plan_print_summary(&s.program, &text);
    CHECK(text.data && strstr(text.data, "\nhost  ") && strstr(text.data, "offloaded"));
    text.length = 0;
    cr_plan_print_csv(&s.program, &text);
    struct cr_interval *interval = cr_alloc((size_t)s.program.tensors, sizeof *interval);
    REQUIRE(interval != NULL);
    int    n = 0, id, lower, upper;
    size_t bound;
    for (char *at = strchr(text.data, '\n') + 1; *at; at = strchr(at, '\n') + 1, n++) {
        REQUIRE(sscanf(at, "%d,%d,%d,%zu,%zu", &id, &lower, &upper, &interval[n].size, &interval[n].offset) == 5);
        interval[n].lower = lower;
        interval[n].upper = upper;
    }
    REQUIRE_OK(cr_plan_bound(interval, n, s.cost_model.alignment, &bound));
    CHECK_INT(bound, s.program.bound_bytes);
    cr_free(interval);
    cr_text_free(&text);
    offload_run_close(&s);
}

/* One op at a time, each verified by the values on the device, HOST tensors too. */
static void each_op_verifies_separately(void) {
    const struct cr_device_options reference = {.threads = 1, .ref_only = true};
    struct offload_run             s;
    struct cr_device              *cpu;
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
    offload_run_close(&s);
    cr_device_close(cpu);
}

TESTS(CASE(offload_is_bitwise_identical), CASE(random_stream_order_is_bitwise_identical),
      CASE(random_stream_order_after_the_pass_is_bitwise_identical), CASE(each_missing_wait_is_detected),
      CASE(missing_barrier_is_detected), CASE(missing_barrier_keeps_memory_reserved),
      CASE(missing_wait_changes_the_results), CASE(poison_comes_after_all_streams), CASE(printed_as_planned),
      CASE(each_op_verifies_separately))

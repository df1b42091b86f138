/* tests/unit/runtime/test_offload_executor.c: programs with tensors that wait in the host's memory, put there by hand:
 * the same bits as without, in list order and on a device whose lanes go as they like; what order is missing is found
 * by the proofs and, with poison, by the results. */
#include "inspect/memory_trace/memory_trace.h"
#include "inspect/plan_print.h"
#include "model/model.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/streams_support.h"
#include "verification/verify.h"

enum { BATCH = 3, SIZE = 32, CLASSES = 10, STEPS = 4 };

static const struct cr_step_block block = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f, .clip_norm = 1};

/* ---- a network and one of its programs ---- */

struct swapped {
    struct cr_config         config;
    struct cr_model          model;
    struct cr_device        *device;
    struct cr_cost_model     target;
    struct cr_program        program;
    struct hand_offloads     swaps;
    struct cr_offload_report report;
    struct cr_memory         memory;
    struct cr_exec          *exec;
    bool                     lanes;
};

static const char *const basic[]      = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                         "model.arch=custom",   "model.block=basic",  "model.depths=2,2",
                                         "model.widths=4,8",    "model.stem=cifar"};
static const char *const bottleneck[] = {"data.kind=synthetic", "data.image_size=32",     "train.device=cpu",
                                         "model.arch=custom",   "model.block=bottleneck", "model.depths=1,2",
                                         "model.widths=4,4",    "model.stem=imagenet"};

struct how {
    const char *const    *overrides;
    bool                  fuse, lanes;
    int                   one_in; /* of the tensors that can be swapped by hand; 0: none */
    uint64_t              seed;
    size_t                limit; /* else: by the pass, down to so many bytes */
    enum cr_offload_score score;
};

static cr_status make_program(struct swapped *s, const struct how *how) {
    const struct cr_compile_options select = {.fuse = how->fuse, .reuse = true, .until = "select"};
    CR_TRY(cr_model_program(&s->model, &s->config, CR_PROGRAM_STEP, BATCH, &s->program));
    CR_TRY(cr_compile(&s->program, &s->target, &select));
    if (how->limit) CR_TRY(cr_pass_offload(&s->program, &s->target, how->limit, how->score, &s->report));
    if (how->one_in) hand_offload(&s->program, &s->target, how->one_in, &s->swaps);
    return hand_finish(&s->program, &s->target);
}

static cr_status swapped_open(struct swapped *s, const struct how *how) {
    const struct cr_device_options options = {.threads = 1, .deterministic = true};
    *s                                     = (struct swapped){.lanes = how->lanes};
    CR_TRY(cr_config_open(&s->config, NULL, how->overrides, 8));
    CR_TRY(cr_model_open(&s->config, CLASSES, SIZE, SIZE, &s->model));
    CR_TRY(how->lanes ? streams_open(&options, how->seed, &s->device)
                      : cr_device_open(CR_DEVICE_CPU, &options, &s->device));
    s->target = cr_device_cost_model(s->device);
    return make_program(s, how);
}

static cr_status start(struct swapped *s) {
    return exec_begin(s->device, &s->model, &s->config, &s->program, &s->memory, &s->exec);
}

static void swapped_close(struct swapped *s) {
    cr_exec_close(s->exec);
    if (s->memory.device) cr_memory_close(&s->memory);
    cr_program_free(&s->program);
    if (s->lanes)
        streams_close();
    else
        cr_device_close(s->device);
    cr_model_close(&s->model);
    cr_config_close(&s->config);
}

static cr_status train(struct swapped *s) {
    static uint8_t pixels[BATCH * SIZE * SIZE * 3];
    int32_t        labels[BATCH], boxes[BATCH * 4] = {0};
    for (int step = 0; step < STEPS; step++) {
        struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, (uint64_t)step, 7);
        for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)cr_rng_below(&rng, 256);
        for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)cr_rng_below(&rng, CLASSES);
        CR_TRY(cr_exec_feed(s->exec, pixels, labels, boxes));
        CR_TRY(cr_exec_run(s->exec, &block));
    }
    return s->device->backend->sync(s->device);
}

static bool same_store(const struct swapped *a, const struct swapped *b) {
    return memcmp(a->memory.region[CR_REGION_STORE], b->memory.region[CR_REGION_STORE],
                  cr_param_store_bytes(&a->model.store)) == 0;
}

static const struct {
    const char *const *overrides;
    bool               fuse;
} nets[] = {{basic, true}, {basic, false}, {bottleneck, true}, {bottleneck, false}};

/* ---- cases ---- */

static void a_swapped_program_gives_the_same_bits(void) {
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct swapped plain, with;
        REQUIRE_OK(swapped_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        CHECK_INT(plain.memory.bytes[CR_REGION_HOST], 0);
        for (int one_in = 1; one_in <= 3; one_in++) {
            const struct cr_program *all[] = {&with.program};
            size_t                   bytes = 0;
            REQUIRE_OK(swapped_open(
                &with, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = one_in}));
            CHECK(with.swaps.count > 3);
            for (int i = 0; i < with.swaps.count; i++)
                bytes += (with.program.tensor[with.swaps.offload[i].host].bytes + 255) / 256 * 256;
            REQUIRE_OK(start(&with));
            CHECK_INT(with.program.region_bytes[CR_REGION_HOST], bytes);
            CHECK_INT(with.memory.bytes[CR_REGION_HOST], bytes);
            CHECK(cr_memory_need(with.device, &with.model.store, all, 1) <
                  cr_param_store_bytes(&with.model.store) + bytes + with.program.region_bytes[CR_REGION_POOL] +
                      with.program.region_bytes[CR_REGION_INPUT]);
            REQUIRE_OK(cr_exec_poison(with.exec));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            swapped_close(&with);
        }
        swapped_close(&plain);
    }
}

/* Lanes in any order that the waits allow, some runs recorded, with delays and poison: still the same bits. */
static void streams_may_go_as_they_like(void) {
    struct swapped plain, with;
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        REQUIRE_OK(swapped_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        for (uint64_t seed = 0; seed < 6; seed++) {
            const struct how how = {.overrides = nets[n].overrides,
                                    .fuse      = nets[n].fuse,
                                    .lanes     = true,
                                    .one_in    = 1 + (int)(seed % 2),
                                    .seed      = seed};
            REQUIRE_OK(swapped_open(&with, &how));
            REQUIRE_OK(start(&with));
            REQUIRE_OK(cr_exec_poison(with.exec));
            if (seed > 2) REQUIRE_OK(cr_exec_jitter(with.exec, seed));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            CHECK(streams_.out_of_turn > 10 && streams_.fills > 100 && (streams_.delays > 0) == (seed > 2) &&
                  streams_.graph_launches == STEPS - 1);
            swapped_close(&with);
        }
        swapped_close(&plain);
    }
}

/* The same of what the pass puts in, by each of its choices. */
static void so_may_those_of_the_pass(void) {
    struct swapped plain, with;
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        int tensors = 0;
        REQUIRE_OK(swapped_open(&plain, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse}));
        REQUIRE_OK(start(&plain));
        REQUIRE_OK(train(&plain));
        for (int score = 0; score < CR_OFFLOAD_SCORES; score++) {
            const struct how how = {.overrides = nets[n].overrides,
                                    .fuse      = nets[n].fuse,
                                    .lanes     = true,
                                    .seed      = 100 + (uint64_t)score,
                                    .limit     = plain.program.region_bytes[CR_REGION_POOL] / 10 * 7,
                                    .score     = (enum cr_offload_score)score};
            REQUIRE_OK(swapped_open(&with, &how));
            REQUIRE_OK(start(&with));
            REQUIRE_OK(cr_exec_poison(with.exec));
            REQUIRE_OK(cr_exec_jitter(with.exec, how.seed));
            REQUIRE_OK(train(&with));
            CHECK(same_store(&plain, &with));
            tensors += with.report.tensors;
            CHECK(with.report.tensors == 0 || with.memory.bytes[CR_REGION_HOST] >= with.report.bytes);
            swapped_close(&with);
        }
        CHECK(tensors > 0);
        swapped_close(&plain);
    }
}

/* Takes wait k out of op i. */
static struct cr_op without_wait(struct cr_op op, int k) {
    for (; k + 1 < CR_OP_WAIT_MAX; k++) op.wait[k] = op.wait[k + 1];
    op.wait[CR_OP_WAIT_MAX - 1] = CR_NONE;
    return op;
}

static void each_wait_is_needed_and_missed(void) {
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct swapped s;
        int            waits = 0;
        REQUIRE_OK(swapped_open(&s, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = 1}));
        for (int i = 0; i < s.program.ops; i++)
            for (int k = 0; k < CR_OP_WAIT_MAX && s.program.op[i].wait[k] >= 0; k++, waits++) {
                const struct cr_op whole = s.program.op[i];
                s.program.op[i]          = without_wait(whole, k);
                CHECK_STATUS(cr_waits_check(&s.program), CR_ERR_DEVICE);
                s.program.op[i] = whole;
            }
        CHECK(waits >= 3 * s.swaps.count - 2);
        CHECK_STATUS(cr_waits_check(&s.program), CR_OK);
        swapped_close(&s);
    }
}

/* Does something else that is touched behind op `from` lie at the tensor's place? */
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

/* Without the sync that waits for the copy out, the place is used again too early; without the token, the copy back
 * begins too early. Ordered anew without it, but planned as with it, the program must not pass. */
static void a_missing_sync_is_found(void) {
    int all[2] = {0}; /* whether a place is used again is up to the plan */
    for (size_t n = 0; n < CR_COUNT(nets); n++) {
        struct swapped s;
        int            found[2] = {0};
        REQUIRE_OK(swapped_open(&s, &(struct how){.overrides = nets[n].overrides, .fuse = nets[n].fuse, .one_in = 2}));
        CHECK_STATUS(cr_pass_insert_waits(&s.program), CR_OK);
        CHECK_STATUS(cr_waits_check(&s.program), CR_OK); /* what is done below does no harm by itself */
        for (int i = 0; i < s.swaps.count; i++) {
            const struct hand_offload *h    = &s.swaps.offload[i];
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
        printf("    of %d swaps, a missing wait for the copy out is found at %d, for the copy back at %d\n",
               s.swaps.count, found[0], found[1]);
        swapped_close(&s);
    }
    CHECK(all[0] > 0 && all[1] > 0);
}

/* Planned without the sync, the plan keeps the place as long as nothing waits for the copy: correct, and larger. */
static void the_plan_waits_where_the_program_does_not(void) {
    struct swapped   with, without;
    const struct how how = {.overrides = basic, .fuse = true, .one_in = 1};
    REQUIRE_OK(swapped_open(&with, &how));
    REQUIRE_OK(swapped_open(&without, &how));
    for (int i = 0; i < without.swaps.count; i++)
        without.program.op[without.swaps.offload[i].barrier_op].in[CR_IN_barrier_x] = CR_NONE;
    CHECK_STATUS(hand_finish(&without.program, &without.target), CR_OK);
    CHECK(without.program.bound_bytes > with.program.bound_bytes);
    swapped_close(&with);
    swapped_close(&without);
}

/* What the proofs find shows in the results as well, with poison and luck: no wait of a copy is there for nothing. */
static void a_missing_wait_changes_the_results(void) {
    struct swapped plain, with;
    int            spoilt = 0, kinds[2] = {0};
    REQUIRE_OK(swapped_open(&plain, &(struct how){.overrides = basic, .fuse = true}));
    REQUIRE_OK(start(&plain));
    REQUIRE_OK(train(&plain));
    for (uint64_t seed = 0; seed < 12; seed++) {
        REQUIRE_OK(swapped_open(
            &with, &(struct how){.overrides = basic, .fuse = true, .lanes = true, .one_in = 2, .seed = seed}));
        const enum cr_op_kind kind = seed % 2 ? CR_OP_prefetch : CR_OP_barrier;
        for (int i = 0; i < with.program.ops; i++)
            if (with.program.op[i].kind == kind) with.program.op[i] = without_wait(with.program.op[i], 0);
        REQUIRE_OK(start(&with));
        REQUIRE_OK(cr_exec_poison(with.exec));
        REQUIRE_OK(train(&with));
        if (!same_store(&plain, &with)) spoilt++, kinds[seed % 2]++;
        swapped_close(&with);
    }
    printf("    12 runs with waits missing, %d with other results\n", spoilt);
    CHECK(kinds[0] > 0 && kinds[1] > 0);
    swapped_close(&plain);
}

/* Without swaps, each tensor that dies is filled behind the op that touches it last; with swaps, none while a copy may
 * read it. */
static void fills_come_when_all_lanes_are_done(void) {
    struct swapped  s;
    struct cr_fill *fill;
    int             count, dying = 0, after = 0;
    REQUIRE_OK(swapped_open(&s, &(struct how){.overrides = bottleneck, .fuse = true}));
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
    swapped_close(&s);
    REQUIRE_OK(swapped_open(&s, &(struct how){.overrides = bottleneck, .fuse = true, .one_in = 1}));
    REQUIRE_OK(cr_fills_make(&s.program, &fill, &count));
    for (int k = 0; k < s.swaps.count; k++) {
        const struct hand_offload *h = &s.swaps.offload[k];
        const struct cr_tensor    *t = &s.program.tensor[h->tensor];
        for (int i = 0; i < count;
             i++) /* the sync may come later than the waits of a sync before it; never earlier than those */
            after += fill[i].begin == t->offset && fill[i].end == t->offset + t->bytes && fill[i].op > t->last &&
                     fill[i].op <= h->barrier_op;
    }
    CHECK(after >= s.swaps.count / 2);
    cr_free(fill);
    swapped_close(&s);
}

/* What is shown and logged of a swapped program is what is planned: lives as the plan has them, what waits, and where.
 */
static void shown_and_logged_as_planned(void) {
    struct swapped       s;
    struct cr_text       text = {0};
    struct cr_trace      trace;
    struct cr_trace_loop loop;
    struct cr_trace_plan plan;
    REQUIRE_OK(swapped_open(&s, &(struct how){.overrides = basic, .fuse = true, .one_in = 1}));
    const struct cr_program *all[] = {&s.program};
    cr_plan_print_summary(&s.program, &text);
    CHECK(text.data && strstr(text.data, "\nhost  ") && strstr(text.data, "offloaded"));
    text.length = 0;
    cr_plan_print_csv(&s.program, &text);
    struct cr_interval *life = cr_alloc((size_t)s.program.tensors, sizeof *life);
    REQUIRE(life != NULL);
    int    n = 0, id, lower, upper;
    size_t bound;
    for (char *at = strchr(text.data, '\n') + 1; *at; at = strchr(at, '\n') + 1, n++) {
        REQUIRE(sscanf(at, "%d,%d,%d,%zu,%zu", &id, &lower, &upper, &life[n].size, &life[n].offset) == 5);
        life[n].lower = lower;
        life[n].upper = upper;
    }
    REQUIRE_OK(cr_plan_bound(life, n, s.target.alignment, &bound));
    CHECK_INT(bound, s.program.bound_bytes);
    cr_free(life);
    text.length = 0;
    cr_trace_write(all, 1, 3, s.target.alignment, &text);
    CHECK(!text.failed && !strstr(text.data, "region.host"));
    REQUIRE_OK(cr_trace_read_bytes(text.data, text.length, "log.csv", &trace));
    REQUIRE_OK(cr_trace_find_loop(&trace, "log.csv", &loop));
    REQUIRE_OK(cr_trace_plan(&trace, &loop, CR_TRACE_BY_USE, s.target.alignment, &plan));
    CHECK_INT(plan.bound, s.program.bound_bytes);
    printf("    bound %zu, planned %zu as a program, %zu as a log\n", plan.bound,
           s.program.region_bytes[CR_REGION_POOL], plan.peak);
    CHECK(plan.persistent <= cr_param_store_bytes(&s.model.store) + s.program.region_bytes[CR_REGION_INPUT] + 8 * 256);
    cr_trace_plan_free(&plan);
    cr_trace_free(&trace);
    cr_text_free(&text);
    swapped_close(&s);
}

/* One op at a time, each judged by what the device holds, HOST tensors too. */
static void each_op_is_right_by_itself(void) {
    const struct cr_device_options reference = {.threads = 1, .ref_only = true};
    struct swapped                 s;
    struct cr_device              *cpu;
    int                            checked;
    double                         worst;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &reference, &cpu));
    REQUIRE_OK(
        swapped_open(&s, &(struct how){.overrides = basic, .fuse = true, .lanes = true, .one_in = 1, .seed = 5}));
    REQUIRE_OK(start(&s));
    REQUIRE_OK(train(&s));
    REQUIRE_OK(cr_verify_program(cpu, s.device, s.exec, &s.program, &block, &checked, &worst));
    CHECK_INT(checked, s.program.ops);
    const int      host  = s.swaps.offload[0].host;
    const size_t   bytes = s.program.tensor[host].bytes;
    unsigned char *given = cr_alloc(bytes, 1), *got = cr_alloc(bytes, 1);
    REQUIRE(given && got);
    memset(given, 77, bytes);
    CHECK_STATUS(cr_exec_put(s.exec, host, given), CR_OK);
    CHECK_STATUS(cr_exec_get(s.exec, host, got), CR_OK);
    CHECK(memcmp(given, got, bytes) == 0);
    cr_free(given);
    cr_free(got);
    swapped_close(&s);
    cr_device_close(cpu);
}

TESTS(CASE(a_swapped_program_gives_the_same_bits), CASE(streams_may_go_as_they_like), CASE(so_may_those_of_the_pass),
      CASE(each_wait_is_needed_and_missed), CASE(a_missing_sync_is_found),
      CASE(the_plan_waits_where_the_program_does_not), CASE(a_missing_wait_changes_the_results),
      CASE(fills_come_when_all_lanes_are_done), CASE(shown_and_logged_as_planned), CASE(each_op_is_right_by_itself))

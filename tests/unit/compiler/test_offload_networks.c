/* tests/unit/compiler/test_offload_networks.c: training with offload, with recompute and with both is bitwise
 * identical, also with poisoned freed memory; offload alone and offload with recompute meet the limits in every shipped
 * network; messages when the limits cannot be met. */
#include "compiler/memory/offload.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/data_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/network_support.h"

enum { BATCH = 4, CLASSES = 5, SIZE = 32, STEPS = 3 };

/* ---- bitwise identical results ---- */

/* At the baseline oneDNN's filter gradient of conv1 has a workspace of 360 KiB and alone needs 98 % of the pool of the
 * bottleneck networks: no offload or recomputation lowers that. The workspaces of reference kernels are small. */
static cr_status open_step(struct net *n, const char *const *overrides, int count, bool fuse, size_t limit,
                           bool recompute, bool with_offload, enum cr_offload_score score) {
    const struct net_plan plan = {.overrides  = overrides,
                                  .count      = count,
                                  .kind       = CR_PROGRAM_STEP,
                                  .classes    = CLASSES,
                                  .size       = SIZE,
                                  .batch      = BATCH,
                                  .device     = {.threads       = TEST_SANITIZED ? 1 : 2,
                                                 .deterministic = true,
                                                 .ref_only      = cr_cpu_level() == CR_CPU_BASELINE},
                                  .fuse       = fuse,
                                  .pool_limit = limit,
                                  .recompute  = recompute,
                                  .offload    = with_offload,
                                  .score      = score};
    CR_TRY(net_open(n, &plan));
    return n->device->backend->init_store(n->device, &n->model.store, n->config, n->memory.region[CR_REGION_STORE]);
}

static void train(struct net *n) {
    CHECK_STATUS(net_train(n, STEPS, CLASSES), CR_OK);
}

static int both_used, recomputed; /* programs with both offload and recompute; with recompute alone */

static void check_bits(const char *const *overrides, int count, bool fuse) {
    struct net plain, less;
    int        offloaded = 0;
    CHECK_STATUS(open_step(&plain, overrides, count, fuse, 0, false, false, CR_OFFLOAD_BEST), CR_OK);
    if (!plain.exec) return net_close(&plain);
    const size_t whole = plain.program.region_bytes[CR_REGION_POOL];
    train(&plain);
    for (int percent = 85, turn = 0; percent >= 25; percent -= TEST_SANITIZED ? 60 : 20)
        for (int k = 0; k < 3; k++, turn++) { /* offload, both, recompute */
            const enum cr_offload_score score     = (enum cr_offload_score)(turn % CR_OFFLOAD_SCORES);
            const bool                  recompute = k > 0;
            CHECK_STATUS(
                open_step(&less, overrides, count, fuse, whole / 100 * (size_t)percent, recompute, k < 2, score),
                CR_OK);
            if (less.exec) {
                const struct cr_fit_report *r = &less.fit;
                CHECK(less.program.region_bytes[CR_REGION_POOL] == r->after && r->after <= r->before);
                CHECK_INT(count_kind(&less.program, CR_OP_prefetch), r->offloaded);
                CHECK_INT(count_kind(&less.program, CR_OP_offload), r->offloaded);
                CHECK(recompute || r->recomputed == 0);
                CHECK(k < 2 || (r->offloaded == 0 && (r->recomputed > 0) == (r->after < r->before)));
                if (percent == 85 && k < 2) CHECK(r->after <= whole / 100 * 85);
                offloaded += r->offloaded;
                both_used += r->offloaded && r->recomputed;
                recomputed += k == 2 && r->recomputed;
                CHECK_STATUS(cr_exec_poison(less.exec), CR_OK);
                train(&less);
                CHECK(memcmp(plain.memory.region[CR_REGION_STORE], less.memory.region[CR_REGION_STORE],
                             cr_param_store_bytes(&plain.model.store)) == 0);
            }
            net_close(&less);
        }
    CHECK(offloaded > 0);
    net_close(&plain);
}

#define NET(name, fuse, ...)                                                                                           \
    TEST(name) {                                                                                                       \
        static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",       \
                                                "model.arch=custom", __VA_ARGS__};                                     \
        check_bits(overrides, (int)CR_COUNT(overrides), fuse);                                                         \
    }
NET(basic_blocks, true, "model.block=basic", "model.depths=2,2", "model.widths=8,16", "model.stem=cifar",
    "model.shortcut=A")
NET(bottlenecks, true, "model.block=bottleneck", "model.depths=2,2", "model.widths=8,8", "model.stem=imagenet",
    "model.shortcut=B")
NET(bottlenecks_unfused, false, "model.block=bottleneck", "model.depths=2,2", "model.widths=8,8", "model.stem=imagenet",
    "model.shortcut=B")

TEST(offload_and_recompute_were_used) {
    CHECK(both_used > 0 && recomputed > 0);
}

/* ---- limits in the shipped networks, on a fictitious GPU ---- */

static cr_status open_shipped(struct bench_model *b, const char *file) {
    int classes;
    CR_TRY(cr_config_open(&b->config, formatted("%s/configs/%s", CR_SOURCE_DIR, file), NULL, 0));
    classes            = cr_config_is_small(b->config) ? 10 : 1000;
    const int64_t size = cr_config_is_small(b->config) ? 32 : 224;
    return cr_model_open(b->config, classes, size, size, &b->model);
}

/* As fast as an H200 in fp32, with copies of 55 GB/s. */
static struct cr_cost_model gpu_cost_model(void) {
    return (struct cr_cost_model){.alignment             = 256,
                                  .bytes_per_s           = 4.2e12,
                                  .flops_per_s           = 28e12,
                                  .to_host_bytes_per_s   = 47e9,
                                  .to_device_bytes_per_s = 47e9,
                                  .duplex_speedup        = 1.16,
                                  .copy_latency_s        = 10e-6};
}

/* No plan is smaller than the memory that one op needs at once. */
static size_t most_of_one_op(const struct cr_program *p) {
    size_t most = 0;
    for (int i = 0; i < p->ops; i++) {
        int    ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        size_t sum = 0;
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++) {
            bool again = p->tensor[ids[k]].region != CR_REGION_POOL;
            for (int j = 0; j < k; j++) again |= ids[j] == ids[k];
            if (!again) sum += p->tensor[ids[k]].bytes;
        }
        most = CR_MAX(most, sum);
    }
    return most;
}

static void check_fit(struct bench_model *b, const struct cr_cost_model *cost_model, size_t whole, int percent,
                      bool recompute) {
    OWNED(program)            p       = {0};
    struct cr_fit_report      r       = {0};
    struct cr_simulation      time    = {0};
    const size_t              limit   = whole / 100 * (size_t)percent;
    struct cr_compile_options options = {
        .fuse = true, .reuse = true, .pool_limit = limit, .recompute = recompute, .offload = true, .report = &r};
    CHECK_STATUS(cr_model_program(&b->model, b->config, CR_PROGRAM_STEP, b->config->train.batch, &p), CR_OK);
    CHECK_STATUS(cr_compile(&p, cost_model, &options), CR_OK); /* with all checks, before and after planning */
    if (p.region_bytes[CR_REGION_POOL] > CR_MAX(limit, most_of_one_op(&p) / 100 * 101))
        TEST_FAIL_("%d %%, recompute %d: pool %zu of %zu, limit %zu, an op %zu", percent, recompute,
                   p.region_bytes[CR_REGION_POOL], whole, limit, most_of_one_op(&p));
    CHECK(r.after == p.region_bytes[CR_REGION_POOL] && r.before == whole);
    CHECK(recompute || r.recomputed == 0);
    CHECK_INT(r.offloaded, count_kind(&p, CR_OP_offload));
    CHECK_STATUS(cr_program_predict(&p, cost_model, &time), CR_OK);
    CHECK_NEAR(time.total, r.seconds, 2e-4 * r.seconds); /* reused memory adds waits, which cost almost nothing */
    CHECK(r.seconds >= r.seconds_before * (1 - 1e-9));
}

TEST(shipped_networks_fit) {
    static const char *const   files[]    = {"demo.ini",     "cifar10-resnet20.ini", "cifar10-resnet20-he.ini",
                                             "resnet18.ini", "cifar10-resnet56.ini", "resnet50.ini"};
    const struct cr_cost_model cost_model = gpu_cost_model();
    struct cr_compile_options  all        = {.fuse = true, .reuse = true};
    for (size_t k = 0; k < (TEST_SANITIZED ? 1 : CR_COUNT(files)); k++) {
        OWNED(bench_model) b = {0};
        struct cr_program  p;
        const cr_status    status = open_shipped(&b, files[k]);
        CHECK_STATUS(status, CR_OK);
        if (status != CR_OK) continue;
        CHECK_STATUS(cr_model_program(&b.model, b.config, CR_PROGRAM_STEP, b.config->train.batch, &p), CR_OK);
        CHECK_STATUS(cr_compile(&p, &cost_model, &all), CR_OK);
        const size_t whole = p.region_bytes[CR_REGION_POOL];
        cr_program_free(&p);
        const int failed = test_failures_;
        for (int percent = 70; percent >= 50; percent -= 20)
            for (int recompute = 0; recompute < 2; recompute++)
                check_fit(&b, &cost_model, whole, percent, recompute == 1);
        if (test_failures_ > failed) printf("    in %s\n", files[k]);
    }
}

/* Offload and recompute together are never slower than each alone, and equal inputs give equal programs. Recomputation
 * alone keeps limits far below what the backward pass reads, because it repeats several ops for one tensor. */
static void check_both(struct bench_model *b, size_t limit) {
    const struct cr_cost_model cost_model = gpu_cost_model();
    struct cr_program          p[4];
    struct cr_fit_report       r[4] = {{0}};
    struct cr_text             a = {0}, c = {0};
    for (int k = 0; k < 4; k++) {
        const struct cr_compile_options o = {
            .fuse = true, .reuse = true, .pool_limit = limit, .recompute = k != 0, .report = &r[k], .offload = k != 1};
        CHECK_STATUS(cr_model_program(&b->model, b->config, CR_PROGRAM_STEP, 128, &p[k]), CR_OK);
        CHECK_STATUS(cr_compile(&p[k], &cost_model, &o), CR_OK);
    }
    CHECK(r[0].offloaded > 0 && !r[0].recomputed && r[1].recomputed > 0 && !r[1].offloaded && r[1].after <= limit);
    CHECK(r[2].seconds <= r[0].seconds * 1.0001 && r[2].seconds <= r[1].seconds * 1.0001);
    cr_program_print(&p[2], &a);
    cr_program_print(&p[3], &c);
    CHECK(a.data && c.data && strcmp(a.data, c.data) == 0 &&
          p[2].region_bytes[CR_REGION_POOL] == p[3].region_bytes[CR_REGION_POOL]);
    cr_text_free(&a);
    cr_text_free(&c);
    for (int k = 0; k < 4; k++) cr_program_free(&p[k]);
}

TEST(offload_with_recompute_is_no_slower) {
    OWNED(bench_model) b = {0};
    if (TEST_SANITIZED) SKIP("takes minutes with a sanitizer");
    CHECK_STATUS(open_shipped(&b, "resnet50.ini"), CR_OK);
    check_both(&b, (size_t)7 << 30);
    check_both(&b, (size_t)5 << 29);
}

/* ---- sessions ---- */

static cr_status open_session(struct cr_session *s, const struct cr_config **c, bool execute, const char *const *more,
                              int count) {
    const char *overrides[16] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu", "model.arch=custom",
                                 "model.depths=2,2",    "model.widths=8,16",  "model.stem=cifar", "train.threads=1"};
    for (int i = 0; i < count; i++) overrides[8 + i] = more[i];
    const struct cr_session_options o = {.train = true, .eval = true, .execute = execute};
    CR_TRY(cr_config_open(c, NULL, overrides, 8 + count));
    cr_status status = cr_session_open(*c, &o, s);
    if (status != CR_OK) cr_config_close(*c);
    return status;
}

TEST(impossible_limits_are_reported) {
    static const char *const no[] = {"train.batch=64", "memory.limit=1MiB", "memory.recompute=no"};
    struct cr_session        s;
    const struct cr_config  *c;
    CHECK_STATUS(open_session(&s, &c, true, no, 3), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "[memory] limit");
    CHECK_HAS(cr_error_message(), "more than the limit");
    CHECK_HAS(cr_error_message(), "train.batch");
    CHECK_HAS(cr_error_message(), "data.image_size");
    CHECK_HAS(cr_error_message(), "memory.recompute = yes");
    CHECK_STATUS(open_session(&s, &c, true, no, 2), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "with recomputation");
}

/* Evaluation images that are larger than training images: a limit that training just meets holds for both. Where the
 * evaluation batch is not given it is lowered, otherwise training uses less memory. */
TEST(evaluation_meets_the_limit) {
    const char             *more[] = {"train.batch=64", "data.eval_crop=96", "data.eval_resize=96", "memory.limit=1GiB",
                                      "train.eval_batch=16"};
    struct cr_session       s;
    const struct cr_config *c;
    char                    limit[48];
    size_t                  bytes = 0, whole = 0;
    /* practically no limit; a limit that needs recomputation; exactly the resulting pool; with a given batch */
    for (int round = 0; round < 4; round++) {
        REQUIRE_OK(open_session(&s, &c, round > 1, more, round < 3 ? 4 : 5));
        const struct cr_program *all[] = {&s.train[0], &s.eval};
        const size_t             train = cr_memory_need(s.device, &s.model.store, all, 1);
        if (round == 0)
            whole = s.train[0].region_bytes[CR_REGION_POOL];
        else
            /* the report is that of training, not of a rejected evaluation */
            CHECK(s.fit.before == whole && s.fit.after == s.train[0].region_bytes[CR_REGION_POOL]);
        if (round > 1) CHECK(cr_memory_need(s.device, &s.model.store, all, 2) <= bytes);
        if (round > 1) CHECK(round == 3 ? s.state.eval_batch == 16 : s.state.eval_batch < 64);
        if (round < 2) bytes = round == 0 ? train / 100 * 95 : train + 256;
        snprintf(limit, sizeof limit, "memory.limit=%zuB", bytes);
        more[3] = limit;
        cr_session_close(&s);
        cr_config_close(c);
    }
}

/* No training batch makes room for an evaluation that is too large by itself. */
TEST(batch_is_not_lowered_in_vain) {
    static const char *const more[] = {"train.batch=auto", "memory.limit=32MiB", "train.eval_batch=4096"};
    struct cr_session        s;
    const struct cr_config  *c;
    REQUIRE_OK(open_session(&s, &c, false, more, 3));
    CHECK(s.state.batch > 8);
    cr_session_close(&s);
    cr_config_close(c);
    CHECK_STATUS(open_session(&s, &c, true, more, 3), CR_ERR_CONFIG);
    CHECK_HAS(cr_error_message(), "train.eval_batch");
}

TEST(the_largest_batch_is_found) {
    static const struct {
        const char *limit, *slowdown;
    } cases[] = {{"memory.limit=32MiB", "train.batch_slowdown=0"},
                 {"memory.limit=32MiB", "train.batch_slowdown=20"},
                 {"memory.limit=100MiB", "train.batch_slowdown=0"}};
    int64_t found[3];
    for (int k = 0; k < 3; k++) {
        struct cr_session       s;
        const struct cr_config *c;
        const char             *more[] = {"train.batch=auto", cases[k].limit, cases[k].slowdown};
        size_t                  bytes;
        found[k] = 0;
        REQUIRE_OK(open_session(&s, &c, false, more, 3));
        found[k]                        = s.state.batch;
        const struct cr_program *all[2] = {&s.train[0], &s.eval};
        CHECK(s.state.batch >= 8 && s.state.batch % (s.state.batch > 64 ? 32 : 8) == 0 &&
              s.state.eval_batch <= s.state.batch);
        CHECK(cr_bytes_parse(strchr(cases[k].limit, '=') + 1, &bytes) &&
              cr_memory_need(s.device, &s.model.store, all, 2) <= bytes);
        cr_session_close(&s);
        cr_config_close(c);
        more[0] = formatted("train.batch=%lld", (long long)(found[k] + (found[k] >= 64 ? 32 : 8)));
        REQUIRE_OK(open_session(&s, &c, false, more, 3));
        const struct cr_program *next[1] = {&s.train[0]};
        const double             percent = k == 1 ? 20 : 0;
        CHECK(cr_memory_need(s.device, &s.model.store, next, 1) > bytes ||
              100 * (s.fit.seconds / s.fit.seconds_before - 1) > percent);
        cr_session_close(&s);
        cr_config_close(c);
    }
    CHECK(found[1] > found[0] && found[2] > found[0]);
}

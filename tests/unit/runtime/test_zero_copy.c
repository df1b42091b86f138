/* tests/unit/runtime/test_zero_copy.c: tensors that an op reads where they wait, in the host's memory: where that is
 * faster by hand reckoning it is taken, and where it is not it is not; a limit that only this reaches; which rows may;
 * that order is proved; the same bits as without, on a device whose lanes go as they like. */
#include "compiler/memory/offload.h"
#include "inspect/plan_print.h"
#include "model/model.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/streams_support.h"

enum { UNIT = 1 << 20, SMALL_OPS = 5 };

/* ---- a program by hand: copies of u units take u seconds; an op takes what the hand says: its `layer` is its number
 * ---- */

struct late {
    struct cr_program p;
    double            seconds[32];
    bool              reads; /* do rows read the host's memory? */
    int               x, a, small;
};

static cr_status late_cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    (void)p;
    *seconds = ((const struct late *)self)->seconds[op->layer];
    return CR_OK;
}

static bool late_reads(void *self, const struct cr_op *op, int slot) {
    (void)op, (void)slot;
    return ((const struct late *)self)->reads;
}

static struct cr_cost_model late_target(struct late *l) {
    return (struct cr_cost_model){.self                  = l,
                                  .alignment             = 256,
                                  .cost                  = late_cost,
                                  .reads_host            = late_reads,
                                  .to_host_bytes_per_s   = UNIT,
                                  .to_device_bytes_per_s = UNIT};
}

static int late_tensor(struct late *l, const char *name, int units) {
    return cr_tensor_add(&l->p, name, CR_U8, CR_REGION_POOL, 1, 1, units, UNIT);
}

static void late_op(struct late *l, double seconds, int read0, int read1, int write) {
    char name[16];
    snprintf(name, sizeof name, "op%d", l->p.ops);
    struct cr_op op = cr_op_make(CR_OP_dense_dgrad, cr_program_layer(&l->p, name)); /* two inputs, nothing in place */
    op.in[0]        = read0;
    op.in[1]        = read1;
    op.out[0]       = write;
    l->seconds[l->p.ops] = seconds;
    cr_emit(&l->p, &op, "");
}

static void late_small(struct late *l, int read) {
    char name[16];
    snprintf(name, sizeof name, "s%d", l->p.ops);
    const int fresh = cr_tensor_add(&l->p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 256);
    late_op(l, 1, read, l->small, fresh);
    l->small = fresh;
}

/* Op 0 writes a (4 units); five small ones; op 6 writes c (4 units), op 7 reads it; `between` small ones; then one op
 * reads a and writes `last` units, which op 9 (and so many) reads. Each op takes 1 s. */
static void late_open(struct late *l, int between, int last) {
    *l = (struct late){.reads = true};
    cr_program_init(&l->p, "late", NULL);
    l->x = l->small = cr_tensor_add(&l->p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 1, 256);
    l->a            = late_tensor(l, "a", 4);
    const int c = late_tensor(l, "c", 4), d = late_tensor(l, "d", last);
    late_op(l, 1, l->x, l->x, l->a);
    for (int i = 0; i < SMALL_OPS; i++) late_small(l, l->x);
    late_op(l, 1, l->x, l->x, c);
    late_small(l, c);
    for (int i = 0; i < between; i++) late_small(l, l->x);
    late_op(l, 1, l->a, l->small, d);
    late_small(l, d);
    l->p.tensor[l->small].keep = true;
}

static int reader_of(const struct cr_program *p, int tensor) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_dense_dgrad && p->op[i].in[0] == tensor) return i;
    return CR_NONE;
}

/* Six units: a is away while c lives, to 8 s; there is no room for it earlier, so its copy back ends at 12 s and the op
 * at 13 s. Reading it takes the op 4 s instead of 1: 12 s. With the op behind it: 14 s against 13. */
static void it_is_taken_where_it_is_faster(void) {
    for (int reads = 0; reads < 2; reads++) {
        struct late              l;
        struct cr_offload_report r;
        struct cr_simulation     time;
        late_open(&l, 0, 1);
        l.reads                     = reads;
        struct cr_cost_model target = late_target(&l);
        CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK(r.tensors == 1 && r.mapped == reads);
        CHECK_NEAR(r.seconds_before, 10, 1e-9);
        CHECK_NEAR(r.seconds, reads ? 13 : 14, 1e-9);
        const int host = cr_tensor_find(&l.p, "a.host");
        CHECK((cr_tensor_find(&l.p, "a'") == CR_NONE) == reads && (reader_of(&l.p, host) != CR_NONE) == reads);
        CHECK(plan_of(&l.p) <= 6 * UNIT);
        CHECK_STATUS(cr_program_predict(&l.p, &target, &time), CR_OK);
        CHECK_NEAR(time.total, r.seconds, 1e-9); /* what was predicted is what the finished list takes */
        cr_program_free(&l.p);
    }
}

/* The same where loads go at 4/5 of a copy's rate, 5 s: equal, and then a copy; at 8/9, 4.5 s, still faster. */
static void slower_loads_count(void) {
    for (int k = 0; k < 2; k++) {
        struct late              l;
        struct cr_offload_report r;
        late_open(&l, 0, 1);
        struct cr_cost_model target = late_target(&l);
        target.mapped_read_slowdown = k ? 1.125 : 1.25;
        CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK_INT(r.mapped, k);
        CHECK_NEAR(r.seconds, k ? 13.5 : 14, 1e-9);
        cr_program_free(&l.p);
    }
}

/* Ten more small ops: the copy back hides behind them, and reading in place would not. Nor do the paper's choices know
 * of it. */
static void it_is_not_taken_where_copies_hide(void) {
    struct late              l;
    struct cr_offload_report r;
    late_open(&l, 10, 1);
    struct cr_cost_model target = late_target(&l);
    CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK(r.tensors == 1 && r.mapped == 0);
    CHECK_NEAR(r.seconds, r.seconds_before, 1e-9);
    cr_program_free(&l.p);
    late_open(&l, 0, 1);
    target = late_target(&l);
    CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_AOA, &r), CR_OK);
    CHECK(r.tensors == 1 && r.mapped == 0);
    cr_program_free(&l.p);
}

/* The op that reads a writes four units of its own: with a beside them it is above the limit. cr_pass_fit finds that
 * too, and only if it may. */
static void it_reaches_limits_that_copies_do_not(void) {
    for (int reads = 0; reads < 2; reads++) {
        struct late              l;
        struct cr_offload_report r;
        late_open(&l, 2, 4);
        l.reads                     = reads;
        struct cr_cost_model target = late_target(&l);
        CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK(r.mapped == reads && (r.after <= 6 * UNIT) == reads);
        CHECK((plan_of(&l.p) <= 6 * UNIT) == reads);
        cr_program_free(&l.p);
    }
    for (int may = 0; may < 2; may++) {
        struct late                     l;
        struct cr_fit_report            r;
        const struct cr_compile_options o = {
            .reuse = true, .pool_limit = 6 * UNIT, .recompute = true, .offload = CR_SWAP_USE_BEST, .zero_copy = may};
        late_open(&l, 2, 4);
        struct cr_cost_model target = late_target(&l);
        CHECK_STATUS(cr_pass_fit(&l.p, &target, &o, &r), CR_OK);
        CHECK(r.mapped == may && (r.after <= 6 * UNIT) == may);
        cr_program_free(&l.p);
    }
}

/* The copy to the host must have ended: without the waits for it, nothing says so. */
static void reading_too_early_is_found(void) {
    struct late              l;
    struct cr_offload_report r;
    int                      waits = 0;
    late_open(&l, 0, 1);
    struct cr_cost_model target = late_target(&l);
    CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    plan_of(&l.p);
    for (int i = 0; i < l.p.ops; i++) {
        if (l.p.op[i].kind != CR_OP_barrier) continue;
        l.p.op[i].wait[0] = CR_NONE;
        waits++;
    }
    CHECK_INT(waits, 1);
    CHECK_STATUS(cr_waits_check(&l.p), CR_ERR_DEVICE);
    for (int i = 0; i < l.p.ops; i++) /* without the sync the reader itself waits */
        if (l.p.op[i].kind == CR_OP_barrier) l.p.op[i].in[CR_IN_barrier_x] = CR_NONE;
    CHECK_STATUS(cr_pass_insert_waits(&l.p), CR_OK);
    const int reader = reader_of(&l.p, cr_tensor_find(&l.p, "a.host"));
    REQUIRE(reader != CR_NONE);
    CHECK(l.p.op[reader].wait[0] >= 0 && l.p.op[l.p.op[reader].wait[0]].kind == CR_OP_offload);
    cr_program_free(&l.p);
}

static void it_is_said_where_a_tensor_lives(void) {
    struct late              l;
    struct cr_offload_report r;
    struct cr_config         config;
    struct cr_text           text = {0};
    late_open(&l, 0, 1);
    struct cr_cost_model target = late_target(&l);
    CHECK_STATUS(cr_pass_offload(&l.p, &target, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    plan_of(&l.p);
    CHECK_STATUS(cr_plan_print_lifetimes(&l.p, &target, &text), CR_OK);
    CHECK_HAS(text.data, "mapped          4.00  0-"); /* a, four units */
    CHECK_HAS(text.data, "offloaded 0.0, mapped reads 4.0");
    cr_text_free(&text);
    REQUIRE_OK(cr_config_open(&config, NULL, NULL, 0));
    cr_plan_print_json(&l.p, &config, "", 1, 0, 0, &text);
    CHECK_HAS(text.data, "\"offloaded\": 0, \"mapped_reads\": 1");
    cr_text_free(&text);
    cr_config_close(&config);
    cr_program_free(&l.p);
}

/* ---- rows ---- */

/* A row that does not say that it reads the host's memory is not chosen for an op that does; on the CPU it is one
 * memory. */
static void rows_say_what_they_read(void) {
    struct cr_device              *device;
    const struct cr_device_options options = {.threads = 1};
    struct cr_program              p;
    int                            index;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
    cr_program_init(&p, "rows", NULL);
    struct cr_op op             = cr_op_make(CR_OP_relu, CR_NONE);
    op.in[CR_IN_relu_x]         = cr_tensor_add(&p, "x", CR_F32, CR_REGION_HOST, 1, 2, 2, 8);
    op.out[CR_OUT_relu_y]       = cr_tensor_add(&p, "y", CR_F32, CR_REGION_POOL, 1, 2, 2, 8);
    const struct cr_kernel *row = cr_kernel_find(device, &p, &op, 0, &index);
    REQUIRE(row != NULL);
    CHECK(cr_kernel_reads_host(device, row, CR_IN_relu_x));
    device->caps.host_memory = false;
    CHECK(cr_kernel_find(device, &p, &op, 0, &index) == NULL);
    struct cr_kernel says = *row;
    CHECK(!cr_kernel_accepts(device, &says, &p, &op));
    says.host_slots = 1u << CR_IN_relu_x;
    CHECK(cr_kernel_accepts(device, &says, &p, &op));
    cr_program_free(&p);
    cr_device_close(device);
}

/* As tests/gpu/test_cuda_delays.c does it on a GPU: passes over tensors read there, convolutions do not. */
static void on_a_gpu_that_is_not_there(void) {
    static const char *const        overrides[] = {"model.arch=resnet20", "data.kind=synthetic", "data.image_size=32",
                                                   "train.device=cpu"};
    const struct cr_device_options  options     = {.deterministic = true};
    const struct cr_compile_options select      = {.reuse = true, .until = "select"};
    struct cr_device               *device;
    struct cr_config                config;
    struct cr_model                 model;
    struct cr_program               p;
    struct cr_offload_report        r;
    int                             kinds[CR_OP_COUNT] = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, CR_COUNT(overrides)));
    REQUIRE_OK(cr_model_open(&config, 10, 32, 32, &model));
    REQUIRE_OK(cr_gpu_open_from_list(cr_gpu_find("h200"), &options, "", &device));
    struct cr_cost_model target = cr_device_cost_model(device);
    target.copy_latency_s       = 1e-3;
    REQUIRE_OK(cr_model_program(&model, &config, CR_PROGRAM_STEP, 32, &p));
    REQUIRE_OK(cr_compile(&p, &target, &select));
    CHECK_STATUS(cr_pass_offload(&p, &target, SIZE_MAX, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK_STATUS(cr_pass_offload(&p, &target, r.before / 10 * 7, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK_STATUS(hand_finish(&p, &target), CR_OK);
    for (int i = 0; i < p.ops; i++)
        for (int s = 0; s < CR_OP_IN_MAX; s++) kinds[p.op[i].kind] += cr_plan_mapped_reads(&p, &p.op[i], s) != CR_NONE;
    printf("    %d of %d tensors are read there: by bn_grad_sums %d, bn_grad_apply %d, relu_grad %d\n", r.mapped,
           r.tensors, kinds[CR_OP_bn_grad_sums], kinds[CR_OP_bn_grad_apply], kinds[CR_OP_relu_grad]);
    CHECK(r.mapped > 0 && r.mapped < r.tensors && kinds[CR_OP_bn_grad_sums] > 0);
    CHECK(kinds[CR_OP_conv_wgrad] + kinds[CR_OP_conv] + kinds[CR_OP_conv_dgrad] == 0);
    cr_program_free(&p);
    cr_device_close(device);
    cr_model_close(&model);
    cr_config_close(&config);
}

/* ---- bits ---- */

enum { BATCH = 3, SIZE = 32, CLASSES = 10, STEPS = 4 };

static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                        "model.arch=custom",   "model.depths=2,2",   "model.widths=4,8",
                                        "model.stem=cifar",    "model.block=basic"};

struct run {
    struct cr_config     config;
    struct cr_model      model;
    struct cr_device    *device;
    struct cr_program    program;
    struct cr_memory     memory;
    struct cr_exec      *exec;
    struct cr_fit_report fit;
    size_t               pool;
};

/* Which rows would on a GPU: passes over tensors. */
static bool as_on_a_gpu(void *self, const struct cr_op *op, int slot) {
    (void)self, (void)slot;
    return op->kind == CR_OP_bn_grad_sums || op->kind == CR_OP_bn_grad_apply || op->kind == CR_OP_relu_grad ||
           op->kind == CR_OP_bn_apply;
}

/* limit 0: none. A copy takes so long to begin that reading in place is always faster, where it is possible. */
static cr_status run_open(struct run *r, bool fuse, size_t limit, bool all_rows, uint64_t seed) {
    const struct cr_device_options  options = {.threads = 1, .deterministic = true};
    const struct cr_compile_options how     = {.fuse       = fuse,
                                               .reuse      = true,
                                               .pool_limit = limit,
                                               .offload    = CR_SWAP_USE_BEST,
                                               .zero_copy  = true,
                                               .report     = &r->fit};
    *r                                      = (struct run){0};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(&r->config, CLASSES, SIZE, SIZE, &r->model));
    CR_TRY(streams_open(&options, seed, &r->device));
    struct cr_cost_model target = cr_device_cost_model(r->device);
    target.copy_latency_s       = 1e-3;
    if (!all_rows) target.reads_host = as_on_a_gpu;
    CR_TRY(cr_model_program(&r->model, &r->config, CR_PROGRAM_STEP, BATCH, &r->program));
    CR_TRY(cr_compile(&r->program, &target, &how));
    r->pool = r->program.region_bytes[CR_REGION_POOL];
    return exec_begin(r->device, &r->model, &r->config, &r->program, &r->memory, &r->exec);
}

static void run_close(struct run *r) {
    cr_exec_close(r->exec);
    if (r->memory.device) cr_memory_close(&r->memory);
    cr_program_free(&r->program);
    streams_close();
    cr_model_close(&r->model);
    cr_config_close(&r->config);
}

static cr_status train(struct run *r, unsigned char **store) {
    static const struct cr_step_block block = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f, .clip_norm = 1};
    static uint8_t                    pixels[BATCH * SIZE * SIZE * 3];
    int32_t                           labels[BATCH], boxes[BATCH * 4] = {0};
    for (int step = 0; step < STEPS; step++) {
        struct cr_rng rng = cr_rng_make(3, CR_RNG_TEST, (uint64_t)step, 7);
        for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)cr_rng_below(&rng, 256);
        for (int i = 0; i < BATCH; i++) labels[i] = (int32_t)cr_rng_below(&rng, CLASSES);
        CR_TRY(cr_exec_feed(r->exec, pixels, labels, boxes));
        CR_TRY(cr_exec_run(r->exec, &block));
    }
    CR_TRY(r->device->backend->sync(r->device));
    CR_ALLOC(*store, r->memory.bytes[CR_REGION_STORE]);
    memcpy(*store, r->memory.region[CR_REGION_STORE], r->memory.bytes[CR_REGION_STORE]);
    return CR_OK;
}

/* Kinds of ops that read there. */
static void check_readers(const struct cr_program *p, bool all_rows, int want) {
    int found = 0;
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < CR_OP_IN_MAX; s++) {
            if (cr_plan_mapped_reads(p, &p->op[i], s) == CR_NONE) continue;
            CHECK(all_rows || as_on_a_gpu(NULL, &p->op[i], s));
            found++;
        }
    CHECK(found >= want && (want > 0) == (found > 0));
}

static void the_bits_are_the_same(void) {
    for (int k = 0; k < 4; k++) {
        const bool     fuse = k & 1, all_rows = k & 2;
        struct run     r;
        unsigned char *plain = NULL, *with = NULL;
        REQUIRE_OK(run_open(&r, fuse, 0, true, 1));
        REQUIRE_OK(train(&r, &plain));
        const size_t pool = r.pool, bytes = r.memory.bytes[CR_REGION_STORE];
        run_close(&r);
        for (uint64_t seed = 2; seed < 5; seed++) {
            REQUIRE_OK(run_open(&r, fuse, pool / 10 * (seed + 4), all_rows, seed));
            check_readers(&r.program, all_rows, r.fit.mapped);
            if (seed == 2)
                printf("    %s, %s: %d tensors wait, %d are read there\n", fuse ? "fused" : "plain",
                       all_rows ? "any row" : "passes", r.fit.offloaded, r.fit.mapped);
            CHECK(r.fit.mapped > 0 || seed > 2);
            REQUIRE_OK(cr_exec_poison(r.exec));
            REQUIRE_OK(cr_exec_jitter(r.exec, seed));
            REQUIRE_OK(train(&r, &with));
            CHECK(memcmp(plain, with, bytes) == 0);
            cr_free(with);
            run_close(&r);
        }
        cr_free(plain);
    }
}

TESTS(CASE(it_is_taken_where_it_is_faster), CASE(slower_loads_count), CASE(it_is_not_taken_where_copies_hide),
      CASE(it_reaches_limits_that_copies_do_not), CASE(reading_too_early_is_found),
      CASE(it_is_said_where_a_tensor_lives), CASE(rows_say_what_they_read), CASE(on_a_gpu_that_is_not_there),
      CASE(the_bits_are_the_same))

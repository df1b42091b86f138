/* tests/unit/runtime/test_zero_copy.c: tensors that an op reads directly from host memory (mapped reads). They are used
 * where they are faster by hand calculation, and only there; a limit that only mapped reads meet; the kernels that
 * support them; checks of the order; bitwise identical results on a device with a random stream order. */
#include "compiler/memory/offload.h"
#include "inspect/plan_print.h"
#include "model/model.h"
#include "tests/harness/compiler_support.h"
#include "tests/harness/executor_poison.h"
#include "tests/harness/offload_support.h"
#include "tests/harness/streams_support.h"
#include "tests/harness/timed_program.h"

enum { SMALL_OPS = 5 };

/* ---- a program by hand ---- */

struct late {
    struct hand hand;
    bool        reads; /* do kernels read host memory? */
    int         x, a, small;
};

static struct cr_kernel_traits late_traits(void *self, const struct cr_op *op) {
    (void)op;
    return (struct cr_kernel_traits){.host_slots = ((const struct late *)self)->reads ? ~0u : 0};
}

static struct cr_cost_model late_cost_model(struct late *l) {
    struct cr_cost_model cost_model = hand_cost_model(&l->hand);
    cost_model.device.self          = l;
    cost_model.device.traits        = late_traits;
    cost_model.mapped_reads         = true;
    return cost_model;
}

static void late_small(struct late *l, int read) {
    char name[16];
    snprintf(name, sizeof name, "s%d", l->hand.p.ops);
    const int fresh = cr_tensor_add(&l->hand.p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 256);
    hand_op(&l->hand, 1, read, l->small, fresh);
    l->small = fresh;
}

/* Op 0 writes a (4 units); five small ones; op 6 writes c (4 units), op 7 reads c; `between` small ones; then one op
 * reads a and writes `last` units, which op 9 + `between` reads. Each op takes 1 s. */
static void late_open(struct late *l, int between, int last) {
    *l = (struct late){.reads = true};
    cr_program_init(&l->hand.p, "late", NULL);
    l->x = l->small = cr_tensor_add(&l->hand.p, "x", CR_U8, CR_REGION_INPUT, 1, 1, 1, 256);
    l->a            = hand_tensor(&l->hand, "a", 4);
    const int c = hand_tensor(&l->hand, "c", 4), d = hand_tensor(&l->hand, "d", last);
    hand_op(&l->hand, 1, l->x, l->x, l->a);
    for (int i = 0; i < SMALL_OPS; i++) late_small(l, l->x);
    hand_op(&l->hand, 1, l->x, l->x, c);
    late_small(l, c);
    for (int i = 0; i < between; i++) late_small(l, l->x);
    hand_op(&l->hand, 1, l->a, l->small, d);
    late_small(l, d);
    l->hand.p.tensor[l->small].keep = true;
}

static int reader_of(const struct cr_program *p, int tensor) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_dense_dgrad && p->op[i].in[0] == tensor) return i;
    return CR_NONE;
}

/* A limit of six units: a is offloaded while c is live, until 8 s; there is no room for it earlier, so its copy back
 * ends at 12 s and the op at 13 s. A mapped read takes the op 4 s instead of 1: 12 s. With the op after it: 14 s
 * against 13. */
static void mapped_read_is_chosen_where_faster(void) {
    for (int reads = 0; reads < 2; reads++) {
        struct late              l;
        struct cr_offload_report r;
        struct cr_simulation     time;
        late_open(&l, 0, 1);
        l.reads                         = reads;
        struct cr_cost_model cost_model = late_cost_model(&l);
        CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK(r.tensors == 1 && r.mapped == reads);
        CHECK_NEAR(r.seconds_before, 10, 1e-9);
        CHECK_NEAR(r.seconds, reads ? 13 : 14, 1e-9);
        const int host = cr_tensor_find(&l.hand.p, "a.host");
        CHECK((cr_tensor_find(&l.hand.p, "a'") == CR_NONE) == reads &&
              (reader_of(&l.hand.p, host) != CR_NONE) == reads);
        CHECK(plan_of(&l.hand.p) <= 6 * UNIT);
        CHECK_STATUS(cr_program_predict(&l.hand.p, &cost_model, &time), CR_OK);
        CHECK_NEAR(time.total, r.seconds, 1e-9); /* the predicted time is the time of the finished list */
        cr_program_free(&l.hand.p);
    }
}

/* The same with mapped reads at 4/5 of the rate of a copy, 5 s: equal times, and a copy is chosen; at 8/9, 4.5 s, still
 * faster. */
static void slower_loads_are_counted(void) {
    for (int k = 0; k < 2; k++) {
        struct late              l;
        struct cr_offload_report r;
        late_open(&l, 0, 1);
        struct cr_cost_model cost_model = late_cost_model(&l);
        cost_model.mapped_read_slowdown = k ? 1.125 : 1.25;
        CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK_INT(r.mapped, k);
        CHECK_NEAR(r.seconds, k ? 13.5 : 14, 1e-9);
        cr_program_free(&l.hand.p);
    }
}

/* Ten more small ops: the copy back hides behind them, and a mapped read would not. The scores of the paper do not know
 * mapped reads either. */
static void mapped_read_is_not_chosen_where_copies_hide(void) {
    struct late              l;
    struct cr_offload_report r;
    late_open(&l, 10, 1);
    struct cr_cost_model cost_model = late_cost_model(&l);
    CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    CHECK(r.tensors == 1 && r.mapped == 0);
    CHECK_NEAR(r.seconds, r.seconds_before, 1e-9);
    cr_program_free(&l.hand.p);
    late_open(&l, 0, 1);
    cost_model = late_cost_model(&l);
    CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_AOA, &r), CR_OK);
    CHECK(r.tensors == 1 && r.mapped == 0);
    cr_program_free(&l.hand.p);
}

/* The op that reads a writes four units itself: with a next to them it exceeds the limit. cr_pass_fit finds the mapped
 * read too, and only if it is allowed. */
static void mapped_read_meets_limits_that_copies_miss(void) {
    for (int reads = 0; reads < 2; reads++) {
        struct late              l;
        struct cr_offload_report r;
        late_open(&l, 2, 4);
        l.reads                         = reads;
        struct cr_cost_model cost_model = late_cost_model(&l);
        CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
        CHECK(r.mapped == reads && (r.after <= 6 * UNIT) == reads);
        CHECK((plan_of(&l.hand.p) <= 6 * UNIT) == reads);
        cr_program_free(&l.hand.p);
    }
    for (int may = 0; may < 2; may++) {
        struct late                     l;
        struct cr_fit_report            r;
        const struct cr_compile_options o = {
            .reuse = true, .pool_limit = 6 * UNIT, .recompute = true, .offload = true, .zero_copy = may};
        late_open(&l, 2, 4);
        struct cr_cost_model cost_model = late_cost_model(&l);
        CHECK_STATUS(cr_pass_fit(&l.hand.p, &cost_model, &o, &r), CR_OK);
        CHECK(r.mapped == may && (r.after <= 6 * UNIT) == may);
        cr_program_free(&l.hand.p);
    }
}

/* The copy to the host must have ended: without the waits for it, no order is guaranteed. */
static void early_read_is_detected(void) {
    struct late              l;
    struct cr_offload_report r;
    int                      waits = 0;
    late_open(&l, 0, 1);
    struct cr_cost_model cost_model = late_cost_model(&l);
    CHECK_STATUS(cr_pass_offload(&l.hand.p, &cost_model, 6 * UNIT, CR_OFFLOAD_BEST, &r), CR_OK);
    plan_of(&l.hand.p);
    for (int i = 0; i < l.hand.p.ops; i++) {
        if (l.hand.p.op[i].kind != CR_OP_barrier) continue;
        l.hand.p.op[i].wait[0] = CR_NONE;
        waits++;
    }
    CHECK_INT(waits, 1);
    CHECK_STATUS(cr_waits_check(&l.hand.p), CR_ERR_DEVICE);
    for (int i = 0; i < l.hand.p.ops; i++) /* without the barrier the reader itself waits */
        if (l.hand.p.op[i].kind == CR_OP_barrier) l.hand.p.op[i].in[CR_IN_barrier_x] = CR_NONE;
    CHECK_STATUS(cr_pass_insert_waits(&l.hand.p), CR_OK);
    const int reader = reader_of(&l.hand.p, cr_tensor_find(&l.hand.p, "a.host"));
    REQUIRE(reader != CR_NONE);
    CHECK(l.hand.p.op[reader].wait[0] >= 0 && l.hand.p.op[l.hand.p.op[reader].wait[0]].kind == CR_OP_offload);
    cr_program_free(&l.hand.p);
}

/* ---- kernels ---- */

/* A kernel without support for mapped reads is not selected for an op that needs them; on the CPU both memories are
 * one. */
static void kernels_declare_mapped_reads(void) {
    struct cr_device              *device;
    const struct cr_device_options options = {.threads = 1};
    struct cr_program              p;
    int                            index;
    REQUIRE_OK(cr_device_open(CR_DEVICE_CPU, &options, &device));
    cr_program_init(&p, "rows", NULL);
    struct cr_op op                = cr_op_make(CR_OP_relu, CR_NONE);
    op.in[CR_IN_relu_x]            = cr_tensor_add(&p, "x", CR_F32, CR_REGION_HOST, 1, 2, 2, 8);
    op.out[CR_OUT_relu_y]          = cr_tensor_add(&p, "y", CR_F32, CR_REGION_POOL, 1, 2, 2, 8);
    const struct cr_kernel *kernel = cr_kernel_find(device, &p, &op, 0, &index);
    REQUIRE(kernel != NULL);
    CHECK(cr_kernel_traits(device, kernel).host_slots >> CR_IN_relu_x & 1);
    device->caps.host_memory = false;
    CHECK(cr_kernel_find(device, &p, &op, 0, &index) == NULL);
    struct cr_kernel says = *kernel;
    CHECK(!cr_kernel_accepts(device, &says, &p, &op));
    says.traits.host_slots = 1u << CR_IN_relu_x;
    CHECK(cr_kernel_accepts(device, &says, &p, &op));
    cr_program_free(&p);
    cr_device_close(device);
}

/* ---- bitwise identical results ---- */

enum { BATCH = 3, SIZE = 32, CLASSES = 10, STEPS = 4 };

static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                        "model.arch=custom",   "model.depths=2,2",   "model.widths=4,8",
                                        "model.stem=cifar",    "model.block=basic"};

struct run {
    const struct cr_config *config;
    struct cr_model         model;
    struct cr_device       *device;
    struct cr_program       program;
    struct cr_memory        memory;
    struct cr_exec         *exec;
    struct cr_fit_report    fit;
    size_t                  pool;
};

/* Kernels that would support it on a GPU: elementwise ops. */
static struct cr_kernel_traits as_on_a_gpu(void *self, const struct cr_op *op) {
    const bool reads = op->kind == CR_OP_bn_grad_sums || op->kind == CR_OP_bn_grad_apply ||
                       op->kind == CR_OP_relu_grad || op->kind == CR_OP_bn_apply;
    (void)self;
    return (struct cr_kernel_traits){.host_slots = reads ? ~0u : 0};
}

/* limit 0: none. A copy has such a high latency that a mapped read is always faster, where it is possible. */
static cr_status run_open(struct run *r, bool fuse, size_t limit, bool all_rows, uint64_t seed) {
    const struct cr_device_options  options = {.threads = 1, .deterministic = true};
    const struct cr_compile_options how     = {
            .fuse = fuse, .reuse = true, .pool_limit = limit, .offload = true, .zero_copy = true, .report = &r->fit};
    *r = (struct run){0};
    CR_TRY(cr_config_open(&r->config, NULL, overrides, CR_COUNT(overrides)));
    CR_TRY(cr_model_open(r->config, CLASSES, SIZE, SIZE, &r->model));
    CR_TRY(streams_open(&options, seed, &r->device));
    struct cr_cost_model cost_model = cr_device_cost_model(r->device);
    cost_model.copy_latency_s       = 1e-3;
    if (!all_rows) cost_model.device.traits = as_on_a_gpu;
    CR_TRY(cr_model_program(&r->model, r->config, CR_PROGRAM_STEP, BATCH, &r->program));
    CR_TRY(cr_compile(&r->program, &cost_model, &how));
    r->pool = r->program.region_bytes[CR_REGION_POOL];
    return exec_begin(r->device, &r->model, r->config, &r->program, &r->memory, &r->exec);
}

static void run_close(struct run *r) {
    cr_exec_close(r->exec);
    if (r->memory.device) cr_memory_close(&r->memory);
    cr_program_free(&r->program);
    streams_close();
    cr_model_close(&r->model);
    cr_config_close(r->config);
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

/* Op kinds with mapped reads. */
static void check_readers(const struct cr_program *p, bool all_rows, int want) {
    int found = 0;
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < CR_OP_IN_MAX; s++) {
            if (cr_plan_mapped_reads(p, &p->op[i], s) == CR_NONE) continue;
            CHECK(all_rows || as_on_a_gpu(NULL, &p->op[i]).host_slots >> s & 1);
            found++;
        }
    CHECK(found >= want && (want > 0) == (found > 0));
}

static void mapped_reads_are_bitwise_identical(void) {
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
                printf("    %s, %s: %d tensors offloaded, %d with mapped reads\n", fuse ? "fused" : "plain",
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

TESTS(CASE(mapped_read_is_chosen_where_faster), CASE(slower_loads_are_counted),
      CASE(mapped_read_is_not_chosen_where_copies_hide), CASE(mapped_read_meets_limits_that_copies_miss),
      CASE(early_read_is_detected), CASE(kernels_declare_mapped_reads), CASE(mapped_reads_are_bitwise_identical))

/* tests/unit/compiler/test_grad_buckets.c: programs of several ranks. Each gradient is summed exactly once, after its
 * last writer and before its use, on its own stream; checks refuse programs that violate this rule. All shipped
 * configs, with and without SyncBN. */
#include "tests/harness/compiler_support.h"
#include "tests/harness/offline_gpu.h"

static const size_t MIB = 1 << 20;

struct wanted {
    const char          *config; /* NULL: the defaults */
    int                  ranks;
    bool                 sync_bn, fuse;
    enum cr_dtype        real, wire;
    enum cr_program_kind kind;
    int64_t              batch;
    size_t               bucket, limit;
    /* GPU whose kernels are asked, where this is possible; NULL: a cost model that accepts every op */
    const char *gpu;
    const char *until;
};

struct made {
    struct bench_model b;
    struct cr_device  *device;
    struct cr_program  p;
};

static void drop(struct made *m) {
    cr_program_free(&m->p);
    bench_close(&m->b);
    cr_device_close(m->device);
    *m = (struct made){0};
}
OWNABLE(made, struct made, drop(x))

/* As the NCCL kernel: gradients that are sent in 16 bits are first rounded into scratch memory. */
static struct cr_cost_model plain_cost_model;
static cr_status select_with_scratch(void *self, const struct cr_program *p, struct cr_op *op, size_t *workspace) {
    CR_TRY(plain_cost_model.select(self, p, op, workspace));
    if (op->kind == CR_OP_all_reduce && cr_dtype_bytes(op->attr.reduce.wire) == 2)
        *workspace = (size_t)cr_tensor_elems(&p->tensor[op->out[CR_OUT_all_reduce_y]]) * 2;
    return CR_OK;
}

/* cr_compile checks: each gradient once, order, memory plan. */
static bool make(const struct wanted *w, struct made *m) {
    struct cr_cost_model cost_model = greedy_cost_model(256);
    const char          *sync[]     = {w->sync_bn ? "model.sync_bn=yes" : "model.sync_bn=no"};
    *m                              = (struct made){0};
    const char *const path          = formatted("%s/configs/%s.ini", CR_SOURCE_DIR, w->config ? w->config : "");
    cr_status         status        = cr_config_open(&m->b.config, w->config ? path : NULL, sync, 1);
    const int64_t     size          = status == CR_OK && cr_config_is_small(m->b.config) ? 32 : 224;
    if (status == CR_OK) status = cr_model_open(m->b.config, 10, size, size, &m->b.model);
    if (status == CR_OK) {
        cr_model_set_real(&m->b.model, w->real);
        m->b.model.ranks = w->ranks;
    }
    if (status == CR_OK && w->gpu) {
        m->device  = open_gpu(w->gpu, true);
        cost_model = cr_device_cost_model(m->device);
    }
    plain_cost_model               = cost_model;
    cost_model.select              = select_with_scratch;
    cost_model.to_host_bytes_per_s = cost_model.to_device_bytes_per_s = w->gpu ? cost_model.to_host_bytes_per_s : 1e10;
    if (status == CR_OK) status = cr_model_program(&m->b.model, m->b.config, w->kind, w->batch, &m->p);
    const struct cr_compile_options options = {.fuse         = w->fuse,
                                               .reuse        = true,
                                               .recompute    = true,
                                               .pool_limit   = w->limit,
                                               .until        = w->until,
                                               .bucket_bytes = w->ranks > 1 ? w->bucket : 0,
                                               .wire         = w->wire};
    if (status == CR_OK) status = cr_compile(&m->p, &cost_model, &options);
    if (status == CR_OK) return true;
    TEST_FAIL_("%s, %d ranks: %s", w->config ? w->config : "defaults", w->ranks, cr_error_message());
    return false;
}

static bool is_bucket(const struct cr_program *p, int op) {
    return p->op[op].kind == CR_OP_all_reduce && strncmp(p->tensor[p->op[op].out[0]].name, "grad.bucket", 11) == 0;
}
static int count_buckets(const struct cr_program *p) {
    int n = 0;
    for (int i = 0; i < p->ops; i++) n += is_bucket(p, i);
    return n;
}

static bool has_gpus(void) {
    struct cr_device *device = open_gpu("h200", true);
    cr_device_close(device);
    return device != NULL;
}

TEST(shipped_configs_with_ranks) {
    static const char *const configs[] = {"demo",
                                          "cifar10-resnet20",
                                          "cifar10-resnet20-he",
                                          "cifar10-resnet56",
                                          "cifar100-resnet56",
                                          "finetune-folder",
                                          "resnet18",
                                          "resnet50",
                                          "resnet50-lars",
                                          "resnet50-modern"};
    static const struct {
        enum cr_dtype real;
        const char   *gpu;
        bool          fuse;
    } variants[]       = {{CR_F32, NULL, true}, {CR_F32, NULL, false}, {CR_F16, "h200", true}, {CR_BF16, "a100", true}};
    const size_t count = has_gpus() ? CR_COUNT(variants) : 2;
    for (size_t c = 0; c < CR_COUNT(configs); c++)
        for (size_t k = 0; k < count; k++)
            for (int sync = 0; sync < 2; sync++) {
                const struct wanted w = {.config  = configs[c],
                                         .ranks   = 4,
                                         .sync_bn = sync,
                                         .fuse    = variants[k].fuse,
                                         .real    = variants[k].real,
                                         .wire    = CR_F32,
                                         .kind    = CR_PROGRAM_STEP,
                                         .batch   = 8,
                                         .bucket  = 25 * MIB,
                                         .gpu     = variants[k].gpu};
                OWNED(made)         m = {0};
                if (make(&w, &m)) {
                    const int normal = count_kind(&m.p, CR_OP_bn_finalize); /* SyncBN: no reduction may be fused away */
                    for (int i = 0; i < m.p.ops; i++)
                        if (m.p.op[i].kind == CR_OP_all_reduce) CHECK_INT(m.p.op[i].stream, CR_STREAM_COMM);
                    CHECK(count_buckets(&m.p) >= 1);
                    if (sync) CHECK(normal > 5);
                    /* buckets, metrics, and with SyncBN two reductions per BN: forward and backward */
                    CHECK_INT(count_kind(&m.p, CR_OP_all_reduce), count_buckets(&m.p) + 1 + (sync ? 2 * normal : 0));
                }
            }
}

TEST(frozen_parameters_are_not_reduced) {
    OWNED(made)         m = {0};
    const struct wanted w = {
        .ranks = 2, .fuse = true, .real = CR_F32, .kind = CR_PROGRAM_STEP, .batch = 8, .bucket = MIB / 8};
    const char *const freeze[] = {"model.freeze=stem,layer1"};
    m                          = (struct made){0};
    REQUIRE_OK(bench_open(&m.b, freeze, 1, 32));
    m.b.model.ranks                            = 2;
    struct cr_cost_model            cost_model = greedy_cost_model(256);
    const struct cr_compile_options options    = {.fuse = true, .reuse = true, .bucket_bytes = w.bucket};
    REQUIRE_OK(cr_model_program(&m.b.model, m.b.config, w.kind, w.batch, &m.p));
    REQUIRE_OK(cr_compile(&m.p, &cost_model, &options));
    size_t sum = 0, trainable = 0;
    for (int i = 0; i < m.p.ops; i++)
        if (is_bucket(&m.p, i)) sum += m.p.tensor[m.p.op[i].out[0]].bytes;
    for (int k = 0; k < m.b.model.store.params; k++) {
        const struct cr_param *q = &m.b.model.store.param[k];
        if (!q->frozen && !cr_param_is_running(q->role)) trainable += (size_t)(q->elems + 63) / 64 * 64 * 4;
    }
    CHECK(sum <= trainable && sum + 64 * 1024 > trainable);
}

TEST(limits_and_16_bits) {
    const struct wanted base = {.config  = "resnet18",
                                .ranks   = 2,
                                .sync_bn = true,
                                .fuse    = true,
                                .real    = CR_F16,
                                .wire    = CR_F16,
                                .kind    = CR_PROGRAM_STEP,
                                .batch   = 16,
                                .bucket  = 4 * MIB,
                                .gpu     = "h200"};
    struct made         m;
    if (!has_gpus()) SKIP(no_kernels_for_gpus);
    if (!make(&base, &m)) return;
    const size_t peak = m.p.region_bytes[CR_REGION_POOL];
    drop(&m);
    struct wanted tight = base;
    for (size_t fraction = 95; fraction >= 70; fraction -= 5) { /* the scratch memory counts towards the limit */
        tight.limit = peak * fraction / 100;
        if (make(&tight, &m))
            CHECK(m.p.region_bytes[CR_REGION_POOL] + m.p.region_bytes[CR_REGION_HOST] / CR_GPU_HOST_PAGES <=
                  tight.limit);
        drop(&m);
    }
}

static int first_bucket(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (is_bucket(p, i)) return i;
    return CR_NONE;
}

static void move_up(struct cr_program *p, int op) {
    const struct cr_op before = p->op[op - 1];
    p->op[op - 1]             = p->op[op];
    p->op[op]                 = before;
}

TEST(wrong_programs_are_refused) {
    const struct wanted w = {
        .ranks = 2, .fuse = true, .real = CR_F32, .kind = CR_PROGRAM_STEP, .batch = 8, .bucket = MIB / 4};
    OWNED(made) m = {0};
    REQUIRE(make(&w, &m));
    const int b = first_bucket(&m.p);
    /* before its writer */
    move_up(&m.p, b);
    CHECK(cr_program_check(&m.p) != CR_OK);
    CHECK_HAS(cr_error_message(), "must be summed over the ranks exactly once");
    move_up(&m.p, b);
    REQUIRE_OK(cr_program_check(&m.p));
    /* twice */
    const struct cr_op other = m.p.op[b + 1];
    m.p.op[b + 1]            = m.p.op[b];
    CHECK(cr_program_check(&m.p) != CR_OK);
    m.p.op[b + 1] = other;
    /* without its wait for the writer */
    const int wait = m.p.op[b].wait[0];
    CHECK(wait == b - 1);
    m.p.op[b].wait[0] = CR_NONE;
    CHECK(cr_waits_check(&m.p) != CR_OK);
    CHECK_HAS(cr_error_message(), "grad.bucket");
    m.p.op[b].wait[0] = wait;
    REQUIRE_OK(cr_waits_check(&m.p));
    /* the update does not wait for the last sum */
    for (int i = 0; i < m.p.ops; i++)
        if (m.p.op[i].kind == CR_OP_grad_norm) m.p.op[i].wait[0] = CR_NONE;
    CHECK(cr_waits_check(&m.p) != CR_OK);
}

/* tests/unit/compiler/test_conv_pool.c: the pass that joins the stem convolution and its max pooling: in which
 * inference programs; equal logits for even and odd sizes; not where a device has no such kernel, where two kernels are
 * faster than one, where the filter has a sparsity pattern, or in a program that trains. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "core/rng.h"
#include "tests/harness/data_support.h"
#include "tests/harness/network_support.h"

enum { BATCH = 2, CLASSES = 5, LARGEST = 38 };

#define NETWORK                                                                                                        \
    "data.kind=synthetic", "train.device=cpu", "model.arch=custom", "model.block=basic", "model.depths=1,1",           \
        "model.widths=8,16"
static const char *const imagenet[] = {NETWORK, "model.stem=imagenet"};
static const char *const deep[]     = {NETWORK, "model.stem=deep"};
static const char *const blurred[]  = {NETWORK, "model.stem=imagenet", "model.blur_pool=1"};
static const char *const small[]    = {NETWORK, "model.stem=cifar"};

static void fill_store(const struct net *n) {
    const struct cr_param_store *store = &n->model.store;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param     *q      = &store->param[i];
        const enum cr_param_buffer buffer = cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE;
        char *const                base   = n->memory.region[CR_REGION_STORE];
        float        *at   = (float *)(void *)(base + cr_param_store_buffer_offset(store, buffer)) + q->offset;
        struct cr_rng rng  = cr_rng_make(1, CR_RNG_TEST, (uint64_t)i, 0);
        const bool    conv = q->role == CR_ROLE_CONV;
        const float   mean = q->role == CR_ROLE_VAR || q->role == CR_ROLE_GAMMA ? 1.2f : 0.1f,
                    wide   = conv ? 2.0f / sqrtf((float)q->fan_in) : 0.3f;
        for (int64_t e = 0; e < q->elems; e++) at[e] = mean * !conv + wide * (float)(2 * cr_rng_real(&rng) - 1);
    }
}

/* Runs the evaluation program on images of size x size; *ops: number of conv_pool ops. */
static void run(const char *const *overrides, int count, int size, bool fuse, float *logits, int *ops) {
    uint8_t                    images[BATCH * LARGEST * LARGEST * 3];
    struct net                 n    = {0};
    struct cr_rng              rng  = cr_rng_make(4, CR_RNG_TEST, 9, 9);
    const struct cr_step_block step = {0};
    const struct net_plan      plan = {.overrides = overrides,
                                       .count     = count,
                                       .kind      = CR_PROGRAM_EVAL,
                                       .classes   = CLASSES,
                                       .size      = size,
                                       .batch     = BATCH,
                                       .device    = {.threads = 1, .ref_only = true},
                                       .fuse      = fuse};
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
    *ops = -1;
    CHECK_STATUS(net_open(&n, &plan), CR_OK);
    if (n.exec) {
        fill_store(&n);
        CHECK_STATUS(cr_exec_feed(n.exec, images, NULL, NULL), CR_OK);
        CHECK_STATUS(cr_exec_run(n.exec, &step), CR_OK);
        CHECK_STATUS(cr_exec_get(n.exec, n.program.logits, logits), CR_OK);
        *ops = net_count(&n.program, CR_OP_conv_pool);
    }
    net_close(&n);
}

/* The program with `expected` joined ops has the logits of the program without fusions. */
static void check_logits(const char *const *overrides, int count, int size, int expected) {
    float  a[BATCH * CLASSES] = {0}, b[BATCH * CLASSES] = {0};
    double largest = 0, apart = 0;
    int    ops;
    run(overrides, count, size, false, a, &ops);
    CHECK_INT(ops, 0);
    run(overrides, count, size, true, b, &ops);
    CHECK_INT(ops, expected);
    for (int i = 0; i < BATCH * CLASSES; i++) {
        largest = CR_MAX(fabs((double)a[i]), largest);
        apart   = CR_MAX(fabs((double)a[i] - (double)b[i]), apart);
    }
    CHECK(largest > 1e-3);
    if (!(apart <= 1e-5 * largest)) TEST_FAIL_("size %d: logits up to %g differ by %g", size, largest, apart);
}

static void stem_of_imagenet(void) {
    check_logits(imagenet, (int)CR_COUNT(imagenet), 32, 1); /* 16 lines */
    check_logits(imagenet, (int)CR_COUNT(imagenet), 38, 1); /* 19 lines: the last window has two */
    check_logits(imagenet, (int)CR_COUNT(imagenet), 33, 1); /* not in space-to-depth form */
}
static void deep_stem(void) {
    check_logits(deep, (int)CR_COUNT(deep), 32, 1);
}
/* Anti-aliased pooling has stride 1, and CIFAR's stem has no pooling. */
static void other_pooling(void) {
    check_logits(blurred, (int)CR_COUNT(blurred), 32, 0);
    check_logits(small, (int)CR_COUNT(small), 16, 0);
}

/* ---- the pass alone ---- */

static bool accepts_no_pool(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self;
    (void)p;
    return op->kind != CR_OP_conv_pool;
}
/* Times the joined op as `*self` times a convolution or a pooling. */
static cr_status seconds_of_pool(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const double *times = self;
    (void)p;
    *seconds = op->kind == CR_OP_conv_pool ? *times : 1;
    return CR_OK;
}

/* Number of joined ops after the passes in front of this one and the pass with the given model. */
static int pools_with(const struct cr_cost_model *model, enum cr_program_kind kind, bool pruned) {
    const struct cr_cost_model any   = {.bytes_per_s = 1e12, .flops_per_s = 1e12};
    const struct cr_config    *c     = NULL;
    struct cr_model            m     = {0};
    struct cr_program          p     = {0};
    int                        pools = -1;
    CHECK_STATUS(cr_config_open(&c, NULL, imagenet, (int)CR_COUNT(imagenet)), CR_OK);
    CHECK_STATUS(cr_model_open(c, CLASSES, 32, 32, &m), CR_OK);
    CHECK_STATUS(cr_model_program(&m, c, kind, BATCH, &p), CR_OK);
    CHECK_STATUS(cr_pass_fold(&p, &any), CR_OK);
    CHECK_STATUS(cr_pass_hoist(&p), CR_OK);
    CHECK_STATUS(cr_pass_fuse(&p, &any), CR_OK);
    for (int i = 0; i < p.ops; i++)
        if (pruned && p.op[i].kind == CR_OP_conv) p.op[i].attr.conv.pattern.nnz = 1;
    CHECK_STATUS(cr_pass_conv_pool(&p, model), CR_OK);
    if (!pruned) CHECK_STATUS(cr_program_check(&p), CR_OK);
    pools = net_count(&p, CR_OP_conv_pool);
    CHECK_INT(net_count(&p, CR_OP_maxpool), 1 - pools);
    cr_program_free(&p);
    cr_model_close(&m);
    cr_config_close(c);
    return pools;
}

static void joined_only_where_it_pays(void) {
    double                     fast = 1.9, slow = 2.1;
    const struct cr_cost_model any = {.bytes_per_s = 1e12, .flops_per_s = 1e15}, none = {.accepts = accepts_no_pool},
                               faster = {.cost = seconds_of_pool, .self = &fast},
                               slower = {.cost = seconds_of_pool, .self = &slow};
    CHECK_INT(pools_with(&any, CR_PROGRAM_EVAL, false), 1);
    CHECK_INT(pools_with(&none, CR_PROGRAM_EVAL, false), 0);
    CHECK_INT(pools_with(&faster, CR_PROGRAM_EVAL, false), 1);
    CHECK_INT(pools_with(&slower, CR_PROGRAM_EVAL, false), 0);
    CHECK_INT(pools_with(&any, CR_PROGRAM_EVAL, true), 0);
    CHECK_INT(pools_with(&any, CR_PROGRAM_STEP, false), 0);
}

TESTS(CASE(stem_of_imagenet), CASE(deep_stem), CASE(other_pooling), CASE(joined_only_where_it_pays))

/* tests/unit/compiler/test_conv_pairs.c: the pass that joins two 1x1 convolutions in a row, and the 3x3 convolution in
 * front of them: which convolutions of ResNets it joins, in floating point and in 8 bits; equal logits; not where a
 * device has no such kernel, where two kernels are faster than one, or where a filter has a sparsity pattern. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "core/rng.h"
#include "tests/harness/data_support.h"
#include "tests/harness/network_support.h"

enum { BATCH = 2, CLASSES = 5, SIZE = 32 };

/* Bottleneck blocks 2, 3: the pairs are 1.0 - 1.1, 1.1 - 2.0 (behind which the shortcut reads y too), 2.0 - 2.1 and
 * 2.1 - 2.2; the last block has no next one. The 3x3 convolution of 2.0 has stride 2, so three pairs have one in
 * front. */
#define BOTTLENECKS                                                                                                    \
    "data.kind=synthetic", "data.image_size=32", "train.device=cpu", "model.arch=custom", "model.block=bottleneck",    \
        "model.depths=2,3", "model.widths=8,16", "model.stem=imagenet", "model.shortcut=B"
static const char *const floats[] = {BOTTLENECKS};
static const char *const bytes[]  = {BOTTLENECKS, "quant.type=int8"};
static const char *const basic[]  = {"data.kind=synthetic", "data.image_size=32", "train.device=cpu",
                                     "model.arch=resnet20", "model.shortcut=A"};

static cr_status open_eval(struct net *n, const char *const *overrides, int count, bool fuse) {
    const struct net_plan plan = {.overrides = overrides,
                                  .count     = count,
                                  .kind      = CR_PROGRAM_EVAL,
                                  .classes   = CLASSES,
                                  .size      = SIZE,
                                  .batch     = BATCH,
                                  .device    = {.threads = 1, .ref_only = true},
                                  .fuse      = fuse};
    return net_open(n, &plan);
}

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
        for (int64_t e = 0; e < q->elems; e++)
            at[e] = q->role == CR_ROLE_SCALE ? (q->elems > 1 ? 0x1p-8f : 0x1p-6f)
                                             : mean * !conv + wide * (float)(2 * cr_rng_real(&rng) - 1);
    }
}

static void run(struct net *n, float *logits) {
    uint8_t                    images[BATCH * SIZE * SIZE * 3];
    struct cr_rng              rng  = cr_rng_make(4, CR_RNG_TEST, 9, 9);
    const struct cr_step_block step = {0};
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)cr_rng_u32(&rng);
    fill_store(n);
    CHECK_STATUS(cr_exec_feed(n->exec, images, NULL, NULL), CR_OK);
    CHECK_STATUS(cr_exec_run(n->exec, &step), CR_OK);
    CHECK_STATUS(cr_exec_get(n->exec, n->program.logits, logits), CR_OK);
}

/* Number of pairs with a 3x3 convolution in front. */
static int count_firsts(const struct cr_program *p) {
    int count = 0;
    for (int i = 0; i < p->ops; i++)
        count += (p->op[i].kind == CR_OP_conv_pair && p->op[i].in[CR_IN_conv_pair_first_w] >= 0) ||
                 (p->op[i].kind == CR_OP_qconv_pair && p->op[i].in[CR_IN_qconv_pair_first_w] >= 0);
    return count;
}

/* Number of pairs with a convolution as summand. */
static int count_shortcuts(const struct cr_program *p) {
    int count = 0;
    for (int i = 0; i < p->ops; i++)
        count += p->op[i].kind == CR_OP_conv_pair && p->op[i].in[CR_IN_conv_pair_shortcut_w] >= 0;
    return count;
}

/* The program with `pairs` ops of this kind, `firsts` of them with a 3x3 convolution in front, has the logits of the
 * program without the pass. */
static void check_logits(const char *const *overrides, int count, enum cr_op_kind kind, int pairs, int firsts,
                         double tolerance) {
    struct net plain = {0}, fused = {0};
    float      a[BATCH * CLASSES], b[BATCH * CLASSES];
    CHECK_STATUS(open_eval(&plain, overrides, count, false), CR_OK);
    CHECK_STATUS(open_eval(&fused, overrides, count, true), CR_OK);
    if (plain.exec && fused.exec) {
        double largest = 0, apart = 0;
        run(&plain, a);
        run(&fused, b);
        CHECK_INT(net_count(&plain.program, kind), 0);
        CHECK_INT(net_count(&fused.program, kind), pairs);
        CHECK_INT(count_firsts(&fused.program), firsts);
        CHECK_INT(count_shortcuts(&fused.program), kind == CR_OP_conv_pair && pairs ? 1 : 0); /* of block 1.0 */
        for (int i = 0; i < BATCH * CLASSES; i++) {
            largest = CR_MAX(fabs((double)a[i]), largest);
            apart   = CR_MAX(fabs((double)a[i] - (double)b[i]), apart);
        }
        CHECK(largest > 1e-3);
        if (!(apart <= tolerance * largest)) TEST_FAIL_("logits up to %g differ by %g", largest, apart);
    }
    net_close(&plain);
    net_close(&fused);
}

static void floating_point(void) {
    check_logits(floats, (int)CR_COUNT(floats), CR_OP_conv_pair, 4, 3, 1e-5);
}
static void eight_bits(void) {
    check_logits(bytes, (int)CR_COUNT(bytes), CR_OP_qconv_pair, 4, 3, 0.02);
}
static void basic_blocks_have_no_pairs(void) {
    check_logits(basic, (int)CR_COUNT(basic), CR_OP_conv_pair, 0, 0, 1e-5);
}

/* ---- the pass alone ---- */

static bool accepts_no_pair(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self;
    (void)p;
    return op->kind != CR_OP_conv_pair;
}
/* Times a pair as self[0] times a convolution, and one with a 3x3 convolution in front as self[1] times. */
static cr_status seconds_of_pair(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const double *times = self;
    (void)p;
    *seconds = op->kind == CR_OP_conv_pair ? times[op->in[CR_IN_conv_pair_first_w] >= 0] : 1;
    return CR_OK;
}

/* Number of pairs, plus 10 times the number of those with a 3x3 convolution in front and 100 times the number of those
 * with a convolution as summand, after the passes in front of this one and the pass with the given model. */
static int pairs_with(const struct cr_cost_model *model, bool pruned) {
    const struct cr_config *c     = NULL;
    struct cr_model         m     = {0};
    struct cr_program       p     = {0};
    int                     pairs = -1;
    CHECK_STATUS(cr_config_open(&c, NULL, floats, (int)CR_COUNT(floats)), CR_OK);
    CHECK_STATUS(cr_model_open(c, CLASSES, SIZE, SIZE, &m), CR_OK);
    CHECK_STATUS(cr_model_program(&m, c, CR_PROGRAM_EVAL, BATCH, &p), CR_OK);
    CHECK_STATUS(cr_pass_fold(&p, &(struct cr_cost_model){.bytes_per_s = 1e12, .flops_per_s = 1e12}), CR_OK);
    CHECK_STATUS(cr_pass_hoist(&p), CR_OK);
    for (int i = 0; i < p.ops; i++)
        if (pruned && p.op[i].kind == CR_OP_conv) p.op[i].attr.conv.pattern.nnz = 1;
    CHECK_STATUS(cr_pass_conv_pairs(&p, model), CR_OK);
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    pairs = net_count(&p, CR_OP_conv_pair) + 10 * count_firsts(&p) + 100 * count_shortcuts(&p);
    cr_program_free(&p);
    cr_model_close(&m);
    cr_config_close(c);
    return pairs;
}

static void joined_only_where_it_pays(void) {
    double                     fast[2] = {1.9, 2.8}, slow[2] = {2.1, 1}, only[2] = {1.9, 3};
    const struct cr_cost_model any = {.bytes_per_s = 1e12, .flops_per_s = 1e15}, none = {.accepts = accepts_no_pair},
                               faster = {.cost = seconds_of_pair, .self = fast},
                               slower = {.cost = seconds_of_pair, .self = slow},
                               pair   = {.cost = seconds_of_pair, .self = only};
    CHECK_INT(pairs_with(&any, false), 134);
    CHECK_INT(pairs_with(&none, false), 0);
    CHECK_INT(pairs_with(&faster, false), 134);
    CHECK_INT(pairs_with(&pair, false), 104);
    CHECK_INT(pairs_with(&slower, false), 0);
    CHECK_INT(pairs_with(&any, true), 0);
}

TESTS(CASE(floating_point), CASE(eight_bits), CASE(basic_blocks_have_no_pairs), CASE(joined_only_where_it_pays))

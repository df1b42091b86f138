/* tests/unit/compiler/test_quantize.c: the pass that replaces ops on quantised values by 8-bit ops: which layers it
 * replaces in ResNets, first convolution, classifier and residual stream included; the logits of the program in 8 bits
 * are those of the program in floating point with rounded values, on the reference kernels and on the device's own;
 * a device without 8-bit kernels leaves the program as it is; failing allocations. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "core/rng.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/network_support.h"

enum { BATCH = 2, CLASSES = 5, SIZE = 16, MOST = 16 };

static cr_status open_eval(struct net *n, const char *const *overrides, int count, bool fuse, bool reference) {
    const struct net_plan plan = {.overrides = overrides,
                                  .count     = count,
                                  .kind      = CR_PROGRAM_EVAL,
                                  .classes   = CLASSES,
                                  .size      = SIZE,
                                  .batch     = BATCH,
                                  .device    = {.threads = 1, .ref_only = reference},
                                  .fuse      = fuse};
    return net_open(n, &plan);
}

static float *address_of(const struct net *n, int param) {
    const struct cr_param_store *store = &n->model.store;
    const enum cr_param_buffer   buffer =
        cr_param_is_running(store->param[param].role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE;
    char *const base = n->memory.region[CR_REGION_STORE];
    return (float *)(void *)(base + cr_param_store_buffer_offset(store, buffer)) + store->param[param].offset;
}

/* Numbers from -1 to 1. Twenty million draws would be most of the time of this test: they come from a table. */
static float number(int param, int64_t e) {
    enum { NUMBERS = 8191 }; /* a prime: rows of filters begin at different places */
    static float table[NUMBERS];
    if (table[0] == 0) {
        struct cr_rng rng = cr_rng_make(1, CR_RNG_TEST, 0, 0);
        for (int i = 0; i < NUMBERS; i++) table[i] = (float)(2 * cr_rng_real(&rng) - 1);
    }
    return table[(e + 131 * (int64_t)param) % NUMBERS];
}

/* Values as in a trained network. The scales let a few values saturate; powers of two make products exact, so that the
 * program in floating point rounds as the one in 8 bits does. */
static void fill_store(const struct net *n) {
    const struct cr_param_store *store = &n->model.store;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q    = &store->param[i];
        float                 *at   = address_of(n, i);
        const bool             conv = q->role == CR_ROLE_CONV;
        const float            mean = q->role == CR_ROLE_VAR || q->role == CR_ROLE_GAMMA ? 1.2f : 0.1f,
                    wide            = conv ? 2.0f / sqrtf((float)q->fan_in) : 0.3f;
        for (int64_t e = 0; e < q->elems; e++)
            at[e] = q->role == CR_ROLE_SCALE ? (q->elems > 1 ? 0x1p-8f : 0x1p-6f) : mean * !conv + wide * number(i, e);
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

static void compare(const float *a, const float *b) {
    double largest = 0, apart = 0;
    for (int i = 0; i < BATCH * CLASSES; i++) {
        largest = fmax(largest, fabs((double)a[i]));
        apart   = fmax(apart, fabs((double)a[i] - (double)b[i]));
    }
    CHECK(largest > 1e-3);
    if (!(apart <= 0.02 * largest)) TEST_FAIL_("logits up to %g differ by %g", largest, apart);
}

/* ---- which ops ---- */

struct counts {
    int qconv, conv, dense, quantize, dequantize, fake_quant, add, relu;
    int stem; /* 7x7 convolution and max pooling */
};

static bool has_layer(const struct cr_program *p, enum cr_op_kind kind, const char *layer) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == kind && p->op[i].layer != CR_NONE && strcmp(p->layer[p->op[i].layer], layer) == 0)
            return true;
    return false;
}

/* qstem stands for a quantize and a qconv, qconv_pair for two qconvs, or three with a 3x3 convolution in front. */
static void check_counts(const struct cr_program *p, const struct counts *want) {
    const int stems = net_count(p, CR_OP_qstem), pairs = net_count(p, CR_OP_qconv_pair);
    int       firsts = 0;
    for (int i = 0; i < p->ops; i++)
        firsts += p->op[i].kind == CR_OP_qconv_pair && p->op[i].in[CR_IN_qconv_pair_first_w] >= 0;
    CHECK_INT(net_count(p, CR_OP_qconv) + stems + 2 * pairs + firsts, want->qconv);
    CHECK_INT(net_count(p, CR_OP_conv), want->conv);
    CHECK_INT(net_count(p, CR_OP_dense), want->dense);
    CHECK_INT(net_count(p, CR_OP_quantize) + stems, want->quantize);
    CHECK_INT(net_count(p, CR_OP_dequantize), want->dequantize);
    CHECK_INT(net_count(p, CR_OP_fake_quant), want->fake_quant);
    CHECK_INT(net_count(p, CR_OP_add), want->add);
    CHECK_INT(net_count(p, CR_OP_relu), want->relu);
    CHECK_INT(net_count(p, CR_OP_qconv_coeffs), want->qconv);
    CHECK_INT(net_count(p, CR_OP_fake_quant_filter), 0);
    if (!want->conv) CHECK_INT(net_count(p, CR_OP_bn_apply), 0);
}

/* The program in 8 bits, on the reference kernels and on the device's own, against the program in floating point. */
static void check_net(const char *const *overrides, int count, const struct counts *want) {
    struct net plain = {0}, small = {0};
    float      a[BATCH * CLASSES], b[BATCH * CLASSES];
    CHECK_STATUS(open_eval(&plain, overrides, count, false, true), CR_OK);
    if (plain.exec) {
        run(&plain, a);
        CHECK(net_count(&plain.program, CR_OP_qconv) == 0 && net_count(&plain.program, CR_OP_fake_quant) > 0);
    }
    for (int reference = 1; reference >= 0 && plain.exec; reference--) {
        CHECK_STATUS(open_eval(&small, overrides, count, true, reference), CR_OK);
        if (small.exec) {
            run(&small, b);
            compare(a, b);
            check_counts(&small.program, want);
            /* the reference kernels accept the stem of ImageNet networks as one op, the tuned kernels do not */
            CHECK_INT(net_count(&small.program, CR_OP_qstem), reference && want->stem);
            CHECK(small.program.hoisted >= 2 * want->qconv); /* filters and coefficients are made once */
        }
        net_close(&small);
    }
    net_close(&plain);
}

#define NET(name, expected, ...)                                                                                       \
    static void name(void) {                                                                                           \
        static const char *const   overrides[] = {"data.kind=synthetic", "data.image_size=16", "train.device=cpu",     \
                                                  "quant.type=int8", __VA_ARGS__};                                     \
        static const struct counts want        = expected;                                                             \
        check_net(overrides, (int)CR_COUNT(overrides), &want);                                                         \
    }
#define COUNTS(...)                                                                                                    \
    { __VA_ARGS__ }

/* ResNet-20: 19 convolutions and the classifier. The images and the mean over the pixels are quantised; all between
 * them stays in 8 bits. */
NET(resnet20, COUNTS(.qconv = 20, .quantize = 2), "model.arch=resnet20", "model.shortcut=A")
/* ResNet-50: 53 convolutions and the classifier. */
NET(resnet50, COUNTS(.qconv = 54, .quantize = 2, .stem = 1), "model.arch=resnet50")
/* The deep stem, option D shortcuts and squeeze-and-excitation: its layers stay in floating point (two dense layers and
 * one ReLU for each of three blocks), and with them the addition and the ReLU of each block. Their shortcuts are not
 * quantised. */
NET(resnet_d, COUNTS(.qconv = 15, .dense = 6, .quantize = 5, .add = 3, .relu = 6), "model.arch=custom",
    "model.block=bottleneck", "model.depths=1,2", "model.widths=8,16", "model.stem=deep", "model.shortcut=D",
    "model.excitation=yes")
NET(imagenet_stem, COUNTS(.qconv = 7, .quantize = 2, .stem = 1), "model.arch=custom", "model.block=basic",
    "model.depths=1,1", "model.widths=8,16", "model.stem=imagenet", "model.shortcut=B")
/* Four inputs of 8-bit layers come from layers in floating point, or are read in floating point too. */
NET(layers_in_float, COUNTS(.qconv = 16, .conv = 3, .dense = 1, .quantize = 4), "model.arch=resnet20",
    "model.shortcut=A", "quant.keep=conv1, layer2.0.conv1,layer3.2.conv2, fc")
NET(one_layer, COUNTS(.qconv = 1, .conv = 5, .dense = 1, .quantize = 1), "model.arch=custom", "model.block=basic",
    "model.depths=1,1", "model.widths=8,16", "model.stem=cifar", "model.shortcut=B",
    "quant.keep=conv1,layer1.0.conv1,layer1.0.conv2,layer2.0.conv2,layer2.0.downsample.0,fc")

static void ends_and_residuals_are_quantised(void) {
    static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=16",  "train.device=cpu",
                                            "quant.type=int8",     "model.arch=resnet20", "model.shortcut=A"};
    struct net               n;
    int                      adds = 0;
    REQUIRE_OK(open_eval(&n, overrides, (int)CR_COUNT(overrides), true, true));
    CHECK(has_layer(&n.program, CR_OP_qconv, "conv1") && has_layer(&n.program, CR_OP_qconv, "fc"));
    for (int i = 0; i < n.program.ops; i++) {
        const struct cr_op *op = &n.program.op[i];
        if (op->kind != CR_OP_qconv || op->in[CR_IN_qconv_add] == CR_NONE) continue;
        adds++;
        CHECK_INT(n.program.tensor[op->in[CR_IN_qconv_add]].dtype, CR_U8);
    }
    CHECK_INT(adds, 9); /* one for each block */
    net_close(&n);
}

/* ---- preparation by several threads ---- */

/* cr_exec_run completes the ops with several threads before their first launch; cr_exec_run_range lets each launch do
 * it. The logits are bitwise identical, also after the parameters have changed. */
static void completed_ops_are_bitwise_identical(void) {
    static const char *const   overrides[] = {"data.kind=synthetic", "data.image_size=16",  "train.device=cpu",
                                              "quant.type=int8",     "model.arch=resnet50", "model.shortcut=B",
                                              "model.stem=imagenet"};
    const struct cr_step_block step        = {0};
    uint8_t                    images[BATCH * SIZE * SIZE * 3];
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * 31 % 251);
    for (int threads = 1; threads <= 3; threads += 2) {
        const struct net_plan plan = {.overrides = overrides,
                                      .count     = (int)CR_COUNT(overrides),
                                      .kind      = CR_PROGRAM_EVAL,
                                      .classes   = CLASSES,
                                      .size      = SIZE,
                                      .batch     = BATCH,
                                      .device    = {.threads = threads},
                                      .fuse      = true};
        struct net            whole, range;
        float                 a[BATCH * CLASSES], b[BATCH * CLASSES], before[BATCH * CLASSES];
        REQUIRE_OK(net_open(&whole, &plan));
        REQUIRE_OK(net_open(&range, &plan));
        for (int turn = 0; turn < 2; turn++) {
            struct net *const nets[] = {&whole, &range};
            for (int k = 0; k < 2; k++) {
                fill_store(nets[k]);
                if (turn) *address_of(nets[k], cr_param_store_find(&nets[k]->model.store, "bn1.bias")) += 1;
                cr_exec_refresh(nets[k]->exec);
                REQUIRE_OK(cr_exec_feed(nets[k]->exec, images, NULL, NULL));
            }
            REQUIRE_OK(cr_exec_run(whole.exec, &step));
            REQUIRE_OK(cr_exec_run_range(range.exec, &step, 0, range.program.ops - 1));
            REQUIRE_OK(cr_exec_get(whole.exec, whole.program.logits, a));
            REQUIRE_OK(cr_exec_get(range.exec, range.program.logits, b));
            CHECK(memcmp(a, b, sizeof a) == 0);
            CHECK(turn == 0 || memcmp(a, before, sizeof a) != 0);
            memcpy(before, a, sizeof a);
        }
        net_close(&whole);
        net_close(&range);
    }
}

/* ---- a device without 8-bit kernels ---- */

static bool accepts_none(void *self, const struct cr_program *p, const struct cr_op *op) {
    (void)self;
    (void)p;
    return op->kind != CR_OP_qconv;
}

static const char *const small_net[] = {
    "data.kind=synthetic", "data.image_size=16", "train.device=cpu",  "quant.type=int8",  "model.arch=custom",
    "model.block=basic",   "model.depths=1,1",   "model.widths=8,16", "model.stem=cifar", "model.shortcut=A"};

static cr_status forward(const struct cr_config **c, struct cr_model *m, struct cr_program *p) {
    CR_TRY(cr_config_open(c, NULL, small_net, (int)CR_COUNT(small_net)));
    CR_TRY(cr_model_open(*c, CLASSES, SIZE, SIZE, m));
    return cr_model_program(m, *c, CR_PROGRAM_EVAL, BATCH, p);
}

static void a_device_without_kernels(void) {
    const struct cr_cost_model model = {.accepts = accepts_none};
    const struct cr_config    *c     = NULL;
    struct cr_model            m     = {0};
    struct cr_program          p     = {0};
    REQUIRE_OK(forward(&c, &m, &p));
    const int ops = p.ops, fakes = net_count(&p, CR_OP_fake_quant), filters = net_count(&p, CR_OP_fake_quant_filter);
    CHECK_STATUS(cr_pass_quantize(&p, &model), CR_OK);
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    CHECK_INT(p.ops, ops);
    CHECK(fakes > 5 && net_count(&p, CR_OP_fake_quant) == fakes && net_count(&p, CR_OP_fake_quant_filter) == filters);
    CHECK(net_count(&p, CR_OP_qconv) + net_count(&p, CR_OP_quantize) + net_count(&p, CR_OP_quantize_filter) == 0);
    cr_program_free(&p);
    cr_model_close(&m);
    cr_config_close(c);
}

static void failing_allocations(void) {
    const struct cr_cost_model model = {0}; /* accepts every op */
    const struct cr_config    *c     = NULL;
    struct cr_model            m     = {0};
    struct cr_program          p     = {0};
    for_each_failing_alloc(f, .least = 2) {
        REQUIRE_OK(forward(&c, &m, &p));
        failing_alloc_begin(&f);
        const cr_status status = cr_pass_quantize(&p, &model);
        failing_alloc_end(&f, status);
        if (status == CR_OK) CHECK_INT(net_count(&p, CR_OP_qconv), 6);
        cr_program_free(&p);
        cr_model_close(&m);
        cr_config_close(c);
    }
}

TESTS(CASE(resnet20), CASE(resnet50), CASE(resnet_d), CASE(imagenet_stem), CASE(layers_in_float), CASE(one_layer),
      CASE(ends_and_residuals_are_quantised), CASE(completed_ops_are_bitwise_identical), CASE(a_device_without_kernels),
      CASE(failing_allocations))

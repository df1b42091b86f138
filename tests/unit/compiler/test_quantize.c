/* tests/unit/compiler/test_quantize.c: the pass that replaces ops on quantised values by 8-bit ops: which layers it
 * replaces in ResNets, first convolution, classifier and residual stream included; the logits of the program in 8 bits
 * are those of the program in floating point with rounded values, on the reference kernels and on the device's own;
 * a device without 8-bit kernels leaves the program as it is; failing allocations. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/inference_support.h"

enum { SIZE = 16 };

/* ---- which ops ---- */

static bool has_layer(const struct cr_program *p, enum cr_op_kind kind, const char *layer) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == kind && p->op[i].layer != CR_NONE && strcmp(p->layer[p->op[i].layer], layer) == 0)
            return true;
    return false;
}

/* Number of layers in 8 bits. qstem stands for one, qconv_pair for two, or three with a 3x3 convolution in front. */
static int layers_in_8_bits(const struct cr_program *p) {
    int count = count_kind(p, CR_OP_qconv) + count_kind(p, CR_OP_qstem) + 2 * count_kind(p, CR_OP_qconv_pair);
    for (int i = 0; i < p->ops; i++)
        count += p->op[i].kind == CR_OP_qconv_pair && p->op[i].in[CR_IN_qconv_pair_first_w] >= 0;
    return count;
}

/* The program in 8 bits, on the reference kernels and on the device's own, against the program in floating point. */
static void check_net(const char *const *overrides, int count, int layers) {
    struct net plain = {0}, small = {0};
    float      a[LOGITS], b[LOGITS];
    CHECK_STATUS(open_eval(&plain, overrides, count, SIZE, false, true), CR_OK);
    if (plain.exec) {
        fill_store(&plain, 1);
        run_batch(&plain, 4, a);
        CHECK(count_kind(&plain.program, CR_OP_qconv) == 0 && count_kind(&plain.program, CR_OP_fake_quant) > 0);
    }
    for (int reference = 1; reference >= 0 && plain.exec; reference--) {
        CHECK_STATUS(open_eval(&small, overrides, count, SIZE, true, reference), CR_OK);
        if (small.exec) {
            fill_store(&small, 1);
            run_batch(&small, 4, b);
            compare_logits(a, b, 0.02);
            CHECK_INT(layers_in_8_bits(&small.program), layers);
            CHECK(small.program.hoisted >= 2 * layers); /* filters and coefficients are made once */
        }
        net_close(&small);
    }
    net_close(&plain);
}

#define NET(name, layers, ...)                                                                                         \
    TEST(name) {                                                                                                       \
        static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=16", "train.device=cpu",       \
                                                "quant.type=int8", __VA_ARGS__};                                       \
        check_net(overrides, (int)CR_COUNT(overrides), layers);                                                        \
    }

/* ResNet-20: 19 convolutions and the classifier. The images and the mean over the pixels are quantised; all between
 * them stays in 8 bits. */
NET(resnet20, 20, "model.arch=resnet20", "model.shortcut=A")
/* ResNet-50: 53 convolutions and the classifier. */
NET(resnet50, 54, "model.arch=resnet50")
/* The deep stem, option D shortcuts and squeeze-and-excitation: its layers stay in floating point (two dense layers and
 * one ReLU for each of three blocks), and with them the addition and the ReLU of each block. Their shortcuts are not
 * quantised. */
NET(resnet_d, 15, "model.arch=custom", "model.block=bottleneck", "model.depths=1,2", "model.widths=8,16",
    "model.stem=deep", "model.shortcut=D", "model.excitation=yes")
NET(imagenet_stem, 7, "model.arch=custom", "model.block=basic", "model.depths=1,1", "model.widths=8,16",
    "model.stem=imagenet", "model.shortcut=B")
/* Four inputs of 8-bit layers come from layers in floating point, or are read in floating point too. */
NET(layers_in_float, 16, "model.arch=resnet20", "model.shortcut=A",
    "quant.keep=conv1, layer2.0.conv1,layer3.2.conv2, fc")
NET(one_layer, 1, "model.arch=custom", "model.block=basic", "model.depths=1,1", "model.widths=8,16", "model.stem=cifar",
    "model.shortcut=B", "quant.keep=conv1,layer1.0.conv1,layer1.0.conv2,layer2.0.conv2,layer2.0.downsample.0,fc")

TEST(ends_and_residuals_are_quantised) {
    static const char *const overrides[] = {"data.kind=synthetic", "data.image_size=16",  "train.device=cpu",
                                            "quant.type=int8",     "model.arch=resnet20", "model.shortcut=A"};
    OWNED(net)               n           = {0};
    int                      adds        = 0;
    REQUIRE_OK(open_eval(&n, overrides, (int)CR_COUNT(overrides), SIZE, true, true));
    CHECK(has_layer(&n.program, CR_OP_qconv, "conv1") && has_layer(&n.program, CR_OP_qconv, "fc"));
    for (int i = 0; i < n.program.ops; i++) {
        const struct cr_op *op = &n.program.op[i];
        if (op->kind != CR_OP_qconv || op->in[CR_IN_qconv_add] == CR_NONE) continue;
        adds++;
        CHECK_INT(n.program.tensor[op->in[CR_IN_qconv_add]].dtype, CR_U8);
    }
    CHECK_INT(adds, 9); /* one for each block */
}

/* cr_exec_run completes the ops with several threads before their first launch; cr_exec_run_range lets each launch do
 * it. The logits are bitwise identical, also after the parameters have changed. */
TEST(completed_ops_are_bitwise_identical) {
    static const char *const   overrides[] = {"data.kind=synthetic", "data.image_size=16",  "train.device=cpu",
                                              "quant.type=int8",     "model.arch=resnet50", "model.shortcut=B",
                                              "model.stem=imagenet"};
    const struct cr_step_block step        = {0};
    uint8_t                    images[BATCH * SIZE * SIZE * 3];
    for (size_t i = 0; i < sizeof images; i++) images[i] = (uint8_t)(i * 31 % 251);
    for (int threads = 1; threads <= 3; threads += 2) {
        const struct net_plan plan  = {.overrides = overrides,
                                       .count     = (int)CR_COUNT(overrides),
                                       .kind      = CR_PROGRAM_EVAL,
                                       .classes   = CLASSES,
                                       .size      = SIZE,
                                       .batch     = BATCH,
                                       .device    = {.threads = threads},
                                       .fuse      = true};
        OWNED(net)            whole = {0}, range = {0};
        float                 a[LOGITS], b[LOGITS], before[LOGITS];
        REQUIRE_OK(net_open(&whole, &plan));
        REQUIRE_OK(net_open(&range, &plan));
        for (int turn = 0; turn < 2; turn++) {
            struct net *const nets[] = {&whole, &range};
            for (int k = 0; k < 2; k++) {
                fill_store(nets[k], 1);
                if (turn) *param_values(nets[k], cr_param_store_find(&nets[k]->model.store, "bn1.bias")) += 1;
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
    }
}

static bool accepts_none(void *self, const struct cr_program *p, const struct cr_op *op) {
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

TEST(a_device_without_kernels) {
    const struct cr_cost_model model = {.accepts = accepts_none};
    OWNED(config)              c     = NULL;
    OWNED(model)               m     = {0};
    OWNED(program)             p     = {0};
    REQUIRE_OK(forward(&c, &m, &p));
    const int ops = p.ops, fakes = count_kind(&p, CR_OP_fake_quant), filters = count_kind(&p, CR_OP_fake_quant_filter);
    CHECK_STATUS(cr_pass_quantize(&p, &model), CR_OK);
    CHECK_STATUS(cr_program_check(&p), CR_OK);
    CHECK_INT(p.ops, ops);
    CHECK(fakes > 5 && count_kind(&p, CR_OP_fake_quant) == fakes && count_kind(&p, CR_OP_fake_quant_filter) == filters);
    CHECK(count_kind(&p, CR_OP_qconv) + count_kind(&p, CR_OP_quantize) + count_kind(&p, CR_OP_quantize_filter) == 0);
}

TEST(failing_allocations) {
    const struct cr_cost_model model = {0}; /* accepts every op */
    const struct cr_config    *c     = NULL;
    struct cr_model            m     = {0};
    struct cr_program          p     = {0};
    for_each_failing_alloc(f, .least = 2) {
        REQUIRE_OK(forward(&c, &m, &p));
        const cr_status status = failing_alloc_run(&f, cr_pass_quantize(&p, &model));
        if (status == CR_OK) CHECK_INT(count_kind(&p, CR_OP_qconv), 6);
        cr_program_free(&p);
        cr_model_close(&m);
        cr_config_close(c);
    }
}

/* tests/unit/compiler/test_gram_bn.c: batch statistics of 1x1 convolutions from Gram matrices: the rewritten program
 * gives the losses, gradients and running statistics of the plain program, and needs less memory. */
#include "tests/harness/fusion_network.h"

struct variant {
    const char     *overrides[2];
    int             count;
    struct net_case net;
    int new;     /* convolutions that are rewritten */
    int strided; /* shortcuts whose gradient is added at its own pixels */
};

/* gram_dgrad behind the ReLU mask of the block's first convolution. */
static int count_strided(const struct cr_program *p) {
    int count = 0;
    for (int i = 0; i < p->ops; i++) count += p->op[i].kind == CR_OP_gram_dgrad && p->op[i].attr.conv.relu;
    return count;
}

static bool accepts_all(void *self, const struct cr_program *p, const struct cr_op *op) {
    return true;
}

/* A device whose ops take 1 ps per byte, and `extra_s` more where `slow` says so. Ops on matrices without pixels take
 * no time: the images of these tests are small. */
struct prices {
    double extra_s;
    bool (*slow)(const struct cr_program *p, const struct cr_op *op);
};
static cr_status costs(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const struct prices *q = self;
    double               bytes, flops;
    cr_op_cost(p, op, &bytes, &flops);
    const bool small = (op->kind >= CR_OP_gram_bn_finalize && op->kind <= CR_OP_gram_bn_sums) ||
                       (op->kind >= CR_OP_gram_bn_grad_sums && op->kind <= CR_OP_gram_bn_grad);
    *seconds = (small ? 0 : 1e-12 * bytes) + (q->slow(p, op) ? q->extra_s : 0);
    return CR_OK;
}
static bool is_gram(const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_gram;
}
static bool is_gram_of_32(const struct cr_program *p, const struct cr_op *op) {
    return op->kind == CR_OP_gram && p->tensor[op->in[CR_IN_gram_x]].dim[3] == 32;
}

/* Both programs on the reference kernels in FP64; with `fuse` also the patterns around the new ops. */
static void check_variant(const struct variant *v, bool fuse) {
    const struct cr_cost_model model  = {.accepts = accepts_all};
    OWNED(config)              config = NULL;
    OWNED(ref_run)             plain = {0}, gram = {0};
    const int                  ranks = CR_MAX(v->net.ranks, 1);
    REQUIRE_OK(cr_config_open(&config, NULL, (const char **)(uintptr_t)v->overrides, v->count));
    REQUIRE_OK(emit_run(&plain, config, &v->net));
    REQUIRE_OK(emit_run(&gram, config, &v->net));
    REQUIRE_OK(cr_pass_gram(&gram.p, &model, CR_GRAM_ALL));
    CHECK_INT(count_kind(&gram.p, CR_OP_gram), v->new);
    CHECK_INT(COUNT_IN(&gram.p, conv, out_scale_bias), v->new);
    CHECK_INT(count_kind(&gram.p, CR_OP_gram_bn_grad), v->new);
    CHECK_INT(count_strided(&gram.p), v->strided);
    if (fuse) REQUIRE_OK(cr_pass_fuse(&gram.p, &model));
    REQUIRE_OK(finish_ranks(&plain, ranks));
    REQUIRE_OK(finish_ranks(&gram, ranks));
    check_same(&plain, &gram);
}

#define WITH(option)                                                                                                   \
    { .overrides = {option}, .count = 1, .net = bottleneck, .new = 6, .strided = 1 }

/* Two bottleneck stages of two blocks: four last convolutions, and the two shortcuts with a convolution. */
TEST(gives_the_same_results) {
    enum { FROZEN = 9 };
    static const struct net_case bottleneck = {.block = CR_BLOCK_BOTTLENECK, .shortcut = CR_SHORTCUT_B, .width = 4};
    const struct net_case        a          = {.block = CR_BLOCK_BOTTLENECK, .shortcut = CR_SHORTCUT_A, .width = 4},
                          d                 = {.block = CR_BLOCK_BOTTLENECK, .shortcut = CR_SHORTCUT_D, .width = 8},
                          basic             = {.block = CR_BLOCK_BASIC, .shortcut = CR_SHORTCUT_B, .width = 4};
    struct variant v[]                      = {
                             {.net = bottleneck, .new = 6, .strided = 1},
                             {.net = bottleneck, .new = 6, .strided = 1},
                             {.net = bottleneck, .new = 6, .strided = 1},
                             {.net = bottleneck, .new = 6, .strided = 1},
                             WITH("model.excitation=yes"),
                             WITH("model.eca=yes"),
                             WITH("model.stochastic_depth=0.3"),
                             WITH("model.zero_init_last=yes"),
                             WITH("model.blur_pool=yes"),
                             {.net = bottleneck, .new = 3},
                             {.net = bottleneck, .new = 6, .strided = 1},
                             {.net = a, .new = 4},
                             {.net = d, .new = 5},
                             {.net = basic, .new = 1, .strided = 1},
    };
    v[1].net.accumulate  = true;
    v[2].net.ranks       = 2;
    v[3].net.large       = true;
    v[FROZEN].net.frozen = 3; /* the stem and the first stage are frozen: the candidates of the second stage remain */
    v[10].net.ranks = 4, v[10].net.accumulate = true;
    for (size_t i = 0; i < CR_COUNT(v); i++)
        for (int fuse = 0; fuse < 2; fuse++) check_variant(&v[i], fuse);
}

/* Plans ResNet-50's training step, batch 4; *pool receives the bytes of the pool. */
static void plan_resnet50(enum cr_gram_mode gram, size_t limit, size_t *pool) {
    const char                     *overrides[] = {"model.arch=resnet50", "data.kind=synthetic", "data.image_size=224"};
    const struct cr_cost_model      model       = {.alignment = 256, .bytes_per_s = 1e12, .flops_per_s = 1e14};
    const struct cr_compile_options how         = {
                .fuse = true, .reuse = true, .gram = gram, .pool_limit = limit, .recompute = limit > 0};
    OWNED(config)  config = NULL;
    OWNED(model)   net    = {0};
    OWNED(program) p      = {0};
    REQUIRE_OK(cr_config_open(&config, NULL, overrides, 3));
    REQUIRE_OK(cr_model_open(config, 1000, 224, 224, &net));
    REQUIRE_OK(cr_model_program(&net, config, CR_PROGRAM_STEP, 4, &p));
    REQUIRE_OK(cr_compile(&p, &model, &how));
    CHECK_INT(count_kind(&p, CR_OP_gram_bn_grad), gram == CR_GRAM_NO ? 0 : 20); /* 16 blocks, 4 shortcuts */
    for (int t = 0; t < p.tensors && gram != CR_GRAM_NO; t++)
        CHECK(!strstr(p.tensor[t].name, "conv3.y") || cr_tensor_elems(&p.tensor[t]) < 3000000);
    *pool = p.region_bytes[CR_REGION_POOL];
}

static double output_bytes(void) { /* of the 16 last convolutions and 4 shortcuts, f32, batch 4 */
    return 4.0 * 4 *
           (256.0 * 56 * 56 * (3 + 1) + 512.0 * 28 * 28 * (4 + 1) + 1024.0 * 14 * 14 * (6 + 1) +
            2048.0 * 7 * 7 * (3 + 1));
}

/* At the end of the forward pass all of them were live; the peak is elsewhere then. */
TEST(outputs_are_not_stored) {
    size_t plain, gram, limited;
    plan_resnet50(CR_GRAM_NO, 0, &plain);
    plan_resnet50(CR_GRAM_ALL, 0, &gram);
    CHECK((double)plain - (double)gram > 0.75 * output_bytes()); /* 84 MiB of 261 */
    plan_resnet50(CR_GRAM_ALL, gram * 3 / 4, &limited);
    CHECK(limited <= gram * 3 / 4);
}

/* Two stages, each with two last convolutions and a shortcut. Without measured times nothing is chosen, so that a slow
 * kernel is not chosen either. The shortcut of the second stage has images of 9 pixels and does not pay next to the
 * others. A difference within the error of the times does not count. */
TEST(auto_chooses_by_time) {
    static const struct {
        struct prices prices;
        bool          measured;
        int           grams;
    } v[]                  = {{{0, is_gram}, false, 0},
                              {{0, is_gram}, true, 5},
                              {{1e-3, is_gram}, true, 0},
                              {{1e-3, is_gram_of_32}, true, 4},
                              {{1e-10, is_gram_of_32}, true, 5}};
    struct net_case c      = {.block = CR_BLOCK_BOTTLENECK, .shortcut = CR_SHORTCUT_B, .width = 16};
    OWNED(config)   config = NULL;
    struct ref_run  run;
    REQUIRE_OK(cr_config_open(&config, NULL, NULL, 0));
    CHECK(config->train.gram_bn == CR_GRAM_AUTO);  /* the default */
    for (size_t i = 0; i < 2 * CR_COUNT(v); i++) { /* the second time with SyncBN */
        struct prices              prices = v[i / 2].prices;
        const struct cr_cost_model model  = {
             .self = &prices, .accepts = accepts_all, .cost = v[i / 2].measured ? costs : NULL};
        c.ranks = i % 2 ? 2 : 0;
        REQUIRE_OK(emit_run(&run, config, &c));
        REQUIRE_OK(cr_pass_gram(&run.p, &model, CR_GRAM_AUTO));
        CHECK_INT(count_kind(&run.p, CR_OP_gram), v[i / 2].grams);
        CHECK_INT(count_kind(&run.p, CR_OP_gram_bn_sums), c.ranks ? v[i / 2].grams : 0);
        REQUIRE_OK(cr_program_check(&run.p));
        ref_close(&run);
    }
}

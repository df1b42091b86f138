/* tests/unit/compiler/test_conv_joins.c: the passes of inference programs that join convolutions: two 1x1 convolutions
 * in a row with the 3x3 convolution in front of them, and the stem with its max pooling. The logits are those of the
 * program without fusions. Nothing is joined where a device has no such kernel, where separate kernels are faster,
 * where a filter has a sparsity pattern, or in a program that trains. Which convolutions of the shipped networks are
 * joined: tests/guard. */
#include "compiler/passes.h"
#include "tests/harness/data_support.h"
#include "tests/harness/inference_support.h"

#define NETWORK "data.kind=synthetic", "train.device=cpu", "model.arch=custom"
#define BOTTLENECKS                                                                                                    \
    NETWORK, "data.image_size=32", "model.block=bottleneck", "model.depths=2,3", "model.widths=8,16",                  \
        "model.stem=imagenet", "model.shortcut=B"
#define BASIC NETWORK, "model.block=basic", "model.depths=1,1", "model.widths=8,16"

/* Networks, and the op that joins convolutions in them. 38: 19 lines, the last window of the pooling has two; 33: not
 * in space-to-depth form. */
static const struct {
    const char     *overrides[10];
    int             size;
    enum cr_op_kind kind;
    double          tolerance;
} nets[] = {
    {{BOTTLENECKS}, 32, CR_OP_conv_pair, 1e-5},
    {{BOTTLENECKS, "quant.type=int8"}, 32, CR_OP_qconv_pair, 0.02},
    {{BASIC, "model.stem=imagenet"}, 32, CR_OP_conv_pool, 1e-5},
    {{BASIC, "model.stem=imagenet"}, 38, CR_OP_conv_pool, 1e-5},
    {{BASIC, "model.stem=imagenet"}, 33, CR_OP_conv_pool, 1e-5},
    {{BASIC, "model.stem=deep"}, 32, CR_OP_conv_pool, 1e-5},
};

static int overrides_of(size_t i) {
    int count = 0;
    while (count < 10 && nets[i].overrides[count]) count++;
    return count;
}

TEST(logits_are_the_same) {
    for (size_t i = 0; i < CR_COUNT(nets); i++) {
        OWNED(net) plain = {0}, joined = {0};
        float      a[LOGITS], b[LOGITS];
        CHECK_STATUS(open_eval(&plain, nets[i].overrides, overrides_of(i), nets[i].size, false, true), CR_OK);
        CHECK_STATUS(open_eval(&joined, nets[i].overrides, overrides_of(i), nets[i].size, true, true), CR_OK);
        if (plain.exec && joined.exec) {
            CHECK(count_kind(&plain.program, nets[i].kind) == 0 && count_kind(&joined.program, nets[i].kind) > 0);
            fill_store(&plain, 1);
            fill_store(&joined, 1);
            run_batch(&plain, 4, a);
            run_batch(&joined, 4, b);
            compare_logits(a, b, nets[i].tolerance);
        }
    }
}

/* A joined op takes as long as `joined` other ops; 0: the device has no such kernel. */
static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    return *(const double *)self > 0 || (op->kind != CR_OP_conv_pair && op->kind != CR_OP_conv_pool);
}
static cr_status seconds_of(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    *seconds = op->kind == CR_OP_conv_pair || op->kind == CR_OP_conv_pool ? *(const double *)self : 1;
    return CR_OK;
}

/* Number of joined ops. */
static int joined_ops(size_t net, double joined, enum cr_program_kind kind, bool pruned) {
    const struct cr_cost_model any   = {.bytes_per_s = 1e12, .flops_per_s = 1e12},
                               model = {.accepts = accepts, .cost = seconds_of, .self = &joined};
    OWNED(config)  c                 = NULL;
    OWNED(model)   m                 = {0};
    OWNED(program) p                 = {0};
    CHECK_STATUS(cr_config_open(&c, NULL, nets[net].overrides, overrides_of(net)), CR_OK);
    CHECK_STATUS(cr_model_open(c, CLASSES, 32, 32, &m), CR_OK);
    CHECK_STATUS(cr_model_program(&m, c, kind, BATCH, &p), CR_OK);
    CHECK_STATUS(cr_pass_fold(&p, &any), CR_OK);
    CHECK_STATUS(cr_pass_hoist(&p), CR_OK);
    CHECK_STATUS(cr_pass_fuse(&p, &any), CR_OK);
    for (int i = 0; i < p.ops; i++)
        if (pruned && p.op[i].kind == CR_OP_conv) p.op[i].attr.conv.pattern.nnz = 1;
    CHECK_STATUS(cr_pass_conv_pairs(&p, &model), CR_OK);
    CHECK_STATUS(cr_pass_conv_pool(&p, &model), CR_OK);
    if (!pruned) CHECK_STATUS(cr_program_check(&p), CR_OK);
    return count_kind(&p, CR_OP_conv_pair) + count_kind(&p, CR_OP_conv_pool);
}

TEST(joined_only_where_it_pays) {
    for (size_t net = 0; net < 3; net += 2) { /* bottleneck blocks; the stem */
        CHECK(joined_ops(net, 1.9, CR_PROGRAM_EVAL, false) > 0);
        CHECK_INT(joined_ops(net, 3.1, CR_PROGRAM_EVAL, false), 0);
        CHECK_INT(joined_ops(net, 0, CR_PROGRAM_EVAL, false), 0);
        CHECK_INT(joined_ops(net, 1.9, CR_PROGRAM_EVAL, true), 0);
        CHECK_INT(joined_ops(net, 1.9, CR_PROGRAM_STEP, false), 0);
    }
}

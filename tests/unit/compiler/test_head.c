/* tests/unit/compiler/test_head.c: the pass that joins the ops around the loss of a training step: equal results for
 * basic and bottleneck blocks, both shortcuts, assigned and accumulated gradients; not where a result between the ops
 * is needed elsewhere, where the loss is another one, over several ranks, or where twelve kernels are faster than
 * one. */
#include "tests/harness/fusion_network.h"

/* Seconds of any op, and of the joined one; the device may refuse it. */
struct costs {
    double op, head;
    bool   refuses;
};

static bool accepts(void *self, const struct cr_program *p, const struct cr_op *op) {
    const struct costs *c = self;
    return op->kind != CR_OP_head || !c->refuses;
}

static cr_status cost(void *self, const struct cr_program *p, const struct cr_op *op, double *seconds) {
    const struct costs *c = self;
    *seconds              = op->kind == CR_OP_head ? c->head : c->op;
    return CR_OK;
}

static const struct net_case basic = {.block = CR_BLOCK_BASIC, .shortcut = CR_SHORTCUT_A, .width = 8};

TEST(the_results_are_the_same) {
    for (int round = 0; round < 16; round++) {
        const struct net_case c          = {.block      = round & 1 ? CR_BLOCK_BOTTLENECK : CR_BLOCK_BASIC,
                                            .shortcut   = round & 2 ? CR_SHORTCUT_A : CR_SHORTCUT_B,
                                            .accumulate = round & 4,
                                            .width      = round & 8 ? 8 : 2}; /* with 8 channels the mask is bits */
        struct costs          costs      = {1e-6, 12e-6, false};
        struct cr_cost_model  cost_model = {.self = &costs, .accepts = accepts, .cost = cost};
        OWNED(ref_run)        plain = {0}, fused = {0};
        REQUIRE_OK(emit_run(&plain, NULL, &c));
        REQUIRE_OK(emit_run(&fused, NULL, &c));
        REQUIRE_OK(cr_pass_fuse(&fused.p, &cost_model));
        const int before = fused.p.ops;
        REQUIRE_OK(cr_pass_head(&fused.p, &cost_model));
        CHECK_INT(count_kind(&fused.p, CR_OP_head), 1);
        CHECK_INT(fused.p.ops, before - 11);
        CHECK(cr_program_trains(&fused.p));
        REQUIRE_OK(finish_run(&plain));
        REQUIRE_OK(finish_run(&fused));
        check_same(&plain, &fused);
    }
}

static struct cr_op *op_of(struct cr_program *p, enum cr_op_kind kind) {
    for (int i = p->ops - 1; i >= 0; i--)
        if (p->op[i].kind == kind) return &p->op[i];
    return NULL;
}

/* Changes of the fused program, each of which leaves the ops as they are. */
enum change {
    NONE,
    KEPT_FEATURES,
    KEPT_ACTIVATION,
    KEPT_GRADIENT,
    OTHER_SMOOTHING,
    FOCAL,
    OTHER_LABELS,
    ACCUMULATED_BIAS,
    READ_TWICE,
    INTERRUPTED,
    OTHER_STREAM,
    CHANGES
};

static void apply_change(struct cr_program *p, enum change change) {
    struct cr_op *apply = op_of(p, CR_OP_bn_apply), *grad = op_of(p, CR_OP_loss_grad);
    if (change == NONE) return;
    switch (change) {
    case KEPT_FEATURES: p->tensor[op_of(p, CR_OP_avgpool)->out[0]].keep = true; break;
    case KEPT_ACTIVATION: p->tensor[apply->out[CR_OUT_bn_apply_y]].keep = true; break;
    case KEPT_GRADIENT: p->tensor[grad->out[0]].keep = true; break;
    case OTHER_SMOOTHING: grad->attr.loss.smoothing = 0.25f; break;
    case FOCAL: op_of(p, CR_OP_loss)->attr.loss.gamma = 2; break;
    case OTHER_LABELS:
        grad->in[CR_IN_loss_grad_labels] = cr_tensor_add(p, "others", CR_I32, CR_REGION_INPUT, 3, 1, 1, 1);
        break;
    case ACCUMULATED_BIAS: op_of(p, CR_OP_dense_bgrad)->attr.dense.accumulate = true; break;
    case READ_TWICE: {
        struct cr_op again = *op_of(p, CR_OP_dense_bgrad);
        again.out[0]       = cr_tensor_add(p, "again", p->real, CR_REGION_POOL, 1, 1, 1, 5);
        cr_emit(p, &again, "");
        break;
    }
    case INTERRUPTED: { /* an op between two of them that has nothing to do with them */
        struct cr_op zero       = cr_op_make(CR_OP_zero, CR_NONE);
        zero.out[CR_OUT_zero_y] = cr_tensor_add(p, "other", p->real, CR_REGION_POOL, 1, 1, 1, 5);
        cr_emit(p, &zero, "");
        const struct cr_op fresh = p->op[p->ops - 1];
        const int          place = (int)(op_of(p, CR_OP_dense_wgrad) - p->op);
        memmove(&p->op[place + 1], &p->op[place], (size_t)(p->ops - 1 - place) * sizeof *p->op);
        p->op[place] = fresh;
        break;
    }
    case OTHER_STREAM: op_of(p, CR_OP_dense_wgrad)->stream = CR_STREAM_COMM; break;
    default: break;
    }
}

static cr_status join(struct ref_run *run, const struct net_case *c, enum change change, struct costs costs) {
    const struct cr_cost_model cost_model = {.self = &costs, .accepts = accepts, .cost = cost};
    CR_TRY(emit_run(run, NULL, c));
    CR_TRY(cr_pass_fuse(&run->p, &cost_model));
    apply_change(&run->p, change);
    return cr_pass_head(&run->p, &cost_model);
}

/* Number of joined ops. */
static int joined(const struct net_case *c, enum change change, struct costs costs) {
    OWNED(ref_run) run = {0};
    CHECK_STATUS(join(&run, c, change, costs), CR_OK);
    return count_kind(&run.p, CR_OP_head);
}

TEST(other_programs_stay_as_they_are) {
    const struct costs costs = {1e-6, 1e-6, false};
    struct net_case    c     = basic;
    for (int change = NONE; change < CHANGES; change++)
        if (joined(&c, (enum change)change, costs) != (change == NONE)) TEST_FAIL_("change %d", change);
    c.ranks = 2; /* an all_reduce between the gradient's sums and bn_grad_finalize */
    CHECK_INT(joined(&c, NONE, costs), 0);
    c      = basic;
    c.eval = true;
    CHECK_INT(joined(&c, NONE, costs), 0);
}

TEST(the_faster_form_is_chosen) {
    CHECK_INT(joined(&basic, NONE, (struct costs){1e-6, 11.9e-6, false}), 1);
    CHECK_INT(joined(&basic, NONE, (struct costs){1e-6, 12.1e-6, false}), 0);
    CHECK_INT(joined(&basic, NONE, (struct costs){1e-6, 1e-6, true}), 0);
}

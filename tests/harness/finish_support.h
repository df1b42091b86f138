/* tests/harness/finish_support.h: ResNet-20 for tests of ops that complete others. */
#ifndef CR_TEST_FINISH_SUPPORT_H
#define CR_TEST_FINISH_SUPPORT_H

#include "tests/harness/fusion_network.h"

/* A conv_grad that reads the gradient of a shortcut takes longer than two ops, so that pad_shortcut_grad remains. */
static inline cr_status costs_a_launch(void *self, const struct cr_program *p, const struct cr_op *op,
                                       double *seconds) {
    (void)self, (void)p;
    *seconds = 1e-6 * (op->kind == CR_OP_conv_grad && op->attr.conv.pad_c ? 3 : 1);
    return CR_OK;
}
/* ResNet-20 with everything fused. */
static inline bool open_program(struct bench_model *b, struct cr_program *p) {
    const char          *overrides[] = {"model.arch=resnet20", "model.shortcut=A"};
    struct cr_cost_model cost_model  = {.alignment = 64, .cost = costs_a_launch};
    cr_status            status      = bench_open(b, overrides, 2, 32);
    if (status == CR_OK) status = cr_model_program(&b->model, b->config, CR_PROGRAM_STEP, 4, p);
    if (status == CR_OK) status = cr_pass_fuse(p, &cost_model);
    CHECK_STATUS(status, CR_OK);
    return status == CR_OK;
}

static inline int marked(const struct cr_program *p) {
    int n = 0;
    for (int i = 0; i < p->ops; i++) n += cr_op_finishes_later(&p->op[i]);
    return n;
}
static inline void add_workspaces(struct cr_program *p, enum cr_op_kind kind) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == kind)
            p->op[i].workspace = cr_tensor_add(p, "workspace", CR_F32, CR_REGION_POOL, 1, 1, 1, 64);
}

#endif

/* tests/harness/hand_program.h: programs of a few ops, built by hand, and the text of what fusion makes of them. */
#ifndef CR_TEST_HAND_PROGRAM_H
#define CR_TEST_HAND_PROGRAM_H

#include "compiler/passes.h"
#include "tests/harness/test.h"

struct hand {
    struct cr_program p;
    int               x, scale_bias, saved; /* leaves */
};

static inline struct hand hand_open(void) {
    struct hand h;
    cr_program_init(&h.p, "hand", NULL);
    h.x          = cr_tensor_add(&h.p, "x", CR_F32, CR_REGION_INPUT, 2, 4, 4, 8);
    h.scale_bias = cr_tensor_add(&h.p, "scale_bias", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
    h.saved      = cr_tensor_add(&h.p, "mean_rstd", CR_F32, CR_REGION_INPUT, 2, 1, 1, 8);
    return h;
}

static inline int bn(struct hand *h, int x, const char *name) {
    struct cr_op op                 = op_on(CR_OP_bn_apply, x, h->scale_bias);
    op.in[CR_IN_bn_apply_mean_rstd] = h->saved;
    return emitted(&h->p, op, name);
}

static inline int relu(struct hand *h, int x, const char *name) {
    return emitted(&h->p, op_on(CR_OP_relu, x), name);
}

static inline int add(struct hand *h, int a, int b, const char *name) {
    return emitted(&h->p, op_on(CR_OP_add, a, b), name);
}

static inline int relu_grad(struct hand *h, int dy, int y, const char *name) {
    return emitted(&h->p, op_on(CR_OP_relu_grad, dy, y), name);
}

/* sums and apply of the gradient of a BN; returns dx */
static inline int bn_grad(struct hand *h, int dy, int x, const char *name) {
    emitted(&h->p, op_on(CR_OP_bn_grad_sums, dy, x, h->saved), formatted("%s.sums", name));
    return emitted(&h->p, op_on(CR_OP_bn_grad_apply, dy, x, h->scale_bias), name);
}

static inline void keep(struct hand *h, int tensor) {
    h->p.tensor[tensor].keep = true;
}

/* Text of the fused program: one line per op, "kind slot:name slot:name ...", outputs first. */
static inline void fused_text(struct hand *h, const struct cr_cost_model *cost_model, struct cr_text *out) {
    cr_status status = cr_pass_fuse(&h->p, cost_model);
    if (status == CR_OK) status = cr_program_check(&h->p);
    CHECK_STATUS(status, CR_OK);
    for (int i = 0; i < h->p.ops; i++) {
        const struct cr_op      *op   = &h->p.op[i];
        const struct cr_op_info *info = cr_op_info(op->kind);
        cr_text_add(out, "%s%s %s =", i ? "; " : "", info->name, h->p.tensor[op->out[0]].name);
        for (int s = 0; s < info->ins; s++)
            if (op->in[s] >= 0) cr_text_add(out, " %s:%s", info->in_name[s], h->p.tensor[op->in[s]].name);
        if (op->kind == CR_OP_bn_apply && op->attr.bn.relu) cr_text_add(out, " relu");
    }
}

static inline void check_fused(struct hand *h, const struct cr_cost_model *cost_model, const char *want) {
    static const struct cr_cost_model any  = {.alignment = 64};
    struct cr_text                    text = {0};
    fused_text(h, cost_model ? cost_model : &any, &text);
    CHECK_STR(text.data, want);
    cr_text_free(&text);
    cr_program_free(&h->p);
}

#endif

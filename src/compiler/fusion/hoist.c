/* compiler/fusion/hoist.c: moves ops that depend on parameters only (constants) to the front of a program. */
#include "compiler/passes.h"

/* Kinds that may run once for many batches, when their inputs are parameters or results of such ops. */
static bool is_hoistable(enum cr_op_kind kind) {
    return kind == CR_OP_cast || kind == CR_OP_bn_scale_bias || kind == CR_OP_fold_bn || kind == CR_OP_s2d_filter ||
           kind == CR_OP_sparse_filter || kind == CR_OP_fake_quant_filter || kind == CR_OP_quantize_filter ||
           kind == CR_OP_pack_filter || kind == CR_OP_qconv_coeffs;
}

static bool is_constant(const struct cr_program *p, const struct cr_op *op, const bool *constant) {
    if (!is_hoistable(op->kind)) return false;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int id = op->in[s];
        if (id >= 0 && p->tensor[id].region != CR_REGION_STORE && !constant[id]) return false;
    }
    return true;
}

/* Keeps the results of the hoisted ops to the end of the program, for later batches. */
static void keep_hoisted_results(struct cr_program *p) {
    for (int i = 0; i < p->hoisted; i++)
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (p->op[i].out[s] >= 0 && p->tensor[p->op[i].out[s]].region == CR_REGION_POOL)
                p->tensor[p->op[i].out[s]].keep = true;
}

cr_status cr_pass_hoist(struct cr_program *p) {
    if (cr_program_trains(p)) return CR_OK;
    bool         *constant;
    struct cr_op *late   = NULL;
    cr_status     status = CR_OK;
    int           early = 0, late_ops = 0;
    CR_ALLOC(constant, (size_t)p->tensors);
    CR_ALLOC_OUT(late, (size_t)p->ops);
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op op = p->op[i];
        if (!is_constant(p, &op, constant)) {
            late[late_ops++] = op;
            continue;
        }
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (op.out[s] >= 0) constant[op.out[s]] = true;
        p->op[early++] = op; /* early <= i here */
    }
    for (int i = 0; i < late_ops; i++) p->op[early + i] = late[i];
    p->hoisted = early;
    keep_hoisted_results(p);
out:
    cr_free(constant);
    cr_free(late);
    return status;
}

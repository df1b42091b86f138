/* model/layer_table.c: the model summary: shapes, parameters and FLOPs of each layer. See model/model.h. */
#include "model/model.h"

#include <stdio.h>

double cr_model_flops(const struct cr_program *eval) {
    double sum = 0;
    for (int i = 0; i < eval->ops; i++) {
        double bytes, flops;
        if (!cr_op_has_weights(&eval->op[i])) continue;
        cr_op_cost(eval, &eval->op[i], &bytes, &flops);
        sum += flops;
    }
    return sum / (double)(eval->images >= 0 ? eval->tensor[eval->images].dim[0] : 1);
}

void cr_model_table(const struct cr_model *m, const struct cr_program *eval, struct cr_text *out) {
    cr_text_add(out, "%-24s %-16s %14s %12s\n", "layer", "output (H,W,C)", "parameters", "MFLOP/image");
    for (int i = 0; i < eval->ops; i++) {
        const struct cr_op *op = &eval->op[i];
        if (!cr_op_has_weights(op)) continue;
        const struct cr_tensor *y = &eval->tensor[op->out[0]], *w = &eval->tensor[op->in[CR_IN_conv_w]];
        double                  bytes, flops;
        char                    shape[48];
        int64_t extra = op->kind == CR_OP_dense ? y->dim[3] : 2 * y->dim[3]; /* bias, or the BN's gamma and beta */
        cr_op_cost(eval, op, &bytes, &flops);
        snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)y->dim[1], (long long)y->dim[2],
                 (long long)y->dim[3]);
        cr_text_add(out, "%-24s %-16s %14lld %12.2f\n", eval->layer[op->layer], shape,
                    (long long)(cr_tensor_elems(w) + extra), flops / (double)y->dim[0] / 1e6);
    }
    cr_text_add(out, "%-24s %-16s %14lld %12.2f\n", "total", "", (long long)cr_param_store_trainable(&m->store),
                cr_model_flops(eval) / 1e6);
}

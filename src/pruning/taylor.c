/* pruning/taylor.c: importance of channels and of weights by first-order Taylor expansion. See pruning/shrink.h and
 * pruning/pruning.h. */
#include "pruning/pruning.h"
#include "pruning/shrink.h"

#include <math.h>

struct estimate {
    const struct cr_channel_groups *groups;
    const float                    *value, *grad;
    double                         *bn, *dense; /* [units] */
    bool                           *has_bn;     /* [units] */
};

/* Sum of value times gradient over one index of an axis of a parameter. */
static double product(const struct estimate *g, int tensor, enum cr_channel_axis axis, int64_t index) {
    const struct cr_program *p     = g->groups->program;
    const struct cr_param   *q     = &p->store->param[p->tensor[tensor].param];
    const int64_t            count = axis == CR_AXIS_K ? q->dim[1] * q->dim[2] * q->dim[3] : 1;
    double                   sum   = 0;
    for (int64_t i = q->offset + index * count; i < q->offset + (index + 1) * count; i++)
        sum += (double)g->value[i] * (double)g->grad[i];
    return sum;
}

static void add_batchnorm(struct estimate *g, const struct cr_op *op) {
    const int gamma = op->in[CR_IN_bn_scale_bias_gamma], beta = op->in[CR_IN_bn_scale_bias_beta];
    for (int64_t c = 0; c < g->groups->program->tensor[gamma].dim[3]; c++) {
        const int unit = cr_channel_unit(g->groups, gamma, CR_AXIS_C, c);
        g->bn[unit] += product(g, gamma, CR_AXIS_C, c) + product(g, beta, CR_AXIS_C, c);
        g->has_bn[unit] = true;
    }
}

static void add_dense(struct estimate *g, const struct cr_op *op) {
    const int w = op->in[CR_IN_dense_w], b = op->in[CR_IN_dense_b];
    for (int64_t k = 0; k < g->groups->program->tensor[w].dim[0]; k++)
        g->dense[cr_channel_unit(g->groups, w, CR_AXIS_K, k)] +=
            product(g, w, CR_AXIS_K, k) + product(g, b, CR_AXIS_C, k);
}

cr_status cr_shrink_add_taylor(const struct cr_channel_groups *groups, const float *value, const float *grad,
                               double *sum) {
    struct estimate g      = {.groups = groups,
                              .value  = value,
                              .grad   = grad,
                              .bn     = cr_alloc((size_t)groups->units + 1, sizeof *g.bn),
                              .dense  = cr_alloc((size_t)groups->units + 1, sizeof *g.dense),
                              .has_bn = cr_alloc((size_t)groups->units + 1, sizeof *g.has_bn)};
    cr_status       status = g.bn && g.dense && g.has_bn ? CR_OK : CR_NO_MEMORY((size_t)groups->units * sizeof *g.bn);
    for (int i = 0; i < groups->program->ops && status == CR_OK; i++) {
        const struct cr_op *op = &groups->program->op[i];
        if (op->kind == CR_OP_bn_scale_bias) add_batchnorm(&g, op);
        if (op->kind == CR_OP_dense) add_dense(&g, op);
    }
    for (int u = 0; u < groups->units && status == CR_OK; u++) {
        const double x = g.has_bn[u] ? g.bn[u] : g.dense[u];
        sum[u] += x * x;
    }
    cr_free(g.bn);
    cr_free(g.dense);
    cr_free(g.has_bn);
    return status;
}

/* ---- single weights ---- */

void cr_prune_add_taylor(const struct cr_param_store *store, const float *value, const float *grad, double *sum) {
    for (int64_t i = 0; i < store->value_elems; i++) {
        const double x = (double)value[i] * (double)grad[i];
        sum[i] += x * x;
    }
}

void cr_prune_taylor_scores(const struct cr_param_store *store, const double *sum, int64_t batches, float *score) {
    for (int64_t i = 0; i < store->value_elems; i++) score[i] = (float)sqrt(sum[i] / (double)batches);
}

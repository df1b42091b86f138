/* layers/batchnorm.c: batch normalisation over N,H,W (Ioffe and Szegedy 2015), with PyTorch's running statistics.
 *
 * Training uses three ops: bn_sums, bn_finalize (scale and bias from the sums) and bn_apply. A device can then compute
 * the sums in the epilogue of a convolution, and SyncBN can sum them over ranks. Evaluation and frozen parts compute
 * scale and bias from the running statistics. */
#include "layers/layer.h"

#include <stdio.h>

struct bn_params {
    int gamma, beta, mean, var;
};

static struct bn_params find_params(struct cr_net *net, const char *path, int64_t channels, bool zero) {
    struct bn_params b;
    b.gamma = cr_net_param(net, path, "weight", CR_ROLE_GAMMA, 1, 1, 1, channels);
    b.beta  = cr_net_param(net, path, "bias", CR_ROLE_BETA, 1, 1, 1, channels);
    b.mean  = cr_net_param(net, path, "running_mean", CR_ROLE_MEAN, 1, 1, 1, channels);
    b.var   = cr_net_param(net, path, "running_var", CR_ROLE_VAR, 1, 1, 1, channels);
    if (zero && !net->program->failed) {
        char name[256];
        snprintf(name, sizeof name, "%s.weight", path);
        net->store->param[cr_param_store_find(net->store, name)].zero = true;
    }
    return b;
}

static struct cr_bn_attr make_attributes(const struct cr_net *net, int x) {
    struct cr_bn_attr a = {.eps = (float)net->config->model.bn_eps, .momentum = (float)net->config->model.bn_momentum};
    if (!net->program->failed) {
        const struct cr_tensor *t = &net->program->tensor[x];
        a.count                   = t->dim[0] * t->dim[1] * t->dim[2] * CR_MAX(net->bn_ranks, 1);
        a.ranks                   = net->bn_ranks;
    }
    return a;
}

/* With SyncBN: sums the channel sums over all ranks. Otherwise returns `sums`. */
static int all_reduce_sums(struct cr_net *net, int sums, const char *path) {
    char name[256];
    if (net->bn_ranks < 2) return sums;
    struct cr_op op           = cr_op_make(CR_OP_all_reduce, net->layer);
    op.in[CR_IN_all_reduce_x] = sums;
    op.attr.reduce.wire       = net->program->tensor[sums].dtype;
    snprintf(name, sizeof name, "%s.sums.all", path);
    int index = cr_emit(net->program, &op, name);
    return net->program->failed ? 0 : net->program->op[index].out[CR_OUT_all_reduce_y];
}

/* Returns scale_bias of the batch statistics; *mean_rstd is used by the gradient. */
static int batch_scale_bias(struct cr_net *net, const char *path, int x, struct bn_params b, int *mean_rstd) {
    char         name[256];
    struct cr_op sums        = cr_op_make(CR_OP_bn_sums, net->layer);
    sums.in[CR_IN_bn_sums_x] = x;
    snprintf(name, sizeof name, "%s.sums", path);
    int sums_op = cr_emit(net->program, &sums, name);
    if (net->program->failed) return 0;

    struct cr_op op                         = cr_op_make(CR_OP_bn_finalize, net->layer);
    op.in[CR_IN_bn_finalize_sums]           = all_reduce_sums(net, net->program->op[sums_op].out[0], path);
    op.in[CR_IN_bn_finalize_gamma]          = b.gamma;
    op.in[CR_IN_bn_finalize_beta]           = b.beta;
    op.in[CR_IN_bn_finalize_running_mean]   = b.mean;
    op.in[CR_IN_bn_finalize_running_var]    = b.var;
    op.out[CR_OUT_bn_finalize_running_mean] = b.mean;
    op.out[CR_OUT_bn_finalize_running_var]  = b.var;
    op.attr.bn                              = make_attributes(net, x);
    snprintf(name, sizeof name, "%s.scale_bias", path);
    int index = cr_emit(net->program, &op, name);
    if (net->program->failed) return 0;
    *mean_rstd = net->program->op[index].out[CR_OUT_bn_finalize_mean_rstd];
    return net->program->op[index].out[CR_OUT_bn_finalize_scale_bias];
}

static int running_scale_bias(struct cr_net *net, const char *path, int x, struct bn_params b) {
    char         name[256];
    struct cr_op op                         = cr_op_make(CR_OP_bn_scale_bias, net->layer);
    op.in[CR_IN_bn_scale_bias_gamma]        = b.gamma;
    op.in[CR_IN_bn_scale_bias_beta]         = b.beta;
    op.in[CR_IN_bn_scale_bias_running_mean] = b.mean;
    op.in[CR_IN_bn_scale_bias_running_var]  = b.var;
    op.attr.bn                              = make_attributes(net, x);
    snprintf(name, sizeof name, "%s.scale_bias", path);
    int index = cr_emit(net->program, &op, name);
    return net->program->failed ? 0 : net->program->op[index].out[0];
}

int cr_layer_batchnorm(struct cr_net *net, const char *path, int x, bool zero) {
    cr_net_layer(net, path);
    struct bn_params b         = find_params(net, path, cr_net_channels(net, x), zero);
    int              mean_rstd = CR_NONE;
    bool             batch     = net->training && !net->frozen;
    int scale_bias = batch ? batch_scale_bias(net, path, x, b, &mean_rstd) : running_scale_bias(net, path, x, b);

    struct cr_op op                  = cr_op_make(CR_OP_bn_apply, net->layer);
    op.in[CR_IN_bn_apply_x]          = x;
    op.in[CR_IN_bn_apply_scale_bias] = scale_bias;
    op.in[CR_IN_bn_apply_mean_rstd]  = mean_rstd;
    return cr_net_emit(net, &op, path);
}

/* layers/batchnorm.c: batch normalisation over N,H,W (Ioffe and Szegedy 2015), with PyTorch's running statistics.
 *
 * Training uses three ops: bn_sums, bn_finalize (scale and bias from the sums) and bn_apply. A device can then compute
 * the sums in the epilogue of a convolution, and SyncBN can sum them over ranks. Evaluation and frozen parts compute
 * scale and bias from the running statistics. */
#include "layers/layer.h"

struct bn_params {
    int gamma, beta, mean, var;
};

static struct bn_params find_params(struct cr_net *net, const char *path, int64_t channels, bool zero) {
    struct bn_params b;
    b.gamma = cr_net_param(net, path, "weight", CR_ROLE_GAMMA, 1, 1, 1, channels);
    b.beta  = cr_net_param(net, path, "bias", CR_ROLE_BETA, 1, 1, 1, channels);
    b.mean  = cr_net_param(net, path, "running_mean", CR_ROLE_MEAN, 1, 1, 1, channels);
    b.var   = cr_net_param(net, path, "running_var", CR_ROLE_VAR, 1, 1, 1, channels);
    if (zero && !net->program->failed) net->store->param[net->program->tensor[b.gamma].param].zero = true;
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
    if (net->bn_ranks < 2 || net->program->failed) return sums;
    struct cr_op op           = cr_op_make(CR_OP_all_reduce, net->layer);
    op.in[CR_IN_all_reduce_x] = sums;
    op.attr.reduce.wire       = net->program->tensor[sums].dtype;
    return cr_net_emit_named(net, &op, path, "sums.all");
}

/* Returns scale_bias of the batch statistics; *mean_rstd is used by the gradient. */
static int batch_scale_bias(struct cr_net *net, const char *path, int x, struct bn_params b, int *mean_rstd) {
    struct cr_op sums        = cr_op_make(CR_OP_bn_sums, net->layer);
    sums.in[CR_IN_bn_sums_x] = x;

    struct cr_op op                         = cr_op_make(CR_OP_bn_finalize, net->layer);
    op.in[CR_IN_bn_finalize_sums]           = all_reduce_sums(net, cr_net_emit_named(net, &sums, path, "sums"), path);
    op.in[CR_IN_bn_finalize_gamma]          = b.gamma;
    op.in[CR_IN_bn_finalize_beta]           = b.beta;
    op.in[CR_IN_bn_finalize_running_mean]   = b.mean;
    op.in[CR_IN_bn_finalize_running_var]    = b.var;
    op.out[CR_OUT_bn_finalize_running_mean] = b.mean;
    op.out[CR_OUT_bn_finalize_running_var]  = b.var;
    op.attr.bn                              = make_attributes(net, x);
    const int scale_bias                    = cr_net_emit_named(net, &op, path, "scale_bias");
    if (!net->program->failed) *mean_rstd = net->program->op[net->program->ops - 1].out[CR_OUT_bn_finalize_mean_rstd];
    return scale_bias;
}

static int running_scale_bias(struct cr_net *net, const char *path, int x, struct bn_params b) {
    struct cr_op op                         = cr_op_make(CR_OP_bn_scale_bias, net->layer);
    op.in[CR_IN_bn_scale_bias_gamma]        = b.gamma;
    op.in[CR_IN_bn_scale_bias_beta]         = b.beta;
    op.in[CR_IN_bn_scale_bias_running_mean] = b.mean;
    op.in[CR_IN_bn_scale_bias_running_var]  = b.var;
    op.attr.bn                              = make_attributes(net, x);
    return cr_net_emit_named(net, &op, path, "scale_bias");
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

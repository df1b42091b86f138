/* layers/layers.c: helper functions for layers: add a parameter to the store, append an op to the program. */
#include "layers/layer.h"

#include <stdio.h>
#include <string.h>

int cr_net_param(struct cr_net *net, const char *path, const char *suffix, enum cr_param_role role, int64_t k,
                 int64_t r, int64_t s, int64_t c) {
    char          name[256];
    const int64_t dim[4] = {k, r, s, c};
    if (net->program->failed) return 0; /* shapes are meaningless after a failure */
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    int param = cr_param_store_find(net->store, name);
    if (param == CR_NONE) param = cr_param_store_add(net->store, name, role, dim, net->layer);
    if (net->store->failed) {
        net->program->failed = true;
        return 0;
    }
    struct cr_param *q = &net->store->param[param];
    CR_ASSERT(memcmp(q->dim, dim, sizeof dim) == 0);
    q->frozen                   = net->frozen;
    q->classifier               = net->classifier;
    bool                 weight = role == CR_ROLE_CONV || role == CR_ROLE_DENSE_WEIGHT;
    enum cr_param_buffer buffer = cr_param_is_running(role)              ? CR_BUFFER_RUNNING
                                  : weight && net->store->half != CR_F32 ? CR_BUFFER_HALF
                                                                         : CR_BUFFER_VALUE;
    return cr_tensor_store(net->program, buffer, param);
}

void cr_net_layer(struct cr_net *net, const char *path) {
    net->layer = cr_program_layer(net->program, path);
}

int cr_net_emit_named(struct cr_net *net, const struct cr_op *op, const char *path, const char *suffix) {
    char name[256];
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    if (net->program->failed) return 0;
    int index = cr_emit(net->program, op, name);
    return net->program->failed ? 0 : net->program->op[index].out[0];
}

int cr_net_emit(struct cr_net *net, const struct cr_op *op, const char *path) {
    return cr_net_emit_named(net, op, path, "y");
}

int cr_net_emit_of(struct cr_net *net, enum cr_op_kind kind, const char *path, int x) {
    struct cr_op op = cr_op_make(kind, net->layer);
    op.in[0]        = x;
    return cr_net_emit(net, &op, path);
}

int64_t cr_net_channels(const struct cr_net *net, int x) {
    return net->program->failed ? 1 : net->program->tensor[x].dim[3];
}

/* layers/drop.c: dropout and stochastic depth (DropPath). Programs without them contain no op for them. */
#include "layers/layer.h"

int cr_layer_drop(struct cr_net *net, const char *path, int x, double rate, bool images) {
    if (!net->training || net->frozen || rate <= 0) return x;
    struct cr_op op     = cr_op_make(CR_OP_drop, net->layer);
    op.in[CR_IN_drop_x] = x;
    op.attr.drop        = (struct cr_drop_attr){.rate = rate, .images = images, .index = (uint32_t)net->drops++};
    return cr_net_emit(net, &op, path);
}

/* layers/cast.c: makes the 16-bit copy of the parameters (fp16 or bf16, mixed precision). */
#include "layers/layer.h"

void cr_layer_cast(struct cr_net *net) {
    struct cr_program *p = net->program;
    cr_net_layer(net, "cast");
    struct cr_op op       = cr_op_make(CR_OP_cast, net->layer);
    op.in[CR_IN_cast_x]   = cr_tensor_store(p, CR_BUFFER_VALUE, CR_NONE);
    op.out[CR_OUT_cast_y] = cr_tensor_store(p, CR_BUFFER_HALF, CR_NONE);
    if (!p->failed) cr_emit(p, &op, "");
}

/* compiler/fusion/quantize_stem.c: the stem of quantised ImageNet networks as one op.
 *
 *     normalize(images) -> quantize -> qconv 7x7, stride 2 -> maxpool 3x3, stride 2    becomes    qstem
 *
 * The tensors in between are not stored. They are among the largest of the network. */
#include "compiler/fusion/fusion.h"

static bool convolves(const struct cr_program *p, const struct cr_op *op) {
    const struct cr_tensor *w = &p->tensor[op->in[CR_IN_qconv_w]], *y = &p->tensor[op->out[CR_OUT_qconv_y]];
    return op->in[CR_IN_qconv_add] == CR_NONE && y->dtype == CR_U8 && op->attr.conv.stride == 2 &&
           op->attr.conv.pad == 3 && w->dim[1] == 7 && w->dim[2] == 7 && w->dim[3] == 3;
}

bool cr_fuse_quantized_stem(struct cr_edit *edit, int root) {
    const struct cr_op *pool = cr_fuse_op(edit, root);
    const int           conv = cr_edit_private_writer(edit, pool->in[CR_IN_maxpool_x], CR_OP_qconv);
    if (conv == CR_NONE || !cr_fuse_is_stem_pool(pool) || !convolves(edit->program, cr_fuse_op(edit, conv)))
        return false;
    const struct cr_op *c        = cr_fuse_op(edit, conv);
    const int           quantize = cr_edit_private_writer(edit, c->in[CR_IN_qconv_x], CR_OP_quantize);
    if (quantize == CR_NONE || !cr_fuse_op(edit, quantize)->attr.quant.is_signed) return false;
    const struct cr_op *q         = cr_fuse_op(edit, quantize);
    const int           normalize = cr_edit_private_writer(edit, q->in[CR_IN_quantize_x], CR_OP_normalize);
    if (normalize == CR_NONE) return false;
    const struct cr_op *input = cr_fuse_op(edit, normalize);
    if (input->in[CR_IN_normalize_boxes] != CR_NONE || input->attr.input.s2d || input->attr.input.wide) return false;
    if (!cr_fuse_same_stream(edit, normalize, root) || !cr_edit_can_move(edit, normalize, root) ||
        !cr_edit_can_move(edit, quantize, root) || !cr_edit_can_move(edit, conv, root))
        return false;
    struct cr_op op           = cr_op_make(CR_OP_qstem, c->layer);
    op.attr.input             = input->attr.input;
    op.stream                 = c->stream;
    op.in[CR_IN_qstem_images] = input->in[CR_IN_normalize_images];
    op.in[CR_IN_qstem_scale]  = q->in[CR_IN_quantize_scale];
    op.in[CR_IN_qstem_w]      = c->in[CR_IN_qconv_w];
    op.in[CR_IN_qstem_coeffs] = c->in[CR_IN_qconv_coeffs];
    op.out[CR_OUT_qstem_y]    = pool->out[CR_OUT_maxpool_y];
    if (!cr_fuse_replace(edit, root, &op, quantize, conv)) return false;
    cr_edit_remove(edit, normalize);
    return true;
}

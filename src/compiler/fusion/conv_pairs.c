/* compiler/fusion/conv_pairs.c: joins two 1x1 convolutions, one behind the other (back-to-back) in inference programs.
 *
 *     conv(x, w, bias, add), ReLU -> y;    conv(y, next_w, next_bias), ReLU -> z      becomes    conv_pair
 *     qconv(x, w, coeffs, add), ReLU -> y; qconv(y, next_w, next_coeffs), ReLU -> z   becomes    qconv_pair
 *     conv(x, first_w, first_bias) 3x3, ReLU -> t; conv_pair(t, ...)                  becomes    conv_pair
 *     qconv(x, first_w, first_coeffs) 3x3, ReLU -> t; qconv_pair(t, ...)              becomes    qconv_pair
 *
 * In ResNets these are the last convolution of a bottleneck block, with the residual stream, and the first convolution
 * of the next block. y stays an output, because the next block adds it; but the second convolution need not read it
 * from memory. The 3x3 convolution in front of them joins the pair in a second round, and then the convolution of a
 * shortcut, which writes the pair's summand. Done where one kernel takes less time than two. Runs after
 * cr_pass_sparsify, so that filters with a sparsity pattern have their kernels already. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

/* Both kinds of convolution have x, w and y in the same slots. */
enum { X = CR_IN_conv_x, W = CR_IN_conv_w, Y = CR_OUT_conv_y };
_Static_assert((int)X == (int)CR_IN_qconv_x && (int)W == (int)CR_IN_qconv_w && (int)Y == (int)CR_OUT_qconv_y,
               "slots of conv and qconv");
_Static_assert((int)CR_IN_conv_pair_x == (int)CR_IN_qconv_pair_x, "slots of conv_pair and qconv_pair");

/* A convolution of window x window and stride 1 that keeps the size of the image. */
static bool has_window(const struct cr_program *p, const struct cr_op *op, int window) {
    const struct cr_conv_attr *a = &op->attr.conv;
    const struct cr_tensor    *w = &p->tensor[op->in[W]];
    return w->dim[1] == window && w->dim[2] == window && a->stride == 1 && a->pad == window / 2;
}

/* Of inference programs with folded batch norms; `add`: the convolution adds a tensor. */
static bool is_plain_conv(const struct cr_op *op, bool add) {
    const unsigned in = 1u << CR_IN_conv_x | 1u << CR_IN_conv_w | 1u << CR_IN_conv_bias | 1u << CR_IN_conv_add;
    return cr_op_uses_only(op, in, 1u << CR_OUT_conv_y) && op->in[CR_IN_conv_bias] >= 0 &&
           (op->in[CR_IN_conv_add] >= 0) == add && !cr_op_has_sparsity_pattern(op);
}

static bool is_unsigned_qconv(const struct cr_program *p, const struct cr_op *op, bool add) {
    return p->tensor[op->in[X]].dtype == CR_U8 && p->tensor[op->out[Y]].dtype == CR_U8 &&
           (op->in[CR_IN_qconv_add] >= 0) == add;
}

static bool suits(const struct cr_program *p, const struct cr_op *op, int window, bool add) {
    return has_window(p, op, window) && op->attr.conv.relu &&
           (op->kind == CR_OP_conv ? is_plain_conv(op, add) : is_unsigned_qconv(p, op, add));
}

static struct cr_op conv_pair_of(const struct cr_op *first, const struct cr_op *next) {
    struct cr_op op                  = cr_op_make(CR_OP_conv_pair, first->layer);
    op.in[CR_IN_conv_pair_x]         = first->in[CR_IN_conv_x];
    op.in[CR_IN_conv_pair_w]         = first->in[CR_IN_conv_w];
    op.in[CR_IN_conv_pair_bias]      = first->in[CR_IN_conv_bias];
    op.in[CR_IN_conv_pair_add]       = first->in[CR_IN_conv_add];
    op.in[CR_IN_conv_pair_next_w]    = next->in[CR_IN_conv_w];
    op.in[CR_IN_conv_pair_next_bias] = next->in[CR_IN_conv_bias];
    op.out[CR_OUT_conv_pair_y]       = first->out[CR_OUT_conv_y];
    op.out[CR_OUT_conv_pair_z]       = next->out[CR_OUT_conv_y];
    return op;
}

static struct cr_op qconv_pair_of(const struct cr_op *first, const struct cr_op *next) {
    struct cr_op op                     = cr_op_make(CR_OP_qconv_pair, first->layer);
    op.in[CR_IN_qconv_pair_x]           = first->in[CR_IN_qconv_x];
    op.in[CR_IN_qconv_pair_w]           = first->in[CR_IN_qconv_w];
    op.in[CR_IN_qconv_pair_coeffs]      = first->in[CR_IN_qconv_coeffs];
    op.in[CR_IN_qconv_pair_add]         = first->in[CR_IN_qconv_add];
    op.in[CR_IN_qconv_pair_packed]      = first->in[CR_IN_qconv_packed];
    op.in[CR_IN_qconv_pair_next_w]      = next->in[CR_IN_qconv_w];
    op.in[CR_IN_qconv_pair_next_coeffs] = next->in[CR_IN_qconv_coeffs];
    op.in[CR_IN_qconv_pair_next_packed] = next->in[CR_IN_qconv_packed];
    op.out[CR_OUT_qconv_pair_y]         = first->out[CR_OUT_qconv_y];
    op.out[CR_OUT_qconv_pair_z]         = next->out[CR_OUT_qconv_y];
    return op;
}

/* Joins the convolution at `root` with the one that writes its input. */
static bool join(struct cr_edit *edit, int root) {
    const struct cr_program *p      = edit->program;
    const struct cr_op      *next   = cr_fuse_op(edit, root);
    const int                writer = cr_fuse_writer(edit, next->in[X], next->kind);
    if (writer == CR_NONE || !suits(p, next, 1, false) || !suits(p, cr_fuse_op(edit, writer), 1, true)) return false;
    if (!cr_fuse_same_stream(edit, writer, root) || !cr_edit_can_move_up(edit, root, writer)) return false;
    const struct cr_op *first = cr_fuse_op(edit, writer);
    struct cr_op        pair  = next->kind == CR_OP_conv ? conv_pair_of(first, next) : qconv_pair_of(first, next);
    pair.stream               = first->stream;
    return cr_fuse_parts(edit, &pair, (const int[]){writer, root}, 2, writer);
}

static struct cr_op with_first(const struct cr_op *pair, const struct cr_op *first) {
    struct cr_op op          = *pair;
    op.in[CR_IN_conv_pair_x] = first->in[X];
    if (first->kind == CR_OP_conv) {
        op.in[CR_IN_conv_pair_first_w]    = first->in[CR_IN_conv_w];
        op.in[CR_IN_conv_pair_first_bias] = first->in[CR_IN_conv_bias];
    } else {
        op.in[CR_IN_qconv_pair_first_w]      = first->in[CR_IN_qconv_w];
        op.in[CR_IN_qconv_pair_first_coeffs] = first->in[CR_IN_qconv_coeffs];
        op.in[CR_IN_qconv_pair_first_packed] = first->in[CR_IN_qconv_packed];
    }
    return op;
}

/* Joins the pair at `root` with the 3x3 convolution that writes its input. */
static bool join_first(struct cr_edit *edit, int root) {
    const struct cr_op   *pair   = cr_fuse_op(edit, root);
    const enum cr_op_kind kind   = pair->kind == CR_OP_conv_pair ? CR_OP_conv : CR_OP_qconv;
    const int             writer = cr_fuse_before(edit, pair->in[CR_IN_conv_pair_x], kind, root);
    if (writer == CR_NONE || !suits(edit->program, cr_fuse_op(edit, writer), 3, false)) return false;
    const struct cr_op op = with_first(pair, cr_fuse_op(edit, writer));
    return cr_fuse_parts(edit, &op, (const int[]){writer, root}, 2, root);
}

/* Joins the pair at `root` with the convolution of the shortcut, 1x1 without ReLU, that writes its summand. */
static bool join_shortcut(struct cr_edit *edit, int root) {
    const struct cr_op *pair   = cr_fuse_op(edit, root);
    const int           writer = cr_fuse_before(edit, pair->in[CR_IN_conv_pair_add], CR_OP_conv, root);
    const struct cr_op *conv   = writer == CR_NONE ? NULL : cr_fuse_op(edit, writer);
    if (!conv || !has_window(edit->program, conv, 1) || conv->attr.conv.relu || !is_plain_conv(conv, false))
        return false;
    struct cr_op op                      = *pair;
    op.in[CR_IN_conv_pair_add]           = CR_NONE;
    op.in[CR_IN_conv_pair_shortcut_x]    = conv->in[CR_IN_conv_x];
    op.in[CR_IN_conv_pair_shortcut_w]    = conv->in[CR_IN_conv_w];
    op.in[CR_IN_conv_pair_shortcut_bias] = conv->in[CR_IN_conv_bias];
    return cr_fuse_parts(edit, &op, (const int[]){writer, root}, 2, root);
}

cr_status cr_pass_conv_pairs(struct cr_program *program, const struct cr_cost_model *cost_model) {
    static const struct cr_pattern pairs[] = {{CR_OP_conv, join}, {CR_OP_qconv, join}};
    static const struct cr_pattern more[]  = {
         {CR_OP_conv_pair, join_first}, {CR_OP_qconv_pair, join_first}, {CR_OP_conv_pair, join_shortcut}};
    CR_TRY(cr_fuse_pass(program, cost_model, pairs, CR_COUNT(pairs)));
    return cr_fuse_pass(program, cost_model, more, CR_COUNT(more));
}

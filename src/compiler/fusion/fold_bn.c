/* compiler/fusion/fold_bn.c: folds batch normalisation, add and ReLU into convolutions of inference programs.
 *
 * Batch normalisation of a network that no longer learns is one scale and one bias per channel. Both go into the filter
 * and the bias of the convolution before it, and the add and the ReLU behind it go into that convolution too (Jacob et
 * al. 2018, section 3.2). In programs with gradients, only the convolutions of a teacher (model/teacher.h) have a bias,
 * and get the add and the ReLU behind them; everything else stays unchanged.
 *
 *     conv -> bn_apply (scale_bias of bn_scale_bias) [-> add] [-> relu]
 *     becomes
 *     fold_bn; conv with bias [, add] [, relu]
 *
 * fold_bn stands where bn_scale_bias stood. It depends on parameters only, so cr_pass_hoist moves it to the front with
 * the casts. It folds the f32 filter, so 16-bit programs round each weight once. */
#include "compiler/fusion/fusion.h"
#include "compiler/passes.h"

#include <stdio.h>

/* The f32 filter in the value buffer, also when `w` is its 16-bit copy. CR_NONE: not a parameter. */
static int trained_filter(struct cr_program *p, int w) {
    const int param = p->tensor[w].param;
    return param < 0 ? CR_NONE : cr_tensor_store(p, CR_BUFFER_VALUE, param);
}

/* ---- conv -> bn_apply ---- */

/* Replaces bn_scale_bias by fold_bn and bn_apply by the convolution with a bias; removes `conv`. */
static bool fold_bn(struct cr_edit *edit, int conv, int bn, int scale_bias) {
    struct cr_op       fused = *cr_fuse_op(edit, conv);
    const struct cr_op from  = *cr_fuse_op(edit, scale_bias);
    struct cr_op       fold  = cr_op_make(CR_OP_fold_bn, from.layer);
    const int          y = fused.out[CR_OUT_conv_y], w = trained_filter(edit->program, fused.in[CR_IN_conv_w]);
    if (w == CR_NONE) return false;
    fold.in[CR_IN_fold_bn_w]            = w;
    fold.in[CR_IN_fold_bn_gamma]        = from.in[CR_IN_bn_scale_bias_gamma];
    fold.in[CR_IN_fold_bn_beta]         = from.in[CR_IN_bn_scale_bias_beta];
    fold.in[CR_IN_fold_bn_running_mean] = from.in[CR_IN_bn_scale_bias_running_mean];
    fold.in[CR_IN_fold_bn_running_var]  = from.in[CR_IN_bn_scale_bias_running_var];
    fold.attr.bn                        = from.attr.bn;
    fold.out[CR_OUT_fold_bn_y]          = cr_fuse_output(edit, &fold, CR_OUT_fold_bn_y, y, "w");
    fold.out[CR_OUT_fold_bn_bias]       = cr_fuse_output(edit, &fold, CR_OUT_fold_bn_bias, y, "bias");
    if (edit->program->failed) return false;
    fused.in[CR_IN_conv_w]    = fold.out[CR_OUT_fold_bn_y];
    fused.in[CR_IN_conv_bias] = fold.out[CR_OUT_fold_bn_bias];
    fused.out[CR_OUT_conv_y]  = cr_fuse_op(edit, bn)->out[CR_OUT_bn_apply_y];
    if (!cr_fuse_accepted(edit, &fold) || !cr_fuse_accepted(edit, &fused)) return false;
    cr_edit_remove(edit, conv);
    cr_edit_replace(edit, scale_bias, &fold);
    cr_edit_replace(edit, bn, &fused);
    return true;
}

/* The name of the tensor that is the second half, the bias, of a teacher's scale_bias. */
static void bias_name(const struct cr_program *p, int scale_bias, char name[256]) {
    snprintf(name, 256, "%s.bias", p->tensor[scale_bias].name);
}

/* Adds these tensors before the edit counts readers and writers. A kernel may read the half as a bias when it is
 * aligned. */
static cr_status find_teacher_biases(struct cr_program *p) {
    enum { ALIGNMENT = 16 };
    char      name[256];
    const int ops = p->ops;
    for (int i = 0; i < ops && !p->failed; i++) {
        const int id = p->op[i].kind == CR_OP_bn_apply ? p->op[i].in[CR_IN_bn_apply_scale_bias] : CR_NONE;
        if (id == CR_NONE || p->tensor[id].buffer != CR_BUFFER_TEACHER || p->tensor[id].bytes / 2 % ALIGNMENT) continue;
        const struct cr_tensor t = p->tensor[id];
        bias_name(p, id, name);
        if (cr_tensor_find(p, name) != CR_NONE) continue; /* from an earlier run of the pass */
        const int bias = cr_tensor_add(p, name, t.dtype, CR_REGION_STORE, 1, 1, 1, t.dim[3]);
        if (p->failed) break;
        p->tensor[bias].buffer = t.buffer;
        p->tensor[bias].param  = t.param;
        p->tensor[bias].offset = t.offset + t.bytes / 2;
    }
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

/* A teacher's filters contain the scale already (model/teacher.h). */
static bool fuse_teacher_bias(struct cr_edit *edit, int bn) {
    const struct cr_program *p     = edit->program;
    const struct cr_op      *apply = cr_fuse_op(edit, bn);
    char                     name[256];
    const int                scale_bias = apply->in[CR_IN_bn_apply_scale_bias];
    const int                conv       = cr_fuse_before(edit, apply->in[CR_IN_bn_apply_x], CR_OP_conv, bn);
    if (p->tensor[scale_bias].buffer != CR_BUFFER_TEACHER || conv == CR_NONE) return false;
    struct cr_op fused = *cr_fuse_op(edit, conv);
    bias_name(p, scale_bias, name);
    fused.in[CR_IN_conv_bias] = cr_tensor_find(p, name);
    fused.out[CR_OUT_conv_y]  = apply->out[CR_OUT_bn_apply_y];
    return fused.in[CR_IN_conv_bias] != CR_NONE && cr_fuse_replace(edit, bn, &fused, conv, CR_NONE);
}

static bool fuse_bn(struct cr_edit *edit, int bn) {
    const struct cr_op *apply = cr_fuse_op(edit, bn);
    if (apply->in[CR_IN_bn_apply_add] != CR_NONE || apply->attr.bn.relu) return false;
    const int conv       = cr_fuse_before(edit, apply->in[CR_IN_bn_apply_x], CR_OP_conv, bn);
    const int scale_bias = cr_edit_private_writer(edit, apply->in[CR_IN_bn_apply_scale_bias], CR_OP_bn_scale_bias);
    return conv != CR_NONE && scale_bias != CR_NONE &&
           cr_op_uses_only(cr_fuse_op(edit, conv), 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y) &&
           fold_bn(edit, conv, bn, scale_bias);
}

/* ---- conv with a bias -> add, relu ---- */

/* The folded convolution that writes `tensor` for one reader only and can run at `root`; CR_NONE: none. */
static int conv_before(const struct cr_edit *edit, int tensor, int root) {
    const int           conv = cr_fuse_before(edit, tensor, CR_OP_conv, root);
    const struct cr_op *op   = conv == CR_NONE ? NULL : cr_fuse_op(edit, conv);
    return op && op->in[CR_IN_conv_bias] != CR_NONE && !op->attr.conv.relu ? conv : CR_NONE;
}

/* Fuses op `add`, a sum, with a folded convolution that computes one of its operands. root is `add`, or the ReLU of the
 * sum, which is then fused too. A convolution with an add may take longer than a separate add. */
static bool fuse_sum(struct cr_edit *edit, int add, int root) {
    const struct cr_op sum  = *cr_fuse_op(edit, add);
    const bool         relu = root != add;
    for (int side = 1; side >= 0; side--) { /* operand a first: its convolution is usually the later one */
        const int conv = conv_before(edit, sum.in[side ? CR_IN_add_a : CR_IN_add_b], root);
        if (conv == CR_NONE || cr_fuse_op(edit, conv)->in[CR_IN_conv_add] != CR_NONE) continue;
        struct cr_op fused       = *cr_fuse_op(edit, conv);
        fused.in[CR_IN_conv_add] = sum.in[side ? CR_IN_add_b : CR_IN_add_a];
        fused.out[CR_OUT_conv_y] = cr_fuse_op(edit, root)->out[0];
        fused.attr.conv.relu |= relu;
        if (cr_fuse_parts(edit, &fused, (const int[]){conv, add, root}, relu ? 3 : 2, root)) return true;
    }
    return false;
}

static bool fuse_add(struct cr_edit *edit, int root) {
    return fuse_sum(edit, root, root);
}

static bool fuse_relu(struct cr_edit *edit, int root) {
    const int conv = conv_before(edit, cr_fuse_op(edit, root)->in[CR_IN_relu_x], root);
    if (conv == CR_NONE) return false;
    struct cr_op fused       = *cr_fuse_op(edit, conv);
    fused.out[CR_OUT_conv_y] = cr_fuse_op(edit, root)->out[CR_OUT_relu_y];
    fused.attr.conv.relu     = true;
    return cr_fuse_parts(edit, &fused, (const int[]){conv, root}, 2, root);
}

/* add -> relu behind a folded convolution in one step: a kernel may support bias + add + ReLU but not bias + add. */
static bool fuse_add_relu(struct cr_edit *edit, int root) {
    const int add = cr_fuse_before(edit, cr_fuse_op(edit, root)->in[CR_IN_relu_x], CR_OP_add, root);
    return add != CR_NONE && fuse_sum(edit, add, root);
}

/* ---- the pass ---- */

bool cr_program_trains(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_loss_grad || p->op[i].kind == CR_OP_head || p->op[i].kind == CR_OP_bn_finalize)
            return true;
    return false;
}

/* Adds the tensors of the value buffer before the edit counts readers and writers. */
static cr_status find_filters(struct cr_program *p) {
    const int ops = p->ops;
    for (int i = 0; i < ops; i++)
        if (p->op[i].kind == CR_OP_conv) (void)trained_filter(p, p->op[i].in[CR_IN_conv_w]);
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

cr_status cr_pass_fold(struct cr_program *p, const struct cr_cost_model *cost_model) {
    const bool              trains     = cr_program_trains(p);
    const struct cr_pattern patterns[] = {{CR_OP_bn_apply, trains ? fuse_teacher_bias : fuse_bn},
                                          {CR_OP_relu, fuse_add_relu},
                                          {CR_OP_add, fuse_add},
                                          {CR_OP_relu, fuse_relu}};
    if (!p->store || (trains && !p->store->teacher_elems)) return CR_OK;
    CR_TRY(trains ? find_teacher_biases(p) : find_filters(p));
    return cr_fuse_pass(p, cost_model, patterns, CR_COUNT(patterns));
}

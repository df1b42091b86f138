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
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "compiler/rewrite/rewrite.h"

#include <stdio.h>

struct folder {
    struct cr_edit              edit;
    const struct cr_cost_model *cost_model;
};

static const struct cr_op *op_at(const struct folder *f, int index) {
    return &f->edit.program->op[index];
}

static bool accepted(const struct folder *f, const struct cr_op *op) {
    return !f->cost_model->accepts || f->cost_model->accepts(f->cost_model->self, f->edit.program, op);
}

static cr_status seconds_of(const struct folder *f, const struct cr_op *op, double *sum) {
    double seconds = cr_op_seconds(f->cost_model, f->edit.program, op);
    if (f->cost_model->cost) CR_TRY(f->cost_model->cost(f->cost_model->self, f->edit.program, op, &seconds));
    *sum += seconds;
    return CR_OK;
}

/* The f32 filter in the value buffer, also when `w` is its 16-bit copy. CR_NONE: not a parameter. */
static int trained_filter(struct cr_program *p, int w) {
    const int param = p->tensor[w].param;
    return param < 0 ? CR_NONE : cr_tensor_store(p, CR_BUFFER_VALUE, param);
}

/* ---- conv -> bn_apply ---- */

static int new_output(struct folder *f, const struct cr_op *op, int slot, const char *of, const char *what) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    char          name[256];
    cr_op_infer(f->edit.program, op, slot, &dtype, dim);
    snprintf(name, sizeof name, "%s.%s", of, what);
    return cr_edit_tensor(&f->edit, name, dtype, dim);
}

/* Replaces bn_scale_bias by fold_bn and bn_apply by the convolution with a bias; removes `conv`. */
static cr_status fold_bn(struct folder *f, int conv, int bn, int scale_bias) {
    struct cr_program *p     = f->edit.program;
    struct cr_op       fused = *op_at(f, conv), fold = cr_op_make(CR_OP_fold_bn, op_at(f, scale_bias)->layer);
    const struct cr_op from = *op_at(f, scale_bias);
    const char        *name = p->tensor[fused.out[CR_OUT_conv_y]].name;
    const int          w    = trained_filter(p, fused.in[CR_IN_conv_w]);
    if (w == CR_NONE) return CR_OK;
    fold.in[CR_IN_fold_bn_w]            = w;
    fold.in[CR_IN_fold_bn_gamma]        = from.in[CR_IN_bn_scale_bias_gamma];
    fold.in[CR_IN_fold_bn_beta]         = from.in[CR_IN_bn_scale_bias_beta];
    fold.in[CR_IN_fold_bn_running_mean] = from.in[CR_IN_bn_scale_bias_running_mean];
    fold.in[CR_IN_fold_bn_running_var]  = from.in[CR_IN_bn_scale_bias_running_var];
    fold.attr.bn                        = from.attr.bn;
    fold.out[CR_OUT_fold_bn_y]          = new_output(f, &fold, CR_OUT_fold_bn_y, name, "w");
    fold.out[CR_OUT_fold_bn_bias]       = new_output(f, &fold, CR_OUT_fold_bn_bias, name, "bias");
    if (p->failed) return CR_NO_MEMORY(sizeof *p->tensor);
    fused.in[CR_IN_conv_w]    = fold.out[CR_OUT_fold_bn_y];
    fused.in[CR_IN_conv_bias] = fold.out[CR_OUT_fold_bn_bias];
    fused.out[CR_OUT_conv_y]  = op_at(f, bn)->out[CR_OUT_bn_apply_y];
    if (!accepted(f, &fold) || !accepted(f, &fused)) return CR_OK;
    cr_edit_remove(&f->edit, conv);
    cr_edit_replace(&f->edit, scale_bias, &fold);
    cr_edit_replace(&f->edit, bn, &fused);
    return CR_OK;
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
static cr_status try_teacher_bias(struct folder *f, int bn) {
    const struct cr_program *p     = f->edit.program;
    const struct cr_op      *apply = op_at(f, bn);
    char                     name[256];
    const int                scale_bias = apply->in[CR_IN_bn_apply_scale_bias];
    const int                conv       = cr_edit_private_writer(&f->edit, apply->in[CR_IN_bn_apply_x], CR_OP_conv);
    if (p->tensor[scale_bias].buffer != CR_BUFFER_TEACHER || conv == CR_NONE) return CR_OK;
    if (!cr_edit_can_move(&f->edit, conv, bn)) return CR_OK;
    struct cr_op fused = *op_at(f, conv);
    bias_name(p, scale_bias, name);
    fused.in[CR_IN_conv_bias] = cr_tensor_find(p, name);
    fused.out[CR_OUT_conv_y]  = apply->out[CR_OUT_bn_apply_y];
    if (fused.in[CR_IN_conv_bias] == CR_NONE || !accepted(f, &fused)) return CR_OK;
    cr_edit_remove(&f->edit, conv);
    cr_edit_replace(&f->edit, bn, &fused);
    return CR_OK;
}

static cr_status try_fold(struct folder *f, int bn) {
    const struct cr_op *apply = op_at(f, bn);
    if (apply->in[CR_IN_bn_apply_add] != CR_NONE || apply->attr.bn.relu) return CR_OK;
    const int conv       = cr_edit_private_writer(&f->edit, apply->in[CR_IN_bn_apply_x], CR_OP_conv);
    const int scale_bias = cr_edit_private_writer(&f->edit, apply->in[CR_IN_bn_apply_scale_bias], CR_OP_bn_scale_bias);
    if (conv == CR_NONE || scale_bias == CR_NONE || !cr_edit_can_move(&f->edit, conv, bn)) return CR_OK;
    if (!cr_op_uses_only(op_at(f, conv), 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y)) return CR_OK;
    return fold_bn(f, conv, bn, scale_bias);
}

/* ---- conv with a bias -> add, relu ---- */

static bool is_folded(const struct cr_op *op) {
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_bias] != CR_NONE && !op->attr.conv.relu;
}

/* The folded convolution that writes `tensor` for one reader only and can run at `root`; CR_NONE: none. */
static int conv_before(const struct folder *f, int tensor, int root) {
    const int conv = cr_edit_private_writer(&f->edit, tensor, CR_OP_conv);
    return conv != CR_NONE && is_folded(op_at(f, conv)) && cr_edit_can_move(&f->edit, conv, root) ? conv : CR_NONE;
}

/* Returns whether the fused op is no slower than the separate ops. A convolution with an add may take longer than a
 * separate add. */
static cr_status is_no_slower(struct folder *f, const struct cr_op *fused, const int *parts, int count,
                              bool *no_slower) {
    double separate_s = 0, fused_s = 0;
    *no_slower = accepted(f, fused);
    if (!*no_slower) return CR_OK;
    for (int i = 0; i < count; i++) CR_TRY(seconds_of(f, op_at(f, parts[i]), &separate_s));
    CR_TRY(seconds_of(f, fused, &fused_s));
    *no_slower = fused_s <= separate_s;
    return CR_OK;
}

/* Replaces parts[0 .. count - 1] by `fused`, at the place of the last part, when the fused op is no slower. */
static cr_status fuse_parts(struct folder *f, struct cr_op *fused, const int *parts, int count) {
    const int root = parts[count - 1];
    bool      no_slower;
    fused->out[CR_OUT_conv_y] = op_at(f, root)->out[0];
    CR_TRY(is_no_slower(f, fused, parts, count, &no_slower));
    if (!no_slower) return CR_OK;
    for (int i = 0; i < count - 1; i++) cr_edit_remove(&f->edit, parts[i]);
    cr_edit_replace(&f->edit, root, fused);
    return CR_OK;
}

/* Fuses op `add`, a sum, with a folded convolution that computes one of its operands. root is `add`, or the ReLU of the
 * sum, which is then fused too. */
static cr_status fuse_add(struct folder *f, int add, int root) {
    const struct cr_op sum  = *op_at(f, add);
    const bool         relu = root != add;
    for (int side = 1; side >= 0; side--) { /* operand a first: its convolution is usually the later one */
        const int operand = side ? sum.in[CR_IN_add_a] : sum.in[CR_IN_add_b],
                  other   = side ? sum.in[CR_IN_add_b] : sum.in[CR_IN_add_a];
        const int conv    = conv_before(f, operand, root);
        if (conv == CR_NONE || op_at(f, conv)->in[CR_IN_conv_add] != CR_NONE) continue;
        struct cr_op fused       = *op_at(f, conv);
        fused.in[CR_IN_conv_add] = other;
        fused.attr.conv.relu |= relu;
        CR_TRY(fuse_parts(f, &fused, (const int[]){conv, add, root}, relu ? 3 : 2));
        if (op_at(f, root)->kind == CR_OP_conv) return CR_OK;
    }
    return CR_OK;
}

static cr_status try_add(struct folder *f, int root) {
    return fuse_add(f, root, root);
}

static cr_status try_relu(struct folder *f, int root) {
    const int conv = conv_before(f, op_at(f, root)->in[CR_IN_relu_x], root);
    if (conv == CR_NONE) return CR_OK;
    struct cr_op fused   = *op_at(f, conv);
    fused.attr.conv.relu = true;
    return fuse_parts(f, &fused, (const int[]){conv, root}, 2);
}

/* add -> relu behind a folded convolution in one step: a kernel may support bias + add + ReLU but not bias + add. */
static cr_status try_add_relu(struct folder *f, int root) {
    const int add = cr_edit_private_writer(&f->edit, op_at(f, root)->in[CR_IN_relu_x], CR_OP_add);
    return add == CR_NONE || !cr_edit_can_move(&f->edit, add, root) ? CR_OK : fuse_add(f, add, root);
}

/* ---- the pass ---- */

bool cr_program_trains(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_loss_grad || p->op[i].kind == CR_OP_head || p->op[i].kind == CR_OP_bn_finalize)
            return true;
    return false;
}

static cr_status for_each(struct folder *f, enum cr_op_kind kind, cr_status (*visit)(struct folder *, int)) {
    for (int i = 0; i < f->edit.program->ops; i++)
        if (!f->edit.removed[i] && op_at(f, i)->kind == kind) CR_TRY(visit(f, i));
    return CR_OK;
}

/* Adds the tensors of the value buffer before the edit counts readers and writers. */
static cr_status find_filters(struct cr_program *p) {
    const int ops = p->ops;
    for (int i = 0; i < ops; i++)
        if (p->op[i].kind == CR_OP_conv) (void)trained_filter(p, p->op[i].in[CR_IN_conv_w]);
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

static cr_status fold_all(struct folder *f) {
    CR_TRY(for_each(f, CR_OP_bn_apply, cr_program_trains(f->edit.program) ? try_teacher_bias : try_fold));
    CR_TRY(for_each(f, CR_OP_relu, try_add_relu));
    CR_TRY(for_each(f, CR_OP_add, try_add));
    CR_TRY(for_each(f, CR_OP_relu, try_relu));
    return cr_edit_finish(&f->edit);
}

cr_status cr_pass_fold(struct cr_program *p, const struct cr_cost_model *cost_model) {
    struct folder f      = {.cost_model = cost_model};
    const bool    trains = cr_program_trains(p);
    if (!p->store || (trains && !p->store->teacher_elems)) return CR_OK;
    CR_TRY(trains ? find_teacher_biases(p) : find_filters(p));
    CR_TRY(cr_edit_open(&f.edit, p));
    cr_status status = fold_all(&f);
    cr_edit_close(&f.edit);
    return status;
}

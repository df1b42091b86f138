/* compiler/fusion/fold_bn.c: batch normalisation of a network that no longer learns is a factor and a summand a
 * channel: they go into the filter and the bias of the convolution before it, and the sum and the ReLU behind it go
 * into that convolution too (Jacob et al. 2018, section 3.2). For programs without gradients only.
 *
 *     conv -> bn_apply (coef of bn_scale_bias) [-> add] [-> relu]     becomes     fold_bn; conv with bias [, add] [,
 * relu]
 *
 * fold_bn stands where bn_scale_bias stood and depends on parameters only: cr_pass_hoist brings it to the front with
 * the casts, to be run once for many batches. The filter is folded from its f32 value, so 16-bit programs round it
 * once. */
#include "compiler/compiler.h"
#include "compiler/rewrite/rewrite.h"

#include <stdio.h>

struct fold {
    struct cr_edit              edit;
    const struct cr_cost_model *target;
};

static const struct cr_op *op_at(const struct fold *f, int index) {
    return &f->edit.program->op[index];
}

static bool accepted(const struct fold *f, const struct cr_op *op) {
    return !f->target->accepts || f->target->accepts(f->target->self, f->edit.program, op);
}

static cr_status seconds_of(const struct fold *f, const struct cr_op *op, double *sum) {
    double one = cr_op_seconds(f->target, f->edit.program, op);
    if (f->target->cost) CR_TRY(f->target->cost(f->target->self, f->edit.program, op, &one));
    *sum += one;
    return CR_OK;
}

/* The filter as it is trained: the value plane's, when `w` is its 16-bit copy. CR_NONE: no parameter. */
static int trained_filter(struct cr_program *p, int w) {
    const struct cr_tensor *t = &p->tensor[w];
    const int param = t->region == CR_REGION_STORE ? cr_param_store_find_offset(p->store, t->offset) : CR_NONE;
    return param == CR_NONE ? CR_NONE : cr_tensor_store(p, CR_BUFFER_VALUE, param);
}

/* ---- conv -> bn_apply ---- */

static int new_output(struct fold *f, const struct cr_op *op, int slot, const char *of, const char *what) {
    enum cr_dtype dtype;
    int64_t       dim[4];
    char          name[256];
    cr_op_infer(f->edit.program, op, slot, &dtype, dim);
    snprintf(name, sizeof name, "%s.%s", of, what);
    return cr_edit_tensor(&f->edit, name, dtype, dim);
}

/* The bn_scale_bias becomes fold_bn, the bn_apply the convolution with a bias; `conv` goes. */
static cr_status fold_bn(struct fold *f, int conv, int bn, int coef) {
    struct cr_program *p      = f->edit.program;
    struct cr_op       joined = *op_at(f, conv), fold = cr_op_make(CR_OP_fold_bn, op_at(f, coef)->layer);
    const struct cr_op from = *op_at(f, coef);
    const char        *name = p->tensor[joined.out[CR_OUT_conv_y]].name;
    const int          w    = trained_filter(p, joined.in[CR_IN_conv_w]);
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
    joined.in[CR_IN_conv_w]    = fold.out[CR_OUT_fold_bn_y];
    joined.in[CR_IN_conv_bias] = fold.out[CR_OUT_fold_bn_bias];
    joined.out[CR_OUT_conv_y]  = op_at(f, bn)->out[CR_OUT_bn_apply_y];
    if (!accepted(f, &fold) || !accepted(f, &joined)) return CR_OK;
    cr_edit_remove(&f->edit, conv);
    cr_edit_replace(&f->edit, coef, &fold);
    cr_edit_replace(&f->edit, bn, &joined);
    return CR_OK;
}

static cr_status try_fold(struct fold *f, int bn) {
    const struct cr_op *apply = op_at(f, bn);
    if (apply->in[CR_IN_bn_apply_add] != CR_NONE || apply->attr.bn.relu) return CR_OK;
    const int conv = cr_edit_private_writer(&f->edit, apply->in[CR_IN_bn_apply_x], CR_OP_conv);
    const int coef = cr_edit_private_writer(&f->edit, apply->in[CR_IN_bn_apply_scale_bias], CR_OP_bn_scale_bias);
    if (conv == CR_NONE || coef == CR_NONE || !cr_edit_can_move(&f->edit, conv, bn)) return CR_OK;
    if (!cr_op_uses_only(op_at(f, conv), 1u << CR_IN_conv_x | 1u << CR_IN_conv_w, 1u << CR_OUT_conv_y)) return CR_OK;
    return fold_bn(f, conv, bn, coef);
}

/* ---- conv with a bias -> add, relu ---- */

static bool is_folded(const struct cr_op *op) {
    return op->kind == CR_OP_conv && op->in[CR_IN_conv_bias] != CR_NONE && !op->attr.conv.relu;
}

/* The folded convolution that alone feeds `tensor`, and may be done at `root`. */
static int conv_behind(const struct fold *f, int tensor, int root) {
    const int conv = cr_edit_private_writer(&f->edit, tensor, CR_OP_conv);
    return conv != CR_NONE && is_folded(op_at(f, conv)) && cr_edit_can_move(&f->edit, conv, root) ? conv : CR_NONE;
}

/* A sum beside a convolution may cost more than a pass of its own over memory. */
static cr_status is_worth_it(struct fold *f, const struct cr_op *joined, const int *parts, int count, bool *worth) {
    double apart = 0, together = 0;
    *worth = accepted(f, joined);
    if (!*worth) return CR_OK;
    for (int i = 0; i < count; i++) CR_TRY(seconds_of(f, op_at(f, parts[i]), &apart));
    CR_TRY(seconds_of(f, joined, &together));
    *worth = together <= apart;
    return CR_OK;
}

/* `joined` does what the parts do, the last of which it replaces. */
static cr_status join(struct fold *f, struct cr_op *joined, const int *parts, int count) {
    const int root = parts[count - 1];
    bool      worth;
    joined->out[CR_OUT_conv_y] = op_at(f, root)->out[0];
    CR_TRY(is_worth_it(f, joined, parts, count, &worth));
    if (!worth) return CR_OK;
    for (int i = 0; i < count - 1; i++) cr_edit_remove(&f->edit, parts[i]);
    cr_edit_replace(&f->edit, root, joined);
    return CR_OK;
}

static cr_status try_add(struct fold *f, int root) {
    const struct cr_op sum = *op_at(f, root);
    for (int side = 1; side >= 0; side--) { /* the later operand first: its convolution stands nearer */
        const int own   = side ? sum.in[CR_IN_add_a] : sum.in[CR_IN_add_b],
                  other = side ? sum.in[CR_IN_add_b] : sum.in[CR_IN_add_a];
        const int conv  = conv_behind(f, own, root);
        if (conv == CR_NONE || op_at(f, conv)->in[CR_IN_conv_add] != CR_NONE) continue;
        struct cr_op joined       = *op_at(f, conv);
        joined.in[CR_IN_conv_add] = other;
        CR_TRY(join(f, &joined, (const int[]){conv, root}, 2));
        if (op_at(f, root)->kind == CR_OP_conv) return CR_OK;
    }
    return CR_OK;
}

static cr_status try_relu(struct fold *f, int root) {
    const int conv = conv_behind(f, op_at(f, root)->in[CR_IN_relu_x], root);
    if (conv == CR_NONE) return CR_OK;
    struct cr_op joined   = *op_at(f, conv);
    joined.attr.conv.relu = true;
    return join(f, &joined, (const int[]){conv, root}, 2);
}

/* add -> relu behind a folded convolution at once: a row may know bias+add+ReLU and not bias+add. */
static cr_status try_add_relu(struct fold *f, int root) {
    const int add = cr_edit_private_writer(&f->edit, op_at(f, root)->in[CR_IN_relu_x], CR_OP_add);
    if (add == CR_NONE || !cr_edit_can_move(&f->edit, add, root)) return CR_OK;
    const struct cr_op sum = *op_at(f, add);
    for (int side = 1; side >= 0; side--) {
        const int own   = side ? sum.in[CR_IN_add_a] : sum.in[CR_IN_add_b],
                  other = side ? sum.in[CR_IN_add_b] : sum.in[CR_IN_add_a];
        const int conv  = conv_behind(f, own, root);
        if (conv == CR_NONE || op_at(f, conv)->in[CR_IN_conv_add] != CR_NONE) continue;
        struct cr_op joined       = *op_at(f, conv);
        joined.in[CR_IN_conv_add] = other;
        joined.attr.conv.relu     = true;
        CR_TRY(join(f, &joined, (const int[]){conv, add, root}, 3));
        if (op_at(f, root)->kind == CR_OP_conv) return CR_OK;
    }
    return CR_OK;
}

/* ---- the pass ---- */

bool cr_program_trains(const struct cr_program *p) {
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_loss_grad || p->op[i].kind == CR_OP_bn_finalize) return true;
    return false;
}

static cr_status walk(struct fold *f, enum cr_op_kind kind, cr_status (*visit)(struct fold *, int)) {
    for (int i = 0; i < f->edit.program->ops; i++)
        if (!f->edit.removed[i] && op_at(f, i)->kind == kind) CR_TRY(visit(f, i));
    return CR_OK;
}

/* New tensors of the store before the edit begins to count. */
static cr_status find_filters(struct cr_program *p) {
    const int ops = p->ops;
    for (int i = 0; i < ops; i++)
        if (p->op[i].kind == CR_OP_conv) (void)trained_filter(p, p->op[i].in[CR_IN_conv_w]);
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

static cr_status fold_all(struct fold *f) {
    CR_TRY(walk(f, CR_OP_bn_apply, try_fold));
    CR_TRY(walk(f, CR_OP_relu, try_add_relu));
    CR_TRY(walk(f, CR_OP_add, try_add));
    CR_TRY(walk(f, CR_OP_relu, try_relu));
    return cr_edit_finish(&f->edit);
}

cr_status cr_pass_fold(struct cr_program *p, const struct cr_cost_model *target) {
    struct fold f = {.target = target};
    if (cr_program_trains(p) || !p->store) return CR_OK;
    CR_TRY(find_filters(p));
    CR_TRY(cr_edit_open(&f.edit, p));
    cr_status status = fold_all(&f);
    cr_edit_close(&f.edit);
    return status;
}

/* ---- what depends on parameters only ---- */

/* Kinds that may be done once for many batches, when all they read is the store or made by such. */
static bool may_be_early(enum cr_op_kind kind) {
    return kind == CR_OP_cast || kind == CR_OP_bn_scale_bias || kind == CR_OP_fold_bn || kind == CR_OP_s2d_filter ||
           kind == CR_OP_sparse_filter;
}

static bool is_constant(const struct cr_program *p, const struct cr_op *op, const bool *constant) {
    if (!may_be_early(op->kind)) return false;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int id = op->in[s];
        if (id >= 0 && p->tensor[id].region != CR_REGION_STORE && !constant[id]) return false;
    }
    return true;
}

/* Their results must outlive the batches. */
static void keep_results(struct cr_program *p) {
    for (int i = 0; i < p->hoisted; i++)
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (p->op[i].out[s] >= 0 && p->tensor[p->op[i].out[s]].region == CR_REGION_POOL)
                p->tensor[p->op[i].out[s]].keep = true;
}

cr_status cr_pass_hoist(struct cr_program *p) {
    if (cr_program_trains(p)) return CR_OK;
    bool         *constant = cr_alloc((size_t)CR_MAX(p->tensors, 1), sizeof *constant);
    struct cr_op *late     = cr_alloc((size_t)CR_MAX(p->ops, 1), sizeof *late);
    if (!constant || !late) {
        cr_free(constant);
        cr_free(late);
        return CR_NO_MEMORY((size_t)p->ops * sizeof *late);
    }
    int early = 0, rest = 0;
    for (int i = 0; i < p->ops; i++) {
        const struct cr_op op = p->op[i];
        if (!is_constant(p, &op, constant)) {
            late[rest++] = op;
            continue;
        }
        for (int s = 0; s < CR_OP_OUT_MAX; s++)
            if (op.out[s] >= 0) constant[op.out[s]] = true;
        p->op[early++] = op; /* never beyond i */
    }
    for (int i = 0; i < rest; i++) p->op[early + i] = late[i];
    p->hoisted = early;
    keep_results(p);
    cr_free(constant);
    cr_free(late);
    return CR_OK;
}

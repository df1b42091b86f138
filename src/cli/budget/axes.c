/* cli/budget/axes.c: finds the channels (widths) of each tensor of a compiled program. See cli/budget/budget.h.
 *
 * The groups are those of the program before compiler passes. A tensor of the compiled program is found there by
 * its name. What passes have added (folded filters, 8-bit filters, sums with coefficients) gets its channels from
 * the tensors that it is computed from. */
#include "cli/budget/budget.h"

#include <string.h>

static int *slot(struct cr_budget_axes *a, int tensor, enum cr_channel_axis axis) {
    return &a->bins_of[tensor * CR_CHANNEL_AXES + (int)axis];
}

static int64_t size_of(const struct cr_tensor *t, enum cr_channel_axis axis) {
    return t->dim[axis == CR_AXIS_K ? 0 : 3];
}

/* The filter slots of ops that compute a convolution, and the slots of the results; returns their number. CR_NONE: the
 * result is not stored. */
static int filters_of(const struct cr_op *op, int in[CR_BUDGET_OP_LAYERS], int out[CR_BUDGET_OP_LAYERS]) {
    int count = 2; /* of a pair */
    switch (op->kind) {
    case CR_OP_conv:
    case CR_OP_group_conv: in[0] = CR_IN_conv_w, out[0] = CR_OUT_conv_y; return 1;
    case CR_OP_dense: in[0] = CR_IN_dense_w, out[0] = CR_OUT_dense_y; return 1;
    case CR_OP_conv_pool: in[0] = CR_IN_conv_pool_w, out[0] = CR_OUT_conv_pool_y; return 1;
    case CR_OP_qconv: in[0] = CR_IN_qconv_w, out[0] = CR_OUT_qconv_y; return 1;
    case CR_OP_conv_pair:
        in[0] = CR_IN_conv_pair_w, out[0] = CR_OUT_conv_pair_y;
        in[1] = CR_IN_conv_pair_next_w, out[1] = CR_OUT_conv_pair_z;
        if (op->in[CR_IN_conv_pair_first_w] >= 0) in[count] = CR_IN_conv_pair_first_w, out[count++] = CR_NONE;
        if (op->in[CR_IN_conv_pair_shortcut_w] >= 0) in[count] = CR_IN_conv_pair_shortcut_w, out[count++] = CR_NONE;
        return count;
    case CR_OP_qconv_pair:
        in[0] = CR_IN_qconv_pair_w, out[0] = CR_OUT_qconv_pair_y;
        in[1] = CR_IN_qconv_pair_next_w, out[1] = CR_OUT_qconv_pair_z;
        in[2] = CR_IN_qconv_pair_first_w, out[2] = CR_NONE;
        return op->in[CR_IN_qconv_pair_first_w] < 0 ? 2 : 3;
    default: return 0;
    }
}

/* ---- finding the channels ---- */

/* The 16-bit copy of a parameter has the name of the parameter in the trace, which is in f32. */
static const char *name_of(const struct cr_program *p, const struct cr_tensor *t) {
    return t->buffer == (int)CR_BUFFER_HALF && t->param != CR_NONE ? p->store->param[t->param].name : t->name;
}

/* Tensors of the same name and shape. The trace has its channels for one image, so the batch differs. */
static cr_status find_by_name(struct cr_budget_axes *a, int tensor, const char *const *names, int layers) {
    const struct cr_program *plain = &a->source->program;
    const struct cr_tensor  *t     = &a->program->tensor[tensor];
    const char              *name  = name_of(a->program, t);
    const int                same  = cr_tensor_find(plain, name);
    if (same == CR_NONE) return CR_OK;
    for (int axis = 0; axis < CR_CHANNEL_AXES; axis++) {
        const bool store = t->region == CR_REGION_STORE;
        if (size_of(t, axis) != size_of(&plain->tensor[same], axis) || (axis == CR_AXIS_K && !store)) continue;
        struct cr_width_bins *bins = &a->bins[a->count];
        CR_TRY(cr_width_bins_of(&a->source->widths, same, axis, bins));
        *slot(a, tensor, axis) = a->count++;
    }
    for (int l = 0; l < layers; l++)
        if (t->region == CR_REGION_STORE && strcmp(name, names[l]) == 0) a->layer_of[tensor] = l;
    return CR_OK;
}

/* What ops on parameters write: filters keep both axes, vectors have the channels of axis K. */
static void follow_hoisted(struct cr_budget_axes *a, const struct cr_op *op, int to) {
    const struct cr_tensor *t = &a->program->tensor[to];
    for (int s = 0; s < CR_OP_IN_MAX; s++) {
        if (op->in[s] < 0) continue;
        const struct cr_tensor *from = &a->program->tensor[op->in[s]];
        const int               k = *slot(a, op->in[s], CR_AXIS_K), c = *slot(a, op->in[s], CR_AXIS_C);
        const bool              filter = a->layer_of[op->in[s]] != CR_NONE;
        if (filter && k != CR_NONE && t->dim[0] == from->dim[0] && *slot(a, to, CR_AXIS_K) == CR_NONE) {
            *slot(a, to, CR_AXIS_K) = k;
            a->layer_of[to]         = a->layer_of[op->in[s]];
            if (c != CR_NONE && t->dim[3] == from->dim[3]) *slot(a, to, CR_AXIS_C) = c;
            return;
        }
        if (filter && k != CR_NONE && t->dim[3] == from->dim[0]) *slot(a, to, CR_AXIS_C) = k;
        if (!filter && c != CR_NONE && t->dim[3] == from->dim[3] && *slot(a, to, CR_AXIS_C) == CR_NONE)
            *slot(a, to, CR_AXIS_C) = c;
    }
}

/* Outputs of convolutions have the channels of axis K of the filter, other outputs those of an input. */
static void follow_op(struct cr_budget_axes *a, const struct cr_op *op) {
    int       in[CR_BUDGET_OP_LAYERS], out[CR_BUDGET_OP_LAYERS];
    const int filters = filters_of(op, in, out);
    for (int f = 0; f < filters; f++)
        if (out[f] != CR_NONE && *slot(a, op->out[out[f]], CR_AXIS_C) == CR_NONE)
            *slot(a, op->out[out[f]], CR_AXIS_C) = *slot(a, op->in[in[f]], CR_AXIS_K);
    for (int o = 0; o < CR_OP_OUT_MAX && !filters; o++)
        for (int s = 0; op->out[o] >= 0 && s < CR_OP_IN_MAX; s++)
            if (op->in[s] >= 0 && *slot(a, op->out[o], CR_AXIS_C) == CR_NONE &&
                a->program->tensor[op->out[o]].dim[3] == a->program->tensor[op->in[s]].dim[3])
                *slot(a, op->out[o], CR_AXIS_C) = *slot(a, op->in[s], CR_AXIS_C);
}

cr_status cr_budget_axes_open(const struct cr_budget_source *source, const struct cr_program *p,
                              const char *const *names, int layers, struct cr_budget_axes *a) {
    const size_t tensors = (size_t)p->tensors + 1;
    *a                   = (struct cr_budget_axes){.source = source, .program = p};
    CR_ALLOC(a->bins_of, tensors * CR_CHANNEL_AXES);
    CR_ALLOC(a->bins, tensors * CR_CHANNEL_AXES);
    CR_ALLOC(a->layer_of, tensors);
    for (int t = 0; t < p->tensors; t++) {
        a->layer_of[t] = *slot(a, t, CR_AXIS_K) = *slot(a, t, CR_AXIS_C) = CR_NONE;
        CR_TRY(find_by_name(a, t, names, layers));
    }
    for (int i = 0; i < p->ops; i++) {
        if (i >= p->hoisted) {
            follow_op(a, &p->op[i]);
            continue;
        }
        for (int o = 0; o < CR_OP_OUT_MAX; o++)
            if (p->op[i].out[o] >= 0) follow_hoisted(a, &p->op[i], p->op[i].out[o]);
    }
    return CR_OK;
}

void cr_budget_axes_close(struct cr_budget_axes *a) {
    for (int i = 0; i < a->count; i++) cr_free(a->bins[i].bin);
    cr_free(a->bins_of);
    cr_free(a->bins);
    cr_free(a->layer_of);
}

/* ---- one op ---- */

/* Tensors of the op; returns their number. */
static int tensors_of(const struct cr_op *op, int id[CR_OP_IN_MAX + CR_OP_OUT_MAX]) {
    int count = 0;
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) id[count++] = op->in[s];
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) id[count++] = op->out[s];
    return count;
}

int cr_budget_op_groups(const struct cr_budget_axes *a, const struct cr_op *op, int *group) {
    const struct cr_widths *w = &a->source->widths;
    int                     id[CR_OP_IN_MAX + CR_OP_OUT_MAX], count = 0;
    const int               tensors = tensors_of(op, id);
    for (int k = 0; k < w->groups->groups; k++) {
        bool has = false;
        for (int i = 0; i < tensors * CR_CHANNEL_AXES && w->levels[k] > 1; i++) {
            const int at = a->bins_of[id[i / CR_CHANNEL_AXES] * CR_CHANNEL_AXES + i % CR_CHANNEL_AXES];
            for (int b = 0; at != CR_NONE && b < a->bins[at].bins; b++) has |= a->bins[at].bin[b].group == k;
        }
        if (has) group[count++] = k;
    }
    return count;
}

int cr_budget_op_layers(const struct cr_budget_axes *a, const struct cr_op *op, int layer[CR_BUDGET_OP_LAYERS]) {
    int       in[CR_BUDGET_OP_LAYERS], out[CR_BUDGET_OP_LAYERS], count = 0;
    const int filters = filters_of(op, in, out);
    for (int f = 0; f < filters; f++)
        if (a->layer_of[op->in[in[f]]] != CR_NONE) layer[count++] = a->layer_of[op->in[in[f]]];
    return count;
}

void cr_budget_resize(const struct cr_budget_axes *a, struct cr_program *p, const struct cr_cost_model *model,
                      const struct cr_op *op, const int *level) {
    int       id[CR_OP_IN_MAX + CR_OP_OUT_MAX];
    const int tensors = tensors_of(op, id);
    for (int i = 0; i < tensors; i++) {
        struct cr_tensor *t = &p->tensor[id[i]];
        for (int axis = 0; axis < CR_CHANNEL_AXES; axis++) {
            const int at = a->bins_of[id[i] * CR_CHANNEL_AXES + axis];
            if (at != CR_NONE) t->dim[axis == CR_AXIS_K ? 0 : 3] = cr_width_of(&a->bins[at], level);
        }
        t->bytes = (size_t)cr_tensor_elems(t) * cr_dtype_bytes(t->dtype);
    }
    cr_budget_resize_packed(p, model, op);
}

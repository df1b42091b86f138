/* pruning/channel_groups.c: traces which channels can only be removed together. See pruning/channel_groups.h. */
#include "pruning/channel_groups.h"

#include <stdlib.h>

/* Slices are joined in sets (a disjoint-set forest). A property of a slice is one of its set. */
struct trace {
    const struct cr_program *p;
    int                     *first;          /* [tensors][CR_CHANNEL_AXES] */
    int                     *parent;         /* [slices] */
    bool                    *fixed;          /* [slices] the set of this slice cannot be removed */
    bool                    *before, *after; /* [slices] pad_shortcut adds the set on this side */
    int                      slices;
    struct cr_arena          arena; /* holds the arrays but `first`, which the groups keep */
};

static int64_t axis_size(const struct cr_program *p, int tensor, int axis) {
    const struct cr_tensor *t = &p->tensor[tensor];
    if (axis == CR_AXIS_C) return t->dim[3];
    return t->region == CR_REGION_STORE ? t->dim[0] : 0;
}

static int root_of(struct trace *t, int slice) {
    while (t->parent[slice] != slice) {
        t->parent[slice] = t->parent[t->parent[slice]];
        slice            = t->parent[slice];
    }
    return slice;
}

static int slice_of(const struct trace *t, int tensor, int axis, int64_t index) {
    return t->first[tensor * CR_CHANNEL_AXES + axis] + (int)index;
}

/* The smaller slice becomes the root, so that the result does not depend on the order of the ops. */
static void join_slices(struct trace *t, int a, int b) {
    a = root_of(t, a);
    b = root_of(t, b);
    if (a < b)
        t->parent[b] = a;
    else
        t->parent[a] = b;
}

/* ---- ops ---- */

static void join(struct trace *t, int a, int axis, int b) {
    const int64_t count = axis_size(t->p, b, CR_AXIS_C);
    CR_ASSERT(axis_size(t->p, a, axis) == count);
    for (int64_t c = 0; c < count; c++) join_slices(t, slice_of(t, a, axis, c), slice_of(t, b, CR_AXIS_C, c));
}

static void keep(struct trace *t, int tensor) {
    for (int axis = 0; axis < CR_CHANNEL_AXES; axis++)
        for (int64_t i = 0; i < axis_size(t->p, tensor, axis); i++) t->fixed[slice_of(t, tensor, axis, i)] = true;
}

static void keep_all(struct trace *t, const struct cr_op *op) {
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] >= 0) keep(t, op->in[s]);
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] >= 0) keep(t, op->out[s]);
}

static void trace_weights(struct trace *t, int x, int w, int bias, int y) {
    join(t, w, CR_AXIS_C, x);
    join(t, w, CR_AXIS_K, y);
    if (bias >= 0) join(t, bias, CR_AXIS_C, y);
}

static void trace_pad_shortcut(struct trace *t, const struct cr_op *op) {
    const int     x = op->in[CR_IN_pad_shortcut_x], y = op->out[CR_OUT_pad_shortcut_y];
    const int64_t front = op->attr.conv.pad_c, count = axis_size(t->p, x, CR_AXIS_C);
    for (int64_t c = 0; c < axis_size(t->p, y, CR_AXIS_C); c++) {
        const int slice = slice_of(t, y, CR_AXIS_C, c);
        if (c >= front && c < front + count)
            join_slices(t, slice, slice_of(t, x, CR_AXIS_C, c - front));
        else
            (c < front ? t->before : t->after)[slice] = true;
    }
}

static void trace_op(struct trace *t, const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_conv:
        CR_ASSERT(op->in[CR_IN_conv_scale_bias] < 0 && op->in[CR_IN_conv_bias] < 0 && op->in[CR_IN_conv_add] < 0);
        trace_weights(t, op->in[CR_IN_conv_x], op->in[CR_IN_conv_w], CR_NONE, op->out[CR_OUT_conv_y]);
        break;
    case CR_OP_dense:
        trace_weights(t, op->in[CR_IN_dense_x], op->in[CR_IN_dense_w], op->in[CR_IN_dense_b], op->out[CR_OUT_dense_y]);
        break;
    case CR_OP_group_conv:
        join(t, op->in[CR_IN_group_conv_w], CR_AXIS_K, op->out[CR_OUT_group_conv_y]);
        keep_all(t, op);
        break;
    case CR_OP_pad_shortcut: trace_pad_shortcut(t, op); break;
    case CR_OP_bn_scale_bias:
    case CR_OP_bn_apply:
    case CR_OP_relu:
    case CR_OP_maxpool:
    case CR_OP_avgpool:
    case CR_OP_avgpool2x2:
    case CR_OP_blurpool:
    case CR_OP_add:
    case CR_OP_se_scale: /* all tensors have the same channels */
        for (int s = 0; s < CR_OP_IN_MAX; s++)
            if (op->in[s] >= 0) join(t, op->in[s], CR_AXIS_C, op->out[0]);
        break;
    default: keep_all(t, op); /* channel_conv, normalize, loss */
    }
}

/* ---- groups ---- */

struct unit {
    uint64_t axes; /* hash of the axes that have a slice of the unit */
    int      last; /* last of these axes */
    bool     fixed, before, after;
};

static uint64_t hash_of(uint64_t axis) {
    axis = (axis + 1) * 0x9e3779b97f4a7c15u;
    axis = (axis ^ axis >> 30) * 0xbf58476d1ce4e5b9u;
    axis = (axis ^ axis >> 27) * 0x94d049bb133111ebu;
    return axis ^ axis >> 31;
}

/* Numbers the sets by their first slices and collects their properties. */
static void make_units(struct trace *t, struct cr_channel_groups *g, struct unit *unit) {
    for (int s = 0; s < t->slices; s++) {
        const int root = root_of(t, s);
        g->slice[s]    = root == s ? g->units++ : g->slice[root];
        struct unit *u = &unit[g->slice[s]];
        u->fixed |= t->fixed[s];
        u->before |= t->before[s];
        u->after |= t->after[s];
    }
    for (int i = 0; i < g->units; i++) unit[i].last = CR_NONE;
    for (int a = 0; a < t->p->tensors * CR_CHANNEL_AXES; a++)
        for (int64_t i = 0; t->first[a] >= 0 && i < axis_size(t->p, a / CR_CHANNEL_AXES, a % CR_CHANNEL_AXES); i++) {
            struct unit *u = &unit[g->slice[t->first[a] + i]];
            u->fixed |= u->last == a; /* two slices of one axis: a width would lose two channels at once */
            u->last = a;
            u->axes += hash_of((uint64_t)a);
        }
}

/* Name of the first layer with a parameter whose outputs are the unit. */
static const char *group_name(const struct cr_channel_groups *g, int unit) {
    for (int i = 0; i < g->program->ops; i++) {
        const struct cr_op *op = &g->program->op[i];
        const int           w  = op->kind == CR_OP_conv    ? op->in[CR_IN_conv_w]
                                 : op->kind == CR_OP_dense ? op->in[CR_IN_dense_w]
                                                           : CR_NONE;
        for (int64_t k = 0; w >= 0 && k < g->program->tensor[w].dim[0]; k++)
            if (cr_channel_unit(g, w, CR_AXIS_K, k) == unit) return g->program->layer[op->layer];
    }
    return "";
}

static void make_groups(struct cr_channel_groups *g, const struct unit *unit, uint64_t *axes) {
    for (int i = 0; i < g->units; i++) {
        const bool fixed = unit[i].fixed || (unit[i].before && unit[i].after);
        int        k     = 0;
        g->group_of[i]   = CR_NONE;
        g->behind[i]     = unit[i].after;
        if (fixed) continue;
        while (k < g->groups && axes[k] != unit[i].axes) k++;
        if (k == g->groups) {
            const char *name = group_name(g, i);
            if (!*name) continue; /* the trace found a tensor that no layer writes */
            axes[g->groups++] = unit[i].axes;
            g->group[k].name  = name;
        }
        g->group_of[i] = k;
        g->group[k].units++;
        g->group[k].halves |= unit[i].before || unit[i].after;
    }
}

static cr_status number_slices(struct trace *t, struct cr_arena *arena) {
    int64_t slices = 0;
    CR_ARENA_ALLOC(arena, t->first, (size_t)t->p->tensors * CR_CHANNEL_AXES);
    for (int a = 0; a < t->p->tensors * CR_CHANNEL_AXES; a++) {
        const int64_t size = axis_size(t->p, a / CR_CHANNEL_AXES, a % CR_CHANNEL_AXES);
        t->first[a]        = size ? (int)slices : CR_NONE;
        slices += size;
        if (slices > INT32_MAX) return CR_FAIL(CR_ERR_CONFIG, "the network has too many channels to be traced");
    }
    t->slices = (int)slices;
    CR_ARENA_ALLOC(&t->arena, t->parent, (size_t)slices);
    CR_ARENA_ALLOC(&t->arena, t->fixed, (size_t)slices);
    CR_ARENA_ALLOC(&t->arena, t->before, (size_t)slices);
    CR_ARENA_ALLOC(&t->arena, t->after, (size_t)slices);
    for (int s = 0; s < t->slices; s++) t->parent[s] = s;
    return CR_OK;
}

static cr_status trace(struct trace *t, struct cr_channel_groups *g) {
    struct unit *unit;
    uint64_t    *axes;
    CR_TRY(number_slices(t, &g->arena));
    for (int i = 0; i < t->p->ops; i++) trace_op(t, &t->p->op[i]);
    const size_t slices = (size_t)t->slices;
    g->first            = t->first;
    CR_ARENA_ALLOC(&g->arena, g->slice, slices);
    CR_ARENA_ALLOC(&g->arena, g->group_of, slices);
    CR_ARENA_ALLOC(&g->arena, g->behind, slices);
    CR_ARENA_ALLOC(&g->arena, g->group, slices);
    CR_ARENA_ALLOC(&t->arena, unit, slices);
    CR_ARENA_ALLOC(&t->arena, axes, slices);
    make_units(t, g, unit);
    make_groups(g, unit, axes);
    return CR_OK;
}

cr_status cr_channel_groups_trace(const struct cr_program *p, struct cr_channel_groups *out) {
    struct trace             t      = {.p = p};
    struct cr_channel_groups g      = {.program = p};
    const cr_status          status = trace(&t, &g);
    cr_arena_free(&t.arena);
    if (status == CR_OK)
        *out = g;
    else
        cr_channel_groups_free(&g);
    return status;
}

void cr_channel_groups_free(struct cr_channel_groups *g) {
    cr_arena_free(&g->arena);
    *g = (struct cr_channel_groups){0};
}

int cr_channel_unit(const struct cr_channel_groups *g, int tensor, enum cr_channel_axis axis, int64_t index) {
    const int first = g->first[tensor * CR_CHANNEL_AXES + axis];
    return first == CR_NONE ? CR_NONE : g->slice[first + index];
}

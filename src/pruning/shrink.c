/* pruning/shrink.c: channel pruning: chooses the channels to remove, and copies the other parameters. See shrink.h. */
#include "pruning/shrink.h"
#include "pruning/pruning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP_WORTH = 10000 }; /* a step saves at least 1 / STEP_WORTH of the multiply-adds */

static int param_tensor(const struct cr_program *p, const struct cr_param_store *store, int param) {
    const bool running = cr_param_is_running(store->param[param].role);
    return cr_tensor_store_find(p, running ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE, param);
}

/* ---- importance ---- */

/* Adds the squares of all weights, or the magnitudes of all gammas, to the units that they belong to. */
static void add_param(struct cr_shrink *s, int tensor, const struct cr_param *q, enum cr_prune_importance importance,
                      const float *value) {
    const int64_t inner = q->dim[1] * q->dim[2] * q->dim[3], C = q->dim[3];
    const bool    l2 = importance == CR_PRUNE_IMPORTANCE_L2;
    if (l2 ? q->role != CR_ROLE_CONV && q->role != CR_ROLE_DENSE_WEIGHT : q->role != CR_ROLE_GAMMA) return;
    for (int64_t i = 0; i < q->elems; i++) {
        const double w = (double)value[q->offset + i], x = l2 ? w * w : fabs(w);
        if (l2) s->importance[cr_channel_unit(s->groups, tensor, CR_AXIS_K, i / inner)] += x;
        s->importance[cr_channel_unit(s->groups, tensor, CR_AXIS_C, i % C)] += x;
    }
}

/* Divides by the means of the groups. Groups without any importance are kept: nothing is known of them. */
static void normalise(struct cr_shrink *s) {
    const struct cr_channel_groups *g = s->groups;
    for (int k = 0; k < g->groups; k++) {
        double sum = 0;
        for (int u = 0; u < g->units; u++) sum += g->group_of[u] == k ? s->importance[u] : 0;
        s->keeps[k] = !(sum > 0 && isfinite(sum));
        for (int u = 0; u < g->units && !s->keeps[k]; u++)
            if (g->group_of[u] == k) s->importance[u] *= g->group[k].units / sum;
    }
}

cr_status cr_shrink_open(const struct cr_channel_groups *g, const struct cr_param_store *store,
                         enum cr_prune_importance importance, const float *value, const double *taylor,
                         struct cr_shrink *out) {
    struct cr_shrink s = {.groups     = g,
                          .importance = cr_alloc((size_t)g->units + 1, sizeof *s.importance),
                          .removed    = cr_alloc((size_t)g->units + 1, sizeof *s.removed),
                          .width      = cr_alloc((size_t)g->groups + 1, sizeof *s.width),
                          .keeps      = cr_alloc((size_t)g->groups + 1, sizeof *s.keeps)};
    if (!s.importance || !s.removed || !s.width || !s.keeps) {
        cr_shrink_free(&s);
        return CR_NO_MEMORY((size_t)g->units * sizeof *s.importance);
    }
    for (int i = 0; i < store->params && importance != CR_PRUNE_IMPORTANCE_TAYLOR; i++) {
        const int tensor = param_tensor(g->program, store, i);
        if (tensor != CR_NONE) add_param(&s, tensor, &store->param[i], importance, value);
    }
    for (int u = 0; u < g->units && importance != CR_PRUNE_IMPORTANCE_BN; u++)
        s.importance[u] = sqrt(importance == CR_PRUNE_IMPORTANCE_TAYLOR ? taylor[u] : s.importance[u]);
    normalise(&s);
    for (int k = 0; k < g->groups; k++) s.width[k] = g->group[k].units;
    *out = s;
    return CR_OK;
}

void cr_shrink_free(struct cr_shrink *s) {
    cr_free(s->importance);
    cr_free(s->removed);
    cr_free(s->width);
    cr_free(s->keeps);
    *s = (struct cr_shrink){0};
}

/* ---- multiply-adds ---- */

struct axis {
    int64_t width; /* channels that are left */
    bool   *has;   /* [groups] the axis has the units of this group */
};
struct weighted_op {
    double      window; /* positions of the output times positions of the filter */
    struct axis axis[CR_CHANNEL_AXES];
};
struct step {
    int group, width; /* the width before */
};
struct choice {
    struct cr_shrink          *shrink;
    struct step               *step; /* [steps] that were taken */
    int                        steps;
    bool                      *needed; /* [groups] the last step of the group cannot be undone */
    struct weighted_op        *op;
    int                        ops;
    int                       *order, *side; /* units by group, then by importance; first of each group in `side` */
    bool                      *has;          /* memory of axis.has */
    const struct cr_multiples *multiples;
    struct cr_arena            arena; /* holds the arrays */
};

static void describe_axis(const struct cr_channel_groups *g, int tensor, enum cr_channel_axis a, int64_t size,
                          struct axis *axis) {
    axis->width = size;
    for (int64_t i = 0; i < size; i++) {
        const int group = g->group_of[cr_channel_unit(g, tensor, a, i)];
        if (group != CR_NONE) axis->has[group] = true;
    }
}

static double op_macs(const struct weighted_op *op, int64_t k, int64_t c) {
    return op->window * (double)(op->axis[CR_AXIS_K].width - k) * (double)(op->axis[CR_AXIS_C].width - c);
}

/* Multiply-adds that the network loses with `count` units of group `k`; a negative count adds units. */
static double saved(const struct choice *c, int k, int count) {
    double sum = 0;
    for (int i = 0; i < c->ops; i++) {
        const struct axis *axis = c->op[i].axis;
        sum += op_macs(&c->op[i], 0, 0) -
               op_macs(&c->op[i], axis[CR_AXIS_K].has[k] ? count : 0, axis[CR_AXIS_C].has[k] ? count : 0);
    }
    return sum;
}

static void describe_ops(struct choice *c) {
    const struct cr_channel_groups *g = c->shrink->groups;
    const struct cr_program        *p = g->program;
    for (int i = 0; i < p->ops; i++) {
        if (!cr_op_has_weights(&p->op[i])) continue;
        const int               t = p->op[i].in[CR_IN_conv_w];
        const struct cr_tensor *w = &p->tensor[t], *y = &p->tensor[p->op[i].out[0]];
        struct weighted_op     *o = &c->op[c->ops++];
        o->window                 = (double)(y->dim[0] * y->dim[1] * y->dim[2] * w->dim[1] * w->dim[2]);
        for (int a = 0; a < CR_CHANNEL_AXES; a++)
            o->axis[a].has = c->has + ((size_t)(c->ops - 1) * CR_CHANNEL_AXES + (size_t)a) * (size_t)g->groups;
        describe_axis(g, t, CR_AXIS_K, w->dim[0], &o->axis[CR_AXIS_K]);
        describe_axis(g, t, CR_AXIS_C, w->dim[3], &o->axis[CR_AXIS_C]);
    }
}

/* ---- the choice ---- */

static int by_importance(const void *a, const void *b) {
    const struct cr_ranked_unit *x = a, *y = b;
    if (x->importance != y->importance) return x->importance < y->importance ? -1 : 1;
    return x->unit - y->unit;
}

int cr_shrink_rank(const struct cr_shrink *shrink, int group, struct cr_ranked_unit *list) {
    int count = 0;
    for (int u = 0; u < shrink->groups->units; u++)
        if (shrink->groups->group_of[u] == group) list[count++] = (struct cr_ranked_unit){u, shrink->importance[u]};
    qsort(list, (size_t)count, sizeof *list, by_importance);
    return count;
}

/* Lists the units of each group in ascending order of importance: side[k] to side[k + 1]. */
static cr_status rank_units(struct choice *c) {
    const struct cr_channel_groups *g = c->shrink->groups;
    struct cr_ranked_unit          *list;
    int                             used = 0;
    CR_ALLOC(list, (size_t)g->units + 1);
    for (int k = 0; k < g->groups; k++) {
        const int count = cr_shrink_rank(c->shrink, k, list);
        c->side[k]      = used;
        for (int i = 0; i < count; i++) c->order[used++] = list[i].unit;
    }
    c->side[g->groups] = used;
    cr_free(list);
    return CR_OK;
}

struct cr_multiples cr_multiples_of(const struct cr_config *config, bool tensor_cores) {
    const int64_t given = config->prune.multiple;
    if (given) return (struct cr_multiples){given, given};
    return (struct cr_multiples){CR_MULTIPLE, tensor_cores ? CR_MULTIPLE_WIDE : CR_MULTIPLE};
}

int64_t cr_multiple_of_group(const struct cr_multiples *m, const struct cr_channel_groups *groups, int group) {
    int widest = 0;
    for (int k = 0; k < groups->groups; k++) widest = CR_MAX(widest, groups->group[k].units);
    const bool    wide     = widest >= 2 * m->wide && groups->group[group].units >= m->wide;
    const int64_t multiple = wide ? m->wide : m->narrow;
    return groups->group[group].halves && multiple % 2 ? 2 * multiple : multiple;
}

/* The next lower width of a group; 0 when there is none. */
static int next_width(const struct choice *c, int k) {
    const int64_t step = cr_multiple_of_group(c->multiples, c->shrink->groups, k);
    const int64_t low  = (c->shrink->width[k] - 1) / step * step;
    return c->shrink->keeps[k] || low < step ? 0 : (int)low;
}

/* Removes the least important units until `width` are left, or with `only_look` only returns their mean importance. */
static double remove_units(const struct choice *c, int k, int width, bool only_look) {
    const struct cr_channel_groups *g       = c->shrink->groups;
    const int                       count   = c->shrink->width[k] - width;
    int                             left[2] = {count, count};
    double                          sum     = 0;
    if (g->group[k].halves) left[0] = left[1] = count / 2;
    for (int i = c->side[k], done = 0; i < c->side[k + 1] && done < count; i++) {
        const int u = c->order[i], side = g->group[k].halves && g->behind[u];
        if (c->shrink->removed[u] || !left[side]) continue;
        left[side]--;
        done++;
        sum += c->shrink->importance[u];
        if (!only_look) c->shrink->removed[u] = true;
    }
    if (!only_look) c->shrink->width[k] = width;
    return sum / count;
}

/* Sets the width of a group, and the multiply-adds. */
static void set_width(struct choice *c, int k, int width) {
    struct cr_shrink *s     = c->shrink;
    const int         count = s->width[k] - width;
    s->macs -= saved(c, k, count);
    for (int i = 0; i < c->ops; i++)
        for (int a = 0; a < CR_CHANNEL_AXES; a++) c->op[i].axis[a].width -= c->op[i].axis[a].has[k] ? count : 0;
    if (count > 0) {
        remove_units(c, k, width, false);
        return;
    }
    for (int i = c->side[k]; i < c->side[k + 1]; i++) s->removed[c->order[i]] = false;
    s->width[k] = s->groups->group[k].units;
    if (width < s->width[k]) remove_units(c, k, width, false);
}

/* Takes the step with the smallest mean importance; false when there is none. */
static bool take_step(struct choice *c) {
    struct cr_shrink *s     = c->shrink;
    int               best  = CR_NONE;
    double            least = INFINITY;
    for (int k = 0; k < s->groups->groups; k++) {
        const int width = next_width(c, k);
        if (!width || saved(c, k, s->width[k] - width) * STEP_WORTH < s->macs_before) continue;
        const double mean = remove_units(c, k, width, true);
        if (mean < least) least = mean, best = k;
    }
    if (best == CR_NONE) return false;
    c->step[c->steps++] = (struct step){best, s->width[best]};
    set_width(c, best, next_width(c, best));
    return true;
}

/* A step of a large group may save more than is needed: undoes the steps that can be undone, the last one first. */
static void undo_steps(struct choice *c, double factor) {
    struct cr_shrink *s = c->shrink;
    for (int i = c->steps - 1; i >= 0; i--) {
        const int k = c->step[i].group;
        if (c->needed[k]) continue;
        const double more = saved(c, k, s->width[k] - c->step[i].width);
        c->needed[k]      = (s->macs - more) * factor > s->macs_before;
        if (!c->needed[k]) set_width(c, k, c->step[i].width);
    }
}

static cr_status choose(struct choice *c, double factor) {
    struct cr_shrink *s = c->shrink;
    for (int i = 0; i < c->ops; i++) s->macs_before += op_macs(&c->op[i], 0, 0);
    s->macs = s->macs_before;
    while (s->macs * factor > s->macs_before)
        if (!take_step(c))
            return CR_FAIL(
                CR_ERR_CONFIG,
                "%g times fewer multiply-adds cannot be reached: at most %.4g times fewer, with multiples of "
                "%lld channels, of which every group keeps at least one: give a smaller factor%s",
                factor, floor(1000 * s->macs_before / s->macs) / 1000, (long long)c->multiples->wide,
                c->multiples->wide > 1 ? " or a smaller prune.multiple" : "");
    undo_steps(c, factor);
    return CR_OK;
}

static cr_status open_choice(struct choice *c) {
    const struct cr_channel_groups *g   = c->shrink->groups;
    const size_t                    ops = (size_t)g->program->ops + 1;
    CR_ARENA_ALLOC(&c->arena, c->op, ops);
    CR_ARENA_ALLOC(&c->arena, c->order, (size_t)g->units + 1);
    CR_ARENA_ALLOC(&c->arena, c->side, (size_t)g->groups + 1);
    CR_ARENA_ALLOC(&c->arena, c->has, ops * CR_CHANNEL_AXES * (size_t)(g->groups + 1));
    CR_ARENA_ALLOC(&c->arena, c->step, (size_t)g->units + 1);
    CR_ARENA_ALLOC(&c->arena, c->needed, (size_t)g->groups + 1);
    CR_TRY(rank_units(c));
    describe_ops(c);
    return CR_OK;
}

cr_status cr_shrink_choose(struct cr_shrink *s, const struct cr_multiples *multiples, double factor) {
    struct choice c      = {.shrink = s, .multiples = multiples};
    cr_status     status = open_choice(&c);
    if (status == CR_OK) status = choose(&c, factor);
    cr_arena_free(&c.arena);
    return status;
}

/* ---- the smaller network ---- */

static bool is_left(const struct cr_shrink *s, int tensor, enum cr_channel_axis axis, int64_t index) {
    return !s->removed[cr_channel_unit(s->groups, tensor, axis, index)];
}

int64_t cr_shrink_width(const struct cr_shrink *s, const struct cr_param_store *store, const char *layer) {
    char    name[256];
    int64_t width = 0;
    snprintf(name, sizeof name, "%s.weight", layer);
    const int param  = cr_param_store_find(store, name);
    const int tensor = param == CR_NONE ? CR_NONE : param_tensor(s->groups->program, store, param);
    for (int64_t k = 0; tensor != CR_NONE && k < store->param[param].dim[0]; k++)
        width += is_left(s, tensor, CR_AXIS_K, k);
    return width;
}

static void copy_param(const struct cr_shrink *s, int tensor, const struct cr_param *q,
                       const struct cr_shrink_buffers *from, const struct cr_param *small,
                       const struct cr_shrink_buffers *to) {
    const bool    running = cr_param_is_running(q->role);
    const int64_t inner = q->dim[1] * q->dim[2] * q->dim[3], C = q->dim[3];
    int64_t       used = 0;
    for (int64_t i = 0; i < q->elems; i++) {
        if (!is_left(s, tensor, CR_AXIS_K, i / inner) || !is_left(s, tensor, CR_AXIS_C, i % C)) continue;
        const int64_t at = small->offset + used++;
        CR_ASSERT(used <= small->elems);
        (running ? to->running : to->value)[at] = (running ? from->running : from->value)[q->offset + i];
        if (!running && from->mask) cr_mask_set(to->mask, at, cr_mask_bit(from->mask, q->offset + i));
    }
    CR_ASSERT(used == small->elems);
}

void cr_shrink_zero(const struct cr_shrink *s, const struct cr_param_store *store, float *value, float *running) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q      = &store->param[i];
        const int              tensor = param_tensor(s->groups->program, store, i);
        const int64_t          inner = q->dim[1] * q->dim[2] * q->dim[3], C = q->dim[3];
        float                 *buffer = cr_param_is_running(q->role) ? running : value;
        for (int64_t e = 0; e < q->elems && tensor != CR_NONE; e++)
            if (!is_left(s, tensor, CR_AXIS_K, e / inner) || !is_left(s, tensor, CR_AXIS_C, e % C))
                buffer[q->offset + e] = 0;
    }
}

void cr_shrink_copy(const struct cr_shrink *s, const struct cr_param_store *store, const struct cr_shrink_buffers *from,
                    const struct cr_param_store *small, const struct cr_shrink_buffers *to) {
    for (int i = 0; i < store->params; i++) {
        const int tensor = param_tensor(s->groups->program, store, i),
                  other  = cr_param_store_find(small, store->param[i].name);
        CR_ASSERT(tensor != CR_NONE && other != CR_NONE);
        copy_param(s, tensor, &store->param[i], from, &small->param[other], to);
    }
}

/* compiler/memory/plan_memory.c: an offset for every transient.
 *
 * A tensor's stay comes from the ops that touch it, stretched where lanes run beside each other
 * (compiler/schedule/streams.c). An output takes over the storage of an input that dies in its op where graph/ops.def
 * allows it; such a chain is one life of one size. The lives go to compiler/memory/greedy.c. Kept tensors stay to the
 * end; store and input tensors have their places already. */
#include "compiler/compiler.h"
#include "compiler/schedule/streams.h"

#include <stdlib.h>
#include <string.h>

enum { SEARCH_VISITS = 1 << 24 };

#define SEARCH_ABOVE 1.01 /* of the lower bound */

struct plan {
    struct cr_program         *p;
    struct cr_stream_interval *stay;
    bool                      *taken; /* by tensor: another one has taken over its storage */
    int                       *chain; /* by tensor: index of its life, or CR_NONE */
    struct cr_interval        *life;
    int                        lives;
};

/* ---- taking over storage ---- */

/* Does `tensor` stand only in slots whose storage the output may take? */
static bool only_in_slots(const struct cr_op *op, int tensor, unsigned slots) {
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++)
        if (op->in[s] == tensor && !(slots >> s & 1)) return false;
    return true;
}

static bool may_take(const struct plan *w, int index, int out, int in, unsigned slots) {
    const struct cr_program *p = w->p;
    const struct cr_tensor  *a = &p->tensor[in], *b = &p->tensor[out];
    if (a->region != CR_REGION_POOL || a->keep || a->bytes != b->bytes || in == out) return false;
    if (a->last != index || w->taken[in] || w->stay[in].crossing) return false;
    return only_in_slots(&p->op[index], in, slots);
}

/* Of the inputs on offer the one that came last is taken: the older one's place is then free for something else as
 * long. */
static void take_over(struct plan *w, int index, int slot) {
    const struct cr_op *op    = &w->p->op[index];
    unsigned            slots = cr_op_inplace(op->kind, slot);
    int                 out = op->out[slot], best = CR_NONE;
    if (!slots || out < 0) return;
    struct cr_tensor *b = &w->p->tensor[out];
    if (b->region != CR_REGION_POOL || b->first != index || w->stay[out].crossing) return;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        if (!(slots >> s & 1) || op->in[s] < 0 || !may_take(w, index, out, op->in[s], slots)) continue;
        if (best == CR_NONE || w->p->tensor[op->in[s]].first > w->p->tensor[best].first) best = op->in[s];
    }
    if (best == CR_NONE) return;
    b->alias       = best;
    w->taken[best] = true;
}

static void find_aliases(struct plan *w) {
    for (int i = 0; i < w->p->ops; i++)
        for (int s = 0; s < cr_op_info(w->p->op[i].kind)->outs; s++) take_over(w, i, s);
}

/* ---- lives ---- */

/* Follows the chain down to the tensor that had the storage first. */
static int chain_root(const struct cr_program *p, int t) {
    while (p->tensor[t].alias != CR_NONE) t = p->tensor[t].alias;
    return t;
}

static void add_to_life(struct plan *w, int t) {
    const struct cr_tensor *tensor = &w->p->tensor[t];
    w->chain[t]                    = CR_NONE;
    if (tensor->region != CR_REGION_POOL || tensor->first < 0) return;
    int root = chain_root(w->p, t);
    if (root != t && w->chain[root] == CR_NONE) add_to_life(w, root); /* ids need not be in order of birth */
    if (root == t) {
        w->chain[t] = w->lives++;
        w->life[w->chain[t]] =
            (struct cr_interval){.lower = w->stay[t].lower, .upper = w->stay[t].upper, .size = tensor->bytes};
        return;
    }
    struct cr_interval *life = &w->life[w->chain[root]];
    w->chain[t]              = w->chain[root];
    life->lower              = CR_MIN(life->lower, w->stay[t].lower);
    life->upper              = CR_MAX(life->upper, w->stay[t].upper);
}

static void build_lives(struct plan *w) {
    for (int t = 0; t < w->p->tensors; t++) w->chain[t] = CR_NONE;
    for (int t = 0; t < w->p->tensors; t++)
        if (w->chain[t] == CR_NONE) add_to_life(w, t);
}

/* Greedy placing is enough for nearly every program; the search is for the rest, and counted, so that it stays short.
 */
static cr_status place_together(struct plan *w, size_t alignment, size_t *peak, size_t *bound) {
    const struct cr_plan_effort effort = {.alignment = alignment, .visits = SEARCH_VISITS, .limit_ns = INT64_MAX};
    struct cr_plan_found        found;
    CR_TRY(cr_plan_intervals(w->life, w->lives, alignment, peak, bound));
    if ((double)*peak <= SEARCH_ABOVE * (double)*bound) return CR_OK;
    CR_TRY(cr_plan_search(w->life, w->lives, &effort, &found));
    *peak = found.peak;
    return CR_OK;
}

/* Every life gets memory of its own. */
static void place_apart(struct plan *w, size_t alignment, size_t *peak) {
    size_t top = 0;
    for (int i = 0; i < w->lives; i++) {
        w->life[i].offset = top;
        top += (w->life[i].size + alignment - 1) / alignment * alignment;
    }
    *peak = top;
}

static void put_offsets(struct plan *w, size_t peak, size_t bound) {
    struct cr_program *p = w->p;
    for (int t = 0; t < p->tensors; t++)
        if (w->chain[t] != CR_NONE) p->tensor[t].offset = w->life[w->chain[t]].offset;
    p->region_bytes[CR_REGION_POOL] = peak;
    p->bound_bytes                  = bound;
}

cr_status cr_pass_plan(struct cr_program *p, size_t alignment, bool reuse) {
    cr_status   status = CR_OK;
    struct plan w      = {.p = p};
    size_t      n      = (size_t)CR_MAX(p->tensors, 1), peak, bound;
    w.stay             = cr_alloc(n, sizeof *w.stay);
    w.taken            = cr_alloc(n, sizeof *w.taken);
    w.chain            = cr_alloc(n, sizeof *w.chain);
    w.life             = cr_alloc(n, sizeof *w.life);
    if (!w.stay || !w.taken || !w.chain || !w.life)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while planning program %s", p->name);
    for (int t = 0; t < p->tensors; t++) p->tensor[t].alias = CR_NONE;
    cr_program_lifetimes(p);
    CR_TRY_OUT(cr_stream_intervals(p, w.stay));
    if (reuse) find_aliases(&w);
    build_lives(&w);
    if (reuse) {
        CR_TRY_OUT(place_together(&w, alignment, &peak, &bound));
    } else {
        CR_TRY_OUT(cr_plan_bound(w.life, w.lives, alignment, &bound));
        place_apart(&w, alignment, &peak);
    }
    put_offsets(&w, peak, bound);
out:
    cr_free(w.stay);
    cr_free(w.taken);
    cr_free(w.chain);
    cr_free(w.life);
    return status;
}

/* ---- what is dead ---- */

static int compare_ranges(const void *a, const void *b) {
    const struct cr_range *s = a, *t = b;
    return (s->begin > t->begin) - (s->begin < t->begin);
}

int cr_plan_dead_ranges(const struct cr_program *p, int op, struct cr_range *range) {
    int live = 0, dead = 0;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x          = &p->tensor[t];
        bool                    to_the_end = x->keep && x->first >= 0;
        if (x->region == CR_REGION_POOL && x->first >= 0 && x->first < op && (x->last >= op || to_the_end))
            range[live++] = (struct cr_range){x->offset, x->offset + x->bytes};
    }
    qsort(range, (size_t)live, sizeof *range, compare_ranges);
    size_t top = 0;
    for (int i = 0; i < live; i++) { /* the gaps overwrite the ranges they lie between: dead <= i here */
        struct cr_range x = range[i];
        if (x.begin > top) range[dead++] = (struct cr_range){top, x.begin};
        top = CR_MAX(top, x.end);
    }
    size_t end = p->region_bytes[CR_REGION_POOL];
    if (top < end) range[dead++] = (struct cr_range){top, end};
    return dead;
}

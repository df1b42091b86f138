/* compiler/memory/overlap_check.c: the proof of a plan. Shares no code with compiler/memory/plan_memory.c, nor its idea
 * of lifetimes: it replays the ops itself.
 *
 * Demands: every transient lies aligned and inside the pool; two that are alive at one op share no byte, except an
 * output that takes over an input which dies in that op, in a slot pair that graph/ops.def names, with as many bytes at
 * the same place, once. Order between lanes is order_check's business. */
#include "compiler/compiler.h"

#include <stdlib.h>

struct life { /* inclusive */
    int id, first, last;
};

struct check {
    const struct cr_program *p;
    struct life             *life;  /* by tensor */
    int                     *heirs; /* by tensor: how many took over its storage */
    struct life             *sorted, *alive;
};

static void replay_ids(struct check *c, int op, const int *ids, int n) {
    for (int i = 0; i < n; i++) {
        struct life *life = &c->life[ids[i]];
        if (life->first < 0) life->first = op;
        life->last = op;
    }
}

static void replay(struct check *c) {
    const struct cr_program *p = c->p;
    for (int t = 0; t < p->tensors; t++) c->life[t] = (struct life){t, -1, -1};
    for (int i = 0; i < p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        replay_ids(c, i, ids, n);
        n = cr_op_writes(&p->op[i], ids);
        replay_ids(c, i, ids, n);
    }
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].keep && c->life[t].first >= 0) c->life[t].last = p->ops; /* past the end */
}

static cr_status check_place(const struct check *c, int id, size_t alignment) {
    const struct cr_program *p    = c->p;
    const struct cr_tensor  *t    = &p->tensor[id];
    size_t                   pool = p->region_bytes[CR_REGION_POOL];
    if (t->offset % alignment)
        return CR_FAIL(CR_ERR_DEVICE, "program %s: %s lies at byte %zu of the pool, which is not a multiple of %zu",
                       p->name, t->name, t->offset, alignment);
    if (t->bytes > pool || t->offset > pool - t->bytes)
        return CR_FAIL(CR_ERR_DEVICE, "program %s: %s ends at byte %zu of a pool of %zu bytes", p->name, t->name,
                       t->offset + t->bytes, pool);
    return CR_OK;
}

/* May output `id` of op `op` stand where input `old` stood? NULL when it may, else what is wrong. */
static const char *alias_fault(const struct check *c, int id, int old) {
    const struct cr_program *p = c->p;
    if (old < 0 || old >= p->tensors || old == id) return "no such tensor";
    const struct cr_tensor *a = &p->tensor[old], *b = &p->tensor[id];
    int                     at = c->life[id].first;
    if (a->region != CR_REGION_POOL || b->region != CR_REGION_POOL) return "both must be transients";
    if (a->keep) return "it is kept";
    if (c->life[old].last != at) return "it does not die there";
    if (c->heirs[old] > 1) return "it is taken over twice";
    if (a->bytes != b->bytes || a->offset != b->offset) return "size or place differ";
    const struct cr_op *op      = &p->op[at];
    unsigned            allowed = 0, held = 0;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] == id) allowed = cr_op_inplace(op->kind, s);
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] == old) held |= 1u << s;
    if (!held || (held & ~allowed)) return "its op does not work in place there";
    return NULL;
}

static cr_status check_aliases(struct check *c) {
    const struct cr_program *p = c->p;
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].alias >= 0 && p->tensor[t].alias < p->tensors) c->heirs[p->tensor[t].alias]++;
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].alias == CR_NONE) continue;
        const char *fault = c->life[t].first < 0 ? "nothing writes it" : alias_fault(c, t, p->tensor[t].alias);
        if (fault)
            return CR_FAIL(CR_ERR_DEVICE, "program %s: %s takes over another's storage, but %s", p->name,
                           p->tensor[t].name, fault);
    }
    return CR_OK;
}

static bool hands_over(const struct check *c, struct life from, struct life to) {
    return c->p->tensor[to.id].alias == from.id && from.last == to.first;
}

static cr_status check_pair(const struct check *c, struct life x, struct life y) {
    const struct cr_program *p = c->p;
    const struct cr_tensor  *a = &p->tensor[x.id], *b = &p->tensor[y.id];
    if (a->offset >= b->offset + b->bytes || b->offset >= a->offset + a->bytes) return CR_OK;
    if (hands_over(c, x, y) || hands_over(c, y, x)) return CR_OK;
    int at = CR_MAX(x.first, y.first);
    return CR_FAIL(CR_ERR_DEVICE, "program %s: %s and %s are both alive at op %d (%s) and share bytes of the pool",
                   p->name, a->name, b->name, at, cr_op_info(p->op[at].kind)->name);
}

static int compare_births(const void *a, const void *b) {
    const struct life *s = a, *t = b;
    return s->first != t->first ? s->first - t->first : s->id - t->id;
}

/* In order of birth, each against all that are still alive. */
static cr_status check_overlaps(struct check *c) {
    int n = 0, alive = 0;
    for (int t = 0; t < c->p->tensors; t++)
        if (c->p->tensor[t].region == CR_REGION_POOL && c->life[t].first >= 0) c->sorted[n++] = c->life[t];
    qsort(c->sorted, (size_t)n, sizeof *c->sorted, compare_births);
    for (int i = 0; i < n; i++) {
        int still = 0;
        for (int k = 0; k < alive; k++) {
            if (c->alive[k].last < c->sorted[i].first) continue;
            CR_TRY(check_pair(c, c->alive[k], c->sorted[i]));
            c->alive[still++] = c->alive[k];
        }
        c->alive[still++] = c->sorted[i];
        alive             = still;
    }
    return CR_OK;
}

cr_status cr_plan_check(const struct cr_program *p, size_t alignment) {
    cr_status    status = CR_OK;
    struct check c      = {.p = p};
    size_t       n      = (size_t)CR_MAX(p->tensors, 1);
    c.life              = cr_alloc(n, sizeof *c.life);
    c.heirs             = cr_alloc(n, sizeof *c.heirs);
    c.sorted            = cr_alloc(n, sizeof *c.sorted);
    c.alive             = cr_alloc(n, sizeof *c.alive);
    if (!c.life || !c.heirs || !c.sorted || !c.alive)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while checking the plan of program %s", p->name);
    replay(&c);
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].region == CR_REGION_POOL && c.life[t].first >= 0) CR_TRY_OUT(check_place(&c, t, alignment));
    CR_TRY_OUT(check_aliases(&c));
    CR_TRY_OUT(check_overlaps(&c));
out:
    cr_free(c.life);
    cr_free(c.heirs);
    cr_free(c.sorted);
    cr_free(c.alive);
    return status;
}

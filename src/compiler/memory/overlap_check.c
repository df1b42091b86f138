/* compiler/memory/overlap_check.c: checks a memory plan. It shares no code with compiler/memory/plan_memory.c and
 * derives the lifetimes itself by replaying the ops.
 *
 * Each transient must be aligned and inside the pool. Two tensors that are live at the same op must not share a byte.
 * The exception is an output that reuses the storage of an input: the input's last use is that op, graph/ops.def allows
 * the pair of slots, both tensors have the same size and offset, and no other output reuses the input.
 * compiler/schedule/race_check.c checks the order between streams. */
#include "compiler/passes.h"

#include <stdlib.h>

struct lifetime { /* op indices, inclusive; -1: not used */
    int id, first, last;
};

struct check {
    const struct cr_program *p;
    struct lifetime         *lifetime; /* [tensors] */
    int                     *reuses;   /* [tensors] number of tensors that reuse its storage */
    struct lifetime         *sorted, *live;
};

static void replay(struct check *c) {
    const struct cr_program *p = c->p;
    for (int t = 0; t < p->tensors; t++) c->lifetime[t] = (struct lifetime){t, -1, -1};
    for (int i = 0; i < p->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_operands(&p->op[i], ids);
        for (int k = 0; k < n; k++) {
            struct lifetime *lifetime = &c->lifetime[ids[k]];
            if (lifetime->first < 0) lifetime->first = i;
            lifetime->last = i;
        }
    }
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].keep && c->lifetime[t].first >= 0) c->lifetime[t].last = p->ops; /* behind the last op */
}

static cr_status check_place(const struct check *c, int id, size_t alignment) {
    const struct cr_program *p    = c->p;
    const struct cr_tensor  *t    = &p->tensor[id];
    size_t                   pool = p->region_bytes[CR_REGION_POOL];
    if (t->offset % alignment)
        return CR_FAIL(CR_ERR_DEVICE, "program %s: %s is at byte %zu of the pool, which is not a multiple of %zu",
                       p->name, t->name, t->offset, alignment);
    if (t->bytes > pool || t->offset > pool - t->bytes)
        return CR_FAIL(CR_ERR_DEVICE, "program %s: %s ends at byte %zu of a pool of %zu bytes", p->name, t->name,
                       t->offset + t->bytes, pool);
    return CR_OK;
}

/* Checks that output `id` may reuse the storage of tensor `old`. Returns NULL, or a static text that names the
 * error. */
static const char *alias_fault(const struct check *c, int id, int old) {
    const struct cr_program *p = c->p;
    if (old < 0 || old >= p->tensors || old == id) return "no such tensor";
    const struct cr_tensor *a = &p->tensor[old], *b = &p->tensor[id];
    int                     at = c->lifetime[id].first;
    if (a->region != CR_REGION_POOL || b->region != CR_REGION_POOL) return "both must be transients";
    if (a->keep) return "that tensor is kept to the end";
    if (c->lifetime[old].last != at) return "that tensor is used later";
    if (c->reuses[old] > 1) return "two tensors reuse that storage";
    if (a->bytes != b->bytes || a->offset != b->offset) return "size or offset differ";
    const struct cr_op *op      = &p->op[at];
    unsigned            allowed = 0, held = 0;
    for (int s = 0; s < CR_OP_OUT_MAX; s++)
        if (op->out[s] == id) allowed = cr_op_inplace(op->kind, s);
    for (int s = 0; s < CR_OP_IN_MAX; s++)
        if (op->in[s] == old) held |= 1u << s;
    if (!held || (held & ~allowed)) return "the op does not work in place on that input";
    return NULL;
}

static cr_status check_aliases(struct check *c) {
    const struct cr_program *p = c->p;
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].alias >= 0 && p->tensor[t].alias < p->tensors) c->reuses[p->tensor[t].alias]++;
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].alias == CR_NONE) continue;
        const char *fault = c->lifetime[t].first < 0 ? "no op writes it" : alias_fault(c, t, p->tensor[t].alias);
        if (fault)
            return CR_FAIL(CR_ERR_DEVICE, "program %s: %s reuses the storage of another tensor, but %s", p->name,
                           p->tensor[t].name, fault);
    }
    return CR_OK;
}

static bool reuses_storage(const struct check *c, struct lifetime from, struct lifetime to) {
    return c->p->tensor[to.id].alias == from.id && from.last == to.first;
}

static cr_status check_pair(const struct check *c, struct lifetime x, struct lifetime y) {
    const struct cr_program *p = c->p;
    const struct cr_tensor  *a = &p->tensor[x.id], *b = &p->tensor[y.id];
    if (a->offset >= b->offset + b->bytes || b->offset >= a->offset + a->bytes) return CR_OK;
    if (reuses_storage(c, x, y) || reuses_storage(c, y, x)) return CR_OK;
    int at = CR_MAX(x.first, y.first);
    return CR_FAIL(CR_ERR_DEVICE, "program %s: %s and %s are both live at op %d (%s) and share bytes of the pool",
                   p->name, a->name, b->name, at, cr_op_info(p->op[at].kind)->name);
}

static int compare_first_use(const void *a, const void *b) {
    const struct lifetime *s = a, *t = b;
    return s->first != t->first ? s->first - t->first : s->id - t->id;
}

/* Compares each tensor, in the order of first use, with all tensors that are still live. */
static cr_status check_overlaps(struct check *c) {
    int n = 0, live = 0;
    for (int t = 0; t < c->p->tensors; t++)
        if (c->p->tensor[t].region == CR_REGION_POOL && c->lifetime[t].first >= 0) c->sorted[n++] = c->lifetime[t];
    qsort(c->sorted, (size_t)n, sizeof *c->sorted, compare_first_use);
    for (int i = 0; i < n; i++) {
        int remaining = 0;
        for (int k = 0; k < live; k++) {
            if (c->live[k].last < c->sorted[i].first) continue;
            CR_TRY(check_pair(c, c->live[k], c->sorted[i]));
            c->live[remaining++] = c->live[k];
        }
        c->live[remaining++] = c->sorted[i];
        live                 = remaining;
    }
    return CR_OK;
}

cr_status cr_plan_check(const struct cr_program *p, size_t alignment) {
    cr_status    status = CR_OK;
    struct check c      = {.p = p};
    size_t       n      = (size_t)p->tensors;
    CR_ALLOC_OUT(c.lifetime, n);
    CR_ALLOC_OUT(c.reuses, n);
    CR_ALLOC_OUT(c.sorted, n);
    CR_ALLOC_OUT(c.live, n);
    replay(&c);
    for (int t = 0; t < p->tensors; t++)
        if (p->tensor[t].region == CR_REGION_POOL && c.lifetime[t].first >= 0)
            CR_TRY_OUT(check_place(&c, t, alignment));
    CR_TRY_OUT(check_aliases(&c));
    CR_TRY_OUT(check_overlaps(&c));
out:
    cr_free(c.lifetime);
    cr_free(c.reuses);
    cr_free(c.sorted);
    cr_free(c.live);
    return status;
}

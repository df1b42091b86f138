/* compiler/memory/recompute.c: recomputes activations to save memory (activation checkpointing, Chen et al. 2016).
 *
 * The backward pass reads some tensors long after the forward pass has finished with them. Such a tensor is dropped
 * after its last early use. The op that made it runs again before its first late use and writes a new tensor, named
 * `y'` for `y`. Each tensor still has one live interval, so the planner and the checks need no special case.
 *
 * The pass runs after select. The second op is a copy of the first, kernel and algorithm included, so its result is
 * bitwise identical. Its other outputs (sums, masks) go to tensors that no op reads.
 *
 * Choice: among all tensors that could be absent at the op with the most live bytes, the pass takes the one that frees
 * the most bytes per second of recomputation. It repeats this until the load is within the limit. An op is repeated
 * when its inputs are live anyway or small, or when the ops that made its inputs can be repeated before it: up to
 * CHAIN_MAX ops for one tensor. At last, repetitions without which the limit is kept too are undone. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "compiler/uses.h"

#include <stdio.h>
#include <string.h>

struct write {
    int op, tensor;
};

struct recompute {
    struct cr_program          *p;
    const struct cr_cost_model *cost_model;
    struct cr_uses              uses;
    int                        *writers; /* [tensors] number of ops that write it */
    struct write               *write;   /* writes outside the pool, in program order */
    int                         writes;
    size_t                     *load; /* [ops] live bytes */
    int            *repeated; /* [repeats] the copies that ops write that run again, in the order of their choice */
    int             repeats, repeat_capacity;
    struct cr_arena arena; /* holds the arrays but `repeated` */
};

enum { CHAIN_MAX = 4 };

struct link { /* an op that runs again, and the output that is wanted of it */
    int op, tensor;
};

struct candidate {
    int         tensor, early, late; /* dropped behind op `early`, recomputed before op `late` */
    struct link chain[CHAIN_MAX];    /* in the order in which they run; the last one writes the tensor */
    int         length;
    size_t      extra_bytes; /* of the inputs that are recomputed for this tensor only */
    double      bytes_per_s;
    double      seconds;
};

static const double small_fraction =
    0.01; /* inputs up to this fraction of the dropped tensor may live longer for the recomputation */

/* ---- uses and load ---- */

static bool in_pool(const struct recompute *f, int tensor) {
    return f->p->tensor[tensor].region == CR_REGION_POOL;
}

static void find_writes(struct recompute *f) {
    f->writes = 0;
    for (int i = 0; i < f->p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = cr_op_writes(&f->p->op[i], ids);
        for (int k = 0; k < n; k++) {
            f->writers[ids[k]]++;
            if (f->p->tensor[ids[k]].region != CR_REGION_POOL) f->write[f->writes++] = (struct write){i, ids[k]};
        }
    }
}

/* Finds the uses and writers of all tensors and the load of all ops again. */
static cr_status analyse(struct recompute *f) {
    cr_arena_free(&f->arena);
    CR_TRY(cr_uses_find(f->p, &f->arena, &f->uses));
    CR_ARENA_ALLOC(&f->arena, f->load, (size_t)f->p->ops + 1);
    CR_ARENA_ALLOC(&f->arena, f->writers, (size_t)f->p->tensors);
    CR_ARENA_ALLOC(&f->arena, f->write, (size_t)f->uses.begin[f->p->tensors] + 1);
    find_writes(f);
    cr_program_lifetimes(f->p);
    cr_add_live_bytes(f->p, CR_MAX(f->cost_model->alignment, (size_t)1), f->load);
    return CR_OK;
}

static int peak_op(const struct recompute *f) {
    int max = 0;
    for (int i = 1; i < f->p->ops; i++)
        if (f->load[i] > f->load[max]) max = i;
    return max;
}

/* ---- candidates ---- */

/* Kinds whose result depends on their inputs only and whose cost is small compared with the memory that they free. */
static bool is_repeatable(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_bn_apply:
    case CR_OP_relu:
    case CR_OP_add:
    case CR_OP_maxpool:
    case CR_OP_pad_shortcut:
    case CR_OP_normalize:
    case CR_OP_mix:
    case CR_OP_conv:
    case CR_OP_group_conv: return true;
    default: return false;
    }
}

/* Returns whether an op between `from` and `to` writes bytes of `tensor`. A transient has one writer, except tensors
 * that several ops accumulate into. */
static bool written_between(const struct recompute *f, int tensor, int from, int to) {
    if (in_pool(f, tensor)) return f->writers[tensor] > 1;
    for (int k = 0; k < f->writes; k++)
        if (f->write[k].op > from && f->write[k].op < to &&
            cr_tensors_overlap(&f->p->tensor[tensor], &f->p->tensor[f->write[k].tensor]))
            return true;
    return false;
}

static bool is_in_chain(const struct candidate *c, int tensor) {
    int k = 0;
    while (k < c->length && c->chain[k].tensor != tensor) k++;
    return k < c->length;
}

/* Adds the op that made `tensor` to the chain, behind the makers of those of its inputs that are no longer live.
 * Returns false when the op cannot run again. */
static bool add_to_chain(const struct recompute *f, int tensor, int depth, struct candidate *c) {
    const int maker = f->p->tensor[tensor].first;
    if (depth == CHAIN_MAX || maker < 0 || !is_repeatable(&f->p->op[maker]) ||
        written_between(f, tensor, maker, f->p->ops))
        return false;
    const struct cr_op *op    = &f->p->op[maker];
    const double        small = small_fraction * (double)f->p->tensor[c->tensor].bytes;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int id = op->in[s];
        if (id < 0) continue;
        if (written_between(f, id, maker, c->late)) return false;
        if (!in_pool(f, id) || f->p->tensor[id].last >= c->late || (double)f->p->tensor[id].bytes <= small ||
            is_in_chain(c, id))
            continue;
        if (!add_to_chain(f, id, depth + 1, c)) return false;
        c->extra_bytes += cr_aligned(f->p->tensor[id].bytes, CR_MAX(f->cost_model->alignment, (size_t)1));
    }
    if (c->length == CHAIN_MAX) return false;
    c->chain[c->length++] = (struct link){maker, tensor};
    return true;
}

/* Finds the two consecutive uses of the tensor around op `moment`. */
static bool find_gap(const struct recompute *f, int tensor, int peak, struct candidate *c) {
    for (int i = f->uses.begin[tensor]; i + 1 < f->uses.end[tensor]; i++) {
        c->early = f->uses.at[i];
        c->late  = f->uses.at[i + 1];
        if (c->early < peak && peak < c->late) return true;
    }
    return false;
}

static cr_status seconds_of(const struct recompute *f, const struct cr_op *op, double *seconds) {
    *seconds = cr_op_seconds(f->cost_model, f->p, op);
    return f->cost_model->cost ? f->cost_model->cost(f->cost_model->self, f->p, op, seconds) : CR_OK;
}

static cr_status consider(const struct recompute *f, int tensor, int peak, struct candidate *best) {
    const struct cr_program *p = f->p;
    struct candidate         c = {.tensor = tensor};
    if (!in_pool(f, tensor) || p->tensor[tensor].keep || tensor == p->logits || tensor == p->metrics ||
        !find_gap(f, tensor, peak, &c) || !add_to_chain(f, tensor, 0, &c))
        return CR_OK;
    if (c.extra_bytes && f->load[c.late] + c.extra_bytes >= f->load[peak]) return CR_OK; /* that would be a new peak */
    for (int k = 0; k < c.length; k++) {
        double seconds;
        CR_TRY(seconds_of(f, &p->op[c.chain[k].op], &seconds));
        c.seconds += seconds;
    }
    c.bytes_per_s = (double)p->tensor[tensor].bytes / CR_MAX(c.seconds, 1e-9);
    if (best->tensor == CR_NONE || c.bytes_per_s > best->bytes_per_s) *best = c;
    return CR_OK;
}

/* ---- the rewrite ---- */

/* Adds a copy of the tensor; no op reads the copy if it is not `wanted`. */
static int copy_tensor(struct cr_program *p, int tensor, bool wanted) {
    char                    name[300];
    const struct cr_tensor *t = &p->tensor[tensor];
    snprintf(name, sizeof name, "%s%s", t->name, wanted ? "'" : "'unused");
    const int first = wanted ? cr_tensor_origin(p, tensor) : cr_tensor_find(p, name);
    const int copy  = cr_tensor_derive(p, name, "", t->dtype, CR_REGION_POOL, t->dim);
    if (!p->failed) p->tensor[copy].copy_of = first;
    return copy;
}

/* Inserts a copy of the link's op at index `at`. *fresh: the new tensor in place of link->tensor. */
static cr_status repeat_op(struct cr_program *p, const struct link *link, int at, int *fresh) {
    struct cr_op again = p->op[link->op];
    for (int s = 0; s < cr_op_info(again.kind)->outs; s++) {
        if (again.out[s] < 0) continue;
        const bool wanted = again.out[s] == link->tensor;
        again.out[s]      = copy_tensor(p, again.out[s], wanted);
        if (wanted) *fresh = again.out[s];
    }
    if (again.workspace >= 0) again.workspace = copy_tensor(p, again.workspace, true);
    if (!p->failed) cr_emit_at(p, at, &again, "");
    return p->failed ? CR_NO_MEMORY(sizeof *p->tensor) : CR_OK;
}

static void rename_inputs(struct cr_program *p, int from, int old, int fresh) {
    for (int i = from; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->ins; s++)
            if (p->op[i].in[s] == old) p->op[i].in[s] = fresh;
}

/* The ops from `late` on, and the ops that run again behind a link, read the new tensor of the link. */
static cr_status recompute_tensor(struct recompute *f, const struct candidate *c) {
    struct cr_program *p = f->p;
    for (int k = c->length - 1; k >= 0; k--) { /* each is inserted before those that read it */
        int copy = CR_NONE;
        CR_TRY(repeat_op(p, &c->chain[k], c->late, &copy));
        rename_inputs(p, c->late + 1, c->chain[k].tensor, copy);
        CR_GROW(f->repeated, f->repeats, f->repeat_capacity, 1);
        f->repeated[f->repeats++] = copy;
    }
    return CR_OK;
}

/* ---- repetitions that are not needed after all ---- */

/* The version of the tensor that is written last before this copy. */
static int version_before(const struct recompute *f, int copy) {
    const int origin = cr_tensor_origin(f->p, copy);
    int       last   = origin;
    for (int t = 0; t < f->p->tensors; t++)
        if (f->p->tensor[t].copy_of == origin && f->p->tensor[t].first < f->p->tensor[copy].first &&
            f->p->tensor[t].first > f->p->tensor[last].first)
            last = t;
    return last;
}

/* Removes the repetition, before which `old` was the version of the tensor. */
static cr_status undo(struct recompute *f, int copy, int old) {
    struct cr_program *p  = f->p;
    const int          at = f->p->tensor[copy].first;
    memmove(p->op + at, p->op + at + 1, (size_t)(p->ops - at - 1) * sizeof *p->op);
    p->ops--;
    rename_inputs(p, at, copy, old);
    return analyse(f);
}

static cr_status try_undo(struct recompute *f, int copy, size_t limit, bool *undone) {
    struct cr_program *p   = f->p;
    const int          ops = p->ops, old = version_before(f, copy);
    struct cr_op      *before;
    *undone = false;
    CR_ALLOC(before, (size_t)ops);
    memcpy(before, p->op, (size_t)ops * sizeof *before);
    cr_status status = undo(f, copy, old);
    *undone          = status == CR_OK && f->load[peak_op(f)] <= limit;
    if (status == CR_OK && !*undone) {
        memcpy(p->op, before, (size_t)ops * sizeof *before);
        p->ops = ops;
        status = analyse(f);
    }
    cr_free(before);
    return status;
}

/* A chain may repeat an op that another chain repeats too, and later choices free more than is needed. */
static cr_status undo_needless(struct recompute *f, size_t limit, struct cr_fit_report *report) {
    for (int k = f->repeats - 1; k >= 0 && report->after <= limit; k--) {
        bool undone;
        CR_TRY(try_undo(f, f->repeated[k], limit, &undone));
        report->recomputed -= undone;
    }
    report->after = f->load[peak_op(f)];
    return CR_OK;
}

static cr_status recompute_all(struct recompute *f, size_t limit, struct cr_fit_report *report) {
    const int max_recomputed = 2 * f->p->ops; /* each recomputation adds new gaps; this bound guarantees termination */
    CR_TRY(analyse(f));
    report->before = f->load[peak_op(f)];
    for (;;) {
        const int        peak = peak_op(f);
        struct candidate best = {.tensor = CR_NONE};
        report->after         = f->load[peak];
        if (f->load[peak] <= limit || report->recomputed >= max_recomputed) return undo_needless(f, limit, report);
        for (int t = 0; t < f->p->tensors; t++) CR_TRY(consider(f, t, peak, &best));
        if (best.tensor == CR_NONE) return CR_OK; /* report->after stays above the limit */
        CR_TRY(recompute_tensor(f, &best));
        CR_TRY(analyse(f));
        report->recomputed += best.length;
    }
}

cr_status cr_pass_recompute(struct cr_program *p, const struct cr_cost_model *cost_model, size_t limit,
                            struct cr_fit_report *report) {
    struct recompute f = {.p = p, .cost_model = cost_model};
    report->recomputed = 0;
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].kind == CR_OP_offload)
            return CR_FAIL(CR_ERR_USAGE, "program %s: recomputation does not count copies in flight", p->name);
    cr_status status = p->ops ? recompute_all(&f, limit, report) : CR_OK;
    cr_arena_free(&f.arena);
    cr_free(f.repeated);
    return status;
}

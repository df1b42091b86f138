/* compiler/memory/recompute.c: recomputes tensors to save memory (activation checkpointing, Chen et al. 2016).
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
 * only when its inputs are live anyway or small. */
#include "compiler/cost_model.h"
#include "compiler/passes.h"

#include <stdio.h>
#include <string.h>

struct use_list { /* the ops that use one tensor: at[begin .. end - 1], ascending */
    int begin, end;
};

struct write {
    int op, tensor;
};

struct recompute {
    struct cr_program          *p;
    const struct cr_cost_model *cost_model;
    struct use_list            *uses; /* [tensors] */
    int                        *at;   /* the use lists of all tensors, concatenated */
    int            *copy_of;          /* [tensors] for a copy in host memory: the tensor that it copies; else CR_NONE */
    bool           *is_offloaded;     /* [tensors] the tensor is offloaded */
    int            *writers;          /* [tensors] number of ops that write it */
    struct write   *write;            /* writes outside the pool, in program order */
    int             writes;
    size_t         *load;         /* [ops] live bytes */
    int             tensors, ops; /* capacity of the arrays */
    struct cr_arena arena;        /* holds the arrays */
};

struct candidate {
    int    tensor, maker, early, late; /* dropped behind op `early`, recomputed before op `late` */
    double bytes_per_s;
    double seconds;
};

static const double small_fraction =
    0.01; /* inputs up to this fraction of the dropped tensor may live longer for the recomputation */

/* ---- uses and load ---- */

static size_t rounded(const struct recompute *f, size_t bytes) {
    const size_t a = CR_MAX(f->cost_model->alignment, (size_t)1);
    return (bytes + a - 1) / a * a;
}

static bool in_pool(const struct recompute *f, int tensor) {
    return f->p->tensor[tensor].region == CR_REGION_POOL;
}

static cr_status make_room(struct recompute *f) {
    const struct cr_program *p = f->p;
    if (p->tensors <= f->tensors && p->ops <= f->ops) return CR_OK;
    f->tensors = 2 * p->tensors;
    f->ops     = 2 * p->ops;
    cr_arena_free(&f->arena);
    CR_ARENA_ALLOC(&f->arena, f->uses, (size_t)f->tensors);
    CR_ARENA_ALLOC(&f->arena, f->at, (size_t)f->ops * 2 * CR_OP_IDS_MAX);
    CR_ARENA_ALLOC(&f->arena, f->load, (size_t)f->ops + 1);
    CR_ARENA_ALLOC(&f->arena, f->copy_of, (size_t)f->tensors);
    CR_ARENA_ALLOC(&f->arena, f->is_offloaded, (size_t)f->tensors);
    CR_ARENA_ALLOC(&f->arena, f->writers, (size_t)f->tensors);
    CR_ARENA_ALLOC(&f->arena, f->write, (size_t)f->ops * CR_OP_IDS_MAX);
    return CR_OK;
}

static void find_copies(struct recompute *f) {
    for (int t = 0; t < f->p->tensors; t++) f->copy_of[t] = CR_NONE, f->is_offloaded[t] = false;
    for (int i = 0; i < f->p->ops; i++) {
        const struct cr_op *op = &f->p->op[i];
        if (op->kind != CR_OP_offload) continue;
        f->copy_of[op->out[CR_OUT_offload_y]]    = op->in[CR_IN_offload_x];
        f->is_offloaded[op->in[CR_IN_offload_x]] = true;
    }
}

static void find_writes(struct recompute *f) {
    memset(f->writers, 0, (size_t)f->p->tensors * sizeof *f->writers);
    f->writes = 0;
    for (int i = 0; i < f->p->ops; i++) {
        int ids[CR_OP_IDS_MAX], n = cr_op_writes(&f->p->op[i], ids);
        for (int k = 0; k < n; k++) {
            f->writers[ids[k]]++;
            if (f->p->tensor[ids[k]].region != CR_REGION_POOL) f->write[f->writes++] = (struct write){i, ids[k]};
        }
    }
}

/* Calls `visit` once for each tensor that the op uses. An offloaded tensor stays live until the barrier that waits for
 * its copy. */
static void for_each_operand(struct recompute *f, int op, void (*visit)(struct recompute *, int op, int tensor)) {
    const struct cr_op *o = &f->p->op[op];
    int                 ids[2 * CR_OP_IDS_MAX + 1], n = cr_op_reads(o, ids);
    n += cr_op_writes(o, ids + n);
    if (o->kind == CR_OP_barrier && o->in[CR_IN_barrier_x] >= 0 && f->copy_of[o->in[CR_IN_barrier_x]] >= 0)
        ids[n++] = f->copy_of[o->in[CR_IN_barrier_x]];
    for (int i = 0; i < n; i++) {
        bool again = false;
        for (int j = 0; j < i; j++) again |= ids[j] == ids[i];
        if (!again) visit(f, op, ids[i]);
    }
}

static void count_use(struct recompute *f, int op, int tensor) {
    (void)op;
    f->uses[tensor].end++;
}

static void note_use(struct recompute *f, int op, int tensor) {
    f->at[f->uses[tensor].end++] = op;
}

static int first_use(const struct recompute *f, int t) {
    return f->uses[t].end > f->uses[t].begin ? f->at[f->uses[t].begin] : -1;
}

static int last_use(const struct recompute *f, int t) {
    return f->p->tensor[t].keep ? f->p->ops - 1 : f->uses[t].end > f->uses[t].begin ? f->at[f->uses[t].end - 1] : -1;
}

/* Recomputes the use lists of all tensors and the load of all ops. */
static cr_status analyse(struct recompute *f) {
    struct cr_program *p = f->p;
    CR_TRY(make_room(f));
    find_copies(f);
    find_writes(f);
    for (int t = 0; t < p->tensors; t++) f->uses[t] = (struct use_list){0, 0};
    for (int i = 0; i < p->ops; i++) for_each_operand(f, i, count_use);
    int place = 0;
    for (int t = 0; t < p->tensors; t++) {
        const int count = f->uses[t].end;
        f->uses[t]      = (struct use_list){place, place};
        place += count;
    }
    for (int i = 0; i < p->ops; i++) for_each_operand(f, i, note_use);
    memset(f->load, 0, ((size_t)p->ops + 1) * sizeof *f->load);
    for (int t = 0; t < p->tensors; t++) {
        if (!in_pool(f, t) || first_use(f, t) < 0) continue;
        const size_t bytes = rounded(f, p->tensor[t].bytes);
        for (int i = first_use(f, t); i <= last_use(f, t); i++) f->load[i] += bytes;
    }
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

static bool overlaps(const struct cr_program *p, int a, int b) {
    const struct cr_tensor *s = &p->tensor[a], *t = &p->tensor[b];
    return s->region == t->region && s->offset < t->offset + t->bytes && t->offset < s->offset + s->bytes;
}

/* Returns whether an op between `from` and `to` writes bytes of `tensor`. A transient has one writer, except tensors
 * that several ops accumulate into. */
static bool written_between(const struct recompute *f, int tensor, int from, int to) {
    if (in_pool(f, tensor)) return f->writers[tensor] > 1;
    for (int k = 0; k < f->writes; k++)
        if (f->write[k].op > from && f->write[k].op < to && overlaps(f->p, tensor, f->write[k].tensor)) return true;
    return false;
}

static bool inputs_available(const struct recompute *f, const struct candidate *c) {
    const struct cr_op *op    = &f->p->op[c->maker];
    const double        small = small_fraction * (double)f->p->tensor[c->tensor].bytes;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int id = op->in[s];
        if (id < 0) continue;
        if (in_pool(f, id) && last_use(f, id) < c->late && (double)f->p->tensor[id].bytes > small) return false;
        if (written_between(f, id, c->maker, c->late)) return false;
    }
    return true;
}

/* Finds the two consecutive uses of the tensor around op `moment`. */
static bool find_gap(const struct recompute *f, int tensor, int peak, struct candidate *c) {
    for (int i = f->uses[tensor].begin; i + 1 < f->uses[tensor].end; i++) {
        c->early = f->at[i];
        c->late  = f->at[i + 1];
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
    struct candidate         c = {.tensor = tensor, .maker = first_use(f, tensor)};
    if (!in_pool(f, tensor) || f->is_offloaded[tensor] || p->tensor[tensor].keep || c.maker < 0 ||
        !is_repeatable(&p->op[c.maker]))
        return CR_OK;
    if (tensor == p->logits || tensor == p->metrics || !find_gap(f, tensor, peak, &c)) return CR_OK;
    if (written_between(f, tensor, c.maker, p->ops) || !inputs_available(f, &c)) return CR_OK;
    CR_TRY(seconds_of(f, &p->op[c.maker], &c.seconds));
    c.bytes_per_s = (double)p->tensor[tensor].bytes / CR_MAX(c.seconds, 1e-9);
    if (best->tensor == CR_NONE || c.bytes_per_s > best->bytes_per_s) *best = c;
    return CR_OK;
}

/* ---- the rewrite ---- */

/* Adds a copy of the tensor; no op reads the copy if it is not `wanted`. */
static int copy_tensor(struct cr_program *p, int tensor, bool wanted) {
    char                   name[300];
    const struct cr_tensor t     = p->tensor[tensor];
    int                    used  = snprintf(name, sizeof name, "%s%s", t.name, wanted ? "'" : "'unused");
    const int              first = wanted ? cr_tensor_origin(p, tensor) : cr_tensor_find(p, name);
    while (cr_tensor_find(p, name) != CR_NONE &&
           used < (int)sizeof name - 1) { /* the tensor has been recomputed before */
        name[used++] = '\'';
        name[used]   = 0;
    }
    const int copy = cr_tensor_add(p, name, t.dtype, CR_REGION_POOL, t.dim[0], t.dim[1], t.dim[2], t.dim[3]);
    if (!p->failed) p->tensor[copy].copy_of = first;
    return copy;
}

static cr_status insert_op(struct cr_program *p, int at, const struct cr_op *op) {
    CR_GROW(p->op, p->ops, p->op_capacity, 1);
    memmove(p->op + at + 1, p->op + at, (size_t)(p->ops - at) * sizeof *p->op);
    p->op[at] = *op;
    p->ops++;
    return CR_OK;
}

static cr_status recompute_tensor(struct recompute *f, const struct candidate *c) {
    struct cr_program *p     = f->p;
    struct cr_op       again = p->op[c->maker];
    int                fresh = CR_NONE;
    for (int s = 0; s < cr_op_info(again.kind)->outs; s++) {
        if (again.out[s] < 0) continue;
        const bool wanted = again.out[s] == c->tensor;
        again.out[s]      = copy_tensor(p, again.out[s], wanted);
        if (wanted) fresh = again.out[s];
    }
    if (again.workspace >= 0) again.workspace = copy_tensor(p, again.workspace, true);
    if (p->failed) return CR_NO_MEMORY(sizeof *p->tensor);
    for (int i = c->late; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->ins; s++)
            if (p->op[i].in[s] == c->tensor) p->op[i].in[s] = fresh;
    return insert_op(p, c->late, &again);
}

static cr_status recompute_all(struct recompute *f, size_t limit, struct cr_recompute_report *report) {
    const int max_recomputed = 2 * f->p->ops; /* each recomputation adds new gaps; this bound guarantees termination */
    CR_TRY(analyse(f));
    report->before = f->load[peak_op(f)];
    for (;;) {
        const int        peak = peak_op(f);
        struct candidate best = {.tensor = CR_NONE};
        report->after         = f->load[peak];
        if (f->load[peak] <= limit || report->recomputed == max_recomputed) return CR_OK;
        for (int t = 0; t < f->p->tensors; t++) CR_TRY(consider(f, t, peak, &best));
        if (best.tensor == CR_NONE) return CR_OK; /* no candidate is left; report->after stays above the limit */
        CR_TRY(recompute_tensor(f, &best));
        CR_TRY(analyse(f));
        report->recomputed++;
        report->seconds += best.seconds;
    }
}

cr_status cr_pass_recompute(struct cr_program *p, const struct cr_cost_model *cost_model, size_t limit,
                            struct cr_recompute_report *report) {
    struct recompute f = {.p = p, .cost_model = cost_model};
    *report            = (struct cr_recompute_report){0};
    cr_status status   = p->ops ? recompute_all(&f, limit, report) : CR_OK;
    cr_arena_free(&f.arena);
    return status;
}

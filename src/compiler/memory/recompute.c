/* compiler/memory/recompute.c: makes a program fit into less memory by computing tensors twice (Chen et al. 2016): a
 * tensor that the backward pass reads long after the forward pass has left it is dropped after its last early use, and
 * the op that made it runs once more in front of its first late use, under a new name: `y` ... `y'`. Every life stays
 * an interval, so planner and checks know nothing of it.
 *
 * Stands after select: the second op is the first one's copy, row and way included, so that it gives the same bits.
 * What else it writes (statistics, masks) goes nowhere.
 *
 * Choice: at the op where most is live, of all tensors that could be away then, the one that frees most bytes for each
 * microsecond; again until the load fits. An op is repeated only when what it reads is there anyway, or is small. */
#include "compiler/compiler.h"

#include <stdio.h>
#include <string.h>

struct use_list { /* of one tensor: the ops that touch it, ascending */
    int begin, end;
};

struct write {
    int op, tensor;
};

struct fit {
    struct cr_program          *p;
    const struct cr_cost_model *target;
    struct use_list            *uses;    /* by tensor */
    int                        *at;      /* the lists behind one another */
    int                        *sent;    /* by tensor: of a copy in the host's memory, what it is a copy of; CR_NONE */
    bool                       *leaves;  /* by tensor: it is copied out */
    int                        *writers; /* by tensor: how many ops write it */
    struct write               *write;   /* what is written outside the pool, in the order of ops */
    int                         writes;
    size_t                     *load;         /* by op: bytes live there */
    int                         tensors, ops; /* what the arrays have room for */
};

struct candidate {
    int    tensor, maker, early, late; /* dropped behind op `early`, made again in front of op `late` */
    double bytes_per_s;
    double seconds;
};

static const double small_share = 0.01; /* of the dropped tensor: operands that may live longer for it */

/* ---- what is where ---- */

static size_t rounded(const struct fit *f, size_t bytes) {
    const size_t a = CR_MAX(f->target->alignment, (size_t)1);
    return (bytes + a - 1) / a * a;
}

static bool in_pool(const struct fit *f, int tensor) {
    return f->p->tensor[tensor].region == CR_REGION_POOL;
}

static void fit_close(struct fit *f) {
    cr_free(f->uses);
    cr_free(f->at);
    cr_free(f->load);
    cr_free(f->sent);
    cr_free(f->leaves);
    cr_free(f->writers);
    cr_free(f->write);
}

static cr_status make_room(struct fit *f) {
    const struct cr_program *p = f->p;
    if (p->tensors <= f->tensors && p->ops <= f->ops) return CR_OK;
    f->tensors = 2 * p->tensors;
    f->ops     = 2 * p->ops;
    fit_close(f);
    f->uses    = cr_alloc((size_t)f->tensors, sizeof *f->uses);
    f->at      = cr_alloc((size_t)f->ops * 2 * CR_OP_IDS_MAX, sizeof *f->at);
    f->load    = cr_alloc((size_t)f->ops + 1, sizeof *f->load);
    f->sent    = cr_alloc((size_t)f->tensors, sizeof *f->sent);
    f->leaves  = cr_alloc((size_t)f->tensors, sizeof *f->leaves);
    f->writers = cr_alloc((size_t)f->tensors, sizeof *f->writers);
    f->write   = cr_alloc((size_t)f->ops * CR_OP_IDS_MAX, sizeof *f->write);
    return f->uses && f->at && f->load && f->sent && f->leaves && f->writers && f->write
               ? CR_OK
               : CR_NO_MEMORY((size_t)f->ops * 2 * CR_OP_IDS_MAX * sizeof *f->at);
}

static void find_sent(struct fit *f) {
    for (int t = 0; t < f->p->tensors; t++) f->sent[t] = CR_NONE, f->leaves[t] = false;
    for (int i = 0; i < f->p->ops; i++) {
        const struct cr_op *op = &f->p->op[i];
        if (op->kind != CR_OP_offload) continue;
        f->sent[op->out[CR_OUT_offload_y]] = op->in[CR_IN_offload_x];
        f->leaves[op->in[CR_IN_offload_x]] = true;
    }
}

static void find_writes(struct fit *f) {
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

/* Calls `see` for every tensor an op touches, each once. A tensor that is copied out is there until compute waits for
 * the copy. */
static void for_each_operand(struct fit *f, int op, void (*see)(struct fit *, int op, int tensor)) {
    const struct cr_op *o = &f->p->op[op];
    int                 ids[2 * CR_OP_IDS_MAX + 1], n = cr_op_reads(o, ids);
    n += cr_op_writes(o, ids + n);
    if (o->kind == CR_OP_barrier && o->in[CR_IN_barrier_x] >= 0 && f->sent[o->in[CR_IN_barrier_x]] >= 0)
        ids[n++] = f->sent[o->in[CR_IN_barrier_x]];
    for (int i = 0; i < n; i++) {
        bool again = false;
        for (int j = 0; j < i; j++) again |= ids[j] == ids[i];
        if (!again) see(f, op, ids[i]);
    }
}

static void count_use(struct fit *f, int op, int tensor) {
    (void)op;
    f->uses[tensor].end++;
}
static void note_use(struct fit *f, int op, int tensor) {
    f->at[f->uses[tensor].end++] = op;
}

static int first_use(const struct fit *f, int t) {
    return f->uses[t].end > f->uses[t].begin ? f->at[f->uses[t].begin] : -1;
}
static int last_use(const struct fit *f, int t) {
    return f->p->tensor[t].keep ? f->p->ops - 1 : f->uses[t].end > f->uses[t].begin ? f->at[f->uses[t].end - 1] : -1;
}

/* Uses of all tensors and the load of all ops, anew. */
static cr_status survey(struct fit *f) {
    struct cr_program *p = f->p;
    CR_TRY(make_room(f));
    find_sent(f);
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

static int fullest(const struct fit *f) {
    int most = 0;
    for (int i = 1; i < f->p->ops; i++)
        if (f->load[i] > f->load[most]) most = i;
    return most;
}

/* ---- candidates ---- */

/* Kinds that depend on their operands only, and cost little beside what they free. */
static bool may_repeat(const struct cr_op *op) {
    switch (op->kind) {
    case CR_OP_bn_apply:
    case CR_OP_relu:
    case CR_OP_add:
    case CR_OP_maxpool:
    case CR_OP_pad_shortcut:
    case CR_OP_normalize:
    case CR_OP_mix:
    case CR_OP_conv: return true;
    default: return false;
    }
}

static bool touches(const struct cr_program *p, int a, int b) {
    const struct cr_tensor *s = &p->tensor[a], *t = &p->tensor[b];
    return s->region == t->region && s->offset < t->offset + t->bytes && t->offset < s->offset + s->bytes;
}

/* Does an op after `from` and before `to` write what `tensor` holds? Transients have one writer, but for some that are
 * gathered. */
static bool written_between(const struct fit *f, int tensor, int from, int to) {
    if (in_pool(f, tensor)) return f->writers[tensor] > 1;
    for (int k = 0; k < f->writes; k++)
        if (f->write[k].op > from && f->write[k].op < to && touches(f->p, tensor, f->write[k].tensor)) return true;
    return false;
}

static bool operands_there(const struct fit *f, const struct candidate *c) {
    const struct cr_op *op    = &f->p->op[c->maker];
    const double        small = small_share * (double)f->p->tensor[c->tensor].bytes;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int id = op->in[s];
        if (id < 0) continue;
        if (in_pool(f, id) && last_use(f, id) < c->late && (double)f->p->tensor[id].bytes > small) return false;
        if (written_between(f, id, c->maker, c->late)) return false;
    }
    return true;
}

/* The longest time without a use that `moment` falls into. */
static bool find_gap(const struct fit *f, int tensor, int moment, struct candidate *c) {
    for (int i = f->uses[tensor].begin; i + 1 < f->uses[tensor].end; i++) {
        c->early = f->at[i];
        c->late  = f->at[i + 1];
        if (c->early < moment && moment < c->late) return true;
    }
    return false;
}

static cr_status seconds_of(const struct fit *f, const struct cr_op *op, double *seconds) {
    *seconds = cr_op_seconds(f->target, f->p, op);
    return f->target->cost ? f->target->cost(f->target->self, f->p, op, seconds) : CR_OK;
}

static cr_status consider(const struct fit *f, int tensor, int moment, struct candidate *best) {
    const struct cr_program *p = f->p;
    struct candidate         c = {.tensor = tensor, .maker = first_use(f, tensor)};
    if (!in_pool(f, tensor) || f->leaves[tensor] || p->tensor[tensor].keep || c.maker < 0 ||
        !may_repeat(&p->op[c.maker]))
        return CR_OK;
    if (tensor == p->logits || tensor == p->metrics || !find_gap(f, tensor, moment, &c)) return CR_OK;
    if (written_between(f, tensor, c.maker, p->ops) || !operands_there(f, &c)) return CR_OK;
    CR_TRY(seconds_of(f, &p->op[c.maker], &c.seconds));
    c.bytes_per_s = (double)p->tensor[tensor].bytes / CR_MAX(c.seconds, 1e-9);
    if (best->tensor == CR_NONE || c.bytes_per_s > best->bytes_per_s) *best = c;
    return CR_OK;
}

/* ---- the rewrite ---- */

static int copy_tensor(struct cr_program *p, int tensor, const char *mark) {
    char                   name[300];
    const struct cr_tensor t    = p->tensor[tensor];
    int                    used = snprintf(name, sizeof name, "%s%s", t.name, mark);
    while (cr_tensor_find(p, name) != CR_NONE && used < (int)sizeof name - 1) { /* its op was repeated before */
        name[used++] = '\'';
        name[used]   = 0;
    }
    return cr_tensor_add(p, name, t.dtype, CR_REGION_POOL, t.dim[0], t.dim[1], t.dim[2], t.dim[3]);
}

static cr_status insert_op(struct cr_program *p, int at, const struct cr_op *op) {
    if (p->ops == p->op_capacity) {
        const int     more  = 2 * p->op_capacity;
        struct cr_op *fresh = cr_realloc(p->op, (size_t)more, sizeof *fresh);
        if (!fresh) return CR_NO_MEMORY((size_t)more * sizeof *fresh);
        p->op          = fresh;
        p->op_capacity = more;
    }
    memmove(p->op + at + 1, p->op + at, (size_t)(p->ops - at) * sizeof *p->op);
    p->op[at] = *op;
    p->ops++;
    return CR_OK;
}

static cr_status repeat(struct fit *f, const struct candidate *c) {
    struct cr_program *p     = f->p;
    struct cr_op       again = p->op[c->maker];
    int                fresh = CR_NONE;
    for (int s = 0; s < cr_op_info(again.kind)->outs; s++) {
        if (again.out[s] < 0) continue;
        const bool wanted = again.out[s] == c->tensor;
        again.out[s]      = copy_tensor(p, again.out[s], wanted ? "'" : "'unused");
        if (wanted) fresh = again.out[s];
    }
    if (again.workspace >= 0) again.workspace = copy_tensor(p, again.workspace, "'");
    if (p->failed) return CR_NO_MEMORY(sizeof *p->tensor);
    for (int i = c->late; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->ins; s++)
            if (p->op[i].in[s] == c->tensor) p->op[i].in[s] = fresh;
    return insert_op(p, c->late, &again);
}

static cr_status fit_all(struct fit *f, size_t limit, struct cr_recompute_report *report) {
    const int most =
        2 * f->p->ops; /* each repetition makes new gaps between uses: an end that does not depend on luck */
    CR_TRY(survey(f));
    report->before = f->load[fullest(f)];
    for (;;) {
        const int        moment = fullest(f);
        struct candidate best   = {.tensor = CR_NONE};
        report->after           = f->load[moment];
        if (f->load[moment] <= limit || report->recomputed == most) return CR_OK;
        for (int t = 0; t < f->p->tensors; t++) CR_TRY(consider(f, t, moment, &best));
        if (best.tensor == CR_NONE) return CR_OK; /* no more to be had: the caller sees it */
        CR_TRY(repeat(f, &best));
        CR_TRY(survey(f));
        report->recomputed++;
        report->seconds += best.seconds;
    }
}

cr_status cr_pass_recompute(struct cr_program *p, const struct cr_cost_model *target, size_t limit,
                            struct cr_recompute_report *report) {
    struct fit f     = {.p = p, .target = target};
    *report          = (struct cr_recompute_report){0};
    cr_status status = p->ops ? fit_all(&f, limit, report) : CR_OK;
    fit_close(&f);
    return status;
}

/* compiler/memory/offload.c: tensors that wait in the host's memory: the plan of compiler/memory/offload_choose.c and
 * compiler/memory/offload_schedule.c written into the program.
 *
 * Of tensor a with uses e (early) and l (late):
 *   offload a -> a.host             behind the op that wrote a, on lane to_host
 *   sync x:a.host                    where its copy has ended, or must have: from here on its place may be used again
 *   sync -> a.go; prefetch a.host, a.go -> a'     where the copy back may begin, on lane to_device
 * and what comes from l on reads a'. Or l and
 * those behind it read a.host itself: then there is no go and no a'. Lanes are ordered by these tensors like by all
 * others, so no other pass knows of swapping. */
#include "compiler/memory/offload.h"

#include <stdio.h>
#include <string.h>

struct rewrite {
    struct cr_program                *p;
    const struct cr_cost_model       *target;
    const struct cr_offload_work     *w;
    const struct cr_offload_schedule *s;
    struct cr_op                     *op; /* the new list */
    int                               ops;
    int                              *host, *go, *back; /* by candidate: tensors */
    int                              *renamed;          /* by tensor: what its readers read now */
};

/* ---- tensors ---- */

/* `a` + mark, or with more dashes where such a name is taken (a tensor that was computed twice). */
static int add_tensor(struct cr_program *p, int like, const char *mark, enum cr_region region) {
    const struct cr_tensor t = p->tensor[like];
    char                   name[300];
    int                    used = snprintf(name, sizeof name, "%s%s", t.name, mark);
    while (cr_tensor_find(p, name) != CR_NONE && used < (int)sizeof name - 1) {
        name[used++] = '\'';
        name[used]   = 0;
    }
    return cr_tensor_add(p, name, t.dtype, region, t.dim[0], t.dim[1], t.dim[2], t.dim[3]);
}

static cr_status add_tensors(struct rewrite *r) {
    for (int k = 0; k < r->w->count; k++) {
        const int t = r->w->c[k].tensor;
        char      name[300];
        if (r->s->release_at[k] == CR_NONE) continue;
        r->host[k] = r->back[k] = add_tensor(r->p, t, ".host", CR_REGION_HOST);
        if (r->p->failed) break;
        if (r->s->prefetch_at[k] == CR_NONE) continue;
        r->back[k] = add_tensor(r->p, t, "'", CR_REGION_POOL);
        if (r->p->failed) break;
        snprintf(name, sizeof name, "%s.event", r->p->tensor[t].name);
        r->go[k] = cr_tensor_add(r->p, name, CR_U8, CR_REGION_POOL, 1, 1, 1, 1);
    }
    return r->p->failed ? CR_NO_MEMORY(sizeof *r->p->tensor) : CR_OK;
}

/* ---- ops ---- */

static cr_status put(struct rewrite *r, enum cr_op_kind kind, enum cr_stream lane, int layer, int in0, int in1,
                     int out) {
    struct cr_op op        = cr_op_make(kind, layer);
    size_t       workspace = 0;
    op.stream              = lane;
    op.kernel = op.algo = 0;
    op.in[0]            = in0;
    if (kind == CR_OP_prefetch) op.in[CR_IN_prefetch_event] = in1;
    op.out[0] = out;
    if (r->target->select) CR_TRY(r->target->select(r->target->self, r->p, &op, &workspace));
    CR_ASSERT(workspace == 0); /* they are copies */
    r->op[r->ops++] = op;
    return CR_OK;
}

static int layer_of(const struct rewrite *r, int k) {
    return r->p->op[r->w->c[k].writer].layer;
}

static cr_status put_before(struct rewrite *r, int at) {
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] == at)
            CR_TRY(put(r, CR_OP_barrier, CR_STREAM_COMPUTE, layer_of(r, k), r->host[k], CR_NONE, CR_NONE));
    for (int j = 0; j < r->w->count; j++) {
        const int k = r->w->by_late[j];
        if (r->s->prefetch_at[k] != at) continue;
        CR_TRY(put(r, CR_OP_barrier, CR_STREAM_COMPUTE, layer_of(r, k), CR_NONE, CR_NONE, r->go[k]));
        CR_TRY(put(r, CR_OP_prefetch, CR_STREAM_TO_DEVICE, layer_of(r, k), r->host[k], r->go[k], r->back[k]));
    }
    return CR_OK;
}

static cr_status put_behind(struct rewrite *r, int at) {
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] != CR_NONE && r->w->c[k].writer == at)
            CR_TRY(put(r, CR_OP_offload, CR_STREAM_TO_HOST, layer_of(r, k), r->w->c[k].tensor, CR_NONE, r->host[k]));
    return CR_OK;
}

static void put_renamed(struct rewrite *r, int at) {
    struct cr_op op = r->p->op[at];
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] != CR_NONE && r->w->c[k].late == at) r->renamed[r->w->c[k].tensor] = r->back[k];
    for (int s = 0; s < cr_op_info(op.kind)->ins; s++)
        if (op.in[s] >= 0) op.in[s] = r->renamed[op.in[s]];
    r->op[r->ops++] = op;
}

static cr_status put_all(struct rewrite *r) {
    CR_TRY(add_tensors(r));
    for (int t = 0; t < r->w->p->tensors; t++) r->renamed[t] = t;
    const int ops = r->p->ops;
    for (int i = 0; i < ops; i++) {
        CR_TRY(put_before(r, i));
        put_renamed(r, i);
        CR_TRY(put_behind(r, i));
    }
    return CR_OK;
}

static cr_status rewrite(struct cr_program *p, const struct cr_cost_model *target, const struct cr_offload_work *w,
                         const struct cr_offload_schedule *s) {
    const size_t   n = (size_t)CR_MAX(w->count, 1), ops = (size_t)p->ops + 4 * n;
    struct rewrite r  = {.p = p, .target = target, .w = w, .s = s};
    r.op              = cr_alloc(ops, sizeof *r.op);
    r.host            = cr_alloc(n, sizeof *r.host);
    r.go              = cr_alloc(n, sizeof *r.go);
    r.back            = cr_alloc(n, sizeof *r.back);
    r.renamed         = cr_alloc((size_t)p->tensors + 3 * n, sizeof *r.renamed);
    const bool there  = r.op && r.host && r.go && r.back && r.renamed;
    cr_status  status = there ? put_all(&r) : CR_NO_MEMORY(ops * sizeof *r.op);
    if (status == CR_OK) {
        struct cr_op *old = p->op;
        p->op             = r.op;
        p->ops            = r.ops;
        p->op_capacity    = (int)ops;
        r.op              = old;
    }
    cr_free(r.op);
    cr_free(r.host);
    cr_free(r.go);
    cr_free(r.back);
    cr_free(r.renamed);
    return status;
}

/* ---- the pass ---- */

static size_t fullest(const struct cr_offload_work *w) {
    size_t most = 0;
    for (int i = 0; i < w->p->ops; i++) most = CR_MAX(most, w->load[i]);
    return most;
}

static cr_status swap_all(struct cr_program *p, const struct cr_cost_model *target, struct cr_offload_work *w,
                          enum cr_offload_score score, struct cr_offload_report *report) {
    struct cr_offload_schedule s;
    enum cr_offload_action    *taken;
    CR_ALLOC(taken, (size_t)CR_MAX(w->count, 1));
    cr_status status = cr_offload_schedule_open(w, &s);
    if (status == CR_OK) status = cr_offload_choose(w, score, taken, &s, &report->score);
    if (status == CR_OK && s.tensors) status = rewrite(p, target, w, &s);
    if (status == CR_OK && s.tensors) {
        report->after   = s.peak;
        report->tensors = s.tensors;
        report->mapped  = s.mapped;
        report->bytes   = s.bytes;
        report->seconds = s.total;
        report->stalled = s.stalled;
    }
    cr_offload_schedule_close(&s);
    cr_free(taken);
    return status;
}

cr_status cr_pass_offload(struct cr_program *p, const struct cr_cost_model *target, size_t limit,
                          enum cr_offload_score score, struct cr_offload_report *report) {
    struct cr_offload_work w;
    *report = (struct cr_offload_report){.score = score};
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].stream != CR_STREAM_COMPUTE)
            return CR_FAIL(CR_ERR_USAGE, "program %s: it uses several lanes already, before swap", p->name);
    if (!p->ops) return CR_OK;
    CR_TRY(cr_offload_work_open(p, target, limit, &w));
    report->before = report->after = fullest(&w);
    report->seconds = report->seconds_before = w.begin[p->ops];
    cr_status status                         = CR_OK;
    if (target->to_host_bytes_per_s > 0 && target->to_device_bytes_per_s > 0 && report->before > limit)
        status = swap_all(p, target, &w, score, report);
    cr_offload_work_close(&w);
    return status;
}

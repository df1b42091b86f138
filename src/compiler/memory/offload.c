/* compiler/memory/offload.c: inserts the copies that offload tensors to host memory and back, as scheduled.
 *
 * For tensor a with the uses e (early) and l (late) the pass inserts:
 *   offload a -> a.host               behind the op that writes a, on stream to_host
 *   barrier, reads a.host             on compute: where the memory of a becomes free
 *   barrier, writes a.event           on compute: where the copy back may start
 *   prefetch a.host, a.event -> a'    on stream to_device
 * The ops from l on read a'. These tensors order the streams like any other tensors, so no other pass needs to know
 * about offloading. */
#include "compiler/memory/offload.h"

struct rewrite {
    struct cr_program                *p;
    const struct cr_cost_model       *cost_model;
    const struct cr_offload_work     *w;
    const struct cr_offload_schedule *s;
    struct cr_op                     *op; /* [ops] the new program */
    int                               ops;
    int                              *host, *event, *prefetched; /* [count] tensors of each candidate */
    int                              *renamed; /* [tensors] the tensor that readers of this tensor read now */
    struct cr_arena                   arena;   /* holds the arrays but `op` */
};

/* ---- tensors ---- */

/* Adds a tensor named `like` + suffix; the name of one that was recomputed may be taken. */
static int add_tensor(struct cr_program *p, int like, const char *suffix, enum cr_region region) {
    const struct cr_tensor *t = &p->tensor[like];
    return cr_tensor_derive(p, t->name, suffix, t->dtype, region, t->dim);
}

static cr_status add_tensors(struct rewrite *r) {
    for (int k = 0; k < r->w->count; k++) {
        static const int64_t one[] = {1, 1, 1, 1};
        const int            t     = r->w->c[k].tensor;
        if (r->s->release_at[k] == CR_NONE) continue;
        r->host[k] = add_tensor(r->p, t, ".host", CR_REGION_HOST);
        if (r->p->failed) break;
        r->prefetched[k] = add_tensor(r->p, t, "'", CR_REGION_POOL);
        if (r->p->failed) break;
        r->p->tensor[r->prefetched[k]].copy_of = cr_tensor_origin(r->p, t);
        r->event[k] = cr_tensor_derive(r->p, r->p->tensor[t].name, ".event", CR_U8, CR_REGION_POOL, one);
    }
    return r->p->failed ? CR_NO_MEMORY(sizeof *r->p->tensor) : CR_OK;
}

/* ---- ops ---- */

static cr_status add_op(struct rewrite *r, enum cr_op_kind kind, enum cr_stream stream, int layer, int in0, int in1,
                        int out) {
    struct cr_op op        = cr_op_make(kind, layer);
    size_t       workspace = 0;
    op.stream              = stream;
    op.kernel = op.algo = 0;
    op.in[0]            = in0;
    if (kind == CR_OP_prefetch) op.in[CR_IN_prefetch_event] = in1;
    op.out[0] = out;
    if (r->cost_model->select) CR_TRY(r->cost_model->select(r->cost_model->self, r->p, &op, &workspace));
    CR_ASSERT(workspace == 0); /* copies need no workspace */
    r->op[r->ops++] = op;
    return CR_OK;
}

static int layer_of(const struct rewrite *r, int k) {
    return r->p->op[r->w->c[k].writer].layer;
}

static cr_status add_ops_before(struct rewrite *r, int at) {
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] == at)
            CR_TRY(add_op(r, CR_OP_barrier, CR_STREAM_COMPUTE, layer_of(r, k), r->host[k], CR_NONE, CR_NONE));
    for (int j = 0; j < r->w->count; j++) {
        const int k = r->w->by_late[j];
        if (r->s->prefetch_at[k] != at) continue;
        CR_TRY(add_op(r, CR_OP_barrier, CR_STREAM_COMPUTE, layer_of(r, k), CR_NONE, CR_NONE, r->event[k]));
        CR_TRY(
            add_op(r, CR_OP_prefetch, CR_STREAM_TO_DEVICE, layer_of(r, k), r->host[k], r->event[k], r->prefetched[k]));
    }
    return CR_OK;
}

static cr_status add_ops_behind(struct rewrite *r, int at) {
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] != CR_NONE && r->w->c[k].writer == at)
            CR_TRY(add_op(r, CR_OP_offload, CR_STREAM_TO_HOST, layer_of(r, k), r->w->c[k].tensor, CR_NONE, r->host[k]));
    return CR_OK;
}

static void copy_op(struct rewrite *r, int at) {
    struct cr_op op = r->p->op[at];
    for (int k = 0; k < r->w->count; k++)
        if (r->s->release_at[k] != CR_NONE && r->w->c[k].late == at) r->renamed[r->w->c[k].tensor] = r->prefetched[k];
    for (int s = 0; s < cr_op_info(op.kind)->ins; s++)
        if (op.in[s] >= 0) op.in[s] = r->renamed[op.in[s]];
    r->op[r->ops++] = op;
}

static cr_status build_program(struct rewrite *r) {
    const size_t n   = (size_t)r->w->count;
    const int    ops = r->p->ops;
    CR_ARENA_ALLOC(&r->arena, r->host, n);
    CR_ARENA_ALLOC(&r->arena, r->event, n);
    CR_ARENA_ALLOC(&r->arena, r->prefetched, n);
    CR_ARENA_ALLOC(&r->arena, r->renamed, (size_t)r->p->tensors + 3 * n);
    CR_TRY(add_tensors(r));
    for (int t = 0; t < r->w->p->tensors; t++) r->renamed[t] = t;
    for (int i = 0; i < ops; i++) {
        CR_TRY(add_ops_before(r, i));
        copy_op(r, i);
        CR_TRY(add_ops_behind(r, i));
    }
    return CR_OK;
}

static cr_status rewrite(struct cr_program *p, const struct cr_cost_model *cost_model, const struct cr_offload_work *w,
                         const struct cr_offload_schedule *s) {
    const size_t   ops = (size_t)p->ops + 4 * (size_t)w->count;
    struct rewrite r   = {.p = p, .cost_model = cost_model, .w = w, .s = s};
    CR_ALLOC(r.op, ops);
    const cr_status status = build_program(&r);
    cr_free(status == CR_OK ? p->op : r.op);
    if (status == CR_OK) {
        p->op          = r.op;
        p->ops         = r.ops;
        p->op_capacity = (int)ops;
    }
    cr_arena_free(&r.arena);
    return status;
}

/* ---- the pass ---- */

static cr_status offload_all(struct cr_program *p, const struct cr_cost_model *cost_model, struct cr_offload_work *w,
                             enum cr_offload_score score, struct cr_fit_report *report) {
    struct cr_offload_schedule s;
    bool                      *chosen;
    CR_ARENA_ALLOC(&w->arena, chosen, (size_t)w->count);
    cr_status status = cr_offload_schedule_open(w, &s);
    if (status == CR_OK) status = cr_offload_choose(w, score, chosen, &s);
    if (status == CR_OK && s.tensors) status = rewrite(p, cost_model, w, &s);
    if (status == CR_OK && s.tensors) {
        report->after         = s.peak;
        report->offloaded     = s.tensors;
        report->offload_bytes = s.bytes;
        report->seconds       = s.total;
        report->stalled       = s.stalled;
    }
    cr_arena_free(&s.arena);
    return status;
}

cr_status cr_pass_offload(struct cr_program *p, const struct cr_cost_model *cost_model, size_t limit,
                          enum cr_offload_score score, struct cr_fit_report *report) {
    struct cr_offload_work w;
    for (int i = 0; i < p->ops; i++)
        if (p->op[i].stream != CR_STREAM_COMPUTE)
            return CR_FAIL(CR_ERR_USAGE, "program %s: the program uses several streams already, before offloading",
                           p->name);
    if (!p->ops) return CR_OK;
    cr_status status = CR_OK;
    CR_TRY_OUT(cr_offload_work_open(p, cost_model, limit, &w));
    report->before = report->after = cr_offload_peak(&w, w.load);
    report->seconds = report->seconds_before = w.begin[p->ops];
    if (cost_model->to_host_bytes_per_s > 0 && cost_model->to_device_bytes_per_s > 0 && report->before > limit)
        CR_TRY_OUT(offload_all(p, cost_model, &w, score, report));
out:
    cr_arena_free(&w.arena);
    return status;
}

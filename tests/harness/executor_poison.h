/* harness/executor_poison.h: finds errors of memory plans and of waits: fills dead tensors with NaN (cr_exec_poison)
 * and delays ops (cr_exec_jitter).
 *
 * Fills are work of the compute stream. The fill of a tensor stands at the first op of that stream where the compute
 * stream knows that all ops that touch the tensor are complete. This is after the last op that touches the tensor. If
 * an op of another stream touches the tensor, it is before the first compute op whose waits cover the op of the other
 * stream.
 *
 * A later tensor at the same bytes must come after the fill. A compute op does because of its position. An op of
 * another stream does if its clock covers the op at which the fill stands, because the fill comes before the event of
 * that op. If the bytes pass from one stream to another without a compute op in between, no such position exists and
 * the tensor is left out: its fill would need an additional wait, which would hide missing waits. */
#ifndef CR_EXECUTOR_POISON_H
#define CR_EXECUTOR_POISON_H

#include "compiler/schedule/streams.h"
#include "core/rng.h"
#include "runtime/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- where fills stand ---- */

/* A range of the pool whose tensor is dead from this point on. */
struct cr_fill {
    int    op;           /* op of the compute stream; program->ops: at the end, when all streams are done */
    bool   after_launch; /* true: after the launch of the op, before its event. false: before the launch, after its
                            waits */
    size_t begin, end;   /* bytes of the pool */
};

struct fill_search {
    const struct cr_program   *p;
    struct cr_clock           *clock;      /* by op */
    struct cr_stream_interval *interval;   /* by tensor */
    int                       *begin, *op; /* ops that touch tensor t: op[begin[t]] to op[begin[t + 1]] */
};

enum { TOUCHED_MAX = 1024 };

static inline int touched(const struct cr_program *p, int i, int ids[TOUCHED_MAX]) {
    const int reads = cr_op_reads(&p->op[i], ids);
    return reads + cr_op_writes(&p->op[i], ids + reads);
}

static inline cr_status list_touches(struct fill_search *s) {
    const struct cr_program *p = s->p;
    int                      ids[TOUCHED_MAX];
    CR_ALLOC(s->begin, (size_t)p->tensors + 2);
    for (int i = 0; i < p->ops; i++)
        for (int n = touched(p, i, ids), k = 0; k < n; k++) s->begin[ids[k] + 2]++;
    for (int t = 0; t < p->tensors; t++) s->begin[t + 2] += s->begin[t + 1];
    CR_ALLOC(s->op, (size_t)s->begin[p->tensors + 1] + 1);
    for (int i = 0; i < p->ops; i++)
        for (int n = touched(p, i, ids), k = 0; k < n; k++) s->op[s->begin[ids[k] + 1]++] = i;
    return CR_OK;
}

static inline cr_status open_search(struct fill_search *s, const struct cr_program *p) {
    s->p = p;
    CR_ALLOC(s->clock, (size_t)CR_MAX(p->ops, 1));
    CR_ALLOC(s->interval, (size_t)CR_MAX(p->tensors, 1));
    cr_stream_clocks(p, s->clock);
    CR_TRY(cr_stream_intervals(p, s->interval));
    return list_touches(s);
}

static inline void close_search(struct fill_search *s) {
    cr_free(s->clock);
    cr_free(s->interval);
    cr_free(s->begin);
    cr_free(s->op);
}

/* At compute op j, are all ops that touch the tensor complete or earlier in the compute stream? */
static inline bool all_complete_at(const struct fill_search *s, int tensor, int j) {
    for (int k = s->begin[tensor]; k < s->begin[tensor + 1]; k++) {
        const enum cr_stream stream = s->p->op[s->op[k]].stream;
        if (stream == CR_STREAM_COMPUTE ? s->op[k] > j : !cr_clock_covers(&s->clock[j], stream, s->op[k])) return false;
    }
    return true;
}

static inline bool touches(const struct fill_search *s, int tensor, int op) {
    for (int k = s->begin[tensor]; k < s->begin[tensor + 1]; k++)
        if (s->op[k] == op) return true;
    return false;
}

/* Does op w, which touches bytes of the fill, always run after the fill? */
static inline bool runs_after(const struct fill_search *s, int w, const struct cr_fill *fill) {
    if (s->p->op[w].stream != CR_STREAM_COMPUTE) return cr_clock_covers(&s->clock[w], CR_STREAM_COMPUTE, fill->op);
    return w > fill->op || (w == fill->op && !fill->after_launch);
}

/* Do all later tensors at these bytes come after the fill? */
static inline bool is_safe(const struct fill_search *s, int tensor, const struct cr_fill *fill) {
    const struct cr_program *p = s->p;
    for (int u = 0; u < p->tensors; u++) {
        const struct cr_tensor *x = &p->tensor[u];
        if (u == tensor || x->region != CR_REGION_POOL || x->first < 0) continue;
        if (x->offset >= fill->end || fill->begin >= x->offset + x->bytes) continue;
        if (s->interval[u].lower < s->interval[tensor].upper) continue; /* an earlier tensor */
        for (int k = s->begin[u]; k < s->begin[u + 1]; k++)
            if (!runs_after(s, s->op[k], fill)) return false;
    }
    return true;
}

static inline bool find_fill(const struct fill_search *s, int tensor, struct cr_fill *out) {
    const struct cr_tensor *t = &s->p->tensor[tensor];
    int                     j = t->first;
    while (j < s->p->ops && (s->p->op[j].stream != CR_STREAM_COMPUTE || !all_complete_at(s, tensor, j))) j++;
    *out = (struct cr_fill){.op           = j,
                            .after_launch = j < s->p->ops && touches(s, tensor, j),
                            .begin        = t->offset,
                            .end          = t->offset + t->bytes};
    return is_safe(s, tensor, out);
}

static inline bool dies(const struct cr_program *p, int tensor) {
    const struct cr_tensor *x = &p->tensor[tensor];
    if (x->region != CR_REGION_POOL || x->first < 0 || x->keep) return false;
    for (int t = 0; t < p->tensors; t++) /* an alias that uses the same bytes dies in its place */
        if (p->tensor[t].alias == tensor && p->tensor[t].first >= 0) return false;
    return true;
}

static inline int compare_fills(const void *a, const void *b) {
    const struct cr_fill *x = a, *y = b;
    if (x->op != y->op) return x->op - y->op;
    if (x->after_launch != y->after_launch) return x->after_launch - y->after_launch;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Finds the ranges of all tensors that die in a planned program, in the order of ops. The caller frees *out with
 * cr_free. A tensor whose bytes another stream reuses at once is left out; the first comment of this file explains
 * why. */
static inline cr_status cr_fills_make(const struct cr_program *p, struct cr_fill **out, int *count) {
    struct fill_search s    = {0};
    struct cr_fill    *fill = NULL;
    cr_status          status;
    *count = 0;
    CR_TRY_OUT(open_search(&s, p));
    fill = cr_alloc((size_t)CR_MAX(p->tensors, 1), sizeof *fill);
    if (!fill) CR_TRY_OUT(CR_NO_MEMORY((size_t)p->tensors * sizeof *fill));
    for (int t = 0; t < p->tensors; t++)
        if (dies(p, t) && find_fill(&s, t, &fill[*count])) ++*count;
    qsort(fill, (size_t)*count, sizeof *fill, compare_fills);
    *out = fill;
out:
    close_search(&s);
    return status;
}

/* ---- poison ---- */

enum { CR_POISON_BYTE = 0xff }; /* NaN in every floating-point type */

struct poisoner {
    struct cr_exec *exec;
    struct cr_fill *fill; /* [fills], in the order of ops */
    int             fills;
    unsigned char  *bytes; /* on a device without async: poison bytes, as many as the largest fill */
};

static inline cr_status poison_at(struct poisoner *p, int op, bool after_launch) {
    struct cr_device *device = cr_exec_device(p->exec);
    for (int i = 0; i < p->fills && p->fill[i].op <= op; i++) {
        const struct cr_fill *f = &p->fill[i];
        if (f->op != op || f->after_launch != after_launch) continue;
        unsigned char *to    = (unsigned char *)p->exec->memory->region[CR_REGION_POOL] + f->begin;
        const size_t   bytes = f->end - f->begin;
        CR_TRY(cr_exec_async(p->exec)
                   ? cr_exec_async(p->exec)->fill(device, CR_STREAM_COMPUTE, to, CR_POISON_BYTE, bytes)
                   : device->backend->put(device, to, p->bytes, bytes));
    }
    return CR_OK;
}
static inline cr_status poison_before(void *context, int op) {
    return poison_at(context, op, false);
}
static inline cr_status poison_after(void *context, int op) {
    return poison_at(context, op, true);
}
static inline cr_status poison_end(void *context) {
    struct poisoner *p = context;
    return poison_at(p, p->exec->program->ops, false);
}
static inline void poison_close(void *context) {
    struct poisoner *p = context;
    cr_free(p->fill);
    cr_free(p->bytes);
    cr_free(p);
}

static inline cr_status poison_open(struct poisoner *p) {
    size_t largest = 1;
    CR_TRY(cr_fills_make(p->exec->program, &p->fill, &p->fills));
    if (cr_exec_async(p->exec)) return CR_OK;
    for (int i = 0; i < p->fills; i++) largest = CR_MAX(largest, p->fill[i].end - p->fill[i].begin);
    CR_ALLOC(p->bytes, largest);
    memset(p->bytes, CR_POISON_BYTE, largest);
    return CR_OK;
}

/* From now on the bytes of each pool tensor are filled with NaN after its lifetime. If a result changes, an op has read
 * memory outside the lifetime of its tensor. On a device with async the compute stream does the fills, at points where
 * all other streams are known to have finished with the tensor (cr_fills_make). */
static inline cr_status cr_exec_poison(struct cr_exec *exec) {
    struct poisoner *p;
    CR_ALLOC(p, 1);
    p->exec                = exec;
    const cr_status status = poison_open(p);
    if (status != CR_OK) {
        poison_close(p);
        return status;
    }
    return cr_exec_add_hook(
        exec,
        &(struct cr_launch_hook){
            .before = poison_before, .after = poison_after, .end = poison_end, .close = poison_close, .context = p});
}

/* ---- jitter ---- */

enum { DELAY_MAX_NS = 50 * 1000, DELAY_ONE_IN = 4, JITTER_GRAPH_RUNS = 8 };

struct jitter {
    struct cr_exec *exec;
    struct cr_rng   rng;
};

static inline cr_status jitter_before(void *context, int op) {
    struct jitter *j = context;
    if (cr_rng_below(&j->rng, DELAY_ONE_IN)) return CR_OK;
    return cr_exec_async(j->exec)->delay(cr_exec_device(j->exec), j->exec->program->op[op].stream,
                                         (int64_t)cr_rng_below(&j->rng, DELAY_MAX_NS + 1));
}
static inline void jitter_close(void *context) {
    cr_free(context);
}

/* From now on, on a device with async, a random quarter of the ops start up to 50 us late. If a result changes, a wait
 * between streams is missing. The delays are part of the captured graph; every few runs the graph is captured again
 * with other delays. */
static inline cr_status cr_exec_jitter(struct cr_exec *exec, uint64_t seed) {
    struct jitter *j;
    if (!cr_exec_async(exec)) return CR_OK;
    CR_ALLOC(j, 1);
    *j = (struct jitter){.exec = exec, .rng = cr_rng_make(seed, CR_RNG_TEST, 0, 0)};
    return cr_exec_add_hook(
        exec, &(struct cr_launch_hook){
                  .before = jitter_before, .close = jitter_close, .context = j, .recapture_runs = JITTER_GRAPH_RUNS});
}

#endif

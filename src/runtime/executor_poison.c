/* runtime/executor_poison.c: when the bytes of a dead tensor can be filled with NaN, for tests: see cr_exec_poison in
 * runtime/executor.h.
 *
 * Fills are work of the compute lane. One stands at the first place of that lane where compute knows every op that
 * touched the tensor to be complete: behind the op that touches it last, or, where another lane did so, in front of the
 * first op of compute whose waits cover that. What lies at the same bytes later must come behind the fill: an op of
 * compute does by its place, an op of another lane when its clock says that it waits for the op at which the fill
 * stands (the fill comes before that op's mark). Where the bytes go from one lane to the other without compute in
 * between no such place exists, and the tensor is left out: a fill there would need a wait of its own, and would hide
 * what is looked for. */
#include "compiler/schedule/streams.h"
#include "runtime/executor.h"

#include <stdlib.h>

struct search {
    const struct cr_program   *p;
    struct cr_clock           *clock;      /* by op */
    struct cr_stream_interval *stay;       /* by tensor */
    int                       *begin, *op; /* ops that touch tensor t: op[begin[t]] to op[begin[t + 1]] */
};

static int touched(const struct cr_op *op, int ids[2 * CR_OP_IDS_MAX]) {
    const int n = cr_op_reads(op, ids);
    return n + cr_op_writes(op, ids + n);
}

static cr_status list_touches(struct search *s) {
    const struct cr_program *p = s->p;
    int                      ids[2 * CR_OP_IDS_MAX];
    CR_ALLOC(s->begin, (size_t)p->tensors + 2);
    for (int i = 0; i < p->ops; i++)
        for (int n = touched(&p->op[i], ids), k = 0; k < n; k++) s->begin[ids[k] + 2]++;
    for (int t = 0; t < p->tensors; t++) s->begin[t + 2] += s->begin[t + 1];
    CR_ALLOC(s->op, (size_t)s->begin[p->tensors + 1] + 1);
    for (int i = 0; i < p->ops; i++)
        for (int n = touched(&p->op[i], ids), k = 0; k < n; k++) s->op[s->begin[ids[k] + 1]++] = i;
    return CR_OK;
}

static cr_status open_search(struct search *s, const struct cr_program *p) {
    s->p = p;
    CR_ALLOC(s->clock, (size_t)CR_MAX(p->ops, 1));
    CR_ALLOC(s->stay, (size_t)CR_MAX(p->tensors, 1));
    cr_stream_clocks(p, s->clock);
    CR_TRY(cr_stream_intervals(p, s->stay));
    return list_touches(s);
}

static void close_search(struct search *s) {
    cr_free(s->clock);
    cr_free(s->stay);
    cr_free(s->begin);
    cr_free(s->op);
}

/* Does compute, when it has launched op j of its own, know all that touched the tensor to be complete, or have it in
 * its past? */
static bool knows_all(const struct search *s, int tensor, int j) {
    for (int k = s->begin[tensor]; k < s->begin[tensor + 1]; k++) {
        const enum cr_stream lane = s->p->op[s->op[k]].stream;
        if (lane == CR_STREAM_COMPUTE ? s->op[k] > j : !cr_clock_covers(&s->clock[j], lane, s->op[k])) return false;
    }
    return true;
}

static bool touches(const struct search *s, int tensor, int op) {
    for (int k = s->begin[tensor]; k < s->begin[tensor + 1]; k++)
        if (s->op[k] == op) return true;
    return false;
}

/* Is op w, which touches bytes that the fill covers, sure to come behind it? */
static bool comes_behind(const struct search *s, int w, const struct cr_fill *fill) {
    if (s->p->op[w].stream != CR_STREAM_COMPUTE) return cr_clock_covers(&s->clock[w], CR_STREAM_COMPUTE, fill->op);
    return w > fill->op || (w == fill->op && !fill->after_launch);
}

static bool harms_nothing(const struct search *s, int tensor, const struct cr_fill *fill) {
    const struct cr_program *p = s->p;
    for (int u = 0; u < p->tensors; u++) {
        const struct cr_tensor *x = &p->tensor[u];
        if (u == tensor || x->region != CR_REGION_POOL || x->first < 0) continue;
        if (x->offset >= fill->end || fill->begin >= x->offset + x->bytes) continue;
        if (s->stay[u].lower < s->stay[tensor].upper) continue; /* was there before */
        for (int k = s->begin[u]; k < s->begin[u + 1]; k++)
            if (!comes_behind(s, s->op[k], fill)) return false;
    }
    return true;
}

static bool find_place(const struct search *s, int tensor, struct cr_fill *out) {
    const struct cr_tensor *t = &s->p->tensor[tensor];
    int                     j = t->first;
    while (j < s->p->ops && (s->p->op[j].stream != CR_STREAM_COMPUTE || !knows_all(s, tensor, j))) j++;
    *out = (struct cr_fill){.op           = j,
                            .after_launch = j < s->p->ops && touches(s, tensor, j),
                            .begin        = t->offset,
                            .end          = t->offset + t->bytes};
    return harms_nothing(s, tensor, out);
}

static bool dies(const struct cr_program *p, int tensor) {
    const struct cr_tensor *x = &p->tensor[tensor];
    if (x->region != CR_REGION_POOL || x->first < 0 || x->keep) return false;
    for (int t = 0; t < p->tensors; t++) /* who takes its storage over dies for it */
        if (p->tensor[t].alias == tensor && p->tensor[t].first >= 0) return false;
    return true;
}

static int compare_fills(const void *a, const void *b) {
    const struct cr_fill *x = a, *y = b;
    if (x->op != y->op) return x->op - y->op;
    if (x->after_launch != y->after_launch) return x->after_launch - y->after_launch;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

cr_status cr_fills_make(const struct cr_program *p, struct cr_fill **out, int *count) {
    struct search   s    = {0};
    struct cr_fill *fill = NULL;
    cr_status       status;
    *count = 0;
    CR_TRY_OUT(open_search(&s, p));
    fill = cr_alloc((size_t)CR_MAX(p->tensors, 1), sizeof *fill);
    if (!fill) CR_TRY_OUT(CR_NO_MEMORY((size_t)p->tensors * sizeof *fill));
    for (int t = 0; t < p->tensors; t++)
        if (dies(p, t) && find_place(&s, t, &fill[*count])) ++*count;
    qsort(fill, (size_t)*count, sizeof *fill, compare_fills);
    *out = fill;
out:
    close_search(&s);
    return status;
}

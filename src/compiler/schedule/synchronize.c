/* compiler/schedule/synchronize.c: the waits between lanes that the hazards need, and no others.
 *
 * Lanes come with the ops. An op waits, per other lane, for the latest op there that writes what it reads (RAW), reads
 * what it writes (WAR) or writes what it writes (WAW). Transients conflict by id: they have no place yet, and plan
 * stretches their stay where lanes run beside each other. Store and input tensors conflict when their bytes overlap: a
 * plane and a parameter's slice of it. A wait that another wait, or the lane's own past, implies is left out. */
#include "compiler/compiler.h"
#include "compiler/schedule/streams.h"

#include <stdlib.h>

struct touch { /* by tensor: last op of each lane */
    int read[CR_STREAMS], written[CR_STREAMS];
};

struct overlaps { /* by tensor: the other tensors that share bytes with it, as a slice [begin[t], begin[t+1]) of id */
    int *begin, *id;
};

struct order {
    struct cr_program *p;
    struct touch      *touch;
    struct cr_clock   *clock;
    struct overlaps    overlaps;
};

/* ---- which fixed tensors share bytes ---- */

struct span {
    enum cr_region region;
    size_t         begin, end;
    int            id;
};

static int compare_spans(const void *a, const void *b) {
    const struct span *s = a, *t = b;
    if (s->region != t->region) return s->region < t->region ? -1 : 1;
    if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
    return s->id - t->id;
}

/* Visits every overlapping pair of sorted spans: once to count, once to fill. */
static void visit_overlaps(const struct span *span, int spans, int *begin, int *used, int *id) {
    for (int i = 0; i < spans; i++)
        for (int k = i + 1; k < spans && span[k].region == span[i].region && span[k].begin < span[i].end; k++) {
            int a = span[i].id, b = span[k].id;
            if (id) id[begin[a] + used[a]] = b, id[begin[b] + used[b]] = a;
            used[a]++;
            used[b]++;
        }
}

static cr_status find_overlaps(const struct cr_program *p, struct overlaps *o) {
    cr_status    status = CR_OK;
    size_t       n      = (size_t)p->tensors;
    struct span *span   = cr_alloc(n, sizeof *span);
    int         *used   = cr_alloc(n, sizeof *used);
    o->begin            = cr_alloc(n + 1, sizeof *o->begin);
    if (!span || !used || !o->begin) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while ordering program %s", p->name);
    int spans = 0;
    for (int t = 0; t < p->tensors; t++) {
        const struct cr_tensor *x = &p->tensor[t];
        if (x->region != CR_REGION_POOL) span[spans++] = (struct span){x->region, x->offset, x->offset + x->bytes, t};
    }
    qsort(span, (size_t)spans, sizeof *span, compare_spans);
    visit_overlaps(span, spans, o->begin, used, NULL);
    for (int t = 0; t < p->tensors; t++) {
        o->begin[t + 1] = o->begin[t] + used[t];
        used[t]         = 0;
    }
    o->id = cr_alloc((size_t)o->begin[n], sizeof *o->id);
    if (!o->id) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while ordering program %s", p->name);
    visit_overlaps(span, spans, o->begin, used, o->id);
out:
    cr_free(span);
    cr_free(used);
    return status;
}

/* ---- waits ---- */

static void need(int *latest, const int *by_lane, enum cr_stream own) {
    for (int l = 0; l < CR_STREAMS; l++)
        if (l != (int)own) latest[l] = CR_MAX(latest[l], by_lane[l]);
}

/* Adds the hazards of one operand, with every tensor that shares its bytes. */
static void need_operand(const struct order *o, int tensor, bool writes, enum cr_stream own, int latest[CR_STREAMS]) {
    int begin = o->overlaps.begin[tensor], end = o->overlaps.begin[tensor + 1];
    for (int k = begin - 1; k < end; k++) {
        const struct touch *touch = &o->touch[k < begin ? tensor : o->overlaps.id[k]];
        need(latest, touch->written, own);
        if (writes) need(latest, touch->read, own);
    }
}

/* Puts the needed waits that nothing implies into the op. */
static void put_waits(struct order *o, int index, const int latest[CR_STREAMS]) {
    struct cr_op    *op    = &o->p->op[index];
    struct cr_clock *clock = &o->clock[index];
    int              waits = 0;
    for (int l = 0; l < CR_STREAMS; l++) {
        bool implied = latest[l] <= clock->done[l]; /* also when nothing is needed */
        for (int m = 0; m < CR_STREAMS && !implied; m++)
            implied = m != l && latest[m] >= 0 && latest[l] <= o->clock[latest[m]].done[l];
        if (!implied) op->wait[waits++] = latest[l];
    }
    for (int k = 0; k < waits; k++)
        cr_clock_join(clock, &o->clock[op->wait[k]], o->p->op[op->wait[k]].stream, op->wait[k]);
}

static void order_op(struct order *o, int index, int last[CR_STREAMS]) {
    struct cr_op *op = &o->p->op[index];
    int           latest[CR_STREAMS], reads[CR_OP_IDS_MAX], writes[CR_OP_IDS_MAX];
    int           n = cr_op_reads(op, reads), m = cr_op_writes(op, writes);
    for (int l = 0; l < CR_STREAMS; l++) latest[l] = -1;
    for (int i = 0; i < n; i++) need_operand(o, reads[i], false, op->stream, latest);
    for (int i = 0; i < m; i++) need_operand(o, writes[i], true, op->stream, latest);
    cr_clock_start(&o->clock[index]);
    int mate = last[op->stream];
    if (mate >= 0) cr_clock_join(&o->clock[index], &o->clock[mate], op->stream, mate);
    put_waits(o, index, latest);
    for (int i = 0; i < n; i++) o->touch[reads[i]].read[op->stream] = index;
    for (int i = 0; i < m; i++) o->touch[writes[i]].written[op->stream] = index;
    last[op->stream] = index;
}

cr_status cr_pass_insert_waits(struct cr_program *p) {
    cr_status    status = CR_OK;
    struct order o      = {.p = p};
    int          last[CR_STREAMS];
    for (int i = 0; i < p->ops; i++)
        for (int k = 0; k < CR_OP_WAIT_MAX; k++) p->op[i].wait[k] = CR_NONE;
    if (!cr_uses_several_streams(p)) return CR_OK;
    o.touch = cr_alloc((size_t)CR_MAX(p->tensors, 1), sizeof *o.touch);
    o.clock = cr_alloc((size_t)p->ops, sizeof *o.clock);
    if (!o.touch || !o.clock) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while ordering program %s", p->name);
    CR_TRY_OUT(find_overlaps(p, &o.overlaps));
    for (int l = 0; l < CR_STREAMS; l++) last[l] = -1;
    for (int t = 0; t < p->tensors; t++)
        for (int l = 0; l < CR_STREAMS; l++) o.touch[t].read[l] = o.touch[t].written[l] = -1;
    for (int i = 0; i < p->ops; i++) order_op(&o, i, last);
out:
    cr_free(o.touch);
    cr_free(o.clock);
    cr_free(o.overlaps.begin);
    cr_free(o.overlaps.id);
    return status;
}

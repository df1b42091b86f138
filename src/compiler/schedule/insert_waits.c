/* compiler/schedule/insert_waits.c: adds only the waits between streams that the data hazards require, and those that
 * bound the memory of the side stream.
 *
 * The stream of each op is given. For each other stream, an op waits for the latest op there that writes what it reads
 * (RAW), reads what it writes (WAR) or writes what it writes (WAW). Transients conflict by id: they have no offset yet,
 * and plan extends their live intervals where streams run concurrently. STORE and INPUT tensors conflict when their
 * bytes overlap, such as a whole buffer and the slice of one parameter. A wait that another wait or an earlier op of
 * the same stream implies is left out.
 *
 * What an op of the side stream uses is live until the compute stream waits for that op. So the compute stream waits at
 * every SIDE_LAG-th op of the side stream for the one SIDE_LAG places before: a few residual blocks at most keep their
 * tensors longer (+1.4 % for ResNet-50; the steps take as long without these waits, within 1 %). */
#include "compiler/passes.h"
#include "compiler/schedule/streams.h"

#include <stdlib.h>

enum { SIDE_LAG = 4 };

struct last_access { /* per tensor: the last op of each stream */
    int read[CR_STREAMS], written[CR_STREAMS];
};

struct overlaps { /* the tensors that share bytes with tensor t: id[begin[t] .. begin[t + 1]) */
    int *begin, *id;
};

struct sync {
    struct cr_program  *p;
    struct last_access *last_access;
    struct cr_clock    *clock;
    struct overlaps     overlaps;
    int                 side_ops; /* number of ops of the side stream so far */
    int side_awaited, side_next;  /* op that compute ops wait for; the one that they wait for afterwards */
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

/* Visits each overlapping pair of the sorted spans. With id NULL it counts them in `used`, else it fills `id`. */
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
    if (!span || !used || !o->begin)
        CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while adding waits to program %s", p->name);
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
    CR_ALLOC_OUT(o->id, (size_t)o->begin[n]);
    visit_overlaps(span, spans, o->begin, used, o->id);
out:
    cr_free(span);
    cr_free(used);
    return status;
}

/* ---- waits ---- */

static void raise_latest(int *latest, const int *last_op, enum cr_stream own) {
    for (int l = 0; l < CR_STREAMS; l++)
        if (l != (int)own) latest[l] = CR_MAX(latest[l], last_op[l]);
}

/* Adds the hazards of one operand and of every tensor that shares its bytes. */
static void add_hazards(const struct sync *o, int tensor, bool writes, enum cr_stream own, int latest[CR_STREAMS]) {
    int begin = o->overlaps.begin[tensor], end = o->overlaps.begin[tensor + 1];
    for (int k = begin - 1; k < end; k++) {
        const struct last_access *last_access = &o->last_access[k < begin ? tensor : o->overlaps.id[k]];
        raise_latest(latest, last_access->written, own);
        if (writes) raise_latest(latest, last_access->read, own);
    }
}

/* Sets the waits of the op, without those that are implied. */
static void set_waits(struct sync *o, int index, const int latest[CR_STREAMS]) {
    struct cr_op    *op    = &o->p->op[index];
    struct cr_clock *clock = &o->clock[index];
    int              waits = 0;
    for (int l = 0; l < CR_STREAMS; l++) {
        bool implied = latest[l] <= clock->done[l]; /* true also when no wait is needed */
        for (int m = 0; m < CR_STREAMS && !implied; m++)
            implied = m != l && latest[m] >= 0 && latest[l] <= o->clock[latest[m]].done[l];
        if (!implied) op->wait[waits++] = latest[l];
    }
    for (int k = 0; k < waits; k++)
        cr_clock_join(clock, &o->clock[op->wait[k]], o->p->op[op->wait[k]].stream, op->wait[k]);
}

static void bound_side_stream(struct sync *o, int index) {
    if (o->side_ops++ % SIDE_LAG) return;
    o->side_awaited = o->side_next;
    o->side_next    = index;
}

static void add_waits(struct sync *o, int index, int last[CR_STREAMS]) {
    struct cr_op *op = &o->p->op[index];
    int           latest[CR_STREAMS], reads[CR_OP_IDS_MAX], writes[CR_OP_IDS_MAX];
    int           n = cr_op_reads(op, reads), m = cr_op_writes(op, writes);
    for (int l = 0; l < CR_STREAMS; l++) latest[l] = -1;
    for (int i = 0; i < n; i++) add_hazards(o, reads[i], false, op->stream, latest);
    for (int i = 0; i < m; i++) add_hazards(o, writes[i], true, op->stream, latest);
    if (op->stream == CR_STREAM_SIDE) bound_side_stream(o, index);
    if (op->stream == CR_STREAM_COMPUTE) latest[CR_STREAM_SIDE] = CR_MAX(latest[CR_STREAM_SIDE], o->side_awaited);
    cr_clock_start(&o->clock[index]);
    int previous = last[op->stream];
    if (previous >= 0) cr_clock_join(&o->clock[index], &o->clock[previous], op->stream, previous);
    set_waits(o, index, latest);
    for (int i = 0; i < n; i++) o->last_access[reads[i]].read[op->stream] = index;
    for (int i = 0; i < m; i++) o->last_access[writes[i]].written[op->stream] = index;
    last[op->stream] = index;
}

cr_status cr_pass_insert_waits(struct cr_program *p) {
    cr_status   status = CR_OK;
    struct sync o      = {.p = p, .side_awaited = -1, .side_next = -1};
    int         last[CR_STREAMS];
    for (int i = 0; i < p->ops; i++)
        for (int k = 0; k < CR_OP_WAIT_MAX; k++) p->op[i].wait[k] = CR_NONE;
    if (!cr_uses_several_streams(p)) return CR_OK;
    CR_ALLOC_OUT(o.last_access, (size_t)p->tensors);
    CR_ALLOC_OUT(o.clock, (size_t)p->ops);
    CR_TRY_OUT(find_overlaps(p, &o.overlaps));
    for (int l = 0; l < CR_STREAMS; l++) last[l] = -1;
    for (int t = 0; t < p->tensors; t++)
        for (int l = 0; l < CR_STREAMS; l++) o.last_access[t].read[l] = o.last_access[t].written[l] = -1;
    for (int i = 0; i < p->ops; i++) add_waits(&o, i, last);
out:
    cr_free(o.last_access);
    cr_free(o.clock);
    cr_free(o.overlaps.begin);
    cr_free(o.overlaps.id);
    return status;
}

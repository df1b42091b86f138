/* compiler/memory/offload_schedule.c: when the copies of a set of candidates run: see compiler/memory/offload.h.
 *
 * Out: each as soon as it is written, one behind the other. Its place is free (`sync`) where its copy has ended, with a
 * margin; earlier, with a wait, where memory is wanted before. In: planned backwards, each as late as its use and the
 * copies behind it allow, with a margin; begun then (`go`), or later where there is no room for it yet. The walk goes
 * through the ops once and keeps the clock of the compute lane and of both copy lanes, as compiler/memory/simulate.c
 * does for the finished list.
 *
 * A walk knows the stalls that it makes only afterwards: a second one plans the copies back by the times of the first.
 */
#include "compiler/memory/offload.h"

#include <string.h>

static const double margin_share = 0.05; /* of a copy: measured times vary by about as much */

struct walk {
    const struct cr_offload_work *w;
    struct cr_offload_schedule   *s;
    const enum cr_offload_action *taken;
    int                           away;     /* copies out that hold memory, oldest first: s->offloaded */
    int                           next_in;  /* in w->by_late */
    int                           next_out; /* in w->c */
    double                        now, out_free, in_free;
};

cr_status cr_offload_schedule_open(const struct cr_offload_work *w, struct cr_offload_schedule *s) {
    const size_t n = (size_t)CR_MAX(w->count, 1), ops = (size_t)w->p->ops + 1;
    *s             = (struct cr_offload_schedule){0};
    s->release_at  = cr_alloc(n, sizeof *s->release_at);
    s->prefetch_at = cr_alloc(n, sizeof *s->prefetch_at);
    s->planned     = cr_alloc(n, sizeof *s->planned);
    s->offloaded   = cr_alloc(n, sizeof *s->offloaded);
    s->out_end     = cr_alloc(2 * n, sizeof *s->out_end);
    s->begin       = cr_alloc(ops, sizeof *s->begin);
    s->room        = cr_alloc(ops, sizeof *s->room);
    s->reading     = cr_alloc(ops, sizeof *s->reading);
    if (s->release_at && s->prefetch_at && s->planned && s->offloaded && s->out_end && s->begin && s->room &&
        s->reading)
        return CR_OK;
    cr_offload_schedule_close(s);
    return CR_NO_MEMORY(ops * sizeof *s->room);
}

void cr_offload_schedule_close(struct cr_offload_schedule *s) {
    cr_free(s->release_at);
    cr_free(s->prefetch_at);
    cr_free(s->planned);
    cr_free(s->offloaded);
    cr_free(s->out_end);
    cr_free(s->begin);
    cr_free(s->room);
    cr_free(s->reading);
    *s = (struct cr_offload_schedule){0};
}

/* ---- planning the copies back ---- */

/* The last op that begins no later than `time`, from `low` to `high`. */
static int op_at(const double *begin, int low, int high, double time) {
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (begin[middle] <= time)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void plan_ins(struct walk *a, const double *begin) {
    const struct cr_offload_work *w    = a->w;
    double                        free = begin[w->p->ops];
    for (int k = w->count - 1; k >= 0; k--) {
        const int                          i = w->by_late[k];
        const struct cr_offload_candidate *c = &w->c[i];
        if (a->taken[i] != CR_OFFLOAD_PREFETCHED) continue;
        free             = CR_MIN(free, begin[c->late]) - c->in_s * (1 + margin_share);
        a->s->planned[i] = op_at(begin, c->early + 1, c->late, free);
    }
}

/* ---- memory ---- */

/* room[i]: bytes live at op i when every taken tensor is away for the whole of its gap. */
static void find_room(struct walk *a) {
    const struct cr_offload_work *w    = a->w;
    size_t                       *room = a->s->room;
    const int                     ops  = w->p->ops;
    memset(room, 0, ((size_t)ops + 1) * sizeof *room); /* differences first; unsigned sums come out right */
    for (int i = 0; i < w->count; i++) {
        const struct cr_offload_candidate *c = &w->c[i];
        if (!a->taken[i]) continue;
        room[c->early + 1] -= c->bytes;
        room[a->taken[i] == CR_OFFLOAD_MAPPED ? c->last + 1 : c->late] += c->bytes;
        room[c->writer] += c->at_writer;
        room[c->writer + 1] -= c->at_writer;
        room[c->last] += c->at_last;
        room[c->last + 1] -= c->at_last;
    }
    for (int i = 1; i <= ops; i++) room[i] += room[i - 1];
    for (int i = 0; i < ops; i++) room[i] += w->load[i];
}

/* Bytes at op j, not before the present one, of copies out that have not ended then. */
static size_t still_there(const struct walk *a, int op, int j) {
    const double time = a->now + a->w->begin[j] - a->w->begin[op];
    size_t       sum  = 0;
    for (int k = 0; k < a->away; k++) {
        const struct cr_offload_candidate *c = &a->w->c[a->s->offloaded[k]];
        if (c->early < j && (j == op || a->s->out_end[a->s->offloaded[k]] + margin_share * c->out_s > time))
            sum += c->bytes;
    }
    return sum;
}

static bool fits(const struct walk *a, int op, const struct cr_offload_candidate *c) {
    for (int j = op; j < c->late; j++)
        if (a->s->room[j] + still_there(a, op, j) + c->bytes > a->w->limit) return false;
    return true;
}

/* ---- the walk ---- */

static void put_sync(struct walk *a, int place, int op) {
    const int i         = a->s->offloaded[place];
    a->s->release_at[i] = op;
    a->now              = CR_MAX(a->now, a->s->out_end[i]);
    memmove(&a->s->offloaded[place], &a->s->offloaded[place + 1],
            (size_t)(a->away - place - 1) * sizeof *a->s->offloaded);
    a->away--;
}

/* What has ended frees its place; what is wanted at this op must have ended; then as many more as memory needs. */
static void free_places(struct walk *a, int op) {
    const struct cr_offload_candidate *c = a->w->c;
    for (int k = 0; k < a->away;) {
        const int i = a->s->offloaded[k];
        if (c[i].late == op || (c[i].early < op && a->s->out_end[i] + margin_share * c[i].out_s <= a->now))
            put_sync(a, k, op);
        else
            k++;
    }
    for (int k = 0; k < a->away && a->s->room[op] + still_there(a, op, op) > a->w->limit;) {
        if (c[a->s->offloaded[k]].early < op)
            put_sync(a, k, op);
        else
            k++;
    }
}

static void start_ins(struct walk *a, int op) {
    const struct cr_offload_work *w = a->w;
    for (; a->next_in < w->count; a->next_in++) {
        const int                          i = w->by_late[a->next_in];
        const struct cr_offload_candidate *c = &w->c[i];
        if (a->taken[i] != CR_OFFLOAD_PREFETCHED) continue;
        if (c->late != op && (a->s->planned[i] > op || a->s->release_at[i] == CR_NONE || !fits(a, op, c))) return;
        a->s->prefetch_at[i] = op;
        a->in_free           = cr_copy_end(CR_MAX(a->in_free, a->now), c->in_s, a->out_free, w->contention.duplex);
        a->s->out_end[w->count + i] = a->in_free;
        for (int j = op; j < c->late; j++) a->s->room[j] += c->bytes;
    }
}

static void wait_for_ins(struct walk *a, int op, int *from) {
    const struct cr_offload_work *w = a->w;
    for (; *from < a->next_in; ++*from) {
        const int i = w->by_late[*from];
        if (w->c[i].late > op) return;
        if (a->taken[i] == CR_OFFLOAD_PREFETCHED) a->now = CR_MAX(a->now, a->s->out_end[w->count + i]);
    }
}

static void start_outs(struct walk *a, int op) {
    const struct cr_offload_work *w = a->w;
    for (; a->next_out < w->count && w->c[a->next_out].writer <= op; a->next_out++) {
        const int i = a->next_out;
        if (!a->taken[i]) continue;
        a->out_free      = cr_copy_end(CR_MAX(a->out_free, a->now), w->c[i].out_s, a->in_free, w->contention.duplex);
        a->s->out_end[i] = a->out_free;
        a->s->offloaded[a->away++] = i;
    }
}

static void find_reading(const struct walk *a) {
    const struct cr_offload_work *w = a->w;
    memset(a->s->reading, 0, (size_t)w->p->ops * sizeof *a->s->reading);
    for (int i = 0; i < w->count; i++)
        for (int k = 0; k < w->c[i].readers && a->taken[i] == CR_OFFLOAD_MAPPED; k++)
            a->s->reading[w->reader[w->c[i].reader + k]] += w->c[i].read_s;
}

static void walk_through(const struct cr_offload_work *w, const enum cr_offload_action *taken, const double *begin,
                         struct cr_offload_schedule *s) {
    struct walk a    = {.w = w, .s = s, .taken = taken};
    int         back = 0;
    s->peak          = 0;
    for (int i = 0; i < w->count; i++) s->release_at[i] = s->prefetch_at[i] = CR_NONE;
    plan_ins(&a, begin);
    find_room(&a);
    find_reading(&a);
    for (int op = 0; op < w->p->ops; op++) {
        free_places(&a, op);
        start_ins(&a, op);
        wait_for_ins(&a, op, &back);
        s->peak      = CR_MAX(s->peak, s->room[op] + still_there(&a, op, op));
        s->begin[op] = a.now;
        a.now = cr_mapped_read_end(&w->contention, op, a.now, w->seconds[op], s->reading[op], a.out_free, &a.in_free);
        start_outs(&a, op);
    }
    s->begin[w->p->ops] = s->total = a.now;
    s->stalled                     = a.now - w->begin[w->p->ops];
}

void cr_offload_schedule_make(struct cr_offload_work *w, const enum cr_offload_action *taken,
                              struct cr_offload_schedule *s) {
    walk_through(w, taken, w->begin, s);
    if (s->stalled > 0) {
        double total = s->total;
        size_t peak  = s->peak;
        walk_through(w, taken, s->begin, s); /* plans before it writes */
        if (s->total > total || s->peak > CR_MAX(peak, w->limit)) walk_through(w, taken, w->begin, s);
    }
    s->bytes   = 0;
    s->tensors = s->mapped = 0;
    for (int i = 0; i < w->count; i++) {
        if (taken[i]) s->bytes += w->c[i].bytes, s->tensors++;
        s->mapped += taken[i] == CR_OFFLOAD_MAPPED;
    }
    w->visits++;
}

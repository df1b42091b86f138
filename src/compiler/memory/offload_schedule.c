/* compiler/memory/offload_schedule.c: schedules the copies of offloaded tensors and predicts the program's time.
 *
 * Copies to the host start as soon as the tensor is written, one behind the other. The tensor's memory is free
 * (release_at) where its copy has ended, with a margin, or earlier, with a wait, where memory is needed before.
 *
 * Copies back are planned backwards: each as late as its use and the later copies allow, with a margin. A copy back
 * starts at the planned op (prefetch_at), or later when there is no room for its tensor yet.
 *
 * The simulation visits the ops once and keeps the clocks of the compute stream and of both copy streams, as
 * compiler/memory/simulate.c does for the finished program. The stalls are known only afterwards, so a second
 * simulation plans the copies back with the start times of the first. */
#include "compiler/memory/offload.h"

#include <string.h>

static const double margin_fraction = 0.05; /* fraction of a copy's time: measured times vary by about as much */

struct simulation {
    const struct cr_offload_work *w;
    struct cr_offload_schedule   *s;
    const bool                   *chosen;
    int    in_flight;     /* copies to the host whose memory is not free yet, oldest first: s->offloaded */
    int    next_prefetch; /* index into w->by_late */
    int    next_offload;  /* index into w->c */
    double now, to_host_free, to_device_free;
};

cr_status cr_offload_schedule_open(const struct cr_offload_work *w, struct cr_offload_schedule *s) {
    const size_t n = (size_t)w->count, ops = (size_t)w->p->ops + 1;
    *s = (struct cr_offload_schedule){0};
    CR_ARENA_ALLOC(&s->arena, s->release_at, n);
    CR_ARENA_ALLOC(&s->arena, s->prefetch_at, n);
    CR_ARENA_ALLOC(&s->arena, s->planned, n);
    CR_ARENA_ALLOC(&s->arena, s->offloaded, n);
    CR_ARENA_ALLOC(&s->arena, s->out_end, 2 * n);
    CR_ARENA_ALLOC(&s->arena, s->begin, ops);
    CR_ARENA_ALLOC(&s->arena, s->room, ops);
    return CR_OK;
}

/* ---- planning the copies back ---- */

/* The last op in low ... high that starts no later than `time`. */
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

static void plan_prefetches(struct simulation *a, const double *begin) {
    const struct cr_offload_work *w    = a->w;
    double                        free = begin[w->p->ops];
    for (int k = w->count - 1; k >= 0; k--) {
        const int                          i = w->by_late[k];
        const struct cr_offload_candidate *c = &w->c[i];
        if (!a->chosen[i]) continue;
        free             = CR_MIN(free, begin[c->late]) - c->in_s * (1 + margin_fraction);
        a->s->planned[i] = op_at(begin, c->early + 1, c->late, free);
    }
}

/* ---- memory ---- */

/* Sets room[i] to the live bytes at op i when each offloaded tensor is absent for its whole gap. */
static void find_room(struct simulation *a) {
    const struct cr_offload_work *w    = a->w;
    size_t                       *room = a->s->room;
    const int                     ops  = w->p->ops;
    memset(room, 0, ((size_t)ops + 1) * sizeof *room); /* differences first; unsigned wrap-around cancels in the sum */
    for (int i = 0; i < w->count; i++) {
        const struct cr_offload_candidate *c = &w->c[i];
        if (!a->chosen[i]) continue;
        room[c->early + 1] -= c->bytes;
        room[c->late] += c->bytes;
        room[c->writer] += c->at_writer;
        room[c->writer + 1] -= c->at_writer;
        room[c->last] += c->at_last;
        room[c->last + 1] -= c->at_last;
    }
    for (int i = 1; i <= ops; i++) room[i] += room[i - 1];
    for (int i = 0; i < ops; i++) room[i] += w->load[i];
}

/* Bytes of copies to the host that have not ended at op j >= op, as seen at the present op. */
static size_t pending_bytes(const struct simulation *a, int op, int j) {
    const double time = a->now + a->w->begin[j] - a->w->begin[op];
    size_t       sum  = 0;
    for (int k = 0; k < a->in_flight; k++) {
        const struct cr_offload_candidate *c = &a->w->c[a->s->offloaded[k]];
        if (c->early < j && (j == op || a->s->out_end[a->s->offloaded[k]] + margin_fraction * c->out_s > time))
            sum += c->bytes;
    }
    return sum;
}

static bool fits(const struct simulation *a, int op, const struct cr_offload_candidate *c) {
    for (int j = op; j < c->late; j++)
        if (a->s->room[j] + pending_bytes(a, op, j) + c->bytes > a->w->limit) return false;
    return true;
}

/* ---- the simulation ---- */

static void release(struct simulation *a, int index, int op) {
    const int i         = a->s->offloaded[index];
    a->s->release_at[i] = op;
    a->now              = CR_MAX(a->now, a->s->out_end[i]);
    memmove(&a->s->offloaded[index], &a->s->offloaded[index + 1],
            (size_t)(a->in_flight - index - 1) * sizeof *a->s->offloaded);
    a->in_flight--;
}

/* Frees the memory of copies that have ended. Waits for copies of tensors that this op needs, then for further copies
 * until the load is below the limit. */
static void release_memory(struct simulation *a, int op) {
    const struct cr_offload_candidate *c = a->w->c;
    for (int k = 0; k < a->in_flight;) {
        const int i = a->s->offloaded[k];
        if (c[i].late == op || (c[i].early < op && a->s->out_end[i] + margin_fraction * c[i].out_s <= a->now))
            release(a, k, op);
        else
            k++;
    }
    for (int k = 0; k < a->in_flight && a->s->room[op] + pending_bytes(a, op, op) > a->w->limit;) {
        if (c[a->s->offloaded[k]].early < op)
            release(a, k, op);
        else
            k++;
    }
}

static void start_prefetches(struct simulation *a, int op) {
    const struct cr_offload_work *w = a->w;
    for (; a->next_prefetch < w->count; a->next_prefetch++) {
        const int                          i = w->by_late[a->next_prefetch];
        const struct cr_offload_candidate *c = &w->c[i];
        if (!a->chosen[i]) continue;
        if (c->late != op && (a->s->planned[i] > op || a->s->release_at[i] == CR_NONE || !fits(a, op, c))) return;
        a->s->prefetch_at[i] = op;
        a->to_device_free =
            cr_copy_end(CR_MAX(a->to_device_free, a->now), c->in_s, a->to_host_free, w->contention.duplex);
        a->s->out_end[w->count + i] = a->to_device_free;
        for (int j = op; j < c->late; j++) a->s->room[j] += c->bytes;
    }
}

static void wait_for_prefetches(struct simulation *a, int op, int *from) {
    const struct cr_offload_work *w = a->w;
    for (; *from < a->next_prefetch; ++*from) {
        const int i = w->by_late[*from];
        if (w->c[i].late > op) return;
        if (a->chosen[i]) a->now = CR_MAX(a->now, a->s->out_end[w->count + i]);
    }
}

static void start_offloads(struct simulation *a, int op) {
    const struct cr_offload_work *w = a->w;
    for (; a->next_offload < w->count && w->c[a->next_offload].writer <= op; a->next_offload++) {
        const int i = a->next_offload;
        if (!a->chosen[i]) continue;
        a->to_host_free =
            cr_copy_end(CR_MAX(a->to_host_free, a->now), w->c[i].out_s, a->to_device_free, w->contention.duplex);
        a->s->out_end[i]                = a->to_host_free;
        a->s->offloaded[a->in_flight++] = i;
    }
}

static void simulate(const struct cr_offload_work *w, const bool *chosen, const double *begin,
                     struct cr_offload_schedule *s) {
    struct simulation a      = {.w = w, .s = s, .chosen = chosen};
    int               waited = 0;
    s->peak                  = 0;
    for (int i = 0; i < w->count; i++) s->release_at[i] = s->prefetch_at[i] = CR_NONE;
    plan_prefetches(&a, begin);
    find_room(&a);
    for (int op = 0; op < w->p->ops; op++) {
        release_memory(&a, op);
        start_prefetches(&a, op);
        wait_for_prefetches(&a, op, &waited);
        s->peak      = CR_MAX(s->peak, s->room[op] + pending_bytes(&a, op, op));
        s->begin[op] = a.now;
        a.now        = cr_kernel_end(&w->contention, op, a.now, w->seconds[op], a.to_host_free, a.to_device_free);
        start_offloads(&a, op);
    }
    s->begin[w->p->ops] = s->total = a.now;
    s->stalled                     = a.now - w->begin[w->p->ops];
}

void cr_offload_schedule_make(struct cr_offload_work *w, const bool *chosen, struct cr_offload_schedule *s) {
    simulate(w, chosen, w->begin, s);
    if (s->stalled > 0) {
        double total = s->total;
        size_t peak  = s->peak;
        simulate(w, chosen, s->begin, s); /* reads s->begin for the plan before it overwrites it */
        if (s->total > total || s->peak > CR_MAX(peak, w->limit)) simulate(w, chosen, w->begin, s);
    }
    s->bytes   = 0;
    s->tensors = 0;
    for (int i = 0; i < w->count; i++)
        if (chosen[i]) s->bytes += w->c[i].bytes, s->tensors++;
    w->visits++;
}

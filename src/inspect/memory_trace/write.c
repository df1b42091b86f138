/* inspect/memory_trace/write.c: the log that programs of our own would leave. See inspect/memory_trace/memory_trace.h.
 *
 * A time is an op. In it come first the mallocs of what is born there, then reads, writes and frees: all operands of an
 * op are there together. Lives are the planner's: stretched where lanes run beside each other, to the end where
 * something outside reads the tensor. A life that goes beyond its uses gets a write at its begin and a read at its end,
 * for something may use it until then. */
#include "compiler/schedule/streams.h"
#include "inspect/memory_trace/memory_trace.h"

#include <stdio.h>

struct span { /* of the chain that begins with this tensor; ops, half open */
    int lower, upper, used_from, used_to;
    int born_next, died_next; /* the next one that is born or dies at the same op */
};

struct writer {
    const struct cr_program   *p;
    struct cr_stream_interval *stay;        /* by tensor */
    struct span               *span;        /* by tensor; lower < 0: not the first of a chain */
    int                       *born, *died; /* by op: tensor, CR_NONE: none */
    size_t                     alignment;
    int64_t                    time;
    struct cr_text            *out;
};

static int root_of(const struct cr_program *p, int t) {
    while (p->tensor[t].alias != CR_NONE) t = p->tensor[t].alias;
    return t;
}

static size_t rounded(const struct writer *w, size_t bytes) {
    return (bytes + w->alignment - 1) / w->alignment * w->alignment;
}

static void put(const struct writer *w, int64_t time, const char *event, const char *id, size_t size) {
    cr_text_add(w->out, "%lld,%s,%s,", (long long)time, event, id);
    if (size != SIZE_MAX) cr_text_add(w->out, "%zu", size);
    cr_text_add(w->out, "\n");
}

/* ---- what lives across ---- */

static void plane_id(enum cr_param_buffer plane, char id[32]) {
    snprintf(id, 32, "plane.%s", cr_param_buffer_name(plane));
}
static void region_id(enum cr_region region, char id[32]) {
    snprintf(id, 32, "region.%s", cr_region_name(region));
}

static void put_across(const struct writer *w, const char *id, size_t bytes) {
    if (!bytes) return;
    put(w, 0, "malloc", id, rounded(w, bytes));
    put(w, 0, "write", id, SIZE_MAX);
}

static void put_all_across(const struct writer *w, const struct cr_program *const *programs, int count) {
    char id[32];
    for (int k = 0; k < CR_BUFFERS && programs[0]->store; k++) {
        plane_id((enum cr_param_buffer)k, id);
        put_across(w, id, cr_param_store_buffer_bytes(programs[0]->store, (enum cr_param_buffer)k));
    }
    for (int r = 0; r < CR_REGIONS; r++) {
        size_t most = 0;
        for (int i = 0; i < count; i++) most = CR_MAX(most, programs[i]->region_bytes[r]);
        region_id((enum cr_region)r, id);
        if (r == CR_REGION_INPUT) put_across(w, id, most);
    }
}

/* The plane that a tensor of the store lies in: the last one that does not begin behind it. */
static enum cr_param_buffer plane_of(const struct cr_program *p, int t) {
    enum cr_param_buffer found = CR_BUFFER_VALUE;
    for (int k = 0; k < CR_BUFFERS; k++)
        if (cr_param_store_buffer_bytes(p->store, (enum cr_param_buffer)k) &&
            cr_param_store_buffer_offset(p->store, (enum cr_param_buffer)k) <= p->tensor[t].offset)
            found = (enum cr_param_buffer)k;
    return found;
}

/* ---- one program ---- */

static void find_spans(struct writer *w) {
    const struct cr_program *p = w->p;
    for (int i = 0; i < p->ops; i++) w->born[i] = w->died[i] = CR_NONE;
    for (int t = 0; t < p->tensors; t++) w->span[t].lower = CR_NONE;
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].region != CR_REGION_POOL || p->tensor[t].first < 0) continue;
        struct span *s = &w->span[root_of(p, t)];
        if (s->lower < 0) *s = (struct span){w->stay[t].lower, w->stay[t].upper, p->ops, CR_NONE, CR_NONE, CR_NONE};
        s->lower = CR_MIN(s->lower, w->stay[t].lower);
        s->upper = CR_MAX(s->upper, w->stay[t].upper);
    }
    for (int i = 0; i < p->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++) {
            struct span *s = &w->span[p->tensor[ids[k]].region == CR_REGION_POOL ? root_of(p, ids[k]) : ids[k]];
            s->used_from   = CR_MIN(s->used_from, i);
            s->used_to     = CR_MAX(s->used_to, i);
        }
    }
    for (int t = p->tensors - 1; t >= 0; t--) { /* lists in the order of ids */
        struct span *s = &w->span[t];
        if (s->lower < 0) continue;
        s->born_next          = w->born[s->lower];
        w->born[s->lower]     = t;
        s->died_next          = w->died[s->upper - 1];
        w->died[s->upper - 1] = t;
    }
}

static void put_use(const struct writer *w, int64_t time, const char *event, int t) {
    char id[32];
    switch (w->p->tensor[t].region) {
    case CR_REGION_POOL: put(w, time, event, w->p->tensor[root_of(w->p, t)].name, SIZE_MAX); return;
    case CR_REGION_STORE: plane_id(plane_of(w->p, t), id); break;
    case CR_REGION_HOST: return; /* the log is of the device's memory */
    default: region_id(w->p->tensor[t].region, id); break;
    }
    put(w, time, event, id, SIZE_MAX);
}

static void put_op(const struct writer *w, int i) {
    const struct cr_program *p    = w->p;
    const int64_t            time = w->time + i;
    int                      ids[CR_OP_IDS_MAX], n;
    for (int t = w->born[i]; t != CR_NONE; t = w->span[t].born_next) {
        put(w, time, "malloc", p->tensor[t].name, rounded(w, p->tensor[t].bytes));
        if (w->span[t].used_from > i) put_use(w, time, "write", t);
    }
    n = cr_op_reads(&p->op[i], ids);
    for (int k = 0; k < n; k++)
        if (ids[k] != p->op[i].workspace) put_use(w, time, "read", ids[k]);
    n = cr_op_writes(&p->op[i], ids);
    for (int k = 0; k < n; k++) put_use(w, time, "write", ids[k]);
    for (int t = w->died[i]; t != CR_NONE; t = w->span[t].died_next) {
        if (w->span[t].used_to < i) put_use(w, time, "read", t);
        put(w, time, "free", p->tensor[t].name, SIZE_MAX);
    }
}

static cr_status open_program(struct writer *w) {
    const size_t tensors = (size_t)CR_MAX(w->p->tensors, 1), ops = (size_t)CR_MAX(w->p->ops, 1);
    CR_ALLOC(w->stay, tensors);
    CR_ALLOC(w->span, tensors);
    CR_ALLOC(w->born, ops);
    CR_ALLOC(w->died, ops);
    CR_TRY(cr_stream_intervals(w->p, w->stay));
    find_spans(w);
    return CR_OK;
}

static void close_program(struct writer *w) {
    cr_free(w->stay);
    cr_free(w->span);
    cr_free(w->born);
    cr_free(w->died);
    w->stay = NULL;
    w->span = NULL;
    w->born = w->died = NULL;
}

static void put_program(struct writer *w, const struct cr_program *p) {
    w->p = p;
    if (open_program(w) != CR_OK)
        w->out->failed = true;
    else {
        if (p->region_bytes[CR_REGION_INPUT]) { /* the batch comes */
            char id[32];
            region_id(CR_REGION_INPUT, id);
            put(w, w->time, "write", id, SIZE_MAX);
        }
        w->time++;
        for (int i = 0; i < p->ops; i++) put_op(w, i);
        w->time += p->ops;
    }
    close_program(w);
}

void cr_trace_write(const struct cr_program *const *programs, int count, int iterations, size_t alignment,
                    struct cr_text *out) {
    struct writer w = {.alignment = alignment, .time = 1, .out = out};
    cr_text_add(out, "time,event,id,size\n");
    if (count) put_all_across(&w, programs, count);
    for (int n = 0; n < iterations; n++)
        for (int i = 0; i < count; i++) put_program(&w, programs[i]);
}

/* tools/memory-trace/trace/write.c: writes the memory log of planned programs.
 *
 * The time is the op index. At each time the mallocs of the lifetimes that begin come first, then reads, writes and
 * frees, so all operands of an op are live together. The lifetimes are those of the planner: extended where streams
 * run concurrently, and to the end of the program where a tensor is read after it. A lifetime that is longer than
 * its uses gets a write at its begin and a read at its end, because the block may be used until then. */
#include "compiler/passes.h"
#include "compiler/schedule/streams.h"
#include "tools/memory-trace/trace/trace.h"

#include <stdio.h>

struct span { /* lifetime of the chain that begins with this tensor, in ops, half open */
    int lower, upper, used_from, used_to;
    int next_begin, next_end; /* the next chain that begins or ends at the same op */
};

struct writer {
    const struct cr_program   *p;
    struct cr_stream_interval *interval; /* by tensor */
    struct span               *span;     /* by tensor; lower < 0: not the first tensor of a chain */
    int            *begin_at, *end_at;   /* by op: first tensor whose lifetime begins or ends there, or CR_NONE */
    size_t          alignment;
    int64_t         time;
    struct cr_text *out;
};

static size_t rounded(const struct writer *w, size_t bytes) {
    return (bytes + w->alignment - 1) / w->alignment * w->alignment;
}

static void write_event(const struct writer *w, int64_t time, const char *event, const char *id, size_t size) {
    cr_text_add(w->out, "%lld,%s,%s,", (long long)time, event, id);
    if (size != SIZE_MAX) cr_text_add(w->out, "%zu", size);
    cr_text_add(w->out, "\n");
}

/* ---- blocks that live through all iterations ---- */

static void buffer_id(enum cr_param_buffer buffer, char id[32]) {
    snprintf(id, 32, "buffer.%s", cr_param_buffer_name(buffer));
}
static void region_id(enum cr_region region, char id[32]) {
    snprintf(id, 32, "region.%s", cr_region_name(region));
}

static void write_persistent(const struct writer *w, const char *id, size_t bytes) {
    if (!bytes) return;
    write_event(w, 0, "malloc", id, rounded(w, bytes));
    write_event(w, 0, "write", id, SIZE_MAX);
}

static void write_all_persistent(const struct writer *w, const struct cr_program *const *programs, int count) {
    char id[32];
    for (int k = 0; k < CR_BUFFERS && programs[0]->store; k++) {
        buffer_id((enum cr_param_buffer)k, id);
        write_persistent(w, id, cr_param_store_buffer_bytes(programs[0]->store, (enum cr_param_buffer)k));
    }
    for (int r = 0; r < CR_REGIONS; r++) {
        size_t max_bytes = 0;
        for (int i = 0; i < count; i++) max_bytes = CR_MAX(max_bytes, programs[i]->region_bytes[r]);
        region_id((enum cr_region)r, id);
        if (r == CR_REGION_INPUT) write_persistent(w, id, max_bytes);
    }
}

/* ---- one program ---- */

static void find_spans(struct writer *w) {
    const struct cr_program *p = w->p;
    for (int i = 0; i < p->ops; i++) w->begin_at[i] = w->end_at[i] = CR_NONE;
    for (int t = 0; t < p->tensors; t++) w->span[t].lower = CR_NONE;
    for (int t = 0; t < p->tensors; t++) {
        if (p->tensor[t].region != CR_REGION_POOL || p->tensor[t].first < 0) continue;
        struct span *s = &w->span[cr_alias_root(p, t)];
        if (s->lower < 0)
            *s = (struct span){w->interval[t].lower, w->interval[t].upper, p->ops, CR_NONE, CR_NONE, CR_NONE};
        s->lower = CR_MIN(s->lower, w->interval[t].lower);
        s->upper = CR_MAX(s->upper, w->interval[t].upper);
    }
    for (int i = 0; i < p->ops; i++) {
        int ids[2 * CR_OP_IDS_MAX], n = cr_op_reads(&p->op[i], ids);
        n += cr_op_writes(&p->op[i], ids + n);
        for (int k = 0; k < n; k++) {
            struct span *s = &w->span[p->tensor[ids[k]].region == CR_REGION_POOL ? cr_alias_root(p, ids[k]) : ids[k]];
            s->used_from   = CR_MIN(s->used_from, i);
            s->used_to     = CR_MAX(s->used_to, i);
        }
    }
    for (int t = p->tensors - 1; t >= 0; t--) { /* lists in the order of ids */
        struct span *s = &w->span[t];
        if (s->lower < 0) continue;
        s->next_begin           = w->begin_at[s->lower];
        w->begin_at[s->lower]   = t;
        s->next_end             = w->end_at[s->upper - 1];
        w->end_at[s->upper - 1] = t;
    }
}

static void write_use(const struct writer *w, int64_t time, const char *event, int t) {
    char id[32];
    switch (w->p->tensor[t].region) {
    case CR_REGION_POOL: write_event(w, time, event, w->p->tensor[cr_alias_root(w->p, t)].name, SIZE_MAX); return;
    case CR_REGION_STORE: buffer_id((enum cr_param_buffer)w->p->tensor[t].buffer, id); break;
    case CR_REGION_HOST: return; /* the log describes device memory only */
    default: region_id(w->p->tensor[t].region, id); break;
    }
    write_event(w, time, event, id, SIZE_MAX);
}

static void write_op(const struct writer *w, int i) {
    const struct cr_program *p    = w->p;
    const int64_t            time = w->time + i;
    int                      ids[CR_OP_IDS_MAX], n;
    for (int t = w->begin_at[i]; t != CR_NONE; t = w->span[t].next_begin) {
        write_event(w, time, "malloc", p->tensor[t].name, rounded(w, p->tensor[t].bytes));
        if (w->span[t].used_from > i) write_use(w, time, "write", t);
    }
    n = cr_op_reads(&p->op[i], ids);
    for (int k = 0; k < n; k++)
        if (ids[k] != p->op[i].workspace) write_use(w, time, "read", ids[k]);
    n = cr_op_writes(&p->op[i], ids);
    for (int k = 0; k < n; k++) write_use(w, time, "write", ids[k]);
    for (int t = w->end_at[i]; t != CR_NONE; t = w->span[t].next_end) {
        if (w->span[t].used_to < i) write_use(w, time, "read", t);
        write_event(w, time, "free", p->tensor[t].name, SIZE_MAX);
    }
}

static cr_status open_program(struct writer *w) {
    const size_t tensors = (size_t)CR_MAX(w->p->tensors, 1), ops = (size_t)CR_MAX(w->p->ops, 1);
    CR_ALLOC(w->interval, tensors);
    CR_ALLOC(w->span, tensors);
    CR_ALLOC(w->begin_at, ops);
    CR_ALLOC(w->end_at, ops);
    CR_TRY(cr_stream_intervals(w->p, w->interval));
    find_spans(w);
    return CR_OK;
}

static void close_program(struct writer *w) {
    cr_free(w->interval);
    cr_free(w->span);
    cr_free(w->begin_at);
    cr_free(w->end_at);
    w->interval = NULL;
    w->span     = NULL;
    w->begin_at = w->end_at = NULL;
}

static void write_program(struct writer *w, const struct cr_program *p) {
    w->p = p;
    if (open_program(w) != CR_OK)
        w->out->failed = true;
    else {
        if (p->region_bytes[CR_REGION_INPUT]) { /* the batch is copied */
            char id[32];
            region_id(CR_REGION_INPUT, id);
            write_event(w, w->time, "write", id, SIZE_MAX);
        }
        w->time++;
        for (int i = 0; i < p->ops; i++) write_op(w, i);
        w->time += p->ops;
    }
    close_program(w);
}

void cr_trace_write(const struct cr_program *const *programs, int count, int iterations, size_t alignment,
                    struct cr_text *out) {
    struct writer w = {.alignment = alignment, .time = 1, .out = out};
    cr_text_add(out, "time,event,id,size\n");
    if (count) write_all_persistent(&w, programs, count);
    for (int n = 0; n < iterations; n++)
        for (int i = 0; i < count; i++) write_program(&w, programs[i]);
}

/* compiler/memory/offload_candidates.c: finds the tensors that can be offloaded and the gaps between their uses.
 *
 * All ops are on the compute stream here, so the time between two ops is a difference of start times. */
#include "compiler/memory/offload.h"
#include "compiler/uses.h"

#include <stdlib.h>

/* Smaller tensors are not worth a copy: less than 1 MiB and less than 1/1000 of the peak. */
enum { BYTES_MIN = 1 << 20, POOL_FRACTION = 1000 };

struct find {
    struct cr_offload_work *w;
    struct cr_uses          uses;
    bool                   *reused;       /* [tensors] an op reuses its storage in place */
    bool                   *reuses_input; /* [tensors] its writer reuses the storage of an input */
    int                    *above;        /* [ops + 1] number of earlier ops that are above the limit */
};

static size_t rounded(const struct cr_offload_work *w, size_t bytes) {
    return cr_aligned(bytes, w->alignment);
}

/* ---- load ---- */

/* The output reuses the storage of an input whose last use is this op. */
static void reuse_storage(struct find *f, int op, int slot) {
    const struct cr_program *p  = f->w->p;
    const int                in = cr_reused_input(p, op, slot, f->reused);
    if (in == CR_NONE) return;
    f->reused[in]                        = true;
    f->reuses_input[p->op[op].out[slot]] = true;
    f->w->load[op] -= rounded(f->w, p->tensor[in].bytes);
}

static void find_load(struct find *f) {
    struct cr_offload_work  *w = f->w;
    const struct cr_program *p = w->p;
    cr_add_live_bytes(p, w->alignment, w->load);
    for (int i = 0; i < p->ops; i++)
        for (int s = 0; s < cr_op_info(p->op[i].kind)->outs; s++) reuse_storage(f, i, s);
    for (int i = 0; i < p->ops; i++) f->above[i + 1] = f->above[i] + (w->load[i] > w->limit);
}

/* ---- candidates ---- */

/* Finds the longest gap with an op above the limit. */
static bool find_gap(const struct find *f, int t, struct cr_offload_candidate *c) {
    const double *begin   = f->w->begin;
    double        longest = -1;
    for (int k = f->uses.begin[t]; k + 1 < f->uses.end[t]; k++) {
        const int early = f->uses.at[k], late = f->uses.at[k + 1];
        if (late <= early + 1 || f->above[late] == f->above[early + 1] || begin[late] - begin[early + 1] <= longest)
            continue;
        longest  = begin[late] - begin[early + 1];
        c->early = early;
        c->late  = late;
    }
    return longest >= 0;
}

/* Returns whether the tensor is written more than once. A copy behind its first writer would be stale. */
static bool is_written_again(const struct find *f, int t) {
    for (int k = f->uses.begin[t] + 1; k < f->uses.end[t]; k++) {
        int ids[CR_OP_IDS_MAX], n = cr_op_writes(&f->w->p->op[f->uses.at[k]], ids);
        for (int i = 0; i < n; i++)
            if (ids[i] == t) return true;
    }
    return false;
}

static bool is_offloadable(const struct find *f, int t, size_t min_bytes) {
    const struct cr_program *p = f->w->p;
    const struct cr_tensor  *x = &p->tensor[t];
    if (x->region != CR_REGION_POOL || x->keep || x->bytes < min_bytes || p->tensor[t].first < 0) return false;
    if (t == p->logits || t == p->metrics || is_written_again(f, t)) return false;
    const int writer = p->tensor[t].first;
    return writer >= p->hoisted && p->op[writer].workspace != t; /* results of hoisted ops stay for later runs */
}

static int compare_late(const void *a, const void *b) {
    const struct cr_offload_candidate *const *s = a, *const *t = b;
    if ((*s)->late != (*t)->late) return (*s)->late - (*t)->late;
    return *s < *t ? -1 : *s > *t;
}

cr_status cr_offload_sort(const struct cr_offload_work *w, int (*compare)(const void *, const void *), int *order) {
    const struct cr_offload_candidate **sorted;
    CR_ALLOC(sorted, (size_t)w->count);
    for (int k = 0; k < w->count; k++) sorted[k] = &w->c[k];
    qsort(sorted, (size_t)w->count, sizeof *sorted, compare);
    for (int k = 0; k < w->count; k++) order[k] = (int)(sorted[k] - w->c);
    cr_free(sorted);
    return CR_OK;
}

static int compare_writer(const void *a, const void *b) {
    const struct cr_offload_candidate *s = a, *t = b;
    return s->writer != t->writer ? s->writer - t->writer : s->tensor - t->tensor;
}

static void find_candidates(struct find *f, const struct cr_cost_model *cost_model) {
    struct cr_offload_work  *w         = f->w;
    const struct cr_program *p         = w->p;
    const size_t             peak      = cr_offload_peak(w, w->load);
    const size_t             min_bytes = CR_MAX(CR_MIN((size_t)BYTES_MIN, peak / POOL_FRACTION), (size_t)1);
    for (int t = 0; t < p->tensors; t++) {
        struct cr_offload_candidate c = {.tensor = t, .bytes = rounded(w, p->tensor[t].bytes)};
        if (!is_offloadable(f, t, min_bytes) || !find_gap(f, t, &c)) continue;
        c.writer         = p->tensor[t].first;
        c.last           = p->tensor[t].last;
        c.out_s          = cr_copy_seconds(cost_model, CR_STREAM_TO_HOST, p->tensor[t].bytes);
        c.in_s           = cr_copy_seconds(cost_model, CR_STREAM_TO_DEVICE, p->tensor[t].bytes);
        c.at_writer      = f->reuses_input[t] ? c.bytes : 0;
        c.at_last        = f->reused[t] ? c.bytes : 0;
        w->c[w->count++] = c;
    }
    qsort(w->c, (size_t)w->count, sizeof *w->c, compare_writer);
}

/* ---- opening ---- */

static cr_status analyse(struct find *f, const struct cr_cost_model *cost_model) {
    struct cr_offload_work *w = f->w;
    CR_TRY(cr_program_seconds(w->p, cost_model, w->seconds, w->memory_busy));
    for (int i = 0; i < w->p->ops; i++) w->begin[i + 1] = w->begin[i] + w->seconds[i];
    CR_TRY(cr_uses_find(w->p, &w->arena, &f->uses));
    find_load(f);
    find_candidates(f, cost_model);
    return cr_offload_sort(w, compare_late, w->by_late);
}

cr_status cr_offload_work_open(struct cr_program *p, const struct cr_cost_model *cost_model, size_t limit,
                               struct cr_offload_work *w) {
    const size_t tensors = (size_t)p->tensors, ops = (size_t)p->ops + 1;
    struct find  f = {.w = w};
    *w = (struct cr_offload_work){.p = p, .alignment = CR_MAX(cost_model->alignment, (size_t)1), .limit = limit};
    CR_ARENA_ALLOC(&w->arena, w->seconds, ops);
    CR_ARENA_ALLOC(&w->arena, w->memory_busy, ops);
    CR_ARENA_ALLOC(&w->arena, w->begin, ops);
    CR_ARENA_ALLOC(&w->arena, w->load, ops);
    CR_ARENA_ALLOC(&w->arena, w->c, tensors);
    CR_ARENA_ALLOC(&w->arena, w->by_late, tensors);
    CR_ARENA_ALLOC(&w->arena, f.reused, tensors);
    CR_ARENA_ALLOC(&w->arena, f.reuses_input, tensors);
    CR_ARENA_ALLOC(&w->arena, f.above, ops);
    cr_program_lifetimes(p);
    w->contention = cr_contention_of(cost_model, w->memory_busy);
    return analyse(&f, cost_model);
}

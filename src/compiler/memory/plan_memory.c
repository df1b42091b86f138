/* compiler/memory/plan_memory.c: gives each transient an offset (address) in the memory pool.
 *
 * The live interval of a tensor comes from the ops that use it, extended where streams run concurrently
 * (compiler/schedule/streams.c). An output reuses the storage of an input whose last use is that op, where
 * graph/ops.def allows it. Such a chain of tensors is one interval of one size. compiler/memory/greedy.c places the
 * intervals. Kept tensors live to the end; STORE and INPUT tensors have fixed offsets. */
#include "compiler/intervals.h"
#include "compiler/passes.h"
#include "compiler/schedule/streams.h"
#include "compiler/uses.h"

struct plan {
    struct cr_program         *p;
    struct cr_stream_interval *live;
    bool                      *reused; /* [tensors] an output reuses its storage, or none may, since streams cross */
    int                       *interval_of; /* [tensors] index of its interval, or CR_NONE */
    struct cr_interval        *interval;
    int                        intervals;
};

/* ---- storage reuse in place ---- */

/* Returns whether `tensor` is read only by slots whose storage the output may reuse. */
static bool only_in_slots(const struct cr_op *op, int tensor, unsigned slots) {
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++)
        if (op->in[s] == tensor && !(slots >> s & 1)) return false;
    return true;
}

/* When several inputs are possible, the output reuses the input that was written last. The memory of the older input
 * then becomes free. */
int cr_reused_input(const struct cr_program *p, int index, int slot, const bool *taken) {
    const struct cr_op *op    = &p->op[index];
    const unsigned      slots = cr_op_inplace(op->kind, slot);
    const int           out   = op->out[slot];
    int                 best  = CR_NONE;
    if (!slots || out < 0 || p->tensor[out].region != CR_REGION_POOL || p->tensor[out].first != index) return CR_NONE;
    for (int s = 0; s < cr_op_info(op->kind)->ins; s++) {
        const int in = op->in[s];
        if (!(slots >> s & 1) || in < 0 || in == out || taken[in] || !only_in_slots(op, in, slots)) continue;
        const struct cr_tensor *t = &p->tensor[in];
        if (t->region != CR_REGION_POOL || t->keep || t->last != index || t->bytes != p->tensor[out].bytes) continue;
        if (best == CR_NONE || t->first > p->tensor[best].first) best = in;
    }
    return best;
}

static void reuse_storage(struct plan *w, int index, int slot) {
    const int out = w->p->op[index].out[slot], in = cr_reused_input(w->p, index, slot, w->reused);
    if (in == CR_NONE || w->live[out].crossing) return;
    w->p->tensor[out].alias = in;
    w->reused[in]           = true;
}

static void find_aliases(struct plan *w) {
    for (int t = 0; t < w->p->tensors; t++) w->reused[t] = w->live[t].crossing;
    for (int i = 0; i < w->p->ops; i++)
        for (int s = 0; s < cr_op_info(w->p->op[i].kind)->outs; s++) reuse_storage(w, i, s);
}

/* ---- intervals ---- */

static void add_to_interval(struct plan *w, int t) {
    const struct cr_tensor *tensor = &w->p->tensor[t];
    w->interval_of[t]              = CR_NONE;
    if (tensor->region != CR_REGION_POOL || tensor->first < 0) return;
    int root = cr_alias_root(w->p, t);
    if (root != t && w->interval_of[root] == CR_NONE)
        add_to_interval(w, root); /* ids need not be in the order of first use */
    if (root == t) {
        w->interval_of[t] = w->intervals++;
        w->interval[w->interval_of[t]] =
            (struct cr_interval){.lower = w->live[t].lower, .upper = w->live[t].upper, .size = tensor->bytes};
        return;
    }
    struct cr_interval *interval = &w->interval[w->interval_of[root]];
    w->interval_of[t]            = w->interval_of[root];
    interval->lower              = CR_MIN(interval->lower, w->live[t].lower);
    interval->upper              = CR_MAX(interval->upper, w->live[t].upper);
}

static void build_intervals(struct plan *w) {
    for (int t = 0; t < w->p->tensors; t++) w->interval_of[t] = CR_NONE;
    for (int t = 0; t < w->p->tensors; t++)
        if (w->interval_of[t] == CR_NONE) add_to_interval(w, t);
}

/* Gives each interval memory of its own. */
static void place_separately(struct plan *w, size_t alignment, size_t *peak) {
    size_t top = 0;
    for (int i = 0; i < w->intervals; i++) {
        w->interval[i].offset = top;
        top += cr_aligned(w->interval[i].size, alignment);
    }
    *peak = top;
}

static void set_offsets(struct plan *w, size_t peak, size_t bound) {
    struct cr_program *p = w->p;
    for (int t = 0; t < p->tensors; t++)
        if (w->interval_of[t] != CR_NONE) p->tensor[t].offset = w->interval[w->interval_of[t]].offset;
    p->region_bytes[CR_REGION_POOL] = peak;
    p->bound_bytes                  = bound;
}

cr_status cr_pass_plan(struct cr_program *p, size_t alignment, bool reuse) {
    cr_status   status = CR_OK;
    struct plan w      = {.p = p};
    size_t      n      = (size_t)p->tensors, peak, bound;
    CR_ALLOC_OUT(w.live, n);
    CR_ALLOC_OUT(w.reused, n);
    CR_ALLOC_OUT(w.interval_of, n);
    CR_ALLOC_OUT(w.interval, n);
    for (int t = 0; t < p->tensors; t++) p->tensor[t].alias = CR_NONE;
    cr_program_lifetimes(p);
    CR_TRY_OUT(cr_stream_intervals(p, w.live));
    if (reuse) find_aliases(&w);
    build_intervals(&w);
    if (reuse) {
        CR_TRY_OUT(cr_plan_intervals(w.interval, w.intervals, alignment, &peak, &bound));
    } else {
        CR_TRY_OUT(cr_plan_bound(w.interval, w.intervals, alignment, &bound));
        place_separately(&w, alignment, &peak);
    }
    set_offsets(&w, peak, bound);
out:
    cr_free(w.live);
    cr_free(w.reused);
    cr_free(w.interval_of);
    cr_free(w.interval);
    return status;
}

/* compiler/memory/offload_choose.c: chooses which tensors are offloaded to host memory.
 *
 * Scores of a candidate (Zhang et al. 2019). The gap is the time from the end of its early use to the start of its late
 * use.
 *
 * - DOA (duration of absence): the gap minus the time of both copies.
 * - AOA (area of absence): DOA times bytes. When DOA is negative, DOA / bytes: less waiting per byte is better.
 * - WDOA (weighted duration of absence): bytes above the limit during the gap, times seconds.
 * - SWDOA (submodular WDOA): WDOA computed again after each choice, with the load that is then left.
 *
 * Candidates are taken in the order of a score until the load is below the limit. A candidate is skipped when nothing
 * in its gap is above the limit any more. Two further orders are ours:
 *
 * - FIRST: by writer. The copy stream to the host never idles, and the tensor that leaves first returns last.
 * - CHEAP: at each step the candidate that removes the most bytes above the limit per second of added waiting, by a
 * schedule.
 *
 * BEST takes the plan with the least predicted time of all orders. A local search improves it by removing, adding and
 * exchanging candidates. */
#include "compiler/memory/offload.h"

#include <math.h>
#include <string.h>

enum {
    SHORTLIST_MAX  = 12,      /* candidates that CHEAP compares by a schedule */
    IMPROVE_BUDGET = 1500000, /* of the local search: ops in all schedules */
};

static const double equal_fraction =
    1e-5; /* fraction of the time: plans this close are equal, and the copied bytes decide */

struct choice {
    struct cr_offload_work     *w;
    size_t                     *load; /* [ops] live bytes with the present choice */
    double                     *key;  /* [count] */
    int                        *order;
    bool                       *chosen, *best;
    struct cr_offload_schedule *s;
    struct cr_offload_schedule  best_plan; /* schedule of `best`: total, peak and bytes only */
    bool                        has_best;
};

enum { BY_CHEAP = CR_OFFLOAD_SCORES }; /* the order CHEAP; the others are those of enum cr_offload_score */

/* ---- scores ---- */

static double excess_in_gap(const struct cr_offload_work *w, const size_t *load, const struct cr_offload_candidate *c) {
    double sum = 0;
    for (int i = c->early + 1; i < c->late; i++)
        if (load[i] > w->limit) sum += (double)(load[i] - w->limit) * w->seconds[i];
    return sum;
}

void cr_offload_score_set(struct cr_offload_work *w) {
    for (int k = 0; k < w->count; k++) {
        struct cr_offload_candidate *c     = &w->c[k];
        const double                 bytes = (double)c->bytes;
        c->doa                             = w->begin[c->late] - w->begin[c->early + 1] - c->out_s - c->in_s;
        c->aoa                             = c->doa >= 0 ? c->doa * bytes : c->doa / bytes;
        c->wdoa                            = excess_in_gap(w, w->load, c);
    }
}

/* ---- adding candidates ---- */

static bool helps(const struct choice *x, const struct cr_offload_candidate *c) {
    for (int i = c->early + 1; i < c->late; i++)
        if (x->load[i] > x->w->limit) return true;
    return false;
}

static void add(struct choice *x, int k) {
    const struct cr_offload_candidate *c = &x->w->c[k];
    x->chosen[k]                         = true;
    x->load[c->writer] += c->at_writer;
    x->load[c->last] += c->at_last;
    for (int i = c->early + 1; i < c->late; i++) x->load[i] -= c->bytes;
}

static void reset(struct choice *x) {
    memset(x->chosen, 0, (size_t)x->w->count * sizeof *x->chosen);
    memcpy(x->load, x->w->load, (size_t)x->w->p->ops * sizeof *x->load);
}

/* The candidate with the largest key among those that help and are not chosen yet; of equals the first; CR_NONE: none.
 */
static int largest_key(const struct choice *x) {
    int best = CR_NONE;
    for (int k = 0; k < x->w->count; k++)
        if (!x->chosen[k] && helps(x, &x->w->c[k]) && (best == CR_NONE || x->key[k] > x->key[best])) best = k;
    return best;
}

/* Bytes above the limit times seconds that remain. */
static double excess_left(const struct choice *x) {
    double sum = 0;
    for (int i = 0; i < x->w->p->ops; i++)
        if (x->load[i] > x->w->limit) sum += (double)(x->load[i] - x->w->limit) * CR_MAX(x->w->seconds[i], 1e-9);
    return sum;
}

/* Among the few candidates with the largest gain, the one with the most gain per second of added waiting. */
static int cheapest(struct choice *x) {
    const double before = excess_left(x);
    int          shortlist[SHORTLIST_MAX], count = 0, best = CR_NONE;
    double       best_ratio = -1;
    for (int k = 0; k < x->w->count; k++) x->key[k] = excess_in_gap(x->w, x->load, &x->w->c[k]);
    for (; count < SHORTLIST_MAX; count++) {
        shortlist[count] = largest_key(x);
        if (shortlist[count] == CR_NONE) break;
        x->chosen[shortlist[count]] = true; /* so that largest_key finds the next one */
    }
    for (int j = 0; j < count; j++) x->chosen[shortlist[j]] = false;
    cr_offload_schedule_make(x->w, x->chosen, x->s);
    const double now = x->s->total;
    for (int j = 0; j < count; j++) {
        x->chosen[shortlist[j]] = true;
        cr_offload_schedule_make(x->w, x->chosen, x->s);
        x->chosen[shortlist[j]] = false;
        const double added = CR_MAX(x->s->total - now, 1e-6), gain = CR_MIN(x->key[shortlist[j]], before) / added;
        if (gain <= best_ratio) continue;
        best_ratio = gain;
        best       = shortlist[j];
    }
    return best;
}

static void add_in_order(struct choice *x, int by) {
    reset(x);
    for (int k = 0; k < x->w->count; k++) {
        const struct cr_offload_candidate *c = &x->w->c[k];
        x->key[k]                            = by == CR_OFFLOAD_DOA    ? c->doa
                                               : by == CR_OFFLOAD_AOA  ? c->aoa
                                               : by == CR_OFFLOAD_WDOA ? c->wdoa
                                                                       : -(double)k; /* sorted by writer */
    }
    while (cr_offload_peak(x->w, x->load) > x->w->limit) {
        for (int k = 0; k < x->w->count && by == CR_OFFLOAD_SWDOA; k++)
            x->key[k] = excess_in_gap(x->w, x->load, &x->w->c[k]);
        const int next = by == BY_CHEAP ? cheapest(x) : largest_key(x);
        if (next == CR_NONE) return; /* no candidate is left */
        add(x, next);
    }
}

/* ---- comparing plans ---- */

static bool is_better(const struct choice *x, const struct cr_offload_schedule *a,
                      const struct cr_offload_schedule *b) {
    const bool a_fits = a->peak <= x->w->limit, b_fits = b->peak <= x->w->limit;
    if (a_fits != b_fits) return a_fits;
    if (!a_fits && a->peak != b->peak) return a->peak < b->peak;
    if (fabs(a->total - b->total) > equal_fraction * b->total) return a->total < b->total;
    return a->bytes < b->bytes;
}

static bool keep_if_better(struct choice *x) {
    cr_offload_schedule_make(x->w, x->chosen, x->s);
    if (x->has_best && !is_better(x, x->s, &x->best_plan)) return false;
    x->best_plan.total = x->s->total;
    x->best_plan.peak  = x->s->peak;
    x->best_plan.bytes = x->s->bytes;
    memcpy(x->best, x->chosen, (size_t)x->w->count * sizeof *x->best);
    x->has_best = true;
    return true;
}

/* ---- local search ---- */

/* Flips whether candidate k is chosen, and the same for candidate m if it is another one. */
static void change(struct choice *x, int k, int m) {
    x->chosen[k] = !x->chosen[k];
    if (m != k) x->chosen[m] = !x->chosen[m];
}

static bool try_change(struct choice *x, int k, int m) {
    change(x, k, m);
    if (keep_if_better(x)) return true;
    change(x, k, m);
    return false;
}

static int compare_bytes(const void *a, const void *b) {
    const struct cr_offload_candidate *const *s = a, *const *t = b;
    if ((*s)->bytes != (*t)->bytes) return (*s)->bytes > (*t)->bytes ? -1 : 1;
    return *s < *t ? -1 : *s > *t;
}

/* Each step improves the plan, so the budget of schedules is the only stop criterion that is needed. */
static cr_status improve(struct choice *x) {
    const int     n   = x->w->count;
    const int64_t end = x->w->visits + IMPROVE_BUDGET / CR_MAX(x->w->p->ops, 1);
    CR_TRY(cr_offload_sort(x->w, compare_bytes, x->order));
    memcpy(x->chosen, x->best, (size_t)n * sizeof *x->chosen);
    for (bool again = true; again;) {
        again = false;
        for (int j = 0; j < n && x->w->visits < end; j++) again |= try_change(x, x->order[j], x->order[j]);
        for (int j = 0; j < n && !again; j++)
            for (int i = 0; i < n && x->chosen[x->order[j]] && x->w->visits < end; i++)
                if (!x->chosen[x->order[i]] && x->w->c[x->order[i]].bytes != x->w->c[x->order[j]].bytes)
                    again |= try_change(x, x->order[j], x->order[i]);
        if (x->w->visits >= end) break;
    }
    return CR_OK;
}

static cr_status choose(struct choice *x, enum cr_offload_score score) {
    const bool several = score == CR_OFFLOAD_BEST || score == CR_OFFLOAD_ROUGH;
    for (int by = CR_OFFLOAD_DOA; by <= BY_CHEAP; by++) {
        if (several ? by == BY_CHEAP && score == CR_OFFLOAD_ROUGH : by != (int)score) continue;
        add_in_order(x, by);
        keep_if_better(x);
    }
    if (score != CR_OFFLOAD_BEST) return CR_OK;
    return improve(x);
}

cr_status cr_offload_choose(struct cr_offload_work *w, enum cr_offload_score score, bool *chosen,
                            struct cr_offload_schedule *s) {
    const size_t  n = (size_t)w->count;
    struct choice x = {.w = w, .s = s, .chosen = chosen};
    CR_ARENA_ALLOC(&w->arena, x.load, (size_t)w->p->ops + 1);
    CR_ARENA_ALLOC(&w->arena, x.key, n);
    CR_ARENA_ALLOC(&w->arena, x.order, n);
    CR_ARENA_ALLOC(&w->arena, x.best, n);
    cr_offload_score_set(w);
    CR_TRY(choose(&x, score));
    memcpy(chosen, x.best, (size_t)w->count * sizeof *chosen);
    cr_offload_schedule_make(w, chosen, s);
    return CR_OK;
}

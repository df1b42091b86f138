/* compiler/memory/offload_choose.c: which candidates are taken: see compiler/memory/offload.h.
 *
 * Scores of a candidate (Zhang et al. 2019), a gap being the time from the end of its early use to the begin of its
 * late one: DOA    the gap less what its two copies take: how long it can be away AOA    DOA times bytes (DOA by bytes
 * where DOA is negative: then less waiting a byte is better) WDOA   what lies above the limit during the gap, bytes
 * times seconds SWDOA  WDOA anew after each choice, with the load that is then left Candidates are taken in the order
 * of a score until the load is below the limit; one in whose gap nothing is above it any more is left out. Our own:
 * FIRST takes what is written first (the lane out never rests, and what goes first comes back last), and CHEAP at each
 * choice the candidate that brings most bytes below the limit for the waiting that it adds, by a schedule. BEST is the
 * plan with the least time of all these, improved by leaving out, putting in and exchanging candidates, and by reading
 * some where they wait; where none of all these is below the limit, the orders are gone through again with all that can
 * read so. */
#include "compiler/memory/offload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIED_AT_ONCE = 12, IMPROVE_OPS = 1500000 };

static const double equal_share = 1e-5; /* of the time: plans this close are equal, and the bytes they move decide */

struct choice {
    struct cr_offload_work     *w;
    size_t                     *load; /* by op: what is left with the present choice */
    double                     *key;  /* by candidate */
    int                        *order;
    enum cr_offload_action     *taken, *best;
    bool                        read; /* take() lets ops read in place where they can */
    struct cr_offload_schedule *s;
    struct cr_offload_schedule  found; /* of `best`: total, peak and bytes only */
    enum cr_offload_score       won;
    bool                        any;
};

enum order_by {
    BY_DOA   = CR_OFFLOAD_DOA,
    BY_AOA   = CR_OFFLOAD_AOA,
    BY_WDOA  = CR_OFFLOAD_WDOA,
    BY_SWDOA = CR_OFFLOAD_SWDOA,
    BY_FIRST = CR_OFFLOAD_FIRST,
    BY_CHEAP = CR_OFFLOAD_SCORES
};

const char *cr_offload_score_name(enum cr_offload_score score) {
    static const char *const names[CR_OFFLOAD_SCORES] = {"best", "doa", "aoa", "wdoa", "swdoa", "first"};
    return score < CR_OFFLOAD_SCORES ? names[score] : "rough";
}

/* ---- scores ---- */

static double load_above(const struct cr_offload_work *w, const size_t *load, const struct cr_offload_candidate *c) {
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
        c->wdoa                            = load_above(w, w->load, c);
    }
}

/* ---- taking ---- */

static size_t most_of(const struct choice *x) {
    size_t most = 0;
    for (int i = 0; i < x->w->p->ops; i++) most = CR_MAX(most, x->load[i]);
    return most;
}

/* The op behind the last at which the tensor has no place on the device. */
static int end_of(const struct choice *x, const struct cr_offload_candidate *c) {
    return x->read && c->mappable ? c->last + 1 : c->late;
}

static bool helps(const struct choice *x, const struct cr_offload_candidate *c) {
    for (int i = c->early + 1; i < end_of(x, c); i++)
        if (x->load[i] > x->w->limit) return true;
    return false;
}

static void take(struct choice *x, int k) {
    const struct cr_offload_candidate *c = &x->w->c[k];
    x->taken[k]                          = x->read && c->mappable ? CR_OFFLOAD_MAPPED : CR_OFFLOAD_PREFETCHED;
    x->load[c->writer] += c->at_writer;
    x->load[c->last] += c->at_last;
    for (int i = c->early + 1; i < end_of(x, c); i++) x->load[i] -= c->bytes;
}

static void start_over(struct choice *x) {
    memset(x->taken, 0, (size_t)CR_MAX(x->w->count, 1) * sizeof *x->taken);
    memcpy(x->load, x->w->load, (size_t)x->w->p->ops * sizeof *x->load);
}

/* Of those that help and are not taken the one with the largest key, the first of equals; CR_NONE: none. */
static int largest_key(const struct choice *x) {
    int best = CR_NONE;
    for (int k = 0; k < x->w->count; k++)
        if (!x->taken[k] && helps(x, &x->w->c[k]) && (best == CR_NONE || x->key[k] > x->key[best])) best = k;
    return best;
}

/* Bytes times seconds above the limit that are left. */
static double left_above(const struct choice *x) {
    double sum = 0;
    for (int i = 0; i < x->w->p->ops; i++)
        if (x->load[i] > x->w->limit) sum += (double)(x->load[i] - x->w->limit) * CR_MAX(x->w->seconds[i], 1e-9);
    return sum;
}

/* Of the few with the largest gain the one that gains most for the waiting it adds. */
static int cheapest(struct choice *x) {
    const double before = left_above(x);
    int          shown[TRIED_AT_ONCE], count = 0, best = CR_NONE;
    double       most = -1;
    for (int k = 0; k < x->w->count; k++) x->key[k] = load_above(x->w, x->load, &x->w->c[k]);
    for (; count < TRIED_AT_ONCE; count++) {
        shown[count] = largest_key(x);
        if (shown[count] == CR_NONE) break;
        x->taken[shown[count]] = CR_OFFLOAD_PREFETCHED; /* so that the next one is found */
    }
    for (int j = 0; j < count; j++) x->taken[shown[j]] = CR_OFFLOAD_NOT;
    cr_offload_schedule_make(x->w, x->taken, x->s);
    const double now = x->s->total;
    for (int j = 0; j < count; j++) {
        x->taken[shown[j]] = CR_OFFLOAD_PREFETCHED;
        cr_offload_schedule_make(x->w, x->taken, x->s);
        x->taken[shown[j]] = CR_OFFLOAD_NOT;
        const double added = CR_MAX(x->s->total - now, 1e-6), gain = CR_MIN(x->key[shown[j]], before) / added;
        if (gain <= most) continue;
        most = gain;
        best = shown[j];
    }
    return best;
}

static void take_by(struct choice *x, enum order_by by) {
    start_over(x);
    for (int k = 0; k < x->w->count; k++) {
        const struct cr_offload_candidate *c = &x->w->c[k];
        x->key[k]                            = by == BY_DOA    ? c->doa
                                               : by == BY_AOA  ? c->aoa
                                               : by == BY_WDOA ? c->wdoa
                                                               : -(double)k; /* they stand by writer */
    }
    while (most_of(x) > x->w->limit) {
        for (int k = 0; k < x->w->count && by == BY_SWDOA; k++) x->key[k] = load_above(x->w, x->load, &x->w->c[k]);
        const int next = by == BY_CHEAP ? cheapest(x) : largest_key(x);
        if (next == CR_NONE) return; /* no more to be had */
        take(x, next);
    }
}

/* ---- judging ---- */

static bool is_better(const struct choice *x, const struct cr_offload_schedule *a,
                      const struct cr_offload_schedule *b) {
    const bool fits = a->peak <= x->w->limit, others = b->peak <= x->w->limit;
    if (fits != others) return fits;
    if (!fits && a->peak != b->peak) return a->peak < b->peak;
    if (fabs(a->total - b->total) > equal_share * b->total) return a->total < b->total;
    return a->bytes < b->bytes;
}

static bool judge(struct choice *x, enum cr_offload_score score) {
    cr_offload_schedule_make(x->w, x->taken, x->s);
    if (x->any && !is_better(x, x->s, &x->found)) return false;
    x->found.total = x->s->total;
    x->found.peak  = x->s->peak;
    x->found.bytes = x->s->bytes;
    memcpy(x->best, x->taken, (size_t)x->w->count * sizeof *x->best);
    x->won = score;
    x->any = true;
    return true;
}

/* ---- improving ---- */

static bool try_take(struct choice *x, int k, enum cr_offload_action take) {
    const enum cr_offload_action before = x->taken[k];
    x->taken[k]                         = take;
    if (judge(x, CR_OFFLOAD_BEST)) return true;
    x->taken[k] = before;
    return false;
}

static bool try_without(struct choice *x, int k) {
    return (x->taken[k] || !x->w->c[k].mapped_only) &&
           try_take(x, k, x->taken[k] ? CR_OFFLOAD_NOT : CR_OFFLOAD_PREFETCHED);
}

static bool try_exchange(struct choice *x, int k, int m) {
    const enum cr_offload_action before = x->taken[k];
    x->taken[k]                         = CR_OFFLOAD_NOT;
    x->taken[m]                         = CR_OFFLOAD_PREFETCHED;
    if (judge(x, CR_OFFLOAD_BEST)) return true;
    x->taken[k] = before;
    x->taken[m] = CR_OFFLOAD_NOT;
    return false;
}

static int compare_bytes(const void *a, const void *b) {
    const struct cr_offload_candidate *const *s = a, *const *t = b;
    if ((*s)->bytes != (*t)->bytes) return (*s)->bytes > (*t)->bytes ? -1 : 1;
    return *s < *t ? -1 : *s > *t;
}

/* Every step makes the plan better, so the number of visits is the only end that is needed. */
static cr_status improve(struct choice *x) {
    const int                           n   = x->w->count;
    const int64_t                       end = x->w->visits + IMPROVE_OPS / CR_MAX(x->w->p->ops, 1);
    const struct cr_offload_candidate **sorted;
    CR_ALLOC(sorted, (size_t)CR_MAX(n, 1));
    for (int k = 0; k < n; k++) sorted[k] = &x->w->c[k];
    qsort(sorted, (size_t)n, sizeof *sorted, compare_bytes);
    for (int k = 0; k < n; k++) x->order[k] = (int)(sorted[k] - x->w->c);
    cr_free(sorted);
    memcpy(x->taken, x->best, (size_t)n * sizeof *x->taken);
    for (bool again = true; again;) {
        again = false;
        for (int j = 0; j < n && x->w->visits < end; j++) again |= try_without(x, x->order[j]);
        for (int j = 0; j < n && !again; j++)
            for (int i = 0; i < n && x->taken[x->order[j]] && x->w->visits < end; i++)
                if (!x->taken[x->order[i]] && !x->w->c[x->order[i]].mapped_only &&
                    x->w->c[x->order[i]].bytes != x->w->c[x->order[j]].bytes)
                    again |= try_exchange(x, x->order[j], x->order[i]);
        if (x->w->visits >= end) break;
    }
    return CR_OK;
}

/* The set stands: which of it is better read where it is? Last, so that no plan becomes worse for having this choice.
 */
static cr_status read_in_place(struct choice *x) {
    const int n = x->w->count;
    x->read     = x->found.peak > x->w->limit;
    for (enum order_by by = BY_DOA; by <= BY_FIRST && x->read; by++) {
        take_by(x, by);
        judge(x, CR_OFFLOAD_BEST);
    }
    if (x->read) CR_TRY(improve(x));
    for (bool again = true; again;) {
        again = false;
        memcpy(x->taken, x->best, (size_t)n * sizeof *x->taken);
        for (int j = 0; j < n; j++)
            if (x->w->c[x->order[j]].mappable && x->taken[x->order[j]] != CR_OFFLOAD_MAPPED)
                again |= try_take(x, x->order[j], CR_OFFLOAD_MAPPED);
    }
    return CR_OK;
}

static cr_status choose(struct choice *x, enum cr_offload_score score) {
    const bool several = score == CR_OFFLOAD_BEST || score == CR_OFFLOAD_ROUGH;
    for (enum order_by by = BY_DOA; by <= BY_CHEAP; by++) {
        if (several ? by == BY_CHEAP && score == CR_OFFLOAD_ROUGH : by != (enum order_by)score) continue;
        take_by(x, by);
        judge(x, by < BY_CHEAP ? (enum cr_offload_score)by : CR_OFFLOAD_BEST);
    }
    if (score != CR_OFFLOAD_BEST) return CR_OK;
    CR_TRY(improve(x));
    return read_in_place(x);
}

cr_status cr_offload_choose(struct cr_offload_work *w, enum cr_offload_score score, enum cr_offload_action *taken,
                            struct cr_offload_schedule *s, enum cr_offload_score *won) {
    const size_t  n  = (size_t)CR_MAX(w->count, 1);
    struct choice x  = {.w = w, .s = s, .taken = taken};
    x.load           = cr_alloc((size_t)w->p->ops + 1, sizeof *x.load);
    x.key            = cr_alloc(n, sizeof *x.key);
    x.order          = cr_alloc(n, sizeof *x.order);
    x.best           = cr_alloc(n, sizeof *x.best);
    cr_status status = x.load && x.key && x.order && x.best ? CR_OK : CR_NO_MEMORY(n * sizeof *x.key);
    cr_offload_score_set(w);
    if (status == CR_OK) status = choose(&x, score);
    if (status == CR_OK) {
        memcpy(taken, x.best, (size_t)w->count * sizeof *taken);
        cr_offload_schedule_make(w, taken, s);
        *won = x.won;
    }
    cr_free(x.load);
    cr_free(x.key);
    cr_free(x.order);
    cr_free(x.best);
    return status;
}

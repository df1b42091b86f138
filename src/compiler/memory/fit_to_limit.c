/* compiler/memory/fit_to_limit.c: a program is brought below a limit of memory by what is predicted to cost least time.
 *
 * Tensors can be computed twice (compiler/memory/recompute.c) or wait in the host's memory (compiler/memory/offload.c).
 * Which is cheaper depends on the device and on how much is asked for: what hides behind compute is free, and what does
 * not costs more than most repetitions. So both are tried alone, and one after the other with the first going part of
 * the way: on copies of the program, judged by a simulation of its lanes.
 *
 * The passes count live bytes; the planner may need a little more, and only its pool counts. The best way is therefore
 * walked again with a lower goal until the planned pool is below the limit. */
#include "compiler/compiler.h"

enum { PARTS = 12, ROUNDS = 8, FINALISTS = 8, STEP_SHARE = 400 };

enum way_kind { RECOMPUTE, SWAP, SWAP_FIRST, RECOMPUTE_FIRST };

struct way { /* to the limit */
    enum way_kind         kind;
    int                   part;  /* of PARTS, that the first pass goes, where there are two */
    enum cr_offload_score score; /* in full; BEST unless a choice is named */
    bool                  fits;
    size_t                live; /* bytes, where it does not */
    double                seconds;
};

struct search {
    const struct cr_program         *plain;
    const struct cr_cost_model      *target; /* reads_host NULL until go_reading */
    const struct cr_compile_options *options;
    size_t                           live; /* of the plain program */
    struct way                       way[2 + 2 * PARTS];
    int                              ways;
    struct cr_fit_report             found; /* of `best`; of the plain program while there is none */
    struct cr_program                best;
    bool                             any;
    struct way                       won; /* by which it came; while there is any */
};

/* ---- one way ---- */

static cr_status recompute(const struct search *f, struct cr_program *p, size_t goal, struct cr_fit_report *r,
                           size_t *live) {
    struct cr_recompute_report done;
    CR_TRY(cr_pass_recompute(p, f->target, goal, &done));
    r->recomputed = done.recomputed;
    *live         = done.after;
    return CR_OK;
}

static cr_status swap(const struct search *f, struct cr_program *p, size_t goal, enum cr_offload_score score,
                      struct cr_fit_report *r, size_t *live) {
    struct cr_offload_report done;
    CR_TRY(cr_pass_offload(p, f->target, goal, score, &done));
    r->offloaded     = done.tensors;
    r->mapped        = done.mapped;
    r->offload_bytes = done.bytes;
    *live            = done.after;
    return CR_OK;
}

static enum cr_offload_score named_score(const struct search *f) {
    const enum cr_swap_use use = f->options->offload;
    return use <= CR_SWAP_USE_BEST ? CR_OFFLOAD_BEST : (enum cr_offload_score)(use - CR_SWAP_USE_BEST);
}

/* Rewrites the program this way; `live` gets the bytes that are left, as the last pass counts them. */
static cr_status walk(const struct search *f, const struct way *w, struct cr_program *p, size_t goal, bool quick,
                      struct cr_fit_report *r, size_t *live) {
    const enum cr_offload_score score = quick && w->score == CR_OFFLOAD_BEST ? CR_OFFLOAD_ROUGH : w->score;
    const size_t on_the_way           = f->live > goal ? f->live - (f->live - goal) / PARTS * (size_t)w->part : goal;
    switch (w->kind) {
    case RECOMPUTE: return recompute(f, p, goal, r, live);
    case SWAP: return swap(f, p, goal, score, r, live);
    case SWAP_FIRST: CR_TRY(swap(f, p, on_the_way, score, r, live)); return recompute(f, p, goal, r, live);
    case RECOMPUTE_FIRST: CR_TRY(recompute(f, p, on_the_way, r, live)); return swap(f, p, goal, score, r, live);
    }
    return CR_OK;
}

static cr_status predict(const struct search *f, struct cr_program *p, struct cr_fit_report *r) {
    struct cr_simulation time;
    CR_TRY(cr_pass_insert_waits(p));
    CR_TRY(cr_program_predict(p, f->target, &time));
    r->seconds = time.total;
    r->stalled = time.stalled;
    return CR_OK;
}

/* ---- all ways, roughly ---- */

static cr_status try_way(const struct search *f, struct way *w) {
    struct cr_program    p;
    struct cr_fit_report r    = {0};
    const size_t         goal = f->options->pool_limit;
    CR_TRY(cr_program_copy(f->plain, &p));
    cr_status status = walk(f, w, &p, goal, true, &r, &w->live);
    if (status == CR_OK) status = predict(f, &p, &r);
    w->fits    = w->live <= goal;
    w->seconds = r.seconds;
    cr_program_free(&p);
    return status;
}

static bool comes_before(const struct way *a, const struct way *b) {
    if (a->fits != b->fits) return a->fits;
    if (!a->fits && a->live != b->live) return a->live < b->live;
    return a->seconds < b->seconds;
}

static cr_status add_way(struct search *f, enum way_kind kind, int part) {
    struct way w = {.kind = kind, .part = part, .score = named_score(f)};
    int        i = f->ways;
    CR_TRY(try_way(f, &w));
    for (; i > 0 && comes_before(&w, &f->way[i - 1]); i--) f->way[i] = f->way[i - 1];
    f->way[i] = w;
    f->ways++;
    return CR_OK;
}

static cr_status add_ways(struct search *f) {
    const bool swaps = f->options->offload != CR_SWAP_USE_NO && f->target->to_host_bytes_per_s > 0 &&
                       f->target->to_device_bytes_per_s > 0;
    const bool named = swaps && f->options->offload != CR_SWAP_USE_AUTO; /* asked for: not without */
    if (swaps) CR_TRY(add_way(f, SWAP, 0));
    if (!f->options->recompute) return CR_OK;
    if (!named) CR_TRY(add_way(f, RECOMPUTE, 0));
    for (int part = 1; part < PARTS && swaps; part++) {
        CR_TRY(add_way(f, SWAP_FIRST, part));
        CR_TRY(add_way(f, RECOMPUTE_FIRST, part));
    }
    return CR_OK;
}

/* ---- the best, in full ---- */

static bool is_better(const struct search *f, const struct cr_fit_report *r) {
    const size_t limit = f->options->pool_limit;
    const bool   fits = r->after <= limit, fitted = f->found.after <= limit;
    if (fits != fitted) return fits;
    return fits ? r->seconds < f->found.seconds : r->after < f->found.after;
}

/* As it will be planned: with the buckets of several ranks, whose workspaces the pool has to hold too. */
static cr_status plan(const struct search *f, struct cr_program *p, struct cr_fit_report *r, size_t *bound) {
    struct cr_program whole;
    CR_TRY(predict(f, p, r));
    CR_TRY(cr_program_copy(p, &whole));
    cr_status status = CR_OK;
    if (f->options->bucket_bytes) {
        status = cr_pass_buckets(&whole, f->target, f->options->bucket_bytes, f->options->wire);
        if (status == CR_OK) status = cr_pass_insert_waits(&whole);
    }
    if (status == CR_OK) status = cr_pass_plan(&whole, f->target->alignment, f->options->reuse);
    r->after = whole.region_bytes[CR_REGION_POOL] +
               (size_t)((double)whole.region_bytes[CR_REGION_HOST] * f->target->host_memory_overhead);
    *bound = whole.bound_bytes;
    cr_program_free(&whole);
    return status;
}

static cr_status go(struct search *f, const struct way *w, size_t goal) {
    const size_t limit = f->options->pool_limit;
    size_t       live  = 0, bound;
    for (int round = 0; round < ROUNDS; round++) {
        struct cr_program    p;
        struct cr_fit_report r = {.before = f->found.before, .seconds_before = f->found.seconds_before};
        CR_TRY(cr_program_copy(f->plain, &p));
        cr_status status = walk(f, w, &p, goal, false, &r, &live);
        if (status == CR_OK) status = plan(f, &p, &r, &bound);
        const bool better = status == CR_OK && is_better(f, &r);
        if (better) {
            cr_program_free(&f->best);
            f->best  = p;
            f->found = r;
            f->any   = true;
            f->won   = *w;
        } else
            cr_program_free(&p);
        CR_TRY(status);
        const size_t less = r.after > limit ? CR_MAX(r.after - limit, limit / STEP_SHARE * (size_t)(round + 1)) : 0;
        if (r.after <= limit || live > goal || less >= goal) return CR_OK;
        goal -= less;
    }
    return CR_OK;
}

/* The limit is beyond reach: how far it is, with all there is, is worth knowing. */
static cr_status go_as_far_as_possible(struct search *f) {
    const struct way far[] = {{.kind = RECOMPUTE}, {.kind = SWAP}, {.kind = RECOMPUTE_FIRST, .part = PARTS - 1}};
    for (size_t i = 0; i < CR_COUNT(far); i++)
        for (int k = 0; k < f->ways; k++)
            if (f->way[k].kind == far[i].kind) {
                CR_TRY(go(f, &far[i], 1));
                break;
            }
    return CR_OK;
}

/* Once more by the way that won, now with tensors that are read where they wait; of a limit that nothing keeps, by all.
 * Apart from the search, so that no plan is worse for it. */
static cr_status go_reading(struct search *f, const struct cr_cost_model *target) {
    const bool fits = f->found.after <= f->options->pool_limit;
    if (!f->options->zero_copy || !target->reads_host || (fits && !f->found.offloaded)) return CR_OK;
    f->target            = target;
    const struct way won = f->won;
    if (fits) return go(f, &won, f->options->pool_limit);
    for (int i = 0; i < f->ways && i < FINALISTS; i++)
        if (f->way[i].kind != RECOMPUTE) CR_TRY(go(f, &f->way[i], f->options->pool_limit));
    return CR_OK;
}

/* The best set of tensors need not be the one that is planned best. */
static cr_status go_by_scores(struct search *f) {
    for (enum cr_offload_score score = CR_OFFLOAD_DOA; score < CR_OFFLOAD_SCORES; score++) {
        const struct way w = {.kind = SWAP, .score = score};
        CR_TRY(go(f, &w, f->options->pool_limit));
    }
    return CR_OK;
}

static const double rough_share = 1.1; /* a rough plan becomes better by about as much in full */

static cr_status search(struct search *f, const struct cr_cost_model *target) {
    struct cr_program    p;
    struct cr_fit_report r = {0};
    CR_TRY(cr_program_copy(f->plain, &p));
    cr_status status = plan(f, &p, &r, &f->live);
    cr_program_free(&p);
    f->found =
        (struct cr_fit_report){.before = r.after, .after = r.after, .seconds_before = r.seconds, .seconds = r.seconds};
    CR_TRY(status);
    if (r.after <= f->options->pool_limit) return CR_OK;
    CR_TRY(add_ways(f));
    for (int i = 0, tried = 0; i < f->ways && tried < FINALISTS; i++) { /* in full one may fit that roughly does not */
        if (i && f->found.after <= f->options->pool_limit && f->way[i].seconds >= rough_share * f->found.seconds)
            continue;
        CR_TRY(go(f, &f->way[i], f->options->pool_limit));
        tried++;
    }
    if (f->found.stalled > 0 && !f->found.recomputed && named_score(f) == CR_OFFLOAD_BEST) CR_TRY(go_by_scores(f));
    CR_TRY(go_reading(f, target));
    return f->found.after > f->options->pool_limit ? go_as_far_as_possible(f) : CR_OK;
}

cr_status cr_pass_fit(struct cr_program *p, const struct cr_cost_model *target,
                      const struct cr_compile_options *options, struct cr_fit_report *report) {
    struct cr_cost_model by_copies = *target;
    struct search        f         = {.plain = p, .target = &by_copies, .options = options};
    by_copies.reads_host           = NULL;
    cr_program_init(&f.best, "", NULL);
    cr_status status = p->ops ? search(&f, target) : CR_OK;
    *report          = f.found;
    if (status == CR_OK && f.any) {
        cr_program_free(p);
        *p                              = f.best;
        p->region_bytes[CR_REGION_POOL] = p->bound_bytes = 0; /* not planned: order and plan come */
        return CR_OK;
    }
    cr_program_free(&f.best);
    return status;
}

/* compiler/memory/fit_to_limit.c: rewrites a program to fit a memory limit at the least predicted time.
 *
 * A tensor can be recomputed (compiler/memory/recompute.c) or offloaded to host memory (compiler/memory/offload.c).
 * Which is cheaper depends on the device and on the limit: a copy that hides behind compute is free, and a copy that
 * does not hide costs more than most recomputation. The search therefore lets recomputation leave more and more bytes
 * above the limit to offloading: from none, recomputation alone, to all, offloading alone. A simulation of the streams
 * compares the resulting programs.
 *
 * Both passes count live bytes. The planned pool may be slightly larger, and the limit applies to the pool. The search
 * therefore repeats the best strategies with a lower goal until the planned pool is within the limit. */
#include "compiler/compiler.h"
#include "compiler/cost_model.h"
#include "compiler/passes.h"
#include "compiler/simulate.h"

enum {
    PARTS         = 12,  /* the copies of offloaded tensors take up to this many twelfths of the program's time */
    ROUNDS        = 8,   /* attempts of one strategy with a lower goal */
    FINALISTS     = 8,   /* strategies that run in full */
    STEP_FRACTION = 400, /* the goal falls by at least limit / 400 per round */
};

struct strategy { /* one way to reach the limit */
    bool                  recompute, offload;
    size_t                offload_bytes; /* with both: bytes above the limit that recomputation leaves to offloading */
    enum cr_offload_score score;         /* score of the final run */
    bool                  fits;
    size_t                live; /* live bytes, when it does not fit */
    double                seconds;
};

struct search {
    const struct cr_program         *plain;
    const struct cr_cost_model      *cost_model;
    const struct cr_compile_options *options;
    size_t                           live; /* of the plain program */
    size_t                           step; /* bytes that are copied to the host in 1 / PARTS of the program's time */
    struct strategy                  strategy[2 + PARTS];
    int                              strategies;
    struct cr_fit_report             found; /* report of `best`, or of the plain program while there is no best */
    struct cr_program                best;
    bool                             has_best;
};

/* ---- one strategy ---- */

/* Rewrites the program by the strategy. *live: live bytes that remain, as the last pass counts them. */
static cr_status run_strategy(const struct search *f, const struct strategy *w, struct cr_program *p, size_t goal,
                              bool quick, struct cr_fit_report *r, size_t *live) {
    const enum cr_offload_score score = quick && w->score == CR_OFFLOAD_BEST ? CR_OFFLOAD_ROUGH : w->score;
    r->after                          = f->live;
    if (w->recompute) CR_TRY(cr_pass_recompute(p, f->cost_model, goal + w->offload_bytes, r));
    if (w->offload && r->after > goal) CR_TRY(cr_pass_offload(p, f->cost_model, goal, score, r));
    *live = r->after;
    return CR_OK;
}

static cr_status predict(const struct search *f, struct cr_program *p, struct cr_fit_report *r) {
    struct cr_simulation time;
    CR_TRY(cr_pass_insert_waits(p));
    CR_TRY(cr_program_predict(p, f->cost_model, &time));
    r->seconds = time.total;
    r->stalled = time.stalled;
    return CR_OK;
}

/* ---- a quick trial of all strategies ---- */

static cr_status try_strategy(const struct search *f, struct strategy *w) {
    struct cr_program    p;
    struct cr_fit_report r    = {0};
    const size_t         goal = f->options->pool_limit;
    CR_TRY(cr_program_copy(f->plain, &p));
    cr_status status = run_strategy(f, w, &p, goal, true, &r, &w->live);
    if (status == CR_OK) status = predict(f, &p, &r);
    w->fits    = w->live <= goal;
    w->seconds = r.seconds;
    cr_program_free(&p);
    return status;
}

static bool comes_before(const struct strategy *a, const struct strategy *b) {
    if (a->fits != b->fits) return a->fits;
    if (!a->fits && a->live != b->live) return a->live < b->live;
    return a->seconds < b->seconds;
}

static cr_status add_strategy(struct search *f, bool recompute, bool offload, size_t offload_bytes) {
    struct strategy w = {
        .recompute = recompute, .offload = offload, .offload_bytes = offload_bytes, .score = f->options->offload_score};
    int i = f->strategies;
    CR_TRY(try_strategy(f, &w));
    for (; i > 0 && comes_before(&w, &f->strategy[i - 1]); i--) f->strategy[i] = f->strategy[i - 1];
    f->strategy[i] = w;
    f->strategies++;
    return CR_OK;
}

static cr_status add_strategies(struct search *f) {
    const struct cr_cost_model *m = f->cost_model;
    const bool can_offload        = f->options->offload && m->to_host_bytes_per_s > 0 && m->to_device_bytes_per_s > 0;
    if (can_offload) CR_TRY(add_strategy(f, false, true, 0));
    if (f->options->recompute) CR_TRY(add_strategy(f, true, false, 0));
    if (!can_offload || !f->options->recompute) return CR_OK;
    const double seconds_per_byte = cr_copy_seconds(m, CR_STREAM_TO_HOST, 1 << 30) / (1 << 30);
    const size_t excess           = f->live - CR_MIN(f->live, f->options->pool_limit);
    for (int part = 0; part < PARTS; part++) {
        const double bytes = f->found.seconds_before * part / PARTS / seconds_per_byte;
        if (bytes < (double)excess) CR_TRY(add_strategy(f, true, true, (size_t)bytes));
    }
    return CR_OK;
}

/* ---- the best strategies in full ---- */

static bool is_better(const struct search *f, const struct cr_fit_report *r) {
    const size_t limit = f->options->pool_limit;
    const bool   fits = r->after <= limit, best_fits = f->found.after <= limit;
    if (fits != best_fits) return fits;
    return fits ? r->seconds < f->found.seconds : r->after < f->found.after;
}

/* Plans the program as the compilation will, with the gradient buckets of several ranks and their workspaces. */
static cr_status plan(const struct search *f, struct cr_program *p, struct cr_fit_report *r, size_t *bound) {
    struct cr_program complete;
    CR_TRY(cr_program_copy(p, &complete));
    cr_status status = CR_OK;
    if (f->options->bucket_bytes) {
        status = cr_pass_buckets(&complete, f->cost_model, f->options->bucket_bytes, f->options->wire);
        if (status == CR_OK) status = cr_pass_insert_waits(&complete);
    }
    if (status == CR_OK) status = cr_pass_plan(&complete, f->cost_model->alignment, f->options->reuse);
    r->after = complete.region_bytes[CR_REGION_POOL] +
               (size_t)((double)complete.region_bytes[CR_REGION_HOST] * f->cost_model->host_memory_overhead);
    *bound = complete.bound_bytes;
    cr_program_free(&complete);
    return status;
}

static cr_status refine(struct search *f, const struct strategy *w, size_t goal) {
    const size_t limit = f->options->pool_limit;
    size_t       live  = 0, bound;
    for (int round = 0; round < ROUNDS; round++) {
        struct cr_program    p;
        struct cr_fit_report r = {0};
        CR_TRY(cr_program_copy(f->plain, &p));
        cr_status status = run_strategy(f, w, &p, goal, false, &r, &live);
        r.before         = f->found.before;
        r.seconds_before = f->found.seconds_before;
        if (status == CR_OK) status = predict(f, &p, &r);
        const bool slower = f->found.after <= limit && r.seconds >= f->found.seconds; /* a plan would not help */
        if (status == CR_OK && !slower) status = plan(f, &p, &r, &bound);
        const bool better = status == CR_OK && !slower && is_better(f, &r);
        if (better) {
            cr_program_free(&f->best);
            f->best     = p;
            f->found    = r;
            f->has_best = true;
        } else
            cr_program_free(&p);
        if (status != CR_OK || slower) return status;
        const size_t excess =
            r.after > limit ? CR_MAX(r.after - limit, limit / STEP_FRACTION * (size_t)(round + 1)) : 0;
        if (r.after <= limit || live > goal || excess >= goal) return CR_OK;
        goal -= excess;
    }
    return CR_OK;
}

/* No strategy keeps the limit: finds the smallest pool, for the error message. */
static cr_status refine_towards_minimum(struct search *f) {
    for (int i = 0; i < f->strategies; i++)
        if (!f->strategy[i].offload_bytes) CR_TRY(refine(f, &f->strategy[i], 1));
    return CR_OK;
}

/* Tries each score alone: the set with the least simulated time need not have the smallest planned pool. */
static cr_status refine_by_scores(struct search *f) {
    for (enum cr_offload_score score = CR_OFFLOAD_DOA; score < CR_OFFLOAD_SCORES; score++) {
        const struct strategy w = {.offload = true, .score = score};
        CR_TRY(refine(f, &w, f->options->pool_limit));
    }
    return CR_OK;
}

static const double quick_trial_margin = 1.1; /* a full run improves a quick trial by up to about this factor */

static cr_status search(struct search *f) {
    struct cr_program    p;
    struct cr_fit_report r = {0};
    CR_TRY(cr_program_copy(f->plain, &p));
    cr_status status = predict(f, &p, &r);
    if (status == CR_OK) status = plan(f, &p, &r, &f->live);
    cr_program_free(&p);
    f->found =
        (struct cr_fit_report){.before = r.after, .after = r.after, .seconds_before = r.seconds, .seconds = r.seconds};
    CR_TRY(status);
    if (r.after <= f->options->pool_limit) return CR_OK;
    CR_TRY(add_strategies(f));
    for (int i = 0, tried = 0; i < f->strategies && tried < FINALISTS;
         i++) { /* a full run may fit where the quick trial does not */
        if (i && f->found.after <= f->options->pool_limit &&
            f->strategy[i].seconds >= quick_trial_margin * f->found.seconds)
            continue;
        CR_TRY(refine(f, &f->strategy[i], f->options->pool_limit));
        tried++;
    }
    if (f->found.stalled > 0 && !f->found.recomputed && f->options->offload_score == CR_OFFLOAD_BEST)
        CR_TRY(refine_by_scores(f));
    return f->found.after > f->options->pool_limit ? refine_towards_minimum(f) : CR_OK;
}

cr_status cr_pass_fit(struct cr_program *p, const struct cr_cost_model *cost_model,
                      const struct cr_compile_options *options, struct cr_fit_report *report) {
    struct search f = {.plain = p, .cost_model = cost_model, .options = options};
    cr_program_init(&f.best, "", NULL);
    cr_status status              = p->ops ? search(&f) : CR_OK;
    *report                       = f.found;
    report->to_host_bytes_per_s   = cost_model->to_host_bytes_per_s;
    report->to_device_bytes_per_s = cost_model->to_device_bytes_per_s;
    if (status == CR_OK && f.has_best) {
        cr_program_free(p);
        *p                              = f.best;
        p->region_bytes[CR_REGION_POOL] = p->bound_bytes = 0; /* order and plan follow */
        return CR_OK;
    }
    cr_program_free(&f.best);
    return status;
}

/* tests/harness/failing_alloc.h: runs code with its n-th allocation failing, for n = 1, 2, ... until none fails.
 *
 *   for_each_failing_alloc(f, .least = 5) {
 *       ... what the code needs ...
 *       failing_alloc_run(&f, code_under_test());
 *       ... frees what the code and the lines before it allocated ...
 *   }
 *
 * Code of several statements stands between failing_alloc_begin(&f) and failing_alloc_end(&f, status).
 * Each failure must end the code with CR_ERR_MEMORY and leave no block: the live blocks are counted before and after
 * the body. The loop ends when the code makes fewer than n allocations; its status is then `want`. The loop prints the
 * number of failures, and the case fails when there were fewer than `least`. It ends early when a check of the case
 * fails. */
#ifndef CR_FAILING_ALLOC_H
#define CR_FAILING_ALLOC_H

#include "tests/harness/test.h"

struct failing_alloc_options {
    int       least;     /* fewest failures; at least 1 */
    cr_status want;      /* status when no allocation fails */
    bool      tolerated; /* the code may also succeed although an allocation failed, such as that of a cache */
    int64_t   dense;     /* the first `dense` allocations fail one by one; 0: all */
    int64_t   stride;    /* later every stride-th */
    int64_t   percent;   /* and n grows by at least this percentage */
};

struct failing_alloc {
    struct failing_alloc_options options;
    const char                  *file;
    int                          line;
    int64_t                      nth, live;
    uint64_t                     calls;
    int                          injected, failures; /* `failures`: failed checks of the case before the loop */
    bool                         ended, done;        /* body ran failing_alloc_end; no allocation failed */
};

enum { FAILING_ALLOC_MOST = 100000 };

static inline void failing_alloc_report(const struct failing_alloc *f) {
    if (test_failures_ > f->failures) return;
    printf("    %d failed allocations\n", f->injected);
    if (f->injected < CR_MAX(f->options.least, 1))
        TEST_FAIL_("%s:%d: %d failed allocations, want %d or more", f->file, f->line, f->injected,
                   CR_MAX(f->options.least, 1));
}

/* The condition of the loop: ends an iteration and begins the next one. */
static inline bool failing_alloc_next(struct failing_alloc *f) {
    cr_alloc_fail_at(0);
    if (f->nth && !f->ended) TEST_FAIL_("%s:%d: no failing_alloc_end in the loop", f->file, f->line);
    if (f->nth && cr_alloc_live() != f->live)
        TEST_FAIL_("%s:%d: allocation %lld: %lld blocks left", f->file, f->line, (long long)f->nth,
                   (long long)(cr_alloc_live() - f->live));
    if (f->nth > FAILING_ALLOC_MOST) TEST_FAIL_("%s:%d: the code never succeeds", f->file, f->line);
    if (f->done || test_failures_ > f->failures) {
        failing_alloc_report(f);
        return false;
    }
    const struct failing_alloc_options *o = &f->options;
    if (o->dense && f->nth >= o->dense)
        f->nth += CR_MAX(CR_MAX(o->stride, f->nth * o->percent / 100), (int64_t)1);
    else
        f->nth++;
    f->ended = false;
    f->live  = cr_alloc_live();
    return true;
}

static inline void failing_alloc_begin(struct failing_alloc *f) {
    f->calls = cr_alloc_calls();
    cr_alloc_fail_at(f->nth);
}

/* Checks the status of the code. Returns whether an allocation failed. */
static inline bool failing_alloc_end(struct failing_alloc *f, cr_status status) {
    const bool failed = cr_alloc_calls() - f->calls >= (uint64_t)f->nth;
    const bool good   = status == f->options.want && (!failed || f->options.tolerated);
    cr_alloc_fail_at(0);
    f->ended = true;
    f->done  = !failed;
    f->injected += failed;
    if (!good && !(failed && status == CR_ERR_MEMORY))
        TEST_FAIL_("%s:%d: allocation %lld%s: status %s: %s [%s]", f->file, f->line, (long long)f->nth,
                   failed ? " failed" : " did not happen", cr_status_name(status), cr_error_message(),
                   cr_error_trail());
    return failed;
}

/* The status of a single call. */
#define failing_alloc_run(f, code) (failing_alloc_begin(f), failing_alloc_status_((f), (code)))
static inline cr_status failing_alloc_status_(struct failing_alloc *f, cr_status status) {
    failing_alloc_end(f, status);
    return status;
}

#define for_each_failing_alloc(f, ...)                                                                                 \
    for (struct failing_alloc f = {.options = (struct failing_alloc_options){__VA_ARGS__},                             \
                                  .file     = __FILE__,                                                                \
                                  .line     = __LINE__,                                                                \
                                  .failures = test_failures_};                                                         \
         failing_alloc_next(&f);)

#endif

/* tests/checkops/test_checkops.c: every row of every device, judged; and the judge, judged.
 *   test_checkops [--bench] [--ways] [--device cpu|cuda] [PART]
 * PART: only rows whose name contains it; --bench times instead of judging; --ways: all ways of rows that have several
 */
#include "tests/checkops/checkops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct totals {
    int passed, failed, skipped;
};

static void count(struct totals *totals, bool ok) {
    if (ok)
        totals->passed++;
    else
        totals->failed++;
}

static void report_row(const struct checkops_runner *w, int i, struct totals *totals) {
    const struct cr_kernel      *row = w->kernel[i];
    const struct checkops_tally *t   = &w->tally[i];
    if (w->filter && !strstr(row->name, w->filter)) return;
    const bool ok = t->runs > 0 && t->failures == 0;
    if (t->runs == 0 &&
        (w->shards || w->cut || row->collective)) { /* another share, more time, or other processes may reach it */
        printf("none %s %-24s%s\n", w->name, row->name, row->collective ? " among several ranks only" : "");
        return;
    }
    count(totals, ok);
    if (t->runs == 0)
        printf("FAIL %s %-24s no case reaches this row\n", w->name, row->name);
    else
        printf("%-4s %s %-24s %5d runs, worst %.3f of the bound\n", ok ? "ok" : "FAIL", w->name, row->name, t->runs,
               t->worst);
    if (t->failures) printf("     %d runs failed, the first: %s\n", t->failures, t->why);
}

/* On the CPU every op kind has a reference row and a case. */
static void report_kinds(const struct checkops_runner *w, const struct checkops_list *list, struct totals *totals) {
    for (int k = 0; k < CR_OP_COUNT; k++) {
        bool has_case = false;
        for (int i = 0; i < list->count; i++) has_case = has_case || (int)list->item[i].kind == k;
        if (has_case && cr_verify_ref(w->cpu, (enum cr_op_kind)k)) continue;
        printf("FAIL op %s: %s\n", cr_op_info((enum cr_op_kind)k)->name, has_case ? "no reference row" : "no case");
        totals->failed++;
    }
}

/* More than one, so that work is split; not many, so that small ops do not wait for a team. */
static int threads_under_test(void) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)CR_MIN(CR_MAX(cores, 2), 4);
}

struct asked {
    bool        bench, ways;
    int         share, shares;
    double      seconds;         /* 0: no limit */
    const char *filter, *device; /* NULL: all */
};
struct references {
    struct cr_device *one, *wide;
};

/* A device is walked over as it is opened for deterministic training; then the ops that tf32 is about, with tf32
 * allowed; then, for rows that nothing has reached so far, with both left free. */
enum pass { PASS_ALL, PASS_TF32, PASS_UNREACHED, PASSES };

static bool pass_is_needed(struct checkops_runner *w, enum pass pass) {
    bool needed = pass == PASS_ALL;
    for (int i = 0; i < w->kernels && pass == PASS_TF32; i++) needed = needed || w->kernel[i]->math == CR_MATH_TF32;
    for (int i = 0; i < w->kernels && pass == PASS_UNREACHED; i++) {
        w->skip[i] = w->tally[i].runs > 0;
        needed     = needed || !w->skip[i];
    }
    return needed && !(w->bench && pass != PASS_ALL);
}

static cr_status walk_pass(const struct cr_backend *backend, enum pass pass, struct checkops_runner *w,
                           const struct checkops_list *list) {
    const struct cr_device_options options = {
        .threads = threads_under_test(), .deterministic = pass != PASS_UNREACHED, .tf32 = pass != PASS_ALL};
    checkops_arena_close(&w->arena);
    cr_device_close(w->device);
    w->device    = NULL;
    w->only_tf32 = pass == PASS_TF32;
    CR_TRY(backend->open(&options, &w->device));
    if (pass == PASS_ALL) printf("%s\n", w->device->caps.text);
    return checkops_runner(w, list);
}

static void report_walk(const struct checkops_runner *w, int64_t start, struct totals *totals) {
    const char *name   = w->name;
    const int   before = totals->passed + totals->failed;
    for (int i = 0; i < w->kernels; i++) report_row(w, i, totals);
    if (totals->passed + totals->failed == before) printf("no row of %s has a name with \"%s\"\n", name, w->filter);
    if (w->cut) printf("%s: out of time, the rest of the cases was not run\n", name);
    printf(
        "%s: %d cases, %d of them taken by the reference only, %.1f s (the reference %.1f s, rows and copies %.1f s)\n",
        name, w->cases, w->only_ref, (double)(cr_time_ns() - start) * 1e-9, (double)w->reference_ns * 1e-9,
        (double)w->device_ns * 1e-9);
}

/* Which cases a device is worth is known once it is open. */
static cr_status choose_list(const struct cr_backend *backend, const struct asked *asked, struct checkops_list *list) {
    const struct cr_device_options options = {.threads = threads_under_test()};
    struct cr_device              *device;
    CR_TRY(backend->open(&options, &device));
    const bool half = device->caps.half;
    cr_device_close(device);
    return checkops_list_make(!half ? CHECKOPS_WIDE : asked->bench ? CHECKOPS_FULL_SIZE : CHECKOPS_HALF, list);
}

static cr_status check_backend(const struct cr_backend *backend, const struct references *references,
                               const struct asked *asked, struct totals *totals) {
    struct checkops_list    list = {0};
    struct checkops_runner *walk;
    cr_status               status;
    const int64_t           start = cr_time_ns();
    CR_ALLOC(walk, 1);
    *walk = (struct checkops_runner){.name     = backend->name,
                                     .cpu      = references->one,
                                     .wide_cpu = references->wide,
                                     .filter   = asked->filter,
                                     .bench    = asked->bench,
                                     .algos    = asked->ways,
                                     .shard    = asked->share,
                                     .shards   = asked->shares};
    if (asked->seconds > 0) walk->until_ns = start + (int64_t)(asked->seconds * 1e9);
    CR_TRY_OUT(choose_list(backend, asked, &list));
    for (enum pass pass = PASS_ALL; pass < PASSES; pass++)
        if (pass_is_needed(walk, pass)) CR_TRY_OUT(walk_pass(backend, pass, walk, &list));
    if (asked->bench) totals->passed++;
    if (backend == &cr_backend_cpu) report_kinds(walk, &list, totals);
out:
    if (walk->kernels && !asked->bench) report_walk(walk, start, totals); /* after a fault: what was found before it */
    checkops_arena_close(&walk->arena);
    cr_device_close(walk->device);
    cr_free(walk);
    checkops_list_free(&list);
    return status;
}

static void self_test(struct cr_device *cpu, struct totals *totals) {
    int       tried;
    const int missed = checkops_selftest(cpu, &tried);
    totals->failed += missed;
    totals->passed += tried - missed;
}

static cr_status check_all(const struct asked *asked, struct totals *totals) {
    /* The reference gives the same bits with any number of threads; oneDNN follows the device opened last. */
    const struct cr_device_options all = {.ref_only = true}, one = {.threads = 1, .ref_only = true};
    struct references              references = {0};
    bool                           found      = false;
    cr_status                      status;
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &all, &references.wide));
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &one, &references.one));
    if (!asked->bench && !asked->filter && !asked->device) self_test(references.one, totals);
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if (asked->device && strcmp(asked->device, (*b)->name) != 0) continue;
        found = true;
        if ((*b)->available(&why)) {
            CR_TRY_OUT(check_backend(*b, &references, asked, totals));
            continue;
        }
        printf("skip %s: %s\n", (*b)->name, why ? why : "not available");
        totals->skipped++;
    }
    if (!found) {
        printf("skip %s: not in this build\n", asked->device);
        totals->skipped++;
    }
out:
    cr_device_close(references.one);
    cr_device_close(references.wide);
    return status;
}

int main(int argc, char **argv) {
    struct totals totals = {0};
    struct asked  asked  = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            asked.bench = true;
        else if (strcmp(argv[i], "--ways") == 0)
            asked.ways = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            asked.seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--share") == 0 && i + 1 < argc) {
            if (sscanf(argv[++i], "%d/%d", &asked.share, &asked.shares) != 2 || asked.shares < 1 || asked.share < 0 ||
                asked.share >= asked.shares) {
                printf("--share I/N: the cases I, I+N, I+2N ... of the list\n");
                return 2;
            }
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            asked.device = argv[++i];
        else
            asked.filter = argv[i];
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (check_all(&asked, &totals) != CR_OK) {
        printf("FAIL %s [%s]\n", cr_error_message(), cr_error_trail());
        totals.failed++;
    }
    if (cr_alloc_live() != 0) {
        printf("FAIL %lld blocks of memory are still held\n", (long long)cr_alloc_live());
        totals.failed++;
    }
    printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
    if (!totals.passed && !totals.failed && totals.skipped) return 77;
    return totals.failed || !totals.passed;
}

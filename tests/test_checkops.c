/* test_checkops.c: every row of every device, judged; and the judge, judged.
 *   test_checkops [--bench] [PART]   only rows whose name contains PART; --bench times instead of judging */
#include "checkops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct totals {
    int passed, failed, skipped;
};

static void count(struct totals *totals, bool ok) {
    if (ok) totals->passed++;
    else totals->failed++;
}

static void report_row(const struct checkops_walk *w, int i, struct totals *totals) {
    const struct cr_kernel      *row = w->device->rows[i];
    const struct checkops_tally *t   = &w->tally[i];
    if (w->filter && !strstr(row->name, w->filter)) return;
    const bool ok = t->runs > 0 && t->failures == 0;
    count(totals, ok);
    if (t->runs == 0) printf("FAIL %s %-24s no case reaches this row\n", w->device->backend->name, row->name);
    else printf("%-4s %s %-24s %5d runs, worst %.3f of the bound\n", ok ? "ok" : "FAIL", w->device->backend->name, row->name, t->runs, t->worst);
    if (t->failures) printf("     %d runs failed, the first: %s\n", t->failures, t->why);
}

/* On the CPU every op kind has a reference row and a case. */
static void report_kinds(const struct checkops_walk *w, const struct checkops_list *list, struct totals *totals) {
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

static cr_status check_backend(const struct cr_backend *backend, struct cr_device *cpu, const struct checkops_list *list,
                               bool bench, const char *filter, struct totals *totals) {
    const struct cr_device_options options = {.threads = threads_under_test()};
    struct cr_device              *device  = NULL;
    struct checkops_walk          *walk;
    cr_status                      status;
    const int64_t                  start = cr_time_ns();
    CR_ALLOC(walk, 1);
    CR_TRY_OUT(backend->open(&options, &device));
    *walk = (struct checkops_walk){.device = device, .cpu = cpu, .filter = filter, .bench = bench};
    printf("%s\n", device->caps.text);
    CR_TRY_OUT(checkops_walk(walk, list));
    if (bench) totals->passed++;
    else {
        const int before = totals->passed + totals->failed;
        for (int i = 0; i < walk->rows; i++) report_row(walk, i, totals);
        if (totals->passed + totals->failed == before) printf("no row of %s has a name with \"%s\"\n", backend->name, filter);
        printf("%s: %d cases, %d of them taken by the reference only, %.1f s\n", backend->name, walk->cases, walk->only_ref,
               (double)(cr_time_ns() - start) * 1e-9);
    }
    if (backend == &cr_backend_cpu) report_kinds(walk, list, totals);
out:
    cr_device_close(device);
    cr_free(walk);
    return status;
}

static void self_test(struct cr_device *cpu, const struct checkops_list *list, struct totals *totals) {
    int       tried;
    const int missed = checkops_selftest(cpu, list, &tried);
    totals->failed += missed;
    totals->passed += tried - missed;
}

static cr_status check_all(bool bench, const char *filter, struct totals *totals) {
    /* One thread: the reference gives the same bits with any number, and oneDNN follows the device opened last. */
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    struct checkops_list           list    = {0};
    struct cr_device              *cpu     = NULL;
    cr_status                      status;
    CR_TRY_OUT(checkops_list_make(&list));
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &options, &cpu));
    if (!bench && !filter) self_test(cpu, &list, totals);
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if ((*b)->available(&why)) {
            CR_TRY_OUT(check_backend(*b, cpu, &list, bench, filter, totals));
            continue;
        }
        printf("skip %s: %s\n", (*b)->name, why ? why : "not available");
        totals->skipped++;
    }
out:
    cr_device_close(cpu);
    checkops_list_free(&list);
    return status;
}

int main(int argc, char **argv) {
    struct totals totals = {0};
    bool          bench  = false;
    const char   *filter = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) bench = true;
        else filter = argv[i];
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (check_all(bench, filter, &totals) != CR_OK) {
        printf("FAIL %s [%s]\n", cr_error_message(), cr_error_trail());
        totals.failed++;
    }
    if (cr_alloc_live() != 0) {
        printf("FAIL %lld blocks of memory are still held\n", (long long)cr_alloc_live());
        totals.failed++;
    }
    printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
    return totals.failed || !totals.passed;
}

/* tests/checkops/test_checkops.c: compares every kernel of every device with the reference, and tests that wrong
 * kernels are detected.
 *   test_checkops [--algos] [--shard I/N] [--draws N] [--reference-draws N] [--seconds S] [--device cpu|cuda] [PART]
 *   test_checkops --unreached DEVICE KERNEL ...
 * PART: only kernels whose name contains it; --algos: all algorithms of kernels that have several; --shard I/N: the
 * cases I, I+N, I+2N ... of the list, and these of the wrong kernels; --draws N: every N-th draw, beginning with
 * another one in each case; --reference-draws N: the same in cases that only reference kernels run. --unreached:
 * whether these kernels should have been reached on a GPU, whose line of text is given; a process without shards
 * asks another one at its end. */
#include "core/cpu.h"
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

static void report_kernel(const struct checkops_runner *w, int i, struct totals *totals) {
    const struct cr_kernel      *kernel = w->kernel[i];
    const struct checkops_tally *t      = &w->tally[i];
    if (w->filter && !strstr(kernel->name, w->filter)) return;
    const bool ok = t->runs > 0 && t->failures == 0;
    if (t->runs == 0 && kernel->collective) {
        printf("skip %s %-24s needs several ranks\n", w->name, kernel->name);
        totals->skipped++;
        return;
    }
    if (t->runs == 0 && kernel->op == CR_OP_fused) { /* its parts are compared in whole programs */
        printf("skip %s %-24s see test_bn_chains and test_cuda_bn_chains\n", w->name, kernel->name);
        totals->skipped++;
        return;
    }
    if (t->runs == 0 && (w->shards || w->cut || w->device->backend->open_offline)) {
        printf("none %s %s\n", w->name,
               kernel->name); /* another shard, more time or another GPU may reach the kernel */
        return;
    }
    count(totals, ok);
    if (t->runs == 0)
        printf("FAIL %s %-24s no case reaches this kernel\n", w->name, kernel->name);
    else
        printf("%-4s %s %-24s %5d runs, largest error %.3f of the bound\n", ok ? "ok" : "FAIL", w->name, kernel->name,
               t->runs, t->worst);
    if (t->failures) printf("     %d runs failed, the first: %s\n", t->failures, t->why);
}

/* On the CPU every op kind has a reference kernel and a case. */
static void report_kinds(const struct checkops_runner *w, const struct checkops_list *list, struct totals *totals) {
    for (int k = 0; k < CR_OP_COUNT; k++) {
        bool has_case = k == CR_OP_fused; /* verified part by part: test_bn_chains, test_cuda_bn_chains */
        for (int i = 0; i < list->count; i++) has_case = has_case || (int)list->item[i].kind == k;
        if (has_case && cr_verify_ref(w->cpu, (enum cr_op_kind)k)) continue;
        printf("FAIL op %s: %s\n", cr_op_info((enum cr_op_kind)k)->name, has_case ? "no reference kernel" : "no case");
        totals->failed++;
    }
}

/* More than one thread, so that work is split; few threads, so that small ops do not wait for a team. */
static int threads_under_test(void) {
    return CR_MIN(CR_MAX(cr_cpu_cores(), 2), 4);
}

struct arguments {
    bool        algos;
    int         shard, shards, draws, reference_draws;
    double      seconds;         /* 0: no limit */
    const char *filter, *device; /* NULL: all */
};
struct references {
    struct cr_device *one, *wide;
};

struct report { /* of one device */
    struct totals *totals;
    int            runs[CHECKOPS_KERNELS_MAX]; /* of kernels whose results are printed; 0 before that */
};

/* First all cases run on the device as it is opened for deterministic training; then the ops that have TF32 kernels,
 * with TF32 allowed; then, for kernels that no case has reached, without both restrictions. */
enum pass { PASS_ALL, PASS_TF32, PASS_UNREACHED, PASSES };

static bool pass_is_needed(struct checkops_runner *w, enum pass pass) {
    bool needed = pass == PASS_ALL;
    for (int i = 0; i < w->kernels && pass == PASS_TF32; i++) needed = needed || w->kernel[i]->math == CR_MATH_TF32;
    for (int i = 0; i < w->kernels && pass == PASS_UNREACHED; i++) {
        w->skip[i] = w->tally[i].runs > 0;
        needed     = needed || !w->skip[i];
    }
    return needed;
}

/* Prints the results of kernels that no later pass runs, so that a test that is ended early has results. In f32 the
 * second pass runs the ops again that have TF32 kernels. */
static void report_kind(struct checkops_runner *w, enum cr_op_kind kind) {
    struct report *r = w->caller;
    for (int i = 0; i < w->kernels; i++) {
        const enum cr_math math  = w->kernel[i]->math;
        const bool         again = !w->only_tf32 && (math == CR_MATH_F32 || math == CR_MATH_TF32);
        if (w->kernel[i]->op != kind || !w->tally[i].runs || r->runs[i]) continue;
        if (again && checkops_has_tf32(w, kind)) continue;
        report_kernel(w, i, r->totals);
        r->runs[i] = w->tally[i].runs;
    }
}

static cr_status run_pass(const struct cr_backend *backend, enum pass pass, struct checkops_runner *w,
                          const struct checkops_list *list) {
    const struct cr_device_options options = {.threads       = threads_under_test(),
                                              .deterministic = pass != PASS_UNREACHED,
                                              .tf32          = pass != PASS_ALL,
                                              .bf16          = true};
    checkops_arena_close(&w->arena);
    cr_device_close(w->device);
    w->device    = NULL;
    w->only_tf32 = pass == PASS_TF32;
    CR_TRY(backend->open(&options, &w->device));
    if (pass == PASS_ALL) printf("%s\n", w->device->caps.text);
    return checkops_runner(w, list);
}

/* ---- kernels that no case reached ---- */

/* test_checkops --unreached DEVICE KERNEL ...: prints "skip", or "FAIL" where a case should have reached the kernel. */
static int print_unreached(const char *device, int count, const char *const name[]) {
    static struct checkops_reach reach[CHECKOPS_KERNELS_MAX];
    const int                    cc    = checkops_capability(device);
    int                          wrong = 0;
    if (!cc || count > CHECKOPS_KERNELS_MAX || checkops_reach(cc, count, name, reach) != CR_OK) {
        printf("FAIL cannot say which kernels \"%s\" has: %s\n", device, cr_error_message());
        return 1;
    }
    for (int k = 0; k < count; k++) {
        const bool ok = checkops_reach_ok(&reach[k]);
        wrong += !ok;
        if (ok)
            printf("skip cuda %-24s only for GPUs of other capabilities:%s\n", name[k], reach[k].elsewhere);
        else
            printf("FAIL cuda %-24s no case reaches this kernel%s\n", name[k],
                   reach[k].here ? ", but this GPU has cases that it accepts" : ", and no other GPU has one for it");
    }
    return wrong != 0;
}

/* Another process asks: offline devices and open GPUs exclude each other. */
static void judge_unreached(const struct checkops_runner *w, struct totals *totals) {
    char           self[4096], line[512];
    struct cr_text command  = {0};
    const ssize_t  length   = readlink("/proc/self/exe", self, sizeof self - 1);
    int            asked    = 0;
    self[CR_MAX(length, 0)] = 0;
    cr_text_add(&command, "'%s' --unreached '%s'", self, w->device->caps.text);
    for (int i = 0; i < w->kernels; i++) {
        const struct cr_kernel *kernel = w->kernel[i];
        if (w->tally[i].runs || kernel->collective || kernel->op == CR_OP_fused) continue;
        if (w->filter && !strstr(kernel->name, w->filter)) continue;
        cr_text_add(&command, " '%s'", kernel->name);
        asked++;
    }
    FILE *answers = asked && !command.failed ? popen(command.data, "r") : NULL;
    while (answers && fgets(line, sizeof line, answers)) {
        fputs(line, stdout);
        totals->skipped += strncmp(line, "skip ", 5) == 0;
        totals->failed += strncmp(line, "FAIL ", 5) == 0;
        asked--;
    }
    if (answers) (void)pclose(answers);
    if (asked) totals->failed++, printf("FAIL %d kernels that no case reached have no verdict\n", asked);
    cr_text_free(&command);
}

/* The kernels whose results are not printed yet; then the device. `before`: results before those of this device. */
static void report_runner(const struct checkops_runner *w, int64_t start, int before) {
    const char          *name   = w->name;
    const struct report *r      = w->caller;
    struct totals       *totals = r->totals;
    for (int i = 0; i < w->kernels; i++)
        if (!r->runs[i] || r->runs[i] != w->tally[i].runs) report_kernel(w, i, totals);
    if (w->device->backend->open_offline && !w->shards && !w->cut) judge_unreached(w, totals);
    if (totals->passed + totals->failed == before)
        printf("no kernel of %s has a name that contains \"%s\"\n", name, w->filter);
    if (w->cut) printf("%s: time limit reached, the remaining cases were not run\n", name);
    printf("%s: %d cases, %d of them run by reference kernels only, %.1f s (the reference %.1f s, kernels and copies "
           "%.1f s)\n",
           name, w->cases, w->only_ref, (double)(cr_time_ns() - start) * 1e-9, (double)w->reference_ns * 1e-9,
           (double)w->device_ns * 1e-9);
}

/* The extent of the list depends on the opened device. */
static cr_status choose_list(const struct cr_backend *backend, struct checkops_list *list) {
    const struct cr_device_options options = {.threads = threads_under_test()};
    struct cr_device              *device;
    CR_TRY(backend->open(&options, &device));
    const bool half = device->caps.half;
    cr_device_close(device);
    return checkops_list_make(half ? CHECKOPS_HALF : CHECKOPS_WIDE, list);
}

static cr_status check_backend(const struct cr_backend *backend, const struct references *references,
                               const struct arguments *arguments, struct totals *totals) {
    struct checkops_list    list = {0};
    struct checkops_runner *runner;
    struct report           report = {.totals = totals};
    cr_status               status;
    const int64_t           start  = cr_time_ns();
    const int               before = totals->passed + totals->failed;
    CR_ALLOC(runner, 1);
    *runner = (struct checkops_runner){.name            = backend->name,
                                       .cpu             = references->one,
                                       .wide_cpu        = references->wide,
                                       .filter          = arguments->filter,
                                       .algos           = arguments->algos,
                                       .shard           = arguments->shard,
                                       .shards          = arguments->shards,
                                       .draws           = arguments->draws,
                                       .reference_draws = arguments->reference_draws,
                                       .guard_pages     = true,
                                       .kind_done       = report_kind,
                                       .caller          = &report};
    if (arguments->seconds > 0) runner->until_ns = start + (int64_t)(arguments->seconds * 1e9);
    CR_TRY_OUT(choose_list(backend, &list));
    for (enum pass pass = PASS_ALL; pass < PASSES; pass++)
        if (pass_is_needed(runner, pass)) CR_TRY_OUT(run_pass(backend, pass, runner, &list));
    if (strcmp(backend->name, "cpu") == 0) report_kinds(runner, &list, totals);
out:
    if (runner->kernels) report_runner(runner, start, before); /* after an error: the results before the error */
    checkops_arena_close(&runner->arena);
    cr_device_close(runner->device);
    cr_free(runner);
    checkops_list_free(&list);
    return status;
}

static void self_test(struct cr_device *cpu, const struct arguments *arguments, struct totals *totals) {
    int       tried;
    const int missed = checkops_selftest(cpu, arguments->shard, arguments->shards, &tried);
    totals->failed += missed;
    totals->passed += tried - missed;
}

static cr_status check_all(const struct arguments *arguments, struct totals *totals) {
    /* The reference is bitwise identical for any number of threads; oneDNN uses the number of threads of the device
     * that was opened last. */
    const struct cr_device_options all = {.ref_only = true}, one = {.threads = 1, .ref_only = true};
    struct references              references = {0};
    bool                           found      = false;
    cr_status                      status;
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &all, &references.wide));
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &one, &references.one));
    if (!arguments->filter && !arguments->device) self_test(references.one, arguments, totals);
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char *why = NULL;
        if (arguments->device && strcmp(arguments->device, (*b)->name) != 0) continue;
        found = true;
        if ((*b)->available(&why)) {
            CR_TRY_OUT(check_backend(*b, &references, arguments, totals));
            continue;
        }
        printf("skip %s: %s\n", (*b)->name, why ? why : "not available");
        totals->skipped++;
    }
    if (!found) {
        printf("skip %s: not in this build\n", arguments->device);
        totals->skipped++;
    }
out:
    cr_device_close(references.one);
    cr_device_close(references.wide);
    return status;
}

int main(int argc, char **argv) {
    struct totals    totals    = {0};
    struct arguments arguments = {0};
    if (argc > 3 && strcmp(argv[1], "--unreached") == 0)
        return print_unreached(argv[2], argc - 3, (const char *const *)argv + 3);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--algos") == 0)
            arguments.algos = true;
        else if (strcmp(argv[i], "--reference-draws") == 0 && i + 1 < argc)
            arguments.reference_draws = atoi(argv[++i]);
        else if (strcmp(argv[i], "--draws") == 0 && i + 1 < argc)
            arguments.draws = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            arguments.seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--shard") == 0 && i + 1 < argc) {
            if (sscanf(argv[++i], "%d/%d", &arguments.shard, &arguments.shards) != 2 || arguments.shards < 1 ||
                arguments.shard < 0 || arguments.shard >= arguments.shards) {
                printf("--shard I/N: the cases I, I+N, I+2N ... of the list\n");
                return 2;
            }
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            arguments.device = argv[++i];
        else
            arguments.filter = argv[i];
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (check_all(&arguments, &totals) != CR_OK) {
        printf("FAIL %s [%s]\n", cr_error_message(), cr_error_trail());
        totals.failed++;
    }
    if (cr_alloc_live() != 0) {
        printf("FAIL %lld blocks of memory are not freed\n", (long long)cr_alloc_live());
        totals.failed++;
    }
    printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
    if (!totals.passed && !totals.failed && totals.skipped) return 77;
    return totals.failed || !totals.passed;
}

/* tests/checkops/selftest/checkops_selftest.c: runs checkops on kernels with deliberate errors, each of a kind
 * that real kernels have had. checkops must detect every one of them; a test that cannot fail proves nothing. */
#include "tests/checkops/selftest/checkops_selftest.h"

#include <stdio.h>
#include <string.h>

/* The device under test has only the wrong kernel; the reference is another device. */
const struct cr_kernel *const *checkops_reference_kernels;

cr_status checkops_reference(struct cr_device *device, const struct cr_call *call) {
    for (const struct cr_kernel *const *kernel = checkops_reference_kernels; *kernel; kernel++)
        if ((*kernel)->op == call->op->kind && (*kernel)->reference) return (*kernel)->launch(device, call);
    return CR_FAIL(CR_ERR_DEVICE, "no reference kernel");
}

const struct cr_tensor *checkops_out_tensor(const struct cr_call *call, int slot) {
    return &call->program->tensor[call->op->out[slot]];
}

/* The small cases of the kernel's op kind; for plain ops, the first contiguous group, which has no fused options. */
static struct checkops_list small_cases(const struct checkops_list *list, enum cr_op_kind kind) {
    struct checkops_list small = {.item = list->item};
    while (small.item < list->item + list->count && small.item->kind != kind) small.item++;
    while (small.item + small.count < list->item + list->count && small.item[small.count].kind == kind &&
           !small.item[small.count].big)
        small.count++;
    return small;
}

static cr_status run_kernel(struct cr_device *cpu, const struct checkops_list *cases, const struct cr_kernel *kernel,
                            struct checkops_runner *runner) {
    cr_status                      status;
    const struct cr_kernel *const  table[] = {kernel, NULL};
    const struct cr_device_options options = {.threads = 1, .ref_only = true};
    struct cr_device              *device;
    CR_TRY(cpu->backend->open(&options, &device));
    checkops_reference_kernels = cpu->kernels;
    device->kernels            = table;
    *runner = (struct checkops_runner){.device = device, .cpu = cpu, .wide_cpu = cpu, .until_failure = true};
    status  = checkops_runner(runner, cases);
    checkops_arena_close(&runner->arena);
    cr_device_close(device);
    return status;
}

struct selftest {
    struct cr_device       *cpu;
    struct checkops_list    list, fused; /* fused: small cases of fused ops */
    struct checkops_runner *runner;
    int                     shard, shards; /* as in checkops_selftest */
    int                     seen, tried;   /* kernels */
};

static bool verdict_is_correct(struct selftest *t, const struct checkops_list *cases, const struct cr_kernel *kernel) {
    const bool wrong = strncmp(kernel->name, "bad", 3) == 0;
    if (t->shards && t->seen++ % t->shards != t->shard) return true;
    t->tried++;
    const struct checkops_tally *found = &t->runner->tally[0];
    const cr_status              st    = run_kernel(t->cpu, cases, kernel, t->runner);
    const bool blamed = found->failures > 0 || found->runs == 0, correct = st == CR_OK && blamed == wrong;
    printf("%-4s selftest %-28s %s: %.300s\n", correct ? "ok" : "FAIL", kernel->name, blamed ? "detected" : "passed",
           st != CR_OK        ? cr_error_message()
           : found->runs == 0 ? "no case reaches the kernel"
                              : found->why);
    return correct;
}

static bool blames_fused(void *self, const struct cr_kernel *kernel) {
    struct selftest *t = self;
    return verdict_is_correct(t, &t->fused, kernel);
}

/* Plain loops are slow. */
static bool is_quick(const struct checkops_case *c) {
    return !c->big && c->N * c->H * c->W * c->C * c->K * c->window * c->window <= 60000 * c->stride * c->stride;
}

static cr_status selftest_run(struct selftest *t, int *missed) {
    CR_ALLOC(t->runner, 1);
    CR_TRY(checkops_list_make(CHECKOPS_HALF, &t->list));
    t->fused.extent = CHECKOPS_HALF;
    checkops_list_fused(&t->fused);
    int small = 0;
    for (int i = 0; i < t->fused.count; i++)
        if (is_quick(&t->fused.item[i])) t->fused.item[small++] = t->fused.item[i];
    t->fused.count = small;
    if (t->fused.failed) return CR_NO_MEMORY(sizeof *t->fused.item);
    for (int i = 0; i < checkops_wrong_kernel_count; i++) {
        const struct checkops_list cases = small_cases(&t->list, checkops_wrong_kernels[i].op);
        *missed += !verdict_is_correct(t, &cases, &checkops_wrong_kernels[i]);
    }
    *missed += checkops_selftest_fused(blames_fused, t);
    return CR_OK;
}

int checkops_selftest(struct cr_device *cpu, int shard, int shards, int *tried) {
    struct selftest t      = {.cpu = cpu, .shard = shard, .shards = shards};
    int             missed = 0;
    if (selftest_run(&t, &missed) != CR_OK) missed = ++t.tried;
    *tried = t.tried;
    checkops_list_free(&t.list);
    checkops_list_free(&t.fused);
    cr_free(t.runner);
    return missed;
}

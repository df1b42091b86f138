/* cli/bench/bench.c: cresnet bench: which of the things that can be timed. */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

static cr_status bench_step(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_run(args, false);
}
static cr_status bench_infer(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_run(args, true);
}
static cr_status bench_data(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_data(args);
}
static cr_status bench_init(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_init(args);
}
static cr_status bench_pools(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_pools(args);
}
static cr_status bench_sparse(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_sparse(args);
}
static cr_status bench_spdnn(const struct cr_args *args, int *signal_taken) {
    (void)signal_taken;
    return cr_bench_spdnn(args);
}

enum what { STEP, INFER, OPS, DATA, INIT, POOLS, SPARSE, SPDNN, WHATS };

static const struct {
    const char *word;
    cr_status (*run)(const struct cr_args *args, int *signal_taken);
} whats[WHATS] = {
    [STEP] = {"step", bench_step},       [INFER] = {"infer", bench_infer}, [OPS] = {"ops", cr_cmd_profile},
    [DATA] = {"data", bench_data},       [INIT] = {"init", bench_init},    [POOLS] = {"pools", bench_pools},
    [SPARSE] = {"sparse", bench_sparse}, [SPDNN] = {"spdnn", bench_spdnn}};

/* Options that not all of them read: one that is ignored would pass for one that was heard. */
#define OF(what) (1u << (what))
static const struct {
    enum cr_option_id id;
    unsigned          readers;
} some[] = {
    {CR_OPT_GPUS, OF(STEP) | OF(INFER) | OF(SPDNN)},
    {CR_OPT_RANKS, OF(STEP) | OF(INFER)},
    {CR_OPT_WHICH, OF(OPS)},
    {CR_OPT_BENCH_STEPS, (OF(WHATS) - 1) & ~OF(SPARSE)},
    {CR_OPT_JSON, (OF(WHATS) - 1) & ~OF(SPARSE)},
    {CR_OPT_AGAINST, OF(DATA)},
    {CR_OPT_BATCH, (OF(WHATS) - 1) & ~OF(SPARSE) & ~OF(SPDNN)}, /* theirs are --batches and --inputs */
    {CR_OPT_NEURONS, OF(SPDNN)},
    {CR_OPT_LAYERS, OF(SPDNN)},
    {CR_OPT_INPUTS, OF(SPDNN)},
    {CR_OPT_MNIST, OF(SPDNN)},
    {CR_OPT_NO_DROP, OF(SPDNN)},
    {CR_OPT_NO_GROUPS, OF(SPDNN)},
    {CR_OPT_STREAM, OF(SPDNN)},
    {CR_OPT_CHECK_INPUTS, OF(SPDNN)},
    {CR_OPT_VERBOSE, OF(SPDNN)},
    {CR_OPT_NETS, OF(SPARSE)},
    {CR_OPT_BATCHES, OF(SPARSE)},
    {CR_OPT_SPARSITIES, OF(SPARSE)},
    {CR_OPT_TYPES, OF(SPARSE)},
    {CR_OPT_BENCH_CSV, OF(SPARSE)},
};

static cr_status check_options(const struct cr_args *args, size_t what) {
    for (size_t i = 0; i < CR_COUNT(some); i++) {
        char readers[80] = "";
        if (!cr_args_has(args, some[i].id) || some[i].readers & OF(what)) continue;
        for (size_t w = 0; w < WHATS; w++)
            if (some[i].readers & OF(w))
                snprintf(readers + strlen(readers), sizeof readers - strlen(readers), "%s%s", *readers ? ", " : "",
                         whats[w].word);
        return cr_args_fail(args, "--%s: bench %s does not read it (it is of bench %s): leave it out",
                            cr_cli_option(some[i].id)->name, whats[what].word, readers);
    }
    return CR_OK;
}

cr_status cr_cmd_bench(const struct cr_args *args, int *signal_taken) {
    struct cr_args rest = *args; /* the configuration is the second operand here */
    for (size_t i = 0; args->operands && i < WHATS; i++) {
        if (strcmp(args->operand[0], whats[i].word) != 0) continue;
        CR_TRY(check_options(args, i));
        rest.operand++;
        rest.operands--;
        return whats[i].run(&rest, signal_taken);
    }
    return cr_args_fail(
        args,
        "what is to be timed? cresnet bench step CONFIG, bench infer CONFIG, bench ops CONFIG, bench data CONFIG, "
        "bench pools CONFIG, bench sparse, bench spdnn, or bench init");
}

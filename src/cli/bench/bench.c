/* cli/bench/bench.c: cresnet bench: selects the benchmark that the first operand names. */
#include "cli/common/command.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum benchmark { STEP, INFER, DATA, BENCHMARKS };

static const char *const benchmarks[BENCHMARKS] = {[STEP] = "step", [INFER] = "infer", [DATA] = "data"};

/* Options that only some benchmarks read. Giving one to another benchmark is an error. */
#define OF(benchmark) (1u << (benchmark))
static const struct {
    enum cr_option_id id;
    unsigned          readers;
} partial_options[] = {
    {CR_OPT_GPUS, OF(STEP) | OF(INFER)},    {CR_OPT_RANKS, OF(STEP) | OF(INFER)},
    {CR_OPT_TRAINER_SPEED, OF(DATA)},       {CR_OPT_WORKERS, OF(DATA)},
    {CR_OPT_DEVICE, OF(STEP) | OF(INFER)},  {CR_OPT_THREADS, OF(STEP) | OF(INFER)},
    {CR_OPT_WEIGHTS, OF(STEP) | OF(INFER)},
};

static cr_status check_options(const struct cr_args *args, size_t benchmark) {
    for (size_t i = 0; i < CR_COUNT(partial_options); i++) {
        char readers[80] = "";
        if (!cr_args_has(args, partial_options[i].id) || partial_options[i].readers & OF(benchmark)) continue;
        for (size_t w = 0; w < BENCHMARKS; w++)
            if (partial_options[i].readers & OF(w))
                snprintf(readers + strlen(readers), sizeof readers - strlen(readers), "%s%s", *readers ? ", " : "",
                         benchmarks[w]);
        return cr_args_fail(args, "--%s is not an option of bench %s (only of bench %s): leave it out",
                            cr_cli_option(partial_options[i].id)->name, benchmarks[benchmark], readers);
    }
    return CR_OK;
}

cr_status cr_cmd_bench(const struct cr_args *args, struct cr_result *out) {
    const char *name = args->operands ? args->operand[0] : "";
    for (size_t i = 0; i < BENCHMARKS; i++) {
        if (strcmp(name, benchmarks[i]) != 0) continue;
        const struct cr_args rest = cr_cmd_behind(args);
        CR_TRY(check_options(args, i));
        return i == DATA ? cr_bench_data(&rest, &out->text) : cr_bench_run(&rest, i == INFER, &out->text);
    }
    char       hint[80], what[200];
    const bool file = !*name || access(name, F_OK) == 0 || cr_command_has_word(CR_CMD_BENCH, name, hint, sizeof hint);
    snprintf(what, sizeof what, "unknown benchmark %.80s%s", name, file ? "" : hint);
    return cr_args_fail(args, "%s: cresnet bench step CONFIG, bench infer CONFIG or bench data CONFIG",
                        file ? "no benchmark given" : what);
}

/* cli/moved.c: commands and options that were removed in version 0.4.0, and the program of tools/ or the option that
 * replaced each. docs/upgrading.md lists the same words. */
#include "cli/common/command.h"

#include <string.h>

static const struct {
    enum cr_command_id command;
    const char        *word;    /* the first operand, the end of its name ("*.csv"), or an option ("--trace") */
    const char        *instead; /* a command, or what to do */
    const char        *folder;  /* of the program in tools/; NULL: `instead` is a command or option of cresnet */
} moved[] = {
    {CR_CMD_BENCH, "spdnn", "cresnet-spdnn", "spdnn"},
    {CR_CMD_BENCH, "sparse", "cresnet-sparse-bench", "sparse-bench"},
    {CR_CMD_BENCH, "init", "cresnet-init-bench", "init-bench"},
    {CR_CMD_BENCH, "ops", "cresnet profile CONFIG", NULL},
    {CR_CMD_BENCH, "gpu", "cresnet bench step CONFIG and bench infer CONFIG, e.g. of resnet50.ini", NULL},
    {CR_CMD_BENCH, "allocators", "cresnet-memory-trace allocators CONFIG", "memory-trace"},
    {CR_CMD_PLAN, "--trace", "cresnet-memory-trace plan LOG", "memory-trace"},
    {CR_CMD_PLAN, "--alignment", "cresnet-memory-trace plan LOG", "memory-trace"},
    {CR_CMD_PLAN, "--curve", "cresnet-memory-trace offloading CONFIG", "memory-trace"},
    {CR_CMD_PLAN, "--capacity", "cresnet-memory-trace offsets FILE.csv", "memory-trace"},
    {CR_CMD_PLAN, "--time-limit", "cresnet-memory-trace offsets FILE.csv", "memory-trace"},
    {CR_CMD_PLAN, "--png", "cresnet plan --svg FILE", NULL},
    {CR_CMD_PLAN, "--costs", "cresnet plan --kernel-times FILE", NULL},
    {CR_CMD_PLAN, "--lives", "cresnet plan --lifetimes", NULL},
    {CR_CMD_BENCH, "--against", "cresnet bench data --trainer-speed N", NULL},
    {CR_CMD_EXPORT, "--dense", "the default, so leave it out", NULL},
    {CR_CMD_EXPORT, "--names", "not needed, because torchvision and timm name the tensors alike: leave it out", NULL},
    {CR_CMD_LR_FIND, "-o", "cresnet lr-find --json, whose rates any program can plot", NULL},
    {CR_CMD_LR_FIND, "--output", "cresnet lr-find --json, whose rates any program can plot", NULL},
    {CR_CMD_REPORT, "--profile", "cresnet profile RUN, which prints what the page showed", NULL},
    {CR_CMD_PLAN, "*.csv", "cresnet-memory-trace offsets FILE.csv", "memory-trace"},
};

static bool matches(const char *pattern, const char *word) {
    const size_t length = strcspn(word, "="), end = strlen(pattern) - 1;
    if (pattern[0] == '-') return strlen(pattern) == length && strncmp(pattern, word, length) == 0;
    if (pattern[0] != '*') return strcmp(pattern, word) == 0;
    return strlen(word) > end && strcmp(word + strlen(word) - end, pattern + 1) == 0;
}

cr_status cr_command_moved(enum cr_command_id command, int argc, char **argv) {
    bool first = true; /* no operand yet */
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const bool operand = argv[i][0] != '-';
        for (size_t k = 0; k < CR_COUNT(moved); k++) {
            if (moved[k].command != command || (moved[k].word[0] != '-' && !(operand && first))) continue;
            if (!matches(moved[k].word, argv[i])) continue;
            if (!moved[k].folder) return CR_FAIL(CR_ERR_USAGE, "%s is now: %s", moved[k].word, moved[k].instead);
            return CR_FAIL(
                CR_ERR_USAGE,
                "cresnet %s %s is now the program %s: tools/%s/README.md in the source tree says how to build it",
                cr_command(command)->name, moved[k].word[0] == '*' ? "--csv FILE.csv" : moved[k].word, moved[k].instead,
                moved[k].folder);
        }
        first = first && !operand;
    }
    return CR_OK;
}

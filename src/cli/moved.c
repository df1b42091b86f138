/* cli/moved.c: words of the command line that are programs of their own since version 0.4.0 (tools/README.md), or have
 * another option in their place. */
#include "cli/common/command.h"

#include <string.h>

static const struct {
    enum cr_command_id command;
    const char        *word;    /* the first operand, the end of its name ("*.csv"), or an option ("--trace") */
    const char        *program; /* what takes its place; its folder in tools/, NULL for cresnet itself */
    const char        *folder;
} moved[] = {
    {CR_CMD_BENCH, "spdnn", "cresnet-spdnn", "spdnn"},
    {CR_CMD_BENCH, "sparse", "cresnet-sparse-bench", "sparse-bench"},
    {CR_CMD_BENCH, "init", "cresnet-init-bench", "init-bench"},
    {CR_CMD_BENCH, "allocators", "cresnet-memory-trace allocators CONFIG", "memory-trace"},
    {CR_CMD_PLAN, "--trace", "cresnet-memory-trace plan LOG", "memory-trace"},
    {CR_CMD_PLAN, "--alignment", "cresnet-memory-trace plan LOG", "memory-trace"},
    {CR_CMD_PLAN, "--curve", "cresnet-memory-trace offloading CONFIG", "memory-trace"},
    {CR_CMD_PLAN, "--capacity", "cresnet-memory-trace offsets FILE.csv", "memory-trace"},
    {CR_CMD_PLAN, "--time-limit", "cresnet-memory-trace offsets FILE.csv", "memory-trace"},
    {CR_CMD_PLAN, "--png", "cresnet plan --svg FILE", NULL},
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
            if (!moved[k].folder) return CR_FAIL(CR_ERR_USAGE, "%s is now: %s", moved[k].word, moved[k].program);
            return CR_FAIL(CR_ERR_USAGE, "cresnet %s %s is now the program %s: tools/%s/README.md",
                           cr_command(command)->name, moved[k].word[0] == '*' ? "--csv FILE.csv" : moved[k].word,
                           moved[k].program, moved[k].folder);
        }
        first = first && !operand;
    }
    return CR_OK;
}

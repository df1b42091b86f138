/* cli/common/option_table.c: the table of all command-line options, in the order of --help, and the table of the words
 * that options take. */
#include "cli/common/arguments.h"

#include <string.h>

#define ON(name) (1u << CR_CMD_##name)
enum {
    ON_ALL     = (1u << CR_CMD_COUNT) - 1,
    ON_CONFIG  = ON_ALL & ~ON(HELP) & ~ON(CONFIG) & ~ON(EXPORT),
    ON_TRAIN   = ON(TRAIN) | ON(FINETUNE) | ON(SWEEP),
    ON_DEVICES = ON_CONFIG & ~ON(DATA) & ~ON(CHECK),
    /* commands whose programs have the batch size of the configuration, and commands that read images */
    ON_BATCH =
        ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(REPORT) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE) | ON(QUANTIZE),
    ON_WORKERS = ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(FEATURES) | ON(REPORT) | ON(BENCH) | ON(DATA) | ON(QUANTIZE) |
                 ON(COMPRESS),
    ON_SEED =
        ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(REPORT) | ON(CHECK) | ON(BENCH) | ON(PROFILE) | ON(DATA) | ON(QUANTIZE),
    ON_WEIGHTS = ON(LR_FIND) | ON(EVAL) | ON(PREDICT) | ON(FEATURES) | ON(EXPLAIN) | ON(REPORT) | ON(PRUNE) |
                 ON(EXPORT) | ON(QUANTIZE), /* commands that use trained weights */
    ON_JSON = ON(LR_FIND) | ON(EVAL) | ON(PREDICT) | ON(EXPLAIN) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE) |
              ON(DATA) | ON(PRUNE) | ON(QUANTIZE),
};

static const struct cr_cli_option options[] = {
#define OPTION(id, ...) {__VA_ARGS__},
#include "cli/common/options.def"
#undef OPTION
};

const struct cr_cli_option *cr_cli_option(enum cr_option_id id) {
    return &options[id];
}

bool cr_cli_option_belongs(enum cr_option_id id, enum cr_command_id command) {
    return options[id].commands >> command & 1;
}

/* ---- words ---- */

/* The first word is the default of an option that has one. Words of the options that stand for a configuration key are
 * in config/config.def. */
static const struct {
    enum cr_command_id command;
    enum cr_option_id  option;
    const char        *words;
} option_words[] = {
    {CR_CMD_TRAIN, CR_OPT_RESUME, "auto"},
    {CR_CMD_TRAIN, CR_OPT_GPUS, "all"},
    {CR_CMD_BENCH, CR_OPT_GPUS, "all"},
    {CR_CMD_PROFILE, CR_OPT_WHICH, "step eval"},
    {CR_CMD_PROFILE, CR_OPT_ORDER, "time program"},
    {CR_CMD_PLAN, CR_OPT_WHICH, "step micro_first micro micro_last eval"},
    {CR_CMD_PLAN, CR_OPT_AFTER, "plan insert_waits select fuse grad"},
    {CR_CMD_EVAL, CR_OPT_SPLIT, "val train"},
    {CR_CMD_CHECK, CR_OPT_DEVICES, "cpu cuda"},
    {CR_CMD_PRUNE, CR_OPT_PATTERN, "auto channels 2:4 block unstructured channel"},
    {CR_CMD_COMPRESS, CR_OPT_PATTERN, "auto channels 2:4 block unstructured"},
};

const char *cr_option_words(enum cr_command_id command, enum cr_option_id id) {
    for (size_t i = 0; i < CR_COUNT(option_words); i++)
        if (option_words[i].command == command && option_words[i].option == id) return option_words[i].words;
    return NULL;
}

int cr_word_index(const char *words, const char *text, size_t length) {
    for (int index = 0; *words; index++) {
        const size_t one = strcspn(words, " ");
        if (one == length && strncmp(words, text, length) == 0) return index;
        words += one + (words[one] == ' ');
    }
    return -1;
}

void cr_words_list(const char *words, char *out, size_t bytes) {
    for (const char *end = out + bytes - 2; *words && out < end; *out++ = *words++)
        if (*words == ' ') *out++ = ',';
    *out = 0;
}

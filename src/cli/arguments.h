/* cli/arguments.h: the command line: which command, its options, its operands, and every override of a config key.
 *
 * Laws
 *   - Options and operands come in any order; `--x V`, `--x=V`, `-n V` and `-nV` mean the same; `--` ends the options.
 *   - An option that stands for a config key (--batch) is an override, as `train.batch=V` and `--train.batch V` are;
 *     all overrides keep their order, and the later one wins.
 *   - Parsing reads no file and prints nothing: a mistake is CR_ERR_USAGE with a message that says what to do.
 * Knows nothing of models, data or devices. */
#ifndef CR_CLI_H
#define CR_CLI_H

#include "core/base.h"

enum cr_command_id {
    CR_CMD_TRAIN,
    CR_CMD_EVAL,
    CR_CMD_PREDICT,
    CR_CMD_REPORT,
    CR_CMD_PLAN,
    CR_CMD_CHECK,
    CR_CMD_BENCH,
    CR_CMD_PROFILE,
    CR_CMD_PRUNE,
    CR_CMD_EXPORT,
    CR_CMD_DATA,
    CR_CMD_HELP,
    CR_CMD_COUNT,
};

enum cr_option_id { /* in the order of --help */
                    CR_OPT_RESUME,
                    CR_OPT_FORCE,
                    CR_OPT_TRAIN_STEPS,
                    CR_OPT_GPUS,
                    CR_OPT_RANKS,
                    CR_OPT_SPLIT,
                    CR_OPT_PER_CLASS,
                    CR_OPT_CONFUSION,
                    CR_OPT_TOP,
                    CR_OPT_PROFILE,
                    CR_OPT_NO_EVAL,
                    CR_OPT_EMA,
                    CR_OPT_PROGRAM,
                    CR_OPT_AFTER,
                    CR_OPT_CHOICES,
                    CR_OPT_LIFETIMES,
                    CR_OPT_CURVE,
                    CR_OPT_WHICH,
                    CR_OPT_CSV,
                    CR_OPT_CAPACITY,
                    CR_OPT_TIME_LIMIT,
                    CR_OPT_PNG,
                    CR_OPT_TRACE,
                    CR_OPT_TARGET,
                    CR_OPT_COSTS,
                    CR_OPT_ALIGNMENT,
                    CR_OPT_DEVICES,
                    CR_OPT_BENCH_STEPS,
                    CR_OPT_ORDER,
                    CR_OPT_AGAINST,
                    CR_OPT_NEURONS,
                    CR_OPT_LAYERS,
                    CR_OPT_INPUTS,
                    CR_OPT_MNIST,
                    CR_OPT_NO_DROP,
                    CR_OPT_NO_GROUPS,
                    CR_OPT_STREAM,
                    CR_OPT_CHECK_INPUTS,
                    CR_OPT_VERBOSE,
                    CR_OPT_NETS,
                    CR_OPT_BATCHES,
                    CR_OPT_SPARSITIES,
                    CR_OPT_TYPES,
                    CR_OPT_BENCH_CSV,
                    CR_OPT_RAW,
                    CR_OPT_SPARSITY,
                    CR_OPT_SCOPE,
                    CR_OPT_PATTERN,
                    CR_OPT_BUDGET,
                    CR_OPT_EXEMPT,
                    CR_OPT_TARGET_MS,
                    CR_OPT_PRUNE_BATCH,
                    CR_OPT_DENSE,
                    CR_OPT_EXPORT_FILE,
                    CR_OPT_NAMES,
                    CR_OPT_ONNX,
                    CR_OPT_FOLD,
                    CR_OPT_JSON,
                    CR_OPT_DEVICE,
                    CR_OPT_WEIGHTS,
                    CR_OPT_OUTPUT,
                    CR_OPT_BATCH,
                    CR_OPT_WORKERS,
                    CR_OPT_THREADS,
                    CR_OPT_EPOCHS,
                    CR_OPT_LR,
                    CR_OPT_SEED,
                    CR_OPT_SET,
                    CR_OPT_QUIET,
                    CR_OPT_VERSION,
                    CR_OPT_HELP,
                    CR_OPT_COUNT,
};

struct cr_cli_option {
    const char *name;
    char        letter;   /* 0: none */
    const char *value;    /* what --help calls it; NULL: a flag */
    const char *key;      /* the config key it stands for, or NULL */
    unsigned    commands; /* bit i: command i has it */
    const char *help;
};

struct cr_args;

struct cr_command {
    const char *name;
    const char *summary;  /* one line for the overview */
    const char *operands; /* for the usage line */
    const char *about;    /* what --help says between usage and options; lines end with \n */
    /* *signal_taken: the signal that ended the command, 0 when none did. */
    cr_status (*run)(const struct cr_args *args, int *signal_taken);
};

struct cr_args {
    enum cr_command_id command;
    const char        *value[CR_OPT_COUNT]; /* NULL: not given; flags have "" */
    const char       **operand;
    int                operands;
    const char       **override; /* "section.key=value" */
    int                overrides;
    struct cr_arena    arena;
};

/* The commands by id; the table stands in cli/command_table.c. */
const struct cr_command *cr_command(enum cr_command_id id);
/* The options by id; the table stands in cli/arguments.c. */
const struct cr_cli_option *cr_cli_option(enum cr_option_id id);
bool                        cr_cli_option_belongs(enum cr_option_id id, enum cr_command_id command);
/* The command of this name; *hint gets the nearest name (or NULL) when there is none, and CR_CMD_COUNT comes back. */
enum cr_command_id cr_command_find(const char *name, const char **hint);

/* Parses what follows the command's name. CR_ERR_USAGE. The strings of argv must outlive args. */
CR_MUST cr_status cr_args_parse(enum cr_command_id command, int argc, char **argv, struct cr_args *out);
void              cr_args_free(struct cr_args *args);

static inline bool cr_args_has(const struct cr_args *args, enum cr_option_id id) {
    return args->value[id] != NULL;
}
/* The whole number given to an option, or `otherwise` when it was not given. CR_ERR_USAGE outside [min, max]. */
CR_MUST cr_status cr_args_int(const struct cr_args *args, enum cr_option_id id, int64_t min, int64_t max,
                              int64_t otherwise, int64_t *out);
/* Which of the words (ends with NULL) was given to an option; 0, the first, when it was not given. CR_ERR_USAGE. */
CR_MUST cr_status cr_args_word(const struct cr_args *args, enum cr_option_id id, const char *const *words, int *out);
/* CR_ERR_USAGE that ends with "; see cresnet COMMAND --help". */
cr_status cr_args_fail(const struct cr_args *args, const char *fmt, ...) CR_PRINTF(2, 3);
/* Fails when there are more than `most` operands. */
CR_MUST cr_status cr_args_most(const struct cr_args *args, int most);

/* "usage: cresnet eval CONFIG|RUN ..." */
void cr_command_usage(enum cr_command_id id, struct cr_text *out);
/* The whole of `cresnet COMMAND --help`. */
void cr_command_help(enum cr_command_id id, struct cr_text *out);

#endif

/* cli/common/arguments.h: the command line as data: the command, its options, its operands, and all overrides of
 * configuration keys.
 *
 * Invariants
 *   - Options and operands may come in any order. `--x V`, `--x=V`, `-n V` and `-nV` are equivalent. `--` ends the
 *     options.
 *   - An option that stands for a configuration key (--batch) is an override, as are `train.batch=V` and
 *     `--train.batch V`. Overrides keep their order; the last one wins.
 *   - Parsing reads no file. A mistake is CR_ERR_USAGE with a message that says what to do.
 * This header depends on no model, data or device header. */
#ifndef CR_ARGUMENTS_H
#define CR_ARGUMENTS_H

#include "core/base.h"

#define COMMAND(id, ...) CR_CMD_##id,
enum cr_command_id {
#include "cli/common/commands.def"
    CR_CMD_COUNT
};
#undef COMMAND

#define OPTION(id, ...) CR_OPT_##id,
enum cr_option_id {
#include "cli/common/options.def"
    CR_OPT_COUNT
};
#undef OPTION

struct cr_cli_option {
    const char *name;     /* without the two dashes */
    char        letter;   /* of the short form; 0 when there is none */
    const char *value;    /* placeholder of the value in --help; NULL for a flag */
    const char *key;      /* configuration key that the option stands for, or NULL */
    unsigned    commands; /* bit i is set when command i has the option */
    const char *help;     /* one line for --help */
};

/* What help, man pages and completion say about a command. The functions that run commands are in
 * cli/command_table.c. */
struct cr_command {
    const char *name;
    const char *summary;  /* one line for the overview */
    const char *operands; /* for the usage line */
    const char *about;    /* text of --help between usage and options; each line ends with \n */
    const char *words;    /* words that the first operand may be, separated by blanks; NULL: none */
};

/* A parsed command line. The strings of argv must outlive it. */
struct cr_args {
    enum cr_command_id command;
    const char        *value[CR_OPT_COUNT]; /* NULL when the option was not given; "" for a flag */
    const char       **operand;             /* [operands] */
    int                operands;
    const char       **override; /* [overrides]: "section.key=value" */
    int                overrides;
    struct cr_arena    arena; /* owns operand, override and the override strings */
};

/* Returns the description of a command, which is static; the table is in cli/common/command_help.c. */
const struct cr_command *cr_command(enum cr_command_id id);
/* Returns the description of an option, which is static; the table is in cli/common/option_table.c. */
const struct cr_cli_option *cr_cli_option(enum cr_option_id id);
/* Returns whether a command has an option. */
bool cr_cli_option_belongs(enum cr_option_id id, enum cr_command_id command);
/* Returns the command of this name. Returns CR_CMD_COUNT for an unknown name; *hint is then the nearest name or
 * NULL. */
enum cr_command_id cr_command_find(const char *name, const char **hint);
/* Returns whether `word` is one of cr_command.words. If not, writes " (did you mean pack?)" or "" to hint. */
bool cr_command_has_word(enum cr_command_id id, const char *word, char *hint, size_t hint_bytes);

/* Parses the words after the command's name. CR_ERR_USAGE on a mistake. The caller frees *out with cr_args_free. */
CR_MUST cr_status cr_args_parse(enum cr_command_id command, int argc, char **argv, struct cr_args *out);
void              cr_args_free(struct cr_args *args);

/* Returns whether an option was given. */
static inline bool cr_args_has(const struct cr_args *args, enum cr_option_id id) {
    return args->value[id] != NULL;
}
/* Sets *out to the integer given to an option, or to `fallback` when the option was not given. CR_ERR_USAGE when the
 * value is no integer or lies outside [min, max]. */
CR_MUST cr_status cr_args_int(const struct cr_args *args, enum cr_option_id id, int64_t min, int64_t max,
                              int64_t fallback, int64_t *out);
/* Sets *out to the number given to an option; without the option *out stays. CR_ERR_USAGE "must be `what`" when the
 * value is no number or lies outside [min, max]. */
CR_MUST cr_status cr_args_real(const struct cr_args *args, enum cr_option_id id, double min, double max,
                               const char *what, double *out);
/* Returns the words that an option of a command takes, separated by blanks; NULL when its values are not words, or are
 * those of a configuration key. Parser and completion read them. */
const char *cr_option_words(enum cr_command_id command, enum cr_option_id id);
/* Returns the index of text[0..length) in a list of words separated by blanks, or -1. */
int cr_word_index(const char *words, const char *text, size_t length);
/* Writes the words separated by ", ". */
void cr_words_list(const char *words, char *out, size_t bytes);
/* Sets *out to the index of the option's value in cr_option_words, or to 0, the index of the default word, when the
 * option was not given. CR_ERR_USAGE for another word. */
CR_MUST cr_status cr_args_word(const struct cr_args *args, enum cr_option_id id, int *out);
/* Sets a CR_ERR_USAGE message that ends with "; see cresnet COMMAND --help", and returns that status. */
cr_status cr_args_fail(const struct cr_args *args, const char *fmt, ...) CR_PRINTF(2, 3);
/* CR_ERR_USAGE when there are more than `max` operands. */
CR_MUST cr_status cr_args_max_operands(const struct cr_args *args, int max);

/* Adds "usage: cresnet eval CONFIG|RUN ...". */
void cr_command_usage(enum cr_command_id id, struct cr_text *out);
/* Adds the whole text of `cresnet COMMAND --help`. */
void cr_command_help(enum cr_command_id id, struct cr_text *out);
/* Adds the text of `cresnet help`: all commands. */
void cr_help_overview(struct cr_text *out);

#endif

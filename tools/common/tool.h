/* tools/common/tool.h: command lines of the programs in tools/: options, operands, overrides of configuration keys.
 *
 * `--x V` and `--x=V` are equivalent, options and operands may come in any order, and a word `section.key=value` is an
 * override of a configuration key, as in the program cresnet. An option may stand for a key. A mistake is CR_ERR_USAGE.
 * Standard output carries results only. Exit codes are those of cresnet: 0, 1, and 2 for a wrong command line. */
#ifndef CR_TOOL_H
#define CR_TOOL_H

#include "cli/common/command.h"

enum { CR_TOOL_OPTIONS_MAX = 24 };

struct cr_tool_option {
    const char *name;  /* without the two dashes */
    const char *value; /* name of the value in --help, such as N or FILE; NULL for a flag */
    const char *key;   /* configuration key that the option stands for, or NULL */
    const char *help;  /* one line */
};

struct cr_tool_args {
    const struct cr_tool *tool;
    const char           *value[CR_TOOL_OPTIONS_MAX]; /* by option; NULL when it was not given, "" for a flag */
    /* Operands and overrides in the form that helpers of the command line read (cli/common/command.h). It has no
     * options of a command. */
    struct cr_args cli;
};

struct cr_tool {
    const char                  *name;
    const char                  *operands; /* of the usage line */
    const char                  *about;    /* text of --help between usage and options; each line ends with \n */
    const struct cr_tool_option *option;   /* ends with name NULL; at most CR_TOOL_OPTIONS_MAX */
    cr_status (*run)(const struct cr_tool_args *args);
};

/* Parses the command line, runs the tool and prints its error. Returns the exit code. */
int cr_tool_main(const struct cr_tool *tool, int argc, char **argv);

/* Value of an option of the tool; NULL when it was not given. */
const char *cr_tool_value(const struct cr_tool_args *args, const char *option);
/* Sets *out to the integer given to an option, or to `fallback`. CR_ERR_USAGE outside [min, max]. */
CR_MUST cr_status cr_tool_int(const struct cr_tool_args *args, const char *option, int64_t min, int64_t max,
                              int64_t fallback, int64_t *out);
/* Reads numbers separated by commas, each from `min` to `max`, of an option or, when it was not given, of `fallback`.
 * CR_ERR_USAGE for other text and for more than `room` numbers. */
CR_MUST cr_status cr_tool_numbers(const struct cr_tool_args *args, const char *option, const char *fallback, double min,
                                  double max, double *out, int room, int *count);
/* Sets a CR_ERR_USAGE message that ends with "; see NAME --help", and returns that status. */
cr_status cr_tool_fail(const struct cr_tool_args *args, const char *fmt, ...) CR_PRINTF(2, 3);
/* CR_ERR_USAGE when there are fewer or more operands. */
CR_MUST cr_status cr_tool_operands(const struct cr_tool_args *args, int min, int max);

#endif

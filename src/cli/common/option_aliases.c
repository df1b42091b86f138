/* cli/common/option_aliases.c: old spellings of options and option values, which work for one release. */
#include "cli/common/arguments.h"

#include <string.h>

static const char end_version[] = "0.4"; /* from this version on, old spellings are errors */

static const struct {
    enum cr_command_id command;
    const char        *old, *name;
} option_aliases[] = {
    {CR_CMD_PLAN, "lives", "lifetimes"},
    {CR_CMD_PLAN, "costs", "kernel-times"},
    {CR_CMD_BENCH, "against", "trainer-speed"},
};

static const struct {
    enum cr_option_id option;
    const char       *old, *value;
} value_aliases[] = {
    {CR_OPT_AFTER, "order", "insert_waits"},
};

const char *cr_option_alias(enum cr_command_id command, const char *old, size_t length) {
    for (size_t i = 0; i < CR_COUNT(option_aliases); i++) {
        if (option_aliases[i].command != command || strlen(option_aliases[i].old) != length ||
            strncmp(option_aliases[i].old, old, length) != 0)
            continue;
        cr_log(CR_LOG_WARN, "--%s is now --%s; the old name works until %s", option_aliases[i].old,
               option_aliases[i].name, end_version);
        return option_aliases[i].name;
    }
    return NULL;
}

const char *cr_option_value_alias(enum cr_option_id id, const char *old) {
    for (size_t i = 0; i < CR_COUNT(value_aliases); i++) {
        if (value_aliases[i].option != id || strcmp(value_aliases[i].old, old) != 0) continue;
        cr_log(CR_LOG_WARN, "--%s %s is now --%s %s; the old name works until %s", cr_cli_option(id)->name, old,
               cr_cli_option(id)->name, value_aliases[i].value, end_version);
        return value_aliases[i].value;
    }
    return NULL;
}

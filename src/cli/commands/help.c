/* cli/commands/help.c: cresnet help: explains commands and configuration keys; writes man pages and shell completion.
 */
#include "cli/common/command.h"
#include "config/keys.h"

#include <stdio.h>
#include <string.h>

static cr_status unknown_topic(const char *word, const char *hint) {
    char section[160];
    if (hint) return CR_FAIL(CR_ERR_USAGE, "unknown command %s (did you mean %s?); see cresnet help", word, hint);
    cr_key_section_hint(section, sizeof section, word);
    return CR_FAIL(CR_ERR_USAGE, "unknown command, section or key %s%s; see cresnet help", word, section);
}

/* help man [COMMAND | keys] */
static cr_status help_man(const struct cr_args *args, struct cr_text *out) {
    const char *hint, *topic = args->operands > 1 ? args->operand[1] : "";
    if (!*topic)
        cr_doc_man_overview(out);
    else if (strcmp(topic, "keys") == 0)
        cr_doc_man_keys(out);
    else {
        enum cr_command_id id = cr_command_find(topic, &hint);
        if (id == CR_CMD_COUNT) return unknown_topic(topic, hint);
        cr_doc_man_command(id, out);
    }
    return CR_OK;
}

/* help completion SHELL */
static cr_status help_completion(const struct cr_args *args, struct cr_text *out) {
    static const struct {
        const char *name;
        void (*write)(struct cr_text *out);
    } shells[] = {{"bash", cr_doc_bash}, {"zsh", cr_doc_zsh}};
    for (size_t i = 0; args->operands > 1 && i < CR_COUNT(shells); i++) {
        if (strcmp(args->operand[1], shells[i].name) != 0) continue;
        shells[i].write(out);
        return CR_OK;
    }
    return cr_args_fail(args, "completion needs the name of a shell, bash or zsh; fish reads the man pages: "
                              "fish_update_completions");
}

/* help keys [SECTION | KEY | SECTION.KEY] */
static cr_status help_keys(const char *topic, struct cr_text *out) {
    char hint[200] = "";
    if (!topic) {
        cr_config_help(out);
        return CR_OK;
    }
    if (cr_config_help_of(topic, out)) return CR_OK;
    const char *dot = strchr(topic, '.');
    char        section[64];
    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - topic) : 60, topic);
    if (dot && cr_key_has_section(section))
        cr_key_hint(hint, sizeof hint, section, dot + 1);
    else
        cr_key_section_hint(hint, sizeof hint, section);
    return CR_FAIL(CR_ERR_USAGE, "unknown key or section %s%s; see cresnet help keys", topic, hint);
}

/* Whether the operands are those of `help data pack`: the page of a command describes its parts too. */
static bool names_part(const struct cr_args *args) {
    const char *hint;
    char        part_hint[80];
    if (args->operands != 2) return false;
    const enum cr_command_id id = cr_command_find(args->operand[0], &hint);
    return id != CR_CMD_COUNT && id != CR_CMD_HELP &&
           cr_command_has_word(id, args->operand[1], part_hint, sizeof part_hint);
}

cr_status cr_cmd_help(const struct cr_args *args, struct cr_result *result) {
    struct cr_text *out = &result->text;
    const char     *hint, *topic = args->operands ? args->operand[0] : "";
    bool takes_more = strcmp(topic, "man") == 0 || strcmp(topic, "completion") == 0 || strcmp(topic, "keys") == 0;
    CR_TRY(cr_args_max_operands(args, takes_more || names_part(args) ? 2 : 1));
    if (!*topic)
        cr_help_overview(out);
    else if (strcmp(topic, "keys") == 0)
        return help_keys(args->operands > 1 ? args->operand[1] : NULL, out);
    else if (strchr(topic, '.'))
        return help_keys(topic, out);
    else if (strcmp(topic, "man") == 0)
        return help_man(args, out);
    else if (strcmp(topic, "completion") == 0)
        return help_completion(args, out);
    else if (strcmp(topic, "markdown") == 0)
        cr_doc_markdown_keys(out);
    else {
        enum cr_command_id id = cr_command_find(topic, &hint);
        if (id == CR_CMD_COUNT && cr_config_help_of(topic, out)) return CR_OK; /* a key or a section */
        if (id == CR_CMD_COUNT) return unknown_topic(topic, hint);
        if (id == CR_CMD_HELP)
            cr_help_overview(out);
        else
            cr_command_help(id, out);
    }
    return CR_OK;
}

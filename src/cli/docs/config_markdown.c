/* cli/docs/config_markdown.c: docs/reference/config.md, made from config/config.def: `cresnet help markdown`. A test compares it
 * with the file in the tree. */
#include "cli/command.h"
#include "config/keys.h"

#include <string.h>

/* Text in a cell of a table. */
static void add_cell(struct cr_text *out, const char *s) {
    for (; *s; s++) {
        if (*s == '|')
            cr_text_add(out, "\\|");
        else if (*s == '<')
            cr_text_add(out, "&lt;");
        else
            cr_text_add_bytes(out, s, 1);
    }
}

static void add_row(struct cr_text *out, const struct cr_key *key) {
    char           buffer[40];
    struct cr_text kind     = {0};
    const char    *standard = cr_value_default(key, buffer, sizeof buffer);
    cr_key_kind_describe(key, false, &kind);
    cr_text_add(out, "| `%s` | %s%s%s | ", key->name, *standard ? "`" : "", standard, *standard ? "`" : "");
    add_cell(out, kind.failed || !kind.data ? "" : kind.data);
    cr_text_add(out, " | ");
    add_cell(out, key->help);
    cr_text_add(out, " |\n");
    out->failed |= kind.failed;
    cr_text_free(&kind);
}

void cr_doc_markdown_keys(struct cr_text *out) {
    locale_t before = cr_c_locale_enter();
    cr_text_add(out, "# Configuration\n\n"
                     "Made from `src/config.def` by `cresnet help markdown > docs/reference/config.md`; a test fails when it is "
                     "not current.\n\n"
                     "A run is described by an INI file: sections in brackets, one `key = value` a line, comments "
                     "behind `;` or `#`. Values with\n"
                     "`;` or `#` in them, or with blanks at an end, stand in quotes. Before the first section, "
                     "`include = FILE` takes the values\n"
                     "of another file, relative to this one. Any value can be given on the command line: "
                     "`train.batch=64`, `--train.batch 64`.\n"
                     "The later of default, included file, file and command line wins. Reading is strict: all mistakes "
                     "of a file are told at\n"
                     "once, with file, line and what is allowed, before anything is touched. `cresnet help keys` "
                     "prints what stands here.\n");
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "\n## [%s]\n\n%s\n\n| key | default | what it may be | what for |\n|---|---|---|---|\n",
                    cr_key_sections[s].name, cr_key_sections[s].help);
        for (int i = 0; i < cr_key_count; i++)
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) == 0) add_row(out, &cr_keys[i]);
    }
    cr_c_locale_leave(before);
}

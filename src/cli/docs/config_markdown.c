/* cli/docs/config_markdown.c: writes docs/reference/config.md from config/config.def: `cresnet help markdown`. A test
 * compares the output with the file in the tree. */
#include "cli/common/command.h"
#include "config/keys.h"

#include <string.h>

/* Adds text to a table cell: escapes | and <. */
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

static void add_key(struct cr_text *out, const struct cr_key *key) {
    char           buffer[40];
    struct cr_text kind  = {0};
    const char    *value = cr_value_default(key, buffer, sizeof buffer);
    cr_key_kind_describe(key, false, &kind);
    cr_text_add(out, "| `%s` | %s%s%s | ", key->name, *value ? "`" : "", value, *value ? "`" : "");
    add_cell(out, kind.failed || !kind.data ? "" : kind.data);
    cr_text_add(out, " | ");
    add_cell(out, key->help);
    cr_text_add(out, " |\n");
    out->failed |= kind.failed;
    cr_text_free(&kind);
}

void cr_doc_markdown_keys(struct cr_text *out) {
    locale_t before = cr_c_locale_enter();
    cr_text_add(
        out,
        "# Configuration\n\n"
        "Generated from `src/config/config.def` by `cresnet help markdown > docs/reference/config.md`. A test fails "
        "when this page is out of date.\n\n"
        "A run is described by an INI file: sections in brackets, one `key = value` per line, comments "
        "after `;` or `#`. Values that contain\n"
        "`;` or `#`, or that begin or end with a blank, are written in quotes. Before the first section, "
        "`include = FILE` reads the values\n"
        "of another file; its path is relative to this file. Any key can be set on the command line: "
        "`train.batch=64`, `--train.batch 64`.\n"
        "Values are applied in this order: default, included file, file, command line. The last one wins. "
        "Reading is strict: all mistakes\n"
        "of a file are reported at once, with file, line and allowed values, before the run changes "
        "anything. `cresnet help keys` prints the same reference.\n");
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "\n## [%s]\n\n%s\n\n| key | default | values | meaning |\n|---|---|---|---|\n",
                    cr_key_sections[s].name, cr_key_sections[s].help);
        for (int i = 0; i < cr_key_count; i++)
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) == 0) add_key(out, &cr_keys[i]);
    }
    cr_c_locale_leave(before);
}

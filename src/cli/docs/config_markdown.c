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
    cr_text_add(
        out,
        "# Configuration\n\n"
        "This page lists every key of the configuration file. It is generated from `src/config/config.def` by\n"
        "`cresnet help markdown > docs/reference/config.md`, and a test fails when it is out of date. `cresnet help "
        "keys` "
        "prints the same tables.\n\n"
        "An INI file describes a run. A section begins with its name in brackets. Each line of a section sets one key: "
        "`key = value`.\n\n"
        "- A comment begins with `;` or `#` and ends with the line.\n"
        "- A value that contains `;` or `#`, or that begins or ends with a blank, needs quotes.\n"
        "- `include = FILE` before the first section reads the values of another file. The path of FILE is relative to "
        "the file that includes it.\n"
        "- The command line can set every key: `train.batch=64` or `--train.batch 64`.\n\n"
        "A file may set a key only once. If several places set a key, the last one counts, in this order: default "
        "value, included file, file,\n"
        "command line. On the command line the last value of a key counts.\n\n"
        "The file is checked before the run starts. An unknown key, a value of the wrong type and a value out of range "
        "are errors. All errors\n"
        "of a file are printed together, each with its file, its line and the allowed values.\n");
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "\n## [%s]\n\n%s\n\n| key | default | allowed values | meaning |\n|---|---|---|---|\n",
                    cr_key_sections[s].name, cr_key_sections[s].help);
        for (int i = 0; i < cr_key_count; i++)
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) == 0) add_key(out, &cr_keys[i]);
    }
}

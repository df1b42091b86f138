/* cli/docs/man.c: man pages, made from the tables of commands, options and keys: `cresnet help man [COMMAND | keys]`.
 * The build writes them to files, so that pages, --help and the parser cannot disagree. The text is roff with the
 * macros of man(7). */
#include "cli/command.h"
#include "config/keys.h"

#include <stdio.h>
#include <string.h>

/* ---- roff ---- */

/* Text as it is: roff's own signs escaped; `hyphens`: '-' is typed by the reader, not broken at. */
static void add_escaped(struct cr_text *out, const char *s, size_t length, bool hyphens) {
    bool start = !out->length || out->data[out->length - 1] == '\n';
    if (start && length && (*s == '.' || *s == '\'')) cr_text_add(out, "\\&");
    for (size_t i = 0; i < length; i++) {
        if (s[i] == '\\')
            cr_text_add(out, "\\e");
        else if (s[i] == '-' && (hyphens || (i + 1 < length && s[i + 1] == '-') || (i && s[i - 1] == '-')))
            cr_text_add(out, "\\-");
        else
            cr_text_add_bytes(out, s + i, 1);
    }
}

static void add_text(struct cr_text *out, const char *s) {
    add_escaped(out, s, strlen(s), false);
}

static void add_literal(struct cr_text *out, const char *s) {
    add_escaped(out, s, strlen(s), true);
}

/* A line of a paragraph: runs of blanks, which align columns in --help, become one. */
static void add_filled(struct cr_text *out, const char *line, size_t length) {
    while (length && *line == ' ') line++, length--;
    for (size_t i = 0, n; i < length; i += n) {
        for (n = 0; i + n < length && line[i + n] != ' '; n++) continue;
        add_escaped(out, line + i, n, n > 1 && line[i] == '-');
        while (i + n < length && line[i + n] == ' ') n++;
        if (i + n < length) cr_text_add(out, " ");
    }
    cr_text_add(out, "\n");
}

static void add_title(struct cr_text *out, const char *name, int section) {
    cr_text_add(out, ".\\\" made by the program itself: cresnet help man\n.TH ");
    for (const char *c = name; *c; c++) cr_text_add(out, "%c", *c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    cr_text_add(out, " %d \"\" \"cresnet " CR_VERSION "\" \"cresnet\"\n", section);
}

/* The text between usage and options of --help. Lines behind an empty one that are indented are examples; other
 * indented lines go on with the paragraph; a line that begins with the command's name or an option begins a new one. */
static void add_about(struct cr_text *out, const char *name, const char *about) {
    bool   example = false, after_empty = true;
    size_t name_length = strlen(name);
    while (*about) {
        size_t length   = strcspn(about, "\n");
        bool   indented = *about == ' ';
        if (!length) {
            after_empty = true;
        } else if (indented && (after_empty || example)) {
            cr_text_add(out, "%s", example ? "" : ".PP\n.nf\n.RS 4\n");
            add_escaped(out, about + 2, length - 2, true);
            cr_text_add(out, "\n");
            example = true, after_empty = false;
        } else {
            bool item =
                (strncmp(about, name, name_length) == 0 && about[name_length] == ' ') || strncmp(about, "--", 2) == 0;
            if (example) cr_text_add(out, ".RE\n.fi\n");
            if (after_empty || example || (item && !indented)) cr_text_add(out, ".PP\n");
            add_filled(out, about, length);
            example = after_empty = false;
        }
        about += length + (about[length] == '\n');
    }
    if (example) cr_text_add(out, ".RE\n.fi\n");
}

/* ---- a command ---- */

static void add_option(struct cr_text *out, const struct cr_cli_option *o) {
    cr_text_add(out, ".TP\n");
    if (o->letter) cr_text_add(out, "\\fB\\-%c\\fR, ", o->letter);
    cr_text_add(out, "\\fB\\-\\-");
    add_literal(out, o->name);
    cr_text_add(out, "\\fR");
    if (o->value) {
        cr_text_add(out, " \\fI");
        add_literal(out, o->value);
        cr_text_add(out, "\\fR");
    }
    cr_text_add(out, "\n");
    add_text(out, o->help);
    if (o->key) cr_text_add(out, " (key \\fB%s\\fR)", o->key);
    cr_text_add(out, "\n");
}

/* "A | B" of the usage line are two forms. */
static void add_synopsis(struct cr_text *out, const struct cr_command *c) {
    for (const char *rest = c->operands; *rest;) {
        const char *bar    = strstr(rest, " | ");
        size_t      length = bar ? (size_t)(bar - rest) : strlen(rest);
        cr_text_add(out, "%s\\fBcresnet %s\\fR ", rest == c->operands ? "" : ".br\n", c->name);
        add_escaped(out, rest, length, true);
        cr_text_add(out, "\n");
        rest += bar ? length + 3 : length;
    }
}

void cr_doc_man_command(enum cr_command_id id, struct cr_text *out) {
    const struct cr_command *c = cr_command(id);
    char                     name[64];
    snprintf(name, sizeof name, "cresnet-%s", c->name);
    add_title(out, name, 1);
    cr_text_add(out, ".SH NAME\ncresnet\\-%s \\- ", c->name);
    add_text(out, c->summary);
    cr_text_add(out, "\n.SH SYNOPSIS\n");
    add_synopsis(out, c);
    cr_text_add(out, ".SH DESCRIPTION\n");
    add_about(out, c->name, c->about);
    cr_text_add(out, ".SH OPTIONS\nOptions and operands come in any order; \\fB\\-\\-x\\fR \\fIV\\fR and "
                     "\\fB\\-\\-x=\\fR\\fIV\\fR are the same.\n");
    for (int i = 0; i < CR_OPT_COUNT; i++)
        if (cr_cli_option_belongs((enum cr_option_id)i, id)) add_option(out, cr_cli_option((enum cr_option_id)i));
    cr_text_add(out, ".SH SEE ALSO\n.BR cresnet (1),\n.BR cresnet.ini (5)\n");
}

/* ---- all of it ---- */

static const char *const environment[][2] = {
    {"CRESNET_CACHE",
     "Folder for the times of kernels that were measured on a GPU; off keeps none. Without it ~/.cache/cresnet."},
    {"CRESNET_SYNC", "1: a GPU runs op by op, and a fault names its op."},
    {"CRESNET_TRACE", "1: an error also says where in the source it came from."},
    {"MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK",
     "Of torchrun and its like, as those of MPI and srun: which rank of many this process is."},
    {"XDG_CACHE_HOME", "In place of ~/.cache."},
    {"GOMP_SPINCOUNT, OMP_WAIT_POLICY",
     "How threads wait for each other; what is set stays, else a short time is chosen."},
};

void cr_doc_man_overview(struct cr_text *out) {
    add_title(out, "cresnet", 1);
    cr_text_add(
        out,
        ".SH NAME\ncresnet \\- train ResNets from a configuration file\n.SH SYNOPSIS\n"
        "\\fBcresnet\\fR \\fICOMMAND\\fR ...\n.br\n\\fBcresnet\\-\\fR\\fICOMMAND\\fR ...\n.SH DESCRIPTION\n"
        "Builds a residual network from an INI file, trains it on the CPU or a GPU, resumes it to the bit, scores it, "
        "prunes it and shows what it does with memory and time.\n"
        "Any value of the configuration can be given as \\fIsection.key=value\\fR on the command line.\n"
        ".SH COMMANDS\n");
    for (int i = 0; i < CR_CMD_COUNT; i++) {
        const struct cr_command *c = cr_command((enum cr_command_id)i);
        cr_text_add(out, ".TP\n\\fBcresnet %s\\fR\n", c->name);
        add_text(out, c->summary);
        cr_text_add(out, "; see \\fBcresnet\\-%s\\fR(1)\n", c->name);
    }
    cr_text_add(
        out,
        ".SH FILES\n.TP\n\\fIPREFIX/share/cresnet/configs/\\fR\n"
        "Configurations that came with the program. A configuration that is not found by its name is looked for there: "
        "\\fBcresnet train demo.ini\\fR.\n"
        ".TP\n\\fIcheckpoints/NAME/\\fR\nThe run folder of configuration NAME.ini: checkpoints step\\-N, the links "
        "last and "
        "best, and log.jsonl.\n.SH ENVIRONMENT\n");
    for (size_t i = 0; i < CR_COUNT(environment); i++) {
        cr_text_add(out, ".TP\n\\fB%s\\fR\n", environment[i][0]);
        add_text(out, environment[i][1]);
        cr_text_add(out, "\n");
    }
    cr_text_add(out, ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong command line or configuration, 128+\\fIn\\fR ended by "
                     "signal \\fIn\\fR.\n"
                     ".SH EXAMPLES\n.nf\n.RS 4\ncresnet train demo.ini\ncresnet predict checkpoints/demo "
                     "a.png\n.RE\n.fi\n.SH SEE ALSO\n");
    for (int i = 0; i < CR_CMD_COUNT; i++)
        cr_text_add(out, ".BR cresnet\\-%s (1),\n", cr_command((enum cr_command_id)i)->name);
    cr_text_add(out, ".BR cresnet.ini (5)\n");
}

/* ---- the configuration ---- */

static void add_key(struct cr_text *out, const struct cr_key *key) {
    char           buffer[40];
    struct cr_text kind = {0};
    cr_key_kind_describe(key, false, &kind);
    cr_text_add(out, ".TP\n\\fB%s\\fR = ", key->name);
    add_literal(out, cr_value_default(key, buffer, sizeof buffer));
    cr_text_add(out, "\n");
    add_filled(out, key->help, strlen(key->help));
    cr_text_add(out, ".br\n");
    if (!kind.failed && kind.data) add_filled(out, kind.data, kind.length);
    out->failed |= kind.failed;
    cr_text_free(&kind);
}

void cr_doc_man_keys(struct cr_text *out) {
    locale_t before = cr_c_locale_enter();
    add_title(out, "cresnet.ini", 5);
    cr_text_add(out, ".SH NAME\ncresnet.ini \\- configuration of a network and its training\n.SH DESCRIPTION\n"
                     "Sections in brackets, one \\fIkey = value\\fR a line, comments behind ; or #. Values with ; or # "
                     "in them, or with "
                     "blanks at an end, stand in quotes. Before the first section, \\fBinclude =\\fR \\fIFILE\\fR "
                     "takes the values of "
                     "another file, relative to this one. On the command line: \\fIsection.key=value\\fR. The later of "
                     "default, included "
                     "file, file and command line wins. Unknown keys, wrong types and values out of range are errors, "
                     "all told at once.\n"
                     ".PP\nEach key stands here as it is when nobody sets it.\n");
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, ".SH [%s]\n", cr_key_sections[s].name);
        add_text(out, cr_key_sections[s].help);
        cr_text_add(out, "\n");
        for (int i = 0; i < cr_key_count; i++)
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) == 0) add_key(out, &cr_keys[i]);
    }
    cr_text_add(out, ".SH SEE ALSO\n.BR cresnet (1),\n.BR cresnet\\-train (1)\n");
    cr_c_locale_leave(before);
}

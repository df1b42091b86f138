/* cli/finetune/ini.c: writes the choices of cresnet finetune as keys of an INI file (configuration). See
 * cli/finetune/finetune.h. */
#include "cli/finetune/finetune.h"

#include "config/ini.h"
#include "config/keys.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char own_line[] = "# Written by `cresnet finetune`";

void cr_finetune_set(struct cr_finetune *f, const char *key, const char *why, const char *format, ...) {
    char    value[CR_PATH_MAX];
    va_list list;
    int     i = 0;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    while (i < f->choices && strcmp(f->choice[i].key, key) != 0) i++;
    const char *copy = cr_arena_printf(&f->arena, "%s", value);
    f->failed |= !copy || i == CR_FINETUNE_CHOICES;
    if (f->failed) return;
    f->choice[i] = (struct cr_finetune_choice){key, copy, why};
    f->choices   = CR_MAX(f->choices, i + 1);
}

cr_status cr_finetune_config(const struct cr_finetune *f, const char *const *more, const struct cr_config **out) {
    const struct cr_args *args    = f->args;
    struct cr_arena       strings = {0};
    const char          **list;
    cr_status             status = CR_OK;
    int                   n = 0, extra = 0;
    if (f->failed) return CR_NO_MEMORY(CR_PATH_MAX);
    while (more && more[extra]) extra++;
    CR_ALLOC(list, (size_t)(f->choices + args->overrides + extra) + 1);
    for (int i = 0; i < f->choices; i++) {
        list[n++] = cr_arena_printf(&strings, "%s=%s", f->choice[i].key, f->choice[i].value);
        if (!list[n - 1]) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the configuration");
    }
    for (int i = 0; i < args->overrides; i++) list[n++] = args->override[i];
    for (int i = 0; i < extra; i++) list[n++] = more[i];
    status = cr_config_open(out, NULL, list, n);
out:
    cr_arena_free(&strings);
    cr_free(list);
    return status;
}

/* ---- the file ---- */

/* Replaces choices by the keys of the command line, which were checked before. */
static cr_status add_given(struct cr_finetune *f) {
    for (int i = 0; i < f->args->overrides; i++) {
        char        section[64], key[64];
        const char *text = f->args->override[i];
        if (sscanf(text, " %63[^. \t] . %63[^= \t] =", section, key) != 2)
            return CR_FAIL(CR_ERR_USAGE, "%.100s: must be section.key=value", text);
        const char *value = strchr(text, '=') + 1;
        value += strspn(value, " \t");
        size_t length = strlen(value);
        while (length && strchr(" \t", value[length - 1])) length--;
        const char *dotted = cr_arena_printf(&f->arena, "%s.%s", section, key);
        if (!dotted) return CR_NO_MEMORY(sizeof section);
        cr_finetune_set(f, dotted, "given on the command line", "%.*s", (int)length, value);
    }
    return CR_OK;
}

static void add_section(const struct cr_finetune *f, const char *section, struct cr_text *out) {
    const size_t length = strlen(section);
    bool         begun  = false;
    for (int i = 0; i < f->choices; i++) {
        const struct cr_finetune_choice *c = &f->choice[i];
        if (strncmp(c->key, section, length) != 0 || c->key[length] != '.') continue;
        if (!begun) cr_text_add(out, "\n[%s]\n", section);
        begun = true;
        if (c->why) cr_text_add(out, "# %s\n", c->why);
        cr_text_add(out, "%s = ", c->key + length + 1);
        cr_ini_add_value(out, c->value);
        cr_text_add(out, "\n");
    }
}

cr_status cr_finetune_write(struct cr_finetune *f) {
    struct cr_text text = {0};
    cr_status      status;
    const char    *why;
    CR_TRY(add_given(f));
    for (int i = 0; i < f->choices; i++)
        if (!cr_ini_can_hold(f->choice[i].value, &why))
            return CR_FAIL(CR_ERR_CONFIG, "%s: an INI file cannot hold this value: %s", f->choice[i].key, why);
    cr_text_add(&text,
                "%s. Edit it, and train with another run folder:\n"
                "#   cresnet train THIS_FILE -o ANOTHER_FOLDER\n"
                "# `cresnet help keys` explains the keys. Keys that are not here have their defaults.\n",
                own_line);
    for (int i = 0; i < cr_key_section_count; i++) add_section(f, cr_key_sections[i].name, &text);
    if (text.failed || f->failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the configuration");
    CR_TRY_OUT(cr_fs_mkdirs_of(f->ini));
    CR_TRY_OUT(cr_fs_write_new(f->ini, text.data, text.length));
out:
    cr_text_free(&text);
    return status;
}

bool cr_finetune_is_own(const char *ini) {
    char  line[sizeof own_line] = "";
    FILE *file                  = fopen(ini, "r");
    if (!file) return false;
    const bool own = fgets(line, (int)sizeof line, file) && strcmp(line, own_line) == 0;
    fclose(file);
    return own;
}

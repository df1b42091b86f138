/* config/config.c: combines defaults, files and the command line into one config; prints a config as text. See
 * config/config.h. Tables: config/keys.c; single values: config/value.c; rules between keys: config/check.c. */
#include "config/config.h"

#include "config/keys.h"
#include "config/old_names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INCLUDE_DEPTH_MAX = 8 };

struct loader {
    struct cr_config    *config;
    struct cr_complaints complaints;
    struct cr_ini        file[INCLUDE_DEPTH_MAX]; /* file[i + 1] is included by file[i] */
    int                  files;
};

/* ---- setting values ---- */

static void defaults_set(struct cr_config *config) {
    for (int i = 0; i < cr_key_count; i++) {
        char buffer[40], why[600];
        bool good =
            cr_value_parse(&cr_keys[i], config, cr_value_default(&cr_keys[i], buffer, sizeof buffer), why, sizeof why);
        CR_ASSERT(good); /* otherwise a default in config/config.def is invalid */
    }
}

static void value_set(struct loader *l, const char *section, const char *name, const char *text, const char *file,
                      int line);

/* data.image_size = 192x320 sets the height and the width. Returns whether the text has this form. */
static bool set_rectangle(struct loader *l, const struct cr_key *key, const char *text, const char *file, int line) {
    const size_t height = strspn(text, "0123456789"), width = height ? strspn(text + height + 1, "0123456789") : 0;
    if (key != cr_key_dotted("data.image_size") || !height || text[height] != 'x' || !width || text[height + 1 + width])
        return false;
    const char *first = cr_arena_printf(&l->config->arena, "%.*s", (int)height, text);
    value_set(l, "data", "image_size", first ? first : text, file, line); /* NULL: the text with x is refused */
    value_set(l, "data", "image_width", text + height + 1, file, line);
    return true;
}

/* data.image_size = 64 makes a rectangle square again, if another file, or a file instead of the command line, gave its
 * width. A width of the same source stays: it belongs to this height. */
static void reset_width(struct loader *l, const char *file) {
    struct cr_config_src *width = &l->config->src[cr_key_index(cr_key_dotted("data.image_width"))];
    if (!width->file || strcmp(width->file, file) == 0 || width->line == CR_KEY_REFUSED) return;
    l->config->data.image_width = 0;
    *width                      = (struct cr_config_src){0};
}

/* A name that only older versions accept: the present one counts in the configuration of a run, which the program
 * wrote. Elsewhere it is an error. False when the name is not one of an older version. */
static bool set_old_name(struct loader *l, const char *section, const char *name, const char *text, const char *file,
                         int line) {
    const struct cr_old_name *old    = cr_old_name_find(section, name, text);
    const bool                stored = l->config->stored && file != l->config->override_source;
    char                      why[300];
    if (!old) return false;
    if (stored && old->instead_key)
        value_set(l, old->instead_section, old->instead_key, old->instead_value ? old->instead_value : text, file,
                  line);
    if (stored) return true;
    cr_old_name_explain(old, why, sizeof why);
    cr_complain(&l->complaints, file, line, "[%s] %s = %.60s: %s", section, name, text, why);
    return true;
}

/* `text` must stay valid as long as the config. */
static void value_set(struct loader *l, const char *section, const char *name, const char *text, const char *file,
                      int line) {
    char                 why[600], hint[600];
    const struct cr_key *key = cr_key_find(section, name);
    if (!key) {
        if (set_old_name(l, section, name, text, file, line)) return;
        cr_key_hint(hint, sizeof hint, section, name);
        cr_complain(&l->complaints, file, line, "[%.60s] %.60s = %.60s: unknown key%s", section, name, text, hint);
        return;
    }
    if (strchr(text, 'x') && set_rectangle(l, key, text, file, line)) return;
    struct cr_config_src *src  = &l->config->src[cr_key_index(key)];
    const bool            size = key == cr_key_dotted("data.image_size");
    *src                       = (struct cr_config_src){file, line};
    if (size) reset_width(l, file);
    if (cr_value_parse(key, l->config, text, why, sizeof why)) return;
    src->line = CR_KEY_REFUSED;
    if (set_old_name(l, section, name, text, file, line)) return;
    cr_complain(&l->complaints, file, line, "[%s] %s = %.60s: %s%s", section, name, text, why,
                size && text[strspn(text, "0123456789")] ? "; a rectangle is HEIGHTxWIDTH, e.g. 192x320" : "");
}

/* A key whose value is executed. It counts only where the user gives it: it is never stored with a run, and ignored in
 * the configuration of a run, which a stranger may have written. */
static bool is_command(const char *section, const char *name) {
    return strcmp(section, "train") == 0 && strcmp(name, "on_event") == 0;
}

static void file_apply(struct loader *l, const struct cr_ini *file) {
    char hint[600];
    bool known = false;
    for (int i = 0; i < file->count; i++) {
        const struct cr_ini_entry *e = &file->entry[i];
        if (!e->key) {
            known = cr_key_has_section(e->section);
            cr_key_section_hint(hint, sizeof hint, e->section);
            if (!known)
                cr_complain(&l->complaints, file->path, e->line, "[%.60s]: unknown section%s", e->section, hint);
        } else if (*e->section) {
            if (known && !(l->config->stored && is_command(e->section, e->key)))
                value_set(l, e->section, e->key, e->value, file->path, e->line);
        } else if (strcmp(e->key, "include") != 0) {
            cr_key_hint(hint, sizeof hint, "", e->key);
            cr_complain(&l->complaints, file->path, e->line,
                        "%.60s = %.60s: is before the first section, where only include is allowed%s", e->key, e->value,
                        hint);
        }
    }
}

/* Copies the text to the config's arena without leading and trailing blanks; NULL when out of memory. */
static char *copy_stripped(struct loader *l, const char *text, size_t length) {
    while (length && strchr(" \t", *text)) text++, length--;
    while (length && strchr(" \t", text[length - 1])) length--;
    return cr_arena_printf(&l->config->arena, "%.*s", (int)length, text);
}

static cr_status override_apply(struct loader *l, const char *override) {
    const char *equals = strchr(override, '='), *dot = strchr(override, '.');
    if (!equals || !dot || dot > equals || dot == override) {
        cr_complain(&l->complaints, l->config->override_source, 0,
                    "'%.100s': must be section.key=value, e.g. train.batch=64", override);
        return CR_OK;
    }
    char *section = copy_stripped(l, override, (size_t)(dot - override));
    char *name    = copy_stripped(l, dot + 1, (size_t)(equals - dot) - 1);
    char *value   = copy_stripped(l, equals + 1, strlen(equals + 1));
    char  hint[600];
    if (!section || !name || !value) return CR_NO_MEMORY(strlen(override));
    if (cr_key_has_section(section)) {
        value_set(l, section, name, value, l->config->override_source, 0);
        return CR_OK;
    }
    cr_key_section_hint(hint, sizeof hint, section);
    cr_complain(&l->complaints, l->config->override_source, 0, "[%.60s] %.60s = %.60s: unknown section%s", section,
                name, value, hint);
    return CR_OK;
}

/* ---- files ---- */

/* The path of the included file, relative to the including one; NULL when out of memory. */
static const char *include_path(struct loader *l, const char *from, const char *value) {
    const char *slash  = strrchr(from, '/');
    int         folder = *value == '/' || !slash ? 0 : (int)(slash - from) + 1;
    return cr_arena_printf(&l->config->arena, "%.*s%s", folder, from, value);
}

static const struct cr_ini_entry *include_find(const struct cr_ini *file) {
    for (int i = 0; i < file->count; i++)
        if (!*file->entry[i].section && file->entry[i].key && strcmp(file->entry[i].key, "include") == 0)
            return &file->entry[i];
    return NULL;
}

static bool is_open_already(const struct loader *l, const struct cr_ini *file) {
    for (int i = 0; i < l->files; i++)
        if (l->file[i].device == file->device && l->file[i].inode == file->inode) return true;
    return false;
}

/* Reads the file that the last file includes. *more is false if there is none. */
static cr_status include_read(struct loader *l, bool *more) {
    const struct cr_ini       *from = &l->file[l->files - 1];
    const struct cr_ini_entry *e    = include_find(from);
    *more                           = false;
    if (!e) return CR_OK;
    if (!*e->value) {
        cr_complain(&l->complaints, from->path, e->line, "include: the file name is missing");
        return CR_OK;
    }
    if (l->files == INCLUDE_DEPTH_MAX) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: includes are nested more than %d deep",
                    e->value, INCLUDE_DEPTH_MAX);
        return CR_OK;
    }
    const char *path = include_path(l, from->path, e->value);
    if (!path) return CR_NO_MEMORY(strlen(e->value));
    struct cr_ini *next   = &l->file[l->files];
    cr_status      status = cr_ini_read(next, path, true, &l->config->arena, &l->complaints);
    if (status == CR_ERR_MEMORY) return status;
    if (status != CR_OK) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: %s", e->value, cr_error_message());
        return CR_OK;
    }
    if (is_open_already(l, next)) {
        cr_complain(&l->complaints, from->path, e->line, "include = %.60s: this file includes itself (a cycle)",
                    e->value);
        return CR_OK;
    }
    l->files++;
    *more = true;
    return CR_OK;
}

static cr_status files_read(struct loader *l, const char *path) {
    CR_TRY(cr_ini_read(&l->file[0], path, l->config->stored, &l->config->arena, &l->complaints));
    l->files                           = 1;
    bool                       more    = true;
    const struct cr_ini_entry *include = include_find(&l->file[0]);
    if (l->config->stored && include)
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s:%d: the configuration of a run may not include other files: to use one that does, name the "
                       "file itself instead of its folder, with --weights",
                       path, include->line);
    while (more) CR_TRY(include_read(l, &more));
    return CR_OK;
}

static char *arena_strdup(struct cr_arena *arena, const char *text) {
    return cr_arena_printf(arena, "%s", text);
}

static cr_status file_copy(struct cr_arena *arena, const struct cr_ini *from, struct cr_ini *out) {
    const size_t         bytes = (size_t)CR_MAX(from->count, 1) * sizeof *from->entry;
    struct cr_ini_entry *entry = cr_arena_alloc(arena, bytes);
    if (!entry) return CR_NO_MEMORY(bytes);
    for (int i = 0; i < from->count; i++) {
        const struct cr_ini_entry *e = &from->entry[i];

        entry[i] = (struct cr_ini_entry){.section = arena_strdup(arena, e->section), .line = e->line};
        if (e->key) entry[i].key = arena_strdup(arena, e->key);
        if (e->value) entry[i].value = arena_strdup(arena, e->value);
        if (!entry[i].section || !entry[i].key != !e->key || !entry[i].value != !e->value)
            return CR_NO_MEMORY(CR_INI_LINE_MAX);
    }
    *out       = *from;
    out->entry = entry;
    out->path  = arena_strdup(arena, from->path);
    return out->path ? CR_OK : CR_NO_MEMORY(strlen(from->path));
}

static cr_status files_copy(struct loader *l, const struct cr_config *from) {
    for (int i = 0; i < from->files; i++) CR_TRY(file_copy(&l->config->arena, &from->file[i], &l->file[i]));
    l->files = from->files;
    return CR_OK;
}

static cr_status files_apply(struct loader *l) {
    const size_t   bytes = (size_t)CR_MAX(l->files, 1) * sizeof *l->file;
    struct cr_ini *file  = cr_arena_alloc(&l->config->arena, bytes);
    if (!file) return CR_NO_MEMORY(bytes);
    memcpy(file, l->file, (size_t)l->files * sizeof *l->file);
    l->config->file  = file;
    l->config->files = l->files;
    for (int i = l->files - 1; i >= 0; i--) file_apply(l, &l->file[i]);
    return CR_OK;
}

/* ---- open, close ---- */

static cr_status names_set(struct cr_config *config, const char *path) {
    if (!path) {
        config->path = "(built in)";
        config->name = "default";
        return CR_OK;
    }
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t      length = strlen(base);
    if (length > 4 && strcmp(base + length - 4, ".ini") == 0) length -= 4;
    config->path = cr_arena_printf(&config->arena, "%s", path);
    config->name = cr_arena_printf(&config->arena, "%.*s", (int)length, base);
    return config->path && config->name ? CR_OK : CR_NO_MEMORY(2 * strlen(path));
}

/* The defaults of mean and std are those of ImageNet's three channels. Grey images and a fourth channel get their
 * average. */
static void fit_to_channels(const char *dotted, struct cr_reals *list, int64_t channels,
                            const struct cr_config *config) {
    const double average = rint((list->at[0] + list->at[1] + list->at[2]) / 3 * 1e6) / 1e6;
    if (cr_config_is_set(config, dotted) || (channels != 1 && channels != 4)) return;
    list->at[channels - 1] = average;
    list->count            = (int)channels;
}

/* Takes the files from `from` if it is not NULL, else reads `path`. */
static cr_status config_load(struct loader *l, const char *path, const struct cr_config *from,
                             const char *const *overrides, int n) {
    struct cr_config *config = l->config;
    config->src              = cr_arena_alloc(&config->arena, (size_t)cr_key_count * sizeof *config->src);
    if (!config->src) return CR_NO_MEMORY((size_t)cr_key_count * sizeof *config->src);
    CR_TRY(names_set(config, path));
    defaults_set(config);
    if (config->stored) config->data.exif = false; /* 0.3.0 and older have no such key and ignore EXIF */
    if (from)
        CR_TRY(files_copy(l, from));
    else if (path)
        CR_TRY(files_read(l, config->path));
    CR_TRY(files_apply(l));
    for (int i = 0; i < n; i++) CR_TRY(override_apply(l, overrides[i]));
    fit_to_channels("data.mean", &config->data.mean, config->data.channels, config);
    fit_to_channels("data.std", &config->data.std, config->data.channels, config);
    cr_config_check(config, &l->complaints);
    return cr_complaints_status(&l->complaints);
}

static cr_status config_make(struct cr_config *config, const char *path, bool stored, const struct cr_config *from,
                             const char *source, const char *const *overrides, int n) {
    *config         = (struct cr_config){.stored = stored, .override_source = source, .device_option = "--device "};
    struct loader l = {.config = config, .complaints = {.hidden = stored ? path : NULL}};
    locale_t      before = cr_c_locale_enter();
    cr_status     status = config_load(&l, path, from, overrides, n);
    cr_c_locale_leave(before);
    if (status != CR_OK) {
        cr_error_forward(status, __FILE__, __LINE__);
        cr_config_close(config);
    }
    cr_complaints_free(&l.complaints);
    return status;
}

cr_status cr_config_open(struct cr_config *config, const char *path, const char *const *overrides, int n) {
    return config_make(config, path, false, NULL, "command line", overrides, n);
}

cr_status cr_config_open_stored(struct cr_config *config, const char *path, const char *const *overrides, int n) {
    return config_make(config, path, true, NULL, "command line", overrides, n);
}

cr_status cr_config_open_options(struct cr_config *config, const char *path, bool stored, const char *const *overrides,
                                 int n) {
    CR_TRY(config_make(config, path, stored, NULL, "options", overrides, n));
    config->device_option = "options.device = ";
    return CR_OK;
}

cr_status cr_config_reopen(struct cr_config *config, const struct cr_config *from, const char *const *overrides,
                           int n) {
    return config_make(config, from->files ? from->path : NULL, from->stored, from, from->override_source, overrides,
                       n);
}

void cr_config_close(struct cr_config *config) {
    cr_arena_free(&config->arena);
    *config = (struct cr_config){0};
}

/* ---- printing ---- */

static void value_add(const struct cr_key *key, const struct cr_config *config, struct cr_text *out) {
    if (key->kind == CR_KEY_TEXT)
        cr_ini_add_value(out, *(const char *const *)cr_key_value(key, config));
    else
        cr_value_print(key, config, out);
}

void cr_config_dump(const struct cr_config *config, struct cr_text *out) {
    locale_t before = cr_c_locale_enter();
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "%s[%s]\n", s ? "\n" : "", cr_key_sections[s].name);
        for (int i = 0; i < cr_key_count; i++) {
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) != 0) continue;
            cr_text_add(out, "%s = ", cr_keys[i].name);
            size_t length = out->length;
            if (!is_command(cr_keys[i].section, cr_keys[i].name)) value_add(&cr_keys[i], config, out);
            if (out->length == length && length && !out->failed) out->data[--out->length] = 0; /* no trailing blank */
            cr_text_add(out, "\n");
        }
    }
    cr_c_locale_leave(before);
}

static void value_add_or_empty(const struct cr_key *key, const struct cr_config *config, struct cr_text *out) {
    size_t before = out->length;
    value_add(key, config, out);
    if (out->length == before) cr_text_add(out, "(empty)");
}

int cr_config_diff(const struct cr_config *old, const struct cr_config *new_config, struct cr_text *out) {
    locale_t before = cr_c_locale_enter();
    int      differ = 0;
    for (int i = 0; i < cr_key_count; i++) {
        if (cr_value_equal(&cr_keys[i], old, new_config)) continue;
        differ++;
        cr_text_add(out, "%s.%s: ", cr_keys[i].section, cr_keys[i].name);
        value_add_or_empty(&cr_keys[i], old, out);
        cr_text_add(out, " -> ");
        value_add_or_empty(&cr_keys[i], new_config, out);
        cr_text_add(out, "\n");
    }
    cr_c_locale_leave(before);
    return differ;
}

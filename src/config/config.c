/* config/config.c: combines defaults, files and the command line into one config; prints a config as text. See
 * config/config.h. Tables: config/keys.c; single values: config/value.c; rules between keys: config/check.c. */
#include "config/config.h"

#include "config/loader.h"
#include "core/files.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The only place from which a config can be written. */
struct cr_config_allocation {
    struct cr_config             config;
    struct cr_config_src        *src;
    struct cr_arena              arena;
    struct cr_config_allocation *from;  /* has texts that this config refers to; NULL: none */
    int                          users; /* this config while it is open, and those whose `from` it is */
};

/* ---- setting values ---- */

/* Sets the keys that decide one of `decides`, bits of enum cr_key_decides. */
static void defaults_set(struct cr_config *config, unsigned decides) {
    for (int i = 0; i < cr_key_count; i++) {
        char buffer[40], why[600];
        if (!(cr_keys[i].decides & decides)) continue;
        bool good =
            cr_value_parse(&cr_keys[i], config, cr_value_default(&cr_keys[i], buffer, sizeof buffer), why, sizeof why);
        CR_ASSERT(good); /* otherwise a default in config/config.def is invalid */
    }
}

static void value_set(struct cr_config_loader *l, const char *section, const char *name, const char *text,
                      const char *file, int line);

/* data.image_size = 192x320 sets the height and the width. Returns whether the text has this form. */
static bool set_rectangle(struct cr_config_loader *l, const struct cr_key *key, const char *text, const char *file,
                          int line) {
    const size_t height = strspn(text, "0123456789"), width = height ? strspn(text + height + 1, "0123456789") : 0;
    if (key != cr_key_dotted("data.image_size") || !height || text[height] != 'x' || !width || text[height + 1 + width])
        return false;
    const char *first = cr_arena_printf(l->arena, "%.*s", (int)height, text);
    value_set(l, "data", "image_size", first ? first : text, file, line); /* NULL: the text with x is refused */
    value_set(l, "data", "image_width", text + height + 1, file, line);
    return true;
}

/* data.image_size = 64 makes a rectangle square again, if another file, or a file instead of the command line, gave its
 * width. A width of the same source stays: it belongs to this height. */
static void reset_width(struct cr_config_loader *l, const char *file) {
    struct cr_config_src *width = &l->src[cr_key_index(cr_key_dotted("data.image_width"))];
    if (!width->file || strcmp(width->file, file) == 0 || width->line == CR_KEY_REFUSED) return;
    l->config->data.image_width = 0;
    *width                      = (struct cr_config_src){0};
}

/* Whether the program wrote this file: the config.ini of a checkpoint, which a user may give to continue the run. */
static bool is_in_checkpoint(const char *file) {
    const char *start = cr_path_name(file);
    char        weights[CR_PATH_MAX];
    if (strcmp(start, "config.ini") != 0) return false;
    const int written = snprintf(weights, sizeof weights, "%.*smodel.safetensors", (int)(start - file), file);
    return written > 0 && (size_t)written < sizeof weights && cr_fs_is_file(weights);
}

/* A name that only older versions accept: the present one counts in the configuration of a run, which the program
 * wrote. Elsewhere it is an error. False when the name is not one of an older version. */
static bool set_old_name(struct cr_config_loader *l, const char *section, const char *name, const char *text,
                         const char *file, int line) {
    const struct cr_old_name *old = cr_old_name_find(section, name, text);
    char                      why[300];
    if (!old) return false;
    const bool stored = file != l->config->override_source && (l->config->stored || is_in_checkpoint(file));
    if (stored && old->now) value_set(l, section, name, old->now, file, line);
    if (stored) return true;
    cr_old_name_explain(old, why, sizeof why);
    cr_complain(&l->complaints, file, line, "[%s] %s = %.60s: %s", section, name, text, why);
    return true;
}

/* `text` must stay valid as long as the config. */
static void value_set(struct cr_config_loader *l, const char *section, const char *name, const char *text,
                      const char *file, int line) {
    char                 why[600], hint[600];
    const struct cr_key *key = cr_key_find(section, name);
    if (!key) {
        if (set_old_name(l, section, name, text, file, line)) return;
        cr_key_hint(hint, sizeof hint, section, name);
        cr_complain(&l->complaints, file, line, "[%.60s] %.60s = %.60s: unknown key%s", section, name, text, hint);
        return;
    }
    if (strchr(text, 'x') && set_rectangle(l, key, text, file, line)) return;
    if (key->kind == CR_KEY_TEXT) text = cr_config_home_path(l, text);
    if (!text) return cr_complain(&l->complaints, file, line, "[%s] %s: out of memory", section, name);
    struct cr_config_src *src  = &l->src[cr_key_index(key)];
    const bool            size = key == cr_key_dotted("data.image_size");
    *src                       = (struct cr_config_src){file, line};
    if (size) reset_width(l, file);
    if (cr_value_parse(key, l->config, text, why, sizeof why)) return;
    src->line = CR_KEY_REFUSED;
    if (set_old_name(l, section, name, text, file, line)) return;
    cr_complain(&l->complaints, file, line, "[%s] %s = %.60s: %s%s", section, name, text, why,
                size && text[strspn(text, "0123456789")] ? "; a rectangle is HEIGHTxWIDTH, e.g. 192x320" : "");
}

static void file_apply(struct cr_config_loader *l, const struct cr_ini *file) {
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
            if (known) value_set(l, e->section, e->key, e->value, file->path, e->line);
        } else if (strcmp(e->key, "include") != 0) {
            cr_key_hint(hint, sizeof hint, "", e->key);
            cr_complain(&l->complaints, file->path, e->line,
                        "%.60s = %.60s: is before the first section, where only include is allowed%s", e->key, e->value,
                        hint);
        }
    }
}

/* Copies the text to the config's arena without leading and trailing blanks; NULL when out of memory. */
static char *copy_stripped(struct cr_config_loader *l, const char *text, size_t length) {
    while (length && strchr(" \t", *text)) text++, length--;
    while (length && strchr(" \t", text[length - 1])) length--;
    return cr_arena_printf(l->arena, "%.*s", (int)length, text);
}

static cr_status override_apply(struct cr_config_loader *l, const char *override) {
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

/* ---- open, close ---- */

static cr_status names_set(struct cr_config_loader *l, const char *path) {
    if (!path) {
        l->config->path = "(built in)";
        l->config->name = "default";
        return CR_OK;
    }
    const char *base   = cr_path_name(path);
    size_t      length = strlen(base);
    if (length > 4 && strcmp(base + length - 4, ".ini") == 0) length -= 4;
    l->config->path = cr_arena_printf(l->arena, "%s", path);
    l->config->name = cr_arena_printf(l->arena, "%.*s", (int)length, base);
    return l->config->path && l->config->name ? CR_OK : CR_NO_MEMORY(2 * strlen(path));
}

/* The defaults of mean and std are those of ImageNet's three channels. Grey images and a fourth channel get their
 * average. */
static void fit_to_channels(const char *dotted, struct cr_reals *list, const struct cr_config *config) {
    const int64_t channels = config->data.channels;
    const double  average  = rint((list->at[0] + list->at[1] + list->at[2]) / 3 * 1e6) / 1e6;
    if (cr_config_is_set(config, dotted) || (channels != 1 && channels != 4)) return;
    list->at[channels - 1] = average;
    list->count            = (int)channels;
}

/* Takes the files from `from` if it is not NULL, else reads `path`. */
static cr_status config_load(struct cr_config_loader *l, const char *path, const struct cr_config *from,
                             const char *const *overrides, int n) {
    struct cr_config *config = l->config;
    CR_TRY(names_set(l, path));
    defaults_set(config, ~0u);
    if (config->stored) config->data.exif = false; /* 0.3.0 and older have no such key and ignore EXIF */
    if (from) {
        config->file  = from->file;
        config->files = from->files;
    } else if (path)
        CR_TRY(cr_config_files_read(l, config->path));
    for (int i = config->files - 1; i >= 0; i--) file_apply(l, &config->file[i]);
    for (int i = 0; i < n; i++) CR_TRY(override_apply(l, overrides[i]));
    fit_to_channels("data.mean", &config->data.mean, config);
    fit_to_channels("data.std", &config->data.std, config);
    cr_config_check(config, &l->complaints);
    return cr_complaints_status(&l->complaints);
}

/* Allocates an empty config, which may refer to the texts of `from` (NULL: none), and its sources. The caller frees
 * *out with cr_config_close(&(*out)->config). */
static cr_status config_allocate(const struct cr_config *from, struct cr_config_allocation **out) {
    struct cr_config_allocation *a;
    CR_ALLOC(a, 1);
    a->users             = 1;
    a->from              = from ? from->allocation : NULL;
    a->config.allocation = a;
    a->config.src = a->src = cr_arena_alloc(&a->arena, (size_t)cr_key_count * sizeof *a->src);
    *out                   = a;
    if (from) a->from->users++;
    if (a->src) return CR_OK;
    cr_config_close(&a->config);
    return CR_NO_MEMORY((size_t)cr_key_count * sizeof *a->src);
}

static struct cr_config_loader loader_of(struct cr_config_allocation *a) {
    return (struct cr_config_loader){.config = &a->config, .src = a->src, .arena = &a->arena};
}

static cr_status config_make(const struct cr_config **out, const char *path, bool stored, const struct cr_config *from,
                             const char *source, const char *const *overrides, int n) {
    struct cr_config_allocation *a;
    *out = NULL;
    CR_TRY(config_allocate(from, &a));
    a->config.stored          = stored;
    a->config.override_source = source;
    a->config.device_option   = strcmp(source, "options") == 0 ? "options.device = " : "--device ";
    struct cr_config_loader l = loader_of(a);
    l.complaints.hidden       = stored ? path : NULL;
    cr_status status          = config_load(&l, path, from, overrides, n);
    if (status == CR_OK) {
        *out = &a->config;
    } else {
        cr_error_forward(status, __FILE__, __LINE__);
        cr_config_close(&a->config);
    }
    cr_complaints_free(&l.complaints);
    return status;
}

cr_status cr_config_open(const struct cr_config **config, const char *path, const char *const *overrides, int n) {
    return config_make(config, path, false, NULL, "command line", overrides, n);
}

cr_status cr_config_open_stored(const struct cr_config **config, const char *path, const char *const *overrides,
                                int n) {
    return config_make(config, path, true, NULL, "command line", overrides, n);
}

cr_status cr_config_open_options(const struct cr_config **config, const char *path, bool stored,
                                 const char *const *overrides, int n) {
    return config_make(config, path, stored, NULL, "options", overrides, n);
}

cr_status cr_config_reopen(const struct cr_config **config, const struct cr_config *from, const char *const *overrides,
                           int n) {
    return config_make(config, from->files ? from->path : NULL, from->stored, from, from->override_source, overrides,
                       n);
}

void cr_config_close(const struct cr_config *config) {
    struct cr_config_allocation *a = config ? config->allocation : NULL;
    while (a && --a->users == 0) {
        struct cr_config_allocation *from = a->from;
        cr_arena_free(&a->arena);
        cr_free(a);
        a = from;
    }
}

/* ---- a copy with other values ---- */

static cr_status change_apply(struct cr_config_loader *l, const char *change) {
    char                 dotted[80], why[600];
    const char          *equals = strchr(change, '='), *value = cr_arena_printf(l->arena, "%s", equals + 1);
    const struct cr_key *key;
    snprintf(dotted, sizeof dotted, "%.*s", (int)(equals - change), change);
    key = cr_key_dotted(dotted);
    CR_ASSERT(key);
    if (!value) return CR_NO_MEMORY(strlen(change));
    return cr_value_parse(key, l->config, value, why, sizeof why)
               ? CR_OK
               : CR_FAIL(CR_ERR_CONFIG, "[%s] %s = %.60s: %s", key->section, key->name, value, why);
}

cr_status cr_config_derive(const struct cr_config **out, const struct cr_config *from, unsigned reset,
                           const char *const *changes, int n) {
    struct cr_config_allocation *a;
    *out = NULL;
    CR_TRY(config_allocate(from, &a));
    a->config            = *from;
    a->config.allocation = a;
    a->config.src        = a->src;
    memcpy(a->src, from->src, (size_t)cr_key_count * sizeof *a->src);
    struct cr_config_loader l      = loader_of(a);
    cr_status               status = CR_OK;
    defaults_set(&a->config, reset);
    for (int i = 0; i < n && status == CR_OK; i++) status = change_apply(&l, changes[i]);
    if (status == CR_OK)
        *out = &a->config;
    else
        cr_config_close(&a->config);
    return status;
}

cr_status cr_config_change(const struct cr_config **config, const char *const *changes, int n) {
    const struct cr_config *changed;
    CR_TRY(cr_config_derive(&changed, *config, 0, changes, n));
    cr_config_close(*config);
    *config = changed;
    return CR_OK;
}

cr_status cr_config_set(const struct cr_config **config, const char *dotted, const char *value) {
    struct cr_text change = {0};
    cr_text_add(&change, "%s=%s", dotted, value);
    const cr_status status =
        change.failed ? CR_NO_MEMORY(change.length) : cr_config_change(config, CR_CHANGES(change.data));
    cr_text_free(&change);
    return status;
}

/* config/dump.c: a config as INI text, and the differences between two configs. See config/config.h. */
#include "config/ini.h"
#include "config/keys.h"
#include "core/files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The keys whose values may name a file or folder. */
static bool names_file(const struct cr_key *key) {
    static const char *const names[] = {"data.root",    "data.train",        "data.val",      "data.exclude",
                                        "data.labels",  "data.outliers",     "model.weights", "distill.teacher",
                                        "prune.budget", "loss.class_weights"};
    char                     dotted[CR_INI_LINE_MAX];
    snprintf(dotted, sizeof dotted, "%s.%s", key->section, key->name);
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (strcmp(dotted, names[i]) == 0) return true;
    return false;
}

static const char *text_of(const struct cr_key *key, const struct cr_config *config) {
    return *(const char *const *)cr_key_value(key, config);
}

/* The absolute path of the file or folder that the value names, or of a pattern of files in a folder that exists. */
static bool resolve(const struct cr_key *key, const struct cr_config *config, char out[PATH_MAX]) {
    const char *text    = text_of(key, config);
    const bool  split   = strcmp(key->name, "train") == 0 || strcmp(key->name, "val") == 0;
    const bool  in_root = split && strcmp(key->section, "data") == 0 && *config->data.root;
    char        folder[PATH_MAX];
    const char *why;
    if (!*text || !names_file(key) || in_root) return false;
    if (!realpath(text, out)) {
        int at = (int)strcspn(text, "*?[{");
        if (!text[at]) return false;
        while (at && text[at - 1] != '/') at--;
        if (snprintf(folder, sizeof folder, "%.*s.", at, text) >= (int)sizeof folder || !realpath(folder, out))
            return false;
        const size_t length = strlen(out);
        if (snprintf(out + length, PATH_MAX - length, "/%s", text + at) >= (int)(PATH_MAX - length)) return false;
    }
    return cr_ini_can_hold(out, &why);
}

/* `absolute`: a file or folder that exists gets its absolute path, unless an INI file cannot hold this path. */
static void value_add(const struct cr_key *key, const struct cr_config *config, bool absolute, struct cr_text *out) {
    char resolved[PATH_MAX];
    if (key->kind != CR_KEY_TEXT)
        cr_value_print(key, config, out);
    else if (absolute && resolve(key, config, resolved))
        cr_ini_add_value(out, resolved);
    else
        cr_ini_add_value(out, text_of(key, config));
}

static void dump(const struct cr_config *config, bool absolute, struct cr_text *out) {
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "%s[%s]\n", s ? "\n" : "", cr_key_sections[s].name);
        for (int i = 0; i < cr_key_count; i++) {
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) != 0) continue;
            cr_text_add(out, "%s = ", cr_keys[i].name);
            size_t length = out->length;
            value_add(&cr_keys[i], config, absolute, out);
            if (out->length == length && length && !out->failed) out->data[--out->length] = 0; /* no trailing blank */
            cr_text_add(out, "\n");
        }
    }
}

void cr_config_dump(const struct cr_config *config, struct cr_text *out) {
    dump(config, false, out);
}

void cr_config_dump_for_run(const struct cr_config *config, struct cr_text *out) {
    dump(config, true, out);
}

static void value_add_or_empty(const struct cr_key *key, const struct cr_config *config, struct cr_text *out) {
    size_t before = out->length;
    value_add(key, config, false, out);
    if (out->length == before) cr_text_add(out, "(empty)");
}

static cr_status difference_add(struct cr_config_differences *d, const struct cr_key *key, const struct cr_config *old,
                                const struct cr_config *fresh) {
    struct cr_text text = {0}, value = {0};
    cr_text_add(&text, "%s.%s: ", key->section, key->name);
    value_add_or_empty(key, old, &text);
    cr_text_add(&text, " -> ");
    value_add_or_empty(key, fresh, &text);
    cr_text_add(&value, "%s.%s=", key->section, key->name);
    if (key->kind == CR_KEY_TEXT)
        cr_text_add(&value, "%s", text_of(key, fresh));
    else
        cr_value_print(key, fresh, &value);
    struct cr_config_difference *at = &d->at[d->count++];
    *at                             = (struct cr_config_difference){
                                    .name    = cr_arena_printf(&d->arena, "%s.%s", key->section, key->name),
                                    .decides = key->decides,
                                    .text    = text.failed ? NULL : cr_arena_printf(&d->arena, "%s", text.data),
                                    .fresh   = value.failed ? NULL : cr_arena_printf(&d->arena, "%s", value.data),
    };
    cr_text_free(&text);
    cr_text_free(&value);
    return at->name && at->text && at->fresh ? CR_OK : CR_NO_MEMORY(CR_INI_LINE_MAX);
}

/* The same file by two paths is the same value. */
static bool is_equal(const struct cr_key *key, const struct cr_config *a, const struct cr_config *b) {
    return cr_value_equal(key, a, b) || (names_file(key) && cr_fs_is_same(text_of(key, a), text_of(key, b)));
}

cr_status cr_config_compare(const struct cr_config *old, const struct cr_config *fresh,
                            struct cr_config_differences *out) {
    *out = (struct cr_config_differences){0};
    CR_ARENA_ALLOC(&out->arena, out->at, (size_t)cr_key_count);
    cr_status status = CR_OK;
    for (int i = 0; i < cr_key_count && status == CR_OK; i++)
        if (!is_equal(&cr_keys[i], old, fresh)) status = difference_add(out, &cr_keys[i], old, fresh);
    return status;
}

void cr_config_differences_free(struct cr_config_differences *differences) {
    cr_arena_free(&differences->arena);
    *differences = (struct cr_config_differences){0};
}

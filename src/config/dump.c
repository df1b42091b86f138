/* config/dump.c: a config as INI text, and the differences between two configs. See config/config.h. */
#include "config/keys.h"

#include <string.h>

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
            value_add(&cr_keys[i], config, out);
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

static cr_status difference_add(struct cr_config_differences *d, const struct cr_key *key, const struct cr_config *old,
                                const struct cr_config *fresh) {
    struct cr_text text = {0};
    cr_text_add(&text, "%s.%s: ", key->section, key->name);
    value_add_or_empty(key, old, &text);
    cr_text_add(&text, " -> ");
    value_add_or_empty(key, fresh, &text);
    d->at[d->count++] = (struct cr_config_difference){
        .name    = cr_arena_printf(&d->arena, "%s.%s", key->section, key->name),
        .decides = key->decides,
        .text    = text.failed ? NULL : cr_arena_printf(&d->arena, "%s", text.data),
    };
    cr_text_free(&text);
    return d->at[d->count - 1].name && d->at[d->count - 1].text ? CR_OK : CR_NO_MEMORY(CR_INI_LINE_MAX);
}

cr_status cr_config_compare(const struct cr_config *old, const struct cr_config *fresh,
                            struct cr_config_differences *out) {
    *out    = (struct cr_config_differences){0};
    out->at = cr_arena_alloc(&out->arena, (size_t)cr_key_count * sizeof *out->at);
    if (!out->at) return CR_NO_MEMORY((size_t)cr_key_count * sizeof *out->at);
    locale_t  before = cr_c_locale_enter();
    cr_status status = CR_OK;
    for (int i = 0; i < cr_key_count && status == CR_OK; i++)
        if (!cr_value_equal(&cr_keys[i], old, fresh)) status = difference_add(out, &cr_keys[i], old, fresh);
    cr_c_locale_leave(before);
    return status;
}

void cr_config_differences_free(struct cr_config_differences *differences) {
    cr_arena_free(&differences->arena);
    *differences = (struct cr_config_differences){0};
}

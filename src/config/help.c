/* config/help.c: prints `cresnet help keys` from config/config.def: two lines per key, at most 100 columns. */
#include "config/keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_TYPE_COLUMN = 34 };

static void type_real(struct cr_text *out, const struct cr_key *key, const char *what) {
    char low[40], high[40];
    cr_real_print(key->real_min, low, sizeof low);
    cr_real_print(key->real_max, high, sizeof high);
    cr_text_add(out, "%s %s to %s", what, low, high);
}

/* Prints the words of an enum. `wrap` breaks the list into lines. */
static void type_words(struct cr_text *out, const struct cr_words *words, bool wrap) {
    int column = HELP_TYPE_COLUMN + (int)strlen("one of ");
    cr_text_add(out, "one of");
    for (int i = 0; i < words->count; i++) {
        int length = (int)strlen(words->at[i]) + 2;
        if (wrap && column + length > HELP_COLUMNS) {
            cr_text_add(out, "\n%*s", HELP_TYPE_COLUMN + 6, "");
            column = HELP_TYPE_COLUMN + 7;
        }
        cr_text_add(out, " %s%s", words->at[i], i + 1 < words->count ? "," : "");
        column += length;
    }
}

void cr_key_kind_describe(const struct cr_key *key, bool wrap, struct cr_text *out) {
    switch (key->kind) {
    case CR_KEY_INT: cr_text_add(out, "integer, %" PRId64 " to %" PRId64, key->int_min, key->int_max); break;
    case CR_KEY_AUTO:
        cr_text_add(out, "integer, %" PRId64 " to %" PRId64 ", or auto", key->int_min, key->int_max);
        break;
    case CR_KEY_REAL: type_real(out, key, "number,"); break;
    case CR_KEY_BOOL: cr_text_add(out, "yes or no"); break;
    case CR_KEY_TEXT: cr_text_add(out, "text"); break;
    case CR_KEY_ENUM: type_words(out, &key->words, wrap); break;
    case CR_KEY_INTS:
        cr_text_add(out, "integers a,b,... each %" PRId64 " to %" PRId64, key->int_min, key->int_max);
        break;
    case CR_KEY_REALS: type_real(out, key, "numbers a,b,... each"); break;
    }
}

static void key_add(struct cr_text *out, const struct cr_key *key) {
    char buffer[40], setting[128];
    int  used = snprintf(setting, sizeof setting, "  %s = %s", key->name, cr_value_default(key, buffer, sizeof buffer));
    cr_text_add(out, "%s%*s", setting, CR_MAX(1, HELP_TYPE_COLUMN - used), "");
    cr_key_kind_describe(key, true, out);
    cr_text_add(out, "\n        %s\n", key->help);
}

/* Returns whether the topic names the key, as "section", "section.key" or "key". */
static bool matches_topic(const struct cr_key *key, const char *topic) {
    return strcmp(topic, key->section) == 0 || strcmp(topic, key->name) == 0 || cr_key_dotted(topic) == key;
}

bool cr_config_help_of(const char *topic, struct cr_text *out) {
    const char *section = "";
    for (int i = 0; i < cr_key_count; i++) {
        if (!matches_topic(&cr_keys[i], topic)) continue;
        if (strcmp(section, cr_keys[i].section) != 0)
            cr_text_add(out, "%s[%s]\n", *section ? "\n" : "", cr_keys[i].section);
        section = cr_keys[i].section;
        key_add(out, &cr_keys[i]);
    }
    return *section;
}

void cr_config_help(struct cr_text *out) {
    cr_text_add(out, "Every key of the configuration with its default, allowed values and meaning.\n"
                     "On the command line: section.key=value, e.g. train.batch=64.\n"
                     "Before the first section, include = FILE reads another file; its path is relative to this file.\n"
                     "Values that contain ; or #, or start or end with a blank, need quotes.\n");
    for (int s = 0; s < cr_key_section_count; s++) {
        cr_text_add(out, "\n[%s]  %s\n", cr_key_sections[s].name, cr_key_sections[s].help);
        for (int i = 0; i < cr_key_count; i++)
            if (strcmp(cr_keys[i].section, cr_key_sections[s].name) == 0) key_add(out, &cr_keys[i]);
    }
}

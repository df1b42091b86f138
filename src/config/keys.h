/* config/keys.h: config/config.def as tables, for the files that parse, print, check and explain the configuration.
 * Internal to config*.c. Values are reached through these rows only, so a new key is one line in config/config.def and
 * nothing else.
 *
 * Numbers are read and printed by the C library in the thread's locale: the public functions of config/config.h put the
 * C locale in place first (cr_c_locale_enter). */
#ifndef CR_CONFIG_KEYS_H
#define CR_CONFIG_KEYS_H

#include "config/config.h"
#include "config/ini.h"

#include <locale.h>

enum cr_key_kind {
    CR_KEY_INT,
    CR_KEY_AUTO,
    CR_KEY_REAL,
    CR_KEY_BOOL,
    CR_KEY_TEXT,
    CR_KEY_ENUM,
    CR_KEY_INTS,
    CR_KEY_REALS
};

struct cr_words {
    const char *const *at;
    int                count;
};

struct cr_key {
    const char      *section, *name, *help;
    enum cr_key_kind kind;
    size_t           offset;      /* of the value in struct cr_config */
    int64_t          int_default; /* INT, AUTO, BOOL, ENUM */
    int64_t          int_min, int_max;
    double           real_default;
    double           real_min, real_max;
    const char      *text_default; /* TEXT, INTS, REALS */
    struct cr_words  words;        /* ENUM */
};

struct cr_key_section {
    const char *name, *help;
};

extern const struct cr_key         cr_keys[];
extern const int                   cr_key_count;
extern const struct cr_key_section cr_key_sections[];
extern const int                   cr_key_section_count;

const struct cr_key *cr_key_find(const char *section, const char *name); /* NULL: no such key */
const struct cr_key *cr_key_dotted(const char *dotted);                  /* "train.batch"; NULL: no such key */
bool                 cr_key_has_section(const char *section);
/* What may have been meant instead of an unknown name: ends an error message, e.g. "; did you mean batch?". */
void cr_key_hint(char *out, size_t bytes, const char *section, const char *name);
void cr_key_section_hint(char *out, size_t bytes, const char *section);
/* Letters to insert, delete, change or swap (neighbours) until one becomes the other; both are cut at 63. */
int cr_edit_distance(const char *a, const char *b);

static inline const void *cr_key_value(const struct cr_key *key, const struct cr_config *config) {
    return (const char *)config + key->offset;
}

/* Sets the value from its text. False: it is wrong, *why says what and what is allowed. Texts are kept as they are
 * given: they must live as long as the config. */
bool cr_value_parse(const struct cr_key *key, struct cr_config *config, const char *text, char *why, size_t why_bytes);
/* Appends the value as the INI would have it after '=', without quotes. Reals have the fewest digits that read back. */
void cr_value_print(const struct cr_key *key, const struct cr_config *config, struct cr_text *out);
bool cr_value_equal(const struct cr_key *key, const struct cr_config *a, const struct cr_config *b);
/* The default, as it must be parsed. `buffer` is used where there is no ready text. */
const char *cr_value_default(const struct cr_key *key, char *buffer, size_t bytes);
/* Appends what a value may be: "integer, 1 to 64"; `wrap`: long lists of words are broken into lines for `help keys`.
 */
void cr_key_kind_describe(const struct cr_key *key, bool wrap, struct cr_text *out);
void cr_real_print(double value, char *out, size_t bytes);

enum { CR_KEY_REFUSED = -1 }; /* the line of a value that was refused, while the config is being read */
/* Rules between keys; complaints carry the place of the value. */
void cr_config_check(const struct cr_config *config, struct cr_complaints *complaints);
/* As cr_config_fail, into the list; nothing for a value that was refused already. */
void cr_config_complain(const struct cr_config *config, struct cr_complaints *complaints, const struct cr_key *key,
                        const char *fmt, ...) CR_PRINTF(4, 5);

locale_t cr_c_locale_enter(void); /* the thread reads and prints numbers as C does, until ... */
void     cr_c_locale_leave(locale_t before);

#endif

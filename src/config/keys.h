/* config/keys.h: config/config.def as tables, for the files that parse, print, check and describe the configuration.
 *
 * Internal to config/. All values are accessed through these tables, so a new key needs one line in config/config.def
 * and no other change. */
#ifndef CR_CONFIG_KEYS_H
#define CR_CONFIG_KEYS_H

#include "config/config.h"
#include "config/ini.h"

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
    const char         *section, *name, *help;
    enum cr_key_kind    kind;
    enum cr_key_decides decides;
    size_t              offset;      /* byte offset of the value in struct cr_config */
    int64_t             int_default; /* for INT, AUTO, BOOL, ENUM */
    int64_t             int_min, int_max;
    double              real_default;
    double              real_min, real_max;
    const char         *text_default; /* for TEXT, INTS, REALS */
    struct cr_words     words;        /* for ENUM */
};

struct cr_key_section {
    const char *name, *help;
};

extern const struct cr_key         cr_keys[];
extern const int                   cr_key_count;
extern const struct cr_key_section cr_key_sections[];
extern const int                   cr_key_section_count;

const struct cr_key *cr_key_find(const char *section, const char *name); /* NULL if unknown */
const struct cr_key *cr_key_dotted(const char *dotted);                  /* "train.batch"; NULL if unknown */
bool                 cr_key_has_section(const char *section);
/* Writes a suggestion for an unknown name, as the end of an error message: "; did you mean batch?", or "". */
void cr_key_hint(char *out, size_t bytes, const char *section, const char *name);
void cr_key_section_hint(char *out, size_t bytes, const char *section);
/* The key that `name` stands for in any section: its own name, or the name that another trainer uses for it. Case is
 * ignored, and '-' is the same as '_'. NULL when there is none. */
const struct cr_key *cr_key_of_any_name(const char *name);
/* Edit distance with transpositions of neighbours (Damerau-Levenshtein). Only the first 63 characters count. */
int cr_edit_distance(const char *a, const char *b);

static inline const void *cr_key_value(const struct cr_key *key, const struct cr_config *config) {
    return (const char *)config + key->offset;
}

static inline int cr_key_index(const struct cr_key *key) {
    return (int)(key - cr_keys);
}

/* Parses the text and sets the value. False if invalid: *why describes the error and what is allowed. Texts are not
 * copied: they must stay valid as long as the config. */
bool cr_value_parse(const struct cr_key *key, struct cr_config *config, const char *text, char *why, size_t why_bytes);
/* Appends the value as written after '=' in an INI file, without quotes. Reals have the fewest digits that parse back
 * to the same value. */
void cr_value_print(const struct cr_key *key, const struct cr_config *config, struct cr_text *out);
bool cr_value_equal(const struct cr_key *key, const struct cr_config *a, const struct cr_config *b);
/* Returns the default as text for the parser. `buffer` holds the text if it must be formatted. */
const char *cr_value_default(const struct cr_key *key, char *buffer, size_t bytes);
/* Appends the allowed values: "integer, 1 to 64". `wrap` breaks long lists of words into lines for `help keys`. */
void cr_key_kind_describe(const struct cr_key *key, bool wrap, struct cr_text *out);
void cr_real_print(double value, char *out, size_t bytes);

/* config/old_names.c: a key, or a value of a key, of an older version that this version does not accept. */
struct cr_old_name {
    const char *section, *key;
    const char *value;  /* the old value; NULL: the key itself is old, whatever its value */
    const char *now;    /* the value that has replaced it; NULL for a key */
    const char *advice; /* for a key: what to do now */
};
/* NULL when no older version accepted this key and value either. */
const struct cr_old_name *cr_old_name_find(const char *section, const char *key, const char *value);
/* Writes what the user should write instead, the end of an error message. */
void cr_old_name_explain(const struct cr_old_name *old, char *out, size_t bytes);

enum { CR_KEY_REFUSED = -1 }; /* line number that marks a rejected value while the config is being read */
/* Checks rules between keys. Errors name the file and line of the value. */
void cr_config_check(const struct cr_config *config, struct cr_complaints *complaints);
/* Like cr_config_fail, but adds to the list. Does nothing for a value that was rejected already. */
void cr_config_complain(const struct cr_config *config, struct cr_complaints *complaints, const struct cr_key *key,
                        const char *fmt, ...) CR_PRINTF(4, 5);

#endif

/* config/config.h: what the INI says, typed. Keys, defaults, ranges and help stand in config/config.def, once.
 *
 * Laws
 *   - A config is complete: every key has a value, its default where nobody set it.
 *   - Precedence: default < included file < file < command line.
 *   - All errors of a file are reported at once, one a line, as `file:line: [section] key: what, and what is allowed`.
 *   - Numbers are read in the C locale, to their last character.
 * Knows nothing of models or data beyond their option names. */
#ifndef CR_CONFIG_H
#define CR_CONFIG_H

#include "config/config.def"
#include "core/base.h"

struct cr_ints {
    int     count;
    int64_t at[32];
};
struct cr_reals {
    int    count;
    double at[32];
};

#define X(constant, word) constant,
#define E(name) enum cr_##name{CR_ENUM_##name(X)};
CR_ENUMS(E)
#undef E
#undef X

#define FIELD_INT(section, key, def, min, max, help) int64_t key;
#define FIELD_AUTO(section, key, def, min, max, help) int64_t key;
#define FIELD_REAL(section, key, def, min, max, help) double key;
#define FIELD_BOOL(section, key, def, help) bool key;
#define FIELD_TEXT(section, key, def, help) const char *key;
#define FIELD_ENUM(section, key, name, def, help) enum cr_##name key;
#define FIELD_INTS(section, key, def, min, max, help) struct cr_ints key;
#define FIELD_REALS(section, key, def, min, max, help) struct cr_reals key;
#define SECTION(name, KEYS, help)                                                                                      \
    struct {                                                                                                           \
        KEYS(FIELD_INT, FIELD_AUTO, FIELD_REAL, FIELD_BOOL, FIELD_TEXT, FIELD_ENUM, FIELD_INTS, FIELD_REALS)           \
    } name;

struct cr_config {
    CR_SECTIONS(SECTION)
    const char           *path; /* the file as named by the user; "(built in)" when none */
    const char           *name; /* base name without .ini: names the default output folder */
    struct cr_arena       arena;
    struct cr_config_src *src; /* one a key, in config/config.def's order: where its value came from */
};
#undef SECTION
#undef FIELD_INT
#undef FIELD_AUTO
#undef FIELD_REAL
#undef FIELD_BOOL
#undef FIELD_TEXT
#undef FIELD_ENUM
#undef FIELD_INTS
#undef FIELD_REALS

/* Where a value came from. */
struct cr_config_src {
    const char *file; /* NULL: default; "command line" for overrides */
    int         line; /* 0 when not from a file */
};

/* Reads `path` (NULL: defaults only; a pipe will do), its includes, then `overrides` ("section.key=value", n of them,
 * later wins). On failure the message holds every error, one a line, and *config is empty: CR_ERR_CONFIG, or CR_ERR_IO
 * for a file that cannot be read (both end the program with 2 resp. 1; a missing config file is CR_ERR_CONFIG).
 * The caller closes it. */
CR_MUST cr_status cr_config_open(struct cr_config *config, const char *path, const char *const *overrides, int n);
void              cr_config_close(struct cr_config *config);

/* One error about a key in the standard form, e.g. for values that only turn out wrong with the data set at hand:
 * "configs/x.ini:14: [train] batch = 900: ..." Returns CR_ERR_CONFIG. `dotted` = "train.batch". */
cr_status cr_config_fail(const struct cr_config *config, const char *dotted, const char *fmt, ...) CR_PRINTF(3, 4);
/* Is the network one whose usual input is 32 px (CIFAR nets, cifar stems)? Decides the default picture size. */
bool cr_config_is_small(const struct cr_config *config);
bool cr_config_prunes(const struct cr_config *config); /* does training prune? */
/* prune.block: output channels, or output x input channels, each 1 to 4096, more than one weight; false: it is neither.
 */
bool cr_config_block(const struct cr_config *config, int64_t *outputs, int64_t *inputs);
bool cr_config_mixes(const struct cr_config *config);                      /* does training erase or mix pictures? */
bool cr_config_mixes_labels(const struct cr_config *config);               /* ... and labels */
bool cr_config_is_set(const struct cr_config *config, const char *dotted); /* false: the default */

/* The word of an enum value, e.g. cr_word_arch(CR_ARCH_RESNET50) = "resnet50". */
#define E(name) const char *cr_word_##name(enum cr_##name value);
CR_ENUMS(E)
#undef E

/* Appends the resolved config as INI text that reads back to the same values. No include, no comments: equal configs
 * give equal texts. */
void cr_config_dump(const struct cr_config *config, struct cr_text *out);
/* Appends every key with type, default, range and one line of help (`cresnet help keys`). */
void cr_config_help(struct cr_text *out);
/* The same of one section ("optim"), of one key ("optim.lr"), or of all keys of that name ("lr"). False: there is none.
 */
bool cr_config_help_of(const char *topic, struct cr_text *out);
/* Appends "section.key" for every key whose value differs, one a line: "optim.lr: 0.1 -> 0.2". Returns how many. */
int cr_config_diff(const struct cr_config *old, const struct cr_config *fresh, struct cr_text *out);

/* "8GiB", "700 MB", "1.5G": a number and a unit (B; K, M, G, T and KiB ... in powers of 1024; KB ... of 1000). False:
 * none of these, or beyond all reason. */
bool cr_bytes_parse(const char *text, size_t *bytes);

#endif

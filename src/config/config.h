/* config/config.h: the typed configuration that an INI file describes.
 *
 * config/config.def defines the keys, defaults, ranges and help texts.
 *
 * Invariants
 *   - Every key of a config has a value; a key that is not set has its default.
 *   - Precedence, lowest first: default, included file, file, command line.
 *   - A config is read-only once it is open: only config/ has a pointer that can write it. What changes while a program
 *     runs (batch size, memory limit, epoch) is in the session (struct cr_run_state). A command that needs other values
 *     makes another config: cr_config_derive.
 *   - All errors of a file are reported together, one per line: `file:line: [section] key: error, and what is allowed`.
 *     A report has 15 errors at most and counts the others.
 *   - Numbers are parsed and printed in the thread's locale, which is "C": no program sets another one, and the thread
 *     of a model of the library sets it (api/worker.c). Every character of a value must belong to the number.
 * This header depends on neither models nor datasets; it defines only the names of their options. */
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

#define FIELD_INT(section, key, decides, def, min, max, help) int64_t key;
#define FIELD_AUTO(section, key, decides, def, min, max, help) int64_t key;
#define FIELD_REAL(section, key, decides, def, min, max, help) double key;
#define FIELD_BOOL(section, key, decides, def, help) bool key;
#define FIELD_TEXT(section, key, decides, def, help) const char *key;
#define FIELD_ENUM(section, key, decides, name, def, help) enum cr_##name key;
#define FIELD_INTS(section, key, decides, def, min, max, help) struct cr_ints key;
#define FIELD_REALS(section, key, decides, def, min, max, help) struct cr_reals key;
#define SECTION(name, KEYS, help)                                                                                      \
    struct {                                                                                                           \
        KEYS(FIELD_INT, FIELD_AUTO, FIELD_REAL, FIELD_BOOL, FIELD_TEXT, FIELD_ENUM, FIELD_INTS, FIELD_REALS)           \
    } name;

/* What a key decides: config/config.def. */
enum cr_key_decides {
    CR_DECIDES_MODEL      = 1 << 0,
    CR_DECIDES_DATA       = 1 << 1,
    CR_DECIDES_START      = 1 << 2,
    CR_DECIDES_LOSS       = 1 << 3,
    CR_DECIDES_UPDATE     = 1 << 4,
    CR_DECIDES_RUN        = 1 << 5,
    CR_DECIDES_COMPUTE    = 1 << 6,
    CR_DECIDES_EVALUATION = 1 << 7,
    CR_DECIDES_HOST       = 1 << 8
};

struct cr_ini; /* config/ini.h */
struct cr_config {
    CR_SECTIONS(SECTION)
    const char                 *path;   /* file name as given by the user; "(built in)" without a file */
    const char                 *name;   /* base name without .ini; the default output folder is named after it */
    bool                        stored; /* read by cr_config_open_stored */
    const struct cr_ini        *file;   /* [files]: as they were read, the named one first; each includes the next */
    int                         files;
    const struct cr_config_src *src; /* one per key, in the order of config/config.def: source of the value */
    const char                 *override_source; /* of the overrides, in messages: "command line" or "options" */
    const char *device_option;               /* that chooses a device, in messages: "--device ", "options.device = " */
    struct cr_config_allocation *allocation; /* of this struct and of all that it refers to; config/config.c */
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

/* The source of a value. */
struct cr_config_src {
    const char *file; /* NULL for a default; cr_config.override_source, the same address, for an override */
    int         line; /* 0 if the source is not a file */
};

/* Reads `path` (NULL: defaults only; a pipe is allowed), its includes, then n `overrides` ("section.key=value"; the
 * later wins). On failure the message contains every error, one per line, and *config is NULL. CR_ERR_CONFIG (exit
 * status 2): invalid or missing file; CR_ERR_IO (exit status 1): unreadable file. The caller calls cr_config_close. */
CR_MUST cr_status cr_config_open(const struct cr_config **config, const char *path, const char *const *overrides,
                                 int n);
/* The same with the files that `from` was read from and other overrides. Nothing is read again: the files may have
 * changed, or be pipes. `from` may be closed before *config, by the same thread. */
CR_MUST cr_status cr_config_reopen(const struct cr_config **config, const struct cr_config *from,
                                   const char *const *overrides, int n);
/* A copy of `from` in which a command has other values: the defaults of the keys that decide one of `reset` (bits of
 * enum cr_key_decides), then n `changes` ("section.key=value"). The rules between keys are not checked again, and the
 * sources of all values stay those of `from`, so that messages name the user's lines. `from` may be closed before
 * *config, by the same thread. CR_ERR_CONFIG: a value is invalid. */
CR_MUST cr_status cr_config_derive(const struct cr_config **config, const struct cr_config *from, unsigned reset,
                                   const char *const *changes, int n);
/* The arguments `changes` and `n`. */
#define CR_CHANGES(...) (const char *const[]){__VA_ARGS__}, (int)CR_COUNT(((const char *const[]){__VA_ARGS__}))
/* The same in place, without `reset`: *config is closed, and becomes the copy. It stays as it is on failure. */
CR_MUST cr_status cr_config_change(const struct cr_config **config, const char *const *changes, int n);
/* One change in place, to a value of any length. `dotted` is "train.batch". */
CR_MUST cr_status cr_config_set(const struct cr_config **config, const char *dotted, const char *value);
void              cr_config_close(const struct cr_config *config); /* accepts NULL */

/* Reports one error about a key in the standard form, e.g. for a value that does not fit the dataset:
 * "configs/x.ini:14: [train] batch = 900: ...". `dotted` is "train.batch". Returns CR_ERR_CONFIG. */
cr_status cr_config_fail(const struct cr_config *config, const char *dotted, const char *fmt, ...) CR_PRINTF(3, 4);
/* True: the images are files of any size: a folder, a list, archives or a packed dataset. */
bool cr_config_has_image_files(const struct cr_config *config);
/* True for networks with a 32 px input (CIFAR networks, cifar stems); selects the default image size. */
bool cr_config_is_small(const struct cr_config *config);
/* Mean and standard deviation of a channel, as [data] mean and std give them: one number for all channels, or one for
 * each. */
double cr_config_mean(const struct cr_config *config, int channel);
double cr_config_std(const struct cr_config *config, int channel);
/* [data] image_sizes: images of size[k] pixels from epoch[k] on; epoch[0] is 0. */
enum { CR_SIZES_MAX = 8 };
struct cr_size_schedule {
    int     count;
    int     size[CR_SIZES_MAX];
    int64_t epoch[CR_SIZES_MAX];
};
/* Parses the key; an empty text gives count 0. False if the text is invalid. */
bool cr_config_sizes(const struct cr_config *config, struct cr_size_schedule *out);
int  cr_size_index(const struct cr_size_schedule *sizes, int64_t epoch); /* of the size in this epoch */
int  cr_size_largest(const struct cr_size_schedule *sizes);              /* index of the largest size */
bool cr_config_prunes(const struct cr_config *config);                   /* true if training prunes */
/* Bytes of device memory that [memory] card leaves to the run; 0: as many as the device has. */
size_t cr_config_card_bytes(const struct cr_config *config);
/* The epoch after which part `part` (from 0) of the list model.freeze is trained; 0: never. */
int64_t cr_config_unfreeze_epoch(const struct cr_config *config, int part);
/* True if a part is unfrozen after `epoch` epochs. */
bool cr_config_unfreezes(const struct cr_config *config, int64_t epoch);
/* Parses prune.block: output channels, or output x input channels, each 1 to 4096, product > 1. False if invalid. */
bool cr_config_block(const struct cr_config *config, int64_t *outputs, int64_t *inputs);
bool cr_config_is_binary(const struct cr_config *config);                  /* true: training has binary cross-entropy */
bool cr_config_mixes(const struct cr_config *config);                      /* true: random erasing, mixup or cutmix */
bool cr_config_mixes_labels(const struct cr_config *config);               /* true: mixup or cutmix */
bool cr_config_is_set(const struct cr_config *config, const char *dotted); /* false if the key has its default */
/* The file that gave the value; NULL for a default and for the command line. Valid until *config is closed. */
const char *cr_config_file(const struct cr_config *config, const char *dotted);

/* Reads the configuration that a run or checkpoint folder holds, as cr_config_dump wrote it. Somebody else may have
 * made the folder, so the file is data: it may not include others, a pipe is refused, and errors name lines without
 * their text. Datasets that it names are read, but nothing is written outside of the folder: see cr_config_given.
 * The file has every key of the version that wrote it. A newer key keeps what that version did: data.exif is `no`. */
CR_MUST cr_status cr_config_open_stored(const struct cr_config **config, const char *path, const char *const *overrides,
                                        int n);
/* cr_config_open, or with `stored` cr_config_open_stored, for the library: the overrides are from cresnet_options. */
CR_MUST cr_status cr_config_open_options(const struct cr_config **config, const char *path, bool stored,
                                         const char *const *overrides, int n);
/* True if the user gave the value of the key: on the command line, or in a file that the user named. */
bool cr_config_given(const struct cr_config *config, const char *dotted);

/* The word of an enum value, e.g. cr_word_arch(CR_ARCH_RESNET50) = "resnet50". */
#define E(name) const char *cr_word_##name(enum cr_##name value);
CR_ENUMS(E)
#undef E

/* Appends the complete config as INI text that parses to the same values. Equal configs give identical texts, without
 * includes and comments. */
void cr_config_dump(const struct cr_config *config, struct cr_text *out);
/* The same for a run folder, which commands read from any working folder: files and folders that exist, such as
 * data.root, get their absolute paths. */
void cr_config_dump_for_run(const struct cr_config *config, struct cr_text *out);
/* Appends every key with type, default, range and help text (`cresnet help keys`). */
void cr_config_help(struct cr_text *out);
/* Appends the help of one section ("optim"), one key ("optim.lr"), or all keys with a name ("lr"). False if unknown. */
bool cr_config_help_of(const char *topic, struct cr_text *out);
/* A key whose value differs between two configs. */
struct cr_config_difference {
    const char         *name; /* "optim.lr" */
    enum cr_key_decides decides;
    const char         *text;  /* "optim.lr: 0.1 -> 0.2" */
    const char         *fresh; /* the new value, as on a command line: "optim.lr=0.2" */
};
struct cr_config_differences {
    struct cr_config_difference *at;
    int                          count;
    struct cr_arena              arena;
};
/* Lists them in the order of config/config.def. Two paths of one file are equal. The caller calls
 * cr_config_differences_free, also after a failure. */
CR_MUST cr_status cr_config_compare(const struct cr_config *old, const struct cr_config *fresh,
                                    struct cr_config_differences *out);
void              cr_config_differences_free(struct cr_config_differences *differences);

/* Parses "8GiB", "700 MB", "1.5G": a number and a unit (B; K, M, G, T and KiB ... are powers of 1024; KB ... of 1000).
 * False if the text is invalid or the value is out of range. */
bool cr_bytes_parse(const char *text, size_t *bytes);

/* The present name of a kernel that an older version stored as `name`; `name` itself when it was not renamed. */
const char *cr_old_kernel_now(const char *name);

/* config/messages.c: `path` does not exist: writes "; did you mean configs/demo.ini?" when a file or folder of a
 * similar name does, or "". */
void cr_path_hint(const char *path, char *out, size_t bytes);

#endif

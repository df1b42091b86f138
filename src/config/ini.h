/* config/ini.h: INI files through iniparser, plus what iniparser does not tell: the line of each key, and complaints
 * about everything it would accept in silence. Internal to the configuration (config/ini.c, config*.c) and its tests.
 *
 * Laws
 *   - Our scan and iniparser read the same bytes; a value is iniparser's, a line number is ours. Where the two read a
 *     line differently, the file is refused, so a newer iniparser cannot change what a config means unnoticed.
 *   - A complaint never stops the reading: a file tells all that is wrong with it at once.
 *   - Section and key names are folded to lower case, values are kept to the byte.
 * Knows nothing of which sections and keys exist. */
#ifndef CR_INI_H
#define CR_INI_H

#include "core/base.h"

#include <sys/types.h>

/* What a person has to correct, collected over several files. A zeroed struct is an empty list. */
struct cr_complaint {
    const char *file; /* as the user named it, or "command line" */
    const char *text;
    int         line; /* 0: no line */
    int         rank; /* order of the files, then of lines, then of discovery */
};
struct cr_complaints {
    struct cr_arena      arena;
    struct cr_complaint *at;     /* CR_COMPLAINTS_MAX, once there is one */
    int                  count;  /* all, also those that are not kept */
    bool                 failed; /* out of memory; sticky */
};
/* `file` must outlive the list. */
void cr_complain(struct cr_complaints *list, const char *file, int line, const char *fmt, ...) CR_PRINTF(4, 5);
/* CR_OK when there are none; else CR_ERR_CONFIG with one line a complaint as the error message, or CR_ERR_MEMORY. */
CR_MUST cr_status cr_complaints_status(struct cr_complaints *list);
void              cr_complaints_free(struct cr_complaints *list);

enum {
    CR_INI_LINE_MAX   = 1000,      /* bytes a line: iniparser has a buffer of 1024 and drops the file beyond it */
    CR_INI_VALUE_MAX  = 900,       /* bytes a value: it fits into a line with its key */
    CR_INI_FILE_MAX   = 256 << 10, /* bytes a file */
    CR_INI_ENTRY_MAX  = 2000,      /* sections and keys a file */
    CR_COMPLAINTS_MAX = 200,       /* kept; the rest is only counted */
};

struct cr_ini_entry {
    const char *section; /* "" before the first section */
    const char *key;     /* NULL: the line is the section's header */
    const char *value;   /* "" when nothing stands after '=' */
    int         line;
};
struct cr_ini {
    const char          *path;
    struct cr_ini_entry *entry;
    int                  count;
    dev_t                device; /* device and inode: which file it is, whatever its path */
    ino_t                inode;
};

/* Reads the file into *ini, all in `arena`. What is wrong inside goes to `complaints` and the status is CR_OK, the
 * entries of the good lines still being there; CR_ERR_CONFIG: no such file, a folder, too large; CR_ERR_IO: unreadable.
 * Threads may call it at the same time (iniparser's error callback is one for the process: a mutex guards it). */
CR_MUST cr_status cr_ini_read(struct cr_ini *ini, const char *path, struct cr_arena *arena,
                              struct cr_complaints *complaints);

/* Whether an INI line can hold the value so that it reads back to the byte; if not, *why says why. */
bool cr_ini_can_hold(const char *value, const char **why);
/* Appends the value as it must stand after '=', in quotes where needed. The value must be one that a line can hold. */
void cr_ini_add_value(struct cr_text *text, const char *value);

#endif

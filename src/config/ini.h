/* config/ini.h: reads INI files with iniparser, and adds line numbers and strict error checks.
 *
 * Internal to config/ and its tests.
 *
 * Invariants
 *   - Our line scanner and iniparser read the same bytes; values come from iniparser, line numbers from the scanner. A
 *     line that the two read differently is an error, so a newer iniparser cannot silently change a config's meaning.
 *   - An error does not stop the parser: all errors of a file are reported at once.
 *   - Section and key names are converted to lower case; values keep every byte.
 * This file does not know which sections and keys exist. */
#ifndef CR_INI_H
#define CR_INI_H

#include "core/base.h"

#include <sys/types.h>

/* Errors that the user must correct, collected over several files. A zeroed struct is an empty list. */
struct cr_complaint {
    const char *file; /* as the user named it, or "command line" */
    const char *text;
    int         line; /* 0 if there is no line */
    int         rank; /* sort key: order of files, then of lines, then of detection */
};
struct cr_complaints {
    struct cr_arena      arena;
    struct cr_complaint *at;     /* capacity CR_COMPLAINTS_MAX, allocated with the first error */
    int                  count;  /* all errors, including those beyond the capacity */
    bool                 failed; /* out of memory; sticky */
    const char          *hidden; /* a file whose text errors do not show, or NULL; set before the first error */
};
/* Adds an error. `file` must stay valid as long as the list. */
void cr_complain(struct cr_complaints *list, const char *file, int line, const char *fmt, ...) CR_PRINTF(4, 5);
/* CR_OK for an empty list; else CR_ERR_CONFIG with one line per error as the message, or CR_ERR_MEMORY. */
CR_MUST cr_status cr_complaints_status(struct cr_complaints *list);
void              cr_complaints_free(struct cr_complaints *list);

enum {
    CR_INI_LINE_MAX   = 1000,      /* bytes per line: iniparser has a buffer of 1024 and fails beyond it */
    CR_INI_VALUE_MAX  = 900,       /* bytes per value, so that the value fits into a line with its key */
    CR_INI_FILE_MAX   = 256 << 10, /* bytes per file */
    CR_INI_ENTRY_MAX  = 2000,      /* sections and keys per file */
    CR_COMPLAINTS_MAX = 200,       /* stored errors; further errors are only counted */
};

struct cr_ini_entry {
    const char *section; /* "" before the first section */
    const char *key;     /* NULL if the line is a section header */
    const char *value;   /* "" if the text after '=' is empty */
    int         line;
};
struct cr_ini {
    const char          *path;
    struct cr_ini_entry *entry;
    int                  count;
    dev_t                device; /* device and inode identify the file independently of its path */
    ino_t                inode;
};

/* Reads the file into *ini; all memory comes from `arena`. `regular`: a pipe or device is CR_ERR_CONFIG at once. Syntax
 * errors are added to `complaints`; the status is then CR_OK and *ini has the entries of the valid lines.
 * CR_ERR_CONFIG: no such file, a folder, too large; CR_ERR_IO: unreadable. Thread-safe (a mutex protects iniparser's
 * process-wide error callback). */
CR_MUST cr_status cr_ini_read(struct cr_ini *ini, const char *path, bool regular, struct cr_arena *arena,
                              struct cr_complaints *complaints);

/* True if an INI line can hold the value without loss; otherwise *why is the reason. */
bool cr_ini_can_hold(const char *value, const char **why);
/* Appends the value as it must be written after '=', in quotes if needed. cr_ini_can_hold must be true for it. */
void cr_ini_add_value(struct cr_text *text, const char *value);

#endif

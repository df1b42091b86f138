/* core/temporary.h: temporary files and folders, which get their final name by an atomic rename when they are complete.
 *
 * A temporary file TARGET.tmp.PID lies in the folder of its target and is locked (flock) by the process that writes it.
 * A process that is killed leaves it behind without a lock. The next temporary file of the same target removes it; the
 * process id is only part of the name, since containers reuse these numbers. On a file system without locks, nothing
 * is removed.
 *
 * This file does not depend on what the files contain. */
#ifndef CR_TEMPORARY_H
#define CR_TEMPORARY_H

#include "core/files.h"

struct cr_temporary {
    char target[CR_PATH_MAX], path[CR_PATH_MAX];
    int  fd;   /* of a file: open for writing; -1 after the caller has closed it */
    int  lock; /* holds the lock; -1 without one */
};

/* Removes what killed processes have left of this target, and creates a temporary file. The caller ends with
 * cr_temporary_commit or cr_temporary_drop. CR_ERR_IO. */
CR_MUST cr_status cr_temporary_file(struct cr_temporary *t, const char *target);
/* The same for a folder; t->fd is -1. The caller renames the folder itself and ends with cr_temporary_drop. */
CR_MUST cr_status cr_temporary_folder(struct cr_temporary *t, const char *target);
/* Syncs and closes the file unless t->fd is -1, renames it to its target, and makes the new name durable. The
 * permissions of a file that is replaced stay. Ends the temporary file, also on failure. */
CR_MUST cr_status cr_temporary_commit(struct cr_temporary *t);
/* Removes the temporary file or folder, if it still has its name, and releases the lock. A zeroed struct is allowed. */
void cr_temporary_drop(struct cr_temporary *t);

#endif

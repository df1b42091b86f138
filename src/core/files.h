/* core/files.h: files and folders: the calls that change something on disk, in one place, so that a test can make the
 * n-th of them fail; reading a file whole or by parts; replacing a file at once.
 *
 * Laws
 *   - Every call that changes the disk goes through this file and is counted.
 *   - Reads and writes are loops: a short count or a signal is not an error.
 *   - The functions that return int are the system's own: 0 or a descriptor, else -1 and errno; they leave the error
 *     trail alone, so cleanup after a failure may use them. The others start a trail with the path in it.
 *   - Nothing here allocates but cr_file_read: cleanup works when memory has run out.
 * Knows nothing of checkpoints. */
#ifndef CR_FSUTIL_H
#define CR_FSUTIL_H

#include "core/base.h"

enum { CR_PATH_MAX = 4096 };

/* dir + "/" + the formatted name; CR_ERR_IO when the path gets too long. */
CR_MUST cr_status cr_path_join(char out[CR_PATH_MAX], const char *dir, const char *fmt, ...) CR_PRINTF(3, 4);

/* ---- changes, as the system calls ---- */
int cr_fs_create(const char *path); /* O_WRONLY, O_EXCL, O_CLOEXEC */
int cr_fs_sync(int fd);
int cr_fs_close(int fd); /* of a file that was written: may report a late error */
int cr_fs_mkdir(const char *path);
int cr_fs_rename(const char *from, const char *to);
int cr_fs_exchange(const char *a, const char *b); /* both names swap their meaning at once; EINVAL, ENOSYS: not here */
int cr_fs_symlink(const char *target, const char *path);
int cr_fs_unlink(const char *path);
int cr_fs_sync_dir(const char *path);    /* makes renames in the folder durable */
int cr_fs_remove_tree(const char *path); /* the folder and all in it; follows no links; goes on after a failure */

/* ---- questions; false too when nobody may look ---- */
bool cr_fs_is_dir(const char *path);
bool cr_fs_is_file(const char *path); /* a regular one */

/* ---- with messages ---- */

/* "PATH: cannot DOING: reason", with a hint of what to do, from an errno. */
cr_status cr_fs_refused(const char *path, const char *doing, int error);
/* Writes all bytes; `after` says how many more are to follow, for the message of a full disk. */
CR_MUST cr_status cr_fs_write(int fd, const char *path, const void *bytes, size_t count, uint64_t after);
/* Reads exactly `count` bytes from `offset`; CR_ERR_IO when the file ends before. */
CR_MUST cr_status cr_fs_read_at(int fd, const char *path, void *dst, size_t count, uint64_t offset);
/* Makes the folder and its parents; those that are there are fine. */
CR_MUST cr_status cr_fs_mkdirs(const char *path);
/* Writes a new file (it must not exist) and syncs it; removes it on failure. */
CR_MUST cr_status cr_fs_write_new(const char *path, const void *bytes, size_t count);
/* Reads a small file (config.ini, classes.txt) whole, with a 0 after its end; cr_free it. More than `limit` bytes:
 * CR_ERR_FORMAT. `length` may be NULL. */
CR_MUST cr_status cr_file_read(const char *path, size_t limit, char **out, size_t *length);
/* Replaces (or creates) a file through temporary + fsync + rename: readers see the old bytes or the new ones. */
CR_MUST cr_status cr_file_write_atomic(const char *path, const void *bytes, size_t count);

/* ---- for tests: failures on demand ---- */

/* The nth change from now (1 = the next) and the times - 1 after it fail with `error`; nth <= 0 switches off. */
void     cr_fs_fail_at(int64_t nth, int64_t times, int error);
uint64_t cr_fs_calls(void); /* changes tried since start */

#endif

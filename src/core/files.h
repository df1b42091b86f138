/* core/files.h: reads, writes and replaces files and folders, with failures on request for tests.
 *
 * Invariants
 *   - Every call that changes the disk goes through this file and is counted, so that a test can make the n-th fail.
 *   - Reads and writes loop: a partial transfer or a signal is not an error.
 *   - Functions that return int behave like the system call: 0 or a descriptor, else -1 and errno. They do not change
 *     the error trail, so that cleanup after a failure may use them. All other functions start a trail with the path.
 *   - Only cr_file_read allocates memory, so that cleanup works after memory is exhausted.
 *
 * This file does not depend on checkpoints. */
#ifndef CR_FILES_H
#define CR_FILES_H

#include "core/base.h"

enum { CR_PATH_MAX = 4096 };

/* The length of a path without slashes at its end; that of "/" is 1. */
size_t cr_path_length(const char *path);
/* The part of a path behind its last slash. */
const char *cr_path_name(const char *path);
/* Writes the path of the folder that holds `path`: "." for a path without a slash. */
void cr_path_folder(char out[CR_PATH_MAX], const char *path);
/* Copies a path. CR_ERR_IO if it exceeds CR_PATH_MAX. */
CR_MUST cr_status cr_path_copy(char out[CR_PATH_MAX], const char *path);
/* Writes dir + "/" + the formatted name to `out`. CR_ERR_IO if the path exceeds CR_PATH_MAX. */
CR_MUST cr_status cr_path_join(char out[CR_PATH_MAX], const char *dir, const char *fmt, ...) CR_PRINTF(3, 4);
/* Writes the path of a file in the user's cache folder: $VARIABLE/NAME, $XDG_CACHE_HOME/APP/NAME or ~/.cache/APP/NAME,
 * by the first variable that is set. "" when none is set or when `variable` is off. CR_ERR_IO if the path exceeds
 * CR_PATH_MAX; `out` is then "". */
CR_MUST cr_status cr_cache_path(char out[CR_PATH_MAX], const char *variable, const char *app, const char *name);

/* ---- system calls that change the disk ---- */
int cr_fs_create(const char *path); /* opens with O_WRONLY, O_CREAT, O_EXCL, O_CLOEXEC */
int cr_fs_sync(int fd);
int cr_fs_close(int fd); /* for written files: may report a delayed write error */
int cr_fs_mkdir(const char *path);
int cr_fs_rename(const char *from, const char *to);
int cr_fs_exchange(const char *a, const char *b); /* atomically exchanges two names; EINVAL, ENOSYS if unsupported */
int cr_fs_symlink(const char *target, const char *path);
int cr_fs_unlink(const char *path);
int cr_fs_sync_dir(const char *path);    /* makes renames in the folder durable */
int cr_fs_remove_tree(const char *path); /* removes a folder recursively; follows no links; continues after an error */

/* A file without a name in memory that holds the bytes, at its start; -1 on failure, with errno. The caller closes
 * it. */
int cr_fs_memory_file(const void *bytes, size_t count);

/* ---- queries; also false if permission is missing ---- */
bool cr_fs_is_dir(const char *path);
bool cr_fs_is_file(const char *path);                     /* true for a regular file */
bool cr_fs_has_dir(const char *folder, const char *name); /* the same for FOLDER/NAME */
bool cr_fs_has_file(const char *folder, const char *name);
/* True when the paths are equal, or lead to the same folder or file through links. */
bool cr_fs_is_same(const char *a, const char *b);

/* ---- functions with error messages ---- */

/* Sets CR_ERR_IO "PATH: cannot DOING: reason" with a hint, from an errno value. Returns the status. */
cr_status cr_fs_refused(const char *path, const char *doing, int error);
/* Writes all bytes. `after` is the number of bytes that follow in later calls, for the message of a full disk. */
CR_MUST cr_status cr_fs_write(int fd, const char *path, const void *bytes, size_t count, uint64_t after);
/* Reads exactly `count` bytes at `offset`. CR_ERR_IO if the file is shorter. */
CR_MUST cr_status cr_fs_read_at(int fd, const char *path, void *dst, size_t count, uint64_t offset);
/* Creates the folder and its parents. Existing folders are no error. */
CR_MUST cr_status cr_fs_mkdirs(const char *path);
CR_MUST cr_status cr_fs_mkdirs_of(const char *path); /* the folder of this file */
/* Writes and syncs a new file, which must not exist. Removes the file on failure. */
CR_MUST cr_status cr_fs_write_new(const char *path, const void *bytes, size_t count);
/* Opens a regular file with O_RDONLY, O_RDWR and further flags of open(2). A folder, device or pipe is CR_ERR_IO and
 * never waits; with O_NOFOLLOW a link is CR_ERR_IO as well. The caller closes *fd. */
CR_MUST cr_status cr_fs_open_regular(const char *path, int flags, int *fd);
/* CR_ERR_IO "PATH: is a folder, not a file" unless an open file is regular. */
CR_MUST cr_status cr_fs_check_regular(int fd, const char *path);
/* Reads a small file (config.ini, classes.txt) into memory and appends a 0 byte; the caller frees *out with cr_free.
 * CR_ERR_FORMAT if the file has more than `limit` bytes. `length` may be NULL. The second form refuses a link with
 * CR_ERR_IO: for a file whose text is printed, and whose folder may come from somebody else. */
CR_MUST cr_status cr_file_read(const char *path, size_t limit, char **out, size_t *length);
CR_MUST cr_status cr_file_read_no_link(const char *path, size_t limit, char **out, size_t *length);
/* core/temporary.c: replaces or creates a file with a temporary file, fsync and rename: readers see the old or the new
 * content. A link with this name is replaced, not followed: core/output_file.h checks names that users give. */
CR_MUST cr_status cr_file_write_atomic(const char *path, const void *bytes, size_t count);

/* ---- failures on request, for tests ---- */

/* The nth change from now (1 = the next) and the times - 1 changes after it fail with `error`; nth <= 0 disables. */
void     cr_fs_fail_at(int64_t nth, int64_t times, int error);
uint64_t cr_fs_calls(void); /* number of attempted changes since start */

#endif

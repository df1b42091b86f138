/* core/files.c: file and folder operations with error messages; see core/files.h. */
#include "core/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- failures on request ---- */

static atomic_uint_fast64_t fs_calls, fail_from, fail_until;
static atomic_int           fail_error;

void cr_fs_fail_at(int64_t nth, int64_t times, int error) {
    uint64_t from = atomic_load(&fs_calls) + (uint64_t)CR_MAX(nth, 0);
    atomic_store(&fail_error, error);
    atomic_store(&fail_until, nth > 0 ? from + (uint64_t)times : 0);
    atomic_store(&fail_from, nth > 0 ? from : 0);
}

uint64_t cr_fs_calls(void) {
    return atomic_load(&fs_calls);
}

/* Counts a change. Returns true, with errno set, if a test requested that it fails. */
static bool must_fail(void) {
    uint64_t call = atomic_fetch_add(&fs_calls, 1) + 1;
    if (call < atomic_load(&fail_from) || call >= atomic_load(&fail_until)) return false;
    errno = atomic_load(&fail_error);
    return true;
}

/* ---- changes ---- */

/* Evaluates a system call; repeats it after an interruption by a signal. */
#define AGAIN(result, call)                                                                                            \
    do {                                                                                                               \
        (result) = (call);                                                                                             \
    } while ((result) < 0 && errno == EINTR)

int cr_fs_create(const char *path) {
    int fd;
    if (must_fail()) return -1;
    AGAIN(fd, open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    return fd;
}

int cr_fs_sync(int fd) {
    int result;
    if (must_fail()) return -1;
    AGAIN(result, fsync(fd));
    /* some file systems (FUSE folders, for example) have nothing to sync and return an error */
    return result < 0 && (errno == EINVAL || errno == ENOTSUP) ? 0 : result;
}

int cr_fs_close(int fd) {
    bool fail   = must_fail();
    int  error  = errno;
    int  result = close(fd); /* not repeated after a signal: the descriptor is already closed */
    if (fail) {
        errno = error;
        return -1;
    }
    return result < 0 && errno != EINTR ? -1 : 0;
}

int cr_fs_mkdir(const char *path) {
    return must_fail() ? -1 : mkdir(path, 0777);
}
int cr_fs_rename(const char *from, const char *to) {
    return must_fail() ? -1 : rename(from, to);
}
int cr_fs_symlink(const char *target, const char *path) {
    return must_fail() ? -1 : symlink(target, path);
}
int cr_fs_unlink(const char *path) {
    return must_fail() ? -1 : unlink(path);
}

int cr_fs_exchange(const char *a, const char *b) {
    return must_fail() ? -1 : renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

int cr_fs_sync_dir(const char *path) {
    int fd;
    AGAIN(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return -1;
    int result = cr_fs_sync(fd), error = errno;
    close(fd);
    errno = error;
    return result;
}

/* Removes a name in an open folder: a file, a link, or a folder with its content. */
static int remove_at(int parent, const char *name, int depth) {
    if (must_fail()) return -1;
    if (unlinkat(parent, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    DIR *dir = depth < 16 ? fdopendir(fd) : NULL;
    if (!dir) {
        int error = depth < 16 ? errno : ELOOP;
        close(fd);
        errno = error;
        return -1;
    }
    int first_error = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (remove_at(dirfd(dir), e->d_name, depth + 1) < 0 && !first_error) first_error = errno;
    }
    closedir(dir);
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0) return 0;
    if (first_error) errno = first_error;
    return -1;
}

int cr_fs_remove_tree(const char *path) {
    return remove_at(AT_FDCWD, path, 0);
}

/* ---- functions with error messages ---- */

cr_status cr_fs_refused(const char *path, const char *doing, int error) {
    const char *hint = "";
    switch (error) {
    case ENOSPC:
    case EDQUOT: hint = ": disk full, free some space or choose another place"; break;
    case EACCES:
    case EPERM:
    case EROFS: hint = ": change its permissions or choose another place"; break;
    case EEXIST: hint = ": choose another name or move it away"; break;
    case ENOTDIR: hint = ": a part of this path is a file; choose another place"; break;
    case ENOENT: hint = strcmp(doing, "create") == 0 ? ": make its folder or choose another place" : ""; break;
    default: break;
    }
    return CR_FAIL(CR_ERR_IO, "%s: cannot %s: %s%s", path, doing, strerror(error), hint);
}

int cr_fs_memory_file(const void *bytes, size_t count) {
    const int fd = memfd_create("cresnet", MFD_CLOEXEC);
    for (size_t done = 0; fd >= 0 && done < count;) {
        const ssize_t wrote = write(fd, (const char *)bytes + done, count - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            const int failed = wrote < 0 ? errno : ENOSPC;
            close(fd);
            errno = failed;
            return -1;
        }
        done += (size_t)wrote;
    }
    if (fd >= 0) (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

size_t cr_path_length(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    return length;
}

const char *cr_path_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void cr_path_folder(char out[CR_PATH_MAX], const char *path) {
    const char *slash = strrchr(path, '/');
    snprintf(out, CR_PATH_MAX, "%.*s", slash ? (int)CR_MAX(slash - path, 1) : 1, slash ? path : ".");
}

static cr_status fail_long(const char *path) {
    return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long (at most %d bytes)", path, CR_PATH_MAX - 1);
}

cr_status cr_path_copy(char out[CR_PATH_MAX], const char *path) {
    return snprintf(out, CR_PATH_MAX, "%s", path) < CR_PATH_MAX ? CR_OK : fail_long(path);
}

cr_status cr_path_join(char out[CR_PATH_MAX], const char *dir, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int used = snprintf(out, CR_PATH_MAX, "%s/", dir);
    int more = used < CR_PATH_MAX ? vsnprintf(out + used, (size_t)(CR_PATH_MAX - used), fmt, args) : 0;
    va_end(args);
    return used < 0 || more < 0 || used + more >= CR_PATH_MAX ? fail_long(dir) : CR_OK;
}

cr_status cr_cache_path(char out[CR_PATH_MAX], const char *variable, const char *app, const char *name) {
    const char *own = getenv(variable), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    cr_status   status = CR_OK;
    *out               = 0;
    if (own && strcmp(own, "off") == 0) return CR_OK;
    if (own && *own)
        status = cr_path_join(out, own, "%s", name);
    else if (xdg && *xdg == '/')
        status = cr_path_join(out, xdg, "%s/%s", app, name); /* the XDG standard: ignore relative paths */
    else if (home && *home)
        status = cr_path_join(out, home, ".cache/%s/%s", app, name);
    if (status != CR_OK) *out = 0;
    return status;
}

static cr_status disk_full(const char *path, uint64_t missing, int error) {
    const char *why     = error == ENOSPC   ? "disk full"
                          : error == EDQUOT ? "disk quota reached"
                                            : "file size limit reached";
    char        mib[40] = "";
    if (missing >= 1 << 20) snprintf(mib, sizeof mib, " (%.1f MiB)", (double)missing / (1 << 20));
    return CR_FAIL(CR_ERR_IO, "%s: %s: %" PRIu64 " bytes%s could not be written; %s", path, why, missing, mib,
                   error == EFBIG ? "raise the limit (ulimit -f)" : "free some space or choose another place");
}

cr_status cr_fs_write(int fd, const char *path, const void *bytes, size_t count, uint64_t after) {
    const char *at = bytes;
    while (count > 0) {
        ssize_t done = must_fail() ? -1 : write(fd, at, CR_MIN(count, (size_t)1 << 30));
        if (done < 0) {
            if (errno == EINTR) continue;
            if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return disk_full(path, count + after, errno);
            return cr_fs_refused(path, "write", errno);
        }
        at += done;
        count -= (size_t)done;
    }
    return CR_OK;
}

cr_status cr_fs_read_at(int fd, const char *path, void *dst, size_t count, uint64_t offset) {
    char *at = dst;
    if (offset > INT64_MAX || count > INT64_MAX - offset)
        return CR_FAIL(CR_ERR_IO, "%s: cannot read at byte %" PRIu64, path, offset);
    while (count > 0) {
        ssize_t done = pread(fd, at, CR_MIN(count, (size_t)1 << 30), (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return cr_fs_refused(path, "read", errno);
        if (done == 0)
            return CR_FAIL(CR_ERR_IO, "%s: ends at byte %" PRIu64 ": the file was truncated while it was read", path,
                           offset);
        at += done;
        count -= (size_t)done;
        offset += (uint64_t)done;
    }
    return CR_OK;
}

bool cr_fs_is_dir(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool cr_fs_has_dir(const char *folder, const char *name) {
    char path[CR_PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && cr_fs_is_dir(path);
}

bool cr_fs_has_file(const char *folder, const char *name) {
    char path[CR_PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && cr_fs_is_file(path);
}

bool cr_fs_is_same(const char *a, const char *b) {
    struct stat s, t;
    if (strcmp(a, b) == 0) return true;
    return stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

bool cr_fs_is_file(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

/* Makes the name of a new folder durable, which its parent holds. A parent that may not be read cannot be synced. */
static cr_status sync_parent(const char *path) {
    char parent[CR_PATH_MAX];
    cr_path_folder(parent, path);
    if (cr_fs_sync_dir(parent) == 0 || errno == EACCES) return CR_OK;
    return cr_fs_refused(parent, "write to the disk", errno);
}

static cr_status make_one_dir(const char *path) {
    if (cr_fs_is_dir(path)) return CR_OK;
    if (cr_fs_mkdir(path) == 0) return sync_parent(path);
    int error = errno;
    if (error == EEXIST && cr_fs_is_dir(path)) return CR_OK; /* another process created it first */
    if (error == EEXIST) return CR_FAIL(CR_ERR_IO, "%s: exists, but is not a folder; choose another place", path);
    return cr_fs_refused(path, "create this folder", error);
}

cr_status cr_fs_mkdirs(const char *path) {
    char   part[CR_PATH_MAX];
    size_t length = strlen(path);
    if (length == 0) return CR_FAIL(CR_ERR_IO, "the name of the folder is empty");
    if (length >= sizeof part) return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        if (path[i - 1] == '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        CR_TRY(make_one_dir(part));
    }
    return CR_OK;
}

cr_status cr_fs_mkdirs_of(const char *path) {
    char folder[CR_PATH_MAX];
    cr_path_folder(folder, path);
    return cr_fs_mkdirs(folder);
}

cr_status cr_fs_write_new(const char *path, const void *bytes, size_t count) {
    int fd = cr_fs_create(path);
    if (fd < 0) return cr_fs_refused(path, "create", errno);
    cr_status status = cr_fs_write(fd, path, bytes, count, 0);
    if (status == CR_OK && cr_fs_sync(fd) < 0) status = cr_fs_refused(path, "write to the disk", errno);
    if (cr_fs_close(fd) < 0 && status == CR_OK) status = cr_fs_refused(path, "close", errno);
    if (status != CR_OK) cr_fs_unlink(path);
    return status;
}

cr_status cr_fs_check_regular(int fd, const char *path) {
    struct stat s;
    if (fstat(fd, &s) < 0) return cr_fs_refused(path, "read", errno);
    if (S_ISREG(s.st_mode)) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s: is %s, not a file", path, S_ISDIR(s.st_mode) ? "a folder" : "a device or pipe");
}

cr_status cr_fs_open_regular(const char *path, int flags, int *fd) {
    /* O_NONBLOCK: opening a pipe must not wait for its other end; O_NOCTTY: a terminal must not become ours */
    int file;
    AGAIN(file, open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
    if (file < 0 && errno == ELOOP && (flags & O_NOFOLLOW))
        return CR_FAIL(CR_ERR_IO, "%s: is a link, which is not followed here: %s", path,
                       (flags & O_ACCMODE) == O_RDONLY ? "replace it by a copy of the file" : "remove it");
    if (file < 0 && errno == ENXIO) return CR_FAIL(CR_ERR_IO, "%s: is a device or pipe, not a file", path);
    if (file < 0) return cr_fs_refused(path, "open", errno);
    cr_status status = cr_fs_check_regular(file, path);
    if (status != CR_OK) {
        close(file);
        return status;
    }
    *fd = file;
    return CR_OK;
}

static cr_status read_whole(const char *path, int flags, size_t limit, char **out, size_t *length) {
    struct stat s;
    char       *text   = NULL;
    cr_status   status = CR_OK;
    int         fd;
    CR_TRY(cr_fs_open_regular(path, O_RDONLY | flags, &fd));
    if (fstat(fd, &s) < 0) CR_TRY_OUT(cr_fs_refused(path, "read", errno));
    if ((uint64_t)s.st_size > limit)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: has %lld bytes; at most %zu are expected here", path, (long long)s.st_size,
                    limit);
    CR_ALLOC_OUT(text, (size_t)s.st_size + 1);
    CR_TRY_OUT(cr_fs_read_at(fd, path, text, (size_t)s.st_size, 0));
    *out = text;
    text = NULL;
    if (length) *length = (size_t)s.st_size;
out:
    cr_free(text);
    close(fd);
    return status;
}

cr_status cr_file_read(const char *path, size_t limit, char **out, size_t *length) {
    return read_whole(path, 0, limit, out, length);
}

cr_status cr_file_read_no_link(const char *path, size_t limit, char **out, size_t *length) {
    return read_whole(path, O_NOFOLLOW, limit, out, length);
}

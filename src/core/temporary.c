/* core/temporary.c: locked temporary files and folders; see core/temporary.h. */
#include "core/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ATTEMPTS = 100 };

/* ---- names ---- */

/* Returns whether `name` is BASE.tmp.PID or BASE.tmp.PID.ATTEMPT. */
static bool is_temporary_of(const char *name, const char *base) {
    static const char middle[] = ".tmp.";
    const size_t      length   = strlen(base);
    if (strncmp(name, base, length) != 0 || strncmp(name + length, middle, sizeof middle - 1) != 0) return false;
    name += length + sizeof middle - 1;
    const size_t digits = strspn(name, "0123456789");
    if (!digits) return false;
    if (!name[digits]) return true;
    return name[digits] == '.' && name[digits + 1] && !name[digits + 1 + strspn(name + digits + 1, "0123456789")];
}

/* ---- locks ---- */

/* Opens a temporary file or folder that exists, or returns -1. */
static int open_existing(const char *path, bool folder) {
    struct stat s;
    int         fd = open(path, (folder ? O_DIRECTORY : 0) | O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &s) == 0 && (folder ? S_ISDIR(s.st_mode) : S_ISREG(s.st_mode))) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Locks what was just created. False when a process that removes leftovers was faster and has removed it. */
static bool lock_new(int fd) {
    struct stat s;
    int         result;
    do result = flock(fd, LOCK_EX);
    while (result < 0 && errno == EINTR);
    return fstat(fd, &s) < 0 || s.st_nlink > 0;
}

/* ---- what killed processes have left ---- */

static void remove_leftovers(const char *target, bool folder) {
    char parent[CR_PATH_MAX], path[CR_PATH_MAX];
    cr_path_folder(parent, target);
    DIR *dir = opendir(parent);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!is_temporary_of(e->d_name, cr_path_name(target))) continue;
        if (snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= (int)sizeof path) continue;
        const int fd = open_existing(path, folder);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) (void)(folder ? cr_fs_remove_tree(path) : cr_fs_unlink(path));
        close(fd);
    }
    if (dir) closedir(dir);
}

/* ---- create ---- */

/* Creates the file or folder under its present name. 0, or -1 and errno. */
static int create_once(struct cr_temporary *t, bool folder) {
    if (folder) {
        if (cr_fs_mkdir(t->path) < 0) return -1;
        t->lock = open_existing(t->path, true);
    } else {
        t->fd = cr_fs_create(t->path);
        if (t->fd < 0) return -1;
        t->lock = fcntl(t->fd, F_DUPFD_CLOEXEC, 0); /* keeps the lock when t->fd is closed */
    }
    if (t->lock < 0) return 0;
    if (lock_new(t->lock)) return 0;
    close(t->lock);
    if (t->fd >= 0) close(t->fd);
    t->lock = t->fd = -1;
    errno           = EEXIST;
    return -1;
}

static cr_status create(struct cr_temporary *t, const char *target, bool folder) {
    *t       = (struct cr_temporary){.fd = -1, .lock = -1};
    int used = snprintf(t->target, sizeof t->target, "%s", target);
    for (int attempt = 0; used < CR_PATH_MAX; attempt++) {
        char again[16] = "";
        if (attempt) snprintf(again, sizeof again, ".%d", attempt);
        used = snprintf(t->path, sizeof t->path, "%s.tmp.%ld%s", target, (long)getpid(), again);
        if (used >= CR_PATH_MAX) break;
        if (!attempt) remove_leftovers(target, folder);
        if (create_once(t, folder) == 0) return CR_OK;
        if (errno == EEXIST && attempt < ATTEMPTS) continue; /* a process of another container has the same number */
        cr_status status = cr_fs_refused(t->path, "create", errno);
        t->path[0]       = 0;
        return status;
    }
    t->path[0] = 0;
    return CR_FAIL(CR_ERR_IO, "%.200s...: the path is too long", target);
}

cr_status cr_temporary_file(struct cr_temporary *t, const char *target) {
    return create(t, target, false);
}

cr_status cr_temporary_folder(struct cr_temporary *t, const char *target) {
    return create(t, target, true);
}

/* ---- commit, drop ---- */

/* Gives the temporary file the permissions of the file that it replaces. */
static void keep_permissions(const struct cr_temporary *t) {
    struct stat s;
    if (stat(t->target, &s) == 0 && S_ISREG(s.st_mode)) (void)!chmod(t->path, s.st_mode & 0777);
}

static cr_status commit(struct cr_temporary *t) {
    char parent[CR_PATH_MAX];
    if (t->fd >= 0) {
        const int fd = t->fd;
        if (cr_fs_sync(fd) < 0) return cr_fs_refused(t->target, "write to the disk", errno);
        t->fd = -1;
        if (cr_fs_close(fd) < 0) return cr_fs_refused(t->target, "close", errno);
    }
    keep_permissions(t);
    if (cr_fs_rename(t->path, t->target) < 0) return cr_fs_refused(t->target, "replace", errno);
    t->path[0] = 0;
    cr_path_folder(parent, t->target);
    return cr_fs_sync_dir(parent) < 0 ? cr_fs_refused(parent, "write to the disk", errno) : CR_OK;
}

cr_status cr_temporary_commit(struct cr_temporary *t) {
    cr_status status = commit(t);
    cr_temporary_drop(t);
    return status;
}

void cr_temporary_drop(struct cr_temporary *t) {
    const int error = errno;
    if (t->path[0]) {
        if (t->fd >= 0) cr_fs_close(t->fd);
        if (cr_fs_unlink(t->path) < 0 && (errno == EISDIR || errno == EPERM)) cr_fs_remove_tree(t->path);
        if (t->lock >= 0) close(t->lock);
    } else if (t->target[0] && t->lock >= 0)
        close(t->lock);
    *t    = (struct cr_temporary){.fd = -1, .lock = -1};
    errno = error;
}

cr_status cr_file_write_atomic(const char *path, const void *bytes, size_t count) {
    struct cr_temporary t;
    CR_TRY(cr_temporary_file(&t, path));
    cr_status status = cr_fs_write(t.fd, path, bytes, count, 0);
    if (status == CR_OK) return cr_temporary_commit(&t);
    cr_temporary_drop(&t);
    return status;
}

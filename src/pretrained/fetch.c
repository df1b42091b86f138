/* pretrained/fetch.c: finds the file of pretrained weights, or downloads it into the cache and checks its hash. See
 * pretrained/pretrained.h. */
#include "core/checksum/sha256.h"
#include "core/host.h"
#include "pretrained/pretrained.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_URL "https://download.pytorch.org/models"

enum {
    ATTEMPTS        = 4,
    TIMEOUT_SECONDS = 30,
    TIMEOUT_MAX     = 3600,
    TOTAL_SECONDS   = 6 * 3600,
    TOTAL_MAX       = 1000000,
    FOLDERS         = 3
};

/* ---- folders ---- */

enum { IN_USERS_FOLDER, IN_CACHE, IN_TORCH_CACHE };

/* The folders to search, in this order; "" for those that do not exist here. */
static cr_status list_folders(char folder[FOLDERS][CR_PATH_MAX]) {
    const char *given = getenv("CRESNET_WEIGHTS_DIR");
    CR_TRY(cr_path_copy(folder[IN_USERS_FOLDER], given ? given : ""));
    CR_TRY(cr_cache_path(folder[IN_CACHE], "CRESNET_CACHE", "cresnet", "weights"));
    return cr_cache_path(folder[IN_TORCH_CACHE], "TORCH_HOME", "torch", "hub/checkpoints");
}

/* ---- the hash ---- */

static cr_status hash_fits(int fd, const char *path, const struct cr_pretrained *entry, bool *fits) {
    char hex[2 * CR_SHA256_BYTES + 1];
    CR_TRY(cr_sha256_file(fd, path, hex));
    *fits = strncmp(hex, entry->hash, strlen(entry->hash)) == 0;
    return CR_OK;
}

/* Sets *good if the file is there and, unless it is `trusted`, has the published hash. Others are left alone. */
static cr_status try_file(const char *path, const struct cr_pretrained *entry, bool trusted, bool *good) {
    int fd;
    *good = false;
    if (!cr_fs_is_file(path)) return CR_OK;
    *good = trusted;
    if (trusted) return CR_OK;
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    const cr_status status = hash_fits(fd, path, entry, good);
    close(fd);
    if (status == CR_OK && !*good)
        cr_log(CR_LOG_WARN, "%s is ignored: its SHA-256 does not begin with %s, as its name says", path, entry->hash);
    return status;
}

/* ---- the download ---- */

struct fetch {
    const struct cr_pretrained *entry;
    const char                 *path, *url;
    char                        part[CR_PATH_MAX];
    int                         fd;      /* of the part, locked */
    int                         timeout; /* seconds */
    int64_t                     end_ns;  /* of cr_time_ns: the end of all attempts */
};

static int read_seconds(const char *name, int usual, int most) {
    const char *text = getenv(name);
    char       *end;
    const long  seconds = text ? strtol(text, &end, 10) : 0;
    if (!text || !*text) return usual;
    if (*end || seconds < 1 || seconds > most) {
        cr_log(CR_LOG_WARN, "%s is ignored: it must be a number of seconds from 1 to %d", name, most);
        return usual;
    }
    return (int)seconds;
}

/* Waits for the lock of the part. */
static cr_status lock_part(struct fetch *f) {
    if (flock(f->fd, LOCK_EX | LOCK_NB) == 0) return CR_OK;
    if (errno == EWOULDBLOCK) {
        cr_log(CR_LOG_INFO, "%s: another process downloads it: waiting", f->entry->name);
        while (cr_time_ns() < f->end_ns && !cr_host_interrupted()) {
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
            if (flock(f->fd, LOCK_EX | LOCK_NB) == 0) return CR_OK;
            if (errno != EWOULDBLOCK && errno != EINTR) break;
        }
        if (errno == EWOULDBLOCK || errno == EINTR)
            return CR_FAIL(CR_ERR_IO,
                           "%s: waiting for the process that downloads it was interrupted, or took longer than "
                           "CRESNET_DOWNLOAD_MAX_TIME",
                           f->entry->name);
    }
    return CR_FAIL(CR_ERR_IO, "%s: cannot be locked: %s; CRESNET_CACHE=DIR selects another folder for the cache",
                   f->part, strerror(errno));
}

/* Opens and locks the part. *done: another process has completed the file in the meantime. */
static cr_status open_part(struct fetch *f, bool *done) {
    for (;;) {
        struct stat open_file, named;
        f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (f->fd < 0) return cr_fs_refused(f->part, "create", errno);
        CR_TRY(cr_fs_check_regular(f->fd, f->part));
        CR_TRY(lock_part(f));
        *done = cr_fs_is_file(f->path);
        if (*done) return CR_OK;
        if (fstat(f->fd, &open_file) == 0 && lstat(f->part, &named) == 0 && open_file.st_ino == named.st_ino &&
            open_file.st_dev == named.st_dev)
            return CR_OK;
        close(f->fd); /* the file that was locked was removed or has its final name */
        f->fd = -1;
    }
}

static void wait_before(int attempt, int timeout) {
    const int64_t end = cr_time_ns() + CR_MIN(attempt, timeout) * INT64_C(1000000000);
    while (cr_time_ns() < end && !cr_host_interrupted()) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

/* Requests the file until it is complete. */
static cr_status request(struct fetch *f) {
    const struct cr_download d = {.url     = f->url,
                                  .name    = f->entry->name,
                                  .path    = f->part,
                                  .fd      = f->fd,
                                  .timeout = f->timeout,
                                  .end_ns  = f->end_ns};
    for (int attempt = 1;; attempt++) {
        const enum cr_download_result result = cr_download(&d);
        if (result == CR_DOWNLOAD_COMPLETE) return CR_OK;
        if (result == CR_DOWNLOAD_REFUSED || attempt == ATTEMPTS)
            return cr_error_forward(CR_ERR_IO, __FILE__, __LINE__);
        cr_log(CR_LOG_INFO, "%s; attempt %d of %d", cr_error_message(), attempt + 1, ATTEMPTS);
        cr_error_clear();
        wait_before(attempt, f->timeout);
    }
}

static cr_status complete(struct fetch *f) {
    if (cr_fs_sync(f->fd) < 0) return cr_fs_refused(f->part, "write to the disk", errno);
    if (cr_fs_rename(f->part, f->path) < 0) return cr_fs_refused(f->path, "create", errno);
    return CR_OK;
}

/* A wrong hash after a download that was continued may come from its first part: the second round starts anew. */
static cr_status download_rounds(struct fetch *f) {
    struct stat s;
    for (int round = 1;; round++) {
        bool fits = false;
        if (fstat(f->fd, &s) < 0) return cr_fs_refused(f->part, "read", errno);
        cr_log(CR_LOG_INFO, s.st_size ? "%s: continuing the download of %s" : "%s: downloading %s", f->entry->name,
               f->url);
        CR_TRY(request(f));
        CR_TRY(hash_fits(f->fd, f->part, f->entry, &fits));
        if (fits) return complete(f);
        if (ftruncate(f->fd, 0) < 0) return cr_fs_refused(f->part, "write", errno);
        if (round == 1 && s.st_size) continue;
        cr_fs_unlink(f->part);
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: the SHA-256 of what the server sent does not begin with %s: the file was changed or "
                       "truncated on the way, and was removed",
                       f->url, f->entry->hash);
    }
}

static cr_status download(const struct cr_pretrained *entry, const char *url, const char *folder, const char *path) {
    struct fetch f    = {.entry   = entry,
                         .path    = path,
                         .url     = url,
                         .fd      = -1,
                         .timeout = read_seconds("CRESNET_DOWNLOAD_TIMEOUT", TIMEOUT_SECONDS, TIMEOUT_MAX)};
    bool         done = false;
    cr_status    status;
    const int    total = read_seconds("CRESNET_DOWNLOAD_MAX_TIME", TOTAL_SECONDS, TOTAL_MAX);
    f.end_ns           = cr_time_ns() + total * INT64_C(1000000000);
    CR_TRY(cr_fs_mkdirs(folder));
    CR_TRY(cr_path_join(f.part, folder, "%s.part", cr_path_name(path)));
    CR_TRY_OUT(open_part(&f, &done));
    if (done)
        cr_fs_unlink(f.part); /* only this process has it open: the other one has renamed its own */
    else
        CR_TRY_OUT(download_rounds(&f));
out:
    if (f.fd >= 0) close(f.fd);
    return status;
}

/* ---- the file of a name ---- */

static bool is_offline(void) {
    const char *text = getenv("CRESNET_OFFLINE");
    return text && *text && strcmp(text, "0") != 0;
}

/* Why nothing can be downloaded; NULL when it can. */
static const char *why_not(const char *cache) {
    if (is_offline()) return "CRESNET_OFFLINE is set";
    if (cr_download_missing()) return cr_download_missing();
    return *cache ? NULL : "there is no cache folder (CRESNET_CACHE is off, or HOME is not set)";
}

static cr_status fail_missing(const struct cr_pretrained *entry, const char *url, const char *why,
                              char folder[FOLDERS][CR_PATH_MAX]) {
    struct cr_text text = {0};
    for (int i = 0; i < FOLDERS; i++)
        if (*folder[i])
            cr_text_add(&text, "%s%s", text.length ? ", " : "put it into one of these folders: ", folder[i]);
    if (text.length) cr_text_add(&text, "; or ");
    const cr_status status =
        CR_FAIL(CR_ERR_IO,
                "%s: %s is not on this machine, and %s: download %s elsewhere and %sname the folder that has it with "
                "CRESNET_WEIGHTS_DIR",
                entry->name, entry->file, why, url, text.data && !text.failed ? text.data : "");
    cr_text_free(&text);
    return status;
}

cr_status cr_pretrained_file(const char *name, char path[CR_PATH_MAX]) {
    struct cr_pretrained entry;
    char                 folder[FOLDERS][CR_PATH_MAX], url[CR_PATH_MAX];
    const char          *base = getenv("CRESNET_WEIGHTS_URL");
    bool                 good = false;
    CR_TRY(cr_pretrained_find(name, &entry));
    CR_TRY(list_folders(folder));
    for (int i = 0; i < FOLDERS && !good; i++) {
        if (!*folder[i]) continue;
        CR_TRY(cr_path_join(path, folder[i], "%s", entry.file));
        CR_TRY(try_file(path, &entry, i == IN_CACHE, &good));
    }
    if (good) return CR_OK;
    CR_TRY(cr_path_join(url, base && *base ? base : DEFAULT_URL, "%s", entry.file));
    const char *why = why_not(folder[IN_CACHE]);
    if (why) return fail_missing(&entry, url, why, folder);
    CR_TRY(cr_path_join(path, folder[IN_CACHE], "%s", entry.file));
    return download(&entry, url, folder[IN_CACHE], path);
}

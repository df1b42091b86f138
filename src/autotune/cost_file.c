/* autotune/cost_file.c: reads and writes the file that stores the cost table in the user's cache folder. See
 * autotune/cost_table.h. */
#include "autotune/cost_table_internal.h"

#include "core/files.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 64 << 20, POLL_NS = 10000000 };
static const int64_t wait_ns = 15000000000; /* a process that measures for longer is not waited for */

cr_status cr_cost_table_path(const struct cr_device *device, char **out) {
    char   name[48], file[80], path[CR_PATH_MAX];
    size_t n = 0;
    *out     = NULL;
    for (const char *s = device->caps.text; *s && *s != ',' && n + 1 < sizeof name; s++)
        name[n++] = isalnum((unsigned char)*s) ? (char)tolower((unsigned char)*s) : '-';
    name[n] = 0;
    snprintf(file, sizeof file, "kernel-times-%s.txt", name);
    if (cr_cache_path(path, "CRESNET_CACHE", "cresnet", file) != CR_OK) {
        cr_log(CR_LOG_WARN, "%s; kernel times are not saved", cr_error_message());
        cr_error_clear();
    }
    *out = cr_strdup(path);
    return *out ? CR_OK : CR_NO_MEMORY(sizeof path);
}

/* An error of the file costs time but does not stop the run. */
static void read_file(struct cr_cost_table *c, bool verbose) {
    char       *text   = NULL;
    const char *why    = NULL;
    size_t      length = 0;
    if (!c->path[0] || access(c->path, F_OK) != 0) return; /* first run on this device */
    cr_status status = cr_file_read(c->path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = cr_cost_read_text(c, text, length, CR_COST_FILE, &why);
    if (status != CR_OK && verbose) cr_log(CR_LOG_INFO, "%s; kernels are timed again", cr_error_message());
    if (why && verbose) cr_log(CR_LOG_INFO, "%s is ignored: %s; kernels are timed again", c->path, why);
    if (status != CR_OK) cr_error_clear();
    cr_free(text);
}

static bool measured_here(const struct cr_cost_table *c, const struct cr_cost_entry *e) {
    for (int i = CR_NONE; (i = cr_cost_next(c, e->signature, e->hash, i)) != CR_NONE;)
        if (c->entry[i].source == CR_COST_MEASURED) return true;
    return false;
}

/* ---- writing ---- */

/* Merges the new entries with the present contents of the file, because another process may have written it. */
static cr_status file_text(const struct cr_cost_table *c, struct cr_text *out) {
    struct cr_cost_table now = {.device = c->device, .path = c->path, .identity = c->identity};
    read_file(&now, false);
    cr_cost_add_header(c, out);
    for (int i = 0; i < now.entries; i++)
        if (!measured_here(c, &now.entry[i])) cr_cost_add_line(c, &now.entry[i], out);
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].source == CR_COST_MEASURED) cr_cost_add_line(c, &c->entry[i], out);
    cr_cost_add_checksum(out);
    cr_cost_free_table(&now);
    return out->failed ? CR_NO_MEMORY(4096) : CR_OK;
}

static cr_status write_file(const struct cr_cost_table *c) {
    struct cr_text text   = {0};
    cr_status      status = file_text(c, &text);
    if (status == CR_OK) status = cr_fs_mkdirs_of(c->path);
    if (status == CR_OK) status = cr_file_write_atomic(c->path, text.data, text.length);
    cr_text_free(&text);
    return status;
}

static bool has_new_entries(const struct cr_cost_table *c) {
    for (int i = 0; i < c->entries; i++)
        if (c->entry[i].source == CR_COST_MEASURED) return true;
    return false;
}

/* ---- the lock ---- */

/* Tries to lock the file at `path`. Returns the descriptor, or CR_NONE; *busy: another process has the lock, or had it
 * a moment ago. The lock belongs to the process, so two tables of one process do not wait for each other. The process
 * that had the lock may have removed the file since it was opened; the lock of a removed file is worthless. */
static int try_lock(const char *path, bool *busy) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat  s;
    int          fd;
    *busy = false;
    if (cr_fs_open_regular(path, O_RDWR | O_CREAT | O_NOFOLLOW, &fd) != CR_OK) return CR_NONE;
    const bool locked = fcntl(fd, F_SETLK, &all) == 0;
    *busy             = locked || errno == EAGAIN || errno == EACCES || errno == EINTR;
    if (locked && fstat(fd, &s) == 0 && s.st_nlink > 0) return fd;
    close(fd);
    return CR_NONE;
}

static void lock_path(const struct cr_cost_table *c, char out[CR_PATH_MAX]) {
    if (snprintf(out, CR_PATH_MAX, "%s.%d.lock", c->path, c->device->options.index) >= CR_PATH_MAX) out[0] = 0;
}

static int wait_for_lock(const char *path) {
    const struct timespec nap    = {.tv_nsec = POLL_NS};
    const int64_t         start  = cr_time_ns();
    bool                  logged = false, busy;
    for (;;) {
        const int fd = try_lock(path, &busy);
        if (fd != CR_NONE || !busy || cr_time_ns() - start > wait_ns) return fd;
        if (!logged) cr_log(CR_LOG_INFO, "another process times its kernels: waiting, 15 s at most");
        logged = true;
        nanosleep(&nap, NULL);
    }
}

/* Later answers must not change, so the file is read again only while nothing has been measured. */
bool cr_cost_lock(struct cr_cost_table *c) {
    char path[CR_PATH_MAX];
    if (!c->path[0] || c->lock != CR_NONE || c->unlocked) return false;
    lock_path(c, path);
    cr_error_hold();
    if (cr_fs_mkdirs_of(c->path) == CR_OK && path[0]) c->lock = wait_for_lock(path);
    cr_error_release();
    c->unlocked = c->lock == CR_NONE;
    if (c->measured) return false;
    read_file(c, false);
    return true;
}

void cr_cost_unlock(struct cr_cost_table *c) {
    char path[CR_PATH_MAX];
    if (c->lock == CR_NONE) return;
    lock_path(c, path);
    (void)cr_fs_unlink(path);
    close(c->lock);
    c->lock = CR_NONE;
}

/* ---- flush ---- */

void cr_cost_table_flush(struct cr_cost_table *c) {
    const int64_t fresh = c->measured - c->reported;
    cr_measure_memory_release(c->device, &c->scratch);
    const int       unsaved = cr_sharing_after(c);
    const bool      writes  = c->path[0] && (fresh || c->dirty) && has_new_entries(c);
    const cr_status status  = writes ? write_file(c) : CR_OK;
    const bool      saved   = writes && status == CR_OK && !unsaved;
    cr_cost_unlock(c);
    if (!fresh && !c->dirty) return;
    if (fresh)
        cr_log(CR_LOG_INFO, "kernel selection: %lld kernels timed in %.2f s%s%s", (long long)fresh,
               (double)(c->measure_ns - c->reported_ns) * 1e-9, saved ? ", saved to " : "", saved ? c->path : "");
    c->reported    = c->measured;
    c->reported_ns = c->measure_ns;
    c->dirty       = false;
    if (status == CR_OK) return;
    cr_log(CR_LOG_WARN, "%s; the next run times the kernels again (CRESNET_CACHE=DIR saves their times in DIR)",
           cr_error_message());
    cr_error_clear();
}

/* ---- open ---- */

cr_status cr_cost_table_open(struct cr_device *device, const char *path, struct cr_cost_table **out) {
    struct cr_cost_table *c;
    cr_status             status = CR_OK;
    CR_ALLOC(c, 1);
    c->device = device;
    c->lock   = CR_NONE;
    c->path   = cr_arena_printf(&c->arena, "%s", path);
    if (!c->path) CR_NO_MEMORY_OUT(strlen(path));
    CR_TRY_OUT(cr_cost_make_identity(c));
    read_file(c, true);
    *out = c;
    return CR_OK;
out:
    cr_cost_table_close(c);
    return status;
}

cr_status cr_cost_table_load(struct cr_device *device, const char *path, struct cr_cost_table **out) {
    char       *text   = NULL;
    const char *why    = NULL;
    size_t      length = 0;
    CR_TRY(cr_cost_table_open(device, "", out));
    (*out)->offline  = true;
    cr_status status = cr_file_read(path, FILE_BYTES_MAX, &text, &length);
    if (status == CR_OK) status = cr_cost_read_text(*out, text, length, CR_COST_FILE, &why);
    cr_free(text);
    if (status == CR_OK && why) status = CR_FAIL(CR_ERR_FORMAT, "%s: %s", path, why);
    if (status == CR_OK) return CR_OK;
    cr_cost_table_close(*out);
    *out = NULL;
    return status;
}

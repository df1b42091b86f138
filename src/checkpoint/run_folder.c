/* checkpoint/run_folder.c: the lock of a run folder, checks before a run writes there, and best.json. A run folder may
 * have been made by somebody else: a link in it is never followed for writing. */
#include "checkpoint/checkpoint.h"
#include "core/checksum/crc32c.h"
#include "formats/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lock ---- */

cr_status cr_ckpt_lock(const char *run_dir, int *lock) {
    char path[CR_PATH_MAX];
    int  fd;
    CR_TRY(cr_path_join(path, run_dir, CR_CKPT_LOCK));
    CR_TRY(cr_fs_open_regular(path, O_RDWR | O_CREAT | O_NOFOLLOW, &fd));
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *lock = fd;
        return CR_OK;
    }
    const int error = errno;
    close(fd);
    if (error == EWOULDBLOCK)
        return CR_FAIL(CR_ERR_CONFIG, "%s: another run is writing there; wait for it, or choose another folder",
                       run_dir);
    return cr_fs_refused(path, "lock", error);
}

cr_status cr_ckpt_check_lock(const char *run_dir, int lock) {
    char        path[CR_PATH_MAX];
    struct stat ours, there;
    CR_TRY(cr_path_join(path, run_dir, CR_CKPT_LOCK));
    if (fstat(lock, &ours) < 0) return cr_fs_refused(path, "read", errno);
    if (lstat(path, &there) == 0 && there.st_dev == ours.st_dev && there.st_ino == ours.st_ino) return CR_OK;
    return CR_FAIL(CR_ERR_IO,
                   "%s: the run folder was renamed, removed or replaced while the run wrote there: nothing more is "
                   "saved; give the folder its name back and continue with --resume",
                   run_dir);
}

void cr_ckpt_remove_empty(const char *run_dir) {
    char path[CR_PATH_MAX];
    if (cr_ckpt_dir_in_use(run_dir) || cr_path_join(path, run_dir, CR_CKPT_LOCK) != CR_OK) return;
    unlink(path);
    rmdir(run_dir); /* fails where there is something else */
}

/* ---- checks ---- */

cr_status cr_ckpt_check_dir(const char *run_dir) {
    static const struct {
        const char *name, *what;
        bool        link;
    } entries[] = {{"last", "a link", true}, {"best", "a link", true}, {"best.json", "a file", false}};
    for (size_t i = 0; i < CR_COUNT(entries); i++) {
        char        path[CR_PATH_MAX];
        struct stat s;
        CR_TRY(cr_path_join(path, run_dir, "%s", entries[i].name));
        if (lstat(path, &s) < 0) continue;
        if (entries[i].link ? S_ISLNK(s.st_mode) : S_ISREG(s.st_mode)) continue;
        /* programs that copy the target of a link, such as scp -r, leave a folder here */
        if (entries[i].link && S_ISDIR(s.st_mode))
            return CR_FAIL(CR_ERR_IO,
                           "%s: is a folder, but a link is needed here: copy the run with its links (cp -a, rsync -a), "
                           "or replace this folder by a link to its step-N",
                           path);
        return CR_FAIL(CR_ERR_IO, "%s: is %s, but %s is needed here: move it away", path,
                       S_ISDIR(s.st_mode)   ? "a folder"
                       : S_ISREG(s.st_mode) ? "a file"
                       : S_ISLNK(s.st_mode) ? "a link"
                                            : "a device or pipe",
                       entries[i].what);
    }
    return CR_OK;
}

/* ---- best.json ---- */

enum { BEST_BYTES_MAX = 4096 };
static const struct cr_ckpt_best unknown = {-1, -1, -1, -1, -1, -1, false};

/* Stores an accuracy. NULL, or what is wrong. */
static const char *store_accuracy(double value, double *out) {
    if (!(value >= 0 && value <= 1)) return "an accuracy is not between 0 and 1";
    *out = value;
    return NULL;
}

/* Is this member of best.json the value of `metric`? With data.multi_label, map stands for top1. */
static bool is_metric(const char *name, const char *metric) {
    return strcmp(name, metric) == 0 || (strcmp(name, "map") == 0 && strcmp(metric, "top1") == 0);
}

/* NULL, or what is wrong. Members with other names are skipped. */
static const char *parse_best(char *text, size_t length, const char *metric, struct cr_ckpt_best *out) {
    static const char no_json[] = "it is not a JSON object of numbers";
    const char       *why       = NULL;
    const char       *sum_at    = strstr(text, ",\"" CR_CKPT_BEST_SUM "\":"); /* a file of an older version has none */
    const double      sum = sum_at ? (double)cr_crc32c(0, text, (size_t)(sum_at - text)) : 0; /* parsing changes it */
    struct cr_json    json;
    char             *name;
    cr_json_start(&json, text, length);
    for (bool first = true; cr_json_member(&json, &first, &name);) {
        double value;
        if (!cr_json_number(&json, &value)) return no_json;
        if (strcmp(name, "step") == 0) {
            if (!(value >= 0 && value < 1e15) || value != (double)(int64_t)value) return "the step is no whole number";
            out->step = (int64_t)value;
        }
        if (strcmp(name, CR_CKPT_BEST_SUM) == 0 && value != sum) return "it is damaged (wrong checksum)";
        out->is_map |= strcmp(name, "map") == 0;
        if (strcmp(name, "top1") == 0 || strcmp(name, "map") == 0) why = store_accuracy(value, &out->top1);
        if (strcmp(name, "raw_top1") == 0 || strcmp(name, "raw_map") == 0) why = store_accuracy(value, &out->raw_top1);
        if (strcmp(name, "ema_top1") == 0 || strcmp(name, "ema_map") == 0) why = store_accuracy(value, &out->ema_top1);
        if (is_metric(name, metric) && value >= 0) out->value = value;
        if (strncmp(name, "ema_", 4) == 0 && is_metric(name + 4, metric) && value >= 0) out->average = value;
        if (why) return why;
    }
    if (!cr_json_end(&json)) return no_json;
    if (out->average < 0) out->average = out->value;
    if (out->step < 0 || out->top1 < 0) return "step, or top1 or map, is missing";
    return out->value < 0 ? "it has no value of train.best" : NULL;
}

struct cr_ckpt_best cr_ckpt_best_read(const char *run_dir, const char *metric, const char **why) {
    struct cr_ckpt_best best = unknown;
    char                path[CR_PATH_MAX], *text = NULL;
    struct stat         s;
    size_t              length;
    *why = NULL;
    if (snprintf(path, sizeof path, "%s/best.json", run_dir) >= (int)sizeof path || stat(path, &s) < 0) return unknown;
    if (cr_file_read(path, BEST_BYTES_MAX, &text, &length) != CR_OK) {
        cr_error_clear();
        *why = "it cannot be read";
        return unknown;
    }
    *why = parse_best(text, length, metric, &best);
    cr_free(text);
    if (!*why) {
        snprintf(path, sizeof path, "%s/step-%" PRId64, run_dir, best.step);
        if (!cr_fs_is_dir(path)) *why = "its checkpoint does not exist";
    }
    return *why ? unknown : best;
}

/* checkpoint/directory.c: run folders: finds checkpoints, updates the links last and best, deletes old checkpoints and
 * temporary folders. */
#include "checkpoint/internal.h"

#include "pretrained/pretrained.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */

/* Parses digits without sign or leading zeros that end at `end`; returns -1 for anything else. */
static int64_t plain_number(const char *text, const char *end) {
    int64_t value = 0;
    if (text == end || (*text == '0' && end - text > 1) || end - text > 18) return -1;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9') return -1;
        value = value * 10 + (*text - '0');
    }
    return value;
}

/* "step-12" -> 12; anything else: -1 */
static int64_t step_of(const char *name) {
    return strncmp(name, "step-", 5) ? -1 : plain_number(name + 5, name + strlen(name));
}

static bool is_dot(const char *name) {
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* The step of a link in the run folder: -1 when there is no such link, -2 when its target is not a step-N. */
static int64_t link_step(const char *run_dir, const char *link) {
    char path[CR_PATH_MAX], target[64];
    if (cr_path_join(path, run_dir, "%s", link) != CR_OK) return -2;
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return errno == ENOENT ? -1 : -2;
    target[length] = 0;
    int64_t step   = step_of(target);
    return step < 0 ? -2 : step;
}

static int compare_newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* Reads the steps of all checkpoints from a run folder, in any order. */
static cr_status read_steps(DIR *dir, int64_t **steps, int *count) {
    int capacity = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        const int64_t step = step_of(e->d_name);
        if (step < 0) continue;
        CR_GROW(*steps, *count, capacity, 16);
        (*steps)[(*count)++] = step;
    }
    return CR_OK;
}

/* Lists the steps of all checkpoints in a run folder, newest first; the caller frees *out with cr_free. */
static cr_status list_steps(const char *run_dir, int64_t **out, int *out_count) {
    int64_t  *steps  = NULL;
    int       count  = 0;
    DIR      *dir    = opendir(run_dir);
    cr_status status = CR_OK;
    if (!dir && errno != ENOENT) return cr_fs_refused(run_dir, "read this folder", errno);
    if (dir) status = read_steps(dir, &steps, &count);
    if (dir) closedir(dir);
    if (status != CR_OK) {
        cr_free(steps);
        return status;
    }
    if (count) qsort(steps, (size_t)count, sizeof *steps, compare_newest_first);
    *out       = steps;
    *out_count = count;
    return CR_OK;
}

/* ---- the run folder ---- */

static cr_status prove_writable(const char *run_dir) {
    char path[CR_PATH_MAX];
    CR_TRY(cr_path_join(path, run_dir, ".tmp-probe.%ld", (long)getpid()));
    cr_fs_unlink(path);
    CR_TRY(cr_fs_write_new(path, "cresnet", 7));
    /* ENOENT: another process, which holds the lock, has removed it with its cr_ckpt_sweep */
    if (cr_fs_unlink(path) < 0 && errno != ENOENT) return cr_fs_refused(path, "remove", errno);
    return CR_OK;
}

cr_status cr_ckpt_prepare_dir(const char *run_dir) {
    const bool made   = !cr_fs_is_dir(run_dir);
    cr_status  status = cr_fs_mkdirs(run_dir);
    if (status == CR_OK) status = prove_writable(run_dir);
    if (status != CR_OK && made) rmdir(run_dir); /* an empty folder is of no use */
    if (status != CR_OK)
        return CR_FAIL(status, "%s: the run folder cannot be used: %s (train.output=DIR selects another folder)",
                       run_dir, cr_error_message());
    return CR_OK;
}

/* True for names that end with ".PID", as those of temporary files and folders do. */
static bool has_process_id(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && plain_number(dot + 1, name + strlen(name)) > 0;
}

static bool is_temporary(const char *name) {
    return strncmp(name, ".tmp-", 5) == 0 && has_process_id(name);
}

bool cr_ckpt_dir_in_use(const char *run_dir) {
    DIR *dir  = opendir(run_dir);
    bool used = false;
    for (struct dirent *e; dir && !used && (e = readdir(dir));)
        used = !is_dot(e->d_name) && strcmp(e->d_name, "lost+found") && strcmp(e->d_name, CR_CKPT_LOCK) &&
               !is_temporary(e->d_name);
    if (dir) closedir(dir);
    return used;
}

/* ---- links ---- */

cr_status cr_ckpt_point(const char *run_dir, const char *link, int64_t step) {
    char path[CR_PATH_MAX], temporary[CR_PATH_MAX], target[64];
    CR_TRY(cr_path_join(path, run_dir, "step-%" PRId64, step));
    if (!cr_fs_is_dir(path)) return CR_FAIL(CR_ERR_IO, "%s: no such checkpoint: %s cannot name it", path, link);
    CR_TRY(cr_path_join(path, run_dir, "%s", link));
    CR_TRY(cr_path_join(temporary, run_dir, ".tmp-%s.%ld", link, (long)getpid()));
    snprintf(target, sizeof target, "step-%" PRId64, step);
    if (link_step(run_dir, link) == step) return CR_OK;
    if (cr_fs_symlink(target, temporary) < 0) {
        if (errno != EEXIST) return cr_fs_refused(path, "create this link", errno);
        cr_fs_unlink(temporary); /* left behind by a killed process with the same pid */
        if (cr_fs_symlink(target, temporary) < 0) return cr_fs_refused(path, "create this link", errno);
    }
    if (cr_fs_rename(temporary, path) < 0) {
        int error = errno;
        cr_fs_unlink(temporary);
        if (cr_fs_is_dir(path))
            return CR_FAIL(CR_ERR_IO, "%s: is a folder, but a link is needed here: move the folder away", path);
        return cr_fs_refused(path, "replace this link", error);
    }
    if (cr_fs_sync_dir(run_dir) < 0) return cr_fs_refused(run_dir, "write to the disk", errno);
    return CR_OK;
}

/* ---- removal ---- */

static cr_status remove_step(const char *run_dir, int64_t step) {
    char path[CR_PATH_MAX], gone[CR_PATH_MAX];
    CR_TRY(cr_path_join(path, run_dir, "step-%" PRId64, step));
    CR_TRY(cr_path_join(gone, run_dir, ".gone-step-%" PRId64 ".%ld", step, (long)getpid()));
    if (cr_fs_rename(path, gone) < 0) return cr_fs_refused(path, "remove", errno);
    if (cr_fs_remove_tree(gone) < 0) return cr_fs_refused(gone, "remove", errno);
    return CR_OK;
}

void cr_ckpt_prune(const char *run_dir, int keep) {
    int64_t *steps = NULL, last = link_step(run_dir, "last"), best = link_step(run_dir, "best");
    int      count;
    if (keep < 0) return;
    cr_status status = CR_OK;
    if (last == -2 || best == -2)
        status = CR_FAIL(CR_ERR_IO, "%s: `last` or `best` is not a link to a step-N", run_dir);
    if (status == CR_OK) status = list_steps(run_dir, &steps, &count);
    for (int i = 0; status == CR_OK && i < count; i++) {
        if (steps[i] == last || steps[i] == best || i < keep) continue;
        status = remove_step(run_dir, steps[i]);
    }
    if (status != CR_OK) cr_log(CR_LOG_WARN, "old checkpoints are not removed: %s", cr_error_message());
    cr_free(steps);
}

void cr_ckpt_sweep(const char *run_dir) {
    static const char *const prefix[] = {".tmp-", ".gone-", ".swap-"};
    DIR                     *dir      = opendir(run_dir);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[CR_PATH_MAX], home[CR_PATH_MAX];
        bool ours = false;
        for (size_t i = 0; i < CR_COUNT(prefix); i++) ours |= !strncmp(e->d_name, prefix[i], strlen(prefix[i]));
        if (!ours || !has_process_id(e->d_name) || cr_path_join(path, run_dir, "%s", e->d_name) != CR_OK) continue;
        /* a step-N that was being replaced when its process was killed, before the new one was in place */
        if (!strncmp(e->d_name, ".swap-", 6)) {
            int name = (int)(strrchr(e->d_name, '.') - (e->d_name + 6));
            if (cr_path_join(home, run_dir, "%.*s", name, e->d_name + 6) == CR_OK && access(home, F_OK) < 0 &&
                cr_fs_rename(path, home) == 0)
                continue;
        }
        if (cr_fs_remove_tree(path) < 0)
            cr_log(CR_LOG_WARN, "%s: a temporary folder that cannot be removed: %s", path, strerror(errno));
    }
    if (dir) closedir(dir);
}

/* ---- find ---- */

/* `all`: reads the tensors too. */
static cr_status check_file(const char *folder, const char *name, int64_t step, bool all) {
    char               path[CR_PATH_MAX], expected[32];
    struct cr_st_file *file;
    CR_TRY(cr_path_join(path, folder, "%s", name));
    CR_TRY(cr_st_open(path, &file));
    snprintf(expected, sizeof expected, "%" PRId64, step);
    const char *stored = cr_st_meta_find(file, "step");
    cr_status   status = CR_OK;
    if (step >= 0 && stored && strcmp(stored, expected) != 0)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: belongs to step %.20s, not to step %s", path, stored, expected);
    if (status == CR_OK && all) status = cr_ckpt_verify_tensors(file);
    cr_st_close(file);
    return status;
}

static cr_status check_weights(const char *folder, int64_t step, bool all) {
    char path[CR_PATH_MAX];
    CR_TRY(check_file(folder, "model.safetensors", step, all));
    CR_TRY(cr_path_join(path, folder, "ema.safetensors"));
    return access(path, F_OK) == 0 ? check_file(folder, "ema.safetensors", step, all) : CR_OK;
}

cr_status cr_ckpt_verify_weights(const char *folder) {
    CR_TRY(cr_ckpt_check_files(folder, false));
    return check_weights(folder, -1, true);
}

/* Checks that a folder is a complete checkpoint of this step; step < 0 accepts any step. `all`, for a run that is
 * resumed: reads all bytes, and the optimizer state may not be missing. */
static cr_status check_folder(const char *folder, int64_t step, bool all) {
    char path[CR_PATH_MAX], state[CR_PATH_MAX];
    CR_TRY(cr_path_join(path, folder, "config.ini"));
    if (!cr_fs_is_dir(folder)) return CR_FAIL(CR_ERR_IO, "%s: no such folder", folder);
    if (access(path, R_OK) < 0) return cr_fs_refused(path, "read", errno);
    CR_TRY(check_weights(folder, step, all));
    CR_TRY(cr_path_join(state, folder, "state.safetensors"));
    if (all || access(state, F_OK) == 0) CR_TRY(check_file(folder, "state.safetensors", step, all));
    return cr_ckpt_check_files(folder, all);
}

/* Sets *good when run_dir/name is intact. Otherwise a warning follows when the caller looks for another one (`intact`,
 * cr_ckpt_find_intact) or the folder does not exist, and an error in all other cases. */
static cr_status try_folder(const char *run_dir, const char *name, bool intact, char path[CR_PATH_MAX], bool *good) {
    CR_TRY(cr_path_join(path, run_dir, "%s", name));
    cr_status status = check_folder(path, step_of(name), intact);
    *good            = status == CR_OK;
    if (status == CR_ERR_MEMORY || (!*good && !intact && cr_fs_is_dir(path))) return status;
    if (status != CR_OK) cr_log(CR_LOG_WARN, "checkpoint skipped: %s", cr_error_message());
    return CR_OK;
}

/* As cr_ckpt_find or, with `intact`, cr_ckpt_find_intact, without the step `bad`, which does not exist; -1: none. */
static cr_status find_newest(const char *run_dir, int64_t bad, bool intact, char out[CR_PATH_MAX]) {
    char      name[64];
    int64_t  *steps = NULL, last = link_step(run_dir, "last");
    int       count  = 0;
    bool      good   = false;
    cr_status status = CR_OK;
    CR_TRY(list_steps(run_dir, &steps, &count));
    if (last != -1 && (last < 0 || last != bad)) {
        snprintf(name, sizeof name, last >= 0 ? "step-%" PRId64 : "last", last);
        CR_TRY_OUT(try_folder(run_dir, name, intact, out, &good));
    }
    for (int i = 0; !good && i < count; i++) {
        if (steps[i] == last || steps[i] == bad) continue;
        snprintf(name, sizeof name, "step-%" PRId64, steps[i]);
        CR_TRY_OUT(try_folder(run_dir, name, intact, out, &good));
    }
    if (!good && count)
        CR_FAIL_OUT(CR_ERR_FORMAT,
                    "%s: no checkpoint in this folder can be read: restore one from a copy, or start a new run in "
                    "another folder",
                    run_dir);
    if (!good) *out = 0;
out:
    cr_free(steps);
    return status;
}

cr_status cr_ckpt_find(const char *run_dir, char out[CR_PATH_MAX]) {
    return find_newest(run_dir, -1, false, out);
}

cr_status cr_ckpt_find_intact(const char *run_dir, char **out) {
    char path[CR_PATH_MAX];
    *out = NULL;
    CR_TRY(find_newest(run_dir, -1, true, path));
    if (*path) *out = cr_strdup(path);
    return *path && !*out ? CR_NO_MEMORY(strlen(path)) : CR_OK;
}

/* The newest intact checkpoint of a step before `step`; -1: none. */
static int64_t intact_before(const char *run_dir, int64_t step) {
    char     path[CR_PATH_MAX];
    int64_t *steps = NULL, found = -1;
    int      count = 0;
    cr_error_hold();
    if (list_steps(run_dir, &steps, &count) == CR_OK)
        for (int i = 0; found < 0 && i < count; i++)
            if (steps[i] < step && cr_path_join(path, run_dir, "step-%" PRId64, steps[i]) == CR_OK &&
                check_folder(path, steps[i], true) == CR_OK)
                found = steps[i];
    cr_error_release();
    cr_free(steps);
    return found;
}

cr_status cr_ckpt_verify(const char *folder) {
    char            run_dir[CR_PATH_MAX], why[2048];
    const int64_t   step   = step_of(cr_path_name(folder));
    const cr_status status = check_folder(folder, step, true);
    if (status == CR_OK || status == CR_ERR_MEMORY || step < 0) return status;
    cr_path_folder(run_dir, folder);
    cr_error_copy(why, sizeof why);
    const int64_t older = intact_before(run_dir, step);
    if (older < 0) return status;
    cr_error_clear();
    return CR_FAIL(status, "%s; the newest intact checkpoint before it is %s/step-%" PRId64, why, run_dir, older);
}

cr_status cr_ckpt_find_best(const char *run_dir, char out[CR_PATH_MAX]) {
    char          name[64] = "best"; /* a copy of a run may have a folder instead of the link */
    const int64_t step     = link_step(run_dir, "best");
    bool          good     = false;
    struct stat   s;
    if (step >= 0) snprintf(name, sizeof name, "step-%" PRId64, step);
    CR_TRY(cr_path_join(out, run_dir, "best"));
    if (step == -2 && (lstat(out, &s) < 0 || !S_ISDIR(s.st_mode)))
        cr_log(CR_LOG_WARN, "checkpoint skipped: %s: is not a link to a step-N", out);
    else if (step != -1)
        CR_TRY(try_folder(run_dir, name, false, out, &good));
    return good ? CR_OK : find_newest(run_dir, step, false, out);
}

cr_status cr_ckpt_find_step(const char *run_dir, int64_t step, char out[CR_PATH_MAX]) {
    struct cr_text there = {0};
    int64_t       *steps;
    int            count;
    CR_TRY(cr_path_join(out, run_dir, "step-%" PRId64, step));
    if (cr_fs_is_dir(out)) return check_folder(out, step, false);
    CR_TRY(list_steps(run_dir, &steps, &count));
    for (int i = count - 1; i >= 0; i--) cr_text_add(&there, "%s%" PRId64, i == count - 1 ? "" : ", ", steps[i]);
    cr_free(steps);
    cr_status status = CR_FAIL(CR_ERR_CONFIG, "%s: has no checkpoint of step %" PRId64 "; it has the steps: %s",
                               run_dir, step, there.data ? there.data : "none");
    cr_text_free(&there);
    return status;
}

cr_status cr_ckpt_model_path(const char *given, char out[CR_PATH_MAX]) {
    char        folder[CR_PATH_MAX];
    struct stat s;
    if (stat(given, &s) < 0) {
        const int error = errno;
        if (error == ENOENT && cr_pretrained_is_name(given)) return cr_pretrained_file(given, out);
        if (!cr_st_key(given)) return cr_fs_refused(given, "open", error);
        s.st_mode = S_IFREG;
    }
    if (!S_ISDIR(s.st_mode)) {
        cr_path_folder(folder, given);
        CR_TRY(cr_ckpt_check_files(folder, false));
        return cr_path_copy(out, given);
    }
    CR_TRY(cr_path_join(out, given, "model.safetensors"));
    if (access(out, F_OK) == 0) return cr_ckpt_check_files(given, false);
    CR_TRY(cr_path_join(out, given, "model.safetensors.index.json"));
    if (access(out, F_OK) == 0) return CR_OK;
    CR_TRY(cr_ckpt_find(given, folder));
    if (!*folder) return CR_FAIL(CR_ERR_IO, "%s: no model.safetensors and no readable step-N in this folder", given);
    return cr_path_join(out, folder, "model.safetensors");
}

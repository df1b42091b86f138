/* data/source/tar/tar_shards.c: the archives that data.root, data.train and data.val name: a folder, a file, a glob, or
 * names with {000..255} or {train,val}. */
#include "core/files.h"
#include "data/source/tar/tar.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHARDS_MAX = 1000000, PACKED_BYTES = PATH_MAX + 64 };
static const char *const compressed[] = {".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"};
static const char *const unpackers[]  = {"gzip -d", "gzip -d", "zstd -d", "xz -d", "bzip2 -d"};

void cr_tar_paths_free(struct cr_tar_paths *paths) {
    for (int64_t i = 0; i < paths->count; i++) cr_free(paths->path[i]);
    cr_free(paths->path);
    *paths = (struct cr_tar_paths){0};
}

static cr_status add_path(struct cr_tar_paths *paths, const char *path) {
    if (paths->count == SHARDS_MAX) return CR_FAIL(CR_ERR_FORMAT, "%s: more than %d archives", path, SHARDS_MAX);
    CR_GROW(paths->path, paths->count, paths->capacity, 64);
    paths->path[paths->count] = cr_strdup(path);
    return paths->path[paths->count++] ? CR_OK : CR_NO_MEMORY(strlen(path) + 1);
}

static bool has_ending(const char *name, const char *ending) {
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && strcasecmp(name + n - m, ending) == 0;
}

/* ---- folders and patterns ---- */

/* Adds the files *.tar of a folder; with `deeper`, those of the folders in it. packed: what to do with a compressed
 * one. */
static cr_status add_folder(struct cr_tar_paths *paths, const char *folder, bool deeper, char packed[PACKED_BYTES]) {
    char                 path[PATH_MAX];
    cr_status            status = CR_OK;
    const struct dirent *entry;
    DIR                 *dir = opendir(folder);
    if (!dir) return cr_fs_refused(folder, "list", errno);
    while (status == CR_OK && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        status = cr_path_format(path, "%s/%s", folder, entry->d_name);
        for (size_t i = 0; i < CR_COUNT(compressed); i++)
            if (!*packed && has_ending(entry->d_name, compressed[i]))
                snprintf(packed, PACKED_BYTES, "%s is compressed: unpack it with %s", path, unpackers[i]);
        if (status == CR_OK && !deeper && has_ending(path, ".tar") && cr_fs_is_file(path))
            status = add_path(paths, path);
        if (status == CR_OK && deeper && cr_fs_is_dir(path)) status = add_folder(paths, path, false, packed);
    }
    closedir(dir);
    return status;
}

static cr_status add_glob(struct cr_tar_paths *paths, const char *pattern) {
    glob_t    found;
    cr_status status = CR_OK;
    if (!strpbrk(pattern, "*?[")) return add_path(paths, pattern);
    const int failed = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (failed == GLOB_NOSPACE) return CR_NO_MEMORY(1);
    for (size_t i = 0; !failed && status == CR_OK && i < found.gl_pathc; i++)
        if (cr_fs_is_file(found.gl_pathv[i])) status = add_path(paths, found.gl_pathv[i]);
    if (!failed) globfree(&found);
    return status;
}

static cr_status add_braces(struct cr_tar_paths *paths, const char *pattern);

static cr_status add_choice(struct cr_tar_paths *paths, const char *pattern, const char *open, const char *choice,
                            int length, const char *rest) {
    char path[PATH_MAX];
    CR_TRY(cr_path_format(path, "%.*s%.*s%s", (int)(open - pattern), pattern, length, choice, rest));
    return add_braces(paths, path);
}

/* Writes {000..255} and {train,val} out, from the left to the right. */
static cr_status add_braces(struct cr_tar_paths *paths, const char *pattern) {
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    char        number[32];
    int         first_at = 0, first_end = 0, last_at = 0, last_end = 0;
    long        first, last;
    if (!close) return add_glob(paths, pattern);
    if (sscanf(open, "{%n%9ld%n..%n%9ld%n", &first_at, &first, &first_end, &last_at, &last, &last_end) == 2 &&
        open + last_end == close && first >= 0 && last >= first && last - first < SHARDS_MAX) {
        const int digits =
            open[1] == '0' || open[last_at] == '0' ? CR_MAX(first_end - first_at, last_end - last_at) : 1;
        for (long i = first; i <= last; i++) {
            const int length = snprintf(number, sizeof number, "%0*ld", digits, i);
            CR_TRY(add_choice(paths, pattern, open, number, length, close + 1));
        }
        return CR_OK;
    }
    for (const char *at = open + 1; at <= close; at += strcspn(at, ",}") + 1)
        CR_TRY(add_choice(paths, pattern, open, at, (int)strcspn(at, ",}"), close + 1));
    return CR_OK;
}

/* Adds the archives that `value`, the value of the key `key`, names. */
static cr_status expand(const struct cr_config *config, const char *key, const char *value,
                        struct cr_tar_paths *paths) {
    char packed[PACKED_BYTES] = "";
    if (cr_fs_is_dir(value)) {
        CR_TRY(add_folder(paths, value, false, packed));
        if (!paths->count) CR_TRY(add_folder(paths, value, true, packed));
    } else if (cr_fs_is_file(value)) {
        CR_TRY(add_path(paths, value));
    } else {
        CR_TRY(add_braces(paths, value));
    }
    for (int64_t i = 0; i < paths->count; i++)
        if (!cr_fs_is_file(paths->path[i])) return cr_config_fail(config, key, "there is no file %s", paths->path[i]);
    if (!paths->count)
        return cr_config_fail(config, key, "no archive (*.tar) is there%s%s", *packed ? "; " : "", packed);
    qsort(paths->path, (size_t)paths->count, sizeof *paths->path, cr_compare_texts);
    return CR_OK;
}

/* ---- splits ---- */

/* The place in `names` of the first part of a name, between other characters than letters, that is one of them; -1. */
static int find_part(const char *name, size_t length, const char *const *names) {
    for (size_t at = 0, end; at < length; at = end + 1) {
        for (end = at; end < length && isalpha((unsigned char)name[end]); end++) {
        }
        for (int i = 0; names[i]; i++)
            if (strlen(names[i]) == end - at && strncasecmp(names[i], name + at, end - at) == 0) return i;
    }
    return -1;
}

/* The same for a path: its last part, or with `folders` the folder of the file. */
static int find_split(const char *path, bool folders, const char *const *names) {
    const char *slash = strrchr(path, '/'), *folder = slash;
    const int   found = find_part(cr_path_name(path), strlen(cr_path_name(path)), names);
    if (found >= 0 || !folders || !slash) return found;
    while (folder > path && folder[-1] != '/') folder--;
    return find_part(folder, (size_t)(slash - folder), names);
}

static bool in_one_folder(const struct cr_tar_paths *all) {
    const char  *slash  = strrchr(all->path[0], '/');
    const size_t length = slash ? (size_t)(slash - all->path[0]) + 1 : 0;
    for (int64_t i = 1; i < all->count; i++)
        if (strncmp(all->path[i], all->path[0], length) != 0 || strchr(all->path[i] + length, '/')) return false;
    return true;
}

/* Divides archives by their names, or by those of their folders: imagenet1k-train-0000.tar, test/0.tar. Without names
 * of training, all that are not of validation are for training. Of several names of validation, the first of
 * cr_val_names counts. */
static cr_status divide(const struct cr_tar_paths *all, struct cr_tar_paths paths[2]) {
    const bool folders = !in_one_folder(all);
    int        named = 0, best = -1;
    int64_t    left = 0, first = 0;
    for (int64_t i = 0; i < all->count; i++) {
        const int val = find_split(all->path[i], folders, cr_val_names);
        named += find_split(all->path[i], folders, cr_train_names) >= 0;
        if (val >= 0 && (best < 0 || val < best)) best = val;
    }
    for (int64_t i = 0; i < all->count; i++) {
        const int  val   = find_split(all->path[i], folders, cr_val_names);
        const bool train = named ? find_split(all->path[i], folders, cr_train_names) >= 0 : val < 0;
        if (train || (val >= 0 && val == best))
            CR_TRY(add_path(&paths[train ? 0 : 1], all->path[i]));
        else if (!left++)
            first = i;
    }
    if (left && cr_folder_warning_is_new("unused", left, all->path[first]))
        cr_log(CR_LOG_WARN, "%s%s not used: %s names are those of neither training nor validation", all->path[first],
               left == 1 ? " is" : " and other archives are", left == 1 ? "its" : "their");
    return CR_OK;
}

static cr_status expand_in_root(const struct cr_config *config, const char *key, const char *value,
                                struct cr_tar_paths *paths) {
    char        path[PATH_MAX];
    const char *root = config->data.root;
    CR_TRY(cr_path_format(path, "%s%s%s", *value == '/' ? "" : root, *value == '/' || !*root ? "" : "/", value));
    return expand(config, key, path, paths);
}

cr_status cr_tar_find(const struct cr_config *config, struct cr_tar_paths paths[2]) {
    struct cr_tar_paths all = {0};
    if (*config->data.train) CR_TRY(expand_in_root(config, "data.train", config->data.train, &paths[0]));
    if (*config->data.val) CR_TRY(expand_in_root(config, "data.val", config->data.val, &paths[1]));
    if (*config->data.train || *config->data.val) return CR_OK;
    cr_status status = expand(config, "data.root", config->data.root, &all);
    if (status == CR_OK) status = divide(&all, paths);
    cr_tar_paths_free(&all);
    return status;
}

static bool has_archives(const char *folder, const char *name) {
    char                 path[PATH_MAX];
    int                  archives = 0, folders = 0;
    const struct dirent *entry;
    DIR *dir = snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path ? opendir(path) : NULL;
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        archives += has_ending(entry->d_name, ".tar");
        folders += entry->d_type == DT_DIR;
    }
    if (dir) closedir(dir);
    return archives && !folders;
}

bool cr_dataset_is_of_archives(const char *folder) {
    return has_archives(folder, ".") || has_archives(folder, "train");
}

/* data/source/folder_list.c: lists the images of a folder and of the folders below it. */
#include "data/source/folder_list.h"
#include "data/source.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool has_ending(const char *name, const char *const *endings, size_t count) {
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < count; i++)
        if (!strcasecmp(dot + 1, endings[i])) return true;
    return false;
}

bool cr_is_image_name(const char *name) {
    static const char *const endings[] = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "tif", "tiff", "bmp"};
    return has_ending(name, endings, CR_COUNT(endings));
}

static bool is_foreign_name(const char *name) {
    static const char *const endings[] = {"gif", "ppm", "pgm", "avif", "heic", "jxl"};
    return has_ending(name, endings, CR_COUNT(endings));
}

static atomic_bool warnings_are_off;

void cr_dataset_warnings(bool on) {
    warnings_are_off = !on;
}

bool cr_folder_warning_is_new(const char *what, int64_t count, const char *root) {
    enum { KEPT = 16 };
    static atomic_uint_fast64_t said[KEPT]; /* hashes of the last warnings */
    static atomic_uint          next;
    if (warnings_are_off) return false;
    uint64_t hash = cr_hash_bytes(cr_hash_mix((uint64_t)count), what, strlen(what) + 1);
    hash          = cr_hash_bytes(hash, root, strlen(root) + 1);
    for (int i = 0; i < KEPT; i++)
        if (said[i] == hash) return false;
    said[next++ % KEPT] = hash;
    return true;
}

void cr_folder_warn_skipped(const struct cr_folder_traversal *t, const char *root) {
    const long long foreign = t->foreign, dead = t->dead;
    if (foreign && cr_folder_warning_is_new("foreign", foreign, root))
        cr_log(CR_LOG_WARN, "%s: skipped %lld file%s %s: only " CR_IMAGE_KINDS " images are read", root, foreign,
               foreign == 1 ? "," : "s such as", t->foreign_name);
    if (dead && cr_folder_warning_is_new("dead", dead, root))
        cr_log(CR_LOG_WARN, "%s: skipped %lld link%s %s: no file is there", root, dead, dead == 1 ? "," : "s such as",
               t->dead_path);
}

static const char *without_zeros(const char *digits) {
    return digits + CR_MIN(strspn(digits, "0"), strlen(digits) - 1);
}

void cr_folder_say_order(const struct cr_dataset *dataset, const char *root) {
    int wrong = 0; /* a class whose number is smaller than that of the class before it */
    for (int k = 0; k < dataset->classes; k++) {
        const char *name = dataset->class_names[k];
        if (!*name || name[strspn(name, "0123456789")]) return;
        if (wrong || !k) continue;
        const char  *a = without_zeros(dataset->class_names[k - 1]), *b = without_zeros(name);
        const size_t more = strlen(a), less = strlen(b);
        if (more > less || (more == less && strcmp(a, b) > 0)) wrong = k;
    }
    if (wrong && cr_folder_warning_is_new("order", dataset->classes, root))
        cr_log(
            CR_LOG_INFO,
            "%s: the classes are sorted as text, as torchvision sorts folders: label %d is class %s, label %d class %s",
            root, wrong - 1, dataset->class_names[wrong - 1], wrong, dataset->class_names[wrong]);
}

bool cr_folder_holds(const char *root, const char *name, int folders) {
    char                 path[PATH_MAX];
    const struct dirent *entry;
    DIR *dir = snprintf(path, sizeof path, "%s/%s", root, name) < (int)sizeof path ? opendir(path) : NULL;
    while (dir && folders > 0 && (entry = readdir(dir)))
        folders -= entry->d_name[0] != '.' && cr_fs_has_dir(path, entry->d_name);
    if (dir) closedir(dir);
    return folders == 0;
}

cr_status cr_folder_fail_one_class(const char *root, const char *only) {
    char path[PATH_MAX];
    CR_TRY(cr_path_format(path, "%s/%s", root, only));
    const bool meant = cr_folder_holds(root, only, 2);
    return CR_FAIL(CR_ERR_FORMAT, "%s: only one class folder, %s; at least two classes are needed%s%s%s", root, only,
                   meant ? " (did you mean " : "", meant ? path : "", meant ? "?)" : "");
}

/* ---- listing ---- */

cr_status cr_folder_add(struct cr_image_folder *folder, const char *path, int32_t label) {
    CR_GROW(folder->images, folder->count, folder->capacity, 1024);
    folder->images[folder->count++] = (struct cr_image_file){.name = folder->names.length, .label = label};
    cr_text_add_bytes(&folder->names, path, strlen(path) + 1);
    return folder->names.failed ? CR_NO_MEMORY(folder->names.capacity * 2) : CR_OK;
}

cr_status cr_folder_resolve(struct cr_folder_traversal *t, const char *root) {
    return realpath(root, t->resolved) ? CR_OK : CR_FAIL(CR_ERR_IO, "%s: %s", root, strerror(errno));
}

/* Returns whether the link t->path leads to a folder that contains the folder that is listed. */
static bool is_above_root(const struct cr_folder_traversal *t) {
    char target[PATH_MAX];
    if (!realpath(t->path, target)) return false;
    const size_t length = strlen(target);
    return length == 1 ||
           (strncmp(target, t->resolved, length) == 0 && (t->resolved[length] == '/' || !t->resolved[length]));
}

/* Handles one entry of a folder; its full path is in t->path. */
static cr_status list_entry(struct cr_folder_traversal *t, const struct dirent *entry, size_t length, int depth) {
    bool        is_image = cr_is_image_name(entry->d_name);
    struct stat info;
    if (entry->d_type == DT_REG && !is_image) {
        if (is_foreign_name(entry->d_name) && !t->foreign++)
            snprintf(t->foreign_name, sizeof t->foreign_name, "%s", entry->d_name);
        return CR_OK;
    }
    if (entry->d_type == DT_REG) return cr_folder_add(t->folder, t->path + t->root_length, t->label);
    if (entry->d_type != DT_DIR && entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return CR_OK;
    if (t->cache && entry->d_type != DT_DIR) t->cache->unsafe = true; /* what a link leads to may change */
    if (stat(t->path, &info) != 0) {
        if (errno == ENOENT || errno == ELOOP) {
            if (!t->dead++) snprintf(t->dead_path, sizeof t->dead_path, "%s", t->path);
            return CR_OK;
        }
        return CR_FAIL(CR_ERR_IO, "%s: %s", t->path, strerror(errno));
    }
    if (S_ISREG(info.st_mode)) return is_image ? cr_folder_add(t->folder, t->path + t->root_length, t->label) : CR_OK;
    if (!S_ISDIR(info.st_mode)) return CR_OK;
    for (int i = 0; i < depth; i++)
        if (t->above[i].device == info.st_dev && t->above[i].inode == info.st_ino)
            return CR_OK; /* the folder contains itself */
    if (entry->d_type != DT_DIR && is_above_root(t)) return CR_OK;
    return cr_folder_list(t, length, depth);
}

cr_status cr_folder_list(struct cr_folder_traversal *t, size_t length, int depth) {
    struct stat info;
    if (depth == CR_FOLDER_DEPTH_MAX)
        return CR_FAIL(CR_ERR_IO, "%s: folders are nested more than %d deep", t->path, CR_FOLDER_DEPTH_MAX);
    DIR *dir = opendir(t->path);
    if (!dir) return CR_FAIL(CR_ERR_IO, "%s: cannot be listed: %s", t->path, strerror(errno));
    cr_status            status = CR_OK;
    const struct dirent *entry;
    if (fstat(dirfd(dir), &info) != 0) CR_FAIL_OUT(CR_ERR_IO, "%s: %s", t->path, strerror(errno));
    t->above[depth].device = info.st_dev;
    t->above[depth].inode  = info.st_ino;
    if (t->cache) cr_list_cache_add_folder(t->cache, t->path + t->root_length, &info);
    while (errno = 0, (entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        size_t more = strlen(entry->d_name);
        if (length + 1 + more >= sizeof t->path) CR_FAIL_OUT(CR_ERR_IO, "%s: the path is too long", t->path);
        t->path[length] = '/';
        memcpy(t->path + length + 1, entry->d_name, more + 1);
        CR_TRY_OUT(list_entry(t, entry, length + 1 + more, depth + 1));
        t->path[length] = 0;
    }
    if (errno) CR_FAIL_OUT(CR_ERR_IO, "%s: cannot be listed: %s", t->path, strerror(errno));
out:
    closedir(dir);
    return status;
}

/* ---- splits ---- */

static int compare_paths(const void *a, const void *b, void *names) {
    const struct cr_image_file *p = a, *q = b;
    return strcmp((const char *)names + p->name, (const char *)names + q->name);
}

static int compare_hashes(const void *a, const void *b, void *names) {
    const struct cr_image_file *p = a, *q = b;
    if (p->hash != q->hash) return p->hash < q->hash ? -1 : 1;
    return compare_paths(a, b, names);
}

/* The images from `first` on belong to one class. Keeps the images of the split. The `fraction` with the lowest hashes
 * is held out: at least one image and never all; a single image stays in training. */
static void keep_split(struct cr_image_folder *folder, int64_t first, double fraction, enum cr_split split) {
    struct cr_image_file *class = folder->images + first;
    int64_t n = folder->count - first, held = (int64_t)rint((double)n * fraction);
    held = n < 2 ? 0 : CR_MAX(1, CR_MIN(held, n - 1));
    for (int64_t i = 0; i < n; i++) {
        const char *name = folder->names.data + class[i].name;
        class[i].hash    = cr_hash_mix(cr_hash_bytes(CR_HASH_START, name, strlen(name)));
    }
    qsort_r(class, (size_t)n, sizeof *class, compare_hashes, folder->names.data);
    if (split == CR_SPLIT_TRAIN) memmove(class, class + held, (size_t)(n - held) * sizeof *class);
    folder->count = first + (split == CR_SPLIT_TRAIN ? n - held : held);
}

void cr_folder_sort(struct cr_image_folder *folder, int64_t first) {
    qsort_r(folder->images + first, (size_t)(folder->count - first), sizeof *folder->images, compare_paths,
            folder->names.data);
}

void cr_folder_divide(struct cr_image_folder *folder, int64_t first, double fraction, enum cr_split split) {
    if (fraction > 0) keep_split(folder, first, fraction, split);
    cr_folder_sort(folder, first);
}

/* ---- a folder without classes ---- */

cr_status cr_folder_images(const char *path, struct cr_arena *arena, const char ***out, int64_t *count) {
    struct cr_image_folder      folder = {0};
    struct cr_folder_traversal *t      = cr_alloc(1, sizeof *t);
    const char                **list;
    cr_status                   status = CR_OK;
    const size_t                length = cr_path_length(path);
    if (!t) return CR_NO_MEMORY(sizeof *t);
    if (length + 2 >= sizeof t->path) CR_FAIL_OUT(CR_ERR_IO, "%s: the path is too long", path);
    memcpy(t->path, path, length);
    CR_TRY_OUT(cr_folder_resolve(t, path));
    t->folder = &folder; /* root_length is 0: the names start with the given path */
    CR_TRY_OUT(cr_folder_list(t, length, 0));
    if (folder.count) cr_folder_sort(&folder, 0);
    list = cr_arena_alloc(arena, (size_t)(folder.count + 1) * sizeof *list);
    for (int64_t i = 0; list && i < folder.count; i++) {
        list[i] = cr_arena_printf(arena, "%s", folder.names.data + folder.images[i].name);
        if (!list[i]) list = NULL;
    }
    if (!list) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while listing %s", path);
    cr_folder_warn_skipped(t, path);
    *out   = list;
    *count = folder.count;
out:
    cr_text_free(&folder.names);
    cr_free(folder.images);
    cr_free(t);
    return status;
}

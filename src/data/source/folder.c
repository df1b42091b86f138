/* data/source/folder.c: datasets of image files with one folder per class: root/train/<class>/... with root/val/..., or
 * root/<class>/..., of which the fraction data.val_fraction of each class is held out, selected by a hash of the file
 * names.
 *
 * Invariants
 *   - Classes and images are sorted by bytes, so labels and sample numbers are the same on every machine. */
#include "core/utf8.h"
#include "data/class_match.h"
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"
#include "data/source/folder_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLASSES_MAX = 1000000 };

/* Lists the class folders of `root`, sorted; the names and the array are allocated in the arena. */
static cr_status list_classes(struct cr_arena *arena, const char *root, const char ***out, int *count) {
    DIR *dir = opendir(root);
    if (!dir) return CR_FAIL(CR_ERR_IO, "%s: cannot be listed: %s", root, strerror(errno));
    cr_status            status = CR_OK;
    const char         **names  = NULL, **list;
    int                  found = 0, capacity = 0;
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || entry->d_type == DT_REG || !cr_fs_has_dir(root, entry->d_name)) continue;
        if (cr_utf8_has_control(entry->d_name)) /* classes.txt of a checkpoint has one name in a line */
            CR_FAIL_OUT(CR_ERR_FORMAT, "%s/%s: the name of this class folder has control characters; please rename it",
                        root, entry->d_name);
        if (found == capacity) {
            capacity          = CR_MAX(capacity * 2, 64);
            const char **more = cr_realloc(names, (size_t)capacity, sizeof *names);
            if (!more) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while listing %s", root);
            names = more;
        }
        names[found] = cr_arena_printf(arena, "%s", entry->d_name);
        if (!names[found]) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while listing %s", root);
        if (++found > CLASSES_MAX) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: more than %d classes", root, CLASSES_MAX);
    }
    if (errno) CR_FAIL_OUT(CR_ERR_IO, "%s: cannot be listed: %s", root, strerror(errno));
    if (found) qsort(names, (size_t)found, sizeof *names, cr_compare_texts);
    list = cr_arena_alloc(arena, (size_t)(found + 1) * sizeof *list);
    if (!list) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while listing %s", root);
    if (found) memcpy(list, names, (size_t)found * sizeof *list);
    *out   = list;
    *count = found;
out:
    cr_free(names);
    closedir(dir);
    return status;
}

/* `part`: the name by which this folder is a split; "": it is the root. */
static cr_status fail_no_classes(const char *folder, const char *part) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: has no class folders; images are expected as %s/<class>/<name>.jpg%s%s%s",
                   folder, folder, *part ? "; a folder named " : "", part,
                   *part ? " is a split of the dataset: if it is not, rename it or move it away" : "");
}

/* ---- splits ---- */

/* Adds the images of one class: from the stored list, or from the disk and to the list that is made, if it can be
 * stored; they are then sorted. */
static cr_status list_class(struct cr_folder_traversal *t, const char *root, const char *name) {
    struct cr_image_folder *folder = t->folder;
    int64_t                 first  = folder->count;
    struct stat             info;
    if (t->cache->stored) return cr_list_cache_take_class(t->cache, t);
    if (stat(root, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", root, strerror(errno));
    t->above[0].device = info.st_dev;
    t->above[0].inode  = info.st_ino;
    CR_TRY(cr_path_format(t->path, "%s/%s", root, name));
    t->root_length = strlen(root) + 1;
    CR_TRY(cr_folder_list(t, strlen(t->path), 1));
    if (folder->count == first) {
        if (t->foreign)
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s/%s: no image in this class folder that can be read (" CR_IMAGE_KINDS
                           "): convert others, such "
                           "as %s",
                           root, name, t->foreign_name);
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s/%s: no image (" CR_IMAGE_ENDINGS ") in this class folder; fill it or remove it", root, name);
    }
    if (t->cache->unsafe) return CR_OK;
    cr_folder_sort(folder, first);
    cr_list_cache_add_class(t->cache, folder, first);
    return CR_OK;
}

static cr_status list_split(struct cr_dataset *dataset, struct cr_image_folder *folder, const char *part,
                            double fraction, enum cr_split split) {
    struct cr_folder_traversal *t;
    struct cr_list_cache        cache  = {0};
    cr_status                   status = CR_OK;
    CR_TRY(list_classes(&dataset->arena, folder->root, &dataset->class_names, &dataset->classes));
    if (dataset->classes == 0) return fail_no_classes(folder->root, part);
    if (dataset->classes == 1) return cr_folder_fail_one_class(folder->root, dataset->class_names[0]);
    if (split == CR_SPLIT_TRAIN) cr_folder_say_order(dataset, folder->root);
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    CR_ALLOC(t, 1);
    t->folder = folder;
    t->cache  = &cache;
    CR_TRY_OUT(cr_folder_resolve(t, folder->root));
    CR_TRY_OUT(cr_list_cache_open(&cache, t, dataset->class_names, dataset->classes));
    for (int c = 0; c < dataset->classes; c++) {
        int64_t first = folder->count;
        t->label      = c;
        CR_TRY_OUT(list_class(t, folder->root, dataset->class_names[c]));
        if (fraction > 0 || cache.unsafe) cr_folder_divide(folder, first, fraction, split);
        dataset->class_counts[c] = folder->count - first;
    }
    if (!cache.stored) CR_TRY_OUT(cr_list_cache_store(&cache, t));
    dataset->count = folder->count;
    if (dataset->count == 0)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: no image is left for %s with data.val_fraction = %g: %s", folder->root,
                    split == CR_SPLIT_TRAIN ? "training" : "validation", fraction,
                    split == CR_SPLIT_TRAIN ? "give more images, or a smaller fraction"
                                            : "a class needs at least two images, one of them for validation");
    cr_folder_warn_skipped(t, folder->root);
out:
    cr_list_cache_close(&cache);
    cr_free(t);
    return status;
}

/* Training and validation must have the same class for each label. Both lists are sorted. */
static cr_status check_same_classes(struct cr_dataset *dataset, const char *here, const char *there) {
    struct cr_class_match match;
    const char          **names, **own = dataset->class_names;
    char                  hint[600] = "";
    int                   count, i = 0;
    CR_TRY(list_classes(&dataset->arena, there, &names, &count));
    if (count == 0) return fail_no_classes(there, strrchr(there, '/') + 1);
    while (i < count && i < dataset->classes && !strcmp(names[i], own[i])) i++;
    if (i == count && i == dataset->classes) return CR_OK;
    CR_TRY(cr_class_match(own, dataset->classes, names, count, true, &match));
    if (match.respelt >= 0)
        snprintf(hint, sizeof hint, " (%.250s and %.250s differ only in " CR_CLASS_SPELLING ")", own[match.respelt],
                 names[match.to[match.respelt]]);
    cr_class_match_free(&match);
    bool here_only = i == count || (i < dataset->classes && strcmp(own[i], names[i]) < 0);
    return CR_FAIL(CR_ERR_FORMAT, "%s has the class %s and %s does not: both must have the same class folders%s",
                   here_only ? here : there, here_only ? own[i] : names[i], here_only ? there : here, hint);
}

const char *const cr_train_names[] = {"train", "training", NULL};
const char *const cr_val_names[]   = {"val", "valid", "validation", "eval", "evaluation", "test", "testing", NULL};

/* Returns the first of `names` that is a folder in root, or NULL. */
static const char *find_part(const char *root, const char *const *names) {
    for (size_t i = 0; names[i]; i++)
        if (cr_fs_has_dir(root, names[i])) return names[i];
    return NULL;
}

/* The same for names in upper or mixed case, of folders that hold folders; the name is written to `buf`. */
static const char *find_part_any_case(const char *root, const char *const *names, char buf[NAME_MAX + 1]) {
    size_t               best = SIZE_MAX;
    DIR                 *dir  = opendir(root);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        for (size_t i = 0; i <= best && names[i]; i++) {
            if (strcasecmp(entry->d_name, names[i]) != 0 || !cr_folder_holds(root, entry->d_name, 1)) continue;
            if (i == best && strcmp(entry->d_name, buf) > 0) continue; /* TRAIN, Train: not by the disk's order */
            snprintf(buf, NAME_MAX + 1, "%s", entry->d_name);
            best = i;
        }
    if (dir) closedir(dir);
    return best < SIZE_MAX ? buf : NULL;
}

/* With errno set by stat. The error begins with the key, its value and the place where it is set. */
static cr_status fail_root(const struct cr_config *config, const char *root) {
    if (errno != ENOENT) return cr_config_fail(config, "data.root", "%s: %s", root, strerror(errno));
    return cr_config_fail(config, "data.root",
                          "there is no such folder: set data.root to the folder of your images; the scripts "
                          "datasets/fetch-*.sh download public sets");
}

static cr_status open_split(const struct cr_config *config, enum cr_split split, const char *root,
                            struct cr_dataset *dataset, struct cr_image_folder *folder) {
    char        names[2][NAME_MAX + 1];
    struct stat info;
    if (stat(root, &info) != 0) return fail_root(config, root);
    if (!S_ISDIR(info.st_mode)) return cr_config_fail(config, "data.root", "%s is not a folder", root);
    const char *train = find_part(root, cr_train_names);
    const char *val   = find_part(root, cr_val_names);
    if (!train || !val) { /* Train or Test alone may be a class */
        const char *t = train ? train : find_part_any_case(root, cr_train_names, names[0]);
        const char *v = val ? val : find_part_any_case(root, cr_val_names, names[1]);
        if (t && v) {
            train = t;
            val   = v;
        }
    }
    double fraction = config->data.val_fraction;
    if (val && !train && split == CR_SPLIT_TRAIN)
        return cr_config_fail(config, "data.root", "%s has %s/ but no train/", root, val);
    if (!val && split == CR_SPLIT_VAL && fraction <= 0)
        return cr_config_fail(config, "data.val_fraction",
                              "%s has no val/: set the fraction to hold out, e.g. data.val_fraction=0.1, "
                              "or make val/",
                              root);
    const char *part = val && split == CR_SPLIT_VAL ? val : train ? train : "";
    folder->root     = cr_arena_printf(&dataset->arena, "%s%s%s", root, *part ? "/" : "", part);
    if (!folder->root) return CR_NO_MEMORY(strlen(root));
    CR_TRY(list_split(dataset, folder, part, val ? 0 : fraction, split));
    if (!train || !val) return CR_OK;
    char other[PATH_MAX];
    CR_TRY(cr_path_format(other, "%s/%s", root, split == CR_SPLIT_VAL ? train : val));
    return check_same_classes(dataset, folder->root, other);
}

/* ---- the dataset ---- */

static const char *image_name(const struct cr_image_folder *folder, int64_t sample) {
    return folder->names.data + folder->images[sample].name;
}

static void folder_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct cr_image_folder *folder = dataset->state;
    const char                   *name   = image_name(folder, sample);
    snprintf(buf, size, "%s%s%s", *name == '/' ? "" : folder->root, *name == '/' ? "" : "/", name);
}

static cr_status folder_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                              struct cr_stored *out) {
    char path[PATH_MAX];
    folder_name(dataset, sample, path, sizeof path);
    CR_TRY(cr_image_file_read(path, scratch, &out->count));
    out->bytes = scratch->file.bytes;
    return CR_OK;
}

int32_t cr_folder_label(const struct cr_dataset *dataset, int64_t sample) {
    const struct cr_image_folder *folder = dataset->state;
    return folder->images[sample].label;
}

static void folder_close(struct cr_dataset *dataset) {
    struct cr_image_folder *folder = dataset->state;
    if (!folder) return;
    cr_text_free(&folder->names);
    cr_free(folder->images);
    cr_free(folder);
}

static uint64_t folder_digest(const struct cr_dataset *dataset, int64_t sample, uint8_t *head) {
    const struct cr_image_folder *folder = dataset->state;
    char                          path[PATH_MAX];
    struct stat                   info;
    uint64_t                      digest = 0;
    folder_name(dataset, sample, path, sizeof path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe must not block */
    if (fd < 0) return 0;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        const size_t count = (size_t)CR_MIN(info.st_size, (off_t)CR_DIGEST_BYTES);
        if (cr_fs_read_at(fd, path, head, count, 0) == CR_OK)
            digest = cr_hash_sample((uint64_t)info.st_size, folder->images[sample].label, head, count);
        else
            cr_error_clear();
    }
    close(fd);
    return digest;
}

static const struct cr_dataset_ops folder_ops = {folder_fetch, folder_name,   cr_folder_label,
                                                 folder_close, folder_digest, NULL};

/* Hash of the paths, which contain the classes of a folder. */
static uint64_t hash_names(const struct cr_image_folder *folder) {
    uint64_t hash = CR_HASH_START;
    for (int64_t i = 0; i < folder->count; i++) {
        const char *name = image_name(folder, i);
        hash             = cr_hash_bytes(hash, name, strlen(name) + 1);
    }
    return hash;
}

static cr_status open_folder(const struct cr_config *config, struct cr_dataset *dataset) {
    struct cr_image_folder *folder;
    CR_ALLOC(folder, 1);
    dataset->state = folder;
    dataset->ops   = &folder_ops;
    dataset->exif  = config->data.exif;
    return CR_OK;
}

cr_status cr_folder_open(const struct cr_config *config, enum cr_split split, const char *root,
                         struct cr_dataset *dataset) {
    CR_TRY(open_folder(config, dataset));
    CR_TRY(open_split(config, split, root, dataset, dataset->state));
    dataset->fingerprint = hash_names(dataset->state);
    return CR_OK;
}

cr_status cr_folder_begin(const struct cr_config *config, const char *root, struct cr_dataset *dataset) {
    struct stat info;
    CR_TRY(open_folder(config, dataset));
    struct cr_image_folder *folder = dataset->state;
    if (stat(root, &info) != 0) return fail_root(config, root);
    if (!S_ISDIR(info.st_mode))
        return cr_config_fail(config, "data.root", "%s is not a folder; it must hold train.csv", root);
    folder->root = cr_arena_printf(&dataset->arena, "%s", root);
    return folder->root ? CR_OK : CR_NO_MEMORY(strlen(root));
}

static cr_status finish(struct cr_dataset *dataset, uint64_t fingerprint) {
    const struct cr_image_folder *folder = dataset->state;
    dataset->count                       = folder->count;
    dataset->fingerprint                 = fingerprint;
    if (folder->count) return CR_OK;
    return CR_FAIL(CR_ERR_FORMAT, "%s: no image is left in this split: change data.val_fraction", folder->root);
}

cr_status cr_folder_finish_labels(struct cr_dataset *dataset, const int32_t *rows) {
    struct cr_image_folder *folder = dataset->state;
    const size_t            words = (size_t)dataset->label_words, bytes = words * sizeof *rows;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    CR_ARENA_ALLOC(&dataset->arena, dataset->label_rows, (size_t)(CR_MAX(folder->count, 1) * dataset->label_words));
    uint64_t hash = hash_names(folder);
    for (int64_t i = 0; i < folder->count; i++) {
        int32_t *row = dataset->label_rows + (size_t)i * words;
        memcpy(row, rows + (size_t)folder->images[i].label * words, bytes);
        for (size_t w = 1; w < words; w++)
            for (uint32_t bits = (uint32_t)row[w]; bits; bits &= bits - 1)
                dataset->class_counts[32 * (w - 1) + (size_t)__builtin_ctz(bits)]++;
        hash                    = cr_hash_bytes(hash, row, bytes);
        folder->images[i].label = (int32_t)(cr_hash_mix(cr_hash_bytes(CR_HASH_START, row, bytes)) >> 33);
    }
    return finish(dataset, hash);
}

cr_status cr_folder_finish(struct cr_dataset *dataset) {
    const struct cr_image_folder *folder = dataset->state;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)dataset->classes);
    uint64_t hash = hash_names(folder);
    for (int64_t i = 0; i < folder->count; i++) {
        dataset->class_counts[folder->images[i].label]++;
        hash = cr_hash_bytes(hash, &folder->images[i].label, sizeof folder->images[i].label);
    }
    return finish(dataset, hash);
}

/* ---- files without classes ---- */

cr_status cr_dataset_open_files(const struct cr_config *config, const char *root, const char *const *files,
                                int64_t count, struct cr_dataset **out) {
    static const char *no_class = "";
    struct cr_dataset *dataset;
    cr_status          status = CR_OK;
    CR_ALLOC(dataset, 1);
    dataset->format      = cr_format_of(config);
    dataset->max_pixels  = config->data.max_pixels;
    dataset->classes     = 1;
    dataset->class_names = &no_class;
    CR_TRY_OUT(cr_folder_begin(config, root, dataset));
    for (int64_t i = 0; i < count; i++) CR_TRY_OUT(cr_folder_add(dataset->state, files[i], 0));
    CR_TRY_OUT(cr_folder_finish(dataset));
    status = cr_dataset_alloc_logged(dataset);
out:
    if (status != CR_OK)
        cr_dataset_close(dataset);
    else
        *out = dataset;
    return status;
}

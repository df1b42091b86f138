/* data/source/folder.c: datasets of image files with one folder per class: root/train/<class>/... with root/val/..., or
 * root/<class>/..., of which the fraction data.val_fraction of each class is held out, selected by a hash of the file
 * names.
 *
 * Invariants
 *   - Classes and images are sorted by bytes, so labels and sample numbers are the same on every machine.
 *   - The file name decides whether a file is listed (jpg, jpeg, jpe, jfif, png; hidden files are skipped). The content
 *     decides how it is decoded.
 *   - Links are followed; a folder that contains itself is entered once. */
#include "data/data_internal.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { DEPTH_MAX = 32, CLASSES_MAX = 1000000 };

struct image_file {
    size_t   name; /* offset in `names`: the path within the folder of the split */
    int32_t  label;
    uint64_t hash; /* of this path */
};
struct folder {
    char              *root; /* folder of this split */
    struct cr_text     names;
    struct image_file *images;
    int64_t            count, capacity;
};
/* The traversal of one folder of the disk. */
struct traversal {
    struct folder *folder;
    char           path[PATH_MAX];
    size_t         root_length; /* length of the path of the split's folder with its slash */
    int32_t        label;
    int64_t        foreign; /* images in formats that cannot be read */
    char           foreign_name[NAME_MAX + 1];
    struct {
        dev_t device;
        ino_t inode;
    } above[DEPTH_MAX]; /* the folders from the folder of the split down to the current one */
};

static bool has_ending(const char *name, const char *const *endings, size_t count) {
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < count; i++)
        if (!strcasecmp(dot + 1, endings[i])) return true;
    return false;
}

static bool is_image_name(const char *name) {
    static const char *const endings[] = {"jpg", "jpeg", "jpe", "jfif", "png"};
    return has_ending(name, endings, CR_COUNT(endings));
}

static bool is_foreign_name(const char *name) {
    static const char *const endings[] = {"gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "avif", "heic", "jxl"};
    return has_ending(name, endings, CR_COUNT(endings));
}

/* ---- listing ---- */

static cr_status add_image(struct traversal *t, const char *path) {
    struct folder *folder = t->folder;
    if (folder->count == folder->capacity) {
        int64_t            capacity = CR_MAX(folder->capacity * 2, 1024);
        struct image_file *grown    = cr_realloc(folder->images, (size_t)capacity, sizeof *grown);
        if (!grown) return CR_NO_MEMORY((size_t)capacity * sizeof *grown);
        folder->images   = grown;
        folder->capacity = capacity;
    }
    size_t length = strlen(path);
    folder->images[folder->count++] =
        (struct image_file){folder->names.length, t->label, cr_hash_mix(cr_hash_bytes(CR_HASH_START, path, length))};
    cr_text_add_bytes(&folder->names, path, length + 1);
    return folder->names.failed ? CR_NO_MEMORY(folder->names.capacity * 2) : CR_OK;
}

static cr_status list_folder(struct traversal *t, size_t length, int depth);

/* Handles one entry of a folder; its full path is in t->path. */
static cr_status list_entry(struct traversal *t, const struct dirent *entry, size_t length, int depth) {
    bool        is_image = is_image_name(entry->d_name);
    struct stat info;
    if (entry->d_type == DT_REG && !is_image) {
        if (is_foreign_name(entry->d_name) && !t->foreign++)
            snprintf(t->foreign_name, sizeof t->foreign_name, "%s", entry->d_name);
        return CR_OK;
    }
    if (entry->d_type == DT_REG) return add_image(t, t->path + t->root_length);
    if (entry->d_type != DT_DIR && entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return CR_OK;
    if (stat(t->path, &info) != 0) {
        if (errno == ENOENT || errno == ELOOP) {
            cr_log(CR_LOG_WARN, "%s: the target of the link does not exist; skipped", t->path);
            return CR_OK;
        }
        return CR_FAIL(CR_ERR_IO, "%s: %s", t->path, strerror(errno));
    }
    if (S_ISREG(info.st_mode)) return is_image ? add_image(t, t->path + t->root_length) : CR_OK;
    if (!S_ISDIR(info.st_mode)) return CR_OK;
    for (int i = 0; i < depth; i++)
        if (t->above[i].device == info.st_dev && t->above[i].inode == info.st_ino)
            return CR_OK; /* the folder contains itself */
    return list_folder(t, length, depth);
}

/* Lists the folder in t->path, `length` bytes long, and all folders below it. */
static cr_status list_folder(struct traversal *t, size_t length, int depth) {
    struct stat info;
    if (depth == DEPTH_MAX) return CR_FAIL(CR_ERR_IO, "%s: folders are nested more than %d deep", t->path, DEPTH_MAX);
    DIR *dir = opendir(t->path);
    if (!dir) return CR_FAIL(CR_ERR_IO, "%s: cannot be listed: %s", t->path, strerror(errno));
    cr_status            status = CR_OK;
    const struct dirent *entry;
    if (fstat(dirfd(dir), &info) != 0) CR_FAIL_OUT(CR_ERR_IO, "%s: %s", t->path, strerror(errno));
    t->above[depth].device = info.st_dev;
    t->above[depth].inode  = info.st_ino;
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

/* ---- a folder without classes ---- */

static int compare_images(const void *a, const void *b, void *names) {
    const struct image_file *p = a, *q = b;
    return strcmp((const char *)names + p->name, (const char *)names + q->name);
}

cr_status cr_folder_images(const char *path, struct cr_arena *arena, const char ***out, int64_t *count) {
    struct folder     folder = {0};
    struct traversal *t      = cr_alloc(1, sizeof *t);
    const char      **list;
    cr_status         status = CR_OK;
    size_t            length = strlen(path);
    if (!t) return CR_NO_MEMORY(sizeof *t);
    while (length > 1 && path[length - 1] == '/') length--;
    if (length + 2 >= sizeof t->path) CR_FAIL_OUT(CR_ERR_IO, "%s: the path is too long", path);
    memcpy(t->path, path, length);
    t->folder = &folder; /* root_length is 0: the names start with the given path */
    CR_TRY_OUT(list_folder(t, length, 0));
    if (folder.count)
        qsort_r(folder.images, (size_t)folder.count, sizeof *folder.images, compare_images, folder.names.data);
    list = cr_arena_alloc(arena, (size_t)(folder.count + 1) * sizeof *list);
    for (int64_t i = 0; list && i < folder.count; i++) {
        list[i] = cr_arena_printf(arena, "%s", folder.names.data + folder.images[i].name);
        if (!list[i]) list = NULL;
    }
    if (!list) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while listing %s", path);
    if (t->foreign)
        cr_log(CR_LOG_WARN, "%s: %lld images in unsupported formats were skipped, e.g. %s", path, (long long)t->foreign,
               t->foreign_name);
    *out   = list;
    *count = folder.count;
out:
    cr_text_free(&folder.names);
    cr_free(folder.images);
    cr_free(t);
    return status;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_folder(const char *parent, const char *name) {
    char        path[PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", parent, name) < (int)sizeof path && stat(path, &info) == 0 &&
           S_ISDIR(info.st_mode);
}

/* Lists the class folders of `root`, sorted; the names and the array are allocated in the arena. */
static cr_status list_classes(struct cr_arena *arena, const char *root, const char ***out, int *count) {
    DIR *dir = opendir(root);
    if (!dir) return CR_FAIL(CR_ERR_IO, "%s: cannot be listed: %s", root, strerror(errno));
    cr_status            status = CR_OK;
    const char         **names  = NULL, **list;
    int                  found = 0, capacity = 0;
    const struct dirent *entry;
    while (errno = 0, (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || entry->d_type == DT_REG || !is_folder(root, entry->d_name)) continue;
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
    if (found) qsort(names, (size_t)found, sizeof *names, compare_names);
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

/* ---- splits ---- */

static int compare_hashes(const void *a, const void *b, void *names) {
    const struct image_file *p = a, *q = b;
    if (p->hash != q->hash) return p->hash < q->hash ? -1 : 1;
    return compare_images(a, b, names);
}

/* The images from `first` on belong to one class. Keeps the images of the split. The `fraction` with the lowest hashes
 * is held out: at least one image and never all; a single image stays in training. */
static void keep_split(struct folder *folder, int64_t first, double fraction, enum cr_split split) {
    struct image_file *class = folder->images + first;
    int64_t n = folder->count - first, held = (int64_t)rint((double)n * fraction);
    held = n < 2 ? 0 : CR_MAX(1, CR_MIN(held, n - 1));
    qsort_r(class, (size_t)n, sizeof *class, compare_hashes, folder->names.data);
    if (split == CR_SPLIT_TRAIN) memmove(class, class + held, (size_t)(n - held) * sizeof *class);
    folder->count = first + (split == CR_SPLIT_TRAIN ? n - held : held);
}

static cr_status list_class(struct traversal *t, const char *root, const char *name, double fraction,
                            enum cr_split split) {
    struct folder *folder = t->folder;
    int64_t        first  = folder->count;
    struct stat    info;
    if (stat(root, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", root, strerror(errno));
    t->above[0].device = info.st_dev;
    t->above[0].inode  = info.st_ino;
    CR_TRY(cr_path_format(t->path, "%s/%s", root, name));
    t->root_length = strlen(root) + 1;
    CR_TRY(list_folder(t, strlen(t->path), 1));
    if (folder->count == first) {
        if (t->foreign)
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s/%s: no PNG or JPEG image in this class folder; other formats, such as "
                           "%s, cannot be read: convert them",
                           root, name, t->foreign_name);
        return CR_FAIL(CR_ERR_FORMAT, "%s/%s: no image (.jpg, .jpeg, .png) in this class folder; fill it or remove it",
                       root, name);
    }
    if (fraction > 0) keep_split(folder, first, fraction, split);
    qsort_r(folder->images + first, (size_t)(folder->count - first), sizeof *folder->images, compare_images,
            folder->names.data);
    return CR_OK;
}

static cr_status list_split(struct cr_dataset *dataset, struct folder *folder, double fraction, enum cr_split split) {
    struct traversal *t;
    cr_status         status = CR_OK;
    CR_TRY(list_classes(&dataset->arena, folder->root, &dataset->class_names, &dataset->classes));
    if (dataset->classes == 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has no class folders; images are expected as %s/<class>/<name>.jpg",
                       folder->root, folder->root);
    if (dataset->classes == 1)
        return CR_FAIL(CR_ERR_FORMAT, "%s: only one class folder, %s; at least two classes are needed", folder->root,
                       dataset->class_names[0]);
    CR_ARENA_ALLOC(dataset->class_counts, dataset, dataset->classes);
    CR_ALLOC(t, 1);
    t->folder = folder;
    for (int c = 0; c < dataset->classes; c++) {
        int64_t first = folder->count;
        t->label      = c;
        CR_TRY_OUT(list_class(t, folder->root, dataset->class_names[c], fraction, split));
        dataset->class_counts[c] = folder->count - first;
    }
    dataset->count = folder->count;
    if (dataset->count == 0)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: no image is left for %s with data.val_fraction = %g", folder->root,
                    split == CR_SPLIT_TRAIN ? "training" : "validation", fraction);
    if (t->foreign)
        cr_log(CR_LOG_WARN, "%s: %lld files such as %s were skipped: only PNG and JPEG images can be read",
               folder->root, (long long)t->foreign, t->foreign_name);
out:
    cr_free(t);
    return status;
}

/* Training and validation must have the same class for each label. */
static cr_status check_same_classes(struct cr_dataset *dataset, const char *here, const char *there) {
    const char **names;
    int          count, i = 0;
    CR_TRY(list_classes(&dataset->arena, there, &names, &count));
    while (i < count && i < dataset->classes && !strcmp(names[i], dataset->class_names[i])) i++;
    if (i == count && i == dataset->classes) return CR_OK;
    bool here_only = i == count || (i < dataset->classes && strcmp(dataset->class_names[i], names[i]) < 0);
    return CR_FAIL(CR_ERR_FORMAT, "%s has the class %s and %s does not: both must have the same class folders",
                   here_only ? here : there, here_only ? dataset->class_names[i] : names[i], here_only ? there : here);
}

/* Returns the first of `names` that is a folder in root, or NULL. */
static const char *find_part(const char *root, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (is_folder(root, names[i])) return names[i];
    return NULL;
}

static cr_status join(const char *root, const char *part, char **out) {
    size_t bytes = strlen(root) + strlen(part) + 2;
    CR_ALLOC(*out, bytes);
    snprintf(*out, bytes, "%s%s%s", root, part[0] ? "/" : "", part);
    return CR_OK;
}

static cr_status open_split(const struct cr_config *config, enum cr_split split, const char *root,
                            struct cr_dataset *dataset, struct folder *folder) {
    static const char *const train_names[] = {"train", "training"};
    static const char *const val_names[]   = {"val", "valid", "validation", "eval", "evaluation", "test"};
    struct stat              info;
    if (stat(root, &info) != 0) return cr_config_fail(config, "data.root", "%s: %s", root, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return cr_config_fail(config, "data.root", "%s is not a folder", root);
    const char *train    = find_part(root, train_names, CR_COUNT(train_names));
    const char *val      = find_part(root, val_names, CR_COUNT(val_names));
    double      fraction = config->data.val_fraction;
    if (val && !train && split == CR_SPLIT_TRAIN)
        return cr_config_fail(config, "data.root", "%s has %s/ but no train/", root, val);
    if (!val && split == CR_SPLIT_VAL && fraction <= 0)
        return cr_config_fail(config, "data.val_fraction",
                              "is 0 and %s has no val/: set the fraction to hold out, e.g. 0.1, "
                              "or make val/",
                              root);
    const char *part = val && split == CR_SPLIT_VAL ? val : train ? train : "";
    CR_TRY(join(root, part, &folder->root));
    CR_TRY(list_split(dataset, folder, val ? 0 : fraction, split));
    if (!train || !val) return CR_OK;
    char     *other;
    cr_status status;
    CR_TRY(join(root, split == CR_SPLIT_VAL ? train : val, &other));
    status = check_same_classes(dataset, folder->root, other);
    cr_free(other);
    return status;
}

/* ---- the dataset ---- */

static const char *image_name(const struct folder *folder, int64_t sample) {
    return folder->names.data + folder->images[sample].name;
}

static void folder_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct folder *folder = dataset->state;
    snprintf(buf, size, "%s/%s", folder->root, image_name(folder, sample));
}

static cr_status folder_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                              struct cr_stored *out, int32_t *label) {
    const struct folder *folder = dataset->state;
    char                 path[PATH_MAX];
    *label = folder->images[sample].label;
    *out   = (struct cr_stored){0};
    folder_name(dataset, sample, path, sizeof path);
    CR_TRY(cr_image_file_read(path, scratch, &out->count));
    out->bytes = scratch->file.bytes;
    return CR_OK;
}

static void folder_close(struct cr_dataset *dataset) {
    struct folder *folder = dataset->state;
    if (!folder) return;
    cr_free(folder->root);
    cr_text_free(&folder->names);
    cr_free(folder->images);
    cr_free(folder);
}

static const struct cr_dataset_ops folder_ops = {folder_fetch, folder_name, folder_close};

cr_status cr_folder_open(const struct cr_config *config, enum cr_split split, const char *root,
                         struct cr_dataset *dataset) {
    struct folder *folder;
    CR_ALLOC(folder, 1);
    dataset->state = folder;
    dataset->ops   = &folder_ops;
    CR_TRY(open_split(config, split, root, dataset, folder));
    uint64_t hash = CR_HASH_START;
    for (int64_t i = 0; i < folder->count; i++) {
        const char *name = image_name(folder, i);
        hash             = cr_hash_bytes(hash, name, strlen(name) + 1);
    }
    dataset->fingerprint = hash;
    return CR_OK;
}

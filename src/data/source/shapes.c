/* data/source/shapes.c: the built-in dataset: drawn figures in ten classes, stored as PNG files in class folders.
 * The dataset is written once, to a temporary folder next to its place, and then renamed, so an incomplete dataset
 * never appears. */
#include "core/temporary.h"
#include "data/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRAIN_IMAGES = 4000, VAL_IMAGES = 1000, GENERATION = 1 }; /* GENERATION: increment when the drawing changes */
enum { MANIFEST_BYTES_MAX = 4096, STORED_IMAGES_MAX = 100000 };

static const char *const split_names[]   = {"train", "val"};
static const char        manifest_name[] = "shapes.txt";

static void manifest_text(const int64_t counts[2], char *buf, size_t size) {
    snprintf(buf, size, "cresnet shapes %d\ntrain %lld\nval %lld\n", GENERATION, (long long)counts[0],
             (long long)counts[1]);
}

enum found { FOUND_NOTHING, FOUND_SAME, FOUND_OTHER };

/* Whether `path` is an empty folder or does not exist. A path that cannot be examined is an error. */
static cr_status is_empty(const char *path, bool *empty) {
    struct stat s;
    DIR        *dir = opendir(path);
    if (!dir) {
        const int error = errno;
        *empty          = error == ENOENT;
        if (*empty || (stat(path, &s) == 0 && !S_ISDIR(s.st_mode))) return CR_OK;
        return cr_fs_refused(path, "look for the shapes dataset here (data.root)", error);
    }
    const struct dirent *entry;
    while ((entry = readdir(dir)) && (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))) continue;
    closedir(dir);
    *empty = !entry;
    return CR_OK;
}

/* Determines what `root` contains: nothing (also an empty folder), this dataset, or something else. */
static cr_status examine(const char *root, const int64_t counts[2], enum found *found) {
    char path[PATH_MAX], want[128], *have;
    CR_TRY(cr_path_format(path, "%s/%s", root, manifest_name));
    if (access(path, F_OK) != 0) {
        bool empty;
        CR_TRY(is_empty(root, &empty));
        *found = empty ? FOUND_NOTHING : FOUND_OTHER;
        return CR_OK;
    }
    CR_TRY(cr_file_read(path, MANIFEST_BYTES_MAX, &have, NULL));
    manifest_text(counts, want, sizeof want);
    *found = strcmp(have, want) == 0 ? FOUND_SAME : FOUND_OTHER;
    cr_free(have);
    return CR_OK;
}

static cr_status write_images(const char *folder, enum cr_split split, int64_t count) {
    char    path[PATH_MAX];
    uint8_t rgb[CR_SHAPES_SIDE * CR_SHAPES_SIDE * 3];
    for (int c = 0; c < CR_SHAPES_CLASSES; c++) {
        CR_TRY(cr_path_format(path, "%s/%s/%s", folder, split_names[split], cr_shapes_class(c)));
        CR_TRY(cr_fs_mkdirs(path));
    }
    for (int64_t i = 0; i < count; i++) {
        cr_shapes_draw(split, i, rgb);
        CR_TRY(cr_path_format(path, "%s/%s/%s/%05lld.png", folder, split_names[split],
                              cr_shapes_class((int)(i % CR_SHAPES_CLASSES)), (long long)(i / CR_SHAPES_CLASSES)));
        CR_TRY(cr_image_write_png(path, rgb, CR_SHAPES_SIDE, CR_SHAPES_SIDE));
    }
    return CR_OK;
}

/* Writes the whole dataset into `folder` and renames it to `root`; another process may have done this first. */
static cr_status write_and_rename(const char *folder, const char *root, const int64_t counts[2]) {
    char path[PATH_MAX], text[128];
    for (int s = 0; s < 2; s++) CR_TRY(write_images(folder, (enum cr_split)s, counts[s]));
    manifest_text(counts, text, sizeof text);
    CR_TRY(cr_path_format(path, "%s/%s", folder, manifest_name));
    CR_TRY(cr_fs_write_new(path, text, strlen(text)));
    if (rename(folder, root) == 0) return CR_OK;
    int        error = errno;
    enum found found;
    CR_TRY(examine(root, counts, &found));
    if (found == FOUND_SAME) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s: cannot be renamed to %s: %s", folder, root, strerror(error));
}

/* The images are drawn in a folder next to `target`, which is renamed: the root of a file system cannot be replaced. */
static cr_status check_mount(const char *target, const char *parent) {
    struct stat inside, outside;
    if (stat(target, &inside) != 0 || stat(parent, &outside) != 0 || inside.st_dev == outside.st_dev) return CR_OK;
    return CR_FAIL(CR_ERR_CONFIG, "%s: is the root of a file system: name a folder inside it, for example %s/shapes",
                   target, target);
}

cr_status cr_shapes_make(const char *root, int64_t train_images, int64_t val_images) {
    const int64_t       counts[2] = {train_images, val_images};
    char                target[PATH_MAX], parent[PATH_MAX];
    struct cr_temporary folder;
    enum found          found;
    if (train_images < CR_SHAPES_CLASSES || val_images < CR_SHAPES_CLASSES)
        return CR_FAIL(CR_ERR_CONFIG, "data.train_images and data.val_images: must be at least %d, one image per class",
                       CR_SHAPES_CLASSES);
    CR_TRY(cr_path_format(target, "%s", root));
    target[cr_path_length(target)] = 0;
    CR_TRY(examine(target, counts, &found));
    switch (found) {
    case FOUND_SAME: return CR_OK;
    case FOUND_OTHER:
        return CR_FAIL(CR_ERR_CONFIG,
                       "%s exists already and is not the shapes dataset with %lld training and %lld validation "
                       "images: choose another folder (data.root); images of your own also need data.kind=folder",
                       target, (long long)train_images, (long long)val_images);
    case FOUND_NOTHING: break;
    }
    cr_path_folder(parent, target);
    CR_TRY(check_mount(target, parent));
    cr_log(CR_LOG_INFO, "drawing %lld images of shapes into %s", (long long)(train_images + val_images), target);
    CR_TRY(cr_fs_mkdirs_of(target));
    CR_TRY(cr_temporary_folder(&folder, target));
    cr_status status = write_and_rename(folder.path, target, counts);
    cr_temporary_drop(&folder);
    return status;
}

/* The folder in the user's cache. */
static cr_status default_root(const struct cr_config *config, const int64_t counts[2], char buf[PATH_MAX]) {
    char name[80];
    snprintf(name, sizeof name, "shapes-%d-%lld-%lld", GENERATION, (long long)counts[0], (long long)counts[1]);
    CR_TRY(cr_cache_path(buf, "", "cresnet", name));
    if (*buf) return CR_OK;
    return cr_config_fail(config, "data.root",
                          "is empty and neither XDG_CACHE_HOME nor HOME is set: set it to a folder for the images");
}

/* The configuration of a run may come from somebody else: images are drawn where it says only if they are there
 * already. In the user's cache they are drawn, unless they would fill the disk. */
static cr_status check_stored(const struct cr_config *config, const char *root, const int64_t counts[2]) {
    enum found found;
    if (!config->stored || cr_config_given(config, "data.root")) return CR_OK;
    if (!config->data.root[0] && counts[0] + counts[1] <= STORED_IMAGES_MAX) return CR_OK;
    CR_TRY(examine(root, counts, &found));
    if (found == FOUND_SAME) return CR_OK;
    return CR_FAIL(
        CR_ERR_CONFIG,
        "%s: the images of the built-in dataset are not there, and the configuration of a run does not create "
        "folders: give data.root=DIR, or run cresnet data shapes DIR first",
        root);
}

cr_status cr_shapes_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    const char *const keys[2]   = {"data.train_images", "data.val_images"};
    const int64_t     counts[2] = {config->data.train_images ? config->data.train_images : TRAIN_IMAGES,
                               config->data.val_images ? config->data.val_images : VAL_IMAGES};
    char root[PATH_MAX];
    for (int s = 0; s < 2; s++)
        if (counts[s] < CR_SHAPES_CLASSES)
            return cr_config_fail(config, keys[s], "must be at least %d, one for each class of shapes",
                                  CR_SHAPES_CLASSES);
    if (config->data.root[0])
        CR_TRY(cr_path_format(root, "%s", config->data.root));
    else
        CR_TRY(default_root(config, counts, root));
    CR_TRY(check_stored(config, root, counts));
    const cr_status status = cr_shapes_make(root, counts[0], counts[1]);
    if (status == CR_ERR_IO && !config->data.root[0])
        return CR_FAIL(status, "%s (data.root=DIR selects another folder)", cr_error_message());
    CR_TRY(status);
    dataset->generated = true;
    return cr_folder_open(config, split, root, dataset);
}

/* data/source/folder_list.h: lists the images of a folder and of the folders below it.
 *
 * Invariants
 *   - The file name decides whether a file is listed (cr_is_image_name; hidden files are skipped). The
 *     content decides how it is decoded.
 *   - Links are followed. A folder that contains itself is entered once, and links to folders above the folder that is
 *     listed are skipped, because they contain it. */
#ifndef CR_FOLDER_LIST_H
#define CR_FOLDER_LIST_H

#include "core/files.h"
#include "data/data.h"

#include <limits.h>
#include <sys/stat.h>

enum { CR_FOLDER_DEPTH_MAX = 32 };

struct cr_image_file {
    size_t   name; /* offset in `names`: the path within the folder of the split */
    int32_t  label;
    uint64_t hash; /* of this path, while a class is divided */
};
struct cr_image_folder {
    char                 *root; /* folder of this split */
    struct cr_text        names;
    struct cr_image_file *images;
    int64_t               count, capacity;
};
struct cr_list_cache; /* below */
/* The traversal of one folder of the disk. */
struct cr_folder_traversal {
    struct cr_image_folder *folder;
    struct cr_list_cache   *cache; /* stores the names of the images; NULL: they are not stored */
    char                    path[PATH_MAX];
    size_t                  root_length; /* length of the path of the split's folder with its slash */
    int32_t                 label;
    int64_t                 foreign; /* images in formats that cannot be read */
    char                    foreign_name[NAME_MAX + 1];
    int64_t                 dead; /* links whose targets do not exist */
    char                    dead_path[PATH_MAX];
    char                    resolved[PATH_MAX]; /* the folder that is listed, without links */
    struct {
        dev_t device;
        ino_t inode;
    } above[CR_FOLDER_DEPTH_MAX]; /* the folders from the folder of the split down to the current one */
};

/* Appends the images of the folder in t->path, `length` bytes long, and of all folders below it to t->folder, in the
 * order of the file system. `depth`: the number of folders in t->above. Errors: folders that cannot be listed, paths
 * that are too long, folders nested too deep. */
cr_status cr_folder_list(struct cr_folder_traversal *t, size_t length, int depth);
/* Sets t->resolved for a listing of `root`. CR_ERR_IO when there is no such folder. */
CR_MUST cr_status cr_folder_resolve(struct cr_folder_traversal *t, const char *root);
/* Logs how many files of other formats and dead links below `root` were skipped, once when a folder is listed again. */
void cr_folder_warn_skipped(const struct cr_folder_traversal *t, const char *root);
/* Returns whether the warning `what` about `count` files of `root` is to be logged (cr_dataset_warnings) and was not
 * logged yet: both splits often read one folder or list, and some commands open a dataset twice. */
bool cr_folder_warning_is_new(const char *what, int64_t count, const char *root);
/* Adds an image. `path` is relative to the root of `folder`, or absolute. CR_ERR_MEMORY. */
CR_MUST cr_status cr_folder_add(struct cr_image_folder *folder, const char *path, int32_t label);
/* Sorts the images from `first` on by their paths. */
void cr_folder_sort(struct cr_image_folder *folder, int64_t first);

/* ---- data/source/folder_cache.c: stored lists of any kind ---- */

/* The state of a folder or file: what a stored list says about it holds while its stamp is the same. */
struct cr_list_stamp {
    uint64_t inode;
    int64_t  mtime_ns, ctime_ns;
};
struct cr_list_reader { /* what is still to be read of a list */
    const char *at, *end;
};
struct cr_list_stamp cr_list_stamp_of(const struct stat *info);
/* Was it changed so shortly before `began_ns` that a later change may get the same stamp? */
bool cr_list_stamp_is_recent(const struct cr_list_stamp *stamp, int64_t began_ns);
/* False on file systems whose stamps cannot be trusted (FUSE). *began_ns: the time now, since 1970. */
bool cr_list_is_safe(const char *root, int64_t *began_ns);
/* Writes the path KIND-<hash>.list in the user's cache folder (cr_cache_path); "" when there is none. */
void cr_list_path(char out[CR_PATH_MAX], const char *kind, uint64_t hash);
/* Reads a list of this kind. *stored, which the caller frees with cr_free, is NULL when there is none or it is damaged.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_list_read(const char *path, const char kind[8], char **stored, struct cr_list_reader *body);
/* Take the next bytes, the next text (NULL at the end), or the next of names; false at the end. `name` holds the name
 * before. */
bool        cr_list_take_bytes(struct cr_list_reader *reader, void *to, size_t count);
const char *cr_list_take_text(struct cr_list_reader *reader);
bool        cr_list_take_name(struct cr_list_reader *reader, char name[PATH_MAX]);
/* Adds a name: in one byte the number of bytes that it shares with the name before, then the other bytes. */
void cr_list_add_name(struct cr_text *text, const char *name, const char *before);
/* Begins a list; writes the list `text` to the file. A file that cannot be written is no error. CR_ERR_MEMORY. */
void              cr_list_begin(struct cr_text *text, const char kind[8]);
CR_MUST cr_status cr_list_write(const char *path, struct cr_text *text);

/* ---- data/source/folder_cache.c: the list of a folder ---- */

/* The names of the images of a folder, kept in the user's cache folder (cr_cache_path) as folder-<hash of the
 * path>.list, so that a large folder is listed once.
 *
 * Invariants
 *   - A stored list is used only if each folder that was listed has the same inode, mtime and ctime as before, and is
 *     on the file system of the first. A file that is added, removed or renamed changes both times of its folder.
 *   - Nothing is stored about folders that cannot be checked like this: with links, on several or user-space (FUSE)
 *     file systems, or changed so shortly before the listing that a later change may get the same time.
 *   - A list that is damaged, and a cache folder that cannot be written, are no error: the folder is listed. */
struct cr_list_cache {
    char        path[CR_PATH_MAX]; /* of the stored list; "" when there is none */
    const char *root;              /* the folder of the split, without links; borrowed */
    /* a stored list that is used; NULL: none */
    char                 *stored;
    struct cr_list_reader body;
    /* the list that is made */
    int64_t        began_ns; /* since 1970 */
    dev_t          device;   /* of `root` */
    bool           unsafe;   /* the list must not be stored */
    struct cr_text folders, names;
    int64_t        folder_count, images;
};
/* Reads the stored list of t->resolved with these classes, if it is valid; cache->stored then says so. The caller
 * closes the cache, also after a failure. CR_ERR_MEMORY. */
CR_MUST cr_status cr_list_cache_open(struct cr_list_cache *cache, struct cr_folder_traversal *t,
                                     const char *const *classes, int count);
void              cr_list_cache_close(struct cr_list_cache *cache);
/* Of a stored list: appends the images of the next class to t->folder, sorted by name. CR_ERR_MEMORY; CR_ERR_FORMAT. */
CR_MUST cr_status cr_list_cache_take_class(struct cr_list_cache *cache, struct cr_folder_traversal *t);
/* While listing: a folder, before its entries are read; the images of a class, sorted by name. */
void cr_list_cache_add_folder(struct cr_list_cache *cache, const char *path, const struct stat *info);
void cr_list_cache_add_class(struct cr_list_cache *cache, const struct cr_image_folder *folder, int64_t first);
/* Stores the list if it is worth it. CR_ERR_MEMORY. */
CR_MUST cr_status cr_list_cache_store(struct cr_list_cache *cache, const struct cr_folder_traversal *t);

/* ---- data/source/folder.c: what lists and archives share ---- */

/* Names of the folders, and parts of names of archives, of training and of validation; the usual ones first. NULL ends
 * both. */
extern const char *const cr_train_names[], *const cr_val_names[];
/* Creates dataset->state, a struct cr_image_folder with this root, and sets dataset->ops. CR_ERR_CONFIG: the folder
 * does not exist. */
CR_MUST cr_status cr_folder_begin(const struct cr_config *config, const char *root, struct cr_dataset *dataset);
/* The label of an image of a dataset whose state begins with a struct cr_image_folder. */
int32_t cr_folder_label(const struct cr_dataset *dataset, int64_t sample);
/* The images from `first` on belong to one class. Keeps those of the split, sorted by name: a fraction is held out by
 * the hash of the name (at least one image and never all). */
void cr_folder_divide(struct cr_image_folder *folder, int64_t first, double fraction, enum cr_split split);
/* Says that classes whose names are numbers are sorted as text, if that is another order: 0, 1, 10, 2. */
void cr_folder_say_order(const struct cr_dataset *dataset, const char *root);
/* Whether there are at least so many folders in root/name. */
bool cr_folder_holds(const char *root, const char *name, int folders);
/* The error for a root whose only folder is `only`, which may be the folder that was meant. */
CR_MUST cr_status cr_folder_fail_one_class(const char *root, const char *only);
/* Sets count, class_counts and fingerprint of the dataset after all images were added. */
CR_MUST cr_status cr_folder_finish(struct cr_dataset *dataset);
/* The same when images have several labels: the label of an image is a row of rows[][dataset->label_words]. Sets
 * dataset->label_rows too. */
CR_MUST cr_status cr_folder_finish_labels(struct cr_dataset *dataset, const int32_t *rows);

#endif

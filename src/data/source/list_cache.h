/* data/source/list_cache.h: the names of the images of a folder, kept in the user's cache folder (cr_cache_path) as
 * folder-<hash of the path>.list, so that a large folder is listed once.
 *
 * Invariants
 *   - A stored list is used only if each folder that was listed has the same device, inode, mtime and ctime as before. A
 *     file that is added, removed or renamed changes both times of its folder.
 *   - Nothing is stored about folders that cannot be checked like this: with links, on several or user-space (FUSE) file
 *     systems, or changed so shortly before the listing that a later change may get the same time.
 *   - A list that is damaged, and a cache folder that cannot be written, are no error: the folder is listed. */
#ifndef CR_LIST_CACHE_H
#define CR_LIST_CACHE_H

#include "core/files.h"
#include "data/source/folder_list.h"

#include <sys/stat.h>

struct cr_list_cache {
    char        path[CR_PATH_MAX]; /* of the stored list; "" when there is none */
    const char *root;              /* the folder of the split, without links; borrowed */
    /* a stored list that is used; NULL: none */
    char       *stored;
    const char *at, *end;
    /* the list that is made */
    int64_t        began_ns; /* since 1970 */
    dev_t          device;   /* of `root` */
    bool           unsafe;   /* the list must not be stored */
    struct cr_text folders, names;
    int64_t        folder_count, images;
};
/* Reads the stored list of `root` with these classes, if it is valid; cache->stored then says so. The caller closes the
 * cache, also after a failure. CR_ERR_MEMORY. */
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

#endif

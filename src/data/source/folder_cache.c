/* data/source/folder_cache.c: stored lists of folders. See data/source/folder_list.h.
 *
 * A file is a struct head and a body: the path of the folder, the endings of images, the name of a file of another
 * format, the folders (path and struct stamp), and for each class the number of its images and their names. Of a name
 * it has the number of bytes that are those of the name before, in one byte, and the bytes after these. Texts end with
 * a 0 byte. */
#include "core/checksum/crc32c.h"
#include "data/source.h"
#include "data/source/folder_list.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>

/* Smaller folders are listed in 20 ms. RECENT_NS is above the resolution of the times of file systems, of which FAT has
 * the coarsest (2 s), and above what the clocks of a file server may differ. */
enum { IMAGES_MIN = 20000, FILE_BYTES_MAX = 1 << 30, SHARED_MAX = 255, FUSE_MAGIC = 0x65735546 };
static const int64_t RECENT_NS = 3000000000;

static const char magic[8] = "CRLIST1";
struct head {
    char     magic[8];
    uint64_t crc; /* of what follows, CRC-32C */
    int64_t  folders, foreign;
};
struct stamp {
    uint64_t inode;
    int64_t  mtime_ns, ctime_ns;
};

static int64_t ns_of(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static struct stamp stamp_of(const struct stat *s) {
    return (struct stamp){(uint64_t)s->st_ino, ns_of(&s->st_mtim), ns_of(&s->st_ctim)};
}

/* Of the bytes after the member crc. */
static uint64_t crc_of(const char *file, const char *end) {
    const char *start = file + offsetof(struct head, folders);
    return cr_crc32c(0, start, (size_t)(end - start));
}

/* ---- a stored list ---- */

static bool take_bytes(struct cr_list_cache *c, void *to, size_t count) {
    if ((size_t)(c->end - c->at) < count) return false;
    memcpy(to, c->at, count);
    c->at += count;
    return true;
}

/* NULL at the end. */
static const char *take_text(struct cr_list_cache *c) {
    const char *text = c->at, *end = c->at < c->end ? memchr(c->at, 0, (size_t)(c->end - c->at)) : NULL;
    if (end) c->at = end + 1;
    return end ? text : NULL;
}

/* Whether the next folder of the list is unchanged. *name: its path below the root. */
static bool is_same_folder(struct cr_list_cache *c, const char **name) {
    char         path[CR_PATH_MAX];
    struct stamp before, now;
    struct stat  info;
    *name = take_text(c);
    if (!*name || !take_bytes(c, &before, sizeof before)) return false;
    if (snprintf(path, sizeof path, "%s/%s", c->root, *name) >= (int)sizeof path || stat(path, &info) != 0)
        return false;
    now = stamp_of(&info);
    return info.st_dev == c->device && memcmp(&now, &before, sizeof now) == 0;
}

/* Reads the part before the images. */
static bool is_valid(struct cr_list_cache *c, struct cr_folder_traversal *t, const char *const *classes, int count) {
    struct head head;
    const char *text, *name;
    int         seen = 0;
    if (!take_bytes(c, &head, sizeof head) || memcmp(head.magic, magic, sizeof magic) != 0) return false;
    if (head.crc != crc_of(c->stored, c->end)) return false;
    if (!(text = take_text(c)) || strcmp(text, c->root) != 0) return false;
    if (!(text = take_text(c)) || strcmp(text, CR_IMAGE_ENDINGS) != 0 || !(text = take_text(c))) return false;
    for (int64_t i = 0; i < head.folders; i++) {
        if (!is_same_folder(c, &name)) return false;
        if (strchr(name, '/')) continue;
        if (seen == count || strcmp(name, classes[seen++]) != 0) return false;
    }
    if (seen != count) return false;
    t->foreign = head.foreign;
    snprintf(t->foreign_name, sizeof t->foreign_name, "%s", text);
    return true;
}

cr_status cr_list_cache_open(struct cr_list_cache *c, struct cr_folder_traversal *t, const char *const *classes,
                             int count) {
    struct stat     info;
    struct statfs   system;
    struct timespec now;
    size_t          length;
    char            name[64];
    *c = (struct cr_list_cache){.root = t->resolved};
    snprintf(name, sizeof name, "folder-%016llx.list",
             (unsigned long long)cr_hash_mix(cr_hash_bytes(CR_HASH_START, c->root, strlen(c->root))));
    if (cr_cache_path(c->path, "CRESNET_CACHE", "cresnet", name) != CR_OK) cr_error_clear();
    c->unsafe = !*c->path || stat(c->root, &info) != 0 || statfs(c->root, &system) != 0 ||
                system.f_type == FUSE_MAGIC || clock_gettime(CLOCK_REALTIME, &now) != 0;
    if (c->unsafe) return CR_OK;
    c->device   = info.st_dev;
    c->began_ns = ns_of(&now);
    if (!cr_fs_is_file(c->path)) return CR_OK;
    const cr_status status = cr_file_read(c->path, FILE_BYTES_MAX, &c->stored, &length);
    if (status == CR_ERR_MEMORY) return status;
    if (status == CR_OK) {
        c->at  = c->stored;
        c->end = c->stored + length;
        if (is_valid(c, t, classes, count)) return CR_OK;
    }
    cr_error_clear();
    cr_free(c->stored);
    c->stored = NULL;
    return CR_OK;
}

void cr_list_cache_close(struct cr_list_cache *c) {
    cr_free(c->stored);
    cr_text_free(&c->folders);
    cr_text_free(&c->names);
}

cr_status cr_list_cache_take_class(struct cr_list_cache *c, struct cr_folder_traversal *t) {
    char    name[PATH_MAX] = "";
    int64_t images         = 0;
    bool    whole          = take_bytes(c, &images, sizeof images);
    while (whole && images-- > 0) {
        uint8_t     shared = 0;
        const char *rest   = take_bytes(c, &shared, 1) ? take_text(c) : NULL;
        whole              = rest && strlen(rest) + shared < sizeof name;
        if (!whole) break;
        memcpy(name + shared, rest, strlen(rest) + 1);
        CR_TRY(cr_folder_add(t->folder, name, t->label));
    }
    return whole ? CR_OK : CR_FAIL(CR_ERR_FORMAT, "%s: is damaged: remove it", c->path);
}

/* ---- the list that is made ---- */

void cr_list_cache_add_folder(struct cr_list_cache *c, const char *path, const struct stat *info) {
    const struct stamp s = stamp_of(info);
    c->unsafe |=
        info->st_dev != c->device || s.mtime_ns <= 0 || CR_MAX(s.mtime_ns, s.ctime_ns) > c->began_ns - RECENT_NS;
    if (c->unsafe) return;
    cr_text_add_bytes(&c->folders, path, strlen(path) + 1);
    cr_text_add_bytes(&c->folders, &s, sizeof s);
    c->folder_count++;
}

void cr_list_cache_add_class(struct cr_list_cache *c, const struct cr_image_folder *folder, int64_t first) {
    const int64_t images = folder->count - first;
    const char   *before = "";
    c->images += images;
    cr_text_add_bytes(&c->names, &images, sizeof images);
    for (int64_t i = first; i < folder->count; i++) {
        const char *name   = folder->names.data + folder->images[i].name;
        uint8_t     shared = 0;
        while (shared < SHARED_MAX && name[shared] && name[shared] == before[shared]) shared++;
        cr_text_add_bytes(&c->names, &shared, 1);
        cr_text_add_bytes(&c->names, name + shared, strlen(name + shared) + 1);
        before = name;
    }
}

cr_status cr_list_cache_store(struct cr_list_cache *c, const struct cr_folder_traversal *t) {
    struct cr_text text = {0};
    struct head    head = {.folders = c->folder_count, .foreign = t->foreign};
    if (c->folders.failed || c->names.failed) return CR_NO_MEMORY(c->names.capacity * 2);
    if (c->unsafe || c->images < IMAGES_MIN) return CR_OK;
    memcpy(head.magic, magic, sizeof magic);
    cr_text_add_bytes(&text, &head, sizeof head);
    cr_text_add_bytes(&text, c->root, strlen(c->root) + 1);
    cr_text_add_bytes(&text, CR_IMAGE_ENDINGS, sizeof CR_IMAGE_ENDINGS);
    cr_text_add_bytes(&text, t->foreign_name, strlen(t->foreign_name) + 1);
    cr_text_add_bytes(&text, c->folders.data, c->folders.length);
    cr_text_add_bytes(&text, c->names.data, c->names.length);
    cr_status status = text.failed ? CR_NO_MEMORY(text.capacity * 2) : CR_OK;
    if (status == CR_OK) {
        head.crc = crc_of(text.data, text.data + text.length);
        memcpy(text.data, &head, sizeof head);
        if (cr_fs_mkdirs_of(c->path) != CR_OK || cr_file_write_atomic(c->path, text.data, text.length) != CR_OK)
            cr_error_clear(); /* the next start lists the folder again */
    }
    cr_text_free(&text);
    return status;
}

/* data/source/folder_cache.c: stored lists of folders. See data/source/folder_list.h.
 *
 * A file is a struct file_head and a body. That of a folder has two numbers, the path of the folder, the endings of
 * images, the name of a file of another format, the folders (path and struct cr_list_stamp), and for each class the
 * number of its images and their names (cr_list_add_name). Texts end with a 0 byte. */
#include "core/checksum/crc32c.h"
#include "data/source.h"
#include "data/source/folder_list.h"

#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>

/* Smaller folders are listed in 20 ms. RECENT_NS is above the resolution of the times of file systems, of which FAT has
 * the coarsest (2 s), and above what the clocks of a file server may differ. */
enum { IMAGES_MIN = 20000, FILE_BYTES_MAX = 1 << 30, SHARED_MAX = 255, FUSE_MAGIC = 0x65735546 };
static const int64_t RECENT_NS = 3000000000;

static const char magic[8] = "CRLIST1";
struct file_head {
    char     magic[8];
    uint64_t crc; /* of what follows, CRC-32C */
};

/* ---- stored lists of any kind ---- */

static int64_t ns_of(const struct timespec *t) {
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

struct cr_list_stamp cr_list_stamp_of(const struct stat *s) {
    return (struct cr_list_stamp){(uint64_t)s->st_ino, ns_of(&s->st_mtim), ns_of(&s->st_ctim)};
}

bool cr_list_stamp_is_recent(const struct cr_list_stamp *s, int64_t began_ns) {
    return s->mtime_ns <= 0 || CR_MAX(s->mtime_ns, s->ctime_ns) > began_ns - RECENT_NS;
}

bool cr_list_is_safe(const char *root, int64_t *began_ns) {
    struct statfs   system;
    struct timespec now;
    if (statfs(root, &system) != 0 || system.f_type == FUSE_MAGIC || clock_gettime(CLOCK_REALTIME, &now) != 0)
        return false;
    *began_ns = ns_of(&now);
    return true;
}

void cr_list_path(char out[CR_PATH_MAX], const char *kind, uint64_t hash) {
    char name[64];
    snprintf(name, sizeof name, "%s-%016llx.list", kind, (unsigned long long)cr_hash_mix(hash));
    if (cr_cache_path(out, "CRESNET_CACHE", "cresnet", name) != CR_OK) cr_error_clear();
}

cr_status cr_list_read(const char *path, const char kind[8], char **stored, struct cr_list_reader *body) {
    struct file_head head;
    size_t           length;
    *stored = NULL;
    if (!cr_fs_is_file(path)) return CR_OK;
    const cr_status status = cr_file_read(path, FILE_BYTES_MAX, stored, &length);
    if (status == CR_ERR_MEMORY) return status;
    cr_error_clear();
    if (status != CR_OK) return CR_OK;
    *body = (struct cr_list_reader){*stored, *stored + length};
    if (cr_list_take_bytes(body, &head, sizeof head) && memcmp(head.magic, kind, sizeof head.magic) == 0 &&
        head.crc == cr_crc32c(0, body->at, (size_t)(body->end - body->at)))
        return CR_OK;
    cr_free(*stored);
    *stored = NULL;
    return CR_OK;
}

bool cr_list_take_bytes(struct cr_list_reader *r, void *to, size_t count) {
    if ((size_t)(r->end - r->at) < count) return false;
    memcpy(to, r->at, count);
    r->at += count;
    return true;
}

const char *cr_list_take_text(struct cr_list_reader *r) {
    const char *text = r->at, *end = r->at < r->end ? memchr(r->at, 0, (size_t)(r->end - r->at)) : NULL;
    if (end) r->at = end + 1;
    return end ? text : NULL;
}

bool cr_list_take_name(struct cr_list_reader *r, char name[PATH_MAX]) {
    uint8_t     shared = 0;
    const char *rest   = cr_list_take_bytes(r, &shared, 1) ? cr_list_take_text(r) : NULL;
    if (!rest || (size_t)(r->at - rest) + shared > PATH_MAX) return false;
    memcpy(name + shared, rest, (size_t)(r->at - rest));
    return true;
}

void cr_list_add_name(struct cr_text *text, const char *name, const char *before) {
    uint8_t shared = 0;
    while (shared < SHARED_MAX && name[shared] && name[shared] == before[shared]) shared++;
    cr_text_add_bytes(text, &shared, 1);
    cr_text_add_bytes(text, name + shared, strlen(name + shared) + 1);
}

void cr_list_begin(struct cr_text *text, const char kind[8]) {
    struct file_head head = {.crc = 0};
    memcpy(head.magic, kind, sizeof head.magic);
    cr_text_add_bytes(text, &head, sizeof head);
}

cr_status cr_list_write(const char *path, struct cr_text *text) {
    struct file_head *head = (struct file_head *)(void *)text->data;
    if (text->failed) return CR_NO_MEMORY(text->capacity * 2);
    head->crc = cr_crc32c(0, text->data + sizeof *head, text->length - sizeof *head);
    if (cr_fs_mkdirs_of(path) != CR_OK || cr_file_write_atomic(path, text->data, text->length) != CR_OK)
        cr_error_clear(); /* the next start makes the list again */
    return CR_OK;
}

/* ---- the stored list of a folder ---- */

/* Whether the next folder of the list is unchanged. *name: its path below the root. */
static bool is_same_folder(struct cr_list_cache *c, const char **name) {
    char                 path[CR_PATH_MAX];
    struct cr_list_stamp before, now;
    struct stat          info;
    *name = cr_list_take_text(&c->body);
    if (!*name || !cr_list_take_bytes(&c->body, &before, sizeof before)) return false;
    if (snprintf(path, sizeof path, "%s/%s", c->root, *name) >= (int)sizeof path || stat(path, &info) != 0)
        return false;
    now = cr_list_stamp_of(&info);
    return info.st_dev == c->device && memcmp(&now, &before, sizeof now) == 0;
}

/* Reads the part before the images. */
static bool is_valid(struct cr_list_cache *c, struct cr_folder_traversal *t, const char *const *classes, int count) {
    int64_t     numbers[2]; /* of folders, of images in other formats */
    const char *text, *name;
    int         seen = 0;
    if (!cr_list_take_bytes(&c->body, numbers, sizeof numbers)) return false;
    if (!(text = cr_list_take_text(&c->body)) || strcmp(text, c->root) != 0) return false;
    if (!(text = cr_list_take_text(&c->body)) || strcmp(text, CR_IMAGE_ENDINGS) != 0) return false;
    if (!(text = cr_list_take_text(&c->body))) return false;
    for (int64_t i = 0; i < numbers[0]; i++) {
        if (!is_same_folder(c, &name)) return false;
        if (strchr(name, '/')) continue;
        if (seen == count || strcmp(name, classes[seen++]) != 0) return false;
    }
    if (seen != count) return false;
    t->foreign = numbers[1];
    snprintf(t->foreign_name, sizeof t->foreign_name, "%s", text);
    return true;
}

cr_status cr_list_cache_open(struct cr_list_cache *c, struct cr_folder_traversal *t, const char *const *classes,
                             int count) {
    struct stat info;
    *c = (struct cr_list_cache){.root = t->resolved};
    cr_list_path(c->path, "folder", cr_hash_bytes(CR_HASH_START, c->root, strlen(c->root)));
    c->unsafe = !*c->path || stat(c->root, &info) != 0 || !cr_list_is_safe(c->root, &c->began_ns);
    if (c->unsafe) return CR_OK;
    c->device = info.st_dev;
    CR_TRY(cr_list_read(c->path, magic, &c->stored, &c->body));
    if (!c->stored || is_valid(c, t, classes, count)) return CR_OK;
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
    bool    whole          = cr_list_take_bytes(&c->body, &images, sizeof images);
    while (whole && images-- > 0) {
        whole = cr_list_take_name(&c->body, name);
        if (whole) CR_TRY(cr_folder_add(t->folder, name, t->label));
    }
    return whole ? CR_OK : CR_FAIL(CR_ERR_FORMAT, "%s: is damaged: remove it", c->path);
}

/* ---- the list that is made ---- */

void cr_list_cache_add_folder(struct cr_list_cache *c, const char *path, const struct stat *info) {
    const struct cr_list_stamp s = cr_list_stamp_of(info);
    c->unsafe |= info->st_dev != c->device || cr_list_stamp_is_recent(&s, c->began_ns);
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
        const char *name = folder->names.data + folder->images[i].name;
        cr_list_add_name(&c->names, name, before);
        before = name;
    }
}

cr_status cr_list_cache_store(struct cr_list_cache *c, const struct cr_folder_traversal *t) {
    struct cr_text text      = {0};
    const int64_t  numbers[] = {c->folder_count, t->foreign};
    if (c->folders.failed || c->names.failed) return CR_NO_MEMORY(c->names.capacity * 2);
    if (c->unsafe || c->images < IMAGES_MIN) return CR_OK;
    cr_list_begin(&text, magic);
    cr_text_add_bytes(&text, numbers, sizeof numbers);
    cr_text_add_bytes(&text, c->root, strlen(c->root) + 1);
    cr_text_add_bytes(&text, CR_IMAGE_ENDINGS, sizeof CR_IMAGE_ENDINGS);
    cr_text_add_bytes(&text, t->foreign_name, strlen(t->foreign_name) + 1);
    cr_text_add_bytes(&text, c->folders.data, c->folders.length);
    cr_text_add_bytes(&text, c->names.data, c->names.length);
    const cr_status status = cr_list_write(c->path, &text);
    cr_text_free(&text);
    return status;
}

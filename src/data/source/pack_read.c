/* data/source/pack_read.c: reading a packed data set. See data/pack.h. */
#include "data/pack.h"

#include "data/data_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PACK_AGAIN "make it anew with cresnet data pack, or copy it again"

enum { CLASSES_MAX = 1000000, IMAGE_BYTES_MAX = 1 << 30, PAGE = 4096, THREADS_MAX = 1024 };

struct cr_pack {
    const uint8_t    *bytes;
    size_t            size;
    bool              mapped;
    char             *name;
    const char      **class_names; /* into bytes */
    int64_t           count;
    int               classes;
    enum cr_pack_form form;
    const uint8_t    *index;
};

static uint32_t load32(const uint8_t *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static uint64_t load64(const uint8_t *b) {
    return (uint64_t)load32(b) | (uint64_t)load32(b + 4) << 32;
}

/* ---- opening ---- */

static cr_status check_head(const struct cr_pack *pack) {
    const uint8_t *b = pack->bytes;
    if (pack->size < CR_PACK_HEADER_BYTES)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %zu bytes, too few for a packed data set: " PACK_AGAIN, pack->name,
                       pack->size);
    if (memcmp(b, CR_PACK_MAGIC, 8) != 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s: is not a packed data set (cresnet data pack makes one)", pack->name);
    uint32_t version = load32(b + CR_PACK_AT_VERSION);
    if (version != CR_PACK_VERSION)
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: is of format version %u; this cresnet reads version %d: make it anew with cresnet data pack",
            pack->name, version, CR_PACK_VERSION);
    if (cr_crc32c(0, b, CR_PACK_AT_HEADER_CRC) != load32(b + CR_PACK_AT_HEADER_CRC))
        return CR_FAIL(CR_ERR_FORMAT, "%s: its header was altered (wrong checksum): " PACK_AGAIN, pack->name);
    uint64_t told = load64(b + CR_PACK_AT_FILE_BYTES);
    if (told != pack->size)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %zu bytes, but %llu belong to it: it is %s: " PACK_AGAIN, pack->name,
                       pack->size, (unsigned long long)told, told > pack->size ? "cut off" : "longer than it was");
    return CR_OK;
}

static cr_status bad_header(const struct cr_pack *pack, const char *what) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: the %s in its header cannot be: " PACK_AGAIN, pack->name, what);
}

/* Takes over counts and places from the header, none of which is believed. */
static cr_status read_head(struct cr_pack *pack, uint64_t *names_bytes) {
    const uint8_t *b    = pack->bytes;
    uint64_t       room = pack->size - CR_PACK_HEADER_BYTES, count = load64(b + CR_PACK_AT_COUNT);
    uint64_t       index   = load64(b + CR_PACK_AT_INDEX_OFFSET);
    uint32_t       classes = load32(b + CR_PACK_AT_CLASSES), form = load32(b + CR_PACK_AT_FORM);
    *names_bytes = load64(b + CR_PACK_AT_NAMES_BYTES);
    if (form != CR_PACK_ENCODED && form != CR_PACK_RAW) return bad_header(pack, "kind of images");
    if (classes < 1 || classes > CLASSES_MAX) return bad_header(pack, "number of classes");
    if (count < 1 || count > room / CR_PACK_ENTRY_BYTES) return bad_header(pack, "number of images");
    if (index != pack->size - count * CR_PACK_ENTRY_BYTES) return bad_header(pack, "place of the index");
    if (*names_bytes > index - CR_PACK_HEADER_BYTES) return bad_header(pack, "length of the class names");
    pack->form    = (enum cr_pack_form)form;
    pack->classes = (int)classes;
    pack->count   = (int64_t)count;
    pack->index   = b + index;
    uint32_t crc  = cr_crc32c(0, b + CR_PACK_HEADER_BYTES, (size_t)*names_bytes);
    crc           = cr_crc32c(crc, pack->index, (size_t)count * CR_PACK_ENTRY_BYTES);
    if (crc != load32(b + CR_PACK_AT_TABLES_CRC))
        return CR_FAIL(CR_ERR_FORMAT, "%s: its class names or its index were altered (wrong checksum): " PACK_AGAIN,
                       pack->name);
    return CR_OK;
}

static cr_status read_names(struct cr_pack *pack, uint64_t names_bytes) {
    const char *at = (const char *)pack->bytes + CR_PACK_HEADER_BYTES, *end = at + names_bytes;
    CR_ALLOC(pack->class_names, (size_t)pack->classes);
    for (int c = 0; c < pack->classes; c++) {
        const char *stop = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!stop || stop == at)
            return CR_FAIL(CR_ERR_FORMAT, "%s: the names of its %d classes are broken: " PACK_AGAIN, pack->name,
                           pack->classes);
        pack->class_names[c] = at;
        at                   = stop + 1;
    }
    if (at != end)
        return CR_FAIL(CR_ERR_FORMAT, "%s: it has names of more than %d classes: " PACK_AGAIN, pack->name,
                       pack->classes);
    return CR_OK;
}

struct cr_pack_entry cr_pack_entry(const struct cr_pack *pack, int64_t image) {
    CR_ASSERT(image >= 0 && image < pack->count);
    const uint8_t *b = pack->index + (size_t)image * CR_PACK_ENTRY_BYTES;
    return (struct cr_pack_entry){.offset = load64(b),
                                  .bytes  = load32(b + 8),
                                  .label  = (int32_t)load32(b + 12),
                                  .width  = (int32_t)load32(b + 16),
                                  .height = (int32_t)load32(b + 20),
                                  .crc    = load32(b + 24)};
}

/* An image that lies in the file, with a class and a size that can be. */
static bool can_be(const struct cr_pack *pack, const struct cr_pack_entry *e) {
    if (e->offset > pack->size || e->bytes < 1 || e->bytes > IMAGE_BYTES_MAX || e->bytes > pack->size - e->offset)
        return false;
    if (e->label < 0 || e->label >= pack->classes || e->width < 1 || e->height < 1) return false;
    if (e->width > CR_IMAGE_SIDE_MAX || e->height > CR_IMAGE_SIDE_MAX) return false;
    if ((int64_t)e->width * e->height > CR_IMAGE_PIXELS_MAX) return false;
    return pack->form != CR_PACK_RAW || e->bytes == (uint64_t)e->width * (uint64_t)e->height * 3;
}

/* The images that the index tells of can be, and together they fill what lies before it. */
static cr_status check_index(const struct cr_pack *pack, uint64_t names_bytes) {
    uint64_t at = CR_PACK_HEADER_BYTES + names_bytes, end = (uint64_t)(pack->index - pack->bytes);
    for (int64_t i = 0; i < pack->count; i++) {
        struct cr_pack_entry e = cr_pack_entry(pack, i);
        if (!can_be(pack, &e) || e.offset != at || e.bytes > end - at)
            return CR_FAIL(CR_ERR_FORMAT, "%s: what its index says of image %lld cannot be: " PACK_AGAIN, pack->name,
                           (long long)i);
        at += e.bytes;
    }
    if (at != end)
        return CR_FAIL(CR_ERR_FORMAT, "%s: its index leaves %llu bytes to nobody: " PACK_AGAIN, pack->name,
                       (unsigned long long)(end - at));
    return CR_OK;
}

static cr_status check_all(struct cr_pack *pack, const char *name) {
    uint64_t names_bytes = 0;
    pack->name           = cr_strdup(name);
    if (!pack->name) return CR_NO_MEMORY(strlen(name) + 1);
    CR_TRY(check_head(pack));
    CR_TRY(read_head(pack, &names_bytes));
    CR_TRY(read_names(pack, names_bytes));
    return check_index(pack, names_bytes);
}

/* On failure the mapping, if it is one, is given back too. */
static cr_status open_bytes(const void *bytes, size_t count, bool mapped, const char *name, struct cr_pack **out) {
    struct cr_pack *pack   = cr_alloc(1, sizeof *pack);
    cr_status       status = pack ? CR_OK : CR_NO_MEMORY(sizeof *pack);
    if (!pack) {
        if (mapped) munmap((void *)(uintptr_t)bytes, count);
        return status;
    }
    *pack  = (struct cr_pack){.bytes = bytes, .size = count, .mapped = mapped};
    status = check_all(pack, name);
    if (status != CR_OK) {
        cr_pack_close(pack);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = pack;
    return CR_OK;
}

cr_status cr_pack_open_bytes(const void *bytes, size_t count, const char *name, struct cr_pack **out) {
    return open_bytes(bytes, count, false, name, out);
}

static cr_status map_file(int fd, const char *path, void **bytes, size_t *count) {
    struct stat info;
    if (fstat(fd, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: not a regular file", path);
    if (info.st_size < CR_PACK_HEADER_BYTES)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %lld bytes, too few for a packed data set: " PACK_AGAIN, path,
                       (long long)info.st_size);
    *count = (size_t)info.st_size;
    *bytes = mmap(NULL, *count, PROT_READ, MAP_PRIVATE, fd, 0);
    if (*bytes == MAP_FAILED) return CR_FAIL(CR_ERR_IO, "%s: cannot be mapped into memory: %s", path, strerror(errno));
    return CR_OK;
}

cr_status cr_pack_open(const char *path, struct cr_pack **out) {
    void  *bytes = NULL;
    size_t count = 0;
    int    fd    = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* as for images: a pipe must not hang us */
    if (fd < 0) return CR_FAIL(CR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    cr_status status = map_file(fd, path, &bytes, &count);
    close(fd); /* the mapping stays */
    CR_TRY(status);
    return open_bytes(bytes, count, true, path, out);
}

void cr_pack_close(struct cr_pack *pack) {
    if (!pack) return;
    if (pack->mapped) munmap((void *)(uintptr_t)pack->bytes, pack->size);
    cr_free(pack->class_names);
    cr_free(pack->name);
    cr_free(pack);
}

int64_t cr_pack_count(const struct cr_pack *pack) {
    return pack->count;
}
int cr_pack_classes(const struct cr_pack *pack) {
    return pack->classes;
}
const char *cr_pack_class_name(const struct cr_pack *pack, int label) {
    CR_ASSERT(label >= 0 && label < pack->classes);
    return pack->class_names[label];
}
enum cr_pack_form cr_pack_form(const struct cr_pack *pack) {
    return pack->form;
}
const char *cr_pack_name(const struct cr_pack *pack) {
    return pack->name;
}

/* ---- images ---- */

cr_status cr_pack_read(const struct cr_pack *pack, int64_t image, struct cr_pack_entry *entry, const uint8_t **bytes) {
    *entry = cr_pack_entry(pack, image);
    if (!can_be(pack, entry)) /* it could when the file was opened */
        return CR_FAIL(CR_ERR_FORMAT, "%s: was changed while it was in use: " PACK_AGAIN, pack->name);
    *bytes = pack->bytes + entry->offset;
    if (pack->mapped) { /* asks for the whole image at once where page faults would ask for a few pages each */
        uintptr_t from = (uintptr_t)*bytes / PAGE * PAGE, to = (uintptr_t)*bytes + entry->bytes;
        madvise((void *)from, to - from, MADV_WILLNEED);
    }
    if (cr_crc32c(0, *bytes, entry->bytes) != entry->crc)
        return CR_FAIL(CR_ERR_FORMAT, "%s: image %lld was altered (wrong checksum): " PACK_AGAIN, pack->name,
                       (long long)image);
    return CR_OK;
}

static cr_status verify_one(const struct cr_pack *pack, int64_t image, struct cr_scratch *scratch) {
    struct cr_pack_entry entry;
    const uint8_t       *bytes;
    struct cr_image      view;
    char                 name[CR_SAMPLE_NAME_BYTES];
    CR_TRY(cr_pack_read(pack, image, &entry, &bytes));
    if (pack->form == CR_PACK_RAW) return CR_OK;
    snprintf(name, sizeof name, "%s[%lld]", pack->name, (long long)image);
    CR_TRY(cr_image_decode_view(bytes, entry.bytes, name, scratch, &view));
    if (view.width != entry.width || view.height != entry.height)
        return CR_FAIL(CR_ERR_FORMAT, "%s: is of %d x %d pixels, its index says %d x %d: " PACK_AGAIN, name, view.width,
                       view.height, entry.width, entry.height);
    return CR_OK;
}

void cr_work_together(void *(*work)(void *), void *argument, int workers) {
    pthread_t threads[THREADS_MAX];
    int       started = 0, others = CR_MIN(workers - 1, (int)THREADS_MAX);
    while (started < others && pthread_create(&threads[started], NULL, work, argument) == 0) started++;
    work(argument);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

struct verifying {
    const struct cr_pack *pack;
    atomic_llong          next, bad; /* bad: the first image with a fault so far */
    pthread_mutex_t       mutex;     /* of what follows, and of changes of bad */
    cr_status             status;
    char                  error[1024];
};

static void note_fault(struct verifying *v, int64_t image, cr_status status) {
    pthread_mutex_lock(&v->mutex);
    if (image < atomic_load(&v->bad)) {
        atomic_store(&v->bad, image);
        v->status = status;
        snprintf(v->error, sizeof v->error, "%s", cr_error_message());
    }
    pthread_mutex_unlock(&v->mutex);
}

/* Images are taken in order, so that all before a bad one are looked at. */
static void *verify_main(void *argument) {
    struct verifying *v       = argument;
    struct cr_scratch scratch = {0};
    for (int64_t i; (i = atomic_fetch_add(&v->next, 1)) < atomic_load(&v->bad);) {
        cr_status status = verify_one(v->pack, i, &scratch);
        if (status != CR_OK) note_fault(v, i, status);
    }
    cr_scratch_free(&scratch);
    return NULL;
}

cr_status cr_pack_verify(const struct cr_pack *pack, int workers) {
    struct verifying v = {.pack = pack, .bad = pack->count, .mutex = PTHREAD_MUTEX_INITIALIZER};
    cr_work_together(verify_main, &v, workers);
    return v.status == CR_OK ? CR_OK : CR_FAIL(v.status, "%s", v.error);
}

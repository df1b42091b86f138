/* data/source/pack_read.c: reads and verifies packed datasets. */
#include "data/pack.h"

#include "core/checksum/crc32c.h"
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"
#include "data/source/pack_map.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PACK_AGAIN "write it again with cresnet data pack, or copy it again"

enum { CLASSES_MAX = 1000000, IMAGE_BYTES_MAX = 1 << 30, THREADS_MAX = 1024 };

static uint32_t load32(const uint8_t *b) {
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static uint64_t load64(const uint8_t *b) {
    return (uint64_t)load32(b) | (uint64_t)load32(b + 4) << 32;
}

/* ---- opening ---- */

cr_status cr_pack_check(const struct cr_pack *pack) {
    if (!pack->map || !cr_pack_map_is_cut(pack->map)) return CR_OK;
    return CR_FAIL(CR_ERR_IO, "%s: was cut off while it was read: " PACK_AGAIN, pack->name);
}

static cr_status check_header(const struct cr_pack *pack, const uint8_t *b) {
    if (pack->size < CR_PACK_HEADER_BYTES)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %zu bytes, too few for a packed dataset: " PACK_AGAIN, pack->name,
                       pack->size);
    if (memcmp(b, CR_PACK_MAGIC, 8) != 0)
        return CR_FAIL(CR_ERR_FORMAT, "%s: is not a packed dataset (cresnet data pack writes them)", pack->name);
    uint32_t version = load32(b + CR_PACK_AT_VERSION);
    if (version != CR_PACK_VERSION)
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: is of format version %u; this cresnet reads version %d: write it again with cresnet data pack",
            pack->name, version, CR_PACK_VERSION);
    if (cr_crc32c(0, b, CR_PACK_AT_HEADER_CRC) != load32(b + CR_PACK_AT_HEADER_CRC))
        return CR_FAIL(CR_ERR_FORMAT, "%s: its header is damaged (wrong checksum): " PACK_AGAIN, pack->name);
    uint64_t expected = load64(b + CR_PACK_AT_FILE_BYTES);
    if (expected != pack->size)
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %zu bytes instead of %llu: it is %s: " PACK_AGAIN, pack->name,
                       pack->size, (unsigned long long)expected, expected > pack->size ? "cut off" : "too long");
    return CR_OK;
}

static cr_status bad_header(const struct cr_pack *pack, const char *what) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: the %s in its header is invalid: " PACK_AGAIN, pack->name, what);
}

/* Reads counts and offsets from the header and checks each of them. */
static cr_status read_header(struct cr_pack *pack, const uint8_t *b, uint64_t *names_bytes) {
    uint64_t room = pack->size - CR_PACK_HEADER_BYTES, count = load64(b + CR_PACK_AT_COUNT);
    uint64_t index   = load64(b + CR_PACK_AT_INDEX_OFFSET);
    uint32_t classes = load32(b + CR_PACK_AT_CLASSES), form = load32(b + CR_PACK_AT_FORM);
    *names_bytes = load64(b + CR_PACK_AT_NAMES_BYTES);
    if (form != CR_PACK_ENCODED && form != CR_PACK_RAW) return bad_header(pack, "storage form");
    pack->flags = load32(b + CR_PACK_AT_FLAGS);
    if (pack->flags & ~(uint32_t)CR_PACK_EXIF) return bad_header(pack, "set of flags");
    const uint32_t format = load32(b + CR_PACK_AT_FORMAT);
    if (format > (form == CR_PACK_RAW ? CR_RGBA16 : CR_RGB8)) return bad_header(pack, "format of pixels");
    pack->format = (enum cr_pixel_format)format;
    if (classes < 1 || classes > CLASSES_MAX) return bad_header(pack, "number of classes");
    if (count < 1 || count > room / CR_PACK_ENTRY_BYTES) return bad_header(pack, "number of images");
    if (index != pack->size - count * CR_PACK_ENTRY_BYTES) return bad_header(pack, "offset of the index");
    if (*names_bytes > index - CR_PACK_HEADER_BYTES) return bad_header(pack, "length of the class names");
    pack->form    = (enum cr_pack_form)form;
    pack->classes = (int)classes;
    pack->count   = (int64_t)count;
    CR_ALLOC(pack->names, (size_t)*names_bytes + 1);
    CR_ALLOC(pack->index, (size_t)count * CR_PACK_ENTRY_BYTES);
    memcpy(pack->names, pack->bytes + CR_PACK_HEADER_BYTES, (size_t)*names_bytes);
    memcpy(pack->index, pack->bytes + index, (size_t)count * CR_PACK_ENTRY_BYTES);
    uint32_t crc = cr_crc32c(0, pack->names, (size_t)*names_bytes);
    crc          = cr_crc32c(crc, pack->index, (size_t)count * CR_PACK_ENTRY_BYTES);
    if (crc != load32(b + CR_PACK_AT_TABLES_CRC))
        return CR_FAIL(CR_ERR_FORMAT, "%s: its class names or its index are damaged (wrong checksum): " PACK_AGAIN,
                       pack->name);
    return CR_OK;
}

static cr_status read_names(struct cr_pack *pack, uint64_t names_bytes) {
    const char *at = pack->names, *end = at + names_bytes;
    CR_ALLOC(pack->class_names, (size_t)pack->classes);
    for (int c = 0; c < pack->classes; c++) {
        const char *stop = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!stop || stop == at)
            return CR_FAIL(CR_ERR_FORMAT, "%s: the names of its %d classes are damaged: " PACK_AGAIN, pack->name,
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

/* Returns whether the entry describes an image within the file, with a valid class and size. */
static bool is_valid(const struct cr_pack *pack, const struct cr_pack_entry *e) {
    if (e->offset > pack->size || e->bytes < 1 || e->bytes > IMAGE_BYTES_MAX || e->bytes > pack->size - e->offset)
        return false;
    if (e->label < 0 || e->label >= pack->classes || e->width < 1 || e->height < 1) return false;
    if (e->width > CR_IMAGE_SIDE_MAX || e->height > CR_IMAGE_SIDE_MAX) return false;
    if ((int64_t)e->width * e->height > CR_IMAGE_PIXELS_MAX) return false;
    return pack->form != CR_PACK_RAW ||
           e->bytes == (uint64_t)e->width * (uint64_t)e->height * cr_format_bytes(pack->format);
}

/* Checks all entries of the index. Together the images must fill the space before the index. */
static cr_status check_index(const struct cr_pack *pack, uint64_t names_bytes) {
    uint64_t at = CR_PACK_HEADER_BYTES + names_bytes, end = pack->size - (uint64_t)pack->count * CR_PACK_ENTRY_BYTES;
    for (int64_t i = 0; i < pack->count; i++) {
        struct cr_pack_entry e = cr_pack_entry(pack, i);
        if (!is_valid(pack, &e) || e.offset != at || e.bytes > end - at)
            return CR_FAIL(CR_ERR_FORMAT, "%s: the index entry of image %lld is invalid: " PACK_AGAIN, pack->name,
                           (long long)i);
        at += e.bytes;
    }
    if (at != end)
        return CR_FAIL(CR_ERR_FORMAT, "%s: %llu bytes belong to no image of its index: " PACK_AGAIN, pack->name,
                       (unsigned long long)(end - at));
    return CR_OK;
}

static cr_status check_all(struct cr_pack *pack, const char *name) {
    uint64_t names_bytes                = 0;
    uint8_t  head[CR_PACK_HEADER_BYTES] = {0};
    pack->name                          = cr_strdup(name);
    if (!pack->name) return CR_NO_MEMORY(strlen(name) + 1);
    if (pack->size) memcpy(head, pack->bytes, CR_MIN(pack->size, sizeof head));
    CR_TRY(check_header(pack, head));
    CR_TRY(read_header(pack, head, &names_bytes));
    CR_TRY(read_names(pack, names_bytes));
    return check_index(pack, names_bytes);
}

/* On failure the map is closed too. */
static cr_status open_pack(const struct cr_pack *start, const char *name, struct cr_pack **out) {
    struct cr_pack *pack = cr_alloc(1, sizeof *pack);
    if (!pack) {
        cr_pack_map_close(start->map);
        return CR_NO_MEMORY(sizeof *pack);
    }
    *pack                  = *start;
    const cr_status status = check_all(pack, name);
    if (status == CR_OK)
        *out = pack;
    else
        cr_pack_close(pack);
    return status;
}

cr_status cr_pack_open_bytes(const void *bytes, size_t count, const char *name, struct cr_pack **out) {
    return open_pack(&(struct cr_pack){.bytes = bytes, .size = count}, name, out);
}

cr_status cr_pack_open(const char *path, struct cr_pack **out) {
    struct cr_pack_map *map;
    CR_TRY(cr_pack_map_open(path, &map));
    return open_pack(&(struct cr_pack){.map = map, .bytes = map->bytes, .size = map->count}, path, out);
}

void cr_pack_close(struct cr_pack *pack) {
    if (!pack) return;
    cr_pack_map_close(pack->map);
    cr_free(pack->class_names);
    cr_free(pack->names);
    cr_free(pack->index);
    cr_free(pack->name);
    cr_free(pack);
}

/* ---- images ---- */

cr_status cr_pack_read(const struct cr_pack *pack, int64_t image, struct cr_pack_entry *entry, const uint8_t **bytes) {
    *entry = cr_pack_entry(pack, image);
    *bytes = pack->map ? cr_pack_map_at(pack->map, entry->offset, entry->bytes) : pack->bytes + entry->offset;
    if (cr_crc32c(0, *bytes, entry->bytes) == entry->crc) return CR_OK;
    CR_TRY(cr_pack_check(pack));
    return CR_FAIL(CR_ERR_FORMAT, "%s: image %lld is damaged (wrong checksum): " PACK_AGAIN, pack->name,
                   (long long)image);
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
        return CR_FAIL(CR_ERR_FORMAT, "%s: has %d x %d pixels instead of %d x %d as in the index: " PACK_AGAIN, name,
                       view.width, view.height, entry.width, entry.height);
    return CR_OK;
}

void cr_work_together(void *(*work)(void *), void *argument, int workers) {
    pthread_t threads[THREADS_MAX];
    int       started = 0, others = CR_MIN(workers - 1, (int)THREADS_MAX);
    while (started < others && pthread_create(&threads[started], NULL, work, argument) == 0) started++;
    work(argument);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

struct verification {
    const struct cr_pack *pack;
    atomic_llong          next, bad; /* bad: the first faulty image so far */
    pthread_mutex_t       mutex;     /* guards the members below and changes of `bad` */
    cr_status             status;
    char                  error[1024];
};

/* Images are checked in order, so that all images before a faulty one are checked. */
static void *verify_worker(void *argument) {
    struct verification *v       = argument;
    struct cr_scratch    scratch = {0};
    for (int64_t i; (i = atomic_fetch_add(&v->next, 1)) < atomic_load(&v->bad);) {
        cr_status status = verify_one(v->pack, i, &scratch);
        cr_scratch_release(&scratch);
        if (status == CR_OK) continue;
        pthread_mutex_lock(&v->mutex);
        if (i < atomic_load(&v->bad)) {
            atomic_store(&v->bad, i);
            v->status = status;
            cr_error_copy(v->error, sizeof v->error);
        }
        pthread_mutex_unlock(&v->mutex);
    }
    cr_scratch_free(&scratch);
    return NULL;
}

cr_status cr_pack_verify(const struct cr_pack *pack, int workers) {
    struct verification v = {.pack = pack, .bad = pack->count, .mutex = PTHREAD_MUTEX_INITIALIZER};
    cr_work_together(verify_worker, &v, workers);
    return v.status == CR_OK ? CR_OK : CR_FAIL(v.status, "%s", v.error);
}

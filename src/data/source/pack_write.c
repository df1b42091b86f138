/* data/source/pack_write.c: writes packed datasets: a writer to which images are added one by one, and the packing
 * of a whole dataset by worker threads. */
#include "data/pack.h"

#include "core/checksum/crc32c.h"
#include "core/temporary.h"
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct cr_pack_writer {
    struct cr_temporary  file;
    enum cr_pack_form    form;
    enum cr_pixel_format format; /* of raw pixels */
    uint32_t             flags;
    int                  classes;
    uint64_t             names_bytes, at, count; /* at: bytes written so far */
    uint32_t             crc;                    /* CRC-32C of the names */
    struct cr_text       index;                  /* entries so far */
};

static void store32(uint8_t *b, uint32_t v) {
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> 8 * i);
}
static void store64(uint8_t *b, uint64_t v) {
    store32(b, (uint32_t)v);
    store32(b + 4, (uint32_t)(v >> 32));
}

/* ---- the writer ---- */

static cr_status put(struct cr_pack_writer *writer, const void *bytes, size_t count) {
    CR_TRY(cr_fs_write(writer->file.fd, writer->file.path, bytes, count, 0));
    writer->at += count;
    return CR_OK;
}

static cr_status begin(struct cr_pack_writer *writer, const char *path, const char *const *class_names) {
    uint8_t header[CR_PACK_HEADER_BYTES] = {0}; /* reserves the space; the final header is written last */
    CR_TRY(cr_temporary_file(&writer->file, path));
    CR_TRY(put(writer, header, sizeof header));
    for (int c = 0; c < writer->classes; c++) {
        size_t bytes = strlen(class_names[c]) + 1;
        CR_TRY(put(writer, class_names[c], bytes));
        writer->crc = cr_crc32c(writer->crc, class_names[c], bytes);
        writer->names_bytes += bytes;
    }
    return CR_OK;
}

cr_status cr_pack_create(const char *path, enum cr_pack_form form, enum cr_pixel_format format, uint32_t flags,
                         const char *const *class_names, int classes, struct cr_pack_writer **out) {
    struct cr_pack_writer *writer;
    CR_ALLOC(writer, 1);
    writer->form     = form;
    writer->format   = format;
    writer->flags    = flags;
    writer->classes  = classes;
    cr_status status = begin(writer, path, class_names);
    if (status == CR_OK)
        *out = writer;
    else
        cr_pack_abandon(writer);
    return status;
}

cr_status cr_pack_add(struct cr_pack_writer *writer, const void *bytes, size_t count, int32_t label, int width,
                      int height) {
    uint8_t entry[CR_PACK_ENTRY_BYTES] = {0};
    CR_ASSERT(label >= 0 && label < writer->classes && width > 0 && height > 0 && count > 0 && count <= UINT32_MAX);
    store64(entry, writer->at);
    store32(entry + 8, (uint32_t)count);
    store32(entry + 12, (uint32_t)label);
    store32(entry + 16, (uint32_t)width);
    store32(entry + 20, (uint32_t)height);
    store32(entry + 24, cr_crc32c(0, bytes, count));
    cr_text_add_bytes(&writer->index, entry, sizeof entry);
    if (writer->index.failed) return CR_NO_MEMORY(writer->index.capacity * 2);
    writer->count++;
    return put(writer, bytes, count);
}

static cr_status complete(struct cr_pack_writer *writer) {
    uint8_t  header[CR_PACK_HEADER_BYTES] = {0};
    uint64_t index                        = writer->at;
    if (!writer->count) return CR_FAIL(CR_ERR_FORMAT, "%s: there is no image to pack", writer->file.target);
    CR_TRY(put(writer, writer->index.data, writer->index.length));
    memcpy(header, CR_PACK_MAGIC, 8);
    store32(header + CR_PACK_AT_VERSION, CR_PACK_VERSION);
    store32(header + CR_PACK_AT_FORM, (uint32_t)writer->form);
    store64(header + CR_PACK_AT_FILE_BYTES, writer->at);
    store64(header + CR_PACK_AT_COUNT, writer->count);
    store32(header + CR_PACK_AT_CLASSES, (uint32_t)writer->classes);
    store32(header + CR_PACK_AT_TABLES_CRC, cr_crc32c(writer->crc, writer->index.data, writer->index.length));
    store64(header + CR_PACK_AT_NAMES_BYTES, writer->names_bytes);
    store64(header + CR_PACK_AT_INDEX_OFFSET, index);
    store32(header + CR_PACK_AT_FLAGS, writer->flags);
    if (writer->form == CR_PACK_RAW) store32(header + CR_PACK_AT_FORMAT, (uint32_t)writer->format);
    store32(header + CR_PACK_AT_HEADER_CRC, cr_crc32c(0, header, CR_PACK_AT_HEADER_CRC));
    if (lseek(writer->file.fd, 0, SEEK_SET) != 0) return cr_fs_refused(writer->file.path, "write", errno);
    CR_TRY(cr_fs_write(writer->file.fd, writer->file.path, header, sizeof header, 0));
    return cr_temporary_commit(&writer->file);
}

cr_status cr_pack_finish(struct cr_pack_writer *writer) {
    cr_status status = complete(writer);
    cr_pack_abandon(writer);
    return status;
}

void cr_pack_abandon(struct cr_pack_writer *writer) {
    if (!writer) return;
    cr_temporary_drop(&writer->file);
    cr_text_free(&writer->index);
    cr_free(writer);
}

/* ---- a whole dataset ---- */

/* Images per round: they are prepared in parallel and then written in order. */
enum { ROUND = 256 };
/* Nanoseconds between two progress messages. */
#define PROGRESS_NS INT64_C(30000000000)

struct item { /* one image of a round */
    struct cr_buffer bytes;
    size_t           count;
    int32_t          label;
    int              width, height;
    cr_status        status;
    char             error[1024];
};
struct packing { /* state that the workers share */
    const struct cr_dataset      *dataset;
    const struct cr_pack_options *options;
    int64_t                       first;
    int                           items;
    struct item                  *item;
    atomic_int                    next;
};

static bool stopped(const struct packing *p) {
    return p->options->stop && atomic_load(p->options->stop);
}

static cr_status store_bytes(struct item *item, const void *bytes, size_t count, int width, int height) {
    CR_TRY(cr_buffer_reserve(&item->bytes, count));
    memcpy(item->bytes.bytes, bytes, count);
    item->count  = count;
    item->width  = width;
    item->height = height;
    return CR_OK;
}

/* Reduces the short side to `side` by the filter of evaluation. *out is `view` if it is small enough already; else its
 * pixels are in `buffer`. */
static cr_status reduce(const struct cr_image *view, int side, struct cr_buffer *buffer, struct cr_image *out) {
    int64_t shorter = CR_MIN(view->width, view->height), longer = CR_MAX(view->width, view->height);
    *out = *view;
    if (!side || shorter <= side) return CR_OK;
    int long_side = (int)(side * longer / shorter);
    out->width    = view->width <= view->height ? side : long_side;
    out->height   = view->width <= view->height ? long_side : side;
    CR_TRY(cr_buffer_reserve(buffer, (size_t)out->width * out->height * cr_format_bytes(view->format)));
    out->rgb = buffer->bytes;
    return cr_image_resize(view, 0, 0, view->width, view->height, out->rgb, out->width, out->height, false);
}

static cr_status store_pixels(struct item *item, const struct cr_image *view, int side) {
    struct cr_image small;
    CR_TRY(reduce(view, side, &item->bytes, &small));
    const size_t count = (size_t)small.width * small.height * cr_format_bytes(small.format);
    if (small.rgb == view->rgb) return store_bytes(item, view->rgb, count, view->width, view->height);
    item->count  = count;
    item->width  = small.width;
    item->height = small.height;
    return CR_OK;
}

/* Stores a JPEG. A small upright image that is one already stays as it is, unless data.channels wants grey of it. */
static cr_status store_jpeg(const struct packing *p, const struct cr_stored *stored, const struct cr_lazy_image *lazy,
                            const struct cr_image *view, const char *name, struct item *item,
                            struct cr_scratch *scratch) {
    const int side = p->options->jpeg_side;
    if (stored->bytes && lazy->orientation <= 1 && CR_MIN(view->width, view->height) <= side) {
        const int components = cr_jpeg_plain_components(stored->bytes, stored->count);
        if (components && components <= cr_format_channels(view->format))
            return store_bytes(item, stored->bytes, stored->count, view->width, view->height);
    }
    struct cr_image small;
    CR_TRY(reduce(view, side, &scratch->copy, &small));
    item->width  = small.width;
    item->height = small.height;
    return cr_jpeg_write(&small, p->options->quality, name, &item->bytes, &item->count);
}

/* Decodes every image to its end, also where its encoded bytes are stored: all images of a packed dataset can be
 * decoded. */
static cr_status prepare_item(const struct packing *p, int64_t sample, struct item *item, struct cr_scratch *scratch) {
    const struct cr_pack_options *o = p->options;
    struct cr_stored              stored;
    struct cr_lazy_image          lazy;
    struct cr_image               view;
    char                          name[CR_SAMPLE_NAME_BYTES];
    cr_dataset_sample_name(p->dataset, sample, name, sizeof name);
    CR_TRY(cr_dataset_fetch(p->dataset, sample, scratch, &stored, &item->label));
    const bool unchanged = !o->raw_side && !o->jpeg_side && stored.bytes;
    if (unchanged) stored.exif = false; /* the index has the sizes of the images as they are stored */
    CR_TRY(cr_lazy_image_open(&stored, name, scratch, &lazy));
    CR_TRY(cr_lazy_image_whole(&lazy, scratch, &view));
    if (unchanged) return store_bytes(item, stored.bytes, stored.count, view.width, view.height);
    if (o->jpeg_side) return store_jpeg(p, &stored, &lazy, &view, name, item, scratch);
    return store_pixels(item, &view, o->raw_side);
}

static void *packing_worker(void *argument) {
    struct packing   *p       = argument;
    struct cr_scratch scratch = {0};
    for (int i; !stopped(p) && (i = atomic_fetch_add(&p->next, 1)) < p->items;) {
        struct item *item = &p->item[i];
        item->status      = prepare_item(p, p->first + i, item, &scratch);
        cr_scratch_release(&scratch);
        item->status = cr_dataset_check_used(p->dataset, item->status);
        if (item->status != CR_OK) cr_error_copy(item->error, sizeof item->error);
    }
    cr_scratch_free(&scratch);
    return NULL;
}

static cr_status write_item(const struct packing *p, struct cr_pack_writer *writer, const struct item *item,
                            struct cr_pack_result *result) {
    if (item->status == CR_OK) {
        result->images++;
        result->bytes += (int64_t)item->count;
        return cr_pack_add(writer, item->bytes.bytes, item->count, item->label, item->width, item->height);
    }
    if (!cr_dataset_is_corrupt(p->dataset, item->status)) return CR_FAIL(item->status, "%s", item->error);
    if (p->options->corrupt_fatal)
        return CR_FAIL(item->status, "%s (set data.corrupt = skip to pack without such images)", item->error);
    cr_log(CR_LOG_WARN, "skipped an image: %s", item->error);
    result->skipped++;
    return CR_OK;
}

cr_status cr_pack_allowed(const struct cr_dataset *dataset, const struct cr_pack_options *options) {
    const enum cr_pixel_format format = dataset->format;
    if (dataset->label_rows)
        return CR_FAIL(CR_ERR_CONFIG,
                       "packed datasets have one label per image, but data.multi_label = yes: train from "
                       "the list (data.kind = csv)");
    if (options->jpeg_side && format != CR_RGB8 && format != CR_GREY8)
        return CR_FAIL(CR_ERR_CONFIG,
                       "a JPEG has 1 or 3 channels of 8 bits, but data.channels = %d and data.bits = %d: pack with "
                       "--raw=%d, which stores such pixels, instead of --jpeg",
                       cr_format_channels(format), cr_format_bits(format), options->jpeg_side);
    return CR_OK;
}

/* The first image shows whether the dataset stores files or pixels; an image that cannot be read is a file. */
static cr_status find_form(const struct cr_dataset *dataset, const struct cr_pack_options *options,
                           enum cr_pack_form *out) {
    struct cr_scratch scratch = {0};
    struct cr_stored  stored;
    int32_t           label;
    *out = options->raw_side ? CR_PACK_RAW : CR_PACK_ENCODED;
    if (options->raw_side || options->jpeg_side) return CR_OK;
    cr_status status = cr_dataset_fetch(dataset, 0, &scratch, &stored, &label);
    if (status == CR_OK && !stored.bytes) *out = CR_PACK_RAW;
    cr_scratch_free(&scratch);
    return status == CR_ERR_FORMAT || status == CR_ERR_IO ? CR_OK : status;
}

static cr_status pack_rounds(struct packing *p, struct cr_pack_writer *writer, struct cr_pack_result *result) {
    int64_t last_report = cr_time_ns();
    for (p->first = 0; p->first < p->dataset->count; p->first += ROUND) {
        if (cr_time_ns() - last_report > PROGRESS_NS) {
            last_report = cr_time_ns();
            cr_log(CR_LOG_INFO, "%lld of %lld images", (long long)p->first, (long long)p->dataset->count);
        }
        p->items = (int)CR_MIN((int64_t)ROUND, p->dataset->count - p->first);
        atomic_store(&p->next, 0);
        cr_work_together(packing_worker, p, p->options->workers);
        if (stopped(p)) return CR_FAIL(CR_ERR_INTERRUPTED, "%s: interrupted, nothing was written", writer->file.target);
        for (int i = 0; i < p->items; i++) CR_TRY(write_item(p, writer, &p->item[i], result));
    }
    return CR_OK;
}

cr_status cr_pack_dataset(const struct cr_dataset *dataset, const char *path, const struct cr_pack_options *options,
                          struct cr_pack_result *out) {
    struct packing         p      = {.dataset = dataset, .options = options};
    struct cr_pack_result  result = {0};
    struct cr_pack_writer *writer = NULL;
    const uint32_t         flags  = dataset->exif && !options->jpeg_side ? CR_PACK_EXIF : 0;
    enum cr_pack_form      form;
    cr_status              status;
    CR_TRY(cr_pack_allowed(dataset, options));
    CR_TRY(find_form(dataset, options, &form));
    CR_ALLOC(p.item, ROUND);
    CR_TRY_OUT(cr_pack_create(path, form, dataset->format, flags, dataset->class_names, dataset->classes, &writer));
    CR_TRY_OUT(pack_rounds(&p, writer, &result));
    if (!result.images) CR_FAIL_OUT(CR_ERR_FORMAT, "%s: no image can be read", path);
    struct cr_pack_writer *last = writer;
    writer                      = NULL; /* cr_pack_finish frees it in any case */
    CR_TRY_OUT(cr_pack_finish(last));
    *out = result;
out:
    cr_pack_abandon(writer);
    for (int i = 0; i < ROUND; i++) cr_free(p.item[i].bytes.bytes);
    cr_free(p.item);
    return status;
}

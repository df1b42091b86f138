/* data/image/image.c: selects the decoder by magic bytes. An image is first opened, which gives its size, and then
 * decoded as a whole or in part. */
#include "data/decode.h"
#include "data/image/jpeg.h"
#include "data/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 30 };

void cr_scratch_free(struct cr_scratch *scratch) {
    cr_scratch_release(scratch);
    cr_free(scratch->file.bytes);
    cr_free(scratch->pixels.bytes);
    cr_free(scratch->oriented.bytes);
    cr_free(scratch->tables.bytes);
    cr_free(scratch->entropy.bytes);
    cr_free(scratch->planes.bytes);
    cr_free(scratch->copy.bytes);
    cr_free(scratch->jpeg_tables);
    cr_jpeg_close(scratch->jpeg);
    *scratch = (struct cr_scratch){0};
}

void cr_image_free(struct cr_image *image) {
    cr_free(image->rgb);
    *image = (struct cr_image){0};
}

/* The format of a file that cannot be read, for the message; NULL when unknown. */
static const char *foreign_format(const uint8_t *b, size_t count) {
    static const struct {
        const char *magic;
        size_t      at, length;
        const char *name;
    } known[] = {
        {"GIF8", 0, 4, "a GIF"},
        {"ftypavif", 4, 8, "an AVIF"},
        {"ftyphei", 4, 7, "an HEIF"},
        {"<!DOCTYPE", 0, 9, "an HTML"},
        {"<html", 0, 5, "an HTML"},
        {"\xff\x0a", 0, 2, "a JPEG XL"},
        {"version https", 0, 13, "a Git LFS pointer"},
    };
    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (count >= known[i].at + known[i].length && !memcmp(b + known[i].at, known[i].magic, known[i].length))
            return known[i].name;
    return NULL;
}

/* ---- an image: opened, then decoded as far as needed ---- */

static cr_status open_encoded(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                              struct cr_image *out) {
    static const uint8_t png_magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    const uint8_t       *b            = stored->bytes;
    const size_t         count        = stored->count;
    if (count == 0) return CR_FAIL(CR_ERR_FORMAT, "%s: the file is empty", name);
    *out = (struct cr_image){.format = stored->format};
    if (count >= sizeof png_magic && !memcmp(b, png_magic, sizeof png_magic))
        return cr_png_decode(stored, name, scratch, out);
    if (cr_webp_magic(b, count)) return cr_webp_decode(stored, name, scratch, out);
    if (cr_tiff_magic(b, count)) return cr_tiff_decode(stored, name, scratch, out);
    if (cr_bmp_magic(b, count)) return cr_bmp_decode(stored, name, scratch, out);
    if (count >= 3 && b[0] == 0xff && b[1] == 0xd8 && b[2] == 0xff)
        return cr_jpeg_open(stored, name, scratch, &out->width, &out->height);
    const char *foreign = foreign_format(b, count);
    if (foreign)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: %s file; only " CR_IMAGE_KINDS " images can be read: convert it to one, or replace it",
                       name, foreign);
    return CR_FAIL(CR_ERR_FORMAT, "%s: not an image; " CR_IMAGE_KINDS " can be read", name);
}

static struct cr_window whole_window(const struct cr_image *image) {
    return (struct cr_window){.rgb    = image->rgb,
                              .width  = image->width,
                              .height = image->height,
                              .stride = (size_t)image->width * cr_format_bytes(image->format),
                              .format = image->format};
}

/* Converts decoded or stored pixels to the wanted format. */
static cr_status convert(enum cr_pixel_format format, struct cr_scratch *scratch, struct cr_image *image) {
    struct cr_window all = whole_window(image);
    if (!image->rgb || image->format == format) return CR_OK;
    CR_TRY(cr_convert_window(format, scratch, &all));
    image->rgb    = scratch->pixels.bytes;
    image->format = format;
    return CR_OK;
}

/* Decoded pixels are oriented at once; for a JPEG only the sides are exchanged. */
static cr_status open_oriented(const struct cr_stored *stored, struct cr_scratch *scratch, struct cr_lazy_image *lazy) {
    struct cr_image *image       = &lazy->image;
    const int        orientation = cr_exif_orientation(stored->bytes, stored->count);
    if (orientation == 1) return CR_OK;
    if (image->rgb) {
        struct cr_window all = whole_window(image);
        CR_TRY(cr_orient_window(orientation, scratch, &all));
        *image = (struct cr_image){all.width, all.height, scratch->pixels.bytes, all.format};
        return CR_OK;
    }
    lazy->orientation = orientation;
    if (cr_orient_transposes(orientation))
        *image = (struct cr_image){.width = image->height, .height = image->width, .format = image->format};
    return CR_OK;
}

cr_status cr_lazy_image_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                             struct cr_lazy_image *out) {
    *out = (struct cr_lazy_image){.image = stored->pixels, .verified = stored->verified};
    cr_scratch_release(scratch);
    if (!stored->bytes) return convert(stored->format, scratch, &out->image);
    int64_t   start  = cr_time_ns();
    cr_status status = open_encoded(stored, name, scratch, &out->image);
    if (status == CR_OK) status = convert(stored->format, scratch, &out->image);
    if (status == CR_OK && stored->exif) status = open_oriented(stored, scratch, out);
    if (status != CR_OK) cr_scratch_release(scratch);
    scratch->counts.decode_ns += cr_time_ns() - start;
    return status;
}

/* Decodes the part of a JPEG that the box of the upright image describes. */
static cr_status read_jpeg(const struct cr_lazy_image *lazy, const int box[4], struct cr_jpeg_part part,
                           struct cr_scratch *scratch, struct cr_window *out) {
    int64_t start = cr_time_ns();
    cr_orient_box(lazy->orientation, lazy->image.width, lazy->image.height, box, part.box);
    cr_status status = cr_jpeg_read(&part, scratch, out);
    if (status == CR_OK) status = cr_convert_window(lazy->image.format, scratch, out);
    if (status == CR_OK && lazy->orientation > 1) status = cr_orient_window(lazy->orientation, scratch, out);
    scratch->counts.decode_ns += cr_time_ns() - start;
    return status;
}

cr_status cr_lazy_image_whole(const struct cr_lazy_image *lazy, struct cr_scratch *scratch, struct cr_image *view) {
    const int        box[4] = {0, 0, lazy->image.width, lazy->image.height};
    struct cr_window window;
    *view = lazy->image;
    if (view->rgb) return CR_OK;
    CR_TRY(read_jpeg(lazy, box, (struct cr_jpeg_part){.whole = true}, scratch, &window));
    view->rgb = scratch->pixels.bytes;
    return CR_OK;
}

cr_status cr_lazy_image_window(const struct cr_lazy_image *lazy, const int box[4], int min_side,
                               struct cr_scratch *scratch, struct cr_window *out) {
    const struct cr_image *image = &lazy->image;
    CR_ASSERT(box[0] >= 0 && box[1] >= 0 && box[2] > 0 && box[3] > 0);
    CR_ASSERT(box[2] <= image->width - box[0] && box[3] <= image->height - box[1]);
    if (!image->rgb)
        return read_jpeg(lazy, box, (struct cr_jpeg_part){.min_side = min_side, .whole = !lazy->verified}, scratch,
                         out);
    *out        = whole_window(image);
    out->rgb    = image->rgb + (size_t)box[1] * out->stride + (size_t)box[0] * cr_format_bytes(image->format);
    out->width  = box[2];
    out->height = box[3];
    out->x = out->y = 0;
    out->w          = box[2];
    out->h          = box[3];
    return CR_OK;
}

static cr_status decode_view(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                             struct cr_image *view) {
    struct cr_lazy_image lazy;
    if (stored->count == 0) return CR_FAIL(CR_ERR_FORMAT, "%s: the file is empty", name); /* bytes may be NULL */
    CR_TRY(cr_lazy_image_open(stored, name, scratch, &lazy));
    return cr_lazy_image_whole(&lazy, scratch, view);
}

cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                               struct cr_image *view) {
    const struct cr_stored stored = {.bytes = bytes, .count = count};
    return decode_view(&stored, name, scratch, view);
}

static cr_status read_whole(int fd, const char *path, struct cr_buffer *buffer, size_t *count) {
    struct stat info;
    if (fstat(fd, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: is a folder, not an image", path);
    if (!S_ISREG(info.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: not a regular file", path);
    if (info.st_size > FILE_BYTES_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: %lld bytes are too many for an image", path, (long long)info.st_size);
    size_t size = (size_t)info.st_size, used = 0;
    CR_TRY(cr_buffer_reserve(buffer, size));
    while (used < size) {
        ssize_t got = read(fd, buffer->bytes + used, size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break; /* the file shrank meanwhile: the decoder will report what is missing */
        used += (size_t)got;
    }
    *count = used;
    return CR_OK;
}

cr_status cr_image_file_read(const char *path, struct cr_scratch *scratch, size_t *count) {
    /* O_NONBLOCK: a pipe with the name of an image must not block a worker; regular files are not affected. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return CR_FAIL(CR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    *count           = 0;
    cr_status status = read_whole(fd, path, &scratch->file, count);
    close(fd);
    return status;
}

cr_status cr_image_read(const char *path, const struct cr_config *config, struct cr_image *out) {
    struct cr_scratch scratch = {0};
    struct cr_stored  stored  = {
          .exif = config->data.exif, .format = cr_format_of(config), .max_pixels = config->data.max_pixels};
    struct cr_image view;
    cr_status       status = cr_image_file_read(path, &scratch, &stored.count);
    stored.bytes           = scratch.file.bytes;
    if (status == CR_OK) status = decode_view(&stored, path, &scratch, &view);
    if (status == CR_OK) {
        *out                 = view;
        scratch.pixels.bytes = NULL; /* the caller owns it now */
    }
    cr_scratch_free(&scratch);
    return status;
}

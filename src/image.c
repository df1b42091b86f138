/* image.c: what decoders share, and the choice among them by magic bytes. See data.h. */
#include "data_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 30 };

cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count) {
    if (count <= buffer->capacity && buffer->bytes) return CR_OK;
    size_t capacity = buffer->capacity ? count + count / 4 : count; /* a second growth promises a third */
    cr_free(buffer->bytes);
    buffer->capacity = 0;
    buffer->bytes    = cr_alloc(capacity, 1);
    if (!buffer->bytes) return CR_NO_MEMORY(capacity);
    buffer->capacity = capacity;
    return CR_OK;
}

void cr_scratch_free(struct cr_scratch *scratch) {
    cr_free(scratch->file.bytes);
    cr_free(scratch->pixels.bytes);
    cr_free(scratch->tables.bytes);
    *scratch = (struct cr_scratch){0};
}

void cr_image_free(struct cr_image *image) {
    cr_free(image->rgb);
    *image = (struct cr_image){0};
}

cr_status cr_image_check_size(int64_t width, int64_t height, const char *name) {
    if (width < 1 || height < 1) return CR_FAIL(CR_ERR_FORMAT, "%s: a picture without pixels", name);
    if (width > CR_IMAGE_SIDE_MAX || height > CR_IMAGE_SIDE_MAX || width * height > CR_IMAGE_PIXELS_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: %lld x %lld pixels are too many: at most %d a side and %d in all", name,
                       (long long)width, (long long)height, CR_IMAGE_SIDE_MAX, CR_IMAGE_PIXELS_MAX);
    return CR_OK;
}

/* What a file that we cannot read seems to be, for the message. */
static const char *foreign_format(const uint8_t *b, size_t count) {
    static const struct {
        const char *magic;
        size_t      at, length;
        const char *name;
    } known[] = {
        {"GIF8", 0, 4, "a GIF"},
        {"WEBP", 8, 4, "a WebP"},
        {"BM", 0, 2, "a BMP"},
        {"II*\0", 0, 4, "a TIFF"},
        {"MM\0*", 0, 4, "a TIFF"},
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

cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_buffer *pixels,
                               struct cr_image *view) {
    static const uint8_t png_magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    const uint8_t       *b            = bytes;
    if (count == 0) return CR_FAIL(CR_ERR_FORMAT, "%s: the file is empty", name);
    if (count >= sizeof png_magic && !memcmp(b, png_magic, sizeof png_magic))
        return cr_png_decode(bytes, count, name, pixels, view);
    if (count >= 3 && b[0] == 0xff && b[1] == 0xd8 && b[2] == 0xff)
        return cr_jpeg_decode(bytes, count, name, pixels, view);
    const char *foreign = foreign_format(b, count);
    if (foreign) return CR_FAIL(CR_ERR_FORMAT, "%s: %s file; only PNG and JPEG pictures can be read", name, foreign);
    return CR_FAIL(CR_ERR_FORMAT, "%s: neither a PNG nor a JPEG picture", name);
}

cr_status cr_image_decode(const void *bytes, size_t count, const char *name, struct cr_image *out) {
    struct cr_buffer pixels = {0};
    struct cr_image  view;
    cr_status        status = cr_image_decode_view(bytes, count, name, &pixels, &view);
    if (status != CR_OK) {
        cr_free(pixels.bytes);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    *out = view; /* view.rgb is pixels.bytes: its owner is now the caller */
    return CR_OK;
}

static cr_status read_whole(int fd, const char *path, struct cr_buffer *buffer, size_t *count) {
    struct stat info;
    if (fstat(fd, &info) != 0) return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return CR_FAIL(CR_ERR_IO, "%s: not a regular file", path);
    if (info.st_size > FILE_BYTES_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: %lld bytes are too many for a picture", path, (long long)info.st_size);
    size_t size = (size_t)info.st_size, used = 0;
    CR_TRY(cr_buffer_reserve(buffer, size));
    while (used < size) {
        ssize_t got = read(fd, buffer->bytes + used, size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return CR_FAIL(CR_ERR_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break; /* it shrank under us: the decoder will say what is missing */
        used += (size_t)got;
    }
    *count = used;
    return CR_OK;
}

cr_status cr_image_read_view(const char *path, struct cr_scratch *scratch, struct cr_image *view) {
    /* O_NONBLOCK: a pipe in a picture's place must not hang a worker; it does nothing to regular files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return CR_FAIL(CR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    size_t    count  = 0;
    cr_status status = read_whole(fd, path, &scratch->file, &count);
    close(fd);
    CR_TRY(status);
    return cr_image_decode_view(scratch->file.bytes, count, path, &scratch->pixels, view);
}

cr_status cr_image_read(const char *path, struct cr_image *out) {
    struct cr_scratch scratch = {0};
    struct cr_image   view;
    cr_status         status = cr_image_read_view(path, &scratch, &view);
    if (status == CR_OK) {
        *out                 = view;
        scratch.pixels.bytes = NULL; /* handed over */
    }
    cr_scratch_free(&scratch);
    return status;
}

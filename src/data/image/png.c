/* data/image/png.c: reads PNG of any colour type and depth as pixels of 1, 3 or 4 channels and 8 or 16 bits, and writes
 * RGB8 as PNG, with libpng. libpng reports errors by longjmp, so all data that must survive the jump is in a struct.
 * For 8 bits, 16-bit samples keep their high byte; without a channel for it alpha is dropped, as PIL's convert("RGB")
 * does. */
#include "core/files.h"
#include "data/decode.h"
#include "data/scratch.h"

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Deflate expands at most 1032 times; a file that claims more pixels is cut off or malicious. */
enum { INFLATE_MAX = 1032, CHUNK_BYTES_MAX = 8 << 20, COMPRESSION = 6 };
/* libpng unpacks what follows the last row, too, to find the end of the data: so many bytes of the file may follow. */
enum { AFTER_ROWS_MAX = 64 << 10 };

struct png_job {
    jmp_buf                 jump;
    png_structp             png;
    png_infop               info;
    const uint8_t          *next; /* reading: the rest of the file */
    size_t                  left, count;
    size_t                  may_read; /* reading: bytes from here on */
    const char             *name;
    const struct cr_stored *stored; /* reading */
    struct cr_scratch      *scratch;
    FILE                   *file; /* writing to a file; else to `text` */
    struct cr_text         *text;
    const char             *software; /* writing: content of a text chunk, or NULL */
    const uint8_t          *rgb;
    int                     width, height;
    int                     write_error; /* errno of the file; 0: none */
    enum cr_pixel_format    format;      /* reading */
    bool                    out_of_memory;
    cr_status               status; /* of an error that cresnet raised itself */
    char                    message[160];
};

static void png_on_error(png_structp png, png_const_charp message) {
    struct png_job *job = png_get_error_ptr(png);
    snprintf(job->message, sizeof job->message, "%s", message);
    longjmp(job->jump, 1);
}

static void png_on_warning(png_structp png, png_const_charp message) {
    (void)png, (void)message;
}

static png_voidp png_allocate(png_structp png, png_alloc_size_t size) {
    void *p = cr_alloc(size, 1);
    if (!p && png) ((struct png_job *)png_get_mem_ptr(png))->out_of_memory = true;
    return p;
}

static void png_release(png_structp png, png_voidp p) {
    (void)png;
    cr_free(p);
}

static void png_read_bytes(png_structp png, png_bytep to, size_t count) {
    struct png_job *job = png_get_io_ptr(png);
    if (count > job->left) png_error(png, "the file is cut off");
    if (count > job->may_read) png_error(png, "too much data after the last row");
    job->may_read -= count;
    memcpy(to, job->next, count);
    job->next += count;
    job->left -= count;
}

/* Requests pixels of job->format for every kind of file. Colours that should become grey stay RGB: the caller of
 * cr_png_decode converts them. */
static void png_request(struct png_job *job, int depth, int colour) {
    const bool coloured = colour & PNG_COLOR_MASK_COLOR, little = *(const uint8_t *)&(const uint16_t){1} == 1;
    const int  channels = cr_format_channels(job->format);
    const bool alpha =
        channels == 4 && (colour & PNG_COLOR_MASK_ALPHA || png_get_valid(job->png, job->info, PNG_INFO_tRNS));
    const bool to_grey = coloured && channels == 1;
    const bool wide    = cr_format_bits(job->format) == 16 && (depth == 16 || !to_grey);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(job->png);
    if (!coloured && depth < 8) png_set_expand_gray_1_2_4_to_8(job->png);
    if (alpha && !(colour & PNG_COLOR_MASK_ALPHA)) png_set_tRNS_to_alpha(job->png);
    if (!coloured && channels > 1) png_set_gray_to_rgb(job->png);
    if (to_grey) job->format = wide ? CR_RGB16 : CR_RGB8;
    if (depth == 16 && !wide) png_set_strip_16(job->png);
    if (depth < 16 && wide) png_set_expand_16(job->png);
    if (wide && little) png_set_swap(job->png);
    if (channels < 4) png_set_strip_alpha(job->png);
    if (channels == 4 && !alpha) png_set_add_alpha(job->png, wide ? 0xffff : 0xff, PNG_FILLER_AFTER);
}

static cr_status png_read_pixels(struct png_job *job) {
    png_uint_32 width, height;
    int         depth, colour;
    png_set_read_fn(job->png, job, png_read_bytes);
    png_set_keep_unknown_chunks(job->png, PNG_HANDLE_CHUNK_NEVER, NULL,
                                -1); /* text, profiles and times are not needed */
    png_set_chunk_malloc_max(job->png, CHUNK_BYTES_MAX);
    png_read_info(job->png, job->info);
    png_get_IHDR(job->png, job->info, &width, &height, &depth, &colour, NULL, NULL, NULL);
    const size_t rows_bytes = png_get_rowbytes(job->png, job->info) * height;
    if (rows_bytes > job->count * INFLATE_MAX + INFLATE_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "%s: broken PNG: %zu bytes cannot hold %u x %u pixels", job->name, job->count,
                       (unsigned)width, (unsigned)height);
    png_request(job, depth, colour);
    const size_t out_bytes = (size_t)width * height * cr_format_bytes(job->format);
    /* Rows of the file are not kept, but unpacking them takes time: they count where they are larger. */
    CR_TRY(cr_image_admit(job->stored, width, height, job->format, CR_MAX(rows_bytes, out_bytes) - out_bytes, job->name,
                          job->scratch));
    int passes = png_set_interlace_handling(job->png);
    png_read_update_info(job->png, job->info);
    size_t stride = (size_t)width * cr_format_bytes(job->format);
    CR_ASSERT(png_get_rowbytes(job->png, job->info) == stride);
    struct cr_buffer *pixels = &job->scratch->pixels;
    CR_TRY(cr_buffer_reserve(pixels, stride * height));
    job->width  = (int)width;
    job->height = (int)height;
    if (passes > 1)
        memset(pixels->bytes, 0, stride * height); /* interlaced passes are combined with the existing content */
    for (int pass = 0; pass < passes; pass++)
        for (png_uint_32 y = 0; y < height; y++) {
            if (pass + 1 == passes && y + 1 == height) job->may_read = 2 * rows_bytes / height + AFTER_ROWS_MAX;
            png_read_row(job->png, pixels->bytes + y * stride, NULL);
        }
    return CR_OK; /* data after the last row is not needed, so a missing end chunk is accepted */
}

static cr_status png_read_guarded(struct png_job *job) {
    job->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, job, png_on_error, png_on_warning, job, png_allocate,
                                        png_release);
    if (!job->png) return CR_NO_MEMORY(1024);
    job->info = png_create_info_struct(job->png);
    if (!job->info) return CR_NO_MEMORY(1024);
    if (setjmp(job->jump)) {
        if (job->out_of_memory) return CR_NO_MEMORY(job->count);
        return CR_FAIL(CR_ERR_FORMAT, "%s: broken PNG: %s", job->name, job->message);
    }
    return png_read_pixels(job);
}

cr_status cr_png_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                        struct cr_image *view) {
    struct png_job job    = {.next     = stored->bytes,
                             .left     = stored->count,
                             .may_read = stored->count,
                             .count    = stored->count,
                             .name     = name,
                             .stored   = stored,
                             .scratch  = scratch,
                             .format   = stored->format};
    cr_status      status = png_read_guarded(&job);
    if (job.png) png_destroy_read_struct(&job.png, &job.info, NULL);
    CR_TRY(status);
    *view = (struct cr_image){job.width, job.height, scratch->pixels.bytes, job.format};
    return CR_OK;
}

/* ---- writing ---- */

static void png_write_bytes(png_structp png, png_bytep from, size_t count) {
    struct png_job *job = png_get_io_ptr(png);
    if (job->text) cr_text_add_bytes(job->text, from, count);
    if (job->text || fwrite(from, 1, count, job->file) == count) return;
    job->write_error = errno;
    png_error(png, "write error");
}

static void png_no_flush(png_structp png) {
    (void)png;
}

static cr_status png_write_guarded(struct png_job *job) {
    job->png = png_create_write_struct_2(PNG_LIBPNG_VER_STRING, job, png_on_error, png_on_warning, job, png_allocate,
                                         png_release);
    if (!job->png) return CR_NO_MEMORY(1024);
    job->info = png_create_info_struct(job->png);
    if (!job->info) return CR_NO_MEMORY(1024);
    if (setjmp(job->jump)) {
        if (job->out_of_memory) return CR_NO_MEMORY(1 << 16);
        if (job->write_error) return cr_fs_refused(job->name, "write", job->write_error);
        return CR_FAIL(CR_ERR_IO, "%s: cannot be written: %s", job->name, job->message);
    }
    png_set_write_fn(job->png, job, png_write_bytes, png_no_flush);
    png_set_compression_level(job->png, COMPRESSION);
    png_set_IHDR(job->png, job->info, (png_uint_32)job->width, (png_uint_32)job->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_text software = {.compression = PNG_TEXT_COMPRESSION_NONE,
                         .key         = (char *)(uintptr_t) "Software",
                         .text        = (char *)(uintptr_t)job->software};
    if (job->software) png_set_text(job->png, job->info, &software, 1);
    png_write_info(job->png, job->info);
    for (int y = 0; y < job->height; y++) png_write_row(job->png, job->rgb + (size_t)y * job->width * 3);
    png_write_end(job->png, NULL);
    return CR_OK;
}

cr_status cr_image_write_png(const char *path, const uint8_t *rgb, int width, int height) {
    struct png_job job = {.name = path, .rgb = rgb, .width = width, .height = height};
    CR_ASSERT(width > 0 && height > 0);
    job.file = fopen(path, "wbe");
    if (!job.file) return cr_fs_refused(path, "create", errno);
    cr_status status = png_write_guarded(&job);
    if (job.png) png_destroy_write_struct(&job.png, &job.info);
    if (fclose(job.file) != 0 && status == CR_OK) status = cr_fs_refused(path, "write", errno);
    if (status != CR_OK) unlink(path); /* an incomplete file must not stay */
    return status;
}

cr_status cr_image_encode_png(const char *software, const uint8_t *rgb, int width, int height, struct cr_text *out) {
    struct png_job job = {
        .name = "PNG", .rgb = rgb, .width = width, .height = height, .text = out, .software = software};
    CR_ASSERT(width > 0 && height > 0);
    cr_status status = png_write_guarded(&job);
    if (job.png) png_destroy_write_struct(&job.png, &job.info);
    return status == CR_OK && out->failed ? CR_NO_MEMORY(out->length) : status;
}

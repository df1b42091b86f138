/* data/decode.h: images as datasets store them (encoded), and decoding of the parts that a sample needs.
 *
 * Invariant: stored samples, images and views are borrowed from the dataset or from the scratch. They are valid until
 * the next call with the same dataset or scratch. */
#ifndef CR_DECODE_H
#define CR_DECODE_H

#include "data/scratch.h"
#include "formats/jpeg_scan.h"

#include <stdatomic.h>
#include <string.h>

/* Decodes a whole image into scratch->pixels, to which view->rgb then points. */
CR_MUST cr_status cr_image_decode_view(const void *bytes, size_t count, const char *name, struct cr_scratch *scratch,
                                       struct cr_image *view);
/* data/image/webp.c, tiff.c, bmp.c: do these bytes begin as such an image does? Every build knows; only one with
 * libwebp or libtiff decodes the first two. */
bool cr_webp_magic(const void *bytes, size_t count);
bool cr_tiff_magic(const void *bytes, size_t count);
bool cr_bmp_magic(const void *bytes, size_t count);
/* Write the version of libwebp or libtiff, "1.2.4", or "no". */
enum { CR_WEBP_VERSION_BYTES = 16, CR_TIFF_VERSION_BYTES = 16 };
void cr_webp_version(char text[CR_WEBP_VERSION_BYTES]);
void cr_tiff_version(char text[CR_TIFF_VERSION_BYTES]);
/* Reads a regular file into scratch->file. CR_ERR_IO, CR_ERR_FORMAT (too large), CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_file_read(const char *path, struct cr_scratch *scratch, size_t *count);

/* A sample as its dataset stores it: an encoded image in memory, or pixels. */
struct cr_stored {
    const uint8_t       *bytes; /* encoded bytes; NULL: `pixels` has the image */
    size_t               count;
    bool                 verified;   /* was decoded to its end before: the part outside a crop may stay undecoded */
    bool                 exif;       /* apply the EXIF orientation of an encoded image */
    enum cr_pixel_format format;     /* that the image is wanted in */
    int64_t              max_pixels; /* data.max_pixels; 0: CR_IMAGE_PIXELS_MAX */
    struct cr_image      pixels;
};
/* data/image/buffer.c: is width x height at most stored->max_pixels, and a side at most CR_IMAGE_SIDE_MAX?
 * CR_ERR_FORMAT. */
CR_MUST cr_status cr_image_check_sides(const struct cr_stored *stored, int64_t width, int64_t height, const char *name);
/* The same, and may the image be decoded whose header names these sides? Called before any memory is taken for
 * its pixels. `decoded` is the format that the decoder makes, work_bytes what it takes in addition to these pixels.
 *   - The memory is at most 256 MiB, or 256 bytes for each byte of the file: photos of any quality take less, and a
 *     small file cannot take gigabytes.
 *   - Images of more than 32 MiB that take more than 256 bytes for each byte are decoded one at a time, however many
 *     threads read images: this call waits for its turn, which ends with cr_scratch_release.
 * CR_ERR_FORMAT. */
CR_MUST cr_status cr_image_admit(const struct cr_stored *stored, int64_t width, int64_t height,
                                 enum cr_pixel_format decoded, size_t work_bytes, const char *name,
                                 struct cr_scratch *scratch);
/* data/image/png.c: decodes to stored->format, or to RGB of the same bits where only this makes grey.
 * data/image/webp.c, bmp.c: to RGBA8 if stored->format has alpha, else to RGB8.
 * data/image/tiff.c: to grey, RGB or RGBA, of 16 bits if the file and stored->format have them. The first page only;
 * the first file of several pages is named in the log.
 * The pixels are in scratch->pixels. */
CR_MUST cr_status cr_png_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                struct cr_image *view);
CR_MUST cr_status cr_webp_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                 struct cr_image *view);
CR_MUST cr_status cr_tiff_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                 struct cr_image *view);
CR_MUST cr_status cr_bmp_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                struct cr_image *view);
/* An image whose size is known. image.rgb is NULL for a JPEG that scratch->jpeg has opened and not decoded yet; width
 * and height are those of the upright image. */
struct cr_lazy_image {
    struct cr_image image;
    bool            verified;
    int             orientation; /* of a JPEG, still to be applied: 2 to 8; 0 or 1: none */
};
/* A decoded region of an image, at full size, a half, a quarter or an eighth. rgb is [height] rows of `stride`
 * bytes; (x, y, w, h) is the requested box, in pixels of the region. */
struct cr_window {
    const uint8_t       *rgb;
    int                  width, height;
    size_t               stride;
    double               x, y, w, h;
    enum cr_pixel_format format;
};
/* Entropy-coded data of the JPEGs of a batch that a device decodes. Any thread adds to it. */
struct cr_jpeg_data {
    uint8_t      *bytes;
    size_t        capacity;
    atomic_size_t used;
};
/* data/image/jpeg_scan.c: makes the scan of the box of an open JPEG, for a device: `min_side` as in
 * cr_lazy_image_window. The device's pixels are bitwise equal to those of the window. Returns false, with out->bytes 0,
 * when the CPU has to decode the image: it is no plain baseline JPEG, has to be turned or scaled, or `data` is full. */
bool cr_jpeg_scan_make(const struct cr_lazy_image *lazy, const int box[4], int min_side, struct cr_scratch *scratch,
                       struct cr_jpeg_data *data, struct cr_jpeg_scan *out);
/* Copies one pixel of 1, 2, 3, 4, 6 or 8 bytes, which a call of memcpy would do much slower. */
static inline void cr_pixel_copy(uint8_t *to, const uint8_t *from, size_t bytes) {
    switch (bytes) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 3: memcpy(to, from, 3); break;
    case 4: memcpy(to, from, 4); break;
    case 6: memcpy(to, from, 6); break;
    default: memcpy(to, from, 8); break;
    }
}
/* a*b/255 with PIL's rounding. */
static inline int cr_mul_div_255(int a, int b) {
    int t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}
/* data/image/convert.c: makes the pixels of a window be of this format; they are then in scratch->pixels, without gaps,
 * unless they were of it. CR_ERR_MEMORY. */
CR_MUST cr_status cr_convert_window(enum cr_pixel_format format, struct cr_scratch *scratch, struct cr_window *window);
/* Opens a stored sample: reads the header of a JPEG, or decodes any other image. `name` must live as long as `out`.
 * CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_lazy_image_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                                     struct cr_lazy_image *out);
/* Decodes the whole image; the pixels are borrowed from the dataset or the scratch. */
CR_MUST cr_status cr_lazy_image_whole(const struct cr_lazy_image *lazy, struct cr_scratch *scratch,
                                      struct cr_image *view);
/* Decodes the box (x, y, width, height) of the image and as little else as possible. With min_side > 0 a JPEG is
 * decoded at the smallest scale that leaves the box at least `min_side` pixels per side. With min_side = 0 the
 * pixels are bitwise identical to those of the whole image. */
CR_MUST cr_status cr_lazy_image_window(const struct cr_lazy_image *lazy, const int box[4], int min_side,
                                       struct cr_scratch *scratch, struct cr_window *out);

/* data/image/exif.c: the orientation of a JPEG, PNG, WebP or TIFF, 1 to 8 as EXIF defines it: how it becomes upright.
 * 1 when there is none, or when the EXIF block is damaged. cr_tiff_pages: the number of pages of a TIFF; 1 for others.
 */
int cr_exif_orientation(const void *bytes, size_t count);
int cr_tiff_pages(const void *bytes, size_t count);
/* data/image/exif.c: the next segment of a JPEG. *at is 2 for the first, and becomes the end of the segment. False: it
 * is cut off, or there is none. Only segments precede the first scan, which follows the segment CR_JPEG_SOS. */
struct cr_jpeg_segment {
    uint8_t        marker;
    const uint8_t *data;
    size_t         length;
};
enum { CR_JPEG_SOF0 = 0xc0, CR_JPEG_SOS = 0xda, CR_JPEG_DRI = 0xdd, CR_JPEG_APP1 = 0xe1, CR_JPEG_APP14 = 0xee };
bool cr_jpeg_segment(const void *bytes, size_t count, size_t *at, struct cr_jpeg_segment *out);
/* data/image/convert.c. cr_orient_transposes: is the width of the upright image the stored height? cr_orient_box: the
 * box (x, y, width, height) of an upright image of width x height, as a box of the stored image. cr_orient_window:
 * makes a window of the stored image upright; its pixels are then in scratch->pixels, without gaps. CR_ERR_MEMORY. */
bool              cr_orient_transposes(int orientation);
void              cr_orient_box(int orientation, int width, int height, const int box[4], int stored[4]);
CR_MUST cr_status cr_orient_window(int orientation, struct cr_scratch *scratch, struct cr_window *window);

#endif

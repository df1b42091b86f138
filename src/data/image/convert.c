/* data/image/convert.c: converts pixels between formats. Colours become grey as by PIL's convert("L"), and an image
 * without alpha is opaque. 8 bits become 16 by a factor of 257, so that 255 becomes 65535. 16 bits become 8 by leaving
 * out the low byte, as libpng does. Applies EXIF orientations: an orientation is a reflection of the stored image in x
 * and y, followed by an exchange of both axes. */
#include "data/decode.h"
#include "data/scratch.h"

#include <string.h>

/* A sample as 16 bits. */
static inline uint32_t load(const uint8_t *p, int channel, const bool wide) {
    uint16_t v;
    if (!wide) return p[channel] * 257u;
    memcpy(&v, p + 2 * channel, sizeof v);
    return v;
}

static inline void store(uint8_t *p, int channel, uint32_t v, const bool wide) {
    const uint16_t v16 = (uint16_t)v;
    if (wide)
        memcpy(p + 2 * channel, &v16, sizeof v16);
    else
        p[channel] = (uint8_t)(v >> 8);
}

/* ITU-R 601-2 luma. Of samples of 8 bits it is that of PIL: the sum is made before the low bits are dropped. */
static inline uint32_t luma(uint32_t red, uint32_t green, uint32_t blue) {
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

static inline __attribute__((always_inline)) void convert_row(const uint8_t *from, uint8_t *to, int width, const int in,
                                                              const int out, const bool wide_in, const bool wide_out) {
    const int in_bytes = in * (wide_in ? 2 : 1), out_bytes = out * (wide_out ? 2 : 1), shift = wide_in ? 1 : 257;
    for (int x = 0; x < width; x++, from += in_bytes, to += out_bytes) {
        const uint32_t r = load(from, 0, wide_in), g = in == 1 ? r : load(from, 1, wide_in),
                       b = in == 1 ? r : load(from, 2, wide_in);
        if (out == 1) {
            const uint32_t grey = luma(r / (uint32_t)shift, g / (uint32_t)shift, b / (uint32_t)shift);
            store(to, 0, grey * (uint32_t)shift, wide_out);
            continue;
        }
        store(to, 0, r, wide_out);
        store(to, 1, g, wide_out);
        store(to, 2, b, wide_out);
        if (out == 4) store(to, 3, in == 4 ? load(from, 3, wide_in) : 65535, wide_out);
    }
}

/* The constant arguments make a loop of each case. */
#define ROW(in_, out_)                                                                                                 \
    case 10 * (in_) + (out_):                                                                                          \
        if (!wide_in && !wide_out)                                                                                     \
            convert_row(from, to, width, in_, out_, false, false);                                                     \
        else if (!wide_in)                                                                                             \
            convert_row(from, to, width, in_, out_, false, true);                                                      \
        else if (!wide_out)                                                                                            \
            convert_row(from, to, width, in_, out_, true, false);                                                      \
        else                                                                                                           \
            convert_row(from, to, width, in_, out_, true, true);                                                       \
        break;

static void convert(const uint8_t *from, enum cr_pixel_format in, uint8_t *to, enum cr_pixel_format out, int width) {
    const bool wide_in = cr_format_bits(in) == 16, wide_out = cr_format_bits(out) == 16;
    switch (10 * cr_format_channels(in) + cr_format_channels(out)) {
        ROW(1, 1)
        ROW(1, 3)
        ROW(1, 4)
        ROW(3, 1)
        ROW(3, 3)
        ROW(3, 4)
        ROW(4, 1)
        ROW(4, 3)
        ROW(4, 4)
    }
}

cr_status cr_convert_window(enum cr_pixel_format format, struct cr_scratch *scratch, struct cr_window *window) {
    const size_t stride = (size_t)window->width * cr_format_bytes(format);
    if (window->format == format) return CR_OK;
    CR_TRY(cr_buffer_reserve(&scratch->oriented, stride * (size_t)window->height));
    for (int y = 0; y < window->height; y++)
        convert(window->rgb + (size_t)y * window->stride, window->format, scratch->oriented.bytes + (size_t)y * stride,
                format, window->width);
    const struct cr_buffer pixels = scratch->oriented; /* the caller finds the pixels where a decoder leaves them */
    scratch->oriented             = scratch->pixels;
    scratch->pixels               = pixels;
    window->rgb                   = scratch->pixels.bytes;
    window->stride                = stride;
    window->format                = format;
    return CR_OK;
}

cr_status cr_image_to_rgb(struct cr_image *image) {
    const size_t row = (size_t)image->width * cr_format_bytes(image->format), out = (size_t)image->width * 3;
    uint8_t     *rgb;
    if (image->format == CR_RGB8) return CR_OK;
    CR_ALLOC(rgb, out * (size_t)image->height);
    for (int y = 0; y < image->height; y++)
        convert(image->rgb + (size_t)y * row, image->format, rgb + (size_t)y * out, CR_RGB8, image->width);
    cr_free(image->rgb);
    image->rgb    = rgb;
    image->format = CR_RGB8;
    return CR_OK;
}

/* ---- orientation ---- */

enum { TILE = 32 }; /* pixels: rows and columns of a tile fit into the first cache together */

struct transform {
    bool flip_x, flip_y; /* of the stored image */
    bool transposed;
};

static struct transform transform_of(int orientation) {
    static const struct transform transforms[9] = {
        [2] = {.flip_x = true},
        [3] = {.flip_x = true, .flip_y = true},
        [4] = {.flip_y = true},
        [5] = {.transposed = true},
        [6] = {.flip_y = true, .transposed = true},
        [7] = {.flip_x = true, .flip_y = true, .transposed = true},
        [8] = {.flip_x = true, .transposed = true},
    };
    CR_ASSERT(orientation >= 0 && orientation <= 8);
    return transforms[orientation];
}

bool cr_orient_transposes(int orientation) {
    return transform_of(orientation).transposed;
}

void cr_orient_box(int orientation, int width, int height, const int box[4], int stored[4]) {
    const struct transform t = transform_of(orientation);
    const int              x = t.transposed, w = 2 + x; /* places of the stored x and width in `box` */
    stored[0] = box[x];
    stored[1] = box[1 - x];
    stored[2] = box[w];
    stored[3] = box[5 - w];
    if (t.flip_x) stored[0] = (t.transposed ? height : width) - stored[0] - stored[2];
    if (t.flip_y) stored[1] = (t.transposed ? width : height) - stored[1] - stored[3];
}

struct steps { /* how the stored pixels are read in the order of the result */
    const uint8_t *first;
    ptrdiff_t      step_x, step_y; /* bytes to the pixel on the right, and below */
};

static void copy_tile(const struct steps *from, int x0, int y0, int width, int height, uint8_t *dst, size_t stride,
                      size_t pixel) {
    for (int y = y0; y < CR_MIN(y0 + TILE, height); y++) {
        const uint8_t *p = from->first + from->step_x * x0 + from->step_y * y;
        uint8_t       *q = dst + stride * (size_t)y + (size_t)x0 * pixel;
        for (int x = x0; x < CR_MIN(x0 + TILE, width); x++, p += from->step_x, q += pixel) cr_pixel_copy(q, p, pixel);
    }
}

static void exchange(double *a, double *b) {
    const double before = *a;
    *a                  = *b;
    *b                  = before;
}

cr_status cr_orient_window(int orientation, struct cr_scratch *scratch, struct cr_window *window) {
    const struct transform t      = transform_of(orientation);
    const size_t           pixel  = cr_format_bytes(window->format);
    const ptrdiff_t        across = (t.flip_x ? -1 : 1) * (ptrdiff_t)pixel,
                    down          = (t.flip_y ? -1 : 1) * (ptrdiff_t)window->stride;
    const int    width            = t.transposed ? window->height : window->width;
    const int    height           = t.transposed ? window->width : window->height;
    const size_t stride           = (size_t)width * pixel;
    struct steps from             = {window->rgb, across, down};
    if (t.flip_x) from.first += (size_t)(window->width - 1) * pixel;
    if (t.flip_y) from.first += (size_t)(window->height - 1) * window->stride;
    if (t.transposed) from.step_x = down, from.step_y = across;
    CR_TRY(cr_buffer_reserve(&scratch->oriented, stride * (size_t)height));
    for (int y = 0; y < height; y += TILE)
        for (int x = 0; x < width; x += TILE)
            copy_tile(&from, x, y, width, height, scratch->oriented.bytes, stride, pixel);
    const struct cr_buffer pixels = scratch->oriented; /* the caller finds the pixels where a decoder leaves them */
    scratch->oriented             = scratch->pixels;
    scratch->pixels               = pixels;
    if (t.flip_x) window->x = window->width - window->x - window->w;
    if (t.flip_y) window->y = window->height - window->y - window->h;
    if (t.transposed) exchange(&window->x, &window->y);
    if (t.transposed) exchange(&window->w, &window->h);
    window->rgb    = scratch->pixels.bytes;
    window->width  = width;
    window->height = height;
    window->stride = stride;
    return CR_OK;
}

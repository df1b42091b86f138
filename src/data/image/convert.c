/* data/image/convert.c: converts pixels between formats. Colours become grey as by PIL's convert("L"), and an image
 * without alpha is opaque. 8 bits become 16 by a factor of 257, so that 255 becomes 65535. 16 bits become 8 by leaving
 * out the low byte, as libpng does. */
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

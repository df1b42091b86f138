/* cli/report/image.c: images of the report, embedded as PNG or JPEG. */
#include "cli/report/report.h"
#include "data/source.h"

enum { PNG_SIDE_MAX = 64, JPEG_QUALITY = 90 };

static void add_base64(struct cr_text *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const size_t   left = CR_MIN(count - i, (size_t)3);
        const unsigned v =
            (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) | (left > 2 ? bytes[i + 2] : 0u);
        const char four[] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                             left > 2 ? digits[v & 63] : '='};
        cr_text_add_bytes(out, four, sizeof four);
    }
}

static void add_element(struct cr_text *out, bool small, int width, int height, const char *alt, const char *type,
                        const uint8_t *bytes, size_t count) {
    cr_text_add(out, "<img%s width=\"%d\" height=\"%d\" alt=\"", small ? " class=\"small\"" : "", width, height);
    cr_page_escape(out, alt);
    cr_text_add(out, "\" src=\"data:image/%s;base64,", type);
    add_base64(out, bytes, count);
    cr_text_add(out, "\">");
}

cr_status cr_page_image(struct cr_text *out, const struct cr_image *image, const char *alt) {
    const int width = image->width, height = image->height;
    cr_status status;
    if (CR_MAX(width, height) <= PNG_SIDE_MAX) {
        struct cr_text png = {0};
        status             = cr_image_encode_png(NULL, image->rgb, width, height, &png);
        if (status == CR_OK) add_element(out, true, width, height, alt, "png", (const uint8_t *)png.data, png.length);
        cr_text_free(&png);
        return status;
    }
    struct cr_buffer jpeg = {0};
    size_t           count;
    status = cr_jpeg_write(image, JPEG_QUALITY, alt, &jpeg, &count);
    if (status == CR_OK) add_element(out, false, width, height, alt, "jpeg", jpeg.bytes, count);
    cr_free(jpeg.bytes);
    return status;
}

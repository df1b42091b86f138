/* cli/report/image.c: images of the report, embedded as PNG or JPEG. */
#include "cli/report/report.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h> /* needs stdio.h before it */

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

/* libjpeg reports an error by a call that must not return. */
struct jpeg_errors {
    struct jpeg_error_mgr base; /* first member */
    jmp_buf               jump;
};
static void jpeg_failed(j_common_ptr info) {
    longjmp(((struct jpeg_errors *)(void *)info->err)->jump, 1);
}

/* The largest JPEG file of an image, as turbojpeg.h bounds it with halved colour: three bytes a pixel of whole
 * blocks. */
static size_t jpeg_bytes_max(int width, int height) {
    return (size_t)(width + 15) / 16 * 16 * ((size_t)(height + 15) / 16 * 16) * 3 + 2048;
}

/* bytes: [jpeg_bytes_max]; *count becomes the number of bytes of the file. */
static cr_status encode_jpeg(const uint8_t *rgb, int width, int height, unsigned char *bytes, unsigned long *count) {
    unsigned char              *out = bytes;
    struct jpeg_compress_struct info;
    struct jpeg_errors          errors;
    info.err               = jpeg_std_error(&errors.base);
    errors.base.error_exit = jpeg_failed;
    if (setjmp(errors.jump)) {
        jpeg_destroy_compress(&info);
        return CR_FAIL(CR_ERR_MEMORY, "cannot encode an image as JPEG");
    }
    jpeg_create_compress(&info);
    *count = (unsigned long)jpeg_bytes_max(width, height);
    jpeg_mem_dest(&info, &out, count);
    info.image_width      = (JDIMENSION)width;
    info.image_height     = (JDIMENSION)height;
    info.input_components = 3;
    info.in_color_space   = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, JPEG_QUALITY, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        JSAMPROW line = (JSAMPROW)(uintptr_t)(rgb + (size_t)info.next_scanline * (size_t)width * 3);
        jpeg_write_scanlines(&info, &line, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    CR_ASSERT(out == bytes); /* libjpeg allocates memory of its own when the file is larger */
    return CR_OK;
}

static void add_element(struct cr_text *out, bool small, int width, int height, const char *alt, const char *type,
                        const uint8_t *bytes, size_t count) {
    cr_text_add(out, "<img%s width=\"%d\" height=\"%d\" alt=\"", small ? " class=\"small\"" : "", width, height);
    cr_page_escape(out, alt);
    cr_text_add(out, "\" src=\"data:image/%s;base64,", type);
    add_base64(out, bytes, count);
    cr_text_add(out, "\">");
}

cr_status cr_page_image(struct cr_text *out, const uint8_t *rgb, int width, int height, const char *alt) {
    if (CR_MAX(width, height) <= PNG_SIDE_MAX) {
        struct cr_text  png    = {0};
        const cr_status status = cr_image_encode_png(NULL, rgb, width, height, &png);
        if (status == CR_OK) add_element(out, true, width, height, alt, "png", (const uint8_t *)png.data, png.length);
        cr_text_free(&png);
        return status;
    }
    unsigned char *jpeg;
    unsigned long  count = 0;
    CR_ALLOC(jpeg, jpeg_bytes_max(width, height));
    const cr_status status = encode_jpeg(rgb, width, height, jpeg, &count);
    if (status == CR_OK) add_element(out, false, width, height, alt, "jpeg", jpeg, count);
    cr_free(jpeg);
    return status;
}

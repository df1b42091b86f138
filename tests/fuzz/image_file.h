/* tests/fuzz/image_file.h: reads the bytes of an image, as RGB and in one of all formats. */
#ifndef FUZZ_IMAGE_FILE_H
#define FUZZ_IMAGE_FILE_H

#include "tests/harness/image_support.h"

/* The formats accept the same files, unless the pixels of one take more memory than an image of this size may. */
static inline void fuzz_image(const uint8_t *bytes, size_t count, const char *name) {
    struct cr_image image;
    if (image_decode(bytes, count, name, &image) != CR_OK) return;
    const enum cr_pixel_format format  = (enum cr_pixel_format)(bytes[count / 2] % (CR_RGBA16 + 1));
    struct cr_stored           stored  = {.bytes = bytes, .count = count, .exif = true, .format = format};
    struct cr_scratch          scratch = {0};
    struct cr_lazy_image       lazy;
    if (cr_lazy_image_open(&stored, name, &scratch, &lazy) == CR_OK) {
        CR_ASSERT((int64_t)lazy.image.width * lazy.image.height == (int64_t)image.width * image.height);
        const size_t last = (size_t)lazy.image.width * (size_t)lazy.image.height * cr_format_bytes(format) - 1;
        CR_ASSERT(lazy.image.rgb[0] + lazy.image.rgb[last] < 512); /* a sanitizer detects missing pixels */
    } else
        CR_ASSERT(strstr(cr_error_message(), "to decode; files may take"));
    cr_scratch_free(&scratch);
    cr_image_free(&image);
}

#endif

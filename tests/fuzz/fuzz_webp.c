/* tests/fuzz/fuzz_webp.c: reads any chunks after WebP's head: an image or a clean refusal. The length in the head
 * is set to that of the input. */
#include "data/data.h"
#include "tests/fuzz/fuzz.h"
#include "tests/harness/image_support.h"

#include <stdlib.h>
#include <string.h>

static void decode(const uint8_t *bytes, size_t count) {
    struct cr_image image;
    if (image_decode(bytes, count, "fuzz.webp", &image) != CR_OK) return;
    /* one of all formats, which accept the same files */
    const enum cr_pixel_format format  = (enum cr_pixel_format)(bytes[count / 2] % (CR_RGBA16 + 1));
    struct cr_stored           stored  = {.bytes = bytes, .count = count, .exif = true, .format = format};
    struct cr_scratch          scratch = {0};
    struct cr_lazy_image       lazy;
    CR_ASSERT(cr_lazy_image_open(&stored, "fuzz.webp", &scratch, &lazy) == CR_OK);
    CR_ASSERT((int64_t)lazy.image.width * lazy.image.height == (int64_t)image.width * image.height);
    const size_t last = (size_t)lazy.image.width * (size_t)lazy.image.height * cr_format_bytes(format) - 1;
    CR_ASSERT(lazy.image.rgb[0] + lazy.image.rgb[last] < 512); /* a sanitizer detects missing pixels */
    cr_scratch_free(&scratch);
    cr_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    enum { HEAD = 12 };
    uint8_t     *file  = malloc(count + HEAD);
    const size_t whole = count + 4;
    if (!file) return 0;
    memcpy(file, "RIFF....WEBP", HEAD);
    for (int k = 0; k < 4; k++) file[4 + k] = (uint8_t)(whole >> 8 * k);
    memcpy(file + HEAD, bytes, count);
    decode(file, count + HEAD);
    free(file);
    return 0;
}

/* tests/fuzz/fuzz_png.c: reads any chunks after PNG's magic number: an image or a clean refusal. The input is
 * decoded unchanged, and again with correct chunk checksums, otherwise the fuzzer would hardly ever get past them. */
#include "tests/fuzz/fuzz.h"
#include "tests/harness/image_support.h"

static uint32_t crc_of(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void mend_sums(uint8_t *bytes, size_t count) {
    for (size_t at = 8; at + 12 <= count;) {
        size_t length =
            (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length > count - at - 12) return;
        uint32_t crc = crc_of(bytes + at + 4, length + 4);
        for (int k = 0; k < 4; k++) bytes[at + 8 + length + (size_t)k] = (uint8_t)(crc >> (24 - 8 * k));
        at += length + 12;
    }
}

static void decode(const uint8_t *bytes, size_t count) {
    struct cr_image image;
    if (image_decode(bytes, count, "fuzz.png", &image) != CR_OK) return;
    /* one of all formats, which accept the same files */
    const enum cr_pixel_format format  = (enum cr_pixel_format)(bytes[count / 2] % (CR_RGBA16 + 1));
    struct cr_stored           stored  = {.bytes = bytes, .count = count, .exif = true, .format = format};
    struct cr_scratch          scratch = {0};
    struct cr_lazy_image       lazy;
    CR_ASSERT(cr_lazy_image_open(&stored, "fuzz.png", &scratch, &lazy) == CR_OK);
    CR_ASSERT((int64_t)lazy.image.width * lazy.image.height == (int64_t)image.width * image.height);
    const size_t last = (size_t)lazy.image.width * (size_t)lazy.image.height * cr_format_bytes(format) - 1;
    CR_ASSERT(lazy.image.rgb[0] + lazy.image.rgb[last] < 512); /* a sanitizer detects missing pixels */
    cr_scratch_free(&scratch);
    uint8_t small[7 * 5 * 3];
    CR_ASSERT(cr_image_resize(&image, 0, 0, image.width, image.height, small, 7, 5, bytes[count - 1] & 1) == CR_OK);
    cr_image_free(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    static const uint8_t magic[4] = {0x89, 'P', 'N', 'G'};
    if (count < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0) return 0;
    int64_t  live   = cr_alloc_live();
    uint8_t *mended = cr_alloc(count, 1);
    CR_ASSERT(mended);
    memcpy(mended, bytes, count);
    mend_sums(mended, count);
    decode(bytes, count);
    decode(mended, count);
    cr_free(mended);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

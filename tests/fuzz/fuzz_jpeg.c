/* tests/fuzz/fuzz_jpeg.c: reads any bytes after JPEG's magic number: an image or a clean refusal; a decoded image is
 * also prepared for evaluation. The same bytes are decoded again only inside a box, at a suitable scale: if a
 * verified image is refused there, it must be refused as a whole too. Our decoder must give the same pixels as
 * libjpeg. */
#include "data/image/jpeg.h"
#include "data/source.h"
#include "tests/fuzz/fuzz.h"
#include "tests/harness/image_support.h"

static void decode_box(const uint8_t *bytes, size_t count, bool whole_fine) {
    struct cr_stored     stored  = {.bytes = bytes, .count = count, .verified = bytes[count - 1] & 1, .exif = true};
    struct cr_scratch    scratch = {0};
    struct cr_lazy_image image;
    struct cr_window     window;
    struct cr_rng        rng = cr_rng_make(count, CR_RNG_TEST, bytes[count / 2], 0);
    if (cr_lazy_image_open(&stored, "fuzz.jpg", &scratch, &image) == CR_OK) {
        int width = image.image.width, height = image.image.height;
        int box[4]       = {0, 0, 1 + (int)cr_rng_below(&rng, (uint64_t)width),
                            1 + (int)cr_rng_below(&rng, (uint64_t)height)};
        int least        = (int)cr_rng_below(&rng, 3) * (1 + CR_MIN(box[2], box[3]) / 5);
        box[0]           = (int)cr_rng_below(&rng, (uint64_t)(width - box[2]) + 1);
        box[1]           = (int)cr_rng_below(&rng, (uint64_t)(height - box[3]) + 1);
        cr_status status = cr_lazy_image_window(&image, box, least, &scratch, &window);
        CR_ASSERT(status == CR_OK || !whole_fine);
        unsigned sum = 0;
        for (int y = 0; status == CR_OK && y < window.height; y++)
            sum += window.rgb[(size_t)y * window.stride] +
                   window.rgb[(size_t)y * window.stride + (size_t)window.width * 3 - 1];
        CR_ASSERT(sum < UINT32_MAX); /* a sanitizer detects missing pixels */
    }
    cr_scratch_free(&scratch);
}

/* With its EXIF orientation an image has the same pixels in another order. */
static void decode_upright(const uint8_t *bytes, size_t count, const struct cr_image *plain) {
    struct cr_stored     stored  = {.bytes = bytes, .count = count, .exif = true};
    struct cr_scratch    scratch = {0};
    struct cr_lazy_image lazy;
    struct cr_image      view;
    cr_status            status = cr_lazy_image_open(&stored, "fuzz.jpg", &scratch, &lazy);
    if (status == CR_OK) status = cr_lazy_image_whole(&lazy, &scratch, &view);
    CR_ASSERT((status == CR_OK) == (plain != NULL));
    if (plain) {
        const int64_t bytes_of_pixels = (int64_t)plain->width * plain->height * 3;
        int64_t       sum             = 0;
        CR_ASSERT(view.width == lazy.image.width && view.height == lazy.image.height);
        CR_ASSERT((int64_t)view.width * view.height * 3 == bytes_of_pixels);
        for (int64_t i = 0; i < bytes_of_pixels; i++) sum += view.rgb[i] - plain->rgb[i];
        CR_ASSERT(sum == 0);
    }
    cr_scratch_free(&scratch);
}

static void check_against_libjpeg(const uint8_t *bytes, size_t count, const struct cr_image *ours) {
    struct cr_image theirs;
    cr_jpeg_only_libjpeg(true);
    cr_status status = image_decode(bytes, count, "fuzz.jpg", &theirs);
    cr_jpeg_only_libjpeg(false);
    CR_ASSERT((status == CR_OK) == (ours != NULL));
    if (!ours) return;
    CR_ASSERT(theirs.width == ours->width && theirs.height == ours->height);
    CR_ASSERT(!memcmp(theirs.rgb, ours->rgb, (size_t)ours->width * (size_t)ours->height * 3));
    cr_image_free(&theirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    static const struct cr_prepare prep = {.size = 9, .eval_resize = 11};
    struct cr_image                image;
    if (count < 2 || bytes[0] != 0xff || bytes[1] != 0xd8) return 0;
    int64_t live = cr_alloc_live();
    bool    fine = image_decode(bytes, count, "fuzz.jpg", &image) == CR_OK;
    check_against_libjpeg(bytes, count, fine ? &image : NULL);
    decode_upright(bytes, count, fine ? &image : NULL);
    if (fine) {
        uint8_t small[9 * 9 * 3];
        CR_ASSERT(cr_prepare_eval(&prep, &image, small) == CR_OK);
        cr_image_free(&image);
    }
    decode_box(bytes, count, fine);
    const int components = cr_jpeg_plain_components(bytes, count); /* a sanitizer detects reads outside the bytes */
    CR_ASSERT(components == 0 || components == 1 || components == 3);
    CR_ASSERT(cr_alloc_live() == live);
    return 0;
}

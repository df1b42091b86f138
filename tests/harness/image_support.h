/* harness/image_support.h: decodes and prepares an image that is in memory. */
#ifndef IMAGE_SUPPORT_H
#define IMAGE_SUPPORT_H

#include "data/augment.h"
#include "data/decode.h"
#include "data/scratch.h"

/* Decodes a PNG or JPEG; the caller frees `out` with cr_image_free. `name` is used in messages. */
static inline cr_status image_decode(const void *bytes, size_t count, const char *name, struct cr_image *out) {
    struct cr_scratch scratch = {0};
    struct cr_image   view;
    cr_status         status = cr_image_decode_view(bytes, count, name, &scratch, &view);
    if (status == CR_OK) {
        *out                 = view; /* view.rgb is scratch.pixels.bytes: the caller owns it now */
        scratch.pixels.bytes = NULL;
    }
    cr_scratch_free(&scratch);
    return status;
}

/* cr_prepare_train_with for a decoded image. */
static inline cr_status prepare_train(const struct cr_prepare *prep, const struct cr_image *image, uint64_t seed,
                                      int64_t epoch, int64_t sample, uint8_t *out, int32_t box[4]) {
    struct cr_lazy_image lazy    = {.image = *image};
    struct cr_scratch    scratch = {0};
    cr_status            status  = cr_prepare_train_with(prep, &lazy, seed, epoch, sample, &scratch, out, box, NULL);
    cr_scratch_free(&scratch);
    return status;
}

static inline enum cr_pixel_format format_of(int channels, int bits) {
    return channels == 1   ? (bits == 8 ? CR_GREY8 : CR_GREY16)
           : channels == 3 ? (bits == 8 ? CR_RGB8 : CR_RGB16)
                           : (bits == 8 ? CR_RGBA8 : CR_RGBA16);
}

/* Reads a file with data.exif and the channels and bits of a format. */
static inline cr_status image_read(const char *path, bool exif, enum cr_pixel_format format, struct cr_image *out) {
    const struct cr_config config = {
        .data = {.exif = exif, .channels = cr_format_channels(format), .bits = cr_format_bits(format)}};
    return cr_image_read(path, &config, out);
}

#endif

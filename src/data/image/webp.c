/* data/image/webp.c: reads WebP images, lossy and lossless, as RGB or RGBA of 8 bits, with libwebp. For RGB alpha
 * is dropped, as PIL's convert("RGB") does. A build without libwebp names the missing library. */
#include "data/decode.h"
#include "data/scratch.h"

#include <stdio.h>
#include <string.h>

enum { RIFF_HEAD_BYTES = 12 };

bool cr_webp_magic(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    return count >= RIFF_HEAD_BYTES && !memcmp(b, "RIFF", 4) && !memcmp(b + 8, "WEBP", 4);
}

#ifdef CR_WITH_WEBP
#include <webp/decode.h>

static const char *text_of(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file is cut off";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it has a feature that libwebp does not know";
    default: return "its data is damaged";
    }
}

static cr_status broken(const char *name, VP8StatusCode code, size_t count) {
    if (code == VP8_STATUS_OUT_OF_MEMORY) return CR_NO_MEMORY(count);
    return CR_FAIL(CR_ERR_FORMAT, "%s: broken WebP: %s", name, text_of(code));
}

/* What libwebp takes in addition to the pixels, for each of them: 4 bytes in a lossless file; 5 in a lossy file with
 * alpha, which is a lossless image of 1 byte. */
static size_t work_bytes(const WebPBitstreamFeatures *features) {
    enum { LOSSLESS = 2 };
    return (size_t)features->width * (size_t)features->height *
           (features->format == LOSSLESS ? 4
            : features->has_alpha        ? 5
                                         : 0);
}

cr_status cr_webp_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                         struct cr_image *view) {
    const uint8_t    *bytes  = stored->bytes;
    const size_t      count  = stored->count;
    struct cr_buffer *pixels = &scratch->pixels;
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return CR_FAIL(CR_ERR_FORMAT, "libwebp has another version than its header");
    VP8StatusCode code = WebPGetFeatures(bytes, count, &config.input);
    if (code != VP8_STATUS_OK) return broken(name, code, count);
    if (config.input.has_animation)
        return CR_FAIL(CR_ERR_FORMAT, "%s: an animated WebP; only still images can be read", name);
    const int  width = config.input.width, height = config.input.height;
    const bool alpha = cr_format_channels(stored->format) == 4;
    CR_TRY(cr_image_admit(stored, width, height, alpha ? CR_RGBA8 : CR_RGB8, work_bytes(&config.input), name, scratch));
    const size_t stride = (size_t)width * (alpha ? 4 : 3), size = stride * (size_t)height;
    CR_TRY(cr_buffer_reserve(pixels, size));
    config.output.colorspace         = alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba        = pixels->bytes;
    config.output.u.RGBA.stride      = (int)stride;
    config.output.u.RGBA.size        = size;
    code                             = WebPDecode(bytes, count, &config);
    WebPFreeDecBuffer(&config.output);
    if (code != VP8_STATUS_OK) return broken(name, code, size);
    *view = (struct cr_image){width, height, pixels->bytes, alpha ? CR_RGBA8 : CR_RGB8};
    return CR_OK;
}

void cr_webp_version(char text[CR_WEBP_VERSION_BYTES]) {
    const int version = WebPGetDecoderVersion();
    snprintf(text, CR_WEBP_VERSION_BYTES, "%d.%d.%d", version >> 16 & 255, version >> 8 & 255, version & 255);
}

#else

cr_status cr_webp_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                         struct cr_image *view) {
    (void)stored, (void)scratch, (void)view;
    return CR_FAIL(CR_ERR_FORMAT, "%s: a WebP image; this program was built without libwebp", name);
}

void cr_webp_version(char text[CR_WEBP_VERSION_BYTES]) {
    snprintf(text, CR_WEBP_VERSION_BYTES, "no");
}

#endif

/* data/image/bmp.c: reads BMP images of 1, 4, 8, 16, 24 and 32 bits, with a palette or bit fields, as RGB or RGBA of 8
 * bits. As in PIL, 32 bits without bit fields have no alpha. Run-length encoded images are refused. */
#include "data/decode.h"
#include "data/scratch.h"

#include <string.h>

enum { FILE_HEAD = 14, CORE_HEAD = 12, INFO_HEAD = 40, NO_COMPRESSION = 0, BIT_FIELDS = 3 };

struct bmp {
    const uint8_t *bytes;
    size_t         start, row_bytes; /* of the rows, from the lowest unless top_down */
    int64_t        width, height;
    bool           top_down;
    int            bits;
    const uint8_t *palette; /* blue, green, red, and with 4 bytes a colour an unused byte */
    size_t         colours, colour_bytes;
    uint32_t       mask[4]; /* red, green, blue, alpha; 0: none */
};

static uint32_t little16(const uint8_t *b) {
    return b[0] | (uint32_t)b[1] << 8;
}
static uint32_t little32(const uint8_t *b) {
    return little16(b) | little16(b + 2) << 16;
}

static bool is_head_size(uint32_t bytes) {
    return bytes == CORE_HEAD || bytes == INFO_HEAD || bytes == 52 || bytes == 56 || bytes == 64 || bytes == 108 ||
           bytes == 124;
}

bool cr_bmp_magic(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    return count >= FILE_HEAD + CORE_HEAD && b[0] == 'B' && b[1] == 'M' && is_head_size(little32(b + FILE_HEAD));
}

static cr_status fail_short(const char *name) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: broken BMP: the file is cut off", name);
}

/* Masks follow the 40 bytes that all headers but the oldest begin with: 3 of them, or 4 in longer headers. */
static void read_masks(struct bmp *bmp, const uint8_t *head, uint32_t head_bytes, bool fields) {
    static const uint32_t of_16[4] = {0x7c00, 0x3e0, 0x1f, 0}, of_32[4] = {0xff0000, 0xff00, 0xff, 0},
                          none[4] = {0xff0000, 0xff00, 0xff, 0xff000000};
    memcpy(bmp->mask, bmp->bits == 16 ? of_16 : of_32, sizeof bmp->mask);
    if (!fields) return;
    for (size_t c = 0; c < 4; c++) bmp->mask[c] = c < 3 || head_bytes >= 56 ? little32(head + INFO_HEAD + 4 * c) : 0;
    if (!(bmp->mask[0] | bmp->mask[1] | bmp->mask[2] | bmp->mask[3])) memcpy(bmp->mask, none, sizeof none);
}

static void read_size(struct bmp *bmp, const uint8_t *head, bool core) {
    bmp->width    = core ? (int32_t)little16(head + 4) : (int32_t)little32(head + 4);
    bmp->height   = core ? (int32_t)little16(head + 6) : (int32_t)little32(head + 8);
    bmp->bits     = (int)little16(head + (core ? 10 : 14));
    bmp->top_down = bmp->height < 0;
    if (bmp->top_down) bmp->height = -bmp->height;
}

static cr_status read_head(struct bmp *bmp, size_t count, const char *name) {
    const uint8_t *head       = bmp->bytes + FILE_HEAD;
    const uint32_t head_bytes = little32(head);
    const bool     core       = head_bytes == CORE_HEAD;
    if (count < FILE_HEAD + head_bytes) return fail_short(name);
    read_size(bmp, head, core);
    const int      bits        = bmp->bits;
    const uint32_t compression = core ? NO_COMPRESSION : little32(head + 16);
    const bool     fields      = compression == BIT_FIELDS && (bits == 16 || bits == 24 || bits == 32);
    if ((compression != NO_COMPRESSION && !fields) ||
        (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32))
        return CR_FAIL(CR_ERR_FORMAT, "%s: a BMP of %d bits with compression %u, which is not read: save it as PNG",
                       name, bits, compression);
    size_t at = FILE_HEAD + head_bytes + (fields && head_bytes == INFO_HEAD ? 12 : 0);
    if (count < at) return fail_short(name);
    read_masks(bmp, head, head_bytes, fields);
    bmp->colour_bytes = core ? 3 : 4;
    bmp->colours      = bits > 8 ? 0 : core || !little32(head + 32) ? (size_t)1 << bits : little32(head + 32);
    bmp->palette      = bmp->bytes + at;
    if (bmp->colours > (count - at) / bmp->colour_bytes) return fail_short(name);
    bmp->row_bytes = ((size_t)bmp->width * (size_t)bits + 31) / 32 * 4;
    bmp->start     = little32(bmp->bytes + 10);
    /* Some writers leave the start of the pixels out, or give that of the palette. */
    if (!bmp->start || (bmp->colours && bmp->start == at)) bmp->start = at + bmp->colours * bmp->colour_bytes;
    return CR_OK;
}

static inline uint32_t field_of(uint32_t pixel, uint32_t mask) {
    const int      shift = __builtin_ctz(mask);
    const uint32_t value = (pixel & mask) >> shift, most = mask >> shift;
    return most == 255 ? value : (uint32_t)((uint64_t)value * 255 / most);
}

/* Colour x of a row to red, green, blue and alpha. False: the palette has no such colour. */
static inline bool read_pixel(const struct bmp *bmp, const uint8_t *row, size_t x, uint8_t to[4]) {
    const size_t bytes = (size_t)bmp->bits / 8;
    if (bmp->bits <= 8) {
        const int    bit = (int)(x * (size_t)bmp->bits % 8);
        const size_t at  = (size_t)(row[x * (size_t)bmp->bits / 8] >> (8 - bmp->bits - bit)) & ((1u << bmp->bits) - 1);
        if (at >= bmp->colours) return false;
        for (size_t c = 0; c < 3; c++) to[c] = bmp->palette[at * bmp->colour_bytes + 2 - c];
        return true;
    }
    uint32_t pixel = 0;
    for (size_t k = 0; k < bytes; k++) pixel |= (uint32_t)row[x * bytes + k] << 8 * k;
    for (size_t c = 0; c < 4; c++) to[c] = bmp->mask[c] ? (uint8_t)field_of(pixel, bmp->mask[c]) : c == 3 ? 255 : 0;
    return true;
}

cr_status cr_bmp_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                        struct cr_image *view) {
    struct bmp   bmp      = {.bytes = stored->bytes};
    const size_t channels = cr_format_channels(stored->format) == 4 ? 4 : 3;
    CR_TRY(read_head(&bmp, stored->count, name));
    const enum cr_pixel_format format = channels == 4 ? CR_RGBA8 : CR_RGB8;
    CR_TRY(cr_image_admit(stored, bmp.width, bmp.height, format, 0, name, scratch));
    const size_t width = (size_t)bmp.width, height = (size_t)bmp.height;
    const size_t last_row = (width * (size_t)bmp.bits + 7) / 8; /* whose padding may be missing */
    if (bmp.start > stored->count || (height - 1) * bmp.row_bytes + last_row > stored->count - bmp.start)
        return fail_short(name);
    CR_TRY(cr_buffer_reserve(&scratch->pixels, width * height * channels));
    uint8_t *out = scratch->pixels.bytes;
    for (size_t y = 0; y < height; y++) {
        const uint8_t *row = bmp.bytes + bmp.start + (bmp.top_down ? y : height - 1 - y) * bmp.row_bytes;
        for (size_t x = 0; x < width; x++, out += channels) {
            uint8_t pixel[4] = {0, 0, 0, 255};
            if (!read_pixel(&bmp, row, x, pixel))
                return CR_FAIL(CR_ERR_FORMAT, "%s: broken BMP: a pixel has a colour that the palette lacks", name);
            memcpy(out, pixel, channels);
        }
    }
    *view = (struct cr_image){(int)width, (int)height, scratch->pixels.bytes, format};
    return CR_OK;
}

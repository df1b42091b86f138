/* data/image/tiff.c: reads the first page of a TIFF with libtiff: grey, RGB, CMYK and palette images of 1 to 16 bits,
 * as grey, RGB or RGBA. Files that need a choice (floating-point or signed samples, L*a*b*) are refused with advice.
 * A build without libtiff names the missing library.
 *
 * Invariants
 *   - libtiff reads the file from memory and prints nothing. Its message becomes that of the error.
 *   - The size of the image and that of a block (a strip or a tile) are known before memory is taken for pixels. Only
 *     compressions whose decoders take little more than a block are accepted. */
#include "data/decode.h"
#include "data/scratch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

bool cr_tiff_magic(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    return count >= 8 &&
           (!memcmp(b, "II*\0", 4) || !memcmp(b, "MM\0*", 4) || !memcmp(b, "II+\0", 4) || !memcmp(b, "MM\0+", 4));
}

#ifdef CR_WITH_TIFF
#include <tiffio.h>

/* Since 4.5.0 each open file has handlers of its own; in older versions they belong to the process. */
#define HAS_OWN_HANDLERS (TIFFLIB_VERSION >= 20221213)

enum { SAMPLES_MAX = 8, OWN_MEMORY_MAX = 64 << 20, OVERLAP_MAX = 4, ALPHA_PREMULTIPLIED = EXTRASAMPLE_ASSOCALPHA };

struct tiff_file { /* what libtiff reads from */
    const uint8_t *bytes;
    size_t         count, at;
    char           message[160]; /* of the first error */
    bool           lossy;        /* pixels are missing */
};

struct page { /* the first page, as its tags describe it */
    TIFF       *tiff;
    const char *name;
    uint32_t    width, height, block_width, block_height;
    uint16_t    bits, samples, photometric, compression;
    bool        tiled, planar; /* planar: a block has one sample of each pixel */
    size_t      row_bytes, block_bytes;
    uint16_t    extra; /* meaning of the sample after the colours; 0 if there is none */
    int         colours;
    /* the result */
    bool      wide; /* 16 bits */
    int       channels;
    uint16_t *palette[3]; /* of libtiff: [1 << bits], 16 bits */
};

/* ---- libtiff's callbacks ---- */

static tmsize_t on_read(thandle_t handle, void *to, tmsize_t want) {
    struct tiff_file *file  = (struct tiff_file *)handle;
    const size_t      count = CR_MIN((size_t)CR_MAX(want, (tmsize_t)0), file->count - file->at);
    memcpy(to, file->bytes + file->at, count);
    file->at += count;
    return (tmsize_t)count;
}

static tmsize_t on_write(thandle_t handle, void *from, tmsize_t count) {
    (void)handle, (void)from, (void)count;
    return 0;
}

static toff_t on_seek(thandle_t handle, toff_t offset, int whence) {
    struct tiff_file *file  = (struct tiff_file *)handle;
    const toff_t      start = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file->at : file->count;
    file->at                = (size_t)CR_MIN(start + offset, (toff_t)file->count);
    return file->at;
}

static int on_close(thandle_t handle) {
    (void)handle;
    return 0;
}

static toff_t on_size(thandle_t handle) {
    return ((struct tiff_file *)handle)->count;
}

#if HAS_OWN_HANDLERS
static int on_error(TIFF *tiff, void *data, const char *module, const char *format, va_list values) {
    struct tiff_file *file = data;
    (void)tiff, (void)module;
    file->lossy = true;
    if (!file->message[0]) vsnprintf(file->message, sizeof file->message, format, values);
    return 1;
}

/* Most warnings are about tags. Where a JPEG ends early or is damaged, libjpeg goes on with grey pixels. */
static int on_warning(TIFF *tiff, void *data, const char *module, const char *format, va_list values) {
    struct tiff_file *file = data;
    char              text[160];
    (void)tiff, (void)module;
    vsnprintf(text, sizeof text, format, values);
    if (!strstr(text, "remature end") && !strstr(text, "bad Huffman code")) return 1;
    file->lossy = true;
    if (!file->message[0]) snprintf(file->message, sizeof file->message, "%s", text);
    return 1;
}

static TIFF *open_tiff(struct tiff_file *file, const char *name) {
    TIFFOpenOptions *options = TIFFOpenOptionsAlloc();
    if (!options) return NULL;
    TIFFOpenOptionsSetErrorHandlerExtR(options, on_error, file);
    TIFFOpenOptionsSetWarningHandlerExtR(options, on_warning, file);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options, (tmsize_t)CR_MAX(file->count, (size_t)OWN_MEMORY_MAX));
    TIFF *tiff =
        TIFFClientOpenExt(name, "rm", file, on_read, on_write, on_seek, on_close, on_size, NULL, NULL, options);
    TIFFOpenOptionsFree(options);
    return tiff;
}
#else
#include <pthread.h>

static void silence(void) {
    TIFFSetErrorHandler(NULL);
    TIFFSetWarningHandler(NULL);
}

static TIFF *open_tiff(struct tiff_file *file, const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, silence);
    return TIFFClientOpen(name, "rm", file, on_read, on_write, on_seek, on_close, on_size, NULL, NULL);
}
#endif

/* ---- tags ---- */

static cr_status fail_broken(const struct tiff_file *file, const char *name) {
    return CR_FAIL(CR_ERR_FORMAT, "%s: broken TIFF: %s", name,
                   file->message[0] ? file->message : "its data is damaged");
}

static uint16_t tag(TIFF *tiff, uint32_t number) {
    uint16_t value = 0;
    TIFFGetFieldDefaulted(tiff, number, &value);
    return value;
}

/* Decoders of others (LZMA, WebP, JBIG, the first form of JPEG) take memory that the file decides. */
static cr_status check_compression(const struct page *p) {
    switch (p->compression) {
    case COMPRESSION_NONE:
    case COMPRESSION_CCITTRLE:
    case COMPRESSION_CCITTRLEW:
    case COMPRESSION_CCITT_T4:
    case COMPRESSION_CCITT_T6:
    case COMPRESSION_LZW:
    case COMPRESSION_JPEG:
    case COMPRESSION_PACKBITS:
    case COMPRESSION_DEFLATE:
    case COMPRESSION_ADOBE_DEFLATE:
    case 50000: /* Zstandard */
        if (TIFFIsCODECConfigured(p->compression)) return CR_OK;
    }
    const TIFFCodec *codec = TIFFFindCODEC(p->compression);
    return CR_FAIL(CR_ERR_FORMAT,
                   "%s: a TIFF with the compression %u (%s), which is not read: save it with LZW or deflate", p->name,
                   p->compression, codec ? codec->name : "unknown");
}

static cr_status check_samples(const struct page *p) {
    const uint16_t kind = tag(p->tiff, TIFFTAG_SAMPLEFORMAT);
    if (kind != SAMPLEFORMAT_UINT && kind != SAMPLEFORMAT_VOID)
        return CR_FAIL(
            CR_ERR_FORMAT,
            "%s: a TIFF whose samples are %s, which have no fixed range: scale them to 8 or 16 bits without sign",
            p->name, kind == SAMPLEFORMAT_IEEEFP ? "floating-point numbers" : "signed or complex numbers");
    const bool packed = p->bits == 1 || p->bits == 2 || p->bits == 4;
    if ((!packed && p->bits != 8 && p->bits != 16) || (p->bits != 8 && p->bits != 16 && p->samples > 1))
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: a TIFF with %u samples of %u bits; 8 and 16 bits are read, 1, 2 and 4 of one sample",
                       p->name, p->samples, p->bits);
    return CR_OK;
}

/* The colours of a pixel; the samples after them are extra ones. */
static cr_status read_colours(struct page *p) {
    switch (p->photometric) {
    case PHOTOMETRIC_MINISWHITE:
    case PHOTOMETRIC_MINISBLACK: p->colours = 1; break;
    case PHOTOMETRIC_PALETTE: p->colours = p->bits <= 8 ? 1 : 0; break;
    case PHOTOMETRIC_RGB: p->colours = 3; break;
    case PHOTOMETRIC_SEPARATED: p->colours = tag(p->tiff, TIFFTAG_INKSET) == INKSET_CMYK && p->bits >= 8 ? 4 : 0; break;
    case PHOTOMETRIC_YCBCR: /* libtiff makes RGB of it */
        p->colours = p->compression == COMPRESSION_JPEG && !p->planar && p->samples == 3 ? 3 : 0;
        break;
    default: break;
    }
    const int samples_max = p->colours == 1 ? 2 : SAMPLES_MAX; /* more are channels of a microscope, not one image */
    if (!p->colours || p->samples < p->colours || p->samples > samples_max)
        return CR_FAIL(CR_ERR_FORMAT,
                       "%s: a TIFF with %u samples a pixel and the colour space %u; grey, RGB, palette, CMYK "
                       "and YCbCr of JPEGs are read: save it as grey or RGB",
                       p->name, p->samples, p->photometric);
    if (p->photometric == PHOTOMETRIC_PALETTE &&
        !TIFFGetField(p->tiff, TIFFTAG_COLORMAP, &p->palette[0], &p->palette[1], &p->palette[2]))
        return CR_FAIL(CR_ERR_FORMAT, "%s: broken TIFF: a palette image without a palette", p->name);
    return CR_OK;
}

/* Blocks that overlap would be read again and again. */
static cr_status check_overlap(const struct page *p, size_t count) {
    const uint32_t blocks = p->tiled ? TIFFNumberOfTiles(p->tiff) : TIFFNumberOfStrips(p->tiff);
    uint64_t       sum    = 0;
    for (uint32_t i = 0; i < blocks && p->compression != COMPRESSION_NONE; i++) {
        sum += CR_MIN(TIFFGetStrileByteCount(p->tiff, i), (uint64_t)count);
        if (sum / OVERLAP_MAX > count)
            return CR_FAIL(CR_ERR_FORMAT, "%s: broken TIFF: its strips or tiles overlap", p->name);
    }
    return CR_OK;
}

static cr_status read_blocks(struct page *p, struct tiff_file *file) {
    p->tiled = TIFFIsTiled(p->tiff);
    if (p->tiled) {
        TIFFGetField(p->tiff, TIFFTAG_TILEWIDTH, &p->block_width);
        TIFFGetField(p->tiff, TIFFTAG_TILELENGTH, &p->block_height);
    } else {
        TIFFGetFieldDefaulted(p->tiff, TIFFTAG_ROWSPERSTRIP, &p->block_height);
        p->block_width  = p->width;
        p->block_height = CR_MIN(p->block_height, p->height);
    }
    p->row_bytes  = (size_t)(p->tiled ? TIFFTileRowSize64(p->tiff) : TIFFScanlineSize64(p->tiff));
    uint64_t bits = (uint64_t)p->block_width * p->bits * (p->planar ? 1 : p->samples);
    if (!p->block_width || !p->block_height || p->row_bytes != (bits + 7) / 8 ||
        p->row_bytes > SIZE_MAX / p->block_height / SAMPLES_MAX)
        return fail_broken(file, p->name);
    p->block_bytes = p->row_bytes * p->block_height;
    return check_overlap(p, file->count);
}

/* The format of the pixels that are made for stored->format. */
static enum cr_pixel_format choose_format(struct page *p, const struct cr_stored *stored) {
    const bool four = cr_format_channels(stored->format) == 4 && p->samples > p->colours && p->colours != 4;
    p->wide         = p->bits == 16 && cr_format_bits(stored->format) == 16 && p->colours != 4;
    p->channels     = four ? 4 : p->colours == 1 && !p->palette[0] ? 1 : 3;
    return p->channels == 1   ? (p->wide ? CR_GREY16 : CR_GREY8)
           : p->channels == 3 ? (p->wide ? CR_RGB16 : CR_RGB8)
                              : (p->wide ? CR_RGBA16 : CR_RGBA8);
}

static cr_status read_tags(struct page *p, struct tiff_file *file) {
    TIFF    *t = p->tiff;
    uint16_t extras, *extra;
    if (!TIFFGetField(t, TIFFTAG_IMAGEWIDTH, &p->width) || !TIFFGetField(t, TIFFTAG_IMAGELENGTH, &p->height) ||
        !TIFFGetField(t, TIFFTAG_PHOTOMETRIC, &p->photometric))
        return fail_broken(file, p->name);
    p->bits        = tag(t, TIFFTAG_BITSPERSAMPLE);
    p->samples     = tag(t, TIFFTAG_SAMPLESPERPIXEL);
    p->compression = tag(t, TIFFTAG_COMPRESSION);
    p->planar      = tag(t, TIFFTAG_PLANARCONFIG) == PLANARCONFIG_SEPARATE && p->samples > 1;
    if (TIFFGetField(t, TIFFTAG_EXTRASAMPLES, &extras, &extra) && extras) p->extra = extra[0];
    CR_TRY(check_compression(p));
    CR_TRY(check_samples(p));
    CR_TRY(read_colours(p));
    if (p->photometric == PHOTOMETRIC_YCBCR) TIFFSetField(t, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
    return CR_OK;
}

/* ---- pixels ---- */

static inline uint32_t sample_at(const uint8_t *row, size_t i, int bits) {
    uint16_t v;
    if (bits == 8) return row[i];
    if (bits < 8) return row[i * (size_t)bits / 8] >> (8 - bits - (int)(i * (size_t)bits % 8)) & ((1u << bits) - 1);
    memcpy(&v, row + 2 * i, sizeof v);
    return v;
}

/* One pixel to grey, or red, green, blue; v[colours] has its samples, of the largest value `most`. */
static inline void mix_colours(const struct page *p, uint32_t v[5], uint32_t most, uint32_t fourth) {
    if (p->palette[0]) {
        const uint32_t at = v[0];
        for (int c = 0; c < 3; c++) v[c] = p->palette[c][at] >> 8;
    }
    if (p->photometric == PHOTOMETRIC_MINISWHITE) v[0] = most - v[0];
    for (int c = 0; c < 3 && p->colours == 4; c++) {
        const int value = (int)(255 - v[3]) - cr_mul_div_255((int)v[c], (int)(255 - v[3]));
        v[c]            = (uint32_t)CR_MAX(value, 0);
    }
    for (int c = 0; c < CR_MIN(p->colours, 3) && p->extra == ALPHA_PREMULTIPLIED; c++)
        v[c] = fourth ? CR_MIN(most, v[c] * most / fourth) : 0;
}

/* Are the samples of a row those of the result? */
static bool is_plain(const struct page *p) {
    return p->bits == (p->wide ? 16 : 8) && !p->planar && p->samples == p->channels && !p->palette[0] &&
           p->colours <= 3 && p->photometric != PHOTOMETRIC_MINISWHITE && p->extra != ALPHA_PREMULTIPLIED;
}

/* A row of a block to pixels. In planar files the samples s begin at row + s * plane_bytes, else they alternate. */
static void unpack_row(const struct page *p, const uint8_t *row, size_t plane_bytes, uint32_t width, uint8_t *out) {
    const int wanted = p->samples > p->colours ? p->colours + 1 : p->colours, drop = p->bits == 16 && !p->wide ? 8 : 0;
    const uint32_t most   = p->wide ? 65535 : 255,
                   spread = p->bits < 8 && !p->palette[0] ? 255u / ((1u << p->bits) - 1) : 1;
    const int shown       = p->channels == 4 && p->colours == 1 && !p->palette[0] ? 1 : 3;
    if (is_plain(p)) {
        memcpy(out, row, (size_t)width * p->samples * p->bits / 8);
        return;
    }
    for (uint32_t x = 0; x < width; x++) {
        uint32_t v[5];
        for (int s = 0; s < wanted; s++) {
            const uint8_t *from = p->planar ? row + (size_t)s * plane_bytes : row;
            v[s] = (sample_at(from, p->planar ? x : (size_t)x * p->samples + (size_t)s, p->bits) >> drop) * spread;
        }
        const uint32_t fourth = wanted > p->colours ? v[p->colours] : most;
        mix_colours(p, v, most, fourth);
        for (int c = 0; c < p->channels; c++) {
            const uint16_t value = (uint16_t)(c == 3 ? fourth : v[CR_MIN(c, shown - 1)]);
            if (p->wide)
                memcpy(out, &value, 2);
            else
                *out = (uint8_t)value;
            out += p->wide ? 2 : 1;
        }
    }
}

/* Decodes the block at (x, y): in planar files one for each sample. */
static bool read_block(const struct page *p, uint32_t x, uint32_t y, uint8_t *to) {
    const uint32_t rows = CR_MIN(p->block_height, p->height - y);
    for (uint16_t s = 0; s < (p->planar ? p->samples : 1); s++, to += p->block_bytes) {
        const tmsize_t want = (tmsize_t)(p->tiled ? p->block_bytes : p->row_bytes * rows);
        const tmsize_t got  = p->tiled ? TIFFReadEncodedTile(p->tiff, TIFFComputeTile(p->tiff, x, y, 0, s), to, want)
                                       : TIFFReadEncodedStrip(p->tiff, TIFFComputeStrip(p->tiff, y, s), to, want);
        if (got != want) return false;
    }
    return true;
}

static cr_status read_pixels(const struct page *p, struct tiff_file *file, struct cr_scratch *scratch) {
    const size_t pixel = (size_t)p->channels * (p->wide ? 2 : 1);
    CR_TRY(cr_buffer_reserve(&scratch->pixels, (size_t)p->width * p->height * pixel));
    CR_TRY(cr_buffer_reserve(&scratch->planes, p->block_bytes * (p->planar ? p->samples : 1)));
    file->lossy = false; /* errors in tags that are not needed do not matter */
    for (uint32_t y = 0; y < p->height; y += CR_MIN(p->block_height, p->height - y))
        for (uint32_t x = 0; x < p->width; x += CR_MIN(p->block_width, p->width - x)) {
            if (!read_block(p, x, y, scratch->planes.bytes) || file->lossy) return fail_broken(file, p->name);
            const uint32_t width = CR_MIN(p->block_width, p->width - x), rows = CR_MIN(p->block_height, p->height - y);
            for (uint32_t k = 0; k < rows; k++)
                unpack_row(p, scratch->planes.bytes + k * p->row_bytes, p->block_bytes, width,
                           scratch->pixels.bytes + ((size_t)(y + k) * p->width + x) * pixel);
        }
    return CR_OK;
}

static void name_more_pages(const struct page *p) {
    static atomic_flag named = ATOMIC_FLAG_INIT;
    if (TIFFLastDirectory(p->tiff) || atomic_flag_test_and_set(&named)) return;
    cr_log(CR_LOG_WARN,
           "%s: has more than one page; only the first page of a TIFF is read (`cresnet data stat` counts them)",
           p->name);
}

static cr_status read_page(struct page *p, struct tiff_file *file, const struct cr_stored *stored,
                           struct cr_scratch *scratch, struct cr_image *view) {
    CR_TRY(read_tags(p, file));
    CR_TRY(cr_image_check_sides(stored, p->width, p->height, p->name));
    CR_TRY(read_blocks(p, file));
    const enum cr_pixel_format format = choose_format(p, stored);
    CR_TRY(cr_image_admit(stored, p->width, p->height, format, p->block_bytes * (p->planar ? p->samples : 1), p->name,
                          scratch));
    CR_TRY(read_pixels(p, file, scratch));
    name_more_pages(p);
    *view = (struct cr_image){(int)p->width, (int)p->height, scratch->pixels.bytes, format};
    return CR_OK;
}

cr_status cr_tiff_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                         struct cr_image *view) {
    struct tiff_file file = {.bytes = stored->bytes, .count = stored->count};
    struct page      page = {.tiff = open_tiff(&file, name), .name = name};
    if (!page.tiff) return fail_broken(&file, name);
    const cr_status status = read_page(&page, &file, stored, scratch, view);
    TIFFClose(page.tiff);
    return status;
}

void cr_tiff_version(char text[CR_TIFF_VERSION_BYTES]) {
    if (sscanf(TIFFGetVersion(), "LIBTIFF, Version %15[0-9.]", text) != 1) memcpy(text, "yes", 4);
}

#else

cr_status cr_tiff_decode(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch,
                         struct cr_image *view) {
    (void)stored, (void)scratch, (void)view;
    return CR_FAIL(CR_ERR_FORMAT, "%s: a TIFF image; this program was built without libtiff", name);
}

void cr_tiff_version(char text[CR_TIFF_VERSION_BYTES]) {
    snprintf(text, CR_TIFF_VERSION_BYTES, "no");
}

#endif

/* data/image/exif.c: finds the orientation of an image in its EXIF block: the APP1 segment of a JPEG, the eXIf chunk of
 * a PNG, the EXIF chunk of a WebP, the first directory of a TIFF. EXIF blocks are small TIFFs. Counts directories, too.
 *
 * Invariants
 *   - Nothing is read outside the given bytes. A damaged block has no orientation: the image is used as it is stored.
 *   - Only headers are read: tens of nanoseconds for a JPEG. */
#include "data/decode.h"

#include <string.h>

enum {
    TAG_ORIENTATION  = 0x0112,
    TYPE_SHORT       = 3,
    TIFF_HEAD_BYTES  = 16, /* 8 in small files, which always have more */
    PNG_MAGIC_BYTES  = 8,
    PNG_CHUNK_BYTES  = 12, /* length, type and checksum */
    RIFF_HEAD_BYTES  = 12,
    RIFF_CHUNK_BYTES = 8 /* type and length; data of odd length has one more byte */
};

static const uint8_t exif_name[6] = {'E', 'x', 'i', 'f', 0, 0};

struct tiff { /* a TIFF, or an EXIF block after its name */
    const uint8_t *bytes;
    size_t         count;
    bool           big;   /* big endian */
    bool           large; /* BigTIFF: offsets and counts have 8 bytes */
};

static uint32_t big16(const uint8_t *b) {
    return (uint32_t)b[0] << 8 | b[1];
}
static uint32_t big32(const uint8_t *b) {
    return big16(b) << 16 | big16(b + 2);
}

static uint32_t tiff16(const struct tiff *t, size_t at) {
    const uint8_t *b = t->bytes + at;
    return t->big ? big16(b) : (uint32_t)b[1] << 8 | b[0];
}
static uint32_t tiff32(const struct tiff *t, size_t at) {
    return t->big ? big32(t->bytes + at) : tiff16(t, at + 2) << 16 | tiff16(t, at);
}

/* A place in the file, of 4 or 8 bytes. */
static size_t tiff_place(const struct tiff *t, size_t at) {
    const uint64_t first = tiff32(t, at), second = t->large ? tiff32(t, at + 4) : 0;
    const uint64_t place = !t->large ? first : t->big ? first << 32 | second : second << 32 | first;
    return (size_t)CR_MIN(place, (uint64_t)t->count);
}

/* The place of the first directory; t->count if there is none. */
static size_t tiff_open(struct tiff *t, const uint8_t *bytes, size_t count) {
    *t = (struct tiff){.bytes = bytes, .count = count};
    if (count < TIFF_HEAD_BYTES || (memcmp(bytes, "II", 2) != 0 && memcmp(bytes, "MM", 2) != 0)) return count;
    t->big              = bytes[0] == 'M';
    const uint32_t kind = tiff16(t, 2);
    t->large            = kind == 43;
    return kind != 42 && kind != 43 ? count : tiff_place(t, t->large ? 8 : 4);
}

struct directory {
    size_t first, entries, entry_bytes; /* place of the first entry, their number, bytes of each */
};

/* False: there is no directory at this place. */
static bool tiff_directory(const struct tiff *t, size_t at, struct directory *out) {
    const size_t head = t->large ? 8 : 2;
    if (at == 0 || at > t->count || t->count - at < head) return false;
    out->entry_bytes = t->large ? 20 : 12;
    out->first       = at + head;
    out->entries     = t->large ? tiff_place(t, at) : tiff16(t, at);
    out->entries     = CR_MIN(out->entries, (t->count - out->first) / out->entry_bytes);
    return true;
}

/* The orientation in the first directory; 1 without one. */
static int tiff_orientation(const uint8_t *bytes, size_t count) {
    struct tiff      t;
    struct directory d;
    if (!tiff_directory(&t, tiff_open(&t, bytes, count), &d)) return 1;
    for (size_t i = 0; i < d.entries; i++) {
        const size_t at = d.first + i * d.entry_bytes;
        if (tiff16(&t, at) != TAG_ORIENTATION) continue;
        const uint32_t value = tiff16(&t, at + d.entry_bytes - (t.large ? 8 : 4));
        return tiff16(&t, at + 2) == TYPE_SHORT && tiff_place(&t, at + 4) == 1 && value >= 1 && value <= 8 ? (int)value
                                                                                                           : 1;
    }
    return 1;
}

int cr_tiff_pages(const void *bytes, size_t count) {
    enum { PAGES_MAX = 1 << 20 }; /* the chain of a damaged file may be a circle */
    struct tiff      t;
    struct directory d;
    int              pages = 0;
    if (!cr_tiff_magic(bytes, count)) return 1;
    for (size_t at = tiff_open(&t, bytes, count); pages < PAGES_MAX && tiff_directory(&t, at, &d); pages++) {
        const size_t next = d.first + d.entries * d.entry_bytes;
        at                = t.count - next >= (t.large ? 8u : 4u) ? tiff_place(&t, next) : 0;
    }
    return CR_MAX(pages, 1);
}

static bool starts_with_name(const uint8_t *bytes, size_t count) {
    return count >= sizeof exif_name && !memcmp(bytes, exif_name, sizeof exif_name);
}

bool cr_jpeg_segment(const void *bytes, size_t count, size_t *at, struct cr_jpeg_segment *out) {
    enum { RST0 = 0xd0, SOI = 0xd8, EOI = 0xd9, TEM = 0x01, FILL = 0xff };
    const uint8_t *b = bytes;
    while (count - *at >= 4 && b[*at] == 0xff) {
        const uint8_t marker = b[*at + 1];
        if (marker == FILL) {
            ++*at;
            continue;
        }
        *at += 2;
        if (marker == EOI) return false;
        if (marker == TEM || (marker >= RST0 && marker <= SOI)) continue;
        const size_t length = big16(b + *at); /* with its own two bytes */
        if (length < 2 || length > count - *at) return false;
        *out = (struct cr_jpeg_segment){marker, b + *at + 2, length - 2};
        *at += length;
        return true;
    }
    return false;
}

static int jpeg_orientation(const uint8_t *b, size_t count) {
    struct cr_jpeg_segment s;
    for (size_t at = 2; cr_jpeg_segment(b, count, &at, &s) && s.marker != CR_JPEG_SOS;)
        if (s.marker == CR_JPEG_APP1 && starts_with_name(s.data, s.length))
            return tiff_orientation(s.data + sizeof exif_name, s.length - sizeof exif_name);
    return 1;
}

/* The chunk may come after the pixels. */
static int png_orientation(const uint8_t *b, size_t count) {
    for (size_t at = PNG_MAGIC_BYTES; count - at >= PNG_CHUNK_BYTES;) {
        const uint8_t *data   = b + at + 8;
        size_t         length = big32(b + at);
        if (length > count - at - PNG_CHUNK_BYTES) return 1;
        if (!memcmp(b + at + 4, "eXIf", 4)) {
            const size_t skip = starts_with_name(data, length) ? sizeof exif_name : 0; /* some writers keep the name */
            return tiff_orientation(data + skip, length - skip);
        }
        at += length + PNG_CHUNK_BYTES;
    }
    return 1;
}

static int webp_orientation(const uint8_t *b, size_t count) {
    const struct tiff little = {.bytes = b, .count = count};
    for (size_t at = RIFF_HEAD_BYTES; count - at >= RIFF_CHUNK_BYTES;) {
        const uint8_t *data   = b + at + RIFF_CHUNK_BYTES;
        const size_t   length = tiff32(&little, at + 4);
        if (length > count - at - RIFF_CHUNK_BYTES) return 1;
        if (!memcmp(b + at, "EXIF", 4)) {
            const size_t skip = starts_with_name(data, length) ? sizeof exif_name : 0; /* as in PNG files */
            return tiff_orientation(data + skip, length - skip);
        }
        const size_t next = length + (length & 1);
        if (next > count - at - RIFF_CHUNK_BYTES) return 1;
        at += RIFF_CHUNK_BYTES + next;
    }
    return 1;
}

int cr_exif_orientation(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    if (count >= 3 && b[0] == 0xff && b[1] == 0xd8 && b[2] == 0xff) return jpeg_orientation(b, count);
    if (count >= PNG_MAGIC_BYTES && !memcmp(b, "\x89PNG\r\n\x1a\n", PNG_MAGIC_BYTES)) return png_orientation(b, count);
    if (cr_webp_magic(b, count)) return webp_orientation(b, count);
    return cr_tiff_magic(b, count) ? tiff_orientation(b, count) : 1;
}

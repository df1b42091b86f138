/* data/image/jpeg_baseline.c: the usual JPEG, decoded by ourselves: one baseline Huffman scan of grey or YCbCr, 8 bits,
 * chroma 4:4:4, 4:2:2, 4:4:0 or 4:2:0, no restarts, at full size. libjpeg reads the headers and spends two thirds of
 * its time in the entropy decoder; here most coefficients, with their extra bits, are one look into a table.
 *
 * Laws
 *   - Whatever is unusual, or looks like damage, is left to libjpeg, which then decides from the start and has the
 * words for it: this file never reports an error.
 *   - What it does decode has libjpeg's pixels to the bit. */
#include "data/data_internal.h"

#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

/* Plain libjpeg and old versions of libjpeg-turbo upsample some images otherwise, and there all is left to them. */
#if defined(__x86_64__) && defined(LIBJPEG_TURBO_VERSION_NUMBER)
#define CAN_DECODE (LIBJPEG_TURBO_VERSION_NUMBER >= 2001000)
#else
#define CAN_DECODE 0
#endif

#if CAN_DECODE

#define TARGET __attribute__((target("avx2,bmi,bmi2")))

enum {
    LOOK          = 11,        /* bits that one look decides on */
    LOOKS         = 56 / LOOK, /* looks that a full reader is good for */
    MCU_BYTES_MAX = 2048,      /* a bound on the data of six blocks: 64 codes of 16 bits with 15 extra bits each */
    MARGIN        = 2,         /* pixels around the box, as far as upsampling looks */
    SIDE          = 16,        /* room before and behind a row of samples */
    KIND_SHIFT    = 12,
    PIXELS_MAX    = 1 << 26, /* beyond that libjpeg needs less memory */
};

/* An entry: value or size << 16 | kind << 12 | run << 8 | bits to drop. */
enum { LEAP_END = 16, LEAP_BITS = 15 };
enum kind { KIND_VALUE, KIND_END, KIND_SIZE, KIND_LONG };

struct code_table {
    bool     made;
    uint8_t  bits[17], symbol[256]; /* as the file has them */
    uint32_t look[1 << LOOK];
    uint16_t
        leap[1 << LOOK]; /* several looks in one, where coefficients are not kept: places << 5 | END_OF_BLOCK | bits */
    int32_t last[18], offset[18]; /* of each length: the largest code (-1: none), symbol index less its first code */
};
struct cr_jpeg_tables {
    struct code_table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

/* Where a coefficient in the file's zigzag order belongs; what a broken run points behind the end goes to the last. */
static const uint8_t natural[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13,
    6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31,
    39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* ---- tables ---- */

/* The value of `size` extra bits: small ones stand for negative numbers. */
static inline int extend(int bits, int size) {
    return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

/* The entry for a code of `length` bits; `rest`: the bits behind it that a look sees. */
static uint32_t make_entry(int symbol, int length, int rest) {
    int run = symbol >> 4, size = symbol & 15, seen = LOOK - length;
    if (size == 0 && run != 15) return (uint32_t)(KIND_END << KIND_SHIFT | length);
    if (size == 0) return (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | length); /* sixteen zeros */
    if (size > seen) return (uint32_t)size << 16 | (uint32_t)(KIND_SIZE << KIND_SHIFT | run << 8 | length);
    int value = extend(rest >> (seen - size), size);
    return (uint32_t)value << 16 | (uint32_t)(KIND_VALUE << KIND_SHIFT | run << 8 | (length + size));
}

/* As many whole coefficients as a look sees. */
static void make_leaps(struct code_table *table) {
    for (int i = 0; i < 1 << LOOK; i++) {
        int bits = 0, places = 0, end = 0;
        while (!end) {
            uint32_t entry = table->look[i << bits & ((1 << LOOK) - 1)];
            int      kind = (int)(entry >> KIND_SHIFT & 15), length = (int)(entry & 63);
            if ((kind != KIND_VALUE && kind != KIND_END) || length > LOOK - bits) break;
            end = kind == KIND_END ? LEAP_END : 0;
            bits += length;
            if (!end) places += (int)(entry >> 8 & 15) + 1;
        }
        table->leap[i] = (uint16_t)(places << 5 | end | bits);
    }
}

static bool make_table(const JHUFF_TBL *source, bool dc, struct code_table *table) {
    if (!source) return false;
    if (table->made && !memcmp(table->bits, source->bits, 17) && !memcmp(table->symbol, source->huffval, 256))
        return true;
    table->made = false;
    memcpy(table->bits, source->bits, 17);
    memcpy(table->symbol, source->huffval, 256);
    for (int i = 0; i < 1 << LOOK; i++) table->look[i] = (uint32_t)(KIND_LONG << KIND_SHIFT);
    int code = 0, index = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        table->offset[length] = index - code;
        for (int n = 0; n < source->bits[length]; n++, code++, index++) {
            if (index >= 256 || code >= (1 << length) - 1) return false; /* a code of ones alone may not be */
            int symbol = source->huffval[index];
            if (dc && symbol > 11) return false;
            for (int rest = 0; length <= LOOK && rest < 1 << (LOOK - length); rest++)
                table->look[code << (LOOK - length) | rest] =
                    dc && !symbol ? (uint32_t)(KIND_VALUE << KIND_SHIFT | length) : make_entry(symbol, length, rest);
        }
        table->last[length] = source->bits[length] ? code - 1 : -1;
    }
    if (!dc) make_leaps(table);
    table->made = true;
    return true;
}

/* ---- bits ---- */

struct reader {
    uint64_t       bits; /* the next ones, from the top */
    int            count;
    const uint8_t *at; /* behind them */
};

TARGET static inline void refill(struct reader *r) {
    uint64_t word;
    memcpy(&word, r->at, 8);
    r->bits |= __builtin_bswap64(word) >> r->count;
    r->at += (63 - r->count) >> 3;
    r->count |= 56;
}
TARGET static inline void drop(struct reader *r, int count) {
    r->bits <<= count;
    r->count -= count;
}
TARGET static inline int take(struct reader *r, int count) {
    int value = (int)(r->bits >> (64 - count));
    drop(r, count);
    return value;
}

/* The code at the top of `bits`, longer than a look: its length << 8 | symbol, or -1. */
static int long_code(uint64_t bits, const struct code_table *table) {
    int top = (int)(bits >> 48);
    for (int length = LOOK + 1; length <= 16; length++) {
        int code = top >> (16 - length);
        if (code <= table->last[length]) return length << 8 | table->symbol[(code + table->offset[length]) & 255];
    }
    return -1;
}

/* The difference of a DC value; false: no such code. */
TARGET static inline bool read_dc(struct reader *r, const struct code_table *table, int *value) {
    refill(r);
    uint32_t entry = table->look[r->bits >> (64 - LOOK)];
    int      size;
    switch (entry >> KIND_SHIFT & 15) {
    case KIND_VALUE:
        drop(r, entry & 255);
        *value = (int32_t)entry >> 16;
        return true;
    case KIND_SIZE:
        drop(r, entry & 255);
        size = (int)(entry >> 16);
        break;
    default:
        size = long_code(r->bits, table);
        if (size < 0) return false;
        drop(r, size >> 8);
        size &= 255;
    }
    *value = size ? extend(take(r, size), size) : 0;
    return true;
}

/* The 63 other coefficients of a block, into `block` or to nowhere; *last gets the place of the last one. What one look
 * decides on is at most LOOK bits, so the bits are filled up once for some looks. */
TARGET static inline __attribute__((always_inline)) bool read_ac(struct reader *reader, const struct code_table *table,
                                                                 int16_t *block, const bool keep, int *last) {
    struct reader r = *reader; /* in registers */
    int           k = 1, end = 0;
    while (k < 64) {
        refill(&r);
        for (int looks = 0; looks < LOOKS && k < 64; looks++) {
            uint32_t leap = keep ? 0 : table->leap[r.bits >> (64 - LOOK)];
            if (!keep && leap && k + (int)(leap >> 5) < 64) {
                drop(&r, leap & LEAP_BITS);
                k += (int)(leap >> 5);
                if (leap & LEAP_END) goto done;
                continue;
            }
            uint32_t entry = table->look[r.bits >> (64 - LOOK)];
            int      kind = (int)(entry >> KIND_SHIFT & 15), value = (int32_t)entry >> 16, run = (int)(entry >> 8 & 15);
            if (kind == KIND_VALUE) {
                drop(&r, entry & 63);
            } else if (kind == KIND_END) {
                drop(&r, entry & 63);
                goto done;
            } else {
                int size = value;
                refill(&r);
                if (kind == KIND_SIZE)
                    drop(&r, entry & 63);
                else {
                    int symbol = long_code(r.bits, table);
                    if (symbol < 0) return false;
                    drop(&r, symbol >> 8);
                    run  = symbol >> 4 & 15;
                    size = symbol & 15;
                    if (!size && run != 15) goto done;
                }
                value = size ? extend(take(&r, size), size) : 0;
                looks = LOOKS; /* fill up again */
            }
            k += run;
            if (keep) block[natural[k]] = (int16_t)value;
            end = k++;
        }
    }
done:
    *reader = r;
    *last   = end;
    return k <= 64;
}

/* ---- the scan ---- */

struct component {
    int                      h, v; /* blocks across and down in an MCU */
    const struct code_table *dc, *ac;
    int32_t                  step[64];
    int                      predicted;
    uint8_t                 *plane; /* of the MCUs that are kept */
    size_t                   stride;
    int                      width, height;                    /* samples in the image */
    int                      first_x, first_y, last_x, last_y; /* samples in the plane, in the image's count */
};
struct fast {
    int              components, h, v; /* h, v: of the MCU */
    int              across, down;     /* MCUs of the image */
    int              x0, x1, y0, y1;   /* MCUs that are kept */
    struct component component[3];
    struct reader    reader;
    const uint8_t   *end;
};

/* The entropy-coded data without its stuffed bytes, up to the next marker; false: there is none, the file is cut off.
 */
static bool unstuff(const uint8_t *from, size_t count, uint8_t *to, size_t *length) {
    const uint8_t *end = from + count;
    uint8_t       *at  = to;
    while (from < end) {
        const uint8_t *stop  = memchr(from, 0xff, (size_t)(end - from));
        size_t         plain = (size_t)((stop ? stop : end) - from);
        memcpy(at, from, plain);
        at += plain;
        if (!stop || stop + 1 >= end) return false;
        *length = (size_t)(at - to);
        if (stop[1] != 0) return true;
        *at++ = 0xff;
        from  = stop + 2;
    }
    return false;
}

TARGET static inline __attribute__((always_inline)) bool read_mcu(struct fast *f, int mx, int my, const bool keep) {
    for (int c = 0; c < f->components; c++) {
        struct component *comp = &f->component[c];
        for (int b = 0; b < comp->h * comp->v; b++) {
            int16_t block[64];
            int     difference, last;
            if (keep) memset(block, 0, sizeof block);
            if (!read_dc(&f->reader, comp->dc, &difference)) return false;
            comp->predicted += difference;
            if (comp->predicted != (int16_t)comp->predicted) return false;
            if (!read_ac(&f->reader, comp->ac, block, keep, &last)) return false;
            if (!keep) continue;
            size_t   y   = (size_t)(((my - f->y0) * comp->v + b / comp->h) * 8);
            size_t   x   = (size_t)(((mx - f->x0) * comp->h + b % comp->h) * 8);
            uint8_t *dst = comp->plane + y * comp->stride + x;
            block[0]     = (int16_t)comp->predicted;
            if (!(last ? cr_jpeg_block(block, comp->step, dst, comp->stride)
                       : cr_jpeg_flat_block(comp->predicted * comp->step[0], dst, comp->stride)))
                return false;
        }
    }
    return f->reader.at - f->reader.count / 8 <= f->end;
}

TARGET static bool read_scan(struct fast *f, bool whole) {
    int rows = whole ? f->down : f->y1;
    for (int my = 0; my < rows; my++)
        for (int mx = 0; mx < f->across; mx++) {
            bool keep = my >= f->y0 && my < f->y1 && mx >= f->x0 && mx < f->x1;
            if (!(keep ? read_mcu(f, mx, my, true) : read_mcu(f, mx, my, false))) return false;
        }
    return true;
}

/* ---- pixels ---- */

/* Sample row y of the component, clamped to the image, with its neighbours, the first and last repeated at the
 * image's sides: to[-1] to to[count]. */
static void sample_row(const struct component *c, int y, int from, int count, uint8_t *to) {
    y                    = CR_MAX(0, CR_MIN(y, c->height - 1));
    const uint8_t *row   = c->plane + (size_t)(y - c->first_y) * c->stride;
    int            first = CR_MAX(from - 1, 0), last = CR_MIN(from + count, c->width - 1);
    CR_ASSERT(y >= c->first_y && y < c->last_y && first >= c->first_x && last < c->last_x);
    memcpy(to + (first - from), row + (first - c->first_x), (size_t)(last - first + 1));
    if (from - 1 < first) to[-1] = to[0];
    for (int i = last + 1; i <= from + count; i++) to[i - from] = to[last - from];
}

/* Row y of the image from pixel x on, `count` pixels of the component, to `out`; returns where the first one is. */
static const uint8_t *component_row(const struct fast *f, int which, int x, int y, int count, uint8_t *work) {
    const struct component *c      = &f->component[which];
    size_t                  room   = (size_t)count + 2 * SIDE;
    bool                    across = c->h < f->h, down = c->v < f->v;
    uint8_t                *near = work + SIDE, *far = near + room, *out = far + room;
    int                     from = across ? x / 2 : x, last = across ? (x + count - 1) / 2 : x + count - 1;
    if (!across && !down) {
        size_t at = (size_t)(y - c->first_y) * c->stride + (size_t)(x - c->first_x);
        return c->plane + at;
    }
    int row = down ? y / 2 : y;
    sample_row(c, row, from, last - from + 1, near);
    if (down) sample_row(c, y % 2 ? row + 1 : row - 1, from, last - from + 1, far);
    cr_jpeg_upsample(near, far, last - from + 1, across, down, y % 2, out);
    return out + (across ? x % 2 : 0);
}

static void make_pixels(const struct fast *f, const int box[4], uint8_t *work, uint8_t *dst, size_t stride) {
    size_t room = 4 * ((size_t)box[2] + 2 * SIDE);
    for (int y = 0; y < box[3]; y++) {
        const uint8_t *row[3] = {work, work, work}; /* of a grey image `work` is all middle: no colour */
        for (int c = 0; c < f->components; c++)
            row[c] = component_row(f, c, box[0], box[1] + y, box[2], work + (size_t)c * room);
        cr_jpeg_colours(row[0], row[1], row[2], box[2], dst + (size_t)y * stride);
    }
}

/* ---- what can be done so ---- */

static bool is_usual(const struct jpeg_decompress_struct *jpeg) {
    if ((uint64_t)jpeg->image_width * jpeg->image_height > PIXELS_MAX) return false;
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg->restart_interval) return false;
    if (jpeg->comps_in_scan != jpeg->num_components || jpeg->Ss != 0 || jpeg->Se != 63 || jpeg->Ah || jpeg->Al)
        return false;
    const jpeg_component_info *c = jpeg->comp_info;
    if (jpeg->num_components == 1) return jpeg->jpeg_color_space == JCS_GRAYSCALE;
    if (jpeg->num_components != 3 || jpeg->jpeg_color_space != JCS_YCbCr) return false;
    for (int i = 0; i < 3; i++)
        if (jpeg->cur_comp_info[i] != &c[i]) return false;
    if (c[0].h_samp_factor > 2 || c[0].v_samp_factor > 2) return false;
    for (int i = 1; i < 3; i++)
        if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return false;
    return c[0].h_samp_factor == 1 || jpeg->image_width > 4; /* libjpeg filters no narrower chroma */
}

static bool take_component(const struct jpeg_decompress_struct *jpeg, struct cr_jpeg_tables *tables, int i,
                           struct fast *f) {
    const jpeg_component_info *info = &jpeg->comp_info[i];
    struct component          *c    = &f->component[i];
    const JQUANT_TBL          *quant =
        (unsigned)info->quant_tbl_no < NUM_QUANT_TBLS ? jpeg->quant_tbl_ptrs[info->quant_tbl_no] : NULL;
    if (!quant || (unsigned)info->dc_tbl_no >= NUM_HUFF_TBLS || (unsigned)info->ac_tbl_no >= NUM_HUFF_TBLS)
        return false;
    if (!make_table(jpeg->dc_huff_tbl_ptrs[info->dc_tbl_no], true, &tables->dc[info->dc_tbl_no])) return false;
    if (!make_table(jpeg->ac_huff_tbl_ptrs[info->ac_tbl_no], false, &tables->ac[info->ac_tbl_no])) return false;
    c->dc     = &tables->dc[info->dc_tbl_no];
    c->ac     = &tables->ac[info->ac_tbl_no];
    c->h      = jpeg->num_components == 1 ? 1 : info->h_samp_factor; /* a lone component has MCUs of one block */
    c->v      = jpeg->num_components == 1 ? 1 : info->v_samp_factor;
    c->width  = ((int)jpeg->image_width * c->h + f->h - 1) / f->h;
    c->height = ((int)jpeg->image_height * c->v + f->v - 1) / f->v;
    for (int k = 0; k < 64; k++) c->step[k] = quant->quantval[k];
    return true;
}

/* Lays out planes for the MCUs around the box; returns their bytes, with base NULL only that. */
static size_t lay_out(struct fast *f, uint8_t *base) {
    size_t used = 0;
    for (int i = 0; i < f->components; i++) {
        struct component *c = &f->component[i];
        c->first_x          = f->x0 * c->h * 8;
        c->first_y          = f->y0 * c->v * 8;
        c->last_x           = f->x1 * c->h * 8;
        c->last_y           = f->y1 * c->v * 8;
        c->stride           = (size_t)(c->last_x - c->first_x);
        c->plane            = base ? base + used : NULL;
        used += c->stride * (size_t)(c->last_y - c->first_y) + SIDE; /* colours are read 16 at a time */
    }
    return used;
}

static void frame(struct fast *f, const struct jpeg_decompress_struct *jpeg, const int box[4]) {
    int width = (int)jpeg->image_width, height = (int)jpeg->image_height;
    f->components = jpeg->num_components;
    f->h          = f->components == 1 ? 1 : jpeg->comp_info[0].h_samp_factor;
    f->v          = f->components == 1 ? 1 : jpeg->comp_info[0].v_samp_factor;
    int mcu_w = 8 * f->h, mcu_h = 8 * f->v;
    f->across = (width + mcu_w - 1) / mcu_w;
    f->down   = (height + mcu_h - 1) / mcu_h;
    f->x0     = CR_MAX(box[0] - MARGIN, 0) / mcu_w;
    f->y0     = CR_MAX(box[1] - MARGIN, 0) / mcu_h;
    f->x1     = (CR_MIN(box[0] + box[2] + MARGIN, width) + mcu_w - 1) / mcu_w;
    f->y1     = (CR_MIN(box[1] + box[3] + MARGIN, height) + mcu_h - 1) / mcu_h;
}

cr_status cr_jpeg_fast(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                       struct cr_scratch *scratch, struct cr_window *out, bool *done) {
    struct fast f     = {0};
    size_t      count = jpeg->src->bytes_in_buffer, width = (size_t)part->box[2];
    *done = false;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !is_usual(jpeg)) return CR_OK;
    if (!scratch->jpeg_tables) {
        scratch->jpeg_tables = cr_alloc(1, sizeof *scratch->jpeg_tables);
        if (!scratch->jpeg_tables) return CR_NO_MEMORY(sizeof *scratch->jpeg_tables);
    }
    frame(&f, jpeg, part->box);
    for (int i = 0; i < f.components; i++)
        if (!take_component(jpeg, scratch->jpeg_tables, i, &f)) return CR_OK;

    CR_TRY(cr_buffer_reserve(&scratch->entropy, count + MCU_BYTES_MAX));
    size_t plain = 0;
    if (!unstuff(jpeg->src->next_input_byte, count, scratch->entropy.bytes, &plain)) return CR_OK;
    memset(scratch->entropy.bytes + plain, 0, MCU_BYTES_MAX);
    f.reader.at = scratch->entropy.bytes;
    f.end       = scratch->entropy.bytes + plain;

    size_t planes = lay_out(&f, NULL), work = 3 * 4 * (width + 2 * SIDE), stride = width * 3;
    CR_TRY(cr_buffer_reserve(&scratch->planes, planes + work));
    lay_out(&f, scratch->planes.bytes);
    if (!read_scan(&f, part->whole)) return CR_OK;
    /* Colours are written 16 pixels at a time: what runs over the end of a row, the next one covers. */
    CR_TRY(cr_buffer_reserve(&scratch->pixels, stride * (size_t)part->box[3] + 3 * SIDE));
    memset(scratch->planes.bytes + planes, 128, work);
    make_pixels(&f, part->box, scratch->planes.bytes + planes, scratch->pixels.bytes, stride);
    *out  = (struct cr_window){.rgb    = scratch->pixels.bytes,
                               .width  = part->box[2],
                               .height = part->box[3],
                               .stride = stride,
                               .w      = part->box[2],
                               .h      = part->box[3]};
    *done = true;
    return CR_OK;
}

#else

cr_status cr_jpeg_fast(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                       struct cr_scratch *scratch, struct cr_window *out, bool *done) {
    (void)jpeg, (void)part, (void)scratch, (void)out;
    *done = false;
    return CR_OK;
}

#endif

/* data/image/jpeg_baseline.c: a decoder for the most common kind of JPEG: one baseline Huffman scan of grey or YCbCr, 8
 * bits, chroma 4:4:4, 4:2:2, 4:4:0 or 4:2:0, no restarts, at full size. libjpeg reads the headers. libjpeg would spend
 * two thirds of its time in the entropy decoder; here one table lookup decodes most coefficients with their extra bits.
 *
 * Invariants
 *   - Files of other kinds and files that seem damaged are left to libjpeg, which decodes them from the start and
 *     reports errors. This file reports no format errors.
 *   - The decoded pixels are bitwise identical to those of libjpeg. */
#include "core/cpu.h"
#include "data/image/jpeg_huffman.h"

#include <string.h>

#if CR_JPEG_CAN_DECODE

#include <immintrin.h>

enum {
    MCU_BYTES_MAX = 2048, /* a bound on the data of six blocks: 64 codes of 16 bits with 15 extra bits each */
    MARGIN        = 2,    /* pixels around the box that upsampling reads */
    SIDE          = 16,   /* free bytes before and after a row of samples */
};

/* ---- the scan ---- */

struct component {
    int                      h, v; /* blocks across and down in an MCU */
    const struct code_table *dc, *ac;
    struct cr_jpeg_steps     steps;
    int                      predicted;
    uint8_t                 *plane; /* samples of the decoded MCUs */
    size_t                   stride;
    int                      width, height; /* samples of the component in the whole image */
    int first_x, first_y, last_x, last_y;   /* range of samples in the plane, in coordinates of the whole image */
};
struct baseline {                      /* the decoder of one image */
    int              components, h, v; /* h, v: blocks across and down in an MCU */
    int              across, down;     /* MCUs of the image */
    int              x0, x1, y0, y1;   /* range of decoded MCUs */
    struct component component[3];
    struct reader    reader;
    const uint8_t   *end; /* of the entropy-coded data */
};

CR_JPEG_TARGET static inline __attribute__((always_inline)) bool read_mcu(struct baseline *f, int mx, int my,
                                                                          const bool store) {
    for (int c = 0; c < f->components; c++) {
        struct component *comp = &f->component[c];
        for (int b = 0; b < comp->h * comp->v; b++) {
            int16_t block[64];
            int     difference, last;
            for (int i = 0; store && i < 4; i++) _mm256_storeu_si256((__m256i *)block + i, _mm256_setzero_si256());
            if (!read_dc(&f->reader, comp->dc, &difference)) return false;
            comp->predicted += difference;
            if (comp->predicted != (int16_t)comp->predicted) return false;
            if (!read_ac(&f->reader, comp->ac, block, store, &last)) return false;
            if (!store) continue;
            size_t   y   = (size_t)(((my - f->y0) * comp->v + b / comp->h) * 8);
            size_t   x   = (size_t)(((mx - f->x0) * comp->h + b % comp->h) * 8);
            uint8_t *dst = comp->plane + y * comp->stride + x;
            block[0]     = (int16_t)comp->predicted;
            if (!(last ? cr_jpeg_block(block, &comp->steps, dst, comp->stride)
                       : cr_jpeg_dc_block(comp->predicted * comp->steps.step[0], dst, comp->stride)))
                return false;
        }
    }
    return f->reader.at - f->reader.count / 8 <= f->end;
}

CR_JPEG_TARGET static bool read_scan(struct baseline *f, bool whole) {
    int rows = whole ? f->down : f->y1;
    for (int my = 0; my < rows; my++)
        for (int mx = 0; mx < f->across; mx++) {
            bool store = my >= f->y0 && my < f->y1 && mx >= f->x0 && mx < f->x1;
            if (!(store ? read_mcu(f, mx, my, true) : read_mcu(f, mx, my, false))) return false;
        }
    return true;
}

/* ---- pixels ---- */

/* Copies sample row y of the component, clamped to the image, with its neighbours to to[-1] to to[count]; the first
 * and last samples are repeated at the sides of the image. */
static void sample_row(const struct component *c, int y, int from, int count, uint8_t *to) {
    y                    = CR_MAX(0, CR_MIN(y, c->height - 1));
    const uint8_t *row   = c->plane + (size_t)(y - c->first_y) * c->stride;
    int            first = CR_MAX(from - 1, 0), last = CR_MIN(from + count, c->width - 1);
    CR_ASSERT(y >= c->first_y && y < c->last_y && first >= c->first_x && last < c->last_x);
    memcpy(to + (first - from), row + (first - c->first_x), (size_t)(last - first + 1));
    if (from - 1 < first) to[-1] = to[0];
    for (int i = last + 1; i <= from + count; i++) to[i - from] = to[last - from];
}

/* Returns `count` samples of a component for row y of the image from pixel x on, upsampled to full size in `work`
 * where necessary. */
static const uint8_t *component_row(const struct baseline *f, int which, int x, int y, int count, uint8_t *work) {
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

static void make_pixels(const struct baseline *f, const int box[4], uint8_t *work, uint8_t *dst, size_t stride) {
    size_t room = 4 * ((size_t)box[2] + 2 * SIDE);
    for (int y = 0; y < box[3]; y++) {
        const uint8_t *row[3] = {work, work, work}; /* for a grey image `work` is filled with 128: no colour */
        for (int c = 0; c < f->components; c++)
            row[c] = component_row(f, c, box[0], box[1] + y, box[2], work + (size_t)c * room);
        cr_jpeg_colours(row[0], row[1], row[2], box[2], dst + (size_t)y * stride);
    }
}

/* ---- setting up the decoder ---- */

static bool set_component(const struct jpeg_decompress_struct *jpeg, struct cr_jpeg_tables *tables, int i,
                          struct baseline *f) {
    const jpeg_component_info *info = &jpeg->comp_info[i];
    struct component          *c    = &f->component[i];
    const JQUANT_TBL          *quant =
        (unsigned)info->quant_tbl_no < NUM_QUANT_TBLS ? jpeg->quant_tbl_ptrs[info->quant_tbl_no] : NULL;
    if (!quant || (unsigned)info->dc_tbl_no >= NUM_HUFF_TBLS || (unsigned)info->ac_tbl_no >= NUM_HUFF_TBLS)
        return false;
    if (!cr_jpeg_make_table(jpeg->dc_huff_tbl_ptrs[info->dc_tbl_no], true, &tables->dc[info->dc_tbl_no])) return false;
    if (!cr_jpeg_make_table(jpeg->ac_huff_tbl_ptrs[info->ac_tbl_no], false, &tables->ac[info->ac_tbl_no])) return false;
    c->dc     = &tables->dc[info->dc_tbl_no];
    c->ac     = &tables->ac[info->ac_tbl_no];
    c->h      = jpeg->num_components == 1 ? 1 : info->h_samp_factor; /* a single component has MCUs of one block */
    c->v      = jpeg->num_components == 1 ? 1 : info->v_samp_factor;
    c->width  = ((int)jpeg->image_width * c->h + f->h - 1) / f->h;
    c->height = ((int)jpeg->image_height * c->v + f->v - 1) / f->v;
    cr_jpeg_set_steps(quant->quantval, &c->steps);
    return true;
}

/* Assigns the planes of the MCUs around the box and returns their size in bytes; with base NULL it only computes the
 * size. */
static size_t assign_planes(struct baseline *f, uint8_t *base) {
    size_t used = 0;
    for (int i = 0; i < f->components; i++) {
        struct component *c = &f->component[i];
        c->first_x          = f->x0 * c->h * 8;
        c->first_y          = f->y0 * c->v * 8;
        c->last_x           = f->x1 * c->h * 8;
        c->last_y           = f->y1 * c->v * 8;
        c->stride           = (size_t)(c->last_x - c->first_x);
        c->plane            = base ? base + used : NULL;
        used += c->stride * (size_t)(c->last_y - c->first_y) + SIDE; /* cr_jpeg_colours reads 16 samples at a time */
    }
    return used;
}

static void set_geometry(struct baseline *f, const struct jpeg_decompress_struct *jpeg, const int box[4]) {
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

cr_status cr_jpeg_decode_baseline(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                                  struct cr_scratch *scratch, struct cr_window *out, bool *done) {
    struct baseline f     = {0};
    size_t          count = jpeg->src->bytes_in_buffer, width = (size_t)part->box[2];
    *done = false;
    if (cr_cpu_level() < CR_CPU_AVX2 || !cr_jpeg_is_plain(jpeg)) return CR_OK;
    if (!scratch->jpeg_tables) CR_ALLOC(scratch->jpeg_tables, 1);
    set_geometry(&f, jpeg, part->box);
    for (int i = 0; i < f.components; i++)
        if (!set_component(jpeg, scratch->jpeg_tables, i, &f)) return CR_OK;

    CR_TRY(cr_buffer_reserve(&scratch->entropy, count + MCU_BYTES_MAX));
    size_t plain = 0;
    if (!cr_jpeg_unstuff(jpeg->src->next_input_byte, count, scratch->entropy.bytes, &plain)) return CR_OK;
    memset(scratch->entropy.bytes + plain, 0, MCU_BYTES_MAX);
    f.reader.at = scratch->entropy.bytes;
    f.end       = scratch->entropy.bytes + plain;

    size_t planes = assign_planes(&f, NULL), work = 3 * 4 * (width + 2 * SIDE), stride = width * 3;
    CR_TRY(cr_buffer_reserve(&scratch->planes, planes + work));
    assign_planes(&f, scratch->planes.bytes);
    if (!read_scan(&f, part->whole)) return CR_OK;
    /* cr_jpeg_colours writes 16 pixels at a time; bytes after the end of a row are overwritten by the next row. */
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

cr_status cr_jpeg_decode_baseline(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                                  struct cr_scratch *scratch, struct cr_window *out, bool *done) {
    (void)jpeg, (void)part, (void)scratch, (void)out;
    *done = false;
    return CR_OK;
}

#endif

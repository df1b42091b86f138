/* data/image/jpeg_scan.c: prepares a JPEG for a decoder on a device: its tables, and its entropy-coded data without
 * stuffed bytes. Such a decoder handles the images that data/image/jpeg_baseline.c handles, at full size. */
#include "formats/jpeg_scan.h"
#include "data/decode.h"
#include "data/image/jpeg.h"

#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

enum { PIXELS_MAX = 1 << 24, BYTES_MAX = 1 << 24, BLOCK_BYTES_MAX = 256 /* 64 codes of 31 bits */ };

bool cr_jpeg_unstuff(const uint8_t *from, size_t count, uint8_t *to, size_t *length) {
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

/* Copies a code of the file. Returns false if it is no code, or one that libjpeg would refuse. */
static bool copy_code(const JHUFF_TBL *table, bool dc, struct cr_jpeg_code *out) {
    int code = 0, symbols = 0;
    memset(out, 0, sizeof *out);
    if (!table) return false;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        code += table->bits[length];
        symbols += table->bits[length];
        if (symbols > 256 || code >= 1 << length) return false; /* a code of ones only is not allowed */
        out->count[length - 1] = table->bits[length];
    }
    for (int i = 0; i < symbols && dc; i++)
        if (table->huffval[i] > 11) return false;
    memcpy(out->symbol, table->huffval, sizeof out->symbol);
    return true;
}

/* Enters table number `number` of the file in codes[CR_JPEG_TABLES], whose numbers in the file are used[]; -1: free. */
static bool enter_code(JHUFF_TBL *const *tables, int number, bool dc, struct cr_jpeg_code *codes, int *used,
                       uint8_t *out) {
    if (number < 0 || number >= NUM_HUFF_TBLS) return false;
    for (int i = 0; i < CR_JPEG_TABLES; i++) {
        *out = (uint8_t)i;
        if (used[i] == number) return true;
        if (used[i] >= 0) continue;
        used[i] = number;
        return copy_code(tables[number], dc, &codes[i]);
    }
    return false;
}

static bool copy_tables(const struct jpeg_decompress_struct *jpeg, struct cr_jpeg_scan *out) {
    int dc[CR_JPEG_TABLES], ac[CR_JPEG_TABLES];
    for (int i = 0; i < CR_JPEG_TABLES; i++) dc[i] = ac[i] = -1;
    for (int c = 0; c < jpeg->num_components; c++) {
        const jpeg_component_info *info = &jpeg->comp_info[c];
        const JQUANT_TBL          *quant =
            (unsigned)info->quant_tbl_no < NUM_QUANT_TBLS ? jpeg->quant_tbl_ptrs[info->quant_tbl_no] : NULL;
        if (!quant || !enter_code(jpeg->dc_huff_tbl_ptrs, info->dc_tbl_no, true, out->dc, dc, &out->dc_of[c]) ||
            !enter_code(jpeg->ac_huff_tbl_ptrs, info->ac_tbl_no, false, out->ac, ac, &out->ac_of[c]))
            return false;
        for (int k = 0; k < CR_JPEG_BLOCK; k++) out->step[c][k] = quant->quantval[k]; /* libjpeg keeps natural order */
    }
    return true;
}

static size_t whole_bytes(size_t bytes) {
    return (bytes + 2 * CR_JPEG_PADDING - 1) / CR_JPEG_PADDING * CR_JPEG_PADDING;
}

/* Takes room for `bytes` bytes and padding; SIZE_MAX: there is not enough. Any thread may call it. */
static size_t take_room(struct cr_jpeg_data *data, size_t bytes) {
    const size_t whole = whole_bytes(bytes);
    size_t       used  = atomic_load(&data->used);
    do
        if (whole > data->capacity - used) return SIZE_MAX;
    while (!atomic_compare_exchange_weak(&data->used, &used, used + whole));
    return used;
}

/* Gives the room back, unless another thread has taken room after it. */
static void give_back(struct cr_jpeg_data *data, size_t at, size_t bytes) {
    size_t end = at + whole_bytes(bytes);
    (void)atomic_compare_exchange_strong(&data->used, &end, at);
}

bool cr_jpeg_scan_make(const struct cr_lazy_image *lazy, const int box[4], int min_side, struct cr_scratch *scratch,
                       struct cr_jpeg_data *data, struct cr_jpeg_scan *out) {
    const struct jpeg_decompress_struct *jpeg = cr_jpeg_opened(scratch);
    size_t                               at, length = 0;
    out->bytes = 0;
    if (lazy->image.rgb || lazy->orientation > 1 || lazy->image.format != CR_RGB8 || !cr_jpeg_is_plain(jpeg))
        return false;
    const size_t count = jpeg->src->bytes_in_buffer;
    if (cr_jpeg_scale(box, min_side) > 1 || count > BYTES_MAX) return false;
    if ((int64_t)lazy->image.width * lazy->image.height > PIXELS_MAX || !copy_tables(jpeg, out)) return false;
    if ((at = take_room(data, count)) == SIZE_MAX) return false;
    /* More data than all blocks can have are no photo. The device would search them for codes. */
    if (!cr_jpeg_unstuff(jpeg->src->next_input_byte, count, data->bytes + at, &length) ||
        length / BLOCK_BYTES_MAX > (size_t)lazy->image.width * (size_t)lazy->image.height / 16 + 64) {
        give_back(data, at, count);
        return false;
    }
    memset(data->bytes + at + length, 0, CR_JPEG_PADDING);
    out->at         = (uint32_t)at;
    out->width      = (int32_t)jpeg->image_width;
    out->height     = (int32_t)jpeg->image_height;
    out->components = jpeg->num_components;
    out->h          = out->components == 1 ? 1 : jpeg->comp_info[0].h_samp_factor;
    out->v          = out->components == 1 ? 1 : jpeg->comp_info[0].v_samp_factor;
    memcpy(out->box, box, sizeof out->box);
    out->bytes = (uint32_t)length; /* last: the scan is complete */
    return length > 0;
}

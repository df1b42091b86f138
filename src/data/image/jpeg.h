/* data/image/jpeg.h: decoding of JPEG images: the header, a part of the pixels, and the kernels of the decoder. */
#ifndef CR_JPEG_H
#define CR_JPEG_H

#include "data/decode.h"

/* JPEG: cr_jpeg_open reads the header, cr_jpeg_read decodes a part. At most one read follows each open. */
CR_MUST cr_status cr_jpeg_open(const struct cr_stored *stored, const char *name, struct cr_scratch *scratch, int *width,
                               int *height);
struct cr_jpeg_part { /* the part of a JPEG to decode */
    int  box[4];      /* x, y, width, height in pixels of the unscaled image */
    int  min_side;    /* as in cr_lazy_image_window */
    bool whole;       /* decode the entropy-coded data to the end, so that damage is found everywhere */
};
CR_MUST cr_status cr_jpeg_read(const struct cr_jpeg_part *part, struct cr_scratch *scratch, struct cr_window *out);
void              cr_jpeg_close(struct cr_jpeg *jpeg); /* NULL is allowed */

/* The smallest scale (1, 2, 4 or 8, by which sides are divided) that leaves the box min_side pixels a side. */
int cr_jpeg_scale(const int box[4], int min_side);
/* Is it an image that jpeg_baseline.c and devices decode: one Huffman scan of grey or YCbCr, 8 bits, no restarts, at
 * most 2 x 2 luma samples for a chroma sample? `jpeg`: its header; NULL: no. cr_jpeg_opened returns the header of the
 * image that is open, or NULL. */
struct jpeg_decompress_struct;
bool                                 cr_jpeg_is_plain(const struct jpeg_decompress_struct *jpeg);
const struct jpeg_decompress_struct *cr_jpeg_opened(const struct cr_scratch *scratch);
/* data/image/jpeg_scan.c: copies the entropy-coded data without its stuffed bytes, up to the next marker; false: there
 * is no marker because the file is cut off. */
bool cr_jpeg_unstuff(const uint8_t *from, size_t count, uint8_t *to, size_t *length);
/* data/image/jpeg_baseline.c: decodes a part of a JPEG whose header libjpeg has read. *done is false if the file
 * must be left to libjpeg, whose state is then unchanged. The only error is CR_ERR_MEMORY. */
CR_MUST cr_status cr_jpeg_decode_baseline(const struct jpeg_decompress_struct *jpeg, const struct cr_jpeg_part *part,
                                          struct cr_scratch *scratch, struct cr_window *out, bool *done);
void              cr_jpeg_only_libjpeg(bool only); /* for tests: never use cr_jpeg_decode_baseline */
/* data/image/jpeg_pixels_avx2.c, for CPUs with AVX2. cr_jpeg_block: the inverse transform of the coefficients times
 * the quantiser's steps, to 8 x 8 samples; the rows of its coefficients are in the order CR_JPEG_ROW_ORDER.
 * cr_jpeg_dc_block: the same for a block whose only nonzero coefficient is the first. Both return false if a value is
 * too large; libjpeg then decodes the image. cr_jpeg_upsample: one row of samples to full width. cr_jpeg_colours: rows
 * of samples to RGB, 16 pixels at a time. */
#define CR_JPEG_ROW_ORDER                                                                                              \
    { 0, 4, 2, 6, 7, 5, 1, 3 }
struct cr_jpeg_steps {
    uint16_t step[64], limit[64]; /* limit: the largest magnitude of a coefficient */
};
void cr_jpeg_set_steps(const uint16_t natural[64], struct cr_jpeg_steps *out);
bool cr_jpeg_block(const int16_t coefficient[64], const struct cr_jpeg_steps *steps, uint8_t *dst, size_t stride);
bool cr_jpeg_dc_block(int32_t dc, uint8_t *dst, size_t stride);
void cr_jpeg_upsample(const uint8_t *near, const uint8_t *far, int count, bool across, bool down, bool second,
                      uint8_t *out);
void cr_jpeg_colours(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *dst);

#endif

/* formats/jpeg_scan.h: a baseline JPEG whose header has been read, in the form in which a device decodes it: one
 * Huffman scan of grey or YCbCr, 8 bits a sample, chroma 4:4:4, 4:2:2, 4:4:0 or 4:2:0, no restarts.
 *
 * data/image/jpeg_scan.c makes one from a file; the GPU device decodes it (cuda/jpeg). Plain data in fixed order: it is
 * copied to the device as it is. */
#ifndef CR_JPEG_SCAN_H
#define CR_JPEG_SCAN_H

#include <stdint.h>

enum { CR_JPEG_COMPONENTS = 3, CR_JPEG_TABLES = 2, CR_JPEG_BLOCK = 64 };
/* Bytes of zeros after the data of each scan, which the decoder may read. The data begin at multiples of it. */
enum { CR_JPEG_PADDING = 16 };

struct cr_jpeg_code {    /* a Huffman code as in the file */
    uint8_t count[16];   /* codes of 1 to 16 bits */
    uint8_t symbol[256]; /* in the order of the codes */
};

struct cr_jpeg_scan {
    uint32_t            at, bytes; /* entropy-coded data without stuffed bytes, in the batch's data; 0 bytes: no scan */
    int32_t             width, height; /* of the image in pixels */
    int32_t             components;    /* 1: grey; 3: YCbCr */
    int32_t             h, v;          /* blocks of the first component across and down in an MCU; the others have 1 */
    int32_t             box[4];        /* x, y, width, height of the crop in pixels of the image */
    uint8_t             dc_of[4], ac_of[4];                      /* [component]: its Huffman codes */
    uint16_t            step[CR_JPEG_COMPONENTS][CR_JPEG_BLOCK]; /* quantiser steps, row by row (not in zigzag order) */
    struct cr_jpeg_code dc[CR_JPEG_TABLES], ac[CR_JPEG_TABLES];
};

#endif

/* cuda/jpeg/jpeg_launchers.h: launchers of the JPEG decoder, for cuda/jpeg/decoder.c. One thread block or more decodes
 * each image of a batch. Everything that an image needs lies in one work area; offsets are in bytes from its start. */
#ifndef CR_JPEG_LAUNCHERS_H
#define CR_JPEG_LAUNCHERS_H

#include "cuda/common/launch_types.h"
#include "formats/jpeg_scan.h"

CK_C_BEGIN

/* One axis of a resize: for each pixel of the result `first`, `taps` and up to `stride` weights of 22 fractional bits.
 */
struct ck_jpeg_axis {
    int32_t size, stride; /* pixels of the box; weights of a pixel of the result */
    int64_t at;           /* int32_t [result][2 + stride]: first, taps, weights */
};
struct ck_jpeg_image {
    struct cr_jpeg_scan scan;
    int32_t             x0, x1, y0, y1;      /* MCUs around the crop: these are decoded to samples */
    int32_t             first_block, blocks; /* of the scan, whose coefficients are stored: the rows y0 to y1 of MCUs */
    int32_t columns[CR_JPEG_COMPONENTS], rows[CR_JPEG_COMPONENTS]; /* blocks of each component in the MCUs */
    int64_t coefficients;                                          /* int16_t [blocks][64], in the order of the scan */
    int64_t samples[CR_JPEG_COMPONENTS];                           /* uint8_t [8 * rows][8 * columns] */
    int64_t differences;                                           /* int16_t [blocks of the image], of DC values */
    int64_t middle;                                                /* uint8_t [box height][result width][3] */
    struct ck_jpeg_axis across, down;
    int32_t             place; /* of the result */
};
struct ck_jpeg_batch {
    const struct ck_jpeg_image *image; /* [images] */
    int                         images;
    const uint8_t              *data;          /* the scans' entropy-coded data */
    uint8_t                    *work;          /* the work area */
    int32_t                    *failed;        /* [place]: set to 1 where an image has to be decoded by the CPU */
    uint8_t                    *result;        /* [place][height][width][3] */
    int                         width, height; /* of the result */
    int                         rows, columns; /* most rows and columns of a crop */
    int                         blocks;        /* most blocks of an image that are decoded to samples */
};

/* cuda/jpeg/huffman.cu: coefficients from the entropy-coded data. */
cudaError_t ck_jpeg_coefficients(const struct ck_jpeg_batch *batch, cudaStream_t stream);
/* cuda/jpeg/samples.cu: samples from coefficients. */
cudaError_t ck_jpeg_samples(const struct ck_jpeg_batch *batch, cudaStream_t stream);
/* cuda/jpeg/resize.cu: upsampling, colours, crop and resize. */
cudaError_t ck_jpeg_resize(const struct ck_jpeg_batch *batch, cudaStream_t stream);

CK_C_END

#endif

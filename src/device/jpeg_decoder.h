/* device/jpeg_decoder.h: a decoder of JPEG images on a device (cr_backend.jpeg). It decodes scans whose headers the
 * loader has read (formats/jpeg_scan.h), cuts their crops and resizes them. The pixels are bitwise those of the CPU
 * (data/image, data/augment): where an image is decoded is a question of speed only. */
#ifndef CR_JPEG_DECODER_H
#define CR_JPEG_DECODER_H

#include "device/device.h"
#include "formats/jpeg_scan.h"

struct cr_jpeg_decoder;

struct cr_jpeg_limits {
    int    images;       /* most images of a batch */
    size_t result_bytes; /* most bytes of the pixels of a batch */
    size_t data_bytes;   /* most bytes of entropy-coded data of a batch, padding included */
};

struct cr_jpeg_ops {
    /* Device memory that a decoder with these limits takes, in bytes. */
    size_t (*device_bytes)(const struct cr_jpeg_limits *limits);
    /* CR_ERR_MEMORY, CR_ERR_DEVICE. The caller closes the decoder, before the device. NULL is allowed. */
    cr_status (*open)(struct cr_device *device, const struct cr_jpeg_limits *limits, struct cr_jpeg_decoder **out);
    void (*close)(struct cr_jpeg_decoder *decoder);
    /* Decodes scan[place] for each place that has bytes, to RGB images of height x width: [places][height][width][3] in
     * device memory of the decoder, while the device computes. data: page-locked host memory. Returns when all are
     * decoded. failed[place]: this image is unusual or damaged, and the CPU has to decode it. CR_ERR_DEVICE. */
    cr_status (*decode)(struct cr_jpeg_decoder *decoder, const struct cr_jpeg_scan *scan, int places,
                        const uint8_t *data, size_t data_bytes, int width, int height, uint8_t *failed);
    /* Enqueues the copies of the decoded images of `count` places from `first` on to dst. */
    cr_status (*copy)(struct cr_jpeg_decoder *decoder, enum cr_stream stream, int first, int count, void *dst);
};

#endif

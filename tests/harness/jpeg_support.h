/* harness/jpeg_support.h: JPEG files of every usual kind, made by libjpeg. */
#ifndef JPEG_SUPPORT_H
#define JPEG_SUPPORT_H

#include "tests/harness/data_support.h"

#include "core/rng.h"

#include <jpeglib.h>

struct jpeg_form {
    int  h, v; /* blocks of luma; 0: grey */
    int  quality, width, height, restart;
    bool optimize, progressive, noise;
    bool scans;      /* one scan for each component */
    bool wide_steps; /* steps above 255, as low qualities have them: the file is not baseline */
    int  rgb;        /* no transform of colours: 1: Adobe's marker says so, 2: the names of the components */
    int  orientation;
};

/* A JPEG of pixels of `channels` samples; cr_free. */
static inline uint8_t *write_jpeg(const struct jpeg_form *form, const struct cr_image *image, int channels,
                                  size_t *count) {
    static const jpeg_scan_info single[3] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr       errors;
    unsigned char              *bytes = NULL;
    unsigned long               size  = 0;
    jpeg.err                          = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_width      = (JDIMENSION)image->width;
    jpeg.image_height     = (JDIMENSION)image->height;
    jpeg.input_components = channels;
    jpeg.in_color_space   = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    if (form->rgb) jpeg_set_colorspace(&jpeg, JCS_RGB);
    for (int i = 0; form->rgb == 1 && i < 3; i++) jpeg.comp_info[i].component_id = i + 1;
    if (form->rgb) jpeg.write_Adobe_marker = form->rgb == 1;
    if (channels == 3 && !form->h) jpeg_set_colorspace(&jpeg, JCS_GRAYSCALE);
    if (form->h && !form->rgb) {
        jpeg.comp_info[0].h_samp_factor = form->h;
        jpeg.comp_info[0].v_samp_factor = form->v;
    }
    jpeg_set_quality(&jpeg, form->quality, !form->wide_steps);
    jpeg.restart_interval = (unsigned)form->restart;
    jpeg.optimize_coding  = form->optimize;
    if (form->progressive) jpeg_simple_progression(&jpeg);
    if (form->scans) jpeg.scan_info = single, jpeg.num_scans = 3;
    jpeg_start_compress(&jpeg, TRUE);
    if (form->orientation) {
        uint8_t exif[32] = {'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1};
        exif[24]         = (uint8_t)form->orientation;
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, sizeof exif);
    }
    for (int y = 0; y < image->height; y++) {
        JSAMPROW row = image->rgb + (size_t)y * (size_t)image->width * (size_t)channels;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    uint8_t *copy = cr_alloc(size, 1);
    memcpy(copy, bytes, size);
    free(bytes);
    *count = size;
    return copy;
}

/* A JPEG of the synthetic image, or of noise; cr_free. */
static inline uint8_t *make_jpeg(const struct jpeg_form *form, size_t *count) {
    OWNED(image)  image = make_image(form->width, form->height);
    struct cr_rng rng   = cr_rng_make((uint64_t)form->quality, CR_RNG_TEST, (uint64_t)form->width, 0);
    for (int i = 0; form->noise && i < form->width * form->height * 3; i++)
        image.rgb[i] = (uint8_t)(cr_rng_below(&rng, 8) ? cr_rng_u32(&rng) : 255 * cr_rng_below(&rng, 2));
    return write_jpeg(form, &image, form->h ? 3 : 1, count);
}

#endif

/* harness/jpeg_support.h: JPEG files of every usual kind, made by libjpeg. */
#ifndef JPEG_SUPPORT_H
#define JPEG_SUPPORT_H

#include "tests/harness/data_support.h"

#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

struct jpeg_form {
    int  h, v; /* of luma; 0: grey */
    int  quality, width, height, restart;
    bool optimize, progressive, noise;
};

/* A JPEG of the synthetic image, or of noise; cr_free. */
static inline uint8_t *make_jpeg(const struct jpeg_form *form, size_t *count) {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr       errors;
    struct cr_image             image = make_image(form->width, form->height);
    unsigned char              *bytes = NULL;
    unsigned long               size  = 0;
    struct cr_rng               rng   = cr_rng_make((uint64_t)form->quality, CR_RNG_TEST, (uint64_t)form->width, 0);
    for (int i = 0; form->noise && i < form->width * form->height * 3; i++)
        image.rgb[i] = (uint8_t)(cr_rng_below(&rng, 8) ? cr_rng_u32(&rng) : 255 * cr_rng_below(&rng, 2));
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_width      = (JDIMENSION)form->width;
    jpeg.image_height     = (JDIMENSION)form->height;
    jpeg.input_components = form->h ? 3 : 1;
    jpeg.in_color_space   = form->h ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, form->quality, TRUE);
    if (form->h) {
        jpeg.comp_info[0].h_samp_factor = form->h;
        jpeg.comp_info[0].v_samp_factor = form->v;
    }
    jpeg.restart_interval = (unsigned)form->restart;
    jpeg.optimize_coding  = form->optimize;
    if (form->progressive) jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < form->height; y++) {
        JSAMPROW row = image.rgb + (size_t)y * (size_t)form->width * (form->h ? 3 : 1);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    cr_image_free(&image);
    uint8_t *copy = cr_alloc(size, 1);
    memcpy(copy, bytes, size);
    free(bytes);
    *count = size;
    return copy;
}

#endif

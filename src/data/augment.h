/* data/augment.h: from a decoded image to the input of a network: crop, flip and the operations on pixels. */
#ifndef CR_AUGMENT_H
#define CR_AUGMENT_H

#include "core/rng.h"
#include "data/decode.h"

/* Prepares a training image, which may not be decoded yet, with the random numbers of (seed, epoch, sample). out is
 * [size][size][3]. The device applies box = (dy, dx, flip, 0) later: the network sees pixel (y + dy, x + dx) at (y, x),
 * with flip pixel (y + dy, size-1-x + dx), and black outside the image. */
CR_MUST cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                        int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                        int32_t box[4]);
/* cr_prepare_eval for an image that may not be decoded yet, with the scratch of the caller. */
CR_MUST cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                       struct cr_scratch *scratch, uint8_t *out);

/* Chooses the box (x, y, width, height) of a random_resized crop as torchvision's RandomResizedCrop does. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]);

/* ---- after the crop: data/augment/pixel_ops.c, data/augment/colour.c ---- */

/* The operations of TrivialAugment in torchvision's order, then the hue of ColorJitter. */
enum cr_pixel_op {
    CR_PIXELS_IDENTITY,
    CR_PIXELS_SHEAR_X,
    CR_PIXELS_SHEAR_Y,
    CR_PIXELS_TRANSLATE_X,
    CR_PIXELS_TRANSLATE_Y,
    CR_PIXELS_ROTATE,
    CR_PIXELS_BRIGHTNESS,
    CR_PIXELS_COLOUR,
    CR_PIXELS_CONTRAST,
    CR_PIXELS_SHARPNESS,
    CR_PIXELS_POSTERIZE,
    CR_PIXELS_SOLARIZE,
    CR_PIXELS_AUTO_CONTRAST,
    CR_PIXELS_EQUALIZE,
    CR_PIXELS_HUE
};
/* Applies an operation in place to [size][size][3]; `copy` is working memory of the same size. Unit of `amount`:
 * shears a fraction of the side, translations pixels, rotation degrees, blends a factor (1 leaves the image
 * unchanged), posterize the number of bits, solarize a threshold, hue a fraction of the colour circle. */
void cr_pixels_apply(enum cr_pixel_op op, double amount, uint8_t *rgb, int size, uint8_t *copy);
/* Draws the operation and the amount of TrivialAugmentWide for one image. */
void cr_trivial_draw(struct cr_rng *rng, enum cr_pixel_op *op, double *amount);
bool cr_prepare_colours(const struct cr_prepare *prep); /* does prep->trivial or prep->jitter request an operation? */
/* Applies prep->trivial and prep->jitter. The operations come after the shift and flip of the box, so the box is
 * applied here too and set to 0. CR_ERR_MEMORY. */
CR_MUST cr_status cr_prepare_colour(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample,
                                    struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]);

#endif

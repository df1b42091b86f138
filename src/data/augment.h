/* data/augment.h: augmentation and preprocessing: from a decoded image to a network's input: crop, flip, pixels. */
#ifndef CR_AUGMENT_H
#define CR_AUGMENT_H

#include "core/rng.h"
#include "data/decode.h"
#include "data/resize.h"

/* Where the scan of a JPEG goes that a device may decode. */
struct cr_jpeg_job {
    struct cr_jpeg_data *data;
    struct cr_jpeg_scan *scan;
};
/* Prepares a training image, which may not be decoded yet, with the random numbers of (seed, epoch, sample). out is
 * [size][width]. The device applies box = (dy, dx, flip, 0) later: the network sees pixel (y + dy, x + dx) at
 * (y, x), with flip pixel (y + dy, width-1-x + dx), and black outside the image.
 * job: a device may decode the image; job->scan has bytes then, and out is not written. NULL: it is decoded here. */
CR_MUST cr_status cr_prepare_train_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy, uint64_t seed,
                                        int64_t epoch, int64_t sample, struct cr_scratch *scratch, uint8_t *out,
                                        int32_t box[4], const struct cr_jpeg_job *job);
/* cr_prepare_eval for an image that may not be decoded yet, with the scratch of the caller. */
CR_MUST cr_status cr_prepare_eval_with(const struct cr_prepare *prep, const struct cr_lazy_image *lazy,
                                       struct cr_scratch *scratch, uint8_t *out);

/* Chooses the box (x, y, width, height) of a random_resized crop as torchvision's RandomResizedCrop does. With squash,
 * the aspect of a box is relative to that of the image, as if the image had been squashed before. */
void cr_prepare_draw_box(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4]);
/* The same for the letterboxed image. Its border may be in the box, whose centre shows the image if one of ten draws
 * does; else the box is everything. Writes the part of the box that shows the image, in pixels of the image, and the
 * rectangle of the result that shows this part. */
void cr_prepare_draw_letterbox(const struct cr_prepare *prep, int width, int height, struct cr_rng *rng, int box[4],
                               int shown[4]);
/* data/augment/view.c: fills a whole result with the colour of its border. */
void cr_prepare_fill_border(const struct cr_prepare *prep, uint8_t *out);
/* cr_resize_run, whose time is counted. CR_ERR_MEMORY. */
CR_MUST cr_status cr_prepare_resize(const struct cr_resize *job, struct cr_scratch *scratch);

/* ---- after the crop: data/augment/pixel_ops.c, data/augment/policy.c, data/augment/colour.c ---- */

/* The operations of TrivialAugment and RandAugment in torchvision's order, the hue of ColorJitter, and an operation of
 * AutoAugment. */
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
    CR_PIXELS_HUE,
    CR_PIXELS_INVERT
};
struct cr_pixels {
    uint8_t *rgb;  /* [height][width] of `channels` bytes, changed in place */
    uint8_t *copy; /* working memory of the same size */
    int      width, height;
    uint8_t  fill[3];  /* colour of pixels that come from outside of the image */
    int      channels; /* 1 (grey) or 3 (RGB) */
};
/* Applies an operation. Unit of `amount`: shears a fraction of the side, translations pixels, rotation degrees, blends
 * a factor (1 leaves the image unchanged), posterize the number of bits, solarize a threshold, hue a fraction of the
 * colour circle. */
void cr_pixels_apply(enum cr_pixel_op op, double amount, const struct cr_pixels *pixels);

/* Draws the operation and the amount of TrivialAugmentWide for one image. */
void cr_trivial_draw(struct cr_rng *rng, enum cr_pixel_op *op, double *amount);
enum { CR_RAND_BINS = 31, CR_AUTO_BINS = 10, CR_POLICY_PAIRS = 25 };
/* The amount of an operation of RandAugment or AutoAugment at magnitude `bin` of `bins`, for an image of this size;
 * `minus`: of the other direction, for operations that have one. */
double cr_policy_amount(enum cr_pixel_op op, int bin, int bins, bool minus, int width, int height);
struct cr_policy_step {
    enum cr_pixel_op op;
    int              percent, bin; /* probability; magnitude of CR_AUTO_BINS */
};
/* The two steps of pair `index` of an AutoAugment policy. */
const struct cr_policy_step *cr_policy_pair(enum cr_augment policy, int index);
/* Draws and applies the operations of prep->augment. */
void cr_policy_apply(const struct cr_prepare *prep, struct cr_rng *rng, const struct cr_pixels *pixels);

bool cr_prepare_colours(const struct cr_prepare *prep); /* does prep->augment or prep->jitter request one? */
/* Applies prep->augment and prep->jitter. The operations come after the shift and flip of the box, so the box is
 * applied here too and set to 0. CR_ERR_MEMORY. */
CR_MUST cr_status cr_prepare_colour(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample,
                                    struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]);

#endif

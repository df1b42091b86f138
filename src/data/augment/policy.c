/* data/augment/policy.c: the augmentation policies of torchvision: TrivialAugmentWide (Mueller and Hutter 2021),
 * RandAugment (Cubuk et al. 2019) and AutoAugment (Cubuk et al. 2018), with torchvision's operations, magnitudes and
 * probabilities. */
#include "data/augment.h"

#include <math.h>

enum { TRIVIAL_BINS = 31, TRIVIAL_OPS = CR_PIXELS_EQUALIZE + 1 };

/* ---- TrivialAugmentWide ---- */

/* The magnitude of bin 0 to 30; *has_sign: half of the draws use its negative. */
static double trivial_magnitude(enum cr_pixel_op op, int bin, bool *has_sign) {
    const double t = (double)bin / (TRIVIAL_BINS - 1);
    *has_sign      = op != CR_PIXELS_POSTERIZE && op != CR_PIXELS_SOLARIZE;
    switch (op) {
    case CR_PIXELS_SHEAR_X:
    case CR_PIXELS_SHEAR_Y:
    case CR_PIXELS_BRIGHTNESS:
    case CR_PIXELS_COLOUR:
    case CR_PIXELS_CONTRAST:
    case CR_PIXELS_SHARPNESS: return 0.99 * t;
    case CR_PIXELS_TRANSLATE_X:
    case CR_PIXELS_TRANSLATE_Y: return 32 * t;
    case CR_PIXELS_ROTATE: return 135 * t;
    case CR_PIXELS_POSTERIZE: return 8 - rint(6 * t);
    case CR_PIXELS_SOLARIZE: return 255 * (1 - t);
    default: *has_sign = false; return 0;
    }
}

/* The argument of the operation: blends use 1 + magnitude. */
static double amount_of(enum cr_pixel_op op, double magnitude) {
    return op >= CR_PIXELS_BRIGHTNESS && op <= CR_PIXELS_SHARPNESS ? 1 + magnitude : magnitude;
}

void cr_trivial_draw(struct cr_rng *rng, enum cr_pixel_op *op, double *amount) {
    bool has_sign;
    *op                = (enum cr_pixel_op)cr_rng_below(rng, TRIVIAL_OPS);
    const int    bin   = (int)cr_rng_below(rng, TRIVIAL_BINS);
    const bool   minus = cr_rng_below(rng, 2);
    const double m     = trivial_magnitude(*op, bin, &has_sign);
    *amount            = amount_of(*op, has_sign && minus ? -m : m);
}

/* ---- the magnitudes of RandAugment and AutoAugment ---- */

/* Element `bin` of torch.linspace(first, last, bins), which computes in single precision and from the nearer end. */
static double linspace(float first, float last, int bin, int bins) {
    const float step = (last - first) / (float)(bins - 1);
    return (double)(bin < bins / 2 ? first + step * (float)bin : last - step * (float)(bins - 1 - bin));
}

double cr_policy_amount(enum cr_pixel_op op, int bin, int bins, bool minus, int width, int height) {
    double m;
    switch (op) {
    case CR_PIXELS_SHEAR_X:
    case CR_PIXELS_SHEAR_Y: m = linspace(0, 0.3f, bin, bins); break;
    case CR_PIXELS_TRANSLATE_X: m = linspace(0, (float)(150.0 / 331.0 * width), bin, bins); break;
    case CR_PIXELS_TRANSLATE_Y: m = linspace(0, (float)(150.0 / 331.0 * height), bin, bins); break;
    case CR_PIXELS_ROTATE: m = linspace(0, 30, bin, bins); break;
    case CR_PIXELS_BRIGHTNESS:
    case CR_PIXELS_COLOUR:
    case CR_PIXELS_CONTRAST:
    case CR_PIXELS_SHARPNESS: m = linspace(0, 0.9f, bin, bins); break;
    case CR_PIXELS_POSTERIZE: return 8 - rint(bin / ((bins - 1) / 4.0));
    case CR_PIXELS_SOLARIZE: return linspace(255, 0, bin, bins);
    default: return 0;
    }
    return amount_of(op, minus ? -m : m);
}

/* ---- AutoAugment ---- */

#define S(op, percent, bin)                                                                                            \
    { CR_PIXELS_##op, percent, bin }
static const struct cr_policy_step pairs[3][CR_POLICY_PAIRS][2] = {
    {
        /* ImageNet */
        {S(POSTERIZE, 40, 8), S(ROTATE, 60, 9)},  {S(SOLARIZE, 60, 5), S(AUTO_CONTRAST, 60, 0)},
        {S(EQUALIZE, 80, 0), S(EQUALIZE, 60, 0)}, {S(POSTERIZE, 60, 7), S(POSTERIZE, 60, 6)},
        {S(EQUALIZE, 40, 0), S(SOLARIZE, 20, 4)}, {S(EQUALIZE, 40, 0), S(ROTATE, 80, 8)},
        {S(SOLARIZE, 60, 3), S(EQUALIZE, 60, 0)}, {S(POSTERIZE, 80, 5), S(EQUALIZE, 100, 0)},
        {S(ROTATE, 20, 3), S(SOLARIZE, 60, 8)},   {S(EQUALIZE, 60, 0), S(POSTERIZE, 40, 6)},
        {S(ROTATE, 80, 8), S(COLOUR, 40, 0)},     {S(ROTATE, 40, 9), S(EQUALIZE, 60, 0)},
        {S(EQUALIZE, 0, 0), S(EQUALIZE, 80, 0)},  {S(INVERT, 60, 0), S(EQUALIZE, 100, 0)},
        {S(COLOUR, 60, 4), S(CONTRAST, 100, 8)},  {S(ROTATE, 80, 8), S(COLOUR, 100, 2)},
        {S(COLOUR, 80, 8), S(SOLARIZE, 80, 7)},   {S(SHARPNESS, 40, 7), S(INVERT, 60, 0)},
        {S(SHEAR_X, 60, 5), S(EQUALIZE, 100, 0)}, {S(COLOUR, 40, 0), S(EQUALIZE, 60, 0)},
        {S(EQUALIZE, 40, 0), S(SOLARIZE, 20, 4)}, {S(SOLARIZE, 60, 5), S(AUTO_CONTRAST, 60, 0)},
        {S(INVERT, 60, 0), S(EQUALIZE, 100, 0)},  {S(COLOUR, 60, 4), S(CONTRAST, 100, 8)},
        {S(EQUALIZE, 80, 0), S(EQUALIZE, 60, 0)},
    },
    {
        /* CIFAR-10 */
        {S(INVERT, 10, 0), S(CONTRAST, 20, 6)},
        {S(ROTATE, 70, 2), S(TRANSLATE_X, 30, 9)},
        {S(SHARPNESS, 80, 1), S(SHARPNESS, 90, 3)},
        {S(SHEAR_Y, 50, 8), S(TRANSLATE_Y, 70, 9)},
        {S(AUTO_CONTRAST, 50, 0), S(EQUALIZE, 90, 0)},
        {S(SHEAR_Y, 20, 7), S(POSTERIZE, 30, 7)},
        {S(COLOUR, 40, 3), S(BRIGHTNESS, 60, 7)},
        {S(SHARPNESS, 30, 9), S(BRIGHTNESS, 70, 9)},
        {S(EQUALIZE, 60, 0), S(EQUALIZE, 50, 0)},
        {S(CONTRAST, 60, 7), S(SHARPNESS, 60, 5)},
        {S(COLOUR, 70, 7), S(TRANSLATE_X, 50, 8)},
        {S(EQUALIZE, 30, 0), S(AUTO_CONTRAST, 40, 0)},
        {S(TRANSLATE_Y, 40, 3), S(SHARPNESS, 20, 6)},
        {S(BRIGHTNESS, 90, 6), S(COLOUR, 20, 8)},
        {S(SOLARIZE, 50, 2), S(INVERT, 0, 0)},
        {S(EQUALIZE, 20, 0), S(AUTO_CONTRAST, 60, 0)},
        {S(EQUALIZE, 20, 0), S(EQUALIZE, 60, 0)},
        {S(COLOUR, 90, 9), S(EQUALIZE, 60, 0)},
        {S(AUTO_CONTRAST, 80, 0), S(SOLARIZE, 20, 8)},
        {S(BRIGHTNESS, 10, 3), S(COLOUR, 70, 0)},
        {S(SOLARIZE, 40, 5), S(AUTO_CONTRAST, 90, 0)},
        {S(TRANSLATE_Y, 90, 9), S(TRANSLATE_Y, 70, 9)},
        {S(AUTO_CONTRAST, 90, 0), S(SOLARIZE, 80, 3)},
        {S(EQUALIZE, 80, 0), S(INVERT, 10, 0)},
        {S(TRANSLATE_Y, 70, 9), S(AUTO_CONTRAST, 90, 0)},
    },
    {
        /* SVHN */
        {S(SHEAR_X, 90, 4), S(INVERT, 20, 0)},       {S(SHEAR_Y, 90, 8), S(INVERT, 70, 0)},
        {S(EQUALIZE, 60, 0), S(SOLARIZE, 60, 6)},    {S(INVERT, 90, 0), S(EQUALIZE, 60, 0)},
        {S(EQUALIZE, 60, 0), S(ROTATE, 90, 3)},      {S(SHEAR_X, 90, 4), S(AUTO_CONTRAST, 80, 0)},
        {S(SHEAR_Y, 90, 8), S(INVERT, 40, 0)},       {S(SHEAR_Y, 90, 5), S(SOLARIZE, 20, 6)},
        {S(INVERT, 90, 0), S(AUTO_CONTRAST, 80, 0)}, {S(EQUALIZE, 60, 0), S(ROTATE, 90, 3)},
        {S(SHEAR_X, 90, 4), S(SOLARIZE, 30, 3)},     {S(SHEAR_Y, 80, 8), S(INVERT, 70, 0)},
        {S(EQUALIZE, 90, 0), S(TRANSLATE_Y, 60, 6)}, {S(INVERT, 90, 0), S(EQUALIZE, 60, 0)},
        {S(CONTRAST, 30, 3), S(ROTATE, 80, 4)},      {S(INVERT, 80, 0), S(TRANSLATE_Y, 0, 2)},
        {S(SHEAR_Y, 70, 6), S(SOLARIZE, 40, 8)},     {S(INVERT, 60, 0), S(ROTATE, 80, 4)},
        {S(SHEAR_Y, 30, 7), S(TRANSLATE_X, 90, 3)},  {S(SHEAR_X, 10, 6), S(INVERT, 60, 0)},
        {S(SOLARIZE, 70, 2), S(TRANSLATE_Y, 60, 7)}, {S(SHEAR_Y, 80, 4), S(INVERT, 80, 0)},
        {S(SHEAR_X, 70, 9), S(TRANSLATE_Y, 80, 3)},  {S(SHEAR_Y, 80, 5), S(AUTO_CONTRAST, 70, 0)},
        {S(SHEAR_X, 70, 2), S(INVERT, 10, 0)},
    },
};
#undef S

const struct cr_policy_step *cr_policy_pair(enum cr_augment policy, int index) {
    return pairs[policy - CR_AUGMENT_AUTO_IMAGENET][index];
}

static void auto_augment(const struct cr_prepare *prep, struct cr_rng *rng, const struct cr_pixels *pixels) {
    const struct cr_policy_step *step = cr_policy_pair(prep->augment, (int)cr_rng_below(rng, CR_POLICY_PAIRS));
    for (int i = 0; i < 2; i++) {
        const bool minus = cr_rng_below(rng, 2), applied = cr_rng_real(rng) < step[i].percent / 100.0;
        if (!applied) continue;
        cr_pixels_apply(step[i].op,
                        cr_policy_amount(step[i].op, step[i].bin, CR_AUTO_BINS, minus, pixels->width, pixels->height),
                        pixels);
    }
}

/* ---- RandAugment ---- */

static void rand_augment(const struct cr_prepare *prep, struct cr_rng *rng, const struct cr_pixels *pixels) {
    for (int i = 0; i < prep->rand_ops; i++) {
        const enum cr_pixel_op op    = (enum cr_pixel_op)cr_rng_below(rng, TRIVIAL_OPS); /* the same operations */
        const bool             minus = cr_rng_below(rng, 2), applied = cr_rng_real(rng) < prep->rand_prob;
        if (!applied) continue;
        cr_pixels_apply(
            op, cr_policy_amount(op, prep->rand_magnitude, CR_RAND_BINS, minus, pixels->width, pixels->height), pixels);
    }
}

/* ---- one image ---- */

void cr_policy_apply(const struct cr_prepare *prep, struct cr_rng *rng, const struct cr_pixels *pixels) {
    enum cr_pixel_op op;
    double           amount;
    switch (prep->augment) {
    case CR_AUGMENT_NONE: return;
    case CR_AUGMENT_TRIVIAL:
        cr_trivial_draw(rng, &op, &amount);
        cr_pixels_apply(op, amount, pixels);
        return;
    case CR_AUGMENT_RAND: rand_augment(prep, rng, pixels); return;
    case CR_AUGMENT_AUTO_IMAGENET:
    case CR_AUGMENT_AUTO_CIFAR10:
    case CR_AUGMENT_AUTO_SVHN: auto_augment(prep, rng, pixels); return;
    }
}

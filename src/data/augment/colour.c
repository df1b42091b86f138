/* data/augment/colour.c: colour augmentation of a training image after its crop: a policy (data/augment/policy.c) and
 * torchvision's ColorJitter. Every random number is a function of (seed, epoch, sample) and comes from a stream of its
 * own, so crops are the same with and without augmentation. */
#include "data/augment.h"
#include "data/scratch.h"

#include <math.h>
#include <string.h>

/* Applies brightness, contrast, saturation and hue, each drawn from its range, in a random order. */
static void jitter(const struct cr_prepare *prep, struct cr_rng *rng, const struct cr_pixels *pixels) {
    static const enum cr_pixel_op op[4] = {CR_PIXELS_BRIGHTNESS, CR_PIXELS_CONTRAST, CR_PIXELS_COLOUR, CR_PIXELS_HUE};
    int                           order[4] = {0, 1, 2, 3};
    double                        amount[4];
    for (int i = 3; i > 0; i--) {
        const int j = (int)cr_rng_below(rng, (uint64_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int i = 0; i < 4; i++) {
        const double range = prep->jitter[i], middle = i < 3 ? 1 : 0, low = i < 3 ? fmax(0, middle - range) : -range;
        amount[i] = low + (middle + range - low) * cr_rng_real(rng);
    }
    for (int i = 0; i < 4; i++)
        if (prep->jitter[order[i]] > 0) cr_pixels_apply(op[order[i]], amount[order[i]], pixels);
}

static bool jitters(const struct cr_prepare *prep) {
    return prep->jitter[0] > 0 || prep->jitter[1] > 0 || prep->jitter[2] > 0 || prep->jitter[3] > 0;
}

bool cr_prepare_colours(const struct cr_prepare *prep) {
    return prep->augment != CR_AUGMENT_NONE || jitters(prep);
}

static inline __attribute__((always_inline)) void move_pixels(int height, int width, const int32_t box[4], uint8_t *rgb,
                                                              const uint8_t *copy, const size_t pixel) {
    const size_t row = (size_t)width * pixel;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            const int from_y = y + box[0], from_x = (box[2] ? width - 1 - x : x) + box[1];
            uint8_t  *to = rgb + (size_t)y * row + (size_t)x * pixel;
            if (from_y < 0 || from_y >= height || from_x < 0 || from_x >= width)
                memset(to, 0, pixel);
            else
                memcpy(to, copy + (size_t)from_y * row + (size_t)from_x * pixel, pixel);
        }
}

/* Applies the shift and the flip of the box here instead of on the device, because the operations come after them. */
static void apply_box(const struct cr_prepare *prep, int32_t box[4], uint8_t *rgb, uint8_t *copy) {
    const int height = prep->size, width = cr_prepare_width(prep);
    if (!box[0] && !box[1] && !box[2]) return;
    memcpy(copy, rgb, cr_prepare_bytes(prep));
    if (cr_format_channels(prep->format) == 1)
        move_pixels(height, width, box, rgb, copy, 1);
    else
        move_pixels(height, width, box, rgb, copy, 3);
    memset(box, 0, 4 * sizeof *box);
}

cr_status cr_prepare_colour(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample,
                            struct cr_scratch *scratch, uint8_t *rgb, int32_t box[4]) {
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_COLOUR, (uint64_t)sample, (uint32_t)epoch);
    if (!cr_prepare_colours(prep)) return CR_OK;
    CR_ASSERT(prep->format == CR_RGB8 || prep->format == CR_GREY8); /* config/check.c refuses other formats */
    CR_TRY(cr_buffer_reserve(&scratch->copy, cr_prepare_bytes(prep)));
    apply_box(prep, box, rgb, scratch->copy.bytes);
    const struct cr_pixels pixels = {.rgb      = rgb,
                                     .copy     = scratch->copy.bytes,
                                     .width    = cr_prepare_width(prep),
                                     .height   = prep->size,
                                     .fill     = {prep->fill[0], prep->fill[1], prep->fill[2]},
                                     .channels = cr_format_channels(prep->format)};
    cr_policy_apply(prep, &rng, &pixels);
    if (jitters(prep)) jitter(prep, &rng, &pixels);
    return CR_OK;
}

/* tests/harness/image_boxes.h: parts of an encoded image. */
#ifndef CR_TEST_IMAGE_BOXES_H
#define CR_TEST_IMAGE_BOXES_H

#include "tests/harness/data_support.h"
#include "tests/harness/image_support.h"

static inline void draw_box(struct cr_rng *rng, int width, int height, int box[4]) {
    box[2] = 1 + (int)cr_rng_below(rng, (uint64_t)width);
    box[3] = 1 + (int)cr_rng_below(rng, (uint64_t)height);
    box[0] = (int)cr_rng_below(rng, (uint64_t)(width - box[2]) + 1);
    box[1] = (int)cr_rng_below(rng, (uint64_t)(height - box[3]) + 1);
}

/* Random boxes of an encoded image are bitwise identical to the same part of the whole image. */
static inline void check_boxes(const char *name, const struct cr_stored *from, const struct cr_image *whole,
                               struct cr_rng *rng, int times) {
    OWNED(scratch) scratch = {0};
    for (int k = 0; k < times; k++) {
        struct cr_stored     stored = *from;
        struct cr_lazy_image image;
        struct cr_window     window;
        int                  box[4], differing = 0;
        stored.verified = k % 2;
        draw_box(rng, whole->width, whole->height, box);
        REQUIRE_OK(cr_lazy_image_open(&stored, name, &scratch, &image));
        CHECK(image.image.width == whole->width && image.image.height == whole->height);
        REQUIRE_OK(cr_lazy_image_window(&image, box, 0, &scratch, &window));
        REQUIRE(window.width == box[2] && window.height == box[3]);
        CHECK(window.x == 0 && window.y == 0 && window.w == box[2] && window.h == box[3]);
        for (int y = 0; y < box[3]; y++)
            differing += memcmp(window.rgb + (size_t)y * window.stride,
                                whole->rgb + ((size_t)(box[1] + y) * (size_t)whole->width + (size_t)box[0]) * 3,
                                (size_t)box[2] * 3) != 0;
        if (differing)
            TEST_FAIL_("%s, box %d %d %d %d: %d rows differ", name, box[0], box[1], box[2], box[3], differing);
    }
}

#endif

/* cli/explain/overlay.h: draws the Grad-CAM map (heat map) of a class over its image. */
#ifndef CR_OVERLAY_H
#define CR_OVERLAY_H

#include "data/data.h"

/* A map over a part of an image: value [height][width], at least 0. Borrowed. */
struct cr_heat {
    const float *value;
    int          height, width;
    double       box[4]; /* the part x, y, width, height of the image, in pixels; may reach beyond the image */
};
/* Draws the map over the pixels of the image, which loses some of its colour. Between the positions of the map, values
 * are interpolated linearly. They are relative to the largest one; where the map is 0, and outside of the box, the
 * image shows unchanged but grey. */
void cr_overlay_draw(const struct cr_heat *heat, struct cr_image *image);

#endif

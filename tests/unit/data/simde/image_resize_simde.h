/* tests/unit/data/simde/image_resize_simde.h: see image_resize_simde.c. */
#ifndef IMAGE_RESIZE_SIMDE_H
#define IMAGE_RESIZE_SIMDE_H

#include "data/resize.h"
#include "data/scratch.h"

bool              image_resize_has_simde(void); /* false: libsimde-dev is not installed, or this is not x86-64 */
CR_MUST cr_status simde_resize_run(const struct cr_resize *job, struct cr_buffer *tables);
CR_MUST cr_status simde_image_resize(const struct cr_image *src, double x, double y, double w, double h, uint8_t *dst,
                                     int out_w, int out_h, bool flip);

#endif

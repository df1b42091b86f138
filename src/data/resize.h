/* data/resize.h: a resize that may compute only a part of its result, with the filter of cr_image_resize. */
#ifndef CR_RESIZE_H
#define CR_RESIZE_H

#include "data/scratch.h"

/* A resize that may compute only a part of its result. The rectangle of part_w x part_h pixels at (part_x,
 * part_y) of the result of full_w x full_h pixels is written to dst; `flip` mirrors that rectangle. */
struct cr_resize {
    const uint8_t       *src; /* [src_h] rows of src_stride bytes */
    int                  src_w, src_h;
    size_t               src_stride;
    double               x, y, w, h; /* box within the source */
    int                  full_w, full_h, part_x, part_y, part_w, part_h;
    uint8_t             *dst; /* [part_h] rows of dst_stride bytes */
    size_t               dst_stride;
    bool                 flip;
    enum cr_pixel_format format;
};
/* `tables` is working memory that grows when necessary. CR_ERR_MEMORY. */
CR_MUST cr_status cr_resize_run(const struct cr_resize *job, struct cr_buffer *tables);

#endif

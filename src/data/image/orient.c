/* data/image/orient.c: applies EXIF orientations to images. An orientation is a reflection of the stored image in x
 * and y, followed by an exchange of both axes. */
#include "data/decode.h"
#include "data/scratch.h"

#include <string.h>

enum { TILE = 32 }; /* pixels: rows and columns of a tile fit into the first cache together */

struct transform {
    bool flip_x, flip_y; /* of the stored image */
    bool transposed;
};

static struct transform transform_of(int orientation) {
    static const struct transform transforms[9] = {
        [2] = {.flip_x = true},
        [3] = {.flip_x = true, .flip_y = true},
        [4] = {.flip_y = true},
        [5] = {.transposed = true},
        [6] = {.flip_y = true, .transposed = true},
        [7] = {.flip_x = true, .flip_y = true, .transposed = true},
        [8] = {.flip_x = true, .transposed = true},
    };
    CR_ASSERT(orientation >= 0 && orientation <= 8);
    return transforms[orientation];
}

bool cr_orient_transposes(int orientation) {
    return transform_of(orientation).transposed;
}

void cr_orient_box(int orientation, int width, int height, const int box[4], int stored[4]) {
    const struct transform t = transform_of(orientation);
    const int              x = t.transposed, w = 2 + x; /* places of the stored x and width in `box` */
    stored[0] = box[x];
    stored[1] = box[1 - x];
    stored[2] = box[w];
    stored[3] = box[5 - w];
    if (t.flip_x) stored[0] = (t.transposed ? height : width) - stored[0] - stored[2];
    if (t.flip_y) stored[1] = (t.transposed ? width : height) - stored[1] - stored[3];
}

struct steps { /* how the stored pixels are read in the order of the result */
    const uint8_t *first;
    ptrdiff_t      step_x, step_y; /* bytes to the pixel on the right, and below */
};

static void copy_tile(const struct steps *from, int x0, int y0, int width, int height, uint8_t *dst, size_t stride,
                      size_t pixel) {
    for (int y = y0; y < CR_MIN(y0 + TILE, height); y++) {
        const uint8_t *p = from->first + from->step_x * x0 + from->step_y * y;
        uint8_t       *q = dst + stride * (size_t)y + (size_t)x0 * pixel;
        for (int x = x0; x < CR_MIN(x0 + TILE, width); x++, p += from->step_x, q += pixel) memcpy(q, p, pixel);
    }
}

static void exchange(double *a, double *b) {
    const double before = *a;
    *a                  = *b;
    *b                  = before;
}

cr_status cr_orient_window(int orientation, struct cr_scratch *scratch, struct cr_window *window) {
    const struct transform t      = transform_of(orientation);
    const size_t           pixel  = cr_format_bytes(window->format);
    const ptrdiff_t        across = (t.flip_x ? -1 : 1) * (ptrdiff_t)pixel,
                    down          = (t.flip_y ? -1 : 1) * (ptrdiff_t)window->stride;
    const int    width            = t.transposed ? window->height : window->width;
    const int    height           = t.transposed ? window->width : window->height;
    const size_t stride           = (size_t)width * pixel;
    struct steps from             = {window->rgb, across, down};
    if (t.flip_x) from.first += (size_t)(window->width - 1) * pixel;
    if (t.flip_y) from.first += (size_t)(window->height - 1) * window->stride;
    if (t.transposed) from.step_x = down, from.step_y = across;
    CR_TRY(cr_buffer_reserve(&scratch->oriented, stride * (size_t)height));
    for (int y = 0; y < height; y += TILE)
        for (int x = 0; x < width; x += TILE)
            copy_tile(&from, x, y, width, height, scratch->oriented.bytes, stride, pixel);
    const struct cr_buffer pixels = scratch->oriented; /* the caller finds the pixels where a decoder leaves them */
    scratch->oriented             = scratch->pixels;
    scratch->pixels               = pixels;
    if (t.flip_x) window->x = window->width - window->x - window->w;
    if (t.flip_y) window->y = window->height - window->y - window->h;
    if (t.transposed) exchange(&window->x, &window->y);
    if (t.transposed) exchange(&window->w, &window->h);
    window->rgb    = scratch->pixels.bytes;
    window->width  = width;
    window->height = height;
    window->stride = stride;
    return CR_OK;
}

/* device/cpu/tuned/conv/winograd.h: transforms of Winograd's algorithm for 3x3 filters; private to this folder.
 *
 * F(m x m, 3x3) computes m x m output pixels from a tile of (m + 2) x (m + 2) input pixels with (m + 2)^2
 * multiplications instead of 9 * m^2; m is 2 or 4:
 *
 *     U = G g G^T of each filter g, V = B^T d B of each tile d, M = sum over channels of U * V,
 *     and A^T M A is the output
 *
 * The numbers of a transformed tile are its places: place i * (m + 2) + j is the number in row i and column j. */
#ifndef CR_CPU_CONV_WINOGRAD_H
#define CR_CPU_CONV_WINOGRAD_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CR_WINOGRAD_VECTOR      = 8 /* floats; it divides the numbers of channels and outputs */,
    CR_WINOGRAD_OUTPUTS_MAX = 16 /* m * m */
};

static inline int cr_winograd_places(int m) {
    return (m + 2) * (m + 2);
}

/* U of `count` filters: tap t of filter i is g[t * step + i], place p goes to u[p * by + i]. */
void cr_winograd_filters(int m, const float *g, int64_t step, int64_t count, float *u, int64_t by);

/* An image [height, width, pitch]. */
struct cr_winograd_image {
    const float *x;
    int64_t      height, width, pitch;
};
/* V of the tile whose first pixel is (h, w), with zeros outside the image: place p of a channel goes to
 * v[p * step + channel]. edge: cr_winograd_places(m) * channels floats of scratch memory. */
void cr_winograd_input(int m, const struct cr_winograd_image *image, int64_t h, int64_t w, int64_t channels, float *v,
                       int64_t step, float *edge);

/* A^T M A of one tile: place p of M is products[p * step + output], pixel (i, j) goes to
 * to[(m * i + j) * outputs + output]. */
void cr_winograd_output(int m, const float *products, int64_t step, int64_t outputs, float *to);

/* ---- of filter gradients ---- */

/* A dY A^T of one tile: d[m * i + j] is pixel (i, j) of dy. Place p of channel k goes to
 * to[p * step + k / group * by_group + k % group]; a group is 4 or 8 channels. */
void cr_winograd_gradient(int m, const float *const *d, int64_t channels, int64_t group, int64_t by_group, float *to,
                          int64_t step);

/* dU: the sum of `copies` sums at distance `by_copy`, whose place p of channel c is u[p * step + c]. */
struct cr_winograd_sums {
    const float *u;
    int64_t      step, by_copy;
    int          copies;
};
/* G^T dU G of `channels` filters; tap t goes to dw[t * by_tap + channel]. accumulate: adds to dw. */
void cr_winograd_filter_gradient(int m, const struct cr_winograd_sums *sums, int64_t channels, float *dw,
                                 int64_t by_tap, bool accumulate);

#endif

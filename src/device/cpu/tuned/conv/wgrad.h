/* device/cpu/tuned/conv/wgrad.h: sums over pixels, of which filter gradients consist; private to this folder. */
#ifndef CR_CPU_CONV_WGRAD_H
#define CR_CPU_CONV_WGRAD_H

#include "device/cpu/cpu.h"

enum { CR_WGRAD_GROUP_MAX = 8, CR_WGRAD_LINE_MAX = 48 /* floats that a tile may read beyond the last one */ };

/* Pixels of x and dy: `images` images of some rows and columns. Pixel (n, h, q) of x begins at
 * x[n*by_image + h*by_row + q*by_column]. Pixels of dy are numbered in the same order, and channel k of pixel i is
 * dy[k/group*by_group + i*group + k%group], with zeros for channels that do not exist in the last group. */
struct cr_wgrad_pixels {
    const float *x, *dy;
    int64_t      images, rows, columns;
    int64_t      by_image, by_row, by_column, by_group;
};

/* Channels of dy in a group, at the level in use. */
int cr_wgrad_group(void);
/* Floats from one group of channels to the next in a copy of dy of so many pixels: the groups of a pixel lie in
 * different sets of the cache. */
int64_t cr_wgrad_group_floats(int64_t pixels);

/* Floats between pixels of a copy of x with C channels: the same channels of different pixels lie in different sets of
 * the cache. Not monotonic; at most C + CR_WGRAD_PITCH. */
enum { CR_WGRAD_PITCH = 16 };
static inline int64_t cr_wgrad_pitch(int64_t C) {
    return C % (4 * CR_WGRAD_PITCH) ? C : C + CR_WGRAD_PITCH;
}

/* dw[k*filter + i] += the sum over the pixels of dy[k] * x[i], for channels k < channels and i < floats. */
void cr_wgrad_add(const struct cr_wgrad_pixels *pixels, int64_t channels, int64_t floats, float *dw, int64_t filter);

/* ---- winograd_wgrad.c: filter gradients of 3x3 convolutions of stride 1 ---- */

struct cr_winograd_wgrad {
    int64_t N, H, W, C, P, Q, K, pad; /* x: [N,H,W,C], dy: [N,P,Q,K] */
};
int cr_winograd_wgrad_choose(const struct cr_winograd_wgrad *shape); /* m of winograd.h; 0: a plain sum is faster */
/* scratch: cr_winograd_wgrad_floats floats. accumulate: adds to dw. */
int64_t cr_winograd_wgrad_floats(const struct cr_winograd_wgrad *shape, int threads);
void    cr_winograd_wgrad_run(const struct cr_winograd_wgrad *shape, const float *x, const float *dy, bool accumulate,
                              float *dw, float *scratch, int threads);

#endif

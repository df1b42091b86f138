/* device/cpu/tuned/conv/window.h: convolutions as sums over windows of an input that lies in a cache: plan, packed
 * filters and tiles of cpu.conv and cpu.conv_dgrad; private to this folder.
 *
 * Terms
 *   - A window is the part of the input that an output pixel reads. A row of a window is `width` pixels with all their
 *     channels, which are next to each other in memory, so its sum is one loop over width * channels floats.
 *   - A convolution has one window. The input gradient of a convolution with stride 2 is four convolutions of dy with
 *     windows of their own, one for each (h % 2, w % 2) of the pixels of dx.
 *   - A strip is some rows of an image, or whole images, with zeros as padding. A thread copies a strip of the input
 *     and computes all of its outputs while it is in the second cache. Windows of 1x1 without padding need no copy.
 *   - A panel is the filters that a tile computes at once: two vectors of outputs. Packed filters are in the order in
 *     which tiles read them: [panel][row of the window][float of the row][output of the panel], with zeros for outputs
 *     that do not exist. */
#ifndef CR_CPU_CONV_WINDOW_H
#define CR_CPU_CONV_WINDOW_H

#include "device/cpu/cpu.h"

enum { CR_TILE_PIXELS_MAX = 14, CR_PANEL_MAX = 32, CR_WINDOWS_MAX = 4 /* strides of 1 and 2 */ };

struct cr_conv_window {
    int64_t height, width; /* 0: no output pixel reads anything */
    int64_t top, left;     /* pixel (i, j) reads input rows from i * stride - top, columns from j * stride - left */
    int64_t rows, columns; /* output pixels of an image that have this window */
    int64_t first_row, first_column; /* pixel (i, j) is written to row first_row + i * step */
    int64_t tap_row, tap_column, by; /* row i of the window is row tap_row + i * by of the filter */
    int64_t packed;                  /* first float of its packed filter */
};

struct cr_conv_plan {
    int64_t               images, channels, outputs;             /* of the input, of the output */
    int64_t               height, width, stride;                 /* of the input */
    int64_t               out_height, out_width, step;           /* of the output */
    int64_t               by_output, by_row, by_tap, by_channel; /* distances in the filter of the program */
    int64_t               packed_floats;
    int                   winograd; /* m: winograd.c computes F(m x m, 3x3); its filters have their own layout. 0: no */
    int                   windows;
    struct cr_conv_window window[CR_WINDOWS_MAX];
};

/* Sizes of the tile of the level in use, for this number of outputs. */
struct cr_tile_size {
    int pixels, panel;
};
struct cr_tile_size cr_conv_tile_size(int64_t outputs);

/* Computes to[y[p] + output + o] = begin[y[p] + output + o] + sum over r < rows and i < len of
 * x[p][r*row + i] * w[(r*len + i)*panel + o] for the outputs o of a panel. begin: NULL (zeros), or it may be `to`.
 * Meanwhile it prefetches rows*len*next_step floats from `next` on into the second cache. */
struct cr_tile {
    int64_t      rows, row, len, next_step;
    const float *x[CR_TILE_PIXELS_MAX], *begin, *next;
    float       *to;
    int64_t      y[CR_TILE_PIXELS_MAX];
};
typedef void      cr_tile_function(const struct cr_tile *tile, const float *w, int64_t output);
cr_tile_function *cr_conv_tile(int64_t outputs); /* of the level in use */

/* Filters come from memory while the tiles that share the present ones compute: tile number `number` of `tiles`
 * prefetches its part of the filters at `next`, which are as long as its own. */
static inline void cr_tile_prefetch(struct cr_tile *tile, const float *next, int64_t panel, int64_t number,
                                    int64_t tiles) {
    tile->next_step = (panel + tiles - 1) / tiles;
    tile->next      = next + number * tile->next_step * tile->rows * tile->len;
}

/* The plan of a conv or a conv_dgrad. */
struct cr_conv_plan cr_conv_plan_of(const struct cr_program *program, const struct cr_op *op);
/* Writes the filter `w` in packed form. */
void cr_conv_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads);
/* Writes one tap of a panel as [channel][output of the panel]; w: the tap of its first output and channel. */
void cr_conv_pack_tap(const struct cr_conv_plan *plan, const float *w, int64_t outputs, int64_t channels, int64_t panel,
                      float *to);

/* The operands of a convolution. NULL: absent. */
struct cr_conv_io {
    const float *x, *packed, *bias, *add;
    float       *y;
    bool         relu;
};
/* scratch: cr_conv_scratch_floats floats for each thread. */
void    cr_conv_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads);
int64_t cr_conv_scratch_floats(const struct cr_conv_plan *plan, int threads);

/* How convolutions with a plan are computed. */
struct cr_conv_method {
    int64_t (*packed_floats)(const struct cr_conv_plan *plan);
    void (*pack)(const struct cr_conv_plan *plan, const float *w, float *packed, int threads);
    int64_t (*scratch_floats)(const struct cr_conv_plan *plan, int threads);
    void (*run)(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads);
};
extern const struct cr_conv_method cr_conv_bf16_method; /* bf16/conv.c: products in bf16; x86-64 only */
bool cr_conv_bf16_accepts(const struct cr_device *device, const struct cr_program *p, const struct cr_op *op);

/* What follows the sum of an output pixel: add, bias (NULL: absent), ReLU. y may be sum. */
void cr_conv_finish(float *y, const float *sum, const float *add, const float *bias, bool relu, int64_t outputs);

/* ---- winograd.c: the same for convolutions with plan->winograd ---- */

int     cr_winograd_choose(const struct cr_conv_plan *plan); /* plan->winograd */
int64_t cr_winograd_packed_floats(const struct cr_conv_plan *plan);
void    cr_winograd_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads);
int64_t cr_winograd_scratch_floats(const struct cr_conv_plan *plan); /* of each thread */
void    cr_winograd_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads);

#endif

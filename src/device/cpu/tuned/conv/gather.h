/* device/cpu/tuned/conv/gather.h: a convolution as sums over gathered rows, for the plan, the filters and the tiles of
 * cpu.conv and cpu.conv_dgrad; private to this folder.
 *
 * Terms
 *   - A row is a run of floats of the input that are next to each other in memory: the channels of one pixel. Where a
 *     pixel has few channels (the stem), it is the channels of a row of the window, read from a copy of the image with
 *     its padding.
 *   - A tap is one row that an output pixel reads. Its sum over all taps t and floats i is
 *         y[pixel][o] = sum of row[pixel][t][i] * w[o][t][i]
 *   - A phase is a set of output pixels that have the same taps: all pixels of a convolution; the pixels with the same
 *     (h % stride, w % stride) of the gradient of a convolution with a stride.
 *   - A panel is the filters that a tile computes at once: two vectors of outputs. Packed filters are in the order in
 *     which a tile reads them: packed[panel][tap][i][output of the panel], phase by phase, with zeros for outputs that
 *     do not exist. */
#ifndef CR_CPU_CONV_GATHER_H
#define CR_CPU_CONV_GATHER_H

#include "device/cpu/cpu.h"

enum {
    CR_ROW_OUTSIDE     = -1, /* this row lies in the padding: zeros */
    CR_TILE_PIXELS_MAX = 12, /* of all levels */
    CR_TILE_TAPS_MAX   = 24, /* taps of one call of a tile */
    CR_PANEL_MAX       = 32,
    CR_PHASES_MAX      = 4 /* strides of 1 and 2 */
};

struct cr_conv_phase {
    int64_t  pixels, taps; /* of an image */
    int     *tap;          /* [taps] r * S + s, or r where rows are rows of the window */
    int32_t *from;         /* [pixels][taps] first float of a row in its image, or CR_ROW_OUTSIDE */
    int32_t *to;           /* [pixels] first float of the output pixel in its image */
    int64_t  packed;       /* first float of the packed filters of this phase */
};

struct cr_conv_plan {
    int64_t              images, len, outputs;        /* len: floats of a row */
    int64_t              in_image, out_image;         /* floats of an image, with padding if padded */
    int64_t              by_output, by_tap, by_float; /* distances in the filter of the program */
    int64_t              packed_floats;
    int                  phases;
    struct cr_conv_phase phase[CR_PHASES_MAX];
    bool                 padded; /* rows lie in a copy of the image: [height][width][channels], zeros outside */
    int64_t              height, width, channels, pad, image_height, image_width; /* of that copy and of the image */
    float               *zero;                                                    /* [len] */
};

/* Sizes of the tile of the level in use, for this number of outputs. */
struct cr_tile_size {
    int pixels, panel;
};
struct cr_tile_size cr_conv_tile_size(int64_t outputs);

/* Computes out[p][o] = init[p][o] + sum over taps and i of row[t*pixels + p][i] * w[(t*len + i)*panel + o]. out may be
 * init. */
struct cr_tile {
    int          taps;
    int64_t      len;
    const float *row[CR_TILE_TAPS_MAX * CR_TILE_PIXELS_MAX], *w;
    const float *init[CR_TILE_PIXELS_MAX];
    float       *out[CR_TILE_PIXELS_MAX];
};
typedef void      cr_tile_function(const struct cr_tile *tile);
cr_tile_function *cr_conv_tile(int64_t outputs); /* of the level in use */

/* Makes the plan of a conv or a conv_dgrad. The caller frees it with cr_conv_plan_free. CR_ERR_MEMORY. */
CR_MUST cr_status cr_conv_plan_make(const struct cr_program *program, const struct cr_op *op,
                                    struct cr_conv_plan **out);
void              cr_conv_plan_free(struct cr_conv_plan *plan);
/* Floats of a filter of K,R,S,C in packed form. */
int64_t cr_conv_packed_floats(int64_t outputs, int64_t taps, int64_t len);
/* Writes the filter `w` in packed form. */
void cr_conv_pack(const struct cr_conv_plan *plan, const float *w, float *packed, int threads);

/* What is done with the sums. Pointers to the first image; NULL: absent. */
struct cr_conv_io {
    const float *x, *packed, *bias, *add;
    float       *y;
    bool         relu;
};
/* scratch: cr_conv_scratch_floats(plan) floats for each thread. */
void    cr_conv_run(const struct cr_conv_plan *plan, const struct cr_conv_io *io, float *scratch, int threads);
int64_t cr_conv_scratch_floats(const struct cr_conv_plan *plan);

#endif

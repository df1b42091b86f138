/* device/cpu/tuned/int8/qconv.h: shape, packed filters and tiles of the 8-bit convolution; private to this folder.
 *
 * Terms
 *   - A step multiplies four inputs that lie next to each other in memory, u8, with four weights of each output of a
 *     panel, and adds the products to 32-bit sums. Signed inputs are raised by 128 first.
 *   - A panel is the filters that a tile of some pixels computes at once: one or more vectors of outputs. Packed, it is
 *     a list of steps.
 *   - Without VNNI a processor adds products in 16 bits: those of one step, or of a block of two steps, before it
 *     widens the sums. What weights exceed the range of 16 bits is left to further steps of one vector ("extras") that
 *     read the same inputs, so that every sum is exact. A panel has the length of blocks that needs fewer instructions
 *     with its weights: two for weights of 7 bits, most often one for weights of 8 bits. */
#ifndef CR_CPU_QCONV_H
#define CR_CPU_QCONV_H

#include "device/cpu/cpu.h"

enum { CR_QTILE_PIXELS = 6, CR_QPANEL_MAX = 64, CR_QVECTORS_MAX = 4, CR_QSTEP = 4 /* inputs of a step */ };

/* A packed filter is, each part at a multiple of 64 bytes:
 *   head     [panel]
 *   sums     i32 [panel][width]: the sum of the weights of each output
 *   offsets  i32 [steps]: where the inputs of a step begin, in bytes after the pixel's first input
 *   w        i8 [panel][steps][width][CR_QSTEP]
 * and if the tile saturates, in pairs of extras that it adds in 16 bits, those of the first vector of a panel first:
 *   extra offsets  i32 [panel][extras_max], extra w  i8 [panel][extras_max][outputs of a vector][CR_QSTEP] */
struct cr_qpanel_head {
    int32_t steps, block; /* block: 1 or 2 steps */
    int32_t extras[CR_QVECTORS_MAX];
};
struct cr_qpanel {
    struct cr_qpanel_head *head;
    int32_t               *sums, *offsets, *extra_offsets;
    int8_t                *w, *extra_w;
};

/* What follows the sums: as qconv in graph/ops.def. */
struct cr_qout {
    const float  *coeffs; /* [3][outputs] */
    const void   *add;    /* NULL: none */
    void         *y;
    int64_t       outputs;
    enum cr_dtype add_type, y_type;
    bool          relu;   /* false where y is u8, which clips negative numbers anyway */
    bool          raised; /* inputs are 128 larger than their values */
};

struct cr_qtile {
    const uint8_t   *x[CR_QTILE_PIXELS]; /* places beyond count repeat the last pixel and are not written */
    int64_t          y[CR_QTILE_PIXELS]; /* elements of y before a pixel's first output */
    int              count;
    int64_t          output; /* the first one of the panel */
    struct cr_qpanel panel;
};
typedef void cr_qtile_function(const struct cr_qtile *tile, const struct cr_qout *out);

/* The tile of the level in use for so many outputs. */
struct cr_qtile_kind {
    cr_qtile_function *run[2];                 /* for blocks of one and two steps */
    int                pixels, width, vectors; /* width: outputs of a panel, in so many vectors */
    bool               saturates;              /* adds in 16 bits; else there are blocks of one step only, no extras */
};
struct cr_qtile_kind cr_qtile_kind_of(int64_t outputs);

/* Of a convolution. A 1x1 convolution of all pixels has one image that is a pixel wide. */
struct cr_qshape {
    int64_t              N, H, W, C, K, R, S, P, Q, stride, pad;
    bool                 raised;     /* x is signed */
    bool                 copied;     /* strips of the input are copied */
    int64_t              row, width; /* bytes of a row of the window; input pixels in a row of a strip */
    struct cr_qtile_kind tile;
    int64_t              panels, steps, extras_max; /* of the packed filter; steps, extras_max: of a panel */
    int64_t              sums, offsets, w, extra_offsets, extra_w, bytes; /* of the packed filter: where parts begin */
};
/* Of a qconv, and of the qconv that will read the output of a pack_filter. */
struct cr_qshape cr_qshape_of(const struct cr_program *program, const struct cr_op *op);
struct cr_qshape cr_qshape_of_pack(const struct cr_program *program, const struct cr_op *op);
struct cr_qpanel cr_qpanel_at(const struct cr_qshape *shape, const void *packed, int64_t panel);
/* w: i8 [K][R][S][C]; packed: shape->bytes bytes. */
void cr_qconv_pack(const struct cr_qshape *shape, const int8_t *w, void *packed, int threads);

#endif

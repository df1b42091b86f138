/* device/cpu/tuned/conv/bf16/bf16.h: convolutions of f32 tensors whose products AMX computes in bf16: cpu.conv_bf16,
 * cpu.conv_dgrad_bf16, cpu.conv_wgrad_bf16. Private to this folder.
 *
 * A kernel rounds its operands to bf16 (to nearest, ties to even) while it copies them into its workspace; sums are in
 * f32. Tensors, and what follows a sum (bias, add, ReLU), stay in f32. AMX and the conversion treat denormals as zero.
 *
 * Terms
 *   - A tile is a register of AMX: 16 rows of 64 bytes. An instruction multiplies a tile of 16 rows with 32 numbers and
 *     a tile of 32 rows (16 pairs) with 16 numbers, and adds the 16x16 sums of products to a third one.
 *   - Pairs: a tile of the second factor stores two rows as one row of pairs, [16 pairs][16][2].
 *   - A position is an output pixel in the copy of an input: its copied lines are `pitch` pixels apart and share the
 *     zeros of the padding, so that the windows of neighbouring positions are equally far apart, also at the end of a
 *     line. Positions beyond the end of a line of the output are computed and dropped. */
#ifndef CR_CPU_CONV_BF16_H
#define CR_CPU_CONV_BF16_H

#include "device/cpu/cpu.h"

enum {
    CR_BF16_ROWS  = 16,  /* of a tile */
    CR_BF16_DEPTH = 32,  /* numbers in a row of a tile */
    CR_BF16_TILE  = 512, /* numbers of a tile */
    CR_BF16_PANEL = 32,  /* outputs that are computed at once */
    CR_BF16_BLOCK = 32   /* positions that are computed at once */
};

/* ---- layout.c: copies of images ---- */

/* One direction of a copy: the lines (or pixels of a line) of the input that `outputs` outputs read: `before` zeros,
 * `inside` ones of the input from `from` on, zeros up to `all`. The next image (or line) begins `pitch`, a multiple of
 * the stride, after the first one: the zeros between them are stored once. */
struct cr_bf16_span {
    int64_t from, before, inside, all, pitch;
};
/* first: the first one that is read; negative in the padding. */
struct cr_bf16_span cr_bf16_span_of(int64_t size, int64_t first, int64_t outputs, int64_t stride, int64_t window);

/* A position in the lines of all images of a strip. */
struct cr_bf16_place {
    int64_t image, row, column;
};
/* Moves on, in images of `rows` rows of `columns` positions. */
static inline void cr_bf16_next(struct cr_bf16_place *at, int64_t rows, int64_t columns) {
    if (++at->column < columns) return;
    at->column = 0;
    if (++at->row < rows) return;
    at->row = 0;
    at->image++;
}

/* Strips: `images` whole images each, or one of `parts` of the rows of one image. */
struct cr_bf16_strips {
    int64_t images, parts, count;
};
struct cr_bf16_strip {
    int64_t image, images, row, rows; /* of the output */
};
/* Strips of N images with `rows` rows of the output, so that a strip has about `positions` positions, of `columns` in a
 * row; at least `least` strips where there are enough images or rows. */
struct cr_bf16_strips cr_bf16_strips_of(int64_t N, int64_t rows, int64_t columns, int64_t positions, int64_t least);
struct cr_bf16_strip  cr_bf16_strip_at(const struct cr_bf16_strips *strips, int64_t i, int64_t N, int64_t rows);

/* ---- convert.c: rounding to bf16 ---- */

void cr_bf16_round(const float *x, int64_t count, uint16_t *to);
/* A tile of pairs: row[i] has `count` (at most 16) numbers, to[i/2][c][i%2] = row[i][c], 0 for c >= count. */
void cr_bf16_pairs(const float *const row[CR_BF16_DEPTH], int64_t count, uint16_t *to);
/* The same 32 rows transposed: to[c*pitch + i] = row[i][c], for c < 16. */
void cr_bf16_transpose(const float *const row[CR_BF16_DEPTH], int64_t count, uint16_t *to, int64_t pitch);
/* A tile of pairs of a transposed matrix: row[o] has `count` (at most 32) numbers, to[i/2][o][i%2] = row[o][i]. */
void cr_bf16_pairs_transposed(const float *const row[CR_BF16_ROWS], int64_t count, uint16_t *to);

/* ---- tile.c: sums of products ---- */

/* Configures the tiles of this thread, and releases them. */
void cr_bf16_begin(void);
void cr_bf16_end(void);

/* to[p*CR_BF16_PANEL + o] = sum over taps t and i < steps*32 of x[p*pixel + tap[t] + i] * w[...], for CR_BF16_BLOCK
 * positions p and 16 * tiles outputs o. w: [tap][step][tile of outputs], tiles of pairs. */
struct cr_bf16_sum {
    const uint16_t *x, *w;
    int64_t         pixel; /* numbers from a position to the next */
    const int64_t  *tap;   /* place of each tap */
    int64_t         taps, steps;
    int             tiles; /* 1 or 2 */
    float          *to;
};
void cr_bf16_sum(const struct cr_bf16_sum *sum);

/* to[(i*nb + j)*256 + ...] = the product of the matrices a[i], 16 rows `pitch` apart of 32 * steps numbers, and b[j],
 * tiles of pairs; [16][16]. na: 1 to 4; nb: 1 or, with na up to 2, 2. */
struct cr_bf16_products {
    const uint16_t *a[4], *b[2];
    int             na, nb;
    int64_t         pitch, steps;
    float          *to;
};
void cr_bf16_multiply(const struct cr_bf16_products *products);

/* y[o] = sum[o] + bias[o] + add[o], with ReLU, for o < count (at most CR_BF16_PANEL). bias, add: NULL, or they begin
 * with output 0, as y does. stream: non-temporal stores; y is aligned to 64 bytes. */
void cr_bf16_finish(float *y, const float *sum, const float *bias, const float *add, bool relu, bool stream,
                    int64_t count);
/* Call after non-temporal stores. */
void cr_bf16_fence(void);
/* y[o] = sum[o], or y[o] += sum[o], for o < count (at most 16). */
void cr_bf16_store(float *y, const float *sum, bool add, int64_t count);

#endif

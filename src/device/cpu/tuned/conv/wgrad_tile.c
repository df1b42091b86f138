/* device/cpu/tuned/conv/wgrad_tile.c: the inner loop (microkernel) of filter gradients, for each level of vectors.
 *
 * The sums of a tile stay in registers: one to three vectors of x, a line, for a group of channels of dy: 12 sums of
 * AVX2's 16 registers, 24 of AVX-512's 32. A tile runs over all pixels. */
#include "device/cpu/simd.h"
#include "device/cpu/tuned/conv/wgrad.h"

#include <string.h>

/* The compiler may contract multiply-adds; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

enum {
    GROUP_MAX   = CR_WGRAD_GROUP_MAX,
    LINE_MAX    = CR_WGRAD_LINE_MAX,
    VECTORS_MAX = 3, /* of a line: what a tile reads of a pixel of x */
    APART       = 16 /* floats between groups */
};

/* ---- tiles ---- */

/* dw: a line for each channel of the group. */
typedef void tile_function(const struct cr_wgrad_pixels *t, float *const dw[GROUP_MAX]);

#define UNROLL _Pragma("GCC unroll 16")
#define TILE(name, attribute, vector, channels, vectors)                                                               \
    attribute static void name(const struct cr_wgrad_pixels *t, float *const dw[GROUP_MAX]) {                          \
        enum { LANES = sizeof(vector) / sizeof(float) };                                                               \
        const float *dy = t->dy;                                                                                       \
        vector       sum[channels][vectors];                                                                           \
        UNROLL for (int k = 0; k < channels; k++) UNROLL for (int v = 0; v < vectors; v++) sum[k][v] = (vector){0};    \
        for (int64_t n = 0; n < t->images; n++)                                                                        \
            for (int64_t h = 0; h < t->rows; h++) {                                                                    \
                const float *x = t->x + n * t->by_image + h * t->by_row;                                               \
                for (int64_t q = 0; q < t->columns; q++, x += t->by_column, dy += channels) {                          \
                    vector line[vectors];                                                                              \
                    UNROLL for (int v = 0; v < vectors; v++) line[v] = *(const vector *)(x + v * LANES);               \
                    UNROLL for (int k = 0; k < channels; k++) UNROLL for (int v = 0; v < vectors; v++) sum[k][v] +=    \
                        dy[k] * line[v];                                                                               \
                }                                                                                                      \
            }                                                                                                          \
        UNROLL for (int k = 0; k < channels; k++) UNROLL for (int v = 0; v < vectors; v++) *                           \
            (vector *)(dw[k] + v * LANES) += sum[k][v];                                                                \
    }
#define TILES(level, attribute, vector, channels)                                                                      \
    TILE(tile1_##level, attribute, vector, channels, 1)                                                                \
    TILE(tile2_##level, attribute, vector, channels, 2)                                                                \
    TILE(tile3_##level, attribute, vector, channels, 3)                                                                \
    static tile_function *const tiles_##level[VECTORS_MAX] = {tile1_##level, tile2_##level, tile3_##level};
TILES(baseline, , f32x4, 4)
#if defined(__x86_64__)
TILES(avx2, __attribute__((target("avx2,fma"))), f32x8, 4)
TILES(avx512, __attribute__((target("avx512f"))), f32x16, 8)
#endif

/* The tiles of the level in use. */
struct tiles {
    int                   lanes, group;
    tile_function *const *run; /* [vectors - 1] */
};

static struct tiles tiles_of_level(void) {
#if defined(__x86_64__)
    if (cr_cpu_level() == CR_CPU_AVX512) return (struct tiles){16, 8, tiles_avx512};
    if (cr_cpu_level() == CR_CPU_AVX2) return (struct tiles){8, 4, tiles_avx2};
#endif
    return (struct tiles){4, 4, tiles_baseline};
}

int cr_wgrad_group(void) {
    return tiles_of_level().group;
}

int64_t cr_wgrad_group_floats(int64_t pixels) {
    return pixels * tiles_of_level().group + APART;
}

/* ---- lines ---- */

/* A line of `vectors` vectors, of which `len` floats exist. */
static void add_line(const struct tiles *tiles, struct cr_wgrad_pixels t, int64_t channels, int64_t vectors,
                     int64_t len, float *dw, int64_t filter) {
    const int64_t group = tiles->group;
    const bool    whole = len == vectors * tiles->lanes;
    float         spare[GROUP_MAX][LINE_MAX], *to[GROUP_MAX];
    for (int64_t k = 0; k < channels; k += group, t.dy += t.by_group) {
        const bool direct = whole && k + group <= channels;
        if (!direct) memset(spare, 0, sizeof spare);
        for (int64_t j = 0; j < group; j++) to[j] = direct ? dw + (k + j) * filter : spare[j];
        tiles->run[vectors - 1](&t, to);
        for (int64_t j = 0; !direct && j < CR_MIN(group, channels - k); j++)
            for (int64_t n = 0; n < len; n++) dw[(k + j) * filter + n] += spare[j][n];
    }
}

/* Lines have about the same length. */
void cr_wgrad_add(const struct cr_wgrad_pixels *pixels, int64_t channels, int64_t floats, float *dw, int64_t filter) {
    const struct tiles     tiles = tiles_of_level();
    struct cr_wgrad_pixels t     = *pixels;
    const int64_t          lanes = tiles.lanes, vectors = (floats + lanes - 1) / lanes;
    const int              lines = (int)((vectors + VECTORS_MAX - 1) / VECTORS_MAX);
    for (int i = 0; i < lines; i++) {
        int64_t from, to;
        cr_run_of(vectors, i, lines, &from, &to);
        t.x = pixels->x + from * lanes;
        add_line(&tiles, t, channels, to - from, CR_MIN(floats, to * lanes) - from * lanes, dw + from * lanes, filter);
    }
}

/* device/cpu/tuned/conv/tile.c: the inner loop (microkernel) of cpu.conv and cpu.conv_dgrad, for each vector level.
 *
 * The sums of a tile stay in registers: two vectors of outputs for 6 pixels (12 of AVX2's 16 registers) or for 14 (28
 * of AVX-512's 32). A step reads the two vectors of filters and multiplies them with one float of each pixel: 28
 * multiply-adds for 16 loads. Images of 14x14, 28x28 and 56x56 pixels are whole tiles of 14. A tile reaches 90 to 95 %
 * of the peak. */
#include "device/cpu/tuned/conv/window.h"

/* The compiler may contract multiply-adds; the error bounds of verification hold for both forms. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=fast")
#endif

typedef float f32x4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));

/* A function, not a template with a number of vectors: the compiler keeps an array of sums in registers only where all
 * loops over it are unrolled and the function has nothing else. */
#define CR_UNROLL _Pragma("GCC unroll 16")
#define CR_TILE(name, attribute, vector, pixels, vectors)                                                              \
    attribute static void name(const struct cr_tile *tile, const float *w, int64_t output) {                           \
        enum { LANES = sizeof(vector) / sizeof(float), PANEL = vectors * LANES };                                      \
        const int64_t next_step = tile->next_step;                                                                     \
        const float  *x[pixels], *next = tile->next;                                                                   \
        vector        sum[pixels][vectors];                                                                            \
        CR_UNROLL for (int p = 0; p < pixels; p++) {                                                                   \
            x[p]                                                  = tile->x[p];                                        \
            CR_UNROLL for (int v = 0; v < vectors; v++) sum[p][v] = (vector){0};                                       \
        }                                                                                                              \
        if (tile->begin)                                                                                               \
            CR_UNROLL for (int p = 0; p < pixels; p++) CR_UNROLL for (int v = 0; v < vectors; v++) sum[p][v] =         \
                *(const vector *)(tile->begin + tile->y[p] + output + v * LANES);                                      \
        for (int64_t r = 0; r < tile->rows; r++) {                                                                     \
            const float *const end = w + tile->len * PANEL;                                                            \
            for (int64_t i = 0; w < end; i++, w += PANEL, next += next_step) {                                         \
                vector filter[vectors];                                                                                \
                CR_UNROLL for (int v = 0; v < vectors; v++) filter[v] = *(const vector *)(w + v * LANES);              \
                CR_UNROLL for (int v = 0; v < PANEL; v += LINE) __builtin_prefetch(w + v + AHEAD);                     \
                __builtin_prefetch(next, 0, 2);                                                                        \
                CR_UNROLL for (int p = 0; p < pixels; p++) CR_UNROLL for (int v = 0; v < vectors; v++) sum[p][v] +=    \
                    x[p][i] * filter[v];                                                                               \
            }                                                                                                          \
            CR_UNROLL for (int p = 0; p < pixels; p++) x[p] += tile->row;                                              \
        }                                                                                                              \
        CR_UNROLL for (int p = 0; p < pixels; p++) CR_UNROLL for (int v = 0; v < vectors; v++) *                       \
            (vector *)(tile->to + tile->y[p] + output + v * LANES) = sum[p][v];                                        \
    }

/* From the second cache to the first, filters are prefetched by a page, which the hardware does not cross. */
enum { PIXELS = 6, PIXELS_AVX512 = 14, AHEAD = 1024, LINE = 16 /* floats of a line of the cache */ };
CR_TILE(tile_baseline, , f32x4, 6, 2)
#if defined(__x86_64__)
CR_TILE(tile_avx2, __attribute__((target("avx2,fma"))), f32x8, 6, 2)
CR_TILE(tile_avx512, __attribute__((target("avx512f"))), f32x16, 14, 2)
CR_TILE(tile_avx512_narrow, __attribute__((target("avx512f"))), f32x16, 14, 1)
#endif

/* Half of AVX-512's panel would be empty for 16 outputs. */
static bool is_narrow(int64_t outputs) {
    return outputs % CR_PANEL_MAX && outputs % CR_PANEL_MAX <= CR_PANEL_MAX / 2 && outputs < 2 * CR_PANEL_MAX;
}

struct cr_tile_size cr_conv_tile_size(int64_t outputs) {
    switch (cr_cpu_level()) {
    case CR_CPU_AVX512: return (struct cr_tile_size){PIXELS_AVX512, is_narrow(outputs) ? 16 : 32};
    case CR_CPU_AVX2: return (struct cr_tile_size){PIXELS, 16};
    default: return (struct cr_tile_size){PIXELS, 8};
    }
}

cr_tile_function *cr_conv_tile(int64_t outputs) {
#if defined(__x86_64__)
    if (cr_cpu_level() == CR_CPU_AVX512) return is_narrow(outputs) ? tile_avx512_narrow : tile_avx512;
    if (cr_cpu_level() == CR_CPU_AVX2) return tile_avx2;
#endif
    (void)outputs;
    return tile_baseline;
}

/* device/cpu/tuned/conv/tile.c: the inner loop of cpu.conv and cpu.conv_dgrad, for each level.
 *
 * The sums of a tile stay in registers: two vectors of outputs for 6 pixels (12 of AVX2's 16 registers) or for 12 (24
 * of AVX-512's 32). A step reads the two vectors of filters and multiplies them with one float of each pixel: 12
 * multiply-adds for 8 loads. On an AMD EPYC with AVX2 a tile reaches 92 to 95 % of the peak. */
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
#define CR_TILE(name, attribute, vector, pixels)                                                                       \
    attribute static void name(const struct cr_tile *tile, const float *w, int64_t output) {                           \
        enum { LANES = sizeof(vector) / sizeof(float) };                                                               \
        const float *x[pixels];                                                                                        \
        vector       sum[pixels][2];                                                                                   \
        CR_UNROLL for (int p = 0; p < pixels; p++) {                                                                   \
            x[p]      = tile->x[p];                                                                                    \
            sum[p][0] = sum[p][1] = (vector){0};                                                                       \
        }                                                                                                              \
        if (tile->begin) CR_UNROLL for (int p = 0; p < pixels; p++) {                                                  \
                sum[p][0] = *(const vector *)(tile->begin + tile->y[p] + output);                                      \
                sum[p][1] = *(const vector *)(tile->begin + tile->y[p] + output + LANES);                              \
            }                                                                                                          \
        for (int64_t r = 0; r < tile->rows; r++) {                                                                     \
            const float *const end = w + tile->len * 2 * LANES;                                                        \
            for (int64_t i = 0; w < end; i++, w += 2 * LANES) {                                                        \
                const vector a = *(const vector *)w, b = *(const vector *)(w + LANES);                                 \
                CR_UNROLL for (int p = 0; p < pixels; p++) {                                                           \
                    sum[p][0] += x[p][i] * a;                                                                          \
                    sum[p][1] += x[p][i] * b;                                                                          \
                }                                                                                                      \
            }                                                                                                          \
            CR_UNROLL for (int p = 0; p < pixels; p++) x[p] += tile->row;                                              \
        }                                                                                                              \
        CR_UNROLL for (int p = 0; p < pixels; p++) {                                                                   \
            *(vector *)(tile->to + tile->y[p] + output)         = sum[p][0];                                           \
            *(vector *)(tile->to + tile->y[p] + output + LANES) = sum[p][1];                                           \
        }                                                                                                              \
    }

enum { PIXELS = 6, PIXELS_AVX512 = 12 };
CR_TILE(tile_baseline, , f32x4, 6)
#if defined(__x86_64__)
CR_TILE(tile_avx2, __attribute__((target("avx2,fma"))), f32x8, 6)
CR_TILE(tile_avx512, __attribute__((target("avx512f"))), f32x16, 12)
CR_TILE(tile_avx512_narrow, __attribute__((target("avx512f,avx512vl,fma"))), f32x8, 12)
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

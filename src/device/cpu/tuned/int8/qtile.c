/* device/cpu/tuned/int8/qtile.c: the inner loop (microkernel) of cpu.qconv and the end of its sums, for each level.
 *
 * The sums of a tile stay in registers: six pixels by two vectors of outputs (12 of AVX2's 16 registers; four pixels
 * without VNNI, which needs registers for products), or by four (24 of AVX-512's 32). 32 multiply-adds are one
 * instruction with VNNI; without it three, or five for twice as many. */
#include "device/cpu/tuned/int8/qconv.h"

#include <math.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { PIXELS = CR_QTILE_PIXELS, RAISE = 128 };

/* ---- any processor ---- */

/* fmaf, which takes long on processors without the instruction: the product is exact in double, and rounding the sum
 * twice is exact, unless it lies in the middle between two floats or below the normal ones. */
static float multiply_add(float a, float b, float c) {
    const double sum = (double)a * (double)b + (double)c;
    uint64_t     bits;
    memcpy(&bits, &sum, sizeof bits);
    return (bits & 0x1fffffff) == 0x10000000 || fabs(sum) < 0x1p-126 ? fmaf(a, b, c) : (float)sum;
}

static float real(enum cr_dtype type, const void *data, int64_t i) {
    return type == CR_I8 ? (float)((const int8_t *)data)[i] : (float)((const uint8_t *)data)[i];
}

/* One output, element `at` of y. */
static void finish_plain(const struct cr_qout *o, int64_t at, int64_t k, int32_t sum) {
    const int64_t K = o->outputs;
    float         v = multiply_add((float)sum, o->coeffs[k], o->coeffs[K + k]);
    if (o->add) v = multiply_add(real(o->add_type, o->add, at), o->coeffs[2 * K + k], v);
    if (o->relu && v < 0) v = 0;
    if (o->y_type == CR_F32) {
        ((float *)o->y)[at] = v;
        return;
    }
    const float low = o->y_type == CR_I8 ? -128.0f : 0.0f, high = o->y_type == CR_I8 ? 127.0f : 255.0f;
    v              = v == v ? CR_MAX(CR_MIN(v, high), low) : 0; /* NaN becomes 0 */
    const int byte = (int)((v + 0x1.8p23f) - 0x1.8p23f);        /* the nearest integer */
    if (o->y_type == CR_I8)
        ((int8_t *)o->y)[at] = (int8_t)byte;
    else
        ((uint8_t *)o->y)[at] = (uint8_t)byte;
}

/* sums: [pixel][width] */
static void finish_sums(const struct cr_qtile *t, const struct cr_qout *o, const int32_t *sums, int width) {
    const int64_t count = CR_MIN((int64_t)width, o->outputs - t->output);
    for (int p = 0; p < t->count; p++)
        for (int64_t k = 0; k < count; k++)
            finish_plain(o, t->y[p] + t->output + k, t->output + k, sums[p * width + k]);
}

enum { PLAIN_WIDTH = 16 };

#ifndef __x86_64__
static void tile_plain(const struct cr_qtile *t, const struct cr_qout *o) {
    int32_t sums[PIXELS * PLAIN_WIDTH];
    for (int i = 0; i < PIXELS * PLAIN_WIDTH; i++) sums[i] = o->raised ? -RAISE * t->panel.sums[i % PLAIN_WIDTH] : 0;
    for (int64_t step = 0; step < t->panel.head->steps; step++) {
        const int8_t *w = t->panel.w + step * PLAIN_WIDTH * CR_QSTEP;
        for (int p = 0; p < t->count; p++) {
            const uint8_t *x = t->x[p] + t->panel.offsets[step];
            for (int k = 0; k < PLAIN_WIDTH; k++)
                for (int i = 0; i < CR_QSTEP; i++) sums[p * PLAIN_WIDTH + k] += x[i] * w[k * CR_QSTEP + i];
        }
    }
    finish_sums(t, o, sums, PLAIN_WIDTH);
}
#endif

/* ---- vectors ---- */

#ifdef __x86_64__
static inline __attribute__((always_inline)) int32_t four(const uint8_t *x) {
    int32_t number;
    memcpy(&number, x, sizeof number);
    return number;
}

/* Four outputs from output k of the panel on: 16-bit products of SSE2, two sums for each output. */
static void sums_sse2(const struct cr_qtile *t, int k, int32_t *sums) {
    const __m128i zero = _mm_setzero_si128();
    const int8_t *w    = t->panel.w + k * CR_QSTEP;
    __m128i       sum[PIXELS][2];
    for (int p = 0; p < PIXELS; p++) sum[p][0] = sum[p][1] = zero;
    for (int64_t step = 0; step < t->panel.head->steps; step++, w += PLAIN_WIDTH * CR_QSTEP) {
        const __m128i bytes = _mm_loadu_si128((const void *)w), signs = _mm_cmpgt_epi8(zero, bytes);
        const __m128i low = _mm_unpacklo_epi8(bytes, signs), high = _mm_unpackhi_epi8(bytes, signs);
#pragma GCC unroll 6
        for (int p = 0; p < PIXELS; p++) {
            const __m128i in = _mm_unpacklo_epi8(_mm_set1_epi32(four(t->x[p] + t->panel.offsets[step])), zero);
            sum[p][0]        = _mm_add_epi32(sum[p][0], _mm_madd_epi16(in, low));
            sum[p][1]        = _mm_add_epi32(sum[p][1], _mm_madd_epi16(in, high));
        }
    }
    for (int p = 0; p < PIXELS; p++) {
        int32_t parts[8];
        _mm_storeu_si128((void *)parts, sum[p][0]);
        _mm_storeu_si128((void *)(parts + 4), sum[p][1]);
        for (int i = 0; i < 4; i++) sums[p * PLAIN_WIDTH + k + i] += parts[2 * i] + parts[2 * i + 1];
    }
}

static void tile_sse2(const struct cr_qtile *t, const struct cr_qout *o) {
    int32_t sums[PIXELS * PLAIN_WIDTH];
    for (int i = 0; i < PIXELS * PLAIN_WIDTH; i++) sums[i] = o->raised ? -RAISE * t->panel.sums[i % PLAIN_WIDTH] : 0;
    for (int k = 0; k < PLAIN_WIDTH; k += 4) sums_sse2(t, k, sums);
    finish_sums(t, o, sums, PLAIN_WIDTH);
}

/* The inputs of a pixel for step d of a block, four in each lane, and the weights of vector v. */
#define IN(bits, d) _mm##bits##_set1_epi32(four(x[p] + offset[d]))
#define WEIGHTS(bits, d) LOAD(bits, w + (d)*WIDTH * CR_QSTEP + v * (bits / 8))
#define LOAD(bits, from) _mm##bits##_loadu_si##bits((const void *)(from))
/* What a block adds to a sum: products of a step in 16 bits, those of two steps, widened. */
#define PAIRS(bits, d) _mm##bits##_maddubs_epi16(IN(bits, d), WEIGHTS(bits, d))
#define WIDEN(bits, sum, pairs) _mm##bits##_add_epi32(sum, _mm##bits##_madd_epi16(pairs, _mm##bits##_set1_epi16(1)))
#define SUM_1(bits, sum) WIDEN(bits, sum, PAIRS(bits, 0))
#define SUM_2(bits, sum) WIDEN(bits, sum, _mm##bits##_add_epi16(PAIRS(bits, 0), PAIRS(bits, 1)))
#define SUM_AVX_VNNI(bits, sum) _mm##bits##_dpbusd_avx_epi32(sum, IN(bits, 0), WEIGHTS(bits, 0))
#define SUM_VNNI(bits, sum) _mm##bits##_dpbusd_epi32(sum, IN(bits, 0), WEIGHTS(bits, 0))

/* The outputs k ... of a vector of sums before rounding; `at`: element of y. add and the types: of o, or constants.
 * A maximum or minimum with a NaN is its second operand. */
#define REALS(bits, isa, load)                                                                                         \
    __attribute__((target(isa), always_inline)) static inline __m##bits reals##bits(                                   \
        const struct cr_qout *o, int64_t at, int64_t k, __m##bits##i sum, const void *add, enum cr_dtype add_type,     \
        enum cr_dtype type) {                                                                                          \
        const float *c = o->coeffs + k;                                                                                \
        __m##bits    v = _mm##bits##_fmadd_ps(_mm##bits##_cvtepi32_ps(sum), _mm##bits##_loadu_ps(c),                   \
                                              _mm##bits##_loadu_ps(c + o->outputs));                                   \
        if (add) {                                                                                                     \
            const __m128i      b = load((const void *)((const char *)add + at));                                       \
            const __m##bits##i whole =                                                                                 \
                add_type == CR_I8 ? _mm##bits##_cvtepi8_epi32(b) : _mm##bits##_cvtepu8_epi32(b);                       \
            v = _mm##bits##_fmadd_ps(_mm##bits##_cvtepi32_ps(whole), _mm##bits##_loadu_ps(c + 2 * o->outputs), v);     \
        }                                                                                                              \
        if (type != CR_U8 && o->relu) v = _mm##bits##_max_ps(_mm##bits##_setzero_ps(), v);                             \
        if (type == CR_I8) v = (__m##bits)((__m##bits##i)(v == v) & (__m##bits##i)v); /* NaN becomes 0 */              \
        return v;                                                                                                      \
    }
REALS(256, "avx2,fma", _mm_loadl_epi64)
REALS(512, "avx512f", _mm_loadu_si128)

/* All vectors of a pixel. Packs saturate, so that only numbers beyond i32 need a limit; NaN becomes the least i32. */
__attribute__((target("avx2,fma"), always_inline)) static inline void
finish256(const struct cr_qout *o, int64_t at, int64_t k, int vectors, const __m256i *sum, const void *add,
          enum cr_dtype add_type, enum cr_dtype type) {
    const __m256 most = _mm256_set1_ps(0x1p30f);
    const __m256 a    = reals256(o, at, k, sum[0], add, add_type, type);
    const __m256 b    = reals256(o, at + 8, k + 8, sum[1], add, add_type, type);
    (void)vectors;
    if (type == CR_F32) {
        _mm256_storeu_ps((float *)o->y + at, a);
        _mm256_storeu_ps((float *)o->y + at + 8, b);
        return;
    }
    const __m256i words =
        _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_min_ps(most, a)), _mm256_cvtps_epi32(_mm256_min_ps(most, b)));
    const __m256i bytes = type == CR_I8 ? _mm256_packs_epi16(words, words) : _mm256_packus_epi16(words, words);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    _mm_storeu_si128((void *)((char *)o->y + at), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
}
__attribute__((target("avx512f"), always_inline)) static inline void
finish512(const struct cr_qout *o, int64_t at, int64_t k, int vectors, const __m512i *sum, const void *add,
          enum cr_dtype add_type, enum cr_dtype type) {
    const __m512 low  = _mm512_set1_ps(type == CR_I8 ? -128.0f : 0.0f),
                 high = _mm512_set1_ps(type == CR_I8 ? 127.0f : 255.0f);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++, at += 16, k += 16) {
        const __m512 real = reals512(o, at, k, sum[v], add, add_type, type);
        if (type == CR_F32) {
            _mm512_storeu_ps((float *)o->y + at, real);
            continue;
        }
        const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(real, low), high));
        _mm_storeu_si128((void *)((char *)o->y + at), _mm512_cvtepi32_epi8(whole));
    }
}

#define UNROLL _Pragma("GCC unroll 8")
/* The types of most layers are constants. */
#define FINISH(bits, pixels, vectors, add, add_type, type)                                                             \
    do {                                                                                                               \
        UNROLL for (int i = 0; i < pixels; i++) if (i < t->count)                                                      \
            finish##bits(o, t->y[i] + t->output, t->output, vectors, sum[i], add, add_type, type);                     \
    } while (0)
#define TILE(name, isa, bits, pixels, vectors, block, SUM, EXTRAS)                                                     \
    __attribute__((target(isa))) static void name(const struct cr_qtile *t, const struct cr_qout *o) {                 \
        enum { LANES = bits / 32, WIDTH = vectors * LANES };                                                           \
        const uint8_t *x[pixels];                                                                                      \
        const int8_t  *w = t->panel.w;                                                                                 \
        __m##bits##i   sum[pixels][vectors];                                                                           \
        UNROLL for (int p = 0; p < pixels; p++) {                                                                      \
            x[p] = t->x[p];                                                                                            \
            UNROLL for (int v = 0; v < vectors; v++) sum[p][v] =                                                       \
                o->raised                                                                                              \
                    ? _mm##bits##_mullo_epi32(LOAD(bits, t->panel.sums + v * LANES), _mm##bits##_set1_epi32(-RAISE))   \
                    : _mm##bits##_setzero_si##bits();                                                                  \
        }                                                                                                              \
        const int32_t *offset = t->panel.offsets, *const end = offset + t->panel.head->steps;                          \
        for (; offset < end; offset += block, w += block * WIDTH * CR_QSTEP)                                           \
            UNROLL for (int p = 0; p < pixels; p++) UNROLL for (int v = 0; v < vectors; v++) sum[p][v] =               \
                SUM(bits, sum[p][v]);                                                                                  \
        EXTRAS(bits, pixels, vectors)                                                                                  \
        if (t->output + WIDTH <= o->outputs) {                                                                         \
            if (o->y_type == CR_U8 && !o->add)                                                                         \
                FINISH(bits, pixels, vectors, NULL, CR_U8, CR_U8);                                                     \
            else if (o->y_type == CR_U8 && o->add_type == CR_U8)                                                       \
                FINISH(bits, pixels, vectors, o->add, CR_U8, CR_U8);                                                   \
            else                                                                                                       \
                FINISH(bits, pixels, vectors, o->add, o->add_type, o->y_type);                                         \
            return;                                                                                                    \
        }                                                                                                              \
        int32_t rest[pixels * WIDTH];                                                                                  \
        UNROLL for (int p = 0; p < pixels; p++) UNROLL for (int v = 0; v < vectors; v++)                               \
            _mm##bits##_storeu_si##bits((void *)(rest + p * WIDTH + v * LANES), sum[p][v]);                            \
        finish_sums(t, o, rest, WIDTH);                                                                                \
    }

#define NONE(bits, pixels, vectors)
#define EXTRA(bits, d) _mm##bits##_maddubs_epi16(IN(bits, d), LOAD(bits, w + (d) * (bits / 8)))
#define ALL(bits, pixels, vectors)                                                                                     \
    offset = t->panel.extra_offsets;                                                                                   \
    w      = t->panel.extra_w;                                                                                         \
    UNROLL for (int v = 0; v < vectors; v++) for (const int32_t *last = offset + t->panel.head->extras[v];             \
                                                  offset < last; offset += 2, w += bits / 4)                           \
        UNROLL for (int p = 0; p < pixels; p++) sum[p][v] =                                                            \
            WIDEN(bits, sum[p][v], _mm##bits##_add_epi16(EXTRA(bits, 0), EXTRA(bits, 1)));
#define TILES(name, isa, bits, pixels, vectors)                                                                        \
    TILE(name##_1, isa, bits, pixels, vectors, 1, SUM_1, ALL) TILE(name##_2, isa, bits, pixels, vectors, 2, SUM_2, ALL)
TILES(tile_avx2, "avx2,fma", 256, 4, 2)
TILES(tile_avx512_16, "avx512f,avx512bw", 512, 6, 1)
TILES(tile_avx512_32, "avx512f,avx512bw", 512, 6, 2)
TILE(tile_avx_vnni, "avx2,fma,avxvnni", 256, 6, 2, 1, SUM_AVX_VNNI, NONE)
TILE(tile_vnni_16, "avx512f,avx512vnni", 512, 6, 1, 1, SUM_VNNI, NONE)
TILE(tile_vnni_32, "avx512f,avx512vnni", 512, 6, 2, 1, SUM_VNNI, NONE)
TILE(tile_vnni_64, "avx512f,avx512vnni", 512, 6, 4, 1, SUM_VNNI, NONE)

static struct cr_qtile_kind kind_of_avx512(int64_t outputs) {
    if (!cr_cpu_has(CR_CPU_AVX512_VNNI))
        return outputs > 16 ? (struct cr_qtile_kind){{tile_avx512_32_1, tile_avx512_32_2}, 6, 32, 2, true}
                            : (struct cr_qtile_kind){{tile_avx512_16_1, tile_avx512_16_2}, 6, 16, 1, true};
    return outputs > 32   ? (struct cr_qtile_kind){{tile_vnni_64}, 6, 64, 4, false}
           : outputs > 16 ? (struct cr_qtile_kind){{tile_vnni_32}, 6, 32, 2, false}
                          : (struct cr_qtile_kind){{tile_vnni_16}, 6, 16, 1, false};
}
#endif

struct cr_qtile_kind cr_qtile_kind_of(int64_t outputs) {
#ifdef __x86_64__
    if (cr_cpu_level() == CR_CPU_AVX512) return kind_of_avx512(outputs);
    if (cr_cpu_has(CR_CPU_AVX_VNNI)) return (struct cr_qtile_kind){{tile_avx_vnni}, 6, 16, 2, false};
    if (cr_cpu_level() == CR_CPU_AVX2) return (struct cr_qtile_kind){{tile_avx2_1, tile_avx2_2}, 4, 16, 2, true};
    return (struct cr_qtile_kind){{tile_sse2}, PIXELS, PLAIN_WIDTH, 1, false};
#else
    (void)outputs;
    return (struct cr_qtile_kind){{tile_plain}, PIXELS, PLAIN_WIDTH, 1, false};
#endif
}

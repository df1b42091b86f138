/* data/image/jpeg_pixels_avx2.c: from coefficients to pixels with AVX2, for data/image/jpeg_baseline.c. The inverse
 * transform follows Loeffler, Ligtenberg and Moschytz in 13-bit fixed point; upsampling uses triangle filters; YCbCr
 * becomes RGB. The rounding is that of libjpeg, so the pixels are bitwise identical to libjpeg's. */
#include "data/image/jpeg.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { FRACTION = 13, PASS_BITS = 2, ONE = 1 << FRACTION };

/* The limits up to which libjpeg's transforms (with vectors of 16 bits, or without) agree: beyond them sums of two
 * values exceed 16 bits, or a result lies outside the table that clamps it. Encoders do not produce such blocks. */
enum { SUM_LIMIT = 1 << 14, RESULT_LIMIT = 512 };

/* Cosine products, times 2^13. */
enum {
    K_0_298 = 2446,
    K_0_390 = 3196,
    K_0_541 = 4433,
    K_0_765 = 6270,
    K_0_899 = 7373,
    K_1_175 = 9633,
    K_1_501 = 12299,
    K_1_847 = 15137,
    K_1_961 = 16069,
    K_2_053 = 16819,
    K_2_562 = 20995,
    K_3_072 = 25172,
};

/* The vectors of a block of 8 x 8 numbers of 16 bits. Each has two rows, the first in its low half of 128 bits:
 *   - input of `transform`: {0, 4}, {2, 6}, {7, 5}, {1, 3}, CR_JPEG_ROW_ORDER
 *   - output of `transform`: {0, 1}, {3, 2}, {4, 5}, {7, 6} */
void cr_jpeg_set_steps(const uint16_t natural[64], struct cr_jpeg_steps *out) {
    static const int order[8] = CR_JPEG_ROW_ORDER;
    for (int i = 0; i < 64; i++) {
        out->step[i]  = natural[order[i / 8] * 8 + i % 8];
        out->limit[i] = (uint16_t)(out->step[i] ? (SUM_LIMIT - 1) / out->step[i] : 0);
    }
}

/* a[i] * x + b[i] * y for pairs (a[i], b[i]) of numbers of 16 bits. The low half of `pairs` has factors x and y of its
 * own. */
INLINE __m256i products(__m256i pairs, int low_x, int low_y, int high_x, int high_y) {
    const int low  = (int)((uint32_t)(uint16_t)low_x | (uint32_t)low_y << 16);
    const int high = (int)((uint32_t)(uint16_t)high_x | (uint32_t)high_y << 16);
    return _mm256_madd_epi16(pairs, _mm256_setr_epi32(low, low, low, low, high, high, high, high));
}

INLINE __m256i swapped(__m256i v) {
    return _mm256_permute2x128_si256(v, v, 1);
}

/* Half of the columns of a transform: four numbers of 32 bits of each of two rows. The pairs are those of the rows
 * (0, 4) and (4, 0), (2, 6) and (6, 2), (7, 1) and (5, 3), and the same of the sums (7 + 3, 5 + 1). */
INLINE void half_transform(__m256i pairs04, __m256i pairs26, __m256i pairs71, __m256i sums, const int shift,
                           __m256i out[4]) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    /* the even half, with the rounding added once */
    __m256i a      = _mm256_add_epi32(products(pairs04, ONE, ONE, -ONE, ONE), half);
    __m256i b      = products(pairs26, K_0_541 + K_0_765, K_0_541, K_0_541 - K_1_847, K_0_541);
    __m256i even01 = _mm256_add_epi32(a, b), even32 = _mm256_sub_epi32(a, b);
    /* the odd half */
    __m256i odd01 = products(pairs71, -K_0_899, K_1_501 - K_0_899, -K_2_562, K_3_072 - K_2_562);
    __m256i odd32 = products(pairs71, K_0_298 - K_0_899, -K_0_899, K_2_053 - K_2_562, -K_2_562);
    odd01         = _mm256_add_epi32(odd01, products(sums, K_1_175, K_1_175 - K_0_390, K_1_175, K_1_175 - K_1_961));
    odd32         = _mm256_add_epi32(odd32, products(sums, K_1_175 - K_1_961, K_1_175, K_1_175 - K_0_390, K_1_175));
    out[0]        = _mm256_srai_epi32(_mm256_add_epi32(even01, odd01), shift);
    out[1]        = _mm256_srai_epi32(_mm256_add_epi32(even32, odd32), shift);
    out[2]        = _mm256_srai_epi32(_mm256_sub_epi32(even32, odd32), shift);
    out[3]        = _mm256_srai_epi32(_mm256_sub_epi32(even01, odd01), shift);
}

/* Eight transforms of eight numbers, side by side; the results are shifted right by `shift` and rounded. */
INLINE void transform(__m256i v[4], const int shift) {
    __m256i v40 = swapped(v[0]), v62 = swapped(v[1]), sums = _mm256_add_epi16(v[2], swapped(v[3]));
    __m256i other = swapped(sums), low[4], high[4];
    half_transform(_mm256_unpacklo_epi16(v[0], v40), _mm256_unpacklo_epi16(v[1], v62),
                   _mm256_unpacklo_epi16(v[2], v[3]), _mm256_unpacklo_epi16(sums, other), shift, low);
    half_transform(_mm256_unpackhi_epi16(v[0], v40), _mm256_unpackhi_epi16(v[1], v62),
                   _mm256_unpackhi_epi16(v[2], v[3]), _mm256_unpackhi_epi16(sums, other), shift, high);
    for (int i = 0; i < 4; i++) v[i] = _mm256_packs_epi32(low[i], high[i]); /* saturates at 16 bits */
}

/* From the output of `transform` to the input of the next: columns become rows. Their numbers are in the order 0, 3, 4,
 * 7, 1, 2, 5, 6, as unpacking leaves them. */
INLINE void transpose(__m256i v[4]) {
    __m256i a = _mm256_unpacklo_epi16(v[0], v[1]), b = _mm256_unpackhi_epi16(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi16(v[2], v[3]), d = _mm256_unpackhi_epi16(v[2], v[3]);
    __m256i c01 = _mm256_unpacklo_epi32(a, c), c23 = _mm256_unpackhi_epi32(a, c);
    __m256i c45 = _mm256_unpacklo_epi32(b, d), c67 = _mm256_unpackhi_epi32(b, d);
    v[0] = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(c01, c45), 0xd8);
    v[1] = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(c23, c67), 0xd8);
    v[2] = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(c67, c45), 0xd8);
    v[3] = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(c01, c23), 0xd8);
}

/* Stores the output of the second transform, whose rows are columns of the block, as bytes. */
INLINE void store_block(const __m256i v[4], uint8_t *dst, size_t stride) {
    static const uint8_t order[8] = {0, 3, 4, 7, 1, 2, 5, 6}; /* of transpose */
    const __m256i        middle = _mm256_set1_epi16(128), join = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i              w[4];
    for (int i = 0; i < 4; i++) w[i] = _mm256_adds_epi16(v[i], middle);
    __m256i c04_15 = _mm256_packus_epi16(w[0], w[2]), c37_26 = _mm256_packus_epi16(w[1], w[3]);
    __m256i c04_26 = _mm256_blend_epi32(c04_15, c37_26, 0xf0), c15_37 = _mm256_permute2x128_si256(c04_15, c37_26, 0x21);
    __m256i c01_23 = _mm256_unpacklo_epi8(c04_26, c15_37), c45_67 = _mm256_unpackhi_epi8(c04_26, c15_37);
    __m256i c01_45  = _mm256_permute2x128_si256(c01_23, c45_67, 0x20);
    __m256i c23_67  = _mm256_permute2x128_si256(c01_23, c45_67, 0x31);
    __m256i rows[2] = {_mm256_permutevar8x32_epi32(_mm256_unpacklo_epi16(c01_45, c23_67), join),
                       _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi16(c01_45, c23_67), join)};
    uint64_t eight[8];
    memcpy(eight, rows, sizeof eight);
    for (int i = 0; i < 8; i++) memcpy(dst + order[i] * stride, &eight[i], 8);
}

/* All numbers are less than `limit` in magnitude, a power of 2. */
INLINE bool are_small(const __m256i v[4], int limit) {
    __m256i a = _mm256_or_si256(_mm256_abs_epi16(v[0]), _mm256_abs_epi16(v[1]));
    __m256i b = _mm256_or_si256(_mm256_abs_epi16(v[2]), _mm256_abs_epi16(v[3]));
    return _mm256_testz_si256(_mm256_or_si256(a, b), _mm256_set1_epi16((int16_t) ~(limit - 1)));
}

TARGET bool cr_jpeg_block(const int16_t coefficient[64], const struct cr_jpeg_steps *steps, uint8_t *dst,
                          size_t stride) {
    __m256i v[4], over = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        __m256i two   = _mm256_loadu_si256((const __m256i *)coefficient + i);
        __m256i limit = _mm256_loadu_si256((const __m256i *)steps->limit + i);
        over          = _mm256_or_si256(over, _mm256_subs_epu16(_mm256_abs_epi16(two), limit));
        v[i]          = _mm256_mullo_epi16(two, _mm256_loadu_si256((const __m256i *)steps->step + i));
    }
    transform(v, FRACTION - PASS_BITS);
    bool small = _mm256_testz_si256(over, over) && are_small(v, SUM_LIMIT);
    transpose(v);
    transform(v, FRACTION + PASS_BITS + 3);
    if (!small || !are_small(v, RESULT_LIMIT)) return false;
    store_block(v, dst, stride);
    return true;
}

bool cr_jpeg_dc_block(int32_t dc, uint8_t *dst, size_t stride) {
    int32_t value = (dc + 4) >> 3;
    if (value < -RESULT_LIMIT || value >= RESULT_LIMIT) return false;
    value = CR_MAX(0, CR_MIN(value + 128, 255));
    for (int r = 0; r < 8; r++) memset(dst + (size_t)r * stride, value, 8);
    return true;
}

/* ---- upsampling ---- */

/* `near` is the nearest row of samples, `far` the second nearest; both have one sample before and one after the
 * `count` samples. */
TARGET void cr_jpeg_upsample(const uint8_t *near, const uint8_t *far, int count, bool across, bool down, bool second,
                             uint8_t *out) {
    if (across && down) {
        for (int i = 0; i < count; i++) {
            int here = 3 * near[i] + far[i];
            int left = 3 * near[i - 1] + far[i - 1], right = 3 * near[i + 1] + far[i + 1];
            out[2 * i]     = (uint8_t)((3 * here + left + 8) >> 4);
            out[2 * i + 1] = (uint8_t)((3 * here + right + 7) >> 4);
        }
    } else if (across) {
        for (int i = 0; i < count; i++) {
            out[2 * i]     = (uint8_t)((3 * near[i] + near[i - 1] + 1) >> 2);
            out[2 * i + 1] = (uint8_t)((3 * near[i] + near[i + 1] + 2) >> 2);
        }
    } else if (down) {
        int bias = second ? 2 : 1;
        for (int i = 0; i < count; i++) out[i] = (uint8_t)((3 * near[i] + far[i] + bias) >> 2);
    } else
        memcpy(out, near, (size_t)count);
}

/* ---- colours ---- */

/* Interleaves 16 bytes of each colour to 48 bytes. */
TARGET static inline void store_rgb(__m128i r, __m128i g, __m128i b, uint8_t *dst) {
    static const int8_t from[3][3][16] = {
        {{0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5},
         {-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1},
         {-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1}},
        {{-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1},
         {5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10},
         {-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1}},
        {{-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1},
         {-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1},
         {10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15}},
    };
    for (int k = 0; k < 3; k++) {
        __m128i part = _mm_shuffle_epi8(r, _mm_loadu_si128((const __m128i *)from[k][0]));
        part         = _mm_or_si128(part, _mm_shuffle_epi8(g, _mm_loadu_si128((const __m128i *)from[k][1])));
        part         = _mm_or_si128(part, _mm_shuffle_epi8(b, _mm_loadu_si128((const __m128i *)from[k][2])));
        _mm_storeu_si128((__m128i *)(dst + 16 * k), part);
    }
}

TARGET static inline __m128i to_bytes(__m256i v) {
    return _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

/* x * k / 2^16, rounded half up. */
TARGET static inline __m256i scaled(__m256i x, int k) {
    __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((int16_t)k));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

/* The factors 1.402, 0.34414, 0.71414 and 1.772 are scaled by 2^16; the part that exceeds 16 bits is added as a
 * whole number. */
TARGET void cr_jpeg_colours(const uint8_t *luma, const uint8_t *blue, const uint8_t *red, int count, uint8_t *dst) {
    const __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(1 << 15);
    const __m256i green = _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)-22554 | (uint32_t)(65536 - 46802) << 16));
    for (int i = 0; i < count; i += 16) {
        __m256i y  = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(luma + i)));
        __m256i cb = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(blue + i))), middle);
        __m256i cr = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(red + i))), middle);
        __m256i r  = _mm256_add_epi16(y, _mm256_add_epi16(cr, scaled(cr, 91881 - 65536)));
        __m256i b  = _mm256_add_epi16(y, _mm256_add_epi16(_mm256_add_epi16(cb, cb), scaled(cb, 116130 - 131072)));
        __m256i lo = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), green), half);
        __m256i hi = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), green), half);
        __m256i gg = _mm256_packs_epi32(_mm256_srai_epi32(lo, 16), _mm256_srai_epi32(hi, 16));
        __m256i g  = _mm256_add_epi16(y, _mm256_sub_epi16(gg, cr));
        store_rgb(to_bytes(r), to_bytes(g), to_bytes(b), dst + (size_t)i * 3);
    }
}

#endif

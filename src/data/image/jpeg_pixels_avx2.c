/* data/image/jpeg_pixels_avx2.c: from coefficients to pixels with AVX2, for data/image/jpeg_baseline.c. The inverse
 * transform follows Loeffler, Ligtenberg and Moschytz in 13-bit fixed point; upsampling uses triangle filters; YCbCr
 * becomes RGB. The rounding is that of libjpeg, so the pixels are bitwise identical to libjpeg's. */
#include "data/image/jpeg.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))

enum { FRACTION = 13, PASS_BITS = 2 };

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

TARGET static inline __m256i times(__m256i a, int k) {
    return _mm256_mullo_epi32(a, _mm256_set1_epi32(k));
}
TARGET static inline __m256i plus(__m256i a, __m256i b) {
    return _mm256_add_epi32(a, b);
}
TARGET static inline __m256i minus(__m256i a, __m256i b) {
    return _mm256_sub_epi32(a, b);
}

/* Eight transforms of eight values, side by side; the results are shifted right by `shift` and rounded. */
TARGET static inline __attribute__((always_inline)) void transform(__m256i v[8], const int shift) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    /* the even half, with the rounding added once */
    __m256i shared = times(plus(v[2], v[6]), K_0_541);
    __m256i low = minus(shared, times(v[6], K_1_847)), high = plus(shared, times(v[2], K_0_765));
    __m256i sum     = plus(_mm256_slli_epi32(plus(v[0], v[4]), FRACTION), half);
    __m256i diff    = plus(_mm256_slli_epi32(minus(v[0], v[4]), FRACTION), half);
    __m256i even[4] = {plus(sum, high), plus(diff, low), minus(diff, low), minus(sum, high)};
    /* the odd half */
    __m256i a = plus(v[7], v[3]), b = plus(v[5], v[1]), both = times(plus(a, b), K_1_175);
    __m256i outer = times(plus(v[7], v[1]), -K_0_899), inner = times(plus(v[5], v[3]), -K_2_562);
    a              = plus(times(a, -K_1_961), both);
    b              = plus(times(b, -K_0_390), both);
    __m256i odd[4] = {plus(times(v[1], K_1_501), plus(outer, b)), plus(times(v[3], K_3_072), plus(inner, a)),
                      plus(times(v[5], K_2_053), plus(inner, b)), plus(times(v[7], K_0_298), plus(outer, a))};
    for (int i = 0; i < 4; i++) {
        v[i]     = _mm256_srai_epi32(plus(even[i], odd[i]), shift);
        v[7 - i] = _mm256_srai_epi32(minus(even[i], odd[i]), shift);
    }
}

TARGET static inline __attribute__((always_inline)) void transpose(__m256i v[8]) {
    __m256i pair[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i]     = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        pair[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            four[i + 2 * k]     = _mm256_unpacklo_epi64(pair[i + k], pair[i + k + 2]);
            four[i + 2 * k + 1] = _mm256_unpackhi_epi64(pair[i + k], pair[i + k + 2]);
        }
    for (int i = 0; i < 4; i++) {
        v[i]     = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
    }
}

/* Returns 16-bit lanes with the bitwise or of x for all values x >= 0 and of -x - 1 for all values x < 0. */
TARGET static inline __attribute__((always_inline)) __m256i magnitude(const __m256i v[8]) {
    __m256i all = _mm256_setzero_si256();
    for (int i = 0; i < 8; i += 2) {
        __m256i two = _mm256_packs_epi32(v[i], v[i + 1]); /* saturates at 16 bits */
        all         = _mm256_or_si256(all, _mm256_xor_si256(two, _mm256_srai_epi16(two, 15)));
    }
    return all;
}

TARGET bool cr_jpeg_block(const int16_t coefficient[64], const int32_t step[64], uint8_t *dst, size_t stride) {
    __m256i v[8];
    for (int i = 0; i < 8; i++) {
        __m128i row = _mm_loadu_si128((const __m128i *)(coefficient + 8 * i));
        v[i] = _mm256_mullo_epi32(_mm256_cvtepi16_epi32(row), _mm256_loadu_si256((const __m256i *)(step + 8 * i)));
    }
    __m256i large = magnitude(v);
    transform(v, FRACTION - PASS_BITS);
    large = _mm256_or_si256(large, magnitude(v));
    transpose(v);
    transform(v, FRACTION + PASS_BITS + 3);
    transpose(v);
    if (!_mm256_testz_si256(large, _mm256_set1_epi16((int16_t) ~(SUM_LIMIT - 1)))) return false;
    if (!_mm256_testz_si256(magnitude(v), _mm256_set1_epi16((int16_t) ~(RESULT_LIMIT - 1)))) return false;
    const __m256i middle = _mm256_set1_epi16(128);
    for (int i = 0; i < 8; i += 4) { /* converts four rows to bytes; packing works within halves of 128 bits */
        __m256i  a     = _mm256_adds_epi16(_mm256_packs_epi32(v[i], v[i + 1]), middle);
        __m256i  b     = _mm256_adds_epi16(_mm256_packs_epi32(v[i + 2], v[i + 3]), middle);
        __m256i  bytes = _mm256_packus_epi16(a, b);
        __m256i  rows  = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        uint64_t four[4];
        _mm256_storeu_si256((__m256i *)four, rows);
        for (int r = 0; r < 4; r++) memcpy(dst + (size_t)(i + r) * stride, &four[r], 8);
    }
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

/* data/image/resize_avx512.c: the two passes of data/image/resize.c for CPUs with 512-bit vectors, byte permutation and
 * 16-bit dot products (Ice Lake, Zen 4 and later). A weight of 22 bits is split into hi * 2^11 + lo, two halves of 16
 * bits, so that one instruction multiplies and adds two taps of 16 lanes. The sums are bitwise identical to those of
 * data/image/resize.c.
 *
 * The horizontal pass computes 16 bytes of the result at once. Their taps lie within 64 bytes of the source for
 * every reduction below about 3. A permutation by a table (made once per image, shared by all rows) moves each tap
 * to its lane; mirroring only changes the table. */
#include "core/cpu.h"
#include "data/image/resize_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

enum {
    LANES       = 16,
    REACH       = 64,
    HALF_BITS   = CR_RESIZE_HALF_BITS,
    WEIGHT_BITS = CR_RESIZE_WEIGHT_BITS,
    ROUND       = 1 << (WEIGHT_BITS - 1)
};

/* For 16 bytes of the result: the first source byte, and for each pair of taps the permutation and the halves of the
 * weights. */
struct pair_table {
    uint8_t from[REACH];
    int16_t high[2 * LANES], low[2 * LANES];
};
struct chunk {
    uint64_t readable; /* mask of the bytes from `base` on that belong to the row */
    uint32_t writable; /* mask of the lanes that belong to the result */
    int32_t  base;
};

static int chunk_count(const struct cr_axis *axis) {
    return (axis->count * axis->channels + LANES - 1) / LANES;
}

static int pair_count(const struct cr_axis *axis) {
    return (axis->taps_max + 1) / 2;
}

static size_t across_bytes(const struct cr_axis *axis) {
    size_t pairs_max = ((size_t)axis->stride + 1) / 2;
    return (size_t)chunk_count(axis) * (pairs_max * sizeof(struct pair_table) + sizeof(struct chunk));
}

/* The pixel that byte k of the result belongs to; bytes after the end belong to the last pixel. */
static int pixel_of(const struct cr_axis *axis, int k, bool flip) {
    int i = CR_MIN(k / axis->channels, axis->count - 1);
    return flip ? axis->count - 1 - i : i;
}

static void fill_lane(const struct cr_axis *axis, int pixel, int from, int lane, bool used, struct pair_table *pairs) {
    const int32_t *weight = axis->weight + (size_t)pixel * axis->stride;
    for (int t = 0; t < 2 * pair_count(axis); t++) {
        struct pair_table *pair  = &pairs[t / 2];
        int                at    = 2 * lane + t % 2;
        bool               valid = used && t < axis->taps[pixel];
        pair->from[2 * at]       = (uint8_t)(valid ? from + axis->channels * t : 0);
        pair->from[2 * at + 1]   = 0; /* the upper byte of 16 bits: the mask sets it to 0 */
        pair->high[at]           = (int16_t)(valid ? weight[t] >> HALF_BITS : 0);
        pair->low[at]            = (int16_t)(valid ? weight[t] & ((1 << HALF_BITS) - 1) : 0);
    }
}

static bool make_across(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables) {
    int chunks = chunk_count(axis), pairs = pair_count(axis), channels = axis->channels, bytes = axis->count * channels;
    struct pair_table *pair = (struct pair_table *)tables;
    struct chunk      *head = (struct chunk *)(pair + (size_t)chunks * pairs);
    for (int c = 0; c < chunks; c++, pair += pairs) {
        int a = pixel_of(axis, c * LANES, flip), b = pixel_of(axis, c * LANES + LANES - 1, flip);
        int left = CR_MIN(a, b), right = CR_MAX(a, b), base = axis->first[left] * channels;
        if ((axis->first[right] + axis->taps[right]) * channels - base > REACH) return false;
        int left_bytes   = source_bytes - base;
        head[c].base     = base;
        head[c].readable = left_bytes >= REACH ? ~UINT64_C(0) : (UINT64_C(1) << left_bytes) - 1;
        head[c].writable = bytes - c * LANES >= LANES ? 0xffff : (1u << (bytes - c * LANES)) - 1;
        for (int lane = 0; lane < LANES; lane++) {
            int k = c * LANES + lane, pixel = pixel_of(axis, k, flip);
            fill_lane(axis, pixel, axis->first[pixel] * channels + k % channels - base, lane, k < bytes, pair);
        }
    }
    return true;
}

/* Processes `rows` rows at once, so that they share the loads of the tables. */
TARGET static inline __attribute__((always_inline)) void across_rows(const struct cr_axis *axis, const uint8_t *tables,
                                                                     const uint8_t *src, size_t src_stride,
                                                                     uint8_t *dst, size_t dst_stride, const int rows) {
    int                      chunks = chunk_count(axis), pairs = pair_count(axis);
    const struct pair_table *pair  = (const struct pair_table *)tables;
    const struct chunk      *head  = (const struct chunk *)(pair + (size_t)chunks * pairs);
    const __m512i            round = _mm512_set1_epi32(ROUND);
    for (int c = 0; c < chunks; c++) {
        __m512i pixels[4], high[4], low[4];
        for (int r = 0; r < rows; r++) {
            pixels[r] = _mm512_maskz_loadu_epi8(head[c].readable, src + (size_t)r * src_stride + head[c].base);
            high[r]   = _mm512_setzero_si512();
            low[r]    = round;
        }
        for (int p = 0; p < pairs; p++, pair++) {
            __m512i from = _mm512_loadu_si512(pair->from), upper = _mm512_loadu_si512(pair->high);
            __m512i lower = _mm512_loadu_si512(pair->low);
            for (int r = 0; r < rows; r++) {
                __m512i taps = _mm512_maskz_permutexvar_epi8(UINT64_C(0x5555555555555555), from, pixels[r]);
                high[r]      = _mm512_dpwssd_epi32(high[r], taps, upper);
                low[r]       = _mm512_dpwssd_epi32(low[r], taps, lower);
            }
        }
        for (int r = 0; r < rows; r++) {
            __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[r], HALF_BITS), low[r]);
            _mm512_mask_cvtusepi32_storeu_epi8(dst + (size_t)r * dst_stride + (size_t)c * LANES,
                                               (__mmask16)head[c].writable, _mm512_srli_epi32(sum, WEIGHT_BITS));
        }
    }
}

TARGET static void resize_across(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src,
                                 size_t src_stride, int rows, uint8_t *dst, size_t dst_stride) {
    int r = 0;
    for (; r + 4 <= rows; r += 4)
        across_rows(axis, tables, src + (size_t)r * src_stride, src_stride, dst + (size_t)r * dst_stride, dst_stride,
                    4);
    for (; r < rows; r++)
        across_rows(axis, tables, src + (size_t)r * src_stride, src_stride, dst + (size_t)r * dst_stride, dst_stride,
                    1);
}

TARGET static inline __m512i two_halves(int32_t first, int32_t second) {
    return _mm512_set1_epi32((int32_t)((uint32_t)first | (uint32_t)second << 16));
}

/* Combines the sums of the high and low halves and shifts them to bytes. */
TARGET static inline __m512i combined(__m512i high, __m512i low) {
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, HALF_BITS), low), WEIGHT_BITS);
}

TARGET static bool resize_down(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst,
                               size_t count) {
    const __m512i zero = _mm512_setzero_si512(), round = _mm512_set1_epi32(ROUND);
    const int32_t mask = (1 << HALF_BITS) - 1;
    for (size_t at = 0; at < count; at += REACH) {
        __mmask64 here    = count - at >= REACH ? ~UINT64_C(0) : (UINT64_C(1) << (count - at)) - 1;
        __m512i   high[4] = {zero, zero, zero, zero}, low[4] = {round, round, round, round};
        for (int t = 0; t < taps; t += 2) {
            bool           both = t + 1 < taps;
            const uint8_t *row  = src + (size_t)t * stride + at;
            int32_t        w0 = weight[t], w1 = both ? weight[t + 1] : 0;
            __m512i        a = _mm512_maskz_loadu_epi8(here, row);
            __m512i        b = _mm512_maskz_loadu_epi8(here, row + (both ? stride : 0));
            __m512i upper = two_halves(w0 >> HALF_BITS, w1 >> HALF_BITS), lower = two_halves(w0 & mask, w1 & mask);
            __m512i near = _mm512_unpacklo_epi8(a, b), far = _mm512_unpackhi_epi8(a, b);
            __m512i quarter[4] = {_mm512_unpacklo_epi8(near, zero), _mm512_unpackhi_epi8(near, zero),
                                  _mm512_unpacklo_epi8(far, zero), _mm512_unpackhi_epi8(far, zero)};
            for (int q = 0; q < 4; q++) {
                high[q] = _mm512_dpwssd_epi32(high[q], quarter[q], upper);
                low[q]  = _mm512_dpwssd_epi32(low[q], quarter[q], lower);
            }
        }
        /* Packing restores the order that unpacking changed. */
        __m512i near = _mm512_packus_epi32(combined(high[0], low[0]), combined(high[1], low[1]));
        __m512i far  = _mm512_packus_epi32(combined(high[2], low[2]), combined(high[3], low[3]));
        _mm512_mask_storeu_epi8(dst + at, here, _mm512_packus_epi16(near, far));
    }
    return true;
}

const struct cr_resize_kernel cr_resize_avx512 = {across_bytes, make_across, resize_across, resize_down};

#endif

/* data/image/resize_avx2.c: the two passes of data/image/resize.c for AVX2. As in data/image/resize_avx512.c, halves of
 * weights are multiplied, two taps of eight lanes at once, and the sums are bitwise identical to those of
 * data/image/resize.c.
 *
 * The horizontal pass computes 16 bytes of the result at once, in four groups of four lanes. The two taps of a group
 * lie within 16 bytes of the source for every reduction below about 3, and a shuffle by a table (made once per image,
 * shared by all rows) moves each tap to its lane. Groups never read beyond the row: where less than 16 bytes are left,
 * they read the last 16. The last 16 bytes of the result likewise overlap those before. */
#include "core/cpu.h"
#include "data/image/resize_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum {
    CHUNK     = 16, /* bytes of the result that the horizontal pass computes at once */
    GROUP     = 4,  /* lanes that share a load */
    REACH     = 16, /* bytes of a load */
    COLUMNS   = 32, /* bytes of a row that the vertical pass computes at once */
    PAIRS_MAX = 16, /* pairs of taps of the vertical pass */
    HALF_BITS = CR_RESIZE_HALF_BITS,
    HALF_MASK = (1 << HALF_BITS) - 1,
    ROUND     = 1 << (CR_RESIZE_WEIGHT_BITS - 1),
};

/* A pair of taps of 16 bytes of the result. Vector v has the groups v and v + 2, so that packing puts the four groups
 * in order. */
struct pair_table {
    uint8_t from[2][32]; /* byte of the load, or 0x80 for 0 */
    int16_t high[2][16], low[2][16];
    int32_t base[4]; /* per group: the first byte of the load */
};

static int pair_count(const struct cr_axis *axis) {
    return (axis->taps_max + 1) / 2;
}

static int chunk_count(const struct cr_axis *axis) {
    return (axis->count * axis->channels + CHUNK - 1) / CHUNK;
}

/* The first byte of the result in a chunk. */
static int chunk_start(const struct cr_axis *axis, int chunk) {
    return CR_MIN(chunk * CHUNK, axis->count * axis->channels - CHUNK);
}

static size_t across_bytes(const struct cr_axis *axis) {
    return (size_t)chunk_count(axis) * (size_t)((axis->stride + 1) / 2) * sizeof(struct pair_table);
}

/* Fills the lanes of a group for the taps 2 * pair and 2 * pair + 1; k: the first byte of the result. */
static bool fill_group(const struct cr_axis *axis, int source_bytes, bool flip, int k, int pair, int group,
                       struct pair_table *table) {
    int pixel[GROUP], at[GROUP], base = source_bytes - REACH, channels = axis->channels;
    for (int lane = 0; lane < GROUP; lane++) {
        int i       = (k + lane) / channels;
        pixel[lane] = flip ? axis->count - 1 - i : i;
        at[lane]    = (axis->first[pixel[lane]] + 2 * pair) * channels + (k + lane) % channels;
        base        = CR_MIN(base, at[lane]);
    }
    table->base[group] = base;
    for (int lane = 0; lane < GROUP; lane++) {
        const int32_t *weight = axis->weight + (size_t)pixel[lane] * (size_t)axis->stride;
        for (int t = 2 * pair; t < 2 * pair + 2; t++) {
            int  vector = group % 2, slot = group / 2 * 8 + lane * 2 + t % 2, from = at[lane] + t % 2 * channels - base;
            bool used = t < axis->taps[pixel[lane]];
            if (used && from >= REACH) return false;
            table->from[vector][2 * slot]     = used ? (uint8_t)from : 0x80;
            table->from[vector][2 * slot + 1] = 0x80;
            table->high[vector][slot]         = (int16_t)(used ? weight[t] >> HALF_BITS : 0);
            table->low[vector][slot]          = (int16_t)(used ? weight[t] & HALF_MASK : 0);
        }
    }
    return true;
}

static bool make_across(const struct cr_axis *axis, int source_bytes, bool flip, uint8_t *tables) {
    struct pair_table *table = (struct pair_table *)tables;
    if (source_bytes < REACH || axis->count * axis->channels < CHUNK) return false;
    for (int c = 0; c < chunk_count(axis); c++)
        for (int pair = 0; pair < pair_count(axis); pair++, table++)
            for (int g = 0; g < CHUNK / GROUP; g++)
                if (!fill_group(axis, source_bytes, flip, chunk_start(axis, c) + g * GROUP, pair, g, table))
                    return false;
    return true;
}

INLINE __m256i load_groups(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

/* Combines the sums of the high and low halves and shifts them to bytes. */
INLINE __m256i combined(__m256i high, __m256i low) {
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, HALF_BITS), low), CR_RESIZE_WEIGHT_BITS);
}

/* Processes `rows` rows (1 or 2) at once, so that they share the loads of the tables. */
INLINE void across_rows(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src, size_t src_stride,
                        uint8_t *dst, size_t dst_stride, const int rows) {
    const int                chunks = chunk_count(axis), pairs = pair_count(axis);
    const struct pair_table *table = (const struct pair_table *)tables;
    for (int c = 0; c < chunks; c++) {
        __m256i high[2][2], low[2][2], words[2];
        for (int i = 0; i < 2 * rows; i++) {
            high[i / 2][i % 2] = _mm256_setzero_si256();
            low[i / 2][i % 2]  = _mm256_set1_epi32(ROUND);
        }
        for (int p = 0; p < pairs; p++, table++)
            for (int v = 0; v < 2; v++) {
                __m256i from  = _mm256_loadu_si256((const __m256i *)table->from[v]);
                __m256i upper = _mm256_loadu_si256((const __m256i *)table->high[v]);
                __m256i lower = _mm256_loadu_si256((const __m256i *)table->low[v]);
                for (int r = 0; r < rows; r++) {
                    const uint8_t *row  = src + (size_t)r * src_stride;
                    __m256i        taps = load_groups(row + table->base[v], row + table->base[v + 2]);
                    taps                = _mm256_shuffle_epi8(taps, from);
                    high[r][v]          = _mm256_add_epi32(high[r][v], _mm256_madd_epi16(taps, upper));
                    low[r][v]           = _mm256_add_epi32(low[r][v], _mm256_madd_epi16(taps, lower));
                }
            }
        for (int r = 0; r < rows; r++)
            words[r] = _mm256_packs_epi32(combined(high[r][0], low[r][0]), combined(high[r][1], low[r][1]));
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(words[0], words[rows - 1]), 0xd8);
        _mm_storeu_si128((__m128i *)(dst + chunk_start(axis, c)), _mm256_castsi256_si128(bytes));
        if (rows == 2)
            _mm_storeu_si128((__m128i *)(dst + dst_stride + chunk_start(axis, c)), _mm256_extracti128_si256(bytes, 1));
    }
}

TARGET static void resize_across(const struct cr_axis *axis, const uint8_t *tables, const uint8_t *src,
                                 size_t src_stride, int rows, uint8_t *dst, size_t dst_stride) {
    int r = 0;
    for (; r + 2 <= rows; r += 2)
        across_rows(axis, tables, src + (size_t)r * src_stride, src_stride, dst + (size_t)r * dst_stride, dst_stride,
                    2);
    if (r < rows)
        across_rows(axis, tables, src + (size_t)r * src_stride, src_stride, dst + (size_t)r * dst_stride, dst_stride,
                    1);
}

/* 32 bytes of the result of the vertical pass; `halves` has the high and the low halves of each pair of weights. */
INLINE void down_columns(const int32_t *halves, int taps, const uint8_t *src, size_t stride, uint8_t *dst) {
    const __m256i zero = _mm256_setzero_si256(), round = _mm256_set1_epi32(ROUND);
    __m256i       high[4] = {zero, zero, zero, zero}, low[4] = {round, round, round, round};
    for (int t = 0; t < taps; t += 2, halves += 2, src += 2 * stride) {
        __m256i a     = _mm256_loadu_si256((const __m256i *)src);
        __m256i b     = _mm256_loadu_si256((const __m256i *)(src + (t + 1 < taps ? stride : 0)));
        __m256i upper = _mm256_set1_epi32(halves[0]), lower = _mm256_set1_epi32(halves[1]);
        __m256i near = _mm256_unpacklo_epi8(a, b), far = _mm256_unpackhi_epi8(a, b);
        __m256i quarter[4] = {_mm256_unpacklo_epi8(near, zero), _mm256_unpackhi_epi8(near, zero),
                              _mm256_unpacklo_epi8(far, zero), _mm256_unpackhi_epi8(far, zero)};
        for (int q = 0; q < 4; q++) {
            high[q] = _mm256_add_epi32(high[q], _mm256_madd_epi16(quarter[q], upper));
            low[q]  = _mm256_add_epi32(low[q], _mm256_madd_epi16(quarter[q], lower));
        }
    }
    /* Packing restores the order that unpacking changed. */
    __m256i near = _mm256_packs_epi32(combined(high[0], low[0]), combined(high[1], low[1]));
    __m256i far  = _mm256_packs_epi32(combined(high[2], low[2]), combined(high[3], low[3]));
    _mm256_storeu_si256((__m256i *)dst, _mm256_packus_epi16(near, far));
}

TARGET static bool resize_down(const int32_t *weight, int taps, const uint8_t *src, size_t stride, uint8_t *dst,
                               size_t count) {
    int32_t halves[2 * PAIRS_MAX];
    if (taps > 2 * PAIRS_MAX || count < COLUMNS) return false;
    for (int t = 0; t < taps; t += 2) {
        uint32_t a = (uint32_t)weight[t], b = t + 1 < taps ? (uint32_t)weight[t + 1] : 0;
        halves[t]     = (int32_t)(a >> HALF_BITS | b >> HALF_BITS << 16);
        halves[t + 1] = (int32_t)((a & HALF_MASK) | (b & HALF_MASK) << 16);
    }
    for (size_t at = 0; at < count; at += COLUMNS) {
        size_t start = CR_MIN(at, count - COLUMNS); /* the last columns overlap those before */
        down_columns(halves, taps, src + start, stride, dst + start);
    }
    return true;
}

const struct cr_resize_kernel cr_resize_avx2 = {across_bytes, make_across, resize_across, resize_down};

#endif

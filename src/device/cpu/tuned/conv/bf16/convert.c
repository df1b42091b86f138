/* device/cpu/tuned/conv/bf16/convert.c: rounding to bf16 in the order in which AMX tiles read, and the epilogue. */
#include "device/cpu/tuned/conv/bf16/bf16.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define VECTORS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

enum { LANES = 16 };

VECTORS static inline __mmask16 mask_of(int64_t count) {
    return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << CR_MAX(count, 0)) - 1);
}

/* 32 numbers: those of `first`, then those of `second`. */
VECTORS static inline __m512i rounded(__m512 first, __m512 second) {
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

VECTORS void cr_bf16_round(const float *x, int64_t count, uint16_t *to) {
    for (; count >= 2 * LANES; count -= 2 * LANES, x += 2 * LANES, to += 2 * LANES)
        _mm512_storeu_si512(to, rounded(_mm512_loadu_ps(x), _mm512_loadu_ps(x + LANES)));
    if (!count) return;
    const __m512 first  = _mm512_maskz_loadu_ps(mask_of(count), x),
                 second = _mm512_maskz_loadu_ps(mask_of(count - LANES), x + LANES);
    _mm512_mask_storeu_epi16(to, (__mmask32)((1u << count) - 1), rounded(first, second));
}

/* (first[0], second[0]), (first[1], second[1]), ... */
VECTORS static inline __m512i pairs_of(const float *first, const float *second, __mmask16 mask) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order,
                                    rounded(_mm512_maskz_loadu_ps(mask, first), _mm512_maskz_loadu_ps(mask, second)));
}

/* Transposes 16x16 pairs. */
VECTORS static inline void transpose(__m512i r[LANES]) {
    __m512i t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i]     = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j]     = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < LANES; i += 8)
        for (int j = 0; j < 4; j++) {
            t[i + j]     = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 4; j++) {
        r[j]      = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8]  = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
        r[j + 4]  = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0x88);
        r[j + 12] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0xdd);
    }
}

VECTORS void cr_bf16_pairs(const float *const row[CR_BF16_DEPTH], int64_t count, uint16_t *to) {
    const __mmask16 mask = mask_of(count);
    for (int i = 0; i < LANES; i++)
        _mm512_storeu_si512(to + i * CR_BF16_DEPTH, pairs_of(row[2 * i], row[2 * i + 1], mask));
}

VECTORS void cr_bf16_transpose(const float *const row[CR_BF16_DEPTH], int64_t count, uint16_t *to, int64_t pitch) {
    const __mmask16 mask = mask_of(count);
    __m512i         r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = pairs_of(row[2 * i], row[2 * i + 1], mask);
    transpose(r);
    for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + i * pitch, r[i]);
}

VECTORS void cr_bf16_pairs_transposed(const float *const row[CR_BF16_ROWS], int64_t count, uint16_t *to) {
    const __mmask16 first = mask_of(count), second = mask_of(count - LANES);
    __m512i         r[LANES];
    for (int i = 0; i < LANES; i++)
        r[i] = rounded(_mm512_maskz_loadu_ps(first, row[i]), _mm512_maskz_loadu_ps(second, row[i] + LANES));
    transpose(r);
    for (int i = 0; i < LANES; i++) _mm512_storeu_si512(to + i * CR_BF16_DEPTH, r[i]);
}

VECTORS void cr_bf16_finish(float *y, const float *sum, const float *bias, const float *add, bool relu, bool stream,
                            int64_t count) {
    for (; count > 0; count -= LANES, y += LANES, sum += LANES) {
        const __mmask16 mask = mask_of(count);
        __m512          v    = _mm512_loadu_ps(sum);
        if (bias) {
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias));
            bias += LANES;
        }
        if (add) {
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, add));
            add += LANES;
        }
        if (relu) v = _mm512_max_ps(_mm512_setzero_ps(), v); /* the second operand where it is NaN */
        if (stream && count >= LANES)
            _mm512_stream_ps(y, v);
        else
            _mm512_mask_storeu_ps(y, mask, v);
    }
}

void cr_bf16_fence(void) {
    _mm_sfence();
}

VECTORS void cr_bf16_store(float *y, const float *sum, bool add, int64_t count) {
    const __mmask16 mask = mask_of(count);
    __m512          v    = _mm512_loadu_ps(sum);
    if (add) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, y));
    _mm512_mask_storeu_ps(y, mask, v);
}

#endif

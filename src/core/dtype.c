/* core/dtype.c: tables of element types, and rounding to f16 and bf16; see core/dtype.h. */
#include "core/dtype.h"

#include <string.h>

static const struct {
    size_t      bytes;
    const char *name, *safetensors_name;
} dtypes[] = {
#define X(constant, name, st_name, bytes) [constant] = {bytes, name, st_name},
    CR_DTYPES(X)
#undef X
};

size_t cr_dtype_bytes(enum cr_dtype dtype) {
    return dtypes[dtype].bytes;
}

const char *cr_dtype_name(enum cr_dtype dtype) {
    return dtypes[dtype].name;
}

const char *cr_dtype_safetensors_name(enum cr_dtype dtype) {
    return dtypes[dtype].safetensors_name;
}

static uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t cr_f32_to_bf16(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* keeps NaN a quiet NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float cr_bf16_to_f32(uint16_t h) {
    return bits_float((uint32_t)h << 16);
}

uint16_t cr_f32_to_f16(float x) {
    uint32_t u = float_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds beyond 65504 */
    if (a < 0x38800000u) {                                   /* below 2^-14: a multiple of 2^-24 */
        float    scaled = bits_float(a) * 0x1p24f;           /* exact; rounding to an integer is ties-to-even below */
        uint32_t whole  = (uint32_t)scaled;
        float    rest   = scaled - (float)whole;
        if (rest > 0.5f || (rest == 0.5f && (whole & 1))) whole++;
        return (uint16_t)(sign | whole);
    }
    uint32_t rounded = a + 0xfffu + (a >> 13 & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

float cr_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* As cr_f16_to_f32, without branches. 2^112 moves the exponent; the product is exact, of denormal numbers too. */
static inline float f16_bits_to_f32(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, size = (h & 0x7fffu) << 13;
    const uint32_t bits = float_bits(bits_float(size) * 0x1p112f);
    return bits_float((size >= 0x0f800000u ? bits | 0x7f800000u : bits) | sign); /* infinity and NaN */
}

void cr_numbers_to_f32(enum cr_dtype dtype, const void *data, int64_t count, float *out) {
    const uint16_t *half = data;
    switch (dtype) {
    case CR_F32: memcpy(out, data, (size_t)count * sizeof *out); return;
    case CR_F16:
        for (int64_t i = 0; i < count; i++) out[i] = f16_bits_to_f32(half[i]);
        return;
    case CR_BF16:
        for (int64_t i = 0; i < count; i++) out[i] = cr_bf16_to_f32(half[i]);
        return;
    default:
        for (int64_t i = 0; i < count; i++) out[i] = (float)cr_number_load(dtype, data, i);
    }
}

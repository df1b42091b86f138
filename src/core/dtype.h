/* core/dtype.h: element types (f32, f16, bf16, i8, ...), their sizes and names, and rounding between them. */
#ifndef CR_DTYPE_H
#define CR_DTYPE_H

#include "core/base.h"

/* constant, name in program listings, name in safetensors, bytes per element */
#define CR_DTYPES(X)                                                                                                   \
    X(CR_F32, "f32", "F32", 4)                                                                                         \
    X(CR_F64, "f64", "F64", 8)                                                                                         \
    X(CR_F16, "f16", "F16", 2)                                                                                         \
    X(CR_BF16, "bf16", "BF16", 2)                                                                                      \
    X(CR_U8, "u8", "U8", 1)                                                                                            \
    X(CR_I32, "i32", "I32", 4)                                                                                         \
    X(CR_I64, "i64", "I64", 8)                                                                                         \
    X(CR_I8, "i8", "I8", 1)

enum cr_dtype {
#define X(constant, name, st_name, bytes) constant,
    CR_DTYPES(X)
#undef X
};

size_t      cr_dtype_bytes(enum cr_dtype dtype);
const char *cr_dtype_name(enum cr_dtype dtype);             /* "f32" */
const char *cr_dtype_safetensors_name(enum cr_dtype dtype); /* "F32" */

/* Rounding is to nearest, ties to even. Overflow gives infinity; NaN stays NaN. */
uint16_t cr_f32_to_f16(float x);
float    cr_f16_to_f32(uint16_t h);
uint16_t cr_f32_to_bf16(float x);
float    cr_bf16_to_f32(uint16_t h);

/* Loads element i of an array of the given type as a double, and stores a double with the rounding above (integers
 * truncate). Both are inline, so that the compiler specialises a loop over one type. */
static inline __attribute__((always_inline)) double cr_number_load(enum cr_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case CR_F32: return (double)((const float *)data)[i];
    case CR_F64: return ((const double *)data)[i];
    case CR_F16: return (double)cr_f16_to_f32(((const uint16_t *)data)[i]);
    case CR_BF16: return (double)cr_bf16_to_f32(((const uint16_t *)data)[i]);
    case CR_U8: return (double)((const uint8_t *)data)[i];
    case CR_I32: return (double)((const int32_t *)data)[i];
    case CR_I64: return (double)((const int64_t *)data)[i];
    case CR_I8: return (double)((const int8_t *)data)[i];
    }
    return 0;
}

/* Converts `count` elements of an array to f32; loops over one type are vectorised. */
void cr_numbers_to_f32(enum cr_dtype dtype, const void *data, int64_t count, float *out);

static inline __attribute__((always_inline)) void cr_number_store(enum cr_dtype dtype, void *data, int64_t i,
                                                                  double x) {
    switch (dtype) {
    case CR_F32: ((float *)data)[i] = (float)x; return;
    case CR_F64: ((double *)data)[i] = x; return;
    case CR_F16: ((uint16_t *)data)[i] = cr_f32_to_f16((float)x); return;
    case CR_BF16: ((uint16_t *)data)[i] = cr_f32_to_bf16((float)x); return;
    case CR_U8: ((uint8_t *)data)[i] = (uint8_t)x; return;
    case CR_I32: ((int32_t *)data)[i] = (int32_t)x; return;
    case CR_I64: ((int64_t *)data)[i] = (int64_t)x; return;
    case CR_I8: ((int8_t *)data)[i] = (int8_t)x; return;
    }
}

#endif

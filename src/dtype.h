/* dtype.h: element types and rounding. */
#ifndef CR_DTYPE_H
#define CR_DTYPE_H

#include "base.h"

/* constant, name in programs, name in safetensors, bytes */
#define CR_DTYPES(X)                                                                                                   \
    X(CR_F32, "f32", "F32", 4)                                                                                         \
    X(CR_F64, "f64", "F64", 8)                                                                                         \
    X(CR_F16, "f16", "F16", 2)                                                                                         \
    X(CR_BF16, "bf16", "BF16", 2)                                                                                      \
    X(CR_U8, "u8", "U8", 1)                                                                                            \
    X(CR_I32, "i32", "I32", 4)                                                                                         \
    X(CR_I64, "i64", "I64", 8)

enum cr_dtype {
#define X(constant, name, st_name, bytes) constant,
    CR_DTYPES(X)
#undef X
};

size_t      cr_dtype_bytes(enum cr_dtype dtype);
const char *cr_dtype_name(enum cr_dtype dtype);             /* "f32" */
const char *cr_dtype_safetensors_name(enum cr_dtype dtype); /* "F32" */

/* Round to nearest, ties to even; overflow gives infinity, NaN stays NaN. */
uint16_t cr_f32_to_f16(float x);
float    cr_f16_to_f32(uint16_t h);
uint16_t cr_f32_to_bf16(float x);
float    cr_bf16_to_f32(uint16_t h);

#endif

/* tests/unit/data/simde/image_resize_simde.c: the resize with its AVX-512 source compiled through SIMDe, which computes
 * these intrinsics with other instructions: it runs on every x86-64 processor, and the sanitizers see its loads.
 *
 * The other code of the level avx512 needs the processor: the intrinsics in src/device/cpu/tuned compute in bf16 or
 * 8 bits, what compilers vectorise for the target avx512f (CR_BY_LEVEL) is the same C source as at the other levels,
 * and oneDNN generates its machine code. */
#include "tests/unit/data/simde/image_resize_simde.h"

#if defined(__x86_64__) && __has_include(<simde/x86/avx512.h>)

#include <immintrin.h> /* before SIMDe's macros of the same names */
#include <math.h>
#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* clang: all callers of these inline functions are in this file */

/* SIMDe 0.7.4 lacks these. They access only the bytes of the mask. */
static simde__m512i load_bytes(uint64_t mask, const void *from) {
    uint8_t bytes[64] = {0};
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) bytes[i] = ((const uint8_t *)from)[i];
    return simde_mm512_loadu_si512(bytes);
}
static void store_bytes(void *to, uint64_t mask, simde__m512i v) {
    uint8_t bytes[64];
    simde_mm512_storeu_si512(bytes, v);
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) ((uint8_t *)to)[i] = bytes[i];
}
static void store_clamped(void *to, unsigned mask, simde__m512i v) {
    uint32_t numbers[16];
    simde_mm512_storeu_si512(numbers, v);
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) ((uint8_t *)to)[i] = (uint8_t)(numbers[i] > 255 ? 255 : numbers[i]);
}
#undef _mm512_maskz_loadu_epi8
#undef _mm512_mask_storeu_epi8
#undef _mm512_mask_cvtusepi32_storeu_epi8
#define _mm512_maskz_loadu_epi8 load_bytes
#define _mm512_mask_storeu_epi8 store_bytes
#define _mm512_mask_cvtusepi32_storeu_epi8 store_clamped

/* The two sources under other names, and without the attribute target(...). */
#define cr_resize_avx512 simde_resize_avx512
#define cr_resize_run simde_resize_run
#define cr_image_resize simde_image_resize
#define WEIGHT_BITS WEIGHT_BITS_512
#define target(features)
#include "src/data/image/resize_avx512.c"
#undef target
#undef WEIGHT_BITS
#define cr_cpu_has(feature) true
#include "src/data/image/resize.c"

bool image_resize_has_simde(void) {
    return true;
}

#else

bool image_resize_has_simde(void) {
    return false;
}
cr_status simde_resize_run(const struct cr_resize *job, struct cr_buffer *tables) {
    return cr_resize_run(job, tables);
}

#endif

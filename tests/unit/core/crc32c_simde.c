/* tests/unit/core/crc32c_simde.c: core/checksum/crc32c_avx512.c compiled through SIMDe, which computes these
 * intrinsics with other instructions: it runs on every x86-64 processor, and the sanitizers see its loads. */
#include "tests/unit/core/crc32c_simde.h"

#if defined(__x86_64__) && __has_include(<simde/x86/clmul.h>)

#include <immintrin.h> /* before SIMDe's macros of the same names */
#include <pthread.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/clmul.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* clang: all callers of these inline functions are in this file */

/* The source under other names, and without the attribute target(...). */
#define cr_crc32c_has_avx512 simde_has_avx512
#define cr_crc32c_avx512 simde_crc32c_avx512
#define target(features)
#include "src/core/checksum/crc32c_avx512.c"

bool crc32c_has_simde(void) {
    return true;
}

#else

bool crc32c_has_simde(void) {
    return false;
}
uint32_t simde_crc32c_avx512(uint32_t crc, const uint8_t *bytes, size_t blocks) {
    return cr_crc32c(crc, bytes, blocks * CR_CRC32C_AVX512_BLOCK);
}

#endif

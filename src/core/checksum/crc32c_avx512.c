/* core/checksum/crc32c_avx512.c: CRC-32C of many bytes with products of polynomials (VPCLMULQDQ), at twice the speed of
 * the CRC instruction.
 *
 * Bytes are a polynomial over GF(2), the first bit has the highest power, and the sum is its remainder modulo P. A
 * block of 256 bytes is moved behind the next one by multiplying it with x^2048 modulo P, and added to that one, until
 * one block is left. It has the same remainder as all bytes.
 *
 * A product of two 64-bit halves has 127 bits, so in the order of these bits it counts as one power of x more. The low
 * half of 16 bytes holds the powers x^64 and above. So the halves are multiplied by x^(2048 + 64 - 1) and x^(2048 - 1).
 */
#include "core/checksum/crc32c.h"
#include "core/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <pthread.h>

enum { BLOCK = CR_CRC32C_AVX512_BLOCK, VECTORS = BLOCK / 64 };

static uint64_t       low_power, high_power; /* the factors of the two halves, each with 32 bits in its upper half */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* x^(7 + 8 * bytes) modulo P: bit 24 of the register is x^7, and every zero byte multiplies by x^8. */
static uint64_t power(size_t bytes) {
    static const uint8_t zeros[BLOCK + 8];
    return (uint64_t)~cr_crc32c_plain(~((uint32_t)1 << 24), zeros, bytes) << 32;
}

static void make_powers(void) {
    low_power  = power(BLOCK + 7);
    high_power = power(BLOCK - 1);
}

bool cr_crc32c_has_avx512(void) {
    return cr_cpu_has(CR_CPU_AVX512_VPCLMUL);
}

__attribute__((target("avx512f,vpclmulqdq"))) uint32_t cr_crc32c_avx512(uint32_t crc, const uint8_t *b, size_t blocks) {
    uint8_t rest[BLOCK];
    __m512i sum[VECTORS];
    pthread_once(&once, make_powers);
    const __m512i powers =
        _mm512_set4_epi64((long long)high_power, (long long)low_power, (long long)high_power, (long long)low_power);
    for (int i = 0; i < VECTORS; i++) sum[i] = _mm512_loadu_si512(b + 64 * i);
    sum[0] = _mm512_xor_si512(sum[0], _mm512_maskz_set1_epi32(1, (int)~crc));
    for (size_t block = 1; block < blocks; block++) {
        b += BLOCK;
        for (int i = 0; i < VECTORS; i++) {
            const __m512i low  = _mm512_clmulepi64_epi128(sum[i], powers, 0x00);
            const __m512i high = _mm512_clmulepi64_epi128(sum[i], powers, 0x11);
            sum[i]             = _mm512_xor_si512(_mm512_xor_si512(low, high), _mm512_loadu_si512(b + 64 * i));
        }
    }
    for (int i = 0; i < VECTORS; i++) _mm512_storeu_si512(rest + 64 * i, sum[i]);
    return cr_crc32c(UINT32_MAX, rest, BLOCK); /* a register of 0: the block contains the one before it */
}
#else
bool cr_crc32c_has_avx512(void) {
    return false;
}
uint32_t cr_crc32c_avx512(uint32_t crc, const uint8_t *b, size_t blocks) {
    return cr_crc32c(crc, b, blocks * CR_CRC32C_AVX512_BLOCK);
}
#endif

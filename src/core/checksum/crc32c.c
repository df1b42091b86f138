/* core/checksum/crc32c.c: CRC-32C, with the CPU's CRC instruction where it exists. */
#include "core/checksum/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { POLYNOMIAL = 0x82f63b78 }; /* Castagnoli's polynomial, bits reversed */

/* Processes four bits at a time. The table has 16 entries and is computed in each call. */
uint32_t cr_crc32c_plain(uint32_t crc, const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    uint32_t       table[16];
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 4; bit++) value = value >> 1 ^ (value & 1 ? (uint32_t)POLYNOMIAL : 0);
        table[i] = value;
    }
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= b[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const uint8_t *b, size_t count) {
    uint64_t sum = ~crc;
    for (; count >= 8; count -= 8, b += 8) {
        uint64_t word;
        memcpy(&word, b, 8);
        sum = _mm_crc32_u64(sum, word);
    }
    for (; count; count--, b++) sum = _mm_crc32_u8((uint32_t)sum, *b);
    return ~(uint32_t)sum;
}
#endif

uint32_t cr_crc32c(uint32_t crc, const void *bytes, size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc_sse42(crc, bytes, count);
#endif
    return cr_crc32c_plain(crc, bytes, count);
}

/* core/checksum/crc32c.c: CRC-32C, with the CPU's CRC instruction where it exists. */
#include "core/checksum/crc32c.h"

#include "core/cpu.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { POLYNOMIAL = 0x82f63b78 }; /* Castagnoli's polynomial, bits reversed */

/* tables[0][b] is the sum of byte b, tables[n][b] that of b followed by n zero bytes: the sum of eight bytes is the
 * exclusive or of eight independent lookups. */
static uint32_t       tables[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? (uint32_t)POLYNOMIAL : 0);
        tables[0][byte] = value;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++)
            tables[n][byte] = tables[n - 1][byte] >> 8 ^ tables[0][tables[n - 1][byte] & 255];
}

static uint32_t load32(const uint8_t *b) {
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint32_t cr_crc32c_plain(uint32_t crc, const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    pthread_once(&once, make_tables);
    crc = ~crc;
    for (; count >= 8; count -= 8, b += 8) {
        const uint32_t low = crc ^ load32(b), high = load32(b + 4);
        crc = 0;
        for (int i = 0; i < 4; i++) crc ^= tables[7 - i][low >> 8 * i & 255] ^ tables[3 - i][high >> 8 * i & 255];
    }
    for (; count; count--, b++) crc = crc >> 8 ^ tables[0][(crc ^ *b) & 255];
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
    if (cr_cpu_has(CR_CPU_SSE42)) return crc_sse42(crc, bytes, count);
#endif
    return cr_crc32c_plain(crc, bytes, count);
}
